#include "cli/line_editor.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace di::cli {
namespace {

constexpr std::size_t kMaxHistory = 1000;
constexpr std::string_view kNewlineMark = "\u21b5";

constexpr char control(char letter) {
  return static_cast<char>(letter & 0x1f);
}

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// Length of the character that starts there, in bytes.
std::size_t character_length(std::string_view text, std::size_t at) {
  std::size_t n = 1;
  while (at + n < text.size() && is_continuation(text[at + n])) ++n;
  return n;
}

std::size_t character_width(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (first < 0x80) return first < 0x20 && first != '\n' ? 0 : 1;
  uint32_t code = first & (0x7fU >> character.size());
  for (std::size_t i = 1; i < character.size(); ++i)
    code = code << 6 | (static_cast<unsigned char>(character[i]) & 0x3fU);
  const auto in = [code](uint32_t low, uint32_t high) { return code >= low && code <= high; };
  if (in(0x300, 0x36f) || in(0x200b, 0x200f) || in(0xfe00, 0xfe0f)) return 0;
  const bool wide = in(0x1100, 0x115f) || in(0x2e80, 0xa4cf) || in(0xac00, 0xd7a3) || in(0xf900, 0xfaff) ||
                    in(0xfe30, 0xfe6f) || in(0xff00, 0xff60) || in(0xffe0, 0xffe6) || in(0x1f300, 0x1faff) ||
                    in(0x20000, 0x3fffd);
  return wide ? 2 : 1;
}

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t';
}

// Keys one by one and as they come, with marks around pasted text; as it was when this goes out of scope.
class RawMode {
 public:
  RawMode() {
    tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_iflag &= ~static_cast<tcflag_t>(BRKINT | ICRNL | INPCK | ISTRIP | IXON);
    raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    std::fputs("\x1b[?2004h", stdout);
  }
  ~RawMode() {
    std::fputs("\x1b[?2004l", stdout);
    std::fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;

 private:
  termios before_{};
};

std::size_t terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// One entry a line in the file.
std::string escaped(const std::string& line) {
  std::string out;
  for (const char c : line) out += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  return out;
}
std::string unescaped(const std::string& line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      out += line[i];
    } else {
      out += line[++i] == 'n' ? '\n' : line[i];
    }
  }
  return out;
}

}  // namespace

std::size_t display_width(std::string_view utf8) {
  std::size_t width = 0;
  for (std::size_t at = 0; at < utf8.size();) {
    const std::size_t n = character_length(utf8, at);
    width += character_width(utf8.substr(at, n));
    at += n;
  }
  return width;
}

