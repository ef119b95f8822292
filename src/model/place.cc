#include "model/place.h"

#include <functional>
#include <vector>

#include "model/tensor_list.h"

namespace di::model {
namespace {

constexpr int64_t kAlignment = 256;

int64_t align_up(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// A piece of host data; `point` leads its owner to the copy.
struct Piece {
  const void* from;
  int64_t bytes;
  bool shared;
  std::function<void(const std::byte*)> point;
};

int64_t value_bytes(const Weight& w) {
  const int64_t n = w.rows * w.cols;
  switch (w.format) {
    case kernels::WeightFormat::kF32:
      return n * 4;
    case kernels::WeightFormat::kBf16:
      return n * 2;
    case kernels::WeightFormat::kFp4Row:
      return n / 2;
    case kernels::WeightFormat::kFp8Block:
    case kernels::WeightFormat::kFp8Row:
      return n;
  }
  return 0;
}

int64_t weight_scale_bytes(const Weight& w) {
  if (w.scale == nullptr) return 0;
  if (w.format == kernels::WeightFormat::kFp8Block) {
    return (w.rows + w.block - 1) / w.block * ((w.cols + w.block - 1) / w.block);
  }
  return w.rows * ((w.cols + 31) / 32);
}

std::vector<Piece> list_pieces(const std::vector<TensorSlot>& slots) {
  std::vector<Piece> pieces;
  for (const TensorSlot& slot : slots) {
    if (slot.weight != nullptr && slot.weight->data != nullptr) {
      Weight& w = *slot.weight;
      const bool shared = w.format == kernels::WeightFormat::kFp8Row && value_bytes(w) > kSharedTableBytes;
      pieces.push_back({w.data, value_bytes(w), shared, [&w](const std::byte* at) { w.data = at; }});
      if (w.scale != nullptr) {
        pieces.push_back({w.scale, weight_scale_bytes(w), shared,
                          [&w](const std::byte* at) { w.scale = reinterpret_cast<const uint8_t*>(at); }});
      }
    } else if (slot.f32 != nullptr && *slot.f32 != nullptr) {
      int64_t n = 1;
      for (const int64_t d : slot.shape) n *= d;
      const float** f32 = slot.f32;
      pieces.push_back({*f32, n * 4, false, [f32](const std::byte* at) { *f32 = reinterpret_cast<const float*>(at); }});
    }
    // Expert ids of tokens are read by the host.
  }
  return pieces;
}

int64_t arena_bytes(const std::vector<Piece>& pieces, ModelWeights& weights) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.shared ? 0 : align_up(piece.bytes);
  for (const FfnWeights* f : all_ffn(weights)) {
    total += align_up(static_cast<int64_t>(f->experts.size() * sizeof(ExpertWeights)));
    total += align_up(static_cast<int64_t>(f->owner.size() * sizeof(int32_t)));
  }
  return total;
}

// The experts' tables, from `next` on.
Result<void> place_tables(ModelWeights& weights, device::Device& device, std::byte* next) {
  for (FfnWeights* f : all_ffn(weights)) {
    const size_t bytes = f->experts.size() * sizeof(ExpertWeights);
    if (bytes == 0) continue;
    f->form = kernels::form_of(f->experts.data(), static_cast<int64_t>(f->experts.size()));
    DI_TRY(device.load(next, reinterpret_cast<const std::byte*>(f->experts.data()), bytes));
    f->table = reinterpret_cast<const ExpertWeights*>(next);
    next += align_up(static_cast<int64_t>(bytes));
    if (f->owner.empty()) continue;
    const size_t owner_bytes = f->owner.size() * sizeof(int32_t);
    DI_TRY(device.load(next, reinterpret_cast<const std::byte*>(f->owner.data()), owner_bytes));
    f->owner_table = reinterpret_cast<const int32_t*>(next);
    next += align_up(static_cast<int64_t>(owner_bytes));
  }
  return {};
}

}  // namespace

int64_t placed_bytes(const ModelConfig& config, const Schedule& schedule, ModelWeights& weights,
                     const device::Device& device) {
  if (device.kind() == device::Kind::kHost) return 0;
  return arena_bytes(list_pieces(list_tensors(config, schedule, weights)), weights);
}

Result<device::Buffer> place_weights(const ModelConfig& config, const Schedule& schedule, ModelWeights& weights,
                                     device::Device& device, const device::LoadOptions& options) {
  if (device.kind() == device::Kind::kHost) return device::Buffer{};
  const std::vector<Piece> pieces = list_pieces(list_tensors(config, schedule, weights));
  device::Buffer arena = DI_TRY(device::Buffer::allocate(device, static_cast<size_t>(arena_bytes(pieces, weights))));
  std::byte* next = arena.data();
  std::vector<device::LoadRange> ranges;
  for (const Piece& piece : pieces) {
    const auto* from = static_cast<const std::byte*>(piece.from);
    if (piece.shared) {
      piece.point(DI_TRY(device.share(from, static_cast<size_t>(piece.bytes))));
      continue;
    }
    ranges.push_back({next, from, static_cast<size_t>(piece.bytes)});
    piece.point(next);
    next += align_up(piece.bytes);
  }
  DI_TRY(device::load_ranges(device, ranges, options));
  DI_TRY(place_tables(weights, device, next));
  return arena;
}

}  // namespace di::model
