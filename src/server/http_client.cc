#include "server/http_client.h"

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
#include <optional>

namespace di::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = asio::ip::tcp;
using Message = http::request<http::string_body>;
using boost::system::error_code;

// A name as it stands before the colon of a port.
std::string bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

Message message_of(const HttpAsk& ask) {
  const codec::FetchUrl& url = ask.url;
  Message message(ask.body.empty() ? http::verb::get : http::verb::post, url.target, 11);
  const bool usual = url.port == (url.tls ? 443 : 80);
  message.set(http::field::host, usual ? bracketed(url.host) : bracketed(url.host) + ":" + std::to_string(url.port));
  message.set(http::field::user_agent, "deepinfer/" DI_VERSION);
  message.set(http::field::connection, "close");
  for (const auto& [name, value] : ask.headers) message.set(name, value);
  message.body() = ask.body;
  if (!ask.body.empty()) message.prepare_payload();
  return message;
}

class Exchange {
 public:
  Exchange(const HttpAsk& ask, asio::ssl::context& tls) : ask_(ask), tls_(tls) {}

  Result<HttpAnswer> run() {
    std::optional<Result<HttpAnswer>> answer;
    asio::co_spawn(io_, all(), [&](std::exception_ptr problem, Result<HttpAnswer> result) {
      if (problem == nullptr) answer = std::move(result);
    });
    io_.run_until(ask_.deadline);
    if (!answer) return fail(Errc::kDeadlineExceeded, "{} does not answer in time", ask_.url.host);
    return *std::move(answer);
  }

 private:
  std::unexpected<Error> unavailable(std::string_view what) const {
    return fail(Errc::kUnavailable, "{} {}", ask_.url.host, what);
  }

  asio::awaitable<Result<HttpAnswer>> all() {
    const codec::FetchUrl& url = ask_.url;
    error_code problem;
    auto token = asio::redirect_error(asio::use_awaitable, problem);
    Tcp::resolver resolver(io_);
    const auto found = co_await resolver.async_resolve(url.host, std::to_string(url.port), token);
    if (problem) co_return unavailable("is not found");
    if (found.empty()) co_return unavailable("has no address");
    if (ask_.judge) {
      std::vector<std::string> addresses;
      for (const auto& entry : found) addresses.push_back(entry.endpoint().address().to_string());
      const Result<void> judged = ask_.judge(addresses);
      if (!judged) co_return std::unexpected(judged.error());
    }

    asio::ssl::stream<beast::tcp_stream> stream(io_, tls_);
    beast::tcp_stream& plain = stream.next_layer();
    plain.expires_after(ask_.connect_limit);
    const Result<void> connected = co_await connect(plain, found);
    if (!connected) co_return std::unexpected(connected.error());
    plain.expires_at(ask_.deadline);
    if (!url.tls) co_return co_await request(plain);
    std::string name = url.host;  // told to the server before it shows its certificate
    const auto sni = TLSEXT_NAMETYPE_host_name;
    if (!url.ip_literal && SSL_ctrl(stream.native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME, sni, name.data()) != 1)
      co_return unavailable("is no name for TLS");
    stream.set_verify_callback(asio::ssl::host_name_verification(url.host));
    co_await stream.async_handshake(asio::ssl::stream_base::client, token);
    if (problem) co_return unavailable("takes no TLS connection");
    co_return co_await request(stream);
  }

  // A list that was judged is not tried through: its first address is the one, also for the proxy.
  asio::awaitable<Result<void>> connect(beast::tcp_stream& stream, const Tcp::resolver::results_type& found) {
    error_code problem;
    auto token = asio::redirect_error(asio::use_awaitable, problem);
    const Tcp::endpoint to = found.begin()->endpoint();
    if (ask_.proxy_port == 0) {
      if (ask_.judge) {
        co_await stream.async_connect(to, token);
      } else {
        co_await stream.async_connect(found, token);
      }
      if (problem) co_return unavailable("cannot be connected to");
      co_return Result<void>();
    }
    Tcp::resolver resolver(io_);
    const auto proxy = co_await resolver.async_resolve(ask_.proxy_host, std::to_string(ask_.proxy_port), token);
    if (!problem) co_await stream.async_connect(proxy, token);
    if (problem) co_return fail(Errc::kUnavailable, "the proxy cannot be connected to");
    const std::string target = bracketed(to.address().to_string()) + ":" + std::to_string(to.port());
    Message message(http::verb::connect, target, 11);
    message.set(http::field::host, target);
    co_await http::async_write(stream, message, token);
    http::response_parser<http::string_body> parser;
    parser.skip(true);
    beast::flat_buffer buffer;
    if (!problem) co_await http::async_read_header(stream, buffer, parser, token);
    if (problem) co_return fail(Errc::kUnavailable, "the proxy does not answer");
    if (parser.get().result() != http::status::ok) {
      co_return fail(Errc::kUnavailable, "the proxy answers with status {} for {}", parser.get().result_int(),
                     ask_.url.host);
    }
    co_return Result<void>();
  }

  template <class Stream>
  asio::awaitable<Result<HttpAnswer>> request(Stream& stream) {
    error_code problem;
    auto token = asio::redirect_error(asio::use_awaitable, problem);
    Message message = message_of(ask_);
    co_await http::async_write(stream, message, token);
    if (problem) co_return unavailable("does not answer");
    http::response_parser<http::string_body> parser;
    parser.body_limit(ask_.most_bytes);
    parser.header_limit(64 << 10);
    beast::flat_buffer buffer;
    co_await http::async_read(stream, buffer, parser, token);
    if (problem == http::error::body_limit)
      co_return fail(Errc::kResourceExhausted, "more than {} bytes", ask_.most_bytes);
    if (problem) co_return unavailable("does not answer: " + problem.message());
    HttpAnswer answer;
    answer.status = parser.get().result_int() > 999 ? 0 : static_cast<int>(parser.get().result_int());
    answer.location = parser.get()[http::field::location];
    answer.body = std::move(parser.get().body());
    co_return answer;
  }

  const HttpAsk& ask_;
  asio::ssl::context& tls_;
  asio::io_context io_;
};

}  // namespace

struct HttpClient::Tls {
  asio::ssl::context context{asio::ssl::context::tls_client};
};

HttpClient::HttpClient() : tls_(std::make_unique<Tls>()) {
  tls_->context.set_default_verify_paths();
  tls_->context.set_verify_mode(asio::ssl::verify_peer);
}

HttpClient::~HttpClient() = default;

Result<HttpAnswer> HttpClient::ask(const HttpAsk& ask) const {
  return Exchange(ask, tls_->context).run();
}

}  // namespace di::server
