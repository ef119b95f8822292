// A line typed at a terminal, with editing keys, history and pasted text of several lines. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::cli {

// Text under the cursor, without the terminal: what a key does to it.
class LineBuffer {
 public:
  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }  // in bytes, between characters
  void set(std::string text);
  void insert(std::string_view utf8);
  void left();
  void right();
  void word_left();
  void word_right();
  void home() { cursor_ = 0; }
  void end() { cursor_ = text_.size(); }
  void erase_left();
  void erase_right();
  void erase_word_left();
  void erase_to_end() { text_.erase(cursor_); }
  void erase_to_start();

 private:
  std::string text_;  // UTF-8
  std::size_t cursor_ = 0;
};

// Columns that UTF-8 text takes; a line feed takes the one of its mark.
std::size_t display_width(std::string_view utf8);

class LineEditor {
 public:
  // Lines are read from and added to the file; empty: not kept.
  explicit LineEditor(std::string history_path);
  // Names that the tab key completes at the start of a line.
  void set_completions(std::vector<std::string> names) { completions_ = std::move(names); }

  enum class End : uint8_t { kLine, kInterrupted, kEndOfInput };
  // Standard input and output must be a terminal. kInterrupted: Ctrl-C; kEndOfInput: Ctrl-D on an empty line.
  End read(std::string_view prompt, std::string& line);
  // Remembers it for the arrow keys, and in the file.
  void remember(const std::string& line);

 private:
  enum class After : uint8_t { kGoOn, kDone, kInterrupted, kEndOfInput };
  After key(char c);
  void escape();
  void paste();
  void recall(std::size_t index);
  void complete();
  void draw() const;
  char next_byte();

  std::string history_path_;
  std::vector<std::string> history_;
  std::vector<std::string> completions_;
  LineBuffer buffer_;
  std::string prompt_;
  std::string unsent_;  // what was typed before the history was walked
  std::size_t at_ = 0;  // in the history; its size: the line being typed
  bool end_of_input_ = false;
};

}  // namespace di::cli
