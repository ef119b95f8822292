#include "engine/context_parallel.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace di::engine {
namespace {

// Calls visit(sequence, token of the sequence or -1) for every local row of a rank, in order.
template <class Visit>
void for_each_row(std::span<const int32_t> seqlens_q, int32_t ranks, int32_t rank, Visit visit) {
  for (size_t s = 0; s < seqlens_q.size(); ++s) {
    const int32_t q = seqlens_q[s];
    const int32_t piece = (q + 2 * ranks - 1) / (2 * ranks);
    for (const int32_t p : {rank, 2 * ranks - 1 - rank}) {
      for (int32_t i = p * piece; i < (p + 1) * piece; ++i) visit(s, i < q ? i : -1);
    }
  }
}

std::vector<int32_t> starts(std::span<const int32_t> lengths) {
  std::vector<int32_t> out(lengths.size(), 0);
  std::exclusive_scan(lengths.begin(), lengths.end(), out.begin(), 0);
  return out;
}

}  // namespace

MirrorShare mirror_share(std::span<const int32_t> seqlens_q, std::span<const int32_t> seqlens_k, int32_t ranks,
                         int32_t rank, std::span<const int32_t> ratios) {
  MirrorShare out;
  const std::vector<int32_t> first = starts(seqlens_q);
  for_each_row(seqlens_q, ranks, rank,
               [&](size_t s, int32_t token) { out.rows.push_back(token < 0 ? -1 : first[s] + token); });
  for (const int32_t ratio : ratios) {
    std::vector<int32_t> keys(seqlens_k.begin(), seqlens_k.end());
    for (int32_t& k : keys) k /= ratio;
    const std::vector<int32_t> base = starts(keys);
    std::vector<int32_t>& begin = out.key_begin.emplace_back();
    std::vector<int32_t>& end = out.key_end.emplace_back();
    for_each_row(seqlens_q, ranks, rank, [&](size_t s, int32_t token) {
      begin.push_back(base[s]);
      end.push_back(token < 0 ? base[s] : base[s] + (seqlens_k[s] - seqlens_q[s] + token + 1) / ratio);
    });
  }
  return out;
}

std::vector<int32_t> mirror_inverse(std::span<const int32_t> seqlens_q, int32_t ranks) {
  const std::vector<int32_t> first = starts(seqlens_q);
  std::vector<int32_t> out(static_cast<size_t>(std::accumulate(seqlens_q.begin(), seqlens_q.end(), 0)), 0);
  int32_t row = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for_each_row(seqlens_q, ranks, rank, [&](size_t s, int32_t token) {
      if (token >= 0) out[static_cast<size_t>(first[s] + token)] = row;
      ++row;
    });
  }
  return out;
}

BoundaryExchange boundary_exchange(std::span<const int32_t> seqlens_q, std::span<const int32_t> keep_lens,
                                   int32_t ranks) {
  BoundaryExchange out;
  const std::vector<int32_t> first = starts(keep_lens);
  struct Place {
    int32_t rank = 0;
    int32_t row = 0;
  };
  std::vector<Place> places(static_cast<size_t>(std::accumulate(keep_lens.begin(), keep_lens.end(), 0)));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<int32_t>& rows = out.rows_of_rank.emplace_back();
    int32_t local = 0;
    for_each_row(seqlens_q, ranks, rank, [&](size_t s, int32_t token) {
      const int32_t kept = token - (seqlens_q[s] - keep_lens[s]);
      if (token >= 0 && kept >= 0) {
        places[static_cast<size_t>(first[s] + kept)] = {rank, static_cast<int32_t>(rows.size())};
        rows.push_back(local);
      }
      ++local;
    });
    out.padded_rows = std::max(out.padded_rows, static_cast<int32_t>(rows.size()));
  }
  for (const Place& p : places) out.inverse.push_back(p.rank * out.padded_rows + p.row);
  return out;
}

}  // namespace di::engine
