#include "cli/markdown_printer.h"

#include <utility>

namespace di::cli {
namespace {

constexpr std::string_view kReset = "\x1b[0m";

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t';
}

}  // namespace

std::string MarkdownPrinter::style() const {
  std::string out(kReset);
  if (bold_ || heading_) out += "\x1b[1m";
  if (code_ || fence_) out += "\x1b[36m";
  if (fence_line_) out += "\x1b[2m";
  return out;
}

std::string MarkdownPrinter::feed(std::string_view text) {
  if (!colour_) return std::string(text);
  std::string out;
  for (const char c : text) put(c, out);
  return out;
}

std::string MarkdownPrinter::finish() {
  if (!colour_) return {};
  std::string out = std::exchange(held_, {});
  out += kReset;
  *this = MarkdownPrinter(true);
  return out;
}

void MarkdownPrinter::put(char c, std::string& out) {
  if (!held_.empty() && held_[0] == c && held_.size() < 6) {
    held_ += c;
    return;
  }
  if (!held_.empty()) {
    // The character behind a run says what the run is.
    const bool opens = !is_space(c);
    if (held_ == "**" && !code_ && !fence_ && (bold_ || opens)) {
      bold_ = !bold_;
      mark(out);
    } else if (held_ == "`" && !fence_) {
      code_ = !code_;
      mark(out);
    } else if (held_[0] == '`' && held_.size() >= 3 && line_start_) {
      fence_closes_ = fence_;
      fence_ = true;
      fence_line_ = true;
      out += style() + held_;
      held_.clear();
      line_start_ = false;
    } else if (held_[0] == '#' && line_start_ && c == ' ' && !fence_) {
      heading_ = true;
      held_.clear();
      out += style();
      line_start_ = false;
      return;  // the marks and the blank behind them are not shown
    } else {
      out += std::exchange(held_, {});
      line_start_ = false;
    }
  }
  const bool starts_run = c == '`' || (c == '*' && !code_ && !fence_) || (c == '#' && line_start_ && !fence_);
  if (starts_run) {
    held_ = c;
    return;
  }
  plain(c, out);
}

void MarkdownPrinter::mark(std::string& out) {
  held_.clear();
  line_start_ = false;
  out += style();
}

void MarkdownPrinter::plain(char c, std::string& out) {
  if (c != '\n') {
    out += c;
    if (c != ' ') line_start_ = false;
    return;
  }
  const bool styled = bold_ || code_ || heading_ || fence_line_;
  if (fence_line_ && fence_closes_) fence_ = false;
  heading_ = false;
  bold_ = false;
  code_ = false;
  fence_line_ = false;
  if (styled) out += style();
  out += c;
  line_start_ = true;
}

}  // namespace di::cli
