// Index scores and the selection of compressed entries (model.md §5.7, §5.8). Per slice of rows: scores of all
// competing entries into scratch, as integers that order like them (score_key), with the largest of every sixteen;
// block maxima where a candidate source needs them; then an exact radix selection with one block per row. Index keys
// are read as stored (68-byte records); nothing dequantised is written.
//
// Scores of bf16 queries over keys of 128 E2M1 channels run on the matrix units: keys are the left operand, widened in
// registers as streamed.cuh does, heads the right one, in shared memory. Both operands are exact in bf16.
//
// A row's competitors are numbered i = 0, 1, … in ascending order of their entries: all visible entries (i = g), or
// those of its candidate blocks one after the other.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/streamed.cuh"
#include "kernels/cuda/top.cuh"

namespace di::kernels::cuda {
namespace {

constexpr int kScoreThreads = 128;
constexpr int64_t kScratchFloats = int64_t{64} << 20;  // keys of one slice of rows

struct Slice {
  SelectArgs a;
  int64_t first;         // row of the slice's scratch row 0
  int64_t columns;       // competitors of a row at most, a multiple of kGroup
  uint32_t* keys;        // [rows of the slice, columns]: score_key, 0 = does not compete; up to a multiple of kGroup
  uint32_t* best;        // [rows of the slice, columns / kGroup]: the largest of each group
  int64_t blocks;        // candidate blocks of a row at most, a multiple of kGroup
  uint32_t* block_keys;  // [rows of the slice, blocks] or null, filled as keys
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
  join_chain();
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
  const RecordAt at = page_entry(a.keys, a.rows, a.rows.sequence[t], g < 0 ? 0 : g);
  float sum = 0.F;
  if (g < 0) {
  } else if constexpr (kWidth > 0) {
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
  const uint32_t key = g < 0 ? 0 : score_key(sum);
  uint32_t best = key;
  for (int mask = 1; mask < kGroup; mask *= 2) {
    const uint32_t other = shuffle_xor(best, mask);
    best = other > best ? other : best;
  }
  if (i < s.columns) {
    const int64_t to = int64_t{blockIdx.y} * s.columns + i;
    s.keys[to] = key;
    if (i % kGroup == 0) s.best[to / kGroup] = best;
  }
  if (g >= 0 && a.scores != nullptr) a.scores[t * a.scores_stride + g] = sum;
}

constexpr int kScoreHeads = 32;                       // of the tensor form: V4.1's
constexpr int kTurn = kScoreThreads / 32 * kGroup;    // keys that a block takes at once
constexpr int kQueryPanel = kScoreHeads * kPanelRow;  // 64 channels of all heads
constexpr int kQueryBytes = kBlockDepth / 64 * kQueryPanel;

struct KeyPieces {
  uint4 data[2];  // of key `group` and 8 further: the lane's quarter
  uint32_t scale[2];
};

// The queries as the right operand, columns in the order in which a lane's quarter of a key comes out of widen_fp4. A
// thread has one column.
__device__ __forceinline__ void arrange_queries(const SelectArgs& a, int64_t t, uint8_t* to) {
  static_assert(kScoreThreads == kBlockDepth);
  const auto column = static_cast<int>(threadIdx.x);
  const auto* from = static_cast<const uint16_t*>(a.q.data) + t * a.q.stride + column;
  const int depth = operand_column(WeightFormat::kFp4Row, column);
  to += depth / 64 * kQueryPanel + depth % 8 * 2;
#pragma unroll
  for (int head = 0; head < kScoreHeads; ++head) {
    *reinterpret_cast<uint16_t*>(to + panel_offset(head, depth % 64 / 8)) = from[head * kBlockDepth];
  }
  publish_operands();
}

// Scores of 16 keys, of the lane: of key `group` and 8 further, in all lanes of a quad. The sum over a lane's eight
// heads ascending, then over the four lanes of a quad.
__device__ __forceinline__ void score_keys(const KeyPieces& keys, const float (&w)[kScoreHeads / 8][2],
                                           const uint8_t* q, float (&score)[2]) {
  const uint32_t words[2][4] = {{keys.data[0].x, keys.data[0].y, keys.data[0].z, keys.data[0].w},
                                {keys.data[1].x, keys.data[1].y, keys.data[1].z, keys.data[1].w}};
  const uint32_t factor[2] = {code_factor<WeightFormat::kFp4Row>(keys.scale[0]),
                              code_factor<WeightFormat::kFp4Row>(keys.scale[1])};
  uint32_t fragment[8][4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t wide[4];
      widen_fp4(words[half][word], factor[half], wide);
#pragma unroll
      for (int r = 0; r < 4; ++r) fragment[word * 2 + r / 2][r % 2 * 2 + half] = wide[r];
    }
  }
  float sum[kScoreHeads / 2];
  const Operand query = operand(q);
  begin_products();
  narrow_product<false>(sum, fragment[0], query);
#pragma unroll
  for (int step = 1; step < 8; ++step) {
    narrow_product<true>(sum, fragment[step], beyond(query, step / 4 * kQueryPanel + step % 4 * 32));
  }
  finish_products(sum);
  score[0] = score[1] = 0.F;
#pragma unroll
  for (int n = 0; n < kScoreHeads / 8; ++n) {
#pragma unroll
    for (int v = 0; v < 4; ++v) score[v / 2] = fmaf(w[n][v % 2], fmaxf(sum[n * 4 + v], 0.F), score[v / 2]);
  }
#pragma unroll
  for (float& v : score) {
    v += shuffle_xor(v, 1);
    v += shuffle_xor(v, 2);
  }
}

// Scores of the competitors [begin, end) of row t, 16 of every 64 by a warp. kListed: they are those of candidate
// blocks, or a page does not hold whole groups; otherwise competitor i is entry i and a group lies in one page.
template <bool kListed>
__device__ __forceinline__ void score_share(const Slice& s, int64_t t, const Row& row, int32_t begin, int32_t end,
                                            const uint8_t* q) {
  const SelectArgs& a = s.a;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int group = lane / 4;
  const int quad = lane % 4;
  float w[kScoreHeads / 8][2];  // with what widened keys are too small by
#pragma unroll
  for (int n = 0; n < kScoreHeads / 8; ++n) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      w[n][v] = load_value(a.w, t, n * 8 + quad * 2 + v) * a.scale * kSumFactor<WeightFormat::kFp4Row>;
    }
  }
  const int32_t* table = a.rows.block_table + int64_t{a.rows.sequence[t]} * a.rows.block_table_stride;
  const auto per_page = static_cast<uint32_t>(a.keys.entries_per_block);
  const auto visible = static_cast<int32_t>(row.visible);
  const auto entry = [&](int32_t i) -> int32_t {
    if (i >= end) return -1;
    if constexpr (!kListed) return i;
    if (row.lists == nullptr) return i < visible ? i : -1;
    const int32_t block = row.lists[i / a.candidate_block];
    const int32_t g = block * a.candidate_block + i % a.candidate_block;
    return block >= 0 && g < visible ? g : -1;
  };
  // Where the lane's pieces of slot `slot` of a page lie.
  const uint8_t* data = nullptr;
  const uint8_t* scale = nullptr;
  const auto locate = [&](uint32_t page, uint32_t slot) {
    const uint8_t* start = a.keys.base + table[page] * a.keys.block_stride;
    data = start + slot * (kBlockDepth / 2) + quad * 16;
    scale = start + per_page * (kBlockDepth / 2) + slot * (kBlockDepth / 32) + quad;
  };
  // Not listed: page and first slot of the warp's next group, whose pieces `data` and `scale` name.
  uint32_t page = static_cast<uint32_t>(begin + warp * kGroup) / per_page;
  uint32_t slot = static_cast<uint32_t>(begin + warp * kGroup) - page * per_page;
  if (!kListed && begin + warp * kGroup < end) locate(page, slot + static_cast<uint32_t>(group));
  const auto fetch = [&](int32_t first, KeyPieces& k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t g = entry(first + group + 8 * half);
      k.data[half] = uint4{0, 0, 0, 0};
      k.scale[half] = 127;
      if (g < 0) continue;
      if constexpr (kListed) {
        const uint32_t in = static_cast<uint32_t>(g) / per_page;
        locate(in, static_cast<uint32_t>(g) - in * per_page);
        k.data[half] = *reinterpret_cast<const uint4*>(data);
        k.scale[half] = *scale;
      } else {
        k.data[half] = *reinterpret_cast<const uint4*>(data + half * 8 * (kBlockDepth / 2));
        k.scale[half] = scale[half * 8 * (kBlockDepth / 32)];
      }
    }
    if constexpr (!kListed) {
      slot += kTurn;
      if (slot < per_page) {
        data += kTurn * (kBlockDepth / 2);
        scale += kTurn * (kBlockDepth / 32);
      } else if (first + kTurn < end) {
        for (; slot >= per_page; slot -= per_page) ++page;
        locate(page, slot + static_cast<uint32_t>(group));
      }
    }
  };
  uint32_t* to = s.keys + int64_t{blockIdx.y} * s.columns + group;
  uint32_t* best = s.best + int64_t{blockIdx.y} * (s.columns / kGroup);
  KeyPieces next;
  fetch(begin + warp * kGroup, next);
  __syncthreads();                                         // the queries are there
  for (int32_t turn = begin; turn < end; turn += kTurn) {  // the same for all warps, which multiply together
    const int32_t first = turn + warp * kGroup;
    const KeyPieces keys = next;
    if (turn + kTurn < end) fetch(first + kTurn, next);
    float score[2];
    score_keys(keys, w, q, score);
    uint32_t key[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t g = entry(first + group + 8 * half);
      key[half] = g < 0 ? 0 : score_key(score[half]);
      if (a.scores != nullptr && quad == 0 && g >= 0) a.scores[t * a.scores_stride + g] = score[half];
    }
    const uint32_t largest = warp_max_key(key[0] > key[1] ? key[0] : key[1]);
    if (first < end && quad == 0) {
      to[first] = key[0];
      to[first + 8] = key[1];
      if (lane == 0) best[first / kGroup] = largest;
    }
  }
}

