// Identity of KV blocks (kv-cache.md §2): a root that stands for everything but tokens that stored KV depends on, and a
// chain of SHA-256 hashes over the token blocks. Equal keys mean equal bytes; nothing process-random enters one. Pure
// functions; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"

namespace di::kv {

using BlockKey = Sha256;

struct BlockKeyHash {
  std::size_t operator()(const BlockKey& key) const {
    std::size_t value = 0;
    std::memcpy(&value, key.data(), sizeof value);  // the bytes of a SHA-256 are as good as any hash of them
    return value;
  }
};

// What the root stands for. An absent field differs from an empty one.
struct RootFields {
  std::optional<std::string> model_id;        // tag 1: name of the family as configured
  std::optional<std::string> weights_digest;  // tag 2, 32 bytes
  std::optional<std::string> layout_digest;   // tag 3, 32 bytes
  std::optional<std::string> numerics;        // tag 4
  std::optional<std::string> adapter_digest;  // tag 5, 32 bytes
  std::optional<std::string> domain_salt;     // tag 6: the tenant's namespace; absent = shared by all
  int32_t block_tokens = 128;                 // tag 7
};
BlockKey root_key(const RootFields& fields);
// The same over raw fields, tag -> bytes.
BlockKey root_key(const std::map<uint16_t, std::string>& fields);

// A span of placeholder tokens whose KV depends on something else: an image, audio.
struct MediaSpan {
  int64_t start = 0;  // absolute position of its first token
  uint32_t length = 0;
  Sha256 digest{};
};

// Key of the block of `tokens` (1 … block_tokens of them; fewer than block_tokens: a tail, which is no one's parent)
// that begins at `first_pos`. `media`: all spans of the sequence.
BlockKey block_key(const BlockKey& parent, std::span<const int32_t> tokens, int64_t first_pos, int32_t block_tokens,
                   std::span<const MediaSpan> media = {});

// The keys of a growing sequence's full blocks. Extending it costs the new blocks only.
class BlockChain {
 public:
  BlockChain() = default;
  BlockChain(const BlockKey& root, int32_t block_tokens) : root_(root), block_tokens_(block_tokens) {}

  // `tokens`: the whole sequence, which begins with the tokens of earlier calls.
  void extend(std::span<const int32_t> tokens, std::span<const MediaSpan> media = {});

  const BlockKey& root() const { return root_; }
  std::span<const BlockKey> keys() const { return keys_; }
  int32_t blocks() const { return static_cast<int32_t>(keys_.size()); }

 private:
  BlockKey root_{};
  int32_t block_tokens_ = 128;
  std::vector<BlockKey> keys_;
};

}  // namespace di::kv
