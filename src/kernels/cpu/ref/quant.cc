#include "kernels/cpu/quant.h"

#include <array>
#include <vector>

#include "base/result.h"

namespace di::kernels::cpu {
namespace {

std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values{};
  for (uint32_t b = 0; b < 256; ++b) values[b] = to_float(E4m3{static_cast<uint8_t>(b)});
  return values;
}

// The value of each E4M3 byte.
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = make_e4m3_values();
  return values;
}

void load_e4m3(const uint8_t* data, const uint8_t* scale, int64_t n, int64_t group, float* x) {
  const std::array<float, 256>& values = e4m3_values();
  for (int64_t j = 0; j < n; j += group) {
    const float s = to_float(E8m0{scale[j / group]});
    const int64_t end = std::min(n, j + group);
    for (int64_t i = j; i < end; ++i) x[i] = values[data[i]] * s;
  }
}

void load_e2m1_group(const uint8_t* data, float s, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = e2m1_to_float(data[i / 2] >> (i % 2 == 0 ? 0 : 4)) * s;
}

}  // namespace

void requantise_activations(float* x, int64_t n, int64_t group) {
  const std::array<float, 256>& values = e4m3_values();
  for (int64_t j = 0; j < n; j += group) {
    const int64_t end = std::min(n, j + group);
    const int e = e4m3_scale_exponent(max_abs(x + j, end - j));
    const float scale = exp2_int(e);
    const float inverse = exp2_int(-e);
    for (int64_t i = j; i < end; ++i) x[i] = values[to_e4m3(x[i] * inverse).bits] * scale;
  }
}

void requantise_index_query(float* x, int64_t n) {
  for (int64_t j = 0; j < n; j += 32) {
    uint8_t data[16];
    for (int64_t i = j; i < j + 32; ++i) x[i] = round_bf16(x[i]);
    const uint8_t scale = quantise_e2m1_ue8m0_group32(x + j, data);
    load_e2m1_group(data, to_float(E8m0{scale}), 32, x + j);
  }
}

void store_record(KvFormat format, int64_t width, const float* x, uint8_t* data, uint8_t* scale) {
  if (format == KvFormat::kF32) {
    std::memcpy(data, x, static_cast<size_t>(width) * sizeof(float));
    return;
  }
  const int64_t group = format == KvFormat::kE2m1E4m3 ? 16 : 32;
  float rounded[32];
  for (int64_t j = 0; j < width; j += group) {
    for (int64_t i = 0; i < group; ++i) rounded[i] = round_bf16(x[j + i]);
    switch (format) {
      case KvFormat::kE4m3Ue8m0:
        scale[j / 32] = quantise_e4m3_group32(rounded, data + j);
        break;
      case KvFormat::kE2m1E4m3:
        scale[j / 16] = quantise_e2m1_e4m3_group16(rounded, data + j / 2);
        break;
      case KvFormat::kE2m1Ue8m0:
        scale[j / 32] = quantise_e2m1_ue8m0_group32(rounded, data + j / 2);
        break;
      case KvFormat::kF32:
        break;
    }
  }
}

void load_record(KvFormat format, int64_t width, const uint8_t* data, const uint8_t* scale, float* x) {
  switch (format) {
    case KvFormat::kF32:
      std::memcpy(x, data, static_cast<size_t>(width) * sizeof(float));
      break;
    case KvFormat::kE4m3Ue8m0:
      load_e4m3(data, scale, width, 32, x);
      break;
    case KvFormat::kE2m1E4m3:
      for (int64_t j = 0; j < width; j += 16) load_e2m1_group(data + j / 2, to_float(E4m3{scale[j / 16]}), 16, x + j);
      break;
    case KvFormat::kE2m1Ue8m0:
      for (int64_t j = 0; j < width; j += 32) load_e2m1_group(data + j / 2, to_float(E8m0{scale[j / 32]}), 32, x + j);
      break;
  }
}

void dequantise_row(const Weight& w, int64_t row, float* out) {
  DI_CHECK(row >= 0 && row < w.rows, "row {} of a weight of {} rows", row, w.rows);
  const int64_t n = w.cols;
  switch (w.format) {
    case WeightFormat::kF32:
      std::memcpy(out, static_cast<const float*>(w.data) + row * n, static_cast<size_t>(n) * 4);
      break;
    case WeightFormat::kBf16: {
      const Bf16* values = static_cast<const Bf16*>(w.data) + row * n;
      for (int64_t i = 0; i < n; ++i) out[i] = to_float(values[i]);
      break;
    }
    case WeightFormat::kFp8Block: {
      const int64_t scales = (n + w.block - 1) / w.block;
      load_e4m3(static_cast<const uint8_t*>(w.data) + row * n, w.scale + row / w.block * scales, n, w.block, out);
      break;
    }
    case WeightFormat::kFp8Row:
      load_e4m3(static_cast<const uint8_t*>(w.data) + row * n, w.scale + row * ((n + 31) / 32), n, 32, out);
      break;
    case WeightFormat::kFp4Row: {
      const uint8_t* data = static_cast<const uint8_t*>(w.data) + row * (n / 2);
      const uint8_t* scale = w.scale + row * ((n + 31) / 32);
      for (int64_t j = 0; j < n; j += 32) {
        load_e2m1_group(data + j / 2, to_float(E8m0{scale[j / 32]}), std::min<int64_t>(32, n - j), out + j);
      }
      break;
    }
  }
}

}  // namespace di::kernels::cpu
