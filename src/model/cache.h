// Device memory of the caches of model.md §7 and where every entry lies in it.
//   Block KV   blocks of `block_tokens` tokens; a block holds, for each KV source layer in ascending order, its main
//   entries
//              and then its index keys (kv-cache.md §2.4; index keys in the split form of §4.3).
//   State slot one per running sequence: the sliding-window rings of all layers and of the draft layers, then the open
//              compressor groups.
// Which blocks and slots belong to whom is the engine's business (src/kv). Not thread-safe: written by the forward
// pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/tensor.h"
#include "model/config.h"
#include "model/schedule.h"

namespace di::model {

struct CacheOptions {
  bool kv_quant = true;          // store the formats of model.md §4.3; off: fp32 (fixtures `expected_plain`)
  bool fp4_main = true;          // main entries E2M1/16, else E4M3/32 (use_fp4_sparse_kv)
  int32_t block_tokens = 128;    // multiple of lcm of the ratios
  int32_t max_backtracking = 6;  // rows a speculative round may take back, at least dspark_block_size + 1
};

struct CacheLayout {
  // One plane pair in a block.
  struct Plane {
    int32_t layer = 0;
    int32_t ratio = 0;
    int64_t main_offset = 0;
    int64_t index_offset = -1;  // -1: this source has no index keys (V4 ratio 128)
    int32_t entries = 0;        // per block
  };

  CacheOptions options;
  kernels::KvFormat swa_format = kernels::KvFormat::kF32;
  kernels::KvFormat main_format = kernels::KvFormat::kF32;
  kernels::KvFormat index_format = kernels::KvFormat::kF32;
  int32_t head_dim = 0;
  int32_t index_head_dim = 0;
  int32_t ring_rows = 0;              // sliding_window + max_backtracking
  int32_t n_rings = 0;                // backbone layers, then draft layers
  int64_t ring_bytes = 0;             // one layer's ring in a slot
  std::vector<Plane> planes;          // ascending by layer
  std::vector<int64_t> state_offset;  // per plane: byte offset of its compressor state in a slot, -1 = none
  std::vector<int32_t> state_rows;
  std::vector<int32_t> state_width;
  std::vector<int64_t> index_state_offset;  // V4: the indexer's own compressor, -1 = none
  std::vector<int32_t> index_state_width;
  int64_t slot_bytes = 0;
  int64_t block_bytes = 0;

  // Plane of a KV source layer, -1 when it is none.
  int32_t plane_of(int32_t layer) const;
};

// The layout's canonical JSON (kv-cache.md §2.4), whose SHA-256 is part of every block's identity.
std::string layout_descriptor(const CacheLayout& layout);

Result<CacheLayout> make_cache_layout(const ModelConfig& config, const Schedule& schedule, const CacheOptions& options);

class KvCache {
 public:
  static Result<KvCache> create(device::Device& device, const CacheLayout& layout, int32_t n_blocks, int32_t n_slots);

  const CacheLayout& layout() const { return layout_; }
  int32_t n_blocks() const { return n_blocks_; }
  int32_t n_slots() const { return n_slots_; }

  // ring: layer, or n_layers + draft layer.
  kernels::RingView ring(int32_t ring) const;
  kernels::PageView main_pages(int32_t plane) const;
  kernels::PageView index_pages(int32_t plane) const;
  kernels::CompressorStateView state(int32_t plane) const;
  kernels::CompressorStateView index_state(int32_t plane) const;

  // Raw bytes, for copies of blocks and slots (prefix store, hand-over, forks).
  std::byte* block(int32_t id) const;
  std::byte* slot(int32_t id) const;

 private:
  CacheLayout layout_;
  int32_t n_blocks_ = 0;
  int32_t n_slots_ = 0;
  device::Buffer blocks_;
  device::Buffer slots_;
};

}  // namespace di::model
