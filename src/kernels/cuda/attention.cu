// Attention over window and selected entries in one softmax with a sink (model.md §5.4), reading the records as stored.
// Three forms with one interface:
//   wide    64 heads of width 512 over quantised records: attention_wide.cu.
//   tensor  bf16 queries and quantised records of other sizes: the entries of a tile are widened to bf16 in shared
//   memory (exact: at
//           most six significant bits; times 2^-60, which the fp32 sums make up for), scores and values by
//           mma.m16n8k16. Every tile of 64 entries has a softmax of its own; tiles are merged in ascending order.
//   exact   everything else, fp32 on the CUDA cores: one warp per head, two passes over the entries.
// A row's result depends on its own entries only; a block has 16 or 64 heads of a row, which changes no sum. With few
// rows a tile has a block of its own and a second kernel merges them: the same operations in the same order.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/streamed.cuh"

namespace di::kernels::cuda {
namespace {

struct Entry {
  RecordAt at;  // data null: unused
  KvFormat format;
};

__device__ __forceinline__ Entry find_entry(const AttentionArgs& a, int64_t t, const Entries& e, int64_t i) {
  const int64_t sequence = a.rows.sequence[t];
  if (i < e.window) return {window_record(a.fresh, a.ring, a.rows, sequence, e.begin + i), a.ring.format};
  const int64_t c = i - e.window;
  const int64_t g = a.selection != nullptr ? a.selection[t * a.topk + c] : c;
  if (g < 0) return {{nullptr, nullptr}, a.pages.format};
  return {page_entry(a.pages, a.rows, sequence, g), a.pages.format};
}

// ---- exact ----

constexpr int kExactHeads = 8;  // of a block, one per warp
constexpr int kMaxParts = 16;   // channels of a lane: 32·16 = 512

__global__ void __launch_bounds__(kExactHeads * 32) attention_exact_kernel(const __grid_constant__ AttentionArgs a) {
  const int64_t t = blockIdx.x;
  const int64_t h = int64_t{blockIdx.y} * kExactHeads + threadIdx.x / 32;
  if (h >= a.heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int d = a.ring.width;
  const Entries e = entries_of(a, t);
  float q[kMaxParts];
  float o[kMaxParts];
#pragma unroll
  for (int p = 0; p < kMaxParts; ++p) {
    const int c = p * 32 + lane;
    q[p] = c < d ? load_value(a.q, t, h * d + c) : 0.F;
    o[p] = 0.F;
  }
  const auto score = [&](const Entry& entry) {
    float dot = 0.F;
#pragma unroll
    for (int p = 0; p < kMaxParts; ++p) {
      const int c = p * 32 + lane;
      if (c < d) dot = fmaf(q[p], record_value(entry.format, entry.at, c), dot);
    }
    return warp_sum(dot) * a.scale;
  };
  const float sink = a.sink[h];
  float max = sink;
  bool any = false;
  for (int64_t i = 0; i < e.total; ++i) {
    const Entry entry = find_entry(a, t, e, i);
    if (entry.at.data == nullptr) continue;
    any = true;
    max = fmaxf(max, score(entry));
  }
  if (any) {
    // The scores are computed three times instead of kept: their number has no bound (ratio 128 sees every entry).
    float sum = expf(sink - max);
    for (int64_t i = 0; i < e.total; ++i) {
      const Entry entry = find_entry(a, t, e, i);
      if (entry.at.data != nullptr) sum += expf(score(entry) - max);
    }
    for (int64_t i = 0; i < e.total; ++i) {
      const Entry entry = find_entry(a, t, e, i);
      if (entry.at.data == nullptr) continue;
      float weight = expf(score(entry) - max) / sum;
      if (a.round_bf16) weight = round_bf16(weight);
#pragma unroll
      for (int p = 0; p < kMaxParts; ++p) {
        const int c = p * 32 + lane;
        if (c < d) o[p] = fmaf(weight, record_value(entry.format, entry.at, c), o[p]);
      }
    }
  }
#pragma unroll
  for (int p = 0; p < kMaxParts; ++p) {
    const int c = p * 32 + lane;
    float v = a.round_bf16 ? round_bf16(o[p]) : o[p];
    const float partner = shuffle_xor(v, 1);
    const int tail = c - (d - a.rope_dim);
    if (c < d && tail >= 0) {
      float re = tail % 2 == 0 ? v : partner;
      float im = tail % 2 == 0 ? partner : v;
      rotate_pair(re, im, a.table + t * a.rope_dim, tail / 2, true);
      v = tail % 2 == 0 ? re : im;
    }
    if (c < d) store_value(a.o, t, h * d + c, v);
  }
}

// ---- tensor ----

constexpr int kStoreThreads = 256;
constexpr int kTensorThreads = 256;
constexpr int kTensorWarps = kTensorThreads / 32;
constexpr int kScorePitch = kTile + 2;
constexpr int kProbPitch = kTile + 8;

// Shared memory of a block with kHeads heads of width D (all offsets are multiples of 16 bytes).
struct TensorLayout {
  int64_t q;        // [heads, D + 8] bf16
  int64_t k;        // [kTile, D + 8] bf16
  int64_t scores;   // [heads, kScorePitch] fp32
  int64_t probs;    // [heads, kProbPitch] bf16
  int64_t state;    // [heads] max, sum, factor
  int64_t entries;  // [kTile] Entry
  int64_t bytes;
};
DI_HD TensorLayout tensor_layout(int heads, int64_t d) {
  TensorLayout l{};
  l.q = 0;
  l.k = l.q + heads * (d + 8) * 2;
  l.scores = l.k + kTile * (d + 8) * 2;
  l.probs = l.scores + heads * kScorePitch * 4;
  l.state = l.probs + heads * kProbPitch * 2;
  l.entries = l.state + heads * 16;
  l.bytes = l.entries + kTile * static_cast<int64_t>(sizeof(Entry));
  return l;
}

// Of a head: the tile's largest score and sum, and what both the sum so far and the tile's are multiplied by.
struct HeadState {
  float max;     // of all tiles so far
  float sum;     // relative to max
  float before;  // exp(max before - max)
  float tile;    // exp(tile's max - max)
};

// The state after a tile with the given largest score and sum.
__device__ __forceinline__ HeadState merge_state(const HeadState& old, float tile_max, float tile_sum) {
  const float max = fmaxf(old.max, tile_max);
  if (max == -INFINITY) return {max, 0.F, 1.F, 0.F};
  const float before = expf(old.max - max);
  const float tile = expf(tile_max - max);
  return {max, fmaf(old.sum, before, tile_sum * tile), before, tile};
}

__device__ __forceinline__ uint32_t load_word(const uint8_t* from) {
  return static_cast<uint32_t>(from[0]) | static_cast<uint32_t>(from[1]) << 8 | static_cast<uint32_t>(from[2]) << 16 |
         static_cast<uint32_t>(from[3]) << 24;
}

// Sixteen channels of a record as bf16, 32 bytes of shared memory.
__device__ __forceinline__ void widen(const Entry& entry, int part, uint16_t* to) {
  uint32_t out[8] = {};
  if (entry.at.data == nullptr) {
  } else if (entry.format == KvFormat::kE4m3Ue8m0) {
    const uint8_t* from = entry.at.data + part * 16;
    uint4 raw;
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      raw = *reinterpret_cast<const uint4*>(from);
    } else {
      raw = uint4{load_word(from), load_word(from + 4), load_word(from + 8), load_word(from + 12)};
    }
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    const uint32_t factor = code_factor<WeightFormat::kFp8Block>(entry.at.scale[part / 2]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t r[2];
      widen_fp8(words[i], factor, r);
      out[2 * i] = low_halves(r[0], r[1]);
      out[2 * i + 1] = high_halves(r[0], r[1]);
    }
  } else {  // kE2m1E4m3
    const uint8_t* from = entry.at.data + part * 8;
    uint2 raw;
    if (reinterpret_cast<uintptr_t>(from) % 8 == 0) {
      raw = *reinterpret_cast<const uint2*>(from);
    } else {
      raw = uint2{load_word(from), load_word(from + 4)};
    }
    const uint32_t words[2] = {raw.x, raw.y};
    const float scale = e4m3_to_float(entry.at.scale[part]) * 0x1p66F;  // codes are 2^-126 times their values
    const uint32_t factor = pack_exact_bf16(scale, scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t r[4];
      widen_fp4(words[i], factor, r);
      out[4 * i] = low_halves(r[0], r[1]);
      out[4 * i + 1] = low_halves(r[2], r[3]);
      out[4 * i + 2] = high_halves(r[0], r[1]);
      out[4 * i + 3] = high_halves(r[2], r[3]);
    }
  }
  *reinterpret_cast<uint4*>(to) = uint4{out[0], out[1], out[2], out[3]};
  *reinterpret_cast<uint4*>(to + 8) = uint4{out[4], out[5], out[6], out[7]};
}

// Two neighbouring channels of head `head` of row t, the sum over all tiles divided by what the softmax and the sink
// make; then rounding and the inverse rotation.
__device__ __forceinline__ void store_pair(const AttentionArgs& a, int64_t t, int64_t head, int d, int c,
                                           const HeadState& s, float re, float im) {
  const float sink = a.sink[head];
  const float max = fmaxf(s.max, sink);
  float factor = 0.F;
  if (s.max > -INFINITY) {
    const float scaled = expf(s.max - max);
    factor = scaled / fmaf(s.sum, scaled, expf(sink - max));
  }
  re *= factor;
  im *= factor;
  if (a.round_bf16) {
    re = round_bf16(re);
    im = round_bf16(im);
  }
  const int tail = c - (d - a.rope_dim);
  if (tail >= 0) rotate_pair(re, im, a.table + t * a.rope_dim, tail / 2, true);
  store_value(a.o, t, head * d + c, re);
  store_value(a.o, t, head * d + c + 1, im);
}

// kHeadTiles·16 heads of one row; kParts = D/64. For the scores the warps share heads and entries of a tile, for the
// output warp w has channels 8·kParts·w …
template <int kHeadTiles, int kParts>
__global__ void __launch_bounds__(kTensorThreads, 1)
    attention_tensor_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ Parts parts) {
  constexpr int kHeads = kHeadTiles * 16;
  constexpr int kD = kParts * 64;
  constexpr int kPitchD = kD + 8;
  // A warp's share of the scores: as square as possible, so that operands are read few times.
  constexpr int kScoreHeads = kHeadTiles == 4 ? 2 : 1;
  constexpr int kScoreEntries = kHeadTiles == 4 ? 2 : 1;  // tiles of eight
  auto* shared = dynamic_shared<uint8_t>();
  const TensorLayout layout = tensor_layout(kHeads, kD);
  auto* q = reinterpret_cast<uint16_t*>(shared + layout.q);
  auto* keys = reinterpret_cast<uint16_t*>(shared + layout.k);
  auto* scores = reinterpret_cast<float*>(shared + layout.scores);
  auto* probs = reinterpret_cast<uint16_t*>(shared + layout.probs);
  auto* state = reinterpret_cast<HeadState*>(shared + layout.state);
  auto* entries = reinterpret_cast<Entry*>(shared + layout.entries);

  const int64_t t = blockIdx.x;
  const int head0 = static_cast<int>(blockIdx.y) * kHeads;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  const Entries e = entries_of(a, t);
  const int64_t begin = parts.values != nullptr ? int64_t{blockIdx.z} * kTile : 0;
  const int64_t end = parts.values != nullptr && begin + kTile < e.total ? begin + kTile : e.total;
  if (parts.values != nullptr && begin >= end) return;

  for (int at = tid; at < kHeads * kD / 2; at += kTensorThreads) {
    const int h = at / (kD / 2);
    const int c = at % (kD / 2) * 2;
    const auto* from = static_cast<const uint16_t*>(a.q.data) + t * a.q.stride + int64_t{head0 + h} * kD + c;
    q[h * kPitchD + c] = head0 + h < a.heads ? from[0] : uint16_t{0};
    q[h * kPitchD + c + 1] = head0 + h < a.heads ? from[1] : uint16_t{0};
  }
  for (int h = tid; h < kHeads; h += kTensorThreads) state[h] = {-INFINITY, 0.F, 1.F, 0.F};

  float o[kHeadTiles][kParts][4];
#pragma unroll
  for (auto& tile : o) {
#pragma unroll
    for (auto& part : tile) {
#pragma unroll
      for (float& v : part) v = 0.F;
    }
  }

  for (int64_t first = begin; first < end; first += kTile) {
    __syncthreads();  // keys, probabilities and states of the tile before have been read
    if (tid < kTile) {
      entries[tid] = first + tid < end ? find_entry(a, t, e, first + tid) : Entry{{nullptr, nullptr}, a.ring.format};
    }
    __syncthreads();
    for (int at = tid; at < kTile * (kD / 16); at += kTensorThreads) {
      const int key = at / (kD / 16);
      const int part = at % (kD / 16);
      widen(entries[key], part, keys + key * kPitchD + part * 16);
    }
    __syncthreads();
    {  // scores
      const int heads_at = kHeadTiles == 4 ? warp / 4 * 32 : 0;
      const int entries_at = kHeadTiles == 4 ? warp % 4 * 16 : warp * 8;
      float s[kScoreHeads][kScoreEntries][4] = {};
      const uint16_t* q_at = q + (heads_at + lane % 16) * kPitchD + lane / 16 * 8;
      const uint16_t* key_at = kScoreEntries == 2
                                   ? keys + (entries_at + lane / 16 * 8 + lane % 8) * kPitchD + lane / 8 % 2 * 8
                                   : keys + (entries_at + group) * kPitchD + 2 * quad;
#pragma unroll 4
      for (int k = 0; k < kD; k += 16) {
        uint32_t b[4];
        if constexpr (kScoreEntries == 2) {
          load_matrices(b, key_at + k);
        } else {
          b[0] = *reinterpret_cast<const uint32_t*>(key_at + k);
          b[1] = *reinterpret_cast<const uint32_t*>(key_at + k + 8);
        }
#pragma unroll
        for (int i = 0; i < kScoreHeads; ++i) {
          uint32_t f[4];
          load_matrices(f, q_at + i * 16 * kPitchD + k);
#pragma unroll
          for (int j = 0; j < kScoreEntries; ++j) mma_bf16(s[i][j], f, b[2 * j], b[2 * j + 1]);
        }
      }
      const float scale = a.scale * kEntryFactor;
#pragma unroll
      for (int i = 0; i < kScoreHeads; ++i) {
#pragma unroll
        for (int j = 0; j < kScoreEntries; ++j) {
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            const int h = heads_at + i * 16 + group + v / 2 * 8;
            const int n = entries_at + j * 8 + quad * 2 + v % 2;
            scores[h * kScorePitch + n] = entries[n].at.data != nullptr ? s[i][j][v] * scale : -INFINITY;
          }
        }
      }
    }
    __syncthreads();
    // Softmax of the tile: one warp per head in turn, two entries per lane.
    for (int h = warp; h < kHeads; h += kTensorWarps) {
      const float s0 = scores[h * kScorePitch + lane];
      const float s1 = scores[h * kScorePitch + lane + 32];
      const float max = warp_max(fmaxf(s0, s1));
      const bool any = max > -INFINITY;
      const float p0 = any ? expf(s0 - max) : 0.F;
      const float p1 = any ? expf(s1 - max) : 0.F;
      const float sum = warp_sum(p0 + p1);
      probs[h * kProbPitch + lane] = float_to_bf16(p0);
      probs[h * kProbPitch + lane + 32] = float_to_bf16(p1);
      if (lane == 0) {
        if (parts.values == nullptr) {
          state[h] = merge_state(state[h], max, sum);
        } else if (head0 + h < a.heads) {
          parts.states[(t * parts.tiles + blockIdx.z) * a.heads + head0 + h] = float2{max, sum};
        }
      }
    }
    __syncthreads();
    // o ← o·before + (p·k)·tile, column tile by column tile
    uint32_t p[kTile / 16][kHeadTiles][4];
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
#pragma unroll
      for (int i = 0; i < kHeadTiles; ++i) {
        load_matrices(p[k][i], probs + (i * 16 + lane % 16) * kProbPitch + k * 16 + lane / 16 * 8);
      }
    }
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      float tile[kHeadTiles][4] = {};
#pragma unroll
      for (int k = 0; k < kTile / 16; ++k) {
        uint32_t b0;
        uint32_t b1;
        load_transposed(b0, b1, keys + (k * 16 + lane % 16) * kPitchD + (warp * kParts + n) * 8);
#pragma unroll
        for (int i = 0; i < kHeadTiles; ++i) mma_bf16(tile[i], p[k][i], b0, b1);
      }
#pragma unroll
      for (int i = 0; i < kHeadTiles; ++i) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const int h = i * 16 + group + v / 2 * 8;
          const float value = tile[i][v] * kEntryFactor;
          if (parts.values == nullptr) {
            o[i][n][v] = fmaf(o[i][n][v], state[h].before, value * state[h].tile);
          } else if (head0 + h < a.heads) {
            parts.values[((t * parts.tiles + blockIdx.z) * a.heads + head0 + h) * kD + (warp * kParts + n) * 8 +
                         quad * 2 + v % 2] = value;
          }
        }
      }
    }
  }
  if (parts.values != nullptr) return;
  __syncthreads();  // the last states are complete, or the first where there is no entry
