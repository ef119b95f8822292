// Series about KV and about steps (kv-cache.md §10, server.md §10.3).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "server/server_metrics.h"

namespace di::server {
namespace {

// Histograms that the engine keeps by itself.
class HistogramText {
 public:
  void family(std::string_view name, std::string_view help) {
    name_ = name;
    fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} histogram\n", name, help, name);
  }
  void series(std::string_view labels, std::span<const double> bounds, std::span<const uint64_t> counts, double sum) {
    uint64_t total = 0;
    const std::string_view comma = labels.empty() ? "" : ",";
    for (size_t i = 0; i < counts.size(); ++i) {
      total += counts[i];
      const std::string bound = i < bounds.size() ? fmt::format("{}", bounds[i]) : "+Inf";
      fmt::format_to(std::back_inserter(out), "{}_bucket{{{}{}le=\"{}\"}} {}\n", name_, labels, comma, bound, total);
    }
    const std::string braces = labels.empty() ? std::string() : fmt::format("{{{}}}", labels);
    fmt::format_to(std::back_inserter(out), "{}_count{} {}\n{}_sum{} {}\n", name_, braces, total, name_, braces, sum);
  }
  void series(std::string_view labels, const engine::StepTime& of) {
    series(labels, engine::kStepTimeBounds, of.counts, of.sum);
  }
  void series(std::string_view labels, const kv::Ages& of) { series(labels, kv::kAgeBounds, of.counts, of.sum); }

  std::string out;

 private:
  std::string_view name_;
};

}  // namespace

std::string ServerMetrics::engine_histograms_text() const {
  const engine::EngineApi* engine = engine_.load();
  const engine::EngineStats s = engine == nullptr ? engine::EngineStats{} : engine->stats();
  const std::string labels = fmt::format("model_name=\"{}\",engine=\"0\"", model_name_);
  HistogramText text;
  text.family("vllm:iteration_tokens_total", "Rows of a step.");
  text.series(labels, engine::kIterationTokenBounds, s.iteration_tokens, s.iteration_tokens_sum);
  text.family("vllm:kv_block_lifetime_seconds", "Evicted KV blocks: time since they were filled.");
  text.series(labels, s.block_lives.lifetime);
  text.family("vllm:kv_block_idle_before_evict_seconds", "Evicted KV blocks: time since a sequence had them.");
  text.series(labels, s.block_lives.idle);
  text.family("vllm:kv_block_reuse_gap_seconds", "KV blocks that a sequence takes again: time since another had them.");
  text.series(labels, s.block_lives.reuse_gap);
  text.family("deepinfer:step_seconds",
              "Time of a step by phase: schedule, post, wait of the engine's thread, the rest of the device's.");
  text.series("phase=\"schedule\"", s.times.schedule);
  text.series("phase=\"prepare\"", s.times.prepare);
  text.series("phase=\"forward\"", s.times.forward);
  text.series("phase=\"sample\"", s.times.sample);
  text.series("phase=\"post\"", s.times.post);
  text.series("phase=\"wait\"", s.times.wait);
  text.family("kv_swa_age_at_hit_seconds", "Windows in host memory that are found: time since their last use.");
  text.series("", s.windows.age_at_hit);
  text.family("deepinfer:swa_entry_age_seconds",
              "Windows in host memory that are given up: time since they were stored.");
  text.series("", s.windows.age_at_end);
  text.family("deepinfer:kv_io_seconds", "Windows read from host memory and written to it.");
  text.series("tier=\"host\",op=\"read\"", s.windows_loaded.seconds);
  text.series("tier=\"host\",op=\"write\"", s.windows_saved.seconds);
  return text.out;
}

