// Attention at V4.1's sizes: 64 heads of width 512 over one shared entry per position, bf16 queries, quantised records.
// A block has 64 heads of one row and walks its tiles of 64 entries. Two warpgroups fetch records as stored and widen
// them to bf16 in shared memory (exact, times 2^-60), which takes most of the instructions; two warpgroups multiply.
// Each of these computes the scores of all 64 heads and entries (fragments of scores become fragments of probabilities
// in registers, nothing is exchanged) and has 256 channels of the output.
//
// Every tile has a softmax of its own, in powers of two; tiles are merged in ascending order. With few rows a tile has
// a block of its own and a second kernel merges: the same operations in the same order.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/streamed.cuh"

namespace di::kernels::cuda {
namespace {

constexpr int kWidth = 512;
constexpr int kHeads = 64;
constexpr int kGroupThreads = 128;
constexpr int kThreadsWide = 4 * kGroupThreads;  // two warpgroups that multiply, two that fetch
constexpr int kFetchThreads = 2 * kGroupThreads;
constexpr int kPanelBytes = 64 * kPanelRow;
constexpr int kOperandBytes = kWidth / 64 * kPanelBytes;  // 64 rows of 512 bf16
constexpr int kRecordPitch = 528;                         // the larger record
constexpr int kPagePitch = 288;                           // the smaller one
constexpr int kFetchWarps = kFetchThreads / 32;
constexpr int kWarpRows = kTile / kFetchWarps;  // of a tile, for each of the fetching warps
constexpr int kChunk = 4;                       // records that a warp copies and widens together
constexpr int kChunks = kWarpRows / kChunk;     // of a warp in a tile
constexpr int kWindowSlots = 2;
constexpr int kPageSlots = 3;
constexpr int kWarpBytes = kWindowSlots * kChunk * kRecordPitch;
static_assert(kPageSlots * kChunk * kPagePitch <= kWarpBytes);
constexpr int kMergeThreads = 256;
constexpr float kLog2E = 1.4426950408889634F;

// Shared memory: queries, two tiles, the records on their way of each fetching warp.
constexpr int kTilesAt = kOperandBytes;
constexpr int kRecordsAt = kTilesAt + 2 * kOperandBytes;
constexpr int kSharedWide = kRecordsAt + kFetchWarps * kWarpBytes;
static_assert(kSharedWide <= 227 * 1024);

// Barriers. A tile is full for a multiplying warpgroup when it and the fetching one meet, empty when both have read it.
constexpr int kFull = 1;   // + 2·buffer + warpgroup
constexpr int kEmpty = 5;  // + buffer
constexpr int kQueries = 7;

// Of a head, in powers of two: the largest score and the sum relative to it.
struct Softmax {
  float max = -INFINITY;
  float sum = 0.F;
};
// What the sum so far and a tile's are multiplied by.
struct Factors {
  float before;
  float tile;
};

__device__ __forceinline__ Factors merge(Softmax& s, float tile_max, float tile_sum) {
  const float max = fmaxf(s.max, tile_max);
  if (max == -INFINITY) return {1.F, 0.F};
  const Factors f{fast_exp2(s.max - max), fast_exp2(tile_max - max)};
  s.sum = fmaf(s.sum, f.before, tile_sum * f.tile);
  s.max = max;
  return f;
}
__device__ __forceinline__ float merged(float so_far, float tile, const Factors& f) {
  return fmaf(so_far, f.before, tile * (f.tile * kEntryFactor));
}

// What a head's sums are multiplied by in the end.
__device__ __forceinline__ float final_factor(const Softmax& s, float sink) {
  if (s.max == -INFINITY) return 0.F;
  const float max = fmaxf(s.max, sink * kLog2E);
  const float scaled = fast_exp2(s.max - max);
  return scaled / fmaf(s.sum, scaled, fast_exp2(sink * kLog2E - max));
}

// Channels c and c + 1 of a head: rounding and the inverse rotation.
__device__ __forceinline__ void store_pair(const AttentionArgs& a, int64_t t, int64_t head, int c, float re, float im) {
  uint32_t pair = round_pair(re, im);
  const int tail = c - (kWidth - a.rope_dim);
  if (tail >= 0) {
    re = bf16_to_float(static_cast<uint16_t>(pair));
    im = bf16_to_float(static_cast<uint16_t>(pair >> 16));
    rotate_pair(re, im, a.table + t * a.rope_dim, tail / 2, true);
    pair = round_pair(re, im);
  }
  const int64_t at = t * a.o.stride + head * kWidth + c;
  if (a.o.dtype == DType::kBf16) {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(a.o.data) + at) = pair;
  } else {
    if (tail < 0) {
      re = bf16_to_float(static_cast<uint16_t>(pair));
      im = bf16_to_float(static_cast<uint16_t>(pair >> 16));
    }
    *reinterpret_cast<float2*>(static_cast<float*>(a.o.data) + at) = float2{re, im};
  }
}

// ---- fetching ----

// 32 channels of a record to four units of a row.
__device__ __forceinline__ void widen_part(const uint8_t* record, KvFormat format, int part, uint8_t* tile, int row) {
  uint32_t out[16];
  if (format == KvFormat::kE4m3Ue8m0) {
    const uint32_t factor = code_factor<WeightFormat::kFp8Block>(record[kWidth + part]);
#pragma unroll
    for (int load = 0; load < 2; ++load) {
      const uint4 raw = *reinterpret_cast<const uint4*>(record + part * 32 + load * 16);
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t r[2];
        widen_fp8(words[i], factor, r);
        out[load * 8 + 2 * i] = low_halves(r[0], r[1]);
        out[load * 8 + 2 * i + 1] = high_halves(r[0], r[1]);
      }
    }
  } else {  // kE2m1E4m3
    const uint4 raw = *reinterpret_cast<const uint4*>(record + part * 16);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // codes are 2^-126 times their values
      const float scale = e4m3_to_float(record[kWidth / 2 + part * 2 + i]) * 0x1p66F;
      factor[i] = pack_exact_bf16(scale, scale);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t r[4];
      widen_fp4(words[i], factor[i / 2], r);
      out[4 * i] = low_halves(r[0], r[1]);
      out[4 * i + 1] = low_halves(r[2], r[3]);
      out[4 * i + 2] = high_halves(r[0], r[1]);
      out[4 * i + 3] = high_halves(r[2], r[3]);
    }
  }
  uint8_t* panel = tile + part / 2 * kPanelBytes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint4*>(panel + panel_offset(row, part % 2 * 4 + i)) =
        uint4{out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]};
  }
}

