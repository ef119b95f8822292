// Settings from a file (server.md §12): TOML, or JSON when the name ends in .json. Keys are the names of options with -
// or _; tables join their name in front (`[sse] keep-alive` is sse-keep-alive), except one named as a command, which
// holds that command's options.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace di::cli {

// Option names without dashes in front, and their values as on the command line (lists joined by commas), in the order
// of the file. Errors name the file and, for TOML, the line.
Result<std::vector<std::pair<std::string, std::string>>> read_config_file(const std::string& path);

}  // namespace di::cli
