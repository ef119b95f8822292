// Manifold hyper-connections (model.md §5.2). hc_pre of four bf16 streams: hc_project.cuh. Of any others: one pass over
// the streams for the projection and its norm, the coefficients in registers of one warp, and a second pass (from L2)
// that collapses, norms and stores the sub-layer's input.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/eight.cuh"
#include "kernels/cuda/hc_project.cuh"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

constexpr int kWarps = kThreads / 32;

// Sinkhorn of one token in the first hc·hc lanes of a warp, lane = i·hc + j (row i = input stream).
__device__ __forceinline__ float sinkhorn(float c, int hc, int iters, float hc_eps) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int i = lane / hc % hc;
  const int j = lane % hc;
  float max = -INFINITY;
  for (int k = 0; k < hc; ++k) max = fmaxf(max, shuffle(c, i * hc + k));
  c = expf(c - max);
  float sum = 0.F;
  for (int k = 0; k < hc; ++k) sum += shuffle(c, i * hc + k);
  c = c / sum + hc_eps;
  // The reciprocals' last place does not matter: the next turn corrects it.
  for (int n = 0; n < iters; ++n) {
    if (n > 0) {
      sum = 0.F;
      for (int k = 0; k < hc; ++k) sum += shuffle(c, i * hc + k);
      c *= reciprocal(sum + hc_eps);
    }
    sum = 0.F;
    for (int k = 0; k < hc; ++k) sum += shuffle(c, k * hc + j);
    c *= reciprocal(sum + hc_eps);
  }
  return c;
}

// Coefficients of row t by one warp from the projections (lane k: output k) and 1/rms of f; what lane i < hc returns is
// pre[i].
template <int kHc>
__device__ __forceinline__ float coefficients(const HcPreArgs& a, int64_t t, float projection, float r) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float m = lane < (2 + kHc) * kHc ? projection * r : 0.F;
  float pre = 0.F;
  if (lane < kHc) {
    pre = sigmoid(m * a.scale[0] + a.base[lane]) + a.hc_eps;
    a.pre[t * kHc + lane] = pre;
  } else if (lane < 2 * kHc) {
    a.post[t * kHc + lane - kHc] = 2.F * sigmoid(m * a.scale[1] + a.base[lane]);
  }
  // Output 2·hc + e sits in lane 2·hc + e; element e goes to lane e.
  const float raw = shuffle(m, 2 * kHc + lane);
  const float c =
      sinkhorn(lane < kHc * kHc ? raw * a.scale[2] + a.base[2 * kHc + lane] : 0.F, kHc, a.sinkhorn_iters, a.hc_eps);
  if (lane < kHc * kHc) a.comb[t * kHc * kHc + lane] = c;
  return pre;
}

// kTokens rows per block share the reads of fn; the sums of a row do not depend on kTokens.
template <int kHc, int kTokens>
__global__ void __launch_bounds__(kThreads) hc_pre_kernel(const __grid_constant__ HcPreArgs a) {
  constexpr int kOutputs = (2 + kHc) * kHc;
  __shared__ float dots[kTokens][kOutputs][kWarps];
  __shared__ double squares[kTokens][kWarps];
  __shared__ float mix[kTokens][kHc];
  __shared__ double slots[kWarps];
  float* y = dynamic_shared<float>();  // [H]
  const int64_t first = int64_t{blockIdx.x} * kTokens;
  const int64_t h = a.y.cols;
  const int64_t width = kHc * h;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);

  float acc[kTokens][kOutputs] = {};
  double sum[kTokens] = {};
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    float x[kTokens];
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      x[n] = first + n < a.streams.rows ? load_value(a.streams, first + n, c) : 0.F;
      sum[n] += static_cast<double>(x[n]) * static_cast<double>(x[n]);
    }
