#include "model/cache.h"

namespace di::model {
namespace {

int64_t align_up(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

int32_t CacheLayout::plane_of(int32_t layer) const {
  for (size_t i = 0; i < planes.size(); ++i) {
    if (planes[i].layer == layer) return static_cast<int32_t>(i);
  }
  return -1;
}

std::string layout_descriptor(const CacheLayout& layout) {
  const auto plane_text = [](int32_t layer, const char* kind, int32_t ratio, int64_t record, const std::string& form) {
    return fmt::format(R"({{"fmt":"{}","k":"{}","l":{},"ratio":{},"rec":{},"scale":"interleaved"}})", form, kind, layer,
                       ratio, record);
  };
  const auto form = [](kernels::KvFormat format, int32_t width) {
    switch (format) {
      case kernels::KvFormat::kF32:
        return fmt::format("f32_{}", width);
      case kernels::KvFormat::kE4m3Ue8m0:
        return fmt::format("mxfp8_{}", width);
      case kernels::KvFormat::kE2m1E4m3:
        return fmt::format("nvfp4_{}", width);
      case kernels::KvFormat::kE2m1Ue8m0:
        return fmt::format("mxfp4_{}", width);
    }
    return std::string();
  };
  std::string planes;
  for (const CacheLayout::Plane& p : layout.planes) {
    if (!planes.empty()) planes += ",";
    planes += plane_text(p.layer, "ckv", p.ratio, kernels::record_bytes(layout.main_format, layout.head_dim),
                         form(layout.main_format, layout.head_dim));
    if (p.index_offset < 0) continue;
    planes +=
        "," + plane_text(p.layer, "idx", p.ratio, kernels::record_bytes(layout.index_format, layout.index_head_dim),
                         form(layout.index_format, layout.index_head_dim));
  }
  return fmt::format(R"({{"block":{},"planes":[{}],"v":1}})", layout.options.block_tokens, planes);
}

Result<CacheLayout> make_cache_layout(const ModelConfig& config, const Schedule& schedule,
                                      const CacheOptions& options) {
  CacheLayout layout;
  layout.options = options;
  layout.head_dim = config.head_dim;
  layout.index_head_dim = config.index_head_dim;
  if (options.kv_quant) {
    layout.swa_format = kernels::KvFormat::kE4m3Ue8m0;
    layout.main_format = options.fp4_main ? kernels::KvFormat::kE2m1E4m3 : kernels::KvFormat::kE4m3Ue8m0;
    layout.index_format = kernels::KvFormat::kE2m1Ue8m0;
    if (config.head_dim % 32 != 0 || config.index_head_dim % 32 != 0) {
      return fail(
          Errc::kInvalidRequest,
          "KV quantisation works on groups of 32 channels: head_dim {} and index_head_dim {} must be multiples of 32",
          config.head_dim, config.index_head_dim);
    }
  }
  layout.ring_rows = config.sliding_window + options.max_backtracking;
  layout.n_rings = static_cast<int32_t>(schedule.layers.size()) + config.num_nextn_predict_layers;
  layout.ring_bytes = align_up(kernels::record_bytes(layout.swa_format, config.head_dim) * layout.ring_rows, 64);

  int64_t slot = layout.ring_bytes * layout.n_rings;
  int64_t block = 0;
  const auto reserve_state = [&](int32_t rows, int32_t width) {
    if (rows == 0 || width == 0) return int64_t{-1};
    const int64_t offset = slot;
    slot = align_up(slot + int64_t{rows} * 2 * width * 4, 64);
    return offset;
  };
  for (const KvSourcePlan& source : schedule.kv_sources) {
    if (options.block_tokens % source.ratio != 0) {
      return fail(Errc::kInvalidRequest, "block_tokens {} must be a multiple of layer {}'s compress ratio {}",
                  options.block_tokens, source.layer, source.ratio);
    }
    CacheLayout::Plane plane;
    plane.layer = source.layer;
    plane.ratio = source.ratio;
    plane.entries = options.block_tokens / source.ratio;
    plane.main_offset = block;
    block += plane.entries * kernels::record_bytes(layout.main_format, source.main_width);
    if (source.index_width > 0) {
      plane.index_offset = block;
      block += plane.entries * kernels::record_bytes(layout.index_format, source.index_width);
    }
    layout.planes.push_back(plane);
    // Roll-back needs the rows of the open group and of every row that may be taken back.
    const int32_t rows = source.state_rows == 0 ? 0 : source.state_rows + options.max_backtracking - 1;
    layout.state_rows.push_back(rows);
    layout.state_width.push_back(source.state_width);
    layout.state_offset.push_back(reserve_state(rows, source.state_width));
    layout.index_state_width.push_back(source.index_state_width);
    layout.index_state_offset.push_back(reserve_state(rows, source.index_state_width));
  }
  layout.slot_bytes = slot;
  layout.block_bytes = block;
  return layout;
}

Result<KvCache> KvCache::create(device::Device& device, const CacheLayout& layout, int32_t n_blocks, int32_t n_slots) {
  KvCache cache;
  cache.layout_ = layout;
  cache.n_blocks_ = n_blocks;
  cache.n_slots_ = n_slots;
  cache.blocks_ =
      DI_TRY(device::Buffer::allocate(device, static_cast<size_t>(layout.block_bytes) * static_cast<size_t>(n_blocks)));
  cache.slots_ =
      DI_TRY(device::Buffer::allocate(device, static_cast<size_t>(layout.slot_bytes) * static_cast<size_t>(n_slots)));
  return cache;
}

kernels::RingView KvCache::ring(int32_t ring) const {
  kernels::RingView view;
  view.base = reinterpret_cast<uint8_t*>(slots_.data()) + layout_.ring_bytes * ring;
  view.slot_stride = layout_.slot_bytes;
  view.ring_rows = layout_.ring_rows;
  view.width = layout_.head_dim;
  view.format = layout_.swa_format;
  return view;
}

kernels::PageView KvCache::main_pages(int32_t plane) const {
  const CacheLayout::Plane& p = layout_.planes[static_cast<size_t>(plane)];
  kernels::PageView view;
  view.base = reinterpret_cast<uint8_t*>(blocks_.data()) + p.main_offset;
  view.block_stride = layout_.block_bytes;
  view.entries_per_block = p.entries;
  view.width = layout_.head_dim;
  view.format = layout_.main_format;
  view.split_scales = false;
  return view;
}

kernels::PageView KvCache::index_pages(int32_t plane) const {
  const CacheLayout::Plane& p = layout_.planes[static_cast<size_t>(plane)];
  DI_CHECK(p.index_offset >= 0, "layer {} has no index keys", p.layer);
  kernels::PageView view;
  view.base = reinterpret_cast<uint8_t*>(blocks_.data()) + p.index_offset;
  view.block_stride = layout_.block_bytes;
  view.entries_per_block = p.entries;
  view.width = layout_.index_head_dim;
  view.format = layout_.index_format;
  view.split_scales = true;
  return view;
}

kernels::CompressorStateView KvCache::state(int32_t plane) const {
  const auto i = static_cast<size_t>(plane);
  kernels::CompressorStateView view;
  if (layout_.state_offset[i] < 0) return view;
  view.base = static_cast<float*>(static_cast<void*>(slots_.data() + layout_.state_offset[i]));
  view.slot_stride = layout_.slot_bytes / 4;
  view.ring_rows = layout_.state_rows[i];
  view.width = layout_.state_width[i];
  return view;
}

kernels::CompressorStateView KvCache::index_state(int32_t plane) const {
  const auto i = static_cast<size_t>(plane);
  DI_CHECK(layout_.index_state_offset[i] >= 0, "plane {} has no index compressor", plane);
  kernels::CompressorStateView view;
  view.base = static_cast<float*>(static_cast<void*>(slots_.data() + layout_.index_state_offset[i]));
  view.slot_stride = layout_.slot_bytes / 4;
  view.ring_rows = layout_.state_rows[i];
  view.width = layout_.index_state_width[i];
  return view;
}

std::byte* KvCache::block(int32_t id) const {
  return blocks_.data() + layout_.block_bytes * id;
}
std::byte* KvCache::slot(int32_t id) const {
  return slots_.data() + layout_.slot_bytes * id;
}

}  // namespace di::model
