#include "model/inspect.h"

#include <fmt/format.h>

#include <iterator>

#include "base/json.h"
#include "model/schedule.h"
#include "model/weights.h"

namespace di::model {
namespace {

struct Report {
  const ModelConfig& config;
  const Safetensors* checkpoint;
  const PlanOptions& options;
  Schedule schedule;
  ParameterCount parameters;
  MemoryPlan plan;
  std::vector<std::string> unknown;
  int64_t copied_bytes = 0;
};

// 12,345,678
std::string grouped(int64_t n) {
  std::string digits = std::to_string(n);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string scaled(double n, const char* const (&units)[5], double step) {
  size_t unit = 0;
  while (unit + 1 < std::size(units) && n >= step) {
    n /= step;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f}{}", n, units[0]) : fmt::format("{:.1f}{}", n, units[unit]);
}

std::string count_text(int64_t n) {
  return scaled(static_cast<double>(n), {"", " K", " M", " B", " T"}, 1000.0);
}

std::string counted(int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", grouped(n), what, n == 1 ? "" : "s");
}

std::string bytes_text(int64_t n) {
  return scaled(static_cast<double>(n), {" B", " KB", " MB", " GB", " TB"}, 1000.0);
}

std::string_view to_string(kernels::KvFormat f) {
  switch (f) {
    case kernels::KvFormat::kF32:
      return "F32";
    case kernels::KvFormat::kE4m3Ue8m0:
      return "E4M3/32 + UE8M0";
    case kernels::KvFormat::kE2m1E4m3:
      return "E2M1/16 + E4M3";
    case kernels::KvFormat::kE2m1Ue8m0:
      return "E2M1/32 + UE8M0";
  }
  return "?";
}

std::string owns(const LayerPlan& p) {
  std::string out;
  const auto add = [&out](bool has, std::string_view what) {
    if (!has) return;
    if (!out.empty()) out += ", ";
    out += what;
  };
  add(p.has_engram, "Engram");
  add(p.is_kv_source, p.has_compressor_gate ? "compressor with gate" : "compressor");
  add(p.is_index_source, p.has_index_keys ? "indexer with keys" : "indexer");
  add(p.is_candidate_source, "candidate source");
  add(p.uses_candidates, "uses candidates");
  add(p.hash_routing, "hash routing");
  return out;
}

// What the layer table shows of a layer; equal neighbours share a line.
std::string layer_line(const LayerPlan& p) {
  const auto layer_or_dash = [](int32_t l) { return l < 0 ? std::string("-") : std::to_string(l); };
  std::string line =
      fmt::format("{:<8} {:>3}  {:>3}  {:>9}  {:>4} of {:<5} {}", to_string(p.kind), p.ratio,
                  layer_or_dash(p.kv_source), layer_or_dash(p.index_source), p.experts_per_token, p.n_experts, owns(p));
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

void text_layers(std::string& out, const Report& r) {
  auto to = std::back_inserter(out);
  fmt::format_to(to, "\n{:<8} {:<8} {:>3}  {:>3}  {:>9}  {:<13} {}\n", "layers", "kind", "r", "kv", "selection",
                 "experts", "owns");
  const auto& layers = r.schedule.layers;
  for (size_t first = 0; first < layers.size();) {
    const std::string line = layer_line(layers[first]);
    size_t end = first + 1;
    while (end < layers.size() && layer_line(layers[end]) == line) ++end;
    fmt::format_to(to, "{:<8} {}\n", end == first + 1 ? std::to_string(first) : fmt::format("{}-{}", first, end - 1),
                   line);
    first = end;
  }
  if (!r.schedule.draft.empty()) {
    const size_t n = r.schedule.draft.size();
    fmt::format_to(to, "{:<8} {}\n", n == 1 ? "mtp.0" : fmt::format("mtp.0-{}", n - 1),
                   layer_line(r.schedule.draft[0]));
  }
}

void text_parameters(std::string& out, const Report& r) {
  auto to = std::back_inserter(out);
  const ParameterCount& n = r.parameters;
  fmt::format_to(to, "\n{:<24} {:>9} {:>20} {:>20}\n", "tensors", "number", "parameters", "bytes");
  for (size_t i = 0; i < n.classes.size(); ++i) {
    const ClassTotals& t = n.classes[i];
    if (t.tensors == 0) continue;
    fmt::format_to(to, "{:<24} {:>9} {:>20} {:>20}\n", to_string(static_cast<TensorClass>(i)), grouped(t.tensors),
                   grouped(t.parameters), grouped(t.bytes));
  }
  const int64_t all = n.backbone + n.engram_tables + n.draft + n.vision;
  fmt::format_to(to, "{:<24} {:>9} {:>20} {:>20}\n", "all", grouped(n.tensors), grouped(all), grouped(n.bytes));
  fmt::format_to(to, "\nparameters     {} backbone", count_text(n.backbone));
  if (n.engram_tables > 0) fmt::format_to(to, ", {} Engram tables", count_text(n.engram_tables));
  if (n.draft > 0) fmt::format_to(to, ", {} draft", count_text(n.draft));
  if (n.vision > 0) fmt::format_to(to, ", {} vision", count_text(n.vision));
  fmt::format_to(to, "\nactive         {} per decode token, {} per prefill token\n", count_text(n.active_decode),
                 count_text(n.active_prefill));
}

void text_memory(std::string& out, const Report& r) {
  auto to = std::back_inserter(out);
  const MemoryPlan& p = r.plan;
  const CacheLayout& l = p.layout;
  fmt::format_to(to, "\nBlock KV       {:g} bytes per token, {} bytes per block of {} tokens (main {}, index {})\n",
                 p.kv_bytes_per_token, grouped(l.block_bytes), l.options.block_tokens, to_string(l.main_format),
                 to_string(l.index_format));
  fmt::format_to(to, "window KV      {} bytes per sequence (encoder {}, draft + {}; {}), rings of {} + {} rows\n",
                 grouped(p.swa_window_bytes), grouped(p.swa_window_encoder_bytes), grouped(p.swa_window_draft_bytes),
                 to_string(l.swa_format), r.config.sliding_window, l.options.max_backtracking);
  fmt::format_to(to, "state          {} bytes of open groups and {} bytes of look-back per sequence\n",
                 grouped(p.compressor_state_bytes), grouped(p.engram_history_bytes));
  fmt::format_to(to, "\nplan           {} of {}\n", counted(r.options.sequences, "sequence"),
                 counted(r.options.context, "token"));
  const auto line = [&to](std::string_view what, int64_t bytes, const std::string& why) {
    fmt::format_to(to, "  {:<12} {:>20}  {:>9}  {}\n", what, grouped(bytes), bytes_text(bytes), why);
  };
  line("weights", p.weight_bytes, "mapped, as stored");
  line("Block KV", p.block_kv_bytes, fmt::format("{} blocks per sequence", grouped(p.blocks_per_sequence)));
  line("sequences", p.sequence_bytes * r.options.sequences, fmt::format("{} bytes each", grouped(p.sequence_bytes)));
  line("all", p.total_bytes, "");
}

std::string text_report(const Report& r) {
  std::string out;
  auto to = std::back_inserter(out);
  const ModelConfig& c = r.config;
  fmt::format_to(to, "model          DeepSeek {} ({}), {} layers, hidden {}, vocabulary {}, context {}\n",
                 to_string(c.family), c.model_type, c.num_hidden_layers, c.hidden_size, grouped(c.vocab_size),
                 grouped(c.max_position_embeddings));
  if (r.schedule.boundary < c.num_hidden_layers) {
    fmt::format_to(to, "halves         encoder 0-{}, decoder {}-{}\n", r.schedule.boundary - 1, r.schedule.boundary,
                   c.num_hidden_layers - 1);
  }
  if (r.checkpoint == nullptr) {
    fmt::format_to(to, "weights        none here: sizes are those the config declares\n");
  } else {
    fmt::format_to(to, "weights        {} bytes in {}, {}, every declared tensor checked\n",
                   grouped(r.checkpoint->file_bytes()),
                   counted(static_cast<int64_t>(r.checkpoint->files().size()), "file"),
                   counted(static_cast<int64_t>(r.checkpoint->tensors().size()), "tensor"));
    if (r.copied_bytes > 0)
      fmt::format_to(to, "copied         {} bytes (unaligned in the file, or converted)\n", grouped(r.copied_bytes));
    for (const std::string& name : r.unknown) fmt::format_to(to, "unknown        {}\n", name);
  }
  text_layers(out, r);
  text_parameters(out, r);
  text_memory(out, r);
  return out;
}

void json_layer(JsonWriter& w, const LayerPlan& p) {
  w.begin_object();
  w.key("layer").value(p.layer).key("kind").value(to_string(p.kind)).key("ratio").value(p.ratio);
  w.key("kv_source");
  p.kv_source < 0 ? w.null() : w.value(p.kv_source);
  w.key("index_source");
  p.index_source < 0 ? w.null() : w.value(p.index_source);
  w.key("engram").value(p.has_engram).key("candidate_source").value(p.is_candidate_source);
  w.key("uses_candidates").value(p.uses_candidates).key("hash_routing").value(p.hash_routing);
  w.key("decoder")
      .value(p.is_decoder)
      .key("experts")
      .value(p.n_experts)
      .key("experts_per_token")
      .value(p.experts_per_token);
  w.end_object();
}

void json_parameters(JsonWriter& w, const ParameterCount& n) {
  w.key("tensors")
      .begin_object()
      .key("number")
      .value(n.tensors)
      .key("bytes")
      .value(n.bytes)
      .key("classes")
      .begin_object();
  for (size_t i = 0; i < n.classes.size(); ++i) {
    const ClassTotals& t = n.classes[i];
    if (t.tensors == 0) continue;
    w.key(to_string(static_cast<TensorClass>(i))).begin_object();
    w.key("tensors").value(t.tensors).key("parameters").value(t.parameters).key("bytes").value(t.bytes).end_object();
  }
  w.end_object().end_object();
  w.key("parameters").begin_object();
  w.key("backbone").value(n.backbone).key("engram_tables").value(n.engram_tables).key("draft").value(n.draft);
  w.key("vision")
      .value(n.vision)
      .key("active_decode")
      .value(n.active_decode)
      .key("active_prefill")
      .value(n.active_prefill);
  w.end_object();
}

void json_memory(JsonWriter& w, const Report& r) {
  const MemoryPlan& p = r.plan;
  const CacheLayout& l = p.layout;
  w.key("kv").begin_object();
  w.key("bytes_per_token").value(p.kv_bytes_per_token).key("bytes_per_block").value(l.block_bytes);
  w.key("block_tokens").value(l.options.block_tokens);
  w.key("main_format").value(to_string(l.main_format)).key("index_format").value(to_string(l.index_format));
  w.key("window_format").value(to_string(l.swa_format)).key("window_bytes").value(p.swa_window_bytes);
  w.key("window_encoder_bytes")
      .value(p.swa_window_encoder_bytes)
      .key("window_draft_bytes")
      .value(p.swa_window_draft_bytes);
  w.key("ring_rows").value(l.ring_rows).key("state_bytes").value(p.compressor_state_bytes);
  w.key("lookback_bytes").value(p.engram_history_bytes).end_object();
  w.key("plan").begin_object();
  w.key("context").value(r.options.context).key("sequences").value(r.options.sequences);
  w.key("blocks_per_sequence").value(p.blocks_per_sequence).key("weight_bytes").value(p.weight_bytes);
  w.key("block_kv_bytes").value(p.block_kv_bytes).key("sequence_bytes").value(p.sequence_bytes);
  w.key("kv_total_bytes").value(p.kv_total_bytes).key("total_bytes").value(p.total_bytes).end_object();
}

std::string json_report(const Report& r) {
  std::string out;
  JsonWriter w(out);
  const ModelConfig& c = r.config;
  w.begin_object();
  w.key("model_type").value(c.model_type).key("family").value(to_string(c.family));
  w.key("hidden_size").value(c.hidden_size).key("vocab_size").value(c.vocab_size);
  w.key("max_position_embeddings").value(c.max_position_embeddings).key("boundary").value(r.schedule.boundary);
  w.key("layers").begin_array();
  for (const LayerPlan& p : r.schedule.layers) json_layer(w, p);
  w.end_array().key("draft").begin_array();
  for (const LayerPlan& p : r.schedule.draft) json_layer(w, p);
  w.end_array();
  json_parameters(w, r.parameters);
  json_memory(w, r);
  w.key("checkpoint");
  if (r.checkpoint == nullptr) {
    w.null();
  } else {
    w.begin_object().key("path").value(r.checkpoint->path()).key("file_bytes").value(r.checkpoint->file_bytes());
    w.key("files").begin_array();
    for (const std::string& f : r.checkpoint->files()) w.value(f);
    w.end_array().key("tensors").value(r.checkpoint->tensors().size()).key("copied_bytes").value(r.copied_bytes);
    w.key("unknown_tensors").begin_array();
    for (const std::string& name : r.unknown) w.value(name);
    w.end_array().end_object();
  }
  w.end_object();
  out += '\n';
  return out;
}

}  // namespace

Result<std::string> inspect_report(const ModelConfig& config, const Safetensors* checkpoint,
                                   const InspectOptions& options) {
  Report r{config, checkpoint, options.plan, {}, {}, {}, {}, 0};
  r.schedule = DI_TRY(make_schedule(config));
  r.parameters = count_parameters(config, r.schedule, checkpoint);
  r.plan = DI_TRY(plan_memory(config, r.schedule, options.plan));
  if (checkpoint != nullptr) {
    ModelWeights weights = DI_TRY(bind_weights(config, r.schedule, *checkpoint));
    r.unknown = std::move(weights.unknown_tensors);
    r.copied_bytes = weights.copied_bytes;
    r.plan.total_bytes += r.parameters.bytes - r.plan.weight_bytes;
    r.plan.weight_bytes = r.parameters.bytes;
  }
  return options.json ? json_report(r) : text_report(r);
}

Result<std::string> inspect_folder(const std::string& folder, const InspectOptions& options) {
  const ModelConfig config = DI_TRY(load_config(folder));
  if (folder.ends_with(".json")) return inspect_report(config, nullptr, options);
  Result<Safetensors> checkpoint = Safetensors::open(folder);
  if (!checkpoint && checkpoint.error().code != Errc::kNotFound) return std::unexpected(std::move(checkpoint).error());
  // A missing shard is a broken checkpoint, not an absent one.
  return inspect_report(config, checkpoint ? &*checkpoint : nullptr, options);
}

}  // namespace di::model
