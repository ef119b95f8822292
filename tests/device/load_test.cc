#include "device/load.h"

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <random>
#include <vector>

namespace di::device {
namespace {

// Its memory is reached by `load` alone; the last bytes can be out of order.
class LoadedDevice final : public Device {
 public:
  Kind kind() const override { return Kind::kCuda; }
  Result<std::byte*> allocate(size_t) override { return fail(Errc::kInternal, "not used"); }
  void release(std::byte*, size_t) override {}
  Result<void> load(std::byte* to, const std::byte* from, size_t bytes) override {
    if (to <= broken && broken < to + bytes) return fail(Errc::kInternal, "a broken byte");
    std::memcpy(to, from, bytes);
    return {};
  }
  const std::byte* broken = nullptr;
};

// Ranges of many sizes with gaps between them, as an arena has them.
struct Case {
  std::vector<std::byte> source;
  std::vector<std::byte> expected;
  std::vector<std::byte> memory;
  std::vector<LoadRange> ranges;
  int64_t total = 0;
};

Case make_case() {
  Case c;
  std::mt19937 random(7);
  std::vector<size_t> sizes = {1, 255, 256, 0, 4096, 4097, 100'000, 3, 1 << 20, 17};
  for (int i = 0; i < 300; ++i) sizes.push_back(random() % 700);
  size_t from = 0;
  size_t to = 0;
  for (const size_t n : sizes) {
    from += n;
    to += (n + 255) / 256 * 256;
  }
  c.source.resize(from);
  for (std::byte& b : c.source) b = static_cast<std::byte>(random());
  c.memory.assign(to, std::byte{0xee});
  c.expected = c.memory;
  from = to = 0;
  for (const size_t n : sizes) {
    c.ranges.push_back({c.memory.data() + to, c.source.data() + from, n});
    if (n > 0) std::memcpy(c.expected.data() + to, c.source.data() + from, n);
    from += n;
    to += (n + 255) / 256 * 256;
    c.total += static_cast<int64_t>(n);
  }
  return c;
}

TEST(LoadRanges, GivesTheSameBytesWithAnyThreadsAndPieces) {
  for (const int32_t threads : {0, 1, 2, 3, 7, 16}) {
    for (const size_t piece : {size_t{64}, size_t{1000}, size_t{4096}, size_t{4} << 20}) {
      Case c = make_case();
      LoadedDevice device;
      std::vector<int64_t> steps;
      LoadOptions options;
      options.threads = threads;
      options.piece_bytes = piece;
      options.progress = [&](int64_t done) { steps.push_back(done); };
      const Result<void> loaded = load_ranges(device, c.ranges, options);
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_TRUE(c.memory == c.expected) << threads << " threads, pieces of " << piece;
      EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
      ASSERT_FALSE(steps.empty());
      EXPECT_EQ(steps.back(), c.total);
    }
  }
}

TEST(LoadRanges, ReadsAsItIsTold) {
  Case c = make_case();
  LoadedDevice device;
  LoadOptions options;
  options.threads = 3;
  options.piece_bytes = 512;
  options.read = [](std::byte* to, const std::byte* from, size_t bytes) -> Result<void> {
    for (size_t i = 0; i < bytes; ++i) to[i] = from[i] ^ std::byte{1};
    return {};
  };
  ASSERT_TRUE(load_ranges(device, c.ranges, options));
  for (const LoadRange& range : c.ranges) {
    for (size_t i = 0; i < range.bytes; ++i) ASSERT_EQ(range.to[i], range.from[i] ^ std::byte{1});
  }
}

TEST(LoadRanges, EndsWithTheFirstError) {
  for (const int32_t threads : {1, 4}) {
    Case c = make_case();
    LoadedDevice device;
    device.broken = c.ranges[8].to + 5000;
    LoadOptions options;
    options.threads = threads;
    options.piece_bytes = 4096;
    Result<void> loaded = load_ranges(device, c.ranges, options);
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().message, "a broken byte");
    device.broken = nullptr;
    options.read = [&](std::byte*, const std::byte* from, size_t) -> Result<void> {
      if (from > c.ranges[8].from) return fail(Errc::kUnavailable, "a lost disk");
      return {};
    };
    loaded = load_ranges(device, c.ranges, options);
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, Errc::kUnavailable);
  }
}

TEST(LoadRanges, OfNothingIsNothing) {
  LoadedDevice device;
  EXPECT_TRUE(load_ranges(device, {}));
}

}  // namespace
}  // namespace di::device
