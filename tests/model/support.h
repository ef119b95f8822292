// Small configs and checkpoints made by the tests themselves, in a temporary folder, to be broken one rule at a time.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/schedule.h"
#include "model/tensor_list.h"
#include "support/folders.h"

namespace di::model::tests {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "di-model-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A V4.1 config with every feature at small width, in the nested form.
inline constexpr std::string_view kSmallV41 = R"({
 "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
 "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 95, "tie_word_embeddings": false,
 "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                         "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
 "text_config": {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
  "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 8, "q_lora_rank": 32, "o_lora_rank": 16, "o_groups": 2,
  "sliding_window": 8, "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0], "kv_source_layer_ids": [1, 3],
  "index_source_layer_ids": [1, 3, 5], "candidate_source_layer_id": 3, "candidate_topk_blocks": 8,
  "candidate_block_size": 2, "index_n_heads": 2, "index_head_dim": 32, "index_topk": 6, "rope_theta": 10000.0,
  "compress_rope_theta": 160000.0, "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
  "original_max_position_embeddings": 65536}, "max_position_embeddings": 4096, "rms_norm_eps": 1e-20,
  "hidden_act": "silu", "swiglu_limit": 10.0, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
  "num_experts_per_tok": 2, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
  "routed_scaling_factor": 1.5, "hc_mult": 2, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [1, 2],
  "engram_num_embeddings": [304, 462], "engram_max_ngram_size": 4, "engram_vocab_size": 40, "engram_n_heads": 2,
  "engram_head_dim": 32, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 96, "num_nextn_predict_layers": 2,
  "dspark_block_size": 3, "dspark_noise_token_id": 90, "dspark_target_layer_ids": [4, 5], "dspark_markov_rank": 8,
  "dspark_n_routed_experts": 2, "dspark_num_experts_per_tok": 1, "attention_bias": false, "attention_dropout": 0.0}})";

// A V4 config in the flat form, quantised.
inline constexpr std::string_view kSmallV4 = R"({
 "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 96, "hidden_size": 64,
 "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 8,
 "q_lora_rank": 32, "o_lora_rank": 16, "o_groups": 2, "sliding_window": 8, "compress_ratios": [0, 4, 128, 4, 0],
 "index_n_heads": 2, "index_head_dim": 32, "index_topk": 6, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
 "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
 "original_max_position_embeddings": 65536}, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
 "swiglu_limit": 10.0, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
 "scoring_func": "sqrtsoftplus", "routed_scaling_factor": 1.5, "num_hash_layers": 1, "hc_mult": 2,
 "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "num_nextn_predict_layers": 1, "expert_dtype": "fp4",
 "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
 "scale_fmt": "ue8m0"}})";

inline Json parse(std::string_view text) {
  Result<Json> json = parse_json(text);
  EXPECT_TRUE(json.has_value()) << json.error().message << " in " << text;
  return *json;
}

inline void erase(Json& object, std::string_view key) {
  std::erase_if(object.as_object(), [&](const JsonMember& m) { return m.key == key; });
}

// Sets a field of the config, "a.b" inside the object a; a field of the language model is found where it lies. "-"
// erases.
inline void edit(Json& root, std::string_view path, std::string_view value) {
  Json* object = &root;
  const size_t dot = path.find('.');
  Json* text = root.find("text_config");
  if (dot != std::string_view::npos) {
    const std::string_view outer = path.substr(0, dot);
    object = root.find(outer) != nullptr ? root.find(outer) : text->find(outer);
    path = path.substr(dot + 1);
  } else if (text != nullptr && root.find(path) == nullptr) {
    object = text;
  }
  if (value == "-") {
    erase(*object, path);
  } else {
    object->set(path, parse(value));
  }
}

inline ModelConfig config_of(std::string_view text) {
  Result<ModelConfig> config = parse_config(parse(text), "config.json");
  EXPECT_TRUE(config.has_value()) << config.error().message;
  return *config;
}

// A tensor to be written, with its name and bytes.
struct FileTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data;
};
using FileTensors = std::map<std::string, FileTensor>;

inline int64_t elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return n;
}

inline FileTensor zeros(std::string dtype, int64_t size, std::vector<int64_t> shape) {
  const auto bytes = static_cast<size_t>(size * elements(shape));
  return FileTensor{std::move(dtype), std::move(shape), std::string(bytes, '\0')};
}

// A whole safetensors file: the given header, its length before it, the data behind it.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string out(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  out += header;
  out += data;
  return out;
}

inline std::string safetensors_bytes(const FileTensors& tensors) {
  std::string header;
  std::string data;
  JsonWriter w(header);
  w.begin_object();
  for (const auto& [name, t] : tensors) {
    w.key(name).begin_object().key("dtype").value(t.dtype).key("shape").begin_array();
    for (const int64_t s : t.shape) w.value(s);
    w.end_array().key("data_offsets").begin_array().value(data.size()).value(data.size() + t.data.size()).end_array();
    w.end_object();
    data += t.data;
  }
  w.end_object();
  header.append((8 - header.size() % 8) % 8, ' ');
  return safetensors_bytes(header, data);
}

// Every tensor that a config declares, in its declared format. Bytes count up, so that each place differs.
inline FileTensors checkpoint_of(const ModelConfig& config) {
  ModelWeights unbound;
  const Schedule schedule = *make_schedule(config);
  FileTensors out;
  auto fill = [n = 0U](std::string data) mutable {
    for (char& c : data) c = static_cast<char>(++n % 61);
    return data;
  };
  for (const TensorSlot& slot : list_tensors(config, schedule, unbound)) {
    const char* dtype = "BF16";
    int64_t size = 2;
    if (slot.kind == TensorKind::kF32) dtype = "F32", size = 4;
    if (slot.kind == TensorKind::kFp8Block || slot.kind == TensorKind::kFp8Row) dtype = "F8_E4M3", size = 1;
    if (slot.kind == TensorKind::kFp4Row) dtype = "I8", size = 1;
    if (slot.kind == TensorKind::kExpertIds) dtype = "I64", size = 8;
    FileTensor t = zeros(dtype, size, slot.stored_shape());
    if (slot.kind != TensorKind::kExpertIds) t.data = fill(std::move(t.data));
    out[slot.name] = std::move(t);
    if (slot.has_scale()) {
      FileTensor s = zeros("F8_E8M0", 1, slot.scale_shape(config.quantization_config.weight_block_size));
      s.data = fill(std::move(s.data));
      out[slot.scale_name()] = std::move(s);
    }
  }
  return out;
}

inline std::string vectors_dir() {
  const char* set = std::getenv("DEEPINFER_VECTORS");
  return set != nullptr ? set : di::test::kVectors;
}

#define DI_NEED_VECTORS(folder)                                                                               \
  if (!std::filesystem::exists(folder)) {                                                                     \
    GTEST_SKIP() << "reference vectors not found at " << (folder) << " (set DEEPINFER_VECTORS to have them)"; \
  }

}  // namespace di::model::tests
