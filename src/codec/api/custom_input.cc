#include "codec/api/custom_input.h"

#include <charconv>

#include "base/json.h"

namespace di::codec::api {

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

// -1: not four hex digits.
int hex4(std::string_view text) {
  int value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + 4, value, 16);
  return parsed.ptr == text.data() + 4 && text[0] != '-' ? value : -1;
}

}  // namespace

void CustomInputDecoder::feed(std::string_view arguments, std::string& out) {
  if (state_ == State::kDone) return;
  if (state_ == State::kRaw) {
    out += arguments;
    return;
  }
  held_ += arguments;
  if (state_ == State::kPrefix) feed_prefix(out);
  if (state_ == State::kString) feed_string(out);
}

void CustomInputDecoder::feed_prefix(std::string& out) {
  size_t at = 0;
  for (const std::string_view part : {"{", "\"input\"", ":", "\""}) {
    while (at < held_.size() && is_space(held_[at])) ++at;
    const std::string_view rest = std::string_view(held_).substr(at);
    if (rest.size() < part.size() && part.starts_with(rest)) return;  // more may come
    if (!rest.starts_with(part)) {
      state_ = State::kRaw;
      out += held_;
      held_.clear();
      return;
    }
    at += part.size();
  }
  held_.erase(0, at);
  state_ = State::kString;
}

void CustomInputDecoder::feed_string(std::string& out) {
  size_t at = 0;
  while (at < held_.size()) {
    const char c = held_[at];
    if (c == '"') {
      state_ = State::kDone;
      held_.clear();
      return;
    }
    if (c != '\\') {
      out.push_back(c);
      ++at;
      continue;
    }
    const size_t used = escape(std::string_view(held_).substr(at), out);
    if (used == 0) break;
    at += used;
  }
  held_.erase(0, at);
}

size_t CustomInputDecoder::escape(std::string_view text, std::string& out) const {
  if (text.size() < 2) return 0;
  if (text[1] != 'u') {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const size_t index = kNames.find(text[1]);
    if (index == std::string_view::npos) {
      out += text.substr(0, 2);
    } else {
      out.push_back(kValues[index]);
    }
    return 2;
  }
  if (text.size() < 6) {
    for (size_t i = 2; i < text.size(); ++i) {  // a wrong digit settles it
      const char c = text[i];
      const bool hex = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
      if (!hex) {
        out += text.substr(0, 2);
        return 2;
      }
    }
    return 0;
  }
  const int high = hex4(text.substr(2));
  if (high < 0) {
    out += text.substr(0, 2);
    return 2;
  }
  size_t used = 6;
  if (high >= 0xD800 && high <= 0xDBFF) {
    const std::string_view rest = text.substr(6);
    const std::string_view mark = "\\u";
    if (rest.size() < 6 && mark.substr(0, rest.size()) == rest.substr(0, 2)) return 0;
    const int low = rest.starts_with(mark) ? hex4(rest.substr(2)) : -1;
    if (low < 0xDC00 || low > 0xDFFF) {
      out += text.substr(0, 6);
      return 6;
    }
    used = 12;
  }
  const std::string json = "\"" + std::string(text.substr(0, used)) + "\"";
  const Result<Json> value = parse_json(json);
  out += value ? value->as_string() : std::string(text.substr(0, used));
  return used;
}

void CustomInputDecoder::finish(std::string& out) {
  if (state_ == State::kPrefix || state_ == State::kString) out += held_;
  held_.clear();
  state_ = State::kDone;
}

}  // namespace di::codec::api
