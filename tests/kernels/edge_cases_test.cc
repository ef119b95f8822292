// The edge cases of model.md §11, and small cases computed by hand, on the reference and every fast table.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu_tables.h"

namespace di::kernels {
namespace {

constexpr float kInfinity = INFINITY;

Tensor view(std::vector<float>& v, int64_t rows, int64_t cols) {
  return {v.data(), DType::kF32, rows, cols, cols};
}
Weight weight(const std::vector<float>& v, int64_t rows, int64_t cols) {
  Weight w;
  w.data = v.data();
  w.format = WeightFormat::kF32;
  w.rows = rows;
  w.cols = cols;
  return w;
}

class Edge : public testing::TestWithParam<const Ops*> {
 protected:
  const Ops& ops() const { return *GetParam(); }
  Stream& stream() { return *stream_; }

 private:
  ThreadPool pool_{2};
  cpu::StreamPtr stream_ = cpu::make_stream(pool_);
};

// One sequence whose index keys are the unit vectors, so that q holds the scores; the row sits at `position`.
struct Index {
  std::vector<float> keys;
  std::vector<float> q;
  std::vector<float> w{1.F};
  std::vector<int32_t> selection;
  std::vector<int32_t> candidates;
  int32_t position;
  int32_t zero = 0;
  Rows rows;
  PageView pages;

  Index(const std::vector<float>& scores, int32_t at, int32_t topk, int32_t candidate_topk)
      : q(scores),
        selection(static_cast<size_t>(topk), -7),
        candidates(static_cast<size_t>(candidate_topk), -7),
        position(at) {
    const size_t n = (scores.size() + 31) / 32 * 32;
    q.resize(n);
    keys.resize(n * n);
    for (size_t i = 0; i < n; ++i) keys[i * n + i] = 1.F;
    pages.base = reinterpret_cast<uint8_t*>(keys.data());
    pages.entries_per_block = static_cast<int32_t>(n);
    pages.block_stride = static_cast<int64_t>(n * n * 4);
    pages.width = static_cast<int32_t>(n);
    rows.n = 1;
    rows.positions = &position;
    rows.sequence = &zero;
    rows.state_slot = &zero;
    rows.block_table = &zero;
    rows.block_table_stride = 1;
  }
  SelectArgs args(int32_t ratio, int32_t block, const int32_t* in, int32_t* out) {
    return {view(q, 1, pages.width),
            view(w, 1, 1),
            1.F,
            1,
            ratio,
            static_cast<int32_t>(selection.size()),
            rows,
            pages,
            block,
            static_cast<int32_t>(candidates.size()),
            in,
            out,
            selection.data(),
            nullptr,
            0};
  }
};

using Ints = std::vector<int32_t>;

TEST_P(Edge, AOneTokenPromptSeesNoEntryOfRatioTwoAndOneOfRatioOne) {
  Index two({1.F}, 0, 4, 2);
  ops().select(two.args(2, 8, nullptr, two.candidates.data()), stream());
  EXPECT_EQ(two.selection, (Ints{-1, -1, -1, -1}));
  EXPECT_EQ(two.candidates, (Ints{-2, -1}));
  Index one({1.F}, 0, 4, 2);
  ops().select(one.args(1, 8, nullptr, nullptr), stream());
  EXPECT_EQ(one.selection, (Ints{0, -1, -1, -1}));
}

TEST_P(Edge, SelectionStartsWhenMoreEntriesAreVisibleThanChosen) {
  const std::vector<float> scores = {5.F, 1.F, 4.F, 2.F, 3.F};
  Index all(scores, 3, 4, 1);
  ops().select(all.args(1, 8, nullptr, nullptr), stream());
  EXPECT_EQ(all.selection, (Ints{0, 1, 2, 3}));
  Index best(scores, 4, 4, 1);
  ops().select(best.args(1, 8, nullptr, nullptr), stream());
  EXPECT_EQ(best.selection, (Ints{0, 2, 3, 4}));
  Index odd(scores, 8, 4, 1);  // ratio 2: position 8 sees 4 entries, position 9 five
  ops().select(odd.args(2, 8, nullptr, nullptr), stream());
  EXPECT_EQ(odd.selection, (Ints{0, 1, 2, 3}));
}

TEST_P(Edge, TiesGoToTheLowerEntry) {
  Index tied({0.F, -1.F, 0.F, -3.F, 2.F, 0.F}, 5, 3, 1);  // relu makes all but one zero
  ops().select(tied.args(1, 8, nullptr, nullptr), stream());
  EXPECT_EQ(tied.selection, (Ints{0, 1, 4}));
}

TEST_P(Edge, CandidatesAreFilteredWhenBlocksDoNotFit) {
  const std::vector<float> scores = {0.F, 9.F, 1.F, 1.F, 3.F, 0.F, 2.F};
  Index fits(scores, 5, 2, 3);  // three blocks of two
  ops().select(fits.args(1, 2, nullptr, fits.candidates.data()), stream());
  EXPECT_EQ(fits.candidates, (Ints{-2, -1, -1}));
  Index filtered(scores, 6, 2, 3);  // the fourth block holds the newest entry only and is always kept
  ops().select(filtered.args(1, 2, nullptr, filtered.candidates.data()), stream());
  EXPECT_EQ(filtered.candidates, (Ints{0, 2, 3}));
  EXPECT_EQ(filtered.selection, (Ints{1, 4}));  // the source's own choice is over everything
  Index newest(scores, 6, 2, 1);
  ops().select(newest.args(1, 2, nullptr, newest.candidates.data()), stream());
  EXPECT_EQ(newest.candidates, (Ints{3}));
}

TEST_P(Edge, AConsumerFillsUpWhatItsCandidatesLack) {
  const std::vector<float> scores = {0.F, 9.F, 1.F, 1.F, 3.F, 0.F, 2.F};
  Index few(scores, 6, 5, 3);
  const Ints in = {1, 3, -1};
  ops().select(few.args(1, 2, in.data(), nullptr), stream());
  EXPECT_EQ(few.selection, (Ints{2, 3, 6, -1, -1}));
  const Ints none = {-1, -1, -1};
  ops().select(few.args(1, 2, none.data(), nullptr), stream());
  EXPECT_EQ(few.selection, (Ints{-1, -1, -1, -1, -1}));
  const Ints all = {-2, -1, -1};
  ops().select(few.args(1, 2, all.data(), nullptr), stream());
  EXPECT_EQ(few.selection, (Ints{1, 2, 3, 4, 6}));
}

struct Attention {
  std::vector<float> q;
  std::vector<float> records;
  std::vector<float> o;
  std::vector<float> sink;
  int32_t zero = 0;
  int32_t position = 0;
  int32_t begin = 0;
  int32_t end = 0;
  Rows rows;
  FreshView fresh;
  RingView ring;

