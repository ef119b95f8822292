#include "model/config.h"

#include "model/engram.h"
#include "model/schedule.h"
#include "support.h"
#include "support/folders.h"

namespace di::model::tests {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Config, ReadsThePublishedV41Form) {
  const Result<ModelConfig> config = load_config(std::string(di::test::kData) + "/model/config_v41_flash.json");
  ASSERT_TRUE(config) << config.error().message;
  const ModelConfig& c = *config;
  EXPECT_EQ(c.family, Family::kV41);
  EXPECT_EQ(c.vocab_size, 129280);
  EXPECT_EQ(c.hidden_size, 5120);
  EXPECT_EQ(c.num_hidden_layers, 40);
  EXPECT_EQ(c.compress_ratios.size(), 43U);
  EXPECT_THAT(c.kv_source_layer_ids, ElementsAre(2, 8, 14, 20));
  EXPECT_EQ(c.candidate_source_layer_id, 20);
  EXPECT_EQ(c.candidate_topk_blocks, 2048);
  EXPECT_EQ(c.rms_norm_eps, 1e-20);
  EXPECT_EQ(static_cast<float>(c.rms_norm_eps), 1e-20F);
  EXPECT_EQ(c.hc_eps, 1e-6);
  EXPECT_TRUE(c.hc_shifted);
  EXPECT_TRUE(c.use_fp4_sparse_kv);
  EXPECT_EQ(c.hc_rows(), 24);
  EXPECT_EQ(c.heads_per_group(), 8);
  EXPECT_EQ(c.engram_columns(), 24);
  EXPECT_FALSE(c.engram_identity_map());
  EXPECT_EQ(c.engram_num_embeddings[1], 384016682);
  EXPECT_EQ(c.dspark_block_size, 5);
  EXPECT_EQ(c.dspark_n_routed_experts, 128);
  EXPECT_EQ(c.rope_scaling.factor, 16.0);
  EXPECT_EQ(c.quantization_config.weight_block_size, 32);
  EXPECT_EQ(c.quantization_config.expert_dtype, ExpertDtype::kFp4);
  EXPECT_EQ(c.image_token_id, 129264);
  ASSERT_TRUE(c.vision_config);
  EXPECT_EQ(c.vision_config->min_pixels, 295936);
  EXPECT_FALSE(c.vision_config->max_wh_ratio);
}

TEST(Config, ReadsTheFlatV4Form) {
  const Result<ModelConfig> config = load_config(std::string(di::test::kData) + "/model/config_v4_flash.json");
  ASSERT_TRUE(config) << config.error().message;
  const ModelConfig& c = *config;
  EXPECT_EQ(c.family, Family::kV4);
  EXPECT_EQ(c.num_hash_layers, 3);
  EXPECT_FALSE(c.hc_shifted);
  EXPECT_FALSE(c.has_dspark());
  EXPECT_EQ(c.quantization_config.weight_block_size, 128);
  EXPECT_EQ(c.kv_source_layer_ids.size(), 41U);
  EXPECT_EQ(c.index_source_layer_ids.size(), 21U);
  EXPECT_EQ(c.pad_token_id, -1);
  EXPECT_TRUE(c.rope_scaling.present);
}

TEST(Config, TopLevelKeysWinOverNestedOnes) {
  Json root = parse(kSmallV41);
  root.set("sliding_window", 16);
  const Result<ModelConfig> config = parse_config(root, "config.json");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->sliding_window, 16);
}

TEST(Config, ReadsV41InTheFlatForm) {
  Json root = parse(kSmallV41);
  const Json text = *root.find("text_config");
  erase(root, "text_config");
  for (const JsonMember& m : text.as_object()) root.set(m.key, m.value);
  const Result<ModelConfig> config = parse_config(root, "config.json");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->index_topk, 6);
}