#pragma unroll
    for (int k = 0; k < kOutputs; ++k) {
      const float w = a.fn[k * width + c];
#pragma unroll
      for (int n = 0; n < kTokens; ++n) acc[n][k] = fmaf(x[n], w, acc[n][k]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    const double total = warp_sum(sum[n]);
    if (lane == 0) squares[n][warp] = total;
#pragma unroll
    for (int k = 0; k < kOutputs; ++k) {
      const float dot = warp_sum(acc[n][k]);
      if (lane == 0) dots[n][k][warp] = dot;
    }
  }
  __syncthreads();

  if (warp < kTokens && first + warp < a.streams.rows) {  // warp n finishes token n
    const int64_t t = first + warp;
    double square = squares[warp][0];
    for (int w = 1; w < kWarps; ++w) square += squares[warp][w];
    float projection = 0.F;
    if (lane < kOutputs) {
      projection = dots[warp][lane][0];
      for (int w = 1; w < kWarps; ++w) projection += dots[warp][lane][w];
    }
    const float pre = coefficients<kHc>(a, t, projection, inverse_rms(square, width, a.norm_eps));
    if (lane < kHc) mix[warp][lane] = a.use_own_pre ? pre : a.mix_in[t * kHc + lane];
  }
  __syncthreads();

  for (int n = 0; n < kTokens; ++n) {
    const int64_t t = first + n;
    if (t >= a.streams.rows) break;
    for (int64_t c = threadIdx.x; c < h; c += kThreads) {
      float v = 0.F;
#pragma unroll
      for (int i = 0; i < kHc; ++i) v += mix[n][i] * load_value(a.streams, t, i * h + c);
      y[c] = a.round_bf16 ? round_bf16(v) : v;
    }
    const float r = block_inverse_rms(y, h, a.norm_eps, slots);
    for (int64_t c = threadIdx.x; c < h; c += kThreads) store_value(a.y, t, c, weight_value(a.norm, 0, c) * (y[c] * r));
  }
}

// The second launch of the projected form: one block per row. One warp makes the coefficients while the others norm the
// collapse that lies in y; with the site's own mix they wait for it and collapse first.
constexpr int kNormThreads = 128;
constexpr int kFinishThreads = kNormThreads + 32;
constexpr int kHeldEights = 5;  // of a thread: all of a row of 5120

__global__ void __launch_bounds__(kFinishThreads) hc_finish_kernel(const __grid_constant__ ProjectArgs p) {
  __shared__ float parts[kParts][kRecord];
  __shared__ float mix[kHcStreams];
  __shared__ double slots[kFinishThreads / 32];
  const HcPreArgs& a = p.a;
  const int64_t t = blockIdx.x;
  const int64_t h = a.y.cols;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const bool collapsed = !a.use_own_pre;
  const bool norms = collapsed && warp < kNormThreads / 32;
  const bool eights = norm_in_eights(a.norm);
  uint4 norm[kHeldEights];
  uint4 held[kHeldEights];
  if (norms) load_held_norm<kHeldEights, kNormThreads>(a.norm, eights, norm);
  wait_for_previous();
  if (norms) load_held<kHeldEights, kNormThreads>(a.y, t, held);
  const int64_t per_part = p.slots == p.groups ? p.per_part : 1;
  for (int part = warp; part < kParts; part += kFinishThreads / 32) {
    float sum = 0.F;
    if (lane < kRecordUsed) {
      const float* record = p.records + t * p.slots * kRecord + lane;
      const int64_t end = (part + 1) * per_part < p.slots ? (part + 1) * per_part : p.slots;
#pragma unroll 5
      for (int64_t g = part * per_part; g < end; ++g) sum += record[g * kRecord];
      parts[part][lane] = sum;
    }
  }
  __syncthreads();
  float value_sum = 0.F;
#pragma unroll
  for (int part = 0; part < kParts; ++part) value_sum += parts[part][kValueSquareAt];
  const float value_r = inverse_rms(value_sum, a.y, t, a.norm_eps);
  if (!(value_sum < INFINITY)) __syncthreads();  // every warp has read y again
  if (norms) {
#pragma unroll
    for (int i = 0; i < kHeldEights; ++i) {
      const int64_t c = (static_cast<int64_t>(threadIdx.x) + i * kNormThreads) * 8;
      if (c < h) store_sixteen(eight_at(a.y, t, c), scale_eight(held[i], value_r, a.norm, eights, norm[i], c));
    }
  } else if (warp == kNormThreads / 32) {
    float projection = 0.F;
    float sum = 0.F;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (lane < kHcOutputs) projection += parts[part][lane];
      sum += parts[part][kSquareAt];
    }
    const float pre = coefficients<kHcStreams>(a, t, projection, inverse_rms(sum, a.streams, t, a.norm_eps));
    if (lane < kHcStreams) mix[lane] = pre;
  }
  if (collapsed) return;
  __syncthreads();
  float* y = dynamic_shared<float>();  // [H]
  for (int64_t c = threadIdx.x; c < h; c += kFinishThreads) {
    float v = 0.F;
#pragma unroll
    for (int i = 0; i < kHcStreams; ++i) v += mix[i] * load_value(a.streams, t, i * h + c);
    y[c] = round_bf16(v);
  }
  const float r = block_inverse_rms(y, h, a.norm_eps, slots);
  for (int64_t c = threadIdx.x; c < h; c += kFinishThreads) {
    store_value(a.y, t, c, weight_value(a.norm, 0, c) * (y[c] * r));
  }
}

