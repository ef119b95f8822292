// Attention over window and selected entries in one softmax with a sink (model.md §5.4), reading the records as stored.
// Two forms with one interface:
//   tensor  bf16 queries and quantised records: the entries of a tile are widened to bf16 in shared memory (exact: at
//   most
//           six significant bits), scores and values by mma.m16n8k16, softmax online in fp32.
//   exact   everything else, fp32 on the CUDA cores: one warp per head, two passes over the entries.
// A row's result depends on its own entries only; a block has 16 or 64 heads of a row, which changes no sum.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

// The entries of a row in the order of the sum: the window ascending, then the compressed ones ascending.
struct Entries {
  int64_t begin;
  int64_t window;
  int64_t total;
};

__device__ __forceinline__ Entries entries_of(const AttentionArgs& a, int64_t t) {
  Entries e;
  e.begin = a.rows.window_begin[t];
  e.window = a.rows.window_end[t] > e.begin ? a.rows.window_end[t] - e.begin : 0;
  const int64_t visible = a.ratio > 0 ? (int64_t{a.rows.positions[t]} + 1) / a.ratio : 0;
  e.total = e.window + (a.ratio == 0 ? 0 : a.selection != nullptr ? a.topk : visible);
  return e;
}

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

constexpr int kTile = 64;  // entries of a tile
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

struct HeadState {
  float max;
  float sum;
  float factor;
  float unused;
};

// Sixteen channels of a record as bf16, 32 bytes of shared memory.
__device__ __forceinline__ void widen(const Entry& entry, int part, uint16_t* to) {
  float v[16];
  if (entry.at.data == nullptr) {
#pragma unroll
    for (float& x : v) x = 0.F;
  } else if (entry.format == KvFormat::kE4m3Ue8m0) {
    uint32_t words[4];
    const uint8_t* from = entry.at.data + part * 16;
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      const uint4 raw = *reinterpret_cast<const uint4*>(from);
      words[0] = raw.x;
      words[1] = raw.y;
      words[2] = raw.z;
      words[3] = raw.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = static_cast<uint32_t>(from[4 * i]) | static_cast<uint32_t>(from[4 * i + 1]) << 8 |
                   static_cast<uint32_t>(from[4 * i + 2]) << 16 | static_cast<uint32_t>(from[4 * i + 3]) << 24;
      }
    }
    const float s = e8m0_to_float(entry.at.scale[part / 2]);
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = e4m3_to_float(static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)))) * s;
  } else {  // kE2m1E4m3
    uint32_t words[2];
    const uint8_t* from = entry.at.data + part * 8;
    if (reinterpret_cast<uintptr_t>(from) % 8 == 0) {
      const uint2 raw = *reinterpret_cast<const uint2*>(from);
      words[0] = raw.x;
      words[1] = raw.y;
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        words[i] = static_cast<uint32_t>(from[4 * i]) | static_cast<uint32_t>(from[4 * i + 1]) << 8 |
                   static_cast<uint32_t>(from[4 * i + 2]) << 16 | static_cast<uint32_t>(from[4 * i + 3]) << 24;
      }
    }
    const float s = e4m3_to_float(entry.at.scale[part]);
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = e2m1_to_float(words[i / 8] >> (4 * (i % 8))) * s;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *reinterpret_cast<uint4*>(to + 8 * i) =
        uint4{pack_exact_bf16(v[8 * i], v[8 * i + 1]), pack_exact_bf16(v[8 * i + 2], v[8 * i + 3]),
              pack_exact_bf16(v[8 * i + 4], v[8 * i + 5]), pack_exact_bf16(v[8 * i + 6], v[8 * i + 7])};
  }
}

