// A load generator: one thread, one epoll, as many connections as requests are in flight. Streams are followed chunk by
// chunk with the time of each; what comes back is checked. Linux sockets only, so that measuring costs little.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/http_client.h"

namespace di::cli {

struct LoadRequest {
  std::string path;
  std::string body;
  int64_t send_at_ns = 0;      // from the start; earlier ones first
  int64_t abort_after_ns = 0;  // closes the connection that long after sending; 0: never
  int64_t prompt_tokens = 0;   // as made; the server's own count replaces it
  // The request before this one in a conversation, which comes earlier in the list: this one is due so long after its
  // end, with a body of LoadOptions::next_body. -1: none.
  int64_t after = -1;
  int64_t think_ns = 0;
};

struct LoadResult {
  bool ok = false;
  bool aborted = false;  // by us
  std::string error;
  int64_t due_ns = 0;   // from the start, as the others
  int64_t sent_ns = 0;  // later than due where all places are taken
  int64_t first_ns = 0;
  int64_t end_ns = 0;
  std::vector<int64_t> chunk_ns;  // of each event with new text
  int64_t chunks = 0;             // with text
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  // from the usage, else the chunks
  std::string text;           // when kept
  std::string answer;         // of requests that are followed: the text without reasoning
};

struct LoadOptions {
  std::string host;
  uint16_t port = 0;
  std::vector<std::string> headers = {};  // whole lines
  int32_t max_concurrency = 0;            // 0: no bound
  bool keep_text = false;
  // The body of a request that follows another, whose answer is given.
  std::function<std::string(std::size_t request, const LoadResult& before)> next_body = {};
  bool verify = false;            // the form of each stream is checked (stream_check.h)
  int64_t probe_interval_ns = 0;  // GET /livez that often on a connection of its own; 0: never
  int64_t timeout_ns = 600'000'000'000;
};

struct LoadReport {
  std::vector<LoadResult> results;  // in the order of the requests
  std::vector<int64_t> probe_ns;    // latencies of /livez
  int64_t duration_ns = 0;          // from the first send to the last end
  int64_t max_lag_ns = 0;           // of the starts of requests and turns of the loop, how late they were at most
  int64_t p99_lag_ns = 0;           // and 99 % of them
  int64_t peak_concurrency = 0;
  double client_cpu_s = 0;
};

// Sends all of them. `progress` hears how many are done. Errors: the server cannot be reached.
Result<LoadReport> run_load(const LoadOptions& options, const std::vector<LoadRequest>& requests,
                            const std::function<void(size_t)>& progress = {});

}  // namespace di::cli
