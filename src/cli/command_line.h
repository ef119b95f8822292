// What people read of the command line: the help, what is said about a line that is not understood, and checks of
// values that say what was expected.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace di::cli {

// Help that names an option's form and default; CLI11's own adds what its checks are called and each variable.
std::shared_ptr<CLI::FormatterBase> help_formatter();

// One line about a command line that `root` did not parse, with the nearest name, or with what another server's option
// is called here.
std::string explain_parse_error(const CLI::App& root, const CLI::ParseError& error);

CLI::Validator above_zero();
CLI::Validator not_negative();
// 32768, 32k (thousands) or 32K (times 1024), as vLLM reads them; above zero.
CLI::Validator token_count();

}  // namespace di::cli
