// Index scores and the selection of compressed entries (model.md §5.7, §5.8). Per slice of rows: scores of all
// competing entries into scratch, block maxima where a candidate source needs them, then an exact radix selection with
// one block per row. Keys are read as stored (68-byte records); nothing dequantised is written.
//
// Scores of bf16 queries over keys of 128 E2M1 channels run on the matrix units: keys are the left operand, widened in
// registers as streamed.cuh does, heads the right one, which stays in registers for all keys of a block. Both operands
// are exact in bf16.
//
// A row's competitors are numbered i = 0, 1, … in ascending order of their entries: all visible entries (i = g), or
// those of its candidate blocks one after the other.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/streamed.cuh"

namespace di::kernels::cuda {
namespace {

constexpr int kScoreThreads = 128;
constexpr int kTopThreads = 1024;
constexpr int64_t kScratchFloats = int64_t{64} << 20;  // scores of one slice of rows

struct Slice {
  SelectArgs a;
  int64_t first;        // row of the slice's scratch row 0
  int64_t columns;      // competitors of a row at most
  float* scores;        // [rows of the slice, columns]
  int64_t blocks;       // candidate blocks of a row at most
  float* block_scores;  // [rows of the slice, blocks] or null
};

struct Row {
  int64_t visible;
  int64_t blocks;
  const int32_t* lists;  // candidate blocks, null = every visible entry competes
  int64_t competitors;   // numbers in use, including those of entries that are not visible
  bool blocks_compete;
};

__device__ __forceinline__ Row describe(const SelectArgs& a, int64_t t) {
  Row r;
  r.visible = (int64_t{a.rows.positions[t]} + 1) / a.ratio;
  r.blocks = a.candidate_block > 0 ? (r.visible + a.candidate_block - 1) / a.candidate_block : 0;
  r.lists = a.candidate_in != nullptr ? a.candidate_in + t * a.candidate_topk : nullptr;
  if (r.lists != nullptr && a.candidate_topk > 0 && r.lists[0] == -2) r.lists = nullptr;
  r.competitors = r.lists != nullptr ? int64_t{a.candidate_topk} * a.candidate_block : r.visible;
  r.blocks_compete = a.candidate_out != nullptr && r.blocks > a.candidate_topk;
  return r;
}

// The entry of competitor i, or -1.
__device__ __forceinline__ int64_t entry_of(const SelectArgs& a, const Row& r, int64_t i) {
  if (r.lists == nullptr) return i < r.visible ? i : -1;
  const int64_t block = r.lists[i / a.candidate_block];
  const int64_t g = block * a.candidate_block + i % a.candidate_block;
  return block >= 0 && g < r.visible ? g : -1;
}

// Whether a row's scores are looked at: if everything fits, nothing competes.
__device__ __forceinline__ bool needs_scores(const SelectArgs& a, const Row& r) {
  return r.competitors > a.topk || r.blocks_compete || a.scores != nullptr;
}

// One thread per key; the row's queries are broadcast from shared memory. score = Σ_h w·scale·relu(q·k), h ascending,
// the dot products by ascending channel.
template <int kWidth>
__global__ void __launch_bounds__(kScoreThreads) score_kernel(const __grid_constant__ Slice s) {
  const SelectArgs& a = s.a;
  const int64_t t = s.first + blockIdx.y;
  const Row row = describe(a, t);
  const int64_t base = int64_t{blockIdx.x} * kScoreThreads;
  if (base >= row.competitors || !needs_scores(a, row)) return;
  const int width = kWidth > 0 ? kWidth : a.keys.width;
  float* q = dynamic_shared<float>();  // [heads, width]
  float* w = q + a.heads * width;      // [heads]
  for (int i = static_cast<int>(threadIdx.x); i < a.heads * width; i += kScoreThreads) q[i] = load_value(a.q, t, i);
  for (int i = static_cast<int>(threadIdx.x); i < a.heads; i += kScoreThreads) w[i] = load_value(a.w, t, i) * a.scale;
  __syncthreads();
  const int64_t i = base + threadIdx.x;
  const int64_t g = i < row.competitors ? entry_of(a, row, i) : -1;
  if (g < 0) return;
  const RecordAt at = page_entry(a.keys, a.rows, a.rows.sequence[t], g);
  float sum = 0.F;
  if constexpr (kWidth > 0) {
    float key[kWidth];
    if (a.keys.format == KvFormat::kE2m1Ue8m0 && reinterpret_cast<uintptr_t>(at.data) % 16 == 0) {
#pragma unroll
      for (int part = 0; part < kWidth / 32; ++part) {
        const uint4 raw = reinterpret_cast<const uint4*>(at.data)[part];
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
        const float scale = e8m0_to_float(at.scale[part]);
#pragma unroll
        for (int c = 0; c < 32; ++c) key[part * 32 + c] = e2m1_to_float(words[c / 8] >> (c % 8 * 4)) * scale;
      }
    } else {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) key[c] = record_value(a.keys.format, at, c);
    }
    for (int h = 0; h < a.heads; ++h) {
      float dot = 0.F;
#pragma unroll
      for (int c = 0; c < kWidth; c += 4) {
        const float4 x = *reinterpret_cast<const float4*>(q + h * kWidth + c);
        dot = fmaf(x.x, key[c], dot);
        dot = fmaf(x.y, key[c + 1], dot);
        dot = fmaf(x.z, key[c + 2], dot);
        dot = fmaf(x.w, key[c + 3], dot);
      }
      sum += w[h] * fmaxf(dot, 0.F);
    }
  } else {
    for (int h = 0; h < a.heads; ++h) {
      float dot = 0.F;
      for (int c = 0; c < width; ++c) dot = fmaf(q[h * width + c], record_value(a.keys.format, at, c), dot);
      sum += w[h] * fmaxf(dot, 0.F);
    }
  }
  s.scores[int64_t{blockIdx.y} * s.columns + i] = sum;
  if (a.scores != nullptr) a.scores[t * a.scores_stride + g] = sum;
}

constexpr int kScoreHeads = 32;  // of the tensor form: V4.1's
constexpr int kKeyGroup = 16;    // keys of a warp's turn

struct KeyPieces {
  uint4 data[2];  // of key `group` and 8 further: the lane's quarter
  uint32_t scale[2];
};

// The keys `keys_per_block` from blockIdx.x on, of row blockIdx.y. A score is the sum over a lane's eight heads
// ascending, then over the four lanes of a quad.
__global__ void __launch_bounds__(kScoreThreads)
    score_tensor_kernel(const __grid_constant__ Slice s, int keys_per_block) {
  constexpr int kWidth = kBlockDepth;
  const SelectArgs& a = s.a;
  const int64_t t = s.first + blockIdx.y;
  const Row row = describe(a, t);
  const int64_t begin = int64_t{blockIdx.x} * keys_per_block;
  if (begin >= row.competitors || !needs_scores(a, row)) return;
  const int64_t end = begin + keys_per_block < row.competitors ? begin + keys_per_block : row.competitors;
  auto* q = dynamic_shared<uint16_t>();  // [kScoreHeads, kStreamPitch / 2], arranged
  const auto* from = static_cast<const uint16_t*>(a.q.data) + t * a.q.stride;
  for (int i = static_cast<int>(threadIdx.x); i < kScoreHeads * kWidth; i += kScoreThreads) {
    q[i / kWidth * (kStreamPitch / 2) + arranged_column(WeightFormat::kFp4Row, i % kWidth)] = from[i];
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int group = lane / 4;
  const int quad = lane % 4;
  uint2 b[kScoreHeads / 8][8];
  float w[kScoreHeads / 8][2];
#pragma unroll
  for (int n = 0; n < kScoreHeads / 8; ++n) {
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      b[n][step] = *reinterpret_cast<const uint2*>(q + (n * 8 + group) * (kStreamPitch / 2) + (step * 4 + quad) * 4);
    }
    w[n][0] = load_value(a.w, t, n * 8 + quad * 2) * a.scale;
    w[n][1] = load_value(a.w, t, n * 8 + quad * 2 + 1) * a.scale;
  }
  const int64_t sequence = a.rows.sequence[t];
  const auto fetch = [&](int64_t first, KeyPieces& k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t i = first + group + 8 * half;
      const int64_t g = i < end ? entry_of(a, row, i) : -1;
      k.data[half] = uint4{0, 0, 0, 0};
      k.scale[half] = 127;
      if (g < 0) continue;
      const RecordAt at = page_entry(a.keys, a.rows, sequence, g);
      k.data[half] = reinterpret_cast<const uint4*>(at.data)[quad];
      k.scale[half] = at.scale[quad];
    }
  };
  constexpr int kTurn = kScoreThreads / 32 * kKeyGroup;
  KeyPieces next;
  fetch(begin + warp * kKeyGroup, next);
  for (int64_t first = begin + warp * kKeyGroup; first < end; first += kTurn) {
    const KeyPieces keys = next;
    if (first + kTurn < end) fetch(first + kTurn, next);
    float sum[kScoreHeads / 8][4] = {};
    const uint32_t f0 = code_factor<WeightFormat::kFp4Row>(keys.scale[0]);
    const uint32_t f1 = code_factor<WeightFormat::kFp4Row>(keys.scale[1]);
    const uint32_t words0[4] = {keys.data[0].x, keys.data[0].y, keys.data[0].z, keys.data[0].w};
    const uint32_t words1[4] = {keys.data[1].x, keys.data[1].y, keys.data[1].z, keys.data[1].w};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t wide0[4];
      uint32_t wide1[4];
      widen_fp4(words0[word], f0, wide0);
      widen_fp4(words1[word], f1, wide1);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint32_t fragment[4] = {wide0[2 * part], wide1[2 * part], wide0[2 * part + 1], wide1[2 * part + 1]};
#pragma unroll
        for (int n = 0; n < kScoreHeads / 8; ++n) {
          mma_bf16(sum[n], fragment, b[n][word * 2 + part].x, b[n][word * 2 + part].y);
        }
      }
    }
    float score[2] = {0.F, 0.F};