#pragma unroll
  for (int i = 0; i < kHeadTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = i * 16 + group + half * 8;
      if (head0 + h >= a.heads) continue;
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        store_pair(a, t, head0 + h, kD, (warp * kParts + n) * 8 + quad * 2, state[h], o[i][n][half * 2],
                   o[i][n][half * 2 + 1]);
      }
    }
  }
}

// Merges the tiles of a head; one block per row and head, two channels per thread and turn.
__global__ void __launch_bounds__(kStoreThreads)
    attention_merge_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ Parts parts) {
  const int64_t t = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int d = a.ring.width;
  const Entries e = entries_of(a, t);
  const int64_t tiles = (e.total + kTile - 1) / kTile;
  for (int c = 2 * static_cast<int>(threadIdx.x); c < d; c += 2 * kStoreThreads) {
    HeadState state{-INFINITY, 0.F, 1.F, 0.F};
    float re = 0.F;
    float im = 0.F;
    for (int64_t i = 0; i < tiles && i < parts.tiles; ++i) {
      const int64_t at = (t * parts.tiles + i) * a.heads + head;
      const float2 part = parts.states[at];
      state = merge_state(state, part.x, part.y);
      re = fmaf(re, state.before, parts.values[at * d + c] * state.tile);
      im = fmaf(im, state.before, parts.values[at * d + c + 1] * state.tile);
    }
    if (tiles > parts.tiles) state.sum = NAN;  // more entries than the launch made room for
    store_pair(a, t, head, d, c, state, re, im);
  }
}

