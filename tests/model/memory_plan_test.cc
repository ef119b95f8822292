#include "model/memory_plan.h"

#include "model/inspect.h"
#include "support.h"
#include "support/folders.h"

namespace di::model::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string flash_path() {
  return std::string(di::test::kData) + "/model/config_v41_flash.json";
}
ModelConfig flash() {
  return *load_config(flash_path());
}

ClassTotals totals(const ParameterCount& n, TensorClass c) {
  return n.classes[static_cast<size_t>(c)];
}

// The published figures: 552 B, 196 B, 16 B, 8 B, 96,085 tensors, 510 GB (model.md, introduction and §3.1).
TEST(MemoryPlan, CountsTheRealModel) {
  const ModelConfig c = flash();
  const ParameterCount n = count_parameters(c, *make_schedule(c));
  EXPECT_EQ(n.tensors, 96085);
  EXPECT_EQ(totals(n, TensorClass::kDraft).tensors, 2401);
  // 269 global and vision tensors: embed, head, norm and the tower.
  EXPECT_EQ(totals(n, TensorClass::kVision).tensors + 3, 269);
  EXPECT_NEAR(static_cast<double>(n.backbone), 551.9e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(n.engram_tables), 196.6e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(n.active_decode), 16.1e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(n.active_prefill), 7.9e9, 0.05e9);
  EXPECT_EQ(totals(n, TensorClass::kRoutedExpert).parameters, int64_t{40} * 384 * 3 * 2304 * 5120);
  EXPECT_NEAR(static_cast<double>(totals(n, TensorClass::kRoutedExpert).bytes), 288.8e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(totals(n, TensorClass::kEngramTable).bytes), 202.8e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(n.bytes), 510e9, 1e9);
}

// The table of performance.md §2.2, two operations per multiply-add there.
TEST(MemoryPlan, ArithmeticOfARowOfTheRealModel) {
  const ModelConfig c = flash();
  const Schedule s = *make_schedule(c);
  const RowFlops flops = count_row_flops(c, s);
  const auto at = [&](int64_t context) { return row_flops(c, s, flops, context - 1); };
  // Experts in FP4 count once per multiply-add, all others twice (FP8) to eight times.
  const double products = static_cast<double>(count_parameters(c, s).active_decode);
  EXPECT_GT(flops.weights, products);
  EXPECT_LT(flops.weights, 4 * products);
  const double experts = 16.99e9 / 2;
  EXPECT_GT(flops.weights - experts, 2 * (products - experts) * 0.99);
  // Attention counts four: 3.22 GFLOP are 1.61 G multiply-adds. Index scores count two.
  EXPECT_NEAR(at(1024) - flops.weights, 4 * 3.22e9 / 2 + 0.06e9, 0.03 * 4 * 3.22e9 / 2);
  EXPECT_NEAR(at(32768) - at(1024), 1.21e9 - 0.06e9, 0.03e9);
  EXPECT_NEAR(at(1048576) - at(131072), 22.0e9 - 3.22e9, 0.4e9);
}

// model.md §7.
TEST(MemoryPlan, CacheBytesOfTheRealModel) {
  const ModelConfig c = flash();
  PlanOptions o;
  o.context = 1048576;
  const MemoryPlan p = *plan_memory(c, *make_schedule(c), o);
  EXPECT_EQ(p.kv_bytes_per_token, 890.0);
  EXPECT_EQ(p.layout.block_bytes, 113920);
  EXPECT_EQ(p.blocks_per_sequence, 8192);
  EXPECT_EQ(p.block_kv_bytes, 8192 * 113920);
  EXPECT_EQ(p.swa_window_bytes, 2703360);
  EXPECT_EQ(p.swa_window_encoder_bytes, 1351680);
  EXPECT_EQ(p.swa_window_draft_bytes, 202752);
  EXPECT_EQ(p.layout.ring_rows, 134);
  EXPECT_EQ(p.compressor_state_bytes, 3 * 4096 * (2 + 6 - 1));
  EXPECT_EQ(p.engram_history_bytes, 12);
  EXPECT_EQ(p.total_bytes, p.weight_bytes + p.block_kv_bytes + p.sequence_bytes);
  EXPECT_GE(p.sequence_bytes, 528 * 134 * 43 + p.compressor_state_bytes + 12);
}

TEST(MemoryPlan, Mxfp8AndFp32Caches) {
  Json root = *parse_json_file(flash_path());
  edit(root, "use_fp4_sparse_kv", "false");
  const ModelConfig c = *parse_config(root, "config.json");
  const Schedule s = *make_schedule(c);
  EXPECT_EQ(plan_memory(c, s, {})->kv_bytes_per_token, 1490.0);
  PlanOptions o;
  o.kv_quant = false;
  EXPECT_EQ(plan_memory(c, s, o)->kv_bytes_per_token, 2.5 * (512 + 128) * 4);
}

TEST(MemoryPlan, GrowsWithContextAndSequences) {
  const ModelConfig c = config_of(kSmallV41);
  const Schedule s = *make_schedule(c);
  PlanOptions o;
  o.context = 129;
  const MemoryPlan one = *plan_memory(c, s, o);
  EXPECT_EQ(one.blocks_per_sequence, 2);
  o.sequences = 3;
  const MemoryPlan three = *plan_memory(c, s, o);
  EXPECT_EQ(three.kv_total_bytes, 3 * one.kv_total_bytes);
  EXPECT_EQ(three.total_bytes, three.weight_bytes + three.kv_total_bytes);
}

