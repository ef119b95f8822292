// Any bytes as text: pieces join to the text, both ways of encoding agree, ids decode to the text (as far as it is
// UTF-8), and a safe cut changes nothing. Any bytes as a tokenizer.json: an error or a tokenizer.
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json.h"
#include "codec/tokenizer/safe_cut.h"
#include "codec/tokenizer/tokenizer.h"
#include "codec/tokenizer/unicode.h"

namespace {

using namespace di::codec;

// The 256 bytes and some merges, so that matching has something to step back over.
TokenizerRef small_tokenizer() {
  std::vector<std::string> bytes;  // stand-in characters in byte order
  unsigned next = 256;
  for (unsigned b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const unsigned cp = itself ? b : next++;
    std::string text;
    if (cp < 0x80) {
      text.push_back(static_cast<char>(cp));
    } else {
      text.push_back(static_cast<char>(0xC0 | cp >> 6));
      text.push_back(static_cast<char>(0x80 | (cp & 63)));
    }
    bytes.push_back(text);
  }
  std::string vocab = "{";
  for (unsigned b = 0; b < 256; ++b) {
    di::append_json_string(vocab, bytes[b]);
    vocab += fmt::format(":{},", b);
  }
  // Ordinary ones, and of two ideographs (E4 B8 AD, E5 9B BD) whole, joined, and cut off at either end.
  const std::pair<std::string, std::string> merges[] = {
      {"a", "b"},           {"b", "c"},       {"ab", "c"},
      {"a", "a"},           {"aa", "a"},      {"c", "d"},
      {"bc", "d"},          {"t", "h"},       {"th", "e"},
      {"aa", "aa"},         {"ab", "cd"},     {"\xE4", "\xB8"},
      {"\xE4\xB8", "\xAD"}, {"\xE5", "\x9B"}, {"\xE5\x9B", "\xBD"},
      {"\xBD", "\xE4"},     {"\xAD", "\xE5"}, {"\xE4\xB8\xAD", "\xE5\x9B\xBD"}};
  const auto spelled = [&](const std::string& text) {
    std::string out;
    for (const char c : text) out += bytes[static_cast<unsigned char>(c)];
    return out;
  };
  std::string list = "[";
  int id = 256;
  for (const auto& [l, r] : merges) {
    vocab += fmt::format("\"{}{}\":{},", spelled(l), spelled(r), id++);
    list += fmt::format("\"{} {}\",", spelled(l), spelled(r));
  }
  vocab.back() = '}';
  list.back() = ']';
  const std::string json =
      R"({"added_tokens":[{"id":300,"content":"<think>","special":false,"normalized":false}],"pre_tokenizer":{"type":"Sequence",)"
      R"("pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated","invert":false},)"
      "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+\"},\"behavior\":"
      "\"Isolated\",\"invert\":false},"
      R"({"type":"Split","pattern":{"Regex":"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},)"
      R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":)" +
      vocab + ",\"merges\":" + list + "}}";
  auto tokenizer = Tokenizer::from_json(json, "small");
  if (!tokenizer) std::abort();
  return *tokenizer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TokenizerRef tokenizer = small_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<di::TokenId> ids = tokenizer->encode_plain(text);
  std::vector<di::TokenId> reference;
  if (size <= 4096) {
    tokenizer->encode_plain_reference(text, reference);
    if (ids != reference) std::abort();
  }
  std::string joined;
  for (const di::TokenId id : ids) joined += tokenizer->token_bytes(id);
  if (joined != text) std::abort();
  std::string lossy;
  append_utf8_lossy(lossy, text);
  if (tokenizer->decode(ids) != lossy || tokenizer->decode(tokenizer->encode_full(text)) != lossy) std::abort();
  if (is_valid_utf8(text)) {
    const size_t at = next_safe_cut(text, size / 3);
    std::vector<di::TokenId> parts = tokenizer->encode_plain(text.substr(0, at));
    tokenizer->encode_plain(text.substr(at), parts);
    if (parts != ids) std::abort();
  }
  static_cast<void>(Tokenizer::from_json(text, "input"));
  return 0;
}
