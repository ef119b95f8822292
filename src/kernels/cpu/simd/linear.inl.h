// Activations on their way into and out of a product, and the dense linear operators.

// A product with D is `multiply_rows` (gemm.inl.h) or, where the table has matrix tiles and D multiplies bf16 pairs,
// `multiply_tiles` (tiles.inl.h).
#if !DI_CPU_TILES
template <class D>
inline constexpr bool kTiled = false;
#endif

template <class D>
inline Workspace workspace(Arena& scratch, int64_t rows, int64_t outputs, int64_t cols) {
#if DI_CPU_TILES
  if constexpr (kTiled<D>) return tile_workspace(scratch, rows, outputs);
#endif
  return row_workspace<D>(scratch, rows, outputs, cols);
}

// Outputs [n0, n1) of W for `rows` rows of x: sink(row, n, count, sums), four sums at a time or one vector of them.
template <class D, class Input, class Sink>
inline void multiply(const MatView& m, int64_t n0, int64_t n1, Input x, int64_t rows, const Workspace& work,
                     const Sink& sink) {
#if DI_CPU_TILES
  if constexpr (kTiled<D>) {
    multiply_tiles<D>(m, n0, n1, x, rows, work, sink);
  } else {
    multiply_rows<D>(m, n0, n1, x, rows, work, sink);
  }
#else
  multiply_rows<D>(m, n0, n1, x, rows, work, sink);
#endif
}

// ---- rows of tensors
// ------------------------------------------------------------------------------------------------------

inline void read_columns(const Tensor& t, int64_t row, int64_t column, int64_t n, float* out) {
  if (t.dtype == DType::kF32) {
    std::memcpy(out, static_cast<const float*>(t.data) + row * t.stride + column,
                static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const uint16_t* in = static_cast<const uint16_t*>(t.data) + row * t.stride + column;
  int64_t i = 0;
  for (; i + L <= n; i += L) store(out + i, load_bf16(in + i));
  for (; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i]) << 16);
}

