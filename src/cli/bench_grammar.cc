// deepinfer bench grammar (server.md §15.4): what constraints cost on this machine with this model's vocabulary:
// compiling, the first mask, the masks along a text and taking its tokens. One thread, no cache; processor time, so
// that other work on the machine does not count. A text that its constraint does not take to the end, or a mask that
// disagrees with what is taken, is a failure and no figure.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "base/json.h"
#include "cli/bench_report.h"
#include "cli/local_model.h"
#include "server/constraint.h"

namespace di::cli {
namespace {

using structured::ConstraintKind;
using structured::ConstraintSpec;

struct Case {
  std::string name;
  ConstraintSpec spec;
  std::vector<std::string> texts;    // that fit
  std::vector<std::string> refused;  // that do not
};

struct Cost {
  double compile_ms = 0;
  double first_mask_us = 0;
  std::vector<double> masks_us;  // the others, ascending
  double accept_us = 0;          // of all tokens
  int64_t tokens = 0;
  int64_t bytes = 0;
};

double thread_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

ConstraintSpec spec_of(ConstraintKind kind, std::string payload) {
  ConstraintSpec out;
  out.kind = kind;
  out.payload = std::move(payload);
  return out;
}

std::vector<Case> own_cases() {
  std::string words = "[";
  std::string last;
  for (int i = 0; i < 1000; ++i) {
    last = fmt::format("choice number {}", i);
    words += fmt::format("{}\"{}\"", i == 0 ? "" : ",", last);
  }
  words += "]";
  return {
      {"JSON object",
       spec_of(ConstraintKind::kJsonObject, ""),
       {R"({"name": "river", "length": 1230.5, "tags": ["long", "cold"], "inner": {"a": null, "b": [1, 2, 3]}})"},
       {R"([1])"}},
      {"JSON Schema",
       spec_of(ConstraintKind::kJsonSchema, R"({"type":"object","properties":{"answer":{"type":"string"},
         "count":{"type":"integer","minimum":0,"maximum":999},"valid":{"type":"boolean"},"label":{"enum":["a","b","c"]},
         "items":{"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"at":{"type":"string",
         "format":"date-time"}},"required":["id","at"],"additionalProperties":false},"maxItems":8}},
         "required":["answer","count","valid","label","items"],"additionalProperties":false})"),
       {R"({"answer": "It is about 42, they say.", "count": 42, "valid": true, "label": "b", "items": [{"id": 7, "at": "2026-11-30T12:30:00Z"}]})"},
       {R"({"answer": "x", "count": 1000, "valid": true, "label": "b", "items": []})"}},
      {"recursive schema",
       spec_of(ConstraintKind::kJsonSchema, R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object",
         "properties":{"value":{"type":"number"},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},
         "required":["value","children"],"additionalProperties":false}}})"),
       {R"({"value": 1, "children": [{"value": 2.5, "children": []}, {"value": -3, "children": [{"value": 4, "children": []}]}]})"},
       {R"({"value": 1})"}},
      {"regex",
       spec_of(ConstraintKind::kRegex, R"([A-Z][a-z]+(-[a-z]+)*@([a-z0-9]+\.)+(com|org|net)( \+\d{1,3} \d{4,12})?)"),
       {"River-boat-people@mail.example.org +44 123456789"},
       {"river@example.org"}},
      {"1,000 choices", spec_of(ConstraintKind::kChoice, words), {last}, {"choice number"}},
      {"grammar",
       spec_of(ConstraintKind::kEbnf,
               "root ::= sum\nsum ::= product ((\"+\" | \"-\") product)*\n"
               "product ::= atom ((\"*\" | \"/\") atom)*\n"
               "atom ::= [0-9]+ | \"(\" sum \")\"\n"),
       {"12+(3*45-6)/7*((8))-901"},
       {"12+"}},
  };
}

Result<std::vector<Case>> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(Errc::kInvalidRequest, "--cases {}: cannot be read", path);
  std::vector<Case> out;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Result<Json> json = parse_json(line);
    const Json* schema = json ? json->find("schema") : nullptr;
    const Json* tests = json ? json->find("tests") : nullptr;
    if (schema == nullptr || tests == nullptr || !tests->is_array())
      return fail(Errc::kInvalidRequest, "--cases {}:{}: expected an object with `schema` and `tests`", path, number);
    const Json* id = json->find_value("id");
    Case one{id != nullptr && id->is_string() ? id->as_string() : fmt::format("line {}", number),
             spec_of(ConstraintKind::kJsonSchema, to_json(*schema)),
             {},
             {}};
    for (const Json& test : tests->as_array()) {
      const Json* text = test.find("text");
      const Json* valid = test.find("valid");
      if (text == nullptr || !text->is_string() || valid == nullptr || !valid->is_bool())
        return fail(Errc::kInvalidRequest, "--cases {}:{}: a test needs `text` and `valid`", path, number);
      (valid->as_bool() ? one.texts : one.refused).push_back(text->as_string());
    }
    out.push_back(std::move(one));
  }
  if (out.empty()) return fail(Errc::kInvalidRequest, "--cases {}: there is no case in it", path);
  return out;
}

class GrammarBench {
 public:
  GrammarBench(const codec::Tokenizer& tokenizer, int32_t repetitions)
      : tokenizer_(tokenizer),
        repetitions_(repetitions),
        vocabulary_(server::make_vocabulary(tokenizer)),
        row_(vocabulary_->mask_words()) {}