template <int kHc>
__global__ void __launch_bounds__(kThreads) hc_post_kernel(const __grid_constant__ HcPostArgs a) {
  join_chain();
  const int64_t t = blockIdx.x;
  const int64_t h = a.y.cols;
  float post[kHc];
  float comb[kHc][kHc];
#pragma unroll
  for (int j = 0; j < kHc; ++j) {
    post[j] = a.post[t * kHc + j];
#pragma unroll
    for (int i = 0; i < kHc; ++i) comb[i][j] = a.comb[(t * kHc + i) * kHc + j];
  }
  for (int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x; c < h; c += int64_t{gridDim.y} * kThreads) {
    const float y = load_value(a.y, t, c);
    float x[kHc];
#pragma unroll
    for (int i = 0; i < kHc; ++i) x[i] = load_value(a.streams, t, i * h + c);
#pragma unroll
    for (int j = 0; j < kHc; ++j) {
      float sum = post[j] * y;
#pragma unroll
      for (int i = 0; i < kHc; ++i) sum += comb[i][j] * x[i];
      store_value(a.streams, t, j * h + c, sum);
    }
  }
}

// Four bf16 streams: a thread has eight columns of each.
constexpr int kPostThreads = 128;
__global__ void __launch_bounds__(kPostThreads) hc_post_eights_kernel(const __grid_constant__ HcPostArgs a) {
  join_chain();
  const int64_t t = blockIdx.x;
  const int64_t h = a.y.cols;
  const int64_t c = (int64_t{blockIdx.y} * kPostThreads + threadIdx.x) * 8;
  if (c >= h) return;
  uint4 packed[kHcStreams];
#pragma unroll
  for (int i = 0; i < kHcStreams; ++i) packed[i] = *eight_at(a.streams, t, i * h + c);
  float y[8];
  unpack_eight(*eight_at(a.y, t, c), y);
  float post[kHcStreams];
  load_four(a.post + t * kHcStreams, post);
  float sum[kHcStreams][8];
#pragma unroll
  for (int j = 0; j < kHcStreams; ++j) {
#pragma unroll
    for (int k = 0; k < 8; ++k) sum[j][k] = post[j] * y[k];
  }
#pragma unroll
  for (int i = 0; i < kHcStreams; ++i) {
    float x[8];
    unpack_eight(packed[i], x);
    float comb[kHcStreams];
    load_four(a.comb + (t * kHcStreams + i) * kHcStreams, comb);
#pragma unroll
    for (int j = 0; j < kHcStreams; ++j) {
#pragma unroll
      for (int k = 0; k < 8; ++k) sum[j][k] += comb[j] * x[k];
    }
  }
#pragma unroll
  for (int j = 0; j < kHcStreams; ++j) store_sixteen(eight_at(a.streams, t, j * h + c), pack_eight(sum[j]));
}

