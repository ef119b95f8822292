// Plain views that cross the backend border: activations, stored weights, caches. Nothing here owns memory and nothing
// here names a backend; .cu files include it (C++20, no <expected>, no fmt).
#pragma once

#include <cstdint>

namespace di::kernels {

enum class DType : uint8_t { kF32, kBf16 };

inline constexpr int64_t size_of(DType t) {
  return t == DType::kF32 ? 4 : 2;
}

// A row-major matrix of activations. In `exact` numerics activations are fp32, in `trained` numerics bf16: storing into
// a bf16 tensor is the rounding point "→bf16" of model.md §5.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next, >= cols
};

// How a weight lies in the checkpoint (model.md §3, §4.1). Weights are used as stored.
enum class WeightFormat : uint8_t {
  kF32,
  kBf16,
  kFp8Block,  // E4M3 [rows, cols], E8M0 scale [ceil(rows/B), ceil(cols/B)], B = 32 (V4.1) or 128 (V4)
  kFp8Row,    // E4M3 [rows, cols], E8M0 scale [rows, ceil(cols/32)] (Engram tables)
  kFp4Row,    // E2M1 [rows, cols/2] (even column in the low nibble), E8M0 scale [rows, ceil(cols/32)] (routed experts)
};

// A stored matrix [rows = outputs, cols = inputs]; y = x · Wᵀ.
struct Weight {
  const void* data = nullptr;
  const uint8_t* scale = nullptr;  // null for kF32 and kBf16
  WeightFormat format = WeightFormat::kBf16;
  int32_t block = 32;  // B of kFp8Block
  int64_t rows = 0;
  int64_t cols = 0;
};

// What the arithmetic does beside the formulas (model.md §4.2, §4.3, §5). The dtype of the tensors carries the bf16
// rounding between operators; `round_bf16` adds the rounding points inside a fused operator, `quantise_activations` the
// E4M3 rounding of a GEMM's input before FP8 and FP4 weights (one power-of-two scale per token and `activation_group`
// channels).
struct Numerics {
  bool round_bf16 = false;
  bool quantise_activations = false;
  int32_t activation_group = 32;  // 32 (V4.1), 128 before V4's dense weights
};

// Stored form of one cache entry of `width` channels (model.md §4.3). Values are read back as fp32.
enum class KvFormat : uint8_t {
  kF32,        // width·4 bytes: no KV quantisation (fixtures `expected_plain`, V4)
  kE4m3Ue8m0,  // width + width/32 bytes: sliding-window entries, and main entries in MXFP8 mode
  kE2m1E4m3,   // width/2 + width/16 bytes: main compressed entries (NVFP4 without second-level scale)
  kE2m1Ue8m0,  // width/2 + width/32 bytes: index keys
};

inline constexpr int64_t data_bytes(KvFormat f, int64_t width) {
  return f == KvFormat::kF32 ? width * 4 : f == KvFormat::kE4m3Ue8m0 ? width : width / 2;
}
inline constexpr int64_t scale_bytes(KvFormat f, int64_t width) {
  return f == KvFormat::kF32 ? 0 : f == KvFormat::kE2m1E4m3 ? width / 16 : width / 32;
}
inline constexpr int64_t record_bytes(KvFormat f, int64_t width) {
  return data_bytes(f, width) + scale_bytes(f, width);
}

// Sliding-window entries that this call computes, before they go to the rings: a call may bring more rows than a ring
// has, so attention reads them from here and `ring_commit` stores them afterwards. Row order is that of the call's
// rows. Rows of one sequence are adjacent and their positions consecutive: the entry of position p >= position[seq] is
// record row[seq] + p - position[seq]; an earlier position is read from the ring.
struct FreshView {
  const uint8_t* records = nullptr;   // [T, record_bytes(format, width)], data then scales
  const int32_t* row = nullptr;       // [sequences] first row of the sequence in this call
  const int32_t* position = nullptr;  // [sequences] position of that row
};

// The sliding-window rings of one layer. The entry of position p of the sequence in state slot s is the record
//   base + s·slot_stride + (p mod ring_rows)·record_bytes(format, width),   data bytes first, then its scale bytes.
// ring_rows = window + rows kept for roll-back, so an entry may be overwritten only when no query can see it any more.
struct RingView {
  uint8_t* base = nullptr;
  int64_t slot_stride = 0;
  int32_t ring_rows = 0;
  int32_t width = 0;
  KvFormat format = KvFormat::kF32;
};

// One plane (main entries or index keys of one KV source layer) of the paged Block KV. Entry g of a sequence lies in
// block block_table[seq][g / entries_per_block], slot e = g mod entries_per_block of it:
//   interleaved: base + block·block_stride + e·record_bytes                      (data, then scales)
//   split:       data at base + block·block_stride + e·data_bytes,
//                scales at base + block·block_stride + entries_per_block·data_bytes + e·scale_bytes   (index keys)
struct PageView {
  uint8_t* base = nullptr;  // already advanced to the plane inside block 0
  int64_t block_stride = 0;
  int32_t entries_per_block = 0;
  int32_t width = 0;
  KvFormat format = KvFormat::kF32;
  bool split_scales = false;
};

// Open groups of a compressor with ratio 2 (V4: 4 and 128): the fp32 (value, gate score) rows of the latest positions.
// Row of position p in slot s: base + s·slot_stride + (p mod ring_rows)·2·width floats, value first, then score.
struct CompressorStateView {
  float* base = nullptr;
  int64_t slot_stride = 0;  // in floats
  int32_t ring_rows = 0;
  int32_t width = 0;
};

// Which rows a step computes. All arrays have `n` elements unless noted; positions are 0-based absolute.
struct Rows {
  int32_t n = 0;
  const int32_t* positions = nullptr;
  const int32_t* sequence = nullptr;      // index into the per-sequence arrays below
  const int32_t* window_begin = nullptr;  // first position whose sliding-window entry the row sees
  const int32_t* window_end = nullptr;    // one past the last (position+1; a draft row sees its whole block)
  const uint8_t* is_image = nullptr;      // 1 = image token; null = none
  const int32_t* state_slot = nullptr;    // [sequences]; rows of a sequence are adjacent, positions consecutive
  const int32_t* block_table = nullptr;   // [sequences, block_table_stride], block ids
  int32_t block_table_stride = 0;
};

}  // namespace di::kernels
