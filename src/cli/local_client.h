// Requests to the server's handlers without a network: what `chat`, `run` and `generate` speak through, so that they
// answer exactly as the server does.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "cli/chat_events.h"
#include "server/app.h"

namespace di::cli {

struct LocalAnswer {
  int status = 0;
  std::string request_id;
  std::string body;  // of a whole answer, or of an error
};

// Sends a body to /v1/chat/completions; `done` is called once, from a worker of the app.
void post_chat(server::App& app, std::string body, std::function<void(LocalAnswer)> done);

// The same for any route that takes a body; blocks.
LocalAnswer post_and_wait(server::App& app, const std::string& path, std::string body);

// A streamed chat. `on_delta` is called on the caller's thread; returning false ends the answer. Blocks until its end.
// `body` must ask for a stream.
ChatEnd stream_chat(server::App& app, const Json& body, const std::function<bool(const ChatDelta&)>& on_delta);

}  // namespace di::cli
