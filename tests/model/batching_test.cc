// Rows of several sequences in one call, roll-back of speculative rows, truncation and replay over chunks, and the
// limits: what else happens in a call never changes a sequence's bits.
#include <gtest/gtest.h>

#include <climits>

#include "small_model.h"

namespace di::model {
namespace {

using Batching = tests::SmallModel;

TEST_F(Batching, SequencesInOneCallDoNotSeeEachOther) {
  // Alone.
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<float>> alone;
  for (uint32_t s = 0; s < 5; ++s) {
    texts.push_back(tokens(7 + 13 * static_cast<int32_t>(s), s + 1));
    auto logits = new_run()->feed(texts.back(), 0, static_cast<int32_t>(texts.back().size()));
    ASSERT_TRUE(logits) << logits.error().message;
    alone.push_back(std::move(*logits));
  }
  // Together, in rounds of pieces whose sizes differ by sequence.
  CacheOptions cache_options;
  cache_options.block_tokens = 16;
  const auto layout = make_cache_layout(model_->config, model_->schedule, cache_options);
  ASSERT_TRUE(layout);
  auto cache = KvCache::create(*device_, *layout, 1 + 5 * 8, 6);
  ASSERT_TRUE(cache);
  ForwardOptions options;
  Forward forward(model_->config, model_->schedule, model_->weights, backend().ops, *stream_, *device_, options);
  std::vector<std::vector<int32_t>> tables(5);
  for (int32_t s = 0; s < 5; ++s) {
    for (int32_t b = 0; b < 8; ++b) tables[static_cast<size_t>(s)].push_back(1 + b * 5 + s);
  }
  std::vector<int32_t> done(5, 0);
  std::vector<std::vector<float>> together(5);
  const auto vocab = static_cast<size_t>(model_->config.vocab_size);
  for (int32_t round = 0;; ++round) {
    std::vector<SequenceChunk> chunks;
    std::vector<size_t> owners;
    for (size_t s = 0; s < 5; ++s) {
      const auto left = static_cast<int32_t>(texts[s].size()) - done[s];
      if (left == 0) continue;
      SequenceChunk chunk;
      chunk.tokens = texts[s];
      chunk.begin = done[s];
      chunk.count = std::min(left, 1 + (round * 3 + static_cast<int32_t>(s) * 5) % 11);
      chunk.state_slot = 1 + static_cast<int32_t>(s);
      chunk.block_table = tables[s];
      done[s] += chunk.count;
      chunks.push_back(chunk);
      owners.push_back(s);
    }
    if (chunks.empty()) break;
    Batch batch;
    const auto built =
        build_batch(model_->config, model_->schedule, &*model_->engram, TruncationRule::kVl, 16, chunks, batch);
    ASSERT_TRUE(built) << built.error().message;
    const std::vector<float> logits = to_floats(forward.run(batch, *cache).logits);
    size_t row = 0;
    for (size_t c = 0; c < chunks.size(); ++c) {
      const auto n = static_cast<size_t>(chunks[c].count);
      together[owners[c]].insert(together[owners[c]].end(), logits.begin() + static_cast<std::ptrdiff_t>(row * vocab),
                                 logits.begin() + static_cast<std::ptrdiff_t>((row + n) * vocab));
      row += n;
    }
  }
  for (size_t s = 0; s < 5; ++s) EXPECT_EQ(alone[s], together[s]) << "sequence " << s;
}

TEST_F(Batching, RolledBackRowsLeaveNoTrace) {
  const std::vector<int32_t> text = tokens(60, 3);
  const auto n = static_cast<int32_t>(text.size());
  const auto straight = new_run();
  const auto expected = straight->feed(text, 0, n);
  ASSERT_TRUE(expected);
  const auto run = new_run();
  std::vector<float> found;
  for (int32_t p = 0; p < n;) {
    // Rows of wrong proposals first, then the right ones from the same position on.
    const int32_t drafts = std::min(n - p, 1 + p % 6);
    std::vector<int32_t> wrong = text;
    for (int32_t i = p + 1; i < p + drafts; ++i)
      wrong[static_cast<size_t>(i)] = (wrong[static_cast<size_t>(i)] + 17) % 250;
    ASSERT_TRUE(run->feed(wrong, p, drafts));
    const int32_t accepted = std::min(n - p, 1 + p % 3);
    const auto logits = run->feed(text, p, accepted);
    ASSERT_TRUE(logits);
    found.insert(found.end(), logits->begin(), logits->end());
    p += accepted;
  }
  EXPECT_EQ(*expected, found);
  for (int32_t plane = 0; plane < 3; ++plane) {
    const int32_t entries = n / model_->schedule.kv_sources[static_cast<size_t>(plane)].ratio;
    EXPECT_EQ(straight->main_entries(plane, entries), run->main_entries(plane, entries));
    EXPECT_EQ(straight->index_keys(plane, entries), run->index_keys(plane, entries));
  }
}

TEST_F(Batching, TruncationDoesNotDependOnChunks) {
  const std::vector<int32_t> text = tokens(50, 4);
  for (const TruncationRule rule : {TruncationRule::kVl, TruncationRule::kDi}) {
    const auto keep = [](SequenceChunk& chunk) { chunk.keep_begin = 30; };
    const auto whole = new_run(rule)->feed(text, 0, 50, 49, nullptr, keep);
    ASSERT_TRUE(whole);
    for (const int32_t size : {1, 7, 16, 31}) {
      const auto run = new_run(rule);
      std::vector<float> last;
      for (int32_t begin = 0; begin < 50; begin += size) {
        const auto logits = run->feed(text, begin, std::min(size, 50 - begin), 49, nullptr, keep);
        ASSERT_TRUE(logits);
        last = *logits;
      }
      EXPECT_EQ(*whole, last) << "chunks of " << size;
    }
  }
}

TEST_F(Batching, LimitsAreErrorsThatNameThem) {
  const auto run = new_run();
  std::vector<int32_t> text = tokens(10, 5);
  text[4] = 256;
  auto refused = run->feed(text, 0, 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "token 256 at position 4 is outside the vocabulary of 256");
  text[4] = -1;
  refused = run->feed(text, 0, 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kInvalidRequest);
  text[4] = 7;
  EXPECT_TRUE(run->feed(text, 0, 10));

  model_->config.max_position_embeddings = 9;
  refused = run->feed(text, 0, 10);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("position 10, the model has 9"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace di::model
