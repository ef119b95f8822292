// Runs folders of cases of speculative decoding, sampling and the hand-over of tokens between steps (vectors/dspark,
// its README). What a file holds is known from its `function` member. Used by `deepinfer-conformance dspark DIR` and by
// the tests.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace di::engine {

// One comparison.
struct CaseResult {
  std::string name;                   // "sched_light batch 2"
  std::vector<std::string> failures;  // expected and found; empty: passed
};

// sigmoid(w·[h; e] / temperature) of every row, as the operator list computes it. hidden [rows, d], embedding [rows,
// r], all values exact in bf16.
struct ConfidenceInputs {
  std::vector<std::vector<float>> hidden;
  std::vector<std::vector<float>> embedding;
  std::vector<float> weight;
  float temperature = 1;
};
using ConfidenceHead = std::function<std::vector<float>(const ConfidenceInputs&)>;

// Every *.json file of the folder, by name. A file that cannot be read or whose function is unknown is one failed case.
std::vector<CaseResult> run_dspark_cases(const std::string& dir, const ConfidenceHead& confidence_head);

}  // namespace di::engine
