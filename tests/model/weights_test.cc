#include "model/weights.h"

#include "support.h"

namespace di::model::tests {
namespace {

using kernels::WeightFormat;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Checkpoint {
 public:
  explicit Checkpoint(std::string_view config) : config_(config_of(config)), schedule_(*make_schedule(config_)) {
    tensors = checkpoint_of(config_);
  }
  Result<ModelWeights> bind() {
    bytes_ = safetensors_bytes(tensors);
    Result<Safetensors> file = Safetensors::from_memory(std::as_bytes(std::span(bytes_)), "dir/model.safetensors");
    if (!file) return std::unexpected(file.error());
    file_.emplace(*std::move(file));
    return bind_weights(config_, schedule_, *file_);
  }
  const Safetensors& file() const { return *file_; }
  const ModelConfig& config() const { return config_; }

  FileTensors tensors;

 private:
  ModelConfig config_;
  Schedule schedule_;
  std::string bytes_;
  std::optional<Safetensors> file_;
};

TEST(Weights, BindsEveryTensorOfV41InPlace) {
  Checkpoint c(kSmallV41);
  const Result<ModelWeights> w = c.bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_TRUE(w->unknown_tensors.empty());
  const auto data = [&](std::string_view name) { return static_cast<const void*>(c.file().find(name)->data); };

  const LayerWeights& l1 = w->layers[1];
  EXPECT_EQ(l1.attn.wq_a.data, data("layers.1.attn.wq_a.weight"));
  EXPECT_EQ(l1.attn.wq_a.scale, data("layers.1.attn.wq_a.scale"));
  EXPECT_EQ(l1.attn.wq_a.format, WeightFormat::kFp8Block);
  EXPECT_EQ(l1.attn.wq_a.block, 32);
  EXPECT_EQ(l1.attn.wq_a.rows, 32);
  EXPECT_EQ(l1.attn.wq_a.cols, 64);
  EXPECT_EQ(l1.attn.wo_a.rows, 32);
  EXPECT_EQ(l1.attn.wo_a.cols, 64);
  EXPECT_EQ(l1.attn_norm.rows, 1);
  EXPECT_EQ(l1.attn_norm.cols, 64);
  EXPECT_NE(l1.attn.compressor.wgate.data, nullptr);
  EXPECT_NE(l1.attn.indexer.wk.data, nullptr);
  EXPECT_EQ(l1.engram.embed.format, WeightFormat::kFp8Row);
  EXPECT_EQ(l1.engram.embed.rows, 304);
  EXPECT_EQ(l1.engram.wkv.rows, 3 * 64);
  EXPECT_EQ(l1.engram.wkv.cols, 6 * 32);

  EXPECT_EQ(w->layers[3].attn.compressor.wgate.data, nullptr);  // r = 1
  EXPECT_NE(w->layers[3].attn.compressor.wkv.data, nullptr);
  EXPECT_EQ(w->layers[5].attn.indexer.wk.data, nullptr);  // Reindex
  EXPECT_NE(w->layers[5].attn.indexer.wq_b.data, nullptr);
  EXPECT_EQ(w->layers[4].attn.indexer.wq_b.data, nullptr);  // Reuse
  EXPECT_EQ(w->layers[3].engram.embed.data, nullptr);

  ASSERT_EQ(l1.ffn.experts.size(), 4U);
  const Weight& w2 = l1.ffn.experts[3].w2;
  EXPECT_EQ(w2.data, data("layers.1.ffn.experts.3.w2.weight"));
  EXPECT_EQ(w2.scale, data("layers.1.ffn.experts.3.w2.scale"));
  EXPECT_EQ(w2.format, WeightFormat::kFp4Row);
  EXPECT_EQ(w2.rows, 64);
  EXPECT_EQ(w2.cols, 32);  // values, not bytes
  EXPECT_EQ(l1.ffn.gate.tid2eid, nullptr);
  EXPECT_NE(l1.ffn.gate.bias_vl, nullptr);

  ASSERT_EQ(w->mtp.size(), 2U);
  EXPECT_EQ(w->mtp[0].main_proj.cols, 2 * 64);
  EXPECT_EQ(w->mtp[1].main_proj.data, nullptr);
  EXPECT_EQ(w->mtp[0].norm.data, nullptr);
  EXPECT_EQ(w->mtp[1].confidence_head_proj.cols, 64 + 8);
  EXPECT_EQ(w->mtp[1].markov_head.embed.data, data("mtp.1.markov_head.embed.weight"));
  EXPECT_EQ(w->mtp[0].block.ffn.experts.size(), 2U);
  EXPECT_EQ(w->hc_head.fn, nullptr);

  int64_t bytes = 0;
  for (const TensorView& t : c.file().tensors()) bytes += t.bytes;
  EXPECT_EQ(w->mapped_bytes + w->copied_bytes, bytes);
}

TEST(Weights, UnalignedTensorsAreCopiedAndOnlyThose) {
  Checkpoint c(kSmallV41);
  // One byte in front of everything else: every tensor of 2 or 4 bytes per element becomes unaligned.
  c.tensors["!"] = zeros("U8", 1, {1});
  const Result<ModelWeights> w = c.bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_THAT(w->unknown_tensors, ElementsAre("!"));
  const TensorView& fn = *c.file().find("layers.0.hc_attn_fn");
  ASSERT_NE(reinterpret_cast<uintptr_t>(fn.data) % 4, 0U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(w->layers[0].hc_attn_fn) % 4, 0U);
  EXPECT_EQ(std::memcmp(w->layers[0].hc_attn_fn, fn.data, static_cast<size_t>(fn.bytes)), 0);
  EXPECT_EQ(w->layers[0].attn.wq_a.data, c.file().find("layers.0.attn.wq_a.weight")->data);
  EXPECT_GT(w->copied_bytes, fn.bytes);
}

TEST(Weights, BindsV4) {
  Checkpoint c(kSmallV4);
  const Result<ModelWeights> w = c.bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_TRUE(w->unknown_tensors.empty());
  EXPECT_NE(w->hc_head.fn, nullptr);
  EXPECT_NE(w->layers[0].ffn.gate.tid2eid, nullptr);
  EXPECT_EQ(w->layers[0].ffn.gate.bias, nullptr);
  EXPECT_NE(w->layers[1].ffn.gate.bias, nullptr);
  EXPECT_EQ(w->layers[1].ffn.gate.bias_vl, nullptr);
  EXPECT_EQ(w->layers[1].attn.compressor.wkv.rows, 64);  // [Ca | Cb]
  EXPECT_NE(w->layers[1].attn.compressor.ape, nullptr);
  EXPECT_EQ(w->layers[1].attn.indexer.compressor.wkv.rows, 64);
  EXPECT_EQ(w->layers[2].attn.compressor.wkv.rows, 32);
  EXPECT_EQ(w->layers[2].attn.indexer.wq_b.data, nullptr);
  EXPECT_EQ(w->layers[1].attn.wq_a.block, 128);
  EXPECT_NE(w->mtp[0].e_proj.data, nullptr);
  EXPECT_NE(w->mtp[0].hc_head.fn, nullptr);
}

TEST(Weights, PlainCheckpointsMayBeF32) {
  Json root = parse(kSmallV4);
  edit(root, "quantization_config", "-");
  Checkpoint c(to_json(root));
  for (auto& [name, t] : c.tensors) {
    if (t.dtype == "BF16") t = zeros("F32", 4, t.shape);
  }
  const Result<ModelWeights> w = c.bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->layers[1].attn.wq_a.format, WeightFormat::kF32);
  EXPECT_EQ(w->layers[1].ffn.experts[0].w1.format, WeightFormat::kF32);
  EXPECT_EQ(w->layers[1].ffn.experts[0].w1.scale, nullptr);
}

TEST(Weights, TokenTablesAreCheckedAndNarrowed) {
  Checkpoint c(kSmallV4);
  FileTensor& t = c.tensors["layers.0.ffn.gate.tid2eid"];
  for (size_t i = 0; i < t.data.size() / 8; ++i) t.data[8 * i] = static_cast<char>(i % 4);
  {
    const Result<ModelWeights> w = c.bind();
    ASSERT_TRUE(w);
    EXPECT_EQ(w->layers[0].ffn.gate.tid2eid[7], 3);
  }
  t.data[8 * 11] = 4;
  const Result<ModelWeights> w = c.bind();
  ASSERT_FALSE(w);
  EXPECT_THAT(w.error().message,
              HasSubstr("tensor layers.0.ffn.gate.tid2eid: expected expert ids from 0 to 3, found 4 for token 5"));
}

struct Broken {
  const char* what;
  void (*edit)(FileTensors&);
  const char* tensor;
  const char* expected;
  const char* found;
};

TEST(Weights, EveryBrokenTensorIsNamed) {
  const std::vector<Broken> cases = {
      {"missing", [](FileTensors& t) { t.erase("layers.2.attn_norm.weight"); }, "layers.2.attn_norm.weight",
       "BF16 [64]", "no such tensor (1 of"},
      {"missing global", [](FileTensors& t) { t.erase("head.weight"); }, "head.weight", "BF16 [96, 64]",
       "no such tensor"},
      {"missing draft tensor", [](FileTensors& t) { t.erase("mtp.1.norm.weight"); }, "mtp.1.norm.weight", "BF16 [64]",
       "no such tensor"},
      {"weight without scale", [](FileTensors& t) { t.erase("layers.0.attn.wkv.scale"); }, "layers.0.attn.wkv.weight",
       "its scale layers.0.attn.wkv.scale F8_E8M0 [1, 2]", "no such tensor"},
      {"expert without scale", [](FileTensors& t) { t.erase("layers.4.ffn.experts.2.w3.scale"); },
       "layers.4.ffn.experts.2.w3.weight", "its scale layers.4.ffn.experts.2.w3.scale F8_E8M0 [32, 2]",
       "no such tensor"},
      {"scale without weight", [](FileTensors& t) { t["layers.0.attn.extra.scale"] = zeros("F8_E8M0", 1, {1, 1}); },
       "layers.0.attn.extra.scale", "its weight layers.0.attn.extra.weight", "no such tensor"},
      {"scale of a plain weight", [](FileTensors& t) { t["embed.scale"] = zeros("F8_E8M0", 1, {3, 2}); }, "embed.scale",
       "no scale of embed.weight, which is BF16", "F8_E8M0 [3, 2]"},
      {"unknown FP8 weight without scale", [](FileTensors& t) { t["x.weight"] = zeros("F8_E4M3", 1, {2, 2}); },
       "x.weight", "its scale x.scale", "no such tensor"},
      {"missing expert",
       [](FileTensors& t) {
         for (const char* part : {"w1", "w2", "w3"}) {
           t.erase(fmt::format("layers.5.ffn.experts.3.{}.weight", part));
           t.erase(fmt::format("layers.5.ffn.experts.3.{}.scale", part));
         }
       },
       "layers.5.ffn.experts.3.w1.weight", "I8 [32, 32]", "no such tensor (3 of"},
      {"wrong dtype", [](FileTensors& t) { t["norm.weight"] = zeros("F16", 2, {64}); }, "norm.weight", "BF16 [64]",
       "F16 [64]"},
      {"F32 where BF16 is declared", [](FileTensors& t) { t["norm.weight"] = zeros("F32", 4, {64}); }, "norm.weight",
       "BF16 [64]", "F32 [64]"},
      {"BF16 where FP8 is declared", [](FileTensors& t) { t["layers.0.attn.wkv.weight"] = zeros("BF16", 2, {32, 64}); },
       "layers.0.attn.wkv.weight", "F8_E4M3 [32, 64]", "BF16 [32, 64]"},
      {"U8 experts", [](FileTensors& t) { t["layers.0.ffn.experts.0.w1.weight"].dtype = "U8"; },
       "layers.0.ffn.experts.0.w1.weight", "I8 [32, 32]", "U8 [32, 32]"},
      {"unpacked experts", [](FileTensors& t) { t["layers.0.ffn.experts.0.w1.weight"] = zeros("I8", 1, {32, 64}); },
       "layers.0.ffn.experts.0.w1.weight", "I8 [32, 32]", "I8 [32, 64]"},
      {"HC tensor not F32", [](FileTensors& t) { t["layers.0.hc_attn_fn"] = zeros("BF16", 2, {8, 128}); },
       "layers.0.hc_attn_fn", "F32 [8, 128]", "BF16 [8, 128]"},
      {"HC base not F32", [](FileTensors& t) { t["mtp.0.hc_ffn_base"] = zeros("F64", 8, {8}); }, "mtp.0.hc_ffn_base",
       "F32 [8]", "F64 [8]"},
      {"sink not F32", [](FileTensors& t) { t["layers.3.attn.attn_sink"] = zeros("BF16", 2, {4}); },
       "layers.3.attn.attn_sink", "F32 [4]", "BF16 [4]"},
      {"router bias not F32", [](FileTensors& t) { t["layers.3.ffn.gate.bias"] = zeros("BF16", 2, {4}); },
       "layers.3.ffn.gate.bias", "F32 [4]", "BF16 [4]"},
      {"transposed", [](FileTensors& t) { t["layers.0.attn.wkv.weight"].shape = {64, 32}; }, "layers.0.attn.wkv.weight",
       "F8_E4M3 [32, 64]", "F8_E4M3 [64, 32]"},
      {"wrong rank", [](FileTensors& t) { t["layers.0.attn_norm.weight"].shape = {1, 64}; },
       "layers.0.attn_norm.weight", "BF16 [64]", "BF16 [1, 64]"},
      {"wrong scale shape", [](FileTensors& t) { t["layers.0.attn.wkv.scale"] = zeros("F8_E8M0", 1, {2, 2}); },
       "layers.0.attn.wkv.scale", "F8_E8M0 [1, 2]", "F8_E8M0 [2, 2]"},
      {"wrong scale dtype", [](FileTensors& t) { t["layers.0.attn.wkv.scale"] = zeros("F32", 4, {1, 2}); },
       "layers.0.attn.wkv.scale", "F8_E8M0 [1, 2]", "F32 [1, 2]"},
      {"too few table rows", [](FileTensors& t) { t["layers.1.engram.embed.weight"] = zeros("F8_E4M3", 1, {303, 32}); },
       "layers.1.engram.embed.weight", "F8_E4M3 [304, 32]", "F8_E4M3 [303, 32]"},
      {"separate hyper-connection norm",
       [](FileTensors& t) { t["layers.0.hc_attn_norm.weight"] = zeros("BF16", 2, {128}); },
       "layers.0.hc_attn_norm.weight", "norms folded into hc_*_fn", "a separate norm"},
  };
  for (const Broken& b : cases) {
    SCOPED_TRACE(b.what);
    Checkpoint c(kSmallV41);
    b.edit(c.tensors);
    const Result<ModelWeights> w = c.bind();
    if (w) {
      ADD_FAILURE() << "accepted";
      continue;
    }
    EXPECT_EQ(w.error().code, Errc::kCorruption);
    EXPECT_THAT(w.error().message,
                AllOf(HasSubstr("model.safetensors: "), HasSubstr(fmt::format("tensor {}: expected ", b.tensor)),
                      HasSubstr(b.expected), HasSubstr(fmt::format("found {}", b.found))));
    EXPECT_EQ(w.error().message.find('\n'), std::string::npos);
  }
}

TEST(Weights, UnknownTensorsAreReported) {
  Checkpoint c(kSmallV41);
  c.tensors["layers.6.attn_norm.weight"] = zeros("BF16", 2, {64});
  c.tensors["layers.0.ffn.experts.4.w1.weight"] = zeros("I8", 1, {32, 32});
  c.tensors["layers.0.ffn.experts.4.w1.scale"] = zeros("F8_E8M0", 1, {32, 2});
  c.tensors["vision.norm.weight"] = zeros("BF16", 2, {64});  // no vision_config
  const Result<ModelWeights> w = c.bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_THAT(w->unknown_tensors, ElementsAre("layers.0.ffn.experts.4.w1.scale", "layers.0.ffn.experts.4.w1.weight",
                                              "layers.6.attn_norm.weight", "vision.norm.weight"));
}

TEST(Weights, BindsTheVisionTower) {
  Json root = parse(kSmallV41);
  edit(
      root, "vision_config",
      R"({"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48, "patch_size": 2,
           "rope_theta": 10000, "downsample_ratio": 3, "max_image_tokens": 16, "min_pixels": 64, "max_wh_ratio": null})");
  Checkpoint c(to_json(root));
  const Result<ModelWeights> w = c.bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->vision.aligner_w1.cols, 32 * 9);
  EXPECT_EQ(w->vision.patch_embed_proj.cols, 12);
  ASSERT_EQ(w->vision.blocks.size(), 2U);
  EXPECT_EQ(w->vision.blocks[1].w1.rows, 96);
  EXPECT_EQ(w->vision.blocks[1].wqkv_bias.cols, 96);
  c.tensors.erase("aligner.w2.bias");
  EXPECT_THAT(c.bind().error().message, HasSubstr("tensor aligner.w2.bias: expected BF16 [64], found no such tensor"));
}

TEST(Weights, BindsTheFixtureCheckpoints) {
  const std::string vectors = vectors_dir() + "/model";
  DI_NEED_VECTORS(vectors);
  for (const char* name : {"v41_tiny_a", "v41_tiny_b", "v41_trained", "v4_tiny_a"}) {
    SCOPED_TRACE(name);
    const std::string folder = vectors + "/" + name;
    const Result<ModelConfig> config = load_config(folder);
    ASSERT_TRUE(config) << config.error().message;
    const Result<Safetensors> file = Safetensors::open(folder);
    ASSERT_TRUE(file) << file.error().message;
    const Result<ModelWeights> w = bind_weights(*config, *make_schedule(*config), *file);
    ASSERT_TRUE(w) << w.error().message;
    EXPECT_TRUE(w->unknown_tensors.empty());
    if (std::string_view(name) != "v4_tiny_a") {
      EXPECT_EQ(w->copied_bytes, 0);
    }
  }
}

}  // namespace
}  // namespace di::model::tests
