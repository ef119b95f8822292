#include "kernels/ops_compare.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>

#include "base/numeric.h"
#include "kernels/cpu/quant.h"

namespace di::kernels::test {
namespace {

constexpr uint8_t kPattern =
    0xa7;  // of outputs before the call: -4.6e-15 in fp32, no value an operator leaves by chance

// FP8 and scale bytes of random weights: no NaN codes, magnitudes around 1/16 … 16.
uint8_t e4m3_byte(uint64_t bits) {
  const uint8_t byte = static_cast<uint8_t>(bits);
  return (byte & 0x7fU) == 0x7fU ? static_cast<uint8_t>(byte & 0x80U) : byte;
}

float row_max(const float* x, int64_t n) {
  float max = 0.F;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isfinite(x[i])) max = std::max(max, std::fabs(x[i]));
  }
  return max;
}

bool same_float(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// "" or what differs.
std::string compare_floats(const Result& e, const Result& f) {
  for (int64_t i = 0; i < static_cast<int64_t>(e.floats.size()); ++i) {
    const float a = e.floats[static_cast<size_t>(i)];
    const float b = f.floats[static_cast<size_t>(i)];
    if (same_float(a, b)) continue;
    const int64_t row = e.row_length > 0 ? i / e.row_length : 0;
    float allowed = e.bound.relative * row_max(e.floats.data() + row * e.row_length, e.row_length);
    if (e.kind == Result::Kind::kBf16 && e.bound.relative > 0.F) allowed += std::fabs(a) * 0x1p-7F;
    if (e.bound.relative > 0.F && std::fabs(a - b) <= allowed) continue;
    return fmt::format("{}[{}, {}]: expected {}, found {}, allowed difference {}", e.name, row, i - row * e.row_length,
                       a, b, allowed);
  }
  return "";
}

std::string compare_records(const Result& e, const Result& f) {
  int64_t different = 0;
  for (size_t i = 0; i < e.floats.size(); ++i) {
    const float a = e.floats[i];
    const float b = f.floats[i];
    if (same_float(a, b)) continue;
    ++different;
    // One step of the coarsest format (4 → 6 of E2M1) is a third of the group's largest value; a scale that flips
    // doubles it.
    const size_t group = i / 16 * 16;
    const float largest =
        row_max(e.floats.data() + group, static_cast<int64_t>(std::min<size_t>(16, e.floats.size() - group)));
    if (!(std::fabs(a - b) <= .5F * largest + 1e-3F)) {
      return fmt::format("{} value {} of record {}: expected {}, found {}", e.name,
                         static_cast<int64_t>(i) % e.row_length, static_cast<int64_t>(i) / e.row_length, a, b);
    }
  }
  const int64_t total = static_cast<int64_t>(e.floats.size());
  if (different > 8 + total / 50) return fmt::format("{}: {} of {} stored values differ", e.name, different, total);
  return "";
}

std::string compare_selection(const Result& e, const Result& f) {
  const int64_t topk = e.row_length;
  const int64_t rows = topk > 0 ? static_cast<int64_t>(e.ints.size()) / topk : 0;
  const int64_t columns = rows > 0 ? static_cast<int64_t>(e.scores.size()) / rows : 0;
  for (int64_t t = 0; t < rows; ++t) {
    const auto begin = e.ints.begin() + t * topk;
    const std::set<int32_t> a(begin, begin + topk);
    const std::set<int32_t> b(f.ints.begin() + t * topk, f.ints.begin() + (t + 1) * topk);
    std::vector<int32_t> difference;
    std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(difference));
    if (difference.empty()) continue;
    const float* score = e.scores.data() + t * columns;
    float threshold = INFINITY;
    for (const int32_t g : a) {
      if (g >= 0) threshold = std::min(threshold, score[g]);
    }
    const float allowed = e.bound.relative * row_max(score, columns);
    for (const int32_t g : difference) {
      if (g < 0 || g >= columns || !(std::fabs(score[g] - threshold) <= allowed)) {
        return fmt::format("{} row {}: entry {} is selected by one side only; threshold {}", e.name, t, g, threshold);
      }
    }
  }
  return "";
}

