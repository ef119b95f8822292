// The number formats of model.md §4, as plain 1- and 2-byte types with bit-exact conversions. Every backend stores the
// same bytes for the same bf16 input (design.md §4.6), so these functions are the definition.
//   bf16      1-8-7, round to nearest even
//   E4M3 (fn) 1-4-3, bias 7, largest 448, no infinities, 0x7F/0xFF = NaN
//   E8M0      2^(b-127), b = 255 is NaN (the ue8m0 scale)
//   E2M1      4 bit: sign, then {0, .5, 1, 1.5, 2, 3, 4, 6}; two per byte, even channel in the low nibble
// This header is plain C++20 without <expected> or fmt, so that .cu files may include it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace di {

struct Bf16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E8m0 {
  uint8_t bits;
};

inline float to_float(Bf16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}

inline Bf16 to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffU) > 0x7f800000U) return Bf16{static_cast<uint16_t>((u >> 16) | 0x40U)};  // quiet NaN
  return Bf16{static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}

inline float round_bf16(float v) {
  return to_float(to_bf16(v));
}

inline float to_float(E8m0 v) {
  if (v.bits == 255) return std::bit_cast<float>(0x7fc00000U);
  if (v.bits == 0) return std::bit_cast<float>(0x00400000U);  // 2^-127, a subnormal
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 23);
}

inline float to_float(E4m3 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x80U) << 24;
  const uint32_t exponent = (v.bits >> 3) & 0xfU;
  const uint32_t mantissa = v.bits & 7U;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120U) << 23) | (mantissa << 20));
}

// Round to nearest even with saturation to ±448; NaN stays NaN.
inline E4m3 to_e4m3(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80U);
  const uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return E4m3{static_cast<uint8_t>(sign | 0x7fU)};
  if (magnitude >= 0x43e80000U) return E4m3{static_cast<uint8_t>(sign | 0x7eU)};  // >= 464 rounds past 448: saturate
  if (magnitude < 0x3c800000U) {                                                  // below 2^-6: subnormal steps of 2^-9
    const float steps = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p9F);
    return E4m3{static_cast<uint8_t>(sign | static_cast<uint8_t>(steps))};
  }
  const uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
  const uint32_t code = (rounded >> 20) - (120U << 3);
  return E4m3{static_cast<uint8_t>(sign | (code > 0x7eU ? 0x7eU : code))};
}

inline constexpr float kE2m1Values[16] = {0.F,  .5F,  1.F,  1.5F,  2.F,  3.F,  4.F,  6.F,
                                          -0.F, -.5F, -1.F, -1.5F, -2.F, -3.F, -4.F, -6.F};

inline float e2m1_to_float(uint32_t nibble) {
  return kE2m1Values[nibble & 15U];
}

// Nearest value, ties to the even code, saturating at ±6, sign of zero kept (model.md §4.3).
inline uint8_t to_e2m1(float v) {
  const uint8_t sign = std::signbit(v) ? 8 : 0;
  const float a = std::fabs(v);
  uint8_t code = 0;
  if (a < 2.F) {
    code = static_cast<uint8_t>(std::nearbyint(2.F * a));  // 0, .5, 1, 1.5, 2 are codes 0..4
  } else if (a < 4.F) {
    code = static_cast<uint8_t>(std::nearbyint(a) + 2.F);  // 2, 3, 4 are codes 4..6
  } else if (a <= 5.F) {
    code = 6;  // the tie at 5 goes to the even code 6 (value 4)
  } else {     // NaN too: no infinities or NaN exist in E2M1
    code = 7;
  }
  return static_cast<uint8_t>(sign | code);
}

// ceil(log2(x)) of a positive normal fp32 value, on the bits.
inline int ceil_log2(float x) {
  return static_cast<int>((std::bit_cast<uint32_t>(x) - 1U) >> 23) + 1 - 127;
}

// 2^e for e in [-149, 127].
inline float exp2_int(int e) {
  if (e >= -126) return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
  return std::bit_cast<float>(1U << (e + 149));
}

}  // namespace di
