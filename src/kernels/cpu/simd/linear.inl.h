// The operators linear and grouped_linear: rows of x packed once, panels of W as tasks (gemm.inl.h multiplies).

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

// Products of `groups` column slices of x with `groups` row slices of W, written side by side.
inline void linear_groups(const Tensor& x, const Weight& w, int64_t groups, const Numerics& numerics, bool accumulate,
                          const Tensor& y, CpuStream& s) {
  if (x.rows == 0 || w.rows == 0) return;
  const MatView m = view_of(w);
  const int64_t group = activation_group_of(w, numerics);
  with_decoder(w.format, pair_products(x.dtype, w.format, group), [&](auto decoder) {
    using D = decltype(decoder);
    using X = typename D::Kind::X;
    const int64_t outputs = w.rows / groups;
    const X*** packed = s.shared.take<const X**>(groups);
    for (int64_t g = 0; g < groups; ++g) packed[g] = pack_rows<D>(s, x, g * w.cols, w.cols, group);
    const LinearPlan plan = pick_linear({x.rows, outputs, w.cols, groups, s.pool.size(), kTileRows});
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
          [&](int64_t row, int64_t n, int64_t count, __m128 v) { store_sums(y, accumulate, m0 + row, n, count, v); });
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
