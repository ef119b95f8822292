// The command line of `deepinfer bench`.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/options.h"

namespace di::cli {

struct BenchCommands {
  BenchKernelsOptions kernels;
  BenchEngineOptions engine;
  BenchLongContextOptions long_context;
  BenchModelOptions model;
  BenchLoadingOptions loading;
  BenchReplayOptions replay;
  BenchSpeculationOptions speculation;
  BenchCodecOptions codec;
  BenchAgentOptions agent;
  BenchServeOptions serve;
  BenchSweepOptions sweep;
  BenchStartupOptions startup;
  BenchKvOptions kv;
  BenchOfflineOptions latency;
  BenchOfflineOptions throughput;
  BenchGrammarOptions grammar;
};

void add_bench(CLI::App& root, BenchCommands& o);
// `command`: bench as it was parsed. The exit status.
int run_bench_command(const CLI::App& command, BenchCommands& o);

}  // namespace di::cli
