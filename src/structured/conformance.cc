#include "structured/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>

#include "structured/schema/document.h"

namespace di::structured {
namespace {

constexpr std::array<std::string_view, 12> kCodes = {"invalid_json_schema",
                                                     "unsupported_schema_feature",
                                                     "unsatisfiable_schema",
                                                     "unresolvable_ref",
                                                     "ref_cycle",
                                                     "invalid_regex",
                                                     "unsupported_regex_feature",
                                                     "invalid_grammar",
                                                     "constraint_too_large",
                                                     "constraint_too_complex",
                                                     "constraint_compile_timeout",
                                                     "conflicting_constraints"};

double cpu_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

std::string text_of(const Value& v, std::string_view key) {
  const Value* m = v.find(key);
  return m != nullptr ? m->text : "";
}

bool flag_of(const Value& v, std::string_view key) {
  const Value* m = v.find(key);
  return m != nullptr && m->boolean;
}

int64_t number_of(const Value& v, std::string_view key) {
  const Value* m = v.find(key);
  return m != nullptr && m->is_number() ? std::stoll(m->text) : 0;
}

void append_value(std::string& out, const Value& v);

void append_text(std::string& out, const std::string& s) {
  out.push_back('"');
  for (const char c : s) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<uint8_t>(c));
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

// Recursive: a case line is nested no deeper than its reader allows.
void append_value(std::string& out, const Value& v) {
  switch (v.kind) {
    case Value::Kind::kNull:
      out += "null";
      break;
    case Value::Kind::kBool:
      out += v.boolean ? "true" : "false";
      break;
    case Value::Kind::kNumber:
      out += v.text;
      break;
    case Value::Kind::kString:
      append_text(out, v.text);
      break;
    case Value::Kind::kArray:
    case Value::Kind::kObject:
      out.push_back(v.is_array() ? '[' : '{');
      for (size_t i = 0; i < v.items.size(); ++i) {
        if (i > 0) out.push_back(',');
        if (v.is_object()) {
          append_text(out, v.keys[i]);
          out.push_back(':');
        }
        append_value(out, v.items[i]);
      }
      out.push_back(v.is_array() ? ']' : '}');
      break;
  }
}

std::string json_of(const Value& v) {
  std::string out;
  append_value(out, v);
  return out;
}

std::vector<TokenId> tokens_of(const Value& step) {
  std::vector<TokenId> out;
  if (const Value* t = step.find("tokens")) {
    for (const Value& v : t->items) out.push_back(static_cast<TokenId>(std::stol(v.text)));
  }
  return out;
}

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<char>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return out;
}

// Feeds a text token by token with its masks; true when it and the stop token go through.
bool feeds(Matcher& m, const std::vector<TokenId>& tokens, const Vocabulary& v, const ConformanceOptions& options,
           CaseOutcome* timing) {
  std::vector<uint32_t> row(v.mask_words());
  std::vector<TokenId> all = tokens;
  all.push_back(v.specials().eos);
  for (const TokenId id : all) {
    const auto i = static_cast<uint32_t>(id);
    if (options.masks) {
      const double t0 = cpu_us();
      if (!m.fill_mask(row)) return false;
      if (timing != nullptr) {
        const double t = cpu_us() - t0;
        if (timing->mask_us.empty()) timing->first_mask_us = t;
        timing->mask_us.push_back(static_cast<float>(t));
      }
      if (((row[i >> 5U] >> (i & 31U)) & 1U) == 0) return false;
    }
    if (!m.accept(id)) return false;
  }
  return m.terminated();
}

// Another spelling of a number in the test suite: 1.0 or 1e3 for an integer.
bool odd_number(const std::string& text) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && text[i] >= '0' && text[i] <= '9' && i + 1 < text.size()) {
      if (text[i + 1] == 'e' || text[i + 1] == 'E') return true;
      if (text[i + 1] == '.' && i + 2 < text.size() && text[i + 2] == '0') return true;
    }
  }
  return false;
}