  Result<Cost> measure(const Case& c) {
    Cost cost;
    std::vector<double> compile_ms;
    std::vector<double> first_us;
    structured::CompiledRef compiled;
    for (int32_t i = 0; i < repetitions_; ++i) {
      const double begun = thread_us();
      auto one = structured::compile(vocabulary_, c.spec);
      compile_ms.push_back((thread_us() - begun) * 1e-3);
      if (!one) return fail(Errc::kInvalidRequest, "{}: {}", c.name, one.error().text());
      compiled = std::move(*one);
      structured::Matcher matcher(compiled);
      const double filling = thread_us();
      if (!matcher.fill_mask(row_)) return fail(Errc::kInternal, "{}: a limit was reached at its first mask", c.name);
      first_us.push_back(thread_us() - filling);
    }
    std::ranges::sort(compile_ms);
    std::ranges::sort(first_us);
    cost.compile_ms = percentile(compile_ms, 50);
    cost.first_mask_us = percentile(first_us, 50);
    structured::Matcher matcher(compiled);
    for (const std::string& text : c.texts) {
      if (!DI_TRY(walk(c, matcher, text, cost))) return fail(Errc::kInternal, "{}: refuses the text {}", c.name, text);
    }
    Cost uncounted;
    for (const std::string& text : c.refused) {
      if (DI_TRY(walk(c, matcher, text, uncounted)))
        return fail(Errc::kInternal, "{}: takes the text {}", c.name, text);
    }
    cost.bytes = static_cast<int64_t>(compiled->memory_bytes());
    std::ranges::sort(cost.masks_us);
    return cost;
  }

 private:
  // Whether the text is taken to its end. The first mask has been counted already.
  Result<bool> walk(const Case& c, structured::Matcher& matcher, const std::string& text, Cost& cost) {
    matcher.reset();
    std::vector<TokenId> tokens = tokenizer_.encode_plain(text);
    tokens.push_back(vocabulary_->specials().eos);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const double begun = thread_us();
      const bool filled = matcher.fill_mask(row_);
      const double ready = thread_us();
      const bool taken = matcher.accept(tokens[i]);
      const double done = thread_us();
      if (!filled) return fail(Errc::kInternal, "{}: a limit was reached at token {}", c.name, i);
      const auto id = static_cast<uint32_t>(tokens[i]);
      if (((row_[id >> 5U] >> (id & 31U)) & 1U) != (taken ? 1U : 0U))
        return fail(Errc::kInternal, "{}: mask and verdict differ at token {} of the text {}", c.name, i, text);
      if (!taken) return false;
      if (i > 0) cost.masks_us.push_back(ready - begun);
      cost.accept_us += done - ready;
      ++cost.tokens;
    }
    return matcher.terminated();
  }

  const codec::Tokenizer& tokenizer_;
  int32_t repetitions_;
  structured::VocabularyRef vocabulary_;
  std::vector<uint32_t> row_;
};

Json row_of(const Case& c, const Cost& cost) {
  Json out(Json::Object{});
  out.set("name", Json(c.name));
  out.set("compile_ms", Json(cost.compile_ms));
  out.set("first_mask_us", Json(cost.first_mask_us));
  out.set("mask_p50_us", Json(percentile(cost.masks_us, 50)));
  out.set("mask_p99_us", Json(percentile(cost.masks_us, 99)));
  out.set("accept_us", Json(cost.tokens == 0 ? 0.0 : cost.accept_us / static_cast<double>(cost.tokens)));
  out.set("tokens", Json(cost.tokens));
  out.set("bytes", Json(cost.bytes));
  return out;
}

Result<void> bench(const BenchGrammarOptions& options) {
  ModelOptions model;
  model.folder = options.folder;
  const server::Codec codec = DI_TRY(load_codec(model));
  const std::vector<Case> cases = options.cases.empty() ? own_cases() : DI_TRY(read_cases(options.cases));
  GrammarBench measuring(*codec.tokenizer, options.repetitions);
  Json::Array rows;
  if (!options.json)
    std::printf(
        "| constraint | compile, ms | first mask, us | mask p50, us | mask p99, us | token, us | tokens | memory, KiB "
        "|\n"
        "|---|---|---|---|---|---|---|---|\n");
  int refused = 0;
  for (const Case& c : cases) {
    const Result<Cost> cost = measuring.measure(c);
    if (!cost) {
      // A schema that is not offered is its own row of a file; of our own cases none may fail.
      if (options.cases.empty() || cost.error().code != Errc::kInvalidRequest) return std::unexpected(cost.error());
      ++refused;
      continue;
    }
    if (options.json) {
      rows.push_back(row_of(c, *cost));
      continue;
    }
    std::printf("| %s | %.2f | %.1f | %.1f | %.1f | %.2f | %lld | %.0f |\n", c.name.c_str(), cost->compile_ms,
                cost->first_mask_us, percentile(cost->masks_us, 50), percentile(cost->masks_us, 99),
                cost->tokens == 0 ? 0.0 : cost->accept_us / static_cast<double>(cost->tokens),
                static_cast<long long>(cost->tokens), static_cast<double>(cost->bytes) / 1024);
  }
  if (!options.json) {
    if (refused > 0) std::printf("%d of %zu schemas are not offered\n", refused, cases.size());
    return {};
  }
  Json out(Json::Object{});
  out.set("vocabulary", Json(int64_t{codec.tokenizer->vocab_size()}));
  out.set("rows", Json(std::move(rows)));
  out.set("refused", Json(int64_t{refused}));
  std::printf("%s\n", to_json(out).c_str());
  return {};
}

}  // namespace

int bench_grammar(const BenchGrammarOptions& options) {
  const Result<void> done = bench(options);
  if (done) return kOk;
  std::fprintf(stderr, "deepinfer bench grammar: %s\n", done.error().message.c_str());
  return done.error().code == Errc::kInvalidRequest ? kUsage
         : done.error().code == Errc::kNotFound     ? kBadModel
                                                    : kFailed;
}

}  // namespace di::cli
