#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // inside <regex> of g++ 12, with the sanitizers
#endif

#include "cli/markdown_printer.h"

#include <gtest/gtest.h>

#include <regex>

namespace di::cli {
namespace {

// Colours as letters: 0 plain, b bold, c code, d dim.
std::string shown(std::string_view text, std::size_t piece = 1) {
  MarkdownPrinter printer(true);
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += piece) out += printer.feed(text.substr(at, piece));
  out += printer.finish();
  for (const auto& [code, letter] :
       {std::pair("\x1b\\[0m", "{0}"), {"\x1b\\[1m", "{b}"}, {"\x1b\\[36m", "{c}"}, {"\x1b\\[2m", "{d}"}})
    out = std::regex_replace(out, std::regex(code), letter);
  return out;
}

TEST(MarkdownPrinter, ColoursWhatIsMarked) {
  EXPECT_EQ(shown("a **b** c"), "a {0}{b}b{0} c{0}");
  EXPECT_EQ(shown("a `b*c` d"), "a {0}{c}b*c{0} d{0}");
  EXPECT_EQ(shown("## Title\ntext"), "{0}{b}Title{0}\ntext{0}");
  EXPECT_EQ(shown("```py\nx = `1` ** 2\n```\nend"), "{0}{c}{d}```py{0}{c}\nx = `1` ** 2\n{0}{c}{d}```{0}\nend{0}");
}

TEST(MarkdownPrinter, LeavesTheRestAlone) {
  for (const char* text : {"2 * 3 ** 4", "#hash and C#", "- *item*\n", "snake_case", "a\n\nb", "*"})
    EXPECT_EQ(shown(text), std::string(text) + "{0}") << text;
  MarkdownPrinter plain(false);
  EXPECT_EQ(plain.feed("**a** `b`") + plain.finish(), "**a** `b`");
}

TEST(MarkdownPrinter, DoesNotDependOnThePieces) {
  const std::string text = "# A\nsome **bold** and `code`\n```\nblock **x**\n```\n**end";
  for (std::size_t piece = 2; piece < 9; ++piece) EXPECT_EQ(shown(text, piece), shown(text)) << piece;
}

}  // namespace
}  // namespace di::cli
