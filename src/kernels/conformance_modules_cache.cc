// Sections of single modules that go through records, pages, rings and compressor state.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/conformance_module.h"

namespace di::kernels::conformance {
namespace {

// n rows, each the only one of its sequence; entry i of a page plane belongs to position i of every sequence.
struct Lines {
  std::vector<int32_t> positions;
  std::vector<int32_t> sequence;
  std::vector<int32_t> slot;
  std::vector<int32_t> table;
  Rows rows;
};

Lines lines(const std::vector<int32_t>& positions) {
  Lines l;
  l.positions = positions;
  l.sequence.resize(positions.size());
  std::iota(l.sequence.begin(), l.sequence.end(), 0);
  l.slot.assign(positions.size(), 0);
  l.table.assign(positions.size(), 0);  // one block, shared
  l.rows.n = static_cast<int32_t>(positions.size());
  l.rows.positions = l.positions.data();
  l.rows.sequence = l.sequence.data();
  l.rows.state_slot = l.slot.data();
  l.rows.block_table = l.table.data();
  l.rows.block_table_stride = 1;
  return l;
}

std::vector<int32_t> ramp(int64_t n) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

// x [n, width] as stored records, dense. A window entry goes through swa_store, everything else through page_store.
std::vector<uint8_t> store(const Module& m, const std::vector<float>& x, int64_t n, int64_t width, KvFormat format,
                           bool window) {
  std::vector<Bf16> input = to_bf16(x);
  std::vector<uint8_t> records(static_cast<size_t>(n * record_bytes(format, width)));
  if (window) {
    const std::vector<float> norm = pass_norm(width);
    m.ops.swa_store(
        {view(input, n, width), weight(norm, 1, width), kPassEps, nullptr, 0, false, format, records.data(), {}},
        m.stream);
    return records;
  }
  const Lines l = lines(ramp(n));
  PageView pages;
  pages.base = records.data();
  pages.entries_per_block = static_cast<int32_t>(n);
  pages.block_stride = static_cast<int64_t>(records.size());
  pages.width = static_cast<int32_t>(width);
  pages.format = format;
  m.ops.page_store({view(input, n, width),
                    {},
                    0.F,
                    nullptr,
                    0,
                    1,
                    l.rows,
                    l.positions.data(),
                    static_cast<int32_t>(n),
                    false,
                    pages},
                   m.stream);
  return records;
}

// What attention reads: one key per query, no sink, so that the output is the key.
std::vector<float> read_back(const Module& m, std::vector<uint8_t>& records, int64_t n, int64_t width, KvFormat format,
                             bool window) {
  Lines l = lines(ramp(n));
  std::vector<int32_t> begin = l.positions;
  std::vector<int32_t> end = l.positions;
  if (window) {
    for (int32_t& e : end) ++e;
  }
  l.rows.window_begin = begin.data();
  l.rows.window_end = end.data();
  FreshView fresh;
  PageView pages;
  RingView ring;
  ring.ring_rows = 1;
  ring.width = static_cast<int32_t>(width);
  ring.format = window ? format : KvFormat::kF32;
  if (window) {
    fresh.records = records.data();
    fresh.row = l.positions.data();
    fresh.position = l.positions.data();
  } else {
    pages.base = records.data();
    pages.entries_per_block = static_cast<int32_t>(n);
    pages.block_stride = static_cast<int64_t>(records.size());
    pages.width = static_cast<int32_t>(width);
    pages.format = format;
  }
  std::vector<float> q = zeros(n * width);
  std::vector<float> o = zeros(n * width);
  const float sink = -INFINITY;
  m.ops.attention({view(q, n, width), 1, 1.F, &sink, nullptr, 0, l.rows, fresh, ring, window ? 0 : 1, pages,
                   window ? nullptr : l.positions.data(), 1, false, view(o, n, width)},
                  m.stream);
  return o;
}

// data bytes then scale bytes of each record ↔ two arrays
std::vector<uint8_t> part(const std::vector<uint8_t>& records, int64_t n, int64_t width, KvFormat format, bool scales) {
  const int64_t bytes = record_bytes(format, width);
  const int64_t data = data_bytes(format, width);
  std::vector<uint8_t> out;
  for (int64_t i = 0; i < n; ++i) {
    const auto record = records.begin() + i * bytes;
    out.insert(out.end(), scales ? record + data : record, scales ? record + bytes : record + data);
  }
  return out;
}

// E2M1 with an E4M3 scale: dividing by the scale (ours) and multiplying with its reciprocal (the reference of the cast
// files) differ where x/s lies exactly between two codes (model.md §4.3). True where they do; either code is right
// there.
std::vector<bool> reciprocal_ties(const std::vector<float>& x, const std::vector<uint8_t>& scales) {
  std::vector<bool> tie(x.size());
  for (size_t i = 0; i < x.size() && i / 16 < scales.size(); ++i) {
    const float s = to_float(E4m3{scales[i / 16]});
    tie[i] = to_e2m1(x[i] / s) != to_e2m1(x[i] * (1.F / s));
  }
  return tie;
}

// At ties the expected code is replaced by the found one if it is the reciprocal's.
void accept_ties(const std::vector<float>& x, const std::vector<uint8_t>& scales, const std::vector<bool>& tie,
                 const std::vector<uint8_t>& found, std::vector<uint8_t>& expected) {
  for (size_t i = 0; i < tie.size() && i / 2 < std::min(found.size(), expected.size()); ++i) {
    const int shift = i % 2 == 0 ? 0 : 4;
    const uint8_t reciprocal = to_e2m1(x[i] * (1.F / to_float(E4m3{scales[i / 16]})));
    if (!tie[i] || ((expected[i / 2] >> shift) & 15) != reciprocal) continue;
    const int mask = 15 << shift;
    expected[i / 2] = static_cast<uint8_t>((expected[i / 2] & ~mask) | (found[i / 2] & mask));
  }
}

void cast(const Module& m) {
  struct Kind {
    const char* name;
    KvFormat format;
  };
  constexpr Kind kKinds[] = {{"e4m3_g32_ue8m0", KvFormat::kE4m3Ue8m0},
                             {"e2m1_g32_ue8m0", KvFormat::kE2m1Ue8m0},
                             {"e2m1_g16_e4m3", KvFormat::kE2m1E4m3}};
  if (!m.has({"x"})) return;
  for (const Kind& kind : kKinds) {
    const std::string name = kind.name;
    if (!m.has({name + ".data", name + ".scale"})) continue;
    const int64_t width = m.shape("x").back();
    const int64_t n = count(m.shape("x")) / width;
    const std::vector<float> x = m.floats("x");
    std::vector<uint8_t> records = store(m, x, n, width, kind.format, false);
    std::vector<uint8_t> expected = m.bytes(name + ".data");
    const std::vector<uint8_t> data = part(records, n, width, kind.format, false);
    const std::vector<uint8_t> scale = part(records, n, width, kind.format, true);
    std::vector<bool> tie(x.size());
    if (kind.format == KvFormat::kE2m1E4m3) {
      tie = reciprocal_ties(x, scale);
      accept_ties(x, scale, tie, data, expected);
    }
    m.same(name + ".data", expected, data);
    m.same(name + ".scale", m.bytes(name + ".scale"), scale);
    if (!m.has({name + ".dequant"})) continue;
    std::vector<float> found;
    if (kind.format == KvFormat::kE2m1Ue8m0) {
      found = x;
      m.ops.index_query({view(found, n, width), 1, nullptr, 0, true}, m.stream);
    } else {
      found = read_back(m, records, n, width, kind.format, false);
    }
    std::vector<float> values = m.floats(name + ".dequant");
    for (size_t i = 0; i < std::min(values.size(), tie.size()); ++i) {
      if (tie[i]) values[i] = found[i];
    }
    m.same(name + ".dequant", values, found);
  }
}

// The reference of these records floors the scale of a window entry at 1e-4, we floor amax (model.md §4.3): groups
// below amax = 448e-4 are left out on both sides.
void drop_small_groups(const std::vector<float>& x, int64_t n, int64_t width, std::vector<uint8_t>& a,
                       std::vector<uint8_t>& b) {
  const int64_t bytes = record_bytes(KvFormat::kE4m3Ue8m0, width);
  if (static_cast<int64_t>(a.size()) != n * bytes || a.size() != b.size()) return;
  for (int64_t i = 0; i < n * width; i += 32) {
    float amax = 0.F;
    for (int64_t j = i; j < i + 32; ++j) amax = std::max(amax, std::fabs(x[static_cast<size_t>(j)]));
    if (amax >= 448e-4F) continue;
    for (std::vector<uint8_t>* v : {&a, &b}) {
      const auto record = v->begin() + i / width * bytes;
      std::fill(record + i % width, record + i % width + 32, 0);
      record[width + i % width / 32] = 0;
    }
  }
}

void kv_records(const Module& m) {
  if (!m.has({"kv"})) return;
  const int64_t width = m.shape("kv").back();
  const int64_t n = count(m.shape("kv")) / width;
  const std::vector<float> kv = m.floats("kv");
  struct Kind {
    const char* name;
    KvFormat format;
    bool window;
  };
  for (const Kind& kind : {Kind{"swa", KvFormat::kE4m3Ue8m0, true}, Kind{"main_fp4", KvFormat::kE2m1E4m3, false},
                           Kind{"main_fp8", KvFormat::kE4m3Ue8m0, false}}) {
    const std::string name = kind.name;
    if (!m.has({name + "_interleaved"})) continue;
    std::vector<uint8_t> found = store(m, kv, n, width, kind.format, kind.window);
    std::vector<uint8_t> expected = m.bytes(name + "_interleaved");
    if (m.has({name + "_dequant"}) && expected.size() == found.size()) {
      std::vector<uint8_t> records = expected;  // reading is exact whatever the floor of the scale
      m.same(name + "_dequant", m.floats(name + "_dequant"), read_back(m, records, n, width, kind.format, kind.window));
    }
    if (kind.window) drop_small_groups(kv, n, width, expected, found);
    m.same(name + "_interleaved", expected, found);
  }
}

// Ratio-2 pooling before its norm, of rows [first, last) of the file, rounded to bf16.
std::vector<float> pool(const Module& m, std::vector<float>& value, std::vector<float>& score, int64_t d, int64_t first,
                        int64_t last, const CompressorStateView& state) {
  std::vector<int32_t> positions;
  std::vector<int32_t> closing;
  for (int64_t p = first; p < last; ++p) {
    if (p % 2 == 1) closing.push_back(static_cast<int32_t>(p - first));
    positions.push_back(static_cast<int32_t>(p));
  }
  const std::vector<int32_t> sequence(positions.size(), 0);
  const int32_t slot = 0;
  Rows rows;
  rows.n = static_cast<int32_t>(last - first);
  rows.positions = positions.data();
  rows.sequence = sequence.data();
  rows.state_slot = &slot;
  Tensor v = view(value, last - first, d);
  Tensor s = view(score, last - first, d);
  v.data = value.data() + first * d;
  s.data = score.data() + first * d;
  const int64_t g = static_cast<int64_t>(closing.size());
  std::vector<float> latent = zeros(g * d);
  const std::vector<float> norm = pass_norm(d);
  m.ops.compress({2, v, s, weight(norm, 1, d), kPassEps, true, rows, closing.data(), static_cast<int32_t>(g), state,
                  view(latent, g, d)},
                 m.stream);
  return latent;
}

// The state of the file's layout, [rows, (score, value), D], after the first n tokens.
std::vector<float> state_after(const std::vector<float>& value, const std::vector<float>& score, int64_t n,
                               int64_t rows, int64_t d) {
  std::vector<float> state = zeros(rows * 2 * d);
  for (int64_t p = 0; p < n; ++p) {
    const auto to = state.begin() + p % rows * 2 * d;
    std::copy(score.begin() + p * d, score.begin() + (p + 1) * d, to);
    std::copy(value.begin() + p * d, value.begin() + (p + 1) * d, to + d);
  }
  return state;
}

void compressor(const Module& m) {
  if (!m.has({"value", "score", "pooled"})) return;
  if (!m.shaped({{"value", 2}, {"score", 2}})) return;
  const int64_t t = m.shape("value")[0];
  const int64_t d = m.shape("value")[1];
  std::vector<float> value = m.floats("value");
  std::vector<float> score = m.floats("score");
  const bool chunked = m.has({"state_after_chunk1", "chunk1", "chunk2", "decode"});
  if (chunked && !m.shaped({{"state_after_chunk1", 4}, {"decode", 2}})) return;
  const int64_t ring = chunked ? m.shape("state_after_chunk1")[1] : 8;
  CompressorStateView state;
  state.ring_rows = static_cast<int32_t>(ring);
  state.width = static_cast<int32_t>(d);
  state.slot_stride = ring * 2 * d;
  std::vector<float> memory = zeros(state.slot_stride);
  state.base = memory.data();
  m.bf16_steps("pooled", m.floats("pooled"), pool(m, value, score, d, 0, t, state), 0);
  if (!chunked) return;

  // The length of the first chunk is what its state shows.
  const std::vector<float> expected_state = m.floats("state_after_chunk1");
  int64_t first = t;
  while (first > 0 && state_after(value, score, first, ring, d) != expected_state) --first;
  const int64_t decode = m.shape("decode")[0];
  const int64_t second = t - decode;
  if (first == 0 || second < first) return m.refuse("state_after_chunk1", "is not the state after any first chunk");
  std::fill(memory.begin(), memory.end(), 0.F);
  m.bf16_steps("chunk1", m.floats("chunk1"), pool(m, value, score, d, 0, first, state), 0);
  std::vector<float> found_state;
  for (int64_t row = 0; row < ring; ++row) {
    for (const int64_t half : {int64_t{1}, int64_t{0}}) {  // ours: value, then score
      const auto at = memory.begin() + (2 * row + half) * d;
      found_state.insert(found_state.end(), at, at + d);
    }
  }
  m.same("state_after_chunk1", expected_state, found_state);
  m.bf16_steps("chunk2", m.floats("chunk2"), pool(m, value, score, d, first, second, state), 0);
  std::vector<float> steps;
  for (int64_t p = second; p < t; ++p) {
    std::vector<float> step = pool(m, value, score, d, p, p + 1, state);
    step.resize(static_cast<size_t>(d));  // a step that closes nothing is zero in the file
    steps.insert(steps.end(), step.begin(), step.end());
  }
  m.bf16_steps("decode", m.floats("decode"), steps, 0);
}

// Given scores come out of the indexer when key g is the unit vector g and two heads carry +score and -score with
// weights ±1.
void candidates(const Module& m) {
  if (!m.has({"scores", "valid_lens", "block_scores", "valid_blocks"})) return;
  if (!m.shaped({{"scores", 2}, {"block_scores", 2}, {"valid_lens", 1}, {"valid_blocks", 1}})) return;
  const int64_t t = m.shape("scores")[0];
  const int64_t columns = m.shape("scores")[1];
  const int64_t all_blocks = m.shape("block_scores")[1];
  const std::vector<float> scores = m.floats("scores");
  const std::vector<float> block_scores = m.floats("block_scores");
  const std::vector<int32_t> lens = m.ints("valid_lens");
  const std::vector<int32_t> blocks = m.ints("valid_blocks");
  // The block size that explains the counts; 8 in the model.
  int64_t size = 0;
  for (int64_t b = columns; b > 0; --b) {
    bool fits = (columns + b - 1) / b == all_blocks;
    for (size_t i = 0; i < lens.size(); ++i) fits = fits && (lens[i] + b - 1) / b == blocks[i];
    if (fits && (size == 0 || b == 8)) size = b;
  }
  if (size == 0) return m.refuse("valid_blocks", "no block size gives these counts for valid_lens");
  const int64_t width = (columns + 31) / 32 * 32;
  std::vector<float> keys = shifted_identity(columns, width, 0);
  std::vector<float> q = zeros(t * 2 * width);
  std::vector<float> w = zeros(t * 2);
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < t; ++i) {
    for (int64_t g = 0; g < columns; ++g) {
      const float s = scores[static_cast<size_t>(i * columns + g)];
      q[static_cast<size_t>(i * 2 * width + g)] = s;
      q[static_cast<size_t>((i * 2 + 1) * width + g)] = -s;
    }
    w[static_cast<size_t>(2 * i)] = 1.F;
    w[static_cast<size_t>(2 * i + 1)] = -1.F;
    positions.push_back(lens[static_cast<size_t>(i)] - 1);
  }
  const Lines l = lines(positions);
  PageView pages;
  pages.base = reinterpret_cast<uint8_t*>(keys.data());
  pages.entries_per_block = static_cast<int32_t>(columns);
  pages.block_stride = columns * width * 4;
  pages.width = static_cast<int32_t>(width);
  for (int32_t topk = 1; topk <= all_blocks; ++topk) {
    std::vector<int32_t> found(static_cast<size_t>(t * topk));
    std::vector<int32_t> selection(static_cast<size_t>(t));
    m.ops.select({view(q, t, 2 * width), view(w, t, 2), 1.F, 2, 1, 1, l.rows, pages, static_cast<int32_t>(size), topk,
                  nullptr, found.data(), selection.data(), nullptr, 0},
                 m.stream);
    std::vector<int32_t> expected;
    for (int64_t i = 0; i < t; ++i) {
      const float* score = block_scores.data() + i * all_blocks;
      std::vector<int32_t> row = ramp(blocks[static_cast<size_t>(i)]);
      if (static_cast<int64_t>(row.size()) <= topk) {
        row = {-2};  // every block
      } else {
        std::sort(row.begin(), row.end(),
                  [&](int32_t a, int32_t b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
        row.resize(static_cast<size_t>(topk));
        std::sort(row.begin(), row.end());
      }
      row.resize(static_cast<size_t>(topk), -1);
      expected.insert(expected.end(), row.begin(), row.end());
    }
    m.same(fmt::format("candidates, best {} of the blocks", topk), expected, found);
  }
}

void rope(const Module& m) {
  if (!m.has({"positions", "x"})) return;
  for (const NamedTensor& t : m.tensors) {
    const std::string suffix = ".inv_freq";
    if (!t.name.ends_with(suffix)) continue;
    const std::string name = t.name.substr(0, t.name.size() - suffix.size());
    const std::vector<int32_t> positions = m.ints("positions");
    const std::vector<float> freq = m.floats(t.name);
    const int64_t n = static_cast<int64_t>(positions.size());
    const int64_t pairs = static_cast<int64_t>(freq.size());
    const int32_t rope_dim = static_cast<int32_t>(2 * pairs);
    std::vector<float> table = zeros(n * rope_dim);
    m.ops.rope_table({positions.data(), static_cast<int32_t>(n), freq.data(), rope_dim, table.data()}, m.stream);
    std::vector<float> cosines;
    std::vector<float> sines;
    for (size_t i = 0; i < table.size(); i += 2) {
      cosines.push_back(table[i]);
      sines.push_back(table[i + 1]);
    }
    if (m.has({name + ".cos"})) m.near(name + ".cos", m.floats(name + ".cos"), cosines);
    if (m.has({name + ".sin"})) m.near(name + ".sin", m.floats(name + ".sin"), sines);
    const int64_t d = m.shape("x").back();
    const int64_t heads = count(m.shape("x")) / (n * d);
    if (m.has({name + ".rotated"})) {
      std::vector<float> x = m.floats("x");
      m.ops.q_rope({view(x, n, heads * d), static_cast<int32_t>(heads), table.data(), rope_dim, 0.F}, m.stream);
      m.near(name + ".rotated", m.floats(name + ".rotated"), x);
    }
    if (!m.has({name + ".inverse_of_x"})) continue;
    // The inverse is the one at the end of attention: every x is the only key of a query at its position.
    std::vector<float> x = m.floats("x");
    const int64_t rows = n * heads;
    Lines l = lines(ramp(rows));
    std::vector<int32_t> end = l.positions;
    for (int32_t& e : end) ++e;
    l.rows.window_begin = l.positions.data();
    l.rows.window_end = end.data();
    std::vector<float> tables;
    for (int64_t i = 0; i < rows; ++i) {
      const auto row = table.begin() + i / heads * rope_dim;
      tables.insert(tables.end(), row, row + rope_dim);
    }
    RingView ring;
    ring.ring_rows = 1;
    ring.width = static_cast<int32_t>(d);
    const FreshView fresh{reinterpret_cast<const uint8_t*>(x.data()), l.positions.data(), l.positions.data()};
    std::vector<float> q = zeros(rows * d);
    std::vector<float> o = zeros(rows * d);
    const float sink = -INFINITY;
    m.ops.attention({view(q, rows, d),
                     1,
                     1.F,
                     &sink,
                     tables.data(),
                     rope_dim,
                     l.rows,
                     fresh,
                     ring,
                     0,
                     {},
                     nullptr,
                     0,
                     false,
                     view(o, rows, d)},
                    m.stream);
    m.near(name + ".inverse_of_x", m.floats(name + ".inverse_of_x"), o);
  }
}

}  // namespace

void run_cache_sections(const Module& m) {
  cast(m);
  kv_records(m);
  compressor(m);
  candidates(m);
  rope(m);
}

}  // namespace di::kernels::conformance
