// Expected values of single features on the small models: truncated prefill, bounded replay, one draft pass, and V4.
#include <algorithm>
#include <climits>
#include <map>

#include "model/expected.h"

namespace di::model {
namespace {

std::vector<float> last_row(const std::vector<float>& logits, size_t vocab) {
  return {logits.end() - static_cast<std::ptrdiff_t>(std::min(vocab, logits.size())), logits.end()};
}

// Last-row logits with the decoder half run on the last `keep` rows of the prompt.
void run_truncation(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                    const std::string& key, TruncationRule rule, ConformanceReport& report) {
  const std::vector<int32_t> ids = expected.ints("input_ids");
  const auto n = static_cast<int32_t>(ids.size());
  const std::vector<int32_t> rows = expected.ints(key + ".rows");
  FixtureOptions options;
  options.rule = rule;
  auto run = FixtureRun::create(model, backend, options);
  if (!run) return cannot_run(report, expected.label() + " " + key, run.error());
  const auto logits =
      (*run)->feed(ids, 0, n, n - 1, nullptr, [&](SequenceChunk& chunk) { chunk.keep_begin = rows.front(); });
  if (!logits) return cannot_run(report, expected.label() + " " + key, logits.error());
  compare_exact(report, expected.label() + " " + key + ".rows", rows, (*run)->batch().decoder.positions);
  compare(report, expected.label() + " " + key + ".logits_last", expected.floats(key + ".logits_last"),
          last_row(*logits, static_cast<size_t>(model.config.vocab_size)), 2e-4);
}

// A prefix hit with Block KV but without sliding-window KV: the last W tokens of the hit are computed again (model.md
// §6).
void run_replay(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                const std::string& key, ConformanceReport& report) {
  const std::vector<int32_t> ids = expected.ints("input_ids");
  const std::vector<int32_t> rows = expected.ints(key + ".rows");
  const int32_t hit = rows.front() + model.config.sliding_window;
  auto run = FixtureRun::create(model, backend, {});
  if (!run) return cannot_run(report, expected.label() + " " + key, run.error());
  const auto cold = (*run)->feed(ids, 0, hit, INT_MAX);
  if (!cold) return cannot_run(report, expected.label() + " " + key, cold.error());
  const auto count = static_cast<int32_t>(ids.size()) - rows.front();
  const auto logits = (*run)->feed(ids, rows.front(), count, 0, nullptr, [&](SequenceChunk& chunk) {
    chunk.state_slot = 2;  // nothing is left of the rings
    chunk.window_start = rows.front();
    chunk.block_write_begin = hit;
  });
  if (!logits) return cannot_run(report, expected.label() + " " + key, logits.error());
  compare_exact(report, expected.label() + " " + key + ".rows", rows, (*run)->batch().all.positions);
  compare(report, expected.label() + " " + key + ".logits", expected.floats(key + ".logits"), *logits, 2e-4);
}

}  // namespace

void run_truncated(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                   ConformanceReport& report) {
  if (expected.has("trunc_vl.rows")) run_truncation(model, backend, expected, "trunc_vl", TruncationRule::kVl, report);
  if (expected.has("trunc_di.rows")) run_truncation(model, backend, expected, "trunc_di", TruncationRule::kDi, report);
  for (const std::string& name : expected.names()) {
    if (name.starts_with("replay") && name.ends_with(".rows")) {
      run_replay(model, backend, expected, name.substr(0, name.size() - 5), report);
    }
  }
}

void run_draft_pass(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                    ConformanceReport& report) {
  const std::vector<int32_t> ids = expected.ints("input_ids");
  const auto n = static_cast<int32_t>(ids.size());
  FixtureOptions options;
  options.draft_context = true;
  auto created = FixtureRun::create(model, backend, options);
  if (!created) return cannot_run(report, expected.label(), created.error());
  FixtureRun& run = **created;
  std::map<std::string, std::vector<float>> captured;
  const Tap tap = [&](std::string_view name, int32_t layer, const kernels::Tensor& value) {
    captured[fmt::format("{}.{}", layer - model.config.num_hidden_layers, name)] = to_floats(value);
  };
  const auto logits = run.feed(ids, 0, n, n - 1, &tap);
  if (!logits) return cannot_run(report, expected.label(), logits.error());
  const std::string global = fmt::format("{}.", -1 - model.config.num_hidden_layers);
  const auto hidden = [&](const std::string& key, const std::vector<float>& actual) {
    const std::vector<float> values = expected.floats(key);
    compare(report, expected.label() + " " + key, values, actual, 1e-4, standard_deviation(values));
  };
  hidden("target_features", captured[global + "target_features"]);
  hidden("main", captured[global + "main"]);
  for (int32_t s = 0; s < model.config.num_nextn_predict_layers; ++s) {
    const std::string key = fmt::format("mtp.{}.context_kv", s);
    const std::vector<float>& all = captured[fmt::format("{}.context_kv", s)];
    const auto values = static_cast<std::ptrdiff_t>(expected.floats(key).size());
    hidden(key, {all.end() - std::min(values, static_cast<std::ptrdiff_t>(all.size())), all.end()});
  }

  const int32_t golden = expected.ints("golden").at(0);
  const DraftChunk chunk{.golden = golden, .context_position = n - 1, .state_slot = 1, .window_start = 0};
  const DraftResult draft = run.forward().draft({&chunk, 1}, run.cache(), &tap);
  for (int32_t s = 0; s < model.config.num_nextn_predict_layers; ++s) {
    hidden(fmt::format("mtp.{}.streams", s), captured[fmt::format("{}.streams", s)]);
  }
  hidden("head_hidden", run.floats(draft.head_hidden));
  compare(report, expected.label() + " base_logits", expected.floats("base_logits"), run.floats(draft.base_logits),
          2e-4);
  std::vector<float> corrected;
  std::vector<float> confidences;
  std::vector<int32_t> ids_found;
  int32_t previous = golden;
  for (int32_t k = 0; k < draft.block; ++k) {
    float confidence = 0.F;
    const std::vector<float> row = run.floats(run.forward().draft_step(draft, k, &previous, 1.F, &confidence));
    previous = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    corrected.insert(corrected.end(), row.begin(), row.end());
    confidences.push_back(confidence);
    ids_found.push_back(previous);
  }
  compare(report, expected.label() + " draft_logits", expected.floats("draft_logits"), corrected, 2e-4);
  compare(report, expected.label() + " confidence", expected.floats("confidence"), confidences, 1e-5);
  compare_exact(report, expected.label() + " draft_ids", expected.ints("draft_ids"), ids_found);
}

void run_v4(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
            ConformanceReport& report) {
  const std::vector<int32_t> ids = expected.ints("input_ids");
  const std::vector<int32_t> positions = expected.ints("logit_positions");
  const auto n = static_cast<int32_t>(ids.size());
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  auto created = FixtureRun::create(model, backend, {});
  if (!created) return cannot_run(report, expected.label(), created.error());
  FixtureRun& run = **created;
  std::map<int32_t, std::vector<float>> streams;
  const Tap tap = [&](std::string_view name, int32_t layer, const kernels::Tensor& value) {
    if (name == "streams") streams[layer] = to_floats(value);
  };
  const auto logits = run.feed(ids, 0, n, 0, &tap);
  if (!logits) return cannot_run(report, expected.label(), logits.error());
  const auto at_positions = [&](const std::vector<float>& values) {
    const size_t width = values.size() / static_cast<size_t>(n);
    std::vector<float> out;
    for (const int32_t p : positions) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(p) * width);
      out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(width));
    }
    return out;
  };
  compare(report, expected.label() + " logits", expected.floats("logits"), at_positions(*logits), 2e-4);
  // hidden.l are the streams that enter layer l, i.e. those after layer l-1; the last one is the normed hidden state.
  for (int32_t l = 1; l <= model.config.num_hidden_layers; ++l) {
    const std::string key = fmt::format("hidden.{}", l);
    const std::vector<float> values = expected.floats(key);
    if (values.empty()) continue;
    const bool last = l == model.config.num_hidden_layers;
    compare(report, expected.label() + " " + key, values, at_positions(last ? run.hidden() : streams[l - 1]), 1e-4,
            standard_deviation(values));
  }
  if (!expected.has("decode_logits_cached")) return;
  const auto steps = static_cast<int32_t>(expected.shape("decode_logits_cached")[0]);
  auto second = FixtureRun::create(model, backend, {});
  if (!second) return cannot_run(report, expected.label(), second.error());
  std::vector<float> decoded;
  for (int32_t p = n - steps; p <= n; ++p) {
    const int32_t begin = p == n - steps ? 0 : p - 1;
    const auto step = (*second)->feed(ids, begin, p - begin, p - 1);
    if (!step) return cannot_run(report, expected.label(), step.error());
    if (p > n - steps) decoded.insert(decoded.end(), step->begin(), step->end());
  }
  compare(report, expected.label() + " decode_logits_cached", expected.floats("decode_logits_cached"),
          last_row(decoded, vocab * static_cast<size_t>(steps)), 2e-4);
}

}  // namespace di::model
