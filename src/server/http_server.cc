// The listener itself: connections, the two threads that serve them, long because no header may name Asio's types.
#include "server/http_server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>

#include "base/log.h"
#include "server/errors.h"
#include "server/tls.h"
#include "server/wire_exchange.h"

namespace di::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
using Unix = asio::local::stream_protocol;
constexpr size_t kPipelinedBytes = 64 << 10;  // read ahead while an answer is being written

std::chrono::milliseconds ms(int64_t n) {
  return std::chrono::milliseconds(n);
}

// Whether the first bytes of a connection ask whether this server is well.
bool is_probe(std::string_view head, std::string_view root_path) {
  if (head.starts_with("GET ")) {
    head.remove_prefix(4);
  } else if (head.starts_with("HEAD ")) {
    head.remove_prefix(5);
  } else {
    return false;
  }
  if (!root_path.empty() && head.starts_with(root_path)) head.remove_prefix(root_path.size());
  for (const std::string_view path : {"/livez", "/readyz", "/health", "/ping"}) {
    if (head.starts_with(path) && head.size() > path.size() && (head[path.size()] == ' ' || head[path.size()] == '?'))
      return true;
  }
  return false;
}

// The bytes of one client, behind TLS where `session` is given.
class ClientStream {
 public:
  using executor_type = tcp::socket::executor_type;

  ClientStream(tcp::socket socket, ssl_st* session) : socket_(std::move(socket)) {
    if (session != nullptr) tls_.emplace(socket_, session);
  }
  executor_type get_executor() { return socket_.get_executor(); }
  tcp::socket& socket() { return socket_; }
  bool encrypted() const { return tls_.has_value(); }

  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return asio::async_initiate<Token, void(error_code, size_t)>(
        [this](auto handler, const Buffers& to) {
          tls_ ? tls_->async_read_some(to, std::move(handler)) : socket_.async_read_some(to, std::move(handler));
        },
        token, buffers);
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return asio::async_initiate<Token, void(error_code, size_t)>(
        [this](auto handler, const Buffers& from) {
          tls_ ? tls_->async_write_some(from, std::move(handler)) : socket_.async_write_some(from, std::move(handler));
        },
        token, buffers);
  }
  asio::awaitable<error_code> handshake() {
    const auto [ec] = co_await tls_->async_handshake(asio::ssl::stream_base::server, kTuple);
    co_return ec;
  }
  // Says that nothing follows.
  asio::awaitable<void> say_goodbye() {
    const auto [ec] = co_await tls_->async_shutdown(kTuple);
    static_cast<void>(ec);
  }

 private:
  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
};

}  // namespace

struct HttpServer::State {
  State(const HttpLimits& l, Handler h, const Clock& c)
      : limits(l),
        handler(std::move(h)),
        clock(c),
        io(1),
        probe_io(1),
        work(io.get_executor()),
        probe_work(probe_io.get_executor()),
        acceptor(probe_io),
        unix_acceptor(probe_io),
        retry(probe_io) {}

  HttpLimits limits;
  Handler handler;
  const Clock& clock;
  std::unique_ptr<TlsListener> tls;  // null: plain
  HttpCounters counters;
  asio::io_context io;
  asio::io_context probe_io;  // accepts, and serves the connections that begin with a probe
  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::executor_work_guard<asio::io_context::executor_type> probe_work;
  tcp::acceptor acceptor;  // one of these two is open
  Unix::acceptor unix_acceptor;
  std::string unix_path;
  asio::steady_timer retry;
  std::atomic<bool> stopping{false};
  uint16_t port = 0;

  class Connection;
  std::mutex connections_mutex;  // guards connections
  std::list<std::weak_ptr<Connection>> connections;

  mutable std::mutex idle_mutex;  // guards open_exchanges
  mutable std::condition_variable idle;
  int64_t open_exchanges = 0;

  void exchange_opened(int64_t change) {
    {
      const std::lock_guard lock(idle_mutex);
      open_exchanges += change;
    }
    idle.notify_all();
  }