inline void write_columns(const Tensor& t, int64_t row, int64_t column, int64_t n, const float* x) {
  if (t.dtype == DType::kF32) {
    std::memcpy(static_cast<float*>(t.data) + row * t.stride + column, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(t.data) + row * t.stride + column;
  int64_t i = 0;
  for (; i + L <= n; i += L) store_bf16(out + i, load(x + i));
  for (; i < n; ++i) out[i] = to_bf16(x[i]).bits;
}

// x ← its E4M3 form with one power-of-two scale per `group` channels (model.md §4.2); same values as
// requantise_activations.
inline void quantise_row(float* x, int64_t n, int64_t group) {
  if (n % L != 0 || group % L != 0) return requantise_activations(x, n, group);
  for (int64_t j = 0; j < n; j += group) {
    const int64_t end = std::min(n, j + group);
    F amax = zero();
    for (int64_t i = j; i < end; i += L) amax = max(amax, abs(load(x + i)));
    const int e = e4m3_scale_exponent(max_lane(amax));
    const F scale = set1(exp2_int(e));
    const F inverse = set1(exp2_int(-e));
    for (int64_t i = j; i < end; i += L) store(x + i, mul(round_grid<3, 121>(mul(load(x + i), inverse)), scale));
  }
}

inline int64_t activation_group_of(const Weight& w, const Numerics& numerics) {
  if (!numerics.quantise_activations) return 0;
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
      return 0;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:
      return numerics.activation_group;
    case WeightFormat::kFp4Row:
      return 32;
  }
  return 0;
}

// Packs columns [column, column + cols) of `rows` rows of x; returns the pointers to the packed rows.
template <class D>
inline const typename D::Kind::X** pack_rows(CpuStream& s, const Tensor& x, int64_t column, int64_t cols,
                                             int64_t group) {
  using X = typename D::Kind::X;
  const int64_t rows = x.rows;
  const int64_t stride = packed_stride<D>(cols);
  X* packed = s.shared.take<X>(rows * stride);
  const X** pointers = s.shared.take<const X*>(rows);
  const auto pack = [&](int64_t row, float* buffer) {
    read_columns(x, row, column, cols, buffer);
    if (group > 0) quantise_row(buffer, cols, group);
    pointers[row] = packed + row * stride;
    pack_row<D>(buffer, cols, packed + row * stride);
  };
  if (rows * cols < kSerialValues) {
    float* buffer = s.shared.take<float>(packed_cols<D>(cols));
    for (int64_t row = 0; row < rows; ++row) pack(row, buffer);
  } else {
    s.pool.parallel([&](int worker) {
      Arena& scratch = s.worker[static_cast<size_t>(worker)];
      scratch.reset();
      float* buffer = scratch.take<float>(packed_cols<D>(cols));
      const int64_t n = s.pool.size();
      for (int64_t row = rows * worker / n; row < rows * (worker + 1) / n; ++row) pack(row, buffer);
    });
  }
  return pointers;
}

// Packed rows as `multiply` takes them: their pointers, or tiles made of them.
template <class D>
inline auto input_of([[maybe_unused]] CpuStream& s, const typename D::Kind::X* const* rows,
                     [[maybe_unused]] int64_t count, [[maybe_unused]] int64_t cols) {
#if DI_CPU_TILES
  if constexpr (kTiled<D>) {
    return tile_input(s, reinterpret_cast<const void* const*>(rows), count, tile_steps<D>(cols));
  } else {
    return rows;
  }
#else
  return rows;
#endif
}

// ---- linear
// ---------------------------------------------------------------------------------------------------------------

inline void store_sums(const Tensor& y, bool accumulate, int64_t row, int64_t column, int64_t count, __m128 v) {
  alignas(16) float sums[4];
  _mm_store_ps(sums, v);
  if (y.dtype == DType::kF32) {
    float* out = static_cast<float*>(y.data) + row * y.stride + column;
    for (int64_t i = 0; i < count; ++i) out[i] = accumulate ? out[i] + sums[i] : sums[i];
  } else {
    uint16_t* out = static_cast<uint16_t*>(y.data) + row * y.stride + column;
    for (int64_t i = 0; i < count; ++i) {
      const float old = accumulate ? std::bit_cast<float>(static_cast<uint32_t>(out[i]) << 16) : 0.F;
      out[i] = to_bf16(accumulate ? old + sums[i] : sums[i]).bits;
    }
  }
}

#if DI_CPU_TILES
inline void store_sums(const Tensor& y, bool accumulate, int64_t row, int64_t column, int64_t count, F v) {
  alignas(64) float sums[16];
  if (count < 16) {
    store(sums, v);
    for (int64_t i = 0; i < count; i += 4) {
      store_sums(y, accumulate, row, column + i, std::min<int64_t>(4, count - i), _mm_load_ps(sums + i));
    }
  } else if (y.dtype == DType::kF32) {
    float* out = static_cast<float*>(y.data) + row * y.stride + column;
    store(out, accumulate ? add(load(out), v) : v);
  } else {
    uint16_t* out = static_cast<uint16_t*>(y.data) + row * y.stride + column;
    store_bf16(out, accumulate ? add(load_bf16(out), v) : v);
  }
}
#endif

// Products of `groups` column slices of x with `groups` row slices of W, written side by side.
inline void linear_groups(const Tensor& x, const Weight& w, int64_t groups, const Numerics& numerics, bool accumulate,
                          const Tensor& y, CpuStream& s) {
  if (x.rows == 0 || w.rows == 0) return;
  const MatView m = view_of(w);
  const int64_t group = activation_group_of(w, numerics);
  with_decoder(w.format, pair_products(x.dtype, w.format, group), [&](auto decoder) {
    using D = decltype(decoder);
    using Input = decltype(input_of<D>(s, nullptr, 0, 0));
    const int64_t outputs = w.rows / groups;
    Input* packed = s.shared.take<Input>(groups);
    for (int64_t g = 0; g < groups; ++g) {
      packed[g] = input_of<D>(s, pack_rows<D>(s, x, g * w.cols, w.cols, group), x.rows, w.cols);
    }
    const LinearPlan plan = pick_linear({x.rows, outputs, w.cols, groups, s.pool.size(), kTiled<D> ? 32 : kTileRows});
    run_tasks(s, plan.panels * plan.row_blocks * groups, plan.parallel, [&](Arena& scratch, int64_t task) {
      const int64_t g = task / (plan.panels * plan.row_blocks);
      const int64_t block = task / plan.panels % plan.row_blocks;
      const int64_t panel = task % plan.panels;
      const int64_t n0 = g * outputs + panel * plan.panel_rows;
      const int64_t n1 = std::min(n0 + plan.panel_rows, (g + 1) * outputs);
      const int64_t m0 = block * plan.block_rows;
      const int64_t m1 = std::min(m0 + plan.block_rows, x.rows);
      multiply<D>(
          m, n0, n1, packed[g] + m0, m1 - m0, workspace<D>(scratch, m1 - m0, n1 - n0, w.cols),
          [&](int64_t row, int64_t n, int64_t count, auto v) { store_sums(y, accumulate, m0 + row, n, count, v); });
    });
  });
}

inline void linear(const LinearArgs& a, Stream& stream) {
  DI_CHECK(a.x.cols == a.w.cols && a.y.cols == a.w.rows && a.y.rows == a.x.rows, "x [{}, {}], w [{}, {}], y [{}, {}]",
           a.x.rows, a.x.cols, a.w.rows, a.w.cols, a.y.rows, a.y.cols);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  linear_groups(a.x, a.w, 1, a.numerics, a.accumulate, a.y, s);
}

inline void grouped_linear(const GroupedLinearArgs& a, Stream& stream) {
  DI_CHECK(a.groups > 0 && a.x.cols == a.groups * a.w.cols && a.w.rows % a.groups == 0 && a.y.cols == a.w.rows &&
               a.y.rows == a.x.rows,
           "x [{}, {}], w [{}, {}] in {} groups, y [{}, {}]", a.x.rows, a.x.cols, a.w.rows, a.w.cols, a.groups,
           a.y.rows, a.y.cols);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
  linear_groups(a.x, a.w, a.groups, a.numerics, false, a.y, s);
}
