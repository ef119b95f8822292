// Shared by the sections of conformance_modules: typed reading of the file's tensors, comparison, small operands.
#pragma once

#include <cstring>
#include <utility>

#include "base/numeric.h"
#include "kernels/conformance_modules.h"

namespace di::kernels::conformance {

struct Module {
  std::string_view file;
  std::span<const NamedTensor> tensors;
  const Ops& ops;
  Stream& stream;
  std::vector<ModuleCheck>& checks;

  const NamedTensor* find(std::string_view name) const;
  bool has(std::initializer_list<std::string_view> names) const;
  // Each tensor has that many dimensions, a dtype that floats(), ints() or bytes() reads, and no more or less data than
  // its shape says. A failed check names the one that has not.
  bool shaped(std::initializer_list<std::pair<std::string_view, size_t>> ranks) const;
  const std::vector<int64_t>& shape(std::string_view name) const { return find(name)->shape; }
  // Values as fp32 (F32, BF16), integers (I32, I64, U8, I8), or the bytes. Empty when the dtype is another.
  std::vector<float> floats(std::string_view name) const;
  std::vector<int32_t> ints(std::string_view name) const;
  std::vector<uint8_t> bytes(std::string_view name) const;

  // Comparisons; each adds one check named "<file> <name>".
  void near(const std::string& name, const std::vector<float>& expected, const std::vector<float>& found,
            double bound = 1e-5) const;
  void bf16_steps(const std::string& name, const std::vector<float>& expected, const std::vector<float>& found,
                  int steps) const;
  void same(const std::string& name, const std::vector<float>& expected, const std::vector<float>& found) const;
  void same(const std::string& name, const std::vector<int32_t>& expected, const std::vector<int32_t>& found) const;
  void same(const std::string& name, const std::vector<uint8_t>& expected, const std::vector<uint8_t>& found) const;
  // The section cannot run: a failed check.
  void refuse(const std::string& name, const std::string& why) const;
};

inline int64_t count(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

inline Tensor view(std::vector<float>& v, int64_t rows, int64_t cols) {
  return {v.data(), DType::kF32, rows, cols, cols};
}
inline Tensor view(std::vector<Bf16>& v, int64_t rows, int64_t cols) {
  return {v.data(), DType::kBf16, rows, cols, cols};
}
inline Weight weight(const std::vector<float>& v, int64_t rows, int64_t cols) {
  Weight w;
  w.data = v.data();
  w.format = WeightFormat::kF32;
  w.rows = rows;
  w.cols = cols;
  return w;
}
inline std::vector<float> zeros(int64_t n) {
  return std::vector<float>(static_cast<size_t>(n));
}
std::vector<Bf16> to_bf16(const std::vector<float>& v);
std::vector<float> to_floats(const std::vector<Bf16>& v);
// [rows, cols] with ones where row + shift == column.
std::vector<float> shifted_identity(int64_t rows, int64_t cols, int64_t shift);

// An RMSNorm that changes nothing: mean + 2^126 is 2^126, its inverse root 2^-63, the weight 2^63; all powers of two.
inline constexpr float kPassEps = 0x1p126F;
inline std::vector<float> pass_norm(int64_t n) {
  return std::vector<float>(static_cast<size_t>(n), 0x1p63F);
}

void run_dense_sections(const Module& m);
void run_cache_sections(const Module& m);

}  // namespace di::kernels::conformance
