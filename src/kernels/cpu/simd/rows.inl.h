// Operators that pass over rows: norms, ropes, hyper-connections, stores, gathers. A row is read into fp32 scratch
// (first cache), worked on there and written once; rows are spread over the team when there is enough of them.

// Runs body(scratch, row) for all rows; `values` is about what one row passes over.
template <class Body>
inline void for_rows(CpuStream& s, int64_t rows, int64_t values, const Body& body) {
  if (rows <= 1 || s.pool.size() == 1 || rows * values < kSerialValues) {
    for (int64_t row = 0; row < rows; ++row) {
      s.worker[0].reset();
      body(s.worker[0], row);
    }
    return;
  }
  s.pool.parallel([&](int worker) {
    Arena& scratch = s.worker[static_cast<size_t>(worker)];
    const int64_t n = s.pool.size();
    for (int64_t row = rows * worker / n; row < rows * (worker + 1) / n; ++row) {
      scratch.reset();
      body(scratch, row);
    }
  });
}

inline int64_t padded(int64_t n) {
  return (n + L - 1) / L * L;
}

// The one row of a norm's weight as fp32, readable in whole vectors.
inline const float* norm_weight(CpuStream& s, const Weight& w) {
  if (w.format == WeightFormat::kF32 && w.cols % L == 0) return static_cast<const float*>(w.data);
  float* values = s.shared.take<float>(padded(w.cols));
  if (w.format == WeightFormat::kBf16) {
    read_columns({const_cast<void*>(w.data), DType::kBf16, 1, w.cols, w.cols}, 0, 0, w.cols, values);
  } else {
    dequantise_row(w, 0, values);
  }
  return values;
}

inline float inverse_rms_of(const float* x, int64_t n, float eps) {
  return static_cast<float>(1.0 / std::sqrt(sum_squares(x, n) / static_cast<double>(n) + static_cast<double>(eps)));
}

// x ← w·(x·rsqrt(mean(x²) + eps))
inline void norm_row(float* x, const float* w, int64_t n, float eps) {
  const F r = set1(inverse_rms_of(x, n, eps));
  for (int64_t i = 0; i < n; i += L) store(x + i, mul(load(w + i), mul(load(x + i), r)));
}

inline void round_row(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += L) store(x + i, round_bf16(load(x + i)));
}

inline void rms_norm(const RmsNormArgs& a, Stream& stream) {
  DI_CHECK(a.x.rows == a.y.rows && a.x.cols == a.y.cols && a.w.cols == a.x.cols, "x [{}, {}], y [{}, {}], weight {}",
           a.x.rows, a.x.cols, a.y.rows, a.y.cols, a.w.cols);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  const float* w = norm_weight(s, a.w);
  for_rows(s, a.x.rows, a.x.cols, [&](Arena& scratch, int64_t t) {
    float* x = scratch.take<float>(padded(a.x.cols));
    read_columns(a.x, t, 0, a.x.cols, x);
    norm_row(x, w, a.x.cols, a.eps);
    write_columns(a.y, t, 0, a.x.cols, x);
  });
}

inline void rope_table(const RopeTableArgs& a, Stream& stream) {
  const int64_t pairs = a.rope_dim / 2;
  for_rows(cpu_stream(stream), a.n, pairs * 64, [&](Arena&, int64_t t) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(static_cast<float>(a.positions[t]) * a.inv_freq[i]);
      a.table[(t * pairs + i) * 2] = static_cast<float>(std::cos(angle));
      a.table[(t * pairs + i) * 2 + 1] = static_cast<float>(std::sin(angle));
    }
  });
}

