// The number formats of model.md §4 as functions of host and device: the same bits as base/numeric.h and
// kernels/cpu/quant.h give (tests/kernels/cuda_formats_test.cc compares all inputs), written with few instructions for
// a GPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define DI_HD __host__ __device__ __forceinline__
#else
#define DI_HD inline
#endif

namespace di::kernels::cuda {

DI_HD uint32_t float_bits(float v) {
  return std::bit_cast<uint32_t>(v);
}
DI_HD float bits_float(uint32_t u) {
  return std::bit_cast<float>(u);
}

DI_HD float bf16_to_float(uint16_t v) {
  return bits_float(static_cast<uint32_t>(v) << 16);
}

// Round to nearest even; NaN becomes quiet.
DI_HD uint16_t float_to_bf16(float v) {
  const uint32_t u = float_bits(v);
  if ((u & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((u >> 16) | 0x40U);
  return static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}

DI_HD float round_bf16(float v) {
  return bf16_to_float(float_to_bf16(v));
}

// Two values as the halves of a 32-bit register: low half first, as the matrix instructions take them.
DI_HD uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(float_to_bf16(low)) | static_cast<uint32_t>(float_to_bf16(high)) << 16;
}
// The same for values that bf16 holds exactly.
DI_HD uint32_t pack_exact_bf16(float low, float high) {
  return float_bits(low) >> 16 | (float_bits(high) & 0xffff0000U);
}

DI_HD float e8m0_to_float(uint8_t b) {
  if (b == 255) return bits_float(0x7fc00000U);
  if (b == 0) return bits_float(0x00400000U);
  return bits_float(static_cast<uint32_t>(b) << 23);
}

// The code's exponent and mantissa at the low end of fp32's exponent field: 2^-120 times the value, subnormals too.
DI_HD float e4m3_to_float(uint8_t b) {
  const uint32_t sign = static_cast<uint32_t>(b & 0x80U) << 24;
  if ((b & 0x7fU) == 0x7fU) return bits_float(sign | 0x7fc00000U);
  return bits_float(sign | static_cast<uint32_t>(b & 0x7fU) << 20) * 0x1p120F;
}

// Round to nearest even with saturation to ±448; NaN stays NaN.
DI_HD uint8_t float_to_e4m3(float v) {
  const uint32_t u = float_bits(v);
  const uint32_t sign = (u >> 24) & 0x80U;
  const uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint8_t>(sign | 0x7fU);
  if (magnitude >= 0x43e80000U) return static_cast<uint8_t>(sign | 0x7eU);
  if (magnitude < 0x3c800000U) {  // below 2^-6: steps of 2^-9
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(rintf(bits_float(magnitude) * 0x1p9F)));
  }
  const uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
  const uint32_t code = (rounded >> 20) - (120U << 3);
  return static_cast<uint8_t>(sign | (code > 0x7eU ? 0x7eU : code));
}

// As e4m3_to_float: two exponent bits and one of mantissa give 2^-126 times the value.
DI_HD float e2m1_to_float(uint32_t nibble) {
  return bits_float((nibble & 8U) << 28 | float_bits(bits_float((nibble & 7U) << 22) * 0x1p126F));
}

// Nearest value, ties to the even code, saturating at ±6, sign of zero kept; NaN gives 6.
DI_HD uint8_t float_to_e2m1(float v) {
  const uint32_t sign = (float_bits(v) >> 28) & 8U;
  const float a = fabsf(v);
  uint32_t code = 7;
  if (a < 2.F) {
    code = static_cast<uint32_t>(rintf(2.F * a));
  } else if (a < 4.F) {
    code = static_cast<uint32_t>(rintf(a)) + 2U;
  } else if (a <= 5.F) {
    code = 6;
  }
  return static_cast<uint8_t>(sign | code);
}

// ceil(log2(x)) of a positive normal value.
DI_HD int ceil_log2(float x) {
  return static_cast<int>((float_bits(x) - 1U) >> 23) + 1 - 127;
}

// 2^e, e in [-149, 127].
DI_HD float exp2_int(int e) {
  return e >= -126 ? bits_float(static_cast<uint32_t>(e + 127) << 23) : bits_float(1U << (e + 149));
}

// Exponents and scales of the quantisers (model.md §4.2, §4.3) for a group's largest magnitude.
DI_HD int e4m3_group_exponent(float amax) {
  return ceil_log2(fmaxf(amax, 1e-4F) / 448.F);
}
DI_HD int e2m1_group_exponent(float amax) {
  return ceil_log2(fmaxf(amax, 6.F * 0x1p-126F) / 6.F);
}
DI_HD uint8_t e2m1_group_e4m3_scale(float amax) {
  return float_to_e4m3(fmaxf(amax, 6.F * 0x1p-9F) / 6.F);
}

// x as the GEMM sees it: E4M3 under the group's scale 2^e, read back.
DI_HD float requantise_e4m3(float x, int e) {
  return e4m3_to_float(float_to_e4m3(x * exp2_int(-e))) * exp2_int(e);
}
DI_HD float requantise_e2m1(float x, int e) {
  return e2m1_to_float(float_to_e2m1(x * exp2_int(-e))) * exp2_int(e);
}

// Order of scores as unsigned integers: a > b as floats gives key(a) > key(b); equal values (±0) equal keys; NaN is
// below everything. Keys of scores are >= 1: 0 marks an entry that does not compete.
DI_HD uint32_t score_key(float v) {
  if (v != v) return 1U;
  const uint32_t u = float_bits(v == 0.F ? 0.F : v);
  return (u & 0x80000000U) != 0 ? ~u : u | 0x80000000U;
}

}  // namespace di::kernels::cuda
