#include "cli/bench_dataset.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>

#include "base/json.h"

namespace di::cli {
namespace {

constexpr int64_t kTraceBlock = 512;  // tokens that an id of a trace stands for

// Texts of so many tokens.
class PromptMaker {
 public:
  PromptMaker(codec::TokenizerRef tokenizer, uint64_t seed) : tokenizer_(std::move(tokenizer)), random_(seed) {
    for (TokenId id = 0; tokenizer_ != nullptr && id < tokenizer_->vocab_size(); ++id) {
      const std::string_view bytes = tokenizer_->token_bytes(id);
      if (tokenizer_->is_added(id) || bytes.size() < 4 || bytes[0] != ' ') continue;
      if (std::all_of(bytes.begin() + 1, bytes.end(), [](char c) { return c >= 'a' && c <= 'z'; }))
        words_.push_back(std::string(bytes));
    }
    if (words_.empty()) words_ = {" hello", " world", " time", " house", " water", " people"};
  }
  std::string make(int64_t tokens) { return make(tokens, random_); }
  // The same text for the same number.
  std::string block(uint64_t number, int64_t tokens) const {
    std::mt19937_64 own(number);
    return make(tokens, own);
  }
  int64_t count(std::string_view text) const {
    if (tokenizer_ != nullptr) return static_cast<int64_t>(tokenizer_->encode_plain(text).size());
    return static_cast<int64_t>(text.size() / 5 + 1);
  }
  std::size_t pick(std::size_t n) { return random_() % n; }

 private:
  std::string make(int64_t tokens, std::mt19937_64& random) const {
    std::string out;
    for (int64_t i = 0; i < tokens; ++i) out += words_[random() % words_.size()];
    return out;
  }

  codec::TokenizerRef tokenizer_;
  std::mt19937_64 random_;
  std::vector<std::string> words_;
};

struct Text {
  std::string prompt;
  int64_t output_tokens = 0;
  int64_t prompt_tokens = 0;
  std::optional<int64_t> at_ns = {};  // from the start, where the data says so
};
using Texts = Result<std::vector<Text>>;

Result<std::ifstream> open_dataset(const BenchServeOptions& o) {
  std::ifstream file(o.dataset_path);
  if (!file) return fail(Errc::kNotFound, "--dataset-path: cannot read '{}'", o.dataset_path);
  return file;
}

Texts random_texts(const BenchServeOptions& o, PromptMaker& maker) {
  std::vector<std::string> prefixes;
  int64_t prefix_tokens = 0;
  if (o.dataset == "prefix_repetition") {
    prefix_tokens = o.prefix_len >= 0 ? o.prefix_len : o.input_len / 2;
    for (int64_t i = 0; i < o.num_prefixes; ++i) prefixes.push_back(maker.make(prefix_tokens));
  }
  std::vector<Text> out;
  for (int64_t i = 0; i < o.num_prompts; ++i) {
    Text text{.prompt = prefixes.empty() ? std::string() : prefixes[static_cast<std::size_t>(i) % prefixes.size()],
              .output_tokens = o.output_len,
              .prompt_tokens = o.input_len};
    text.prompt += maker.make(std::max<int64_t>(o.input_len - prefix_tokens, 0));
    out.push_back(std::move(text));
  }
  return out;
}

// Lines of {"prompt": …}, with an "output_tokens" of their own where they have one.
Texts custom_texts(const BenchServeOptions& o, const PromptMaker& maker) {
  std::ifstream file = DI_TRY(open_dataset(o));
  std::vector<Text> out;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    const Result<Json> json = parse_json(line);
    const Json* prompt = json ? json->find_value("prompt") : nullptr;
    if (prompt == nullptr || !prompt->is_string())
      return fail(Errc::kInvalidRequest, "{}: line {}: expected an object with a `prompt`", o.dataset_path,
                  out.size() + 1);
    const Json* output = json->find_value("output_tokens");
    out.push_back({prompt->as_string(), output == nullptr ? o.output_len : output->to_i64().value_or(o.output_len),
                   maker.count(prompt->as_string())});
  }
  return out;
}

// [{"conversations": [{"value": question}, {"value": answer}, …]}, …]: the first question, and as many tokens as its
// answer has.
Texts sharegpt_texts(const BenchServeOptions& o, PromptMaker& maker) {
  const Json all = DI_TRY(parse_json_file(o.dataset_path));
  if (!all.is_array()) return fail(Errc::kInvalidRequest, "{}: expected an array of conversations", o.dataset_path);
  std::vector<Text> out;
  for (const Json& one : all.as_array()) {
    const Json* turns = one.find_value("conversations");
    if (turns == nullptr || !turns->is_array() || turns->size() < 2) continue;
    const Json* question = turns->as_array()[0].find_value("value");
    const Json* answer = turns->as_array()[1].find_value("value");
    if (question == nullptr || answer == nullptr || !question->is_string() || !answer->is_string()) continue;
    const int64_t in = maker.count(question->as_string());
    const int64_t expected = maker.count(answer->as_string());
    if (in < 4 || expected < 4 || in > o.input_len) continue;
    out.push_back({question->as_string(), std::min(expected, o.output_len), in});
  }
  if (out.empty())
    return fail(Errc::kInvalidRequest, "{}: no conversation of two turns with 4 to --input-len {} tokens",
                o.dataset_path, o.input_len);
  for (std::size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[maker.pick(i)]);
  return out;
}

// Lines of a poem: the first of them for all, up to --prefix-len tokens, then others at random.
Texts sonnet_texts(const BenchServeOptions& o, PromptMaker& maker) {
  std::ifstream file = DI_TRY(open_dataset(o));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) lines.push_back(line + "\n");
  }
  if (lines.empty()) return fail(Errc::kInvalidRequest, "{}: no lines", o.dataset_path);
  std::string prefix = "Pick as many lines as you can from these poem lines:\n";
  const int64_t shared = o.prefix_len >= 0 ? o.prefix_len : std::min<int64_t>(200, o.input_len / 2);
  for (std::size_t i = 0; i < lines.size() && maker.count(prefix + lines[i]) <= shared; ++i) prefix += lines[i];
  std::vector<Text> out;
  for (int64_t i = 0; i < o.num_prompts; ++i) {
    Text text{.prompt = prefix, .output_tokens = o.output_len, .prompt_tokens = maker.count(prefix)};
    for (;;) {
      const std::string& line = lines[maker.pick(lines.size())];
      const int64_t more = maker.count(line);
      if (text.prompt_tokens + more > o.input_len) break;
      text.prompt += line;
      text.prompt_tokens += more;
    }
    out.push_back(std::move(text));
  }
  return out;
}

