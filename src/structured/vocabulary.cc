#include "structured/vocabulary.h"

#include <algorithm>

#include "base/json.h"
#include "structured/regex/json_content.h"

namespace di::structured {
namespace {

struct SliceKind {
  TextKind chars;
  uint32_t max_chars = 0;
};

const std::array<SliceKind, kSlices>& slice_kinds() {
  static const std::array<SliceKind, kSlices> kinds = [] {
    TextKind common;  // characters of JSON strings that need no escape
    TextKind solid;   // but for the space
    TextKind word;
    TextKind small;
    common.wide = solid.wide = true;
    for (uint32_t c = 0x20; c < 0x7f; ++c) {
      const bool lower = c >= 'a' && c <= 'z';
      if (c != '"' && c != '\\') common.add_ascii(c);
      if (c != '"' && c != '\\' && c != ' ') solid.add_ascii(c);
      if (lower || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_') word.add_ascii(c);
      if (lower) small.add_ascii(c);
    }
    return std::array<SliceKind, kSlices>{{{common, 128}, {common, 16}, {solid, 16}, {word, 16}, {small, 16}}};
  }();
  return kinds;
}

uint8_t slices_of(const TextKind& k) {
  uint8_t in = 0;
  for (size_t i = 0; i < kSlices; ++i) {
    if (k.chars <= slice_kinds()[i].max_chars && k.within(slice_kinds()[i].chars)) in |= static_cast<uint8_t>(1U << i);
  }
  return in;
}

// The character so far, and the bytes of it still to come: whether it can become one of wide_chars().
bool may_be_wide(uint32_t code, uint32_t due, uint32_t lead) {
  const uint32_t least = lead >= 0xf0 ? 0x10000 : lead >= 0xe0 ? 0x800 : 0x80;
  const uint32_t first = std::max(code << (6 * due), least);
  const uint32_t last = ((code + 1) << (6 * due)) - 1;
  return std::ranges::any_of(wide_chars().ranges(), [&](const CharSet::Range& r) {
    return std::max(r.first, first) <= std::min(r.second, last);
  });
}

// Follows the bytes of a text.
struct CharReader {
  uint8_t due = 0;  // bytes of a character still to come
  uint8_t lead = 0;
  uint32_t code = 0;

  // The kind of what is whole with this byte; `other` where it cannot stand.
  TextKind read(uint8_t byte) {
    TextKind k;
    if (byte >= 0x80 && byte < 0xc0) {
      if (due == 0) {
        k.other = true;
        return k;
      }
      code = code << 6U | (byte & 0x3fU);
      --due;
      if (due == 0) (may_be_wide(code, 0, lead) ? k.wide : k.other) = true;
      return k;
    }
    k.other = due != 0 || byte >= 0xf8;
    due = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
    lead = byte;
    code = byte & (0x3fU >> due);
    if (due == 0) k.add_ascii(byte);
    return k;
  }
  // What a text that ends here is besides: a character that has begun can go on.
  TextKind end() const {
    TextKind k;
    if (due != 0) (may_be_wide(code, due, lead) ? k.wide : k.other) = true;
    return k;
  }
};

void add_kind(TextKind& to, const TextKind& more) {
  to.ascii[0] |= more.ascii[0];
  to.ascii[1] |= more.ascii[1];
  to.wide = to.wide || more.wide;
  to.other = to.other || more.other;
}

// Ids in the order of their texts. The first eight bytes decide almost always.
std::vector<TokenId> sorted_by_text(const std::vector<Vocabulary::Token>& tokens, std::vector<TokenId> ids) {
  std::vector<std::pair<uint64_t, TokenId>> keyed;
  keyed.reserve(ids.size());
  for (const TokenId id : ids) {
    const std::string& bytes = tokens[static_cast<size_t>(id)].bytes;
    uint64_t key = 0;
    for (size_t i = 0; i < 8; ++i) key = key << 8U | (i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : 0U);
    keyed.emplace_back(key, id);
  }
  std::ranges::sort(keyed, [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    return tokens[static_cast<size_t>(a.second)].bytes < tokens[static_cast<size_t>(b.second)].bytes;
  });
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = keyed[i].second;
  return ids;
}

}  // namespace

const CharSet& wide_chars() {
  static const CharSet set = [] {
    CharSet s;
    uint32_t next = 0xa1;
    for (const auto& [first, last] :
         {std::pair{0x1680U, 0x1680U}, std::pair{0x2000U, 0x200aU}, std::pair{0x2028U, 0x2029U},
          std::pair{0x202fU, 0x202fU}, std::pair{0x205fU, 0x205fU}, std::pair{0x3000U, 0x3000U},
          std::pair{0xd800U, 0xdfffU}, std::pair{0xfeffU, 0xfeffU}}) {
      s.add(next, first - 1);
      next = last + 1;
    }
    s.add(next, 0x10ffff);
    s.normalise();
    return s;
  }();
  return set;
}

VocabularyImpl::VocabularyImpl(std::vector<Vocabulary::Token> all, SpecialTokens roles)
    : tokens(std::move(all)), specials(roles) {
  ordinary_mask.assign((tokens.size() + 31) / 32, 0);
  no_mask = ordinary_mask;
  std::vector<TokenId> sorted;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (tokens[i].bytes.empty()) continue;
    if (tokens[i].special) {
      special_ids.emplace(tokens[i].bytes, id);
      continue;
    }
    ordinary_mask[i >> 5U] |= 1U << (i & 31U);
    if (tokens[i].bytes.size() < 255) sorted.push_back(id);
  }
  sorted = sorted_by_text(tokens, std::move(sorted));
  trie = build(sorted);
  build_slices();
  build_strings();
}

Trie VocabularyImpl::build(std::span<const TokenId> sorted) const {
  Trie t;
  t.nodes.reserve(sorted.size() * 9 / 4);
  t.order.reserve(sorted.size());
  std::vector<uint32_t> open;  // nodes on the path to the last token
  std::string_view last;
  auto close_to = [&](size_t depth) {
    while (open.size() > depth) {
      TrieNode& n = t.nodes[open.back()];
      n.skip = static_cast<uint32_t>(t.nodes.size());
      n.last = static_cast<uint32_t>(t.order.size());
      open.pop_back();
    }
  };
  for (const TokenId id : sorted) {
    const std::string_view bytes = tokens[static_cast<size_t>(id)].bytes;
    size_t common = 0;
    while (common < last.size() && common < bytes.size() && last[common] == bytes[common]) ++common;
    if (common == bytes.size()) continue;  // the same bytes twice: the first row stands for both
    close_to(common);
    for (size_t d = common; d < bytes.size(); ++d) {
      TrieNode n;
      n.byte = static_cast<uint8_t>(bytes[d]);
      n.depth = static_cast<uint8_t>(d);
      n.first = static_cast<uint32_t>(t.order.size());
      open.push_back(static_cast<uint32_t>(t.nodes.size()));
      t.nodes.push_back(n);
    }
    t.nodes.back().token = id;
    t.order.push_back(id);
    last = bytes;
  }
  close_to(0);
  t.root.fill(UINT32_MAX);
  for (uint32_t i = 0; i < t.nodes.size(); i = t.nodes[i].skip) t.root[t.nodes[i].byte] = i;
  find_kinds(t);
  return t;
}

// What the rests of tokens are made of, from the leaves up: a child comes after its parent in the array.
void VocabularyImpl::find_kinds(Trie& t) const {
  constexpr uint32_t kSmall = 4;  // tokens of a subtree not worth a look
  std::vector<TextKind> kinds(t.nodes.size());
  std::vector<uint32_t> parent(t.nodes.size(), UINT32_MAX);
  std::vector<bool> begins(t.nodes.size(), false);  // a character
  std::array<uint32_t, 256> path{};
  std::array<CharReader, 257> readers{};
  for (uint32_t i = 0; i < t.nodes.size(); ++i) {
    const TrieNode& n = t.nodes[i];
    path[n.depth] = i;
    if (n.depth > 0) parent[i] = path[n.depth - 1U];
    CharReader reader = readers[n.depth];
    begins[i] = reader.due == 0 && (n.byte & 0xc0U) != 0x80;
    if (n.byte < 0x80 && reader.due == 0) {
      kinds[i].add_ascii(n.byte);
    } else {
      kinds[i] = reader.read(n.byte);
      if (n.token >= 0) add_kind(kinds[i], reader.end());
    }
    readers[n.depth + 1U] = reader;
  }
  for (size_t i = t.nodes.size(); i-- > 0;) {
    TrieNode& n = t.nodes[i];
    TextKind& k = kinds[i];
    if ((n.byte & 0xc0U) != 0x80) ++k.chars;
    n.chars = k.chars;
    if (begins[i]) {
      n.inside = slices_of(k);
      if (!k.other && n.last - n.first >= kSmall) {
        n.kind = static_cast<uint32_t>(t.kinds.size());
        t.kinds.push_back(k);
      }
    }
    if (parent[i] == UINT32_MAX) continue;
    TextKind& up = kinds[parent[i]];
    add_kind(up, k);
    up.chars = std::max(up.chars, k.chars);
  }
}

void VocabularyImpl::build_slices() {
  for (size_t k = 0; k < kSlices; ++k) {
    slices[k].chars = slice_kinds()[k].chars;
    slices[k].max_chars = slice_kinds()[k].max_chars;
    slices[k].mask.assign(ordinary_mask.size(), 0);
  }
  std::array<CharReader, 257> readers{};
  std::array<TextKind, 257> kinds{};
  uint8_t first = 0;
  for (const TrieNode& n : trie.nodes) {
    if (n.depth == 0) first = n.byte;
    CharReader reader = readers[n.depth];
    TextKind kind = kinds[n.depth];
    if ((n.byte & 0xc0U) != 0x80) ++kind.chars;
    if (n.byte < 0x80 && reader.due == 0) {
      kind.add_ascii(n.byte);
    } else {
      add_kind(kind, reader.read(n.byte));
    }
    readers[n.depth + 1U] = reader;
    kinds[n.depth + 1U] = kind;
    if (n.token < 0) continue;
    if (reader.due != 0) add_kind(kind, reader.end());
    const auto i = static_cast<uint32_t>(n.token);
    const uint8_t in = slices_of(kind);
    for (size_t k = 0; k < kSlices; ++k) {
      if (((in >> k) & 1U) == 0) continue;
      slices[k].mask[i >> 5U] |= 1U << (i & 31U);
      ++slices[k].by_byte[first];
      ++slices[k].tokens;
    }
  }
}

void VocabularyImpl::build_strings() {
  Budget budget;
  Arena arena(budget);
  const NodeId free = json_content(arena);
  const NodeId written = arena.json_string(arena.any_text());
  const size_t words = ordinary_mask.size();
  strings.free.assign(words, 0);
  for (auto& mask : strings.written) mask.assign(words, 0);
  std::vector<TokenId> quoted;
  std::array<NodeId, 256> free_at{free};
  std::array<NodeId, 256> written_at{written};
  std::array<uint32_t, 256> chars{};
  std::array<uint32_t, 256> plain{};  // the rest of a character that began before counts as one
  std::array<bool, 256> quote{};
  for (size_t i = 0; i < trie.nodes.size(); ++i) {
    const TrieNode& n = trie.nodes[i];
    const size_t d = n.depth;
    free_at[d + 1] = arena.row(free_at[d])[n.byte];
    written_at[d + 1] = n.byte == '"' && written_at[d] == written ? kNothing : arena.row(written_at[d])[n.byte];
    chars[d + 1] = chars[d] + (written_at[d] == written ? 1 : 0);
    plain[d + 1] = plain[d] + (d == 0 || (n.byte & 0xc0U) != 0x80 ? 1 : 0);
    quote[d + 1] = quote[d] || n.byte == '"';
    if (n.token < 0) continue;
    const size_t word = static_cast<size_t>(n.token) >> 5U;
    const uint32_t bit = 1U << (static_cast<uint32_t>(n.token) & 31U);
    if (quote[d + 1]) quoted.push_back(n.token);
    if (free_at[d + 1] != kNothing) strings.free[word] |= bit;
    if (written_at[d + 1] != kNothing) {
      for (uint32_t k = chars[d + 1]; k <= kFewChars; ++k) strings.written[k][word] |= bit;
    }
    const bool inside = written_at[d + 1] != kNothing;
    if (plain[d + 1] > kFewChars) strings.longer.push_back({n.token, plain[d + 1], inside ? chars[d + 1] : kNoLimit});
  }
  strings.quoted = build(quoted);
}

Vocabulary::Vocabulary(std::unique_ptr<VocabularyImpl> impl) : impl_(std::move(impl)) {}
Vocabulary::~Vocabulary() = default;

std::shared_ptr<const Vocabulary> Vocabulary::create(std::vector<Token> tokens, SpecialTokens specials) {
  return std::make_shared<const Vocabulary>(std::make_unique<VocabularyImpl>(std::move(tokens), specials));
}

std::shared_ptr<const Vocabulary> Vocabulary::create(std::vector<Token> tokens) {
  SpecialTokens roles;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].special) continue;
    const auto id = static_cast<TokenId>(i);
    const std::string& s = tokens[i].bytes;
    if (s == "<think>") roles.think_begin = id;
    if (s == "</think>") roles.think_end = id;
    if (s ==
        "\xef\xbd\x9c"
        "DSML\xef\xbd\x9c")
      roles.dsml = id;
    if (s ==
        "<\xef\xbd\x9c"
        "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>")
      roles.eos = id;
  }
  return create(std::move(tokens), roles);
}

