// Expected values of the trained model: logits of prompts and greedy steps, draft rounds, selections. Tolerances are
// those of the fixture's README: without KV quantisation everything is tight; with it a value on a rounding border may
// move a row, so the rule is a share of rows, each against its own measured spread.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "model/expected.h"

namespace di::model {
namespace {

// Prompt ids "pNN" that hold the given key, ascending.
std::vector<std::string> prompts_with(const Expected& expected, std::string_view key) {
  std::vector<std::string> out;
  for (const std::string& name : expected.names()) {
    if (name.ends_with(key)) out.push_back(name.substr(0, name.size() - key.size()));
  }
  return out;
}

double log_sum_exp(std::span<const float> row) {
  double top = -1e300;
  for (const float v : row) top = std::max(top, static_cast<double>(v));
  double sum = 0.0;
  for (const float v : row) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Largest deviation of the stored ids' logits and of logsumexp.
double row_error(std::span<const float> row, std::span<const int32_t> ids, std::span<const float> values, double lse) {
  double worst = std::fabs(log_sum_exp(row) - lse);
  for (size_t i = 0; i < ids.size(); ++i) {
    worst = std::max(worst,
                     std::fabs(static_cast<double>(row[static_cast<size_t>(ids[i])]) - static_cast<double>(values[i])));
  }
  return std::isfinite(worst) ? worst : 1e30;
}

// Prompt and greedy steps: the prompt in one piece, then the stored prefix token by token.
Result<std::vector<float>> prompt_logits(FixtureRun& run, std::span<const int32_t> ids,
                                         std::span<const int32_t> positions, int32_t n_prompt) {
  std::vector<float> logits = DI_TRY(run.feed(ids, 0, n_prompt, positions.front()));
  for (const int32_t p : positions) {
    if (p < n_prompt) continue;
    const std::vector<float> step = DI_TRY(run.feed(ids, p, 1, p));
    logits.insert(logits.end(), step.begin(), step.end());
  }
  return logits;
}

struct RowTally {
  int64_t rows = 0;
  int64_t outside = 0;  // beyond 0.02 + 4·spread
  std::vector<double> errors;
};

void run_prompt(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                const std::string& id, bool kv_quant, RowTally& tally, ConformanceReport& report) {
  const std::string label = expected.label() + " " + id;
  std::vector<int32_t> ids = expected.ints(id + ".input_ids");
  const auto n_prompt = static_cast<int32_t>(ids.size());
  const std::vector<int32_t> greedy = expected.ints(id + ".greedy_ids");
  const std::vector<int32_t> positions = expected.ints(id + ".positions");
  ids.insert(ids.end(), greedy.begin(), greedy.end());
  FixtureOptions options;
  options.kv_quant = kv_quant;
  options.max_tokens = static_cast<int32_t>(ids.size());
  auto run = FixtureRun::create(model, backend, options);
  if (!run) return cannot_run(report, label, run.error());
  const auto logits = prompt_logits(**run, ids, positions, n_prompt);
  if (!logits) return cannot_run(report, label, logits.error());

  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  const std::vector<int32_t> top_ids = expected.ints(id + ".top16_ids");
  const std::vector<float> top_values = expected.floats(id + ".top16_values");
  const std::vector<float> lse = expected.floats(id + ".logsumexp");
  const std::vector<float> spread = expected.floats(id + ".spread");
  const std::vector<float> full = expected.floats(id + ".logits");
  if (logits->size() != positions.size() * vocab) {
    return cannot_run(
        report, label,
        {Errc::kInternal, fmt::format("expected {} rows, found {}", positions.size(), logits->size() / vocab)});
  }
  double worst = 0.0;
  int64_t wrong_ids = 0;
  std::string detail;
  for (size_t r = 0; r < positions.size(); ++r) {
    const std::span<const float> row = std::span(*logits).subspan(r * vocab, vocab);
    const std::span<const float> values = std::span(top_values).subspan(r * 16, 16);
    double error = row_error(row, std::span(top_ids).subspan(r * 16, 16), values, static_cast<double>(lse[r]));
    if (!full.empty()) {
      for (size_t v = 0; v < vocab; ++v) {
        error = std::max(error, std::fabs(static_cast<double>(row[v]) - static_cast<double>(full[r * vocab + v])));
      }
    }
    const double s = kv_quant ? static_cast<double>(spread[r]) : 0.0;
    tally.rows += 1;
    tally.errors.push_back(error);
    tally.outside += error > 0.02 + 4.0 * s ? 1 : 0;
    if (error > worst) worst = error;
    const double gap = static_cast<double>(values[0]) - static_cast<double>(values[1]);
    const double decided = kv_quant ? 0.1 + 4.0 * s : 1e-3;
    if (gap > decided && argmax(row) != top_ids[r * 16]) {
      if (wrong_ids++ == 0)
        detail = fmt::format("position {}: expected {}, found {}", positions[r], top_ids[r * 16], argmax(row));
    }
  }
  add_case(report, label + " greedy ids", static_cast<double>(wrong_ids), 0.0, detail);
  if (!kv_quant) add_case(report, label + " logits", worst, 2e-4);
  if (kv_quant && n_prompt == 1) add_case(report, label + " logits", worst, 1e-4);
}

}  // namespace

void run_prompts(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected, bool kv_quant,
                 const ConformanceOptions& options, ConformanceReport& report) {
  RowTally tally;
  for (const std::string& id : prompts_with(expected, ".top16_ids")) {
    if (expected.shape(id + ".input_ids")[0] > options.max_prompt) continue;
    run_prompt(model, backend, expected, id, kv_quant, tally, report);
  }
  if (!kv_quant || tally.errors.empty()) return;
  std::nth_element(tally.errors.begin(), tally.errors.begin() + static_cast<std::ptrdiff_t>(tally.errors.size() / 2),
                   tally.errors.end());
  add_case(report, expected.label() + " rows beyond 0.02 + 4 spread (share)",
           static_cast<double>(tally.outside) / static_cast<double>(tally.rows), 0.05);
  add_case(report, expected.label() + " median of row errors", tally.errors[tally.errors.size() / 2], 1e-2);
}

namespace {

struct DraftTally {
  std::vector<double> logit_errors;
  double confidence = 0.0;
  int64_t wrong_ids = 0;
  int64_t confidence_outside = 0;
  int64_t pairs = 0;
  std::string detail;
};

// One stored round: base and corrected logits by their top 8, ids where the gap decides, confidence.
void compare_round(FixtureRun& run, const Expected& expected, const std::string& key, size_t round, int32_t golden,
                   int32_t context, bool kv_quant, DraftTally& tally) {
  const DraftChunk chunk{.golden = golden, .context_position = context, .state_slot = 1, .window_start = 0};
  const DraftResult draft = run.forward().draft({&chunk, 1}, run.cache());
  const std::vector<float> base = run.floats(draft.base_logits);
  const auto vocab = static_cast<size_t>(draft.base_logits.cols);
  const auto block = static_cast<size_t>(draft.block);
  const auto base_ids = expected.ints(key + "base_top8_ids");
  const auto base_values = expected.floats(key + "base_top8_values");
  const auto base_lse = expected.floats(key + "base_logsumexp");
  const auto ids = expected.ints(key + "corrected_top8_ids");
  const auto values = expected.floats(key + "corrected_top8_values");
  const auto lse = expected.floats(key + "corrected_logsumexp");
  const auto drafts = expected.ints(key + "draft_ids");
  const auto confidences = expected.floats(key + "confidence");
  int32_t previous = golden;
  for (size_t k = 0; k < block; ++k) {
    const size_t i = round * block + k;
    float confidence = 0.F;
    const std::vector<float> row =
        run.floats(run.forward().draft_step(draft, static_cast<int32_t>(k), &previous, 1.F, &confidence));
    double error = row_error(std::span(base).subspan(k * vocab, vocab), std::span(base_ids).subspan(i * 8, 8),
                             std::span(base_values).subspan(i * 8, 8), static_cast<double>(base_lse[i]));
    error = std::max(error, row_error(row, std::span(ids).subspan(i * 8, 8), std::span(values).subspan(i * 8, 8),
                                      static_cast<double>(lse[i])));
    tally.pairs += 1;
    tally.logit_errors.push_back(error);
    const double deviation = std::fabs(static_cast<double>(confidence) - static_cast<double>(confidences[i]));
    tally.confidence = std::max(tally.confidence, deviation);
    tally.confidence_outside += deviation > 0.02 ? 1 : 0;
    const double gap = static_cast<double>(values[i * 8]) - static_cast<double>(values[i * 8 + 1]);
    if (gap > (kv_quant ? 0.5 : 1e-3) && argmax(row) != drafts[i]) {
      if (tally.wrong_ids++ == 0)
        tally.detail = fmt::format("{}round {} step {}: expected {}, found {}", key, round, k, drafts[i], argmax(row));
    }
    previous = drafts[i];  // the stored prefix, not our own
  }
}

}  // namespace

void run_draft_rounds(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                      bool kv_quant, const ConformanceOptions& options, ConformanceReport& report) {
  DraftTally tally;
  for (const std::string& id : prompts_with(expected, ".round.draft_ids")) {
    const std::string label = expected.label() + " " + id;
    const std::vector<int32_t> tokens = expected.ints(id + ".tokens");
    const int32_t n_prompt = expected.ints(id + ".n_prompt").at(0);
    if (n_prompt > options.max_prompt) continue;
    const std::vector<int32_t> contexts = expected.ints(id + ".round.context_position");
    const std::vector<int32_t> golden = expected.ints(id + ".round.golden");
    FixtureOptions fixture;
    fixture.kv_quant = kv_quant;
    fixture.draft_context = true;
    fixture.max_tokens = static_cast<int32_t>(tokens.size());
    auto run = FixtureRun::create(model, backend, fixture);
    if (!run) {
      cannot_run(report, label, run.error());
      continue;
    }
    std::vector<float> features;
    std::vector<float> main;
    const Tap tap = [&](std::string_view name, int32_t, const kernels::Tensor& value) {
      if (name == "target_features") features = to_floats(value);
      if (name == "main") main = to_floats(value);
    };
    int32_t done = 0;
    for (size_t r = 0; r < contexts.size(); ++r) {
      const int32_t upto = contexts[r] + 1;
      const auto fed = (*run)->feed(tokens, done, upto - done, upto - 1, r == 0 ? &tap : nullptr);
      if (!fed) {
        cannot_run(report, label, fed.error());
        break;
      }
      done = upto;
      compare_round(**run, expected, id + ".round.", r, golden[r], contexts[r], kv_quant, tally);
    }
    if (!kv_quant && expected.has(id + ".first.main")) {
      const auto tail = [](const std::vector<float>& all, size_t n) {
        return std::vector<float>(all.end() - static_cast<std::ptrdiff_t>(std::min(n, all.size())), all.end());
      };
      const auto want_features = expected.floats(id + ".first.target_features");
      const auto want_main = expected.floats(id + ".first.main");
      compare(report, label + " first.target_features", want_features, tail(features, want_features.size()), 5e-4);
      compare(report, label + " first.main", want_main, tail(main, want_main.size()), 1e-4);
    }
  }
  if (tally.pairs == 0) return;
  add_case(report, expected.label() + " draft ids", static_cast<double>(tally.wrong_ids), 0.0, tally.detail);
  if (kv_quant) {
    const auto outside =
        std::count_if(tally.logit_errors.begin(), tally.logit_errors.end(), [](double e) { return e > 0.2; });
    add_case(report, expected.label() + " draft logits beyond 0.2 (share)",
             static_cast<double>(outside) / static_cast<double>(tally.pairs), 0.05);
    add_case(report, expected.label() + " confidence beyond 0.02 (share)",
             static_cast<double>(tally.confidence_outside) / static_cast<double>(tally.pairs), 0.05);
  } else {
    add_case(report, expected.label() + " draft logits",
             *std::max_element(tally.logit_errors.begin(), tally.logit_errors.end()), 2e-4);
    add_case(report, expected.label() + " confidence", tally.confidence, 1e-5);
  }
}

namespace {

std::vector<int32_t> row_of(const std::vector<float>& values, size_t row, size_t columns) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < columns; ++i) {
    const auto v = static_cast<int32_t>(values[row * columns + i]);
    if (v >= 0) out.push_back(v);
  }
  return out;
}

std::vector<int32_t> row_of(const std::vector<int32_t>& values, size_t row, size_t columns) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < columns; ++i) {
    if (values[row * columns + i] >= 0) out.push_back(values[row * columns + i]);
  }
  return out;
}

}  // namespace

