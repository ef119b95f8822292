// deepinfer model calibrate: temperatures of the draft module's confidences from the model's own draft rounds on a file
// of requests (speculative.md §5), and what they are worth on requests that the fit did not see.
#include <cstdio>
#include <fstream>

#include "base/json.h"
#include "cli/draft_rounds.h"
#include "cli/options.h"

namespace di::cli {
namespace {

using engine::CalibrationRound;

double mean_ece(const std::vector<CalibrationRound>& rounds, const std::vector<double>& temperatures) {
  double sum = 0;
  const auto metrics = engine::calibration_metrics(rounds, temperatures);
  for (const engine::PrefixMetrics& m : metrics) sum += m.ece;
  return metrics.empty() ? 0 : sum / static_cast<double>(metrics.size());
}

std::string list(const std::vector<double>& values, const char* format) {
  std::string out;
  for (const double v : values) out += (out.empty() ? "" : " ") + fmt::format(fmt::runtime(format), v);
  return out;
}

std::vector<double> eces(const std::vector<CalibrationRound>& rounds, const std::vector<double>& temperatures) {
  std::vector<double> out;
  for (const engine::PrefixMetrics& m : engine::calibration_metrics(rounds, temperatures)) out.push_back(m.ece * 100);
  return out;
}

struct Split {
  std::vector<RecordedRequest> fit;
  std::vector<RecordedRequest> held_out;
};

Split split(const std::vector<RecordedRequest>& requests) {
  Split out;
  for (size_t i = 0; i < requests.size(); ++i) (i % 2 == 0 ? out.fit : out.held_out).push_back(requests[i]);
  return out;
}

void print_acceptance(const Played& played, double temperature) {
  struct Sum {
    int64_t rounds = 0;
    int64_t accepted = 0;
    int64_t whole = 0;  // rounds that the end of the text did not cut
    int64_t accepted_of_whole = 0;
  };
  std::vector<std::pair<std::string, Sum>> groups;
  Sum all;
  for (const RecordedRequest& r : played.requests) {
    if (groups.empty() || groups.back().first != r.group) groups.emplace_back(r.group, Sum{});
    for (const RecordedRound& round : r.rounds) {
      for (Sum* s : {&groups.back().second, &all}) {
        ++s->rounds;
        s->accepted += round.accepted;
        if (round.decided < static_cast<int32_t>(round.confidences.size())) continue;
        ++s->whole;
        s->accepted_of_whole += round.accepted;
      }
    }
  }
  groups.emplace_back("all", all);
  std::printf("temperature %.2g: accepted drafts per round, and per round not cut by the end\n", temperature);
  for (const auto& [name, s] : groups) {
    const auto mean = [](int64_t sum, int64_t n) {
      return n > 0 ? static_cast<double>(sum) / static_cast<double>(n) : 0.0;
    };
    std::printf("  %-14s %6lld rounds %6.2f   %6lld whole %6.2f\n", name.c_str(), static_cast<long long>(s.rounds),
                mean(s.accepted, s.rounds), static_cast<long long>(s.whole), mean(s.accepted_of_whole, s.whole));
  }
}

bool write_file(const std::string& path, const CalibrationFit& fit, const CalibrateOptions& options) {
  std::string text;
  JsonWriter w(text);
  w.begin_object().key("temperatures").begin_array();
  for (const double t : fit.temperatures) w.value(t);
  w.end_array().key("rounds").value(fit.rounds).key("request_temperatures").begin_array();
  for (const double t : options.temperatures) w.value(t);
  w.end_array().key("ece_before").value(fit.before).key("ece_after").value(fit.after).end_object();
  std::ofstream out(path);
  out << text << '\n';
  return out.good();
}

}  // namespace

Result<CalibrationFit> fit_and_print(DraftModel& model, const std::vector<DraftPrompt>& prompts, DraftModel::Run run,
                                     const std::vector<double>& request_temperatures) {
  const std::vector<double> ones(static_cast<size_t>(model.drafts()), 1.0);
  run.speculation.mode = engine::SpeculationMode::kFixed;
  run.confidence_temperatures = ones;
  std::vector<CalibrationRound> fit;
  std::vector<std::pair<double, std::vector<CalibrationRound>>> held_out;
  for (const double temperature : request_temperatures) {
    run.temperature = temperature;
    const Played played = DI_TRY(model.play(prompts, run));
    print_acceptance(played, temperature);
    const Split halves = split(played.requests);
    for (CalibrationRound& r : calibration_rounds(halves.fit, ones)) fit.push_back(std::move(r));
    held_out.emplace_back(temperature, calibration_rounds(halves.held_out, ones));
  }
  if (fit.empty()) return fail(Errc::kInvalidRequest, "no draft rounds: the answers are too short");
  CalibrationFit out;
  out.rounds = fit.size();
  out.temperatures = engine::fit_temperatures(fit, engine::temperature_grid());
  std::printf("temperatures fitted on %zu rounds of every other request: %s\n", out.rounds,
              list(out.temperatures, "{:.2f}").c_str());
  for (const auto& [temperature, rounds] : held_out) {
    std::printf("temperature %.2g, %zu other rounds: calibration error by position, %%\n", temperature, rounds.size());
    std::printf("  before  %s  mean %.2f\n  after   %s  mean %.2f\n", list(eces(rounds, ones), "{:.2f}").c_str(),
                mean_ece(rounds, ones) * 100, list(eces(rounds, out.temperatures), "{:.2f}").c_str(),
                mean_ece(rounds, out.temperatures) * 100);
    out.before += mean_ece(rounds, ones) / static_cast<double>(held_out.size());
    out.after += mean_ece(rounds, out.temperatures) / static_cast<double>(held_out.size());
  }
  return out;
}

int model_calibrate(const CalibrateOptions& options) {
  const auto complain = [](const std::string& message, int status) {
    std::fprintf(stderr, "deepinfer model calibrate: %s\n", message.c_str());
    return status;
  };
  auto model = DraftModel::open(options.folder, options.threads);
  if (!model) return complain(model.error().message, kBadModel);
  const auto prompts = (*model)->read_prompts(options.prompts, options.limit);
  if (!prompts) return complain(prompts.error().message, kUsage);

  DraftModel::Run run;
  run.concurrency = options.concurrency;
  run.max_tokens = options.max_tokens;
  const auto fit = fit_and_print(**model, *prompts, run, options.temperatures);
  if (!fit) return complain(fit.error().message, kFailed);
  std::printf("mean calibration error before %.2f %%, after %.2f %%\n", fit->before * 100, fit->after * 100);
  if (fit->after >= fit->before) {
    std::printf("the temperatures do not help: nothing written\n");
    return kOk;
  }
  const std::string path = options.out.empty() ? options.folder + "/" + engine::kCalibrationFile : options.out;
  if (!write_file(path, *fit, options)) {
    return complain(fmt::format("{}: cannot be written", path), kFailed);
  }
  std::printf("written to %s\n", path.c_str());
  return kOk;
}

}  // namespace di::cli
