// Cases of the operators that write or read rings, pages and compressor state.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/quant.h"
#include "kernels/ops_compare.h"

namespace di::kernels::test {
namespace {

constexpr Bound kSum{2e-5F};
constexpr Bound kRounded{1e-2F};

// Rows of one to three sequences with their pasts.
struct Scene {
  int64_t t = 0;
  int64_t sequences = 1;
  std::vector<int32_t> positions;
  std::vector<int32_t> sequence;
  std::vector<int32_t> first_row;       // [sequences]
  std::vector<int32_t> first_position;  // [sequences]
  std::vector<int32_t> state_slot;
  std::vector<int32_t> block_table;
  int64_t blocks = 0;
  Rows rows;  // on the backend
};

std::vector<int32_t> permutation(Run& r, int64_t n) {
  std::vector<int32_t> p(static_cast<size_t>(n));
  std::iota(p.begin(), p.end(), 0);
  for (int64_t i = n - 1; i > 0; --i) std::swap(p[static_cast<size_t>(i)], p[static_cast<size_t>(r.integer(0, i))]);
  return p;
}

// Entries per sequence are limited to what `positions` can close, blocks of `per_block` entries are scattered.
Scene draw_scene(Run& r, int64_t past, int64_t ratio, int64_t per_block, int64_t rows = -1) {
  Scene s;
  s.t = rows < 0 ? r.rows() : rows;
  s.sequences = r.integer(1, 3);
  int64_t row = 0;
  for (int64_t i = 0; i < s.sequences; ++i) {
    const int64_t n = i + 1 == s.sequences ? s.t - row : r.integer(0, s.t - row);
    const int64_t start = r.integer(0, 2) == 0 ? 0 : r.integer(0, past);
    s.first_row.push_back(static_cast<int32_t>(row));
    s.first_position.push_back(static_cast<int32_t>(start));
    for (int64_t j = 0; j < n; ++j) {
      s.positions.push_back(static_cast<int32_t>(start + j));
      s.sequence.push_back(static_cast<int32_t>(i));
    }
    row += n;
  }
  const int64_t per_sequence = (past + s.t) / std::max<int64_t>(1, ratio) / per_block + 1;
  s.blocks = per_sequence * s.sequences + 2;
  const std::vector<int32_t> scattered = permutation(r, s.blocks);
  s.block_table.assign(scattered.begin(), scattered.begin() + per_sequence * s.sequences);
  const std::vector<int32_t> slots = permutation(r, s.sequences + 1);
  s.state_slot.assign(slots.begin(), slots.begin() + s.sequences);
  s.rows.n = static_cast<int32_t>(s.t);
  s.rows.positions = r.array(s.positions);
  s.rows.sequence = r.array(s.sequence);
  s.rows.state_slot = r.array(s.state_slot);
  s.rows.block_table = r.array(s.block_table);
  s.rows.block_table_stride = static_cast<int32_t>(per_sequence);
  return s;
}

struct Plane {
  PageView pages;  // on the backend
  std::vector<uint8_t> bytes;
  int64_t lead = 0;  // other planes of block 0 before this one
};

// Random entries everywhere; bytes between the planes hold a pattern.
Plane draw_plane(Run& r, const Scene& s, KvFormat format, int64_t width, int64_t per_block, bool split, Fill fill) {
  Plane p;
  const int64_t plane = per_block * record_bytes(format, width);
  p.lead = r.pick<int64_t>({0, 64, 192});
  PageView view;
  view.block_stride = (p.lead + plane + r.pick<int64_t>({0, 64}) + 3) / 4 * 4;
  view.entries_per_block = static_cast<int32_t>(per_block);
  view.width = static_cast<int32_t>(width);
  view.format = format;
  view.split_scales = split;
  p.bytes.assign(static_cast<size_t>(s.blocks * view.block_stride), 0x3c);
  view.base = p.bytes.data() + p.lead;
  for (int64_t block = 0; block < s.blocks; ++block) {
    for (int64_t e = 0; e < per_block; ++e) {
      const std::vector<float> x = r.values(width, fill);
      const cpu::RecordAt at = cpu::page_record(view, block, e);
      cpu::store_record(format, width, x.data(), at.data, at.scale);
    }
  }
  p.pages = view;
  p.pages.base = r.array(p.bytes) + p.lead;
  return p;
}

std::vector<uint8_t> random_records(Run& r, int64_t n, KvFormat format, int64_t width) {
  const int64_t bytes = record_bytes(format, width);
  std::vector<uint8_t> out(static_cast<size_t>(n * bytes));
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<float> x = r.values(width);
    uint8_t* data = out.data() + i * bytes;
    cpu::store_record(format, width, x.data(), data, data + data_bytes(format, width));
  }
  return out;
}

RingView draw_ring(Run& r, const Scene& s, KvFormat format, int64_t width, int32_t ring_rows,
                   std::vector<uint8_t>& host) {
  RingView ring;
  ring.width = static_cast<int32_t>(width);
  ring.format = format;
  ring.ring_rows = ring_rows;
  const int64_t bytes = record_bytes(format, width);
  ring.slot_stride = ring_rows * bytes + r.pick<int64_t>({0, 64});
  host.assign(static_cast<size_t>((s.sequences + 1) * ring.slot_stride), 0x3c);
  for (int64_t slot = 0; slot <= s.sequences; ++slot) {
    const std::vector<uint8_t> records = random_records(r, ring_rows, format, width);
    std::copy(records.begin(), records.end(), host.begin() + slot * ring.slot_stride);
  }
  ring.base = r.array(host);
  return ring;
}

int64_t head_dim(Run& r) {
  return r.real() ? 512 : r.pick<int64_t>({32, 64, 128, 512});
}
int32_t rope_width(Run& r) {
  return static_cast<int32_t>(r.real() ? 64 : r.pick<int64_t>({2, 8, 16, 32}));
}

void swa(Run& r, bool bits) {
  const int64_t t = r.rows();
  const int64_t d = head_dim(r);
  const int32_t rope_dim = rope_width(r);
  const KvFormat format =
      bits ? r.pick({KvFormat::kE4m3Ue8m0, KvFormat::kF32}) : r.pick({KvFormat::kF32, KvFormat::kE4m3Ue8m0});
  Tensor kv = r.input(t, d, r.dtype());
  if (bits) {  // |kv| = 1: the norm is exactly 1 and the entry is ± the weight
    std::vector<float> sign(static_cast<size_t>(t * d));
    for (float& x : sign) x = r.coin() ? 1.F : -1.F;
    kv = r.tensor(t, d, r.dtype(), sign);
  }
  const Weight norm = r.weight(r.pick({WeightFormat::kF32, WeightFormat::kBf16}), 1, d);
  const float* table = r.rope_rows(t, rope_dim, bits);
  const bool round = r.coin();
  const int64_t bytes = record_bytes(format, d);
  uint8_t* fresh = r.out_array<uint8_t>(t * bytes);
  const Tensor entry = r.coin() ? r.output(t, d, r.dtype()) : Tensor{};
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().swa_store({slice(kv, a, b), norm, 1e-20F, table + a * rope_dim, rope_dim, round, format, fresh + a * bytes,
                       slice(entry, a, b)},
                      r.stream());
  }
  if (bits) {
    r.result_bytes("fresh", fresh, t * bytes);
    if (entry.data != nullptr) r.result("entry", entry, {});
  } else if (format == KvFormat::kF32 && round) {
    r.result("fresh", reinterpret_cast<const float*>(fresh), t, d, kRounded);
  } else {
    r.result_records("fresh", fresh, t, d, format);
  }
}
void case_swa_store(Run& r) {
  swa(r, false);
}
void case_swa_store_bits(Run& r) {
  swa(r, true);
}

