// Memory-mapped reader of safetensors checkpoints (model.md §3.3): one file, or the shards that a
// `model.safetensors.index.json` names. Everything about a file that could make a later read wrong is checked when it
// is opened; afterwards a TensorView's bytes are inside its mapping. Any byte sequence is safe to open. Nothing is
// copied: tensors are read through the page cache. Immutable after opening; reading from several threads is safe. The
// file must not be shortened while its mapping is read (Safetensors::read finds that out).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace di::model {

enum class StoredType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4m3,
  kF8E5m2,
  kF8E8m0,
  kU16,
  kI16,
  kF16,
  kBf16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};

int64_t size_of(StoredType type);
std::string_view to_string(StoredType type);  // as the header spells it: "BF16", "F8_E4M3", …

struct TensorView {
  std::string_view name;  // without the optional `model.` prefix
  StoredType dtype = StoredType::kF32;
  std::span<const int64_t> shape;   // row-major
  const std::byte* data = nullptr;  // not aligned to anything: the format does not promise it
  int64_t bytes = 0;
  std::string_view file;  // name of the shard, for messages
};

// "[256, 64]"
std::string shape_text(std::span<const int64_t> shape);

class Safetensors {
 public:
  // A folder (its model.safetensors.index.json if there is one, else its model.safetensors), an index file or a single
  // .safetensors file. kNotFound when there is nothing, kCorruption when a rule of the format is broken; messages name
  // file, tensor, what was expected and what was found.
  static Result<Safetensors> open(const std::string& path);
  // A whole file that lies in memory (fuzzing, tests); `bytes` must outlive the object.
  static Result<Safetensors> from_memory(std::span<const std::byte> bytes, std::string_view file);

  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;
  ~Safetensors();

  // nullptr when absent. Logarithmic.
  const TensorView* find(std::string_view name) const;
  // All tensors, ascending by name.
  std::span<const TensorView> tensors() const;
  // Shard files, in order of first mention.
  std::vector<std::string> files() const;
  int64_t file_bytes() const;
  const std::string& path() const;

  // Copies `bytes` bytes from `from` on, which lie in one tensor or behind a copy of it (ModelWeights::owned): from the
  // file, by one read where the map costs a fault for every few pages; thread-safe. Errors (kUnavailable, kCorruption)
  // name the file: it cannot be read, or has become shorter.
  Result<void> read(std::byte* to, const std::byte* from, size_t bytes) const;

 private:
  struct State;
  explicit Safetensors(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace di::model
