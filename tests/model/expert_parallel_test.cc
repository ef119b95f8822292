// A group of ranks, each with its share of the experts and its own sequences, gives every sequence the bits that one
// rank with all experts gives it: prompts in pieces, decoding, ranks without rows, drafts, truncated prefill.
#include <gtest/gtest.h>

#include <climits>
#include <latch>
#include <thread>

#include "device/group.h"
#include "model/schedule.h"
#include "small_model.h"
#include "support/folders.h"

namespace di::model {
namespace {

constexpr int32_t kBlock = 16;
constexpr int32_t kBlocks = 8;  // of a sequence
constexpr auto kLong = std::chrono::minutes(10);

struct Setting {
  std::string folder;
  const kernels::Ops* ops = nullptr;
  NumericMode numerics = NumericMode::kTrained;
  int32_t ranks = 1;
  TruncationRule rule = TruncationRule::kVl;
};

// What one rank computes with: its own weights, stream and caches.
class Rank {
 public:
  Rank(const Setting& setting, device::Group* group, int32_t sequences)
      : setting_(setting), group_(group), device_(device::make_host_device()) {
    auto model = FixtureModel::load(setting.folder, test::token_texts, nullptr, group);
    EXPECT_TRUE(model) << model.error().message;
    model_ = std::move(*model);
    CacheOptions cache;
    cache.block_tokens = kBlock;
    cache.fp4_main = model_->config.use_fp4_sparse_kv;
    const auto layout = make_cache_layout(model_->config, model_->schedule, cache);
    EXPECT_TRUE(layout);
    cache_ = *KvCache::create(*device_, *layout, 1 + sequences * kBlocks, 1 + sequences);
    ForwardOptions options;
    options.numerics = setting.numerics;
    options.draft_context = true;
    options.group = group;
    forward_ = std::make_unique<Forward>(model_->config, model_->schedule, model_->weights, *setting.ops, *stream_,
                                         *device_, options);
    for (int32_t s = 0; s < sequences; ++s) {
      for (int32_t b = 0; b < kBlocks; ++b) tables_.emplace_back(1 + s * kBlocks + b);
    }
  }

  SequenceChunk chunk(const std::vector<int32_t>& tokens, int32_t sequence, int32_t begin, int32_t count) const {
    SequenceChunk out;
    out.tokens = tokens;
    out.begin = begin;
    out.count = count;
    out.state_slot = 1 + sequence;
    out.block_table = std::span(tables_).subspan(static_cast<size_t>(sequence) * kBlocks, kBlocks);
    return out;
  }

  std::vector<float> run(std::span<const SequenceChunk> chunks) {
    const EngramTables* engram = model_->engram ? &*model_->engram : nullptr;
    Batch batch;
    const auto built = build_batch(model_->config, model_->schedule, engram, setting_.rule, kBlock, chunks, batch);
    EXPECT_TRUE(built) << built.error().message;
    const ForwardResult result = forward_->run(batch, cache_);
    const std::optional<Error> error = group_ != nullptr ? group_->error() : std::nullopt;
    EXPECT_FALSE(error) << error->message;
    return to_floats(result.logits);
  }

  std::vector<float> draft(std::span<const DraftChunk> chunks) {
    return to_floats(forward_->draft(chunks, cache_).base_logits);
  }

  const ModelConfig& config() const { return model_->config; }
  const FixtureModel& model() const { return *model_; }
  Forward& forward() { return *forward_; }
  KvCache& cache() { return cache_; }

