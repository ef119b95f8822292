// Responses kept for `previous_response_id` and GET (server.md §6). Off by default; bounded by their number, the oldest
// go first. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <expected>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/errors.h"

namespace di::server {

class App;

class ResponsesStore {
 public:
  explicit ResponsesStore(int64_t most) : most_(most) {}

  bool enabled() const { return most_ > 0; }
  // `input`: the items that led to it, with those of earlier responses. `response`: its body, with an id.
  void put(const std::string& tenant, const Json& input, Json response);
  // Replaces the body of one that is still there.
  void update(std::string_view tenant, std::string_view id, Json response);
  struct Entry {
    std::string id;
    std::string tenant;
    Json input;
    Json response;
  };
  // Of that tenant only.
  std::optional<Entry> get(std::string_view tenant, std::string_view id) const;
  bool remove(std::string_view tenant, std::string_view id);

 private:
  const int64_t most_;
  mutable std::mutex mutex_;  // guards entries_
  std::deque<Entry> entries_;
};

struct JoinedRequest {
  bool keep = false;                  // the response is to be stored
  bool background = false;            // and made without the client
  Json input;                         // as a list of items
  std::string previous;               // the response that it goes on from; empty: none
  std::vector<std::string> warnings;  // `code;field`
};
// Puts the items of `previous_response_id` in front of the input, and says which tools are dropped.
std::expected<JoinedRequest, ApiFailure> join_previous(App& app, std::string_view tenant, Json& body);

}  // namespace di::server
