#include "model/schedule.h"

#include "support.h"
#include "support/folders.h"

namespace di::model::tests {
namespace {

using ::testing::ElementsAre;

Schedule real(const char* name) {
  const Result<ModelConfig> config = load_config(std::string(di::test::kData) + "/model/" + name);
  EXPECT_TRUE(config) << config.error().message;
  return *make_schedule(*config);
}

// The table of model.md §2.
TEST(Schedule, V41FlashLayersAreThoseOfTheTable) {
  const Schedule s = real("config_v41_flash.json");
  ASSERT_EQ(s.layers.size(), 40U);
  EXPECT_EQ(s.boundary, 20);
  for (const LayerPlan& p : s.layers) {
    const int32_t l = p.layer;
    SCOPED_TRACE(l);
    EXPECT_EQ(p.ratio, l < 2 ? 0 : l < 20 ? 2 : 1);
    const int32_t kv = l < 2 ? -1 : l < 8 ? 2 : l < 14 ? 8 : l < 20 ? 14 : 20;
    EXPECT_EQ(p.kv_source, kv);
    EXPECT_EQ(p.kv_source_index, l < 2 ? -1 : kv == 20 ? 3 : (kv - 2) / 6);
    EXPECT_EQ(p.index_source, l < 20 ? kv : l / 4 * 4);
    const bool full = l == 2 || l == 8 || l == 14 || l == 20;
    const bool reindex = l == 24 || l == 28 || l == 32 || l == 36;
    EXPECT_EQ(p.kind, l < 2     ? LayerKind::kWindowOnly
                      : full    ? LayerKind::kFull
                      : reindex ? LayerKind::kReindex
                                : LayerKind::kReuse);
    EXPECT_EQ(p.is_kv_source, full);
    EXPECT_EQ(p.is_index_source, full || reindex);
    EXPECT_EQ(p.has_index_keys, full);
    EXPECT_EQ(p.has_compressor_gate, full && l != 20);
    EXPECT_EQ(p.is_candidate_source, l == 20);
    EXPECT_EQ(p.uses_candidates, reindex);
    EXPECT_EQ(p.has_engram, l == 1 || l == 14);
    EXPECT_EQ(p.engram_index, l == 1 ? 0 : l == 14 ? 1 : -1);
    EXPECT_EQ(p.is_decoder, l >= 20);
    EXPECT_EQ(p.n_experts, 384);
    EXPECT_EQ(p.experts_per_token, 6);
  }
  ASSERT_EQ(s.draft.size(), 3U);
  for (const LayerPlan& p : s.draft) {
    EXPECT_EQ(p.kind, LayerKind::kWindowOnly);
    EXPECT_EQ(p.ratio, 0);
    EXPECT_EQ(p.n_experts, 128);
    EXPECT_EQ(p.experts_per_token, 3);
  }
  EXPECT_EQ(s.draft[0].layer, 40);
  ASSERT_EQ(s.kv_sources.size(), 4U);
  for (const KvSourcePlan& k : s.kv_sources) {
    EXPECT_EQ(k.main_width, 512);
    EXPECT_EQ(k.index_width, 128);
    EXPECT_EQ(k.state_width, k.layer == 20 ? 0 : 512);
    EXPECT_EQ(k.state_rows, k.layer == 20 ? 0 : 2);
    EXPECT_EQ(k.ratio, k.layer == 20 ? 1 : 2);
  }
}

TEST(Schedule, V4LayersOwnTheirCompressedKv) {
  const Schedule s = real("config_v4_flash.json");
  ASSERT_EQ(s.layers.size(), 43U);
  EXPECT_EQ(s.boundary, 43);  // no decoder half
  EXPECT_EQ(s.kv_sources.size(), 41U);
  for (const LayerPlan& p : s.layers) {
    SCOPED_TRACE(p.layer);
    EXPECT_EQ(p.kind, p.ratio == 0 ? LayerKind::kWindowOnly : p.ratio == 4 ? LayerKind::kCsa : LayerKind::kHca);
    EXPECT_EQ(p.kv_source, p.ratio == 0 ? -1 : p.layer);
    EXPECT_EQ(p.index_source, p.ratio == 4 ? p.layer : -1);
    EXPECT_EQ(p.has_compressor_gate, p.ratio > 0);
    EXPECT_EQ(p.hash_routing, p.layer < 3);
    EXPECT_FALSE(p.is_decoder);
  }
  EXPECT_EQ(s.kv_sources[0].state_width, 1024);  // r = 4: overlapping groups, twice the width and the rows
  EXPECT_EQ(s.kv_sources[0].state_rows, 8);
  EXPECT_EQ(s.kv_sources[0].index_width, 128);
  EXPECT_EQ(s.kv_sources[0].index_state_width, 256);
  EXPECT_EQ(s.kv_sources[1].state_width, 512);  // r = 128
  EXPECT_EQ(s.kv_sources[1].state_rows, 128);
  EXPECT_EQ(s.kv_sources[1].index_width, 0);
  ASSERT_EQ(s.draft.size(), 1U);
  EXPECT_EQ(s.draft[0].n_experts, 256);
}

TEST(Schedule, NoDecoderHalfWithoutALayerOfRatioOneOrWhenKvSourcesFollow) {
  Json root = parse(kSmallV41);
  edit(root, "compress_ratios", "[0, 2, 2, 2, 2, 2, 0, 0]");
  EXPECT_EQ(make_schedule(*parse_config(root, "config.json"))->boundary, 6);

  root = parse(kSmallV41);
  edit(root, "kv_source_layer_ids", "[1, 3, 5]");
  EXPECT_EQ(make_schedule(*parse_config(root, "config.json"))->boundary, 6);

  EXPECT_EQ(make_schedule(config_of(kSmallV41))->boundary, 3);
}

TEST(Schedule, CandidatesCanBeOff) {
  Json root = parse(kSmallV41);
  edit(root, "candidate_source_layer_id", "null");
  const Schedule s = *make_schedule(*parse_config(root, "config.json"));
  for (const LayerPlan& p : s.layers) {
    EXPECT_FALSE(p.is_candidate_source);
    EXPECT_FALSE(p.uses_candidates);
  }
}

TEST(Schedule, AHandMadeConfigIsChecked) {
  ModelConfig config = config_of(kSmallV41);
  config.kv_source_layer_ids = {1, 77};
  const Result<Schedule> schedule = make_schedule(config);
  ASSERT_FALSE(schedule);
  EXPECT_THAT(schedule.error().message,
              ::testing::HasSubstr("kv_source_layer_ids[1]: expected a layer from 0 to 5, found 77"));
}

}  // namespace
}  // namespace di::model::tests
