// The dense product for other operators of this backend, with scratch that the caller has reserved.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace di::kernels::cuda {

// How a product is cut. Tile and splits change its time, never its result; the form follows from the weights.
struct LinearPlan {
  enum class Form : uint8_t {
    kExact,     // fp32
    kTensor,    // bf16 operands on the matrix units, any shape (gemm.cuh)
    kStreamed,  // the same, for weights in pieces of 16 bytes (streamed.cuh)
  };
  Form form = Form::kExact;
  int tile_rows = 16;     // rows of x in a tile
  int64_t splits = 1;     // parts of the columns, one per chunk
  bool arranged = false;  // x is quantised and arranged first
  int64_t x_columns = 0;  // of all groups
};

LinearPlan plan_linear(const Tensor& x, const Weight& w, int64_t groups);

// What run_linear needs of the scratch; taken from a stream that has it reserved.
struct LinearScratch {
  float* partials = nullptr;
  uint16_t* arranged = nullptr;
};
int64_t linear_scratch_bytes(const LinearPlan& plan, int64_t rows, int64_t outputs);
LinearScratch take_linear_scratch(const LinearPlan& plan, int64_t rows, int64_t outputs, Stream& stream);

// y[:, g·R:(g+1)·R] = x[:, g·C:(g+1)·C]·W_gᵀ (+ y)
void run_linear(const LinearPlan& plan, const Tensor& x, const Weight& w, int64_t groups, const Numerics& numerics,
                bool accumulate, const Tensor& y, const LinearScratch& scratch, Stream& stream);

}  // namespace di::kernels::cuda
