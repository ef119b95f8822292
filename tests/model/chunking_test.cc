// A prompt in one piece, in pieces of every size, cut at every position, and token by token: the same bits after every
// layer. The operators promise that a row's result depends on that row's inputs only, so nothing less than equality is
// right.
#include <gtest/gtest.h>

#include <climits>
#include <map>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "model/expected.h"
#include "model/fixture.h"
#include "support/folders.h"
#include "support/token_texts.h"

namespace di::model {
namespace {

struct Mode {
  const char* name;
  bool kv_quant;
  NumericMode numerics;
  bool fast;
};

void PrintTo(const Mode& mode, std::ostream* out) {
  *out << mode.name;
}

class Chunking : public testing::TestWithParam<Mode> {
 protected:
  static constexpr int32_t kPrompt = 35;
  static constexpr size_t kDecoded = 6;

  void SetUp() override {
    auto model = FixtureModel::load(std::string(di::test::kData) + "/model/v41_tiny_a", test::token_texts);
    ASSERT_TRUE(model) << model.error().message;
    model_ = std::move(*model);
    stream_ = kernels::cpu::make_stream(pool_);
    device_ = device::make_host_device();
    auto expected = Expected::open(model_->dir + "/expected_plain.safetensors", "v41_tiny_a");
    ASSERT_TRUE(expected) << expected.error().message;
    ids_ = expected->ints("input_ids");
    ASSERT_EQ(ids_.size(), static_cast<size_t>(kPrompt));
    for (size_t i = 0; i < kDecoded; ++i) ids_.push_back(ids_[3 * i]);
  }

  // The pieces of the prompt, then the decoded tokens one at a time.
  static std::vector<int32_t> then_decode(std::vector<int32_t> pieces) {
    pieces.insert(pieces.end(), kDecoded, 1);
    return pieces;
  }

  std::unique_ptr<FixtureRun> new_run() {
    FixtureOptions options;
    options.kv_quant = GetParam().kv_quant;
    options.numerics = GetParam().numerics;
    options.draft_context = true;
    options.block_tokens = 16;  // several blocks
    const kernels::Ops& ops =
        GetParam().fast ? kernels::cpu::ops(kernels::cpu::best_isa()) : kernels::cpu::reference_ops();
    auto run = FixtureRun::create(*model_, {ops, *stream_, *device_}, options);
    EXPECT_TRUE(run) << run.error().message;
    return std::move(*run);
  }

  // Rows of every tapped value, in position order, whatever the pieces were.
  using Rows = std::map<std::string, std::vector<float>>;

  Rows feed_pieces(const std::vector<int32_t>& pieces) {
    Rows rows;
    const Tap tap = [&](std::string_view name, int32_t layer, const kernels::Tensor& value) {
      if (name == "index_score" || name == "topk" || name == "candidates") return;  // as wide as what is visible
      const std::vector<float> values = to_floats(value);
      std::vector<float>& all = rows[fmt::format("{}.{}", layer, name)];
      all.insert(all.end(), values.begin(), values.end());
    };
    const auto run = new_run();
    int32_t begin = 0;
    for (const int32_t count : pieces) {
      const auto logits = run->feed(ids_, begin, count, 0, &tap);
      EXPECT_TRUE(logits) << logits.error().message;
      std::vector<float>& all = rows["logits"];
      all.insert(all.end(), logits->begin(), logits->end());
      begin += count;
    }
    EXPECT_EQ(static_cast<size_t>(begin), ids_.size());
    return rows;
  }

  void expect_same(const Rows& a, const Rows& b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (const auto& [name, values] : a) {
      const auto other = b.find(name);
      ASSERT_NE(other, b.end()) << what << ": " << name;
      ASSERT_EQ(values.size(), other->second.size()) << what << ": " << name;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], other->second[i]) << what << ": " << name << " element " << i;
      }
    }
  }

  std::unique_ptr<FixtureModel> model_;
  ThreadPool pool_{2};
  kernels::cpu::StreamPtr stream_;
  std::unique_ptr<device::Device> device_;
  std::vector<int32_t> ids_;
};

TEST_P(Chunking, EverySplitSizeGivesTheSameBits) {
  const Rows whole = feed_pieces({kPrompt + static_cast<int32_t>(kDecoded)});
  for (int32_t size = 1; size <= 9; ++size) {
    std::vector<int32_t> pieces;
    for (int32_t left = kPrompt; left > 0; left -= size) pieces.push_back(std::min(size, left));
    expect_same(whole, feed_pieces(then_decode(pieces)), fmt::format("pieces of {}", size));
  }
}

TEST_P(Chunking, EverySplitPositionThenDecodeGivesTheSameBits) {
  const Rows whole = feed_pieces(then_decode({kPrompt}));
  for (int32_t cut = 1; cut < kPrompt; ++cut) {
    expect_same(whole, feed_pieces(then_decode({cut, kPrompt - cut})), fmt::format("cut at {}", cut));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Chunking,
                         testing::Values(Mode{"reference_plain", false, NumericMode::kExact, false},
                                         Mode{"reference_kvq", true, NumericMode::kExact, false},
                                         Mode{"reference_trained", true, NumericMode::kTrained, false},
                                         Mode{"fast_plain", false, NumericMode::kExact, true},
                                         Mode{"fast_kvq", true, NumericMode::kExact, true},
                                         Mode{"fast_trained", true, NumericMode::kTrained, true}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace di::model