void run_schema(const Value& line, const VocabularyRef& vocabulary, const ConformanceOptions& options,
                CaseOutcome& out) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kJsonSchema;
  const std::string schema = json_of(*line.find("schema"));
  spec.payload = schema;
  const double t0 = cpu_us();
  auto compiled = compile(vocabulary, spec, options.limits);
  out.compile_ms = (cpu_us() - t0) / 1e3;
  const bool refuse_wanted = text_of(line, "group") == "refuse";
  if (!compiled) {
    out.code = compiled.error().code;
    out.refusal = compiled.error().text();
    const bool known = std::ranges::find(kCodes, out.code) != kCodes.end();
    // A schema that no value satisfies is refused as such; its cases then have no valid text.
    const bool empty =
        out.code == "unsatisfiable_schema" &&
        std::ranges::none_of(line.find("tests")->items, [](const Value& t) { return flag_of(t, "valid"); });
    out.passed = known && (refuse_wanted || out.tier >= 2 || empty);
    if (!out.passed) out.failures.push_back(fmt::format("expected to compile, found {}", out.refusal));
    return;
  }
  out.compiled = true;
  if (refuse_wanted) out.failures.push_back("expected a refusal, found that it compiles");
  const bool formats_annotate =
      out.suite == "jsts" && !flag_of(line, "format_assert") && schema.find("\"format\"") != std::string::npos;
  const Value* tests = line.find("tests");
  // Texts are judged by the schema alone, members in any order; the schema's order, which is the default, must take no
  // others, and is counted beside it.
  CompiledRef any_order;
  if (schema.find("propert") != std::string::npos) {
    spec.options.property_order = PropertyOrder::kAny;
    if (auto again = compile(vocabulary, spec, options.limits)) any_order = *again;
  }
  for (const Value& test : tests->items) {
    const std::string text = text_of(test, "text");
    const bool valid = flag_of(test, "valid");
    const bool soft = flag_of(test, "soft") || (out.suite == "jsts" && (odd_number(text) || formats_annotate));
    Matcher m(*compiled);
    const auto tokens = vocabulary->encode_greedy(text, false);
    const bool in_order = feeds(m, tokens, *vocabulary, options, valid ? &out : nullptr);
    bool accepted = in_order;
    if (in_order && valid) ++out.valid_in_order;
    if (any_order != nullptr) {
      Matcher other(any_order);
      accepted = feeds(other, tokens, *vocabulary, {false, options.limits}, nullptr);
      if (in_order && !accepted)
        out.failures.push_back(
            fmt::format("expected in any order what is accepted in the schema's, found {}", text.substr(0, 300)));
    }
    if (valid) {
      if (accepted) ++out.valid_accepted;
      if (!accepted && !soft) {
        ++out.valid_refused;
        out.failures.push_back(
            fmt::format("expected to accept {}, found a refusal at token {}", text.substr(0, 300), m.tokens()));
      }
    } else {
      accepted ? ++out.invalid_accepted : ++out.invalid_refused;
      if (accepted)
        out.failures.push_back(fmt::format("expected to refuse {}, found that it is accepted", text.substr(0, 300)));
    }
  }
  out.passed = out.failures.empty();
}

struct Scenario {
  const VocabularyRef& vocabulary;
  Matcher current;
  std::map<std::string, Matcher> named;
  std::map<std::string, std::vector<uint32_t>> masks;
  std::string current_name;
  uint32_t last_state = 0;
  size_t last_count = 0;

  std::vector<uint32_t> mask() {
    std::vector<uint32_t> row(vocabulary->mask_words());
    current.fill_mask(row);
    return row;
  }
  bool bit(TokenId id) {
    const auto row = mask();
    const auto i = static_cast<uint32_t>(id);
    return i >> 5U < row.size() && ((row[i >> 5U] >> (i & 31U)) & 1U) != 0;
  }
  // Empty when the step holds, else what was found.
  std::string run(const Value& step);
  std::string run_more(const std::string& op, const Value& step);
};

std::string Scenario::run(const Value& step) {
  const std::string op = text_of(step, "op");
  const bool want = flag_of(step, "want");
  if (op == "accept") {
    const auto tokens = tokens_of(step);
    const size_t n = current.accept(tokens);
    return n == tokens.size() ? "" : fmt::format("token {} of {} was refused", n, tokens.size());
  }
  if (op == "accept_fails")
    return current.accept(static_cast<TokenId>(number_of(step, "token"))) ? "the token was accepted" : "";
  if (op == "allowed") return bit(static_cast<TokenId>(number_of(step, "token"))) == want ? "" : "the bit is the other";
  if (op == "allowed_range") {
    const auto row = mask();
    for (int64_t i = number_of(step, "from"); i <= number_of(step, "to"); ++i) {
      const auto u = static_cast<size_t>(i);
      const bool is = u / 32 < row.size() && ((row[u / 32] >> (u % 32)) & 1U) != 0;
      if (is != want) return fmt::format("the bit of {} is the other", i);
    }
    return "";
  }
  if (op == "mask_hash") {
    if (const std::string save = text_of(step, "save"); !save.empty()) {
      masks[save] = mask();
      return "";
    }
    return masks[text_of(step, "equals")] == mask() ? "" : "the mask differs";
  }
  if (op == "rollback") return current.rollback(static_cast<size_t>(number_of(step, "n"))) ? "" : "rollback failed";
  if (op == "reset") {
    current.reset();
    return "";
  }
  if (op == "terminated") return current.terminated() == want ? "" : "terminated is the other";
  return run_more(op, step);
}