std::string compare(const Result& e, const Result& f, bool bits) {
  if (e.name != f.name || e.bytes.size() != f.bytes.size() || e.ints.size() != f.ints.size() ||
      e.floats.size() != f.floats.size()) {
    return fmt::format("{}: another result or size ({})", e.name, f.name);
  }
  for (size_t i = 0; i < e.bytes.size(); ++i) {
    if (e.bytes[i] != f.bytes[i] && (bits || e.kind == Result::Kind::kBytes)) {
      return fmt::format("{} byte {}: expected {:#x}, found {:#x}", e.name, i, e.bytes[i], f.bytes[i]);
    }
  }
  for (size_t i = 0; i < e.ints.size(); ++i) {
    if (e.ints[i] != f.ints[i] && (bits || e.kind == Result::Kind::kInts)) {
      return fmt::format("{}[{}]: expected {}, found {}", e.name, i, e.ints[i], f.ints[i]);
    }
  }
  if (bits) {
    for (size_t i = 0; i < e.floats.size(); ++i) {
      if (!same_float(e.floats[i], f.floats[i])) {
        return fmt::format("{}[{}]: expected the bits of {}, found {}", e.name, i, e.floats[i], f.floats[i]);
      }
    }
    return "";
  }
  switch (e.kind) {
    case Result::Kind::kFloats:
    case Result::Kind::kBf16:
      return compare_floats(e, f);
    case Result::Kind::kRecords:
      return compare_records(e, f);
    case Result::Kind::kSelection:
      return compare_selection(e, f);
    case Result::Kind::kBytes:
    case Result::Kind::kInts:
      return "";
  }
  return "";
}

std::vector<Result> execute(const Backend& backend, const Case& c, uint64_t seed, Split split, Scale scale) {
  Run run(backend, seed, split, scale);
  c.run(run);
  std::vector<Result> results = run.take_results();
  backend.memory->free_all();
  return results;
}

void expect(const std::vector<Result>& e, const std::vector<Result>& f, bool bits, const Case& c, uint64_t seed,
            const std::string& what) {
  ASSERT_EQ(e.size(), f.size()) << c.name << " seed " << seed;
  for (size_t i = 0; i < e.size(); ++i) {
    const std::string difference = compare(e[i], f[i], bits);
    if (!difference.empty()) {
      ADD_FAILURE() << c.name << " seed " << seed << " (" << what << "): " << difference;
      return;
    }
  }
}

}  // namespace

void* Memory::allocate(int64_t bytes, int64_t misalign) {
  void* block = nullptr;
  // Exactly as large as asked for, so that the address sanitizer sees a read past the end.
  if (posix_memalign(&block, 64, static_cast<size_t>(std::max<int64_t>(1, bytes + misalign))) != 0) std::abort();
  blocks_.emplace_back(block, &std::free);
  return static_cast<uint8_t*>(block) + misalign;
}
void Memory::write(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}
void Memory::read(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}
void Memory::free_all() {
  blocks_.clear();
}

Run::Run(const Backend& backend, uint64_t seed, Split split, Scale scale)
    : backend_(backend), state_(seed * 0xd1342543de82ef95ULL), split_(split), scale_(scale) {
  state_ = bits() ^ seed << 32;  // seeds that follow one another give unrelated draws
}

uint64_t Run::bits() {  // splitmix64
  state_ += 0x9e3779b97f4a7c15ULL;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}
int64_t Run::integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
}
float Run::uniform() {
  return static_cast<float>(bits() >> 40) * 0x1p-24F;
}
float Run::normal() {  // sum of uniforms: near enough, and cheap
  const uint64_t b = bits();
  int64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>((b >> (16 * i)) & 0xffffU);
  return static_cast<float>(sum - 2 * 65535) * (1.732F / 65536.F);
}

