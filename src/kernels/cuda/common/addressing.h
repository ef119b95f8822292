// Where records and scales lie (kernels/tensor.h), for host and device; the same places as kernels/cpu/quant.h.
// 64-bit throughout: a paged cache is larger than 4 GiB.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/formats.h"
#include "kernels/tensor.h"

namespace di::kernels::cuda {

struct RecordAt {
  uint8_t* data;
  uint8_t* scale;
};

DI_HD int64_t data_bytes_of(KvFormat f, int64_t width) {
  return f == KvFormat::kF32 ? width * 4 : f == KvFormat::kE4m3Ue8m0 ? width : width / 2;
}
DI_HD int64_t scale_bytes_of(KvFormat f, int64_t width) {
  return f == KvFormat::kF32 ? 0 : f == KvFormat::kE2m1E4m3 ? width / 16 : width / 32;
}
DI_HD int64_t record_bytes_of(KvFormat f, int64_t width) {
  return data_bytes_of(f, width) + scale_bytes_of(f, width);
}

DI_HD RecordAt ring_record(const RingView& ring, int64_t slot, int64_t position) {
  uint8_t* data =
      ring.base + slot * ring.slot_stride + position % ring.ring_rows * record_bytes_of(ring.format, ring.width);
  return {data, data + data_bytes_of(ring.format, ring.width)};
}

DI_HD RecordAt page_record(const PageView& pages, int64_t block, int64_t slot) {
  uint8_t* start = pages.base + block * pages.block_stride;
  const int64_t bytes = data_bytes_of(pages.format, pages.width);
  if (pages.split_scales) {
    return {start + slot * bytes,
            start + pages.entries_per_block * bytes + slot * scale_bytes_of(pages.format, pages.width)};
  }
  uint8_t* data = start + slot * record_bytes_of(pages.format, pages.width);
  return {data, data + bytes};
}

// Entry g of the sequence with index `sequence`.
DI_HD RecordAt page_entry(const PageView& pages, const Rows& rows, int64_t sequence, int64_t g) {
  const int64_t block = rows.block_table[sequence * rows.block_table_stride + g / pages.entries_per_block];
  return page_record(pages, block, g % pages.entries_per_block);
}

// The fresh record of position p of a sequence, or its ring record (FreshView).
DI_HD RecordAt window_record(const FreshView& fresh, const RingView& ring, const Rows& rows, int64_t sequence,
                             int64_t p) {
  if (fresh.records != nullptr && p >= fresh.position[sequence]) {
    const int64_t row = fresh.row[sequence] + p - fresh.position[sequence];
    auto* data = const_cast<uint8_t*>(fresh.records) + row * record_bytes_of(ring.format, ring.width);
    return {data, data + data_bytes_of(ring.format, ring.width)};
  }
  return ring_record(ring, rows.state_slot[sequence], p);
}

DI_HD float* state_row(const CompressorStateView& state, int64_t slot, int64_t position) {
  return state.base + slot * state.slot_stride + position % state.ring_rows * 2 * state.width;
}

// Channel c of a stored record as fp32.
DI_HD float record_value(KvFormat format, RecordAt at, int64_t c) {
  switch (format) {
    case KvFormat::kF32:
      return reinterpret_cast<const float*>(at.data)[c];
    case KvFormat::kE4m3Ue8m0:
      return e4m3_to_float(at.data[c]) * e8m0_to_float(at.scale[c / 32]);
    case KvFormat::kE2m1E4m3:
      return e2m1_to_float(at.data[c / 2] >> (c % 2 * 4)) * e4m3_to_float(at.scale[c / 16]);
    case KvFormat::kE2m1Ue8m0:
      return e2m1_to_float(at.data[c / 2] >> (c % 2 * 4)) * e8m0_to_float(at.scale[c / 32]);
  }
  return 0.F;
}

// Scale byte of column c of row r; only for formats that have scales.
DI_HD uint8_t weight_scale(const Weight& w, int64_t r, int64_t c) {
  if (w.format == WeightFormat::kFp8Block)
    return w.scale[r / w.block * ((w.cols + w.block - 1) / w.block) + c / w.block];
  return w.scale[r * ((w.cols + 31) / 32) + c / 32];
}

// Element [r, c] of a stored matrix; exact in every format.
DI_HD float weight_value(const Weight& w, int64_t r, int64_t c) {
  switch (w.format) {
    case WeightFormat::kF32:
      return static_cast<const float*>(w.data)[r * w.cols + c];
    case WeightFormat::kBf16:
      return bf16_to_float(static_cast<const uint16_t*>(w.data)[r * w.cols + c]);
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:
      return e4m3_to_float(static_cast<const uint8_t*>(w.data)[r * w.cols + c]) * e8m0_to_float(weight_scale(w, r, c));
    case WeightFormat::kFp4Row:
      return e2m1_to_float(static_cast<const uint8_t*>(w.data)[r * (w.cols / 2) + c / 2] >> (c % 2 * 4)) *
             e8m0_to_float(weight_scale(w, r, c));
  }
  return 0.F;
}

// Channels per activation scale before this weight, 0 = activations are used as they are (model.md §4.2).
DI_HD int activation_group(WeightFormat format, const Numerics& n) {
  if (!n.quantise_activations || format == WeightFormat::kF32 || format == WeightFormat::kBf16) return 0;
  return format == WeightFormat::kFp4Row ? 32 : n.activation_group;
}

DI_HD float load_value(const Tensor& t, int64_t row, int64_t column) {
  const int64_t at = row * t.stride + column;
  return t.dtype == DType::kF32 ? static_cast<const float*>(t.data)[at]
                                : bf16_to_float(static_cast<const uint16_t*>(t.data)[at]);
}

DI_HD void store_value(const Tensor& t, int64_t row, int64_t column, float v) {
  const int64_t at = row * t.stride + column;
  if (t.dtype == DType::kF32) {
    static_cast<float*>(t.data)[at] = v;
  } else {
    static_cast<uint16_t*>(t.data)[at] = float_to_bf16(v);
  }
}

// A row of a call stays in a ring of `ring_rows` when no later row of its sequence takes the same place.
DI_HD bool stays_in_ring(const Rows& rows, int64_t t, int64_t ring_rows) {
  return t + ring_rows >= rows.n || rows.sequence[t + ring_rows] != rows.sequence[t];
}

}  // namespace di::kernels::cuda
