#include "structured/c_api/spec_options.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "base/json.h"

namespace di::structured {
namespace {

template <class T>
struct Named {
  std::string_view name;
  T value;
};

template <class T, size_t N>
Result<T> one_of(std::string_view option, const std::array<Named<T>, N>& names, const Json& found) {
  const std::string* text = found.if_string();
  std::string all;
  for (const Named<T>& n : names) {
    if (text != nullptr && *text == n.name) return n.value;
    all += (all.empty() ? "" : ", ");
    all += n.name;
  }
  return fail(Errc::kInvalidRequest, "{}: expected one of {}, found {}", option, all, describe_json(found));
}

constexpr std::array<Named<ConstraintKind>, 10> kKinds = {{{"json_object", ConstraintKind::kJsonObject},
                                                           {"json_schema", ConstraintKind::kJsonSchema},
                                                           {"regex", ConstraintKind::kRegex},
                                                           {"choice", ConstraintKind::kChoice},
                                                           {"ebnf", ConstraintKind::kEbnf},
                                                           {"lark", ConstraintKind::kLark},
                                                           {"grammar", ConstraintKind::kGrammar},
                                                           {"structural_tag", ConstraintKind::kStructuralTag},
                                                           {"tool_calls", ConstraintKind::kToolCalls},
                                                           {"none", ConstraintKind::kNone}}};
constexpr std::array<Named<Whitespace>, 3> kSpaces = {
    {{"flexible", Whitespace::kFlexible}, {"compact", Whitespace::kCompact}, {"any", Whitespace::kAny}}};
constexpr std::array<Named<PropertyOrder>, 2> kOrders = {
    {{"schema", PropertyOrder::kSchema}, {"any", PropertyOrder::kAny}}};
constexpr std::array<Named<ToolChoice>, 3> kChoices = {
    {{"auto", ToolChoice::kAuto}, {"required", ToolChoice::kRequired}, {"none", ToolChoice::kNone}}};

Result<bool> flag(std::string_view name, const Json& value) {
  if (!value.is_bool())
    return fail(Errc::kInvalidRequest, "{}: expected true or false, found {}", name, describe_json(value));
  return value.as_bool();
}

Result<std::string> text(std::string_view name, const Json& value) {
  if (!value.is_string())
    return fail(Errc::kInvalidRequest, "{}: expected a string, found {}", name, describe_json(value));
  return value.as_string();
}

Result<void> read_limits(const Json& value, Limits& limits) {
  if (!value.is_object())
    return fail(Errc::kInvalidRequest, "limits: expected an object, found {}", describe_json(value));
  const auto visit = [&](auto&& known) {
    known("max_schema_bytes", limits.max_schema_bytes);
    known("max_regex_bytes", limits.max_regex_bytes);
    known("max_choices", limits.max_choices);
    known("max_document_nesting", limits.max_document_nesting);
    known("max_subschemas", limits.max_subschemas);
    known("max_properties", limits.max_properties);
    known("max_enum_values", limits.max_enum_values);
    known("max_repeat", limits.max_repeat);
    known("max_nodes", limits.max_nodes);
    known("compile_cpu_ms", limits.compile_cpu_ms);
    known("compile_bytes", limits.compile_bytes);
    known("max_states", limits.max_states);
    known("state_bytes", limits.state_bytes);
    known("max_items", limits.max_items);
    known("mask_cpu_ms", limits.mask_cpu_ms);
    known("max_output_nesting", limits.max_output_nesting);
    known("max_shapes", limits.max_shapes);
    known("max_alternatives", limits.max_alternatives);
  };
  for (const JsonMember& member : value.as_object()) {
    bool found = false;
    bool fits = false;
    visit([&](std::string_view name, auto& target) {
      if (name != member.key) return;
      found = true;
      using T = std::remove_reference_t<decltype(target)>;
      const auto number = member.value.to_i64();
      fits = number && *number > 0 && std::in_range<T>(*number);
      if (fits) target = static_cast<T>(*number);
    });
    if (!found) return fail(Errc::kInvalidRequest, "limits: `{}` is no limit", member.key);
    if (!fits) {
      return fail(Errc::kInvalidRequest, "limits.{}: expected a positive integer, found {}", member.key,
                  describe_json(member.value));
    }
  }
  return {};
}

Result<bool> read_spaces(const JsonMember& member, SpecOptions& o) {
  if (member.key == "whitespace") {
    o.whitespace = DI_TRY(one_of("whitespace", kSpaces, member.value));
  } else if (member.key == "whitespace_pattern") {
    o.whitespace_pattern = DI_TRY(text(member.key, member.value));
    o.whitespace = Whitespace::kPattern;
  } else {
    return false;
  }
  return true;
}

Result<bool> read_tools(const JsonMember& member, ConstraintSpec& spec) {
  if (member.key == "tool_choice") {
    spec.options.tool_choice = DI_TRY(one_of("tool_choice", kChoices, member.value));
  } else if (member.key == "parallel_tool_calls") {
    spec.options.parallel_tool_calls = DI_TRY(flag(member.key, member.value));
  } else if (member.key == "tool_name") {
    spec.options.tool_name = DI_TRY(text(member.key, member.value));
  } else if (member.key == "or_tools") {
    if (!member.value.is_array())
      return fail(Errc::kInvalidRequest, "or_tools: expected a list of tools, found {}", describe_json(member.value));
    spec.or_tools = to_json(member.value);
  } else {
    return false;
  }
  return true;
}

}  // namespace

Result<ConstraintKind> kind_of(std::string_view name) {
  return one_of("kind", kKinds, Json(name));
}

Result<void> read_spec_options(std::string_view json, ConstraintSpec& spec, Limits& limits) {
  if (json.empty()) return {};
  const Json all = DI_TRY(parse_json(json));
  if (!all.is_object()) return fail(Errc::kInvalidRequest, "options: expected an object, found {}", describe_json(all));
  SpecOptions& o = spec.options;
  const auto flags = std::to_array<std::pair<std::string_view, bool*>>({
      {"lenient", &o.lenient},
      {"close_objects", &o.close_objects},
      {"numeric_formats", &o.numeric_formats},
      {"refuse_unknown_formats", &o.refuse_unknown_formats},
      {"reasoning", &spec.reasoning},
  });
  for (const JsonMember& member : all.as_object()) {
    if (const auto it = std::ranges::find(flags, member.key, [](const auto& f) { return f.first; });
        it != flags.end()) {
      *it->second = DI_TRY(flag(member.key, member.value));
    } else if (member.key == "property_order") {
      o.property_order = DI_TRY(one_of("property_order", kOrders, member.value));
    } else if (member.key == "limits") {
      if (auto read = read_limits(member.value, limits); !read) return read;
    } else if (!DI_TRY(read_spaces(member, o)) && !DI_TRY(read_tools(member, spec))) {
      return fail(Errc::kInvalidRequest, "options: `{}` is no option", member.key);
    }
  }
  return {};
}

}  // namespace di::structured