TEST(Config, OptionalFieldsMayBeAbsent) {
  Json root = parse(kSmallV41);
  for (const char* field : {"num_key_value_heads", "n_shared_experts", "hidden_act", "topk_method", "scoring_func",
                            "norm_topk_prob", "attention_bias", "attention_dropout", "tie_word_embeddings",
                            "candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size",
                            "image_token_id", "architectures", "rope_scaling", "engram_pad_token_id"}) {
    edit(root, field, "-");
  }
  const Result<ModelConfig> config = parse_config(root, "config.json");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->candidate_source_layer_id, -1);
  EXPECT_EQ(config->image_token_id, -1);
  EXPECT_EQ(config->engram_pad_token_id, 2);  // the pad token
  EXPECT_FALSE(config->rope_scaling.present);
}

TEST(Config, FamilyComesFromArchitecturesWhenThereIsNoModelType) {
  Json root = parse(kSmallV41);
  erase(root, "model_type");
  EXPECT_EQ(parse_config(root, "config.json")->family, Family::kV41);
}

TEST(Config, DropsEngramAndDraftWhenTheyAreAbsent) {
  Json root = parse(kSmallV41);
  edit(root, "engram_layer_ids", "-");
  edit(root, "num_nextn_predict_layers", "0");
  edit(root, "compress_ratios", "[0, 2, 2, 1, 1, 1]");
  const Result<ModelConfig> config = parse_config(root, "config.json");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_TRUE(config->engram_layer_ids.empty());
  EXPECT_FALSE(config->has_dspark());
}

// One broken rule each: the field that is edited, its new value ("-" = erased), the field named by the error (empty:
// the same), what was expected and what was found.
struct Violation {
  const char* field;
  const char* value;
  const char* named;
  const char* expected;
  const char* found;
};

void expect_violations(std::string_view config, const std::vector<Violation>& violations) {
  for (const Violation& v : violations) {
    Json root = parse(config);
    edit(root, v.field, v.value);
    const Result<ModelConfig> result = parse_config(root, "dir/config.json");
    const std::string named = *v.named == '\0' ? v.field : v.named;
    if (result) {
      ADD_FAILURE() << v.field << " = " << v.value << " was accepted";
      continue;
    }
    EXPECT_THAT(result.error().message, AllOf(StartsWith("dir/config.json: " + named + ": expected "),
                                              HasSubstr(v.expected), HasSubstr(std::string(", found ") + v.found)))
        << v.field << " = " << v.value;
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(result.error().code, Errc::kInvalidRequest);
  }
}

