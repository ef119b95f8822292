// Runs a folder of KV-cache cases (vectors/kv, its README), known by their names: block_hash*.json. Used by
// `deepinfer-conformance kv DIR` and by the tests.
#pragma once

#include <string>
#include <vector>

namespace di::kv {

struct KvCase {
  std::string name;
  bool passed = false;
  std::string detail;  // expected and found, or why it cannot be run
};

// Every case of the folder, in the order of the file names. A file of cases that no part of the program can run is one
// failed case.
std::vector<KvCase> run_kv_cases(const std::string& dir);

}  // namespace di::kv
