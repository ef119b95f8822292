#include "model/config.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "base/json.h"
#include "model/engram.h"
#include "model/schedule.h"

namespace di::model {
namespace {

// Bounds of the sizes. They are far above any model of the family and keep every product of them inside int64.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = 1 << 18;
constexpr int64_t kMaxHeads = 1 << 12;
constexpr int64_t kMaxHeadDim = 1 << 12;
constexpr int64_t kMaxExperts = 1 << 14;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxTableRows = int64_t{1} << 36;

std::string found(const Json* value) {
  return value == nullptr ? "nothing" : describe_json(*value);
}

// Typed access to the fields of one object and, for the language model, of the object nested in it. The first failure
// is kept and ends all later reading, so that a list of fields reads as a list.
class Fields {
 public:
  Fields(const Json& top, const Json* nested, const std::string& file, std::string prefix, std::optional<Error>& error)
      : top_(top), nested_(nested), file_(file), prefix_(std::move(prefix)), error_(error) {}

  const Json* find(std::string_view name) const {
    if (const Json* v = top_.find_value(name)) return v;
    return nested_ != nullptr ? nested_->find_value(name) : nullptr;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  void wrong(std::string_view name, std::string_view expected, const std::string& was) {
    if (error_) return;
    error_ = Error{Errc::kInvalidRequest,
                   fmt::format("{}: {}{}: expected {}, found {}", file_, prefix_, name, expected, was)};
  }

  template <class T>
  void integer(std::string_view name, T& out, int64_t low, int64_t high) {
    read_integer(name, out, low, high, true);
  }
  // Keeps the member's value when the field is absent.
  template <class T>
  void integer_or(std::string_view name, T& out, int64_t low, int64_t high) {
    read_integer(name, out, low, high, false);
  }

  void real(std::string_view name, double& out, double low, double high) { read_real(name, out, low, high, true); }
  void real_or(std::string_view name, double& out, double low, double high) { read_real(name, out, low, high, false); }

  void boolean_or(std::string_view name, bool& out) {
    const Json* v = find(name);
    if (v == nullptr) return;
    if (const bool* b = v->if_bool()) {
      out = *b;
    } else {
      wrong(name, "true or false", found(v));
    }
  }

  // The field may be absent; if it is there it must have this value.
  // A literal would rather become a bool than a string_view: hence const char*.
  void only(std::string_view name, const char* value) {
    const Json* v = find(name);
    if (v == nullptr) return;
    const std::string* s = v->if_string();
    if (s == nullptr || *s != value) wrong(name, fmt::format("\"{}\"", value), found(v));
  }
  void only(std::string_view name, bool value) {
    const Json* v = find(name);
    if (v == nullptr) return;
    const bool* b = v->if_bool();
    if (b == nullptr || *b != value) wrong(name, value ? "true" : "false", found(v));
  }
  void only_number(std::string_view name, double value) {
    const Json* v = find(name);
    if (v == nullptr) return;
    const std::optional<double> d = v->to_double();
    if (!d || *d != value) wrong(name, fmt::format("{}", value), found(v));
  }

  template <class T>
  void integers(std::string_view name, std::vector<T>& out, int64_t low, int64_t high, bool required) {
    const Json* v = find(name);
    if (v == nullptr) {
      if (required) wrong(name, "a list of integers", "nothing");
      return;
    }
    const Json::Array* items = v->if_array();
    if (items == nullptr) return wrong(name, "a list of integers", found(v));
    out.clear();
    for (size_t i = 0; i < items->size(); ++i) {
      const std::optional<int64_t> n = (*items)[i].to_i64();
      if (!n || *n < low || *n > high) {
        return wrong(fmt::format("{}[{}]", name, i), fmt::format("an integer from {} to {}", low, high),
                     found(&(*items)[i]));
      }
      out.push_back(static_cast<T>(*n));
    }
  }

  // The fields of an object that is a member of this one; the first failure is shared.
  Fields inside(const Json& object, std::string_view name) const {
    return Fields(object, nullptr, file_, fmt::format("{}.", name), error_);
  }
  bool ok() const { return !error_; }

 private:
  template <class T>
  void read_integer(std::string_view name, T& out, int64_t low, int64_t high, bool required) {
    const Json* v = find(name);
    if (v == nullptr && !required) return;
    const std::optional<int64_t> n = v != nullptr ? v->to_i64() : std::nullopt;
    if (!n || *n < low || *n > high) return wrong(name, fmt::format("an integer from {} to {}", low, high), found(v));
    out = static_cast<T>(*n);
  }
  void read_real(std::string_view name, double& out, double low, double high, bool required) {
    const Json* v = find(name);
    if (v == nullptr && !required) return;
    const std::optional<double> d = v != nullptr ? v->to_double() : std::nullopt;
    if (!d || !(*d >= low) || !(*d <= high))
      return wrong(name, fmt::format("a number from {} to {}", low, high), found(v));
    out = *d;
  }

  const Json& top_;
  const Json* nested_;
  const std::string& file_;
  std::string prefix_;
  std::optional<Error>& error_;
};

// model_type decides; without it `architectures` does.
void read_family(Fields& f, ModelConfig& c) {
  constexpr std::string_view kExpected = "\"deepseek_v41\" or \"deepseek_v4\"";
  if (const Json* type = f.find("model_type")) {
    const std::string* s = type->if_string();
    c.model_type = s != nullptr ? *s : "";
    if (c.model_type == "deepseek_v41" || c.model_type == "deepseek_v41_text") {
      c.family = Family::kV41;
    } else if (c.model_type == "deepseek_v4") {
      c.family = Family::kV4;
    } else {
      f.wrong("model_type", kExpected, found(type));
    }
    return;
  }
  const Json* architectures = f.find("architectures");
  const Json::Array* names = architectures != nullptr ? architectures->if_array() : nullptr;
  const std::string* name = names != nullptr && !names->empty() ? (*names)[0].if_string() : nullptr;
  if (name != nullptr && *name == "DeepseekV41ForCausalLM") {
    c.family = Family::kV41;
    c.model_type = "deepseek_v41";
  } else if (name != nullptr && *name == "DeepseekV4ForCausalLM") {
    c.family = Family::kV4;
    c.model_type = "deepseek_v4";
  } else {
    f.wrong("model_type", kExpected, "nothing");
  }
}

void read_sizes(Fields& f, ModelConfig& c) {
  f.integer("vocab_size", c.vocab_size, 1, kMaxVocab);
  f.integer("hidden_size", c.hidden_size, 1, kMaxWidth);
  f.integer("num_hidden_layers", c.num_hidden_layers, 1, kMaxLayers);
  f.integer("num_attention_heads", c.num_attention_heads, 1, kMaxHeads);
  f.integer("head_dim", c.head_dim, 1, kMaxHeadDim);
  f.integer("qk_rope_head_dim", c.qk_rope_head_dim, 1, kMaxHeadDim);
  f.integer("q_lora_rank", c.q_lora_rank, 1, kMaxWidth);
  f.integer("o_lora_rank", c.o_lora_rank, 1, kMaxWidth);
  f.integer("o_groups", c.o_groups, 1, kMaxHeads);
  f.integer("sliding_window", c.sliding_window, 1, kMaxWidth);
  f.integer("max_position_embeddings", c.max_position_embeddings, 1, kMaxPositions);
  f.real("rms_norm_eps", c.rms_norm_eps, static_cast<double>(std::numeric_limits<float>::min()), 1.0);
  f.real("swiglu_limit", c.swiglu_limit, 1e-6, 1e6);
  f.integer("num_nextn_predict_layers", c.num_nextn_predict_layers, 0, kMaxLayers);

  int32_t one = 1;
  f.integer_or("num_key_value_heads", one, 1, 1);
  f.integer_or("n_shared_experts", one, 1, 1);
  f.only("hidden_act", "silu");
  f.only("scoring_func", "sqrtsoftplus");
  f.only("topk_method", "noaux_tc");
  f.only("norm_topk_prob", true);
  f.only("attention_bias", false);
  f.only_number("attention_dropout", 0.0);
  f.only("tie_word_embeddings", false);
}

void read_attention(Fields& f, ModelConfig& c) {
  f.integers("compress_ratios", c.compress_ratios, std::numeric_limits<int32_t>::min(),
             std::numeric_limits<int32_t>::max(), true);
  if (!f.ok()) return;
  const int64_t last = c.num_hidden_layers - 1;
  if (c.family == Family::kV41) {
    f.integers("kv_source_layer_ids", c.kv_source_layer_ids, 0, last, true);
    f.integers("index_source_layer_ids", c.index_source_layer_ids, 0, last, true);
    std::vector<int32_t> key_sources = c.kv_source_layer_ids;
    f.integers("index_k_source_layer_ids", key_sources, 0, last, false);
    if (f.ok() && key_sources != c.kv_source_layer_ids) {
      f.wrong("index_k_source_layer_ids", "the layers of kv_source_layer_ids",
              found(f.find("index_k_source_layer_ids")));
    }
    f.integer_or("candidate_source_layer_id", c.candidate_source_layer_id, -1, last);
    if (c.candidate_source_layer_id >= 0) {
      f.integer("candidate_topk_blocks", c.candidate_topk_blocks, 1, kMaxVocab);
      f.integer("candidate_block_size", c.candidate_block_size, 1, kMaxWidth);
    }
  } else {
    for (int32_t l = 0; l < c.num_hidden_layers && l < static_cast<int32_t>(c.compress_ratios.size()); ++l) {
      const int32_t r = c.compress_ratios[static_cast<size_t>(l)];
      if (r > 0) c.kv_source_layer_ids.push_back(l);
      if (r == 4) c.index_source_layer_ids.push_back(l);
    }
  }
  if (!c.index_source_layer_ids.empty()) {
    f.integer("index_n_heads", c.index_n_heads, 1, kMaxHeads);
    f.integer("index_head_dim", c.index_head_dim, 1, kMaxHeadDim);
    f.integer("index_topk", c.index_topk, 1, kMaxVocab);
  }
  f.real("rope_theta", c.rope_theta, 1.0 + 1e-9, 1e12);
  if (!c.kv_source_layer_ids.empty()) f.real("compress_rope_theta", c.compress_rope_theta, 1.0 + 1e-9, 1e12);
  f.boolean_or("use_fp4_sparse_kv", c.use_fp4_sparse_kv);
}

void read_rope_scaling(Fields& f, ModelConfig& c) {
  const Json* scaling = f.find("rope_scaling");
  if (scaling == nullptr) return;
  if (!scaling->is_object()) return f.wrong("rope_scaling", "an object", found(scaling));
  Fields r = f.inside(*scaling, "rope_scaling");
  const char* key = scaling->find_value("rope_type") != nullptr ? "rope_type" : "type";
  const Json* type = r.find(key);
  const std::string* name = type != nullptr ? type->if_string() : nullptr;
  if (name == nullptr || *name != "yarn") return f.wrong(fmt::format("rope_scaling.{}", key), "\"yarn\"", found(type));
  RopeScaling& s = c.rope_scaling;
  s.present = true;
  r.real("factor", s.factor, 1.0, 1e6);
  r.real_or("beta_fast", s.beta_fast, 1e-6, 1e9);
  r.real_or("beta_slow", s.beta_slow, 1e-6, 1e9);
  r.integer("original_max_position_embeddings", s.original_max_position_embeddings, 1, kMaxPositions);
}

void read_experts(Fields& f, ModelConfig& c) {
  f.integer("n_routed_experts", c.n_routed_experts, 1, kMaxExperts);
  f.integer("moe_intermediate_size", c.moe_intermediate_size, 1, kMaxWidth);
  if (f.ok()) f.integer("num_experts_per_tok", c.num_experts_per_tok, 1, c.n_routed_experts);
  f.real("routed_scaling_factor", c.routed_scaling_factor, 1e-6, 1e6);
  // V4.1 has no hash layers: its router always scores.
  f.integer_or("num_hash_layers", c.num_hash_layers, 0, c.family == Family::kV4 ? c.num_hidden_layers : 0);
}

void read_hyper_connections(Fields& f, ModelConfig& c) {
  f.integer("hc_mult", c.hc_mult, 1, 16);
  f.integer("hc_sinkhorn_iters", c.hc_sinkhorn_iters, 1, 1000);
  f.real("hc_eps", c.hc_eps, 0.0, 1.0);
  // Two names of one switch. Each family exists in one form only; the tensors of the other form are not declared.
  c.hc_shifted = c.family == Family::kV41;
  f.only("hc_shifted", c.hc_shifted);
  f.only("hc_pre_from_prev_sublayer", c.hc_shifted);
}

void read_engram(Fields& f, ModelConfig& c) {
  f.integers("engram_layer_ids", c.engram_layer_ids, 0, c.num_hidden_layers - 1, false);
  if (c.engram_layer_ids.empty()) return;
  f.integers("engram_num_embeddings", c.engram_num_embeddings, 1, kMaxTableRows, true);
  f.integer("engram_max_ngram_size", c.engram_max_ngram_size, 2, 16);
  f.integer("engram_vocab_size", c.engram_vocab_size, 2, kMaxPositions);
  f.integer("engram_n_heads", c.engram_n_heads, 1, 256);
  f.integer("engram_head_dim", c.engram_head_dim, 1, kMaxHeadDim);
  f.integer("engram_compressed_vocab_size", c.engram_compressed_vocab_size, 1, c.vocab_size);
  c.engram_pad_token_id = c.pad_token_id;
  f.integer_or("engram_pad_token_id", c.engram_pad_token_id, 0, c.vocab_size - 1);
  if (c.engram_pad_token_id < 0) f.wrong("engram_pad_token_id", "a token id", "nothing");
}

void read_draft(Fields& f, ModelConfig& c) {
  if (c.num_nextn_predict_layers == 0) return;
  const bool v41 = c.family == Family::kV41;
  if (!v41 && !f.has("dspark_block_size")) return;  // V4's plain module
  f.integer("dspark_block_size", c.dspark_block_size, 1, 64);
  f.integer("dspark_noise_token_id", c.dspark_noise_token_id, 0, c.vocab_size - 1);
  f.integers("dspark_target_layer_ids", c.dspark_target_layer_ids, 0, c.num_hidden_layers - 1, true);
  if (c.dspark_target_layer_ids.empty()) f.wrong("dspark_target_layer_ids", "at least one layer", "an empty list");
  f.integer("dspark_markov_rank", c.dspark_markov_rank, 1, kMaxWidth);
  c.dspark_n_routed_experts = c.n_routed_experts;
  c.dspark_num_experts_per_tok = c.num_experts_per_tok;
  if (v41) {
    f.integer("dspark_n_routed_experts", c.dspark_n_routed_experts, 1, kMaxExperts);
    f.integer("dspark_num_experts_per_tok", c.dspark_num_experts_per_tok, 1, c.dspark_n_routed_experts);
  } else {  // not every V4 release spells them out
    f.integer_or("dspark_n_routed_experts", c.dspark_n_routed_experts, 1, kMaxExperts);
    f.integer_or("dspark_num_experts_per_tok", c.dspark_num_experts_per_tok, 1, c.dspark_n_routed_experts);
  }
}

void read_tokens(Fields& f, ModelConfig& c) {
  f.integer_or("bos_token_id", c.bos_token_id, 0, c.vocab_size - 1);
  f.integer_or("eos_token_id", c.eos_token_id, 0, c.vocab_size - 1);
  f.integer_or("pad_token_id", c.pad_token_id, 0, c.vocab_size - 1);
  f.integer_or("image_token_id", c.image_token_id, 0, c.vocab_size - 1);
}

void read_quantization(Fields& f, ModelConfig& c) {
  QuantizationConfig& q = c.quantization_config;
  q.weight_block_size = c.family == Family::kV41 ? 32 : 128;
  const Json* object = f.find("quantization_config");
  if (object == nullptr) return;
  if (!object->is_object()) return f.wrong("quantization_config", "an object", found(object));
  Fields r = f.inside(*object, "quantization_config");
  q.present = true;
  r.only("quant_method", "fp8");
  r.only("activation_scheme", "dynamic");
  r.only("scale_fmt", "ue8m0");
  const int32_t block = q.weight_block_size;
  std::vector<int32_t> blocks = {block, block};
  r.integers("weight_block_size", blocks, 1, kMaxWidth, false);
  if (blocks != std::vector<int32_t>{block, block}) {
    r.wrong("weight_block_size", fmt::format("[{}, {}]", block, block),
            to_json(*r.find("weight_block_size"), JsonStyle::kSpaced));
  }
  const bool inside = r.has("expert_dtype");
  Fields& owner = inside ? r : f;
  if (const Json* dtype = owner.find("expert_dtype")) {
    const std::string* name = dtype->if_string();
    if (name != nullptr && *name == "fp8") {
      q.expert_dtype = ExpertDtype::kFp8;
    } else if (name == nullptr || *name != "fp4") {
      owner.wrong("expert_dtype", "\"fp4\" or \"fp8\"", found(dtype));
    }
  }
}

void read_vision(Fields& f, ModelConfig& c) {
  const Json* object = f.find("vision_config");
  if (object == nullptr) return;
  if (!object->is_object()) return f.wrong("vision_config", "an object", found(object));
  Fields r = f.inside(*object, "vision_config");
  VisionConfig v;
  r.integer("num_hidden_layers", v.num_hidden_layers, 1, kMaxLayers);
  r.integer("hidden_size", v.hidden_size, 1, kMaxWidth);
  r.integer("num_attention_heads", v.num_attention_heads, 1, kMaxHeads);
  r.integer("intermediate_size", v.intermediate_size, 1, kMaxWidth);
  r.integer("patch_size", v.patch_size, 1, 1024);
  r.real_or("rope_theta", v.rope_theta, 1.0 + 1e-9, 1e12);
  r.integer("downsample_ratio", v.downsample_ratio, 1, 64);
  r.integer("max_image_tokens", v.max_image_tokens, 1, kMaxVocab);
  r.integer("min_pixels", v.min_pixels, 0, kMaxPositions);
  if (r.has("max_wh_ratio")) r.real("max_wh_ratio", v.max_wh_ratio.emplace(), 1.0, 1e9);
  if (r.ok() && v.hidden_size % v.num_attention_heads != 0) {
    r.wrong("hidden_size", fmt::format("a multiple of num_attention_heads = {}", v.num_attention_heads),
            std::to_string(v.hidden_size));
  }
  c.vision_config = v;
}

// Rules between fields that are not about the layer schedule (those are make_schedule()'s).
void check_sizes(Fields& f, const ModelConfig& c) {
  if (!f.ok()) return;
  if (c.num_attention_heads % c.o_groups != 0) {
    f.wrong("num_attention_heads", fmt::format("a multiple of o_groups = {}", c.o_groups),
            std::to_string(c.num_attention_heads));
  }
  const bool indexed = c.index_head_dim > 0;
  const int32_t rope_limit = indexed ? std::min(c.head_dim, c.index_head_dim) : c.head_dim;
  if (c.qk_rope_head_dim % 2 != 0 || c.qk_rope_head_dim > rope_limit) {
    f.wrong("qk_rope_head_dim",
            indexed ? fmt::format("an even number not above head_dim = {} and index_head_dim = {}", c.head_dim,
                                  c.index_head_dim)
                    : fmt::format("an even number not above head_dim = {}", c.head_dim),
            std::to_string(c.qk_rope_head_dim));
  }
  if (c.family == Family::kV41) {  // groups of the trained KV formats (model.md §4.3)
    if (c.head_dim % 32 != 0) f.wrong("head_dim", "a multiple of 32", std::to_string(c.head_dim));
    if (c.index_head_dim % 32 != 0) f.wrong("index_head_dim", "a multiple of 32", std::to_string(c.index_head_dim));
  }
  if (c.quantization_config.present &&
      c.quantization_config.expert_dtype == ExpertDtype::kFp4) {  // two values per byte
    if (c.hidden_size % 2 != 0) f.wrong("hidden_size", "an even number (FP4 experts)", std::to_string(c.hidden_size));
    if (c.moe_intermediate_size % 2 != 0) {
      f.wrong("moe_intermediate_size", "an even number (FP4 experts)", std::to_string(c.moe_intermediate_size));
    }
  }
}

void check_engram(Fields& f, const ModelConfig& c) {
  const size_t n = c.engram_layer_ids.size();
  if (!f.ok() || n == 0) return;
  if (c.engram_num_embeddings.size() != n) {
    return f.wrong("engram_num_embeddings", fmt::format("{} entries, one per layer of engram_layer_ids", n),
                   fmt::format("{} entries", c.engram_num_embeddings.size()));
  }
  for (size_t i = 1; i < n; ++i) {
    if (c.engram_layer_ids[i] <= c.engram_layer_ids[i - 1]) {
      return f.wrong(fmt::format("engram_layer_ids[{}]", i), fmt::format("a layer above {}", c.engram_layer_ids[i - 1]),
                     std::to_string(c.engram_layer_ids[i]));
    }
  }
  for (size_t i = 0; i < n;
       ++i) {  // every prime exceeds engram_vocab_size - 1: no need to look for primes of a hopeless config
    const int64_t least = c.engram_columns() * c.engram_vocab_size;
    if (c.engram_num_embeddings[i] < least) {
      return f.wrong(fmt::format("engram_num_embeddings[{}]", i),
                     fmt::format("the sum of the layer's {} bucket primes, at least {}", c.engram_columns(), least),
                     std::to_string(c.engram_num_embeddings[i]));
    }
  }
  const std::vector<EngramLayer> layers = engram_layers(c);
  for (size_t i = 0; i < n; ++i) {
    if (layers[i].rows != c.engram_num_embeddings[i]) {
      return f.wrong(fmt::format("engram_num_embeddings[{}]", i),
                     fmt::format("{}, the sum of the bucket primes of layer {}", layers[i].rows, layers[i].layer),
                     std::to_string(c.engram_num_embeddings[i]));
    }
  }
}

}  // namespace

std::string_view to_string(Family family) {
  return family == Family::kV41 ? "V4.1" : "V4";
}

Result<ModelConfig> parse_config(const Json& root, const std::string& file) {
  if (!root.is_object())
    return fail(Errc::kInvalidRequest, "{}: expected an object, found {}", file, describe_json(root));
  const Json* text = root.find_value("text_config");
  if (text != nullptr && !text->is_object()) {
    return fail(Errc::kInvalidRequest, "{}: text_config: expected an object, found {}", file, describe_json(*text));
  }
  std::optional<Error> error;
  Fields f(root, text, file, "", error);
  ModelConfig c;
  read_family(f, c);
  for (const auto read : {read_sizes, read_attention, read_rope_scaling, read_experts, read_hyper_connections,
                          read_tokens, read_engram, read_draft, read_quantization, read_vision}) {
    if (f.ok()) read(f, c);  // later parts use the ranges of earlier ones
  }
  check_sizes(f, c);
  if (f.ok()) {
    if (Result<Schedule> schedule = make_schedule(c); !schedule) {
      return fail(Errc::kInvalidRequest, "{}: {}", file, schedule.error().message);
    }
  }
  check_engram(f, c);
  if (error) return std::unexpected(*std::move(error));
  return c;
}

Result<ModelConfig> load_config(const std::string& path) {
  struct stat info = {};
  const bool folder = stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  const std::string file = folder ? path + "/config.json" : path;
  if (stat(file.c_str(), &info) != 0)
    return fail(Errc::kNotFound, "{}: expected a model's config.json, found no such file", file);
  const Json root = DI_TRY(parse_json_file(file));
  return parse_config(root, file);
}

}  // namespace di::model
