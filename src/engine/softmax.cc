#include "engine/softmax.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace di::engine {
namespace {

using Floats = float __attribute__((vector_size(32)));
using FloatMask = int32_t __attribute__((vector_size(32)));
using FourFloats = float __attribute__((vector_size(16)));
using Doubles = double __attribute__((vector_size(32)));
using Bits = uint64_t __attribute__((vector_size(32)));
constexpr size_t kFloats = 8;
constexpr size_t kDoubles = 4;

Doubles all(double v) {
  return Doubles{v, v, v, v};
}

// exp(x) for x <= 0, also -infinity.
Doubles exp_nonpositive(Doubles x) {
  const Doubles log2_e = all(1.4426950408889634);
  const Doubles ln2_high = all(0x1.62e42fee00000p-1);  // 33 bits: its product with a small integer is exact
  const Doubles ln2_low = all(0x1.a39ef35793c76p-33);
  const Doubles round = all(0x1.8p52);  // adding it leaves the nearest integer in the low bits
  const Doubles shifted = x * log2_e + round;
  const Doubles k = shifted - round;
  const Doubles r = (x - k * ln2_high) - k * ln2_low;  // |r| <= ln(2)/2
  // Taylor's series in r; the first term left out is below 2^-57.
  Doubles p = all(1.0 / 6227020800.0);
  for (const double factor : {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
                              1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0}) {
    p = p * r + all(factor);
  }
  const Bits scaled = std::bit_cast<Bits>(p) + (std::bit_cast<Bits>(shifted) << 52);
  return x < all(-708.0) ? Doubles{} : std::bit_cast<Doubles>(scaled);
}

}  // namespace

float largest_of(std::span<const float> values, bool& has_nan) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Floats best = Floats{} + kNone;
  FloatMask nan{};
  size_t i = 0;
  for (; i + kFloats <= values.size(); i += kFloats) {
    Floats v;
    std::memcpy(&v, values.data() + i, sizeof v);
    best = v > best ? v : best;
    nan |= v != v;
  }
  float largest = kNone;
  has_nan = false;
  for (size_t j = 0; j < kFloats; ++j) {
    largest = best[j] > largest ? best[j] : largest;
    has_nan = has_nan || nan[j] != 0;
  }
  for (; i < values.size(); ++i) {
    largest = values[i] > largest ? values[i] : largest;
    has_nan = has_nan || values[i] != values[i];
  }
  return largest;
}

double softmax_weights(std::span<const float> logits, float largest, std::span<double> weights) {
  Doubles sums{};
  size_t i = 0;
  for (; i + kDoubles <= logits.size(); i += kDoubles) {
    FourFloats v;
    std::memcpy(&v, logits.data() + i, sizeof v);
    const Doubles w = exp_nonpositive(__builtin_convertvector(v - largest, Doubles));
    std::memcpy(weights.data() + i, &w, sizeof w);
    sums += w;
  }
  double total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (; i < logits.size(); ++i) {
    weights[i] = exp_nonpositive(all(static_cast<double>(logits[i] - largest)))[0];
    total += weights[i];
  }
  return total;
}

}  // namespace di::engine
