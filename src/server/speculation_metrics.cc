#include "server/speculation_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

namespace di::server {
namespace {

class Text {
 public:
  explicit Text(const std::string& model_name) : labels_(fmt::format("model_name=\"{}\",engine=\"0\"", model_name)) {}

  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <class T>
  void sample(T value, std::string_view more = {}, std::string_view suffix = {}) {
    fmt::format_to(std::back_inserter(out), "{}{}{{{}{}{}}} {}\n", name_, suffix, labels_, more.empty() ? "" : ",",
                   more, value);
  }
  // Rounds by length 0, 1, …
  void lengths(std::string_view name, std::string_view help, std::span<const uint64_t> rounds) {
    family(name, "histogram", help);
    uint64_t total = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < rounds.size(); ++i) {
      total += rounds[i];
      sum += rounds[i] * i;
      sample(total, fmt::format("le=\"{}\"", i), "_bucket");
    }
    sample(total, "le=\"+Inf\"", "_bucket");
    sample(sum, {}, "_sum");
    sample(total, {}, "_count");
  }

  std::string out;

 private:
  std::string labels_;
  std::string_view name_;
};

double ratio(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

}  // namespace

std::string speculation_text(const engine::SpeculationStats& s, const std::string& model_name) {
  Text text(model_name);
  const auto drafts = static_cast<size_t>(std::clamp<int32_t>(s.max_drafts, 1, engine::kMaxDrafts));
  text.family("vllm:spec_decode_num_drafts_total", "counter", "Draft rounds: decode steps of a sequence with drafts.");
  text.sample(s.rounds);
  text.family("vllm:spec_decode_num_draft_tokens_total", "counter", "Draft tokens that were looked at.");
  text.sample(s.verified);
  text.family("vllm:spec_decode_num_accepted_tokens_total", "counter", "Draft tokens that were accepted.");
  text.sample(s.accepted);
  text.family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", "Accepted draft tokens by position.");
  for (size_t k = 0; k < drafts; ++k) text.sample(s.accepted_at[k], fmt::format("position=\"{}\"", k));
  text.family("deepinfer:spec_verified_tokens_per_pos_total", "counter", "Draft tokens looked at by position.");
  for (size_t k = 0; k < drafts; ++k) text.sample(s.verified_at[k], fmt::format("position=\"{}\"", k));
  text.lengths("deepinfer:spec_verify_len", "Drafts whose rows a sequence's step computed.",
               std::span(s.verified_lengths).first(drafts + 1));
  text.lengths("deepinfer:spec_accept_len", "Drafts that a sequence's step accepted.",
               std::span(s.accepted_lengths).first(drafts + 1));
  text.family("deepinfer:spec_speedup", "gauge",
              "Estimated time of the decode steps' tokens without speculation over the time they took.");
  text.sample(ratio(s.plain_seconds, s.speculative_seconds));
  text.family("deepinfer:spec_draft_seconds_total", "counter", "Time of the draft module.");
  text.sample(s.draft_seconds);
  text.family("deepinfer:spec_calibration_error", "gauge",
              "Expected calibration error of the predicted prefix acceptance, 10 bins.");
  text.sample(s.calibration_error);
  text.family("deepinfer:spec_confidence_error", "gauge", "Mean difference of estimated acceptance and confidence.");
  text.sample(ratio(s.accept_error_sum, static_cast<double>(s.accept_error_rows)));
  text.family("deepinfer:spec_cost_slope_ms", "gauge", "Correction of the cost curve per row of a step, in ms.");
  text.sample(s.slope_ms_per_row);
  text.family("deepinfer:spec_paused_steps_total", "counter", "Decode steps without drafts because they did not pay.");
  text.sample(s.unprofitable_steps);
  text.family("deepinfer:spec_active", "gauge", "1 while drafts are verified; the label says why not.");
  text.sample(s.state == engine::SpeculationState::kActive ? 1 : 0, fmt::format("reason=\"{}\"", to_string(s.state)));
  return text.out;
}

}  // namespace di::server