inline void q_rope(const QRopeArgs& a, Stream& stream) {
  DI_CHECK(a.heads > 0 && a.q.cols % a.heads == 0 && a.rope_dim <= a.q.cols / a.heads,
           "q of {} columns, {} heads, rope {}", a.q.cols, a.heads, a.rope_dim);
  const int64_t d = a.q.cols / a.heads;
  // Without the norm only the rotated channels change.
  const int64_t from = a.head_norm_eps > 0.F ? 0 : d - a.rope_dim;
  for_rows(cpu_stream(stream), a.q.rows, a.heads * (d - from) * 4, [&](Arena& scratch, int64_t t) {
    float* q = scratch.take<float>(padded(d));
    for (int64_t h = 0; h < a.heads; ++h) {
      read_columns(a.q, t, h * d + from, d - from, q);
      if (a.head_norm_eps > 0.F) {
        const F r = set1(inverse_rms_of(q, d, a.head_norm_eps));
        for (int64_t i = 0; i < d; i += L) store(q + i, mul(load(q + i), r));
      }
      rotate_pairs(q + d - a.rope_dim - from, a.table + t * a.rope_dim, a.rope_dim, false);
      write_columns(a.q, t, h * d + from, d - from, q);
    }
  });
}

// x ← E2M1/ue8m0 per 32 channels of bf16(x), read back; same values as requantise_index_query.
inline void quantise_index_row(float* x, int64_t n) {
  for (int64_t j = 0; j < n; j += 32) {
    F amax = zero();
    for (int64_t i = j; i < j + 32; i += L) {
      const F v = round_bf16(load(x + i));
      store(x + i, v);
      amax = max(amax, abs(v));
    }
    const int e = ceil_log2(std::max(max_lane(amax), 6.F * 0x1p-126F) / 6.F);
    const F scale = set1(exp2_int(e));
    const F inverse = set1(exp2_int(-e));
    for (int64_t i = j; i < j + 32; i += L) {
      const F v = min(max(mul(load(x + i), inverse), set1(-6.F)), set1(6.F));
      store(x + i, mul(round_grid<1, 127>(v), scale));
    }
  }
}

inline void index_query(const IndexQueryArgs& a, Stream& stream) {
  DI_CHECK(a.heads > 0 && a.q.cols % a.heads == 0, "q of {} columns, {} heads", a.q.cols, a.heads);
  const int64_t width = a.q.cols / a.heads;
  DI_CHECK(a.rope_dim <= width && (!a.quantise || width % 32 == 0), "index width {}, rope {}", width, a.rope_dim);
  for_rows(cpu_stream(stream), a.q.rows, a.q.cols * 4, [&](Arena& scratch, int64_t t) {
    float* q = scratch.take<float>(padded(a.q.cols));
    read_columns(a.q, t, 0, a.q.cols, q);
    for (int64_t h = 0; h < a.heads; ++h)
      rotate_pairs(q + (h + 1) * width - a.rope_dim, a.table + t * a.rope_dim, a.rope_dim, false);
    if (a.quantise) quantise_index_row(q, a.q.cols);
    write_columns(a.q, t, 0, a.q.cols, q);
  });
}

inline void swa_store(const SwaStoreArgs& a, Stream& stream) {
  const int64_t d = a.kv.cols;
  DI_CHECK(a.norm.cols == d && a.rope_dim <= d, "kv of {} columns, norm {}, rope {}", d, a.norm.cols, a.rope_dim);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  const float* w = norm_weight(s, a.norm);
  const int64_t bytes = record_bytes(a.format, d);
  for_rows(s, a.kv.rows, d * 8, [&](Arena& scratch, int64_t t) {
    float* x = scratch.take<float>(padded(d));
    read_columns(a.kv, t, 0, d, x);
    norm_row(x, w, d, a.norm_eps);
    if (a.round_bf16) round_row(x, d);
    rotate_pairs(x + d - a.rope_dim, a.table + t * a.rope_dim, a.rope_dim, false);
    if (a.round_bf16) round_row(x, d);
    uint8_t* data = a.fresh + t * bytes;
    uint8_t* scale = data + data_bytes(a.format, d);
    store_record(a.format, d, x, data, scale);
    if (a.entry.data != nullptr) {
      load_record(a.format, d, data, scale, x);
      write_columns(a.entry, t, 0, d, x);
    }
  });
}

