// Quantisation of KV entries, index queries and activations, and reading of stored records and weights (model.md
// §4.1–§4.3). These functions define the stored bytes; every CPU kernel uses them or is compared with them bit by bit.
// The quantisers take what they are given: rounding the input to bf16 first is up to the caller (store_record does it).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/numeric.h"
#include "kernels/tensor.h"

namespace di::kernels::cpu {

inline float max_abs(const float* x, int64_t n) {
  float amax = 0.F;
  for (int64_t i = 0; i < n; ++i) amax = std::max(amax, std::fabs(x[i]));
  return amax;
}

// e of the group's scale 2^e: ceil(log2(max(amax, 1e-4)/448)), division form (model.md §4.2).
inline int e4m3_scale_exponent(float amax) {
  return ceil_log2(std::max(amax, 1e-4F) / 448.F);
}

// E4M3 with one ue8m0 scale for n channels (32 in KV entries). Returns the scale byte.
inline uint8_t quantise_e4m3_group(const float* x, int64_t n, uint8_t* data) {
  const int e = e4m3_scale_exponent(max_abs(x, n));
  const float inverse = exp2_int(-e);
  for (int64_t i = 0; i < n; ++i) data[i] = to_e4m3(x[i] * inverse).bits;  // to_e4m3 saturates at ±448
  return static_cast<uint8_t>(e + 127);
}

inline uint8_t quantise_e4m3_group32(const float* x, uint8_t* data) {
  return quantise_e4m3_group(x, 32, data);
}

// E2M1 with one E4M3 scale for 16 channels, no second-level scale. Returns the scale byte.
inline uint8_t quantise_e2m1_e4m3_group16(const float* x, uint8_t* data) {
  const E4m3 scale = to_e4m3(std::max(max_abs(x, 16), 6.F * 0x1p-9F) / 6.F);
  const float s = to_float(scale);
  for (int i = 0; i < 8; ++i) {
    data[i] = static_cast<uint8_t>(to_e2m1(x[2 * i] / s) | (to_e2m1(x[2 * i + 1] / s) << 4));
  }
  return scale.bits;
}

// E2M1 with one ue8m0 scale for 32 channels. Returns the scale byte.
inline uint8_t quantise_e2m1_ue8m0_group32(const float* x, uint8_t* data) {
  const int e = ceil_log2(std::max(max_abs(x, 32), 6.F * 0x1p-126F) / 6.F);
  const float inverse = exp2_int(-e);
  for (int i = 0; i < 16; ++i) {
    data[i] = static_cast<uint8_t>(to_e2m1(x[2 * i] * inverse) | (to_e2m1(x[2 * i + 1] * inverse) << 4));
  }
  return static_cast<uint8_t>(e + 127);
}

// x ← what the GEMM sees of x: E4M3 with one power-of-two scale per `group` channels, read back (model.md §4.2). The
// last group may be short.
void requantise_activations(float* x, int64_t n, int64_t group);

// x ← E2M1/ue8m0 per 32 channels of bf16(x), read back (index queries). n is a multiple of 32.
void requantise_index_query(float* x, int64_t n);

// One cache entry. Quantised formats read x rounded to bf16; kF32 keeps it as it is.
void store_record(KvFormat format, int64_t width, const float* x, uint8_t* data, uint8_t* scale);
void load_record(KvFormat format, int64_t width, const uint8_t* data, const uint8_t* scale, float* x);

// Where the parts of a record lie (tensor.h, RingView and PageView).
struct RecordAt {
  uint8_t* data;
  uint8_t* scale;
};

inline RecordAt ring_record(const RingView& ring, int64_t slot, int64_t position) {
  uint8_t* data =
      ring.base + slot * ring.slot_stride + position % ring.ring_rows * record_bytes(ring.format, ring.width);
  return {data, data + data_bytes(ring.format, ring.width)};
}

inline RecordAt page_record(const PageView& pages, int64_t block, int64_t slot) {
  uint8_t* start = pages.base + block * pages.block_stride;
  const int64_t bytes = data_bytes(pages.format, pages.width);
  if (pages.split_scales) {
    return {start + slot * bytes,
            start + pages.entries_per_block * bytes + slot * scale_bytes(pages.format, pages.width)};
  }
  uint8_t* data = start + slot * record_bytes(pages.format, pages.width);
  return {data, data + bytes};
}

// Entry g of the sequence with index `sequence`.
inline RecordAt page_entry(const PageView& pages, const Rows& rows, int64_t sequence, int64_t g) {
  const int64_t block = rows.block_table[sequence * rows.block_table_stride + g / pages.entries_per_block];
  return page_record(pages, block, g % pages.entries_per_block);
}

// Columns [0, cols) of row `row` of a stored matrix as fp32; exact in every format.
void dequantise_row(const Weight& w, int64_t row, float* out);

}  // namespace di::kernels::cpu