int32_t Vocabulary::size() const {
  return static_cast<int32_t>(impl_->tokens.size());
}
std::string_view Vocabulary::bytes(TokenId id) const {
  return impl_->tokens[static_cast<size_t>(id)].bytes;
}
bool Vocabulary::is_special(TokenId id) const {
  return impl_->tokens[static_cast<size_t>(id)].special;
}
const SpecialTokens& Vocabulary::specials() const {
  return impl_->specials;
}

TokenId Vocabulary::special(std::string_view spelling) const {
  const auto it = impl_->special_ids.find(std::string(spelling));
  return it == impl_->special_ids.end() ? -1 : it->second;
}

std::vector<TokenId> Vocabulary::encode_greedy(std::string_view text, bool with_special) const {
  std::vector<TokenId> out;
  const auto& nodes = impl_->trie.nodes;
  for (size_t at = 0; at < text.size();) {
    TokenId best = -1;
    size_t length = 0;
    if (with_special) {
      for (const auto& [spelling, id] : impl_->special_ids) {
        if (spelling.size() > length && text.substr(at).starts_with(spelling)) {
          best = id;
          length = spelling.size();
        }
      }
    }
    // A special token later in the text ends the ordinary ones before it.
    if (best < 0) {
      uint32_t i = impl_->trie.root[static_cast<uint8_t>(text[at])];
      for (size_t d = 0; i != UINT32_MAX;) {
        const TrieNode& n = nodes[i];
        ++d;
        if (n.token >= 0) {
          best = n.token;
          length = d;
        }
        if (at + d >= text.size()) break;
        if (with_special && text.substr(at + d).starts_with("<\xef\xbd\x9c")) break;
        if (with_special && text.substr(at + d).starts_with("\xef\xbd\x9c")) break;
        const auto want = static_cast<uint8_t>(text[at + d]);
        uint32_t child = i + 1;
        while (child < n.skip && nodes[child].byte != want) child = nodes[child].skip;
        i = child < n.skip ? child : UINT32_MAX;
      }
    }
    if (best < 0) return {};
    out.push_back(best);
    at += length;
  }
  return out;
}