void case_ring_commit(Run& r) {
  const Scene s = draw_scene(r, 300, 1, 16);
  const int64_t d = head_dim(r);
  const KvFormat format = r.pick({KvFormat::kF32, KvFormat::kE4m3Ue8m0});
  std::vector<uint8_t> host;
  const RingView ring = draw_ring(r, s, format, d, static_cast<int32_t>(r.pick<int64_t>({1, 5, 16, 40, 134})), host);
  const int64_t bytes = record_bytes(format, d);
  const uint8_t* fresh = r.array(random_records(r, s.t, format, d));
  for (const auto& [a, b] : r.chunks(s.t))
    r.ops().ring_commit({fresh + a * bytes, slice(s.rows, a, b), ring}, r.stream());
  r.result_bytes("ring", ring.base, static_cast<int64_t>(host.size()));
}

// The rows of [first, last) that close a group, as rows of that part.
std::vector<int32_t> closing_rows(const Scene& s, int64_t ratio, int64_t first, int64_t last) {
  std::vector<int32_t> closing;
  for (int64_t t = first; t < last; ++t) {
    if (s.positions[static_cast<size_t>(t)] % ratio == ratio - 1) closing.push_back(static_cast<int32_t>(t - first));
  }
  return closing;
}

struct State {
  CompressorStateView view;
  int64_t floats = 0;
};

