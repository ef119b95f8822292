#include "model/verify.h"

#include <cstring>

#include "model/tensor_list.h"
#include "model/weights.h"

namespace di::model {
namespace {

struct BadValues {
  int64_t number = 0;
  int64_t first = -1;
};

// Counts the elements for which `bad` holds of their bits.
template <class Bits, class Bad>
BadValues scan(const TensorView& t, Bad bad) {
  BadValues out;
  const int64_t n = t.bytes / static_cast<int64_t>(sizeof(Bits));
  for (int64_t i = 0; i < n; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, t.data + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    if (!bad(bits)) continue;
    if (out.first < 0) out.first = i;
    ++out.number;
  }
  return out;
}

BadValues bad_values(const TensorView& t) {
  constexpr uint32_t kExponent32 = 0x7f800000U;
  constexpr uint32_t kExponent16 = 0x7f80U;
  switch (t.dtype) {
    case StoredType::kF32: {
      constexpr uint32_t kMinusInfinity = 0xff800000U;
      const bool sink = t.name.ends_with(".attn_sink");  // padded heads
      return scan<uint32_t>(
          t, [sink](uint32_t b) { return (b & kExponent32) == kExponent32 && !(sink && b == kMinusInfinity); });
    }
    case StoredType::kBf16:
      return scan<uint16_t>(t, [](uint16_t b) { return (b & kExponent16) == kExponent16; });
    case StoredType::kF8E4m3:
      return scan<uint8_t>(t, [](uint8_t b) { return (b & 0x7fU) == 0x7fU; });
    case StoredType::kF8E8m0:
      return scan<uint8_t>(t, [](uint8_t b) { return b == 0xffU; });
    default:
      return {};
  }
}

std::string place_text(const TensorView& t, int64_t index) {
  std::vector<int64_t> place(t.shape.size());
  for (size_t i = place.size(); i-- > 0;) {
    place[i] = index % t.shape[i];
    index /= t.shape[i];
  }
  return shape_text(place);
}

}  // namespace

Result<VerifyReport> verify_checkpoint(const ModelConfig& config, const Safetensors& checkpoint,
                                       std::span<const TokenText> tokens, const VerifyProgress& progress) {
  const Schedule schedule = DI_TRY(make_schedule(config));
  ModelWeights weights = DI_TRY(bind_weights(config, schedule, checkpoint));
  VerifyReport report;
  report.unknown_tensors = std::move(weights.unknown_tensors);
  if (!tokens.empty()) {
    if (const Result<EngramTables> tables = make_engram_tables(config, tokens); !tables) {
      report.problems.push_back(tables.error().message);
    }
  }
  std::vector<const TensorView*> views;
  int64_t total = 0;
  ModelWeights unbound;
  for (const TensorSlot& slot : list_tensors(config, schedule, unbound)) {
    for (const std::string& name : {slot.name, slot.has_scale() ? slot.scale_name() : std::string()}) {
      const TensorView* view = name.empty() ? nullptr : checkpoint.find(name);
      if (view == nullptr) continue;  // an optional tensor
      views.push_back(view);
      total += view->bytes;
    }
  }
  for (const TensorView* t : views) {
    const BadValues bad = bad_values(*t);
    if (bad.number > 0) {
      report.problems.push_back(
          fmt::format("{}: tensor {}: expected finite numbers, found {} that are not, the first at {}", t->file,
                      t->name, bad.number, place_text(*t, bad.first)));
    }
    ++report.tensors;
    report.bytes += t->bytes;
    if (progress) progress(report.bytes, total);
  }
  return report;
}

}  // namespace di::model
