// The HTTP/1.1 listener: accepts connections, reads requests within the limits of server.md §2, hands each to a handler
// and writes the answer, with keep-alive, back-pressure and detection of clients that have gone. One thread serves all
// connections but those that begin with a health probe: these stay on a second thread, which has little else to do than
// to accept connections, so that a probe never waits for the streams of others. The handler is called on both threads
// and must not block.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "server/http.h"
#include "server/tls.h"

namespace di::server {

struct HttpLimits {
  std::string root_path;  // taken off the front of every path; others are as they are
  uint32_t header_bytes = 64 << 10;
  size_t headers = 100;
  uint64_t body_bytes = 48 << 20;
  uint64_t upload_bytes = (64 << 20) + (64 << 10);  // the same of /v1/files: a file of 64 MiB and the form around it
  size_t send_buffer_bytes = 4 << 20;               // waiting for one client
  int64_t header_timeout_ms = 10'000;
  int64_t body_timeout_ms = 120'000;
  int64_t idle_timeout_ms = 75'000;         // between requests of a connection
  int64_t slow_client_timeout_ms = 60'000;  // without one byte taken by the client
  int64_t keep_alive_ms = 10'000;           // silence of a stream before a comment is sent; 0: never
};

struct HttpCounters {
  std::atomic<int64_t> connections{0};  // open now
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> malformed{0};  // answered by the listener itself (400, 408, 413, 431) or cut
};

class HttpServer {
 public:
  using Handler = std::function<void(ExchangeRef)>;

  // The clock stamps requests; timeouts run on real time.
  HttpServer(const HttpLimits& limits, Handler handler, const Clock& clock);
  // Cuts what is open.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds and starts serving. Port 0: any free one. Errors: kUnavailable when the address is taken or not ours,
  // kInvalidRequest when the host is unknown or the certificates cannot be used.
  Result<void> start(const std::string& host, uint16_t port, const TlsFiles& tls = {});
  // The same on a Unix socket; a file that a dead server left there is replaced.
  Result<void> start_unix(const std::string& path, const TlsFiles& tls = {});
  uint16_t port() const;
  const HttpCounters& counters() const;

  // No new connections; answers from now on close theirs; idle connections are closed.
  void stop_accepting();
  // Stops serving; open connections stay as they are until the destructor cuts them. Exchanges may still be written to.
  void stop();
  // Requests whose answer is not complete.
  int64_t open_exchanges() const;
  // Returns when open_exchanges() is 0 or at the deadline (milliseconds from now); true in the first case.
  bool wait_until_idle(int64_t timeout_ms) const;

  struct State;

 private:
  void run();

  std::unique_ptr<State> state_;
  std::thread thread_;
  std::thread probe_thread_;
};

}  // namespace di::server
