// After any pattern of refused drafts, everything that later steps can read is what a run without speculation leaves:
// rings of all layers and of the draft layers over the window, Block KV, open compressor groups, Engram's rows
// (speculative.md §6). Bytes are compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "model/fixture.h"
#include "support/folders.h"
#include "support/token_texts.h"

namespace di::model {
namespace {

constexpr int32_t kTokens = 120;
constexpr int32_t kSlot = 1;

class Rollback : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = FixtureModel::load(std::string(di::test::kModels) + "/tiny", test::token_texts).value().release();
  }
  static void TearDownTestSuite() { delete model_; }

  std::unique_ptr<FixtureRun> start() {
    FixtureOptions options;
    options.kv_quant = true;
    options.draft_context = true;
    options.max_tokens = kTokens + 8;
    return FixtureRun::create(*model_, {kernels::cpu::ops(kernels::cpu::best_isa()), *stream_, *device_}, options)
        .value();
  }

  // What the rows after position `last` may read of the caches.
  std::vector<std::string> live(FixtureRun& run, int32_t last) const {
    std::vector<std::string> out;
    const KvCache& cache = run.cache();
    const auto bytes = [&](const void* data, int64_t n) {
      out.emplace_back(static_cast<const char*>(data), static_cast<size_t>(n));
    };
    for (int32_t r = 0; r < cache.layout().n_rings; ++r) {
      const kernels::RingView ring = cache.ring(r);
      const int64_t record = kernels::record_bytes(ring.format, ring.width);
      for (int32_t p = std::max(0, last + 2 - model_->config.sliding_window); p <= last; ++p) {
        bytes(ring.base + kSlot * ring.slot_stride + p % ring.ring_rows * record, record);
      }
    }
    for (size_t i = 0; i < cache.layout().planes.size(); ++i) {
      const CacheLayout::Plane& plane = cache.layout().planes[i];
      const int32_t n = (last + 1) / plane.ratio;
      const std::vector<float> main = run.main_entries(static_cast<int32_t>(i), n);
      bytes(main.data(), static_cast<int64_t>(main.size()) * 4);
      if (plane.index_offset >= 0) {
        const std::vector<float> keys = run.index_keys(static_cast<int32_t>(i), n);
        bytes(keys.data(), static_cast<int64_t>(keys.size()) * 4);
      }
      if (cache.layout().state_offset[i] < 0) continue;
      const kernels::CompressorStateView state = cache.state(static_cast<int32_t>(i));
      for (int32_t p = n * plane.ratio; p <= last; ++p) {
        bytes(state.base + kSlot * state.slot_stride + int64_t{p % state.ring_rows} * 2 * state.width,
              int64_t{state.width} * 8);
      }
    }
    return out;
  }

  static const FixtureModel* model_;
  ThreadPool pool_{2};
  kernels::cpu::StreamPtr stream_ = kernels::cpu::make_stream(pool_);
  std::unique_ptr<device::Device> device_ = device::make_host_device();
};
const FixtureModel* Rollback::model_ = nullptr;

TEST_F(Rollback, LeavesNoTrace) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    std::mt19937 random(seed);
    const auto token = [&] { return 3 + static_cast<int32_t>(random() % 4000); };
    std::vector<int32_t> text;
    for (int32_t i = 0; i < kTokens; ++i) text.push_back(token());

    const auto plain = start();
    const auto speculative = start();
    const int32_t prompt = 60 + static_cast<int32_t>(random() % 20);
    ASSERT_TRUE(plain->feed(text, 0, prompt, INT32_MAX));
    ASSERT_TRUE(speculative->feed(text, 0, prompt, INT32_MAX));
    int32_t done = prompt;
    int32_t refused = 0;
    while (done + 6 < kTokens) {
      // The anchor and up to five drafts, of which the first `accepted` are the text.
      const auto drafts = static_cast<int32_t>(random() % 6);
      const int32_t accepted = drafts == 0 ? 0 : static_cast<int32_t>(random()) % (drafts + 1);
      const int32_t kept = std::clamp(accepted, 0, drafts);
      std::vector<int32_t> fed(text.begin(), text.begin() + done + 1 + kept);
      for (int32_t k = kept; k < drafts; ++k) fed.push_back(token());
      refused += drafts - kept;
      const auto verified = speculative->feed(fed, done, 1 + drafts, done);
      ASSERT_TRUE(verified) << verified.error().message;
      std::vector<std::vector<int64_t>> engram = speculative->batch().engram_rows;
      std::vector<float> logits;
      for (int32_t p = done; p <= done + kept; ++p) {
        const auto row = plain->feed(text, p, 1, p);
        ASSERT_TRUE(row);
        logits.insert(logits.end(), row->begin(), row->end());
        // The look-back of the row is that of the text, whatever was drafted before.
        const auto& alone = plain->batch().engram_rows;
        for (size_t layer = 0; layer < alone.size(); ++layer) {
          const size_t columns = alone[layer].size();
          const auto from = engram[layer].begin() + static_cast<std::ptrdiff_t>(columns) * (p - done);
          EXPECT_TRUE(std::equal(alone[layer].begin(), alone[layer].end(), from));
        }
      }
      EXPECT_EQ(std::memcmp(logits.data(), verified->data(), logits.size() * 4), 0) << "logits after position " << done;
      done += 1 + kept;
      ASSERT_EQ(live(*speculative, done - 1), live(*plain, done - 1))
          << "after position " << done - 1 << ", seed " << seed;
    }
    EXPECT_GT(refused, 5);
  }
}

}  // namespace
}  // namespace di::model