inline void page_store(const PageStoreArgs& a, Stream& stream) {
  const int64_t width = a.x.cols;
  const bool normed = a.norm.data != nullptr;
  DI_CHECK(a.x.rows == a.n_closing && width == a.pages.width && (!normed || a.norm.cols == width) && a.ratio > 0,
           "x [{}, {}] for {} entries of width {}, norm {}, ratio {}", a.x.rows, width, a.n_closing, a.pages.width,
           a.norm.cols, a.ratio);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  const float* w = normed ? norm_weight(s, a.norm) : nullptr;
  for_rows(s, a.n_closing, width * 8, [&](Arena& scratch, int64_t i) {
    float* x = scratch.take<float>(padded(width));
    read_columns(a.x, i, 0, width, x);
    if (normed) norm_row(x, w, width, a.norm_eps);
    if (a.round_bf16) round_row(x, width);
    rotate_pairs(x + width - a.rope_dim, a.table + i * a.rope_dim, a.rope_dim, false);
    if (a.round_bf16) round_row(x, width);
    const int64_t t = a.closing[i];
    const RecordAt at = page_entry(a.pages, a.rows, a.rows.sequence[t], a.rows.positions[t] / a.ratio);
    store_record(a.pages.format, width, x, at.data, at.scale);
  });
}

// ---- hyper-connections with four streams; other counts take the reference
// ----------------------------------------------------

// h = Σ_i q_i·X_i, x = four rows of `width` values that lie `stride` apart.
inline void collapse(const float* x, int64_t stride, const float* q, int64_t width, float* h) {
  const F q0 = set1(q[0]);
  const F q1 = set1(q[1]);
  const F q2 = set1(q[2]);
  const F q3 = set1(q[3]);
  for (int64_t c = 0; c < width; c += L) {
    F sum = mul(q0, load(x + c));
    sum = fma(q1, load(x + stride + c), sum);
    sum = fma(q2, load(x + 2 * stride + c), sum);
    store(h + c, fma(q3, load(x + 3 * stride + c), sum));
  }
}

inline float* read_streams(const Tensor& streams, int64_t t, int64_t h, Arena& scratch) {
  float* x = scratch.take<float>(4 * padded(h));
  for (int64_t i = 0; i < 4; ++i) read_columns(streams, t, i * h, h, x + i * padded(h));
  return x;
}

// Sinkhorn of one token (model.md §5.2); c [4, 4] row-major, already the softmax of its rows plus eps.
inline void sinkhorn(float* c, int32_t iterations, float eps) {
  const __m128 e = _mm_set1_ps(eps);
  __m128 r0 = _mm_loadu_ps(c);
  __m128 r1 = _mm_loadu_ps(c + 4);
  __m128 r2 = _mm_loadu_ps(c + 8);
  __m128 r3 = _mm_loadu_ps(c + 12);
  const auto columns = [&] {
    const __m128 sum = _mm_add_ps(_mm_add_ps(_mm_add_ps(_mm_add_ps(r0, r1), r2), r3), e);
    r0 = _mm_div_ps(r0, sum);
    r1 = _mm_div_ps(r1, sum);
    r2 = _mm_div_ps(r2, sum);
    r3 = _mm_div_ps(r3, sum);
  };
  columns();
  for (int32_t n = 1; n < iterations; ++n) {
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    columns();
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    columns();
  }
  _mm_storeu_ps(c, r0);
  _mm_storeu_ps(c + 4, r1);
  _mm_storeu_ps(c + 8, r2);
  _mm_storeu_ps(c + 12, r3);
}

