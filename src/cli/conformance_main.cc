// deepinfer-conformance KIND DIR: runs a folder of cases and prints each failing one with what was expected and found;
// the last line is "N passed, N failed" (design.md §2).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "cli/backend.h"
#include "cli/local_model.h"
#include "codec/conformance/conformance.h"
#include "codec/tokenizer/tokenizer.h"
#include "engine/conformance.h"
#include "kernels/conformance_modules.h"
#include "kernels/cpu/cpu.h"
#include "kv/conformance.h"
#include "model/conformance.h"
#include "model/safetensors.h"
#include "structured/conformance.h"

namespace {

using namespace di;

constexpr const char* kUsageText =
    "usage: deepinfer-conformance KIND DIR [--vectors PATH] [--kernels fast|reference] [--threads N] [--device "
    "cpu|cuda[:N]]\n"
    "KIND: tokenizer, recipe, model, dspark, kv, structured\n";

struct Arguments {
  std::string kind;
  std::string dir;
  std::string vectors;
  std::string device = "cpu";
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
    else if (a == "--device")
      out.device = value();
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

namespace fs = std::filesystem;

// The folder of reference vectors: the one named, else the nearest one above the program, the working directory or DIR.
std::string vectors_root(const Arguments& arguments) {
  if (!arguments.vectors.empty()) return arguments.vectors;
  std::error_code ec;
  for (const fs::path& start : {fs::read_symlink("/proc/self/exe", ec).parent_path(), fs::current_path(ec),
                                fs::absolute(arguments.dir, ec).lexically_normal()}) {
    for (fs::path at = start; at.has_relative_path(); at = at.parent_path()) {
      for (const fs::path& candidate : {at / "vectors", at / "shared" / "vectors"}) {
        if (fs::exists(candidate / "recipe", ec)) return candidate.string();
      }
      if (fs::exists(at / "recipe" / "tokenizer.json", ec)) return at.string();
    }
  }
  return arguments.dir;
}

Totals run_codec(const Arguments& arguments) {
  const std::string root = vectors_root(arguments);
  std::error_code ec;
  const std::string helpers = fs::exists(fs::path(root) / "recipe", ec) ? root + "/recipe" : root;
  const codec::ConformanceResult result = arguments.kind == "tokenizer"
                                              ? codec::run_tokenizer_cases(arguments.dir, helpers)
                                              : codec::run_recipe_cases(arguments.dir, helpers);
  for (const std::string& failure : result.failures) std::printf("FAILED %s\n", failure.c_str());
  for (const auto& [what, n] : result.compared) std::printf("compared: %d %s\n", n, what.c_str());
  return {result.passed, result.failed};
}

void count(Totals& totals, const std::string& name, bool passed, double error, double bound,
           const std::string& detail) {
  passed ? ++totals.passed : ++totals.failed;
  if (!passed) {
    std::printf("FAILED %s: error %.3g, bound %.3g; %s\n", name.c_str(), error, bound, detail.c_str());
  }
}

// The files of single modules that lie in the folder itself.
void run_module_files(const std::string& dir, const kernels::Ops& ops, kernels::Stream& stream, Totals& totals) {
  std::vector<fs::path> files;
  std::error_code ec;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, ec)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("mod_") && name.ends_with(".safetensors")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) {
    const std::string name = path.filename().string();
    const Result<model::Safetensors> file = model::Safetensors::open(path.string());
    if (!file) {
      count(totals, name, false, 0, 0, file.error().message);
      continue;
    }
    std::vector<kernels::NamedTensor> tensors;
    for (const model::TensorView& t : file->tensors()) {
      tensors.push_back({std::string(t.name), std::string(model::to_string(t.dtype)),
                         std::vector<int64_t>(t.shape.begin(), t.shape.end()), t.data, t.bytes});
    }
    const std::vector<kernels::ModuleCheck> checks = kernels::run_module_file(name, tensors, ops, stream);
    for (const kernels::ModuleCheck& c : checks) count(totals, c.name, c.passed, c.error, c.bound, c.detail);
    if (checks.empty()) count(totals, name, false, 0, 0, "no module of this program has tensors of these names");
  }
}

