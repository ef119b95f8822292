#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {
namespace {

// Sinkhorn of one token, in the order of model.md §5.2; c[i, j], row i = input stream, column j = output stream:
//   C = softmax over j + hc_eps;  C = C/(Σ_i C + hc_eps)
//   iters-1 times: C = C/(Σ_j C + hc_eps);  C = C/(Σ_i C + hc_eps)
void sinkhorn(float* c, int64_t hc, int32_t iters, float hc_eps) {
  const auto normalise_columns = [&] {
    for (int64_t j = 0; j < hc; ++j) {
      float sum = 0.F;
      for (int64_t i = 0; i < hc; ++i) sum += c[i * hc + j];
      for (int64_t i = 0; i < hc; ++i) c[i * hc + j] /= sum + hc_eps;
    }
  };
  const auto normalise_rows = [&] {
    for (int64_t i = 0; i < hc; ++i) {
      float sum = 0.F;
      for (int64_t j = 0; j < hc; ++j) sum += c[i * hc + j];
      for (int64_t j = 0; j < hc; ++j) c[i * hc + j] /= sum + hc_eps;
    }
  };
  for (int64_t i = 0; i < hc; ++i) {
    softmax_in_place(c + i * hc, hc);
    for (int64_t j = 0; j < hc; ++j) c[i * hc + j] += hc_eps;
  }
  normalise_columns();
  for (int32_t n = 1; n < iters; ++n) {
    normalise_rows();
    normalise_columns();
  }
}

// h = Σ_i q_i·X_i
void collapse(const float* x, const float* q, int64_t hc, int64_t width, float* h) {
  for (int64_t c = 0; c < width; ++c) {
    float sum = 0.F;
    for (int64_t i = 0; i < hc; ++i) sum += q[i] * x[i * width + c];
    h[c] = sum;
  }
}

}  // namespace

void hc_pre(const HcPreArgs& a, Stream&) {
  const int64_t hc = a.hc;
  const int64_t h = a.y.cols;
  DI_CHECK(a.streams.cols == hc * h && a.norm.cols == h && a.y.rows == a.streams.rows,
           "streams [{}, {}], y [{}, {}], norm {}, hc {}", a.streams.rows, a.streams.cols, a.y.rows, h, a.norm.cols,
           hc);
  const std::vector<float> norm = read_vector(a.norm);
  std::vector<float> buffer;
  std::vector<float> m(static_cast<size_t>((2 + hc) * hc));
  std::vector<float> y(static_cast<size_t>(h));
  for (int64_t t = 0; t < a.streams.rows; ++t) {
    const float* f = read_row(a.streams, t, buffer);
    const float r = inverse_rms(f, hc * h, a.norm_eps);
    for (int64_t k = 0; k < (2 + hc) * hc; ++k) m[static_cast<size_t>(k)] = dot(f, a.fn + k * hc * h, hc * h) * r;

    float* pre = a.pre + t * hc;
    float* post = a.post + t * hc;
    float* comb = a.comb + t * hc * hc;
    const float* mp = m.data();
    for (int64_t i = 0; i < hc; ++i) pre[i] = sigmoid(mp[i] * a.scale[0] + a.base[i]) + a.hc_eps;
    for (int64_t i = 0; i < hc; ++i) post[i] = 2.F * sigmoid(mp[hc + i] * a.scale[1] + a.base[hc + i]);
    for (int64_t i = 0; i < hc * hc; ++i) comb[i] = mp[2 * hc + i] * a.scale[2] + a.base[2 * hc + i];
    sinkhorn(comb, hc, a.sinkhorn_iters, a.hc_eps);

    collapse(f, a.use_own_pre ? pre : a.mix_in + t * hc, hc, h, y.data());
    if (a.round_bf16) round_row(y.data(), h);
    rms_norm_row(y.data(), norm.data(), h, a.norm_eps, y.data());
    write_row(a.y, t, y.data());
  }
}

void hc_post(const HcPostArgs& a, Stream&) {
  const int64_t hc = a.hc;
  const int64_t h = a.y.cols;
  DI_CHECK(a.streams.cols == hc * h && a.y.rows == a.streams.rows, "streams [{}, {}], y [{}, {}], hc {}",
           a.streams.rows, a.streams.cols, a.y.rows, h, hc);
  std::vector<float> x_buffer;
  std::vector<float> y_buffer;
  std::vector<float> out(static_cast<size_t>(hc * h));
  for (int64_t t = 0; t < a.streams.rows; ++t) {
    const float* x = read_row(a.streams, t, x_buffer);
    const float* y = read_row(a.y, t, y_buffer);
    const float* post = a.post + t * hc;
    const float* comb = a.comb + t * hc * hc;
    float* o = out.data();
    for (int64_t j = 0; j < hc; ++j) {
      for (int64_t c = 0; c < h; ++c) {
        float sum = post[j] * y[c];
        for (int64_t i = 0; i < hc; ++i) sum += comb[i * hc + j] * x[i * h + c];
        o[j * h + c] = sum;
      }
    }
    write_row(a.streams, t, o);
  }
}

void hc_head(const HcHeadArgs& a, Stream&) {
  const int64_t hc = a.hc;
  const int64_t h = a.y.cols;
  DI_CHECK(a.streams.cols == hc * h && a.norm.cols == h && a.y.rows == a.streams.rows,
           "streams [{}, {}], y [{}, {}], norm {}, hc {}", a.streams.rows, a.streams.cols, a.y.rows, h, a.norm.cols,
           hc);
  const std::vector<float> norm = read_vector(a.norm);
  std::vector<float> buffer;
  std::vector<float> y(static_cast<size_t>(h));
  for (int64_t t = 0; t < a.streams.rows; ++t) {
    collapse(read_row(a.streams, t, buffer), a.mix + t * hc, hc, h, y.data());
    if (a.streams.dtype == DType::kBf16) round_row(y.data(), h);
    if (a.h.data != nullptr) write_row(a.h, t, y.data());
    rms_norm_row(y.data(), norm.data(), h, a.norm_eps, y.data());
    write_row(a.y, t, y.data());
  }
}

// mix = sigmoid((f·fnᵀ)·rsqrt(mean f² + eps)·scale + base) + hc_eps (model.md §10.1)
void hc_head_mix(const HcHeadMixArgs& a, Stream&) {
  const int64_t width = a.streams.cols;
  std::vector<float> buffer;
  for (int64_t t = 0; t < a.streams.rows; ++t) {
    const float* f = read_row(a.streams, t, buffer);
    const float r = inverse_rms(f, width, a.norm_eps);
    for (int64_t i = 0; i < a.hc; ++i) {
      const float m = dot(f, a.fn + i * width, width) * r;
      a.mix[t * a.hc + i] = sigmoid(m * a.scale[0] + a.base[i]) + a.hc_eps;
    }
  }
}

}  // namespace di::kernels::cpu::ref
