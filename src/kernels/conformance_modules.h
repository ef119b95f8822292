// Runs files of expected values of single modules (vectors/model/mod_*.safetensors) through an operator table whose
// memory is the host's. What a file holds is known from its tensors' names, shapes from the file; every section whose
// tensors are present is run. Bounds: model.md's fixtures, 1e-5 (relative to values above 1) for fp32, the same bytes
// for quantised data, one bf16 step where a bf16 result comes out of a sum. Not here: Engram hashes and the compressed
// vocabulary (model), draft positions and slots (engine).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"

namespace di::kernels {

// A tensor of a safetensors file; the data need not be aligned.
struct NamedTensor {
  std::string name;
  std::string dtype;  // as safetensors spells it: F32, BF16, F8_E4M3, F8_E8M0, I8, U8, I32, I64
  std::vector<int64_t> shape;
  const void* data = nullptr;
  int64_t bytes = 0;
};

struct ModuleCheck {
  std::string name;    // "mod_mhc.safetensors comb"
  double error = 0.0;  // largest deviation in units of the bound's kind, or number of differing integers or bytes
  double bound = 0.0;
  bool passed = false;
  std::string detail;  // expected and found at the worst place, or why the check could not run
};

// Empty when no tensor belongs to a module known here.
std::vector<ModuleCheck> run_module_file(std::string_view file, std::span<const NamedTensor> tensors, const Ops& ops,
                                         Stream& stream);

}  // namespace di::kernels
