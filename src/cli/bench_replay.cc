// deepinfer bench replay: how far the approximate modes (bounded replay, truncated prefill) are from exact computation:
// the same answers, token by token, under each mode's prompt. docs/replay.md shows the table.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/json.h"
#include "base/thread_pool.h"
#include "cli/local_model.h"
#include "codec/prompt/prompt.h"
#include "kernels/cpu/cpu.h"
#include "kv/replay_plan.h"
#include "model/fixture.h"

namespace di::cli {
namespace {

using namespace model;

constexpr int32_t kBlock = 128;
constexpr int32_t kAnswerTokens = 64;

struct Mode {
  std::string name;
  bool replay = false;
  int32_t keep = 0;  // 0: all rows run through all layers
  TruncationRule rule = TruncationRule::kVl;
};

struct Score {
  int64_t answers = 0;
  int64_t tokens = 0;
  int64_t changed_tokens = 0;
  int64_t changed_answers = 0;
  double kl = 0;
  double worst = 0;
};

struct Sample {
  std::vector<int32_t> text;  // prompt and answer
  int32_t prompt = 0;
  std::vector<float> logits;  // [answer tokens, vocab] of the exact run
};

std::vector<std::string> subjects() {
  return {"an owl",  "a fox",     "a baker", "a nurse",  "a lighthouse", "a lost key", "a farmer", "a river",
          "a robot", "a teacher", "a boat",  "a garden", "a cat",        "a storm",    "a clock",  "a bridge"};
}

// Conversations of four questions each, when no file is given: the model's own answers make the history.
std::vector<codec::Conversation> own_conversations() {
  std::vector<codec::Conversation> out;
  const std::vector<std::string> names = subjects();
  for (size_t i = 0; i < names.size(); ++i) {
    codec::Conversation c;
    for (size_t turn = 0; turn < 4; ++turn) {
      codec::Message m;
      m.content = "Please tell a little story about " + names[(i + turn * 5) % names.size()] + ".";
      c.messages.push_back(m);
    }
    out.push_back(std::move(c));
  }
  return out;
}

Result<std::vector<codec::Conversation>> read_conversations(const std::string& path, int32_t limit) {
  std::vector<codec::Conversation> out;
  std::ifstream in(path);
  if (!in) return fail(Errc::kNotFound, "{}: cannot be read", path);
  for (std::string line; std::getline(in, line) && static_cast<int32_t>(out.size()) < limit;) {
    const Json json = DI_TRY(parse_json(line));
    const Json* messages = json.find("messages");
    if (messages == nullptr || !messages->is_array())
      return fail(Errc::kInvalidRequest, "{}: a line has no messages", path);
    codec::Conversation c;
    for (const Json& item : messages->as_array()) {
      const Json* role = item.find("role");
      const Json* content = item.find("content");
      if (role == nullptr || !role->is_string() || content == nullptr || !content->is_string()) continue;
      codec::Message m;
      m.role = role->as_string() == "system"      ? codec::Message::Role::kSystem
               : role->as_string() == "assistant" ? codec::Message::Role::kAssistant
                                                  : codec::Message::Role::kUser;
      m.content = content->as_string();
      c.messages.push_back(std::move(m));
    }
    out.push_back(std::move(c));
  }
  return out;
}

size_t best(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Σ p·(log p - log q), natural log.
double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const auto log_sum = [](std::span<const float> row) {
    const double top = row[best(row)];
    double sum = 0;
    for (const float v : row) sum += std::exp(v - top);
    return top + std::log(sum);
  };
  const double lp = log_sum(p);
  const double lq = log_sum(q);
  double out = 0;
  for (size_t i = 0; i < p.size(); ++i) out += std::exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
  return std::max(0.0, out);
}

class Bench {
 public:
  Bench(codec::TokenizerRef tokenizer, const FixtureModel& model, const ConformanceBackend& backend)
      : tokenizer_(std::move(tokenizer)), model_(model), backend_(backend) {
    const int32_t window = model.config.sliding_window;
    const int32_t keep = window + 12;  // 140 of the real window
    modes_ = {{"replay", true, 0, TruncationRule::kVl},
              {fmt::format("truncated, vl, keep {}", keep), false, keep, TruncationRule::kVl},
              {fmt::format("truncated, di, keep {}", keep), false, keep, TruncationRule::kDi},
              {fmt::format("truncated, vl, keep {}", 140), false, 140, TruncationRule::kVl},
              {fmt::format("replay and truncated, vl, keep {}", keep), true, keep, TruncationRule::kVl}};
    scores_.resize(modes_.size());
  }

  Result<void> conversation(const codec::Conversation& whole, bool answer_turns) {
    codec::Conversation c;
    for (const codec::Message& m : whole.messages) {
      c.messages.push_back(m);
      const bool last = &m == &whole.messages.back();
      if (!answer_turns && !last) continue;
      Sample sample = DI_TRY(exact(c));
      if (sample.prompt > kBlock) DI_TRY(compare(sample));
      if (!answer_turns) continue;
      codec::Message answer;
      answer.role = codec::Message::Role::kAssistant;
      answer.content = tokenizer_->decode(std::span(sample.text).subspan(static_cast<size_t>(sample.prompt)));
      c.messages.push_back(std::move(answer));
    }
    return {};
  }

