#include "server/constraint.h"

#include <algorithm>
#include <array>
#include <span>
#include <unordered_set>
#include <utility>

#include "structured/openai_strict.h"

namespace di::server {
namespace {

using structured::ConstraintKind;
using structured::ConstraintSpec;
using Failure = std::unexpected<ApiFailure>;

Failure wrong(std::string_view field, std::string_view expected, const Json& found) {
  return Failure(ApiFailure{ErrorKind::kInvalidRequest,
                            fmt::format("{}: expected {}, found {}", field, expected, describe_json(found)),
                            "invalid_type", std::string(field), 0});
}

// A schema or tag that clients send as JSON or as text of JSON.
std::string json_text(const Json& value) {
  const std::string* text = value.if_string();
  return text != nullptr ? *text : to_json(value);
}

class Reader {
 public:
  Reader(const Json& body, const codec::ConvertedRequest& request) : body_(body), request_(request) {}

  std::expected<std::optional<WantedConstraint>, ApiFailure> run() {
    DI_TRY(response_format());
    DI_TRY(structured_outputs());
    DI_TRY(single_fields());
    if (found_.size() > 1) {
      return Failure(ApiFailure{
          ErrorKind::kInvalidRequest,
          fmt::format("{} and {} both constrain the output; give one of them", found_[0].param, found_[1].param),
          "conflicting_constraints", found_[1].param, 0});
    }
    std::optional<WantedConstraint> wanted;
    if (!found_.empty()) wanted = std::move(found_[0]);
    DI_TRY(tools(wanted));
    if (!wanted) return wanted;
    DI_TRY(extension(*wanted));
    using codec::ThinkingStart;
    const auto start = request_.parsing.thinking_start;
    wanted->spec.reasoning = start && *start != ThinkingStart::kContentContinuation && !constrain_reasoning_;
    return wanted;
  }

 private:
  using Read = std::expected<void, ApiFailure>;

  ConstraintSpec& add(ConstraintKind kind, std::string payload, std::string param) {
    WantedConstraint& wanted = found_.emplace_back();
    wanted.spec.kind = kind;
    wanted.spec.payload = std::move(payload);
    wanted.param = std::move(param);
    return wanted.spec;
  }

  Read text_field(ConstraintKind kind, const Json& value, const std::string& param) {
    if (!value.is_string()) return wrong(param, "a string", value);
    add(kind, value.as_string(), param);
    return {};
  }

  Read json_field(ConstraintKind kind, const Json& value, const std::string& param) {
    if (!value.is_object() && !value.is_string() && !value.is_bool())
      return wrong(param, "an object or a string that holds one", value);
    add(kind, json_text(value), param);
    return {};
  }

  Read choice_field(const Json& value, const std::string& param) {
    if (!value.is_array()) return wrong(param, "a list of strings", value);
    add(ConstraintKind::kChoice, to_json(value), param);
    return {};
  }

  // The codec has checked its form, but for structural tags.
  Read response_format() {
    const Json* format = body_.find_value("response_format");
    const Json* type = format == nullptr ? nullptr : format->find_value("type");
    if (type == nullptr || !type->is_string()) return {};
    const std::string& name = type->as_string();
    if (name == "json_object") add(ConstraintKind::kJsonObject, "", "response_format");
    if (name == "structural_tag") add(ConstraintKind::kStructuralTag, to_json(*format), "response_format");
    if (name == "regex") {
      if (const Json* regex = format->find_value("regex"))
        return text_field(ConstraintKind::kRegex, *regex, "response_format.regex");
    }
    if (name == "json_schema") {
      const Json* inner = format->find_value("json_schema");
      const Json* schema = inner == nullptr ? nullptr : inner->find("schema");
      if (schema == nullptr) return {};
      ConstraintSpec& spec = add(ConstraintKind::kJsonSchema, to_json(*schema), "response_format.json_schema.schema");
      const Json* strict = inner->find_value("strict");
      spec.options.lenient = strict == nullptr || !strict->is_bool() || !strict->as_bool();
    }
    return {};
  }

