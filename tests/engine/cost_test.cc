// What steps cost: the curve measured at start, how running steps under long contexts move it, and curves kept for
// later starts.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "engine/speculation_cases.h"
#include "engine/speculative/curve_cache.h"

namespace di::engine {
namespace {

namespace fs = std::filesystem;

// The toy on a device of virtual time: a step takes 1 ms, 10 us per row, and 0.1 us per row and position before it.
class TimedToy final : public Runner {
 public:
  TimedToy(const ToyOptions& options, ManualClock& clock) : toy_(options), clock_(clock) {}
  const RunnerInfo& info() const override { return toy_.info(); }
  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag> tags) override {
    int64_t ns = kNsPerMs;
    for (const model::SequenceChunk& c : chunks) ns += c.count * (10'000 + int64_t{100} * c.begin);
    clock_.advance(ns);
    return toy_.forward(chunks, tags);
  }
  Result<void> draft(std::span<const DraftStart> starts) override { return toy_.draft(starts); }
  Result<LogitsView> draft_step(int32_t k, std::span<const int32_t> previous, std::span<float> confidences) override {
    return toy_.draft_step(k, previous, confidences);
  }

 private:
  ToyRunner toy_;
  ManualClock& clock_;
};

SpeculationStats answer_after(int32_t prompt_tokens) {
  ToyOptions toy;
  toy.block_tokens = 128;
  toy.max_positions = 10'000;
  ManualClock clock;
  EngineOptions options;
  options.max_num_seqs = 4;
  options.speculation.pause_under_load = false;
  const auto engine = Engine::create(std::make_unique<TimedToy>(toy, clock), options, clock).value();
  GenerateRequest r = test::request(test::prompt(3, prompt_tokens), 300);
  r.ignore_eos = true;
  OutputCollector collector;
  EXPECT_TRUE(engine->submit(r, collector.sink()));
  EXPECT_EQ(collector.wait().tokens.size(), 300U);
  return engine->stats().speculation;
}

double mean_length(const SpeculationStats& stats) {
  double sum = 0;
  for (size_t i = 0; i < stats.verified_lengths.size(); ++i) {
    sum += static_cast<double>(i * stats.verified_lengths[i]);
  }
  return sum / static_cast<double>(stats.rounds);
}

// The curve is measured without context; under one of 8k tokens a row costs 0.8 ms more, which the slope finds, and
// fewer drafts pay.
TEST(RuntimeCost, LongContextsMoveTheCurveAndTheVerifyLength) {
  const SpeculationStats near = answer_after(16);
  EXPECT_LT(near.slope_ms_per_row, 0.04);
  EXPECT_GT(near.verified, 0U);
  const SpeculationStats far = answer_after(8192);
  EXPECT_GT(far.slope_ms_per_row, 0.75);
  EXPECT_LT(far.slope_ms_per_row, 0.9);
  EXPECT_GT(far.verified, 0U);
  EXPECT_LT(mean_length(far), mean_length(near) - 1);
}

class CurveFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("curves-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    for (const fs::directory_entry& e : fs::directory_iterator(folder_)) out.push_back(e.path());
    return out;
  }

  static constexpr int64_t kNow = 1'800'000'000;
  const std::vector<int32_t> sizes_ = {1, 2, 4};
  const CostCurve curve_ = CostCurve::create({{1, 1.25}, {2, 1.5}, {4, 2.0625}}).value();
  const std::string key_ = curve_key("weights on a machine", sizes_);
  fs::path folder_;
};

TEST_F(CurveFiles, AreReadForAnHour) {
  const CurveCache cache(folder_);
  EXPECT_FALSE(cache.read(key_, sizes_, kNow));
  ASSERT_TRUE(cache.write(key_, curve_, kNow));
  for (const int64_t later : {0L, 3600L}) {
    const auto found = cache.read(key_, sizes_, kNow + later);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->to_string(), curve_.to_string());
    EXPECT_DOUBLE_EQ(found->at(4)->ms, 2.0625);
  }
  EXPECT_FALSE(cache.read(key_, sizes_, kNow + 3601));
  EXPECT_FALSE(cache.read(key_, sizes_, kNow - 1));  // of the future
  // A newer one takes its place.
  const CostCurve newer = CostCurve::create({{1, 9}, {2, 9}, {4, 9}}).value();
  ASSERT_TRUE(cache.write(key_, newer, kNow + 3601));
  EXPECT_DOUBLE_EQ(cache.read(key_, sizes_, kNow + 3601)->at(1)->ms, 9);
}

TEST_F(CurveFiles, AreOfOneModelMachineAndSetOfSizes) {
  const CurveCache cache(folder_);
  ASSERT_TRUE(cache.write(key_, curve_, kNow));
  EXPECT_FALSE(cache.read(curve_key("other weights", sizes_), sizes_, kNow));
  EXPECT_NE(curve_key("weights on a machine", std::vector<int32_t>{1, 2}), key_);
  EXPECT_FALSE(cache.read(key_, std::vector<int32_t>{1, 2}, kNow));
  EXPECT_FALSE(cache.read(key_, std::vector<int32_t>{1, 2, 8}, kNow));
}

TEST_F(CurveFiles, AreCheckedAndRemoved) {
  const CurveCache cache(folder_);
  ASSERT_TRUE(cache.write(key_, curve_, kNow));
  const fs::path good = files().front();
  EXPECT_TRUE(good.filename().string().starts_with(key_ + "."));
  EXPECT_TRUE(good.filename().string().ends_with("." + std::to_string(kNow)));
  const std::string newer = key_ + "." + std::string(32, 'a') + "." + std::to_string(kNow + 5);
  for (const char* text : {"", "[[1,2]", "[[1,2],[2,3]]", "[[1,2],[2,0],[4,5]]", "[[1,2],[2,3],[8,5]]", "{}"}) {
    std::ofstream(folder_ / newer) << text;
    EXPECT_EQ(cache.read(key_, sizes_, kNow + 10)->to_string(), curve_.to_string()) << text;
  }
  std::ofstream(folder_ / "notes.txt") << "not of the cache";
  ASSERT_TRUE(cache.write(key_, curve_, kNow + 5 + CurveCache::kRemovedAfterSeconds + 1));
  EXPECT_FALSE(fs::exists(good));
  EXPECT_FALSE(fs::exists(folder_ / newer));
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
  EXPECT_EQ(files().size(), 2U);
}

TEST_F(CurveFiles, NameWhatCannotBeWritten) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "file") << "x";
  const Result<void> written = CurveCache(folder_ / "file").write(key_, curve_, kNow);
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().message.find((folder_ / "file").string()), std::string::npos);
}

}  // namespace
}  // namespace di::engine
