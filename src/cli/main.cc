// The program deepinfer: subcommands and their options. Each subcommand is a file of its own; only this one sees the
// command line and the environment (DEEPINFER_<OPTION> stands for an option that is not given).
// long because it lists every option of every command
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/log.h"
#include "cli/bench_main.h"
#include "cli/command_line.h"
#include "cli/common_main.h"
#include "cli/config_main.h"
#include "cli/local_model.h"
#include "cli/options.h"

namespace di::cli {
namespace {

struct LogOptions {
  std::string level = "info";
  std::string format = "auto";
};

struct Options {
  LogOptions log;
  ServeOptions serve;
  ServeOptions shown;  // of config: apart, or the environment's values for it would come over those of serve
  DoctorOptions doctor;
  TopOptions top;
  CodecToolOptions codec_tool;
  std::string shell;
  bool json = false;
  ChatOptions chat;
  ChatOptions run;
  GenerateOptions generate;
  InspectOptions inspect;
  CalibrateOptions calibrate;
  BenchCommands bench;
};

void add_constraint_options(CLI::App& app, ConstraintOptions& o) {
  app.add_flag("--json", o.json, "Answers are JSON objects");
  app.add_option("--json-schema", o.json_schema, "Answers fit this JSON Schema")->type_name("SCHEMA|FILE");
  app.add_option("--regex", o.regex, "Answers match this regular expression, from end to end");
  app.add_option("--grammar", o.grammar, "Answers are of this EBNF or Lark grammar")->type_name("TEXT|FILE");
}

void add_chat_options(CLI::App& app, ChatOptions& o) {
  add_constraint_options(app, o.constraint);
  app.add_option("--system", o.system, "System prompt");
  app.add_flag("--think,!--no-think", o.thinking, "Let the model reason before it answers");
  app.add_option("--effort", o.effort, "Reasoning effort")->check(CLI::IsMember({"low", "medium", "high", "max"}));
  app.add_option("--max-tokens", o.max_tokens, "Longest answer in tokens")->check(above_zero());
  app.add_option("--temperature", o.temperature, "0 is greedy")->check(CLI::Range(0.0, 2.0));
  app.add_option("--seed", o.seed, "Same seed, same answer")->check(not_negative());
}

// The form of answers, and what is written down of requests.
void add_answer_options(CLI::App& app, server::ServerConfig& s) {
  app.add_flag("--nonstream-keep-alive", s.nonstream_keep_alive,
               "Send blank lines before an answer in one piece (the status is 200 from the start)");
  app.add_flag("--usage-details", s.usage_details, "The usage of an answer tells how many drafts it took");
  app.add_flag("--reasoning-alias", s.reasoning_alias,
               "Chat answers have `reasoning` beside `reasoning_content`, with the same text");
  app.add_flag(
      "--stream-obfuscation", s.stream_obfuscation,
      "Pad the deltas of Chat and Responses streams with a random `obfuscation`, also where nobody asks for it");
  app.add_option("--stream-interval", s.stream_interval, "Tokens that are sent together in a stream")
      ->check(above_zero());
  app.add_option("--stream-interval-ms", s.stream_interval_ms,
                 "Milliseconds that the tokens of a stream wait for each other (0: none)")
      ->check(not_negative());
  app.add_flag(
      "--early-headers,!--no-early-headers", s.early_headers,
      "Streams begin when the request is in the queue (on); off: with the first token, so that what goes wrong "
      "before has its own status");
  app.add_flag("--queue-while-loading", s.queue_while_loading,
               "Requests wait for the model while it loads, instead of being refused");
  app.add_flag("--enforce-thinking-budget", s.enforce_thinking_budget,
               "`budget_tokens` of `thinking` ends the thinking; else it is read and not used");
  app.add_option("--diag-responses", s.diag_responses,
                 "Prompts of Responses that later ones may be compared with (prompt_cache_diagnostics); 0: none")
      ->check(not_negative());
  app.add_option("--log-requests", s.log_requests,
                 "Write the bodies of requests to this file, one a line; beyond 64 MiB it becomes FILE.1")
      ->type_name("FILE");
  app.add_flag("--metrics-tenant", s.metrics_tenant, "Series of requests and tokens by tenant among the metrics");
}

// Keys, limits and what the API accepts.
void add_api_options(CLI::App& app, ServeOptions& o) {
  server::ServerConfig& s = o.server;
  app.add_option("--api-key", s.auth.keys,
                 "Accept this key: KEY[:TENANT[:ROLE[:MAX_CONCURRENCY[:RPM[:TPM]]]]]; repeatable")
      ->type_name("KEY")
      ->delimiter(',');
  app.add_option("--api-key-file", s.auth.key_file, "Keys, one per line in the same form; read again when it changes")
      ->type_name("FILE");
  app.add_flag("--require-auth", s.require_auth, "Do not start on an address that others can reach without a key");
  app.add_flag("--metrics-auth", s.auth.metrics_auth, "/metrics needs a key with the scope metrics");
  app.add_option("--kv-secret-file", o.kv_secret_file, "Secret of the cache namespaces; made when it is not there")
      ->type_name("FILE");
  app.add_option("--cors-origins", s.cors_origins, "Origins whose pages may call this server; * for all")
      ->delimiter(',');
  app.add_option("--root-path", s.http.root_path, "Prefix of all paths, such as /llm")->type_name("PATH");
  app.add_flag("--strict-fields", s.strict_fields, "Refuse members of a body that are not known");
  app.add_flag("--allow-priority", s.allow_priority, "Let every client set a priority");
  add_answer_options(app, s);
  app.add_option("--responses-store", s.responses_store, "Responses kept for previous_response_id; 0: none")
      ->check(not_negative());
  app.add_option("--exact-replay-memory", s.exact_replay_bytes,
                 "Memory for the tokens of answers with tool calls, used when they come back (64MiB); 0: off")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  add_duration(app, "--exact-replay-age", s.exact_replay_age_ms, "How long these are kept (1h)");
  app.add_option("--exact-replay-dir", s.exact_replay_dir, "Folder in which they outlive the server; made when missing")
      ->type_name("DIR");
  app.add_option("--files-store", s.files_store, "Memory for uploaded files (256MiB); 0: none are taken")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  app.add_option("--max-images", s.max_images, "Images per request (64)")->check(not_negative());
  app.add_flag("--media-fetch", s.media_fetch.policy.enabled,
               "Fetch images that are given by http or https links, from the hosts of --media-allow-domain only");
  app.add_option("--media-allow-domain", s.media_fetch.policy.allow_domains,
                 "Host that images may be fetched from, or *.HOST for all below it; repeatable")
      ->type_name("HOST")
      ->delimiter(',');
  app.add_option_function<std::string>(
         "--media-proxy", [&s](const std::string& v) { static_cast<void>(server::set_proxy(s.media_fetch, v)); },
         "Fetch links through this proxy, which is asked to connect to the checked address (CONNECT)")
      ->check([](const std::string& v) {
        server::MediaFetchOptions tried;
        const Result<void> ok = server::set_proxy(tried, v);
        return ok ? std::string() : ok.error().message;
      })
      ->type_name("URL");
  app.add_option_function<std::string>(
         "--missing-reasoning", [&o](const std::string& v) { o.model.reject_missing_reasoning = v == "reject"; },
         "Earlier turns without reasoning: taken as empty, or refused")
      ->check(CLI::IsMember({"fill-empty", "reject"}))
      ->type_name("NAME");
  app.add_option_function<std::string>(
         "--sampling-policy", [&o](const std::string& v) { o.model.open_sampling = v == "open"; },
         "While thinking, temperature, top_p and penalties: as the official service fixes them, or as requested")
      ->check(CLI::IsMember({"recipe", "open"}))
      ->type_name("NAME");
  app.add_option("--tls-cert", s.tls.certificate, "Serve HTTPS with this certificate chain; read again when it changes")
      ->type_name("PEM");
  app.add_option("--tls-key", s.tls.key, "Key of --tls-cert")->type_name("PEM");
  app.add_option("--tls-ca", s.tls.client_authority, "Clients need a certificate that one of these has signed")
      ->type_name("PEM");
  add_duration(app, "--liveness-stall", s.liveness_stall_ms, "Engine without a step for that long: not alive (2m)");
  app.add_option("--max-body-size", s.http.body_bytes, "Largest request body")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
}

void add_tracing_options(CLI::App& app, server::OtlpOptions& o) {
  app.add_option("--otlp-endpoint", o.endpoint,
                 "Send traces to this OpenTelemetry collector, such as http://localhost:4318 (OTEL_EXPORTER_OTLP_*)")
      ->type_name("URL");
  app.add_option("--trace-ratio", o.ratio, "Part of the requests that is traced when their sender does not decide")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

// Flags of vLLM that have nothing to do here (server.md §12): accepted, so that its command lines work.
void add_ignored_options(CLI::App& app) {
  const auto note = [](const std::string& name) {
    std::fprintf(stderr, "deepinfer serve: %s has no effect here\n", name.c_str());
  };
  for (const char* flag :
       {"--enable-auto-tool-choice", "--enable-prompt-tokens-details", "--enable-force-include-usage",
        "--disable-log-requests", "--trust-remote-code", "--enforce-eager", "--enable-chunked-prefill"})
    app.add_flag_callback(flag, [note, flag] { note(flag); }, "")->group("");
  for (const char* option :
       {"--api-server-count", "--tool-call-parser", "--reasoning-parser", "--tokenizer-mode", "--dtype"})
    app.add_option_function<std::string>(option, [note, option](const std::string&) { note(option); }, "")->group("");
  for (const std::string option :
       {"--tensor-parallel-size,--tp", "--pipeline-parallel-size,--pp", "--data-parallel-size,--dp",
        "--expert-parallel-size,--ep", "--context-parallel-size,--cp"}) {
    app.add_option_function<int>(
           option, [](int) {}, "")
        ->check([name = option.substr(0, option.find(','))](const std::string& v) {
          return v == "1" ? std::string()
                          : name + ": one process runs one replica on one device: expected 1, found `" + v + "`";
        })
        ->group("");
  }
}

// Known options with a single value here, refused with what is missing otherwise.
void add_options_of_a_cluster(CLI::App& app) {
  app.add_option_function<std::string>(
         "--role", [](const std::string&) {}, "What this process does: all (HTTP and engine); there are no other roles")
      ->check([](const std::string& v) {
        return v == "all" ? std::string()
                          : "--role: `" + v + "`: one process is HTTP front and engine, expected all (docs/server.md)";
      })
      ->type_name("all")
      ->group("");
  app.add_option_function<std::string>(
         "--kv-tier", [](const std::string&) {}, "Tiers of KV beyond the device")
      ->check([](const std::string& v) {
        return "--kv-tier: `" + v + "`: there is no store of KV beyond memory; windows in host memory: --swa-memory";
      })
      ->group("");
}

void add_serve_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--config", o.config, "TOML or JSON file with these options; the environment and this line win")
      ->type_name("FILE");
  add_ignored_options(app);
  add_options_of_a_cluster(app);
  add_model_folder(app, o.model.folder, false);
  app.add_option("--host", o.server.host, "Address to listen on")->capture_default_str();
  app.add_option("--port", o.server.port, "Port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--uds", o.server.uds, "Unix socket to listen on, instead of host and port")->type_name("PATH");
  app.add_option("--admin-port", o.server.admin_port,
                 "Port of its own for administration, metrics and the web page, which the other then does not have");
  add_model_options(app, o.model);
  app.add_option("--max-queue-size", o.model.max_queue_size, "Requests that may wait")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--max-queue-tokens", o.model.max_queue_tokens, "Prompt tokens that may wait; 0: any number")
      ->check(not_negative());
  app.add_option_function<std::string>(
         "--api-policy",
         [&o](const std::string& v) {
           o.server.policy = v == "official" ? codec::ApiPolicy::kOfficial : codec::ApiPolicy::kExtended;
         },
         "extended accepts more than the official service does")
      ->check(CLI::IsMember({"extended", "official"}))
      ->type_name("NAME");
  app.add_option("--max-n", o.server.max_n, "Largest n of a request")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--http-workers", o.server.worker_threads, "Threads for parsing, tokenising and writing")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_api_options(app, o);
  add_tracing_options(app, o.server.otlp);
  add_duration(app, "--max-queue-wait", o.server.max_queue_wait_ms, "Longest wait before the first step (10m); 0: any");
  add_duration(app, "--request-timeout", o.server.request_timeout_ms, "Longest time for a whole request (30m); 0: any");
  add_duration(app, "--drain-delay", o.drain_delay_ms,
               "After a signal, time in which new requests are still taken (5s; none on a loopback address)");
  add_duration(app, "--drain-timeout,--shutdown-timeout", o.server.drain_timeout_ms,
               "After a signal, time for running requests to end (2m)");
  add_duration(app, "--sse-keep-alive,--sse-keep-alive-interval", o.server.http.keep_alive_ms,
               "Silence in a stream before a comment is sent (10s); 0: never");
  add_duration(app, "--slow-client-timeout", o.server.http.slow_client_timeout_ms,
               "Time in which a client must read something (60s)");
}

// What surrounds serving.
void add_operations(CLI::App& root, Options& o) {
  CLI::App& config = *root.add_subcommand("config", "The configuration of serve");
  config.require_subcommand(1);
  CLI::App& print = *config.add_subcommand("print", "Every option with its value and where that comes from");
  print.add_flag("--json", o.json, "One JSON object instead of text");
  add_serve_options(print, o.shown);
  add_serve_options(*config.add_subcommand("check", "Whether file, environment and options are understood"), o.shown);
  add_serve_options(*config.add_subcommand("schema", "What a configuration file may hold, as JSON Schema"), o.shown);
  CLI::App& doctor = *root.add_subcommand("doctor", "Whether this machine and a model folder are fit to serve");
  add_model_folder(doctor, o.doctor.model.folder, false);
  doctor.add_option("--port", o.doctor.port, "Port to look at")->capture_default_str();
  doctor.add_flag("--json", o.doctor.json, "One JSON object instead of text");
  CLI::App& completion = *root.add_subcommand("completion", "Completion of this command line for a shell");
  completion.add_option("shell", o.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

void add_ca_cert(CLI::App& app, std::string& file) {
  app.add_option("--ca-cert", file, "With https: PEM file of the authorities to trust, in place of the system's")
      ->check(CLI::ExistingFile)
      ->type_name("PEM");
}

void add_tools(CLI::App& root, Options& o) {
  CLI::App& top = *root.add_subcommand("top", "The figures of a running server, once a second");
  top.add_option("--url", o.top.url, "Server")->capture_default_str();
  top.add_option("--api-key", o.top.api_key, "Key, where /metrics needs one");
  add_ca_cert(top, o.top.ca_cert);
  add_duration(top, "--interval", o.top.interval_ms, "Between two readings (1s)");
  top.add_option("--count", o.top.count, "Readings to show, then leave; 0: go on")->check(not_negative());
  top.add_flag("--json", o.top.json, "A line of JSON each instead of text");
  const std::pair<const char*, const char*> tools[] = {
      {"tokenize", "Text from standard input to token ids"},
      {"detokenize", "Token ids from standard input to text"},
      {"render", "A Chat, Responses or Messages body from standard input to the prompt that it becomes"}};
  for (const auto& [name, help] : tools) {
    CLI::App& tool = *root.add_subcommand(name, help);
    add_model_folder(tool, o.codec_tool.model.folder, false);
    tool.add_flag("--json", o.codec_tool.json, "One JSON object instead of text");
    if (std::string_view(name) == "tokenize")
      tool.add_flag("--add-special-tokens", o.codec_tool.special, "Begin with the token that begins a text");
  }
  root.add_subcommand("version", "What this is")->add_flag("--json", o.json, "One JSON object instead of text");
}

void add_checkpoint_commands(CLI::App& root, Options& o) {
  CLI::App& model = *root.add_subcommand("model", "Look into checkpoints");
  model.require_subcommand(1);
  CLI::App& inspect = *model.add_subcommand("inspect", "Layers, tensors, parameters and a memory plan");
  add_model_folder(inspect, o.inspect.folder, true);
  inspect.add_option("--max-model-len,--context", o.inspect.context, "Plan for this many tokens per sequence")
      ->transform(token_count())
      ->capture_default_str();
  inspect.add_option("--max-num-seqs,--sequences", o.inspect.sequences, "Plan for this many sequences")
      ->check(above_zero())
      ->capture_default_str();
  inspect
      .add_option_function<std::string>(
          "--kv-quant", [&o](const std::string& v) { o.inspect.kv_quant = v == "on"; },
          "Plan for the trained KV formats (on) or fp32 (off)")
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("on|off");
  inspect.add_flag("--json", o.inspect.json, "One JSON object instead of text");
  CLI::App& calibrate =
      *model.add_subcommand("calibrate", "Fit the temperatures of the draft module's confidences on its own drafts");
  add_model_folder(calibrate, o.calibrate.folder, true);
  calibrate.add_option("--prompts", o.calibrate.prompts, "Requests, one per line: Batch form or bare chat bodies")
      ->required()
      ->type_name("IN.jsonl");
  calibrate.add_option("--out", o.calibrate.out, "File to write (dspark_calibration.json of the model folder)");
  calibrate.add_option("--temperatures", o.calibrate.temperatures, "Temperatures of the requests")
      ->delimiter(',')
      ->capture_default_str();
  calibrate.add_option("--limit", o.calibrate.limit, "Lines of each group (custom_id up to its last dash)")
      ->check(above_zero());
  calibrate.add_option("--max-tokens", o.calibrate.max_tokens, "Longest answer")
      ->check(above_zero())
      ->capture_default_str();
  calibrate.add_option("--concurrency", o.calibrate.concurrency, "Requests in flight")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  calibrate.add_option("--threads", o.calibrate.threads, "Compute threads (all usable cores)")
      ->check(CLI::Range(1, 1024));
}

// Commands of a cluster and others that this program does not have: known by name, so that nobody looks for a mistake
// of his own (docs/server.md, "Not there").
struct AbsentCommand {
  const char* group;  // the command before it; empty: none
  const char* name;
  const char* needs;
};
constexpr AbsentCommand kAbsent[] = {
    {"", "router", "a router in front of several workers"},
    {"", "worker", "prefill and decode in processes of their own"},
    {"", "planner", "the planner of a cluster"},
    {"", "demo", "a router and workers"},
    {"", "simulate", "the simulator of a cluster"},
    {"", "cache", "a store of KV beyond memory"},
    {"bench", "router", "a router"},
    {"model", "verify", "a list of a checkpoint's hashes"},
    {"model", "convert", "another format of checkpoints"},
    {"model", "quantize", "another format of weights"},
    {"model", "download-plan", "a place to download from"},
};

void add_absent_commands(CLI::App& root) {
  for (const AbsentCommand& absent : kAbsent) {
    CLI::App& parent = *absent.group == '\0' ? root : *root.get_subcommand(absent.group);
    parent.add_subcommand(absent.name)->group("")->prefix_command();
  }
}

// The status and a line for a command that is not there; nothing for others.
std::optional<int> refuse_absent(const CLI::App& root) {
  const CLI::App& command = *root.get_subcommands().front();
  const std::vector<CLI::App*> below = command.get_subcommands();
  for (const AbsentCommand& absent : kAbsent) {
    const bool alone = *absent.group == '\0' && command.get_name() == absent.name;
    const bool nested =
        !below.empty() && command.get_name() == absent.group && below.front()->get_name() == absent.name;
    if (!alone && !nested) continue;
    std::fprintf(stderr, "deepinfer %s%s%s: not in this program: it needs %s, which is not there (docs/server.md)\n",
                 absent.group, *absent.group == '\0' ? "" : " ", absent.name, absent.needs);
    return kUsage;
  }
  return std::nullopt;
}

void add_commands(CLI::App& root, Options& o) {
  root.require_subcommand(1);
  root.formatter(help_formatter());
  root.footer("Options may also come from the environment: DEEPINFER_MAX_NUM_SEQS stands for --max-num-seqs.");
  root.set_help_all_flag("--help-all", "Help of every command");
  root.set_version_flag("--version", std::string("deepinfer ") + DI_VERSION);
  root.add_option("--log-level", o.log.level,
                  "trace, debug, info, warn, error or off; then ROOM=LEVEL for parts of the program: info,engine=debug")
      ->check([](const std::string& v) {
        const Result<LogLevels> levels = parse_log_levels(v);
        return levels ? std::string() : levels.error().message;
      })
      ->type_name("LEVELS")
      ->capture_default_str();
  root.add_option("--log-format", o.log.format, "text, json, or auto: text on a terminal")
      ->check(CLI::IsMember({"auto", "text", "json"}))
      ->capture_default_str();
  CLI::App& serve_command =
      *root.add_subcommand("serve", "Answer requests over HTTP: Chat Completions, Responses, Messages");
  serve_command.fallthrough();  // --log-level is understood behind it too
  add_serve_options(serve_command, o.serve);
  add_operations(root, o);

  CLI::App& chat = *root.add_subcommand("chat", "Talk to a model in the terminal");
  add_model_folder(chat, o.chat.model.folder, false);
  add_model_options(chat, o.chat.model);
  add_chat_options(chat, o.chat);
  chat.add_option("--url", o.chat.url,
                  "Talk to this running server, such as https://HOST:8000, instead of loading a model")
      ->type_name("URL");
  chat.add_option("--api-key", o.chat.api_key, "Key of that server");
  add_ca_cert(chat, o.chat.ca_cert);

  CLI::App& run = *root.add_subcommand("run", "Answer one prompt and leave");
  add_model_folder(run, o.run.model.folder, false);
  run.add_option("prompt", o.run.prompt,
                 "The question; absent or -: standard input. Alone it may stand without a model")
      ->type_name("TEXT");
  add_model_options(run, o.run.model);
  add_chat_options(run, o.run);

  CLI::App& generate =
      *root.add_subcommand("generate", "Answer a file of requests; a run that was ended goes on where it was");
  generate.add_option("input", o.generate.input, "One request per line: OpenAI's Batch form or a bare chat body")
      ->required()
      ->type_name("IN.jsonl");
  generate.add_option("output", o.generate.output, "One result per line, in the order they are ready")
      ->required()
      ->type_name("OUT.jsonl");
  add_model_folder(generate, o.generate.model.folder, false);
  add_model_options(generate, o.generate.model);
  add_constraint_options(generate, o.generate.constraint);
  generate.add_option("--concurrency", o.generate.concurrency, "Requests in flight (twice --max-num-seqs)")
      ->check(above_zero());

  add_checkpoint_commands(root, o);
  add_bench(root, o.bench);
  add_tools(root, o);
  add_absent_commands(root);
}

// DEEPINFER_MAX_NUM_SEQS stands for --max-num-seqs, and so on.
void bind_environment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    std::string name = "DEEPINFER_" + option->get_lnames()[0];
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
    // The folder of a model, and not the name in a benchmark's requests.
    const bool other_model = name == "DEEPINFER_MODEL" && !option->get_positional();
    if (name != "DEEPINFER_HELP" && name != "DEEPINFER_VERSION" && !other_model) option->envname(name);
  }
  for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) bind_environment(*sub);
}

// `run "Hello there"`: the only word is a question when it cannot be a folder.
void take_lone_prompt(ChatOptions& run) {
  std::error_code ec;
  if (!run.prompt.empty() || run.model.folder.find('/') != std::string::npos) return;
  if (run.model.folder.empty() || std::filesystem::exists(run.model.folder, ec)) return;
  run.prompt = std::move(run.model.folder);
  run.model.folder.clear();
}

void start_log(const LogOptions& options, bool quiet) {
  LogConfig config;
  // Commands that print answers stay silent beside them.
  config.levels = quiet && options.level == "info"
                      ? log_levels(LogLevel::kWarn)
                      : parse_log_levels(options.level).value_or(log_levels(LogLevel::kInfo));
  config.json = options.format == "json" || (options.format == "auto" && isatty(STDERR_FILENO) == 0);
  configure_log(config);
}

int config_command(const CLI::App& root, const CLI::App& command, const Options& o, const ConfigOrigins& origins) {
  const CLI::App& sub = *command.get_subcommands().front();
  if (sub.get_name() == "print") return print_config(sub, origins, o.json);
  if (sub.get_name() == "schema") return print_config_schema(*root.get_subcommand("serve"));
  std::printf("ok\n");
  return kOk;
}

int dispatch(const CLI::App& root, Options& o, const ConfigOrigins& origins) {
  const CLI::App& command = *root.get_subcommands().front();
  const std::string name = command.get_name();
  if (const std::optional<int> status = refuse_absent(root)) return *status;
  if (name == "config") return config_command(root, command, o, origins);
  if (name == "completion") return print_completion(root, o.shell);
  if (name == "version") {
    std::printf(o.json ? "{\"version\":\"%s\"}\n" : "deepinfer %s\n", DI_VERSION);
    return kOk;
  }
  start_log(o.log, name != "serve");
  if (name == "run") take_lone_prompt(o.run);
  for (ModelOptions* model :
       {&o.serve.model, &o.run.model, &o.chat.model, &o.generate.model, &o.doctor.model, &o.codec_tool.model}) {
    if (model->folder.empty()) model->folder = default_model_folder();
  }
  if (name == "serve") {
    o.serve.server.effective = effective_config(command, origins);
    return serve(o.serve);
  }
  if (name == "doctor") return doctor(o.doctor);
  if (name == "top") return top(o.top);
  if (name == "tokenize" || name == "detokenize" || name == "render") return codec_tool(name, o.codec_tool);
  if (name == "chat") return chat(o.chat);
  if (name == "run") return run(o.run);
  if (name == "generate") return generate(o.generate);
  if (name == "bench") return run_bench_command(command, o.bench);
  const bool calibrate = command.get_subcommands().front()->get_name() == "calibrate";
  return calibrate ? model_calibrate(o.calibrate) : model_inspect(o.inspect);
}

}  // namespace

int main_program(int argc, char** argv) {
  CLI::App root("deepinfer: DeepSeek V4.1 Flash on CPUs, GPUs and clusters", "deepinfer");
  Options options;
  add_commands(root, options);
  bind_environment(root);
  const Result<ConfigOrigins> origins = apply_config_file(root, argc, argv);
  if (!origins) {
    std::fprintf(stderr, "deepinfer: %s\n", origins.error().message.c_str());
    return kUsage;
  }
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return root.exit(e);
    std::fprintf(stderr, "deepinfer: %s\n", explain_parse_error(root, e).c_str());
    return kUsage;
  }
  return dispatch(root, options, *origins);
}

}  // namespace di::cli

int main(int argc, char** argv) {
  return di::cli::main_program(argc, argv);
}
