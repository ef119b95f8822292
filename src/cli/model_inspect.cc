// deepinfer model inspect: what a model folder holds and what it needs, without loading weights.
#include <cstdio>

#include "cli/options.h"
#include "model/inspect.h"

namespace di::cli {

int model_inspect(const InspectOptions& options) {
  model::InspectOptions inspect;
  inspect.plan.context = options.context;
  inspect.plan.sequences = options.sequences;
  inspect.plan.kv_quant = options.kv_quant;
  inspect.json = options.json;
  const Result<std::string> report = model::inspect_folder(options.folder, inspect);
  if (!report) {
    std::fprintf(stderr, "deepinfer model inspect: %s\n", report.error().message.c_str());
    return kBadModel;
  }
  std::fputs(report->c_str(), stdout);
  if (!report->ends_with('\n')) std::fputs("\n", stdout);
  return kOk;
}

}  // namespace di::cli
