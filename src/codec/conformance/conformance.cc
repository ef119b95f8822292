#include "codec/conformance/conformance.h"

#include "base/sha256.h"
#include "codec/api/events.h"
#include "codec/conformance/case_files.h"
#include "codec/tokenizer/unicode.h"

namespace di::codec {

namespace {

using namespace conformance;

std::string id_digest(const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(static_cast<uint32_t>(id) >> shift));
  }
  return to_hex(sha256(bytes));
}

// One encoding against count, digest and, where given, the ids.
Result<std::string> ids_difference(const Json& c, const std::string& kind, const Json* ids,
                                   const std::vector<TokenId>& found) {
  if (ids != nullptr) {
    const std::vector<TokenId> expected = DI_TRY(ids_of(*ids));
    if (expected != found) {
      return difference(kind + "_ids", fmt::format("{}", fmt::join(expected, ",")),
                        fmt::format("{}", fmt::join(found, ",")));
    }
  }
  if (const Json* n = c.find_value("n_" + kind); n != nullptr && n->to_u64() != found.size()) {
    return difference("n_" + kind, to_json(*n), fmt::format("{}", found.size()));
  }
  if (const Json* digest = c.find_value("sha256_" + kind); digest != nullptr && digest->is_string()) {
    return difference("sha256_" + kind, digest->as_string(), id_digest(found));
  }
  return std::string();
}

Result<std::string> encode_difference(const Json& c, const Tokenizer& tokenizer) {
  const std::string_view text = DI_TRY(text_at(c, "text"));
  const std::vector<TokenId> full = tokenizer.encode_full(text);
  const Json* full_ids = c.find_value("full_ids");
  std::string problem = DI_TRY(ids_difference(c, "full", full_ids, full));
  if (!problem.empty()) return problem;
  const Json* plain_ids = c.find_value("plain_ids");
  problem =
      DI_TRY(ids_difference(c, "plain", plain_ids != nullptr ? plain_ids : full_ids, tokenizer.encode_plain(text)));
  if (!problem.empty()) return problem;
  const Json* equal = c.find_value("decode_full_equals_text");
  if (equal == nullptr) return std::string();
  const std::string_view decoded = *equal == Json(true) ? text : DI_TRY(text_at(c, "decode_full"));
  return difference("decode_full", decoded, tokenizer.decode(full));
}

Result<std::string> decode_difference(const Json& c, const Tokenizer& tokenizer) {
  const std::vector<TokenId> ids = DI_TRY(ids_at(c, "ids"));
  std::string problem = difference("text", DI_TRY(text_at(c, "text")), tokenizer.decode(ids));
  if (problem.empty() && c.find_value("text_skip_special") != nullptr) {
    problem = difference("text_skip_special", DI_TRY(text_at(c, "text_skip_special")), tokenizer.decode(ids, true));
  }
  return problem;
}

Result<std::string> class_difference(const std::string& name, const Json& ranges) {
  constexpr std::pair<std::string_view, uint8_t> kClasses[] = {{"L", kLetter},      {"M", kMark},   {"N", kNumber},
                                                               {"P", kPunctuation}, {"S", kSymbol}, {"s", kWhiteSpace}};
  uint8_t bit = 0;
  for (const auto& [letter, value] : kClasses) {
    if (name == letter) bit = value;
  }
  if (bit == 0 || !ranges.is_array()) return fail(Errc::kCorruption, "class `{}` is not known", name);
  std::vector<bool> expected(0x110000);
  for (const Json& range : ranges.as_array()) {
    if (range.size() != 2) return fail(Errc::kCorruption, "a range must be [first, last]");
    const int64_t last = range.as_array()[1].to_i64().value_or(-1);
    for (int64_t cp = range.as_array()[0].to_i64().value_or(0); cp <= last && cp < 0x110000; ++cp) {
      expected[static_cast<size_t>(cp)] = true;
    }
  }
  for (uint32_t cp = 0; cp < 0x110000; ++cp) {
    if (((char_class(cp) & bit) != 0) != expected[cp]) {
      return fmt::format("U+{:04X}: expected {}, found {}", cp, expected[cp] ? "member" : "no member",
                         expected[cp] ? "no member" : "member");
    }
  }
  return std::string();
}

