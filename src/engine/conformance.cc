#include "engine/conformance.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "base/rng.h"
#include "engine/conformance_json.h"
#include "engine/context_parallel.h"
#include "engine/sampler.h"
#include "engine/speculative/calibration.h"
#include "engine/speculative/handover.h"
#include "engine/speculative/verify.h"
#include "engine/speculative/verify_length.h"

namespace di::engine {
namespace {

using namespace cases;

constexpr double kLogprobTolerance = 1e-4;
constexpr double kProbabilityTolerance = 1e-5;

// Collects what differs in one case.
class Differences {
 public:
  template <class T>
  void equal(const std::string& what, const T& found, const T& expected) {
    if (found != expected)
      failures.push_back(fmt::format("{}: expected {}, found {}", what, show(expected), show(found)));
  }
  void near(const std::string& what, double found, double expected, double tolerance) {
    if (!(std::abs(found - expected) <= tolerance)) {
      failures.push_back(fmt::format("{}: expected {}, found {}", what, expected, found));
    }
  }
  template <class T>
  void all_near(const std::string& what, const std::vector<T>& found, const std::vector<double>& expected,
                double tolerance) {
    equal(what + " (number of values)", found.size(), expected.size());
    for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
      near(fmt::format("{}[{}]", what, i), static_cast<double>(found[i]), expected[i], tolerance);
    }
  }

  std::vector<std::string> failures;

