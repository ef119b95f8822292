// /openapi.json: made from the table of routes, with the bodies of the main ones (server.md §15.4).
#include <map>
#include <string>

#include "base/json.h"
#include "server/app.h"
#include "server/routes.h"

namespace di::server {
namespace {

constexpr std::string_view kSchemas = R"json({
"Error":{"type":"object","required":["error"],"properties":{"error":{"type":"object",
  "required":["message","type"],"properties":{"message":{"type":"string"},"type":{"type":"string"},
  "param":{"type":["string","null"]},"code":{"type":["string","null"]}}},
  "type":{"type":"string"},"request_id":{"type":"string"}}},
"Usage":{"type":"object","required":["prompt_tokens","completion_tokens","total_tokens"],"properties":{
  "prompt_tokens":{"type":"integer"},"completion_tokens":{"type":"integer"},"total_tokens":{"type":"integer"}}},
"ChatRequest":{"type":"object","required":["model","messages"],"properties":{
  "model":{"type":"string"},
  "messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],"properties":{
    "role":{"enum":["system","user"]},"content":{"type":"string"}}}},
  "max_tokens":{"type":["integer","null"],"minimum":1,"maximum":393216},
  "temperature":{"type":["number","null"],"minimum":0,"maximum":2},
  "top_p":{"type":["number","null"],"exclusiveMinimum":0,"maximum":1},
  "stream":{"type":["boolean","null"]},"n":{"type":["integer","null"],"minimum":1,"maximum":16},
  "seed":{"type":["integer","null"],"minimum":0,"maximum":9223372036854775807},
  "stop":{"type":["string","array","null"],"minLength":1,"maxItems":16,"items":{"type":"string","minLength":1}},
  "logprobs":{"type":["boolean","null"]},"user":{"type":["string","null"]}}},
"ChatResponse":{"type":"object","required":["id","object","created","model","choices","usage"],"properties":{
  "id":{"type":"string"},"object":{"const":"chat.completion"},"created":{"type":"integer"},
  "model":{"type":"string"},"choices":{"type":"array","items":{"type":"object",
  "required":["index","message","finish_reason"]}},"usage":{"$ref":"#/components/schemas/Usage"}}},
"CompletionRequest":{"type":"object","required":["model","prompt"],"properties":{
  "model":{"type":"string"},"prompt":{"type":"string"},
  "max_tokens":{"type":["integer","null"],"minimum":1,"maximum":4096},
  "temperature":{"type":["number","null"],"minimum":0,"maximum":2},
  "stream":{"type":["boolean","null"]},"echo":{"type":["boolean","null"]},
  "logprobs":{"type":["integer","null"],"minimum":0,"maximum":20},
  "n":{"type":["integer","null"],"minimum":1,"maximum":16}}},
"CompletionResponse":{"type":"object","required":["id","object","created","model","choices","usage"],"properties":{
  "object":{"const":"text_completion"},"choices":{"type":"array","items":{"type":"object",
  "required":["text","index","logprobs","finish_reason"]}},"usage":{"$ref":"#/components/schemas/Usage"}}},
"ResponsesRequest":{"type":"object","required":["model","input"],"properties":{
  "model":{"type":"string"},"input":{"type":"string"},"instructions":{"type":["string","null"]},
  "max_output_tokens":{"type":["integer","null"],"minimum":1,"maximum":393216},
  "temperature":{"type":["number","null"],"minimum":0,"maximum":2},"stream":{"type":["boolean","null"]}}},
"ResponsesResponse":{"type":"object","required":["id","object","status","model","output","usage"],"properties":{
  "object":{"const":"response"},"output":{"type":"array"},
  "status":{"enum":["completed","incomplete","failed","in_progress","cancelled"]}}},
"MessagesRequest":{"type":"object","required":["model","messages","max_tokens"],"properties":{
  "model":{"type":"string"},"max_tokens":{"type":"integer","minimum":1,"maximum":393216},
  "messages":{"type":"array","minItems":1,"maxItems":1,"items":{"type":"object","required":["role","content"],
  "properties":{"role":{"const":"user"},"content":{"type":"string"}}}},
  "system":{"type":["string","null"]},"temperature":{"type":["number","null"],"minimum":0,"maximum":1},
  "stream":{"type":["boolean","null"]}}},
"MessagesResponse":{"type":"object","required":["id","type","role","model","content","stop_reason","usage"],
  "properties":{"type":{"const":"message"},"role":{"const":"assistant"},"content":{"type":"array"}}},
"CountRequest":{"type":"object","required":["model","messages"],"properties":{
  "model":{"type":"string"},"messages":{"type":"array","minItems":1,"maxItems":1,"items":{"type":"object",
  "required":["role","content"],"properties":{"role":{"const":"user"},"content":{"type":"string"}}}}}},
"CountResponse":{"type":"object","required":["input_tokens"],"properties":{"input_tokens":{"type":"integer"}}},
"TokenizeRequest":{"type":"object","required":["prompt"],"properties":{"prompt":{"type":"string"},
  "add_special_tokens":{"type":["boolean","null"]},"return_token_strs":{"type":["boolean","null"]}}},
"TokenizeResponse":{"type":"object","required":["count","tokens"],"properties":{"count":{"type":"integer"},
  "tokens":{"type":"array","items":{"type":"integer"}}}},