#pragma unroll
    for (int n = 0; n < kScoreHeads / 8; ++n) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        score[v / 2] += w[n][v % 2] * fmaxf(sum[n][v] * kSumFactor<WeightFormat::kFp4Row>, 0.F);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      score[half] += shuffle_xor(score[half], 1);
      score[half] += shuffle_xor(score[half], 2);
      const int64_t i = first + group + 8 * half;
      if (quad != 0 || i >= end) continue;
      const int64_t g = entry_of(a, row, i);
      if (g < 0) continue;
      s.scores[int64_t{blockIdx.y} * s.columns + i] = score[half];
      if (a.scores != nullptr) a.scores[t * a.scores_stride + g] = score[half];
    }
  }
}

bool scores_on_tensor_units(const SelectArgs& a) {
  const PageView& k = a.keys;
  return a.heads == kScoreHeads && k.width == kBlockDepth && k.format == KvFormat::kE2m1Ue8m0 && k.split_scales &&
         a.q.dtype == DType::kBf16 && is_aligned(k.base, 16) && k.block_stride % 16 == 0;
}

__global__ void __launch_bounds__(kThreads) clear_scores_kernel(float* scores, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    scores[i] = -INFINITY;
  }
}

// Block score = the largest of its entries; the block with the newest entry is always first (model.md §5.8).
__global__ void __launch_bounds__(kThreads) block_score_kernel(const __grid_constant__ Slice s) {
  const Row row = describe(s.a, s.first + blockIdx.y);
  const int64_t b = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (!row.blocks_compete || b >= row.blocks) return;
  const float* score = s.scores + int64_t{blockIdx.y} * s.columns;
  float best = -INFINITY;
  const int64_t end = (b + 1) * s.a.candidate_block < row.visible ? (b + 1) * s.a.candidate_block : row.visible;
  for (int64_t g = b * s.a.candidate_block; g < end; ++g) best = fmaxf(best, score[g]);
  s.block_scores[int64_t{blockIdx.y} * s.blocks + b] = b + 1 == row.blocks ? INFINITY : best;
}