State draw_state(Run& r, const Scene& s, int64_t width, int32_t ring_rows) {
  State st;
  st.view.width = static_cast<int32_t>(width);
  st.view.ring_rows = ring_rows;
  st.view.slot_stride = ring_rows * 2 * width + r.pick<int64_t>({0, 32});
  st.floats = (s.sequences + 1) * st.view.slot_stride;
  st.view.base = r.array(r.values(st.floats));
  return st;
}

void case_compress(Run& r) {
  const int32_t ratio = r.pick<int32_t>({1, 2, 2});
  const Scene s = draw_scene(r, 50, 1, 16);
  const int64_t d = head_dim(r);
  const bool round = r.coin();
  const DType v_type = ratio == 2 ? DType::kF32 : r.dtype();
  const Tensor v = r.input(s.t, d, v_type);
  const Tensor sc = ratio == 2 ? r.input(s.t, d, DType::kF32, Fill::kNormal, 2.F) : Tensor{};
  const Weight norm = r.weight(WeightFormat::kBf16, 1, d);
  const State state = draw_state(r, s, d, static_cast<int32_t>(r.pick<int64_t>({1, 2, 7})));
  const Tensor latent = r.output(static_cast<int64_t>(closing_rows(s, ratio, 0, s.t).size()), d, r.dtype());
  int64_t g = 0;
  for (const auto& [a, b] : r.chunks(s.t)) {
    const std::vector<int32_t> closing = closing_rows(s, ratio, a, b);
    const int64_t n = static_cast<int64_t>(closing.size());
    r.ops().compress(
        {ratio, slice(v, a, b), slice(sc, a, b), norm, 1e-20F, round, slice(s.rows, a, b), r.array(closing),
         static_cast<int32_t>(n), ratio == 2 ? state.view : CompressorStateView{}, slice(latent, g, g + n)},
        r.stream());
    g += n;
  }
  r.result("latent", latent, round ? kRounded : kSum);
  r.result("state", state.view.base, 1, state.floats, {});
}

