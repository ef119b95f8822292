#include "codec/rust_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include "codec/tokenizer/unicode.h"

namespace di::codec {

std::string rust_debug(std::string_view text) {
  std::string out = "\"";
  const char* end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const CodePoint cp = decode_utf8(at, end);
    const uint8_t cls = char_class(cp.value);
    // Marks that extend the character before them would hide it in the quotes.
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(cp.value));
    const bool extends = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME;
    const bool printable = cp.value == ' ' || ((cls & (kLetter | kNumber | kPunctuation | kSymbol | kMark)) != 0);
    switch (cp.value) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case 0:
        out += "\\0";
        break;
      default:
        if (!printable || extends) {
          out += fmt::format("\\u{{{:x}}}", cp.value);
        } else {
          out.append(at, cp.bytes);
        }
    }
    at += cp.bytes;
  }
  return out + "\"";
}

}  // namespace di::codec