constexpr int kTopWarps = kTopThreads / 32;
constexpr int kListed = 8192;      // competitors that fit the list
constexpr int64_t kNarrow = 4096;  // from here on it pays to make a list

struct TopShared {
  int histogram[256];
  int warp_total[2][kTopWarps];
  int digit;
  int above;
  int competing;
};

// The competitors that may be among the best, ascending.
struct TopList {
  uint32_t key[kListed];
  int32_t number[kListed];
};

// From a histogram: the digit of the wanted-th largest, how many lie above it, and those with it as well; by warp 0.
// Every thread returns after a barrier.
__device__ __forceinline__ void find_digit(int wanted, TopShared& s) {
  __syncthreads();
  if (threadIdx.x < 32) {  // lane l has eight digits, the largest first
    const int lane = static_cast<int>(threadIdx.x);
    int sum = 0;
    for (int i = 0; i < 8; ++i) sum += s.histogram[255 - 8 * lane - i];
    int upto = sum;
    for (int d = 1; d < 32; d *= 2) {
      const int other = shuffle(upto, lane >= d ? lane - d : lane);
      if (lane >= d) upto += other;
    }
    const uint32_t reached = ballot(upto >= wanted || lane == 31);
    const int first = count_bits((reached & (~reached + 1U)) - 1U);
    if (lane == first) {
      int above = upto - sum;
      int digit = 255 - 8 * lane;
      const int last = digit - 7;
      while (digit > last && above + s.histogram[digit] < wanted) above += s.histogram[digit--];
      s.digit = digit;
      s.above = above;
      s.competing = above + s.histogram[digit];
    }
  }
  __syncthreads();
}

