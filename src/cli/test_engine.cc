#include "cli/test_engine.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>

#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/sha256.h"

namespace di::cli {
namespace {

using engine::ScriptedAnswer;
using engine::ScriptedAnswerRef;
using engine::ScriptedFault;
using engine::ScriptedToken;

constexpr double kNsPerMsD = 1e6;

// ---- mock ----

struct MockSettings {
  double prefill_tps = 0;  // prompt tokens per second; 0: no time
  double step_ms = 0;
  double seq_ms = 0;
  int64_t tokens = 64;         // of an answer, before its end
  std::vector<double> accept;  // engine::ScriptedOptions::acceptance
};

constexpr size_t kMostDrafts = 16;

// 0.9:0.7:… with one number a draft.
Result<std::vector<double>> read_acceptance(std::string_view text) {
  std::vector<double> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(':', at), text.size());
    double value = -1;
    const char* last = text.data() + end;
    if (std::from_chars(text.data() + at, last, value).ptr != last || value < 0 || value > 1 ||
        out.size() == kMostDrafts) {
      return fail(Errc::kInvalidRequest,
                  "--engine mock: accept is `{}`, expected 1 to {} numbers from 0 to 1, as in "
                  "accept=0.9:0.7",
                  text, kMostDrafts);
    }
    out.push_back(value);
    at = end + 1;
  }
  return out;
}

Result<MockSettings> read_mock(const std::string& text) {
  MockSettings out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    at = end + 1;
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals);
    if (key == "accept" && equals != std::string::npos) {
      out.accept = DI_TRY(read_acceptance(std::string_view(item).substr(equals + 1)));
      continue;
    }
    double value = -1;
    if (equals != std::string::npos) {
      const char* last = item.data() + item.size();
      if (std::from_chars(item.data() + equals + 1, last, value).ptr != last) value = -1;
    }
    double* target = key == "prefill_tps" ? &out.prefill_tps
                     : key == "step_ms"   ? &out.step_ms
                     : key == "seq_ms"    ? &out.seq_ms
                                          : nullptr;
    if (value < 0 || (target == nullptr && key != "tokens")) {
      return fail(Errc::kInvalidRequest,
                  "--engine mock: `{}` is no setting; expected prefill_tps, step_ms, seq_ms or tokens with a value of "
                  "at least 0, or accept with the chance of each draft",
                  item);
    }
    if (target != nullptr) {
      *target = value;
    } else {
      out.tokens = static_cast<int64_t>(value);
    }
  }
  return out;
}

// Ordinary words of the vocabulary: a space and at least three letters.
std::vector<TokenId> words_of(const codec::Tokenizer& tokenizer) {
  std::vector<TokenId> out;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (tokenizer.is_added(id) || bytes.size() < 4 || bytes[0] != ' ') continue;
    if (std::all_of(bytes.begin() + 1, bytes.end(), [](char c) { return c >= 'a' && c <= 'z'; })) out.push_back(id);
  }
  return out;
}

void set_up_mock(const MockSettings& settings, const codec::TokenizerRef& tokenizer, engine::ScriptedOptions& out) {
  out.backend = "mock";
  out.acceptance = settings.accept;
  out.max_drafts = static_cast<int32_t>(settings.accept.size());
  out.prompt_row_ns = settings.prefill_tps > 0 ? static_cast<int64_t>(1e9 / settings.prefill_tps) : 0;
  out.step_ns = static_cast<int64_t>(settings.step_ms * kNsPerMsD);
  out.sequence_ns = static_cast<int64_t>(settings.seq_ms * kNsPerMsD);
  const TokenId think_start = tokenizer->added_id("<think>").value_or(-1);
  const TokenId think_end = tokenizer->added_id("</think>").value_or(-1);
  out.answer = [words = words_of(*tokenizer), think_start, think_end,
                n = settings.tokens](std::span<const int32_t> prompt) {
    auto answer = std::make_shared<ScriptedAnswer>();
    const uint64_t hash = XXH3_64bits(prompt.data(), prompt.size_bytes());
    const bool thinks = think_end >= 0 && !prompt.empty() && prompt.back() == think_start;
    for (int64_t i = 0; i < n; ++i) {
      if (thinks && i == n / 4) answer->tokens.push_back({think_end, 0, {}, 0});
      const uint64_t draw = split_mix64(hash + static_cast<uint64_t>(i) * kSplitMixGamma);
      answer->tokens.push_back({words.empty() ? 0 : words[draw % words.size()], 0, {}, 0});
    }
    return answer;
  };
}