// From m (24 products, already scaled by the inverse rms): pre, post and comb of a token.
inline void site_coefficients(const HcPreArgs& a, const float* m, float* pre, float* post, float* comb) {
  alignas(64) float v[32];
  for (int i = 0; i < 4; ++i) {
    v[i] = m[i] * a.scale[0] + a.base[i];
    v[4 + i] = m[4 + i] * a.scale[1] + a.base[4 + i];
  }
  for (int i = 8; i < 16; ++i) v[i] = 0.F;
  for (int i = 0; i < 16; i += L) store(v + i, sigmoid(load(v + i)));
  for (int i = 0; i < 4; ++i) {
    pre[i] = v[i] + a.hc_eps;
    post[i] = 2.F * v[4 + i];
  }
  for (int i = 0; i < 4; ++i) {
    float most = -INFINITY;
    for (int j = 0; j < 4; ++j) {
      v[4 * i + j] = m[8 + 4 * i + j] * a.scale[2] + a.base[8 + 4 * i + j];
      most = std::max(most, v[4 * i + j]);
    }
    for (int j = 0; j < 4; ++j) v[4 * i + j] -= most;
  }
  for (int i = 0; i < 16; i += L) store(v + i, exp(load(v + i)));
  for (int i = 0; i < 4; ++i) {
    const float sum = ((v[4 * i] + v[4 * i + 1]) + v[4 * i + 2]) + v[4 * i + 3];
    for (int j = 0; j < 4; ++j) comb[4 * i + j] = v[4 * i + j] / sum + a.hc_eps;
  }
  sinkhorn(comb, a.sinkhorn_iters, a.hc_eps);
}

// f·fnᵀ for every row: out[t, 0 … outputs), rows of `stride` floats.
inline void stream_products(CpuStream& s, const Tensor& streams, const float* fn, int64_t outputs, float* out,
                            int64_t stride) {
  const int64_t width = streams.cols;
  const MatView m{reinterpret_cast<const uint8_t*>(fn), nullptr, outputs, width, width * 4, 0, 0, 0};
  const float* const* x = pack_rows<WideF32>(s, streams, 0, width, 0);
  const int64_t block = 24;
  const int64_t parts = divide_up(outputs, 8);
  run_tasks(s, divide_up(streams.rows, block) * parts, streams.rows * outputs * width >= kSerialProducts,
            [&](Arena& scratch, int64_t task) {
              const int64_t m0 = task / parts * block;
              const int64_t rows = std::min(block, streams.rows - m0);
              const int64_t n0 = task % parts * 8;
              const int64_t n1 = std::min(n0 + 8, outputs);
              multiply<WideF32>(
                  m, n0, n1, x + m0, rows, workspace<WideF32>(scratch, rows, 8, width),
                  [&](int64_t row, int64_t n, int64_t, __m128 v) { _mm_storeu_ps(out + (m0 + row) * stride + n, v); });
            });
}

inline void hc_pre(const HcPreArgs& a, Stream& stream) {
  if (a.hc != 4) return reference_ops().hc_pre(a, stream);
  const int64_t h = a.y.cols;
  DI_CHECK(a.streams.cols == 4 * h && a.norm.cols == h && a.y.rows == a.streams.rows,
           "streams [{}, {}], y [{}, {}], norm {}, hc {}", a.streams.rows, a.streams.cols, a.y.rows, h, a.norm.cols,
           a.hc);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  const float* norm = norm_weight(s, a.norm);
  float* m = s.shared.take<float>(a.streams.rows * 24);
  stream_products(s, a.streams, a.fn, 24, m, 24);
  for_rows(s, a.streams.rows, 8 * h, [&](Arena& scratch, int64_t t) {
    float* x = read_streams(a.streams, t, h, scratch);
    double squares = 0.0;
    for (int64_t i = 0; i < 4; ++i) squares += sum_squares(x + i * padded(h), h);
    const float r =
        static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(4 * h) + static_cast<double>(a.norm_eps)));
    for (int64_t i = 0; i < 24; ++i) m[t * 24 + i] *= r;
    float* pre = a.pre + t * 4;
    site_coefficients(a, m + t * 24, pre, a.post + t * 4, a.comb + t * 16);
    float* y = scratch.take<float>(padded(h));
    collapse(x, padded(h), a.use_own_pre ? pre : a.mix_in + t * 4, h, y);
    if (a.round_bf16) round_row(y, h);
    norm_row(y, norm, h, a.norm_eps);
    write_columns(a.y, t, 0, h, y);
  });
}