// Returns when all but the calling thread's last n (0 … 2) groups of copies are there.
__device__ __forceinline__ void wait_all_but(int n) {
  if (n == 0) {
    wait_copies<0>();
  } else if (n == 1) {
    wait_copies<1>();
  } else {
    wait_copies<2>();
  }
}

// Where a warp of the fetching warpgroups keeps records on their way: chunks of four records, room for kWindowSlots of
// the larger ones or kPageSlots of the smaller. A chunk is of larger records as long as one of the tile's rows of this
// warp up to it may belong to the window.
struct Chunks {
  int window;  // chunks of larger records, the first ones

  __device__ __forceinline__ int offset(int c) const {
    return c < window ? c % kWindowSlots * (kChunk * kRecordPitch) : (c - window) % kPageSlots * (kChunk * kPagePitch);
  }
  __device__ __forceinline__ int pitch(int c) const { return c < window ? kRecordPitch : kPagePitch; }
  // The last chunk that must have been read before chunk c may be copied to its place.
  __device__ __forceinline__ int before(int c) const {
    if (c < window) return c - kWindowSlots;
    const int p = c - window;
    if (p >= kPageSlots) return c - kPageSlots;
    // The larger records that stand in the way: the last chunk in the slot that this place ends in, or the one before.
    const int slot = (p + 1) * (kChunk * kPagePitch) - 1;
    const int last = slot / (kChunk * kRecordPitch);
    const int first = p * (kChunk * kPagePitch) / (kChunk * kRecordPitch);
    const int at_last = window - 1 - (window - 1 - last + 4 * kWindowSlots) % kWindowSlots;
    const int at_first = window - 1 - (window - 1 - first + 4 * kWindowSlots) % kWindowSlots;
    return at_last > at_first ? at_last : at_first;
  }
};

