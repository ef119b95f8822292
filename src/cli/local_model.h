// A model folder made ready to answer requests in this process: tokenizer, weights, caches, engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "cli/backend.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "server/app.h"

namespace di::cli {

// The folder to load: the one named, else DIR/models/tiny above the program or the working directory.
std::string default_model_folder();

// Names that requests may give: those asked for, else the model's own and the official ones (server.md §4.1).
std::vector<std::string> served_names(const ModelOptions& options);

// Members are in the order they are made; the engine goes first.
struct LocalModel {
  Backend backend;
  std::optional<Backend> prefill_backend;  // of an engine for prompts alone
  codec::TokenizerRef tokenizer;
  codec::CodecOptions codec;
  bool vision = false;  // takes images
  std::string system_fingerprint;
  std::string summary;  // one line for the log
  std::unique_ptr<structured::CompilePool> constraints;
  std::unique_ptr<engine::Trace> trace;  // written to trace_file at the end, where one is named
  std::string trace_file;
  std::unique_ptr<engine::ScheduleRecorder> recorder;
  std::unique_ptr<engine::EngineApi> engine;

  LocalModel() = default;
  ~LocalModel();
  LocalModel(const LocalModel&) = delete;
  LocalModel& operator=(const LocalModel&) = delete;
  server::Service service(const Clock& clock) const;
};

// The codec of a model folder alone: config.json (when there is one) and tokenizer.json.
Result<server::Codec> load_codec(const ModelOptions& options);

struct LoadError {
  int exit_status = kFailed;
  std::string message;
};

struct LoadHooks {
  std::function<void(double, std::string_view)> progress;  // the part done, and the stage that begins
  // Prompts can be counted from here on.
  std::function<void(const server::Codec&)> codec;
  // While it runs: EngineOptions::on_device_lost.
  std::function<void(const Error&)> device_lost = {};
};

std::expected<std::unique_ptr<LocalModel>, LoadError> load_model(const ModelOptions& options, codec::ApiPolicy policy,
                                                                 const Clock& clock, const LoadHooks& hooks = {});

// What the model's Engram tables read of a tokenizer.
std::vector<model::TokenText> token_texts(const codec::Tokenizer& tokenizer);

}  // namespace di::cli