// Prefix cache, windows and replays (kv-cache.md §10, server.md §10.2–10.3).
void ServerMetrics::add_reuse_series() {
  using Read = double (*)(const engine::EngineStats&);
  const auto series = [&](const char* name, const char* help, MetricLabels labels, Read read, bool counts = true) {
    auto value = [this, read] {
      const engine::EngineApi* engine = engine_.load();
      return engine == nullptr ? 0.0 : read(engine->stats());
    };
    counts ? registry_->counter_from(name, help, std::move(labels), value)
           : registry_->gauge_from(name, help, std::move(labels), value);
  };
  using Stats = engine::EngineStats;
  const MetricLabels labels = engine_labels(model_name_);
  series("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", labels,
         [](const Stats& s) { return static_cast<double>(s.prefix_queries); });
  series("vllm:prefix_cache_hits_total", "Of these, found.", labels,
         [](const Stats& s) { return static_cast<double>(s.prefix_hits); });
  const char* by_source = "Cached prompt tokens by the outermost tier that supplied them.";
  series("vllm:prompt_tokens_cached_by_source_total", by_source, engine_labels(model_name_, {{"source", "device"}}),
         [](const Stats& s) { return static_cast<double>(s.prefix_hits - s.cached_by_host); });
  series("vllm:prompt_tokens_cached_by_source_total", by_source, engine_labels(model_name_, {{"source", "host"}}),
         [](const Stats& s) { return static_cast<double>(s.cached_by_host); });
  const char* lookups = "Look-ups of a sliding window after a block hit; a miss is a replay or a cold run.";
  for (const char* name : {"kv_swa_lookup_total", "deepinfer:swa_requests_total"}) {
    series(name, lookups, {{"result", "hit"}}, [](const Stats& s) { return static_cast<double>(s.windows.hits); });
    series(name, lookups, {{"result", "hit_lower"}},
           [](const Stats& s) { return static_cast<double>(s.windows.hits_lower); });
    series(name, lookups, {{"result", "miss"}}, [](const Stats& s) { return static_cast<double>(s.windows.misses); });
  }
  series(
      "kv_swa_bytes", "Windows in host memory.", {},
      [](const Stats& s) { return static_cast<double>(s.windows.bytes); }, false);
  series(
      "kv_swa_entries", "Windows in host memory.", {},
      [](const Stats& s) { return static_cast<double>(s.windows.entries); }, false);
  series("kv_swa_evicted_total", "Windows given up.", {{"reason", "ttl"}},
         [](const Stats& s) { return static_cast<double>(s.windows.evicted_ttl); });
  series("kv_swa_evicted_total", "Windows given up.", {{"reason", "lru"}},
         [](const Stats& s) { return static_cast<double>(s.windows.evicted_lru); });
  series("kv_replay_total", "Bounded replays.", {}, [](const Stats& s) { return static_cast<double>(s.replays); });
  for (const char* name : {"kv_replay_tokens_total", "deepinfer:swa_replay_tokens_total"}) {
    series(name, "Rows computed again by bounded replays.", {},
           [](const Stats& s) { return static_cast<double>(s.replayed_tokens); });
  }
  series(
      "deepinfer:kv_blocks_kept", "Blocks without an owner whose text is known.", {},
      [](const Stats& s) { return static_cast<double>(s.kept_blocks); }, false);
  series("deepinfer:kv_blocks_evicted_total", "Known blocks that were given away.", {},
         [](const Stats& s) { return static_cast<double>(s.evicted_blocks); });
  series(
      "deepinfer:kv_blocks_leased", "Blocks of requests between two engines: held, and not computed with.", {},
      [](const Stats& s) { return static_cast<double>(s.leased_blocks); }, false);
  series("deepinfer:pd_transfer_bytes_total", "KV and state read for the engine that goes on with a prompt.", {},
         [](const Stats& s) { return static_cast<double>(s.transfer_bytes); });
  const char* by_tier = "Cached prompt tokens: blocks on the device, and of these those whose window was on the host.";
  series("deepinfer:kv_hits_tokens_total", by_tier, {{"tier", "device"}, {"kind", "block"}},
         [](const Stats& s) { return static_cast<double>(s.prefix_hits); });
  series("deepinfer:kv_hits_tokens_total", by_tier, {{"tier", "host"}, {"kind", "swa"}},
         [](const Stats& s) { return static_cast<double>(s.cached_by_host); });
  series("deepinfer:forks_total", "Choices that took over another one's prompt.", {},
         [](const Stats& s) { return static_cast<double>(s.forks); });
  constexpr std::array<Read, kv::kMissReasons> kMisses = {
      [](const Stats& s) { return static_cast<double>(s.misses[0]); },
      [](const Stats& s) { return static_cast<double>(s.misses[1]); },
      [](const Stats& s) { return static_cast<double>(s.misses[2]); },
      [](const Stats& s) { return static_cast<double>(s.misses[3]); },
      [](const Stats& s) { return static_cast<double>(s.misses[4]); },
      [](const Stats& s) { return static_cast<double>(s.misses[5]); }};
  for (size_t i = 0; i < kMisses.size(); ++i) {
    series("deepinfer:prefix_misses_total", "Requests by why no more of their prompt was found.",
           {{"reason", std::string(kv::to_string(static_cast<kv::MissReason>(i)))}}, kMisses[i]);
  }
  add_memory_series();
}

// Bytes by place and kind (server.md §10.3). Blocks and windows that nobody has but that are known count as free.
void ServerMetrics::add_memory_series() {
  using Stats = engine::EngineStats;
  using Read = double (*)(const engine::EngineInfo&, const Stats&);
  const auto bytes = [&](const char* tier, const char* kind, const char* state, Read read) {
    registry_->gauge_from("deepinfer:kv_bytes", "Memory for KV blocks and for sliding windows with their state.",
                          {{"tier", tier}, {"kind", kind}, {"state", state}}, [this, read] {
                            const engine::EngineApi* engine = engine_.load();
                            return engine == nullptr ? 0.0 : read(engine->info(), engine->stats());
                          });
  };
  using Info = engine::EngineInfo;
  bytes("device", "block", "used",
        [](const Info& i, const Stats& s) { return static_cast<double>(s.used_blocks * i.block_bytes); });
  bytes("device", "block", "free", [](const Info& i, const Stats& s) {
    return static_cast<double>((s.total_blocks - s.used_blocks) * i.block_bytes);
  });
  bytes("device", "swa", "used",
        [](const Info& i, const Stats& s) { return static_cast<double>(s.used_slots * i.slot_bytes); });
  bytes("device", "swa", "free", [](const Info& i, const Stats& s) {
    return static_cast<double>((s.total_slots - s.used_slots) * i.slot_bytes);
  });
  bytes("host", "swa", "used", [](const Info&, const Stats& s) { return static_cast<double>(s.windows.bytes); });
  bytes("host", "swa", "free", [](const Info& i, const Stats& s) {
    return static_cast<double>(std::max<int64_t>(0, i.window_memory_bytes - s.windows.bytes));
  });
  const auto moved = [&](const char* op, uint64_t (*read)(const Stats&)) {
    registry_->counter_from("deepinfer:kv_io_bytes_total", "Bytes of windows read from host memory and written to it.",
                            {{"tier", "host"}, {"op", op}}, [this, read] {
                              const engine::EngineApi* engine = engine_.load();
                              return engine == nullptr ? 0.0 : static_cast<double>(read(engine->stats()));
                            });
  };
  moved("read", [](const Stats& s) { return s.windows_loaded.bytes; });
  moved("write", [](const Stats& s) { return s.windows_saved.bytes; });
}

}  // namespace di::server
