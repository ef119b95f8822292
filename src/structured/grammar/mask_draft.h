// A mask in the making: what differs from one that is known. Costs what is touched, not the size of the vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "structured/structured.h"

namespace di::structured {

class MaskDraft {
 public:
  // none: a mask without a token; must outlive the draft.
  explicit MaskDraft(const std::vector<uint32_t>& none) : none_(none) {}

  // base: none = no token; changed: the tokens that differ from it.
  void start(const std::vector<uint32_t>* base, std::span<const TokenId> changed = {}) {
    drop();
    turned_.resize(none_.size(), 0);
    known_ = base;
    base_ = base != nullptr ? base->data() : none_.data();
    for (const TokenId token : changed) turn(token);
  }
  bool has(TokenId token) const {
    const auto i = static_cast<uint32_t>(token);
    return (((base_[i >> 5U] ^ turned_[i >> 5U]) >> (i & 31U)) & 1U) != 0;
  }
  void set(TokenId token) {
    if (!has(token)) turn(token);
  }
  void clear(TokenId token) {
    if (has(token)) turn(token);
  }
  void set(std::span<const TokenId> tokens) {
    for (const TokenId t : tokens) set(t);
  }
  void clear(std::span<const TokenId> tokens) {
    for (const TokenId t : tokens) clear(t);
  }
  const std::vector<uint32_t>* base() const { return known_; }
  // The tokens that differ from base(), each once; the draft is empty afterwards.
  std::vector<TokenId> take_changes() {
    std::vector<TokenId> out;
    for (const TokenId token : touched_) {
      const auto i = static_cast<uint32_t>(token);
      const uint32_t bit = 1U << (i & 31U);
      if ((turned_[i >> 5U] & bit) == 0) continue;
      turned_[i >> 5U] &= ~bit;
      out.push_back(token);
    }
    touched_.clear();
    return out;
  }
  // An upper bound for their number.
  std::size_t touched() const { return touched_.size(); }
  std::vector<uint32_t> take_whole() {
    std::vector<uint32_t> out(none_.size());
    for (std::size_t w = 0; w < out.size(); ++w) out[w] = base_[w] ^ turned_[w];
    drop();
    return out;
  }

 private:
  void turn(TokenId token) {
    const auto i = static_cast<uint32_t>(token);
    turned_[i >> 5U] ^= 1U << (i & 31U);
    touched_.push_back(token);
  }
  void drop() {
    for (const TokenId token : touched_) turned_[static_cast<uint32_t>(token) >> 5U] = 0;
    touched_.clear();
  }

  const std::vector<uint32_t>& none_;
  std::vector<uint32_t> turned_;
  std::vector<TokenId> touched_;
  const std::vector<uint32_t>* known_ = nullptr;
  const uint32_t* base_ = nullptr;
};

}  // namespace di::structured
