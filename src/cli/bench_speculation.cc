// deepinfer bench speculation: what drafting is worth on this machine. Tokens per second without drafts, with every
// fixed verify length and with the variable one, in alternating runs of the same requests; then the same policies on
// the recorded confidences and step costs, where no other load of the machine disturbs them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/json.h"
#include "cli/draft_rounds.h"
#include "cli/options.h"
#include "cli/speculation_replay.h"
#include "engine/speculative/planner.h"

namespace di::cli {
namespace {

using engine::SpeculationMode;

struct Measured {
  int64_t tokens = 0;
  double seconds = 0;
  double cpu_seconds = 0;
  uint64_t verified = 0;
  uint64_t accepted = 0;
  double length_sum = 0;  // drafts scheduled
  double accepted_sum = 0;
  double rounds = 0;
  double step_ms = 0;  // of the steps without prompt rows
  int64_t step_tokens = 0;
  engine::SpeculationState state = engine::SpeculationState::kOff;
};

double total(const std::array<uint64_t, engine::kMaxDrafts + 1>& lengths) {
  double sum = 0;
  for (size_t i = 0; i < lengths.size(); ++i) sum += static_cast<double>(i * lengths[i]);
  return sum;
}

void add(Measured& sum, const Played& played) {
  const engine::SpeculationStats& s = played.stats.speculation;
  for (const RecordedRequest& r : played.requests) sum.tokens += r.output_tokens;
  sum.seconds += played.seconds;
  sum.cpu_seconds += played.cpu_seconds;
  sum.verified += s.verified;
  sum.accepted += s.accepted;
  sum.length_sum += total(s.verified_lengths);
  sum.accepted_sum += total(s.accepted_lengths);
  sum.rounds += static_cast<double>(s.rounds);
  for (const engine::DecodeStep& step : played.steps) {
    sum.step_ms += step.forward_ms + step.sample_ms + step.draft_ms;
    sum.step_tokens += step.emitted;
  }
  sum.state = s.state;
}

double ratio(double a, double b) {
  return b > 0 ? a / b : 0;
}

// One row of the tables: figures by policy, then what the variable length is over the best and over the longest.
struct Row {
  std::string name;
  std::vector<double> rates;
  std::vector<double> lengths;
  std::vector<double> accepted;  // negative: not told
};

void print_head(const std::vector<SpeculationPolicy>& all) {
  std::string head = "| requests |";
  std::string rule = "|---|";
  for (const SpeculationPolicy& p : all) {
    head += " " + p.name + " |";
    rule += "---|";
  }
  std::printf("\n%s variable over best fixed | over fixed %d |\n%s---|---|\n", head.c_str(), all[all.size() - 2].length,
              rule.c_str());
  std::fflush(stdout);
}

void print_row(const std::vector<SpeculationPolicy>& all, const Row& row) {
  std::printf("| %s |", row.name.c_str());
  for (size_t i = 0; i < all.size(); ++i) {
    std::printf(" %.0f", row.rates[i]);
    if (all[i].mode != SpeculationMode::kOff) std::printf(" (%.2f, %.2f)", row.lengths[i], row.accepted[i]);
    std::printf(" |");
  }
  const double best = *std::max_element(row.rates.begin(), row.rates.end() - 1);
  std::printf(" %+.1f %% | %+.1f %% |\n", (row.rates.back() / best - 1) * 100,
              (row.rates.back() / row.rates[row.rates.size() - 2] - 1) * 100);
  std::fflush(stdout);
}

// Both rules of speculative/speculator.h at temperature 1, every draft verified.
Result<void> print_rules(DraftModel& model, const std::vector<DraftPrompt>& prompts, DraftModel::Run run) {
  run.temperature = 1;
  run.speculation = {};
  run.speculation.mode = SpeculationMode::kFixed;
  std::printf("\n| temperature 1, every draft verified | drafts looked at that are accepted | accepted a round |");
  for (int32_t k = 1; k <= model.drafts(); ++k) std::printf(" %d |", k);
  std::printf("\n|---|---|---|");
  for (int32_t k = 1; k <= model.drafts(); ++k) std::printf("---|");
  for (const bool seeded : {false, true}) {
    run.seeded = seeded;
    const Played played = DI_TRY(model.play(prompts, run));
    const engine::SpeculationStats& s = played.stats.speculation;
    std::printf("\n| %s | %.1f %% of %llu | %.2f of %llu rounds |",
                seeded ? "seeds of the requests' own" : "rejection sampling",
                100 * ratio(static_cast<double>(s.accepted), static_cast<double>(s.verified)),
                static_cast<unsigned long long>(s.verified),
                ratio(total(s.accepted_lengths), static_cast<double>(s.rounds)),
                static_cast<unsigned long long>(s.rounds));
    for (size_t k = 0; k < static_cast<size_t>(model.drafts()); ++k) {
      std::printf(" %.1f %% |",
                  100 * ratio(static_cast<double>(s.accepted_at[k]), static_cast<double>(s.verified_at[k])));
    }
  }
  std::printf("\n\n");
  return {};
}

// How many requests come with how many others in flight.
struct Traffic {
  std::string name;
  int32_t concurrency = 1;
  std::vector<int32_t> load;  // by request
};

constexpr int32_t kRequestsEach = 3;  // as many times the requests in flight
constexpr int32_t kRequestsLeast = 40;
constexpr int64_t kReplayTokens = 4000;  // of each sequence

std::vector<Traffic> traffic(const std::vector<int32_t>& concurrency) {
  std::vector<Traffic> out;
  for (const int32_t n : concurrency) {
    const auto count = static_cast<size_t>(std::max(kRequestsLeast, kRequestsEach * n));
    out.push_back({fmt::format("{}", n), n, std::vector<int32_t>(count, n)});
  }
  Traffic mixed{"mixed", *std::ranges::max_element(concurrency), {}};
  for (int32_t n = 1; n <= mixed.concurrency; n *= 2)
    mixed.load.insert(mixed.load.end(), static_cast<size_t>(2 * n), n);
  for (int32_t n = mixed.concurrency / 2; n > 0; n /= 2) {
    mixed.load.insert(mixed.load.end(), static_cast<size_t>(2 * n), n);
  }
  out.push_back(std::move(mixed));
  return out;
}

// So many of the prompts, evenly from all groups; again from the first when there are fewer.
std::vector<DraftPrompt> take(const std::vector<DraftPrompt>& prompts, size_t count) {
  std::vector<DraftPrompt> out;
  for (size_t i = 0; i < count; ++i) {
    out.push_back(prompts[count < prompts.size() ? i * prompts.size() / count : i % prompts.size()]);
  }
  return out;
}

bool write_rounds(const std::string& path, std::span<const RecordedRound> rounds) {
  std::ofstream out(path);
  for (const RecordedRound& r : rounds) {
    std::string line;
    JsonWriter w(line);
    w.begin_object().key("accepted").value(r.accepted).key("decided").value(r.decided).key("confidences").begin_array();
    for (const float c : r.confidences) w.value(std::round(static_cast<double>(c) * 1e4) / 1e4);
    w.end_array().end_object();
    out << line << '\n';
  }
  return out.good();
}

class Bench {
 public:
  Bench(const BenchSpeculationOptions& options, DraftModel& model, const std::vector<DraftPrompt>& prompts,
        const engine::CostCurve& curve)
      : options_(options),
        model_(model),
        prompts_(prompts),
        curve_(curve),
        policies_(speculation_policies(model.drafts())) {}

