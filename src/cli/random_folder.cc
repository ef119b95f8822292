#include "cli/random_folder.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "model/tensor_list.h"

namespace di::cli {
namespace {

namespace fs = std::filesystem;
using model::TensorKind;
using model::TensorSlot;

// One tensor of the file.
struct Stored {
  std::string name;
  const char* type;
  std::vector<int64_t> shape;
  int64_t bytes;
};

const char* type_of(TensorKind kind) {
  switch (kind) {
    case TensorKind::kBf16:
      return "BF16";
    case TensorKind::kF32:
      return "F32";
    case TensorKind::kFp8Block:
    case TensorKind::kFp8Row:
      return "F8_E4M3";
    case TensorKind::kFp4Row:
      return "I8";
    case TensorKind::kExpertIds:
      return "I32";
  }
  return "";
}

int64_t element_bytes(TensorKind kind) {
  return kind == TensorKind::kF32 || kind == TensorKind::kExpertIds ? 4 : kind == TensorKind::kBf16 ? 2 : 1;
}

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return n;
}

// 1 MiB of a type's values; a tensor begins anywhere in it, so that no two are equal.
class Values {
 public:
  static constexpr size_t kWords = 1 << 18;

  explicit Values(const char* type) : words_(2 * kWords) {
    std::mt19937 random(1);
    const std::string_view t = type;
    for (uint32_t& w : words_) {
      const auto r = static_cast<uint32_t>(random());
      w = t == "F8_E4M3"   ? (r & 0x87878787U) | 0x30303030U  // ±[1/2, 1)
          : t == "F8_E8M0" ? 0x78787878U                      // 2^-7
          : t == "BF16"    ? (r & 0x807f807fU) | 0x3c003c00U  // ±[2^-7, 2^-6)
          : t == "F32"     ? (r & 0x807fffffU) | 0x3b000000U  // ±[2^-9, 2^-8)
          : t == "I32"     ? 0U
                           : r;
    }
  }

  void write(std::ostream& out, int64_t bytes) {
    while (bytes > 0) {
      const int64_t n = std::min(bytes, static_cast<int64_t>(kWords * sizeof(uint32_t)));
      out.write(reinterpret_cast<const char*>(words_.data() + random_() % kWords), n);
      bytes -= n;
    }
  }

 private:
  std::vector<uint32_t> words_;
  std::mt19937 random_{2};
};

Result<void> write_weights(const model::ModelConfig& config, const std::string& path) {
  const model::Schedule schedule = DI_TRY(model::make_schedule(config));
  model::ModelWeights weights;
  const int32_t block = config.quantization_config.weight_block_size;
  std::vector<Stored> tensors;
  for (const TensorSlot& slot : model::list_tensors(config, schedule, weights)) {
    if (slot.optional) continue;
    const std::vector<int64_t> shape = slot.stored_shape();
    tensors.push_back({slot.name, type_of(slot.kind), shape, product(shape) * element_bytes(slot.kind)});
    if (!slot.has_scale()) continue;
    const std::vector<int64_t> scale = slot.scale_shape(block);
    tensors.push_back({slot.scale_name(), "F8_E8M0", scale, product(scale)});
  }
  Json header;
  int64_t at = 0;
  for (const Stored& t : tensors) {
    Json entry;
    entry.set("dtype", t.type);
    Json shape(Json::Array{});
    for (const int64_t s : t.shape) shape.push_back(s);
    entry.set("shape", std::move(shape));
    entry.set("data_offsets", Json(Json::Array{at, at + t.bytes}));
    header.set(t.name, std::move(entry));
    at += t.bytes;
  }
  std::string text = to_json(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto size = static_cast<uint64_t>(text.size());
  char prefix[sizeof size];
  std::memcpy(prefix, &size, sizeof size);  // little-endian, as every machine this runs on
  std::ofstream out(path, std::ios::binary);
  out.write(prefix, sizeof prefix);
  out << text;
  std::vector<std::pair<std::string_view, Values>> kinds;
  for (const Stored& t : tensors) {
    auto known = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == t.type; });
    if (known == kinds.end()) known = kinds.emplace(kinds.end(), t.type, Values(t.type));
    known->second.write(out, t.bytes);
  }
  out.flush();
  if (!out) return fail(Errc::kResourceExhausted, "{}: {} bytes cannot be written", path, at);
  return {};
}

}  // namespace

