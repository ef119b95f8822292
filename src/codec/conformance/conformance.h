// Runs folders of cases in the format of vectors/recipe (its README) against the codec. What a file holds is known from
// its lines, not from its name. Used by `deepinfer-conformance tokenizer|recipe DIR` and by the tests.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace di::codec {

struct ConformanceResult {
  int passed = 0;
  int failed = 0;
  std::vector<std::string> failures;    // "case: what was expected and what was found", one per failed case
  std::map<std::string, int> compared;  // how many of what: "rejected: whole body", …

  void add(const std::string& name, const std::string& problem);  // an empty problem passes
};

// Encode and decode cases (*.jsonl) and class tables (a JSON file with `classes`). Files that `dir` lacks
// (tokenizer.json) are taken from vectors_dir, a folder such as vectors/recipe.
ConformanceResult run_tokenizer_cases(const std::string& dir, const std::string& vectors_dir);
// Requests, rejections, streams (*.jsonl) and tool call ids (a JSON file with a list `ids`). Helper files as above:
// tokenizer.json, tokenizer_v41_patch.json.
ConformanceResult run_recipe_cases(const std::string& dir, const std::string& vectors_dir);

}  // namespace di::codec
