// One request to another server, over HTTP/1.1 or HTTPS, with a time limit: what links of images are fetched with and
// traces are sent with. The calling thread waits. Asks may run at the same time on several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "codec/image/url_policy.h"

namespace di::server {

struct HttpAsk {
  codec::FetchUrl url;
  std::string body;                                          // POST where there is one, else GET
  std::vector<std::pair<std::string, std::string>> headers;  // beside Host, User-Agent, Connection, Content-Length
  std::chrono::steady_clock::time_point deadline;            // for all of it
  std::chrono::milliseconds connect_limit{10'000};
  size_t most_bytes = 1 << 20;  // of the answer's body
  // Judges the addresses that the name stands for before one is connected to; empty: all will do.
  std::function<Result<void>(const std::vector<std::string>& addresses)> judge;
  // Asked to CONNECT to the judged address, so that it gets no name to resolve anew; port 0: none.
  std::string proxy_host;
  uint16_t proxy_port = 0;
};

struct HttpAnswer {
  int status = 0;
  std::string location;
  std::string body;
};

class HttpClient {
 public:
  HttpClient();
  ~HttpClient();

  // Any answer is a result, whatever its status. kUnavailable: no connection or no answer; kDeadlineExceeded;
  // kResourceExhausted: the body is longer than most_bytes; what `judge` said.
  Result<HttpAnswer> ask(const HttpAsk& ask) const;

 private:
  struct Tls;
  std::unique_ptr<Tls> tls_;
};

}  // namespace di::server