// ---- scripted ----

struct ScriptLine {
  std::string text;    // substring of the prompt's text; empty: any
  std::string sha256;  // of the prompt's text, hex; empty: any
  ScriptedAnswerRef answer;
};

using Failure = std::unexpected<Error>;

Failure bad(std::string_view field, std::string_view expected, const Json& found) {
  return fail(Errc::kInvalidRequest, "{}: expected {}, found {}", field, expected, describe_json(found));
}

// The token of each single byte.
std::array<TokenId, 256> byte_tokens(const codec::Tokenizer& tokenizer) {
  std::array<TokenId, 256> out{};
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.size() == 1 && !tokenizer.is_added(id)) out[static_cast<unsigned char>(bytes[0])] = id;
  }
  return out;
}

Result<std::vector<TokenId>> hex_tokens(const std::string& hex, const std::array<TokenId, 256>& bytes) {
  std::vector<TokenId> out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    uint8_t byte = 0;
    const char* end = hex.data() + i + 2;
    if (std::from_chars(hex.data() + i, end, byte, 16).ptr != end)
      return fail(Errc::kInvalidRequest, "bytes: `{}` is no hexadecimal text", hex);
    out.push_back(bytes[byte]);
  }
  if (hex.size() % 2 != 0) return fail(Errc::kInvalidRequest, "bytes: `{}` has an odd number of digits", hex);
  return out;
}

Result<std::vector<TokenId>> output_tokens(const Json& line, const codec::Tokenizer& tokenizer,
                                           const std::array<TokenId, 256>& bytes) {
  std::vector<TokenId> out;
  if (const Json* ids = line.find_value("tokens")) {
    if (!ids->is_array()) return bad("tokens", "a list of token ids", *ids);
    for (const Json& id : ids->as_array()) {
      const std::optional<int64_t> value = id.to_i64();
      if (!value || *value < 0 || *value >= tokenizer.vocab_size()) return bad("tokens", "a token id", id);
      out.push_back(static_cast<TokenId>(*value));
    }
    return out;
  }
  if (const Json* hex = line.find_value("bytes")) {
    if (!hex->is_string()) return bad("bytes", "hexadecimal text", *hex);
    return hex_tokens(hex->as_string(), bytes);
  }
  const Json* text = line.find_value("text");
  if (text == nullptr || !text->is_string())
    return fail(Errc::kInvalidRequest, "one of `text`, `tokens` and `bytes` is needed");
  const std::vector<TokenId> whole = tokenizer.encode_full(text->as_string());
  // "split": one token per byte, as in a text whose tokens are cut unluckily; special tokens stay whole.
  const Json* split = line.find_value("split");
  if (split == nullptr || !split->is_bool() || !split->as_bool()) return whole;
  for (const TokenId id : whole) {
    if (tokenizer.is_added(id)) {
      out.push_back(id);
    } else {
      for (const char c : tokenizer.token_bytes(id)) out.push_back(bytes[static_cast<unsigned char>(c)]);
    }
  }
  return out;
}

Result<void> read_times(const Json& line, ScriptedAnswer& answer) {
  const Json* delays = line.find_value("delays_ms");
  if (delays == nullptr) return {};
  if (const std::optional<double> all = delays->to_double(); all && *all >= 0) {
    for (ScriptedToken& token : answer.tokens) token.delay_ns = static_cast<int64_t>(*all * kNsPerMsD);
    return {};
  }
  if (!delays->is_array()) return bad("delays_ms", "milliseconds, or a list of them", *delays);
  // One more than tokens: the last one delays the end.
  for (size_t i = 0; i < delays->size(); ++i) {
    const std::optional<double> ms = delays->as_array()[i].to_double();
    if (!ms || *ms < 0) return bad("delays_ms", "milliseconds", delays->as_array()[i]);
    if (i < answer.tokens.size()) answer.tokens[i].delay_ns = static_cast<int64_t>(*ms * kNsPerMsD);
  }
  return {};
}