  // Every policy in turn, so many times; keeps rounds and steps of the longest fixed length.
  Result<void> measure() {
    if (!options_.replay_only) {
      std::printf("\nmeasured: tokens per second of %s, prompts included (drafts verified and accepted a round)\n",
                  options_.processor_time ? "processor time" : "time");
      print_head(policies_);
    }
    std::vector<Row> decoding;
    for (const Traffic& t : traffic(options_.concurrency)) {
      const auto prompts = take(prompts_, t.load.size());
      std::vector<Measured> sums(policies_.size());
      for (int32_t i = 0; i < (options_.replay_only ? 1 : options_.repetitions); ++i) {
        for (size_t p = 0; p < policies_.size(); ++p) {
          const bool longest = p + 2 == policies_.size();
          if (options_.replay_only && !longest) continue;
          const Played played = DI_TRY(model_.play(prompts, run(t, policies_[p])));
          add(sums[p], played);
          if (!longest || i > 0) continue;
          steps_.insert(steps_.end(), played.steps.begin(), played.steps.end());
          if (t.load.size() <= recorded_) continue;
          recorded_ = t.load.size();
          rounds_.clear();
          for (const RecordedRequest& r : played.requests) {
            rounds_.insert(rounds_.end(), r.rounds.begin(), r.rounds.end());
          }
        }
      }
      Row row{t.name, {}, {}, {}};
      for (const Measured& m : sums) {
        row.rates.push_back(ratio(static_cast<double>(m.tokens), options_.processor_time ? m.cpu_seconds : m.seconds));
        row.lengths.push_back(ratio(m.length_sum, m.rounds));
        row.accepted.push_back(ratio(m.accepted_sum, m.rounds));
      }
      if (options_.replay_only) continue;
      print_row(policies_, row);
      for (size_t p = 0; p < sums.size(); ++p) {
        row.rates[p] = 1e3 * ratio(static_cast<double>(sums[p].step_tokens), sums[p].step_ms);
      }
      decoding.push_back(std::move(row));
    }
    if (options_.replay_only) return {};
    std::printf("\nthe same runs, only their steps without prompt rows\n");
    print_head(policies_);
    for (const Row& row : decoding) print_row(policies_, row);
    return {};
  }