std::string outcome(const Result<std::string>& problem) {
  return problem ? *problem : "the case cannot run: " + problem.error().message;
}

bool has(const Json& c, std::string_view key) {
  return c.find(key) != nullptr;
}

// The checksum of a generated id (recipe.md §5.1).
std::string tool_call_id_difference(const Json& item) {
  if (!item.is_string() || item.as_string().size() < 12)
    return "the case cannot run: expected an id, found " + describe_json(item);
  const std::string& id = item.as_string();
  const size_t random = id.size() - 24;
  const bool empty = id.substr(0, random).ends_with("ET_");
  const auto index = static_cast<size_t>(std::strtoul(id.c_str() + 5, nullptr, 10));
  return difference("id", id, api::make_tool_call_id(index, empty, id.substr(random, 20)));
}

}  // namespace

ConformanceResult run_tokenizer_cases(const std::string& dir, const std::string& vectors_dir) {
  ConformanceResult result;
  const Result<Tokenizers> tokenizers = load_tokenizers(dir, vectors_dir, false);
  if (!tokenizers) {
    result.add("tokenizer", tokenizers.error().message);
    return result;
  }
  const Tokenizer& tokenizer = *tokenizers->v4;
  for_each_case(
      dir, result,
      [&](const Json& c, const std::string& where) {
        const bool encode = has(c, "text") && (has(c, "full_ids") || has(c, "n_full") || has(c, "sha256_full"));
        const bool decode = !encode && has(c, "text") && has(c, "ids");
        if (encode) result.add(id_of(c, where), outcome(encode_difference(c, tokenizer)));
        if (decode) result.add(id_of(c, where), outcome(decode_difference(c, tokenizer)));
        if (encode || decode) ++result.compared[encode ? "encodings" : "decodings"];
      },
      [&](const Json& file, const std::string& name) {
        const Json* classes = file.find_value("classes");
        if (classes == nullptr || !classes->is_object()) return;
        for (const JsonMember& member : classes->as_object()) {
          result.add(name + " " + member.key, outcome(class_difference(member.key, member.value)));
          ++result.compared["character classes"];
        }
      });
  return result;
}

ConformanceResult run_recipe_cases(const std::string& dir, const std::string& vectors_dir) {
  ConformanceResult result;
  const Result<Tokenizers> tokenizers = load_tokenizers(dir, vectors_dir, true);
  if (!tokenizers) {
    result.add("tokenizer", tokenizers.error().message);
    return result;
  }
  for_each_case(
      dir, result,
      [&](const Json& c, const std::string& where) {
        if (!has(c, "api")) return;  // a case of another kind
        const Json* outcome_of = c.find_value("result");
        if (has(c, "inputs")) {
          ++result.compared["streams"];
          result.add(id_of(c, where), check_stream(c, *tokenizers));
        } else if (outcome_of != nullptr && outcome_of->find_value("ok") != nullptr &&
                   *outcome_of->find("ok") == Json(false)) {
          result.add(id_of(c, where), check_rejection(c, result));
        } else {
          ++result.compared["requests"];
          result.add(id_of(c, where), check_request(c, *tokenizers));
        }
      },
      [&](const Json& file, const std::string& name) {
        const Json* ids = file.find_value("ids");
        if (ids == nullptr || !ids->is_array()) return;
        for (const Json& id : ids->as_array()) {
          ++result.compared["tool call ids"];
          result.add(name + " " + to_json(id), tool_call_id_difference(id));
        }
      });
  return result;
}

}  // namespace di::codec
