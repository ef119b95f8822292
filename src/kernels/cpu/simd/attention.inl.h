// Attention of one row over its own entries. The entries are decoded once into dense rows (bf16 where both sides are
// bf16 values, else fp32) and shared by the heads; scores are a panel product with the heads as rows, the value product
// runs over the entries in order with the channels across the lanes. Every sum of an output has an order fixed by the
// row alone, so heads and rows may be spread over the team at will.

template <class Kind>
inline void decode_record(KvFormat format, int64_t width, const RecordAt& at, typename Kind::X* out) {
  using X = typename Kind::X;
  int64_t i = 0;
  switch (format) {
    case KvFormat::kF32:
      for (; i + L <= width; i += L) Kind::store_floats(out + i, load_unaligned(at.data + 4 * i));
      break;
    case KvFormat::kE4m3Ue8m0:
      for (; i + 32 <= width; i += 32) {
        const F scale = set1(fp8_multiplier(at.scale[i / 32]));
        for (int64_t j = 0; j < 32; j += L) Kind::store_floats(out + i + j, mul(load_e4m3(at.data + i + j), scale));
      }
      break;
    case KvFormat::kE2m1E4m3:
    case KvFormat::kE2m1Ue8m0: {
      // Twice the E2M1 values fit a byte; the scale takes the half.
      const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
      for (; i + 16 <= width; i += 16) {
        const float s = format == KvFormat::kE2m1E4m3 ? to_float(E4m3{at.scale[i / 16]}) : ue8m0(at.scale[i / 32]);
        const F half = set1(.5F * s);
        const __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at.data + i / 2)));
        const __m128i nibbles = _mm_and_si128(_mm_or_si128(b, _mm_slli_epi16(b, 4)), _mm_set1_epi8(15));
        const __m128i values = _mm_shuffle_epi8(table, nibbles);
        for (int part = 0; part < 16 / L; ++part)
          Kind::store_floats(out + i + part * L, mul(load_int8(values, part), half));
      }
      break;
    }
  }
  if (i == width) return;
  float rest[64];  // fewer than 32 channels are left, but load_record counts its groups from the start of a record
  DI_CHECK(width - i <= 32, "record of {} channels", width);
  const int64_t group = format == KvFormat::kE2m1E4m3 ? 16 : 32;
  load_record(format, width - i, at.data + data_bytes(format, i), at.scale + (format == KvFormat::kF32 ? 0 : i / group),
              rest);
  for (int64_t j = i; j < width; ++j) out[j] = static_cast<X>(Kind::from_float(rest[j - i]));
}

// The entries of row t in the order of their sums: the window by position, then the selected ones as listed.
inline int64_t list_entries(const AttentionArgs& a, int64_t t, RecordAt* list) {
  const int64_t d = a.ring.width;
  const int64_t sequence = a.rows.sequence[t];
  int64_t n = 0;
  for (int64_t p = a.rows.window_begin[t]; p < a.rows.window_end[t]; ++p) {
    if (a.fresh.records != nullptr && p >= a.fresh.position[sequence]) {
      const int64_t row = a.fresh.row[sequence] + p - a.fresh.position[sequence];
      uint8_t* data = const_cast<uint8_t*>(a.fresh.records) + row * record_bytes(a.ring.format, d);
      list[n++] = {data, data + data_bytes(a.ring.format, d)};
    } else {
      DI_CHECK(p >= 0, "row {} sees the window entry of position {}", t, p);
      list[n++] = ring_record(a.ring, a.rows.state_slot[sequence], p);
    }
  }
  if (a.ratio == 0) return n;
  const int64_t compressed = a.selection != nullptr ? a.topk : (a.rows.positions[t] + 1) / a.ratio;
  for (int64_t i = 0; i < compressed; ++i) {
    const int64_t g = a.selection != nullptr ? a.selection[t * a.topk + i] : i;
    if (g >= 0) list[n++] = page_entry(a.pages, a.rows, sequence, g);
  }
  return n;
}

inline int64_t most_entries(const AttentionArgs& a, int64_t t) {
  const int64_t window = std::max(0, a.rows.window_end[t] - a.rows.window_begin[t]);
  return window + (a.ratio == 0 ? 0 : a.selection != nullptr ? a.topk : (a.rows.positions[t] + 1) / a.ratio);
}

inline constexpr int kHeadTile = 6;
inline constexpr int kColumnVecs = L == 16 ? 4 : 2;

// o[h, column …] = Σ_s p[h, s]·v[s, column …] for MR heads and kColumnVecs vectors of channels.
template <class Kind, int MR>
inline void value_tile(const float* p, int64_t p_stride, const typename Kind::X* v, int64_t stride, int64_t entries,
                       float* o, int64_t o_stride) {
  F acc[MR][kColumnVecs];
#pragma GCC unroll 8
  for (int h = 0; h < MR; ++h) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumnVecs; ++c) acc[h][c] = zero();
  }
  for (int64_t s = 0; s < entries; ++s) {
    F x[kColumnVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kColumnVecs; ++c) x[c] = Kind::load_floats(v + s * stride + c * L);
#pragma GCC unroll 8
    for (int h = 0; h < MR; ++h) {
      const F w = set1(p[h * p_stride + s]);
#pragma GCC unroll 4
      for (int c = 0; c < kColumnVecs; ++c) acc[h][c] = fma(w, x[c], acc[h][c]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < MR; ++h) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumnVecs; ++c) store(o + h * o_stride + c * L, acc[h][c]);
  }
}