  Attention(std::vector<float> query, std::vector<float> keys, std::vector<float> sinks)
      : q(std::move(query)), records(std::move(keys)), o(q.size(), 9.F), sink(std::move(sinks)) {
    ring.width = 32;
    ring.ring_rows = 1;
    end = static_cast<int32_t>(records.size() / 32);
    position = std::max(0, end - 1);
    rows.n = 1;
    rows.positions = &position;
    rows.sequence = &zero;
    rows.state_slot = &zero;
    rows.window_begin = &begin;
    rows.window_end = &end;
    fresh = {reinterpret_cast<const uint8_t*>(records.data()), &zero, &zero};
  }
  AttentionArgs args() {
    const int32_t heads = static_cast<int32_t>(sink.size());
    return {view(q, 1, 32 * heads), heads, 1.F, sink.data(), nullptr, 0, rows, fresh, ring, 0, {}, nullptr, 0, false,
            view(o, 1, 32 * heads)};
  }
};

TEST_P(Edge, AttentionOverNothingIsZero) {
  Attention a(std::vector<float>(64, 1.F), {}, {.5F, -kInfinity});
  ops().attention(a.args(), stream());
  EXPECT_EQ(a.o, std::vector<float>(64, 0.F));
}

TEST_P(Edge, TheSinkTakesItsShareAndMinusInfinityNone) {
  std::vector<float> keys(64, 0.F);  // two entries with score 0: values 1 and 3
  std::fill(keys.begin(), keys.begin() + 32, 1.F);
  std::fill(keys.begin() + 32, keys.end(), 3.F);
  Attention a(std::vector<float>(64, 0.F), keys, {0.F, -kInfinity});
  ops().attention(a.args(), stream());
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(a.o[i], 4.F / 3.F, 1e-6F);  // (1 + 3)/(1 + 1 + e^0)
    EXPECT_NEAR(a.o[32 + i], 2.F, 1e-6F);
  }
}

TEST_P(Edge, LargeScoresDoNotOverflow) {
  std::vector<float> keys(64, 0.F);
  keys[0] = 1000.F;
  keys[32] = -1000.F;
  std::vector<float> q(32, 0.F);
  q[0] = 100.F;
  Attention a(q, keys, {-1e4F});
  ops().attention(a.args(), stream());
  EXPECT_NEAR(a.o[0], 1000.F, 1e-2F);
  a.q[0] = 0.F;
  a.sink[0] = 1e4F;  // far above all scores: nothing is left
  ops().attention(a.args(), stream());
  EXPECT_EQ(a.o[0], 0.F);
}

TEST_P(Edge, ARingKeepsTheLastRowsOfALongCall) {
  constexpr int32_t kRows = 10;
  constexpr int32_t kRing = 4;
  std::vector<float> fresh(kRows * 32);
  for (size_t i = 0; i < fresh.size(); ++i) fresh[i] = static_cast<float>(i / 32);
  std::vector<float> memory(2 * kRing * 32, -1.F);
  Ints positions(kRows);
  std::iota(positions.begin(), positions.end(), 3);
  const Ints sequence(kRows, 0);
  const int32_t slot = 1;
  Rows rows;
  rows.n = kRows;
  rows.positions = positions.data();
  rows.sequence = sequence.data();
  rows.state_slot = &slot;
  RingView ring;
  ring.base = reinterpret_cast<uint8_t*>(memory.data());
  ring.slot_stride = kRing * 32 * 4;
  ring.ring_rows = kRing;
  ring.width = 32;
  ops().ring_commit({reinterpret_cast<const uint8_t*>(fresh.data()), rows, ring}, stream());
  for (size_t i = 0; i < kRing * 32; ++i) EXPECT_EQ(memory[i], -1.F);
  for (const int32_t position : {9, 10, 11, 12}) {
    EXPECT_EQ(memory[static_cast<size_t>((kRing + position % kRing) * 32)], static_cast<float>(position - 3));
  }
}

// Ratio 4 with overlap: the entry of group 0 has no group before it, so that Ca counts from group 1 on.
TEST_P(Edge, V4OverlapMixesThePreviousGroupIn) {
  constexpr int64_t kD = 32;
  std::vector<float> v(8 * 2 * kD);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / (2 * kD)) + (i % (2 * kD) < kD ? 100.F : 0.F);
  std::vector<float> s(v.size(), 0.F);  // equal scores: plain means
  const std::vector<float> ape(4 * 2 * kD, 0.F);
  const std::vector<float> pass(kD, 0x1p63F);  // with eps 2^126 a norm that changes nothing
  Ints positions(8);
  std::iota(positions.begin(), positions.end(), 0);
  const Ints sequence(8, 0);
  const int32_t slot = 0;
  Rows rows;
  rows.n = 8;
  rows.positions = positions.data();
  rows.sequence = sequence.data();
  rows.state_slot = &slot;
  const Ints closing = {3, 7};
  std::vector<float> memory(8 * 4 * kD);
  const CompressorStateView state{memory.data(), 8 * 4 * kD, 8, 2 * kD};
  std::vector<float> latent(2 * kD);
  ops().compress_v4({4, true, view(v, 8, 2 * kD), view(s, 8, 2 * kD), ape.data(), weight(pass, 1, kD), 0x1p126F, false,
                     rows, closing.data(), 2, state, view(latent, 2, kD)},
                    stream());
  EXPECT_NEAR(latent[0], 1.5F, 1e-6F);                          // (0 + 1 + 2 + 3)/4
  EXPECT_NEAR(latent[kD], (4 * 101.5F + 4 * 5.5F) / 8, 1e-4F);  // Ca of 0…3 and Cb of 4…7
}