Result<void> read_logprobs(const Json& line, const codec::Tokenizer& tokenizer, ScriptedAnswer& answer) {
  const Json* list = line.find_value("logprobs");
  if (list == nullptr) return {};
  if (!list->is_array() || list->size() > answer.tokens.size())
    return bad("logprobs", "a list no longer than the output", *list);
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& item = list->as_array()[i];
    const Json* own = item.is_object() ? item.find_value("logprob") : &item;
    const std::optional<double> value = own == nullptr ? std::nullopt : own->to_double();
    if (!value || *value > 0) return bad("logprobs", "a log probability", item);
    answer.tokens[i].logprob = static_cast<float>(*value);
    const Json* top = item.is_object() ? item.find_value("top") : nullptr;
    if (top == nullptr) continue;
    if (!top->is_array()) return bad("logprobs", "top: a list of [token id, log probability]", *top);
    for (const Json& pair : top->as_array()) {
      if (!pair.is_array() || pair.size() != 2) return bad("logprobs", "[token id, log probability]", pair);
      const int64_t id = pair.as_array()[0].to_i64().value_or(-1);
      const double logprob = pair.as_array()[1].to_double().value_or(1);
      if (id < 0 || id >= tokenizer.vocab_size() || logprob > 0)
        return bad("logprobs", "[token id, log probability]", pair);
      answer.tokens[i].others.emplace_back(static_cast<int32_t>(id), static_cast<float>(logprob));
    }
  }
  return {};
}

Result<void> read_fault(const Json& line, ScriptedAnswer& answer) {
  const Json* fault = line.find_value("fault");
  if (fault == nullptr) return {};
  const std::string kind = DI_TRY(json_string(*fault, "kind"));
  answer.fault_at = fault->find_value("at") != nullptr ? static_cast<int32_t>(DI_TRY(json_i64(*fault, "at"))) : 0;
  answer.fault = kind == "error"             ? ScriptedFault::kError
                 : kind == "hang"            ? ScriptedFault::kHang
                 : kind == "crash"           ? ScriptedFault::kCrash
                 : kind == "late_completion" ? ScriptedFault::kLateCompletion
                 : kind == "wrong_order"     ? ScriptedFault::kWrongOrder
                 : kind == "damage"          ? ScriptedFault::kDamage
                                             : ScriptedFault::kNone;
  if (answer.fault == ScriptedFault::kNone) {
    return fail(Errc::kInvalidRequest,
                "fault: kind is `{}`, expected error, hang, crash, late_completion, wrong_order or damage", kind);
  }
  if (answer.fault != ScriptedFault::kLateCompletion) return {};
  const double ms = fault->find_value("ms") == nullptr ? -1 : fault->find_value("ms")->to_double().value_or(-1);
  if (ms < 0) return fail(Errc::kInvalidRequest, "fault: late_completion needs ms, at least 0");
  answer.late_ns = static_cast<int64_t>(ms * kNsPerMsD);
  return {};
}

Result<void> read_accepted(const Json& line, ScriptedAnswer& answer) {
  const Json* list = line.find_value("accepted");
  if (list == nullptr) return {};
  if (!list->is_array()) return bad("accepted", "a list of numbers of drafts", *list);
  for (const Json& item : list->as_array()) {
    const std::optional<int64_t> n = item.to_i64();
    if (!n || *n < 0 || *n > static_cast<int64_t>(kMostDrafts)) return bad("accepted", "0 to 16 drafts", item);
    answer.accepted.push_back(static_cast<int32_t>(*n));
  }
  return {};
}

