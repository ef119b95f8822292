// deepinfer bench speculation: what drafting is worth on this machine. Tokens per second without drafts, with every
// fixed verify length and with the variable one, in alternating runs of the same requests; then the same policies on
// the recorded confidences and the measured cost curve, where no other load of the machine disturbs them.
#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/draft_rounds.h"
#include "cli/options.h"
#include "engine/speculative/planner.h"

namespace di::cli {
namespace {

using engine::SpeculationMode;

struct Policy {
  std::string name;
  SpeculationMode mode = SpeculationMode::kOff;
  int32_t length = 0;
};

std::vector<Policy> policies(int32_t drafts) {
  std::vector<Policy> out = {{"off", SpeculationMode::kOff, 0}};
  for (int32_t k = 1; k <= drafts; ++k) out.push_back({fmt::format("fixed {}", k), SpeculationMode::kFixed, k});
  out.push_back({"variable", SpeculationMode::kVariable, 0});
  return out;
}

// Recorded rounds on the cost curve.
class Replay {
 public:
  Replay(const std::vector<RecordedRequest>& requests, const engine::CostCurve& curve, double draft_ms,
         double draft_ms_per_sequence, int32_t drafts)
      : curve_(curve),
        dense_(curve.dense()),
        draft_ms_(draft_ms),
        draft_ms_per_sequence_(draft_ms_per_sequence),
        drafts_(drafts) {
    for (const RecordedRequest& r : requests) rounds_.insert(rounds_.end(), r.rounds.begin(), r.rounds.end());
  }

  struct Result {
    double tokens_per_ms = 0;
    double mean_rows = 0;
  };

  // load[i]: sequences of step i. Sequence s plays the recorded rounds from its own place on, in order; a round that is
  // verified shorter than recorded gives what it would have given, and the next recorded one follows.
  Result run(const Policy& policy, const std::vector<int32_t>& load) const {
    engine::SpeculationOptions options;
    options.mode = policy.mode;
    options.length = policy.length;
    const int32_t drafts = policy.mode == SpeculationMode::kOff ? 0 : policy.length > 0 ? policy.length : drafts_;
    engine::DraftPlanner planner(options, drafts, curve_);
    std::vector<engine::SequenceConfidences> sequences(static_cast<size_t>(*std::ranges::max_element(load)));
    std::vector<size_t> place(sequences.size());
    for (size_t s = 0; s < place.size(); ++s) place[s] = s * 7919 % rounds_.size();
    bool drafted = false;
    double ms = 0;
    int64_t tokens = 0;
    int64_t all_rows = 0;
    int64_t sequence_steps = 0;
    for (const int32_t n : load) {
      std::vector<engine::SequenceRates> rates;
      for (int32_t s = 0; s < n; ++s) {
        engine::SequenceConfidences& c = sequences[static_cast<size_t>(s)];
        rates.push_back({drafted ? drafts : 0, drafted, 0, 0, c.rates, c.previous});
      }
      const std::vector<int32_t> rows = planner.plan(rates, INT32_MAX);
      const bool propose = planner.propose(n);
      int32_t total = 0;
      int64_t emitted = 0;
      for (int32_t s = 0; s < n; ++s) {
        const auto at = static_cast<size_t>(s);
        const RecordedRound& now = rounds_[place[at]];
        const int32_t scheduled = rows[at] - 1;
        const int32_t accepted = std::min(scheduled, now.accepted);
        total += rows[at];
        emitted += 1 + accepted;
        place[at] = (place[at] + 1) % rounds_.size();
        const std::vector<float> seen(static_cast<size_t>(std::min(scheduled, accepted + 1)), 0.0F);
        std::vector<float> next;
        if (propose)
          next.assign(rounds_[place[at]].confidences.begin(), rounds_[place[at]].confidences.begin() + drafts);
        planner.round_done({at, 0, scheduled, accepted, seen, next}, sequences[at]);
      }
      const double forward = dense_.at(total)->ms;
      const double draft = propose ? draft_ms_ + draft_ms_per_sequence_ * n : 0;
      planner.step_done({n, total, emitted, forward, 0, draft, propose});
      drafted = propose;
      ms += forward + draft;
      tokens += emitted;
      all_rows += total;
      sequence_steps += n;
    }
    return {static_cast<double>(tokens) / ms, static_cast<double>(all_rows) / static_cast<double>(sequence_steps) - 1};
  }