inline void hc_post(const HcPostArgs& a, Stream& stream) {
  if (a.hc != 4) return reference_ops().hc_post(a, stream);
  const int64_t h = a.y.cols;
  DI_CHECK(a.streams.cols == 4 * h && a.y.rows == a.streams.rows, "streams [{}, {}], y [{}, {}], hc {}", a.streams.rows,
           a.streams.cols, a.y.rows, h, a.hc);
  for_rows(cpu_stream(stream), a.streams.rows, 8 * h, [&](Arena& scratch, int64_t t) {
    const int64_t stride = padded(h);
    float* x = read_streams(a.streams, t, h, scratch);
    float* y = scratch.take<float>(stride);
    read_columns(a.y, t, 0, h, y);
    F post[4];
    F comb[16];
    for (int i = 0; i < 4; ++i) post[i] = set1(a.post[t * 4 + i]);
    for (int i = 0; i < 16; ++i) comb[i] = set1(a.comb[t * 16 + i]);
    for (int64_t c = 0; c < h; c += L) {
      const F v = load(y + c);
      const F old[4] = {load(x + c), load(x + stride + c), load(x + 2 * stride + c), load(x + 3 * stride + c)};
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        F sum = mul(post[j], v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sum = fma(comb[4 * i + j], old[i], sum);
        store(x + j * stride + c, sum);
      }
    }
    for (int64_t i = 0; i < 4; ++i) write_columns(a.streams, t, i * h, h, x + i * stride);
  });
}

inline void hc_head(const HcHeadArgs& a, Stream& stream) {
  if (a.hc != 4) return reference_ops().hc_head(a, stream);
  const int64_t h = a.y.cols;
  DI_CHECK(a.streams.cols == 4 * h && a.norm.cols == h && a.y.rows == a.streams.rows,
           "streams [{}, {}], y [{}, {}], norm {}, hc {}", a.streams.rows, a.streams.cols, a.y.rows, h, a.norm.cols,
           a.hc);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  const float* norm = norm_weight(s, a.norm);
  for_rows(s, a.streams.rows, 8 * h, [&](Arena& scratch, int64_t t) {
    const float* x = read_streams(a.streams, t, h, scratch);
    float* y = scratch.take<float>(padded(h));
    collapse(x, padded(h), a.mix + t * 4, h, y);
    if (a.streams.dtype == DType::kBf16) round_row(y, h);
    if (a.h.data != nullptr) write_columns(a.h, t, 0, h, y);
    norm_row(y, norm, h, a.norm_eps);
    write_columns(a.y, t, 0, h, y);
  });
}

inline void stream_mean(const StreamMeanArgs& a, Stream& stream) {
  if (a.hc != 4) return reference_ops().stream_mean(a, stream);
  const int64_t h = a.streams.cols / 4;
  DI_CHECK(a.streams.cols == 4 * h && a.column + h <= a.y.cols && a.y.rows == a.streams.rows,
           "streams [{}, {}], y [{}, {}] at column {}, hc {}", a.streams.rows, a.streams.cols, a.y.rows, a.y.cols,
           a.column, a.hc);
  for_rows(cpu_stream(stream), a.streams.rows, 4 * h, [&](Arena& scratch, int64_t t) {
    float* x = read_streams(a.streams, t, h, scratch);
    const int64_t stride = padded(h);
    for (int64_t c = 0; c < h; c += L) {
      const F sum =
          add(add(add(load(x + c), load(x + stride + c)), load(x + 2 * stride + c)), load(x + 3 * stride + c));
      store(x + c, mul(sum, set1(.25F)));
    }
    write_columns(a.y, t, a.column, h, x);
  });
}

// ---- compressor
// ---------------------------------------------------------------------------------------------------------------

inline void compress(const CompressArgs& a, Stream& stream) {
  if (a.ratio != 1) return reference_ops().compress(a, stream);
  const int64_t d = a.latent.cols;
  DI_CHECK(a.v.cols == d && a.norm.cols == d && a.latent.rows == a.n_closing && a.v.rows == a.rows.n,
           "v [{}, {}], norm {}, latent [{}, {}], {} closing of {} rows", a.v.rows, a.v.cols, a.norm.cols,
           a.latent.rows, d, a.n_closing, a.rows.n);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  const float* w = norm_weight(s, a.norm);
  for_rows(s, a.n_closing, d, [&](Arena& scratch, int64_t g) {
    float* x = scratch.take<float>(padded(d));
    read_columns(a.v, a.closing[g], 0, d, x);
    if (a.round_bf16) round_row(x, d);
    norm_row(x, w, d, a.norm_eps);
    write_columns(a.latent, g, 0, d, x);
  });
}