__device__ __forceinline__ void clear_histogram(TopShared& s) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += kTopThreads) s.histogram[i] = 0;
  __syncthreads();
}

// Lists the competitors with at least the key that `keep` of the threads' own largest keys reach: no other can be among
// the `keep` best. Their number, or -1 when they do not fit. keep <= kTopThreads.
template <class Key>
__device__ __forceinline__ int list_best(int64_t n, int keep, const Key& key, TopList& list, TopShared& s) {
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int warp = tid / 32;
  uint32_t best = 0;
  int64_t i = tid;
  for (; i + 3 * kTopThreads < n; i += 4 * kTopThreads) {
    uint32_t k[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) k[u] = key(i + u * kTopThreads);
#pragma unroll
    for (int u = 0; u < 4; ++u) best = k[u] > best ? k[u] : best;
  }
  for (; i < n; i += kTopThreads) {
    const uint32_t k = key(i);
    best = k > best ? k : best;
  }
  // The upper half of the key is enough for a bound.
  int wanted = keep;
  uint32_t bound = 0;
  for (int shift = 24; shift >= 16; shift -= 8) {
    clear_histogram(s);
    if (shift == 24 || best >> 24 == bound >> 24) atomicAdd(&s.histogram[best >> shift & 255U], 1);
    find_digit(wanted, s);
    wanted -= s.above;
    bound |= static_cast<uint32_t>(s.digit) << shift;
  }
  if (bound == 0) bound = 1;
  // Each warp has a run of neighbours: counted first, then written behind those of the warps before.
  const int64_t run = (n + kTopWarps - 1) / kTopWarps;
  const int64_t begin = run * warp;
  const int64_t end = begin + run < n ? begin + run : n;
  int found = 0;
#pragma unroll 4
  for (int64_t from = begin; from < end; from += 32) {
    const uint32_t k = from + lane < end ? key(from + lane) : 0;
    found += count_bits(ballot(k >= bound));
  }
  __syncthreads();
  if (lane == 0) s.warp_total[0][warp] = found;
  __syncthreads();
  int place = 0;
  int total = 0;
  for (int w = 0; w < kTopWarps; ++w) {
    if (w < warp) place += s.warp_total[0][w];
    total += s.warp_total[0][w];
  }
  if (total > kListed) return -1;
  if (found > 0) {  // the same for the whole warp
#pragma unroll 4
    for (int64_t from = begin; from < end; from += 32) {
      const uint32_t k = from + lane < end ? key(from + lane) : 0;
      const uint32_t taken = ballot(k >= bound);
      if (k >= bound) {
        const int at = place + count_bits(taken & ((1U << lane) - 1U));
        list.key[at] = k;
        list.number[at] = static_cast<int32_t>(from + lane);
      }
      place += count_bits(taken);
    }
  }
  __syncthreads();
  return total;
}

