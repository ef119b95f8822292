// What metrics and the access line need of a request: sizes, times and its end, without any of its text. Plain data.
#pragma once

#include <cstdint>
#include <string>

namespace di::server {

// Times are on the server's clock, 0: not reached.
struct RequestRecord {
  std::string id;           // X-Request-Id
  std::string response_id;  // chatcmpl-…
  std::string tenant;
  std::string route;
  std::string model;        // as requested
  int64_t created = 0;      // Unix seconds
  int64_t received_ns = 0;  // first byte
  int64_t queued_ns = 0;    // handed to the engine
  int64_t scheduled_ns = 0;
  int64_t first_token_ns = 0;  // by the engine
  int64_t first_sent_ns = 0;   // to the socket
  int64_t finished_ns = 0;     // last token
  int64_t sent_ns = 0;         // end of the answer handed to the socket
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int64_t reasoning_tokens = 0;
  int64_t max_tokens = 0;
  double temperature = 1;
  double top_p = 1;
  int64_t longest_output = 0;  // tokens of the longest choice
  int64_t parse_ns = 0;        // time spent on it outside the engine, by stage
  int64_t render_ns = 0;
  int64_t tokenize_ns = 0;
  int64_t detokenize_ns = 0;
  int64_t serialize_ns = 0;
  int64_t draft_rounds = 0;  // decode steps with drafts, over all choices
  int64_t drafts_accepted = 0;
  int32_t n = 1;
  int32_t preemptions = 0;
  bool stream = false;
  int status = 0;      // HTTP
  std::string finish;  // stop, length, tool_calls, abort, error …; empty: under way
  std::string error;   // code
};

}  // namespace di::server