template <class Kind>
inline void value_tile_heads(int64_t heads, const float* p, int64_t p_stride, const typename Kind::X* v, int64_t stride,
                             int64_t entries, float* o, int64_t o_stride) {
  switch (heads) {
    case 1:
      return value_tile<Kind, 1>(p, p_stride, v, stride, entries, o, o_stride);
    case 2:
      return value_tile<Kind, 2>(p, p_stride, v, stride, entries, o, o_stride);
    case 3:
      return value_tile<Kind, 3>(p, p_stride, v, stride, entries, o, o_stride);
    case 4:
      return value_tile<Kind, 4>(p, p_stride, v, stride, entries, o, o_stride);
    case 5:
      return value_tile<Kind, 5>(p, p_stride, v, stride, entries, o, o_stride);
    case 6:
      return value_tile<Kind, 6>(p, p_stride, v, stride, entries, o, o_stride);
    default:
      __builtin_unreachable();
  }
}

// p ← softmax with the sink in the denominator. p is readable and writable up to a multiple of L.
inline void softmax_with_sink(float* p, int64_t n, float sink, bool round) {
  const int64_t padded = (n + L - 1) / L * L;
  for (int64_t i = n; i < padded; ++i) p[i] = -INFINITY;
  F most = set1(sink);
  for (int64_t i = 0; i < padded; i += L) most = max(most, load(p + i));
  const float top = max_lane(most);
  F sum = zero();
  for (int64_t i = 0; i < padded; i += L) {
    const F e = exp(sub(load(p + i), set1(top)));
    store(p + i, e);
    sum = add(sum, e);
  }
  for (int64_t i = n; i < padded; ++i) p[i] = 0.F;
  const float total = sum_lanes(sum) + std::exp(sink - top);
  for (int64_t i = 0; i < padded; i += L) {
    const F w = div(load(p + i), set1(total));
    store(p + i, round ? round_bf16(w) : w);
  }
}

inline void rotate_pairs(float* x, const float* table, int64_t rope_dim, bool inverse) {
  for (int64_t i = 0; i < rope_dim / 2; ++i) {
    const float c = table[2 * i];
    const float s = inverse ? -table[2 * i + 1] : table[2 * i + 1];
    const float re = x[2 * i];
    const float im = x[2 * i + 1];
    x[2 * i] = re * c - im * s;
    x[2 * i + 1] = re * s + im * c;
  }
}

template <class Kind>
inline int64_t key_stride(int64_t d) {
  constexpr int64_t kUnit = std::max<int64_t>(Kind::kLanes, kColumnVecs * L);
  return (d + kUnit - 1) / kUnit * kUnit + Kind::kLanes;
}