// Lines of {"timestamp": ms, "input_length", "output_length", "hash_ids": [one per 512 tokens]}: equal ids are equal
// text, so that a cache finds what it would have found in the recorded traffic.
Texts trace_texts(const BenchServeOptions& o, const PromptMaker& maker) {
  std::ifstream file = DI_TRY(open_dataset(o));
  std::vector<Text> out;
  for (std::string line; std::getline(file, line) && static_cast<int64_t>(out.size()) < o.num_prompts;) {
    if (line.empty()) continue;
    const Result<Json> json = parse_json(line);
    const auto number = [&](const char* key) {
      const Json* value = json ? json->find_value(key) : nullptr;
      return value == nullptr ? std::optional<double>() : value->to_double();
    };
    const std::optional<double> at = number("timestamp");
    const std::optional<double> in = number("input_length");
    const std::optional<double> most = number("output_length");
    if (!at || !in || !most || *at < 0 || *in < 1 || *most < 1)
      return fail(Errc::kInvalidRequest, "{}: line {}: expected timestamp, input_length and output_length",
                  o.dataset_path, out.size() + 1);
    Text text{.prompt = {},
              .output_tokens = static_cast<int64_t>(*most),
              .prompt_tokens = static_cast<int64_t>(*in),
              .at_ns = static_cast<int64_t>(*at * 1e6)};
    const Json* ids = json->find_value("hash_ids");
    int64_t left = text.prompt_tokens;
    for (std::size_t i = 0; left > 0; ++i) {
      const uint64_t number_of_block = ids != nullptr && ids->is_array() && i < ids->size()
                                           ? ids->as_array()[i].to_u64().value_or(0)
                                           : (uint64_t{out.size()} << 32 | i) + (uint64_t{1} << 63);
      const int64_t take = std::min(left, kTraceBlock);
      text.prompt += maker.block(number_of_block + o.seed, take);
      left -= take;
    }
    out.push_back(std::move(text));
  }
  if (!out.empty()) {
    const int64_t first = *out.front().at_ns;
    for (Text& text : out) text.at_ns = std::max<int64_t>(*text.at_ns - first, 0);
  }
  return out;
}

Texts read_texts(const BenchServeOptions& o, PromptMaker& maker) {
  if (o.dataset == "custom") return custom_texts(o, maker);
  if (o.dataset == "sharegpt") return sharegpt_texts(o, maker);
  if (o.dataset == "sonnet") return sonnet_texts(o, maker);
  if (o.dataset == "timed_trace") return trace_texts(o, maker);
  return random_texts(o, maker);
}

Json message(const char* role, const std::string& text) {
  Json out(Json::Object{});
  out.set("role", Json(role));
  out.set("content", Json(text));
  return out;
}