// ---- router
// -------------------------------------------------------------------------------------------------------------------

inline void router(const RouterArgs& a, Stream& stream) {
  const int64_t experts = a.gate.rows;
  DI_CHECK(a.y.cols == a.gate.cols && a.k >= 0 && a.k <= experts, "y of {} columns, gate [{}, {}], top {}", a.y.cols,
           experts, a.gate.cols, a.k);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  float* scores = s.shared.take<float>(a.y.rows * experts);
  linear_groups(a.y, a.gate, 1, {}, false, {scores, DType::kF32, a.y.rows, experts, experts}, s);
  for_rows(s, a.y.rows, experts * 32, [&](Arena& scratch, int64_t t) {
    float* score = scores + t * experts;
    for (int64_t e = 0; e < experts; ++e) {
      const float x = score[e];
      score[e] = std::sqrt(std::max(x, 0.F) + std::log1p(std::exp(-std::fabs(x))));
    }
    int32_t* ids = a.ids + t * a.k;
    if (a.forced_ids != nullptr) {
      std::copy(a.forced_ids + t * a.k, a.forced_ids + (t + 1) * a.k, ids);
    } else {
      const bool image = a.rows.is_image != nullptr && a.rows.is_image[t] != 0;
      const float* bias = image && a.bias_vl != nullptr ? a.bias_vl : a.bias;
      float* biased = scratch.take<float>(experts);
      for (int64_t e = 0; e < experts; ++e) biased[e] = bias != nullptr ? score[e] + bias[e] : score[e];
      // k passes for the largest that is left; the first of equals is the lower id. NaN stays behind everything else.
      for (int64_t k = 0; k < a.k; ++k) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts; ++e) {
          const bool taken = std::find(ids, ids + k, static_cast<int32_t>(e)) != ids + k;
          if (!taken && (best < 0 || biased[e] > biased[best] || (std::isnan(biased[best]) && !std::isnan(biased[e]))))
            best = e;
        }
        ids[k] = static_cast<int32_t>(best);
      }
    }
    float sum = 0.F;
    for (int64_t k = 0; k < a.k; ++k) {
      DI_CHECK(ids[k] >= 0 && ids[k] < experts, "expert {} of {}", ids[k], experts);
      sum += score[ids[k]];
    }
    for (int64_t k = 0; k < a.k; ++k) a.weights[t * a.k + k] = score[ids[k]] / (sum + 1e-20F) * a.scale;
  });
}

// ---- Engram
// -------------------------------------------------------------------------------------------------------------------

inline void engram_gather(const EngramGatherArgs& a, Stream& stream) {
  const int64_t width = a.table.cols;
  DI_CHECK(a.e.rows == a.n_tokens && a.e.cols == a.columns * width, "e [{}, {}], wanted [{}, {}]", a.e.rows, a.e.cols,
           a.n_tokens, a.columns * width);
  const bool fast = a.table.format == WeightFormat::kFp8Row && width % 32 == 0;
  for_rows(cpu_stream(stream), a.n_tokens, a.columns * width, [&](Arena& scratch, int64_t t) {
    float* row = scratch.take<float>(padded(width));
    for (int64_t c = 0; c < a.columns; ++c) {
      const int64_t at = a.rows[t * a.columns + c];
      if (fast) {
        DI_CHECK(at >= 0 && at < a.table.rows, "row {} of a table of {} rows", at, a.table.rows);
        const uint8_t* data = static_cast<const uint8_t*>(a.table.data) + at * width;
        decode_record<WideKind>(KvFormat::kE4m3Ue8m0, width,
                                {const_cast<uint8_t*>(data), const_cast<uint8_t*>(a.table.scale) + at * (width / 32)},
                                row);
      } else {
        dequantise_row(a.table, at, row);
      }
      write_columns(a.e, t, c * width, width, row);
    }
  });
}

