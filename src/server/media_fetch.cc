#include "server/media_fetch.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <charconv>
#include <chrono>
#include <optional>

namespace di::server {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = asio::ip::tcp;
using boost::system::error_code;

bool is_public(const std::string& text) {
  error_code ignored;
  const asio::ip::address address = asio::ip::make_address(text, ignored);
  if (ignored) return false;
  return address.is_v4() ? codec::is_public_address(codec::Ipv4(address.to_v4().to_bytes()))
                         : codec::is_public_address(codec::Ipv6(address.to_v6().to_bytes()));
}

struct Answer {
  int status = 0;
  std::string location;
  std::string body;
};

class Fetch {
 public:
  Fetch(const MediaFetchOptions& options, size_t max_bytes) : options_(options), max_bytes_(max_bytes) {
    tls_.set_default_verify_paths();
    tls_.set_verify_mode(asio::ssl::verify_peer);
  }

  Result<std::string> run(const std::string& text) {
    Result<codec::FetchUrl> url = codec::parse_fetch_url(text);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.policy.total_ms);
    for (int redirects = 0; url; ++redirects) {
      DI_TRY(codec::check_host(options_.policy, *url));
      const Answer answer = DI_TRY(ask(*url, deadline));
      if (answer.status == 200) return answer.body;
      const bool moved = answer.status == 301 || answer.status == 302 || answer.status == 303 || answer.status == 307 ||
                         answer.status == 308;
      if (!moved) return fail(Errc::kUnavailable, "link: {} answers with status {}", url->host, answer.status);
      if (redirects == options_.policy.max_redirects) {
        return fail(Errc::kUnavailable, "link: more than {} redirects", options_.policy.max_redirects);
      }
      url = codec::redirect_target(*url, answer.location);
    }
    return std::unexpected(url.error());
  }

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  Result<Answer> ask(const codec::FetchUrl& url, Deadline deadline) {
    asio::io_context io;
    std::optional<Result<Answer>> answer;
    asio::co_spawn(io, exchange(url, io, deadline), [&](std::exception_ptr problem, Result<Answer> result) {
      if (problem == nullptr) answer = std::move(result);
    });
    io.run_until(deadline);
    if (!answer) return fail(Errc::kDeadlineExceeded, "link: {} ms are over", options_.policy.total_ms);
    return *std::move(answer);
  }

  // Every address of the host must pass, not only the one that is used: a name with one foreign and one inner address
  // is a trap.
  Result<Tcp::endpoint> checked(const codec::FetchUrl& url, const Tcp::resolver::results_type& found) const {
    std::optional<Tcp::endpoint> first;
    for (const auto& entry : found) {
      const std::string address = entry.endpoint().address().to_string();
      if (options_.reachable ? !options_.reachable(address) : !is_public(address)) {
        return fail(Errc::kInvalidRequest, "link: {} has the address {}, which is not public", url.host, address);
      }
      if (!first) first = entry.endpoint();
    }
    if (!first) return fail(Errc::kUnavailable, "link: {} has no address", url.host);
    return *first;
  }

  asio::awaitable<Result<Answer>> exchange(const codec::FetchUrl& url, asio::io_context& io, Deadline deadline) {
    error_code problem;
    auto token = asio::redirect_error(asio::use_awaitable, problem);
    Tcp::resolver resolver(io);
    const auto found = co_await resolver.async_resolve(url.host, std::to_string(url.port), token);
    if (problem) co_return fail(Errc::kUnavailable, "link: {} is not found", url.host);
    const Result<Tcp::endpoint> endpoint = checked(url, found);
    if (!endpoint) co_return std::unexpected(endpoint.error());

    asio::ssl::stream<beast::tcp_stream> stream(io, tls_);
    beast::tcp_stream& plain = stream.next_layer();
    plain.expires_after(std::chrono::milliseconds(options_.policy.connect_ms));
    const Result<void> connected = co_await connect(plain, *endpoint, url);
    if (!connected) co_return std::unexpected(connected.error());
    plain.expires_at(deadline);
    if (!url.tls) co_return co_await request(plain, url);
    std::string name = url.host;  // told to the server before it shows its certificate
    const auto sni = TLSEXT_NAMETYPE_host_name;
    if (!url.ip_literal && SSL_ctrl(stream.native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME, sni, name.data()) != 1) {
      co_return fail(Errc::kInternal, "link: no TLS for {}", url.host);
    }
    stream.set_verify_callback(asio::ssl::host_name_verification(url.host));
    co_await stream.async_handshake(asio::ssl::stream_base::client, token);
    if (problem) co_return fail(Errc::kUnavailable, "link: no TLS connection to {}", url.host);
    co_return co_await request(stream, url);
  }

