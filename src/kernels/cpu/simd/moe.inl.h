// Mixture of experts in two passes over the team. Rows are grouped by expert; a task of the first pass is a panel of
// gate and up rows of one expert, its result (activation, routing weight, quantisation) goes packed into `hidden`; a
// task of the second pass is a panel of output columns through all experts, added up per row in the order of k, then
// the shared expert.

// Where column c of a chunk lies in packed rows of a decoder.
struct PackOrder {
  bool pairs;
  int64_t chunk;          // a power of two
  int64_t stride;         // elements of a packed row
  uint8_t position[128];  // of column c of a chunk
};

inline PackOrder pack_order(WeightFormat format, bool pairs, int64_t cols) {
  PackOrder order{};
  order.pairs = pairs;
  with_decoder(format, pairs, [&](auto decoder) {
    using D = decltype(decoder);
    order.chunk = D::kCols;
    order.stride = packed_stride<D>(cols);
    for (int p = 0; p < D::kCols; ++p) order.position[D::column(p)] = static_cast<uint8_t>(p);
  });
  return order;
}

inline void scatter(const PackOrder& order, void* row, int64_t column, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t c = column + i;
    const int64_t in_chunk = c & (order.chunk - 1);
    const int64_t at = c - in_chunk + order.position[in_chunk];
    if (order.pairs) {
      static_cast<uint16_t*>(row)[at] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x[i]) >> 16);
    } else {
      static_cast<float*>(row)[at] = x[i];
    }
  }
}

// The routed experts of a call, or the shared one: formats and packings that hold for all of them.
struct ExpertKind {
  WeightFormat in_format;   // of w1 and w3
  WeightFormat out_format;  // of w2
  bool in_pairs;
  bool out_pairs;
  int64_t out_group;  // quantisation of the hidden row
  int64_t inner;
  int64_t panel;  // rows of w1 and w3 of one task
  PackOrder hidden;
};

struct ExpertRows {
  const ExpertWeights* weights;
  const ExpertKind* kind;
  int64_t first;  // into the sorted slots
  int64_t count;
  const uint16_t* x = nullptr;       // y and the hidden rows of its slots in tiles, where the table has them
  const uint16_t* hidden = nullptr;  // and the format is multiplied in them
};

// The input of an expert's product as `multiply` takes it.
template <class D>
inline auto expert_input([[maybe_unused]] const void* const* rows, [[maybe_unused]] const uint16_t* tiles,
                         [[maybe_unused]] int64_t cols) {
#if DI_CPU_TILES
  if constexpr (kTiled<D>) {
    return TileInput{tiles, tile_steps<D>(cols)};
  } else {
    return reinterpret_cast<const typename D::Kind::X* const*>(rows);
  }
#else
  return reinterpret_cast<const typename D::Kind::X* const*>(rows);
#endif
}

inline void store_part(float* out, __m128 v) {
  _mm_storeu_ps(out, v);
}
#if DI_CPU_TILES
inline void store_part(float* out, F v) {
  store(out, v);
}
#endif

struct MoeCall {
  const MoeArgs* a;
  const ExpertRows* experts;
  int64_t n_experts;     // active ones
  const int32_t* slot;   // sorted by expert: row·places + place
  const void* const* x;  // packed y of each sorted slot
  void** hidden;         // packed hidden row of each sorted slot
  int64_t places;
};

inline ExpertKind expert_kind(const ExpertWeights& e, const MoeArgs& a, int64_t tasks_wanted) {
  ExpertKind k{};
  const int64_t in_group = activation_group_of(e.w1, a.numerics);
  k.in_format = e.w1.format;
  k.out_format = e.w2.format;
  k.in_pairs = pair_products(a.y.dtype, e.w1.format, in_group);
  k.out_group = activation_group_of(e.w2, a.numerics);
  k.out_pairs = pair_products(a.numerics.round_bf16 ? DType::kBf16 : DType::kF32, e.w2.format, k.out_group);
  k.inner = e.w1.rows;
  const int64_t unit = std::max<int64_t>(32, k.out_group);
  k.panel = std::clamp<int64_t>(k.inner / std::max<int64_t>(1, tasks_wanted) / unit * unit, unit,
                                std::max<int64_t>(64, unit));
  k.hidden = pack_order(k.out_format, k.out_pairs, k.inner);
  return k;
}

