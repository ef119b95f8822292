// The dense product for other operators of this backend, with scratch that the caller has reserved.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace di::kernels::cuda {

// How a product is cut; a choice here changes its time, never its result.
struct LinearPlan {
  bool tensor = false;     // bf16 operands on the matrix units, else fp32
  bool many_rows = false;  // tiles of 64 rows of x instead of 16
  int64_t splits = 1;      // parts of the columns, one per block of 1024
};

LinearPlan plan_linear(const Tensor& x, const Weight& w, int64_t groups);
// Floats of scratch that run_linear needs.
int64_t linear_scratch(const LinearPlan& plan, int64_t rows, int64_t outputs);
// y[:, g·R:(g+1)·R] = x[:, g·C:(g+1)·C]·W_gᵀ (+ y); `partials` may be null when linear_scratch is 0.
void run_linear(const LinearPlan& plan, const Tensor& x, const Weight& w, int64_t groups, const Numerics& numerics,
                bool accumulate, const Tensor& y, float* partials, Stream& stream);

}  // namespace di::kernels::cuda