void case_compress_v4(Run& r) {
  const bool overlap = r.coin();
  const int32_t ratio = overlap ? 4 : r.pick<int32_t>({128, 8});
  const Scene s = draw_scene(r, 400, 1, 16);
  const int64_t d = r.real() ? 512 : r.pick<int64_t>({16, 32, 128});
  const int64_t width = overlap ? 2 * d : d;
  const bool round = r.coin();
  const Tensor v = r.input(s.t, width, DType::kF32);
  const Tensor sc = r.input(s.t, width, DType::kF32, Fill::kNormal, 2.F);
  const float* ape = r.array(r.values(ratio * width));
  const Weight norm = r.weight(WeightFormat::kBf16, 1, d);
  const State state = draw_state(r, s, width, ratio * (overlap ? 2 : 1) - static_cast<int32_t>(r.integer(0, 1)));
  const Tensor latent = r.output(static_cast<int64_t>(closing_rows(s, ratio, 0, s.t).size()), d, r.dtype());
  int64_t g = 0;
  for (const auto& [a, b] : r.chunks(s.t)) {
    const std::vector<int32_t> closing = closing_rows(s, ratio, a, b);
    const int64_t n = static_cast<int64_t>(closing.size());
    r.ops().compress_v4({ratio, overlap, slice(v, a, b), slice(sc, a, b), ape, norm, 1e-6F, round, slice(s.rows, a, b),
                         r.array(closing), static_cast<int32_t>(n), state.view, slice(latent, g, g + n)},
                        r.stream());
    g += n;
  }
  r.result("latent", latent, round ? kRounded : kSum);
  r.result("state", state.view.base, 1, state.floats, {});
}

// With norm and rope the records may differ by a quantiser step here and there; without (bits) every byte is defined.
void page(Run& r, bool bits) {
  const int32_t ratio = r.pick<int32_t>({1, 2});
  const int64_t per_block = r.pick<int64_t>({1, 4, 16, 64});
  const Scene s = draw_scene(r, 60, ratio, per_block);
  const KvFormat format = r.pick({KvFormat::kF32, KvFormat::kE4m3Ue8m0, KvFormat::kE2m1E4m3, KvFormat::kE2m1Ue8m0});
  const bool index_keys = format == KvFormat::kE2m1Ue8m0;
  const int64_t width = index_keys ? 128 : head_dim(r);
  const bool split = index_keys || r.integer(0, 3) == 0;
  const int32_t rope_dim = rope_width(r);
  const Plane plane = draw_plane(r, s, format, width, per_block, split, Fill::kNormal);
  const std::vector<int32_t> all = closing_rows(s, ratio, 0, s.t);
  const int64_t n = static_cast<int64_t>(all.size());
  const float scale = r.pick({1.F, 1.F, 1e-6F, 300.F});
  const Tensor x =
      r.input(n, width, r.dtype(), r.pick({Fill::kNormal, Fill::kNormal, Fill::kSteps, Fill::kZero}), scale);
  const Weight norm = !bits && r.coin() ? r.weight(WeightFormat::kBf16, 1, width) : Weight{};
  const float* table = r.rope_rows(n, rope_dim, bits);
  const bool round = r.coin();
  int64_t g = 0;
  for (const auto& [a, b] : r.chunks(s.t)) {
    const std::vector<int32_t> closing = closing_rows(s, ratio, a, b);
    const int64_t m = static_cast<int64_t>(closing.size());
    r.ops().page_store({slice(x, g, g + m), norm, 1e-20F, table + g * rope_dim, rope_dim, ratio, slice(s.rows, a, b),
                        r.array(closing), static_cast<int32_t>(m), round, plane.pages},
                       r.stream());
    g += m;
  }
  const int64_t size = static_cast<int64_t>(plane.bytes.size());
  if (bits) {
    r.result_bytes("pages", plane.pages.base - plane.lead, size);
    return;
  }
  std::vector<uint8_t> host(plane.bytes.size());
  r.memory().read(host.data(), plane.pages.base - plane.lead, size);
  PageView view = plane.pages;
  view.base = host.data() + plane.lead;
  Rows rows = s.rows;
  rows.block_table = s.block_table.data();
  const int64_t bytes = record_bytes(format, width);
  std::vector<uint8_t> stored(static_cast<size_t>(n * bytes));
  for (int64_t i = 0; i < n; ++i) {
    const size_t t = static_cast<size_t>(all[static_cast<size_t>(i)]);
    const cpu::RecordAt at = cpu::page_entry(view, rows, s.sequence[t], s.positions[t] / ratio);
    std::copy(at.data, at.data + data_bytes(format, width), stored.begin() + i * bytes);
    std::copy(at.scale, at.scale + scale_bytes(format, width), stored.begin() + i * bytes + data_bytes(format, width));
  }
  if (format == KvFormat::kF32 && round) {
    r.result("entries", reinterpret_cast<const float*>(r.array(stored)), n, width, kRounded);
  } else {
    r.result_records("entries", r.array(stored), n, width, format);
  }
}
void case_page_store(Run& r) {
  page(r, false);
}
void case_page_store_bits(Run& r) {
  page(r, true);
}