TEST_P(Edge, AnAllZeroRowStaysZeroWithEps1e20) {
  std::vector<float> x(64, 0.F);
  const std::vector<float> w(64, 2.F);
  std::vector<float> y(64, 9.F);
  ops().rms_norm({view(x, 1, 64), weight(w, 1, 64), 1e-20F, view(y, 1, 64)}, stream());
  EXPECT_EQ(y, x);
}

TEST_P(Edge, NormsOfVerySmallRowsAreNotEaten) {
  std::vector<float> x(64, 1e-9F);  // mean square 1e-18 ≫ 1e-20
  const std::vector<float> w(64, 1.F);
  std::vector<float> y(64);
  ops().rms_norm({view(x, 1, 64), weight(w, 1, 64), 1e-20F, view(y, 1, 64)}, stream());
  for (const float v : y) EXPECT_NEAR(v, .99504F, 1e-4F);  // 1/sqrt(1.01)
}

TEST_P(Edge, CombMixesFromItsRowIntoItsColumn) {
  std::vector<float> x = {1.F, 10.F};  // two streams of one channel
  std::vector<float> y = {100.F};
  const std::vector<float> post = {1.F, 2.F};
  const std::vector<float> comb = {.25F, .5F, 4.F, 8.F};
  ops().hc_post({view(x, 1, 2), view(y, 1, 1), post.data(), comb.data(), 2}, stream());
  EXPECT_EQ(x, (std::vector<float>{100.F + .25F + 40.F, 200.F + .5F + 80.F}));
}

