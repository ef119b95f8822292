// Runs folders of expected values (vectors/model, its README) against the forward pass: every sub-folder with a
// config.json, a checkpoint and expected*.safetensors. What a file holds is known from its keys; shapes and options
// come from the config. Used by `deepinfer-conformance model DIR` and by the tests, with any backend.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/ops.h"
#include "model/engram.h"

namespace di::model {

// One comparison: the largest deviation found and the bound it is held to.
struct ConformanceCase {
  std::string name;    // "v41_tiny_a/expected_plain prefill.logits"
  double error = 0.0;  // in the unit of the bound; for counts the number of mismatches
  double bound = 0.0;
  bool passed = false;
  std::string detail;  // expected and found at the worst place, or why the case could not run
};

struct ConformanceReport {
  std::vector<ConformanceCase> cases;
  int passed() const;
  int failed() const;
};

struct ConformanceBackend {
  const kernels::Ops& ops;
  kernels::Stream& stream;
  device::Device& device;
};

// Token texts of a folder's tokenizer.json, for Engram's compressed vocabulary; only called when the config's map is
// not the identity (the codec, which the model does not know, reads tokenizers).
using TokenTextLoader = std::function<Result<std::vector<TokenText>>(const std::string& dir)>;

struct ConformanceOptions {
  int32_t max_prompt = 1 << 20;  // longer prompts of the trained fixtures are left out (and listed nowhere as passed)
};

// All model folders below dir, or dir itself when it holds a config.json.
ConformanceReport run_model_folders(const std::string& dir, const ConformanceBackend& backend,
                                    const TokenTextLoader& texts, const ConformanceOptions& options = {});

}  // namespace di::model