  template <class Acceptor>
  asio::awaitable<void> accept_loop(Acceptor& from);
  template <class Socket>
  asio::awaitable<void> admit(std::shared_ptr<Socket> socket);
  void serve(asio::io_context& on, int fd);
};

// One client. Everything runs on one of the two threads.
class HttpServer::State::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(State& server, tcp::socket socket)
      : server_(server),
        stream_(std::move(socket), server.tls ? server.tls->new_session() : nullptr),
        socket_(stream_.socket()),
        wake_(socket_.get_executor()),
        deadline_(socket_.get_executor()) {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);
    server_.counters.connections.fetch_add(1);
    server_.counters.accepted.fetch_add(1);
  }
  ~Connection() { server_.counters.connections.fetch_sub(1); }

  asio::awaitable<void> run() {
    if (server_.tls && !co_await shake_hands()) co_return;
    while (co_await serve_one()) {
    }
    error_code ignored;
    if (stream_.encrypted() && !gone_) {
      arm(1000);
      co_await stream_.say_goodbye();
      disarm();
    }
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    co_await linger();
    socket_.close(ignored);
  }

  // From any thread: closes the connection when it only waits for a next request.
  void stop_if_idle() {
    asio::post(socket_.get_executor(), [self = shared_from_this(), this] {
      error_code ignored;
      if (idle_) socket_.cancel(ignored);
    });
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  // The operations under way fail with operation_aborted and timed_out_ is set.
  void arm(int64_t timeout_ms) {
    timed_out_ = false;
    deadline_.expires_after(ms(timeout_ms));
    deadline_.async_wait([self = shared_from_this(), this](const error_code& ec) {
      if (ec) return;
      timed_out_ = true;
      socket_.cancel();
    });
  }
  void disarm() { deadline_.cancel(); }

  asio::awaitable<bool> shake_hands() {
    if (!stream_.encrypted()) co_return false;
    arm(server_.limits.header_timeout_ms);
    const error_code ec = co_await stream_.handshake();
    disarm();
    if (ec) server_.counters.malformed.fetch_add(1);
    co_return !ec;
  }

  // Something to read has come. Behind TLS only reading shows it: what is left of a record is not in the socket.
  asio::awaitable<error_code> wait_for_input() {
    if (stream_.encrypted()) {
      const auto [ec, n] = co_await stream_.async_read_some(buffer_.prepare(4096), kTuple);
      buffer_.commit(n);
      co_return ec;
    }
    const auto [ec] = co_await socket_.async_wait(tcp::socket::wait_read, kTuple);
    co_return ec;
  }

  // After an answer that the client may not have asked for in full (a refused body), closing at once would reset the
  // connection and could destroy the answer on its way: read on for a moment.
  asio::awaitable<void> linger() {
    if (!drain_input_) co_return;
    arm(2000);
    char scrap[16384];
    for (size_t total = 0; total < (64U << 20);) {
      const auto [ec, n] = co_await stream_.async_read_some(asio::buffer(scrap), kTuple);
      if (ec) break;
      total += n;
    }
    disarm();
  }

  asio::awaitable<bool> write_all(std::string_view bytes) {
    if (!stream_.encrypted()) {
      // Mostly the kernel takes all of it at once: no timer, no turn of the loop.
      error_code ec;
      bytes.remove_prefix(socket_.write_some(asio::buffer(bytes), ec));
      if (ec && ec != asio::error::would_block && ec != asio::error::try_again) co_return false;
    }
    while (!bytes.empty()) {
      arm(server_.limits.slow_client_timeout_ms);
      const auto [ec, n] = co_await stream_.async_write_some(asio::buffer(bytes), kTuple);
      disarm();
      if (ec) co_return false;
      bytes.remove_prefix(n);
    }
    co_return true;
  }

  // An answer by the connection itself; it is closed afterwards.
  asio::awaitable<void> refuse(ErrorKind kind, std::string message, std::string path, std::string code = {}) {
    server_.counters.malformed.fetch_add(1);
    drain_input_ = true;
    const std::string id = random_hex32();
    const HttpResponse response =
        error_response({kind, std::move(message), std::move(code), {}, 0}, error_family(path), id);
    co_await write_all(head_text(response, id, true, 1, response.body.size()) + response.body);
  }

  uint64_t body_limit(std::string_view target) const {
    const bool upload = target.ends_with("/v1/files");
    return upload ? std::max(server_.limits.body_bytes, server_.limits.upload_bytes) : server_.limits.body_bytes;
  }

  asio::awaitable<void> refuse_large(std::string path) {
    std::string message = fmt::format("the request body is larger than {} bytes", body_limit(path));
    co_await refuse(ErrorKind::kTooLarge, std::move(message), std::move(path));
  }

  asio::awaitable<void> refuse_parse_error(const error_code& ec, const Parser& parser) {
    const std::string path(parser.get().target());
    const HttpLimits& http_limits = server_.limits;
    if (ec == http::error::end_of_stream || (ec == asio::error::operation_aborted && !timed_out_)) co_return;
    if (ec == http::error::body_limit) {
      co_await refuse_large(path);
    } else if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
      co_await refuse(ErrorKind::kHeadersTooLarge,
                      fmt::format("the request's header block is larger than {} bytes", http_limits.header_bytes),
                      path);
    } else if (timed_out_) {
      if (buffer_.size() == 0 && !parser.got_some()) co_return;
      co_await refuse(ErrorKind::kRequestTimeout, "the request did not arrive in time", path);
    } else if (ec.category() == http::make_error_code(http::error::bad_method).category() &&
               ec != http::error::partial_message) {
      co_await refuse(ErrorKind::kInvalidRequest, fmt::format("malformed HTTP request: {}", ec.message()), path,
                      "invalid_http");
    } else {
      server_.counters.malformed.fetch_add(1);  // cut in the middle
    }
  }

  static size_t header_count(const Parser& parser) {
    return static_cast<size_t>(std::distance(parser.get().begin(), parser.get().end()));
  }

  // Reads one request, has it answered. False: the connection ends.
  asio::awaitable<bool> serve_one() {
    if (buffer_.size() == 0) {
      idle_ = true;
      if (server_.stopping.load()) co_return false;
      arm(first_request_ ? server_.limits.header_timeout_ms : server_.limits.idle_timeout_ms);
      const error_code ec = co_await wait_for_input();
      disarm();
      idle_ = false;
      if (ec) co_return false;
    }
    first_request_ = false;
    const int64_t received_ns = server_.clock.now_ns();

    Parser parser;
    parser.header_limit(server_.limits.header_bytes);
    parser.body_limit(std::max(server_.limits.body_bytes, server_.limits.upload_bytes));
    arm(server_.limits.header_timeout_ms);
    auto [header_ec, header_n] = co_await http::async_read_header(stream_, buffer_, parser, kTuple);
    disarm();
    if (header_ec) {
      co_await refuse_parse_error(header_ec, parser);
      co_return false;
    }
    const std::string target(parser.get().target());
    const uint64_t limit = body_limit(target);
    parser.body_limit(limit);
    if (const auto length = parser.content_length(); length && *length > limit) {
      co_await refuse_large(target);
      co_return false;
    }
    if (header_count(parser) > server_.limits.headers) {
      co_await refuse(ErrorKind::kHeadersTooLarge,
                      fmt::format("the request has more than {} headers", server_.limits.headers), target);
      co_return false;
    }
    if (parser.get().version() != 11 && parser.get().version() != 10) {
      co_await refuse(ErrorKind::kInvalidRequest, "this server speaks HTTP/1.1", target, "invalid_http");
      co_return false;
    }
    if (boost::beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      if (!co_await write_all("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
    }
    arm(server_.limits.body_timeout_ms);
    auto [body_ec, body_n] = co_await http::async_read(stream_, buffer_, parser, kTuple);
    disarm();
    if (body_ec) {
      co_await refuse_parse_error(body_ec, parser);
      co_return false;
    }
    co_return co_await answer(parser, received_ns);
  }

  HttpRequest to_request(Parser& parser, int64_t received_ns) {
    http::request<http::string_body>& message = parser.get();
    HttpRequest request;
    request.method = std::string(message.method_string());
    std::string_view target(message.target().data(), message.target().size());
    if (const size_t fragment = target.find('#'); fragment != std::string_view::npos)
      target = target.substr(0, fragment);
    const size_t question = target.find('?');
    request.path = std::string(target.substr(0, question));
    const std::string& root = server_.limits.root_path;
    if (!root.empty() && request.path.starts_with(root + "/")) request.path.erase(0, root.size());
    if (question != std::string_view::npos) request.query = std::string(target.substr(question + 1));
    for (const auto& field : message)
      request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    request.body = std::move(message.body());
    const std::string_view given = request.header("x-request-id");
    request.id = is_request_id(given) ? std::string(given) : random_hex32();
    request.received_ns = received_ns;
    return request;
  }

  asio::awaitable<bool> answer(Parser& parser, int64_t received_ns) {
    const int minor = parser.get().version() == 10 ? 0 : 1;
    const bool close = !parser.keep_alive() || server_.stopping.load();
    const auto wake = [weak = weak_from_this(), executor = socket_.get_executor()] {
      asio::post(executor, [weak] {
        if (const auto self = weak.lock()) self->on_wake();
      });
    };
    auto exchange = std::make_shared<WireExchange>(to_request(parser, received_ns), minor, close,
                                                   server_.limits.send_buffer_bytes, wake);
    current_ = exchange;
    server_.exchange_opened(1);
    watching_ = true;
    gone_ = false;
    asio::co_spawn(socket_.get_executor(), watch(exchange), asio::detached);
    server_.handler(exchange);
    const bool complete = co_await send(*exchange);
    if (!complete) exchange->disconnected();
    server_.exchange_opened(-1);
    stop_watching_ = true;
    error_code ignored;
    socket_.cancel(ignored);
    while (watching_) co_await sleep_until_woken(SteadyClock::time_point::max());
    stop_watching_ = false;
    co_return complete && !exchange->close() && !half_closed_ && !server_.stopping.load();
  }

  void on_wake() {
    woken_ = true;
    wake_.cancel();
    // A client that lets the buffer run over is not waited for, also in the middle of a write.
    if (const auto exchange = current_.lock(); exchange && exchange->overflowed()) socket_.cancel();
  }

  asio::awaitable<void> sleep_until_woken(SteadyClock::time_point until) {
    if (!woken_) {
      wake_.expires_at(until);
      co_await wake_.async_wait(kTuple);
    }
    woken_ = false;
  }

  // Sends what the handler gives until the answer is complete (true) or the client is lost (false).
  asio::awaitable<bool> send(WireExchange& exchange) {
    SteadyClock::time_point last_write = SteadyClock::now();
    for (;;) {
      WireExchange::Taken taken = exchange.take();
      if (!taken.bytes.empty()) {
        if (!co_await write_all(taken.bytes)) co_return false;
        last_write = SteadyClock::now();
      }
      if (gone_ || taken.overflow) co_return false;
      if (taken.ended) co_return true;
      if (!taken.bytes.empty()) continue;
      const bool beats = taken.streaming && server_.limits.keep_alive_ms > 0;
      const SteadyClock::time_point beat =
          beats ? last_write + ms(server_.limits.keep_alive_ms) : SteadyClock::time_point::max();
      co_await sleep_until_woken(beat);
      if (beats && SteadyClock::now() >= beat) exchange.send_keep_alive();
    }
  }

  // Notices a client that goes while its answer is made, and keeps what it sends ahead for the next request.
  asio::awaitable<void> watch(std::shared_ptr<WireExchange> exchange) {
    const auto self = shared_from_this();
    error_code ec;
    while (!stop_watching_ && !half_closed_ && buffer_.size() < kPipelinedBytes) {
      size_t n = 0;
      std::tie(ec, n) = co_await stream_.async_read_some(buffer_.prepare(4096), kTuple);
      buffer_.commit(n);
      if (ec == asio::error::eof || ec == asio::ssl::error::stream_truncated) {
        // A client may have closed only its sending side. One that is gone answers anything with a reset.
        half_closed_ = true;
        exchange->probe();
        ec = {};
        break;
      }
      if (ec) break;
    }
    if (!ec && !stop_watching_) std::tie(ec) = co_await socket_.async_wait(tcp::socket::wait_error, kTuple);
    if (!stop_watching_ && !timed_out_) {
      gone_ = true;
      exchange->disconnected();
    }
    watching_ = false;
    woken_ = true;
    wake_.cancel();
  }

  State& server_;
  ClientStream stream_;
  tcp::socket& socket_;  // of stream_
  boost::beast::flat_buffer buffer_{kPipelinedBytes + (64 << 10)};
  asio::steady_timer wake_;
  asio::steady_timer deadline_;
  bool first_request_ = true;
  bool idle_ = false;
  bool timed_out_ = false;
  bool woken_ = false;
  std::weak_ptr<WireExchange> current_;
  bool watching_ = false;
  bool stop_watching_ = false;
  bool half_closed_ = false;
  bool gone_ = false;
  bool drain_input_ = false;
};

template <class Acceptor>
asio::awaitable<void> HttpServer::State::accept_loop(Acceptor& from) {
  for (;;) {
    auto [ec, socket] = co_await from.async_accept(kTuple);
    if (ec == asio::error::operation_aborted || !from.is_open()) co_return;
    if (ec) {
      // Out of file descriptors, mostly: existing clients go on, new ones wait in the backlog.
      DI_LOG(kWarn, "cannot accept a connection: {}", ec.message());
      retry.expires_after(ms(100));
      co_await retry.async_wait(kTuple);
      continue;
    }
    asio::co_spawn(probe_io, admit(std::make_shared<decltype(socket)>(std::move(socket))), asio::detached);
  }
}

// Looks at the first bytes of a new connection, which stay where they are, and gives it to one of the two threads.
template <class Socket>
asio::awaitable<void> HttpServer::State::admit(std::shared_ptr<Socket> socket) {
  bool probe = false;
  if (!tls) {
    counters.connections.fetch_add(1);
    asio::steady_timer deadline(probe_io, ms(limits.header_timeout_ms));
    deadline.async_wait([socket](const error_code& ec) {
      error_code ignored;
      if (!ec) socket->cancel(ignored);
    });
    const auto [ec] = co_await socket->async_wait(Socket::wait_read, kTuple);
    deadline.cancel();
    counters.connections.fetch_sub(1);
    if (ec) co_return;
    std::array<char, 256> head{};
    const ssize_t n = recv(socket->native_handle(), head.data(), head.size(), MSG_PEEK | MSG_DONTWAIT);
    probe = n > 0 && is_probe({head.data(), static_cast<size_t>(n)}, limits.root_path);
  }
  error_code ec;
  const int fd = socket->release(ec);
  if (ec) co_return;
  serve(probe ? probe_io : io, fd);
}

// The connection behind `fd`, which it owns. A Unix socket is read and written as a TCP socket is.
void HttpServer::State::serve(asio::io_context& on, int fd) {
  asio::post(on, [this, &on, fd] {
    tcp::socket socket(on);
    error_code ec;
    socket.assign(tcp::v4(), fd, ec);
    if (ec) {
      close(fd);
      return;
    }
    auto connection = std::make_shared<Connection>(*this, std::move(socket));
    {
      const std::lock_guard lock(connections_mutex);
      std::erase_if(connections, [](const std::weak_ptr<Connection>& c) { return c.expired(); });
      connections.push_back(connection);
    }
    asio::co_spawn(
        on, [connection] { return connection->run(); },
        [connection](const std::exception_ptr& failure) {
          if (!failure) return;
          try {
            std::rethrow_exception(failure);
          } catch (const std::exception& e) {
            DI_LOG(kError, "connection failed: {}", e.what());
          }
        });
  });
}

HttpServer::HttpServer(const HttpLimits& limits, Handler handler, const Clock& clock)
    : state_(std::make_unique<State>(limits, std::move(handler), clock)) {}

HttpServer::~HttpServer() {
  stop();
}

void HttpServer::stop() {
  if (!thread_.joinable()) return;
  state_->io.stop();
  state_->probe_io.stop();
  thread_.join();
  probe_thread_.join();
  if (!state_->unix_path.empty()) unlink(state_->unix_path.c_str());
}

Result<void> HttpServer::start(const std::string& host, uint16_t port, const TlsFiles& tls) {
  if (!tls.certificate.empty()) state_->tls = DI_TRY(TlsListener::create(tls, state_->clock));
  error_code ec;
  tcp::resolver resolver(state_->io);
  const auto addresses = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, ec);
  if (ec || addresses.empty())
    return fail(Errc::kInvalidRequest, "cannot resolve the address {}: {}", host, ec.message());
  const tcp::endpoint endpoint = addresses.begin()->endpoint();
  tcp::acceptor& acceptor = state_->acceptor;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(4096, ec);
  if (ec) return fail(Errc::kUnavailable, "cannot listen on {}:{}: {}", host, port, ec.message());
  state_->port = acceptor.local_endpoint().port();
  asio::co_spawn(state_->probe_io, state_->accept_loop(acceptor), asio::detached);
  run();
  return {};
}

