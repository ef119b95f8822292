// Operators on single rows: embedding, norms, rotations, gathers, and the small ones of the draft. One block per row,
// or a grid over rows and columns where nothing is summed.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/eight.cuh"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) embed_kernel(const __grid_constant__ EmbedArgs a) {
  join_chain();
  const int64_t t = blockIdx.x;
  const int64_t h = a.table.cols;
  const int32_t override_row = a.override_row != nullptr ? a.override_row[t] : -1;
  const int64_t id = a.ids[t];
  for (int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x; c < h; c += int64_t{gridDim.y} * kThreads) {
    const float v = override_row >= 0 ? load_value(a.overrides, override_row, c) : weight_value(a.table, id, c);
    for (int i = 0; i < a.hc; ++i) store_value(a.streams, t, i * h + c, v);
  }
  if (blockIdx.y == 0 && threadIdx.x < static_cast<unsigned>(a.hc)) {
    a.mix[t * a.hc + threadIdx.x] = threadIdx.x == 0 ? 1.F : 0.F;
  }
}

// The row lies in shared memory between the two passes, so that y may be x.
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const __grid_constant__ RmsNormArgs a) {
  join_chain();
  __shared__ double slots[kThreads / 32];
  float* x = dynamic_shared<float>();
  const int64_t t = blockIdx.x;
  for (int64_t c = threadIdx.x; c < a.x.cols; c += kThreads) x[c] = load_value(a.x, t, c);
  const float r = block_inverse_rms(x, a.x.cols, a.eps, slots);
  for (int64_t c = threadIdx.x; c < a.x.cols; c += kThreads)
    store_value(a.y, t, c, weight_value(a.w, 0, c) * (x[c] * r));
}

// Rows of bf16 that a block holds in registers: one access of 16 bytes per eight columns in, one out. fp32 sums of
// eight squares go into an fp64 sum; where they overflow, the row is summed once more.
constexpr int kEightsThreads = 128;
template <int kEights>
__global__ void __launch_bounds__(kEightsThreads) rms_norm_eights_kernel(const __grid_constant__ RmsNormArgs a) {
  join_chain();
  __shared__ float slots[kEightsThreads / 32];
  const int64_t t = blockIdx.x;
  const int64_t cols = a.x.cols;
  const bool eights = norm_in_eights(a.w);
  uint4 norm[kEights];
  uint4 held[kEights];
  load_held_norm<kEights, kEightsThreads>(a.w, eights, norm);
  load_held<kEights, kEightsThreads>(a.x, t, held);
  float square = 0.F;
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    float x[8];
    unpack_eight(held[i], x);
    float sum = x[0] * x[0];
#pragma unroll
    for (int k = 1; k < 8; ++k) sum = fmaf(x[k], x[k], sum);
    square += sum;
  }
  square = warp_sum(square);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = square;
  __syncthreads();
  square = slots[0];
#pragma unroll
  for (int w = 1; w < kEightsThreads / 32; ++w) square += slots[w];
  const float r = inverse_rms(square, a.x, t, a.eps);
  if (!(square < INFINITY)) __syncthreads();  // every warp has read x again, which may be y
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    const int64_t c = (static_cast<int64_t>(threadIdx.x) + i * kEightsThreads) * 8;
    if (c < cols) store_sixteen(eight_at(a.y, t, c), scale_eight(held[i], r, a.w, eights, norm[i], c));
  }
}

__global__ void __launch_bounds__(kThreads) gather_rows_kernel(const __grid_constant__ GatherRowsArgs a) {
  join_chain();
  const int64_t i = blockIdx.x;
  const int64_t row = a.index[i];
  for (int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x; c < a.x.cols; c += int64_t{gridDim.y} * kThreads) {
    store_value(a.y, i, c, load_value(a.x, row, c));
  }
}

__global__ void __launch_bounds__(kThreads) gather_table_kernel(const __grid_constant__ GatherTableArgs a) {
  join_chain();
  const int64_t i = blockIdx.x;
  const int64_t row = a.index[i];
  for (int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x; c < a.table.cols; c += int64_t{gridDim.y} * kThreads) {
    store_value(a.y, i, c, weight_value(a.table, row, c));
  }
}

// The angle is the fp32 product; sine and cosine are taken in fp64 and rounded once (model.md §5.5).
__global__ void __launch_bounds__(kThreads) rope_table_kernel(const __grid_constant__ RopeTableArgs a) {
  join_chain();
  const int64_t pairs = a.rope_dim / 2;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= a.n * pairs) return;
  const float angle = static_cast<float>(a.positions[at / pairs]) * a.inv_freq[at % pairs];
  a.table[2 * at] = static_cast<float>(cos(static_cast<double>(angle)));
  a.table[2 * at + 1] = static_cast<float>(sin(static_cast<double>(angle)));
}