  // vLLM: exactly one of its constraints, with options beside it.
  Read structured_outputs() {
    const Json* outer = body_.find_value("structured_outputs");
    if (outer == nullptr) return {};
    if (!outer->is_object()) return wrong("structured_outputs", "an object", *outer);
    const size_t before = found_.size();
    const auto path = [](std::string_view key) { return fmt::format("structured_outputs.{}", key); };
    const auto read = [&](std::string_view key, auto&& how) -> Read {
      const Json* value = outer->find_value(key);
      return value == nullptr ? Read() : how(*value, path(key));
    };
    DI_TRY(read("json", [&](const Json& v, auto p) { return json_field(ConstraintKind::kJsonSchema, v, p); }));
    DI_TRY(read("regex", [&](const Json& v, auto p) { return text_field(ConstraintKind::kRegex, v, p); }));
    DI_TRY(read("choice", [&](const Json& v, auto p) { return choice_field(v, p); }));
    DI_TRY(read("grammar", [&](const Json& v, auto p) { return text_field(ConstraintKind::kGrammar, v, p); }));
    DI_TRY(read("structural_tag",
                [&](const Json& v, auto p) { return json_field(ConstraintKind::kStructuralTag, v, p); }));
    if (const Json* on = outer->find_value("json_object")) {
      if (!on->is_bool()) return wrong(path("json_object"), "true or false", *on);
      if (on->as_bool()) add(ConstraintKind::kJsonObject, "", path("json_object"));
    }
    if (found_.size() == before) {
      return Failure(ApiFailure{ErrorKind::kInvalidRequest,
                                "structured_outputs: one of json, regex, choice, grammar, json_object and "
                                "structural_tag is expected",
                                "invalid_value", "structured_outputs", 0});
    }
    structured::SpecOptions& options = found_.back().spec.options;
    options.close_objects =
        DI_TRY(flag(*outer, "disable_additional_properties", path("disable_additional_properties")));
    if (DI_TRY(flag(*outer, "disable_any_whitespace", path("disable_any_whitespace"))))
      options.whitespace = structured::Whitespace::kCompact;
    return whitespace_pattern(*outer, "whitespace_pattern", path("whitespace_pattern"), options);
  }

  std::expected<bool, ApiFailure> flag(const Json& object, std::string_view key, const std::string& path) {
    const Json* value = object.find_value(key);
    if (value == nullptr) return false;
    if (!value->is_bool()) return wrong(path, "true or false", *value);
    return value->as_bool();
  }

  Read whitespace_pattern(const Json& object, std::string_view key, const std::string& path,
                          structured::SpecOptions& options) {
    const Json* value = object.find_value(key);
    if (value == nullptr) return {};
    if (!value->is_string()) return wrong(path, "a string", *value);
    options.whitespace = structured::Whitespace::kPattern;
    options.whitespace_pattern = value->as_string();
    return {};
  }

  // vLLM's older names, SGLang's and llama.cpp's.
  Read single_fields() {
    using Field = std::pair<std::string_view, ConstraintKind>;
    constexpr std::array<Field, 4> kOld = {{{"guided_json", ConstraintKind::kJsonSchema},
                                            {"guided_regex", ConstraintKind::kRegex},
                                            {"guided_choice", ConstraintKind::kChoice},
                                            {"guided_grammar", ConstraintKind::kGrammar}}};
    constexpr std::array<Field, 5> kSingle = {{{"json_schema", ConstraintKind::kJsonSchema},
                                               {"regex", ConstraintKind::kRegex},
                                               {"ebnf", ConstraintKind::kEbnf},
                                               {"grammar", ConstraintKind::kGrammar},
                                               {"structural_tag", ConstraintKind::kStructuralTag}}};
    const auto read = [&](const Json& object, std::string_view prefix, std::span<const Field> fields) -> Read {
      for (const auto& [key, kind] : fields) {
        const Json* value = object.find_value(key);
        if (value == nullptr) continue;
        const std::string param = fmt::format("{}{}", prefix, key);
        const bool json = kind == ConstraintKind::kJsonSchema || kind == ConstraintKind::kStructuralTag;
        const bool choice = kind == ConstraintKind::kChoice;
        DI_TRY(choice ? choice_field(*value, param)
               : json ? json_field(kind, *value, param)
                      : text_field(kind, *value, param));
      }
      return {};
    };
    const size_t before = found_.size();
    DI_TRY(read(body_, "", kOld));
    if (found_.size() > before)
      found_.back().warnings.push_back(fmt::format("deprecated_field;{}", found_.back().param));
    DI_TRY(read(body_, "", kSingle));
    if (const Json* inner = body_.find_value("sampling_params"); inner != nullptr && inner->is_object())
      DI_TRY(read(*inner, "sampling_params.", kSingle));
    if (found_.empty()) return {};
    return whitespace_pattern(body_, "guided_whitespace_pattern", "guided_whitespace_pattern",
                              found_.back().spec.options);
  }

