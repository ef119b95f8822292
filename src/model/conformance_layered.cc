// Expected values of the small random-weight models: every intermediate of a prefill, then decode steps, then the
// cache.
#include <algorithm>
#include <cmath>
#include <map>

#include "model/expected.h"

namespace di::model {
namespace {

using Captured = std::map<std::string, std::vector<float>>;

Tap capture_into(Captured& captured) {
  return [&captured](std::string_view name, int32_t layer, const kernels::Tensor& value) {
    captured[fmt::format("layers.{}.{}", layer, name)] = to_floats(value);
  };
}

std::vector<int32_t> to_ints(std::span<const float> values) {
  std::vector<int32_t> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<int32_t>(values[i]);
  return out;
}

// Sorts each row: the order of a router's choice is not significant.
std::vector<int32_t> sorted_rows(std::vector<int32_t> values, int64_t columns) {
  for (size_t r = 0; r + static_cast<size_t>(columns) <= values.size(); r += static_cast<size_t>(columns)) {
    std::sort(values.begin() + static_cast<std::ptrdiff_t>(r),
              values.begin() + static_cast<std::ptrdiff_t>(r) + columns);
  }
  return values;
}

// Router weights reordered by expert id.
std::vector<float> weights_by_id(std::span<const int32_t> ids, std::span<const float> weights, int64_t columns) {
  std::vector<float> out;
  for (size_t r = 0; r + static_cast<size_t>(columns) <= ids.size(); r += static_cast<size_t>(columns)) {
    std::vector<std::pair<int32_t, float>> row;
    for (size_t c = 0; c < static_cast<size_t>(columns); ++c) row.emplace_back(ids[r + c], weights[r + c]);
    std::sort(row.begin(), row.end());
    for (const auto& [id, weight] : row) out.push_back(weight);
  }
  return out;
}

// Candidate blocks as found, spread to the 0/1 per position of the file (whole blocks, also past the newest position).
// The candidate source has ratio 1, so row t sees t + 1 positions.
std::vector<int32_t> candidate_mask(std::span<const float> blocks, int64_t rows, int64_t per_row, int64_t positions,
                                    int32_t block_size) {
  std::vector<int32_t> mask(static_cast<size_t>(rows * positions), 0);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < per_row; ++i) {
      const auto block = static_cast<int64_t>(blocks[static_cast<size_t>(t * per_row + i)]);
      if (block == -1) continue;
      const int64_t first = block == -2 ? 0 : block * block_size;
      const int64_t last = std::min(block == -2 ? (t / block_size + 1) * block_size : first + block_size, positions);
      for (int64_t g = first; g < last; ++g) mask[static_cast<size_t>(t * positions + g)] = 1;
      if (block == -2) break;
    }
  }
  return mask;
}

// Rows of a file that stores only as many columns as the longest selection, filled with -1.
std::vector<int32_t> padded_rows(const std::vector<int32_t>& values, int64_t rows, int64_t columns) {
  std::vector<int32_t> out(static_cast<size_t>(rows * columns), -1);
  const int64_t stored = static_cast<int64_t>(values.size()) / std::max<int64_t>(rows, 1);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < std::min(stored, columns); ++c) {
      out[static_cast<size_t>(r * columns + c)] = values[static_cast<size_t>(r * stored + c)];
    }
  }
  return out;
}

// "layers.6." -> 6
size_t layer_of(const std::string& prefix) {
  return static_cast<size_t>(std::stoi(prefix.substr(7)));
}

struct Bounds {
  double logits;
  double hidden;  // of the stored tensor's standard deviation
  double value;   // quantities of the order of one: mixes, gates, weights, index scores
};

void compare_layers(const FixtureModel& model, const Expected& expected, const Captured& captured, const Bounds& bounds,
                    ConformanceReport& report) {
  for (const std::string& key : expected.names()) {
    if (!key.starts_with("prefill.layers.")) continue;
    const std::string inner = key.substr(8);
    const size_t dot = inner.find('.', 7);
    std::string name = inner.substr(dot + 1);
    if (name == "ffn.route_idx") name = "route_idx";
    if (name == "ffn.route_w") name = "route_w";
    const std::string prefix = inner.substr(0, dot + 1);
    const auto found = captured.find(prefix + name);
    const std::string label = expected.label() + " " + key;
    if (found == captured.end()) {
      cannot_run(report, label, {Errc::kNotFound, "the forward pass reported no such value"});
      continue;
    }
    const std::vector<float>& actual = found->second;
    const auto shape = expected.shape(key);
    if (name == "topk") {
      compare_exact(report, label, padded_rows(expected.ints(key), shape[0], model.config.index_topk), to_ints(actual));
    } else if (name == "candidates") {
      compare_exact(report, label, expected.ints(key),
                    candidate_mask(actual, shape[0], static_cast<int64_t>(actual.size()) / shape[0], shape[1],
                                   model.config.candidate_block_size));
    } else if (name == "route_idx") {
      compare_exact(report, label, sorted_rows(expected.ints(key), shape[1]), sorted_rows(to_ints(actual), shape[1]));
    } else if (name == "route_w") {
      const std::vector<int32_t> ids = expected.ints("prefill." + prefix + "ffn.route_idx");
      const auto own_ids = captured.find(prefix + "route_idx");
      compare(report, label, weights_by_id(ids, expected.floats(key), shape[1]),
              weights_by_id(to_ints(own_ids->second), actual, shape[1]), bounds.value);
    } else if (name == "pre_mix" || name == "engram_gate") {
      compare(report, label, expected.floats(key), actual, bounds.value);
    } else if (name == "index_score") {
      // The file has the score of every visible entry; a Reindex layer computes those of its candidates.
      std::vector<float> values = expected.floats(key);
      for (size_t i = 0; i < std::min(values.size(), actual.size()); ++i) {
        if (std::isinf(actual[i]) && model.schedule.layers[layer_of(prefix)].uses_candidates) values[i] = actual[i];
      }
      compare(report, label, values, actual, bounds.value);
    } else {
      const std::vector<float> values = expected.floats(key);
      std::vector<float> finite;
      std::copy_if(values.begin(), values.end(), std::back_inserter(finite), [](float v) { return v > -1e30F; });
      compare(report, label, values, actual, bounds.hidden, standard_deviation(finite));
    }
  }
}

}  // namespace