// One warp per head of a row.
__global__ void __launch_bounds__(kThreads) q_rope_kernel(const __grid_constant__ QRopeArgs a, int64_t heads_total) {
  join_chain();
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int64_t lane = threadIdx.x % 32;
  if (at >= heads_total) return;
  const int64_t t = at / a.heads;
  const int64_t d = a.q.cols / a.heads;
  const int64_t first = at % a.heads * d;
  float r = 1.F;
  if (a.head_norm_eps > 0.F) {
    double sum = 0.0;
    for (int64_t c = lane; c < d; c += 32) {
      const double v = load_value(a.q, t, first + c);
      sum += v * v;
    }
    sum = warp_sum(sum);
    r = static_cast<float>(1.0 / sqrt(sum / static_cast<double>(d) + static_cast<double>(a.head_norm_eps)));
    for (int64_t c = lane; c < d - a.rope_dim; c += 32)
      store_value(a.q, t, first + c, load_value(a.q, t, first + c) * r);
  }
  const int64_t tail = first + d - a.rope_dim;
  for (int64_t i = lane; i < a.rope_dim / 2; i += 32) {
    float re = load_value(a.q, t, tail + 2 * i);
    float im = load_value(a.q, t, tail + 2 * i + 1);
    if (a.head_norm_eps > 0.F) {
      re *= r;
      im *= r;
    }
    rotate_pair(re, im, a.table + t * a.rope_dim, i, false);
    store_value(a.q, t, tail + 2 * i, re);
    store_value(a.q, t, tail + 2 * i + 1, im);
  }
}

__global__ void __launch_bounds__(kThreads) stream_mean_kernel(const __grid_constant__ StreamMeanArgs a, int64_t h) {
  join_chain();
  const int64_t t = blockIdx.x;
  for (int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x; c < h; c += int64_t{gridDim.y} * kThreads) {
    float sum = 0.F;
    for (int i = 0; i < a.hc; ++i) sum += load_value(a.streams, t, i * h + c);
    store_value(a.y, t, a.column + c, sum / static_cast<float>(a.hc));
  }
}

__global__ void __launch_bounds__(kThreads) confidence_kernel(const __grid_constant__ ConfidenceArgs a) {
  join_chain();
  __shared__ float slots[kThreads / 32];
  const int64_t t = blockIdx.x;
  float sum = 0.F;
  for (int64_t c = threadIdx.x; c < a.h.cols; c += kThreads) sum += load_value(a.h, t, c) * weight_value(a.w, 0, c);
  for (int64_t c = threadIdx.x; c < a.e.cols; c += kThreads) {
    sum += load_value(a.e, t, c) * weight_value(a.w, 0, a.h.cols + c);
  }
  const float logit = block_sum(sum, slots);
  if (threadIdx.x == 0) a.confidence[t] = sigmoid(fminf(fmaxf(logit / a.temperature, -60.F), 60.F));
}

// The largest key wins, on a tie the lowest index: any order of comparison gives the same.
__global__ void __launch_bounds__(kThreads) argmax_kernel(const __grid_constant__ ArgmaxArgs a) {
  join_chain();
  __shared__ uint32_t keys[kThreads / 32];
  __shared__ int64_t places[kThreads / 32];
  const int64_t t = blockIdx.x;
  uint32_t best = 0;
  int64_t at = 0;
  for (int64_t c = threadIdx.x; c < a.logits.cols; c += kThreads) {
    const uint32_t key = score_key(load_value(a.logits, t, c));
    if (key > best) {
      best = key;
      at = c;
    }
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint32_t other = shuffle_xor(best, mask);
    const int64_t other_at = shuffle_xor(at, mask);
    if (other > best || (other == best && other_at < at)) {
      best = other;
      at = other_at;
    }
  }
  if (threadIdx.x % 32 == 0) {
    keys[threadIdx.x / 32] = best;
    places[threadIdx.x / 32] = at;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kThreads / 32; ++w) {
      if (keys[w] > best || (keys[w] == best && places[w] < at)) {
        best = keys[w];
        at = places[w];
      }
    }
    a.ids[t] = static_cast<int32_t>(at);
  }
}

int64_t column_blocks(int64_t rows, int64_t cols) {
  // Enough blocks for a device with few rows, one per row with many.
  return rows >= 512 ? 1 : divide_up(cols, kThreads) < 8 ? divide_up(cols, kThreads) : 8;
}

}  // namespace

void embed(const EmbedArgs& a, Stream& stream) {
  const int64_t h = a.table.cols;
  DI_KERNEL_CHECK(a.streams.rows == a.n_tokens && a.streams.cols == a.hc * h && a.hc <= kThreads &&
                      (a.override_row == nullptr || a.overrides.cols == h),
                  "streams [%lld, %lld], %d tokens of %d streams of %lld", static_cast<long long>(a.streams.rows),
                  static_cast<long long>(a.streams.cols), a.n_tokens, a.hc, static_cast<long long>(h));
  if (a.n_tokens == 0) return;
  DI_LAUNCH_EARLY(stream, embed_kernel, grid(a.n_tokens, column_blocks(a.n_tokens, h)), dim3(kThreads), 0, a);
}