// The keys `keys_per_block` from blockIdx.x on, of row blockIdx.y.
__global__ void __launch_bounds__(kScoreThreads, 5)
    score_tensor_kernel(const __grid_constant__ Slice s, int keys_per_block) {
  join_chain();
  const int64_t t = s.first + blockIdx.y;
  const Row row = describe(s.a, t);
  const int64_t first_key = int64_t{blockIdx.x} * keys_per_block;
  if (first_key >= row.competitors || !needs_scores(s.a, row)) return;
  const auto begin = static_cast<int32_t>(first_key);
  const auto end =
      static_cast<int32_t>(first_key + keys_per_block < row.competitors ? first_key + keys_per_block : row.competitors);
  auto* q = dynamic_shared<uint8_t>();
  arrange_queries(s.a, t, q);
  if (row.lists == nullptr && s.a.keys.entries_per_block % kGroup == 0) {
    score_share<false>(s, t, row, begin, end, q);
  } else {
    score_share<true>(s, t, row, begin, end, q);
  }
}

bool scores_on_tensor_units(const SelectArgs& a) {
  const PageView& k = a.keys;
  return a.heads == kScoreHeads && k.width == kBlockDepth && k.format == KvFormat::kE2m1Ue8m0 && k.split_scales &&
         a.q.dtype == DType::kBf16 && is_aligned(k.base, 16) && k.block_stride % 16 == 0;
}

