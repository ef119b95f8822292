// deepinfer tokenize, detokenize, render: the codec between standard input and output. Only the model folder's
// tokenizer is read; the answers are those of the server's routes of the same names.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/json.h"
#include "cli/local_client.h"
#include "cli/local_model.h"
#include "cli/options.h"

namespace di::cli {
namespace {

std::string all_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

// Token ids as a JSON list, or as words between white space and commas; a word that is no number stays one, for the
// codec to say so.
Json ids_of(const std::string& text) {
  if (Result<Json> list = parse_json(text); list && list->is_array()) return std::move(*list);
  constexpr const char* kBetween = " \t\r\n,";
  Json ids(Json::Array{});
  for (size_t at = text.find_first_not_of(kBetween); at != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string word = text.substr(at, end - at);
    int64_t id = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    const bool number = error == std::errc() && rest == word.data() + word.size();
    ids.push_back(number ? Json(id) : Json(word));
    at = text.find_first_not_of(kBetween, end);
  }
  return ids;
}

void print(const std::string& tool, const Json& answer) {
  if (tool == "detokenize" || tool == "render") {
    std::printf("%s\n", answer.find("prompt")->as_string().c_str());
    return;
  }
  std::string line;
  for (const Json& id : answer.find("tokens")->as_array()) line += (line.empty() ? "" : " ") + to_json(id);
  std::printf("%s\n", line.c_str());
}

}  // namespace

int codec_tool(const std::string& tool, const CodecToolOptions& options) {
  const auto failed = [&](const std::string& message, int status) {
    std::fprintf(stderr, "deepinfer %s: %s\n", tool.c_str(), message.c_str());
    return status;
  };
  Result<server::Codec> codec = load_codec(options.model);
  if (!codec) return failed(codec.error().message, kBadModel);
  const SystemClock clock;
  server::ServerConfig config;
  config.served_model_names = served_names(options.model);
  config.worker_threads = 1;
  server::App app(config, clock);
  app.set_codec(std::move(*codec));
  std::string body = all_input();
  if (tool == "tokenize") {
    Json request(Json::Object{});
    request.set("prompt", Json(std::move(body)));
    request.set("add_special_tokens", Json(options.special));
    body = to_json(request);
  } else if (tool == "detokenize") {
    Json request(Json::Object{});
    request.set("tokens", ids_of(body));
    body = to_json(request);
  }
  const LocalAnswer answer = post_and_wait(app, tool == "render" ? "/v1/render" : "/" + tool, std::move(body));
  const Result<Json> json = parse_json(answer.body);
  if (!json) return failed("no answer", kFailed);
  if (answer.status != 200) {
    const Json* error = json->find_value("error");
    const Json* message = error == nullptr ? nullptr : error->find_value("message");
    return failed(message == nullptr || !message->is_string() ? answer.body : message->as_string(), kFailed);
  }
  options.json ? static_cast<void>(std::printf("%s\n", answer.body.c_str())) : print(tool, *json);
  return kOk;
}

}  // namespace di::cli