// g = y·w1ᵀ, u = y·w3ᵀ; a = silu(min(g, limit))·clamp(u, ±limit), prepared as the input of w2.
inline void gate_up(const MoeCall& call, const ExpertRows& e, int64_t n0, Arena& scratch) {
  const MoeArgs& a = *call.a;
  const ExpertKind& kind = *e.kind;
  const int64_t n1 = std::min(n0 + kind.panel, kind.inner);
  const int64_t width = (n1 - n0 + 15) / 16 * 16;
  float* gate = scratch.take<float>(e.count * width);
  float* up = scratch.take<float>(e.count * width);
  with_decoder(kind.in_format, kind.in_pairs, [&](auto decoder) {
    using D = decltype(decoder);
    const auto x = expert_input<D>(call.x + e.first, e.x, a.y.cols);
    const Workspace work = workspace<D>(scratch, e.count, n1 - n0, a.y.cols);
    const auto sink = [&](float* out) {
      return [=](int64_t row, int64_t n, int64_t, auto v) { store_part(out + row * width + n - n0, v); };
    };
    multiply<D>(view_of(e.weights->w1), n0, n1, x, e.count, work, sink(gate));
    multiply<D>(view_of(e.weights->w3), n0, n1, x, e.count, work, sink(up));
  });
  const F limit = set1(a.swiglu_limit);
  const F low = set1(-a.swiglu_limit);
  for (int64_t i = 0; i < e.count; ++i) {
    const int32_t slot = call.slot[e.first + i];
    const int64_t place = slot % call.places;
    const float weight = place < a.k ? a.weights[slot / call.places * a.k + place] : 1.F;
    float* row = gate + i * width;
    for (int64_t n = 0; n < width; n += L) {
      F g = load(row + n);
      F u = load(up + i * width + n);
      if (a.numerics.round_bf16) {
        g = round_bf16(g);
        u = round_bf16(u);
      }
      g = min(g, limit);
      u = min(max(u, low), limit);
      F value = mul(mul(g, sigmoid(g)), u);
      if (a.numerics.quantise_activations) value = mul(value, set1(weight));
      if (kind.out_group == 0 && a.numerics.round_bf16) value = round_bf16(value);
      store(row + n, value);
    }
    if (kind.out_group > 0) quantise_row(row, n1 - n0, kind.out_group);
    scatter(kind.hidden, call.hidden[e.first + i], n0, row, n1 - n0);
  }
}

// Columns [n0, n1) of the output of rows [0, rows) of this block.
inline void down(const MoeCall& call, int64_t first_row, int64_t rows, int64_t n0, int64_t n1, Arena& scratch) {
  const MoeArgs& a = *call.a;
  const int64_t width = (n1 - n0 + 15) / 16 * 16;
  float* parts = scratch.take<float>(rows * call.places * width);
  int64_t most = 0;
  int64_t inner = 0;
  for (int64_t i = 0; i < call.n_experts; ++i) {
    most = std::max(most, call.experts[i].count);
    inner = std::max(inner, call.experts[i].kind->inner);
  }
  // fp32 panels are the largest, and 128 columns the longest chunk.
  const Workspace rows_work = workspace<WideFp4>(scratch, most, n1 - n0, (inner + 127) / 128 * 128);
#if DI_CPU_TILES
  const Workspace tiles_work = tile_workspace(scratch, most, n1 - n0);
#endif
  for (int64_t i = 0; i < call.n_experts; ++i) {
    const ExpertRows& e = call.experts[i];
    with_decoder(e.kind->out_format, e.kind->out_pairs, [&](auto decoder) {
      using D = decltype(decoder);
      const auto x = expert_input<D>(call.hidden + e.first, e.hidden, e.kind->inner);
#if DI_CPU_TILES
      const Workspace& work = kTiled<D> ? tiles_work : rows_work;
#else
      const Workspace& work = rows_work;
#endif
      multiply<D>(view_of(e.weights->w2), n0, n1, x, e.count, work, [&](int64_t row, int64_t n, int64_t, auto v) {
        store_part(parts + call.slot[e.first + row] * width + n - n0, v);
      });
    });
  }
  float* sum = scratch.take<float>(width);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t n = 0; n < width; n += L) {
      F total = zero();
      for (int64_t p = 0; p < call.places; ++p) {
        F part = load(parts + (t * call.places + p) * width + n);
        if (!a.numerics.quantise_activations && p < a.k) part = mul(part, set1(a.weights[t * a.k + p]));
        total = add(total, part);
      }
      store(sum + n, total);
    }
    write_columns(a.out, first_row + t, n0, n1 - n0, sum);
  }
}

