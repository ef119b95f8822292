// HTTP as the handlers see it: plain requests and responses, and the Exchange through which an answer goes out. Nothing
// here names the network library; handlers run on worker threads and on the engine's callbacks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace di::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // upper case
  std::string path;    // as sent, without query and fragment; see is_normal_path()
  std::string query;   // raw, without '?'
  Headers headers;
  std::string body;
  std::string id;           // X-Request-Id as given, or 32 hex digits
  int64_t received_ns = 0;  // first byte of the request line, on the server's clock

  // First header of that name, case-insensitive; empty when absent.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers;
  std::string body;
};

// What the server knows of a request beside its bytes. Filled in before the handler runs, by the thread that received
// it; from then on only read.
struct RequestContext {
  std::string tenant = "default";
  bool admin = true;             // may see and end what others do
  Headers answer_headers;        // go out with the answer
  std::shared_ptr<void> ticket;  // held until the answer is complete: what counts against limits
};

// One request and its answer: either reply() once, or begin_stream(), any number of write(), end_stream(). Thread-safe;
// shared by the connection and the handler. After the client has gone, everything is accepted and dropped.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  // Puts the unpacked body in the place of the sent one, before a handler has seen it. Not to be called beside others.
  virtual void replace_body(std::string body) = 0;
  // The request goes by this id from here on. To be called before anything is answered, and not beside others.
  virtual void rename(std::string id) = 0;
  virtual void reply(HttpResponse response) = 0;
  // Sends the head and response.body as the first bytes. `keep_alive` is written whenever nothing else was for a while.
  virtual void begin_stream(HttpResponse response, std::string keep_alive) = 0;
  // False when the client is gone or reads too slowly: nothing more is worth producing.
  virtual bool write(std::string_view bytes) = 0;
  virtual void end_stream() = 0;
  // Called once, from some thread, when the client goes away before the answer is complete; at once if that has
  // happened.
  virtual void on_disconnect(std::function<void()> callback) = 0;

  RequestContext& context() { return context_; }

 private:
  RequestContext context_;
};
using ExchangeRef = std::shared_ptr<Exchange>;

// False when percent-decoding or normalising (`//`, `/./`, `/../`) would change the path: such paths are not served
// (server.md §2).
bool is_normal_path(std::string_view path);

// ASCII, case-insensitive.
bool equal_ignoring_case(std::string_view a, std::string_view b);

// Text as a header value: what is no printable ASCII becomes a space.
std::string header_text(std::string_view text);

// Valid X-Request-Id: up to 128 of [A-Za-z0-9._-].
bool is_request_id(std::string_view id);
// 32 hex digits.
std::string random_hex32();

}  // namespace di::server