Result<void> HttpServer::start_unix(const std::string& path, const TlsFiles& tls) {
  if (!tls.certificate.empty()) state_->tls = DI_TRY(TlsListener::create(tls, state_->clock));
  error_code ec;
  if (path.size() >= sizeof(sockaddr_un::sun_path))
    return fail(Errc::kInvalidRequest, "the path of a Unix socket has {} bytes, fewer than {} are possible",
                path.size(), sizeof(sockaddr_un::sun_path));
  const Unix::endpoint endpoint(path);
  struct stat found{};
  if (stat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) {
    Unix::socket other(state_->io);
    other.connect(endpoint, ec);
    if (ec == asio::error::connection_refused) unlink(path.c_str());
    ec = {};
  }
  Unix::acceptor& acceptor = state_->unix_acceptor;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(4096, ec);
  if (ec) return fail(Errc::kUnavailable, "cannot listen on {}: {}", path, ec.message());
  state_->unix_path = path;
  asio::co_spawn(state_->probe_io, state_->accept_loop(acceptor), asio::detached);
  run();
  return {};
}

void HttpServer::run() {
  const auto turn = [](asio::io_context& io) {
    for (;;) {
      try {
        io.run();
        return;
      } catch (const std::exception& e) {
        DI_LOG(kError, "http server: {}", e.what());
      }
    }
  };
  thread_ = std::thread([this, turn] { turn(state_->io); });
  probe_thread_ = std::thread([this, turn] { turn(state_->probe_io); });
}

uint16_t HttpServer::port() const {
  return state_->port;
}
const HttpCounters& HttpServer::counters() const {
  return state_->counters;
}

void HttpServer::stop_accepting() {
  state_->stopping.store(true);
  asio::post(state_->probe_io, [state = state_.get()] {
    error_code ignored;
    state->acceptor.close(ignored);
    state->unix_acceptor.close(ignored);
    const std::lock_guard lock(state->connections_mutex);
    for (const std::weak_ptr<State::Connection>& weak : state->connections) {
      if (const auto connection = weak.lock()) connection->stop_if_idle();
    }
  });
}

int64_t HttpServer::open_exchanges() const {
  const std::lock_guard lock(state_->idle_mutex);
  return state_->open_exchanges;
}

bool HttpServer::wait_until_idle(int64_t timeout_ms) const {
  std::unique_lock lock(state_->idle_mutex);
  return state_->idle.wait_for(lock, ms(timeout_ms), [&] { return state_->open_exchanges == 0; });
}

}  // namespace di::server