inline const void** packed_inputs(CpuStream& s, const Tensor& y, const ExpertKind& kind, const Weight& w1,
                                  const Numerics& numerics) {
  const void** rows = nullptr;
  with_decoder(kind.in_format, kind.in_pairs, [&](auto decoder) {
    using D = decltype(decoder);
    rows = reinterpret_cast<const void**>(pack_rows<D>(s, y, 0, y.cols, activation_group_of(w1, numerics)));
  });
  return rows;
}

#if DI_CPU_TILES
// The rows of each expert whose product takes tiles, brought into them: y, or the hidden rows when `hidden`.
inline void build_expert_tiles(CpuStream& s, const MoeCall& call, ExpertRows* experts, int64_t h, bool hidden) {
  int64_t tasks = 0;
  int64_t* first_task = s.shared.take<int64_t>(call.n_experts + 1);
  const auto steps_of = [&](const ExpertKind& kind) {
    int64_t steps = 0;
    if (!(hidden ? kind.out_pairs : kind.in_pairs)) return steps;
    with_decoder(hidden ? kind.out_format : kind.in_format, true, [&](auto decoder) {
      using D = decltype(decoder);
      if constexpr (kTiled<D>) steps = tile_steps<D>(hidden ? kind.inner : h);
    });
    return steps;
  };
  for (int64_t i = 0; i < call.n_experts; ++i) {
    ExpertRows& e = experts[i];
    first_task[i] = tasks;
    const int64_t steps = steps_of(*e.kind);
    if (steps == 0) continue;
    tasks += divide_up(e.count, 16);
    (hidden ? e.hidden : e.x) = s.shared.take<uint16_t>(tile_elements(e.count, steps));
  }
  first_task[call.n_experts] = tasks;
  run_tasks(s, tasks, tasks > 4, [&](Arena&, int64_t task) {
    const int64_t i = std::upper_bound(first_task, first_task + call.n_experts + 1, task) - first_task - 1;
    const ExpertRows& e = experts[i];
    const int64_t row = (task - first_task[i]) * 16;
    const int64_t steps = steps_of(*e.kind);
    uint16_t* tiles = const_cast<uint16_t*>(hidden ? e.hidden : e.x);
    build_block((hidden ? call.hidden : call.x) + e.first + row, std::min<int64_t>(16, e.count - row), steps,
                tiles + row / 16 * steps * kTileElements);
  });
}
#endif

inline void check_expert(const ExpertWeights& e, const ExpertWeights& first, int64_t h) {
  DI_CHECK(e.w1.cols == h && e.w3.cols == h && e.w3.rows == e.w1.rows && e.w2.rows == h && e.w2.cols == e.w1.rows,
           "expert w1 [{}, {}], w3 [{}, {}], w2 [{}, {}], width {}", e.w1.rows, e.w1.cols, e.w3.rows, e.w3.cols,
           e.w2.rows, e.w2.cols, h);
  DI_CHECK(e.w1.format == first.w1.format && e.w3.format == first.w1.format && e.w2.format == first.w2.format &&
               e.w1.rows == first.w1.rows,
           "experts of different formats or widths ({} and {} rows)", e.w1.rows, first.w1.rows);
}