  // The tools that the codec lets be called, as the request describes them: the codec's own list leaves keywords out.
  std::string allowed_tools() const {
    const codec::OutputConstraint& theirs = *request_.sampling.constraint;
    std::unordered_set<std::string_view> names;
    for (const codec::ToolDefinition& tool : request_.conversation.tools) names.insert(tool.name);
    const Json* sent = body_.find_value("tools");
    Json::Array list;
    if (sent != nullptr && sent->is_array()) {
      for (const Json& tool : sent->as_array()) {
        const Json* function = tool.find_value("function");
        const Json* name = function == nullptr ? nullptr : function->find_value("name");
        if (name != nullptr && name->is_string() && names.contains(name->as_string())) list.push_back(tool);
      }
    }
    return list.size() == names.size() ? to_json(Json(std::move(list))) : theirs.schema;
  }

  Read tools(std::optional<WantedConstraint>& wanted) {
    if (!request_.conversation.tools_on()) {
      // The prompt shows no tools then; a call made up all the same would find nobody to answer it.
      const Json* sent = body_.find_value("tools");
      if (!wanted && sent != nullptr && sent->size() > 0) {
        wanted.emplace();
        wanted->spec.kind = ConstraintKind::kToolCalls;
        wanted->spec.options.tool_choice = structured::ToolChoice::kNone;
      }
      return {};
    }
    if (!request_.sampling.constraint) return {};
    const auto strict = [](const codec::ToolDefinition& tool) { return tool.strict.value_or(false); };
    if (request_.version != codec::ModelVersion::kV41) {
      if (std::ranges::none_of(request_.conversation.tools, strict)) return {};
      return Failure(ApiFailure{ErrorKind::kInvalidRequest, "strict tools need a model of version 4.1",
                                "unsupported_parameter", "tools", 0});
    }
    const bool required = request_.sampling.constraint->kind == codec::OutputConstraint::Kind::kToolCallRequired;
    const Json* parallel = body_.find_value("parallel_tool_calls");
    const bool one = parallel != nullptr && parallel->is_bool() && !parallel->as_bool();
    if (wanted && !required) {
      wanted->spec.or_tools = allowed_tools();
      wanted->spec.options.parallel_tool_calls = !one;
      return {};
    }
    wanted.emplace();
    wanted->param = "tools";
    wanted->spec.kind = ConstraintKind::kToolCalls;
    wanted->spec.payload = allowed_tools();
    wanted->spec.options.tool_choice = required ? structured::ToolChoice::kRequired : structured::ToolChoice::kAuto;
    wanted->spec.options.parallel_tool_calls = !one;
    return {};
  }

  // The object "deepinfer" of server.md §4.1.
  Read extension(WantedConstraint& wanted) {
    ConstraintSpec& spec = wanted.spec;
    const Json* own = body_.find_value("deepinfer");
    if (own == nullptr) return {};
    if (!own->is_object()) return wrong("deepinfer", "an object", *own);
    if (own->find_value("lenient") != nullptr)
      spec.options.lenient = DI_TRY(flag(*own, "lenient", "deepinfer.lenient"));
    constrain_reasoning_ = DI_TRY(flag(*own, "constrain_reasoning", "deepinfer.constrain_reasoning"));
    const auto one_of =
        [&](std::string_view key,
            std::span<const std::string_view> names) -> std::expected<std::optional<size_t>, ApiFailure> {
      const Json* value = own->find_value(key);
      if (value == nullptr) return std::nullopt;
      const std::string path = fmt::format("deepinfer.{}", key);
      const auto at = value->is_string() ? std::ranges::find(names, value->as_string()) : names.end();
      if (at == names.end()) return wrong(path, fmt::format("one of {}", fmt::join(names, ", ")), *value);
      return static_cast<size_t>(at - names.begin());
    };
    constexpr std::array<std::string_view, 2> kOrders = {"schema", "any"};
    constexpr std::array<std::string_view, 3> kSpaces = {"flexible", "compact", "any"};
    constexpr std::array<std::string_view, 2> kProfiles = {"default", "openai-strict"};
    constexpr std::array kSpaceValues = {structured::Whitespace::kFlexible, structured::Whitespace::kCompact,
                                         structured::Whitespace::kAny};
    if (const auto order = DI_TRY(one_of("property_order", kOrders)))
      spec.options.property_order = *order == 0 ? structured::PropertyOrder::kSchema : structured::PropertyOrder::kAny;
    if (const auto space = DI_TRY(one_of("whitespace", kSpaces))) spec.options.whitespace = kSpaceValues[*space];
    if (const auto profile = DI_TRY(one_of("profile", kProfiles))) wanted.openai_strict = *profile == 1;
    return whitespace_pattern(*own, "whitespace_pattern", "deepinfer.whitespace_pattern", spec.options);
  }

