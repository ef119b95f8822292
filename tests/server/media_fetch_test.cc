// Fetching of image links, against a small server on the loopback address.
#include "server/media_fetch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace di::server {
namespace {

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

 private:
  void serve() {
    while (true) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      std::string text;
      char part[1024];
      while (text.find("\r\n\r\n") == std::string::npos) {
        const ssize_t n = recv(fd, part, sizeof part, 0);
        if (n <= 0) break;
        text.append(part, static_cast<size_t>(n));
      }
      ++requests_;
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
TEST_F(MediaFetch, AddressesOfThisHostAreRefusedWhateverTheList) {
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

TEST_F(NamedMediaFetch, RedirectsAreBoundedAndChecked) {
  EXPECT_EQ(get("/moved"), "bytes of an image");
  EXPECT_EQ(get("/loop"), "link: more than 3 redirects");
  EXPECT_EQ(get("/away"), "link: an address that is not public");
  EXPECT_EQ(get("/file"), "link: only http and https are fetched");
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

}  // namespace
}  // namespace di::server