template <int kHeadTiles, int kParts>
void launch_tensor(const AttentionArgs& a, const Parts& parts, Stream& stream) {
  const TensorLayout layout = tensor_layout(kHeadTiles * 16, kParts * 64);
  DI_LAUNCH(stream, (attention_tensor_kernel<kHeadTiles, kParts>),
            grid(a.rows.n, divide_up(a.heads, kHeadTiles * 16), parts.values != nullptr ? parts.tiles : 1),
            dim3(kTensorThreads), static_cast<size_t>(layout.bytes), a, parts);
}

constexpr int kSplitRows = 16;  // up to here a tile has a block of its own

// Few rows: 16 heads per block, so that more multiprocessors work; many: 64, which widens an entry once for all.
template <int kParts>
void launch_heads(const AttentionArgs& a, Stream& stream) {
  Parts parts{};
  if (a.rows.n <= kSplitRows && (a.ratio == 0 || a.selection != nullptr)) {
    const int64_t d = a.ring.width;
    parts.tiles = static_cast<int>(divide_up(a.ring.ring_rows + kWindowSlack + (a.ratio == 0 ? 0 : a.topk), kTile));
    const int64_t heads = int64_t{a.rows.n} * parts.tiles * a.heads;
    reserve_scratch(stream, scratch_size(heads * d * 4) + scratch_size(heads * 8));
    parts.values = take_scratch<float>(stream, heads * d);
    parts.states = take_scratch<float2>(stream, heads);
    launch_tensor<1, kParts>(a, parts, stream);
    DI_LAUNCH(stream, attention_merge_kernel, grid(a.rows.n, a.heads), dim3(kStoreThreads), 0, a, parts);
  } else if (a.heads > 16 && a.rows.n >= 96) {
    launch_tensor<4, kParts>(a, parts, stream);
  } else {
    launch_tensor<1, kParts>(a, parts, stream);
  }
}

