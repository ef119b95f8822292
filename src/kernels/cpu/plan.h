// How the CPU operators cut their work: pure functions of the shape and the number of workers. A choice here changes
// the time of an operator, never its result (every output element is summed in one fixed order).
#pragma once

#include <algorithm>
#include <cstdint>

namespace di::kernels::cpu {

// Below these sizes (about 10 microseconds of one core) a parallel region gives less than it risks: it costs a
// microsecond on an idle machine, but a scheduler's time slice when another process holds one of the cores.
inline constexpr int64_t kSerialProducts = 256 * 1024;  // multiply-adds
inline constexpr int64_t kSerialValues = 32 * 1024;     // values passed over once

struct LinearShape {
  int64_t rows;     // of x
  int64_t outputs;  // of W, per group
  int64_t cols;
  int64_t groups;
  int64_t workers;
  int64_t tile_rows;
};

struct LinearPlan {
  int64_t panel_rows;  // weight rows of one task, a multiple of 32
  int64_t panels;
  int64_t block_rows;  // rows of x of one task
  int64_t row_blocks;
  bool parallel;
};

inline int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// A task takes at most 128 weight rows: the part of a decoded panel that is in use at a time then stays in the second
// cache (gemm.inl.h, kDepthBytes) and x is passed over rarely. There should be a few tasks per worker because cores
// differ in speed.
inline LinearPlan pick_linear(const LinearShape& s) {
  LinearPlan p{};
  const int64_t products = s.rows * s.outputs * s.cols * s.groups;
  p.parallel = s.workers > 1 && products >= kSerialProducts;
  p.panel_rows = std::clamp<int64_t>(s.outputs * s.groups / (4 * s.workers) / 32 * 32, 32, 128);
  p.panels = divide_up(s.outputs, p.panel_rows);
  p.block_rows = s.rows;
  const int64_t wanted = 2 * s.workers;
  if (p.parallel && p.panels * s.groups < wanted && s.rows >= 32) {
    const int64_t blocks = std::min(divide_up(wanted, p.panels * s.groups), s.rows / 16);
    p.block_rows = divide_up(divide_up(s.rows, blocks), s.tile_rows) * s.tile_rows;
  }
  p.row_blocks = divide_up(s.rows, p.block_rows);
  return p;
}

}  // namespace di::kernels::cpu