  // To the checked address: directly, or through the proxy, which gets no name that it could resolve anew.
  asio::awaitable<Result<void>> connect(beast::tcp_stream& stream, Tcp::endpoint to, const codec::FetchUrl& url) {
    error_code problem;
    auto token = asio::redirect_error(asio::use_awaitable, problem);
    if (options_.proxy_port == 0) {
      co_await stream.async_connect(to, token);
      if (problem) co_return fail(Errc::kUnavailable, "link: {} cannot be connected to", url.host);
      co_return Result<void>();
    }
    Tcp::resolver resolver(stream.get_executor());
    const auto proxy = co_await resolver.async_resolve(options_.proxy_host, std::to_string(options_.proxy_port), token);
    if (!problem) co_await stream.async_connect(proxy, token);
    if (problem) co_return fail(Errc::kUnavailable, "link: the proxy cannot be connected to");
    const std::string address = to.address().is_v6() ? "[" + to.address().to_string() + "]" : to.address().to_string();
    const std::string target = address + ":" + std::to_string(to.port());
    http::request<http::empty_body> message(http::verb::connect, target, 11);
    message.set(http::field::host, target);
    co_await http::async_write(stream, message, token);
    http::response_parser<http::empty_body> parser;
    parser.skip(true);
    beast::flat_buffer buffer;
    if (!problem) co_await http::async_read_header(stream, buffer, parser, token);
    if (problem) co_return fail(Errc::kUnavailable, "link: the proxy does not answer");
    if (parser.get().result() != http::status::ok) {
      co_return fail(Errc::kUnavailable, "link: the proxy answers with status {} for {}", parser.get().result_int(),
                     url.host);
    }
    co_return Result<void>();
  }

  template <class Stream>
  asio::awaitable<Result<Answer>> request(Stream& stream, const codec::FetchUrl& url) {
    error_code problem;
    auto token = asio::redirect_error(asio::use_awaitable, problem);
    http::request<http::empty_body> message(http::verb::get, url.target, 11);
    const bool usual = url.port == (url.tls ? 443 : 80);
    const std::string host = url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
    message.set(http::field::host, usual ? host : host + ":" + std::to_string(url.port));
    message.set(http::field::user_agent, "deepinfer");
    message.set(http::field::accept, "image/*");
    message.set(http::field::connection, "close");
    co_await http::async_write(stream, message, token);
    if (problem) co_return fail(Errc::kUnavailable, "link: {} does not answer", url.host);
    http::response_parser<http::string_body> parser;
    parser.body_limit(max_bytes_);
    parser.header_limit(64 << 10);
    beast::flat_buffer buffer;
    co_await http::async_read(stream, buffer, parser, token);
    if (problem == http::error::body_limit) {
      co_return fail(Errc::kResourceExhausted, "link: more than {} bytes", max_bytes_);
    }
    if (problem) co_return fail(Errc::kUnavailable, "link: {} does not answer: {}", url.host, problem.message());
    Answer answer;
    answer.status = parser.get().result_int() > 999 ? 0 : static_cast<int>(parser.get().result_int());
    answer.location = parser.get()[http::field::location];
    answer.body = std::move(parser.get().body());
    co_return answer;
  }

  const MediaFetchOptions& options_;
  const size_t max_bytes_;
  asio::ssl::context tls_{asio::ssl::context::tls_client};
};

}  // namespace

Result<std::string> fetch_media(const MediaFetchOptions& options, const std::string& url, size_t max_bytes) {
  return Fetch(options, max_bytes).run(url);
}

Result<void> set_proxy(MediaFetchOptions& options, std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t colon = rest.rfind(':');
  int port = 0;
  if (colon != std::string_view::npos) {
    const std::string_view digits = rest.substr(colon + 1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) port = 0;
  }
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (port < 1 || port > 65535 || host.empty() || host.find_first_of("/@ ") != std::string_view::npos)
    return fail(Errc::kInvalidRequest, "`{}` is no proxy, expected http://HOST:PORT", text);
  options.proxy_host = std::string(host);
  options.proxy_port = static_cast<uint16_t>(port);
  return {};
}

codec::ImageFetcher make_image_fetcher(MediaFetchOptions options) {
  return [kept = std::move(options)](const std::string& url, size_t max_bytes) {
    return fetch_media(kept, url, max_bytes);
  };
}

}  // namespace di::server