TEST(Config, RefusesBrokenSchedules) {
  expect_violations(
      kSmallV41,
      {
          {"compress_ratios", "[0, 2, 3, 1, 1, 1, 0, 0]", "compress_ratios[2]", "0, 1 or 2 for layer 2", "3"},
          {"compress_ratios", "[0, 2, 2, 1, 1, 4, 0, 0]", "compress_ratios[5]", "0, 1 or 2 for layer 5", "4"},
          {"compress_ratios", "[0, -1, 2, 1, 1, 1, 0, 0]", "compress_ratios[1]", "0, 1 or 2 for layer 1", "-1"},
          {"compress_ratios", "[0, 2, 2, 1, 1, 1, 0, 1]", "compress_ratios[7]", "0 for draft layer 1", "1"},
          {"compress_ratios", "[0, 2, 2, 1, 1]", "", "8 entries", "5 entries"},
          {"compress_ratios", "[0, 2, 2, 1, 1, 1, 0]", "", "num_hidden_layers + num_nextn_predict_layers", "7 entries"},
          {"compress_ratios", "[0, 2, 2, 1, 1, 1, 0, 0, 0]", "", "8 entries", "9 entries"},
          {"compress_ratios", "\"2\"", "", "a list of integers", "string"},
          {"compress_ratios", "-", "", "a list of integers", "nothing"},
          {"compress_ratios", "[0, 2, 2.5, 1, 1, 1, 0, 0]", "compress_ratios[2]", "an integer", "floating point"},
          {"compress_ratios", "[2, 2, 2, 1, 1, 1, 0, 0]", "kv_source_layer_ids",
           "at or before layer 0 (compress ratio 2)", "none"},
          {"compress_ratios", "[0, 2, 1, 1, 1, 1, 0, 0]", "kv_source_layer_ids", "compress ratio 1 for layer 2",
           "source 1 of ratio 2"},
          {"compress_ratios", "[0, 0, 2, 1, 1, 1, 0, 0]", "kv_source_layer_ids[0]", "compress ratio above 0",
           "layer 1 with ratio 0"},
          {"compress_ratios", "[0, 2, 2, 1, 1, 0, 0, 0]", "index_source_layer_ids[2]", "compress ratio above 0",
           "layer 5 with ratio 0"},
          {"kv_source_layer_ids", "[1, 2]", "kv_source_layer_ids[1]", "a layer of index_source_layer_ids", "2"},
          {"kv_source_layer_ids", "[3, 1]", "kv_source_layer_ids[1]", "strictly increasing", "1"},
          {"kv_source_layer_ids", "[1, 1, 3]", "kv_source_layer_ids[1]", "a layer above 1", "1"},
          {"kv_source_layer_ids", "[3]", "kv_source_layer_ids", "at or before layer 1 (compress ratio 2)", "none"},
          {"kv_source_layer_ids", "[1]", "kv_source_layer_ids", "compress ratio 1 for layer 3", "source 1 of ratio 2"},
          {"kv_source_layer_ids", "[1, 6]", "kv_source_layer_ids[1]", "an integer from 0 to 5", "integer `6`"},
          {"kv_source_layer_ids", "-", "", "a list of integers", "nothing"},
          {"index_source_layer_ids", "[1, 5, 3]", "index_source_layer_ids[2]", "strictly increasing", "3"},
          {"index_source_layer_ids", "[3, 5]", "kv_source_layer_ids[0]", "a layer of index_source_layer_ids", "1"},
          {"index_source_layer_ids", "-", "", "a list of integers", "nothing"},
          {"index_k_source_layer_ids", "[1]", "", "the layers of kv_source_layer_ids", "sequence"},
          {"candidate_source_layer_id", "5", "", "a layer of kv_source_layer_ids", "5"},
          {"candidate_source_layer_id", "1", "", "compress ratio 1 (its consumer, index source 3",
           "layer 1 of ratio 2"},
          {"candidate_source_layer_id", "-2", "", "an integer from -1 to 5", "integer `-2`"},
          {"candidate_topk_blocks", "2", "", "at least index_topk = 6", "4 entries"},
          {"candidate_topk_blocks", "0", "", "an integer from 1", "integer `0`"},
          {"candidate_block_size", "-", "", "an integer from 1", "nothing"},
      });
  expect_violations(kSmallV4,
                    {
                        {"compress_ratios", "[0, 4, 2, 4, 0]", "compress_ratios[2]", "0, 4 or 128 for layer 2", "2"},
                        {"compress_ratios", "[0, 4, 1, 4, 0]", "compress_ratios[2]", "0, 4 or 128 for layer 2", "1"},
                        {"compress_ratios", "[0, 4, 128]", "", "at least 4 entries", "3 entries"},
                        {"compress_ratios", "[0, 4, 128, 4, 4]", "compress_ratios[4]", "0 for draft layer 0", "4"},
                    });
}

