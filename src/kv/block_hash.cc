#include "kv/block_hash.h"

#include <algorithm>

namespace di::kv {
namespace {

void put_u16(std::string& out, uint16_t v) {
  out.push_back(static_cast<char>(v & 0xFF));
  out.push_back(static_cast<char>(v >> 8));
}

void put_u32(std::string& out, uint32_t v) {
  put_u16(out, static_cast<uint16_t>(v & 0xFFFF));
  put_u16(out, static_cast<uint16_t>(v >> 16));
}

void put_bytes(std::string& out, const Sha256& digest) {
  for (const uint8_t byte : digest) out.push_back(static_cast<char>(byte));
}

constexpr char kFullBlock = 0x42;
constexpr char kTail = 0x54;

}  // namespace

BlockKey root_key(const std::map<uint16_t, std::string>& fields) {
  constexpr std::string_view kPrefix = "deepinfer/kv/root/1";
  std::string text(kPrefix);
  text.push_back('\0');
  for (const auto& [tag, bytes] : fields) {
    put_u16(text, tag);
    put_u32(text, static_cast<uint32_t>(bytes.size()));
    text += bytes;
  }
  return sha256(text);
}

BlockKey root_key(const RootFields& f) {
  std::map<uint16_t, std::string> fields;
  const auto add = [&](uint16_t tag, const std::optional<std::string>& value) {
    if (value) fields[tag] = *value;
  };
  add(1, f.model_id);
  add(2, f.weights_digest);
  add(3, f.layout_digest);
  add(4, f.numerics);
  add(5, f.adapter_digest);
  add(6, f.domain_salt);
  put_u32(fields[7], static_cast<uint32_t>(f.block_tokens));
  return root_key(fields);
}

BlockKey block_key(const BlockKey& parent, std::span<const int32_t> tokens, int64_t first_pos, int32_t block_tokens,
                   std::span<const MediaSpan> media) {
  const auto n = static_cast<int64_t>(tokens.size());
  DI_CHECK(n >= 1 && n <= block_tokens, "a block of {} tokens, expected 1 to {}", n, block_tokens);
  std::string text;
  text.reserve(64 + tokens.size() * 4);
  text.push_back(n == block_tokens ? kFullBlock : kTail);
  put_bytes(text, parent);
  put_u32(text, static_cast<uint32_t>(n));
  for (const int32_t token : tokens) put_u32(text, static_cast<uint32_t>(token));
  std::vector<MediaSpan> items;
  for (MediaSpan span : media) {
    span.start -= first_pos;
    if (span.start < n && span.start + int64_t{span.length} > 0) items.push_back(span);
  }
  std::sort(items.begin(), items.end(), [](const MediaSpan& a, const MediaSpan& b) { return a.start < b.start; });
  put_u16(text, static_cast<uint16_t>(items.size()));
  for (const MediaSpan& span : items) {
    put_u32(text, static_cast<uint32_t>(static_cast<int32_t>(span.start)));
    put_u32(text, span.length);
    put_bytes(text, span.digest);
  }
  return sha256(text);
}

void BlockChain::extend(std::span<const int32_t> tokens, std::span<const MediaSpan> media) {
  const auto size = static_cast<size_t>(block_tokens_);
  for (size_t first = keys_.size() * size; first + size <= tokens.size(); first += size) {
    const BlockKey& parent = keys_.empty() ? root_ : keys_.back();
    keys_.push_back(block_key(parent, tokens.subspan(first, size), static_cast<int64_t>(first), block_tokens_, media));
  }
}

}  // namespace di::kv
