#include <array>
#include <charconv>
#include <cmath>

#include "base/json.h"

namespace di {

namespace {

constexpr std::array<bool, 256> kNeedsEscape = [] {
  std::array<bool, 256> table{};
  for (size_t c = 0; c < 0x20; ++c) table[c] = true;
  table['"'] = true;
  table['\\'] = true;
  return table;
}();

template <class T>
void append_integer(std::string& out, T value) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out.append(buffer, end);
}

// The shortest digits d1..dn and the position kk of the decimal point (value = 0.d1..dn * 10^kk), laid out by kk.
template <class T>
void append_float(std::string& out, T value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char buffer[40];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const char* at = buffer;
  if (*at == '-') out.push_back(*at++);
  char digits[24];
  int n = 0;
  for (; at != end && *at != 'e'; ++at) {
    if (*at != '.') digits[n++] = *at;
  }
  ++at;
  if (*at == '+') ++at;  // from_chars reads no plus sign
  int exponent = 0;
  std::from_chars(at, end, exponent);
  const int kk = n == 1 && digits[0] == '0' ? 1 : exponent + 1;
  const std::string_view text(digits, static_cast<size_t>(n));
  if (kk > 0 && kk <= 16) {
    if (n <= kk) {
      out.append(text).append(static_cast<size_t>(kk - n), '0').append(".0");
    } else {
      out.append(text.substr(0, static_cast<size_t>(kk))).append(".").append(text.substr(static_cast<size_t>(kk)));
    }
  } else if (kk > -5 && kk <= 0) {
    out.append("0.").append(static_cast<size_t>(-kk), '0').append(text);
  } else {
    out.push_back(digits[0]);
    if (n > 1) out.append(".").append(text.substr(1));
    out.append(kk - 1 < 0 ? "e-" : "e+");
    append_integer(out, std::abs(kk - 1));
  }
}

// Python's repr of a double, from the text above: exponents start at 1e-05 and have at least two digits.
void append_python_number(std::string& out, double value) {
  std::string text;
  append_float(text, value);
  if (text.find('e') == std::string::npos) {
    const size_t sign = text.starts_with('-') ? 1 : 0;
    if (text.compare(sign, 2, "0.") == 0) {
      const size_t first = text.find_first_not_of('0', sign + 2);
      const size_t zeros = first == std::string::npos ? 0 : first - (sign + 2);
      if (zeros >= 4) {
        std::string rewritten = text.substr(0, sign) + text[first];
        if (first + 1 < text.size()) rewritten += "." + text.substr(first + 1);
        out += rewritten + fmt::format("e-{:02}", zeros + 1);
        return;
      }
    }
  } else if (text.size() >= 3 && text[text.size() - 3] == 'e' && text[text.size() - 2] == '-') {
    text.insert(text.size() - 1, "0");
  }
  out += text;
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (!kNeedsEscape[c]) [[likely]]
      continue;
    out.append(text, start, i - start);
    start = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\r':
        out += "\\r";
        break;
      default: {
        constexpr char kHex[] = "0123456789abcdef";
        out += "\\u00";
        out.push_back(kHex[c >> 4]);
        out.push_back(kHex[c & 15]);
      }
    }
  }
  out.append(text, start, text.size() - start);
}

void append_json_string(std::string& out, std::string_view text) {
  out.push_back('"');
  append_json_escaped(out, text);
  out.push_back('"');
}

void append_json_number(std::string& out, double value) {
  append_float(out, value);
}
void append_json_number(std::string& out, float value) {
  append_float(out, value);
}

void append_json(std::string& out, const Json& value, JsonStyle style) {
  const bool spaced = style != JsonStyle::kCompact;
  switch (value.kind()) {
    case Json::Kind::kNull:
      out += "null";
      return;
    case Json::Kind::kBool:
      out += value.as_bool() ? "true" : "false";
      return;
    case Json::Kind::kInt:
      append_integer(out, *value.to_i64());
      return;
    case Json::Kind::kUint:
      append_integer(out, *value.to_u64());
      return;
    case Json::Kind::kDouble:
      if (style == JsonStyle::kPython) return append_python_number(out, *value.to_double());
      return append_float(out, *value.to_double());
    case Json::Kind::kString:
      return append_json_string(out, value.as_string());
    case Json::Kind::kArray: {
      out.push_back('[');
      bool first = true;
      for (const Json& item : value.as_array()) {
        if (!first) out += spaced ? ", " : ",";
        first = false;
        append_json(out, item, style);
      }
      out.push_back(']');
      return;
    }
    case Json::Kind::kObject: {
      out.push_back('{');
      bool first = true;
      for (const JsonMember& member : value.as_object()) {
        if (!first) out += spaced ? ", " : ",";
        first = false;
        append_json_string(out, member.key);
        out += spaced ? ": " : ":";
        append_json(out, member.value, style);
      }
      out.push_back('}');
      return;
    }
  }
}

std::string to_json(const Json& value, JsonStyle style) {
  std::string out;
  append_json(out, value, style);
  return out;
}

JsonWriter& JsonWriter::open(char c) {
  separate();
  out_.push_back(c);
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char c) {
  out_.push_back(c);
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(out_, name);
  out_.push_back(':');
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view v) {
  separate();
  append_json_string(out_, v);
  return *this;
}

JsonWriter& JsonWriter::value(bool v) {
  return raw(v ? "true" : "false");
}

JsonWriter& JsonWriter::value(double v) {
  separate();
  append_float(out_, v);
  return *this;
}

JsonWriter& JsonWriter::value(float v) {
  separate();
  append_float(out_, v);
  return *this;
}

JsonWriter& JsonWriter::value(const Json& v) {
  separate();
  append_json(out_, v);
  return *this;
}

JsonWriter& JsonWriter::signed_value(int64_t v) {
  separate();
  append_integer(out_, v);
  return *this;
}

JsonWriter& JsonWriter::unsigned_value(uint64_t v) {
  separate();
  append_integer(out_, v);
  return *this;
}

JsonWriter& JsonWriter::null() {
  return raw("null");
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_.append(json);
  return *this;
}

}  // namespace di
