#include "cli/bench_main.h"

#include <cstdlib>

#include "cli/command_line.h"
#include "cli/common_main.h"
#include "cli/local_model.h"

namespace di::cli {
namespace {

void add_bench_engine(CLI::App& bench, BenchEngineOptions& o) {
  CLI::App& engine =
      *bench.add_subcommand("engine", "Scheduler and pipeline, arrivals by a trace, continuous batching");
  add_model_folder(engine, o.folder, false);
  engine.add_option("--threads", o.threads, "Compute threads (all usable cores)")->check(CLI::Range(1, 1024));
  engine.add_option("--part", o.part, "pipeline, arrivals or model (all)")
      ->check(CLI::IsMember({"pipeline", "arrivals", "model"}));
}

void add_bench_caches(CLI::App& bench, BenchCommands& o) {
  CLI::App& context = *bench.add_subcommand("long-context", "Cost per decoded token and memory at growing contexts");
  add_model_folder(context, o.long_context.folder, false);
  context.add_option("--contexts", o.long_context.contexts, "Tokens, ascending")
      ->delimiter(',')
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  CLI::App& agent = *bench.add_subcommand("agent-trace", "An agent's turns with the prefix cache and without");
  add_model_folder(agent, o.agent.folder, false);
  agent.add_option("--turns", o.agent.turns, "Turns")->check(CLI::Range(1, 1000))->capture_default_str();
  agent.add_option("--history", o.agent.history, "Tokens of the first prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  agent.add_option("--threads", o.agent.threads, "Compute threads (all usable cores)")->check(CLI::Range(1, 1024));
  CLI::App& replay = *bench.add_subcommand("replay", "What bounded replay and truncated prefill change in the answers");
  add_model_folder(replay, o.replay.folder, false);
  replay.add_option("--prompts", o.replay.prompts, "JSON lines with messages (stories of the model's own)");
  replay.add_option("--limit", o.replay.limit, "Lines to take of the file")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  replay.add_option("--threads", o.replay.threads, "Compute threads (all usable cores)")->check(CLI::Range(1, 1024));
}

void add_bench_loading(CLI::App& bench, BenchLoadingOptions& o) {
  CLI::App& app =
      *bench.add_subcommand("loading", "Weights into a device, beside what the page cache and the bus give");
  add_model_folder(app, o.folder, false);
  app.add_option("--device", o.device, "cuda[:N]; cpu: into plain memory")->capture_default_str();
  app.add_option("--size", o.size, "Of random weights at V4.1's widths, in a temporary folder (those of the model)")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  app.add_option("--threads", o.threads, "Numbers of threads to try")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--piece", o.piece, "Bytes that a thread reads and sends at once (4 MiB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t{1} << 12, uint64_t{1} << 30))
      ->type_name("SIZE");
  app.add_option("--repetitions", o.repetitions, "Of each, the best counts")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_flag("--cold", o.cold, "From the disk too, the files out of the page cache");
}

void add_bench_model(CLI::App& bench, BenchModelOptions& o) {
  CLI::App& model = *bench.add_subcommand("model", "V4.1's layers at real widths with random weights");
  model.add_option("--device", o.device, "cpu or cuda[:N]; several, separated by commas: expert-parallel ranks")
      ->capture_default_str();
  model.add_option("--shape", o.shape, "v41, or toy for a trial")
      ->check(CLI::IsMember({"v41", "toy"}))
      ->capture_default_str();
  model.add_option("--layers", o.layers, "40: the real schedule; fewer: every kind of layer")
      ->check(CLI::Range(6, 40))
      ->capture_default_str();
  model.add_option("--experts", o.experts, "Routed experts of a layer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  model.add_option("--prefill", o.prefill, "Prompt lengths")->delimiter(',')->check(CLI::Range(1, 1 << 20));
  model.add_option("--batches", o.batches, "Requests of a decode step")->delimiter(',')->check(CLI::Range(1, 4096));
  model.add_option("--contexts", o.contexts, "Tokens before it")->delimiter(',')->check(CLI::Range(1, 1 << 20));
  model.add_option("--rows", o.rows, "Rows of a request in a decode step: 1 and the drafts to verify")
      ->delimiter(',')
      ->check(CLI::Range(1, 65));
  model.add_flag("--drafts", o.drafts, "With the draft module: its context in every step, and its rounds measured");
  model.add_option("--steps", o.steps, "Decode steps, of which the median counts")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  model.add_option("--read-gbs", o.read_gbs, "Measured read bandwidth, GB/s")
      ->check(above_zero())
      ->capture_default_str();
  model.add_option("--matrix-tflops", o.matrix_tflops, "Measured matrix rate, TFLOP/s")
      ->check(above_zero())
      ->capture_default_str();
  model.add_option("--threads", o.threads, "Compute threads of the CPU")->check(CLI::Range(1, 1024));
}

void add_bench_codec(CLI::App& bench, BenchCodecOptions& o) {
  CLI::App& codec = *bench.add_subcommand("codec", "Token codec: texts, requests, streams, in processor time");
  codec.add_option("tokenizer", o.tokenizer, "tokenizer.json or its folder")->required();
  codec.add_option("texts", o.texts, "Folder that bench/codec/texts.py wrote")->required();
  codec.add_option("--repetitions", o.repetitions, "Samples per case, the best counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

void add_bench_speculation(CLI::App& bench, BenchSpeculationOptions& o) {
  CLI::App& app =
      *bench.add_subcommand("speculation", "Tokens per second without drafts, with fixed and variable lengths");
  add_model_folder(app, o.folder, false);
  app.add_option("--prompts", o.prompts, "Requests, one per line: Batch form or bare chat bodies")
      ->required()
      ->type_name("IN.jsonl");
  app.add_option("--limit", o.limit, "Lines of each group (custom_id up to its last dash)")->check(above_zero());
  app.add_option("--concurrency", o.concurrency, "Requests in flight, one table each")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--max-tokens", o.max_tokens, "Longest answer")->check(above_zero())->capture_default_str();
  app.add_option("--temperature", o.temperature, "Of the requests")->check(CLI::Range(0.0, 2.0))->capture_default_str();
  app.add_flag("--processor-time", o.processor_time,
               "Costs in processor time: for machines that do other work (with --threads 1)");
  app.add_option("--repetitions", o.repetitions, "Alternating runs of each policy")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--threads", o.threads, "Compute threads (all usable cores)")->check(CLI::Range(1, 1024));
  app.add_option("--record", o.record, "File for the recorded rounds, one JSON object per line")->type_name("FILE");
  app.add_flag("--replay-only", o.replay_only, "Only record rounds and replay them on the cost curve");
}

// Names of `vllm bench serve` where it has them.
void add_bench_serve(CLI::App& app, BenchServeOptions& o) {
  app.add_option("--backend", o.backend, "openai-chat, openai, openai-responses or anthropic")
      ->check(CLI::IsMember({"openai-chat", "openai", "openai-responses", "anthropic"}))
      ->capture_default_str();
  app.add_option("--base-url", o.base_url, "Server")->capture_default_str();
  app.add_option("--endpoint", o.endpoint, "Path (that of the backend)");
  app.add_option("--model", o.model, "Name in the requests (the server's first)");
  app.add_option("--tokenizer", o.tokenizer, "Model folder whose tokens the prompts are made of")->type_name("DIR");
  app.add_option("--dataset-name", o.dataset, "random, prefix_repetition, sharegpt, sonnet, timed_trace or custom")
      ->check(CLI::IsMember({"random", "prefix_repetition", "sharegpt", "sonnet", "timed_trace", "custom"}))
      ->capture_default_str();
  app.add_option("--dataset-path", o.dataset_path,
                 "sharegpt: a JSON array of conversations; sonnet: lines of a text; timed_trace: lines of {timestamp "
                 "(ms), input_length, output_length, hash_ids (one per 512 tokens)}; custom: lines of {prompt}")
      ->type_name("FILE");
  app.add_option("--prefix-len", o.prefix_len,
                 "Tokens that prompts share (prefix_repetition: half of them, sonnet: 200)")
      ->check(not_negative());
  app.add_option("--num-prefixes", o.num_prefixes, "Of prefix_repetition: how many different ones")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--input-len,--random-input-len", o.input_len, "Tokens per prompt")->capture_default_str();
  app.add_option("--output-len,--random-output-len", o.output_len, "Tokens per answer")->capture_default_str();
  app.add_option("--num-prompts", o.num_prompts, "Requests")->check(above_zero())->capture_default_str();
  app.add_option_function<std::string>(
         "--request-rate",
         [&o](const std::string& v) { o.request_rate = v == "inf" ? 0 : std::strtod(v.c_str(), nullptr); },
         "Requests per second; 0 or inf: all at once")
      ->check([](const std::string& v) {
        char* end = nullptr;
        const bool number = std::strtod(v.c_str(), &end) >= 0 && end != v.c_str() && *end == '\0';
        return v == "inf" || number ? std::string() : "`" + v + "` is no rate; expected a number or inf";
      })
      ->type_name("RATE");
  app.add_option("--ramp-up-strategy", o.ramp_up, "The rate grows from start to end: linear or exponential")
      ->check(CLI::IsMember({"linear", "exponential"}));
  app.add_option("--ramp-up-start-rps", o.ramp_up_start, "Requests per second at the first request");
  app.add_option("--ramp-up-end-rps", o.ramp_up_end, "And at the last one");
  app.add_option("--multi-turn", o.multi_turn,
                 "Each prompt begins a conversation of so many turns; the answers go along (openai-chat, anthropic)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--turn-len", o.turn_len, "Tokens that each further turn brings")
      ->check(above_zero())
      ->capture_default_str();
  add_duration(app, "--think-time", o.think_time_ms, "Between an answer and the next turn (0)");
  app.add_option("--burstiness", o.burstiness, "1 is a Poisson process")->capture_default_str();
  app.add_option("--max-concurrency", o.max_concurrency, "Requests in flight; 0: any number");
  app.add_option("--num-warmups", o.num_warmups, "Requests before measuring");
  app.add_flag("--ignore-eos", o.ignore_eos, "Ask for answers of full length");
  app.add_option("--percentile-metrics", o.percentile_metrics, "Of ttft, tpot, itl, e2el")->capture_default_str();
  app.add_option("--metric-percentiles", o.percentiles, "Percentiles to show")->delimiter(',');
  app.add_option("--goodput", o.goodput, "Objectives, such as ttft:200 tpot:20 (milliseconds)")->delimiter(' ');
  app.add_option("--result-filename", o.result_filename, "Write a JSON object there")->type_name("FILE");
  app.add_flag("--save-result", o.save_result, "Write it under a name made of label or backend, rate, model and date");
  app.add_option("--result-dir", o.result_dir, "Folder of the file; made when missing")->type_name("DIR");
  app.add_flag("--save-detailed", o.save_detailed, "With the figures of every request");
  app.add_flag("--append-result", o.append_result, "Add a line instead of replacing the file");
  app.add_option("--label", o.label, "Goes into the result");
  app.add_option("--metadata", o.metadata, "KEY=VALUE, goes into the result");
  app.add_option("--extra-body", o.extra_body, "JSON object whose members go into every request");
  app.add_option("--header", o.headers, "Whole header line, such as 'Authorization: Bearer …'")
      ->allow_extra_args(false);
  app.add_option("--seed", o.seed, "Of prompts and arrivals");
  app.add_option("--temperature", o.temperature, "Of the requests");
  app.add_option("--abort-ratio", o.abort_ratio, "Part of the requests that are left after 50 ms")
      ->check(CLI::Range(0.0, 1.0));
  app.add_flag("--verify-stream", o.verify_stream, "Check the form of every stream");
  app.add_option("--probe-livez", o.probe_livez_ms, "Ask /livez every so many milliseconds beside the load");
}

// Without a server; names of `vllm bench latency` and `vllm bench throughput`.
void add_bench_offline(CLI::App& app, BenchOfflineOptions& o) {
  add_model_folder(app, o.model.folder, false);
  add_model_options(app, o.model);
  app.add_option("--input-len", o.input_len, "Tokens per prompt")->check(above_zero())->capture_default_str();
  app.add_option("--output-len", o.output_len, "Tokens per answer")->check(above_zero())->capture_default_str();
  app.add_option("--n", o.n, "Choices of each request")->check(CLI::Range(1, 128))->capture_default_str();
  app.add_option("--random-seed", o.seed, "Of prompts and sampling")->capture_default_str();
  app.add_option("--output-json", o.output_json, "Write a JSON object there")->type_name("FILE");
  app.add_flag("--json", o.json, "One JSON object instead of text");
}

void add_bench_latency(CLI::App& bench, BenchOfflineOptions& o) {
  o.model.prefix_cache = false;
  CLI::App& app = *bench.add_subcommand("latency", "Time of a batch from its start to its end, without a server");
  add_bench_offline(app, o);
  app.add_option("--batch-size", o.batch_size, "Requests at once")->check(above_zero())->capture_default_str();
  app.add_option("--num-iters-warmup", o.warmups, "Rounds before measuring")
      ->check(not_negative())
      ->capture_default_str();
  app.add_option("--num-iters", o.iterations, "Rounds")->check(above_zero())->capture_default_str();
}

void add_bench_throughput(CLI::App& bench, BenchOfflineOptions& o) {
  CLI::App& app = *bench.add_subcommand("throughput", "Tokens per second with all requests there, without a server");
  add_bench_offline(app, o);
  app.add_option("--num-prompts", o.num_prompts, "Requests")->check(above_zero())->capture_default_str();
  app.add_option("--dataset-path", o.dataset_path, "Lines of {prompt} instead of random tokens")->type_name("FILE");
}

void add_bench_grammar(CLI::App& bench, BenchGrammarOptions& o) {
  CLI::App& app =
      *bench.add_subcommand("grammar", "Constraints: compiling, first mask, masks and tokens, in processor time");
  add_model_folder(app, o.folder, false);
  app.add_option("--cases", o.cases, "Lines of {schema, tests: [{text, valid}]} instead of cases of our own")
      ->type_name("FILE");
  app.add_option("--repetitions", o.repetitions, "Compilations of each, the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--json", o.json, "One JSON object instead of text");
}

}  // namespace

void add_bench(CLI::App& root, BenchCommands& o) {
  CLI::App& bench = *root.add_subcommand("bench", "Measure");
  bench.require_subcommand(1);
  add_bench_model(bench, o.model);
  add_bench_loading(bench, o.loading);
  add_bench_codec(bench, o.codec);
  add_bench_speculation(bench, o.speculation);
  CLI::App& kernels = *bench.add_subcommand("kernels", "CPU operators: ratios to this machine's ceilings, in one run");
  add_bench_serve(*bench.add_subcommand("serve", "Load on a server; reports as vllm bench serve does"), o.serve);
  kernels.add_option("--threads", o.kernels.threads, "Compute threads (all usable cores)")->check(CLI::Range(1, 1024));
  kernels.add_option("--repetitions", o.kernels.repetitions, "Samples per case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  kernels.add_option("--filter", o.kernels.filter, "Only cases whose name has this in it");
  kernels.add_option("--megabytes", o.kernels.megabytes, "Weights of the bandwidth cases")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  CLI::App& sweep = *bench.add_subcommand("sweep", "bench serve for each point of a grid, as a table and a page");
  add_bench_serve(sweep, o.sweep.serve);
  sweep
      .add_option(
          "--grid", o.sweep.grid,
          "An axis, such as max-concurrency=1,4,16; also request-rate, input-len, output-len, num-prompts; repeatable")
      ->required()
      ->allow_extra_args(false)
      ->type_name("NAME=V,V");
  sweep.add_option("--csv", o.sweep.csv, "The table (standard output)")->type_name("FILE");
  sweep.add_option("--html", o.sweep.html, "A page with the points that no other one beats")->type_name("FILE");
  CLI::App& startup =
      *bench.add_subcommand("startup", "From the start of a server to its first answers, cold and warm");
  add_model_folder(startup, o.startup.folder, false);
  startup.add_option("--repetitions", o.startup.repetitions, "Starts of each kind")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  startup.add_option("--engine", o.startup.engine, "As of serve")->capture_default_str();
  startup.add_option("--device", o.startup.device, "As of serve")->capture_default_str();
  startup.add_flag("--json", o.startup.json, "One JSON object instead of text");
  CLI::App& kv = *bench.add_subcommand("kv", "Finding and keeping KV: look-ups, blocks, windows in host memory");
  kv.add_option("--blocks", o.kv.blocks, "Blocks of the device that are known")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  kv.add_option("--prompt-blocks", o.kv.prompt_blocks, "Blocks of a prompt")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  kv.add_option("--window-bytes", o.kv.window_bytes, "Of a sliding window in host memory")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  kv.add_option("--host-memory", o.kv.host_bytes, "For windows")->transform(CLI::AsSizeValue(false))->type_name("SIZE");
  kv.add_flag("--json", o.kv.json, "One JSON object instead of text");
  add_bench_engine(bench, o.engine);
  add_bench_latency(bench, o.latency);
  add_bench_throughput(bench, o.throughput);
  add_bench_grammar(bench, o.grammar);
  add_bench_caches(bench, o);
}

int run_bench_command(const CLI::App& command, BenchCommands& o) {
  const std::string name = command.get_subcommands().front()->get_name();
  for (std::string* folder :
       {&o.long_context.folder, &o.replay.folder, &o.agent.folder, &o.speculation.folder, &o.engine.folder,
        &o.startup.folder, &o.loading.folder, &o.latency.model.folder, &o.throughput.model.folder, &o.grammar.folder}) {
    if (folder->empty()) *folder = default_model_folder();
  }
  if (name == "model") return bench_model(o.model);
  if (name == "loading") return bench_loading(o.loading);
  if (name == "long-context") return bench_long_context(o.long_context);
  if (name == "engine") return bench_engine(o.engine);
  if (name == "replay") return bench_replay(o.replay);
  if (name == "codec") return bench_codec(o.codec);
  if (name == "agent-trace") return bench_agent(o.agent);
  if (name == "speculation") return bench_speculation(o.speculation);
  if (name == "latency") return bench_latency(o.latency);
  if (name == "throughput") return bench_throughput(o.throughput);
  if (name == "grammar") return bench_grammar(o.grammar);
  if (name == "serve") return bench_serve(o.serve);
  if (name == "sweep") return bench_sweep(o.sweep);
  if (name == "startup") return bench_startup(o.startup);
  if (name == "kv") return bench_kv(o.kv);
  return bench_kernels(o.kernels);
}

}  // namespace di::cli