Result<ScriptLine> read_line(const Json& line, const codec::Tokenizer& tokenizer,
                             const std::array<TokenId, 256>& bytes) {
  if (!line.is_object()) return bad("line", "an object", line);
  for (const JsonMember& member : line.as_object()) {
    static constexpr std::string_view kKnown[] = {"match", "match_sha256", "text",     "tokens", "bytes",
                                                  "split", "delays_ms",    "logprobs", "fault",  "accepted"};
    if (std::find(std::begin(kKnown), std::end(kKnown), member.key) == std::end(kKnown))
      return fail(Errc::kInvalidRequest, "unknown member `{}`", member.key);
  }
  ScriptLine out;
  if (line.find_value("match") != nullptr) out.text = DI_TRY(json_string(line, "match"));
  if (line.find_value("match_sha256") != nullptr) out.sha256 = DI_TRY(json_string(line, "match_sha256"));
  auto answer = std::make_shared<ScriptedAnswer>();
  for (const TokenId id : DI_TRY(output_tokens(line, tokenizer, bytes))) answer->tokens.push_back({id, 0, {}, 0});
  DI_TRY(read_times(line, *answer));
  DI_TRY(read_logprobs(line, tokenizer, *answer));
  DI_TRY(read_fault(line, *answer));
  DI_TRY(read_accepted(line, *answer));
  out.answer = std::move(answer);
  return out;
}

Result<std::vector<ScriptLine>> read_script(const std::string& path, const codec::Tokenizer& tokenizer) {
  std::ifstream file(path);
  if (!file) return fail(Errc::kNotFound, "--engine scripted: cannot read {}", path);
  const std::array<TokenId, 256> bytes = byte_tokens(tokenizer);
  std::vector<ScriptLine> out;
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<Json> json = parse_json(text);
    Result<ScriptLine> line =
        json ? read_line(*json, tokenizer, bytes) : Result<ScriptLine>(std::unexpected(json.error()));
    if (!line) return fail(Errc::kInvalidRequest, "{}:{}: {}", path, number, line.error().message);
    out.push_back(std::move(*line));
  }
  return out;
}

}  // namespace

Result<EngineChoice> parse_engine_choice(const std::string& text) {
  if (text == "real") return EngineChoice{};
  if (text == "mock") return EngineChoice{EngineChoice::Kind::kMock, {}};
  if (text.starts_with("mock:")) return EngineChoice{EngineChoice::Kind::kMock, text.substr(5)};
  if (text.starts_with("scripted:") && text.size() > 9)
    return EngineChoice{EngineChoice::Kind::kScripted, text.substr(9)};
  return fail(Errc::kInvalidRequest, "--engine is `{}`, expected real, mock, mock:KEY=VALUE,… or scripted:FILE", text);
}

Result<engine::ScriptedOptions> test_engine_options(const EngineChoice& choice, codec::TokenizerRef tokenizer) {
  engine::ScriptedOptions out;
  out.vocab_size = tokenizer->vocab_size();
  out.window = out.block_tokens;
  out.eos_token_id = tokenizer->added_id("<｜end▁of▁sentence｜>").value_or(1);
  if (choice.kind == EngineChoice::Kind::kMock) {
    set_up_mock(DI_TRY(read_mock(choice.argument)), tokenizer, out);
    return out;
  }
  std::vector<ScriptLine> lines = DI_TRY(read_script(choice.argument, *tokenizer));
  for (const ScriptLine& line : lines) {
    for (const int32_t n : line.answer->accepted) out.max_drafts = std::max(out.max_drafts, n);
  }
  out.answer = [lines = std::move(lines), tokenizer](std::span<const int32_t> prompt) -> ScriptedAnswerRef {
    const std::string text = tokenizer->decode(prompt);
    for (const ScriptLine& line : lines) {
      if (!line.text.empty() && text.find(line.text) == std::string::npos) continue;
      if (!line.sha256.empty() && to_hex(sha256(text)) != line.sha256) continue;
      return line.answer;
    }
    return nullptr;
  };
  return out;
}

}  // namespace di::cli
