// Index scores and exact top-k. Keys are decoded L at a time and turned, so that a vector holds one channel (or a pair
// of bf16 channels) of L keys: scores then need no sum over lanes, and the keys of a chunk serve all rows of a sequence
// in the call. The best entries are found in one pass that keeps a shrinking list of those above the current threshold.

// The order of selection as one integer: larger score first, then the lower position; NaN behind everything.
inline uint64_t rank_key(float score, int64_t position) {
  const uint32_t u = std::bit_cast<uint32_t>(score + 0.F);  // -0 → +0
  const uint32_t ordered = (u & 0x80000000U) != 0 ? ~u : u | 0x80000000U;
  const uint32_t high = std::isnan(score) ? 0 : ordered;
  return static_cast<uint64_t>(high) << 32 | (0xffffffffU - static_cast<uint32_t>(position));
}

// Positions of the `keep` best of n scores, ascending; returns how many. `list` has room for best_capacity(keep) keys.
inline int64_t best_capacity(int64_t keep) {
  return 2 * keep + 256;
}

inline int64_t best_positions(const float* score, int64_t n, int64_t keep, uint64_t* list, int32_t* out) {
  if (n <= keep || keep == 0) {
    const int64_t all = std::min(n, keep);
    for (int64_t i = 0; i < all; ++i) out[i] = static_cast<int32_t>(i);
    return all;
  }
  const int64_t capacity = best_capacity(keep);
  const auto better = [](uint64_t a, uint64_t b) { return a > b; };
  int64_t count = 0;
  float threshold = -INFINITY;  // only larger scores can still enter, once `shrunk`
  bool shrunk = false;
  const auto shrink = [&] {
    std::nth_element(list, list + keep - 1, list + count, better);
    count = keep;
    shrunk = true;
    const uint32_t u = static_cast<uint32_t>(list[keep - 1] >> 32);
    threshold = u == 0 ? -INFINITY : std::bit_cast<float>((u & 0x80000000U) != 0 ? u & 0x7fffffffU : ~u);
  };
  int64_t i = 0;
  while (i < n) {
    if (count + L > capacity) shrink();
    if (!shrunk || i + L > n) {
      const bool enters = !shrunk || score[i] > threshold;
      if (enters) list[count++] = rank_key(score[i], i);
      ++i;
      continue;
    }
    for (uint32_t mask = greater_mask(load(score + i), set1(threshold)); mask != 0; mask &= mask - 1) {
      const int64_t at = i + std::countr_zero(mask);
      list[count++] = rank_key(score[at], at);
    }
    i += L;
  }
  if (count > keep) std::nth_element(list, list + keep - 1, list + count, better);
  count = std::min(count, keep);
  for (int64_t j = 0; j < count; ++j) out[j] = static_cast<int32_t>(0xffffffffU - static_cast<uint32_t>(list[j]));
  std::sort(out, out + count);
  return count;
}

inline constexpr int kScoreHeads = L == 16 ? 8 : 4;  // heads of a register tile
inline constexpr int64_t kKeyChunk = 512;            // keys of one task

// Channels of a key that share a 32-bit word of the turned panel.
template <class Kind>
inline constexpr int kWordChannels = 4 / static_cast<int>(sizeof(typename Kind::X));