__global__ void __launch_bounds__(kThreads) hc_head_kernel(const __grid_constant__ HcHeadArgs a) {
  join_chain();
  __shared__ double slots[kWarps];
  float* y = dynamic_shared<float>();  // [H]
  const int64_t t = blockIdx.x;
  const int64_t h = a.y.cols;
  for (int64_t c = threadIdx.x; c < h; c += kThreads) {
    float v = 0.F;
    for (int i = 0; i < a.hc; ++i) v += a.mix[t * a.hc + i] * load_value(a.streams, t, i * h + c);
    y[c] = a.streams.dtype == DType::kBf16 ? round_bf16(v) : v;
    if (a.h.data != nullptr) store_value(a.h, t, c, y[c]);
  }
  const float r = block_inverse_rms(y, h, a.norm_eps, slots);
  for (int64_t c = threadIdx.x; c < h; c += kThreads) store_value(a.y, t, c, weight_value(a.norm, 0, c) * (y[c] * r));
}

// One block per row and output.
__global__ void __launch_bounds__(kThreads) hc_head_mix_kernel(const __grid_constant__ HcHeadMixArgs a) {
  join_chain();
  __shared__ float dots[kWarps];
  __shared__ double squares[kWarps];
  const int64_t t = blockIdx.x;
  const int64_t i = blockIdx.y;
  const int64_t width = a.streams.cols;
  float dot = 0.F;
  double square = 0.0;
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    const float x = load_value(a.streams, t, c);
    dot = fmaf(x, a.fn[i * width + c], dot);
    square += static_cast<double>(x) * static_cast<double>(x);
  }
  dot = block_sum(dot, dots);
  square = block_sum(square, squares);
  if (threadIdx.x != 0) return;
  const float r = static_cast<float>(1.0 / sqrt(square / static_cast<double>(width) + static_cast<double>(a.norm_eps)));
  a.mix[t * a.hc + i] = sigmoid(dot * r * a.scale[0] + a.base[i]) + a.hc_eps;
}

constexpr int64_t kManyRows = 256;  // from here on the reads of fn cost more than idle multiprocessors

template <int kHc>
void launch_pre(const HcPreArgs& a, Stream& stream) {
  const size_t shared = static_cast<size_t>(a.y.cols) * 4;
  if (a.streams.rows >= kManyRows) {
    DI_LAUNCH(stream, (hc_pre_kernel<kHc, 4>), grid(divide_up(a.streams.rows, 4)), dim3(kThreads), shared, a);
  } else {
    DI_LAUNCH(stream, (hc_pre_kernel<kHc, 1>), grid(a.streams.rows), dim3(kThreads), shared, a);
  }
}

bool projects(const HcPreArgs& a) {
  return a.hc == kHcStreams && a.round_bf16 && in_eights(a.streams) && in_eights(a.y) && a.y.cols % kUnitColumns == 0 &&
         a.y.cols <= kHeldEights * kNormThreads * 8 && is_norm(a.norm) && is_aligned(a.fn, 16) &&
         (a.use_own_pre || is_aligned(a.mix_in, 16));
}

// From here on a part's blocks fill the device, and groups would write and read their records for nothing.
constexpr int64_t kProjectManyRows = 2048;

void launch_projected(const HcPreArgs& a, int64_t many_rows, Stream& stream) {
  ProjectArgs p{};
  p.a = a;
  p.units = a.y.cols / kUnitColumns;
  p.groups = divide_up(p.units, kGroupUnits);
  p.per_part = divide_up(p.groups, kParts);
  const bool many = a.y.rows >= many_rows;
  p.slots = many ? kParts : p.groups;
  const int64_t records = a.y.rows * p.slots * kRecord;
  reserve_scratch(stream, scratch_size(records * 4));
  p.records = take_scratch<float>(stream, records);
  if (many) {
    DI_LAUNCH_EARLY(stream, hc_project_many_kernel, grid(divide_up(a.y.rows, kManyBlockRows), kParts),
                    dim3(kManyThreads), sizeof(ManyShared), p);
  } else {
    DI_LAUNCH_EARLY(stream, hc_project_few_kernel, grid(p.groups, divide_up(a.y.rows, 16)), dim3(kFewThreads),
                    sizeof(FewShared), p);
  }
  DI_LAUNCH_EARLY(stream, hc_finish_kernel, grid(a.y.rows), dim3(kFinishThreads),
                  a.use_own_pre ? static_cast<size_t>(a.y.cols) * 4 : 0, p);
}