void run_selections(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                    const Expected& prompts, bool kv_quant, const ConformanceOptions& options,
                    ConformanceReport& report) {
  std::set<std::string> ids;
  for (const std::string& name : expected.names()) ids.insert(name.substr(0, name.find('.')));
  for (const std::string& id : ids) {
    const std::vector<int32_t> tokens = prompts.ints(id + ".input_ids");
    if (static_cast<int64_t>(tokens.size()) > options.max_prompt) continue;
    const auto n = static_cast<int32_t>(tokens.size());
    FixtureOptions fixture;
    fixture.kv_quant = kv_quant;
    fixture.max_tokens = n;
    auto run = FixtureRun::create(model, backend, fixture);
    if (!run || tokens.empty()) {
      cannot_run(report, expected.label() + " " + id, run ? Error{Errc::kNotFound, "no input_ids"} : run.error());
      continue;
    }
    std::map<int32_t, std::vector<float>> selected;
    std::vector<float> blocks;
    const Tap tap = [&](std::string_view name, int32_t layer, const kernels::Tensor& value) {
      if (name == "topk") selected[layer] = to_floats(value);
      if (name == "candidates") blocks = to_floats(value);
    };
    // The last four rows alone: the tap would otherwise carry every row's scores.
    const auto head = (*run)->feed(tokens, 0, n - 4, n);
    const auto last = (*run)->feed(tokens, n - 4, 4, n - 4, &tap);
    if (!head || !last) {
      cannot_run(report, expected.label() + " " + id, head ? last.error() : head.error());
      continue;
    }
    for (const int32_t layer : model.config.index_source_layer_ids) {
      const std::string key = fmt::format("{}.layers.{}.", id, layer);
      const std::vector<int32_t> want = expected.ints(key + "selection");
      const std::vector<float> margin = expected.floats(key + "margin");
      const auto columns = static_cast<size_t>(expected.shape(key + "selection")[1]);
      int64_t worst = 0;
      for (size_t r = 0; r < 4; ++r) {
        if (!kv_quant && static_cast<double>(margin[r]) < 5e-5) continue;
        const std::vector<int32_t> a = row_of(want, r, columns);
        const std::vector<int32_t> b = row_of(selected[layer], r, static_cast<size_t>(model.config.index_topk));
        std::vector<int32_t> common;
        std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
        worst = std::max(worst, static_cast<int64_t>(std::max(a.size(), b.size()) - common.size()));
      }
      // kvq: at least 120 of 128 in common; plain: all.
      add_case(report, expected.label() + " " + key + "selection", static_cast<double>(worst), kv_quant ? 8.0 : 0.0);
    }
    const std::string key = fmt::format("{}.layers.{}.", id, model.config.candidate_source_layer_id);
    if (!expected.has(key + "candidate_blocks") || kv_quant) continue;
    const std::vector<int32_t> want = expected.ints(key + "candidate_blocks");
    const std::vector<float> margin = expected.floats(key + "candidate_margin");
    const auto columns = static_cast<size_t>(expected.shape(key + "candidate_blocks")[1]);
    int64_t unequal = 0;
    for (size_t r = 0; r < 4; ++r) {
      if (static_cast<double>(margin[r]) < 5e-5) continue;
      const auto per_row = static_cast<size_t>(model.config.candidate_topk_blocks);
      std::vector<int32_t> found = row_of(blocks, r, per_row);
      if (blocks[r * per_row] == -2.F) {  // every block
        const int32_t visible = n - 4 + static_cast<int32_t>(r) + 1;
        for (int32_t b = 0; b * model.config.candidate_block_size < visible; ++b) found.push_back(b);
      }
      unequal += row_of(want, r, columns) == found ? 0 : 1;
    }
    add_case(report, expected.label() + " " + key + "candidate_blocks", static_cast<double>(unequal), 0.0);
  }
}

}  // namespace di::model