// sums[2 vectors] += Σ over kScoreHeads heads of w·relu(q·k) for 2·L keys of a turned panel.
template <class Kind>
inline void score_tile(const typename Kind::X* q, int64_t q_stride, const float* w, const typename Kind::X* panel,
                       int64_t words, F* sums) {
  constexpr int64_t kVec = Kind::kLanes;
  F acc[kScoreHeads][2];
#pragma GCC unroll 8
  for (int h = 0; h < kScoreHeads; ++h) acc[h][0] = acc[h][1] = zero();
  const typename Kind::X* second = panel + words * kVec;
  for (int64_t c = 0; c < words; ++c) {
    const typename Kind::V a = Kind::load(panel + c * kVec);
    const typename Kind::V b = Kind::load(second + c * kVec);
#pragma GCC unroll 8
    for (int h = 0; h < kScoreHeads; ++h) {
      const typename Kind::V x = Kind::broadcast_word(q + h * q_stride + c * kWordChannels<Kind>);
      acc[h][0] = Kind::dot(x, a, acc[h][0]);
      acc[h][1] = Kind::dot(x, b, acc[h][1]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < kScoreHeads; ++h) {
    sums[0] = fma(set1(w[h]), max(acc[h][0], zero()), sums[0]);
    sums[1] = fma(set1(w[h]), max(acc[h][1], zero()), sums[1]);
  }
}

// What a row needs of the scores.
struct SelectRow {
  int64_t visible;
  int64_t competitors;  // entries that compete: visible ones, or those inside the candidate blocks
  int32_t* entries;     // their indices, null = all visible ones
  bool scored;
  bool blocks_compete;
  float* score;  // [competitors], room for whole chunks
};

template <class Kind>
struct QueryRows {
  const typename Kind::X* q;  // [rows, heads rounded up, width]
  const float* w;             // [rows, heads rounded up], times scale, zero beyond the heads
  int64_t heads;
};

template <class Kind>
inline void score_chunk(const SelectArgs& a, const QueryRows<Kind>& queries, const SelectRow* rows, int64_t t0,
                        int64_t t1, int64_t k0, int64_t k1, Arena& scratch) {
  using X = typename Kind::X;
  const int64_t width = a.keys.width;
  const int64_t words = width / kWordChannels<Kind>;
  X* natural = scratch.take<X>(L * width);
  X* panel = scratch.take<X>(2 * words * Kind::kLanes);
  const void* pointers[L];
  for (int i = 0; i < L; ++i) pointers[i] = natural + i * width;
  const int64_t sequence = a.rows.sequence[t0];
  const int32_t* entries = rows[t0].entries;
  for (int64_t k = k0; k < k1; k += 2 * L) {
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t i = 0; i < L; ++i) {
        const int64_t at = std::min(k + half * L + i, k1 - 1);
        const RecordAt record = page_entry(a.keys, a.rows, sequence, entries == nullptr ? at : entries[at]);
        decode_record<Kind>(a.keys.format, width, record, natural + i * width);
      }
      for (int64_t c = 0; c < words; c += L) {
        transpose(pointers, c * 4, panel + (half * words + c) * Kind::kLanes, L * 4);
      }
    }
    for (int64_t t = t0; t < t1; ++t) {
      if (!rows[t].scored || k >= rows[t].competitors) continue;
      F sums[2] = {zero(), zero()};
      for (int64_t h = 0; h < queries.heads; h += kScoreHeads) {
        score_tile<Kind>(queries.q + (t * queries.heads + h) * width, width, queries.w + t * queries.heads + h, panel,
                         words, sums);
      }
      store(rows[t].score + k, sums[0]);
      store(rows[t].score + k + L, sums[1]);
    }
  }
}

inline void write_list(const int32_t* list, int64_t n, int64_t length, int32_t* out) {
  std::copy(list, list + n, out);
  std::fill(out + n, out + length, -1);
}

// The candidate blocks of a row (model.md §5.8). The row competes with all visible entries here.
inline void choose_blocks(const SelectArgs& a, const SelectRow& r, int32_t* out, Arena& scratch) {
  const int64_t size = a.candidate_block;
  const int64_t blocks = divide_up(r.visible, size);
  if (!r.blocks_compete) {
    const int32_t all = -2;
    return write_list(&all, std::min(1, a.candidate_topk), a.candidate_topk, out);
  }
  float* best = scratch.take<float>(blocks + L);
  int32_t* number = scratch.take<int32_t>(blocks);
  if (r.entries == nullptr) {
    for (int64_t b = 0; b < blocks; ++b) {
      float most = -INFINITY;
      for (int64_t g = b * size; g < std::min(r.visible, (b + 1) * size); ++g)
        most = r.score[g] > most ? r.score[g] : most;
      best[b] = most;
    }
  } else {
    std::fill(best, best + blocks, -INFINITY);
    for (int64_t i = 0; i < r.competitors; ++i) {
      float& most = best[r.entries[i] / size];
      most = r.score[i] > most ? r.score[i] : most;
    }
  }
  best[blocks - 1] = INFINITY;
  int64_t n = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    if (best[b] == -INFINITY) continue;
    number[n] = static_cast<int32_t>(b);
    best[n++] = best[b];
  }
  int32_t* chosen = scratch.take<int32_t>(a.candidate_topk);
  const int64_t count =
      best_positions(best, n, a.candidate_topk, scratch.take<uint64_t>(best_capacity(a.candidate_topk)), chosen);
  for (int64_t i = 0; i < count; ++i) chosen[i] = number[chosen[i]];
  write_list(chosen, count, a.candidate_topk, out);
}