TEST(Config, RefusesOtherModels) {
  expect_violations(kSmallV41,
                    {
                        {"model_type", "\"llama\"", "", "\"deepseek_v41\" or \"deepseek_v4\"", "string \"llama\""},
                        {"model_type", "7", "", "\"deepseek_v41\" or \"deepseek_v4\"", "integer `7`"},
                        {"scoring_func", "\"sigmoid\"", "", "\"sqrtsoftplus\"", "string \"sigmoid\""},
                        {"topk_method", "\"greedy\"", "", "\"noaux_tc\"", "string \"greedy\""},
                        {"norm_topk_prob", "false", "", "true", "boolean `false`"},
                        {"num_key_value_heads", "2", "", "1", "integer `2`"},
                        {"n_shared_experts", "2", "", "1", "integer `2`"},
                        {"hidden_act", "\"gelu\"", "", "\"silu\"", "string \"gelu\""},
                        {"attention_bias", "true", "", "false", "boolean `true`"},
                        {"attention_dropout", "0.1", "", "0", "floating point `0.1`"},
                        {"tie_word_embeddings", "true", "", "false", "boolean `true`"},
                        {"hc_shifted", "false", "", "true", "boolean `false`"},
                        {"hc_pre_from_prev_sublayer", "false", "", "true", "boolean `false`"},
                        {"num_hash_layers", "1", "", "an integer from 0 to 0", "integer `1`"},
                        {"use_fp4_sparse_kv", "1", "", "true or false", "integer `1`"},
                        {"quantization_config.quant_method", "\"awq\"", "", "\"fp8\"", "string \"awq\""},
                        {"quantization_config.activation_scheme", "\"static\"", "", "\"dynamic\"", "string \"static\""},
                        {"quantization_config.scale_fmt", "\"float\"", "", "\"ue8m0\"", "string \"float\""},
                        {"quantization_config.weight_block_size", "[128, 128]", "", "[32, 32]", "[128, 128]"},
                        {"quantization_config.weight_block_size", "[32]", "", "[32, 32]", "[32]"},
                        {"quantization_config.expert_dtype", "\"int4\"", "", "\"fp4\" or \"fp8\"", "string \"int4\""},
                        {"quantization_config", "[]", "", "an object", "sequence"},
                        {"rope_scaling.rope_type", "\"linear\"", "", "\"yarn\"", "string \"linear\""},
                        {"rope_scaling.factor", "0", "", "a number from 1", "integer `0`"},
                        {"rope_scaling.original_max_position_embeddings", "-", "", "an integer from 1", "nothing"},
                        {"rope_scaling", "16", "", "an object", "integer `16`"},
                        {"text_config", "3", "", "an object", "integer `3`"},
                        {"vision_config", "3", "", "an object", "integer `3`"},
                        {"vision_config", "{}", "vision_config.num_hidden_layers", "an integer from 1", "nothing"},
                    });
  expect_violations(kSmallV4, {
                                  {"hc_shifted", "true", "", "false", "boolean `true`"},
                                  {"expert_dtype", "\"int4\"", "", "\"fp4\" or \"fp8\"", "string \"int4\""},
                                  {"num_hash_layers", "5", "", "an integer from 0 to 4", "integer `5`"},
                              });
}

TEST(Config, RefusesBrokenSizes) {
  expect_violations(
      kSmallV41,
      {
          {"vocab_size", "-", "", "an integer from 1", "nothing"},
          {"vocab_size", "0", "", "an integer from 1", "integer `0`"},
          {"vocab_size", "\"96\"", "", "an integer from 1", "string \"96\""},
          {"hidden_size", "18446744073709551615", "", "an integer from 1", "integer `18446744073709551615`"},
          {"hidden_size", "1e3", "", "an integer from 1", "floating point"},
          {"hidden_size", "63", "", "an even number (FP4 experts)", "63"},
          {"num_attention_heads", "3", "", "a multiple of o_groups = 2", "3"},
          {"qk_rope_head_dim", "7", "", "an even number", "7"},
          {"qk_rope_head_dim", "64", "", "not above head_dim = 32 and index_head_dim = 32", "64"},
          {"index_head_dim", "16", "", "a multiple of 32", "16"},
          {"head_dim", "40", "", "a multiple of 32", "40"},
          {"index_topk", "-", "", "an integer from 1", "nothing"},
          {"moe_intermediate_size", "33", "", "an even number (FP4 experts)", "33"},
          {"num_experts_per_tok", "5", "", "an integer from 1 to 4", "integer `5`"},
          {"rms_norm_eps", "0", "", "a number from", "integer `0`"},
          {"rms_norm_eps", "1e-60", "", "a number from", "floating point"},
          {"swiglu_limit", "-1", "", "a number from", "integer `-1`"},
          {"hc_mult", "17", "", "an integer from 1 to 16", "integer `17`"},
          {"rope_theta", "1", "", "a number from", "integer `1`"},
          {"compress_rope_theta", "-", "", "a number from", "nothing"},
          {"eos_token_id", "96", "", "an integer from 0 to 95", "integer `96`"},
          {"image_token_id", "400", "", "an integer from 0 to 95", "integer `400`"},
          {"dspark_block_size", "-", "", "an integer from 1", "nothing"},
          {"dspark_target_layer_ids", "[4, 6]", "dspark_target_layer_ids[1]", "an integer from 0 to 5", "integer `6`"},
          {"dspark_target_layer_ids", "[]", "", "at least one layer", "an empty list"},
          {"dspark_noise_token_id", "96", "", "an integer from 0 to 95", "integer `96`"},
          {"dspark_num_experts_per_tok", "3", "", "an integer from 1 to 2", "integer `3`"},
      });
}

