#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {
namespace {

// The (value, score) rows that a closing row needs: rows before it in the call as long as they belong to its sequence,
// older positions from the state (model.md §5.6: fp32 rows are kept until their group closes).
struct History {
  const Tensor& v;
  const Tensor& s;
  const Rows& rows;
  const CompressorStateView& state;

  const float* state_row(int64_t sequence, int64_t position) const {
    return state.base + rows.state_slot[sequence] * state.slot_stride + position % state.ring_rows * 2 * state.width;
  }
  // Value (part 0) or score (part 1) row of the position `back` places before row t.
  const float* row(int64_t t, int64_t back, int part) const {
    const int64_t sequence = rows.sequence[t];
    if (t - back >= 0 && rows.sequence[t - back] == sequence) {
      const Tensor& tensor = part == 0 ? v : s;
      return static_cast<const float*>(tensor.data) + (t - back) * tensor.stride;
    }
    return state_row(sequence, rows.positions[t] - back) + part * state.width;
  }
  // Keeps every row, in row order: of more rows than the ring has the last ones stay.
  void keep_rows() const {
    for (int64_t t = 0; t < rows.n; ++t) {
      float* out = const_cast<float*>(state_row(rows.sequence[t], rows.positions[t]));
      for (int part = 0; part < 2; ++part) {
        const Tensor& tensor = part == 0 ? v : s;
        const float* from = static_cast<const float*>(tensor.data) + t * tensor.stride;
        std::copy(from, from + state.width, out + part * state.width);
      }
    }
  }
};

}  // namespace

void compress(const CompressArgs& a, Stream&) {
  const int64_t d = a.latent.cols;
  DI_CHECK(a.ratio == 1 || a.ratio == 2, "compress ratio {}, wanted 1 or 2 (others: compress_v4)", a.ratio);
  DI_CHECK(a.v.cols == d && a.norm.cols == d && a.latent.rows == a.n_closing && a.v.rows == a.rows.n,
           "v [{}, {}], norm {}, latent [{}, {}], {} closing of {} rows", a.v.rows, a.v.cols, a.norm.cols,
           a.latent.rows, d, a.n_closing, a.rows.n);
  const std::vector<float> norm = read_vector(a.norm);
  std::vector<float> buffer;
  std::vector<float> c(static_cast<size_t>(d));
  if (a.ratio == 2) {
    DI_CHECK(a.v.dtype == DType::kF32 && a.s.dtype == DType::kF32 && a.state.width == d && a.state.ring_rows >= 1,
             "ratio 2 needs fp32 v and s and a state of width {} with a row or more, found width {}, {} rows", d,
             a.state.width, a.state.ring_rows);
  }
  const History history{a.v, a.s, a.rows, a.state};
  for (int64_t g = 0; g < a.n_closing; ++g) {
    const int64_t t = a.closing[g];
    if (a.ratio == 1) {
      const float* v = read_row(a.v, t, buffer);
      std::copy(v, v + d, c.begin());
    } else {
      DI_CHECK(a.rows.positions[t] % 2 == 1, "row {} at position {} closes no group of 2", t, a.rows.positions[t]);
      const float* v0 = history.row(t, 1, 0);
      const float* s0 = history.row(t, 1, 1);
      const float* v1 = history.row(t, 0, 0);
      const float* s1 = history.row(t, 0, 1);
      for (int64_t i = 0; i < d; ++i) {  // c_g = Σ_j softmax_j(s)·v per channel
        float p[2] = {s0[i], s1[i]};
        softmax_in_place(p, 2);
        c[static_cast<size_t>(i)] = p[0] * v0[i] + p[1] * v1[i];
      }
    }
    if (a.round_bf16) round_row(c.data(), d);
    rms_norm_row(c.data(), norm.data(), d, a.norm_eps, c.data());
    write_row(a.latent, g, c.data());
  }
  if (a.ratio == 2) history.keep_rows();
}

// ratio 128: softmax over the group's tokens of s + ape. ratio 4, overlapping: eight slots per entry, Ca (first half of
// the channels) of the tokens of group w-1 and Cb (second half) of group w; group -1 has no weight (model.md §10.3).
void compress_v4(const CompressV4Args& a, Stream&) {
  const int64_t d = a.latent.cols;
  const int64_t width = a.v.cols;
  const int64_t ratio = a.ratio;
  const int64_t slots = a.overlap ? 2 * ratio : ratio;
  DI_CHECK(width == (a.overlap ? 2 * d : d) && a.s.cols == width && a.norm.cols == d && a.latent.rows == a.n_closing &&
               a.v.dtype == DType::kF32 && a.s.dtype == DType::kF32 && a.state.width == width &&
               a.state.ring_rows >= slots - 1 && a.v.rows == a.rows.n,
           "v [{}, {}], s {} columns, norm {}, latent [{}, {}], state {} rows of {}, ratio {}", a.v.rows, width,
           a.s.cols, a.norm.cols, a.latent.rows, d, a.state.ring_rows, a.state.width, ratio);
  const std::vector<float> norm = read_vector(a.norm);
  const History history{a.v, a.s, a.rows, a.state};
  std::vector<float> c(static_cast<size_t>(d));
  std::vector<float> p(static_cast<size_t>(slots));
  std::vector<const float*> v(static_cast<size_t>(slots));
  std::vector<const float*> s(static_cast<size_t>(slots));
  for (int64_t g = 0; g < a.n_closing; ++g) {
    const int64_t t = a.closing[g];
    const int64_t position = a.rows.positions[t];
    DI_CHECK(position % ratio == ratio - 1, "row {} at position {} closes no group of {}", t, position, ratio);
    const int64_t first =
        std::max<int64_t>(0, slots - 1 - position);  // slots before the start of the sequence are absent
    for (int64_t j = first; j < slots; ++j) {
      v[static_cast<size_t>(j)] = history.row(t, slots - 1 - j, 0);
      s[static_cast<size_t>(j)] = history.row(t, slots - 1 - j, 1);
    }
    for (int64_t i = 0; i < d; ++i) {
      const auto channel = [&](int64_t j) { return a.overlap && j >= ratio ? d + i : i; };
      for (int64_t j = first; j < slots; ++j) {
        p[static_cast<size_t>(j)] = s[static_cast<size_t>(j)][channel(j)] + a.ape[j % ratio * width + channel(j)];
      }
      softmax_in_place(p.data() + first, slots - first);
      float sum = 0.F;
      for (int64_t j = first; j < slots; ++j) sum += p[static_cast<size_t>(j)] * v[static_cast<size_t>(j)][channel(j)];
      c[static_cast<size_t>(i)] = sum;
    }
    if (a.round_bf16) round_row(c.data(), d);
    rms_norm_row(c.data(), norm.data(), d, a.norm_eps, c.data());
    write_row(a.latent, g, c.data());
  }
  history.keep_rows();
}

}  // namespace di::kernels::cpu::ref
