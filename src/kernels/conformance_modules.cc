#include "kernels/conformance_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/conformance_module.h"

namespace di::kernels {
namespace conformance {
namespace {

template <class T>
std::vector<T> read(const NamedTensor& t) {
  std::vector<T> v(static_cast<size_t>(t.bytes) / sizeof(T));
  if (!v.empty()) std::memcpy(v.data(), t.data, v.size() * sizeof(T));
  return v;
}

bool sized(const Module& m, const std::string& name, size_t expected, size_t found) {
  if (expected == found) return true;
  m.refuse(name, fmt::format("expected {} values, found {}", expected, found));
  return false;
}

// error(i) is the deviation of element i; the check passes when none exceeds the bound.
template <class T, class Deviation>
void compare(const Module& m, const std::string& name, const std::vector<T>& expected, const std::vector<T>& found,
             double bound, const Deviation& deviation) {
  if (!sized(m, name, expected.size(), found.size())) return;
  ModuleCheck check{fmt::format("{} {}", m.file, name), 0.0, bound, true, ""};
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = deviation(expected[i], found[i]);
    if (error <= check.error) continue;  // NaN compares false and is kept
    check.error = error;
    check.detail = fmt::format("element {}: expected {}, found {}", i, expected[i], found[i]);
    if (!(error <= bound)) check.passed = false;
    if (std::isnan(error)) break;
  }
  m.checks.push_back(std::move(check));
}

template <class T>
void compare_equal(const Module& m, const std::string& name, const std::vector<T>& expected,
                   const std::vector<T>& found) {
  if (!sized(m, name, expected.size(), found.size())) return;
  ModuleCheck check{fmt::format("{} {}", m.file, name), 0.0, 0.0, true, ""};
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == found[i]) continue;
    if (check.passed) check.detail = fmt::format("element {}: expected {}, found {}", i, expected[i], found[i]);
    check.passed = false;
    check.error += 1.0;
  }
  m.checks.push_back(std::move(check));
}

// Place of a bf16 value among all bf16 values, so that neighbours differ by one.
int bf16_rank(float v) {
  const int bits = di::to_bf16(v).bits;
  return bits < 0x8000 ? bits : 0x8000 - bits;
}

}  // namespace

const NamedTensor* Module::find(std::string_view name) const {
  for (const NamedTensor& t : tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

bool Module::has(std::initializer_list<std::string_view> names) const {
  return std::all_of(names.begin(), names.end(), [&](std::string_view name) { return find(name) != nullptr; });
}

bool Module::shaped(std::initializer_list<std::pair<std::string_view, size_t>> ranks) const {
  for (const auto& [name, rank] : ranks) {
    const NamedTensor& t = *find(name);
    const int64_t item = t.dtype == "F32" || t.dtype == "I32"                                                    ? 4
                         : t.dtype == "BF16"                                                                     ? 2
                         : t.dtype == "I64"                                                                      ? 8
                         : t.dtype == "U8" || t.dtype == "I8" || t.dtype == "BOOL" || t.dtype.starts_with("F8_") ? 1
                                                                                                                 : 0;
    if (t.shape.size() == rank && item > 0 && count(t.shape) > 0 && t.bytes == count(t.shape) * item) continue;
    std::string found = t.dtype;
    for (const int64_t d : t.shape) found += " " + std::to_string(d);
    refuse(std::string(name),
           fmt::format("expected {} dimensions of a known dtype, found {} in {} bytes", rank, found, t.bytes));
    return false;
  }
  return true;
}

std::vector<float> Module::floats(std::string_view name) const {
  const NamedTensor& t = *find(name);
  if (t.dtype == "F32") return read<float>(t);
  if (t.dtype == "BF16") return to_floats(read<Bf16>(t));
  return {};
}

std::vector<int32_t> Module::ints(std::string_view name) const {
  const NamedTensor& t = *find(name);
  if (t.dtype == "I32") return read<int32_t>(t);
  std::vector<int32_t> v;
  if (t.dtype == "I64") {
    for (const int64_t x : read<int64_t>(t)) v.push_back(static_cast<int32_t>(x));
  } else if (t.dtype == "U8" || t.dtype == "BOOL") {
    for (const uint8_t x : read<uint8_t>(t)) v.push_back(x);
  }
  return v;
}

std::vector<uint8_t> Module::bytes(std::string_view name) const {
  return read<uint8_t>(*find(name));
}

void Module::near(const std::string& name, const std::vector<float>& expected, const std::vector<float>& found,
                  double bound) const {
  compare(*this, name, expected, found, bound, [](float e, float f) {
    if (e == f) return 0.0;
    return std::fabs(double{e} - double{f}) / std::max(1.0, std::fabs(double{e}));
  });
}
void Module::bf16_steps(const std::string& name, const std::vector<float>& expected, const std::vector<float>& found,
                        int steps) const {
  compare(*this, name, expected, found, steps, [](float e, float f) {
    if (std::isnan(e) || std::isnan(f)) return std::isnan(e) && std::isnan(f) ? 0.0 : static_cast<double>(NAN);
    return std::fabs(static_cast<double>(bf16_rank(e) - bf16_rank(f)));
  });
}
void Module::same(const std::string& name, const std::vector<float>& e, const std::vector<float>& f) const {
  compare_equal(*this, name, e, f);
}
void Module::same(const std::string& name, const std::vector<int32_t>& e, const std::vector<int32_t>& f) const {
  compare_equal(*this, name, e, f);
}
void Module::same(const std::string& name, const std::vector<uint8_t>& e, const std::vector<uint8_t>& f) const {
  compare_equal(*this, name, e, f);
}
void Module::refuse(const std::string& name, const std::string& why) const {
  checks.push_back({fmt::format("{} {}", file, name), 0.0, 0.0, false, why});
}

std::vector<Bf16> to_bf16(const std::vector<float>& v) {
  std::vector<Bf16> out(v.size());
  for (size_t i = 0; i < v.size(); ++i) out[i] = di::to_bf16(v[i]);
  return out;
}
std::vector<float> to_floats(const std::vector<Bf16>& v) {
  std::vector<float> out(v.size());
  for (size_t i = 0; i < v.size(); ++i) out[i] = to_float(v[i]);
  return out;
}
std::vector<float> shifted_identity(int64_t rows, int64_t cols, int64_t shift) {
  std::vector<float> w = zeros(rows * cols);
  for (int64_t r = 0; r < rows; ++r) {
    if (r + shift < cols) w[static_cast<size_t>(r * cols + r + shift)] = 1.F;
  }
  return w;
}

}  // namespace conformance

std::vector<ModuleCheck> run_module_file(std::string_view file, std::span<const NamedTensor> tensors, const Ops& ops,
                                         Stream& stream) {
  std::vector<ModuleCheck> checks;
  const conformance::Module module{file, tensors, ops, stream, checks};
  conformance::run_dense_sections(module);
  conformance::run_cache_sections(module);
  return checks;
}

}  // namespace di::kernels
