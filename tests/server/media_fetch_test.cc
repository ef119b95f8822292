// Fetching of image links, against a small server on the loopback address.
#include "server/media_fetch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "server/support.h"

namespace di::server {
namespace {

// One pixel.
constexpr std::string_view kPixel =
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg==";

// Answers each connection by its path, one after the other.
class Loopback {
 public:
  Loopback() {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, generic, size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, generic, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this] { serve(); });
  }
  ~Loopback() {
    shutdown(listener_, SHUT_RDWR);
    thread_ = {};
    close(listener_);
  }
  std::string url(const std::string& path) const { return fmt::format("http://127.0.0.1:{}{}", port_, path); }
  int requests() const { return requests_; }
  uint16_t port() const { return port_; }
  // Read between requests only.
  const std::string& tunnels_to() const { return tunnels_to_; }
  void refuse_tunnels() { refuses_tunnels_ = true; }

 private:
  static std::string read_head(int fd) {
    std::string text;
    char part[1024];
    while (text.find("\r\n\r\n") == std::string::npos) {
      const ssize_t n = recv(fd, part, sizeof part, 0);
      if (n <= 0) break;
      text.append(part, static_cast<size_t>(n));
    }
    return text;
  }
  void serve() {
    while (true) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      char part[1024];
      std::string text = read_head(fd);
      ++requests_;
      if (text.starts_with("CONNECT ")) {
        // As a proxy that stands before this same server.
        tunnels_to_ = text.substr(8, text.find(' ', 8) - 8);
        const std::string_view agreed = refuses_tunnels_ ? "HTTP/1.1 403 No\r\n\r\n" : "HTTP/1.1 200 OK\r\n\r\n";
        static_cast<void>(send(fd, agreed.data(), agreed.size(), MSG_NOSIGNAL));
        text = read_head(fd);
      }
      if (text.empty()) {
        close(fd);
        continue;
      }
      const std::string path = text.substr(4, text.find(' ', 4) - 4);
      const std::string answer = answer_to(path);
      if (path == "/silent") {
        static_cast<void>(recv(fd, part, sizeof part, 0));  // until the other side gives up
      } else {
        static_cast<void>(send(fd, answer.data(), answer.size(), MSG_NOSIGNAL));
      }
      close(fd);
    }
  }
  std::string answer_to(const std::string& path) const {
    const auto with_body = [](const std::string& body) {
      return fmt::format("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}", body.size(), body);
    };
    const auto moved = [](const std::string& to) {
      return "HTTP/1.1 302 Found\r\nlocation: " + to + "\r\ncontent-length: 0\r\n\r\n";
    };
    if (path == "/image") return with_body("bytes of an image");
    if (path == "/pixel.png") return with_body(codec::read_data_url(kPixel).value());
    if (path == "/moved.png") return moved("/pixel.png");
    if (path == "/inner.png") return moved("http://127.0.0.1/pixel.png");
    if (path == "/large") return with_body(std::string(2000, 'x'));
    if (path == "/chunked") return "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nbytes\r\n0\r\n\r\n";
    if (path == "/endless") return "HTTP/1.1 200 OK\r\n\r\n" + std::string(5000, 'x');
    if (path == "/moved") return moved("/image");
    if (path == "/loop") return moved("/loop");
    if (path == "/away") return moved("http://169.254.169.254/latest/meta-data");
    if (path == "/file") return moved("file:///etc/passwd");
    return "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
  }

  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<int> requests_ = 0;
  std::string tunnels_to_;
  std::atomic<bool> refuses_tunnels_ = false;
  std::jthread thread_;
};

class MediaFetch : public ::testing::Test {
 protected:
  MediaFetch() {
    options_.policy.enabled = true;
    options_.policy.allow_domains = {"127.0.0.1", "localhost", "169.254.169.254"};
    options_.reachable = [](const std::string& address) { return address == "127.0.0.1" || address == "::1"; };
  }
  std::string get(const std::string& path) {
    const auto bytes = fetch_media(options_, server_.url(path), 1000);
    return bytes ? *bytes : bytes.error().message;
  }
  Loopback server_;
  MediaFetchOptions options_;
};

// Addresses given as such are checked with the URL, so the loopback server is asked by its name.
TEST_F(MediaFetch, B081_AddressesOfThisHostAreRefusedWhateverTheList) {
  EXPECT_EQ(get("/image"), "link: an address that is not public");
  options_.reachable = nullptr;
  const std::string url = server_.url("/image").replace(7, 9, "localhost");
  const auto bytes = fetch_media(options_, url, 1000);
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code, Errc::kInvalidRequest);
  EXPECT_NE(bytes.error().message.find("which is not public"), std::string::npos) << bytes.error().message;
  EXPECT_EQ(server_.requests(), 0);
}

class NamedMediaFetch : public MediaFetch {
 protected:
  std::string get(const std::string& path) {
    options_.reachable = [](const std::string& address) { return address == "127.0.0.1"; };
    const auto bytes = fetch_media(options_, server_.url(path).replace(7, 9, "localhost"), 1000);
    return bytes ? *bytes : bytes.error().message;
  }
  void SetUp() override {
    if (get("/image").find("which is not public") != std::string::npos) {
      GTEST_SKIP() << "localhost has an address beside 127.0.0.1 here";
    }
  }
};

TEST_F(NamedMediaFetch, BodiesComeWithinTheirLimit) {
  EXPECT_EQ(get("/image"), "bytes of an image");
  EXPECT_EQ(get("/chunked"), "bytes");
  EXPECT_EQ(get("/large"), "link: more than 1000 bytes");
  EXPECT_EQ(get("/endless"), "link: more than 1000 bytes");
  EXPECT_EQ(get("/none"), "link: localhost answers with status 404");
}