void case_index_query(Run& r) {
  const int64_t t = r.rows();
  const int64_t width = r.real() ? 128 : r.pick<int64_t>({32, 64, 128});
  const int32_t heads = static_cast<int32_t>(r.real() ? 32 : r.pick<int64_t>({1, 3, 4}));
  const int32_t rope_dim = rope_width(r);
  const bool quantise = r.coin();  // then with an identity rope: the values read back are defined exactly
  const Tensor q = r.input(t, heads * width, r.dtype());
  const float* table = r.rope_rows(t, rope_dim, quantise);
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().index_query({slice(q, a, b), heads, table + a * rope_dim, rope_dim, quantise}, r.stream());
  }
  r.result("q", q, quantise ? Bound{} : Bound{1e-6F});
}

// Candidate lists for Reindex rows: random ascending blocks, or -2 = every block.
std::vector<int32_t> draw_candidates(Run& r, const Scene& s, int32_t ratio, int32_t block, int32_t topk) {
  std::vector<int32_t> lists;
  for (int64_t t = 0; t < s.t; ++t) {
    const int64_t visible = (s.positions[static_cast<size_t>(t)] + 1) / ratio;
    const int64_t blocks = (visible + block - 1) / block;
    std::vector<int32_t> list;
    if (blocks <= topk || r.integer(0, 7) == 0) {
      list.push_back(-2);
    } else {
      for (int64_t b = 0; b < blocks && static_cast<int64_t>(list.size()) < topk; ++b) {
        if (r.integer(0, 2) != 0) list.push_back(static_cast<int32_t>(b));
      }
    }
    list.resize(static_cast<size_t>(topk), -1);
    lists.insert(lists.end(), list.begin(), list.end());
  }
  return lists;
}