// One block of rows.
inline void moe_block(const MoeArgs& block, int64_t first_row, const Tensor& whole_out, CpuStream& s) {
  MoeArgs a = block;
  a.out = whole_out;
  const int64_t rows = a.y.rows;
  const int64_t h = a.y.cols;
  const bool shared = a.shared.w1.data != nullptr;
  const int64_t places = a.k + (shared ? 1 : 0);
  const int64_t slots = rows * places;
  s.reset_scratch();

  // Slots sorted by expert, rows ascending within one.
  int32_t* begin = s.shared.take<int32_t>(a.n_experts + 2);
  std::fill(begin, begin + a.n_experts + 2, 0);
  for (int64_t i = 0; i < rows * a.k; ++i) {
    DI_CHECK(a.ids[i] >= 0 && a.ids[i] < a.n_experts, "expert {} of {}", a.ids[i], a.n_experts);
    ++begin[a.ids[i] + 1];
  }
  ExpertRows* experts = s.shared.take<ExpertRows>(std::min<int64_t>(a.n_experts, rows * a.k) + 1);
  ExpertKind* kinds = s.shared.take<ExpertKind>(2);
  int64_t active = 0;
  for (int64_t e = 0; e < a.n_experts; ++e) {
    if (begin[e + 1] > 0) {
      experts[active++] = {a.experts + e, kinds, begin[e], begin[e + 1]};
      check_expert(a.experts[e], *experts[0].weights, h);
    }
    begin[e + 1] += begin[e];
  }
  if (shared) {
    experts[active++] = {&a.shared, kinds + 1, rows * a.k, rows};
    check_expert(a.shared, a.shared, h);
  }
  int32_t* slot = s.shared.take<int32_t>(slots);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < a.k; ++k) slot[begin[a.ids[t * a.k + k]]++] = static_cast<int32_t>(t * places + k);
    if (shared) slot[rows * a.k + t] = static_cast<int32_t>(t * places + a.k);
  }

  const int64_t workers = s.pool.size();
  const int64_t wanted = divide_up(4 * workers, std::max<int64_t>(1, active));
  const void** x = s.shared.take<const void*>(slots);
  void** hidden = s.shared.take<void*>(slots);
  for (int64_t group = 0; group < 2; ++group) {  // routed, shared
    const int64_t first = group == 0 ? 0 : rows * a.k;
    const int64_t last = group == 0 ? rows * a.k : slots;
    if (first == last) continue;
    const ExpertWeights& e = group == 0 ? *experts[0].weights : a.shared;
    kinds[group] = expert_kind(e, a, wanted);
    const ExpertKind& kind = kinds[group];
    const void** packed = packed_inputs(s, a.y, kind, e.w1, a.numerics);
    const int64_t bytes = kind.hidden.stride * (kind.out_pairs ? 2 : 4);
    uint8_t* memory = s.shared.take<uint8_t>((last - first) * bytes);
    for (int64_t i = first; i < last; ++i) {
      x[i] = packed[slot[i] / places];
      hidden[i] = memory + (i - first) * bytes;
      const int64_t tail = kind.inner / kind.hidden.chunk * kind.hidden.chunk * bytes / kind.hidden.stride;
      std::memset(memory + (i - first) * bytes + tail, 0, static_cast<size_t>(bytes - tail));
    }
  }

  int64_t tasks = 0;
  int64_t products = 0;
  int64_t* first_task = s.shared.take<int64_t>(active + 1);
  for (int64_t i = 0; i < active; ++i) {
    first_task[i] = tasks;
    tasks += divide_up(experts[i].kind->inner, experts[i].kind->panel);
    products += experts[i].count * experts[i].kind->inner * h;
  }
  first_task[active] = tasks;
  const MoeCall call{&a, experts, active, slot, x, hidden, places};
#if DI_CPU_TILES
  build_expert_tiles(s, call, experts, h, false);
#endif
  run_tasks(s, tasks, products >= kSerialProducts, [&](Arena& scratch, int64_t task) {
    const int64_t e = std::upper_bound(first_task, first_task + active + 1, task) - first_task - 1;
    gate_up(call, experts[e], (task - first_task[e]) * experts[e].kind->panel, scratch);
  });
#if DI_CPU_TILES
  build_expert_tiles(s, call, experts, h, true);
#endif
  const int64_t columns = std::clamp<int64_t>(h / (4 * workers) / 32 * 32, 32, 64);
  run_tasks(s, divide_up(h, columns), products >= kSerialProducts, [&](Arena& scratch, int64_t task) {
    down(call, first_row, rows, task * columns, std::min((task + 1) * columns, h), scratch);
  });
}

inline void moe(const MoeArgs& a, Stream& stream) {
  DI_CHECK(a.out.cols == a.y.cols && a.out.rows == a.y.rows, "y [{}, {}], out [{}, {}]", a.y.rows, a.y.cols, a.out.rows,
           a.out.cols);
  constexpr int64_t kRows = 256;  // bounds the scratch: a block keeps k+1 hidden rows of each row
  for (int64_t first = 0; first < a.y.rows; first += kRows) {
    MoeArgs block = a;
    block.y.rows = std::min(kRows, a.y.rows - first);
    block.y.data = static_cast<uint8_t*>(a.y.data) + first * a.y.stride * size_of(a.y.dtype);
    block.ids = a.ids + first * a.k;
    block.weights = a.weights + first * a.k;
    moe_block(block, first, a.out, cpu_stream(stream));
  }
}

inline void moe_parts(const MoePartsArgs& a, Stream& stream) {
  run_moe_parts(a, moe, stream);
}
