#include "cli/common_main.h"

#include <cstdlib>
#include <optional>

#include "cli/command_line.h"

namespace di::cli {
namespace {

// "90s", "5m", "1h", "250ms", or a plain number of seconds, as milliseconds.
std::optional<int64_t> parse_duration(const std::string& text) {
  char* end = nullptr;
  const double n = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double factor = unit == "ms"                  ? 1
                        : unit.empty() || unit == "s" ? 1e3
                        : unit == "m"                 ? 60e3
                        : unit == "h"                 ? 3600e3
                                                      : -1;
  if (end == text.c_str() || factor < 0 || n < 0) return std::nullopt;
  return static_cast<int64_t>(n * factor);
}

}  // namespace

void add_duration(CLI::App& app, const std::string& name, int64_t& target_ms, const std::string& help) {
  const auto set = [&target_ms](const std::string& text) { target_ms = parse_duration(text).value_or(target_ms); };
  const auto check = [](const std::string& text) {
    return parse_duration(text) ? std::string()
                                : "`" + text + "` is no duration; expected a form like 90s, 5m or 250ms";
  };
  app.add_option_function<std::string>(name, set, help)->type_name("DURATION")->check(check);
}

void add_model_folder(CLI::App& app, std::string& folder, bool required) {
  CLI::Option* option =
      app.add_option("model,-m,--model", folder, "Model folder: config.json, *.safetensors, tokenizer.json")
          ->type_name("DIR");
  if (required) option->required();
}

namespace {

void add_reuse_options(CLI::App& app, ModelOptions& o) {
  app.add_option_function<std::string>(
         "--prefix-cache", [&o](const std::string& v) { o.prefix_cache = v == "on"; },
         "Reuse the KV of prompts that begin alike (on)")
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("on|off");
  app.add_flag_function(
      "--enable-prefix-caching,!--no-enable-prefix-caching", [&o](int64_t n) { o.prefix_cache = n > 0; },
      "The same, as vLLM spells it");
  app.add_flag_function(
      "--swa-replay,!--no-swa-replay", [&o](int64_t n) { o.swa_replay = n > 0; },
      "Recompute the last window of a prefix whose sliding window is gone: fast, approximate (on for windows of 128 "
      "and "
      "more)");
  app.add_option_function<uint64_t>(
         "--swa-memory", [&o](const uint64_t& v) { o.swa_memory = v; },
         "Host memory for the sliding windows of known prefixes (a quarter of what is free, 64GiB at most)")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  add_duration(app, "--swa-retention", o.swa_retention_ms, "How long a window is kept after its last use (180s)");
  app.add_option("--prefill-truncation", o.prefill_truncation,
                 "Run only the end of a prompt through the decoder half: compact (leave the other rows out), mask "
                 "(compute and hide them), off (compact for windows of 128 and more)")
      ->check(CLI::IsMember({"off", "mask", "compact"}));
  app.add_option("--truncation-rule", o.truncation_rule,
                 "vl: the boundary layer runs on all rows; di: on the kept ones")
      ->check(CLI::IsMember({"vl", "di"}))
      ->capture_default_str();
  app.add_option("--replay-keep", o.replay_keep, "Rows that truncated prefill keeps: fast (140), lossless, or a number")
      ->capture_default_str();
}

void add_speculation_options(CLI::App& app, ModelOptions& o) {
  app.add_option("--spec", o.spec,
                 "Speculative decoding: dspark verifies as many drafts as pay, N always N of them, off none")
      ->check([](const std::string& v) {
        const bool number = !v.empty() && v.size() <= 2 && v.find_first_not_of("0123456789") == std::string::npos;
        return v == "dspark" || v == "off" || number ? "" : "`" + v + "` is none of dspark, off, or a number of drafts";
      })
      ->type_name("dspark|off|N")
      ->capture_default_str();
  app.add_option("--spec-max-len", o.spec_max_len, "Most drafts of a sequence per step (all that the model makes)")
      ->check(CLI::Range(1, 16));
  app.add_option("--spec-temperature", o.spec_temperature,
                 "Temperatures of the draft module's confidences, one or one per draft (the model folder's)")
      ->delimiter(',')
      ->type_name("T[,T...]");
  app.add_option(
         "--spec-curve-cache", o.spec_curve_cache,
         "Folder of measured step costs, used for an hour (deepinfer in the user's cache folder); none: measure "
         "at every start")
      ->type_name("DIR|none");
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& o) {
  app.add_option("--max-model-len", o.max_model_len,
                 "Context: tokens of prompt and answer together, such as 32768 or 32K (the model's own)")
      ->transform(token_count());
  app.add_option("--max-num-seqs", o.max_num_seqs, "Sequences computed at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", o.max_num_batched_tokens, "Rows per step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--kv-memory", o.kv_memory,
                 "Memory of the KV blocks and state slots, such as 2GiB (planned from the two above)")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  add_reuse_options(app, o);
  app.add_option("--numerics", o.numerics, "exact: fp32 activations; trained: the roundings of training")
      ->check(CLI::IsMember({"exact", "trained"}))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--kv-quant", [&o](const std::string& v) { o.kv_quant = v == "on"; },
         "Store KV in the trained formats (on) or as fp32 (off)")
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("on|off");
  app.add_option_function<std::string>(
         "--async-scheduling", [&o](const std::string& v) { o.async_scheduling = v == "on"; },
         "Schedule the next step while this one is computed (on); the same tokens either way")
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("on|off");
  app.add_option_function<std::string>(
         "--recompute-preempted", [&o](const std::string& v) { o.recompute_preempted = v == "on"; },
         "A sequence that loses its memory is computed again (on) or ends with insufficient_system_resource (off)")
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("on|off");
  add_duration(app, "--max-queue-ageing", o.max_queue_ms,
               "A request gains a traffic class each time it has waited this long (2s)");
  add_duration(app, "--ttft-target", o.ttft_target_ms, "Refuse requests whose first token would take longer (0: none)");
  app.add_option("--peak-tflops", o.peak_tflops,
                 "The device's peak in FP8 equivalents, for the utilisation among the metrics")
      ->check(not_negative());
  app.add_option("--trace", o.trace_file, "Write a Chrome trace of the steps at the end")->type_name("FILE");
  app.add_option("--record-schedule", o.record_schedule, "Write what the scheduler saw and decided, a JSON line a step")
      ->type_name("FILE");
  app.add_option("--threads", o.threads, "Compute threads (all usable cores)")->check(CLI::Range(1, 1024));
  app.add_option("--device", o.device, "Where the model runs: cpu, or an NVIDIA device cuda[:N]")
      ->capture_default_str();
  app.add_option("--served-model-name", o.served_model_names, "Names that requests may give; the first is reported")
      ->delimiter(',')
      ->type_name("NAME");
  add_speculation_options(app, o);
  app.add_option("--ablate", o.ablate,
                 "Switch a part of the model off, to see what it is worth: engram; selection (the newest entries "
                 "instead); candidates (score every entry); candidate-scores (the newest blocks instead)")
      ->check(CLI::IsMember(std::vector<std::string>(kAblations.begin(), kAblations.end())))
      ->type_name("PART")
      ->group("Inspection");
  app.add_option("--engine", o.engine, "real, mock[:KEY=VALUE,…] or scripted:FILE (docs/server.md)")
      ->type_name("ENGINE")
      ->group("Inspection");
  app.add_option("--test-blocks", o.test_blocks, "KV blocks of a mock or scripted engine")
      ->check(above_zero())
      ->group("Inspection");
  app.add_flag("--test-prefill", o.test_prefill,
               "Compute prompts in an engine of their own, in this process, which hands them over")
      ->group("Inspection");
  add_duration(app, "--test-transfer-timeout", o.test_transfer_timeout_ms,
               "From a request's arrival to the end of its hand-over with --test-prefill (300s)");
  app.get_option("--test-transfer-timeout")->group("Inspection");
  app.add_flag("--reference-kernels", o.reference_kernels, "Use the plain operators that define the results (slow)")
      ->group("Inspection");
}

}  // namespace di::cli
