// deepinfer bench kv (server.md §15.4): what finding and keeping KV costs. The tiers that this program has: blocks of
// the device by key, whose bytes never move, and sliding windows in host memory, which are copied. One thread.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "cli/bench_report.h"
#include "cli/options.h"
#include "kv/block_hash.h"
#include "kv/prefix_cache.h"
#include "kv/swa_cache.h"

namespace di::cli {
namespace {

constexpr int32_t kBlockTokens = 128;
constexpr int kSamples = 200;

struct Row {
  std::string name;
  double per_second = 0;
  std::string unit;
  std::vector<double> us = {};  // of one operation, ascending
};

std::vector<int32_t> random_tokens(std::mt19937_64& random, int64_t n) {
  std::vector<int32_t> out(static_cast<std::size_t>(n));
  for (int32_t& token : out) token = static_cast<int32_t>(random() % 129'280);
  return out;
}

// `units` per call of `work`, of which each call is a sample.
Row measure(std::string name, std::string unit, double units, int samples, const std::function<void(int)>& work) {
  const SystemClock clock;
  Row row{.name = std::move(name), .unit = std::move(unit)};
  double total_s = 0;
  for (int i = 0; i < samples; ++i) {
    const int64_t begun = clock.now_ns();
    work(i);
    const auto ns = static_cast<double>(clock.now_ns() - begun);
    row.us.push_back(ns * 1e-3);
    total_s += ns * 1e-9;
  }
  row.per_second = units * samples / total_s;
  std::sort(row.us.begin(), row.us.end());
  return row;
}

// A cache of so many known blocks, in conversations of so many each.
struct Filled {
  kv::PrefixCache cache;
  kv::BlockKey root;
  std::vector<std::vector<int32_t>> texts;
  std::vector<kv::BlockChain> chains;

  Filled(int32_t blocks, int32_t of_a_prompt)
      : cache(blocks + of_a_prompt + 1, kBlockTokens), root(kv::root_key(kv::RootFields{})) {
    std::mt19937_64 random(1);
    for (int32_t made = 0; made + of_a_prompt <= blocks; made += of_a_prompt) {
      texts.push_back(random_tokens(random, int64_t{of_a_prompt} * kBlockTokens));
      kv::BlockChain& chain = chains.emplace_back(root, kBlockTokens);
      chain.extend(texts.back());
      publish(chain, texts.back());
    }
  }
  // As a finished request leaves them: known, without an owner.
  void publish(const kv::BlockChain& chain, const std::vector<int32_t>& text) {
    std::vector<int32_t> table;
    for (std::size_t i = 0; i < chain.keys().size(); ++i) {
      const int32_t id = cache.allocate();
      table.push_back(cache.publish(chain.keys().first(i + 1), root,
                                    std::span(text).subspan(i * kBlockTokens, kBlockTokens), i == 0 ? 0 : table.back(),
                                    id));
    }
    cache.release_all(table);
  }
};

std::vector<Row> block_rows(const BenchKvOptions& o) {
  Filled filled(o.blocks, o.prompt_blocks);
  std::mt19937_64 random(2);
  const auto pick = [&] { return static_cast<std::size_t>(random() % filled.chains.size()); };
  const double blocks = o.prompt_blocks;
  std::vector<Row> rows;
  const std::vector<int32_t> fresh = random_tokens(random, int64_t{o.prompt_blocks} * kBlockTokens);
  rows.push_back(measure("keys of a new prompt", "tokens", blocks * kBlockTokens, kSamples, [&](int) {
    kv::BlockChain chain(filled.root, kBlockTokens);
    chain.extend(fresh);
  }));
  int64_t found = 0;
  rows.push_back(measure("look-up of a whole hit", "look-ups", 1, kSamples,
                         [&](int) { found += filled.cache.match(filled.chains[pick()].keys()).blocks; }));
  rows.push_back(measure("take a hit and leave it", "blocks", blocks, kSamples, [&](int) {
    std::vector<int32_t> table;
    filled.cache.adopt(filled.chains[pick()].keys(), table);
    filled.cache.release_all(table);
  }));
  std::vector<std::vector<int32_t>> texts;
  std::vector<kv::BlockChain> chains;
  for (int i = 0; i < kSamples; ++i) {
    texts.push_back(random_tokens(random, int64_t{o.prompt_blocks} * kBlockTokens));
    chains.emplace_back(filled.root, kBlockTokens).extend(texts.back());
  }
  rows.push_back(measure("store, the oldest leave", "blocks", blocks, kSamples, [&](int i) {
    filled.publish(chains[static_cast<std::size_t>(i)], texts[static_cast<std::size_t>(i)]);
  }));
  if (found != int64_t{kSamples} * o.prompt_blocks) rows.clear();  // a hit that was none: no figure counts
  return rows;
}

std::vector<Row> window_rows(const BenchKvOptions& o) {
  const SystemClock clock;
  const auto bytes = static_cast<std::size_t>(o.window_bytes);
  const int32_t entries = std::max<int32_t>(1, static_cast<int32_t>(o.host_bytes / o.window_bytes));
  kv::SwaCache cache({.limit_bytes = static_cast<int64_t>(o.host_bytes)});
  std::mt19937_64 random(3);
  std::vector<kv::BlockKey> keys;
  for (int32_t i = 0; i < entries + kSamples; ++i) {
    const std::vector<int32_t> tokens = random_tokens(random, kBlockTokens);
    keys.push_back(kv::block_key(kv::root_key(kv::RootFields{}), tokens, 0, kBlockTokens));
  }
  std::vector<std::byte> device(bytes, std::byte{1});
  const auto put = [&](std::size_t i) {
    auto entry = std::make_shared<kv::SwaEntry>();
    entry->position = kBlockTokens;
    entry->bytes.resize(bytes);
    std::memcpy(entry->bytes.data(), device.data(), bytes);
    cache.put(keys[i], std::move(entry), clock.now_ns());
  };
  for (int32_t i = 0; i < entries; ++i) put(static_cast<std::size_t>(i));
  std::vector<Row> rows;
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  rows.push_back(measure("store a window, the oldest leaves", "GB", gigabytes, kSamples,
                         [&](int i) { put(static_cast<std::size_t>(entries + i)); }));
  int missed = 0;
  rows.push_back(measure("find a window and read it", "GB", gigabytes, kSamples, [&](int) {
    const std::size_t known = keys.size() - 1 - random() % static_cast<std::size_t>(std::min(entries, kSamples));
    const kv::SwaFound hit =
        cache.find(std::span(keys).subspan(known, 1), 1, kBlockTokens, 0, kv::SwaLayers::kAll, clock.now_ns(), true);
    if (hit.entry == nullptr) {
      ++missed;
    } else {
      std::memcpy(device.data(), hit.entry->bytes.data(), bytes);
    }
  }));
  if (missed > 0) rows.clear();
  return rows;
}

}  // namespace

int bench_kv(const BenchKvOptions& options) {
  if (options.blocks < options.prompt_blocks || options.window_bytes == 0 ||
      options.host_bytes < options.window_bytes) {
    std::fprintf(stderr,
                 "deepinfer bench kv: expected --blocks >= --prompt-blocks and --host-memory >= --window-bytes\n");
    return kUsage;
  }
  std::vector<Row> rows = block_rows(options);
  const std::size_t of_blocks = rows.size();
  for (Row& row : window_rows(options)) rows.push_back(std::move(row));
  if (of_blocks == 0 || rows.size() == of_blocks) {
    std::fprintf(stderr, "deepinfer bench kv: something that was stored is not found\n");
    return kFailed;
  }
  if (options.json) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("blocks").value(options.blocks).key("prompt_blocks").value(options.prompt_blocks);
    w.key("window_bytes").value(options.window_bytes).key("host_bytes").value(options.host_bytes);
    w.key("rows").begin_array();
    for (const Row& row : rows) {
      w.begin_object().key("name").value(row.name).key("unit").value(row.unit).key("per_second").value(row.per_second);
      w.key("p50_us").value(percentile(row.us, 50)).key("p99_us").value(percentile(row.us, 99)).end_object();
    }
    w.end_array().end_object();
    std::printf("%s\n", out.c_str());
    return kOk;
  }
  std::printf("device: %d blocks of %d tokens known, prompts of %d blocks; host: %s of windows of %s bytes each\n\n",
              options.blocks, kBlockTokens, options.prompt_blocks,
              fmt::format("{:.0f} MiB", static_cast<double>(options.host_bytes) / (1 << 20)).c_str(),
              fmt::format("{}", options.window_bytes).c_str());
  std::printf("%-36s %14s %-11s %10s %10s\n", "operation", "rate", "", "p50 us", "p99 us");
  for (const Row& row : rows)
    std::printf("%-36s %14.4g %-11s %10.2f %10.2f\n", row.name.c_str(), row.per_second, (row.unit + "/s").c_str(),
                percentile(row.us, 50), percentile(row.us, 99));
  return kOk;
}

}  // namespace di::cli
