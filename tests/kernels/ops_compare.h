// Compares two operator tables on random shapes and values. A case is a function that draws its inputs from a Run,
// calls one operator and names its results; it is executed once per backend with the same seed, so both see the same
// inputs. The same case, with its rows cut into several calls, checks batch invariance bit by bit.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace di::kernels::test {

// Memory that the operators of a backend read and write. The default is the host's.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* allocate(int64_t bytes, int64_t misalign);  // aligned to 64 bytes, then shifted by `misalign`
  virtual void write(void* to, const void* from, int64_t bytes);
  virtual void read(void* to, const void* from, int64_t bytes);  // waits for the stream first if it is asynchronous
  virtual void free_all();

 private:
  std::vector<std::unique_ptr<void, void (*)(void*)>> blocks_;
};

struct Backend {
  const Ops* ops;
  Stream* stream;
  Memory* memory;
};

// How the rows of a case are cut into calls.
enum class Split { kWhole, kRows, kCuts };
// kSmall: many odd shapes; kReal: the widths of V4.1 Flash with few rows.
enum class Scale { kSmall, kReal };

// Found must be within `relative`·(largest |expected| of the row) of expected; bf16 results may differ by one bf16 step
// more. 0 = the same bits.
struct Bound {
  float relative = 0.F;
};

struct Result {
  enum class Kind { kBytes, kInts, kFloats, kBf16, kSelection, kRecords };
  std::string name;
  Kind kind = Kind::kBytes;
  Bound bound;
  int64_t row_length = 0;
  std::vector<uint8_t> bytes;
  std::vector<int32_t> ints;
  std::vector<float> floats;
  std::vector<float> scores;  // kSelection: [rows, columns] of the expected side decides what is a near tie
};

// Values of a drawn tensor. kSteps: small multiples of 1/2, so that sums of products are exact in fp32 and ties are
// real.
enum class Fill { kNormal, kSteps, kZero };

class Run {
 public:
  Run(const Backend& backend, uint64_t seed, Split split, Scale scale);

  const Ops& ops() const { return *backend_.ops; }
  Stream& stream() { return *backend_.stream; }
  bool real() const { return scale_ == Scale::kReal; }

  // Draws.
  uint64_t bits();
  int64_t integer(int64_t low, int64_t high);  // inclusive
  float uniform();                             // [0, 1)
  float normal();
  bool coin() { return integer(0, 1) == 1; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[integer(0, static_cast<int64_t>(values.size()) - 1)];
  }
  int64_t rows();  // 0, 1, around the tiles of the fast kernels, or large; few at kReal
  DType dtype() { return coin() ? DType::kF32 : DType::kBf16; }
  std::vector<float> values(int64_t n, Fill fill = Fill::kNormal, float scale = 1.F);

  // Inputs and outputs in the backend's memory. Outputs start as a pattern no operator writes.
  Tensor input(int64_t rows, int64_t cols, DType dtype, Fill fill = Fill::kNormal, float scale = 1.F);
  Tensor tensor(int64_t rows, int64_t cols, DType dtype, const std::vector<float>& values);
  Tensor output(int64_t rows, int64_t cols, DType dtype);
  Weight weight(WeightFormat format, int64_t rows, int64_t cols, Fill fill = Fill::kNormal, int32_t block = 32);
  // As a checkpoint that was placed lies: values and scales at multiples of 64 bytes, scales up to 2^binades apart.
  Weight placed_weight(WeightFormat format, int64_t rows, int64_t cols, int32_t binades);
  template <class T>
  T* array(const std::vector<T>& values) {
    return static_cast<T*>(upload(values.data(), static_cast<int64_t>(values.size() * sizeof(T)), 0));
  }
  template <class T>
  T* out_array(int64_t n) {
    return static_cast<T*>(blank(n * static_cast<int64_t>(sizeof(T))));
  }
  // {cos, sin} rows of random angles; identity: {1, 0}.
  const float* rope_rows(int64_t rows, int64_t rope_dim, bool identity = false);

  // Row ranges [first, last) that the case passes to the operator one after the other.
  std::vector<std::pair<int64_t, int64_t>> chunks(int64_t rows);

  // Results.
  void result(const char* name, const Tensor& tensor, Bound bound);
  void result(const char* name, const float* data, int64_t rows, int64_t cols, Bound bound);
  void result(const char* name, const int32_t* data, int64_t rows, int64_t cols);
  void result_bytes(const char* name, const uint8_t* data, int64_t bytes);
  // Records of width `width`, dense; compared as read back, a few may fall on the other side of a quantiser step.
  void result_records(const char* name, const uint8_t* data, int64_t records, int64_t width, KvFormat format);
  // Ascending index lists; entries whose score lies within `bound` of the threshold may differ. scores are on the
  // backend.
  void result_selection(const char* name, const int32_t* data, const float* scores, int64_t rows, int64_t topk,
                        int64_t columns, Bound bound);

  std::vector<Result> take_results();
  Memory& memory() { return *backend_.memory; }

 private:
  struct Placement {
    int64_t data = 0;  // bytes behind a multiple of 64
    int64_t scale = 0;
    int32_t binades = 0;  // 0: around the usual size
  };
  Weight make_weight(WeightFormat format, int64_t rows, int64_t cols, Fill fill, int32_t block, const Placement& at);
  void* upload(const void* data, int64_t bytes, int64_t misalign);
  void* blank(int64_t bytes);
  template <class T>
  std::vector<T> download(const T* data, int64_t n);

  Backend backend_;
  uint64_t state_;
  Split split_;
  Scale scale_;
  std::vector<Result> results_;
};

inline Tensor slice(const Tensor& t, int64_t first, int64_t last) {
  if (t.data == nullptr) return t;
  Tensor part = t;
  part.data = static_cast<uint8_t*>(t.data) + first * t.stride * size_of(t.dtype);
  part.rows = last - first;
  return part;
}
template <class T>
T* offset(T* p, int64_t n) {
  return p == nullptr ? nullptr : p + n;
}
Rows slice(const Rows& rows, int64_t first, int64_t last);

struct Case {
  const char* name;
  void (*run)(Run&);
};
const std::vector<Case>& all_cases();
const Case& case_named(std::string_view name);
std::vector<Case> dense_cases();
std::vector<Case> cache_cases();

// `found` computes what `expected` does, within each result's bound.
void expect_same(const Backend& expected, const Backend& found, const Case& c, uint64_t seed, Scale scale);
// One call, one call per row and random cuts give the same bits.
void expect_batch_invariant(const Backend& backend, const Case& c, uint64_t seed, Scale scale);
// Two streams (of other thread counts) give the same bits.
void expect_same_bits(const Backend& a, const Backend& b, const Case& c, uint64_t seed, Scale scale);

}  // namespace di::kernels::test
