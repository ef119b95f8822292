// What /metrics shows (server.md §10): vLLM's names where dashboards expect them, ours beside them. The engine's
// figures are read at scrape time. Thread-safe.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/metrics.h"
#include "codec/image/cache.h"
#include "codec/prompt/replay.h"
#include "engine/api.h"
#include "server/http_server.h"
#include "server/otlp_exporter.h"
#include "server/request_record.h"
#include "structured/compile_pool.h"

namespace di::server {

// Labels of vLLM's series (server.md §10.1), and further ones.
MetricLabels engine_labels(const std::string& model_name, MetricLabels more = {});

class ServerMetrics {
 public:
  explicit ServerMetrics(const std::string& model_name);

  // From then on the engine's series carry its figures. It must outlive the last call of text().
  void attach(const engine::EngineApi& engine);
  void watch(const HttpCounters& counters);
  void watch(const OtlpCounters& counters);
  void watch(structured::CompilePool& constraints);
  void watch(const codec::ReplayStore& turns) { turns_.store(&turns); }
  void watch(const codec::ImageCache& images) { images_.store(&images); }
  void set_load_progress(double fraction) { load_progress_->set(fraction); }

  // Prometheus' text format 0.0.4, or OpenMetrics 1.0.
  std::string text() const;
  std::string open_metrics() const;

  // A stage of the start is over.
  void startup_stage(const std::string& stage, double seconds);
  void request_done(const std::string& route, int status, double seconds);
  void error(std::string_view code);
  // Requests and tokens by tenant; the 101st tenant and those after it are `other`.
  void tenant_done(const RequestRecord& record);
  void aborted(std::string_view phase, std::string_view reason);
  void rejected(std::string_view reason);

  Histogram& time_to_first_token;
  Histogram& inter_token_latency;
  Histogram& time_per_output_token;
  Histogram& e2e_latency;
  Histogram& queue_time;
  Histogram& inference_time;
  Histogram& prefill_time;
  Histogram& decode_time;
  Histogram& prompt_tokens_per_request;
  Histogram& generation_tokens_per_request;
  Histogram& longest_output_per_request;
  Histogram& computed_tokens_per_request;
  Histogram& stage_parse;  // of the front end
  Histogram& stage_render;
  Histogram& stage_tokenize;
  Histogram& stage_queue;
  Histogram& stage_detokenize;
  Histogram& stage_serialize;
  Histogram& max_tokens_param;
  Histogram& n_param;
  Histogram& preemptions_per_request;
  Counter& prompt_tokens;
  Counter& prompt_tokens_cached;
  Counter& generation_tokens;
  Counter& finished_stop;
  Counter& finished_length;
  Counter& finished_abort;
  Counter& finished_error;
  Counter& unknown_fields;
  Counter& tool_call_parse_failures;

 private:
  ServerMetrics(const std::string& model_name, std::unique_ptr<MetricRegistry> registry);
  void add_engine_series();
  void add_pace_series();
  void add_prompt_source_series();
  void add_reuse_series();   // kv_metrics.cc
  void add_memory_series();  // kv_metrics.cc
  void add_turn_series();
  void add_image_series();
  Counter& error_counter(std::string_view code);
  Counter& abort_counter(std::string_view phase, std::string_view reason);
  Counter& rejection_counter(std::string_view reason);
  std::string engine_histograms_text() const;  // kv_metrics.cc

  std::unique_ptr<MetricRegistry> registry_;
  std::mutex tenants_mutex_;
  std::set<std::string, std::less<>> tenants_;  // that have a label of their own
  std::string model_name_;
  Gauge* load_progress_ = nullptr;
  std::atomic<const engine::EngineApi*> engine_{nullptr};
  std::atomic<const codec::ReplayStore*> turns_{nullptr};
  std::atomic<const codec::ImageCache*> images_{nullptr};
  Histogram* grammar_compile_ = nullptr;
};

}  // namespace di::server
