// What is written to the caches: window entries, page entries, ring commits; and the quantised index query. One block
// per row; values as in the reference to the last bit, so that equal inputs store equal bytes.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

constexpr int kStoreThreads = 128;

__global__ void __launch_bounds__(kStoreThreads) swa_store_kernel(const __grid_constant__ SwaStoreArgs a) {
  join_chain();
  __shared__ double slots[kStoreThreads / 32];
  float* x = dynamic_shared<float>();
  const int64_t t = blockIdx.x;
  const int64_t d = a.kv.cols;
  for (int64_t c = threadIdx.x; c < d; c += kStoreThreads) x[c] = load_value(a.kv, t, c);
  block_rms_norm(x, a.norm, d, a.norm_eps, a.round_bf16, slots);
  block_rotate(x, d, a.table + t * a.rope_dim, a.rope_dim, a.round_bf16);
  uint8_t* data = a.fresh + t * record_bytes_of(a.format, d);
  const RecordAt at{data, data + data_bytes_of(a.format, d)};
  block_store_record(a.format, d, x, at);
  if (a.entry.data == nullptr) return;
  __syncthreads();  // the block reads the record that it wrote
  for (int64_t c = threadIdx.x; c < d; c += kStoreThreads) store_value(a.entry, t, c, record_value(a.format, at, c));
}

__global__ void __launch_bounds__(kStoreThreads) ring_commit_kernel(const __grid_constant__ RingCommitArgs a) {
  join_chain();
  const int64_t t = blockIdx.x;
  if (!stays_in_ring(a.rows, t, a.ring.ring_rows)) return;
  const int64_t bytes = record_bytes_of(a.ring.format, a.ring.width);
  const uint8_t* from = a.fresh + t * bytes;
  uint8_t* to = ring_record(a.ring, a.rows.state_slot[a.rows.sequence[t]], a.rows.positions[t]).data;
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0 && bytes % 16 == 0) {
    for (int64_t i = threadIdx.x; i < bytes / 16; i += kStoreThreads) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else {
    for (int64_t i = threadIdx.x; i < bytes; i += kStoreThreads) to[i] = from[i];
  }
}

__global__ void __launch_bounds__(kStoreThreads) page_store_kernel(const __grid_constant__ PageStoreArgs a) {
  join_chain();
  __shared__ double slots[kStoreThreads / 32];
  float* x = dynamic_shared<float>();
  const int64_t i = blockIdx.x;
  const int64_t width = a.x.cols;
  const int64_t t = a.closing[i];
  if (t < 0) return;
  for (int64_t c = threadIdx.x; c < width; c += kStoreThreads) {
    const float v = load_value(a.x, i, c);
    x[c] = a.norm.data == nullptr && a.round_bf16 ? round_bf16(v) : v;
  }
  if (a.norm.data != nullptr) {
    block_rms_norm(x, a.norm, width, a.norm_eps, a.round_bf16, slots);
  } else {
    __syncthreads();
  }
  block_rotate(x, width, a.table + i * a.rope_dim, a.rope_dim, a.round_bf16);
  block_store_record(a.pages.format, width, x,
                     page_entry(a.pages, a.rows, a.rows.sequence[t], a.rows.positions[t] / a.ratio));
}

// One warp per head of a row; lane l holds channel 32·group + l.
__global__ void __launch_bounds__(kStoreThreads)
    index_query_kernel(const __grid_constant__ IndexQueryArgs a, int64_t heads_total) {
  join_chain();
  const int64_t at = (int64_t{blockIdx.x} * kStoreThreads + threadIdx.x) / 32;
  const int64_t lane = threadIdx.x % 32;
  if (at >= heads_total) return;
  const int64_t t = at / a.heads;
  const int64_t width = a.q.cols / a.heads;
  const int64_t first = at % a.heads * width;
  const int64_t plain = width - a.rope_dim;
  for (int64_t group = 0; group < (width + 31) / 32; ++group) {
    const int64_t c = group * 32 + lane;
    float v = c < width ? load_value(a.q, t, first + c) : 0.F;
    if (c >= plain && c < width) {
      const int64_t i = (c - plain) / 2;
      const bool imaginary = (c - plain) % 2 != 0;
      const float partner = load_value(a.q, t, imaginary ? first + c - 1 : first + c + 1);
      float re = imaginary ? partner : v;
      float im = imaginary ? v : partner;
      rotate_pair(re, im, a.table + t * a.rope_dim, i, false);
      v = imaginary ? im : re;
    }
    if (a.quantise) {
      v = round_bf16(v);
      v = requantise_e2m1(v, e2m1_group_exponent(warp_max(fabsf(v))));
    }
    __syncwarp();  // every lane has read its partner before one writes
    if (c < width) store_value(a.q, t, first + c, v);
    __syncwarp();
  }
}

}  // namespace

void swa_store(const SwaStoreArgs& a, Stream& stream) {
  const int64_t d = a.kv.cols;
  DI_KERNEL_CHECK(a.norm.cols == d && a.rope_dim <= d && d <= 8192 && (a.format == KvFormat::kF32 || d % 32 == 0),
                  "kv of %lld columns, norm %lld, rope %d", static_cast<long long>(d),
                  static_cast<long long>(a.norm.cols), a.rope_dim);
  if (a.kv.rows == 0) return;
  DI_LAUNCH_EARLY(stream, swa_store_kernel, grid(a.kv.rows), dim3(kStoreThreads), static_cast<size_t>(d) * 4, a);
}

void ring_commit(const RingCommitArgs& a, Stream& stream) {
  if (a.rows.n == 0) return;
  DI_LAUNCH_EARLY(stream, ring_commit_kernel, grid(a.rows.n), dim3(kStoreThreads), 0, a);
}

void page_store(const PageStoreArgs& a, Stream& stream) {
  const int64_t width = a.x.cols;
  DI_KERNEL_CHECK(
      a.x.rows == a.n_closing && width == a.pages.width && (a.norm.data == nullptr || a.norm.cols == width) &&
          a.ratio > 0 && width <= 8192 && (a.pages.format == KvFormat::kF32 || width % 32 == 0),
      "x [%lld, %lld] for %d entries of width %d, norm %lld, ratio %d", static_cast<long long>(a.x.rows),
      static_cast<long long>(width), a.n_closing, a.pages.width, static_cast<long long>(a.norm.cols), a.ratio);
  if (a.n_closing == 0) return;
  DI_LAUNCH_EARLY(stream, page_store_kernel, grid(a.n_closing), dim3(kStoreThreads), static_cast<size_t>(width) * 4, a);
}

void index_query(const IndexQueryArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.heads > 0 && a.q.cols % a.heads == 0, "q of %lld columns, %d heads",
                  static_cast<long long>(a.q.cols), a.heads);
  const int64_t width = a.q.cols / a.heads;
  DI_KERNEL_CHECK(a.rope_dim <= width && (width - a.rope_dim) % 2 == 0 && (!a.quantise || width % 32 == 0),
                  "index width %lld, rope %d", static_cast<long long>(width), a.rope_dim);
  const int64_t total = a.q.rows * a.heads;
  if (total == 0) return;
  DI_LAUNCH_EARLY(stream, index_query_kernel, grid(divide_up(total * 32, kStoreThreads)), dim3(kStoreThreads), 0, a,
                  total);
}

}  // namespace di::kernels::cuda
