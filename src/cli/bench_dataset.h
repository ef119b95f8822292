// The requests of `bench serve` (server.md §15.1): their texts, when they are sent, and which follows which.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench_client.h"
#include "cli/options.h"
#include "codec/codec.h"

namespace di::cli {

// With `tokenizer` (may be null) prompts are of as many tokens as asked for, else about so.
class BenchDataset {
 public:
  // Errors name the option or the file and its line.
  static Result<BenchDataset> make(const BenchServeOptions& options, codec::TokenizerRef tokenizer);

  const std::vector<LoadRequest>& requests() const { return requests_; }
  // The body of a later turn: the conversation so far, the answer to its last turn, and the next question.
  std::string next_body(std::size_t request, const LoadResult& before) const;

 private:
  struct Turn {
    std::string text;           // of the user
    int64_t output_tokens = 0;  // most of them
    std::size_t conversation = 0;
  };

  BenchServeOptions options_;
  std::vector<LoadRequest> requests_;
  std::vector<Turn> turns_;                                // one per request
  mutable std::vector<std::vector<std::string>> history_;  // per conversation: questions and answers in turn
};

// Ratios of the load's start to its end (`--ramp-up-strategy`): requests per second when the part `progress` of them
// has been sent.
double ramp_up_rate(const std::string& strategy, double start, double end, double progress);

}  // namespace di::cli