 private:
  std::vector<RecordedRound> rounds_;
  const engine::CostCurve& curve_;
  engine::CostCurve dense_;
  double draft_ms_;
  double draft_ms_per_sequence_;
  int32_t drafts_;
};

std::vector<int32_t> mixed_load(int32_t most) {
  std::vector<int32_t> out;
  for (int32_t cycle = 0; cycle < 6; ++cycle) {
    for (int32_t n = 1; n <= most; n *= 2) out.insert(out.end(), 60, n);
    for (int32_t n = most / 2; n > 1; n /= 2) out.insert(out.end(), 60, n);
  }
  return out;
}

void print_replay(const Replay& replay, const std::vector<Policy>& all, const std::vector<int32_t>& concurrency) {
  std::map<std::string, std::vector<int32_t>> loads;
  std::vector<std::string> order;
  for (const int32_t n : concurrency) {
    order.push_back(fmt::format("{}", n));
    loads[order.back()] = std::vector<int32_t>(2000, n);
  }
  order.emplace_back("mixed");
  loads["mixed"] = mixed_load(*std::ranges::max_element(concurrency));
  std::printf("replay of the recorded rounds on the curve: tokens per second (mean drafts verified)\n%-10s",
              "sequences");
  for (const Policy& p : all) std::printf("%18s", p.name.c_str());
  std::printf("%12s%12s\n", "over best", "over max");
  for (const std::string& name : order) {
    std::printf("%-10s", name.c_str());
    double best = 0;
    double longest = 0;
    double variable = 0;
    for (const Policy& p : all) {
      const Replay::Result r = replay.run(p, loads[name]);
      std::printf("%11.0f (%4.2f)", r.tokens_per_ms * 1e3, r.mean_rows);
      if (p.mode == SpeculationMode::kVariable) variable = r.tokens_per_ms;
      if (p.mode != SpeculationMode::kVariable) best = std::max(best, r.tokens_per_ms);
      if (p.mode == SpeculationMode::kFixed) longest = r.tokens_per_ms;
    }
    std::printf("%+11.1f%%%+11.1f%%\n", (variable / best - 1) * 100, (variable / longest - 1) * 100);
  }
}

struct Measured {
  int64_t tokens = 0;
  double seconds = 0;
  double cpu_seconds = 0;
  engine::SpeculationStats stats;
};

void add(Measured& sum, const Played& played) {
  for (const RecordedRequest& r : played.requests) sum.tokens += r.output_tokens;
  sum.seconds += played.seconds;
  sum.cpu_seconds += played.cpu_seconds;
  sum.stats = played.stats.speculation;
}

double mean_length(const std::array<uint64_t, engine::kMaxDrafts + 1>& lengths) {
  double sum = 0;
  double n = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    sum += static_cast<double>(i * lengths[i]);
    n += static_cast<double>(lengths[i]);
  }
  return n > 0 ? sum / n : 0;
}

// Both rules of speculative/speculator.h at temperature 1, every draft verified.
Result<void> print_rules(DraftModel& model, const std::vector<DraftPrompt>& prompts, DraftModel::Run run) {
  run.temperature = 1;
  run.speculation = {};
  run.speculation.mode = SpeculationMode::kFixed;
  std::printf("temperature 1: part of the drafts looked at that is accepted, and accepted drafts per round\n");
  for (const bool seeded : {false, true}) {
    run.seeded = seeded;
    const Played played = DI_TRY(model.play(prompts, run));
    const engine::SpeculationStats& s = played.stats.speculation;
    std::printf("  %-34s %6.1f %% %6.2f\n", seeded ? "seeds of the requests' own" : "rejection sampling",
                100 * static_cast<double>(s.accepted) / static_cast<double>(std::max<uint64_t>(1, s.verified)),
                mean_length(s.accepted_lengths));
  }
  return {};
}

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
  const std::vector<Policy> all = policies((*model)->drafts());
  const int32_t most = *std::ranges::max_element(options.concurrency);
  const auto curve = (*model)->measure_curve(most);
  if (!curve) return complain(curve.error(), kFailed);
  std::printf("cost curve, rows:ms  %s\n", curve->to_string().c_str());

  DraftModel::Run run;
  run.temperature = options.temperature;
  run.max_tokens = options.max_tokens;
  std::vector<RecordedRequest> recorded;
  std::map<int32_t, double> draft_ms;
  for (const int32_t n : options.concurrency) {
    std::map<std::string, Measured> sums;
    for (int32_t i = 0; i < (options.replay_only ? 1 : options.repetitions); ++i) {
      for (const Policy& p : all) {
        const bool longest = p.mode == SpeculationMode::kFixed && p.length == (*model)->drafts();
        if (options.replay_only && !longest) continue;
        run.concurrency = n;
        run.speculation = {};
        run.speculation.mode = p.mode;
        run.speculation.length = p.length;
        run.speculation.curve = *curve;
        const auto played = (*model)->play(*prompts, run);
        if (!played) return complain(played.error(), kFailed);
        add(sums[p.name], *played);
        if (!longest) continue;
        if (n == options.concurrency.front()) recorded = played->requests;
        draft_ms[n] = played->stats.speculation.draft_seconds * 1e3 /
                      static_cast<double>(std::max<uint64_t>(1, played->stats.steps));
      }
    }
    if (options.replay_only) continue;
    std::printf(
        "%d at once: tokens per second, per processor second; drafts verified and accepted per step, %% accepted\n", n);
    for (const Policy& p : all) {
      const Measured& m = sums[p.name];
      const double rate = m.stats.verified == 0
                              ? 0
                              : 100 * static_cast<double>(m.stats.accepted) / static_cast<double>(m.stats.verified);
      std::printf("  %-9s %8.1f %8.1f %6.2f %6.2f %5.1f  %s\n", p.name.c_str(),
                  static_cast<double>(m.tokens) / m.seconds, static_cast<double>(m.tokens) / m.cpu_seconds,
                  mean_length(m.stats.verified_lengths), mean_length(m.stats.accepted_lengths), rate,
                  std::string(to_string(m.stats.state)).c_str());
    }
    std::fflush(stdout);
  }
  const auto few = *draft_ms.begin();
  const auto many = *draft_ms.rbegin();
  const double slope =
      many.first > few.first ? std::max(0.0, (many.second - few.second) / (many.first - few.first)) : 0;
  const double base = std::max(0.0, few.second - slope * few.first);
  std::printf("drafting takes %.2f ms + %.3f ms per sequence\n", base, slope);
  print_replay(Replay(recorded, *curve, base, slope, (*model)->drafts()), all, options.concurrency);
  run.concurrency = most;
  if (const auto printed = print_rules(**model, *prompts, run); !printed) return complain(printed.error(), kFailed);
  if (const auto fit = fit_and_print(**model, *prompts, run, {0, 1}); !fit) return complain(fit.error(), kFailed);
  return kOk;
}

}  // namespace di::cli