  void print() const {
    std::printf(
        "| mode | answers | tokens | KL per token, mean | largest | changed greedy tokens | changed answers |\n"
        "|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < modes_.size(); ++i) {
      const Score& s = scores_[i];
      const auto percent = [](int64_t a, int64_t b) { return b == 0 ? 0.0 : 100.0 * double(a) / double(b); };
      std::printf("| %s | %lld | %lld | %.2e | %.2e | %lld (%.2f %%) | %lld (%.1f %%) |\n", modes_[i].name.c_str(),
                  static_cast<long long>(s.answers), static_cast<long long>(s.tokens),
                  s.kl / static_cast<double>(std::max<int64_t>(1, s.tokens)), s.worst,
                  static_cast<long long>(s.changed_tokens), percent(s.changed_tokens, s.tokens),
                  static_cast<long long>(s.changed_answers), percent(s.changed_answers, s.answers));
    }
  }

 private:
  Result<std::unique_ptr<FixtureRun>> new_run(const Sample& sample, TruncationRule rule) const {
    FixtureOptions options;
    options.kv_quant = true;
    options.rule = rule;
    options.block_tokens = kBlock;
    options.max_tokens = sample.prompt + kAnswerTokens;
    return FixtureRun::create(model_, backend_, options);
  }

  // The greedy answer and its logits, every row through every layer.
  Result<Sample> exact(const codec::Conversation& c) const {
    Sample s;
    s.text = DI_TRY(codec::encode_conversation(c, codec::ModelVersion::kV41, *tokenizer_,
                                               codec::SpecialSpellings::for_tokenizer(*tokenizer_)));
    s.prompt = static_cast<int32_t>(s.text.size());
    const std::unique_ptr<FixtureRun> run = DI_TRY(new_run(s, TruncationRule::kVl));
    std::vector<float> row = DI_TRY(run->feed(s.text, 0, s.prompt, s.prompt - 1));
    for (int32_t i = 0; i < kAnswerTokens; ++i) {
      const auto token = static_cast<int32_t>(best(row));
      s.logits.insert(s.logits.end(), row.begin(), row.end());
      if (token == model_.config.eos_token_id) break;
      s.text.push_back(token);
      if (i + 1 == kAnswerTokens) break;
      row = DI_TRY(run->feed(s.text, s.prompt + i, 1, s.prompt + i));
    }
    return s;
  }

  // The same text with the prompt computed under each mode; the answer's rows follow as they are.
  Result<void> compare(const Sample& s) {
    const auto vocab = static_cast<size_t>(model_.config.vocab_size);
    const auto rows = static_cast<int32_t>(s.logits.size() / vocab);
    for (size_t m = 0; m < modes_.size(); ++m) {
      const Mode& mode = modes_[m];
      const std::unique_ptr<FixtureRun> run = DI_TRY(new_run(s, mode.rule));
      kv::StartPlan start;
      if (mode.replay) {
        const kv::ReplayRules rules{model_.config.sliding_window, kBlock, true, 0};
        start = kv::plan_start(rules, kv::usable_tokens(s.prompt, kBlock), {});
        DI_TRY(run->feed(s.text, 0, start.hit_tokens, INT_MAX));  // who left the blocks behind
      }
      const int32_t end = s.prompt + rows - 1;
      const std::vector<float> found =
          DI_TRY(run->feed(s.text, start.start, end - start.start, s.prompt - 1, nullptr, [&](SequenceChunk& chunk) {
            chunk.state_slot = 2;
            chunk.window_start = start.window_start;
            chunk.block_write_begin = start.block_write_begin;
            if (mode.keep > 0) chunk.keep_begin = kv::keep_begin(s.prompt, mode.keep, start.start, false);
          }));
      Score& score = scores_[m];
      bool changed = false;
      for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
        const auto p = std::span(s.logits).subspan(r * vocab, vocab);
        const auto q = std::span(found).subspan(r * vocab, vocab);
        const double kl = kl_divergence(p, q);
        score.kl += kl;
        score.worst = std::max(score.worst, kl);
        ++score.tokens;
        if (best(p) != best(q)) ++score.changed_tokens, changed = true;
      }
      ++score.answers;
      if (changed) ++score.changed_answers;
    }
    return {};
  }

  codec::TokenizerRef tokenizer_;
  const FixtureModel& model_;
  const ConformanceBackend& backend_;
  std::vector<Mode> modes_;
  std::vector<Score> scores_;
};

Result<void> bench(const BenchReplayOptions& options) {
  const codec::TokenizerRef tokenizer = DI_TRY(codec::Tokenizer::load(options.folder));
  const auto model = DI_TRY(FixtureModel::load(
      options.folder, [&](const std::string&) -> Result<std::vector<TokenText>> { return token_texts(*tokenizer); }));
  ThreadPool pool(options.threads);
  const kernels::cpu::StreamPtr stream = kernels::cpu::make_stream(pool);
  const auto device = device::make_host_device();
  const ConformanceBackend backend{kernels::cpu::ops(kernels::cpu::best_isa()), *stream, *device};
  Bench bench(tokenizer, *model, backend);
  const bool own = options.prompts.empty();
  const std::vector<codec::Conversation> conversations =
      own ? own_conversations() : DI_TRY(read_conversations(options.prompts, options.limit));
  for (const codec::Conversation& c : conversations) DI_TRY(bench.conversation(c, own));
  bench.print();
  return {};
}

}  // namespace

int bench_replay(const BenchReplayOptions& options) {
  if (const Result<void> done = bench(options); !done) {
    std::fprintf(stderr, "deepinfer bench replay: %s\n", done.error().message.c_str());
    return kFailed;
  }
  return kOk;
}

}  // namespace di::cli
