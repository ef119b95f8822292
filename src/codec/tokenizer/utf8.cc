#include <simdjson.h>

#include "codec/tokenizer/unicode.h"

namespace di::codec {

namespace {

// Length of the maximal subpart of an ill-formed sequence at `at`: the longest prefix of a well-formed sequence, at
// least one byte (Unicode, table 3-7: the second byte's range depends on the lead).
size_t invalid_subpart(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(at);
  size_t need = 0;
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    need = 1;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    need = 2;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    need = 3;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  size_t length = 1;
  while (length <= need && at + length < bytes.size() && byte(at + length) >= low && byte(at + length) <= high) {
    ++length;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

bool is_valid_utf8(std::string_view bytes) {
  return simdjson::validate_utf8(bytes.data(), bytes.size());
}

void append_utf8_lossy(std::string& out, std::string_view bytes) {
  size_t clean = 0;  // start of the well-formed stretch not yet copied
  size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<unsigned char>(bytes[at]) < 0x80) {
      ++at;
      continue;
    }
    const CodePoint cp = decode_utf8(bytes.data() + at, bytes.data() + bytes.size());
    if (cp.bytes > 1) {
      at += cp.bytes;
      continue;
    }
    out.append(bytes, clean, at - clean);
    out += "\xEF\xBF\xBD";
    at += invalid_subpart(bytes, at);
    clean = at;
  }
  out.append(bytes, clean, bytes.size() - clean);
}

}  // namespace di::codec