// A fetching warp: rows 8·warp … 8·warp + 7 of `tiles` tiles from entry `begin` on, in chunks of four records. Up to
// two chunks are on their way while one is widened; nothing is shared with the other warps. A lane holds the place of
// one of the tile's records, of the next tile's and the number of the entry after that, so that no load waits for
// another.
__device__ __forceinline__ void fetch_tiles(const AttentionArgs& a, int64_t t, const Entries& e, int64_t begin,
                                            int tiles, uint8_t* shared) {
  const int warp = static_cast<int>(threadIdx.x) % kFetchThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t sequence = a.rows.sequence[t];
  const auto window = static_cast<int>(e.window);
  const auto total = static_cast<int>(e.total);
  const int first = static_cast<int>(begin) + warp * kWarpRows;  // of this warp in the first tile
  const int mine = first + lane % kWarpRows;

  const auto number = [&](int tile) {
    const int i = mine + tile * kTile;
    if (i < window || i >= total) return -1;
    return a.selection != nullptr ? a.selection[t * a.topk + i - window] : i - window;
  };
  const auto place = [&](int tile, int g) -> const uint8_t* {
    const int i = mine + tile * kTile;
    if (i < window) return window_record(a.fresh, a.ring, a.rows, sequence, e.begin + i).data;
    if (g < 0) return nullptr;
    const auto per_block = static_cast<uint32_t>(a.pages.entries_per_block);
    const uint32_t block = static_cast<uint32_t>(g) / per_block;
    const uint32_t slot = static_cast<uint32_t>(g) - block * per_block;
    const int64_t at = a.rows.block_table[sequence * a.rows.block_table_stride + block];
    return a.pages.base + at * a.pages.block_stride +
           static_cast<int64_t>(slot * static_cast<uint32_t>(record_bytes_of(a.pages.format, kWidth)));
  };
  const auto first_entry = [&](int c) { return first + c / kChunks * kTile + c % kChunks * kChunk; };
  const auto format_of = [&](int c, int k) { return first_entry(c) + k < window ? a.ring.format : a.pages.format; };

  const bool pages_small = a.pages.format != KvFormat::kE4m3Ue8m0;
  const int chunks = tiles * kChunks;
  Chunks order{chunks};
  if (pages_small) {
    order.window = 0;
    while (order.window < chunks && first_entry(order.window) < window) ++order.window;
  }
  uint8_t* records = shared + kRecordsAt + warp * kWarpBytes;
  const auto* nothing = static_cast<const uint8_t*>(a.q.data);

  const uint8_t* here = place(0, number(0));  // of the tile that is copied
  const uint8_t* next = place(1, number(1));
  int after = number(2);
  int copied = 0;
  for (int c = 0; c < chunks; ++c) {
    while (copied < chunks && order.before(copied) < c) {
      if (copied != 0 && copied % kChunks == 0) {
        const int tile = copied / kChunks;
        here = next;
        next = place(tile + 1, after);
        after = number(tile + 2);
      }
      const int k = lane / 8;
      const auto from =
          reinterpret_cast<const uint8_t*>(shuffle(reinterpret_cast<uintptr_t>(here), copied % kChunks * kChunk + k));
      uint8_t* to = records + order.offset(copied) + k * order.pitch(copied);
      const int units = format_of(copied, k) == KvFormat::kE4m3Ue8m0 ? 33 : 18;
#pragma unroll
      for (int i = 0; i < 5; ++i) {
        const int unit = i * 8 + lane % 8;
        if (unit < units) copy_async<16>(to + unit * 16, from != nullptr ? from + unit * 16 : nothing, from != nullptr);
      }
      commit_copies();
      ++copied;
    }
    wait_all_but(copied - 1 - c);
    __syncwarp();  // every lane's copies are there
    const int buffer = c / kChunks % 2;
    if (c % kChunks == 0 && c >= 2 * kChunks) meet(kEmpty + buffer, kThreadsWide);
    uint8_t* tile = shared + kTilesAt + buffer * kOperandBytes;
    // Two turns, each all four records and half of their channels: reads of small records and writes hit every bank
    // once.
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      const int k = lane / 2 % 4;
      const int part = turn * 8 + lane / 8 * 2 + lane % 2;
      widen_part(records + order.offset(c) + k * order.pitch(c), format_of(c, k), part, tile,
                 warp * kWarpRows + c % kChunks * kChunk + k);
    }
    if (c % kChunks == kChunks - 1) {
      publish_operands();
      arrive(kFull + buffer * 2, kFetchThreads + kGroupThreads);
      arrive(kFull + buffer * 2 + 1, kFetchThreads + kGroupThreads);
    }
    __syncwarp();  // and every lane has read before the place is copied to again
  }
}

// ---- multiplying ----

// Copies the queries of 64 heads to eight panels.
__device__ __forceinline__ void copy_queries(const AttentionArgs& a, int64_t t, int head0, uint8_t* to) {
  const auto* from = static_cast<const uint16_t*>(a.q.data) + t * a.q.stride + int64_t{head0} * kWidth;
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x); at < kHeads * kWidth / 8; at += 2 * kGroupThreads) {
    const int head = at / (kWidth / 8);
    const int unit = at % (kWidth / 8);
    copy_async<16>(to + unit / 8 * kPanelBytes + panel_offset(head, unit % 8), from + at * 8, true);
  }
  commit_copies();
  wait_copies<0>();
  publish_operands();
}