template <int kHc>
void launch_post(const HcPostArgs& a, Stream& stream) {
  const int64_t columns = a.streams.rows >= 256 ? 1 : a.y.cols / kThreads < 4 ? 1 : 4;
  DI_LAUNCH_EARLY(stream, hc_post_kernel<kHc>, grid(a.streams.rows, columns), dim3(kThreads), 0, a);
}

}  // namespace

void hc_pre(const HcPreArgs& a, Stream& stream) {
  hc_pre_from(a, kProjectManyRows, stream);
}

void hc_pre_from(const HcPreArgs& a, int64_t many_rows, Stream& stream) {
  const int64_t h = a.y.cols;
  DI_KERNEL_CHECK(a.streams.cols == a.hc * h && a.norm.cols == h && a.y.rows == a.streams.rows && h <= 40 * 1024 &&
                      (a.hc == 1 || a.hc == 2 || a.hc == 4),
                  "streams [%lld, %lld], y [%lld, %lld], norm %lld, hc %d (1, 2 or 4)",
                  static_cast<long long>(a.streams.rows), static_cast<long long>(a.streams.cols),
                  static_cast<long long>(a.y.rows), static_cast<long long>(h), static_cast<long long>(a.norm.cols),
                  a.hc);
  if (a.streams.rows == 0) return;
  if (projects(a)) {
    launch_projected(a, many_rows, stream);
  } else if (a.hc == 4) {
    launch_pre<4>(a, stream);
  } else if (a.hc == 2) {
    launch_pre<2>(a, stream);
  } else {
    launch_pre<1>(a, stream);
  }
}

void hc_post(const HcPostArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(
      a.streams.cols == a.hc * a.y.cols && a.y.rows == a.streams.rows && (a.hc == 1 || a.hc == 2 || a.hc == 4),
      "streams [%lld, %lld], y [%lld, %lld], hc %d (1, 2 or 4)", static_cast<long long>(a.streams.rows),
      static_cast<long long>(a.streams.cols), static_cast<long long>(a.y.rows), static_cast<long long>(a.y.cols), a.hc);
  if (a.streams.rows == 0) return;
  if (a.hc == kHcStreams && in_eights(a.streams) && in_eights(a.y) && is_aligned(a.post, 16) &&
      is_aligned(a.comb, 16)) {
    DI_LAUNCH_EARLY(stream, hc_post_eights_kernel, grid(a.streams.rows, divide_up(a.y.cols / 8, kPostThreads)),
                    dim3(kPostThreads), 0, a);
  } else if (a.hc == 4) {
    launch_post<4>(a, stream);
  } else if (a.hc == 2) {
    launch_post<2>(a, stream);
  } else {
    launch_post<1>(a, stream);
  }
}

void hc_head(const HcHeadArgs& a, Stream& stream) {
  const int64_t h = a.y.cols;
  DI_KERNEL_CHECK(a.streams.cols == a.hc * h && a.norm.cols == h && a.y.rows == a.streams.rows && h <= 56 * 1024,
                  "streams [%lld, %lld], y [%lld, %lld], norm %lld, hc %d", static_cast<long long>(a.streams.rows),
                  static_cast<long long>(a.streams.cols), static_cast<long long>(a.y.rows), static_cast<long long>(h),
                  static_cast<long long>(a.norm.cols), a.hc);
  if (a.streams.rows == 0) return;
  DI_LAUNCH_EARLY(stream, hc_head_kernel, grid(a.streams.rows), dim3(kThreads), static_cast<size_t>(h) * 4, a);
}

void hc_head_mix(const HcHeadMixArgs& a, Stream& stream) {
  if (a.streams.rows == 0) return;
  DI_LAUNCH_EARLY(stream, hc_head_mix_kernel, grid(a.streams.rows, a.hc), dim3(kThreads), 0, a);
}

}  // namespace di::kernels::cuda
