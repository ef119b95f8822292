#include <numeric>

#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {
namespace {

// The index keys of one sequence, dequantised once for all of its rows in the call.
class Keys {
 public:
  Keys(const PageView& pages, const Rows& rows) : pages_(pages), rows_(rows) {}

  // Keys 0 … n-1 of the sequence.
  const float* read(int64_t sequence, int64_t n) {
    if (sequence != sequence_) {
      sequence_ = sequence;
      count_ = 0;
    }
    const int64_t width = pages_.width;
    if (count_ < n) values_.resize(std::max(values_.size(), static_cast<size_t>(n * width)));
    for (; count_ < n; ++count_) {
      const RecordAt at = page_entry(pages_, rows_, sequence, count_);
      load_record(pages_.format, width, at.data, at.scale, values_.data() + count_ * width);
    }
    return values_.data();
  }

 private:
  const PageView& pages_;
  const Rows& rows_;
  int64_t sequence_ = -1;
  int64_t count_ = 0;
  std::vector<float> values_;
};

// Moves the `keep` best of `index` by `score` to its front (ties: lower index) and sorts those ascending.
void keep_best(std::vector<int32_t>& index, const std::vector<float>& score, int64_t keep) {
  const auto better = [&](int32_t i, int32_t j) {
    return beats(score[static_cast<size_t>(i)], i, score[static_cast<size_t>(j)], j);
  };
  if (static_cast<int64_t>(index.size()) > keep) {
    std::nth_element(index.begin(), index.begin() + keep, index.end(), better);
    index.resize(static_cast<size_t>(keep));
  }
  std::sort(index.begin(), index.end());
}

void write_list(const std::vector<int32_t>& list, int64_t length, int32_t* out) {
  for (int64_t i = 0; i < length; ++i)
    out[i] = i < static_cast<int64_t>(list.size()) ? list[static_cast<size_t>(i)] : -1;
}

// The candidate blocks of a row (model.md §5.8): block score = max of its scores, the block with the newest entry
// first.
void write_candidates(const SelectArgs& a, const std::vector<float>& score, int64_t visible, int32_t* out) {
  const int64_t blocks = (visible + a.candidate_block - 1) / a.candidate_block;
  if (blocks <= a.candidate_topk) {
    write_list({-2}, a.candidate_topk, out);
    return;
  }
  std::vector<float> best(static_cast<size_t>(blocks), -INFINITY);
  for (int64_t g = 0; g < visible; ++g) {
    float& block = best[static_cast<size_t>(g / a.candidate_block)];
    block = std::fmax(block, score[static_cast<size_t>(g)]);
  }
  best.back() = INFINITY;
  std::vector<int32_t> index;
  for (int64_t b = 0; b < blocks; ++b) {
    if (best[static_cast<size_t>(b)] > -INFINITY) index.push_back(static_cast<int32_t>(b));
  }
  keep_best(index, best, a.candidate_topk);
  write_list(index, a.candidate_topk, out);
}

// The entries that compete in a row: all visible ones, or those inside its candidate blocks.
std::vector<int32_t> competitors(const SelectArgs& a, int64_t t, int64_t visible) {
  std::vector<int32_t> index;
  const int32_t* blocks = a.candidate_in != nullptr ? a.candidate_in + t * a.candidate_topk : nullptr;
  if (blocks == nullptr || (a.candidate_topk > 0 && blocks[0] == -2)) {
    index.resize(static_cast<size_t>(visible));
    std::iota(index.begin(), index.end(), 0);
    return index;
  }
  for (int64_t i = 0; i < a.candidate_topk; ++i) {
    if (blocks[i] < 0) continue;
    const int64_t first = int64_t{blocks[i]} * a.candidate_block;
    for (int64_t g = first; g < std::min(visible, first + a.candidate_block); ++g)
      index.push_back(static_cast<int32_t>(g));
  }
  return index;
}

}  // namespace

void index_query(const IndexQueryArgs& a, Stream&) {
  DI_CHECK(a.heads > 0 && a.q.cols % a.heads == 0, "q of {} columns, {} heads", a.q.cols, a.heads);
  const int64_t width = a.q.cols / a.heads;
  DI_CHECK(a.rope_dim <= width && (!a.quantise || width % 32 == 0), "index width {}, rope {}", width, a.rope_dim);
  std::vector<float> buffer;
  std::vector<float> q(static_cast<size_t>(width));
  for (int64_t t = 0; t < a.q.rows; ++t) {
    const float* row = read_row(a.q, t, buffer);
    for (int64_t h = 0; h < a.heads; ++h) {
      std::copy(row + h * width, row + (h + 1) * width, q.begin());
      rotate(q.data() + width - a.rope_dim, a.table + t * a.rope_dim, a.rope_dim, false);
      if (a.quantise) requantise_index_query(q.data(), width);
      write_row(a.q, t, q.data(), h * width, width);
    }
  }
}

// score[t,g] = Σ_h w[t,h]·scale·relu(q[t,h]·k_g), h ascending
void select(const SelectArgs& a, Stream&) {
  const int64_t width = a.keys.width;
  DI_CHECK(a.q.cols == a.heads * width && a.w.cols == a.heads && a.ratio > 0 && a.q.rows == a.rows.n,
           "q [{}, {}], w {} columns, {} heads of {}, ratio {}, {} rows", a.q.rows, a.q.cols, a.w.cols, a.heads, width,
           a.ratio, a.rows.n);
  Keys keys(a.keys, a.rows);
  std::vector<float> q_buffer;
  std::vector<float> w_buffer;
  std::vector<float> score;
  for (int64_t t = 0; t < a.rows.n; ++t) {
    const int64_t visible = (a.rows.positions[t] + 1) / a.ratio;
    std::vector<int32_t> index = competitors(a, t, visible);
    const bool blocks_compete =
        a.candidate_out != nullptr && (visible + a.candidate_block - 1) / a.candidate_block > a.candidate_topk;
    score.assign(static_cast<size_t>(visible), -INFINITY);
    if (static_cast<int64_t>(index.size()) > a.topk || blocks_compete || a.scores != nullptr) {
      const float* q = read_row(a.q, t, q_buffer);
      const float* w = read_row(a.w, t, w_buffer);
      const float* k = keys.read(a.rows.sequence[t], visible);
      for (const int32_t g : index) {
        float sum = 0.F;
        for (int64_t h = 0; h < a.heads; ++h) {
          sum += w[h] * a.scale * std::fmax(dot(q + h * width, k + g * width, width), 0.F);
        }
        score[static_cast<size_t>(g)] = sum;
      }
    }
    if (a.scores != nullptr) {
      float* out = a.scores + t * a.scores_stride;
      DI_CHECK(visible <= a.scores_stride, "{} visible entries in score rows of {}", visible, a.scores_stride);
      std::fill(std::copy(score.begin(), score.end(), out), out + a.scores_stride, -INFINITY);
    }
    if (a.candidate_out != nullptr) write_candidates(a, score, visible, a.candidate_out + t * a.candidate_topk);
    keep_best(index, score, a.topk);
    write_list(index, a.topk, a.selection + t * a.topk);
  }
}

}  // namespace di::kernels::cpu::ref