// A multiplying warpgroup: `tiles` tiles from entry `from` on, channels group·256 … of the output.
__device__ __forceinline__ void multiply_tiles(const AttentionArgs& a, const Parts& parts, int64_t t, int head0,
                                               const Entries& e, int64_t from, int tiles, uint8_t* shared) {
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int quad = lane % 4;
  const int head = head0 + static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16 + lane / 4;  // and 8 further
  float o[4][32];
#pragma unroll
  for (auto& panel : o) {
#pragma unroll
    for (float& v : panel) v = 0.F;
  }
  Softmax state[2];
  const auto begin = static_cast<int>(from);
  const auto in_use = [&](int i) {
    if (i >= static_cast<int>(e.total)) return false;
    const int c = i - static_cast<int>(e.window);
    return c < 0 || a.selection == nullptr || a.selection[t * a.topk + c] >= 0;
  };
  copy_queries(a, t, head0, shared);
  meet(kQueries, 2 * kGroupThreads);

  for (int tile = 0; tile < tiles; ++tile) {
    const int buffer = tile % 2;
    const Operand right = operand(shared + kTilesAt + buffer * kOperandBytes);
    const uint32_t used[2] = {ballot(in_use(begin + tile * kTile + lane)),
                              ballot(in_use(begin + tile * kTile + 32 + lane))};
    meet(kFull + buffer * 2 + group, kFetchThreads + kGroupThreads);
    uint32_t p[4][4];
    Factors f[2];
    {
      float s[32];
      begin_products();
      const Operand left = operand(shared);
      row_product<false>(s, left, right);
#pragma unroll
      for (int k = 1; k < kWidth / 16; ++k) {
        const int at = k / 4 * kPanelBytes + k % 4 * 32;
        row_product<true>(s, beyond(left, at), beyond(right, at));
      }
      finish_products(s);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t both = used[j / 4] >> (j % 4 * 8 + 2 * quad);
        if ((both & 1U) == 0) s[4 * j] = s[4 * j + 2] = -INFINITY;
        if ((both & 2U) == 0) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
      }
      const float scale = a.scale * kEntryFactor * kLog2E;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float max = -INFINITY;
#pragma unroll
        for (int j = 0; j < 8; ++j) max = fmaxf(max, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
        max = fmaxf(max, shuffle_xor(max, 1));
        max = fmaxf(max, shuffle_xor(max, 2));
        const float top = max * scale;
        const float shift = max == -INFINITY ? 0.F : -top;
        float sum = 0.F;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float p0 = fast_exp2(fmaf(s[4 * j + 2 * half], scale, shift));
          const float p1 = fast_exp2(fmaf(s[4 * j + 2 * half + 1], scale, shift));
          sum += p0;
          sum += p1;
          p[j / 2][j % 2 * 2 + half] = round_pair(p0, p1);
        }
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (parts.values == nullptr) {
          f[half] = merge(state[half], top, sum);
        } else if (group == 0 && quad == 0) {
          parts.states[(t * parts.tiles + blockIdx.z) * a.heads + head + half * 8] = float2{top, sum};
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const Operand values = beyond(right, (group * 4 + n) * kPanelBytes);
      float v[32];
      begin_products();
      depth_product<false>(v, p[0], values);
#pragma unroll
      for (int k = 1; k < kTile / 16; ++k) depth_product<true>(v, p[k], beyond(values, k * 16 * kPanelRow));
      finish_products(v);
      if (parts.values == nullptr) {
#pragma unroll
        for (int i = 0; i < 32; ++i) o[n][i] = merged(o[n][i], v[i], f[i / 2 % 2]);
      } else {
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
          const int64_t at = (t * parts.tiles + blockIdx.z) * a.heads + head + i / 2 % 2 * 8;
          *reinterpret_cast<float2*>(parts.values + at * kWidth + (group * 4 + n) * 64 + i / 4 * 8 + quad * 2) =
              float2{v[i], v[i + 1]};
        }
      }
    }
    if (tile + 2 < tiles) arrive(kEmpty + buffer, kThreadsWide);
  }
  if (parts.values != nullptr) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = final_factor(state[half], a.sink[head + half * 8]);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        store_pair(a, t, head + half * 8, (group * 4 + n) * 64 + j * 8 + quad * 2, o[n][4 * j + 2 * half] * factor,
                   o[n][4 * j + 2 * half + 1] * factor);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreadsWide, 1)
    attention_wide_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ Parts parts) {
  join_chain();
  auto* shared = dynamic_shared<uint8_t>();
  const int64_t t = blockIdx.x;
  const int head0 = static_cast<int>(blockIdx.y) * kHeads;
  const Entries e = entries_of(a, t);
  const int64_t begin = parts.values != nullptr ? int64_t{blockIdx.z} * kTile : 0;
  const int64_t left = e.total - begin;
  if (parts.values != nullptr && left <= 0) return;
  const int tiles = parts.values != nullptr ? 1 : static_cast<int>((left + kTile - 1) / kTile);
  if (threadIdx.x >= 2 * kGroupThreads) {
    give_registers<56>();
    if (tiles > 0) fetch_tiles(a, t, e, begin, tiles, shared);
  } else {
    take_registers<200>();
    multiply_tiles(a, parts, t, head0, e, begin, tiles, shared);
  }
}

