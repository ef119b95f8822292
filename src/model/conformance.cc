#include "model/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/numeric.h"
#include "model/expected.h"

namespace di::model {
namespace fs = std::filesystem;

int ConformanceReport::passed() const {
  return static_cast<int>(std::count_if(cases.begin(), cases.end(), [](const ConformanceCase& c) { return c.passed; }));
}
int ConformanceReport::failed() const {
  return static_cast<int>(cases.size()) - passed();
}

Result<Expected> Expected::open(const std::string& path, std::string label) {
  return Expected(DI_TRY(Safetensors::open(path)), std::move(label));
}

std::span<const int64_t> Expected::shape(std::string_view name) const {
  const TensorView* view = file_.find(name);
  return view == nullptr ? std::span<const int64_t>{} : view->shape;
}

std::vector<float> Expected::floats(std::string_view name) const {
  const TensorView* view = file_.find(name);
  if (view == nullptr) return {};
  std::vector<float> out(static_cast<size_t>(view->bytes / size_of(view->dtype)));
  for (size_t i = 0; i < out.size(); ++i) {
    if (view->dtype == StoredType::kBf16) {
      Bf16 v;
      std::memcpy(&v, view->data + i * 2, 2);
      out[i] = to_float(v);
    } else if (view->dtype == StoredType::kF32) {
      std::memcpy(&out[i], view->data + i * 4, 4);
    } else {
      out[i] = std::numeric_limits<float>::quiet_NaN();  // fails every comparison
    }
  }
  return out;
}

std::vector<int32_t> Expected::ints(std::string_view name) const {
  const TensorView* view = file_.find(name);
  if (view == nullptr) return {};
  const auto width = static_cast<size_t>(size_of(view->dtype));
  std::vector<int32_t> out(static_cast<size_t>(view->bytes) / width);
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t value = 0;
    std::memcpy(&value, view->data + i * width, width);  // little-endian
    out[i] = static_cast<int32_t>(width == 4 ? static_cast<int32_t>(value) : value);
  }
  return out;
}

std::vector<std::string> Expected::names() const {
  std::vector<std::string> out;
  for (const TensorView& view : file_.tensors()) out.emplace_back(view.name);
  return out;
}

void add_case(ConformanceReport& report, const std::string& name, double error, double bound, std::string detail) {
  report.cases.push_back({name, error, bound, error <= bound, std::move(detail)});
}

void cannot_run(ConformanceReport& report, const std::string& name, const Error& error) {
  add_case(report, name, std::numeric_limits<double>::infinity(), 0.0, error.message);
}

void compare(ConformanceReport& report, const std::string& name, std::span<const float> expected,
             std::span<const float> actual, double bound, double unit) {
  if (expected.size() != actual.size() || expected.empty()) {
    add_case(report, name, std::numeric_limits<double>::infinity(), bound,
             fmt::format("expected {} values, found {}", expected.size(), actual.size()));
    return;
  }
  double worst = 0.0;
  size_t place = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == actual[i]) continue;  // equal infinities too
    double d = std::fabs(static_cast<double>(expected[i]) - static_cast<double>(actual[i]));
    if (!std::isfinite(d)) d = std::numeric_limits<double>::infinity();
    if (d > worst) {
      worst = d;
      place = i;
    }
  }
  add_case(
      report, name, worst / unit, bound,
      fmt::format("element {} of {}: expected {}, found {}", place, expected.size(), expected[place], actual[place]));
}

void compare_exact(ConformanceReport& report, const std::string& name, std::span<const int32_t> expected,
                   std::span<const int32_t> actual) {
  if (expected.size() != actual.size() || expected.empty()) {
    add_case(report, name, std::numeric_limits<double>::infinity(), 0.0,
             fmt::format("expected {} values, found {}", expected.size(), actual.size()));
    return;
  }
  int64_t unequal = 0;
  std::string detail;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == actual[i]) continue;
    if (unequal++ == 0)
      detail = fmt::format("element {} of {}: expected {}, found {}", i, expected.size(), expected[i], actual[i]);
  }
  add_case(report, name, static_cast<double>(unequal), 0.0, detail);
}