void rms_norm(const RmsNormArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.x.rows == a.y.rows && a.x.cols == a.y.cols && a.w.cols == a.x.cols && a.x.cols <= 56 * 1024,
                  "x [%lld, %lld], y [%lld, %lld], weight %lld", static_cast<long long>(a.x.rows),
                  static_cast<long long>(a.x.cols), static_cast<long long>(a.y.rows), static_cast<long long>(a.y.cols),
                  static_cast<long long>(a.w.cols));
  if (a.x.rows == 0) return;
  if (in_eights(a.x) && in_eights(a.y) && is_norm(a.w) && a.x.cols <= 8 * 8 * kEightsThreads) {
    const dim3 threads(kEightsThreads);
    if (a.x.cols <= 2 * 8 * kEightsThreads) {
      DI_LAUNCH_EARLY(stream, rms_norm_eights_kernel<2>, grid(a.x.rows), threads, 0, a);
    } else if (a.x.cols <= 5 * 8 * kEightsThreads) {
      DI_LAUNCH_EARLY(stream, rms_norm_eights_kernel<5>, grid(a.x.rows), threads, 0, a);
    } else {
      DI_LAUNCH_EARLY(stream, rms_norm_eights_kernel<8>, grid(a.x.rows), threads, 0, a);
    }
    return;
  }
  DI_LAUNCH_EARLY(stream, rms_norm_kernel, grid(a.x.rows), dim3(kThreads), static_cast<size_t>(a.x.cols) * 4, a);
}

void gather_rows(const GatherRowsArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.y.rows == a.n && a.y.cols == a.x.cols, "y [%lld, %lld], %d rows of %lld",
                  static_cast<long long>(a.y.rows), static_cast<long long>(a.y.cols), a.n,
                  static_cast<long long>(a.x.cols));
  if (a.n == 0) return;
  DI_LAUNCH_EARLY(stream, gather_rows_kernel, grid(a.n, column_blocks(a.n, a.x.cols)), dim3(kThreads), 0, a);
}

void gather_table(const GatherTableArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.y.rows == a.n && a.y.cols == a.table.cols, "y [%lld, %lld], %d rows of %lld",
                  static_cast<long long>(a.y.rows), static_cast<long long>(a.y.cols), a.n,
                  static_cast<long long>(a.table.cols));
  if (a.n == 0) return;
  DI_LAUNCH_EARLY(stream, gather_table_kernel, grid(a.n, column_blocks(a.n, a.table.cols)), dim3(kThreads), 0, a);
}

void rope_table(const RopeTableArgs& a, Stream& stream) {
  if (a.n == 0 || a.rope_dim == 0) return;
  DI_LAUNCH_EARLY(stream, rope_table_kernel, grid(divide_up(int64_t{a.n} * (a.rope_dim / 2), kThreads)), dim3(kThreads),
                  0, a);
}

void q_rope(const QRopeArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.heads > 0 && a.q.cols % a.heads == 0 && a.rope_dim <= a.q.cols / a.heads,
                  "q of %lld columns, %d heads, rope %d", static_cast<long long>(a.q.cols), a.heads, a.rope_dim);
  const int64_t total = a.q.rows * a.heads;
  if (total == 0) return;
  DI_LAUNCH_EARLY(stream, q_rope_kernel, grid(divide_up(total * 32, kThreads)), dim3(kThreads), 0, a, total);
}

void stream_mean(const StreamMeanArgs& a, Stream& stream) {
  const int64_t h = a.streams.cols / a.hc;
  DI_KERNEL_CHECK(a.streams.cols == a.hc * h && a.column + h <= a.y.cols && a.y.rows == a.streams.rows,
                  "streams [%lld, %lld], y [%lld, %lld] at column %lld", static_cast<long long>(a.streams.rows),
                  static_cast<long long>(a.streams.cols), static_cast<long long>(a.y.rows),
                  static_cast<long long>(a.y.cols), static_cast<long long>(a.column));
  if (a.streams.rows == 0) return;
  DI_LAUNCH_EARLY(stream, stream_mean_kernel, grid(a.streams.rows, column_blocks(a.streams.rows, h)), dim3(kThreads), 0,
                  a, h);
}

void confidence(const ConfidenceArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.w.cols == a.h.cols + a.e.cols && a.h.rows == a.e.rows, "h %lld columns, e %lld, w %lld",
                  static_cast<long long>(a.h.cols), static_cast<long long>(a.e.cols), static_cast<long long>(a.w.cols));
  if (a.h.rows == 0) return;
  DI_LAUNCH_EARLY(stream, confidence_kernel, grid(a.h.rows), dim3(kThreads), 0, a);
}

void argmax(const ArgmaxArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.logits.cols > 0 || a.logits.rows == 0, "logits of %lld columns",
                  static_cast<long long>(a.logits.cols));
  if (a.logits.rows == 0) return;
  DI_LAUNCH_EARLY(stream, argmax_kernel, grid(a.logits.rows), dim3(kThreads), 0, a);
}

}  // namespace di::kernels::cuda