__global__ void __launch_bounds__(kThreads) clear_scores_kernel(float* scores, int64_t n) {
  join_chain();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    scores[i] = -INFINITY;
  }
}

// Block score = the largest of its entries; the block with the newest entry is always first (model.md §5.8).
__global__ void __launch_bounds__(kThreads) block_key_kernel(const __grid_constant__ Slice s) {
  join_chain();
  const Row row = describe(s.a, s.first + blockIdx.y);
  const int64_t b = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (!row.blocks_compete || b >= s.blocks) return;
  const uint32_t* key = s.keys + int64_t{blockIdx.y} * s.columns;
  uint32_t best = score_key(-INFINITY);
  const int64_t end = (b + 1) * s.a.candidate_block < row.visible ? (b + 1) * s.a.candidate_block : row.visible;
  for (int64_t g = b * s.a.candidate_block; g < end; ++g) best = key[g] > best ? key[g] : best;
  if (best == score_key(-INFINITY)) best = 0;
  s.block_keys[int64_t{blockIdx.y} * s.blocks + b] = b + 1 == row.blocks ? score_key(INFINITY) : best;
}

__global__ void __launch_bounds__(kTopThreads) select_kernel(const __grid_constant__ Slice s) {
  join_chain();
  __shared__ TopShared shared;
  const SelectArgs& a = s.a;
  const int64_t t = s.first + blockIdx.x;
  const Row row = describe(a, t);
  const uint32_t* keys = s.keys + int64_t{blockIdx.x} * s.columns;
  int32_t* selection = a.selection + t * a.topk;
  const auto entry = [&](int64_t i) { return static_cast<int32_t>(entry_of(a, row, i)); };
  if (needs_scores(a, row)) {
    write_best_of_keys(row.competitors, a.topk, keys, s.best + int64_t{blockIdx.x} * (s.columns / kGroup), entry,
                       selection, shared);
  } else {
    write_best(row.competitors, a.topk, [&](int64_t i) { return entry(i) < 0 ? 0U : 1U; }, entry, selection, shared);
  }
  if (a.candidate_out == nullptr) return;
  int32_t* out = a.candidate_out + t * a.candidate_topk;
  if (!row.blocks_compete) {
    for (int i = static_cast<int>(threadIdx.x); i < a.candidate_topk; i += kTopThreads) out[i] = i == 0 ? -2 : -1;
    return;
  }
  write_best_of_keys(
      row.blocks, a.candidate_topk, s.block_keys + int64_t{blockIdx.x} * s.blocks, nullptr,
      [&](int64_t b) { return static_cast<int32_t>(b); }, out, shared);
}