double StepWork::bytes(double rows) const {
  return dense_bytes + expert_bytes * (1 - std::pow(1 - selected, rows));
}

Result<StepWork> step_work(const std::string& folder) {
  const model::ModelConfig config = DI_TRY(model::load_config(folder));
  const model::Schedule schedule = DI_TRY(model::make_schedule(config));
  model::ModelWeights weights;
  StepWork work;
  work.selected = static_cast<double>(config.num_experts_per_tok) / config.n_routed_experts;
  const int32_t block = config.quantization_config.weight_block_size;
  for (const TensorSlot& slot : model::list_tensors(config, schedule, weights)) {
    const auto bytes = static_cast<double>(slot.stored_bytes(block));
    switch (slot.group) {
      case model::TensorClass::kRoutedExpert:
        work.expert_bytes += bytes;
        break;
      case model::TensorClass::kEngramTable:
      case model::TensorClass::kDraft:
      case model::TensorClass::kVision:
        break;
      case model::TensorClass::kEmbedding:
        if (slot.name.starts_with("head")) work.dense_bytes += bytes;
        break;
      default:
        work.dense_bytes += bytes;
    }
  }
  work.row_flops = 2 * static_cast<double>(model::count_parameters(config, schedule).active_decode);
  return work;
}

Result<void> write_random_folder(const std::string& base, const Json& widths, const fs::path& folder) {
  Json config = DI_TRY(parse_json_file((fs::path(base) / "config.json").string()));
  const auto put = [&widths](Json& object) {
    for (const JsonMember& m : widths.as_object()) {
      if (m.value.is_null()) {
        std::erase_if(object.as_object(), [&](const JsonMember& own) { return own.key == m.key; });
      } else {
        object.set(m.key, m.value);
      }
    }
  };
  if (Json* text = config.find("text_config"); text == nullptr) {
    put(config);
  } else {
    put(*text);
    for (const JsonMember& m : widths.as_object()) {
      std::erase_if(config.as_object(), [&](const JsonMember& own) { return own.key == m.key; });
    }
  }
  Json* text = config.find("text_config");
  Json& members = text != nullptr ? *text : config;
  for (const char* none : {"engram_layer_ids", "engram_num_embeddings"}) members.set(none, Json(Json::Array{}));
  // One ratio a layer; those of the draft layers follow.
  const int64_t layers = DI_TRY(json_i64(members, "num_hidden_layers"));
  if (Json* ratios = members.find("compress_ratios"); ratios != nullptr && ratios->is_array()) {
    ratios->as_array().resize(static_cast<size_t>(layers));
  }
  members.set("num_nextn_predict_layers", 0);
  const fs::path path = folder / "config.json";
  std::ofstream out(path);
  out << to_json(config);
  out.close();
  if (!out) return fail(Errc::kResourceExhausted, "{}: cannot be written", path.string());
  std::error_code failed;
  fs::copy_file(fs::path(base) / "tokenizer.json", folder / "tokenizer.json", failed);
  if (failed) return fail(Errc::kInvalidRequest, "{}/tokenizer.json: cannot be copied: {}", base, failed.message());
  return write_weights(DI_TRY(model::load_config(folder.string())), (folder / "model.safetensors").string());
}

Result<TemporaryFolder> TemporaryFolder::create() {
  std::error_code failed;
  std::string path = (fs::temp_directory_path(failed) / "deepinfer-XXXXXX").string();
  if (failed || mkdtemp(path.data()) == nullptr) {
    return fail(Errc::kResourceExhausted, "{}: a temporary folder cannot be made", path);
  }
  return TemporaryFolder(path);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace di::cli
