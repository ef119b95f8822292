// The configuration as a whole: file and environment under the command line, and where each value comes from
// (server.md §12).
#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace di::cli {

struct ConfigOrigins {
  std::set<std::string> file;          // option names without dashes
  std::set<std::string> command_line;  // the same
};

// Reads --config (or DEEPINFER_CONFIG) ahead of the parser: its settings become the environment's where that has none,
// so that the order is command line, environment, file, built-in. Errors: a file that cannot be read, an unknown key.
Result<ConfigOrigins> apply_config_file(const CLI::App& root, int argc, char** argv);

// Each option with its value and origin; values of keys and secrets are masked.
Json effective_config(const CLI::App& command, const ConfigOrigins& origins);
int print_config(const CLI::App& command, const ConfigOrigins& origins, bool json);
// The names, types and defaults that a file may hold, as JSON.
int print_config_schema(const CLI::App& command);

// A script for bash, zsh or fish.
int print_completion(const CLI::App& root, const std::string& shell);

}  // namespace di::cli