 private:
  template <class T>
  static std::string show(const T& value) {
    return fmt::format("{}", value);
  }
  template <class T>
  static std::string show(const std::vector<T>& values) {
    std::string out;
    for (const T& v : values) out += (out.empty() ? "[" : ", ") + show(v);
    return out.empty() ? "[]" : out + "]";
  }
};

using Report = std::vector<CaseResult>;

void add(Report& report, std::string name, Differences differences) {
  report.push_back({std::move(name), std::move(differences.failures)});
}

void run_rng(const Json& root, const std::string& file, Report& report) {
  for (size_t i = 0; const Json& c : items(root, "cases")) {
    Differences d;
    const uint64_t s = seed(member(c, "seed_u64"));
    const auto position = static_cast<int64_t>(number(member(c, "position")));
    d.equal("u_draw", counter_uniform(s, position, DrawKind::kSample), number(member(c, "u_draw")));
    d.equal("u_residual", counter_uniform(s, position, DrawKind::kResidual), number(member(c, "u_residual")));
    d.equal("u_accept", counter_uniform(s, position, DrawKind::kAccept), number(member(c, "u_accept")));
    add(report, fmt::format("{} case {}", file, i++), std::move(d));
  }
}

void run_sampler(const Json& root, const std::string& file, Report& report) {
  for (size_t i = 0; const Json& c : items(root, "cases")) {
    Differences d;
    const auto logits = rows<float>(c, "logits");
    const auto temperature = numbers<double>(c, "temperature");
    const auto top_p = numbers<double>(c, "top_p");
    const auto top_k = numbers<int32_t>(c, "top_k");
    const auto position = numbers<int64_t>(c, "position");
    const Json& expected = member(c, "expected");
    const auto survivors = rows<int32_t>(expected, "survivors");
    const auto tokens = numbers<int32_t>(expected, "token");
    const auto drafted = numbers<int32_t>(expected, "token_draft_stream");
    const auto logprobs = numbers<double>(expected, "token_logprob");
    Sampler sampler;
    for (size_t r = 0; r < std::min(logits.size(), tokens.size()); ++r) {
      const uint64_t s = seed(items(c, "seed_u64").at(r));
      if (!sampler.transform(logits[r], {temperature[r], top_p[r], top_k[r], 0})) {
        d.failures.push_back(fmt::format("row {}: no finite logits", r));
        continue;
      }
      const std::vector<int32_t> kept(sampler.survivors().begin(), sampler.survivors().end());
      const int32_t token = sampler.draw(counter_uniform(s, position[r], DrawKind::kSample));
      const int32_t draft = sampler.draw(counter_uniform(s + kDraftSeedOffset, position[r], DrawKind::kSample));
      d.equal(fmt::format("survivors[{}]", r), kept, survivors[r]);
      d.equal(fmt::format("token[{}]", r), token, tokens[r]);
      d.equal(fmt::format("token_draft_stream[{}]", r), draft, drafted[r]);
      const auto at = std::lower_bound(kept.begin(), kept.end(), token) - kept.begin();
      d.near(fmt::format("token_logprob[{}]", r),
             static_cast<double>(sampler.survivor_logprobs()[static_cast<size_t>(at)]), logprobs[r], kLogprobTolerance);
    }
    d.equal("rows", logits.size(), tokens.size());
    add(report, fmt::format("{} case {}", file, i++), std::move(d));
  }
}

// The step of one case, its rows packed request by request.
struct VerifyCase {
  std::vector<int32_t> seqlens_q;
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<float>> draft_logprobs;
  std::vector<int32_t> drafts;
  std::vector<int32_t> golden;  // per row, -1 = none
  std::vector<double> confidence;
  std::vector<double> temperature;
  std::vector<double> top_p;
  std::vector<int32_t> top_k;
  std::vector<int64_t> position;
  std::vector<uint64_t> seeds;
  std::vector<std::vector<int32_t>> stops;
  size_t nextn = 0;
  bool complete = false;
};

VerifyCase read_verify_case(const Json& c) {
  VerifyCase out;
  const Json& request = member(c, "request");
  out.seqlens_q = numbers<int32_t>(c, "seqlens_q");
  out.logits = rows<float>(c, "logits");
  out.draft_logprobs = rows<float>(c, "draft_logprobs");
  out.drafts = numbers<int32_t>(c, "draft_token_ids");
  out.golden = numbers<int32_t>(c, "golden");
  out.confidence = numbers<double>(c, "confidence");
  out.temperature = numbers<double>(request, "temperature");
  out.top_p = numbers<double>(request, "top_p");
  out.top_k = numbers<int32_t>(request, "top_k");
  out.position = numbers<int64_t>(request, "position");
  for (const Json& s : items(request, "seed_u64")) out.seeds.push_back(seed(s));
  out.stops = rows<int32_t>(request, "stop_token_ids");
  out.nextn = static_cast<size_t>(integer(c, "nextn"));
  const size_t n = out.seqlens_q.size();
  size_t total = 0;
  for (const int32_t q : out.seqlens_q) total += static_cast<size_t>(std::max(q, 0));
  if (out.golden.empty()) out.golden.assign(total, -1);
  if (out.top_k.empty()) out.top_k.assign(n, -1);
  if (out.top_p.empty()) out.top_p.assign(n, 1.0);
  if (out.stops.empty()) out.stops.resize(n);
  out.complete = out.logits.size() == total && out.draft_logprobs.size() == total && out.drafts.size() == total &&
                 out.golden.size() == total && out.confidence.size() == total && out.temperature.size() == n &&
                 out.top_p.size() == n && out.top_k.size() == n && out.position.size() == n && out.seeds.size() == n &&
                 out.stops.size() == n;
  return out;
}

// Everything the reference reports of a step.
struct VerifyOutcome {
  std::vector<int32_t> is_verify;
  std::vector<int64_t> row_position;
  std::vector<int32_t> raw_accept;
  std::vector<int32_t> row_token;
  std::vector<int32_t> effective_accept;
  std::vector<int32_t> is_final;
  std::vector<float> accept_prob;
  std::vector<int32_t> accepted;
  std::vector<int32_t> sampled;
  std::vector<int32_t> verified_token;
  std::vector<int32_t> generated_per_step;
  std::vector<int32_t> verified_per_step;
  std::vector<int32_t> emitted_stop;
  double confidence_error = 0;
};

RowVerdict verify_case_row(const VerifyCase& c, size_t request, size_t row, bool fresh, int64_t position,
                           Sampler& sampler, Verifier& verifier) {
  DI_CHECK(sampler.transform(c.logits[row], {c.temperature[request], c.top_p[request], c.top_k[request], 0}),
           "the logits of row {} are not finite", row);
  RowVerdict verdict{true, -1, 1.0F};
  if (fresh) {
    verdict.token = sampler.draw(counter_uniform(c.seeds[request], position, DrawKind::kSample));
  } else {
    Distribution q;
    for (size_t id = 0; id < c.draft_logprobs[row].size(); ++id) q.ids.push_back(static_cast<int32_t>(id));
    q.logprobs = c.draft_logprobs[row];
    verdict = verifier.verify(sampler, q, c.drafts[row], c.seeds[request], position);
  }
  return verdict;
}

VerifyOutcome verify_step(const VerifyCase& c) {
  VerifyOutcome out;
  out.generated_per_step.assign(c.nextn, 0);
  out.verified_per_step.assign(c.nextn, 0);
  Sampler sampler;
  Verifier verifier;
  for (size_t r = 0, row = 0; r < c.seqlens_q.size(); ++r) {
    bool live = true;
    bool stop = false;
    int32_t accepted = 0;
    const auto is_stop = [&](int32_t token) {
      return std::find(c.stops[r].begin(), c.stops[r].end(), token) != c.stops[r].end();
    };
    for (int32_t i = 0; i < c.seqlens_q[r]; ++i, ++row) {
      const bool fresh = i == c.seqlens_q[r] - 1;
      const int64_t position = row_position(c.position[r], i);
      const RowVerdict v = verify_case_row(c, r, row, fresh, position, sampler, verifier);
      // A forced token takes the row, whatever the draws say; the draft stands if it is that token.
      const bool forced = c.golden[row] >= 0;
      const int32_t token = forced ? c.golden[row] : v.token;
      const bool taken = live && !fresh && (forced ? c.drafts[row] == token : v.accepted);
      const bool final = live && !taken;
      out.is_verify.push_back(fresh ? 0 : 1);
      out.row_position.push_back(position);
      out.raw_accept.push_back(v.accepted ? 1 : 0);
      out.row_token.push_back(token);
      out.effective_accept.push_back(taken ? 1 : 0);
      out.is_final.push_back(final ? 1 : 0);
      out.accept_prob.push_back(v.accept_prob);
      out.verified_token.push_back(taken ? token : -1);
      if (taken || final) stop = stop || is_stop(token);
      if (final) out.sampled.push_back(token);
      if (taken) ++accepted;
      if (!fresh) {
        out.confidence_error += std::abs(static_cast<double>(v.accept_prob) - c.confidence[row]);
        if (static_cast<size_t>(i) < c.nextn) {
          ++out.verified_per_step[static_cast<size_t>(i)];
          out.generated_per_step[static_cast<size_t>(i)] += taken ? 1 : 0;
        }
      }
      live = taken;
    }
    out.accepted.push_back(accepted);
    out.emitted_stop.push_back(stop ? 1 : 0);
  }
  return out;
}

void run_verification(const Json& root, const std::string& file, Report& report) {
  for (size_t i = 0; const Json& c : items(root, "cases")) {
    Differences d;
    const VerifyCase step = read_verify_case(c);
    const Json& e = member(c, "expected");
    if (!step.complete) {
      d.failures.emplace_back("members are missing or of unequal length");
    } else {
      const VerifyOutcome found = verify_step(step);
      d.equal("is_verify", found.is_verify, numbers<int32_t>(e, "is_verify"));
      d.equal("row_position", found.row_position, numbers<int64_t>(e, "row_position"));
      d.equal("raw_accept", found.raw_accept, numbers<int32_t>(e, "raw_accept"));
      d.equal("row_token", found.row_token, numbers<int32_t>(e, "row_token"));
      d.equal("effective_accept", found.effective_accept, numbers<int32_t>(e, "effective_accept"));
      d.equal("is_final", found.is_final, numbers<int32_t>(e, "is_final"));
      d.all_near("accept_prob", found.accept_prob, numbers<double>(e, "accept_prob"), kProbabilityTolerance);
      d.equal("accepted_per_request", found.accepted, numbers<int32_t>(e, "accepted_per_request"));
      d.equal("sampled_token", found.sampled, numbers<int32_t>(e, "sampled_token"));
      d.equal("verified_token", found.verified_token, numbers<int32_t>(e, "verified_token"));
      d.equal("num_generated_per_step", found.generated_per_step, numbers<int32_t>(e, "num_generated_per_step"));
      d.equal("num_verified_per_step", found.verified_per_step, numbers<int32_t>(e, "num_verified_per_step"));
      d.near("confidence_error", found.confidence_error, number(member(e, "confidence_error")), kLogprobTolerance);
      d.equal("emitted_stop", found.emitted_stop, numbers<int32_t>(e, "emitted_stop"));
    }
    add(report, fmt::format("{} case {}", file, i++), std::move(d));
  }
}

void run_scheduler(const Json& root, const std::string& file, Report& report) {
  const Json& input = member(root, "input");
  std::vector<CurvePoint> points;
  for (const Json& p : items(input, "decode_curve_size_ms")) {
    const auto pair = numbers<double>(p);
    if (pair.size() == 2) points.push_back({static_cast<int32_t>(pair[0]), pair[1]});
  }
  const Result<CostCurve> curve = CostCurve::create(std::move(points));
  if (!curve) return report.push_back({file, {curve.error().message}});
  RuntimeCost runtime;
  for (const Json& u : items(input, "runtime_updates_numseqs_graph_forwardms_samplerms")) {
    const auto v = numbers<double>(u);
    if (v.size() != 4) continue;
    const auto size = static_cast<int32_t>(v[1]);
    const CurvePoint* point = curve->at(size);
    if (point != nullptr) runtime.add(static_cast<int32_t>(v[0]), size, size, point->ms, v[2], v[3]);
  }
  const auto expected_q = rows<int32_t>(member(root, "expected"), "seqlens_q");
  const auto expected_total = numbers<int32_t>(member(root, "expected"), "total_q");
  for (size_t b = 0; const Json& batch : items(input, "batches")) {
    Differences d;
    std::vector<std::vector<float>> rates;
    for (const Json& s : items(batch)) {
      rates.push_back(numbers<float>(s, "accept_rates"));
      rates.push_back(numbers<float>(s, "prev_accept_rates"));
    }
    std::vector<SequenceRates> sequences;
    for (size_t i = 0; const Json& s : items(batch)) {
      sequences.push_back({integer(s, "num_drafts"), number(member(s, "has_draft_info")) != 0,
                           integer(s, "process_cnt"), integer(s, "schedule_cnt"), rates[2 * i], rates[2 * i + 1]});
      ++i;
    }
    const Result<VerifyPlan> plan = plan_lengths(sequences, *curve, runtime);
    if (!plan) {
      d.failures.push_back(plan.error().message);
    } else {
      d.equal("seqlens_q", plan->rows, b < expected_q.size() ? expected_q[b] : std::vector<int32_t>{});
      d.equal("total_q", plan->total, b < expected_total.size() ? expected_total[b] : -1);
    }
    add(report, fmt::format("{} batch {}", file, b++), std::move(d));
  }
}

void run_algorithm_1(const Json& root, const std::string& file, Report& report) {
  for (size_t i = 0; const Json& c : items(root, "cases")) {
    Differences d;
    const auto confidence = rows<double>(c, "confidence");
    const auto sps = numbers<double>(c, "sps");
    for (const bool early : {true, false}) {
      const char* key = early ? "expected_early_stop" : "expected_global";
      const Json* expected = c.find_value(key);
      if (expected == nullptr) continue;
      const VerifyLengths found = search_lengths(confidence, sps, early);
      d.equal(std::string(key) + ".lengths", found.lengths, numbers<int32_t>(*expected, "lengths"));
      const double theta = number(member(*expected, "theta"));
      d.near(std::string(key) + ".theta", found.theta, theta, 1e-9 * std::max(1.0, std::abs(theta)));
    }
    const std::string* name = member(c, "name").if_string();
    add(report, fmt::format("{} {}", file, name != nullptr ? *name : fmt::format("case {}", i)), std::move(d));
    ++i;
  }
}

void run_allocation(const Json& root, const std::string& file, Report& report) {
  for (size_t i = 0; const Json& c : items(root, "cases")) {
    Differences d;
    const auto confidence = rows<float>(c, "prev_confidence");
    std::vector<float> flat;
    for (const std::vector<float>& row : confidence) flat.insert(flat.end(), row.begin(), row.end());
    const auto remap = numbers<int32_t>(c, "remap");
    const int32_t drafts = confidence.empty() ? 0 : static_cast<int32_t>(confidence.front().size());
    const bool inside =
        std::all_of(remap.begin(), remap.end(), [&](int32_t j) { return j < static_cast<int32_t>(confidence.size()); });
    if (!inside) {
      d.failures.emplace_back("remap names a row that prev_confidence does not have");
    } else {
      d.equal("seqlens_q", allocate_rows(integer(c, "total_q"), remap, flat, drafts),
              numbers<int32_t>(c, "expected_seqlens_q"));
    }
    add(report, fmt::format("{} case {}", file, i++), std::move(d));
  }
}

void run_handover(const Json& root, const std::string& file, Report& report) {
  const auto flatten = [](const std::vector<std::vector<int32_t>>& values) {
    std::vector<int32_t> out;
    for (const std::vector<int32_t>& row : values) out.insert(out.end(), row.begin(), row.end());
    return out;
  };
  for (size_t i = 0; const Json& c : items(root, "cases")) {
    Differences d;
    const auto accepted = numbers<int32_t>(c, "prev_accepted");
    const auto sampled = numbers<int32_t>(c, "prev_sampled");
    const auto drafts = flatten(rows<int32_t>(c, "prev_drafts"));
    const auto remap = numbers<int32_t>(c, "remap");
    const auto seqlens_q = numbers<int32_t>(c, "seqlens_q");
    const StepOutputs previous{accepted, sampled, drafts, integer(c, "nextn")};
    d.equal("seqlens_k", correct_lengths(numbers<int32_t>(c, "seqlens_k_before"), seqlens_q, remap, previous),
            numbers<int32_t>(member(c, "expected"), "seqlens_k"));
    d.equal("input_ids", gather_tokens(seqlens_q, remap, flatten(rows<int32_t>(c, "fresh_tokens")), previous),
            numbers<int32_t>(member(c, "expected"), "input_ids"));
    add(report, fmt::format("{} case {}", file, i++), std::move(d));
  }
}

void run_buckets(const Json& root, const std::string& file, Report& report) {
  for (const Json& c : items(root, "cases")) {
    Differences d;
    const int32_t max = integer(c, "max");
    const int32_t interval = integer(c, "interval", 8);
    d.equal("sizes", step_sizes(max, interval), numbers<int32_t>(c, "expected"));
    add(report, fmt::format("{} max {} interval {}", file, max, interval), std::move(d));
  }
}

void run_mirror(const Json& root, const std::string& file, Report& report) {
  for (size_t i = 0; const Json& c : items(root, "cases")) {
    const auto q = numbers<int32_t>(c, "seqlens_q");
    const auto k = numbers<int32_t>(c, "seqlens_k");
    const auto ratios = numbers<int32_t>(c, "ratios");
    const int32_t ranks = integer(c, "cp_size", 1);
    for (const Json& e : items(c, "expected")) {
      Differences d;
      const int32_t rank = integer(e, "rank");
      const MirrorShare share = mirror_share(q, k, ranks, rank, ratios);
      d.equal("mirror_index", share.rows, numbers<int32_t>(e, "mirror_index"));
      d.equal("reverse_index", mirror_inverse(q, ranks), numbers<int32_t>(e, "reverse_index"));
      d.equal("ks", share.key_begin, rows<int32_t>(e, "ks"));
      d.equal("ke", share.key_end, rows<int32_t>(e, "ke"));
      add(report, fmt::format("{} case {} rank {}", file, i, rank), std::move(d));
    }
    ++i;
  }
  for (size_t i = 0; const Json& c : items(root, "replay_boundary")) {
    Differences d;
    const BoundaryExchange found =
        boundary_exchange(numbers<int32_t>(c, "seqlens_q"), numbers<int32_t>(c, "keep_lens"), integer(c, "cp_size", 1));
    const Json& e = member(c, "expected");
    d.equal("contrib_per_rank", found.rows_of_rank, rows<int32_t>(e, "contrib_per_rank"));
    d.equal("gathered_reverse", found.inverse, numbers<int32_t>(e, "gathered_reverse"));
    d.equal("contrib_pad_len", found.padded_rows, integer(e, "contrib_pad_len"));
    add(report, fmt::format("{} replay_boundary {}", file, i++), std::move(d));
  }
}

void compare_metrics(const Json& c, const std::vector<PrefixMetrics>& found, Differences& d) {
  const Json::Array& expected = items(c, "expected_metrics");
  d.equal("positions", found.size(), expected.size());
  PrefixMetrics mean{.auc = 0};
  for (size_t k = 0; k < std::min(found.size(), expected.size()); ++k) {
    const auto near = [&](const char* key, double value) {
      d.near(fmt::format("expected_metrics[{}].{}", k, key), value, number(member(expected[k], key)), 1e-6);
    };
    near("total_weight", found[k].weight);
    near("ece", found[k].ece);
    near("auc", found[k].auc);
    near("brier", found[k].brier);
    near("pred_mean", found[k].predicted_mean);
    near("target_mean", found[k].observed_mean);
    const double share = 1.0 / static_cast<double>(found.size());
    mean.ece += found[k].ece * share;
    mean.auc += found[k].auc * share;
    mean.brier += found[k].brier * share;
    mean.predicted_mean += found[k].predicted_mean * share;
    mean.observed_mean += found[k].observed_mean * share;
  }
  const Json& summary = member(c, "expected_summary");
  d.near("ece_mean", mean.ece, number(member(summary, "ece_mean")), 1e-6);
  d.near("auc_mean", mean.auc, number(member(summary, "auc_mean")), 1e-6);
  d.near("brier_mean", mean.brier, number(member(summary, "brier_mean")), 1e-6);
  d.near("pred_mean", mean.predicted_mean, number(member(summary, "pred_mean")), 1e-6);
  d.near("target_mean", mean.observed_mean, number(member(summary, "target_mean")), 1e-6);
}

std::vector<double> eces(const std::vector<PrefixMetrics>& metrics) {
  std::vector<double> out;
  for (const PrefixMetrics& m : metrics) out.push_back(m.ece);
  return out;
}

void run_calibration(const Json& root, const std::string& file, Report& report) {
  for (size_t i = 0; const Json& c : items(root, "cases")) {
    Differences d;
    const auto logits = rows<float>(c, "logits");
    const auto labels = rows<float>(c, "prefix_labels");
    std::vector<CalibrationRound> rounds;
    for (size_t r = 0; r < std::min(logits.size(), labels.size()); ++r) rounds.push_back({logits[r], labels[r]});
    const size_t positions = rounds.empty() ? 0 : rounds.front().logits.size();
    const bool regular = std::all_of(rounds.begin(), rounds.end(), [&](const CalibrationRound& r) {
      return r.logits.size() == positions && r.prefix_labels.size() == positions;
    });
    if (positions == 0 || !regular) {
      d.failures.emplace_back("logits and prefix_labels are not rows of equal length");
    } else {
      const CalibrationBins bins{integer(c, "num_bins", 10), integer(c, "num_fine_bins", 200)};
      const auto before = calibration_metrics(rounds, std::vector<double>(positions, 1.0), bins);
      compare_metrics(c, before, d);
      const Json& sts = member(c, "sts");
      const auto temperatures = fit_temperatures(rounds, numbers<double>(sts, "grid"), bins);
      d.all_near("sts.temperatures", temperatures, numbers<double>(sts, "temperatures"), 1e-9);
      d.all_near("sts.ece_before", eces(before), numbers<double>(sts, "ece_before"), 1e-6);
      d.all_near("sts.ece_after", eces(calibration_metrics(rounds, temperatures, bins)),
                 numbers<double>(sts, "ece_after"), 1e-6);
    }
    add(report, fmt::format("{} case {}", file, i++), std::move(d));
  }
}

void run_confidence(const Json& root, const std::string& file, const ConfidenceHead& head, Report& report) {
  const Json* tolerance = root.find_value("tolerance");
  for (size_t g = 0; const Json& group : items(root, "groups")) {
    ConfidenceInputs inputs{rows<float>(group, "hidden"), rows<float>(group, "markov_emb"),
                            numbers<float>(group, "weight"), 1};
    const size_t width =
        inputs.hidden.empty() || inputs.embedding.empty() ? 0 : inputs.hidden[0].size() + inputs.embedding[0].size();
    for (size_t i = 0; const Json& c : items(group, "cases")) {
      Differences d;
      inputs.temperature = static_cast<float>(number(member(c, "temperature")));
      if (width == 0 || inputs.weight.size() != width || inputs.hidden.size() != inputs.embedding.size()) {
        d.failures.emplace_back("hidden, markov_emb and weight do not fit each other");
      } else {
        d.all_near("confidence", head(inputs), numbers<double>(c, "expected"),
                   tolerance == nullptr ? kLogprobTolerance : number(*tolerance));
      }
      add(report, fmt::format("{} group {} case {}", file, g, i++), std::move(d));
    }
    ++g;
  }
}

void run_file(const Json& root, const std::string& file, const ConfidenceHead& head, Report& report) {
  using Runner = void (*)(const Json&, const std::string&, Report&);
  static const std::map<std::string, Runner, std::less<>> kRunners = {
      {"counter_rng", run_rng},
      {"transform_and_sample", run_sampler},
      {"verification", run_verification},
      {"host_verify_length_scheduler", run_scheduler},
      {"paper_algorithm_1", run_algorithm_1},
      {"device_verify_length_allocation", run_allocation},
      {"async_handover", run_handover},
      {"graph_buckets", run_buckets},
      {"context_parallel_mirror", run_mirror},
      {"calibration_metrics_and_sts", run_calibration},
  };
  const std::string* function = member(root, "function").if_string();
  if (function == nullptr) function = member(root, "algorithm").if_string();
  const size_t before = report.size();
  if (function == nullptr) {
    report.push_back({file, {"no member `function` names what the cases are of"}});
  } else if (*function == "confidence_head") {
    run_confidence(root, file, head, report);
  } else if (const auto it = kRunners.find(*function); it != kRunners.end()) {
    it->second(root, file, report);
  } else {
    report.push_back({file, {fmt::format("unknown function {}", *function)}});
  }
  if (report.size() == before) report.push_back({file, {"the file holds no cases"}});
}

}  // namespace

std::vector<CaseResult> run_dspark_cases(const std::string& dir, const ConfidenceHead& confidence_head) {
  Report report;
  std::vector<std::filesystem::path> files;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ec)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) report.push_back({dir, {"no case files (*.json)"}});
  for (const std::filesystem::path& path : files) {
    const std::string name = path.stem().string();
    const Result<Json> root = parse_json_file(path.string());
    if (!root) {
      report.push_back({name, {root.error().message}});
    } else {
      run_file(*root, name, confidence_head, report);
    }
  }
  return report;
}

}  // namespace di::engine