"DetokenizeRequest":{"type":"object","required":["tokens"],"properties":{
  "tokens":{"type":"array","items":{"type":"integer","minimum":0,"maximum":200}}}},
"DetokenizeResponse":{"type":"object","required":["prompt"],"properties":{"prompt":{"type":"string"}}},
"LogLevel":{"type":"object","required":["level"],"properties":{
  "level":{"enum":["trace","debug","info","warn","error","off"]}}},
"ProfileRequest":{"type":"object","required":["seconds"],"properties":{
  "seconds":{"type":"number","minimum":0.01,"maximum":60}}},
"ProfileResponse":{"type":"object","required":["traceEvents","otherData"],"properties":{"traceEvents":{"type":"array"}}},
"ModelList":{"type":"object","required":["data"],"properties":{"data":{"type":"array"}}},
"Any":{}})json";

struct Bodies {
  std::string_view request;
  std::string_view response;
  bool streams = false;
};

const std::map<std::string_view, Bodies>& bodies() {
  static const std::map<std::string_view, Bodies> table = {
      {"/v1/chat/completions", {"ChatRequest", "ChatResponse", true}},
      {"/v1/completions", {"CompletionRequest", "CompletionResponse", true}},
      {"/v1/responses", {"ResponsesRequest", "ResponsesResponse", true}},
      {"/v1/messages", {"MessagesRequest", "MessagesResponse", true}},
      {"/v1/messages/count_tokens", {"CountRequest", "CountResponse"}},
      {"/v1/responses/input_tokens", {"ResponsesRequest", "CountResponse"}},
      {"/v1/render", {"ChatRequest", "Any"}},
      {"/tokenize", {"TokenizeRequest", "TokenizeResponse"}},
      {"/detokenize", {"DetokenizeRequest", "DetokenizeResponse"}},
      {"/admin/log_level", {"LogLevel", "LogLevel"}},
      {"/admin/profile", {"ProfileRequest", "ProfileResponse"}},
      {"/v1/models", {"", "ModelList"}},
  };
  return table;
}

void reference(JsonWriter& w, std::string_view schema) {
  w.begin_object().key("schema").begin_object().key("$ref").value(fmt::format("#/components/schemas/{}", schema));
  w.end_object().end_object();
}

void write_responses(JsonWriter& w, const Route& route, const Bodies& body) {
  w.key("responses").begin_object().key("200").begin_object().key("description").value("OK");
  if (route.path == "/metrics") {
    w.key("content").begin_object().key("text/plain").begin_object().end_object().end_object();
  } else if (route.path != "/health" && route.path != "/ping" && route.path != "/health_generate") {
    w.key("content").begin_object().key("application/json");
    reference(w, body.response.empty() ? std::string_view("Any") : body.response);
    if (body.streams) w.key("text/event-stream").begin_object().end_object();
    w.end_object();
  }
  w.end_object().key("default").begin_object().key("description").value("Error");
  w.key("content").begin_object().key("application/json");
  reference(w, route.scope == Scope::kPublic ? "Any" : "Error");
  w.end_object().end_object().end_object();
}

void write_operation(JsonWriter& w, const Route& route) {
  const auto found = bodies().find(route.path);
  const Bodies body = found == bodies().end() ? Bodies{} : found->second;
  std::string method(route.method);
  for (char& c : method) c = static_cast<char>(c - 'A' + 'a');
  w.key(method).begin_object().key("summary").value(route.summary);
  if (route.path.find("{id}") != std::string_view::npos) {
    w.key("parameters").begin_array().begin_object().key("name").value("id").key("in").value("path");
    w.key("required").value(true).key("schema").begin_object().key("type").value("string").key("minLength").value(1);
    w.key("pattern").value("^[A-Za-z0-9_-]+$").end_object().end_object().end_array();
  }
  if (!body.request.empty()) {
    w.key("requestBody").begin_object().key("required").value(true).key("content").begin_object();
    w.key("application/json");
    reference(w, body.request);
    w.end_object().end_object();
  }
  write_responses(w, route, body);
  if (route.scope == Scope::kPublic) w.key("security").begin_array().end_array();
  w.end_object();
}

std::string document() {
  std::map<std::string_view, std::vector<const Route*>> paths;
  for (const Route& route : all_routes()) {
    if (!route.summary.empty()) paths[route.path].push_back(&route);
  }
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("openapi").value("3.1.0").key("info").begin_object();
  w.key("title").value("deepinfer").key("version").value(DI_VERSION).end_object();
  w.key("paths").begin_object();
  for (const auto& [path, routes] : paths) {
    w.key(path).begin_object();
    for (const Route* route : routes) write_operation(w, *route);
    w.end_object();
  }
  w.end_object().key("components").begin_object().key("schemas").raw(kSchemas);
  w.key("securitySchemes").begin_object().key("key").begin_object().key("type").value("http");
  w.key("scheme").value("bearer").end_object().end_object().end_object();
  w.key("security").begin_array().begin_object().key("key").begin_array().end_array().end_object().end_array();
  w.end_object();
  return out;
}

}  // namespace

void handle_openapi(App& app, const ExchangeRef& exchange) {
  app.reply_json(*exchange, document());
}

}  // namespace di::server