namespace {

// The byte alphabet of byte-level BPE: printable bytes stand for themselves, the others for U+0100 on.
std::unordered_map<uint32_t, uint8_t> byte_alphabet() {
  std::unordered_map<uint32_t, uint8_t> map;
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    map.emplace(printable ? b : next++, static_cast<uint8_t>(b));
  }
  return map;
}

}  // namespace

Expected<std::shared_ptr<const Vocabulary>> Vocabulary::from_tokenizer_json(std::string_view json) {
  auto doc = parse_json(json);
  if (!doc) return refuse("invalid_vocabulary", doc.error().message);
  const Json* model = doc->find("model");
  const Json* vocab = model != nullptr ? model->find("vocab") : nullptr;
  if (vocab == nullptr || !vocab->is_object()) return refuse("invalid_vocabulary", "no model.vocab object");
  std::vector<Token> tokens;
  auto slot = [&](int64_t id) -> Token* {
    if (id < 0 || id > 10'000'000) return nullptr;
    if (tokens.size() <= static_cast<size_t>(id)) tokens.resize(static_cast<size_t>(id) + 1);
    return &tokens[static_cast<size_t>(id)];
  };
  const auto alphabet = byte_alphabet();
  for (const JsonMember& m : vocab->as_object()) {
    Token* t = slot(m.value.to_i64().value_or(-1));
    if (t == nullptr) return refuse("invalid_vocabulary", "token id of \"" + m.key + "\" out of range");
    t->bytes.clear();
    for (size_t at = 0; at < m.key.size();) {
      const auto c = read_utf8(m.key, at);
      if (!c) return refuse("invalid_vocabulary", "token text is not UTF-8");
      const auto it = alphabet.find(*c);
      if (it != alphabet.end()) {
        t->bytes.push_back(static_cast<char>(it->second));
      } else {
        append_utf8(t->bytes, *c);
      }
    }
  }
  const Json* added = doc->find("added_tokens");
  if (added != nullptr && added->is_array()) {
    for (const Json& a : added->as_array()) {
      const Json* content = a.find("content");
      const Json* id = a.find("id");
      if (content == nullptr || !content->is_string() || id == nullptr) continue;
      Token* t = slot(id->to_i64().value_or(-1));
      if (t == nullptr) return refuse("invalid_vocabulary", "added token id out of range");
      *t = {content->as_string(), true};
    }
  }
  return create(std::move(tokens));
}

}  // namespace di::structured
