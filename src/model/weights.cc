#include "model/weights.h"

#include <algorithm>
#include <cstring>

#include "model/tensor_list.h"

namespace di::model {
namespace {

using kernels::WeightFormat;

std::string describe(const TensorView& t) {
  return fmt::format("{} {}", to_string(t.dtype), shape_text(t.shape));
}

bool same_shape(const TensorView& t, const std::vector<int64_t>& shape) {
  return std::equal(t.shape.begin(), t.shape.end(), shape.begin(), shape.end());
}

// `hc_attn_norm.weight` and the like: norm weights that were not folded into hc_*_fn.
bool is_hc_norm(std::string_view name) {
  constexpr std::string_view kEnd = "_norm.weight";
  if (!name.ends_with(kEnd)) return false;
  const size_t dot = name.rfind('.', name.size() - kEnd.size() - 1);
  return name.substr(dot == std::string_view::npos ? 0 : dot + 1).starts_with("hc_");
}

class Binder {
 public:
  Binder(const ModelConfig& config, const Safetensors& checkpoint, ModelWeights& out)
      : c_(config), file_(checkpoint), out_(out), used_(checkpoint.tensors().size(), false) {}

  Result<void> bind_all(const std::vector<TensorSlot>& slots) {
    DI_TRY(check_presence(slots));
    for (const TensorSlot& slot : slots) DI_TRY(bind(slot));
    return check_rest();
  }

 private:
  // Missing tensors first, so that an incomplete download is reported as such, with their number.
  Result<void> check_presence(const std::vector<TensorSlot>& slots) {
    const TensorSlot* first = nullptr;
    int64_t missing = 0;
    for (const TensorSlot& slot : slots) {
      if (slot.optional || file_.find(slot.name) != nullptr) continue;
      if (first == nullptr) first = &slot;
      ++missing;
    }
    if (first == nullptr) return {};
    return fail(Errc::kCorruption,
                "{}: tensor {}: expected {} {}, found no such tensor ({} of {} declared tensors are missing)",
                file_.path(), first->name, expected_types(*first), shape_text(first->stored_shape()), missing,
                slots.size());
  }

  std::string_view expected_types(const TensorSlot& slot) const {
    switch (slot.kind) {
      case TensorKind::kBf16:
        return plain_f32_allowed() ? "BF16 or F32" : "BF16";
      case TensorKind::kF32:
        return "F32";
      case TensorKind::kFp8Block:
      case TensorKind::kFp8Row:
        return "F8_E4M3";
      case TensorKind::kFp4Row:
        return "I8";
      case TensorKind::kExpertIds:
        return "I32 or I64";
    }
    return "?";
  }

  bool plain_f32_allowed() const { return !c_.quantization_config.present || c_.family == Family::kV4; }

  bool accepts(const TensorSlot& slot, StoredType type) const {
    switch (slot.kind) {
      case TensorKind::kBf16:
        return type == StoredType::kBf16 || (type == StoredType::kF32 && plain_f32_allowed());
      case TensorKind::kF32:
        return type == StoredType::kF32;
      case TensorKind::kFp8Block:
      case TensorKind::kFp8Row:
        return type == StoredType::kF8E4m3;
      case TensorKind::kFp4Row:
        return type == StoredType::kI8;
      case TensorKind::kExpertIds:
        return type == StoredType::kI32 || type == StoredType::kI64;
    }
    return false;
  }

  Result<void> bind(const TensorSlot& slot) {
    const TensorView* view = file_.find(slot.name);
    if (view == nullptr) return {};  // optional
    const TensorView& t = *view;
    mark(t);
    const std::vector<int64_t> shape = slot.stored_shape();
    if (!accepts(slot, t.dtype) || !same_shape(t, shape)) {
      return fail(Errc::kCorruption, "{}: tensor {}: expected {} {}, found {}", t.file, t.name, expected_types(slot),
                  shape_text(shape), describe(t));
    }
    if (slot.kind == TensorKind::kExpertIds) return bind_ids(slot, t);
    const std::byte* data = aligned(t);
    if (slot.f32 != nullptr) {
      *slot.f32 = reinterpret_cast<const float*>(data);
      return {};
    }
    Weight& w = *slot.weight;
    w.data = data;
    w.rows = slot.shape.size() == 1 ? 1 : slot.shape[0];
    w.cols = slot.shape.back();
    switch (slot.kind) {
      case TensorKind::kFp8Block:
        w.format = WeightFormat::kFp8Block;
        break;
      case TensorKind::kFp8Row:
        w.format = WeightFormat::kFp8Row;
        break;
      case TensorKind::kFp4Row:
        w.format = WeightFormat::kFp4Row;
        break;
      default:
        w.format = t.dtype == StoredType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
        break;
    }
    if (slot.has_scale()) {
      if (slot.kind == TensorKind::kFp8Block) w.block = c_.quantization_config.weight_block_size;
      w.scale = DI_TRY(bind_scale(slot, t));
    }
    return {};
  }

  Result<const uint8_t*> bind_scale(const TensorSlot& slot, const TensorView& weight) {
    const std::vector<int64_t> shape = slot.scale_shape(c_.quantization_config.weight_block_size);
    const TensorView* s = file_.find(slot.scale_name());
    if (s == nullptr) {
      return fail(Errc::kCorruption, "{}: tensor {}: expected its scale {} F8_E8M0 {}, found no such tensor",
                  weight.file, weight.name, slot.scale_name(), shape_text(shape));
    }
    mark(*s);
    if (s->dtype != StoredType::kF8E8m0 || !same_shape(*s, shape)) {
      return fail(Errc::kCorruption, "{}: tensor {}: expected F8_E8M0 {}, found {}", s->file, s->name,
                  shape_text(shape), describe(*s));
    }
    out_.mapped_bytes += s->bytes;
    return reinterpret_cast<const uint8_t*>(s->data);
  }