// Writes the `keep` best of the numbers 0 … n-1, ascending, as value(i), and -1 behind them; ties: lower number first.
// key(i) = 0: i does not compete. The set is exact: the key of the last one that is kept is found digit by digit, then
// one pass writes in order.
template <class Key, class Value>
__device__ __forceinline__ void write_best(int64_t n, int keep, const Key& key, const Value& value, int32_t* out,
                                           TopShared& s) {
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int warp = tid / 32;
  uint32_t prefix = 0;
  uint32_t mask = 0;
  int wanted = keep;
  bool all = false;
  for (int shift = 24; shift >= 0 && !all; shift -= 8) {
    clear_histogram(s);
#pragma unroll 4
    for (int64_t i = tid; i < n; i += kTopThreads) {
      const uint32_t k = key(i);
      if (k != 0 && (k & mask) == prefix) atomicAdd(&s.histogram[k >> shift & 255U], 1);
    }
    find_digit(wanted, s);
    if (shift == 24 && s.digit == 0 && s.competing <= wanted) all = true;  // not more than are kept in all
    wanted -= s.above;
    prefix |= static_cast<uint32_t>(s.digit) << shift;
    mask |= 255U << shift;
  }
  __syncthreads();
  // Above the threshold everything is kept, at it the first `wanted`.
  const uint32_t threshold = all ? 0 : prefix;
  int written = 0;
  int tied = 0;
  for (int64_t from = 0; from < n && written < keep; from += kTopThreads) {
    const int64_t i = from + tid;
    const uint32_t k = i < n ? key(i) : 0;
    const bool equal = !all && k != 0 && k == threshold;
    const uint32_t equals = ballot(equal);
    if (lane == 0) s.warp_total[0][warp] = count_bits(equals);
    __syncthreads();
    int rank = tied + count_bits(equals & ((1U << lane) - 1U));
    for (int w = 0; w < kTopWarps; ++w) {
      if (w < warp) rank += s.warp_total[0][w];
      tied += s.warp_total[0][w];
    }
    const bool take = k != 0 && (k > threshold || (equal && rank < wanted));
    const uint32_t taken = ballot(take);
    if (lane == 0) s.warp_total[1][warp] = count_bits(taken);
    __syncthreads();
    int place = written + count_bits(taken & ((1U << lane) - 1U));
    for (int w = 0; w < kTopWarps; ++w) {
      if (w < warp) place += s.warp_total[1][w];
      written += s.warp_total[1][w];
    }
    if (take && place < keep) out[place] = value(i);
  }
  for (int i = (written < keep ? written : keep) + tid; i < keep; i += kTopThreads) out[i] = -1;
  __syncthreads();
}

// As write_best, by way of a list where that is shorter.
template <class Key, class Value>
__device__ __forceinline__ void write_best_of_many(int64_t n, int keep, const Key& key, const Value& value,
                                                   int32_t* out, TopList& list, TopShared& s) {
  if (n > kNarrow && keep <= kTopThreads) {
    const int listed = list_best(n, keep, key, list, s);
    if (listed >= 0) {
      write_best(
          listed, keep, [&](int64_t i) { return list.key[i]; }, [&](int64_t i) { return value(list.number[i]); }, out,
          s);
      return;
    }
  }
  write_best(n, keep, key, value, out, s);
}

__global__ void __launch_bounds__(kTopThreads) select_kernel(const __grid_constant__ Slice s) {
  __shared__ TopShared shared;
  TopList& list = *dynamic_shared<TopList>();
  const SelectArgs& a = s.a;
  const int64_t t = s.first + blockIdx.x;
  const Row row = describe(a, t);
  const float* score = s.scores + int64_t{blockIdx.x} * s.columns;
  const bool scored = needs_scores(a, row);
  write_best_of_many(
      row.competitors, a.topk,
      [&](int64_t i) -> uint32_t { return entry_of(a, row, i) < 0 ? 0U
                                          : scored                ? score_key(score[i])
                                                                  : 1U; },
      [&](int64_t i) { return static_cast<int32_t>(entry_of(a, row, i)); }, a.selection + t * a.topk, list, shared);
  if (a.candidate_out == nullptr) return;
  int32_t* out = a.candidate_out + t * a.candidate_topk;
  if (!row.blocks_compete) {
    for (int i = static_cast<int>(threadIdx.x); i < a.candidate_topk; i += kTopThreads) out[i] = i == 0 ? -2 : -1;
    return;
  }
  const float* blocks = s.block_scores + int64_t{blockIdx.x} * s.blocks;
  write_best_of_many(
      row.blocks, a.candidate_topk,
      [&](int64_t b) -> uint32_t { return blocks[b] > -INFINITY ? score_key(blocks[b]) : 0U; },
      [&](int64_t b) { return static_cast<int32_t>(b); }, out, list, shared);
}

