#include "codec/rust_text.h"

#include <fmt/format.h>

#include "codec/tokenizer/unicode.h"

namespace di::codec {

std::string rust_debug(std::string_view text) {
  std::string out = "\"";
  const char* end = text.data() + text.size();
  bool previous_printed = false;  // a combining mark is written as is only after a printed character
  for (const char* at = text.data(); at != end;) {
    const CodePoint cp = decode_utf8(at, end);
    const uint8_t cls = char_class(cp.value);
    const bool mark = (cls & kMark) != 0;
    const bool printable = cp.value == ' ' || ((cls & (kLetter | kNumber | kPunctuation | kSymbol | kMark)) != 0);
    switch (cp.value) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case 0: out += "\\0"; break;
      default:
        if (!printable || (mark && !previous_printed)) {
          out += fmt::format("\\u{{{:x}}}", cp.value);
        } else {
          out.append(at, cp.bytes);
        }
    }
    previous_printed = printable;
    at += cp.bytes;
  }
  return out + "\"";
}

}  // namespace di::codec