std::string Scenario::run_more(const std::string& op, const Value& step) {
  const bool want = flag_of(step, "want");
  if (op == "draft") {
    const auto tokens = tokens_of(step);
    last_state = current.state();
    last_count = current.tokens();
    std::vector<uint32_t> rows((tokens.size() + 1) * vocabulary->mask_words());
    const size_t n = current.fill_masks_along(tokens, rows);
    const size_t v = current.validate(tokens);
    const auto expected = static_cast<size_t>(number_of(step, "want_prefix"));
    return n == expected && v == expected ? "" : fmt::format("expected prefix {}, found {} and {}", expected, n, v);
  }
  if (op == "position_unchanged")
    return current.state() == last_state && current.tokens() == last_count ? "" : "the state moved";
  if (op == "begin_reasoning") return "";
  if (op == "forced") {
    const std::string text = text_of(step, "text");
    const std::string found = current.forced_text(std::max<size_t>(text.size(), 1));
    return found == text ? "" : fmt::format("expected forced {}, found {}", text, found);
  }
  if (op == "clone") {
    named.insert_or_assign(text_of(step, "as"), current.clone());
    return "";
  }
  if (op == "use") {
    const auto it = named.find(text_of(step, "name"));
    if (it == named.end()) return "no such clone";
    std::swap(current, it->second);
    return "";
  }
  if (op == "accept_bytes_prefix" || op == "allowed_bytes") {
    const std::string bytes = from_hex(text_of(step, "hex"));
    const bool keep = op == "accept_bytes_prefix";
    Matcher trial = current;
    for (const char c : bytes) {
      const auto ids = vocabulary->encode_greedy(std::string(1, c), false);
      const auto i = static_cast<uint32_t>(ids.empty() ? 0 : ids[0]);
      std::vector<uint32_t> row(vocabulary->mask_words());
      trial.fill_mask(row);
      const bool allowed = ((row[i >> 5U] >> (i & 31U)) & 1U) != 0;
      const bool taken = !ids.empty() && trial.accept(ids[0]);
      if (allowed != taken) return "mask and accept disagree";
      if (!keep && allowed != want) return fmt::format("byte {:02x} is the other", static_cast<uint8_t>(c));
      if (keep && !taken) return fmt::format("byte {:02x} was refused", static_cast<uint8_t>(c));
      if (!taken) break;
    }
    if (keep) current = std::move(trial);
    return "";
  }
  if (op == "accept_text" || op == "refuse_text") {
    const auto tokens = vocabulary->encode_greedy(text_of(step, "text"), true);
    Matcher trial = current;
    size_t n = trial.accept(tokens);
    const bool whole = n == tokens.size();
    if (op == "refuse_text")
      return whole && (trial.accepting() || !flag_of(step, "final")) ? "the text was accepted" : "";
    if (!whole) return fmt::format("token {} of {} was refused", n, tokens.size());
    current = std::move(trial);
    return "";
  }
  if (op == "accept_repeat_fails_within") {
    for (int64_t i = 0; i < number_of(step, "limit"); ++i) {
      if (!current.accept(static_cast<TokenId>(number_of(step, "token")))) return "";
    }
    return "never refused";
  }
  return "unknown step";
}

Expected<ConstraintSpec> spec_of(const Value& line) {
  const Value& c = *line.find("constraint");
  ConstraintSpec spec;
  if (const Value* s = c.find("json_schema")) {
    spec.payload = json_of(*s);
  } else if (c.find("regex") != nullptr) {
    spec.kind = ConstraintKind::kRegex;
    spec.payload = text_of(c, "regex");
  } else if (const Value* choice = c.find("choice")) {
    spec.kind = ConstraintKind::kChoice;
    spec.payload = json_of(*choice);
  } else if (const Value* tools = c.find("tools")) {
    spec.kind = ConstraintKind::kToolCalls;
    spec.payload = json_of(*tools);
  } else if (c.find("json_object") != nullptr) {
    spec.kind = ConstraintKind::kJsonObject;
  } else if (const Value* tag = c.find("structural_tag")) {
    spec.kind = ConstraintKind::kStructuralTag;
    spec.payload = json_of(*tag);
  } else if (c.find("grammar") != nullptr || c.find("ebnf") != nullptr) {
    spec.kind = ConstraintKind::kGrammar;
    spec.payload = text_of(c, c.find("grammar") != nullptr ? "grammar" : "ebnf");
  } else {
    return refuse("invalid_grammar", "unknown constraint");
  }
  const std::string choice = text_of(c, "tool_choice");
  if (choice == "required") spec.options.tool_choice = ToolChoice::kRequired;
  if (choice == "none") spec.options.tool_choice = ToolChoice::kNone;
  if (const Value* named = c.find("tool_choice"); named != nullptr && named->is_object()) {
    spec.options.tool_choice = ToolChoice::kRequired;
    const Value* f = named->find("function");
    spec.options.tool_name = text_of(f != nullptr ? *f : *named, "name");
  }
  const std::string space = text_of(c, "whitespace").empty() ? text_of(line, "whitespace") : text_of(c, "whitespace");
  if (space == "compact") spec.options.whitespace = Whitespace::kCompact;
  if (space == "any") spec.options.whitespace = Whitespace::kAny;
  if (!space.empty() && space != "compact" && space != "any" && space != "flexible") {
    spec.options.whitespace = Whitespace::kPattern;
    spec.options.whitespace_pattern = space;
  }
  if (text_of(c, "property_order") == "any") spec.options.property_order = PropertyOrder::kAny;
  spec.reasoning = flag_of(c, "reasoning") || flag_of(line, "reasoning");
  for (const Value& step : line.find("steps")->items) {
    if (text_of(step, "op") == "begin_reasoning") spec.reasoning = true;
  }
  return spec;
}