int64_t Run::rows() {
  if (real()) return pick<int64_t>({1, 2, 3});
  return pick<int64_t>({0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 130});
}

std::vector<float> Run::values(int64_t n, Fill fill, float scale) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) {
    if (fill == Fill::kNormal) x = normal() * scale;
    if (fill == Fill::kSteps) x = static_cast<float>(integer(-2, 2)) * .5F;
  }
  return v;
}

void* Run::upload(const void* data, int64_t bytes, int64_t misalign) {
  void* memory = backend_.memory->allocate(bytes, misalign);
  backend_.memory->write(memory, data, bytes);
  return memory;
}
void* Run::blank(int64_t bytes) {
  const std::vector<uint8_t> pattern(static_cast<size_t>(bytes), kPattern);
  return upload(pattern.data(), bytes, 0);
}
template <class T>
std::vector<T> Run::download(const T* data, int64_t n) {
  std::vector<T> v(static_cast<size_t>(n));
  backend_.memory->read(v.data(), data, n * static_cast<int64_t>(sizeof(T)));
  return v;
}

Tensor Run::tensor(int64_t rows, int64_t cols, DType dtype, const std::vector<float>& v) {
  Tensor t = output(rows, cols, dtype);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = v.data() + r * cols;
    if (dtype == DType::kF32) {
      backend_.memory->write(static_cast<float*>(t.data) + r * t.stride, row, cols * 4);
      continue;
    }
    std::vector<Bf16> rounded(static_cast<size_t>(cols));
    for (int64_t c = 0; c < cols; ++c) rounded[static_cast<size_t>(c)] = to_bf16(row[c]);
    backend_.memory->write(static_cast<Bf16*>(t.data) + r * t.stride, rounded.data(), cols * 2);
  }
  return t;
}
Tensor Run::input(int64_t rows, int64_t cols, DType dtype, Fill fill, float scale) {
  return tensor(rows, cols, dtype, values(rows * cols, fill, scale));
}
Tensor Run::output(int64_t rows, int64_t cols, DType dtype) {
  Tensor t;
  t.dtype = dtype;
  t.rows = rows;
  t.cols = cols;
  t.stride = cols + pick<int64_t>({0, 0, 32, 64});
  t.data = blank(rows * t.stride * size_of(dtype));
  return t;
}

// Checkpoints are mapped, not copied: a tensor starts at any multiple of its own element size.
Weight Run::weight(WeightFormat format, int64_t rows, int64_t cols, Fill fill, int32_t block) {
  Placement at;
  at.data = pick<int64_t>({0, 0, 4, 8, 12});
  if (format == WeightFormat::kBf16) at.data += pick<int64_t>({0, 2});
  if (format != WeightFormat::kBf16 && format != WeightFormat::kF32) {
    at.data += integer(0, 3);
    at.scale = integer(0, 3);
  }
  return make_weight(format, rows, cols, fill, block, at);
}

Weight Run::placed_weight(WeightFormat format, int64_t rows, int64_t cols, int32_t binades) {
  return make_weight(format, rows, cols, Fill::kNormal, 32, {0, 0, binades});
}

