// The form of a stream of answers, event by event (server.md §4.3, §6, §7): what `bench serve --verify-stream` looks at
// beside the load.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/json.h"

namespace di::cli {

class StreamCheck {
 public:
  // An event; the API is known by its form.
  void take(const Json& event);
  // `data: [DONE]`.
  void done();
  // After the last byte.
  void end();
  // What was wrong first; empty: nothing.
  const std::string& fault() const { return fault_; }

 private:
  void take_chunk(const Json& chunk, const Json& choices);
  void take_choice(const Json& choice, int64_t index);
  void take_response_event(std::string_view type, const Json& event);
  void take_message_event(std::string_view type, const Json& event);
  void say(std::string what) {
    if (fault_.empty()) fault_ = std::move(what);
  }

  enum class Api : uint8_t { kUnknown, kChunks, kResponses, kMessages };
  Api api_ = Api::kUnknown;
  std::string fault_;
  std::string identity_;             // of chunks: id, model and time of creation
  std::map<int64_t, bool> choices_;  // whether each has its reason
  bool done_ = false;                // the last event was there
  bool ended_by_error_ = false;
  int64_t next_number_ = 0;  // of the Responses events
  int64_t open_block_ = -1;  // of Messages
  int64_t next_block_ = 0;
  bool has_stop_reason_ = false;
};

}  // namespace di::cli