double standard_deviation(std::span<const float> values) {
  double sum = 0.0;
  double squares = 0.0;
  for (const float v : values) {
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  const double n = static_cast<double>(std::max<size_t>(values.size(), 1));
  return std::sqrt(std::max(squares / n - (sum / n) * (sum / n), 1e-30));
}

namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool any_name(const Expected& expected, std::string_view part) {
  const std::vector<std::string> names = expected.names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& n) { return contains(n, part); });
}

// The prompts file of the same mode, for files that hold no input ids of their own.
Result<Expected> prompts_beside(const fs::path& folder, bool kv_quant) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() != ".safetensors" || !stem.starts_with("expected")) continue;
    Expected candidate = DI_TRY(Expected::open(entry.path().string(), stem));
    if (any_name(candidate, ".top16_ids") && contains(stem, kv_quant ? "kvq" : "plain")) return candidate;
  }
  return fail(Errc::kNotFound, "{}: no expected file with the prompts' input_ids", folder.string());
}

void run_file(const fs::path& path, const FixtureModel& model, const ConformanceBackend& backend,
              const ConformanceOptions& options, ConformanceReport& report) {
  const std::string stem = path.stem().string();
  const std::string label = path.parent_path().filename().string() + "/" + stem;
  const Result<Expected> opened = Expected::open(path.string(), label);
  if (!opened) return cannot_run(report, label, opened.error());
  const Expected& expected = *opened;
  // Draft rounds and selections carry "_plain" when KV quantisation is off; the layered files say plain or kvq.
  const bool plain = contains(stem, "plain");
  if (expected.has("prefill.logits")) return run_layered(model, backend, expected, !plain, report);
  if (expected.has("trunc_vl.logits_last") || expected.has("trunc_di.logits_last") || expected.has("replay20.logits")) {
    return run_truncated(model, backend, expected, report);
  }
  if (expected.has("draft_logits")) return run_draft_pass(model, backend, expected, report);
  if (expected.has("logit_positions")) return run_v4(model, backend, expected, report);
  if (any_name(expected, ".round.draft_ids"))
    return run_draft_rounds(model, backend, expected, !plain, options, report);
  if (any_name(expected, ".top16_ids")) return run_prompts(model, backend, expected, !plain, options, report);
  if (any_name(expected, ".selection")) {
    const Result<Expected> prompts = prompts_beside(path.parent_path(), !plain);
    if (!prompts) return cannot_run(report, label, prompts.error());
    return run_selections(model, backend, expected, *prompts, !plain, options, report);
  }
  cannot_run(report, label, {Errc::kInvalidRequest, "unknown kind of expected file: none of the known keys is in it"});
}

void run_folder(const fs::path& folder, const ConformanceBackend& backend, const TokenTextLoader& texts,
                const ConformanceOptions& options, ConformanceReport& report) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() == ".safetensors" && stem.starts_with("expected")) files.push_back(entry.path());
  }
  if (files.empty()) return;
  std::sort(files.begin(), files.end());
  const auto model = FixtureModel::load(folder.string(), texts, &backend.device);
  if (!model) return cannot_run(report, folder.filename().string(), model.error());
  for (const fs::path& file : files) run_file(file, **model, backend, options, report);
}

}  // namespace

ConformanceReport run_model_folders(const std::string& dir, const ConformanceBackend& backend,
                                    const TokenTextLoader& texts, const ConformanceOptions& options) {
  ConformanceReport report;
  std::vector<fs::path> folders;
  std::error_code ec;
  if (fs::exists(fs::path(dir) / "config.json", ec)) folders.emplace_back(dir);
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, ec)) {
    if (entry.is_directory() && fs::exists(entry.path() / "config.json")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  for (const fs::path& folder : folders) run_folder(folder, backend, texts, options, report);
  return report;
}

}  // namespace di::model