TEST_F(NamedMediaFetch, B081_RedirectsAreBoundedAndChecked) {
  EXPECT_EQ(get("/moved"), "bytes of an image");
  EXPECT_EQ(get("/loop"), "link: more than 3 redirects");
  EXPECT_EQ(get("/away"), "link: an address that is not public");
  EXPECT_EQ(get("/file"), "link: only http and https are fetched");
}

// The proxy is asked for the address that was checked, so that it cannot find another one behind the name.
TEST_F(NamedMediaFetch, B081_AProxyIsToldTheCheckedAddress) {
  ASSERT_TRUE(set_proxy(options_, fmt::format("http://127.0.0.1:{}", server_.port())));
  const int before = server_.requests();
  EXPECT_EQ(get("/image"), "bytes of an image");
  EXPECT_EQ(server_.tunnels_to(), fmt::format("127.0.0.1:{}", server_.port()));
  EXPECT_EQ(server_.requests(), before + 1);
  EXPECT_EQ(get("/away"), "link: an address that is not public");
  server_.refuse_tunnels();
  EXPECT_EQ(get("/image"), "link: the proxy answers with status 403 for localhost");
  ASSERT_TRUE(set_proxy(options_, "127.0.0.1:1"));
  EXPECT_EQ(get("/image"), "link: the proxy cannot be connected to");
}

TEST(MediaProxy, IsGivenAsHostAndPort) {
  MediaFetchOptions options;
  EXPECT_TRUE(set_proxy(options, "http://proxy.example:3128/"));
  EXPECT_EQ(options.proxy_host, "proxy.example");
  EXPECT_EQ(options.proxy_port, 3128);
  EXPECT_TRUE(set_proxy(options, "[::1]:80"));
  EXPECT_EQ(options.proxy_host, "::1");
  for (const char* bad :
       {"", "proxy", "proxy:", "proxy:0", "proxy:70000", ":80", "https://proxy:80", "http://u@h:80", "a:8x"})
    EXPECT_FALSE(set_proxy(options, bad)) << bad;
}

TEST_F(NamedMediaFetch, TimeIsBounded) {
  options_.policy.total_ms = 100;
  EXPECT_EQ(get("/silent"), "link: 100 ms are over");
}

TEST_F(MediaFetch, OffUnlessConfigured) {
  options_.policy = {};
  EXPECT_EQ(get("/image"), "link: links are not fetched here");
  EXPECT_EQ(server_.requests(), 0);
}

// Links through the routes: fetched where the configuration allows it, counted like any image, and otherwise an error
// of that request which says nothing of what is behind the link.
class LinkedImages : public NamedMediaFetch {
 protected:
  void SetUp() override {
    NamedMediaFetch::SetUp();
    if (test_tokenizer() == nullptr) GTEST_SKIP() << "no tokenizer.json in models/tiny nor in the reference vectors";
    ServerConfig config;
    config.media_fetch = options_;
    config.media_fetch.policy.allow_domains = {"localhost"};
    server_of_requests_ = std::make_unique<TestServer>(std::move(config));
    server_of_requests_->use_scripted({});
  }
  static Json url_part(const std::string& url) {
    return *parse_json(R"({"type":"image_url","image_url":{"url":")" + url + R"("}})");
  }
  Answer ask(const std::vector<std::string>& urls) {
    Json parts;
    for (const std::string& url : urls) parts.push_back(url_part(url));
    return server_of_requests_->ask(
        post(R"({"model":"test","messages":[{"role":"user","content":)" + to_json(parts) + "}]}"));
  }
  std::string link(const std::string& path) const { return server_.url(path).replace(7, 9, "localhost"); }
  static int64_t prompt_tokens(const Answer& answer) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    const Json body = answer.json();
    return answer.status == 200 ? *body.find("usage")->find("prompt_tokens")->to_i64() : 0;
  }
  std::unique_ptr<TestServer> server_of_requests_;
};

TEST_F(LinkedImages, CountLikeThoseSentAlong) {
  const int64_t expected = prompt_tokens(ask({std::string(kPixel)}));
  EXPECT_GT(expected, 184);
  EXPECT_EQ(prompt_tokens(ask({link("/pixel.png")})), expected);
  EXPECT_EQ(prompt_tokens(ask({link("/moved.png")})), expected);
  // Each link is fetched once per request, several at a time.
  const int before = server_.requests();
  std::vector<std::string> many(20, link("/pixel.png"));
  for (size_t i = 0; i < 10; ++i) many[i] += fmt::format("#{}", i);
  EXPECT_EQ(prompt_tokens(ask(many)), prompt_tokens(ask(std::vector<std::string>(20, std::string(kPixel)))));
  EXPECT_EQ(server_.requests(), before + 11);
}

TEST_F(LinkedImages, FailEachForItself) {
  const std::string elsewhere = "http://example.invalid/pixel.png";
  for (const std::string& url : {link("/none"), link("/loop"), link("/away"), link("/file"), link("/inner.png"),
                                 server_.url("/pixel.png"), elsewhere, std::string("http://169.254.169.254/")}) {
    const Answer answer = ask({std::string(kPixel), url});
    EXPECT_EQ(answer.status, 400) << url;
    const Json error = answer.error();
    EXPECT_EQ(error.find("message")->as_string(), ".messages[0].image[1]: Failed to download image from " + url);
    EXPECT_EQ(error.find("param")->as_string(), "messages[0]");
    EXPECT_EQ(answer.error_code(), "invalid_value");
  }
  EXPECT_EQ(ask({link("/image")}).status, 400) << "bytes that are no image";
  EXPECT_EQ(ask({std::string(kPixel)}).status, 200);
}

}  // namespace
}  // namespace di::server