Weight Run::make_weight(WeightFormat format, int64_t rows, int64_t cols, Fill fill, int32_t block,
                        const Placement& at) {
  Weight w;
  w.format = format;
  w.rows = rows;
  w.cols = cols;
  w.block = block;
  const int64_t n = rows * cols;
  if (format == WeightFormat::kF32 || format == WeightFormat::kBf16) {
    const std::vector<float> v = values(n, fill, .25F);
    if (format == WeightFormat::kF32) {
      w.data = upload(v.data(), n * 4, at.data);
      return w;
    }
    std::vector<Bf16> rounded(v.size());
    for (size_t i = 0; i < v.size(); ++i) rounded[i] = to_bf16(v[i]);
    w.data = upload(rounded.data(), n * 2, at.data);
    return w;
  }
  const bool fp4 = format == WeightFormat::kFp4Row;
  std::vector<uint8_t> data(static_cast<size_t>(fp4 ? n / 2 : n));
  for (size_t i = 0; i < data.size(); i += 8) {
    uint64_t b = bits();
    for (size_t j = i; j < std::min(i + 8, data.size()); ++j, b >>= 8)
      data[j] = fp4 ? static_cast<uint8_t>(b) : e4m3_byte(b);
  }
  const int64_t scale_rows = format == WeightFormat::kFp8Block ? (rows + block - 1) / block : rows;
  const int64_t group = format == WeightFormat::kFp8Block ? block : 32;
  std::vector<uint8_t> scale(static_cast<size_t>(scale_rows * ((cols + group - 1) / group)));
  const int64_t centre = fp4 ? 125 : 120;
  for (uint8_t& s : scale) {
    s = static_cast<uint8_t>(at.binades == 0 ? integer(centre - 3, centre + 1) : integer(centre - at.binades, centre));
  }
  w.data = upload(data.data(), static_cast<int64_t>(data.size()), at.data);
  w.scale = static_cast<uint8_t*>(upload(scale.data(), static_cast<int64_t>(scale.size()), at.scale));
  return w;
}

const float* Run::rope_rows(int64_t rows, int64_t rope_dim, bool identity) {
  std::vector<float> table(static_cast<size_t>(rows * rope_dim));
  for (size_t i = 0; i + 1 < table.size(); i += 2) {
    const double angle = identity ? 0. : 6.283 * static_cast<double>(uniform());
    table[i] = static_cast<float>(std::cos(angle));
    table[i + 1] = static_cast<float>(std::sin(angle));
  }
  return array(table);
}

std::vector<std::pair<int64_t, int64_t>> Run::chunks(int64_t rows) {
  std::vector<std::pair<int64_t, int64_t>> out;
  if (split_ == Split::kWhole) return {{0, rows}};
  // The cuts come from a stream of their own: the draws that follow must not depend on the split.
  uint64_t cut = 88172645463325252ULL + static_cast<uint64_t>(rows);
  for (int64_t first = 0; first < rows;) {
    cut ^= cut << 13;
    cut ^= cut >> 7;
    cut ^= cut << 17;
    const int64_t n = split_ == Split::kRows ? 1 : 1 + static_cast<int64_t>(cut % 7);
    out.emplace_back(first, std::min(rows, first + n));
    first += n;
  }
  return out;
}