template <int kWidth>
void launch_scores(const Slice& s, int64_t rows, Stream& stream) {
  const size_t shared = static_cast<size_t>(s.a.heads) * static_cast<size_t>(s.a.keys.width + 1) * 4;
  DI_LAUNCH(stream, score_kernel<kWidth>, grid(divide_up(s.columns, kScoreThreads), rows), dim3(kScoreThreads), shared,
            s);
}

}  // namespace

void select(const SelectArgs& a, Stream& stream) {
  const int64_t width = a.keys.width;
  DI_KERNEL_CHECK(a.q.cols == a.heads * width && a.w.cols == a.heads && a.ratio > 0 && a.q.rows == a.rows.n &&
                      (a.candidate_in == nullptr || a.candidate_out == nullptr) &&
                      (a.candidate_in == nullptr || a.candidate_block > 0),
                  "q [%lld, %lld], w %lld columns, %d heads of %lld, ratio %d, %d rows",
                  static_cast<long long>(a.q.rows), static_cast<long long>(a.q.cols), static_cast<long long>(a.w.cols),
                  a.heads, static_cast<long long>(width), a.ratio, a.rows.n);
  if (a.rows.n == 0) return;
  // What a sequence's block table can hold bounds its entries; the host knows no position.
  const int64_t entries = int64_t{a.rows.block_table_stride} * a.keys.entries_per_block;
  Slice s{};
  s.a = a;
  s.columns = entries;
  if (a.candidate_in != nullptr && int64_t{a.candidate_topk} * a.candidate_block > entries) {
    s.columns = int64_t{a.candidate_topk} * a.candidate_block;
  }
  if (s.columns == 0) s.columns = 1;
  s.blocks = a.candidate_out != nullptr ? divide_up(entries, a.candidate_block) : 0;
  int64_t rows = kScratchFloats / (s.columns + s.blocks);
  rows = rows < 1 ? 1 : rows > a.rows.n ? a.rows.n : rows;
  if (rows > kMaxGridY) rows = kMaxGridY;
  reserve_scratch(stream, scratch_size(rows * s.columns * 4) + scratch_size(rows * s.blocks * 4));
  s.scores = take_scratch<float>(stream, rows * s.columns);
  s.block_scores = take_scratch<float>(stream, rows * s.blocks);
  if (a.scores != nullptr && a.scores_stride > 0) {
    const int64_t n = a.rows.n * a.scores_stride;
    const int64_t blocks = divide_up(n, kThreads);
    DI_LAUNCH(stream, clear_scores_kernel, grid(blocks < 4096 ? blocks : 4096), dim3(kThreads), 0, a.scores, n);
  }
  for (s.first = 0; s.first < a.rows.n; s.first += rows) {
    const int64_t n = a.rows.n - s.first < rows ? a.rows.n - s.first : rows;
    if (scores_on_tensor_units(a)) {
      // Few rows: smaller shares, so that every multiprocessor has one.
      const int share = n * divide_up(s.columns, 1024) < 1024 ? 256 : 1024;
      DI_LAUNCH(stream, score_tensor_kernel, grid(divide_up(s.columns, share), n), dim3(kScoreThreads),
                static_cast<size_t>(kScoreHeads * kStreamPitch), s, share);
    } else if (width == 128) {
      launch_scores<128>(s, n, stream);
    } else if (width == 64) {
      launch_scores<64>(s, n, stream);
    } else {
      launch_scores<0>(s, n, stream);
    }
    if (s.blocks > 0) {
      DI_LAUNCH(stream, block_score_kernel, grid(divide_up(s.blocks, kThreads), n), dim3(kThreads), 0, s);
    }
    DI_LAUNCH(stream, select_kernel, grid(n), dim3(kTopThreads), sizeof(TopList), s);
  }
}

}  // namespace di::kernels::cuda
