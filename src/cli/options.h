// What the subcommands are told: filled from the command line and the environment (DEEPINFER_<OPTION>) by main.cc.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/app.h"

namespace di::cli {

// Exit statuses (server.md §12).
inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kBadModel = 3;
inline constexpr int kNoMemory = 4;
inline constexpr int kPortInUse = 5;

// Parts of the model that --ablate switches off (model::Ablation).
inline constexpr std::array<const char*, 4> kAblations = {"engram", "selection", "candidates", "candidate-scores"};

struct ModelOptions {
  std::string folder;
  int32_t threads = 0;  // 0: the usable cores
  std::string device = "cpu";
  std::string numerics = "exact";
  bool kv_quant = true;
  int64_t max_model_len = 0;
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;
  uint64_t kv_memory = 0;  // bytes; 0: planned
  int64_t max_queue_size = 4096;
  int64_t max_queue_tokens = 0;
  int64_t max_queue_ms = 2000;  // ageing: a request gains a traffic class each time it has waited this long
  int64_t ttft_target_ms = 0;   // refuse what would wait longer for its first token; 0: nothing
  bool recompute_preempted = true;
  double peak_tflops = 0;  // of the device, FP8 equivalents; 0: unknown
  bool async_scheduling = true;
  std::string trace_file;       // Chrome trace of the steps; empty: none
  std::string record_schedule;  // the scheduler's plans, one JSON line each; empty: none
  // Reuse of KV (engine.md §6.4). Unset: by the model's window, design.md §7.
  bool prefix_cache = true;
  std::optional<bool> swa_replay;
  std::optional<uint64_t> swa_memory;  // bytes
  int64_t swa_retention_ms = 180'000;
  std::string prefill_truncation;  // off, mask, compact; empty: by the model
  std::string truncation_rule = "vl";
  std::string replay_keep = "fast";  // fast: 140 rows, lossless: as many as an equal answer needs, or a number
  std::vector<std::string> served_model_names;
  std::string spec = "dspark";           // "off", "dspark" (variable verify length), or a number of drafts
  int32_t spec_max_len = 0;              // most drafts of a sequence per step; 0: all the model makes
  std::vector<double> spec_temperature;  // of the confidences; empty: the model folder's
  std::string spec_curve_cache;          // folder of step costs; empty: the user's cache folder; "none": none
  std::vector<std::string> ablate;       // kAblations
  std::string engine = "real";           // see cli/test_engine.h
  int32_t test_blocks = 0;               // KV blocks of a mock or scripted engine; 0: enough
  bool test_prefill = false;             // an engine of their own for prompts, which hands them over
  int64_t test_transfer_timeout_ms = 300'000;
  bool reject_missing_reasoning = false;
  bool open_sampling = false;      // temperature and the like as requested, in thinking mode too
  bool reference_kernels = false;  // slow twins instead of the fast operators
};

struct ServeOptions {
  std::string config;  // read before the command line is (config_main.h)
  ModelOptions model;
  server::ServerConfig server;
  std::string kv_secret_file;
  int64_t drain_delay_ms = -1;  // -1: 5 s where others can connect, none on loopback
};

// What answers have to be; at most one is given.
struct ConstraintOptions {
  bool json = false;             // a JSON object
  std::string json_schema = {};  // a schema, or the name of a file that holds one
  std::string regex = {};
  std::string grammar = {};  // EBNF or Lark, or the name of a file
};

struct ChatOptions {
  ModelOptions model;
  std::string prompt;
  std::string system;
  bool thinking = false;
  std::string effort;
  int32_t max_tokens = 0;   // 0: the model's default
  double temperature = -1;  // < 0: the default
  int64_t seed = -1;
  ConstraintOptions constraint;
  std::string url;      // chat: the server that answers; empty: a model of its own
  std::string api_key;  // of that server
  std::string ca_cert;  // authorities of its certificate; empty: the system's
};

struct GenerateOptions {
  ModelOptions model;
  ConstraintOptions constraint;  // of lines that bring none
  std::string input;
  std::string output;
  int32_t concurrency = 0;  // requests in flight; 0: twice max_num_seqs
};

struct InspectOptions {
  std::string folder;
  int64_t context = 4096;
  int32_t sequences = 1;
  bool kv_quant = true;
  bool json = false;
};

struct CalibrateOptions {
  std::string folder;
  std::string prompts;                        // chat bodies or Batch lines
  std::string out;                            // empty: into the model folder
  std::vector<double> temperatures = {0, 1};  // of the requests
  int32_t limit = 1 << 20;                    // lines of each group
  int32_t concurrency = 16;
  int64_t max_tokens = 256;
  int32_t threads = 0;  // 0: the usable cores
};

struct BenchSpeculationOptions {
  std::string folder;
  std::string prompts;
  int32_t limit = 1 << 20;  // lines of each group
  std::vector<int32_t> concurrency = {1, 4, 16, 64};
  int64_t max_tokens = 128;
  double temperature = 0;
  int32_t repetitions = 2;
  int32_t threads = 0;  // 0: the usable cores
  bool replay_only = false;
  std::string record;           // file for the rounds that were recorded; empty: none
  bool processor_time = false;  // costs of steps in processor time instead of wall time
};

struct DoctorOptions {
  ModelOptions model;
  uint16_t port = 8000;
  bool json = false;
};

struct TopOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string ca_cert;               // as of chat
  std::vector<std::string> headers;  // whole lines
  int64_t interval_ms = 1000;
  int64_t count = 0;  // shown, then the end; 0: until Ctrl-C
  bool json = false;
};