// kHeadTiles·16 heads of one row; kParts = D/64. Warp w takes entries 8w … 8w+7 of a tile for the scores and channels
// 8·kParts·w … of the output.
template <int kHeadTiles, int kParts>
__global__ void __launch_bounds__(kTensorThreads, 1) attention_tensor_kernel(const __grid_constant__ AttentionArgs a) {
  constexpr int kHeads = kHeadTiles * 16;
  constexpr int kD = kParts * 64;
  constexpr int kPitchD = kD + 8;
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

  for (int at = tid; at < kHeads * kD; at += kTensorThreads) {
    const int h = at / kD;
    q[h * kPitchD + at % kD] =
        head0 + h < a.heads ? static_cast<const uint16_t*>(a.q.data)[t * a.q.stride + int64_t{head0 + h} * kD + at % kD]
                            : uint16_t{0};
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

  for (int64_t first = 0; first < e.total; first += kTile) {
    __syncthreads();  // keys, probabilities and factors of the tile before have been read
    if (tid < kTile) {
      entries[tid] =
          first + tid < e.total ? find_entry(a, t, e, first + tid) : Entry{{nullptr, nullptr}, a.ring.format};
    }
    __syncthreads();
    for (int at = tid; at < kTile * (kD / 16); at += kTensorThreads) {
      const int key = at / (kD / 16);
      const int part = at % (kD / 16);
      widen(entries[key], part, keys + key * kPitchD + part * 16);
    }
    __syncthreads();
    {  // scores: heads × the warp's eight entries
      float s[kHeadTiles][4];
#pragma unroll
      for (auto& tile : s) {
#pragma unroll
        for (float& v : tile) v = 0.F;
      }
      const auto pair = [](const uint16_t* p) { return *reinterpret_cast<const uint32_t*>(p); };
      const uint16_t* key = keys + (warp * 8 + group) * kPitchD + 2 * quad;
#pragma unroll 4
      for (int k = 0; k < kD; k += 16) {
        const uint32_t b0 = pair(key + k);
        const uint32_t b1 = pair(key + k + 8);
#pragma unroll
        for (int i = 0; i < kHeadTiles; ++i) {
          const uint16_t* from = q + (i * 16 + group) * kPitchD + k + 2 * quad;
          const uint32_t f[4] = {pair(from), pair(from + 8 * kPitchD), pair(from + 8), pair(from + 8 * kPitchD + 8)};
          mma_bf16(s[i], f, b0, b1);
        }
      }
#pragma unroll
      for (int i = 0; i < kHeadTiles; ++i) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const int h = i * 16 + group + v / 2 * 8;
          const int n = warp * 8 + quad * 2 + v % 2;
          scores[h * kScorePitch + n] = entries[n].at.data != nullptr ? s[i][v] * a.scale : -INFINITY;
        }
      }
    }
    __syncthreads();
    // Softmax of the tile: one warp per head in turn, two entries per lane.
    for (int h = warp; h < kHeads; h += kTensorWarps) {
      const float s0 = scores[h * kScorePitch + lane];
      const float s1 = scores[h * kScorePitch + lane + 32];
      const HeadState old = state[h];
      const float max = fmaxf(old.max, warp_max(fmaxf(s0, s1)));
      const bool any = max > -INFINITY;
      const float p0 = any ? expf(s0 - max) : 0.F;
      const float p1 = any ? expf(s1 - max) : 0.F;
      const float factor = any ? expf(old.max - max) : 1.F;
      const float sum = warp_sum(p0 + p1);
      probs[h * kProbPitch + lane] = float_to_bf16(p0);
      probs[h * kProbPitch + lane + 32] = float_to_bf16(p1);
      __syncwarp();
      if (lane == 0) state[h] = {max, old.sum * factor + sum, factor, 0.F};
    }
    __syncthreads();
    // o ← o·factor + p·k
#pragma unroll
    for (int i = 0; i < kHeadTiles; ++i) {
      const float f0 = state[i * 16 + group].factor;
      const float f1 = state[i * 16 + group + 8].factor;
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        o[i][n][0] *= f0;
        o[i][n][1] *= f0;
        o[i][n][2] *= f1;
        o[i][n][3] *= f1;
      }
    }
    const auto pair = [](const uint16_t* p) { return *reinterpret_cast<const uint32_t*>(p); };
#pragma unroll
    for (int k = 0; k < kTile; k += 16) {
      uint32_t f[kHeadTiles][4];
#pragma unroll
      for (int i = 0; i < kHeadTiles; ++i) {
        const uint16_t* from = probs + (i * 16 + group) * kProbPitch + k + 2 * quad;
        f[i][0] = pair(from);
        f[i][1] = pair(from + 8 * kProbPitch);
        f[i][2] = pair(from + 8);
        f[i][3] = pair(from + 8 * kProbPitch + 8);
      }
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        uint32_t b0;
        uint32_t b1;
        load_transposed(b0, b1, keys + (k + lane % 16) * kPitchD + (warp * kParts + n) * 8);
#pragma unroll
        for (int i = 0; i < kHeadTiles; ++i) mma_bf16(o[i][n], f[i], b0, b1);
      }
    }
  }
  __syncthreads();  // the last state is complete

  // The sink joins the denominator; then rounding and the inverse rotation, whose pairs are neighbours in a thread.
#pragma unroll
  for (int i = 0; i < kHeadTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = i * 16 + group + half * 8;
      if (head0 + h >= a.heads) continue;
      const HeadState s = state[h];
      const float sink = a.sink[head0 + h];
      const float max = fmaxf(s.max, sink);
      float factor = 0.F;
      if (s.max > -INFINITY) {
        const float scaled = expf(s.max - max);
        factor = scaled / (s.sum * scaled + expf(sink - max));
      }
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        const int c = (warp * kParts + n) * 8 + quad * 2;
        float re = o[i][n][half * 2] * factor;
        float im = o[i][n][half * 2 + 1] * factor;
        if (a.round_bf16) {
          re = round_bf16(re);
          im = round_bf16(im);
        }
        const int tail = c - (kD - a.rope_dim);
        if (tail >= 0) rotate_pair(re, im, a.table + t * a.rope_dim, tail / 2, true);
        store_value(a.o, t, int64_t{head0 + h} * kD + c, re);
        store_value(a.o, t, int64_t{head0 + h} * kD + c + 1, im);
      }
    }
  }
}

template <int kHeadTiles, int kParts>
void launch_tensor(const AttentionArgs& a, Stream& stream) {
  const TensorLayout layout = tensor_layout(kHeadTiles * 16, kParts * 64);
  DI_LAUNCH(stream, (attention_tensor_kernel<kHeadTiles, kParts>), grid(a.rows.n, divide_up(a.heads, kHeadTiles * 16)),
            dim3(kTensorThreads), static_cast<size_t>(layout.bytes), a);
}

// Few rows: 16 heads per block, so that more multiprocessors work; many: 64, which widens an entry once for all.
template <int kParts>
void launch_heads(const AttentionArgs& a, Stream& stream) {
  if (a.heads > 16 && a.rows.n >= 96) {
    launch_tensor<4, kParts>(a, stream);
  } else {
    launch_tensor<1, kParts>(a, stream);
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