void run_scenario(const Value& line, const VocabularyRef& vocabulary, const ConformanceOptions& options,
                  CaseOutcome& out) {
  auto spec = spec_of(line);
  auto compiled =
      spec ? compile(vocabulary, *spec, options.limits) : Expected<CompiledRef>(std::unexpected(spec.error()));
  if (!compiled) {
    out.refusal = compiled.error().text();
    out.failures.push_back("expected to compile, found " + out.refusal);
    return;
  }
  out.compiled = true;
  Scenario s{vocabulary, Matcher(*compiled), {}, {}, {}, 0, 0};
  const Value* steps = line.find("steps");
  for (size_t i = 0; i < steps->items.size(); ++i) {
    const std::string found = s.run(steps->items[i]);
    if (!found.empty())
      out.failures.push_back(fmt::format("step {} ({}): {}", i, text_of(steps->items[i], "op"), found));
  }
  out.passed = out.failures.empty();
}

}  // namespace

void SuiteTotals::add(const CaseOutcome& o) {
  ++cases;
  passed += o.passed ? 1 : 0;
  compiled += o.compiled ? 1 : 0;
  tier1 += o.tier == 1 ? 1 : 0;
  tier1_compiled += o.tier == 1 && o.compiled ? 1 : 0;
  valid_accepted += o.valid_accepted;
  valid_in_order += o.valid_in_order;
  valid_refused += o.valid_refused;
  invalid_accepted += o.invalid_accepted;
  invalid_refused += o.invalid_refused;
}

std::string SuiteTotals::text() const {
  return fmt::format(
      "{} of {} passed, {} compiled (tier 1: {} of {}), valid accepted {} of {} ({} in the schema's order), invalid "
      "refused {} of {}",
      passed, cases, compiled, tier1_compiled, tier1, valid_accepted, valid_accepted + valid_refused, valid_in_order,
      invalid_refused, invalid_refused + invalid_accepted);
}

std::vector<CaseOutcome> run_structured_file(const std::string& path, const VocabularyRef& vocabulary,
                                             const ConformanceOptions& options) {
  std::vector<CaseOutcome> all;
  std::ifstream in(path);
  if (!in) {
    all.push_back({});
    all.back().id = path;
    all.back().failures.push_back("cannot be read");
    return all;
  }
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    CaseOutcome out;
    out.id = path;
    auto doc = read_document(line, 2'000, "invalid_case");
    if (!doc || !doc->is_object()) {
      out.failures.push_back("not a JSON object");
    } else {
      out.id = text_of(*doc, "id");
      out.suite = text_of(*doc, "suite");
      out.tier = static_cast<int>(number_of(*doc, "tier"));
      if (doc->find("constraint") != nullptr && doc->find("steps") != nullptr) {
        run_scenario(*doc, vocabulary, options, out);
      } else if (doc->find("schema") != nullptr && doc->find("tests") != nullptr) {
        run_schema(*doc, vocabulary, options, out);
      } else {
        out.failures.push_back("neither a schema case nor a scenario");
      }
    }
    all.push_back(std::move(out));
  }
  return all;
}

std::vector<CaseOutcome> run_structured_cases(const std::string& dir, const VocabularyRef& vocabulary,
                                              const ConformanceOptions& options) {
  std::vector<std::string> files;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ec)) {
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  std::vector<CaseOutcome> all;
  for (const std::string& f : files) {
    auto part = run_structured_file(f, vocabulary, options);
    std::ranges::move(part, std::back_inserter(all));
  }
  return all;
}

}  // namespace di::structured