template <int kWidth>
void launch_scores(const Slice& s, int64_t rows, Stream& stream) {
  const size_t shared = static_cast<size_t>(s.a.heads) * static_cast<size_t>(s.a.keys.width + 1) * 4;
  DI_LAUNCH_EARLY(stream, score_kernel<kWidth>, grid(divide_up(s.columns, kScoreThreads), rows), dim3(kScoreThreads),
                  shared, s);
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
  s.columns = divide_up(s.columns < 1 ? 1 : s.columns, kGroup) * kGroup;
  s.blocks = a.candidate_out != nullptr ? divide_up(divide_up(entries, a.candidate_block), kGroup) * kGroup : 0;
  int64_t rows = kScratchFloats / (s.columns + s.blocks);
  rows = rows < 1 ? 1 : rows > a.rows.n ? a.rows.n : rows;
  if (rows > kMaxGridY) rows = kMaxGridY;
  reserve_scratch(stream, scratch_size(rows * s.columns * 4) + scratch_size(rows * s.columns / kGroup * 4) +
                              scratch_size(rows * s.blocks * 4));
  s.keys = take_scratch<uint32_t>(stream, rows * s.columns);
  s.best = take_scratch<uint32_t>(stream, rows * s.columns / kGroup);
  s.block_keys = take_scratch<uint32_t>(stream, rows * s.blocks);
  if (a.scores != nullptr && a.scores_stride > 0) {
    const int64_t n = a.rows.n * a.scores_stride;
    const int64_t blocks = divide_up(n, kThreads);
    DI_LAUNCH_EARLY(stream, clear_scores_kernel, grid(blocks < 4096 ? blocks : 4096), dim3(kThreads), 0, a.scores, n);
  }
  for (s.first = 0; s.first < a.rows.n; s.first += rows) {
    const int64_t n = a.rows.n - s.first < rows ? a.rows.n - s.first : rows;
    if (scores_on_tensor_units(a)) {
      // Few keys: smaller shares, so that every multiprocessor has some.
      int share = 2048;
      while (share > kTurn && n * divide_up(s.columns, share) < 1024) share /= 2;
      DI_LAUNCH_EARLY(stream, score_tensor_kernel, grid(divide_up(s.columns, share), n), dim3(kScoreThreads),
                      static_cast<size_t>(kQueryBytes), s, share);
    } else if (width == 128) {
      launch_scores<128>(s, n, stream);
    } else if (width == 64) {
      launch_scores<64>(s, n, stream);
    } else {
      launch_scores<0>(s, n, stream);
    }
    if (s.blocks > 0) {
      DI_LAUNCH_EARLY(stream, block_key_kernel, grid(divide_up(s.blocks, kThreads), n), dim3(kThreads), 0, s);
    }
    DI_LAUNCH_EARLY(stream, select_kernel, grid(n), dim3(kTopThreads), 0, s);
  }
}

}  // namespace di::kernels::cuda