inline void engram_gate(const EngramGateArgs& a, Stream& stream) {
  const int64_t h = a.q_weight.cols;
  const int64_t hc = a.hc;
  DI_CHECK(a.streams.cols == hc * h && a.kvp.cols == (hc + 1) * h && a.kvp.rows == a.streams.rows &&
               a.q_weight.rows == hc && a.k_weight.rows == hc && a.k_weight.cols == h,
           "streams [{}, {}], kvp [{}, {}], q_weight [{}, {}], k_weight [{}, {}], hc {}", a.streams.rows,
           a.streams.cols, a.kvp.rows, a.kvp.cols, a.q_weight.rows, h, a.k_weight.rows, a.k_weight.cols, hc);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  const int64_t stride = padded(h);
  float* weight = s.shared.take<float>(hc * stride);  // qw·kw, zero beyond h
  float* kw = s.shared.take<float>(h);
  std::fill(weight, weight + hc * stride, 0.F);
  for (int64_t i = 0; i < hc; ++i) {
    dequantise_row(a.q_weight, i, weight + i * stride);
    dequantise_row(a.k_weight, i, kw);
    for (int64_t c = 0; c < h; ++c) weight[i * stride + c] *= kw[c];
  }
  const float root = 1.F / std::sqrt(static_cast<float>(h));
  for_rows(s, a.streams.rows, 4 * hc * h, [&](Arena& scratch, int64_t t) {
    const bool image = a.rows.is_image != nullptr && a.rows.is_image[t] != 0;
    float* x = scratch.take<float>(stride);
    float* key = scratch.take<float>(stride);
    float* value = scratch.take<float>(stride);
    std::fill(x + h, x + stride, 0.F);
    std::fill(key + h, key + stride, 0.F);
    std::fill(value + h, value + stride, 0.F);
    read_columns(a.kvp, t, hc * h, h, value);
    for (int64_t i = 0; i < hc; ++i) {
      read_columns(a.streams, t, i * h, h, x);
      read_columns(a.kvp, t, i * h, h, key);
      F sum = zero();
      for (int64_t c = 0; c < stride; c += L)
        sum = fma(mul(load(x + c), load(weight + i * stride + c)), load(key + c), sum);
      const float d = sum_lanes(sum) * inverse_rms_of(x, h, a.norm_eps) * inverse_rms_of(key, h, a.norm_eps) * root;
      const float size = std::sqrt(std::max(std::fabs(d), 1e-6F));
      const float signed_size = d == 0.F && !a.copysign_at_zero ? 0.F : std::copysign(size, d);
      const float g = 1.F / (1.F + std::exp(-signed_size));
      if (a.gate != nullptr) a.gate[t * hc + i] = g;
      if (image) continue;
      for (int64_t c = 0; c < stride; c += L) store(x + c, add(load(x + c), mul(set1(g), load(value + c))));
      write_columns(a.streams, t, i * h, h, x);
    }
  });
}

// ---- argmax
// -------------------------------------------------------------------------------------------------------------------

inline void argmax(const ArgmaxArgs& a, Stream& stream) {
  const int64_t n = a.logits.cols;
  DI_CHECK(n > 0 || a.logits.rows == 0, "logits without columns");
  if (a.logits.dtype != DType::kF32) return reference_ops().argmax(a, stream);
  for_rows(cpu_stream(stream), a.logits.rows, n, [&](Arena&, int64_t t) {
    const float* x = static_cast<const float*>(a.logits.data) + t * a.logits.stride;
    F most = set1(-INFINITY);
    int64_t i = 0;
    for (; i + L <= n; i += L) most = max(load(x + i), most);  // a NaN on the left gives the right side
    float top = max_lane(most);
    for (; i < n; ++i) top = x[i] > top ? x[i] : top;
    const float* at = std::find(x, x + n, top);
    a.ids[t] = at == x + n ? 0 : static_cast<int32_t>(at - x);
  });
}