void LineBuffer::set(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void LineBuffer::insert(std::string_view utf8) {
  text_.insert(cursor_, utf8);
  cursor_ += utf8.size();
}

void LineBuffer::left() {
  if (cursor_ == 0) return;
  do --cursor_;
  while (cursor_ > 0 && is_continuation(text_[cursor_]));
}

void LineBuffer::right() {
  if (cursor_ < text_.size()) cursor_ += character_length(text_, cursor_);
}

void LineBuffer::word_left() {
  while (cursor_ > 0 && is_blank(text_[cursor_ - 1])) --cursor_;
  while (cursor_ > 0 && !is_blank(text_[cursor_ - 1])) --cursor_;
}

void LineBuffer::word_right() {
  while (cursor_ < text_.size() && is_blank(text_[cursor_])) ++cursor_;
  while (cursor_ < text_.size() && !is_blank(text_[cursor_])) ++cursor_;
}

void LineBuffer::erase_left() {
  const std::size_t end = cursor_;
  left();
  text_.erase(cursor_, end - cursor_);
}

void LineBuffer::erase_right() {
  if (cursor_ < text_.size()) text_.erase(cursor_, character_length(text_, cursor_));
}

void LineBuffer::erase_word_left() {
  const std::size_t end = cursor_;
  word_left();
  text_.erase(cursor_, end - cursor_);
}

void LineBuffer::erase_to_start() {
  text_.erase(0, cursor_);
  cursor_ = 0;
}

LineEditor::LineEditor(std::string history_path) : history_path_(std::move(history_path)) {
  std::ifstream file(history_path_);
  for (std::string line; std::getline(file, line);) history_.push_back(unescaped(line));
  if (history_.size() > kMaxHistory) {
    history_.erase(history_.begin(), history_.end() - static_cast<std::ptrdiff_t>(kMaxHistory));
    std::ofstream shorter(history_path_, std::ios::trunc);
    for (const std::string& line : history_) shorter << escaped(line) << '\n';
  }
}

void LineEditor::remember(const std::string& line) {
  if (line.empty() || (!history_.empty() && history_.back() == line)) return;
  history_.push_back(line);
  if (history_path_.empty()) return;
  std::error_code ignored;  // without a place for it, the history lasts as long as the program
  std::filesystem::create_directories(std::filesystem::path(history_path_).parent_path(), ignored);
  const int fd = open(history_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const std::string text = escaped(line) + "\n";
  [[maybe_unused]] const ssize_t n = write(fd, text.data(), text.size());
  close(fd);
}

LineEditor::End LineEditor::read(std::string_view prompt, std::string& line) {
  const RawMode raw;
  prompt_ = prompt;
  buffer_.set({});
  at_ = history_.size();
  end_of_input_ = false;
  After after = After::kGoOn;
  while (after == After::kGoOn) {
    draw();
    const char c = next_byte();
    after = end_of_input_ ? After::kEndOfInput : key(c);
  }
  buffer_.end();
  draw();
  std::fputs(after == After::kInterrupted ? "^C\r\n" : "\r\n", stdout);
  line = after == After::kDone ? buffer_.text() : std::string();
  return after == After::kDone ? End::kLine : after == After::kInterrupted ? End::kInterrupted : End::kEndOfInput;
}

char LineEditor::next_byte() {
  char c = 0;
  if (::read(STDIN_FILENO, &c, 1) != 1) end_of_input_ = true;
  return c;
}

LineEditor::After LineEditor::key(char c) {
  switch (c) {
    case '\r':
    case '\n':
      return After::kDone;
    case control('C'):
      return After::kInterrupted;
    case control('D'):
      if (buffer_.text().empty()) return After::kEndOfInput;
      buffer_.erase_right();
      break;
    case control('A'):
      buffer_.home();
      break;
    case control('E'):
      buffer_.end();
      break;
    case control('B'):
      buffer_.left();
      break;
    case control('F'):
      buffer_.right();
      break;
    case control('K'):
      buffer_.erase_to_end();
      break;
    case control('U'):
      buffer_.erase_to_start();
      break;
    case control('W'):
      buffer_.erase_word_left();
      break;
    case control('L'):
      std::fputs("\x1b[H\x1b[2J", stdout);
      break;
    case control('P'):
      if (at_ > 0) recall(at_ - 1);
      break;
    case control('N'):
      recall(at_ + 1);
      break;
    case '\t':
      complete();
      break;
    case 8:
    case 127:
      buffer_.erase_left();
      break;
    case 27:
      escape();
      break;
    default:
      if (static_cast<unsigned char>(c) >= 0x20) buffer_.insert({&c, 1});
  }
  return After::kGoOn;
}

// What follows the escape byte: arrow keys and their like, a pasted text, or Alt with a key.
void LineEditor::escape() {
  const char kind = next_byte();
  if (kind == '\r' || kind == '\n') return buffer_.insert("\n");
  if (kind == 'b') return buffer_.word_left();
  if (kind == 'f') return buffer_.word_right();
  if (kind != '[' && kind != 'O') return;
  std::string number;
  char end = next_byte();
  while (!end_of_input_ && ((end >= '0' && end <= '9') || end == ';')) {
    number += end;
    end = next_byte();
  }
  const bool with_control = number == "1;5" || number == "1;3";
  switch (end) {
    case 'A':
      if (at_ > 0) recall(at_ - 1);
      break;
    case 'B':
      recall(at_ + 1);
      break;
    case 'C':
      with_control ? buffer_.word_right() : buffer_.right();
      break;
    case 'D':
      with_control ? buffer_.word_left() : buffer_.left();
      break;
    case 'H':
      buffer_.home();
      break;
    case 'F':
      buffer_.end();
      break;
    case '~':
      if (number == "200") paste();
      if (number == "1" || number == "7") buffer_.home();
      if (number == "4" || number == "8") buffer_.end();
      if (number == "3") buffer_.erase_right();
      break;
    default:
      break;
  }
}

// Up to the mark that the terminal sends behind pasted text. Line ends in it do not send the line.
void LineEditor::paste() {
  constexpr std::string_view kEnd = "\x1b[201~";
  std::string text;
  while (!text.ends_with(kEnd)) {
    const char c = next_byte();
    if (end_of_input_) return;
    text += c == '\r' ? '\n' : c;
  }
  text.resize(text.size() - kEnd.size());
  std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t'; });
  std::replace(text.begin(), text.end(), '\t', ' ');
  buffer_.insert(text);
}

void LineEditor::recall(std::size_t index) {
  if (index > history_.size()) return;
  if (at_ == history_.size()) unsent_ = buffer_.text();
  at_ = index;
  buffer_.set(index == history_.size() ? unsent_ : history_[index]);
}

void LineEditor::complete() {
  const std::string& text = buffer_.text();
  std::vector<std::string> fitting;
  for (const std::string& name : completions_) {
    if (!text.empty() && name.starts_with(text)) fitting.push_back(name);
  }
  if (fitting.empty()) return;
  std::string common = fitting[0];
  for (const std::string& name : fitting)
    common.resize(static_cast<std::size_t>(std::mismatch(common.begin(), common.end(), name.begin(), name.end()).first -
                                           common.begin()));
  buffer_.set(fitting.size() == 1 ? common + " " : common);
}

// One row: of a line that is longer, the part around the cursor.
void LineEditor::draw() const {
  const std::string& text = buffer_.text();
  const std::size_t prompt_width = display_width(prompt_);
  const std::size_t room =
      std::max<std::size_t>(8, terminal_columns() - std::min(terminal_columns(), prompt_width + 1));
  std::size_t from = 0;
  while (display_width(std::string_view(text).substr(from, buffer_.cursor() - from)) > room)
    from += character_length(text, from);
  std::string shown;
  std::size_t width = 0;
  std::size_t cursor_width = 0;
  for (std::size_t at = from; at < text.size();) {
    const std::size_t n = character_length(text, at);
    const std::size_t w = character_width(std::string_view(text).substr(at, n));
    if (width + w > room) break;
    if (at < buffer_.cursor()) cursor_width += w;
    shown += text[at] == '\n' ? std::string(kNewlineMark) : text.substr(at, n);
    width += w;
    at += n;
  }
  std::printf("\r%s%s\x1b[K\r\x1b[%zuC", prompt_.c_str(), shown.c_str(), prompt_width + cursor_width);
  std::fflush(stdout);
}

}  // namespace di::cli
