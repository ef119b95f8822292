#include "codec/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/thread_pool.h"
#include "codec/codec.h"
#include "codec/tokenizer/safe_cut.h"

namespace di::codec {

namespace {

double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best of several runs, by the given clock.
template <class Clock, class Body>
double best(int repetitions, const Clock& clock, const Body& body) {
  double least = 1e9;
  for (int i = 0; i < repetitions; ++i) {
    const double start = clock();
    body();
    least = std::min(least, clock() - start);
  }
  return least;
}

Result<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(Errc::kNotFound, "{}: cannot be read", path.string());
  std::stringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

void row(std::string_view what, double value, std::string_view unit) {
  fmt::print("| {} | {:.2f} {} |\n", what, value, unit);
}

// How much faster two threads can be: the whole over its longer half and joining the ids, in processor time. Unlike
// wall time it means something on a busy machine.
double two_thread_bound(int repetitions, const std::string& text, const Tokenizer& tokenizer) {
  const size_t cut = next_safe_cut(text, text.size() / 2);
  const std::string_view halves[] = {std::string_view(text).substr(0, cut), std::string_view(text).substr(cut)};
  std::vector<TokenId> ids[3];
  for (auto& list : ids) list.reserve(text.size());
  const auto encode = [&](std::string_view part, std::vector<TokenId>& out) {
    return best(repetitions, cpu_seconds, [&] {
      out.clear();
      tokenizer.encode_plain(part, out);
    });
  };
  const double whole = encode(text, ids[2]);
  const double longer = std::max(encode(halves[0], ids[0]), encode(halves[1], ids[1]));
  const double join = best(repetitions, cpu_seconds, [&] {
    ids[2].clear();
    for (const auto& part : {ids[0], ids[1]}) ids[2].insert(ids[2].end(), part.begin(), part.end());
  });
  return whole / (longer + join);
}

// One message on one thread and on two, in turn, so that what else the machine does meets both alike; four times each,
// since a core that another process has just used must fetch the tables anew.
void bench_two_threads(const std::string& name, const std::string& text, const Tokenizer& tokenizer, ThreadPool& two) {
  constexpr size_t kRounds = 60;
  RenderedPrompt prompt;
  prompt.text = text;
  std::vector<double> one;
  std::vector<double> both;
  EncodeTimes fastest;
  while (both.size() < kRounds) {
    for (int i = 0; i < 4; ++i) {
      one.push_back(best(1, wall_seconds, [&] { static_cast<void>(encode_prompt(prompt, tokenizer)); }));
    }
    for (int i = 0; i < 4; ++i) {
      EncodeTimes times;
      both.push_back(best(1, wall_seconds, [&] { static_cast<void>(encode_prompt(prompt, tokenizer, &two, &times)); }));
      if (both.back() <= *std::min_element(both.begin(), both.end())) fastest = times;
    }
  }
  std::sort(one.begin(), one.end());
  std::sort(both.begin(), both.end());
  row(fmt::format("encode_prompt, {}: one message on 2 threads over 1, wall, best of {} rounds ({:.2f} and {:.2f} ms)",
                  name, kRounds, 1e3 * both[0], 1e3 * one[0]),
      one[0] / both[0], "times");
  row(fmt::format("the same, medians ({:.2f} and {:.2f} ms)", 1e3 * both[kRounds / 2], 1e3 * one[kRounds / 2]),
      one[kRounds / 2] / both[kRounds / 2], "times");
  row(fmt::format(
          "of its best round: finding cuts {:.0f} us, encoding on both {:.0f} us, joining {:.0f} us; on one thread",
          1e6 * fastest.cut, 1e6 * fastest.encode, 1e6 * fastest.join),
      100 * (both[0] - fastest.encode) / both[0], "%");
}

Result<void> bench_texts(const BenchOptions& options, const Tokenizer& tokenizer) {
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(options.texts, ignored)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  if (files.empty()) return fail(Errc::kNotFound, "{}: no texts; make them with bench/codec/texts.py", options.texts);
  std::sort(files.begin(), files.end());
  ThreadPool two(2);
  for (const auto& file : files) {
    const std::string text = DI_TRY(read_file(file));
    std::vector<TokenId> ids;
    ids.reserve(text.size());
    const double seconds = best(options.repetitions, cpu_seconds, [&] {
      ids.clear();
      tokenizer.encode_plain(text, ids);
    });
    const std::string name = file.stem().string();
    row(fmt::format("encode_plain, {} ({:.2f} MB, {} ids)", name, static_cast<double>(text.size()) / 1e6, ids.size()),
        static_cast<double>(text.size()) / 1e6 / seconds, "MB per processor second");
    const double decode = best(options.repetitions, cpu_seconds, [&] { static_cast<void>(tokenizer.decode(ids)); });
    row(fmt::format("decode, {}", name), static_cast<double>(ids.size()) / 1e6 / decode, "M tokens/s");
    row(fmt::format("{}: whole over its longer half and joining, processor time", name),
        two_thread_bound(options.repetitions, text, tokenizer), "times");
    bench_two_threads(name, text, tokenizer, two);
  }
  return {};
}

Result<void> bench_request(const BenchOptions& options, const Tokenizer& tokenizer, const std::string& name) {
  const std::string body = DI_TRY(read_file(std::filesystem::path(options.texts) / (name + ".json")));
  const CodecOptions codec;
  size_t tokens = 0;
  bool failed = false;
  const double seconds = best(10 * options.repetitions, cpu_seconds, [&] {
    const auto request = convert_request(Api::kChat, body, codec);
    if (!request) {
      failed = true;
      return;
    }
    const auto ids = encode_conversation(request->conversation, request->version, tokenizer);
    failed = failed || !ids;
    if (ids) tokens = ids->size();
  });
  if (failed) return fail(Errc::kCorruption, "{}.json: the request is refused", name);
  row(fmt::format("convert_request + encode_conversation, {} ({} bytes, {} ids)", name, body.size(), tokens),
      1e6 * seconds, "us");
  return {};
}

// The answer: thinking, text, two calls, one id a step, as Chat Completions chunks.
Result<void> bench_stream(const BenchOptions& options, TokenizerRef tokenizer) {
  const std::string body = DI_TRY(read_file(std::filesystem::path(options.texts) / "agent.json"));
  const std::string answer = DI_TRY(read_file(std::filesystem::path(options.texts) / "answer.md"));
  const auto request = convert_request(Api::kChat, body, CodecOptions());
  if (!request) return fail(Errc::kCorruption, "agent.json: {}", request.error().message);
  const std::vector<TokenId> ids = tokenizer->encode_full(answer);
  const auto run = [&](size_t step, bool deltas) {
    ResponseInfo info;
    info.id = "chatcmpl-1";
    info.model = "m";
    info.deltas = deltas;
    OutputProcessor output(*request, tokenizer, info);
    std::vector<StreamEvent> events;
    for (size_t at = 0; at < ids.size(); at += step) {
      events.clear();
      static_cast<void>(output.tokens(std::span(ids).subspan(at, std::min(step, ids.size() - at)), {}, events));
    }
    output.finish(FinishReason::kStop, events);
  };
  for (const auto& [step, deltas] : {std::pair<size_t, bool>{1, true}, {1, false}, {4, true}}) {
    const double seconds = best(options.repetitions, cpu_seconds, [&] { run(step, deltas); });
    row(fmt::format("OutputProcessor::tokens, {} ids, {} a step, {}", ids.size(), step,
                    deltas ? "Chat chunks formatted" : "parsed only (deltas off)"),
        static_cast<double>(ids.size()) / 1e6 / seconds, "M tokens/s");
  }
  return {};
}

}  // namespace

Result<void> run_codec_bench(const BenchOptions& options) {
  TokenizerRef tokenizer;
  Result<void> loaded;
  const double load = best(3, cpu_seconds, [&] {
    auto result = Tokenizer::load(options.tokenizer);
    if (result) {
      tokenizer = std::move(*result);
    } else {
      loaded = std::unexpected(std::move(result).error());
    }
  });
  DI_TRY(std::move(loaded));
  if (!tokenizer->added_id("<｜System｜>")) {  // V4's file: the requests are for V4.1, whose 128799 has this name
    tokenizer = DI_TRY(Tokenizer::load(options.tokenizer, {{{128799, "<｜System｜>"}}}));
  }
  fmt::print("| call | measured |\n|---|---|\n");
  row("Tokenizer::load", 1e3 * load, "ms");
  row("Tokenizer::memory_bytes", static_cast<double>(tokenizer->memory_bytes()) / 1e6, "MB");
  DI_TRY(bench_texts(options, *tokenizer));
  DI_TRY(bench_request(options, *tokenizer, "chat"));
  DI_TRY(bench_request(options, *tokenizer, "agent"));
  return bench_stream(options, tokenizer);
}

}  // namespace di::codec