  // tid2eid as int32; ids are checked once here, so that a router may index with them.
  Result<void> bind_ids(const TensorSlot& slot, const TensorView& t) {
    const auto n = static_cast<size_t>(t.shape[0] * t.shape[1]);
    std::vector<std::byte>& copy = out_.owned.emplace_back(n * sizeof(int32_t));
    auto* ids = reinterpret_cast<int32_t*>(copy.data());
    for (size_t i = 0; i < n; ++i) {
      int64_t id = 0;
      if (t.dtype == StoredType::kI64) {
        std::memcpy(&id, t.data + i * 8, 8);
      } else {
        int32_t narrow = 0;
        std::memcpy(&narrow, t.data + i * 4, 4);
        id = narrow;
      }
      if (id < 0 || id >= c_.n_routed_experts) {
        return fail(Errc::kCorruption, "{}: tensor {}: expected expert ids from 0 to {}, found {} for token {}", t.file,
                    t.name, c_.n_routed_experts - 1, id, i / static_cast<size_t>(t.shape[1]));
      }
      ids[i] = static_cast<int32_t>(id);
    }
    out_.copied_bytes += static_cast<int64_t>(copy.size());
    *slot.ids = ids;
    return {};
  }

  // The tensor's bytes, copied only if the file does not align them to their elements.
  const std::byte* aligned(const TensorView& t) {
    if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(size_of(t.dtype)) == 0) {
      out_.mapped_bytes += t.bytes;
      return t.data;
    }
    out_.copied_bytes += t.bytes;
    return out_.owned.emplace_back(t.data, t.data + t.bytes).data();
  }

  void mark(const TensorView& t) { used_[static_cast<size_t>(&t - file_.tensors().data())] = true; }
  bool used(const TensorView& t) const { return used_[static_cast<size_t>(&t - file_.tensors().data())]; }

  // What was not declared: an error where it says that the checkpoint is of another form, else reported.
  Result<void> check_rest() {
    constexpr std::string_view kScale = ".scale";
    for (const TensorView& t : file_.tensors()) {
      if (used(t)) continue;
      if (is_hc_norm(t.name)) {
        return fail(Errc::kCorruption,
                    "{}: tensor {}: expected hyper-connection norms folded into hc_*_fn, found a separate norm", t.file,
                    t.name);
      }
      if (t.name.ends_with(kScale)) {
        const std::string weight = fmt::format("{}.weight", t.name.substr(0, t.name.size() - kScale.size()));
        const TensorView* w = file_.find(weight);
        if (w == nullptr) {
          return fail(Errc::kCorruption, "{}: tensor {}: expected its weight {}, found no such tensor", t.file, t.name,
                      weight);
        }
        if (used(*w)) {
          return fail(Errc::kCorruption, "{}: tensor {}: expected no scale of {}, which is {}, found {}", t.file,
                      t.name, weight, to_string(w->dtype), describe(t));
        }
      }
      if (t.dtype == StoredType::kF8E4m3 && t.name.ends_with(".weight")) {
        const std::string scale = fmt::format("{}{}", t.name.substr(0, t.name.size() - 7), kScale);
        if (file_.find(scale) == nullptr) {
          return fail(Errc::kCorruption, "{}: tensor {}: expected its scale {}, found no such tensor", t.file, t.name,
                      scale);
        }
      }
      out_.unknown_tensors.emplace_back(t.name);
    }
    return {};
  }

  const ModelConfig& c_;
  const Safetensors& file_;
  ModelWeights& out_;
  std::vector<bool> used_;
};

}  // namespace

std::vector<FfnWeights*> all_ffn(ModelWeights& weights) {
  std::vector<FfnWeights*> out;
  for (LayerWeights& layer : weights.layers) out.push_back(&layer.ffn);
  for (MtpWeights& layer : weights.mtp) out.push_back(&layer.block.ffn);
  return out;
}

int32_t expert_owner(int64_t e, int64_t n, int32_t ranks) {
  return static_cast<int32_t>(((e + 1) * ranks - 1) / n);
}

void keep_experts(ModelWeights& weights, int32_t rank, int32_t ranks) {
  for (FfnWeights* f : all_ffn(weights)) {
    const auto n = static_cast<int64_t>(f->experts.size());
    f->owner.clear();
    for (int64_t e = 0; e < n; ++e) {
      f->owner.push_back(expert_owner(e, n, ranks));
      if (f->owner.back() == rank) continue;
      ExpertWeights& expert = f->experts[static_cast<size_t>(e)];
      for (Weight* w : {&expert.w1, &expert.w3, &expert.w2}) {
        w->data = nullptr;
        w->scale = nullptr;
      }
    }
    f->owner_table = f->owner.data();
  }
}

Result<ModelWeights> bind_weights(const ModelConfig& config, const Schedule& schedule, const Safetensors& checkpoint) {
  ModelWeights out;
  const std::vector<TensorSlot> slots = list_tensors(config, schedule, out);
  DI_TRY(Binder(config, checkpoint, out).bind_all(slots));
  tabulate_experts(out);
  return out;
}

}  // namespace di::model
