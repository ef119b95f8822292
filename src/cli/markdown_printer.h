// The Markdown of answers as a terminal shows it, while it arrives: bold, code, headings and code blocks by colour, the
// rest as it is. One thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace di::cli {

class MarkdownPrinter {
 public:
  // Without colour the text passes unchanged.
  explicit MarkdownPrinter(bool colour) : colour_(colour) {}
  // What can be shown now; marks whose meaning the next character decides are held back.
  std::string feed(std::string_view text);
  // The rest, with all colours off.
  std::string finish();

 private:
  void put(char c, std::string& out);
  void plain(char c, std::string& out);
  void mark(std::string& out);
  std::string style() const;

  bool colour_;
  std::string held_;  // a run of one of: * ` #
  bool line_start_ = true;
  bool bold_ = false;
  bool code_ = false;
  bool heading_ = false;
  bool fence_ = false;         // inside a code block
  bool fence_line_ = false;    // on the line of a mark of it
  bool fence_closes_ = false;  // that mark ends it
};

}  // namespace di::cli
