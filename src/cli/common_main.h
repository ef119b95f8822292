// Options that several subcommands have (main.cc, bench_main.cc).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cli/options.h"

namespace di::cli {

// Such as 90s, 5m or 250ms; a plain number is seconds.
void add_duration(CLI::App& app, const std::string& name, int64_t& target_ms, const std::string& help);

void add_model_folder(CLI::App& app, std::string& folder, bool required);

// How a model is loaded and run: caches, scheduler, speculation, device.
void add_model_options(CLI::App& app, ModelOptions& o);

}  // namespace di::cli