// Heads [h0, h1) of row t over decoded entries.
template <class Kind>
inline void attend(const AttentionArgs& a, int64_t t, int64_t h0, int64_t h1, const typename Kind::X* keys,
                   int64_t entries, Arena& scratch) {
  using X = typename Kind::X;
  const int64_t d = a.ring.width;
  const int64_t stride = key_stride<Kind>(d);
  const int64_t depth = (d + Kind::kLanes - 1) / Kind::kLanes * Kind::kLanes;
  const int64_t heads = h1 - h0;
  const int64_t p_stride = (entries + 3 + L) / L * L;
  X* q = scratch.take<X>(heads * depth);
  const X** q_rows = scratch.take<const X*>(heads);
  float* p = scratch.take<float>(heads * p_stride);
  float* o = scratch.take<float>(heads * stride);
  float* buffer = scratch.take<float>(depth);
  for (int64_t i = d; i < depth; ++i) buffer[i] = 0.F;
  for (int64_t h = 0; h < heads; ++h) {
    read_columns(a.q, t, (h0 + h) * d, d, buffer);
    for (int64_t i = 0; i < depth; i += L) Kind::store_floats(q + h * depth + i, load(buffer + i));
    q_rows[h] = q + h * depth;
  }
  float* partial = scratch.take<float>(partial_floats(heads, entries));
  const __m128 scale = _mm_set1_ps(a.scale);
  multiply_panel<Kind>(
      q_rows, heads, keys, stride, depth, entries, partial,
      [&](int64_t h, int64_t s, int64_t, __m128 v) { _mm_storeu_ps(p + h * p_stride + s, _mm_mul_ps(v, scale)); });
  for (int64_t h = 0; h < heads; ++h) softmax_with_sink(p + h * p_stride, entries, a.sink[h0 + h], a.round_bf16);
  for (int64_t h = 0; h < heads; h += kHeadTile) {
    const int64_t count = std::min<int64_t>(kHeadTile, heads - h);
    for (int64_t c = 0; c < d; c += kColumnVecs * L) {
      value_tile_heads<Kind>(count, p + h * p_stride, p_stride, keys + c, stride, entries, o + h * stride + c, stride);
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    float* row = o + h * stride;
    if (a.round_bf16) {
      for (int64_t i = 0; i < d; i += L) store(row + i, round_bf16(load(row + i)));
    }
    rotate_pairs(row + d - a.rope_dim, a.table + t * a.rope_dim, a.rope_dim, true);
    write_columns(a.o, t, (h0 + h) * d, d, row);
  }
}

// Decodes entries [first, last) of a list; the columns between the width and its padding become zero.
template <class Kind>
inline void decode_entries(const AttentionArgs& a, int64_t window, const RecordAt* list, int64_t first, int64_t last,
                           typename Kind::X* keys) {
  const int64_t d = a.ring.width;
  const int64_t stride = key_stride<Kind>(d);
  for (int64_t i = first; i < last; ++i) {
    typename Kind::X* row = keys + i * stride;
    decode_record<Kind>(i < window ? a.ring.format : a.pages.format, d, list[i], row);
    for (int64_t c = d; c < stride; ++c) row[c] = 0;
  }
}

template <class Kind>
inline void attention_of(const AttentionArgs& a, CpuStream& s) {
  using X = typename Kind::X;
  const int64_t stride = key_stride<Kind>(a.ring.width);
  const int64_t workers = s.pool.size();
  const auto window_of = [&](int64_t t) { return std::max<int64_t>(0, a.rows.window_end[t] - a.rows.window_begin[t]); };
  // Rows up to a multiple of 4 are read by the panel product: they are zero.
  const auto clear_tail = [&](X* keys, int64_t n) {
    std::memset(keys + n * stride, 0, static_cast<size_t>(3 * stride) * sizeof(X));
  };
  int64_t products = 0;
  for (int64_t t = 0; t < a.rows.n; ++t) products += most_entries(a, t) * a.heads * a.ring.width;
  const bool parallel = workers > 1 && products >= kSerialProducts;
  if (!parallel || a.rows.n >= 4 * workers) {
    run_tasks(s, a.rows.n, parallel, [&](Arena& scratch, int64_t t) {
      RecordAt* list = scratch.take<RecordAt>(most_entries(a, t));
      const int64_t n = list_entries(a, t, list);
      X* keys = scratch.take<X>((n + 3) * stride);
      decode_entries<Kind>(a, window_of(t), list, 0, n, keys);
      clear_tail(keys, n);
      attend<Kind>(a, t, 0, a.heads, keys, n, scratch);
    });
    return;
  }
  // Few rows: the team decodes the entries of all rows, then shares out the heads.
  struct RowKeys {
    RecordAt* list;
    X* keys;
    int64_t n;
  };
  RowKeys* rows = s.shared.take<RowKeys>(a.rows.n);
  for (int64_t t = 0; t < a.rows.n; ++t) {
    RowKeys& r = rows[t];
    r.list = s.shared.take<RecordAt>(most_entries(a, t));
    r.n = list_entries(a, t, r.list);
    r.keys = s.shared.take<X>((r.n + 3) * stride);
    clear_tail(r.keys, r.n);
  }
  const int64_t shares = divide_up(2 * workers, a.rows.n);
  run_tasks(s, a.rows.n * shares, true, [&](Arena&, int64_t task) {
    const RowKeys& r = rows[task / shares];
    const int64_t i = task % shares;
    decode_entries<Kind>(a, window_of(task / shares), r.list, r.n * i / shares, r.n * (i + 1) / shares, r.keys);
  });
  const int64_t per_task = std::max<int64_t>(1, a.heads / shares);
  const int64_t tasks = divide_up(a.heads, per_task);
  run_tasks(s, a.rows.n * tasks, true, [&](Arena& scratch, int64_t task) {
    const int64_t t = task / tasks;
    const int64_t h0 = task % tasks * per_task;
    attend<Kind>(a, t, h0, std::min<int64_t>(h0 + per_task, a.heads), rows[t].keys, rows[t].n, scratch);
  });
}

inline void attention(const AttentionArgs& a, Stream& stream) {
  const int64_t d = a.ring.width;
  DI_CHECK(a.q.cols == a.heads * d && a.o.cols == a.q.cols && a.q.rows == a.rows.n && a.o.rows == a.rows.n &&
               a.rope_dim <= d && (a.ratio == 0 || a.pages.width == d),
           "q [{}, {}], o [{}, {}], {} heads of {}, {} rows, page width {}", a.q.rows, a.q.cols, a.o.rows, a.o.cols,
           a.heads, d, a.rows.n, a.pages.width);
  CpuStream& s = cpu_stream(stream);
  s.reset_scratch();
#if DI_CPU_BF16_DOT
  const bool quantised = a.ring.format != KvFormat::kF32 && (a.ratio == 0 || a.pages.format != KvFormat::kF32);
  if (quantised && a.q.dtype == DType::kBf16) return attention_of<PairKind>(a, s);
#endif
  attention_of<WideKind>(a, s);
}