struct CodecToolOptions {
  ModelOptions model;
  bool special = false;  // tokenize: with the token that begins a text
  bool json = false;
};

struct BenchEngineOptions {
  std::string folder;
  int32_t threads = 0;  // 0: the usable cores
  std::string part;     // pipeline, arrivals or model; empty: all
};

struct BenchKernelsOptions {
  int32_t threads = 0;  // 0: the usable cores
  int32_t repetitions = 9;
  std::string filter;       // part of a case name; empty: all
  int64_t megabytes = 256;  // of weights in the bandwidth cases
};

struct BenchLongContextOptions {
  std::string folder;
  std::vector<int32_t> contexts = {1024, 8192, 32000, 262144};
};

struct BenchLoadingOptions {
  std::string folder;
  std::string device = "cuda:0";
  uint64_t size = 0;  // of random weights at V4.1's widths in a temporary folder; 0: those of `folder`
  std::vector<int32_t> threads = {1, 2, 4, 8, 16};
  uint64_t piece = 4 << 20;
  int32_t repetitions = 3;
  bool cold = false;  // from the disk too
};

struct BenchModelOptions {
  std::string device = "cpu";
  std::string shape = "v41";  // or "toy": the same topology, small
  int32_t layers = 8;         // 40: the real schedule
  int32_t experts = 384;
  std::vector<int32_t> prefill = {512, 4096, 32768};
  std::vector<int32_t> batches = {1, 8, 64, 256};
  std::vector<int32_t> contexts = {1024, 32768, 131072};
  std::vector<int32_t> rows = {1};  // of a request in a step: its last token and the drafts to verify
  bool drafts = false;              // with the draft module: its round too
  int32_t steps = 9;                // of a decode row, of which the median counts
  double read_gbs = 4450;           // ceilings, of an H200 (performance.md §3) unless given
  double matrix_tflops = 700;
  int32_t threads = 0;
};

struct BenchReplayOptions {
  std::string folder;
  std::string prompts;  // JSON lines with `messages`; empty: stories that the model tells itself
  int32_t limit = 100;  // lines of the file
  int32_t threads = 0;
};

struct BenchCodecOptions {
  std::string tokenizer;
  std::string texts;
  int32_t repetitions = 5;
};

struct BenchAgentOptions {
  std::string folder;
  int32_t threads = 0;
  int32_t turns = 5;
  int32_t history = 8192;  // tokens of the first prompt
  int32_t answer = 64;
  int32_t added = 100;  // tokens that each turn brings
};

