#include "base/numeric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace di {
namespace {

TEST(E4m3, EveryCodeRoundTrips) {
  for (int code = 0; code < 256; ++code) {
    const E4m3 v{static_cast<uint8_t>(code)};
    const float f = to_float(v);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(f));
      continue;
    }
    EXPECT_EQ(to_e4m3(f).bits, code) << f;
  }
}

// Independent definition: the nearest of the 253 finite values, the even code on a tie.
uint8_t nearest_e4m3(float x) {
  double best = std::numeric_limits<double>::infinity();
  int code = 0;
  for (int c = 0; c < 0x7f; ++c) {
    const double d =
        std::fabs(std::fabs(static_cast<double>(x)) - static_cast<double>(to_float(E4m3{static_cast<uint8_t>(c)})));
    if (d < best || (d == best && c % 2 == 0)) {
      best = d;
      code = c;
    }
  }
  return static_cast<uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

TEST(E4m3, RoundsToNearestEvenAndSaturates) {
  for (int i = -70000; i <= 70000; ++i) {
    const float x = static_cast<float>(i) * 0x1p-7F + (i % 3 == 0 ? 0x1p-12F : 0.F);
    ASSERT_EQ(to_e4m3(x).bits, nearest_e4m3(x)) << x;
    const float small = static_cast<float>(i) * 0x1p-22F;
    ASSERT_EQ(to_e4m3(small).bits, nearest_e4m3(small)) << small;
  }
  EXPECT_EQ(to_e4m3(1e30F).bits, 0x7e);
  EXPECT_EQ(to_e4m3(-1e30F).bits, 0xfe);
}

TEST(E2m1, TiesGoToTheEvenCode) {
  const float ties[] = {.25F, .75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.F};
  const float expected[] = {0.F, 1.F, 1.F, 2.F, 2.F, 4.F, 4.F};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(e2m1_to_float(to_e2m1(ties[i])), expected[i]) << ties[i];
    EXPECT_EQ(e2m1_to_float(to_e2m1(-ties[i])), -expected[i]) << ties[i];
  }
  EXPECT_EQ(to_e2m1(-0.F), 8);
  EXPECT_EQ(to_e2m1(100.F), 7);
  EXPECT_EQ(to_e2m1(5.0001F), 7);
  EXPECT_EQ(to_e2m1(4.9999F), 6);
}

TEST(E8m0, IsAPowerOfTwo) {
  for (int b = 0; b < 255; ++b) EXPECT_EQ(to_float(E8m0{static_cast<uint8_t>(b)}), std::ldexp(1.F, b - 127)) << b;
  EXPECT_TRUE(std::isnan(to_float(E8m0{255})));
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.00390625F).bits, 0x3f80);  // exactly half: even
  EXPECT_EQ(to_bf16(1.01171875F).bits, 0x3f82);  // exactly half: even, upwards
  EXPECT_EQ(to_bf16(1.00391F).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16(3.4e38F))));
}

TEST(CeilLog2, ExactPowersStay) {
  for (int e = -100; e < 100; ++e) {
    EXPECT_EQ(ceil_log2(std::ldexp(1.F, e)), e);
    EXPECT_EQ(ceil_log2(std::nextafter(std::ldexp(1.F, e), 1e38F)), e + 1);
  }
}

}  // namespace
}  // namespace di
