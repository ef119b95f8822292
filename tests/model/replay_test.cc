// A prefix hit computed three ways: cold, from the stored window, and by replay; and the two forms of truncated
// prefill.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <map>

#include "model/window.h"
#include "small_model.h"

namespace di::model {
namespace {

class Replay : public tests::SmallModel {
 protected:
  // Bytes of the blocks of positions [0, n): FixtureRun's table descends from its last block.
  static std::vector<std::byte> block_bytes(FixtureRun& run, int32_t n) {
    std::vector<std::byte> out;
    const KvCache& cache = run.cache();
    for (int32_t i = 0; i < n / kBlock; ++i) {
      const std::byte* from = cache.block(cache.n_blocks() - 1 - i);
      out.insert(out.end(), from, from + cache.layout().block_bytes);
    }
    return out;
  }

  WindowForm all(const FixtureRun& run) const {
    return {model_->config.sliding_window, const_cast<FixtureRun&>(run).cache().layout().n_rings};
  }
};

TEST_F(Replay, AHitWithItsWindowEqualsAColdRunBitForBit) {
  const int32_t n = 90;
  const std::vector<int32_t> text = tokens(n, 1);
  for (const int32_t hit : {16, 32, 64}) {
    // 0 … 6 rows computed beyond the boundary before the window is saved: it is still in the rings.
    for (const int32_t beyond : {0, 1, 6}) {
      const auto run = new_run();
      ASSERT_TRUE(run->feed(text, 0, hit + beyond));
      std::vector<std::byte> window(static_cast<size_t>(window_bytes(run->cache().layout(), all(*run))));
      save_window(run->cache(), all(*run), 1, hit, window);
      const auto cold = run->feed(text, hit + beyond, n - hit - beyond, 0);
      ASSERT_TRUE(cold);

      load_window(run->cache(), all(*run), 2, hit, window);
      const std::vector<std::byte> before = block_bytes(*run, hit);
      const auto warm = run->feed(text, hit, n - hit, hit + beyond, nullptr, [&](SequenceChunk& chunk) {
        chunk.state_slot = 2;
        chunk.block_write_begin = hit;
      });
      ASSERT_TRUE(warm);
      EXPECT_EQ(*cold, *warm) << "hit of " << hit << ", " << beyond << " rows beyond";
      EXPECT_EQ(before, block_bytes(*run, hit));
    }
  }
}

TEST_F(Replay, AMissComputesExactlyTheWindowAndChangesNoBlockByte) {
  const int32_t window = model_->config.sliding_window;
  const int32_t n = 90;
  const int32_t hit = 64;
  const std::vector<int32_t> text = tokens(n, 2);
  const auto run = new_run();
  ASSERT_TRUE(run->feed(text, 0, hit, INT_MAX));
  const auto cold = run->feed(text, hit, n - hit, 0);
  ASSERT_TRUE(cold);

  const std::vector<std::byte> before = block_bytes(*run, hit);
  std::map<int32_t, int64_t> rows;  // by layer
  const Tap tap = [&](std::string_view name, int32_t layer, const kernels::Tensor& value) {
    if (name == "attn_in") rows[layer] += value.rows;
  };
  // The replay in two chunks, then the new tokens: each sees the windows that the ones before left.
  const auto replay = [&](SequenceChunk& chunk) {
    chunk.state_slot = 2;
    chunk.window_start = hit - window;
    chunk.block_write_begin = hit;
  };
  ASSERT_TRUE(run->feed(text, hit - window, 3, INT_MAX, &tap, replay));
  ASSERT_TRUE(run->feed(text, hit - window + 3, window - 3, INT_MAX, &tap, replay));
  for (int32_t layer = 0; layer < model_->schedule.boundary; ++layer) EXPECT_EQ(rows[layer], window) << layer;
  EXPECT_EQ(before, block_bytes(*run, hit));
  const auto warm = run->feed(text, hit, n - hit, 0, nullptr, replay);
  ASSERT_TRUE(warm);
  EXPECT_EQ(before, block_bytes(*run, hit));

  // Approximate by design, and nearer to the cold run than starting with nothing in the windows would be. (Random
  // weights amplify every difference; the bound that matters is measured on the bundled model, docs/replay.md.)
  const auto distance = [&](const std::vector<float>& other) {
    double square = 0;
    double difference = 0;
    for (size_t i = 0; i < cold->size(); ++i) {
      square += double{(*cold)[i]} * (*cold)[i];
      difference += (double{other[i]} - (*cold)[i]) * (double{other[i]} - (*cold)[i]);
    }
    return std::sqrt(difference / square);
  };
  const auto bare = run->feed(text, hit, n - hit, 0, nullptr, [&](SequenceChunk& chunk) {
    chunk.state_slot = 2;
    chunk.window_start = hit;
  });
  ASSERT_TRUE(bare);
  EXPECT_GT(distance(*warm), 0);
  EXPECT_LT(distance(*warm), 0.75 * distance(*bare));

  // In one chunk it is the same.
  const auto whole = run->feed(text, hit - window, n - hit + window, hit, nullptr, replay);
  ASSERT_TRUE(whole);
  EXPECT_EQ(*warm, *whole);
}

TEST_F(Replay, MaskedAndCompactTruncationAgreeBitForBit) {
  const int32_t n = 90;
  const std::vector<int32_t> text = tokens(n, 3);
  for (const TruncationRule rule : {TruncationRule::kVl, TruncationRule::kDi}) {
    for (const int32_t keep : {16, 40}) {
      std::vector<float> answers[2];
      for (const bool masked : {false, true}) {
        const auto plan = [&](SequenceChunk& chunk) {
          chunk.keep_begin = 70 - keep;
          chunk.masked = masked;
        };
        const auto run = new_run(rule);
        // Prompt of 70 in chunks, then decoding: the clipped range stays clipped.
        std::vector<float>& out = answers[masked ? 1 : 0];
        for (const auto& [begin, count] : {std::pair{0, 33}, {33, 7}, {40, 30}}) {
          const auto logits = run->feed(text, begin, count, 69, nullptr, plan);
          ASSERT_TRUE(logits);
          out.insert(out.end(), logits->begin(), logits->end());
        }
        for (int32_t p = 70; p < n; ++p) {
          const auto logits = run->feed(text, p, 1, p, nullptr, plan);
          ASSERT_TRUE(logits);
          out.insert(out.end(), logits->begin(), logits->end());
        }
      }
      EXPECT_EQ(answers[0].size(), static_cast<size_t>((n - 69) * model_->config.vocab_size));
      EXPECT_EQ(answers[0], answers[1]) << "keep " << keep;
    }
  }
}

TEST_F(Replay, TruncationComputesTheKeptRowsOnlyAndAllOfTheBlockKv) {
  const int32_t n = 80;
  const int32_t keep = 20;
  const std::vector<int32_t> text = tokens(n, 4);
  const auto exact = new_run();
  ASSERT_TRUE(exact->feed(text, 0, n, n - 1));
  const auto run = new_run();
  std::map<int32_t, int64_t> rows;
  const Tap tap = [&](std::string_view name, int32_t layer, const kernels::Tensor& value) {
    if (name == "attn_in") rows[layer] += value.rows;
  };
  ASSERT_TRUE(run->feed(text, 0, n, n - 1, &tap, [&](SequenceChunk& chunk) { chunk.keep_begin = n - keep; }));
  for (int32_t layer = 0; layer < model_->config.num_hidden_layers; ++layer) {
    EXPECT_EQ(rows[layer], layer <= model_->schedule.boundary ? n : keep) << "layer " << layer;
  }
  EXPECT_EQ(block_bytes(*exact, n), block_bytes(*run, n));  // a function of the encoder half: unchanged
}

// engine.md §6.4: of t trimmed layers the last row's answer needs W + (t-1)·(W-1) rows, not one fewer.
TEST_F(Replay, TheLosslessRowsGiveTheAnswerOfAllRows) {
  const int32_t n = 80;
  const int32_t window = model_->config.sliding_window;
  const int32_t trimmed = model_->config.num_hidden_layers - model_->schedule.boundary - 1;
  ASSERT_GE(trimmed, 2);
  const int32_t keep = window + (trimmed - 1) * (window - 1);
  const std::vector<int32_t> text = tokens(n, 5);
  const auto last_row = [&](int32_t kept) {
    const auto logits =
        new_run()->feed(text, 0, n, n - 1, nullptr, [&](SequenceChunk& chunk) { chunk.keep_begin = n - kept; });
    EXPECT_TRUE(logits);
    return *logits;
  };
  const std::vector<float> all = last_row(n);
  EXPECT_EQ(last_row(keep), all);
  EXPECT_NE(last_row(keep - 1), all);
}

}  // namespace
}  // namespace di::model