// exact: steps as values, so that scores are exact in fp32, ties frequent and every output defined bit by bit.
void selection(Run& r, bool exact) {
  const int32_t ratio = r.pick<int32_t>({1, 2});
  const int64_t per_block = r.pick<int64_t>({16, 64, 128});
  const int64_t past = r.real() ? r.pick<int64_t>({1500, 9000}) : r.pick<int64_t>({8, 60, 700});
  const Scene s = draw_scene(r, past, ratio, per_block);
  const int64_t width = r.real() ? 128 : r.pick<int64_t>({32, 64, 128});
  const int32_t heads = static_cast<int32_t>(r.real() ? 32 : r.pick<int64_t>({1, 2, 4, 8}));
  const int32_t topk = static_cast<int32_t>(r.real() ? 512 : r.pick<int64_t>({1, 6, 16, 128}));
  const KvFormat format = r.pick({KvFormat::kE2m1Ue8m0, KvFormat::kE2m1Ue8m0, KvFormat::kF32});
  const Fill fill = exact ? Fill::kSteps : Fill::kNormal;
  const Plane keys = draw_plane(r, s, format, width, per_block, r.integer(0, 3) != 0, fill);
  const Tensor q = r.input(s.t, heads * width, r.dtype(), fill);
  const Tensor w = r.input(s.t, heads, r.dtype(), fill);
  const float scale = exact ? .125F : 1.F / std::sqrt(static_cast<float>(width * heads));
  const int32_t block = static_cast<int32_t>(r.pick<int64_t>({1, 2, 8}));
  const int32_t candidate_topk = static_cast<int32_t>(r.real() ? 64 : r.pick<int64_t>({1, 4, 16}));
  const int64_t role = r.integer(0, 2);  // 0: no candidates, 1: their source, 2: their consumer
  const int32_t* in = role == 2 ? r.array(draw_candidates(r, s, ratio, block, candidate_topk)) : nullptr;
  int32_t* out = role == 1 && exact ? r.out_array<int32_t>(s.t * candidate_topk) : nullptr;
  const int64_t columns = past + s.t + r.pick<int64_t>({0, 3});
  // Without the scores the operator may skip them: both forms are needed. The float case reads them to judge near ties.
  const bool with_scores = !exact || r.coin();
  float* scores = with_scores ? r.out_array<float>(s.t * columns) : nullptr;
  int32_t* chosen = r.out_array<int32_t>(s.t * topk);
  for (const auto& [a, b] : r.chunks(s.t)) {
    r.ops().select({slice(q, a, b), slice(w, a, b), scale, heads, ratio, topk, slice(s.rows, a, b), keys.pages, block,
                    candidate_topk, offset(in, a * candidate_topk), offset(out, a * candidate_topk), chosen + a * topk,
                    offset(scores, a * columns), columns},
                   r.stream());
  }
  if (scores != nullptr) r.result("scores", scores, s.t, columns, exact ? Bound{} : kSum);
  if (out != nullptr) r.result("candidates", out, s.t, candidate_topk);
  if (exact) {
    r.result("selection", chosen, s.t, topk);
  } else {
    r.result_selection("selection", chosen, scores, s.t, topk, columns, {1e-5F});
  }
}
void case_select(Run& r) {
  selection(r, false);
}
void case_select_exact(Run& r) {
  selection(r, true);
}