TEST_P(Edge, SinkhornEndsWithColumnsThatAddUpToOne) {
  constexpr int32_t kHc = 4;
  std::vector<float> x(kHc * 32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  std::vector<float> fn(24 * x.size());
  for (size_t i = 0; i < fn.size(); ++i) fn[i] = std::cos(static_cast<float>(i) * .37F);
  const std::vector<float> base(24, .1F);
  const std::vector<float> scale(3, 1.F);
  const std::vector<float> norm(32, 1.F);
  const std::vector<float> mix = {1.F, 0.F, 0.F, 0.F};
  std::vector<float> y(32);
  std::vector<float> pre(4);
  std::vector<float> post(4);
  std::vector<float> comb(16);
  ops().hc_pre({view(x, 1, kHc * 32), mix.data(), false, kHc, 20, 1e-6F, 1e-20F, fn.data(), base.data(), scale.data(),
                weight(norm, 1, 32), false, view(y, 1, 32), pre.data(), post.data(), comb.data()},
               stream());
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(comb[j] + comb[4 + j] + comb[8 + j] + comb[12 + j], 1.F, 1e-5F);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_GT(pre[i], 1e-6F);
    EXPECT_LT(post[i], 2.F);
  }
}

TEST_P(Edge, ImageRowsRouteByTheirOwnBias) {
  std::vector<float> y(2 * 32, 0.F);  // logits 0: all scores equal
  const std::vector<float> gate(4 * 32, 1.F);
  const std::vector<float> bias = {0.F, 1.F, 0.F, 0.F};
  const std::vector<float> bias_vl = {0.F, 0.F, 0.F, 1.F};
  const std::vector<uint8_t> image = {0, 1};
  Rows rows;
  rows.n = 2;
  rows.is_image = image.data();
  Ints ids(4);
  std::vector<float> weights(4);
  ops().router({view(y, 2, 32), weight(gate, 4, 32), bias.data(), bias_vl.data(), nullptr, rows, 2, 1.5F, ids.data(),
                weights.data()},
               stream());
  EXPECT_EQ(ids, (Ints{1, 0, 3, 0}));  // after the biased one the lowest of the tied
  for (const float w : weights) EXPECT_NEAR(w, .75F, 1e-6F);
}

TEST_P(Edge, EngramLeavesImageRowsAndHasASignAtZero) {
  std::vector<float> x(2 * 32, 1.F);
  std::vector<float> kvp(2 * 64, 0.F);  // key 0: the dot is exactly zero
  for (size_t row = 0; row < 2; ++row)
    std::fill(kvp.begin() + static_cast<int64_t>(row) * 64 + 32, kvp.begin() + static_cast<int64_t>(row) * 64 + 64,
              2.F);
  const std::vector<float> ones(32, 1.F);
  const std::vector<uint8_t> image = {0, 1};
  Rows rows;
  rows.n = 2;
  rows.is_image = image.data();
  std::vector<float> gate(2);
  ops().engram_gate(
      {view(x, 2, 32), view(kvp, 2, 64), weight(ones, 1, 32), weight(ones, 1, 32), 1, 1e-20F, true, rows, gate.data()},
      stream());
  EXPECT_NEAR(gate[0], 1.F / (1.F + std::exp(-1e-3F)), 1e-6F);
  EXPECT_NEAR(x[0], 1.F + 2.F * gate[0], 1e-6F);
  EXPECT_EQ(x[32], 1.F);
  ops().engram_gate(
      {view(x, 1, 32), view(kvp, 1, 64), weight(ones, 1, 32), weight(ones, 1, 32), 1, 1e-20F, false, rows, gate.data()},
      stream());
  EXPECT_EQ(gate[0], .5F);
}