// Merges the tiles of a head; one block per row and head, two channels per thread.
__global__ void __launch_bounds__(kMergeThreads)
    attention_wide_merge_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ Parts parts) {
  join_chain();
  const int64_t t = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int c = 2 * static_cast<int>(threadIdx.x);
  const Entries e = entries_of(a, t);
  const int64_t tiles = (e.total + kTile - 1) / kTile;
  Softmax state;
  float re = 0.F;
  float im = 0.F;
#pragma unroll 4
  for (int64_t i = 0; i < (tiles < parts.tiles ? tiles : parts.tiles); ++i) {
    const int64_t at = (t * parts.tiles + i) * a.heads + head;
    const float2 part = parts.states[at];
    const float2 value = *reinterpret_cast<const float2*>(parts.values + at * kWidth + c);
    const Factors f = merge(state, part.x, part.y);
    re = merged(re, value.x, f);
    im = merged(im, value.y, f);
  }
  if (tiles > parts.tiles) state.sum = NAN;  // more entries than the launch made room for
  const float factor = final_factor(state, a.sink[head]);
  store_pair(a, t, head, c, re * factor, im * factor);
}

constexpr int kSplitRows = 8;  // up to here a tile has a block of its own

bool fetchable(KvFormat f) {
  return f == KvFormat::kE4m3Ue8m0 || f == KvFormat::kE2m1E4m3;
}

}  // namespace

bool attends_wide(const AttentionArgs& a) {
  const bool pages = a.ratio == 0 || (fetchable(a.pages.format) && !a.pages.split_scales &&
                                      is_aligned(a.pages.base, 16) && a.pages.block_stride % 16 == 0);
  return a.ring.width == kWidth && a.heads % kHeads == 0 && a.q.dtype == DType::kBf16 && a.round_bf16 &&
         fetchable(a.ring.format) && is_aligned(a.ring.base, 16) && a.ring.slot_stride % 16 == 0 &&
         is_aligned(a.fresh.records, 16) && pages && is_aligned(a.q.data, 16) && a.q.stride % 8 == 0 &&
         is_aligned(a.o.data, 8) && a.o.stride % 2 == 0 && a.rope_dim % 2 == 0;
}

void attention_wide(const AttentionArgs& a, Stream& stream) {
  Parts parts{};
  const bool split = a.rows.n <= kSplitRows && (a.ratio == 0 || a.selection != nullptr);
  if (split) {
    parts.tiles = static_cast<int>(divide_up(a.ring.ring_rows + kWindowSlack + (a.ratio == 0 ? 0 : a.topk), kTile));
    const int64_t heads = int64_t{a.rows.n} * parts.tiles * a.heads;
    reserve_scratch(stream, scratch_size(heads * kWidth * 4) + scratch_size(heads * 8));
    parts.values = take_scratch<float>(stream, heads * kWidth);
    parts.states = take_scratch<float2>(stream, heads);
  }
  DI_LAUNCH_EARLY(stream, attention_wide_kernel, grid(a.rows.n, a.heads / kHeads, split ? parts.tiles : 1),
                  dim3(kThreadsWide), static_cast<size_t>(kSharedWide), a, parts);
  if (split) {
    DI_LAUNCH_EARLY(stream, attention_wide_merge_kernel, grid(a.rows.n, a.heads), dim3(kMergeThreads), 0, a, parts);
  }
}

}  // namespace di::kernels::cuda