  const Json& body_;
  const codec::ConvertedRequest& request_;
  std::vector<WantedConstraint> found_;
  bool constrain_reasoning_ = false;
};

ApiFailure failure_of(const structured::CompileError& error, const std::string& param) {
  if (error.code == "overloaded") return {ErrorKind::kOverloaded, error.message, {}, {}, 1};
  std::string where = param;
  if (!error.pointer.empty()) where += "#" + error.pointer;
  return {ErrorKind::kInvalidRequest, error.text(), error.code, std::move(where), 0};
}

std::optional<structured::CompileError> breaks_profile(const WantedConstraint& wanted) {
  if (!wanted.openai_strict) return std::nullopt;
  const ConstraintSpec& spec = wanted.spec;
  if (spec.kind == ConstraintKind::kJsonSchema) return structured::breaks_openai_strict(spec.payload);
  if (spec.kind == ConstraintKind::kToolCalls) return structured::tools_break_openai_strict(spec.payload);
  return std::nullopt;
}

}  // namespace

std::expected<std::optional<WantedConstraint>, ApiFailure> read_constraint(const Json& body,
                                                                           const codec::ConvertedRequest& request) {
  return Reader(body, request).run();
}

std::optional<Json> without_structural_tag(const Json& body) {
  const Json* format = body.find_value("response_format");
  const Json* type = format == nullptr ? nullptr : format->find_value("type");
  if (type == nullptr || !type->is_string() || type->as_string() != "structural_tag") return std::nullopt;
  Json out = body;
  out.set("response_format", Json());
  return out;
}

int32_t constrained_prompt_tokens(const codec::ConvertedRequest& request, const structured::Vocabulary& vocabulary,
                                  const std::vector<int32_t>& prompt) {
  if (!request.parsing.starts_in_tool_calls) return 0;
  const auto border = std::find(prompt.rbegin(), prompt.rend(), vocabulary.specials().think_end);
  return border == prompt.rend() ? 0 : static_cast<int32_t>(border - prompt.rbegin());
}

void compile_constraint(App& app, const Service& service, WantedConstraint wanted,
                        std::function<void(const ConstraintVerdict&)> then) {
  if (service.constraints == nullptr) {
    return then(Failure(ApiFailure{ErrorKind::kNotImplemented,
                                   fmt::format("{} is not available on this server", wanted.param),
                                   {},
                                   wanted.param,
                                   0}));
  }
  if (const auto broken = breaks_profile(wanted)) return then(Failure(failure_of(*broken, wanted.param)));
  auto on_worker = [&app, param = std::move(wanted.param),
                    then = std::move(then)](const structured::Expected<structured::CompiledRef>& verdict) {
    app.workers().post([verdict, param, then] {
      then(verdict ? ConstraintVerdict(*verdict) : Failure(failure_of(verdict.error(), param)));
    });
  };
  service.constraints->compile(std::move(wanted.spec), std::move(on_worker));
}

structured::VocabularyRef make_vocabulary(const codec::Tokenizer& tokenizer) {
  std::vector<structured::Vocabulary::Token> tokens(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    structured::Vocabulary::Token& token = tokens[static_cast<size_t>(id)];
    token.bytes = tokenizer.token_bytes(id);
    token.special = tokenizer.is_added(id);
  }
  return structured::Vocabulary::create(std::move(tokens));
}

}  // namespace di::server