void run_layered(const FixtureModel& model, const ConformanceBackend& backend, const Expected& expected, bool kv_quant,
                 ConformanceReport& report) {
  // README of the vectors: logits 2e-3, streams 1e-3 of their deviation. Without KV quantisation the pass is well
  // conditioned and held to ten times less.
  const Bounds bounds = kv_quant ? Bounds{2e-3, 1e-3, 1e-3} : Bounds{2e-4, 1e-4, 1e-4};
  const std::vector<int32_t> ids = expected.ints("input_ids");
  const int32_t n_prefill = expected.ints("n_prefill").at(0);
  FixtureOptions options;
  options.kv_quant = kv_quant;
  auto created = FixtureRun::create(model, backend, options);
  if (!created) return cannot_run(report, expected.label(), created.error());
  FixtureRun& run = **created;

  Captured captured;
  const Tap tap = capture_into(captured);
  const auto logits = run.feed(ids, 0, n_prefill, 0, &tap);
  if (!logits) return cannot_run(report, expected.label(), logits.error());
  compare_layers(model, expected, captured, bounds, report);
  compare(report, expected.label() + " prefill.final_hidden", expected.floats("prefill.final_hidden"), run.hidden(),
          bounds.hidden, standard_deviation(expected.floats("prefill.final_hidden")));
  compare(report, expected.label() + " prefill.logits", expected.floats("prefill.logits"), *logits, bounds.logits);
  if (expected.has("prefill.engram_hash")) {
    std::vector<int32_t> hashes;  // [tokens, layers, columns]
    for (int32_t t = 0; t < n_prefill; ++t) {
      for (const std::vector<int64_t>& rows : run.batch().engram_rows) {
        const auto columns = static_cast<size_t>(model.config.engram_columns());
        for (size_t c = 0; c < columns; ++c)
          hashes.push_back(static_cast<int32_t>(rows[static_cast<size_t>(t) * columns + c]));
      }
    }
    compare_exact(report, expected.label() + " prefill.engram_hash", expected.ints("prefill.engram_hash"), hashes);
  }

  std::vector<float> decode_logits;
  std::vector<float> decode_streams;
  for (int32_t p = n_prefill; p < static_cast<int32_t>(ids.size()); ++p) {
    captured.clear();
    const auto step = run.feed(ids, p, 1, 0, &tap);
    if (!step) return cannot_run(report, expected.label(), step.error());
    decode_logits.insert(decode_logits.end(), step->begin(), step->end());
    for (int32_t l = 0; l < model.config.num_hidden_layers; ++l) {
      const std::vector<float>& streams = captured[fmt::format("layers.{}.streams", l)];
      decode_streams.insert(decode_streams.end(), streams.begin(), streams.end());
    }
  }
  compare(report, expected.label() + " decode.logits", expected.floats("decode.logits"), decode_logits, bounds.logits);
  compare(report, expected.label() + " decode.streams", expected.floats("decode.streams"), decode_streams,
          bounds.hidden, standard_deviation(expected.floats("decode.streams")));

  for (size_t plane = 0; plane < model.schedule.kv_sources.size(); ++plane) {
    const int32_t layer = model.schedule.kv_sources[plane].layer;
    const std::string prefix = fmt::format("cache.layers.{}.", layer);
    const auto n = static_cast<int32_t>(expected.shape(prefix + "main_kv")[0]);
    const std::vector<float> main = expected.floats(prefix + "main_kv");
    const std::vector<float> keys = expected.floats(prefix + "index_k");
    compare(report, expected.label() + " " + prefix + "main_kv", main, run.main_entries(static_cast<int32_t>(plane), n),
            bounds.hidden, standard_deviation(main));
    compare(report, expected.label() + " " + prefix + "index_k", keys, run.index_keys(static_cast<int32_t>(plane), n),
            bounds.hidden, standard_deviation(keys));
  }
}

}  // namespace di::model