inline void choose_entries(const SelectArgs& a, int64_t t, const SelectRow& r, Arena& scratch) {
  if (a.scores != nullptr) {
    float* out = a.scores + t * a.scores_stride;
    DI_CHECK(r.visible <= a.scores_stride, "{} visible entries in score rows of {}", r.visible, a.scores_stride);
    std::fill(out, out + a.scores_stride, -INFINITY);
    for (int64_t i = 0; i < r.competitors; ++i) out[r.entries == nullptr ? i : r.entries[i]] = r.score[i];
  }
  if (a.candidate_out != nullptr) choose_blocks(a, r, a.candidate_out + t * a.candidate_topk, scratch);
  int32_t* chosen = scratch.take<int32_t>(a.topk);
  const int64_t count =
      best_positions(r.score, r.competitors, a.topk, scratch.take<uint64_t>(best_capacity(a.topk)), chosen);
  if (r.entries != nullptr) {
    for (int64_t i = 0; i < count; ++i) chosen[i] = r.entries[chosen[i]];
  }
  write_list(chosen, count, a.topk, a.selection + t * a.topk);
}

inline SelectRow plan_row(const SelectArgs& a, int64_t t, Arena& memory) {
  SelectRow r{};
  r.visible = (a.rows.positions[t] + 1) / a.ratio;
  r.competitors = r.visible;
  const int32_t* blocks = a.candidate_in != nullptr ? a.candidate_in + t * a.candidate_topk : nullptr;
  if (blocks != nullptr && !(a.candidate_topk > 0 && blocks[0] == -2)) {
    r.entries = memory.take<int32_t>(int64_t{a.candidate_topk} * a.candidate_block);
    r.competitors = 0;
    for (int64_t i = 0; i < a.candidate_topk; ++i) {
      if (blocks[i] < 0) continue;
      const int64_t first = int64_t{blocks[i]} * a.candidate_block;
      for (int64_t g = first; g < std::min(r.visible, first + a.candidate_block); ++g)
        r.entries[r.competitors++] = static_cast<int32_t>(g);
    }
  }
  r.blocks_compete = a.candidate_out != nullptr && divide_up(r.visible, a.candidate_block) > a.candidate_topk;
  r.scored = r.competitors > a.topk || r.blocks_compete || a.scores != nullptr;
  return r;
}

// Rows that share the decoded keys of a chunk: of one sequence, without candidate lists.
inline constexpr int64_t kRowsPerChunk = 16;