// One count a case: a schema with its instances, or a scenario.
Totals run_structured(const Arguments& arguments) {
  Totals totals;
  const std::string path = vectors_root(arguments) + "/recipe/tokenizer.json";
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  const auto vocabulary = structured::Vocabulary::from_tokenizer_json(text.str());
  if (!vocabulary) {
    std::printf("FAILED %s: %s\n", path.c_str(), vocabulary.error().text().c_str());
    return {0, 1};
  }
  std::map<std::string, structured::SuiteTotals> suites;
  for (const structured::CaseOutcome& o : structured::run_structured_cases(arguments.dir, *vocabulary)) {
    o.passed ? ++totals.passed : ++totals.failed;
    suites[o.suite].add(o);
    for (const std::string& f : o.failures) std::printf("FAILED %s: %s\n", o.id.c_str(), f.c_str());
  }
  for (const auto& [name, suite] : suites) std::printf("%s: %s\n", name.c_str(), suite.text().c_str());
  return totals;
}

Totals run_kv(const Arguments& arguments) {
  Totals totals;
  for (const kv::KvCase& c : kv::run_kv_cases(arguments.dir)) {
    c.passed ? ++totals.passed : ++totals.failed;
    if (!c.passed) std::printf("FAILED %s: %s\n", c.name.c_str(), c.detail.c_str());
  }
  return totals;
}

Totals run_model(const Arguments& arguments) {
  const Result<cli::Backend> backend = cli::open_backend(arguments.device, arguments.threads, arguments.reference);
  if (!backend) {
    std::fprintf(stderr, "deepinfer-conformance: %s\n", backend.error().message.c_str());
    std::exit(backend.error().code == Errc::kUnavailable ? cli::kNoMemory : cli::kUsage);
  }
  const auto texts = [](const std::string& dir) -> Result<std::vector<model::TokenText>> {
    const codec::TokenizerRef tokenizer = DI_TRY(codec::Tokenizer::load(dir));
    return cli::token_texts(*tokenizer);
  };
  Totals totals;
  // The files of single modules are checked on the host's memory.
  if (backend->device->kind() == device::Kind::kHost) {
    run_module_files(arguments.dir, *backend->ops, *backend->stream, totals);
  }
  const model::ConformanceReport report =
      model::run_model_folders(arguments.dir, {*backend->ops, *backend->stream, *backend->device}, texts);
  for (const model::ConformanceCase& c : report.cases) count(totals, c.name, c.passed, c.error, c.bound, c.detail);
  return totals;
}

kernels::Tensor tensor_of(std::vector<float>& values, size_t rows) {
  const auto cols = static_cast<int64_t>(values.size() / rows);
  return {values.data(), kernels::DType::kF32, static_cast<int64_t>(rows), cols, cols};
}

Totals run_dspark(const Arguments& arguments) {
  ThreadPool pool(arguments.threads);
  const kernels::cpu::StreamPtr stream = kernels::cpu::make_stream(pool);
  const kernels::Ops& ops =
      arguments.reference ? kernels::cpu::reference_ops() : kernels::cpu::ops(kernels::cpu::best_isa());
  const auto flatten = [](const std::vector<std::vector<float>>& rows) {
    std::vector<float> out;
    for (const std::vector<float>& row : rows) out.insert(out.end(), row.begin(), row.end());
    return out;
  };
  const auto confidence = [&](const engine::ConfidenceInputs& in) {
    const size_t rows = in.hidden.size();
    std::vector<float> h = flatten(in.hidden);
    std::vector<float> e = flatten(in.embedding);
    std::vector<float> out(rows);
    ops.confidence({.h = tensor_of(h, rows),
                    .e = tensor_of(e, rows),
                    .w = {.data = in.weight.data(),
                          .format = kernels::WeightFormat::kF32,
                          .rows = 1,
                          .cols = static_cast<int64_t>(in.weight.size())},
                    .temperature = in.temperature,
                    .confidence = out.data()},
                   *stream);
    return out;
  };
  Totals totals;
  for (const engine::CaseResult& c : engine::run_dspark_cases(arguments.dir, confidence)) {
    c.failures.empty() ? ++totals.passed : ++totals.failed;
    for (const std::string& f : c.failures) std::printf("FAILED %s: %s\n", c.name.c_str(), f.c_str());
  }
  return totals;
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
  } else if (arguments.kind == "tokenizer" || arguments.kind == "recipe") {
    totals = run_codec(arguments);
  } else if (arguments.kind == "kv") {
    totals = run_kv(arguments);
  } else if (arguments.kind == "dspark") {
    totals = run_dspark(arguments);
  } else if (arguments.kind == "structured") {
    totals = run_structured(arguments);
  } else {
    std::fprintf(stderr, "deepinfer-conformance: no such kind: %s\n%s", arguments.kind.c_str(), kUsageText);
    return 2;
  }
  std::printf("%d passed, %d failed\n", totals.passed, totals.failed);
  return totals.failed == 0 ? 0 : 1;
}
