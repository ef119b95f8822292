#include "codec/parser/machine.h"

#include <algorithm>

namespace di::codec {

namespace {

using Kind = Action::Kind;
using Label = Action::Label;

}  // namespace

std::string_view label_text(Action::Label label) {
  switch (label) {
    case Label::kNone:
      return "";
    case Label::kOpen:
      return "{";
    case Label::kNext:
      return ", ";
    case Label::kColon:
      return ": ";
    case Label::kQuoteOpen:
    case Label::kQuoteClose:
      return "\"";
    case Label::kEmptyObject:
      return "{}";
    case Label::kClose:
      return "}";
  }
  return "";
}

Machine::Machine(const ParsingOptions& options, const std::string& dsml, const std::string& think_end)
    : options_(options), dsml_(dsml), think_end_(think_end), stages_(std::make_unique<std::array<Stage, kStages>>()) {
  if (options.starts_in_tool_calls) {
    enter(kToolCalls);
  } else if (!options.thinking_start) {
    enter(kContentStrip);
  } else {
    switch (*options.thinking_start) {
      case ThinkingStart::kReasoningStart:
        enter(kReasoningStrip);
        break;
      case ThinkingStart::kReasoningContinuation:
        enter(kReasoningKeep);
        break;
      case ThinkingStart::kContentContinuation:
        enter(kContentKeep);
        break;
    }
  }
}

void Machine::enter(StageId id) {
  Stage& next = (*stages_)[id];
  if (!next.built) build(id);
  current_ = id;
  matchers_.assign(next.branches.size(), Matcher{});
  buffered_ = 0;
  at_start_ = true;
  at_rest_ = true;
}

void Machine::add(Stage& stage, Shape shape, std::vector<Symbol> pattern, StageId next, Action action) {
  Branch branch;
  branch.shape = shape;
  branch.next = next;
  branch.action = action;
  branch.failure.assign(pattern.size(), 0);
  for (size_t i = 1; i < pattern.size(); ++i) {
    uint32_t k = branch.failure[i - 1];
    while (k > 0 && !(pattern[i] == pattern[k])) k = branch.failure[k - 1];
    branch.failure[i] = pattern[i] == pattern[k] ? k + 1 : 0;
  }
  branch.pattern = std::move(pattern);
  for (const PieceKind kind : {PieceKind::kPlain, PieceKind::kSpecial, PieceKind::kText}) {
    auto& starts = stage.starts[static_cast<size_t>(kind)];
    if (shape == Shape::kNewlinesMarker) starts['\n'] = true;
    if (branch.pattern.empty()) continue;
    const Symbol& first = branch.pattern[0];
    if (fits(first, first.byte, kind)) starts[static_cast<unsigned char>(first.byte)] = true;
  }
  stage.branches.push_back(std::move(branch));
}

void Machine::build(StageId id) {
  Stage& stage = (*stages_)[id];
  stage.built = true;
  if (id == kFinished) return;
  if (id == kContentStrip || id == kContentKeep || id == kJson || id == kAfterJson || id == kReasoningStrip ||
      id == kReasoningKeep) {
    build_text_stage(id, stage);
  } else {
    build_tool_stage(id, stage);
  }
}

// How the marker may be spelled, and whether by its special token.
std::vector<std::pair<std::string, bool>> Machine::dsml_spellings() const {
  std::vector<std::pair<std::string, bool>> out = {{dsml_, true}};
  if (options_.lenient_dsml) {
    out.emplace_back(dsml_, false);
    out.emplace_back("|DSML|", false);
  }
  return out;
}

void Machine::build_text_stage(StageId id, Stage& stage) {
  const auto symbols = [](std::string_view text, bool special, std::vector<Symbol> out = {}) {
    for (const char byte : text) out.push_back({byte, special});
    return out;
  };
  const auto stops = [&] {
    for (const std::string& stop : options_.stop_sequences) {
      add(stage, Shape::kMarker, symbols(stop, false), kFinished, {Kind::kStopSequence});
    }
  };
  const auto tools = [&] {
    if (!options_.parse_tool_calls) return;
    for (const auto& [dsml, special] : dsml_spellings()) {
      add(stage, Shape::kNewlinesMarker, symbols(dsml, special, symbols("<", false)), kToolCalls, {Kind::kSkip});
    }
  };
  const std::vector<Symbol> think_end = symbols(think_end_, true);
  switch (id) {
    case kContentStrip:
    case kContentKeep:
      stage.fallback = {options_.parse_json_output ? Kind::kSpace : Kind::kContent};
      if (options_.parse_json_output) {
        add(stage, Shape::kMarker, symbols("```json\n", false), kJson, {Kind::kSkip});
        add(stage, Shape::kMarker, symbols("```\n", false), kJson, {Kind::kSkip});
        add(stage, Shape::kMarker, symbols("{", false), kJson, {Kind::kJsonOpen});
        add(stage, Shape::kMarker, symbols("[", false), kJson, {Kind::kJsonOpen});
      } else {
        stops();
      }
      tools();
      if (id == kContentStrip) add(stage, Shape::kFirstNewline, {}, kContentStrip, {Kind::kSkip});
      add(stage, Shape::kMarker, think_end, kContentKeep, {Kind::kSkip});
      break;
    case kJson:
      stage.fallback = {Kind::kContent};
      stops();
      add(stage, Shape::kMarker, symbols("\n```", false), kAfterJson, {Kind::kSkip});
      break;
    case kAfterJson:
      stage.fallback = {Kind::kSpace};
      tools();
      break;
    default:  // reasoning
      stage.fallback = {Kind::kReasoning};
      tools();
      if (id == kReasoningStrip) add(stage, Shape::kFirstNewline, {}, kReasoningStrip, {Kind::kSkip});
      add(stage, Shape::kNewlinesMarker, think_end, kContentStrip, {Kind::kSkip});
      break;
  }
}

void Machine::build_tool_stage(StageId id, Stage& stage) {
  const auto plain = [](std::string_view text) {
    std::vector<Symbol> out;
    for (const char byte : text) out.push_back({byte, false});
    return out;
  };
  const auto label = [](Label l) { return Action{Kind::kArgumentLabel, l}; };
  const auto marker = [&](std::vector<Symbol> pattern, StageId next, Action action) {
    add(stage, Shape::kMarker, std::move(pattern), next, action);
  };
  const auto close_tag = [&](std::string_view name, StageId next, Action action) {  // "</" DSML name
    for (const auto& [dsml, special] : dsml_spellings()) {
      std::vector<Symbol> pattern = plain("</");
      for (const char byte : dsml) pattern.push_back({byte, special});
      for (const char byte : name) pattern.push_back({byte, false});
      marker(std::move(pattern), next, action);
    }
  };
  const bool first = id == kArgsFirst;
  switch (id) {
    case kToolCalls:
      marker(plain("invoke name=\""), kToolName, {Kind::kCallBegin});
      close_tag("tool_calls>", kFinished, {Kind::kSkip});
      close_tag(" calls>", kFinished, {Kind::kSkip});
      break;
    case kToolName:
      stage.fallback = {Kind::kName};
      marker(plain("\""), kArgsFirst, {Kind::kNameEnd});
      break;
    case kArgsFirst:
    case kArgsMore:
      marker(plain("parameter name="), kArgName, label(first ? Label::kOpen : Label::kNext));
      close_tag("", kToolCalls, label(first ? Label::kEmptyObject : Label::kClose));
      break;
    case kArgName:
      stage.fallback = {Kind::kArgumentRaw};
      marker(plain(" "), kArgAttr, label(Label::kColon));
      break;
    case kArgAttr:
      marker(plain("true\">"), kValueString, label(Label::kQuoteOpen));
      marker(plain("false\">"), kValueJson, {Kind::kSkip});
      break;
    case kValueString:
      stage.fallback = {Kind::kArgumentEscaped};
      close_tag("", kArgsMore, label(Label::kQuoteClose));
      break;
    default:  // kValueJson
      stage.fallback = {Kind::kArgumentRaw};
      close_tag("", kArgsMore, {Kind::kSkip});
      break;
  }
}

bool Machine::step(const Branch& branch, Matcher& matcher, char byte, PieceKind kind, bool first) {
  if (branch.shape == Shape::kFirstNewline) {
    matcher.matched = first && byte == '\n' ? 1 : 0;
    return matcher.matched == 1;
  }
  const bool counts_newlines = branch.shape == Shape::kNewlinesMarker;
  if (counts_newlines && matcher.matched == 0 && byte == '\n') {
    ++matcher.newlines;
    return false;
  }
  if (branch.pattern.empty()) return false;
  uint32_t next = matcher.matched;
  while (next > 0 && !fits(branch.pattern[next], byte, kind)) next = branch.failure[next - 1];
  if (fits(branch.pattern[next], byte, kind)) ++next;
  if (counts_newlines && next <= matcher.matched) matcher.newlines = 0;
  matcher.matched = next;
  return next == branch.pattern.size();
}

}  // namespace di::codec