std::string request_body(const BenchServeOptions& o, const std::vector<std::string>& said, int64_t output_tokens) {
  Json body(Json::Object{});
  body.set("model", Json(o.model));
  body.set("stream", Json(true));
  if (o.temperature >= 0) body.set("temperature", Json(o.temperature));
  if (o.backend == "openai") {
    body.set("prompt", Json(said.back()));
    body.set("max_tokens", Json(output_tokens));
  } else if (o.backend == "openai-responses") {
    body.set("input", Json(said.back()));
    body.set("max_output_tokens", Json(output_tokens));
  } else {
    Json messages(Json::Array{});
    for (std::size_t i = 0; i < said.size(); ++i)
      messages.push_back(message(i % 2 == 0 ? "user" : "assistant", said[i]));
    body.set("messages", std::move(messages));
    body.set("max_tokens", Json(output_tokens));
  }
  if (o.backend.starts_with("openai") && o.backend != "openai-responses") {
    Json options(Json::Object{});
    options.set("include_usage", Json(true));
    body.set("stream_options", std::move(options));
  }
  if (o.ignore_eos) body.set("ignore_eos", Json(true));
  if (const Result<Json> extra = parse_json(o.extra_body.empty() ? "{}" : o.extra_body); extra && extra->is_object()) {
    for (const JsonMember& member : extra->as_object()) body.set(member.key, member.value);
  }
  return to_json(body);
}

std::string endpoint_of(const BenchServeOptions& o) {
  if (!o.endpoint.empty()) return o.endpoint;
  if (o.backend == "openai") return "/v1/completions";
  if (o.backend == "openai-responses") return "/v1/responses";
  return o.backend == "anthropic" ? "/v1/messages" : "/v1/chat/completions";
}

// When conversation after conversation begins: gaps of a gamma distribution, whose rate may grow.
class Arrivals {
 public:
  explicit Arrivals(const BenchServeOptions& o) : o_(o), random_(o.seed) {}
  int64_t next_ns(double progress) {
    const double rate =
        o_.ramp_up.empty() ? o_.request_rate : ramp_up_rate(o_.ramp_up, o_.ramp_up_start, o_.ramp_up_end, progress);
    if (rate <= 0) return 0;
    std::gamma_distribution<double> gap(o_.burstiness, 1 / (rate * o_.burstiness));
    return static_cast<int64_t>((at_s_ += gap(random_)) * 1e9);
  }

 private:
  const BenchServeOptions& o_;
  std::mt19937_64 random_;
  double at_s_ = 0;
};

}  // namespace

double ramp_up_rate(const std::string& strategy, double start, double end, double progress) {
  if (strategy == "linear") return start + (end - start) * progress;
  return start * std::pow(end / start, progress);
}

Result<BenchDataset> BenchDataset::make(const BenchServeOptions& options, codec::TokenizerRef tokenizer) {
  BenchDataset out;
  out.options_ = options;
  const BenchServeOptions& o = out.options_;
  if (o.multi_turn > 1 && o.backend != "openai-chat" && o.backend != "anthropic")
    return fail(Errc::kInvalidRequest, "--multi-turn: expected --backend openai-chat or anthropic, found {}",
                o.backend);
  if (!o.ramp_up.empty() && (o.ramp_up_start <= 0 || o.ramp_up_end <= 0))
    return fail(Errc::kInvalidRequest,
                "--ramp-up-strategy: expected --ramp-up-start-rps and --ramp-up-end-rps above 0");
  PromptMaker maker(std::move(tokenizer), o.seed);
  const std::vector<Text> texts = DI_TRY(read_texts(o, maker));
  if (texts.empty()) return fail(Errc::kInvalidRequest, "{}: no requests", o.dataset_path);
  Arrivals arrivals(o);
  std::mt19937_64 random(o.seed + 1);
  std::uniform_real_distribution<double> uniform(0, 1);
  const auto n =
      static_cast<std::size_t>(o.dataset == "timed_trace" ? static_cast<int64_t>(texts.size()) : o.num_prompts);
  for (std::size_t i = 0; i < n; ++i) {
    const Text& text = texts[i % texts.size()];
    const double progress = n > 1 ? static_cast<double>(i) / static_cast<double>(n - 1) : 0;
    out.history_.push_back({text.prompt});
    for (int64_t turn = 0; turn < std::max<int64_t>(o.multi_turn, 1); ++turn) {
      LoadRequest request;
      request.path = endpoint_of(o);
      request.prompt_tokens = text.prompt_tokens;
      if (turn == 0) {
        request.body = request_body(o, out.history_[i], text.output_tokens);
        request.send_at_ns = text.at_ns ? *text.at_ns : arrivals.next_ns(progress);
      } else {
        request.after = static_cast<int64_t>(out.requests_.size()) - 1;
        request.think_ns = o.think_time_ms * 1'000'000;
      }
      if (o.abort_ratio > 0 && uniform(random) < o.abort_ratio) request.abort_after_ns = 50'000'000;
      out.turns_.push_back({turn == 0 ? text.prompt : maker.make(o.turn_len), text.output_tokens, i});
      out.requests_.push_back(std::move(request));
    }
  }
  return out;
}

std::string BenchDataset::next_body(std::size_t request, const LoadResult& before) const {
  const Turn& turn = turns_[request];
  std::vector<std::string>& said = history_[turn.conversation];
  said.push_back(before.answer.empty() ? "…" : before.answer);
  said.push_back(turn.text);
  return request_body(options_, said, turn.output_tokens);
}

}  // namespace di::cli