template <class Kind>
inline void select_of(const SelectArgs& a, CpuStream& s) {
  using X = typename Kind::X;
  const int64_t width = a.keys.width;
  QueryRows<Kind> queries{nullptr, nullptr, divide_up(a.heads, kScoreHeads) * kScoreHeads};
  SelectRow* rows = s.shared.take<SelectRow>(a.rows.n);
  X* q = s.shared.take<X>(a.rows.n * queries.heads * width);
  float* w = s.shared.take<float>(a.rows.n * queries.heads);
  float* buffer = s.shared.take<float>(std::max<int64_t>(a.heads * width, a.heads));
  struct Task {
    int64_t t0, t1, k0, k1;
  };
  int64_t products = 0;
  int64_t most_tasks = 0;
  for (int64_t t = 0; t < a.rows.n; ++t) {
    rows[t] = plan_row(a, t, s.shared);
    if (!rows[t].scored) continue;
    most_tasks += divide_up(rows[t].competitors, kKeyChunk);
    products += rows[t].competitors * a.heads * width;
    rows[t].score = s.shared.take<float>(rows[t].competitors + 2 * L);
    read_columns(a.q, t, 0, a.heads * width, buffer);
    X* row = q + t * queries.heads * width;
    for (int64_t i = 0; i < a.heads * width; ++i) row[i] = Kind::from_float(buffer[i]);
    std::fill(row + a.heads * width, row + queries.heads * width, X{0});
    read_columns(a.w, t, 0, a.heads, buffer);
    for (int64_t h = 0; h < queries.heads; ++h) w[t * queries.heads + h] = h < a.heads ? buffer[h] * a.scale : 0.F;
  }
  queries.q = q;
  queries.w = w;
  Task* tasks = s.shared.take<Task>(most_tasks);
  int64_t n = 0;
  for (int64_t t0 = 0; t0 < a.rows.n;) {
    int64_t t1 = t0 + 1;
    int64_t most = rows[t0].scored ? rows[t0].competitors : 0;
    while (rows[t0].entries == nullptr && t1 < a.rows.n && t1 - t0 < kRowsPerChunk && rows[t1].entries == nullptr &&
           a.rows.sequence[t1] == a.rows.sequence[t0]) {
      most = std::max(most, rows[t1].scored ? rows[t1].competitors : 0);
      ++t1;
    }
    for (int64_t k = 0; k < most; k += kKeyChunk) tasks[n++] = {t0, t1, k, std::min(k + kKeyChunk, most)};
    t0 = t1;
  }
  const bool parallel = products >= kSerialProducts;
  run_tasks(s, n, parallel, [&](Arena& scratch, int64_t i) {
    score_chunk<Kind>(a, queries, rows, tasks[i].t0, tasks[i].t1, tasks[i].k0, tasks[i].k1, scratch);
  });
  run_tasks(s, a.rows.n, parallel, [&](Arena& scratch, int64_t t) { choose_entries(a, t, rows[t], scratch); });
}

// Blocks of rows whose scores fit a bounded scratch.
template <class Kind>
inline void select_blocks(const SelectArgs& a, CpuStream& s) {
  constexpr int64_t kScores = int64_t{4} << 20;
  for (int64_t first = 0; first < a.rows.n;) {
    int64_t last = first;
    for (int64_t scores = 0; last < a.rows.n; ++last) {
      scores += (a.rows.positions[last] + 1) / a.ratio;
      if (last > first && scores > kScores) break;
    }
    SelectArgs block = a;
    const auto advance = [&](auto*& p, int64_t row) {
      if (p != nullptr) p += first * row;
    };
    block.rows.n = static_cast<int32_t>(last - first);
    advance(block.rows.positions, 1);
    advance(block.rows.sequence, 1);
    for (Tensor* t : {&block.q, &block.w}) {
      t->data = static_cast<uint8_t*>(t->data) + first * t->stride * size_of(t->dtype);
      t->rows = last - first;
    }
    advance(block.candidate_in, a.candidate_topk);
    advance(block.candidate_out, a.candidate_topk);
    advance(block.selection, a.topk);
    advance(block.scores, a.scores_stride);
    s.reset_scratch();
    select_of<Kind>(block, s);
    first = last;
  }
}

inline void select(const SelectArgs& a, Stream& stream) {
  const int64_t width = a.keys.width;
  DI_CHECK(a.q.cols == a.heads * width && a.w.cols == a.heads && a.ratio > 0 && a.q.rows == a.rows.n,
           "q [{}, {}], w {} columns, {} heads of {}, ratio {}, {} rows", a.q.rows, a.q.cols, a.w.cols, a.heads, width,
           a.ratio, a.rows.n);
  CpuStream& s = cpu_stream(stream);
#if DI_CPU_BF16_DOT
  if (a.q.dtype == DType::kBf16 && a.keys.format != KvFormat::kF32 && width % (2 * L) == 0) {
    return select_blocks<PairKind>(a, s);
  }
#endif
  if (width % L != 0) return reference_ops().select(a, stream);
  select_blocks<WideKind>(a, s);
}
