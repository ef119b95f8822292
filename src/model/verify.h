// `deepinfer model verify`: reads a whole checkpoint once. Beyond what loading checks (names, types, shapes, scales),
// every stored value must be a number: no NaN and no infinity in F32 and BF16 tensors (attn_sink may be -inf), no NaN
// code in E4M3 weights and E8M0 scales. With token texts the compressed vocabulary must have the config's size.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/engram.h"
#include "model/safetensors.h"

namespace di::model {

struct VerifyReport {
  int64_t tensors = 0;  // declared tensors read, scales counted
  int64_t bytes = 0;
  std::vector<std::string> problems;         // one line each: file, tensor, expected, found
  std::vector<std::string> unknown_tensors;  // not declared, not read
};

// Bytes read so far and bytes to read; called after every tensor, from the calling thread.
using VerifyProgress = std::function<void(int64_t done, int64_t total)>;

// The first broken rule of loading is the error; broken values are collected in the report.
Result<VerifyReport> verify_checkpoint(const ModelConfig& config, const Safetensors& checkpoint,
                                       std::span<const TokenText> tokens, const VerifyProgress& progress = {});

}  // namespace di::model