// `stored`: bf16 queries and quantised records as in service, around the numbers of rows and heads where the fast forms
// change.
void attention_case(Run& r, bool stored, bool wide = false) {
  const int32_t ratio = r.pick<int32_t>({0, 1, 2, 128});
  const int64_t per_block = r.pick<int64_t>({4, 16, 64});
  const int64_t past = r.real() ? 900 : r.pick<int64_t>({0, 40, 300});
  const int64_t many = r.real() || !stored ? -1
                       : wide              ? r.pick<int64_t>({1, 9, 9})
                                           : r.pick<int64_t>({1, 5, 16, 17, 97});
  const Scene s = draw_scene(r, past, ratio, per_block, many);
  const int64_t d = wide ? 512 : stored && !r.real() ? r.pick<int64_t>({64, 128}) : head_dim(r);
  const int32_t heads = static_cast<int32_t>(r.real() || wide ? 64
                                             : stored         ? r.pick<int64_t>({3, 16, 20})
                                                              : r.pick<int64_t>({1, 3, 4, 8}));
  const int32_t rope_dim = rope_width(r);
  const int32_t window = static_cast<int32_t>(r.real() ? 128 : r.pick<int64_t>({1, 4, 8, 128}));
  std::vector<uint8_t> host;
  const KvFormat window_format = r.pick({KvFormat::kF32, KvFormat::kE4m3Ue8m0});
  const RingView ring = draw_ring(r, s, stored ? KvFormat::kE4m3Ue8m0 : window_format, d,
                                  window + static_cast<int32_t>(r.integer(0, 6)), host);
  // The window: behind the row, clipped at a replay start, ahead to the block's end (draft), or empty.
  const int64_t kind = r.integer(0, 3);
  std::vector<int32_t> begin;
  std::vector<int32_t> end;
  for (int64_t t = 0; t < s.t; ++t) {
    const size_t i = static_cast<size_t>(t);
    const size_t q = static_cast<size_t>(s.sequence[i]);
    const int32_t p = s.positions[i];
    int32_t from = std::max(0, p + 1 - window);
    int32_t to = p + 1;
    if (kind == 1) from = std::min(p, std::max(from, s.first_position[q]));
    if (kind == 2 && s.t < 40) {
      to = s.first_position[q];
      for (const int32_t other : s.sequence) to += other == s.sequence[i] ? 1 : 0;
    }
    if (kind == 3 && r.integer(0, 2) == 0) from = to;
    begin.push_back(from);
    end.push_back(to);
  }
  Rows rows = s.rows;
  rows.window_begin = r.array(begin);
  rows.window_end = r.array(end);
  FreshView fresh;
  if (kind == 2 || r.integer(0, 3) != 0) {
    fresh.records = r.array(random_records(r, s.t, ring.format, d));
    fresh.row = r.array(s.first_row);
    fresh.position = r.array(s.first_position);
  }
  PageView pages;
  const int32_t* chosen = nullptr;
  const int32_t topk = static_cast<int32_t>(r.real() ? 512 : r.pick<int64_t>({1, 6, 128}));
  if (ratio > 0) {
    KvFormat format = r.pick({KvFormat::kF32, KvFormat::kE4m3Ue8m0, KvFormat::kE2m1E4m3});
    if (stored && format == KvFormat::kF32) format = KvFormat::kE2m1E4m3;
    pages = draw_plane(r, s, format, d, per_block, false, Fill::kNormal).pages;
    std::vector<int32_t> lists;
    for (int64_t t = 0; t < s.t; ++t) {
      std::vector<int32_t> list;
      const int64_t visible = (s.positions[static_cast<size_t>(t)] + 1) / ratio;
      for (int64_t g = 0; g < visible && static_cast<int64_t>(list.size()) < topk; ++g) {
        if (visible <= topk || r.integer(0, 2) != 0) list.push_back(static_cast<int32_t>(g));
      }
      list.resize(static_cast<size_t>(topk), -1);
      lists.insert(lists.end(), list.begin(), list.end());
    }
    chosen = ratio == 128 ? nullptr : r.array(lists);
  }
  std::vector<float> sink = r.values(heads);
  if (r.integer(0, 2) == 0) sink.back() = -INFINITY;
  const float* d_sink = r.array(sink);
  const Tensor q = r.input(s.t, heads * d, stored ? DType::kBf16 : r.dtype());
  const float* table = r.rope_rows(s.t, rope_dim);
  const bool round = stored || r.coin();
  const Tensor o = r.output(s.t, heads * d, r.dtype());
  const float scale = 1.F / std::sqrt(static_cast<float>(d));
  for (const auto& [a, b] : r.chunks(s.t)) {
    r.ops().attention({slice(q, a, b), heads, scale, d_sink, table + a * rope_dim, rope_dim, slice(rows, a, b), fresh,
                       ring, ratio, pages, offset(chosen, a * topk), topk, round, slice(o, a, b)},
                      r.stream());
  }
  r.result("o", o, round ? kRounded : kSum);
}
void case_attention(Run& r) {
  attention_case(r, false);
}
void case_attention_stored(Run& r) {
  attention_case(r, true);
}
void case_attention_wide_stored(Run& r) {
  attention_case(r, true, true);
}

}  // namespace

std::vector<Case> cache_cases() {
  return {{"swa_store", case_swa_store},
          {"swa_store_bits", case_swa_store_bits},
          {"ring_commit", case_ring_commit},
          {"compress", case_compress},
          {"compress_v4", case_compress_v4},
          {"page_store", case_page_store},
          {"page_store_bits", case_page_store_bits},
          {"index_query", case_index_query},
          {"select", case_select},
          {"select_exact", case_select_exact},
          {"attention", case_attention},
          {"attention_stored", case_attention_stored},
          {"attention_wide_stored", case_attention_wide_stored}};
}

}  // namespace di::kernels::test