 private:
  const Setting& setting_;
  device::Group* group_;
  ThreadPool pool_{1};
  kernels::cpu::StreamPtr stream_ = kernels::cpu::make_stream(pool_);
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<FixtureModel> model_;
  KvCache cache_;
  std::unique_ptr<Forward> forward_;
  std::vector<int32_t> tables_;
};

std::vector<int32_t> text_of(int32_t n, int32_t vocab, uint32_t seed) {
  std::vector<int32_t> out;
  uint32_t x = seed * 2654435761U + 1;
  for (int32_t i = 0; i < n; ++i) {
    x = x * 1664525U + 1013904223U;
    out.push_back(static_cast<int32_t>((x >> 8) % static_cast<uint32_t>(std::min(vocab, 250))));
  }
  return out;
}

constexpr int32_t kSteps = 12;

// The rows of sequence s in step i: a prompt in pieces from its first step on, then one to three rows a step.
int32_t rows_in_step(int32_t s, int32_t step) {
  const int32_t own = step - s % 3;  // later sequences begin later: their ranks have nothing to do until then
  if (own < 0 || (s % 4 == 3 && own > 4)) return 0;
  return own < 2 ? 5 + (s * 5 + own * 3) % 9 : 1 + (s + own) % 3;
}

// Logits of every row, then of a draft round, of each sequence that `rank` has.
using Outputs = std::vector<std::vector<float>>;

Outputs run_sequences(Rank& rank, const std::vector<int32_t>& mine, int32_t all) {
  Outputs out(static_cast<size_t>(all));
  std::vector<std::vector<int32_t>> texts;
  for (int32_t s = 0; s < all; ++s) {
    texts.push_back(text_of(kBlock * kBlocks, rank.config().vocab_size, static_cast<uint32_t>(s + 1)));
  }
  std::vector<int32_t> done(static_cast<size_t>(all), 0);
  const auto vocab = static_cast<size_t>(rank.config().vocab_size);
  const auto keep = [&](const std::vector<float>& logits, size_t& row, int32_t s, size_t rows) {
    auto& to = out[static_cast<size_t>(s)];
    to.insert(to.end(), logits.begin() + static_cast<std::ptrdiff_t>(row * vocab),
              logits.begin() + static_cast<std::ptrdiff_t>((row + rows) * vocab));
    row += rows;
  };
  for (int32_t step = 0; step < kSteps; ++step) {
    std::vector<SequenceChunk> chunks;
    std::vector<int32_t> with_rows;
    for (const int32_t s : mine) {
      const int32_t n = rows_in_step(s, step);
      if (n == 0) continue;
      chunks.push_back(rank.chunk(texts[static_cast<size_t>(s)], s, done[static_cast<size_t>(s)], n));
      done[static_cast<size_t>(s)] += n;
      with_rows.push_back(s);
    }
    const std::vector<float> logits = rank.run(chunks);
    size_t row = 0;
    for (size_t i = 0; i < chunks.size(); ++i) keep(logits, row, with_rows[i], static_cast<size_t>(chunks[i].count));
    if (step % 3 != 2 || !rank.config().has_dspark()) continue;
    std::vector<DraftChunk> drafts;
    for (const int32_t s : with_rows) drafts.push_back({7 + s, done[static_cast<size_t>(s)] - 1, 1 + s, 0});
    const std::vector<float> base = rank.draft(drafts);
    row = 0;
    for (const int32_t s : with_rows) keep(base, row, s, static_cast<size_t>(rank.config().dspark_block_size));
  }
  return out;
}

// body(rank) in a thread of its own for each rank of a group.
template <class Body>
void on_ranks(const Setting& setting, int32_t sequences, const Body& body) {
  const auto groups = device::make_local_group(setting.ranks, kLong);
  std::vector<std::jthread> threads;
  for (const auto& group : groups) {
    threads.emplace_back([&, member = group.get()] {
      Rank rank(setting, member, sequences);
      body(rank, member->rank());
    });
  }
}

void expect_same_bits(const Setting& setting) {
  constexpr int32_t kSequences = 5;
  std::vector<int32_t> all(kSequences);
  for (int32_t s = 0; s < kSequences; ++s) all[static_cast<size_t>(s)] = s;
  Rank single(setting, nullptr, kSequences);
  const Outputs expected = run_sequences(single, all, kSequences);
  std::vector<Outputs> found(static_cast<size_t>(setting.ranks));
  on_ranks(setting, kSequences, [&](Rank& rank, int32_t r) {
    std::vector<int32_t> mine;
    for (const int32_t s : all) {
      if (s % std::min(setting.ranks, 3) == r) mine.push_back(s);  // of four ranks the last has none at all
    }
    found[static_cast<size_t>(r)] = run_sequences(rank, mine, kSequences);
  });
  for (int32_t s = 0; s < kSequences; ++s) {
    const auto& out = found[static_cast<size_t>(s % std::min(setting.ranks, 3))][static_cast<size_t>(s)];
    EXPECT_FALSE(out.empty());
    EXPECT_EQ(out, expected[static_cast<size_t>(s)]) << "sequence " << s << " of " << setting.ranks << " ranks";
  }
}

const std::string kSmall = std::string(di::test::kData) + "/model/v41_tiny_a";
const std::string kBundled = std::string(di::test::kModels) + "/tiny";

TEST(ExpertParallel, SmallModelGivesTheBitsOfOneRank) {
  const kernels::Ops& fast = kernels::cpu::ops(kernels::cpu::best_isa());
  expect_same_bits({kSmall, &fast, NumericMode::kTrained, 2});
  expect_same_bits({kSmall, &fast, NumericMode::kExact, 4});
  expect_same_bits({kSmall, &kernels::cpu::reference_ops(), NumericMode::kTrained, 3});
}

TEST(ExpertParallel, BundledModelGivesTheBitsOfOneRank) {
  const kernels::Ops& fast = kernels::cpu::ops(kernels::cpu::best_isa());
  expect_same_bits({kBundled, &fast, NumericMode::kExact, 2});
  expect_same_bits({kBundled, &fast, NumericMode::kTrained, 4});
}

// One rank's prompt ends in the encoder half while the other's goes on, and the other way round.
TEST(ExpertParallel, TruncatedPrefillGivesTheBitsOfOneRank) {
  for (const TruncationRule rule : {TruncationRule::kVl, TruncationRule::kDi}) {
    const Setting setting{kSmall, &kernels::cpu::ops(kernels::cpu::best_isa()), NumericMode::kTrained, 2, rule};
    const auto feed = [&](Rank& rank, int32_t s) {
      const std::vector<int32_t> text = text_of(48, rank.config().vocab_size, static_cast<uint32_t>(s + 5));
      std::vector<float> out;
      for (int32_t begin = 0; begin < 48; begin += 12) {
        SequenceChunk chunk = rank.chunk(text, s, begin, 12);
        chunk.keep_begin = s == 0 ? 30 : 14;
        const std::vector<float> logits = rank.run({&chunk, 1});
        out.insert(out.end(), logits.begin(), logits.end());
      }
      return out;
    };
    Rank single(setting, nullptr, 2);
    const std::vector<std::vector<float>> expected{feed(single, 0), feed(single, 1)};
    std::vector<std::vector<float>> found(2);
    on_ranks(setting, 2, [&](Rank& rank, int32_t r) { found[static_cast<size_t>(r)] = feed(rank, r); });
    EXPECT_EQ(found, expected);
  }
}

// More rows than are exchanged at a time, on one rank only.
TEST(ExpertParallel, LongPromptsGiveTheBitsOfOneRank) {
  const Setting setting{kSmall, &kernels::cpu::ops(kernels::cpu::best_isa()), NumericMode::kTrained, 2};
  constexpr int32_t kSequences = 12;
  const auto feed = [&](Rank& rank, int32_t first, int32_t step) {
    std::vector<std::vector<int32_t>> texts;
    std::vector<SequenceChunk> chunks;
    for (int32_t s = 0; s < kSequences; ++s) {
      texts.push_back(text_of(kBlock * kBlocks, rank.config().vocab_size, static_cast<uint32_t>(s + 9)));
    }
    for (int32_t s = first; s < kSequences; s += step) {
      chunks.push_back(rank.chunk(texts[static_cast<size_t>(s)], s, 0, kBlock * kBlocks));
      chunks.back().logits_begin = kBlock * kBlocks - 1;
    }
    return rank.run(chunks);
  };
  Rank single(setting, nullptr, kSequences);
  const std::vector<float> expected = feed(single, 0, 1);
  std::vector<float> found;
  std::vector<float> empty;
  on_ranks(setting, kSequences, [&](Rank& rank, int32_t r) {
    if (r == 0) {
      found = feed(rank, 0, 1);
    } else {
      empty = rank.run({});
    }
  });
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(empty.empty());
}

TEST(ExpertParallel, RanksHoldTheirShareOfTheExpertsOnly) {
  const auto groups = device::make_local_group(3, kLong);
  std::vector<int32_t> holders;
  for (const auto& group : groups) {
    const auto model = FixtureModel::load(kBundled, test::token_texts, nullptr, group.get());
    ASSERT_TRUE(model);
    const FfnWeights& f = (*model)->weights.layers[1].ffn;
    holders.resize(f.experts.size(), 0);
    for (size_t e = 0; e < f.experts.size(); ++e) {
      const bool here = f.owner[e] == group->rank();
      holders[e] += here ? 1 : 0;
      EXPECT_EQ(f.experts[e].w1.data != nullptr, here);
      EXPECT_EQ(f.experts[e].w2.scale != nullptr, here);
    }
    EXPECT_NE(f.shared_experts.w1.data, nullptr);
  }
  EXPECT_EQ(holders, std::vector<int32_t>(holders.size(), 1));
  for (const int32_t n : {1, 3, 8, 16, 384}) {
    for (const int32_t ranks : {1, 2, 3, 8}) {
      for (int32_t e = 0; e < n; ++e) {
        const int32_t r = expert_owner(e, n, ranks);
        EXPECT_TRUE(int64_t{r} * n / ranks <= e && e < int64_t{r + 1} * n / ranks) << e << " of " << n;
      }
    }
  }
}

// A rank that fails ends the step of all: nobody hangs, and everybody knows why.
TEST(ExpertParallel, ARankThatFailsEndsTheStepOfAll) {
  const Setting setting{kSmall, &kernels::cpu::ops(kernels::cpu::best_isa()), NumericMode::kTrained, 3};
  const auto groups = device::make_local_group(3, kLong);
  std::latch first_step(3);
  std::vector<std::jthread> threads;
  for (const auto& group : groups) {
    threads.emplace_back([&, member = group.get()] {
      Rank rank(setting, member, 1);
      const std::vector<int32_t> text = text_of(20, rank.config().vocab_size, 3);
      const SequenceChunk chunk = rank.chunk(text, 0, 0, 8);
      rank.run({&chunk, 1});
      first_step.arrive_and_wait();
      if (member->rank() == 1) {
        member->fail({Errc::kResourceExhausted, "rank 1: no memory for the step"});
        return;
      }
      const SequenceChunk next = rank.chunk(text, 0, 8, 8);
      Batch batch;
      ASSERT_TRUE(build_batch(rank.config(), rank.model().schedule, &*rank.model().engram, TruncationRule::kVl, kBlock,
                              {&next, 1}, batch));
      rank.forward().run(batch, rank.cache());
      ASSERT_TRUE(member->error());
      EXPECT_EQ(member->error()->message, "rank 1: no memory for the step");
    });
  }
}

}  // namespace
}  // namespace di::model