bool quantised(KvFormat f) {
  return f == KvFormat::kE4m3Ue8m0 || f == KvFormat::kE2m1E4m3;
}

}  // namespace

void attention(const AttentionArgs& a, Stream& stream) {
  const int64_t d = a.ring.width;
  DI_KERNEL_CHECK(
      a.q.cols == a.heads * d && a.o.cols == a.q.cols && a.q.rows == a.rows.n && a.o.rows == a.rows.n &&
          a.rope_dim <= d && (d - a.rope_dim) % 2 == 0 && (a.ratio == 0 || a.pages.width == d) && d <= 32 * kMaxParts,
      "q [%lld, %lld], o [%lld, %lld], %d heads of %lld (at most %d), %d rows, page width %d",
      static_cast<long long>(a.q.rows), static_cast<long long>(a.q.cols), static_cast<long long>(a.o.rows),
      static_cast<long long>(a.o.cols), a.heads, static_cast<long long>(d), 32 * kMaxParts, a.rows.n, a.pages.width);
  if (a.rows.n == 0) return;
  if (attends_wide(a)) return attention_wide(a, stream);
  const bool tensor = a.q.dtype == DType::kBf16 && a.round_bf16 && quantised(a.ring.format) &&
                      (a.ratio == 0 || quantised(a.pages.format));
  if (tensor && d == 512) {
    launch_heads<8>(a, stream);
  } else if (tensor && d == 128) {
    launch_heads<2>(a, stream);
  } else if (tensor && d == 64) {
    launch_heads<1>(a, stream);
  } else {
    DI_LAUNCH(stream, attention_exact_kernel, grid(a.rows.n, divide_up(a.heads, kExactHeads)), dim3(kExactHeads * 32),
              0, a);
  }
}

}  // namespace di::kernels::cuda
