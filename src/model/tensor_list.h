// Every tensor that a checkpoint of a given config must hold (model.md §3.1, §3.2), once: the loader binds from this
// list, the memory plan counts from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/memory_plan.h"
#include "model/schedule.h"
#include "model/weights.h"

namespace di::model {

// How a tensor is stored.
enum class TensorKind : uint8_t {
  kBf16,       // BF16; also F32 where the checkpoint is not quantised, and in V4
  kF32,        // F32 always: hyper-connections, sinks, router biases, ape
  kFp8Block,   // fp8b: F8_E4M3 + F8_E8M0 scale per B×B tile
  kFp8Row,     // fp8r: F8_E4M3 + F8_E8M0 scale per row and 32 columns
  kFp4Row,     // fp4r: I8, two values per byte, + F8_E8M0 scale per row and 32 columns
  kExpertIds,  // integers
};

struct TensorSlot {
  std::string name;  // whole name; a scale is named by scale_name()
  TensorKind kind = TensorKind::kBf16;
  TensorClass group = TensorClass::kAttention;
  int32_t layer = -1;          // backbone layer; num_hidden_layers + S for mtp.S; -1 = global
  std::vector<int64_t> shape;  // of the values; kFp4Row is stored with half the columns
  bool optional = false;       // its absence is no error
  // Where it is bound to; one of them.
  Weight* weight = nullptr;
  const float** f32 = nullptr;
  const int32_t** ids = nullptr;

  bool has_scale() const {
    return kind == TensorKind::kFp8Block || kind == TensorKind::kFp8Row || kind == TensorKind::kFp4Row;
  }
  std::string scale_name() const;  // "X.scale" of "X.weight"
  std::vector<int64_t> stored_shape() const;
  std::vector<int64_t> scale_shape(int32_t block) const;
  int64_t parameters() const;
  int64_t stored_bytes(int32_t block) const;  // as declared, with the scale; kBf16 counted as BF16
};

// The list for a config. `weights` receives its layer vectors; the slots point into it and stay valid while it is not
// resized.
std::vector<TensorSlot> list_tensors(const ModelConfig& config, const Schedule& schedule, ModelWeights& weights);

// After the slots are bound: fills `form` and `table` of the expert layers, for operators that read host memory.
void tabulate_experts(ModelWeights& weights);

}  // namespace di::model