TEST(Config, RefusesBrokenEngramTables) {
  expect_violations(
      kSmallV41,
      {
          {"engram_num_embeddings", "[304, 463]", "engram_num_embeddings[1]",
           "462, the sum of the bucket primes of layer 2", "463"},
          {"engram_num_embeddings", "[303, 462]", "engram_num_embeddings[0]",
           "304, the sum of the bucket primes of layer 1", "303"},
          {"engram_num_embeddings", "[10, 462]", "engram_num_embeddings[0]", "6 bucket primes, at least 240", "10"},
          {"engram_num_embeddings", "[304]", "", "2 entries, one per layer of engram_layer_ids", "1 entries"},
          {"engram_num_embeddings", "-", "", "a list of integers", "nothing"},
          {"engram_layer_ids", "[2, 1]", "engram_layer_ids[1]", "a layer above 2", "1"},
          {"engram_layer_ids", "[1, 6]", "engram_layer_ids[1]", "an integer from 0 to 5", "integer `6`"},
          {"engram_compressed_vocab_size", "97", "", "an integer from 1 to 96", "integer `97`"},
          {"engram_max_ngram_size", "1", "", "an integer from 2", "integer `1`"},
          {"engram_pad_token_id", "96", "", "an integer from 0 to 95", "integer `96`"},
          {"engram_vocab_size", "-", "", "an integer from 2", "nothing"},
      });
}

TEST(Config, ErrorsOfFilesNameThem) {
  TempDir dir;
  const Result<ModelConfig> absent = load_config(dir.path());
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, Errc::kNotFound);
  EXPECT_THAT(absent.error().message, AllOf(HasSubstr(dir.file("config.json")), HasSubstr("found no such file")));

  write_file(dir.file("config.json"), "{\"vocab_size\": }");
  const Result<ModelConfig> broken = load_config(dir.path());
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message, AllOf(HasSubstr(dir.file("config.json")), HasSubstr("line 1")));

  write_file(dir.file("config.json"), "[]");
  const Result<ModelConfig> list = load_config(dir.path());
  ASSERT_FALSE(list);
  EXPECT_THAT(list.error().message,
              AllOf(HasSubstr(dir.file("config.json")), HasSubstr("expected an object, found sequence")));

  write_file(dir.file("config.json"), kSmallV41);
  EXPECT_TRUE(load_config(dir.path()));
  EXPECT_TRUE(load_config(dir.file("config.json")));
}

// Every field replaced by every kind of value: an error or a config, never a crash.
TEST(Config, AnyValueOfAnyFieldIsAnErrorOrAConfig) {
  for (const std::string_view text : {kSmallV41, kSmallV4}) {
    const Json root = parse(text);
    std::vector<std::string> fields;
    for (const JsonMember& m : root.as_object()) fields.push_back(m.key);
    if (const Json* nested = root.find("text_config")) {
      for (const JsonMember& m : nested->as_object()) fields.push_back(m.key);
    }
    for (const std::string& field : fields) {
      for (const char* value :
           {"-", "null", "true", "0", "1", "-1", "2147483647", "2147483648", "9223372036854775807", "1e300", "0.5",
            "\"x\"", "[]", "[1]", "[0, 1, 2, 3, 4, 5, 6, 7]", "{}", "[[1]]", "[null]"}) {
        Json edited = root;
        edit(edited, field, value);
        const Result<ModelConfig> config = parse_config(edited, "config.json");
        if (config) {
          EXPECT_TRUE(make_schedule(*config));
        }
      }
    }
  }
}

}  // namespace
}  // namespace di::model::tests