TEST_P(Edge, SwigluClampsBothHalves) {
  // One expert of width 32 with w1 = 100·1, w3 = -100·1, w2 = 1: g = min(100x, 10), u = max(-100x, -10) at x = 1.
  std::vector<float> eye(32 * 32, 0.F);
  for (size_t i = 0; i < 32; ++i) eye[i * 33] = 1.F;
  std::vector<float> up = eye;
  std::vector<float> down = eye;
  for (float& v : up) v *= 100.F;
  for (float& v : down) v *= -100.F;
  const ExpertWeights e{weight(up, 32, 32), weight(down, 32, 32), weight(eye, 32, 32)};
  std::vector<float> y(2 * 32, 1.F);
  std::fill(y.begin() + 32, y.end(), -1.F);
  const Ints ids = {0, 0};
  const std::vector<float> w = {2.F, 1.F};
  std::vector<float> out(2 * 32);
  ops().moe({view(y, 2, 32), ids.data(), w.data(), 1, &e, 1, form_of(&e, 1), {}, 10.F, {}, view(out, 2, 32)}, stream());
  EXPECT_NEAR(out[0], 2.F * 10.F / (1.F + std::exp(-10.F)) * -10.F, 1e-3F);
  EXPECT_NEAR(out[32], 0.F, 1e-6F);  // silu(-100) is 0: the gate has no lower clamp
}

TEST_P(Edge, ConfidenceIsClampedAndArgmaxTakesTheFirst) {
  std::vector<float> h(2 * 32, 1.F);
  std::fill(h.begin() + 32, h.end(), -1.F);
  std::vector<float> e(2 * 1, 0.F);
  const std::vector<float> w(33, 1.F);
  std::vector<float> c(2);
  ops().confidence({view(h, 2, 32), view(e, 2, 1), weight(w, 1, 33), 1e-5F, c.data()}, stream());
  EXPECT_EQ(c[0], 1.F);
  EXPECT_NEAR(c[1], std::exp(-60.F), 1e-30F);
  std::vector<float> logits(2 * 40, 1.F);
  logits[7] = logits[33] = 2.F;
  Ints ids(2);
  ops().argmax({view(logits, 2, 40), ids.data()}, stream());
  EXPECT_EQ(ids, (Ints{7, 0}));
}

TEST_P(Edge, NotANumberNeverWins) {
  std::vector<float> logits(40, NAN);
  logits[20] = -kInfinity;
  Ints ids(1);
  ops().argmax({view(logits, 1, 40), ids.data()}, stream());
  EXPECT_EQ(ids[0], 20);
}

TEST_P(Edge, EmptyCallsDoNothing) {
  std::vector<float> none;
  const std::vector<float> w(32 * 32, 1.F);
  ops().linear({view(none, 0, 32), weight(w, 32, 32), {}, false, view(none, 0, 32)}, stream());
  ops().rms_norm({view(none, 0, 32), weight(w, 1, 32), 1e-20F, view(none, 0, 32)}, stream());
  const ExpertWeights e{weight(w, 32, 32), weight(w, 32, 32), weight(w, 32, 32)};
  ops().moe({view(none, 0, 32), nullptr, nullptr, 1, &e, 1, form_of(&e, 1), e, 10.F, {}, view(none, 0, 32)}, stream());
}

std::vector<const Ops*> tables() {
  std::vector<const Ops*> all{&cpu::reference_ops()};
  for (const Ops* ops : test::cpu_tables()) all.push_back(ops);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Tables, Edge, testing::ValuesIn(tables()),
                         [](const auto& parameter) { return test::test_name(*parameter.param); });

}  // namespace
}  // namespace di::kernels