struct BenchServeOptions {
  std::string backend = "openai-chat";
  std::string base_url = "http://127.0.0.1:8000";
  std::string endpoint;  // empty: that of the backend
  std::string model;     // empty: the first that the server names
  std::string tokenizer;
  std::string dataset = "random";
  std::string dataset_path;
  int64_t input_len = 1024;
  int64_t output_len = 128;
  int64_t num_prompts = 1000;
  double request_rate = 0;  // per second; 0: all at once
  double burstiness = 1.0;
  int32_t max_concurrency = 0;
  int64_t num_warmups = 0;
  bool ignore_eos = false;
  std::string percentile_metrics = "ttft,tpot,itl";
  std::vector<double> percentiles = {99};
  std::vector<std::string> goodput;
  std::string result_filename;
  bool save_detailed = false;
  bool append_result = false;
  std::string label;
  std::vector<std::string> metadata;
  std::string extra_body;
  std::vector<std::string> headers;
  uint64_t seed = 0;
  double temperature = -1;
  double abort_ratio = 0;
  bool verify_stream = false;
  int64_t probe_livez_ms = 0;
  int64_t prefix_len = -1;  // tokens that prompts share; -1: by the data set
  int64_t num_prefixes = 1;
  std::string ramp_up;  // linear, exponential; empty: a steady rate
  double ramp_up_start = 0;
  double ramp_up_end = 0;
  int64_t multi_turn = 1;  // turns of a conversation
  int64_t turn_len = 64;   // tokens that each further turn brings
  int64_t think_time_ms = 0;
  bool save_result = false;
  std::string result_dir;
};

// Without a server, as `vllm bench latency` and `vllm bench throughput`.
struct BenchOfflineOptions {
  ModelOptions model;
  int64_t input_len = 32;
  int64_t output_len = 128;
  int64_t batch_size = 8;      // latency: requests at once
  int64_t warmups = 10;        // latency: rounds before measuring
  int64_t iterations = 30;     // latency: rounds
  int64_t num_prompts = 1000;  // throughput: requests, all there from the start
  int32_t n = 1;               // choices of each
  std::string dataset_path;    // throughput: lines of {prompt}; empty: random tokens
  uint64_t seed = 0;
  std::string output_json;
  bool json = false;  // one object instead of text
};

struct BenchGrammarOptions {
  std::string folder;
  std::string cases;        // lines of {schema, tests: [{text, valid}]}; empty: cases of our own
  int32_t repetitions = 5;  // compilations of each
  bool json = false;
};

struct BenchSweepOptions {
  BenchServeOptions serve;
  std::vector<std::string> grid;  // NAME=VALUE,VALUE…
  std::string csv;                // empty: standard output
  std::string html;               // empty: none
};

struct BenchStartupOptions {
  std::string folder;
  int32_t repetitions = 5;
  std::string engine = "real";
  std::string device = "cpu";
  bool json = false;
};

struct BenchKvOptions {
  int32_t blocks = 65'536;      // known ones: 8 Mi tokens
  int32_t prompt_blocks = 256;  // 32 Ki tokens
  uint64_t window_bytes = 1 << 20;
  uint64_t host_bytes = 256 << 20;
  bool json = false;
};

int serve(const ServeOptions& options);
int bench_serve(const BenchServeOptions& options);
int bench_sweep(const BenchSweepOptions& options);
int bench_startup(const BenchStartupOptions& options);
int bench_kv(const BenchKvOptions& options);
int bench_latency(const BenchOfflineOptions& options);
int bench_throughput(const BenchOfflineOptions& options);
int bench_grammar(const BenchGrammarOptions& options);
int chat(const ChatOptions& options);
int run(const ChatOptions& options);
int generate(const GenerateOptions& options);
int model_inspect(const InspectOptions& options);
int model_calibrate(const CalibrateOptions& options);
int doctor(const DoctorOptions& options);
int top(const TopOptions& options);
// "tokenize", "detokenize" or "render": standard input to standard output.
int codec_tool(const std::string& tool, const CodecToolOptions& options);
int bench_kernels(const BenchKernelsOptions& options);
int bench_speculation(const BenchSpeculationOptions& options);
int bench_engine(const BenchEngineOptions& options);
int bench_long_context(const BenchLongContextOptions& options);
int bench_model(const BenchModelOptions& options);
int bench_loading(const BenchLoadingOptions& options);
int bench_replay(const BenchReplayOptions& options);
int bench_codec(const BenchCodecOptions& options);
int bench_agent(const BenchAgentOptions& options);

}  // namespace di::cli