  std::span<const RecordedRound> rounds() const { return rounds_; }

  void replay() const {
    const int32_t most = *std::ranges::max_element(options_.concurrency);
    const StepCosts here = measured_costs(curve_, steps_);
    std::printf("\nsampling takes %.3f ms a row, drafting for 1, 4, 16, %d sequences %.2f %.2f %.2f %.2f ms\n",
                here.row_ms, most, here.draft_ms(1), here.draft_ms(4), here.draft_ms(16), here.draft_ms(most));
    std::printf("\nreplay of %zu recorded rounds on these costs: tokens per second of decoding\n", rounds_.size());
    print_replay(here, options_.concurrency);
    const std::vector<int32_t> h200 = {1, 8, 64, 256};
    const StepCosts there = h200_costs(h200.back(), model_.drafts());
    std::printf("\nthe same rounds on the floor derived for one of 8 H200 at 32k, rows:ms ");
    for (const int32_t rows : {1, 8, 64, 256, 512, 1024, 1536}) std::printf(" %d:%.2f", rows, there.curve.at(rows)->ms);
    std::printf("; drafting for 1, 8, 64, 256: %.2f %.2f %.2f %.2f ms\n", there.draft_ms(1), there.draft_ms(8),
                there.draft_ms(64), there.draft_ms(256));
    print_replay(there, h200);
    std::printf(
        "\nthe same rounds on steps measured on one H200: 40 layers at real widths, 48 experts, contexts of 1k\n");
    print_replay(h200_measured_costs(), {1, 8, 64, 256});
  }

 private:
  DraftModel::Run run(const Traffic& t, const SpeculationPolicy& policy) const {
    DraftModel::Run out;
    out.temperature = options_.temperature;
    out.max_tokens = options_.max_tokens;
    out.concurrency = t.concurrency;
    out.load = t.load;
    out.speculation.mode = policy.mode;
    out.speculation.length = policy.length;
    out.speculation.curve = curve_;
    return out;
  }

  void print_replay(const StepCosts& costs, const std::vector<int32_t>& concurrency) const {
    std::vector<std::pair<std::string, std::vector<LoadStage>>> loads;
    for (const int32_t n : concurrency) loads.push_back({fmt::format("{}", n), {{n, kReplayTokens * n}}});
    loads.emplace_back("mixed", mixed_load(*std::ranges::max_element(concurrency)));
    print_head(policies_);
    for (const auto& [name, load] : loads) {
      Row row{name, {}, {}, {}};
      for (const SpeculationPolicy& p : policies_) {
        const Replayed r = replay_rounds(rounds_, p, load, costs, model_.drafts());
        row.rates.push_back(r.tokens_per_second);
        row.lengths.push_back(r.mean_length);
        row.accepted.push_back(r.mean_accepted);
      }
      print_row(policies_, row);
    }
  }

  const BenchSpeculationOptions& options_;
  DraftModel& model_;
  const std::vector<DraftPrompt>& prompts_;
  const engine::CostCurve& curve_;
  std::vector<SpeculationPolicy> policies_;
  std::vector<RecordedRound> rounds_;
  size_t recorded_ = 0;  // requests behind rounds_
  std::vector<engine::DecodeStep> steps_;
};

}  // namespace

int bench_speculation(const BenchSpeculationOptions& options) {
  const auto complain = [](const Error& error, int status) {
    std::fprintf(stderr, "deepinfer bench speculation: %s\n", error.message.c_str());
    return status;
  };
  auto model = DraftModel::open(options.folder, options.threads, options.processor_time);
  if (!model) return complain(model.error(), kBadModel);
  const auto prompts = (*model)->read_prompts(options.prompts, options.limit);
  if (!prompts) return complain(prompts.error(), kUsage);
  const int32_t most = *std::ranges::max_element(options.concurrency);
  const auto curve = (*model)->measure_curve(most);
  if (!curve) return complain(curve.error(), kFailed);
  std::printf("cost curve, rows:ms  %s\n", curve->to_string().c_str());
  std::fflush(stdout);

  Bench bench(options, **model, *prompts, *curve);
  if (const auto measured = bench.measure(); !measured) return complain(measured.error(), kFailed);
  if (!options.record.empty() && !write_rounds(options.record, bench.rounds())) {
    return complain(Error{Errc::kInvalidRequest, fmt::format("{}: cannot be written", options.record)}, kFailed);
  }
  bench.replay();

  DraftModel::Run run;
  run.max_tokens = options.max_tokens;
  run.concurrency = std::min(most, 16);
  if (const auto printed = print_rules(**model, *prompts, run); !printed) return complain(printed.error(), kFailed);
  if (const auto fit = fit_and_print(**model, *prompts, run, {0, 1}); !fit) return complain(fit.error(), kFailed);
  return kOk;
}

}  // namespace di::cli
