#include "cli/constraint_options.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace di::cli {
namespace {

Json object(std::string_view key, Json value) {
  Json out(Json::Object{});
  out.set(key, std::move(value));
  return out;
}

// The text itself, or what the file of that name holds. A grammar has rules, a file name has none.
Result<std::string> text_or_file(const std::string& given) {
  if (given.find("::=") != std::string::npos || given.find('\n') != std::string::npos) return given;
  std::ifstream in(given, std::ios::binary);
  if (in) return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (given.find(':') != std::string::npos) return given;
  return fail(Errc::kInvalidRequest, "--grammar: `{}` is neither a grammar nor a file that can be read", given);
}

}  // namespace

Result<Json> constraint_members(const ConstraintOptions& options) {
  const int given = int{options.json} + int{!options.json_schema.empty()} + int{!options.regex.empty()} +
                    int{!options.grammar.empty()};
  if (given == 0) return Json(Json::Object{});
  if (given > 1) {
    return fail(Errc::kInvalidRequest,
                "--json, --json-schema, --regex and --grammar: at most one of them can be given");
  }
  if (!options.grammar.empty())
    return object("structured_outputs", object("grammar", Json(DI_TRY(text_or_file(options.grammar)))));
  Json format = object("type", Json("json_object"));
  if (!options.regex.empty()) {
    format = object("type", Json("regex"));
    format.set("regex", Json(options.regex));
  } else if (!options.json_schema.empty()) {
    const std::string& text = options.json_schema;
    const bool inline_text = text.starts_with('{') || text == "true" || text == "false";
    Result<Json> schema = inline_text ? parse_json(text) : parse_json_file(text);
    if (!schema) return fail(Errc::kInvalidRequest, "no schema: {}", schema.error().message);
    Json body = object("name", Json("answer"));
    body.set("strict", Json(true));
    body.set("schema", std::move(*schema));
    format = object("type", Json("json_schema"));
    format.set("json_schema", std::move(body));
  }
  return object("response_format", std::move(format));
}

}  // namespace di::cli
