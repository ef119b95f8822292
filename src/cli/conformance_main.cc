// deepinfer-conformance KIND DIR: runs a folder of cases and prints each failing one with what was expected and found;
// the last line is "N passed, N failed" (design.md §2).
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "cli/local_model.h"
#include "codec/tokenizer/tokenizer.h"
#include "kernels/cpu/cpu.h"
#include "model/conformance.h"

namespace {

using namespace di;

constexpr const char* kUsageText =
    "usage: deepinfer-conformance KIND DIR [--vectors PATH] [--kernels fast|reference] [--threads N]\n"
    "KIND: model\n";

struct Arguments {
  std::string kind;
  std::string dir;
  std::string vectors;
  bool reference = false;
  int threads = 0;
};

bool parse(int argc, char** argv, Arguments& out) {
  std::vector<std::string> positional;
  for (int i = 1; i < argc; ++i) {
    const std::string_view a = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (a == "--vectors")
      out.vectors = value();
    else if (a == "--kernels")
      out.reference = value() == "reference";
    else if (a == "--threads")
      out.threads = std::atoi(value().c_str());
    else if (a.starts_with("--"))
      return false;
    else
      positional.emplace_back(a);
  }
  if (positional.size() != 2) return false;
  out.kind = positional[0];
  out.dir = positional[1];
  return true;
}

struct Totals {
  int passed = 0;
  int failed = 0;
};

Totals run_model(const Arguments& arguments) {
  ThreadPool pool(arguments.threads);
  const kernels::cpu::StreamPtr stream = kernels::cpu::make_stream(pool);
  const std::unique_ptr<device::Device> device = device::make_host_device();
  const kernels::Ops& ops =
      arguments.reference ? kernels::cpu::reference_ops() : kernels::cpu::ops(kernels::cpu::best_isa());
  const auto texts = [](const std::string& dir) -> Result<std::vector<model::TokenText>> {
    const codec::TokenizerRef tokenizer = DI_TRY(codec::Tokenizer::load(dir));
    return cli::token_texts(*tokenizer);
  };
  const model::ConformanceReport report = model::run_model_folders(arguments.dir, {ops, *stream, *device}, texts);
  for (const model::ConformanceCase& c : report.cases) {
    if (!c.passed)
      std::printf("FAILED %s: error %.3g, bound %.3g; %s\n", c.name.c_str(), c.error, c.bound, c.detail.c_str());
  }
  return {report.passed(), report.failed()};
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fputs(kUsageText, stderr);
    return 2;
  }
  Totals totals;
  if (arguments.kind == "model") {
    totals = run_model(arguments);
  } else {
    std::fprintf(stderr, "deepinfer-conformance: no such kind: %s\n%s", arguments.kind.c_str(), kUsageText);
    return 2;
  }
  std::printf("%d passed, %d failed\n", totals.passed, totals.failed);
  return totals.failed == 0 ? 0 : 1;
}