void Run::result(const char* name, const Tensor& t, Bound bound) {
  Result r;
  r.name = name;
  r.bound = bound;
  r.row_length = t.cols;
  r.kind = t.dtype == DType::kBf16 ? Result::Kind::kBf16 : Result::Kind::kFloats;
  for (int64_t row = 0; row < t.rows; ++row) {
    if (t.dtype == DType::kF32) {
      const std::vector<float> v = download(static_cast<const float*>(t.data) + row * t.stride, t.stride);
      r.floats.insert(r.floats.end(), v.begin(), v.begin() + t.cols);
      for (int64_t c = t.cols; c < t.stride; ++c) {
        if (std::bit_cast<uint32_t>(v[static_cast<size_t>(c)]) != kPattern * 0x01010101U)
          ADD_FAILURE() << name << ": wrote beyond row " << row;
      }
    } else {
      const std::vector<Bf16> v = download(static_cast<const Bf16*>(t.data) + row * t.stride, t.stride);
      for (int64_t c = 0; c < t.cols; ++c) r.floats.push_back(to_float(v[static_cast<size_t>(c)]));
      for (int64_t c = t.cols; c < t.stride; ++c) {
        if (v[static_cast<size_t>(c)].bits != kPattern * 0x0101U) ADD_FAILURE() << name << ": wrote beyond row " << row;
      }
    }
  }
  results_.push_back(std::move(r));
}
void Run::result(const char* name, const float* data, int64_t rows, int64_t cols, Bound bound) {
  Result r;
  r.name = name;
  r.kind = Result::Kind::kFloats;
  r.bound = bound;
  r.row_length = cols;
  r.floats = download(data, rows * cols);
  results_.push_back(std::move(r));
}
void Run::result(const char* name, const int32_t* data, int64_t rows, int64_t cols) {
  Result r;
  r.name = name;
  r.kind = Result::Kind::kInts;
  r.row_length = cols;
  r.ints = download(data, rows * cols);
  results_.push_back(std::move(r));
}
void Run::result_bytes(const char* name, const uint8_t* data, int64_t bytes) {
  Result r;
  r.name = name;
  r.bytes = download(data, bytes);
  results_.push_back(std::move(r));
}
void Run::result_records(const char* name, const uint8_t* data, int64_t records, int64_t width, KvFormat format) {
  Result r;
  r.name = name;
  r.kind = Result::Kind::kRecords;
  r.row_length = width;
  const int64_t bytes = record_bytes(format, width);
  r.bytes = download(data, records * bytes);
  r.floats.resize(static_cast<size_t>(records * width));
  for (int64_t i = 0; i < records; ++i) {
    const uint8_t* record = r.bytes.data() + i * bytes;
    cpu::load_record(format, width, record, record + data_bytes(format, width), r.floats.data() + i * width);
  }
  if (format == KvFormat::kF32) {
    r.kind = Result::Kind::kFloats;
    r.bound = {1e-5F};
  }
  results_.push_back(std::move(r));
}
void Run::result_selection(const char* name, const int32_t* data, const float* scores, int64_t rows, int64_t topk,
                           int64_t columns, Bound bound) {
  Result r;
  r.name = name;
  r.kind = Result::Kind::kSelection;
  r.bound = bound;
  r.row_length = topk;
  r.ints = download(data, rows * topk);
  r.scores = download(scores, rows * columns);
  results_.push_back(std::move(r));
}
std::vector<Result> Run::take_results() {
  return std::move(results_);
}

Rows slice(const Rows& rows, int64_t first, int64_t last) {
  Rows part = rows;
  part.n = static_cast<int32_t>(last - first);
  part.positions = offset(rows.positions, first);
  part.sequence = offset(rows.sequence, first);
  part.window_begin = offset(rows.window_begin, first);
  part.window_end = offset(rows.window_end, first);
  part.is_image = offset(rows.is_image, first);
  return part;
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all = dense_cases();
    for (const Case& c : cache_cases()) all.push_back(c);
    return all;
  }();
  return cases;
}

const Case& case_named(std::string_view name) {
  const auto found = std::ranges::find(all_cases(), name, [](const Case& c) { return std::string_view(c.name); });
  if (found == all_cases().end()) std::abort();
  return *found;
}

void expect_same(const Backend& expected, const Backend& found, const Case& c, uint64_t seed, Scale scale) {
  expect(execute(expected, c, seed, Split::kWhole, scale), execute(found, c, seed, Split::kWhole, scale), false, c,
         seed, std::string(found.ops->name) + " against " + expected.ops->name);
}
void expect_batch_invariant(const Backend& backend, const Case& c, uint64_t seed, Scale scale) {
  const std::vector<Result> whole = execute(backend, c, seed, Split::kWhole, scale);
  expect(whole, execute(backend, c, seed, Split::kRows, scale), true, c, seed, "rows alone against one call");
  expect(whole, execute(backend, c, seed, Split::kCuts, scale), true, c, seed, "several calls against one");
}
void expect_same_bits(const Backend& a, const Backend& b, const Case& c, uint64_t seed, Scale scale) {
  expect(execute(a, c, seed, Split::kWhole, scale), execute(b, c, seed, Split::kWhole, scale), true, c, seed,
         "two worker teams");
}

}  // namespace di::kernels::test
