// A file of expected values and the comparison with what was computed: the vocabulary of the conformance_*.cc files.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/conformance.h"
#include "model/fixture.h"
#include "model/safetensors.h"

namespace di::model {

class Expected {
 public:
  static Result<Expected> open(const std::string& path, std::string label);

  const std::string& label() const { return label_; }  // "v41_tiny_a/expected_plain"
  bool has(std::string_view name) const { return file_.find(name) != nullptr; }
  std::span<const int64_t> shape(std::string_view name) const;
  std::vector<float> floats(std::string_view name) const;  // F32 or BF16
  std::vector<int32_t> ints(std::string_view name) const;  // I32, I64 or U8
  std::vector<std::string> names() const;

 private:
  Expected(Safetensors file, std::string label) : file_(std::move(file)), label_(std::move(label)) {}
  Safetensors file_;
  std::string label_;
};

// Appends one case: largest |expected - actual| / unit against the bound. Different sizes, NaN or infinities that do
// not agree are failures.
void compare(ConformanceReport& report, const std::string& name, std::span<const float> expected,
             std::span<const float> actual, double bound, double unit = 1.0);
// Appends one case whose error is the number of unequal elements.
void compare_exact(ConformanceReport& report, const std::string& name, std::span<const int32_t> expected,
                   std::span<const int32_t> actual);
void add_case(ConformanceReport& report, const std::string& name, double error, double bound, std::string detail = {});
void cannot_run(ConformanceReport& report, const std::string& name, const Error& error);

double standard_deviation(std::span<const float> values);

// The kinds of expected files; each appends its cases.
void run_layered(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected, bool kv_quant,
                 ConformanceReport& report);
void run_truncated(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                   ConformanceReport& report);
void run_draft_pass(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                    ConformanceReport& report);
void run_v4(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
            ConformanceReport& report);
void run_prompts(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected, bool kv_quant,
                 const ConformanceOptions& options, ConformanceReport& report);
void run_draft_rounds(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                      bool kv_quant, const ConformanceOptions& options, ConformanceReport& report);
// `prompts` is the file with the input ids of the same folder.
void run_selections(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected,
                    const Expected& prompts, bool kv_quant, const ConformanceOptions& options,
                    ConformanceReport& report);

}  // namespace di::model