TEST(MemoryPlan, RefusesWhatTheModelCannotHold) {
  const ModelConfig c = config_of(kSmallV41);
  const Schedule s = *make_schedule(c);
  PlanOptions o;
  o.context = 4097;
  EXPECT_THAT(plan_memory(c, s, o).error().message,
              HasSubstr("context: expected 1 to max_position_embeddings = 4096 tokens, found 4097"));
  o.context = 0;
  EXPECT_FALSE(plan_memory(c, s, o));
  o = {};
  o.sequences = 0;
  EXPECT_THAT(plan_memory(c, s, o).error().message, HasSubstr("sequences: expected 1 or more, found 0"));
}

TEST(MemoryPlan, CountsV4) {
  const ModelConfig c = *load_config(std::string(di::test::kData) + "/model/config_v4_flash.json");
  const Schedule s = *make_schedule(c);
  const ParameterCount n = count_parameters(c, s);
  EXPECT_EQ(totals(n, TensorClass::kRoutedExpert).parameters, int64_t{43} * 256 * 3 * 2048 * 4096);
  EXPECT_NEAR(static_cast<double>(n.backbone), 284e9, 2e9);  // the published size of V4 Flash
  EXPECT_NEAR(static_cast<double>(n.active_decode), 13e9, 0.7e9);
  ASSERT_TRUE(plan_memory(c, s, {}));
}

// The sum over the classes is what a checkpoint of the declared formats really holds.
TEST(MemoryPlan, DeclaredBytesAreThoseOfACheckpoint) {
  for (const std::string_view text : {kSmallV41, kSmallV4}) {
    const ModelConfig c = config_of(text);
    const FileTensors tensors = checkpoint_of(c);
    int64_t bytes = 0;
    for (const auto& [name, t] : tensors) bytes += static_cast<int64_t>(t.data.size());
    const ParameterCount n = count_parameters(c, *make_schedule(c));
    EXPECT_EQ(n.bytes, bytes);
    EXPECT_EQ(n.tensors, static_cast<int64_t>(tensors.size()));
    int64_t parameters = 0;
    for (const ClassTotals& t : n.classes) parameters += t.parameters;
    EXPECT_EQ(parameters, n.backbone + n.engram_tables + n.draft + n.vision);
  }
}

TEST(Inspect, ReportsTheRealConfigWithoutWeights) {
  TempDir dir;
  write_file(dir.file("config.json"), read_file(flash_path()));
  InspectOptions o;
  o.plan.context = 131072;
  o.plan.sequences = 16;
  const Result<std::string> text = inspect_folder(dir.path(), o);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_THAT(*text, AllOf(HasSubstr("551.9 B backbone, 196.6 B Engram tables"),
                           HasSubstr("16.1 B per decode token, 7.9 B per prefill token"),
                           HasSubstr("890 bytes per token, 113,920 bytes per block of 128 tokens"), HasSubstr("96,085"),
                           HasSubstr("encoder 0-19, decoder 20-39"), HasSubstr("16 sequences of 131,072 tokens"),
                           HasSubstr("none here")));
  EXPECT_THAT(*text, AllOf(HasSubstr("3-7      reuse      2    2          2"),
                           HasSubstr("24       reindex    1   20         24")));

  EXPECT_EQ(*inspect_folder(flash_path(), o), *text);  // the file alone

  o.json = true;
  const Result<Json> json = parse_json(*inspect_folder(dir.path(), o));
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_EQ(json->find("tensors")->find("number")->to_i64(), 96085);
  EXPECT_EQ(json->find("kv")->find("bytes_per_token")->to_double(), 890.0);
  EXPECT_EQ(json->find("layers")->size(), 40U);
  EXPECT_EQ(json->find("layers")->as_array()[25].find("index_source")->to_i64(), 24);
  EXPECT_TRUE(json->find("layers")->as_array()[0].find("kv_source")->is_null());
  EXPECT_EQ(json->find("draft")->size(), 3U);
  EXPECT_TRUE(json->find("checkpoint")->is_null());
}

TEST(Inspect, ChecksTheWeightsThatAreThere) {
  TempDir dir;
  const ModelConfig c = config_of(kSmallV41);
  FileTensors tensors = checkpoint_of(c);
  tensors["extra.weight"] = zeros("BF16", 2, {4});
  write_file(dir.file("config.json"), kSmallV41);
  write_file(dir.file("model.safetensors"), safetensors_bytes(tensors));
  const Result<std::string> text = inspect_folder(dir.path(), {});
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_THAT(*text, AllOf(HasSubstr("unknown        extra.weight"), HasSubstr("every declared tensor checked")));
  InspectOptions o;
  o.json = true;
  const Json json = parse(*inspect_folder(dir.path(), o));
  EXPECT_EQ(json.find("checkpoint")->find("unknown_tensors")->as_array()[0].as_string(), "extra.weight");

  tensors.erase("layers.0.attn.wkv.scale");
  write_file(dir.file("model.safetensors"), safetensors_bytes(tensors));
  EXPECT_THAT(inspect_folder(dir.path(), {}).error().message,
              HasSubstr("tensor layers.0.attn.wkv.weight: expected its scale"));

  std::filesystem::remove(dir.file("model.safetensors"));
  write_file(dir.file("model.safetensors.index.json"), R"({"weight_map": {"norm.weight": "gone.safetensors"}})");
  EXPECT_THAT(inspect_folder(dir.path(), {}).error().message, HasSubstr("gone.safetensors"));
}

}  // namespace
}  // namespace di::model::tests
