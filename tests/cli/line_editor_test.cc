#include "cli/line_editor.h"

#include <gtest/gtest.h>

namespace di::cli {
namespace {

TEST(LineBuffer, MovesAndErasesByCharacter) {
  LineBuffer b;
  b.insert("a\u00e9\u6c34");  // one, two and three bytes
  EXPECT_EQ(b.cursor(), 6U);
  b.left();
  EXPECT_EQ(b.cursor(), 3U);
  b.left();
  EXPECT_EQ(b.cursor(), 1U);
  b.erase_right();
  EXPECT_EQ(b.text(), "a\u6c34");
  b.right();
  b.right();  // stays at the end
  EXPECT_EQ(b.cursor(), 4U);
  b.erase_left();
  b.erase_left();
  b.erase_left();  // nothing is left of the start
  EXPECT_EQ(b.text(), "");
}

TEST(LineBuffer, KnowsWords) {
  LineBuffer b;
  b.set("one two  three");
  b.word_left();
  EXPECT_EQ(b.cursor(), 9U);
  b.erase_word_left();
  EXPECT_EQ(b.text(), "one three");
  b.word_right();
  EXPECT_EQ(b.cursor(), 9U);
  b.home();
  b.word_left();
  EXPECT_EQ(b.cursor(), 0U);
  b.word_right();
  b.erase_to_end();
  EXPECT_EQ(b.text(), "one");
  b.insert("x");
  b.left();
  b.erase_to_start();
  EXPECT_EQ(b.text(), "x");
  EXPECT_EQ(b.cursor(), 0U);
}

TEST(DisplayWidth, CountsColumns) {
  EXPECT_EQ(display_width(""), 0U);
  EXPECT_EQ(display_width("abc"), 3U);
  EXPECT_EQ(display_width("\u00e9"), 1U);
  EXPECT_EQ(display_width("e\u0301"), 1U);  // combining accent
  EXPECT_EQ(display_width("\u6c34"), 2U);
  EXPECT_EQ(display_width("\U0001f600"), 2U);
  EXPECT_EQ(display_width("a\nb"), 3U);
}

}  // namespace
}  // namespace di::cli
