#include "engine/speculative/verify_length.h"

#include <algorithm>

namespace di::engine {
namespace {

struct Rate {
  float rate = 0;
  int32_t sequence = 0;
};

// One entry per draft; a sequence without confidences counts as certain when it has drafts, else as hopeless.
std::vector<Rate> sorted_rates(std::span<const SequenceRates> sequences, bool for_budget) {
  std::vector<Rate> out;
  for (size_t r = 0; r < sequences.size(); ++r) {
    const SequenceRates& s = sequences[r];
    const bool late = s.schedule_count == s.process_count + 1;
    const std::span<const float> rates = !for_budget || late ? s.rates : s.previous_rates;
    const float missing = s.has_draft_info || late ? 1.0F : 0.0F;
    for (int32_t k = 0; k < s.num_drafts; ++k) {
      const auto at = static_cast<size_t>(k);
      if (!rates.empty() && at >= rates.size()) break;
      out.push_back({rates.empty() ? missing : rates[at], static_cast<int32_t>(r)});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const Rate& a, const Rate& b) {
    return a.rate > b.rate || (a.rate == b.rate && a.sequence < b.sequence);
  });
  return out;
}

}  // namespace

VerifyLengths search_lengths(std::span<const std::vector<double>> confidences, std::span<const double> steps_per_second,
                             bool early_stop) {
  struct Draft {
    double survival = 0;
    int32_t sequence = 0;
    int32_t position = 0;
  };
  std::vector<Draft> drafts;
  for (size_t r = 0; r < confidences.size(); ++r) {
    double survival = 1;
    for (size_t k = 0; k < confidences[r].size(); ++k) {
      survival *= confidences[r][k];
      drafts.push_back({survival, static_cast<int32_t>(r), static_cast<int32_t>(k)});
    }
  }
  std::sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) {
    if (a.survival != b.survival) return a.survival > b.survival;
    return a.sequence != b.sequence ? a.sequence < b.sequence : a.position < b.position;
  });
  VerifyLengths out;
  out.lengths.assign(confidences.size(), 0);
  const size_t rows = confidences.size();
  if (rows == 0 || rows >= steps_per_second.size()) return out;
  double expected = static_cast<double>(rows);
  out.theta = expected * steps_per_second[rows];
  size_t best = 0;
  for (size_t i = 0; i < drafts.size() && rows + i + 1 < steps_per_second.size(); ++i) {
    expected += drafts[i].survival;
    const double theta = expected * steps_per_second[rows + i + 1];
    if (theta > out.theta) {
      out.theta = theta;
      best = i + 1;
    } else if (early_stop) {
      break;
    }
  }
  for (size_t i = 0; i < best; ++i) ++out.lengths[static_cast<size_t>(drafts[i].sequence)];
  return out;
}

Result<VerifyPlan> plan_lengths(std::span<const SequenceRates> sequences, const CostCurve& curve,
                                const RuntimeCost& runtime) {
  VerifyPlan plan;
  const auto n = static_cast<int32_t>(sequences.size());
  if (curve.empty()) {
    for (const SequenceRates& s : sequences) plan.rows.push_back(1 + s.num_drafts);
  } else {
    const double sampler_ms = runtime.sampler_ms(n);
    const double slope = runtime.slope();
    float expected = static_cast<float>(n);
    int32_t rows = n;
    double best = 0;
    int32_t best_rows = 0;
    const auto evaluate = [&] {
      const CurvePoint* point = curve.at(rows);
      if (point == nullptr) return;
      const double gain = static_cast<double>(expected) / (point->ms + slope * point->size + sampler_ms);
      if (gain > best) {
        best = gain;
        best_rows = rows;
      }
    };
    evaluate();
    for (const Rate& r : sorted_rates(sequences, /*for_budget=*/true)) {
      expected += r.rate;
      ++rows;
      evaluate();
    }
    if (best_rows < n) {
      return fail(Errc::kInvalidRequest, "the cost curve ends at {} rows, {} sequences need at least as many",
                  curve.max_size(), n);
    }
    plan.rows.assign(sequences.size(), 1);
    const std::vector<Rate> shares = sorted_rates(sequences, /*for_budget=*/false);
    const auto extra = std::min(static_cast<size_t>(best_rows - n), shares.size());
    for (size_t i = 0; i < extra; ++i) ++plan.rows[static_cast<size_t>(shares[i].sequence)];
  }
  for (const int32_t rows : plan.rows) plan.total += rows;
  return plan;
}

std::vector<int32_t> allocate_rows(int32_t total_rows, std::span<const int32_t> remap,
                                   std::span<const float> confidences, int32_t drafts) {
  const auto n = static_cast<int32_t>(remap.size());
  std::vector<float> rates;
  rates.reserve(remap.size() * static_cast<size_t>(drafts));
  for (const int32_t previous : remap) {
    float survival = 1;
    for (int32_t k = 0; k < drafts; ++k) {
      survival = previous < 0 ? 0.0F : survival * confidences[static_cast<size_t>(previous * drafts + k)];
      rates.push_back(survival);
    }
  }
  std::vector<int32_t> order(rates.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return rates[static_cast<size_t>(a)] > rates[static_cast<size_t>(b)]; });
  std::vector<int32_t> out(remap.size(), 1);
  const auto wins = static_cast<size_t>(std::clamp(total_rows - n, 0, static_cast<int32_t>(order.size())));
  for (size_t i = 0; i < wins; ++i) ++out[static_cast<size_t>(order[i] / drafts)];
  return out;
}

int32_t agreed_rows(std::span<const int32_t> totals_of_ranks, std::span<const int32_t> sizes, int32_t num_seqs,
                    int32_t drafts) {
  const int32_t largest =
      totals_of_ranks.empty() ? 0 : *std::max_element(totals_of_ranks.begin(), totals_of_ranks.end());
  const auto tier = std::lower_bound(sizes.begin(), sizes.end(), largest);
  const int32_t size = tier == sizes.end() ? largest : *tier;
  return std::min(size, num_seqs * (1 + drafts));
}

std::vector<float> survivals(std::span<const float> confidences) {
  std::vector<float> out;
  float survival = 1;
  for (const float c : confidences) out.push_back(survival *= c);
  return out;
}

}  // namespace di::engine
