// bench_structured TOKENIZER.json CASES.jsonl [OUT.jsonl [any]]: compiles every schema (cache off, one thread), walks
// every instance with a mask before each token, and writes per case what it cost and the instances' tokens, so that
// other engines can be given the same ones (compare.py). Times are CPU times of the thread. any: members of objects may
// come in any order.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "structured/structured.h"

namespace {

using namespace di;  // a program of one file

double cpu_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

std::string read_file(const char* path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Case {
  double compile_ms = 0;
  double prepare_us = 0;
  std::vector<double> masks;
  double accept_us = 0;
  int64_t accepted_tokens = 0;
  double again_us = 0;  // the same texts taken once more as one piece: how a sequence is rebuilt from its tokens
  int64_t again_tokens = 0;
};

bool walk(structured::Matcher& m, const std::vector<structured::TokenId>& tokens, std::vector<uint32_t>& row,
          Case* cost) {
  for (const structured::TokenId id : tokens) {
    const double t0 = cpu_us();
    if (!m.fill_mask(row)) return false;
    const double t1 = cpu_us();
    const bool taken = m.accept(id);
    const double t2 = cpu_us();
    const auto i = static_cast<uint32_t>(id);
    const bool allowed = ((row[i >> 5U] >> (i & 31U)) & 1U) != 0;
    if (cost != nullptr) {
      cost->masks.push_back(t1 - t0);
      cost->accept_us += t2 - t1;
      ++cost->accepted_tokens;
    }
    if (allowed != taken) std::fprintf(stderr, "mask and accept disagree on token %d\n", id);
    if (!taken) return false;
  }
  return m.terminated();
}

void run_case(const Json& line, const structured::VocabularyRef& vocabulary, structured::PropertyOrder order,
              std::string& out) {
  Case cost;
  structured::ConstraintSpec spec;
  spec.payload = to_json(*line.find("schema"));
  spec.options.property_order = order;
  const double t0 = cpu_us();
  const auto compiled = structured::compile(vocabulary, spec);
  cost.compile_ms = (cpu_us() - t0) / 1e3;
  JsonWriter w(out);
  w.begin_object().key("id").value(line.find("id")->as_string());
  w.key("compiled").value(compiled.has_value()).key("compile_ms").value(cost.compile_ms);
  if (!compiled) w.key("error").value(compiled.error().text());
  w.key("tests").begin_array();
  std::vector<uint32_t> row(vocabulary->mask_words());
  const double walked = cpu_us();
  for (const Json& test : line.find("tests")->as_array()) {
    auto tokens = vocabulary->encode_greedy(test.find("text")->as_string(), false);
    tokens.push_back(vocabulary->specials().eos);
    const bool valid = test.find("valid")->as_bool();
    const Json* soft = test.find("soft");
    w.begin_object().key("valid").value(valid).key("soft").value(soft != nullptr && soft->is_bool() && soft->as_bool());
    if (compiled) {
      structured::Matcher m(*compiled);
      w.key("accepted").value(walk(m, tokens, row, valid ? &cost : nullptr));
      if (valid) {
        m.reset();
        const double begun = cpu_us();
        cost.again_tokens += static_cast<int64_t>(m.accept(tokens));
        cost.again_us += cpu_us() - begun;
      }
    }
    w.key("tokens").begin_array();
    for (const structured::TokenId t : tokens) w.value(t);
    w.end_array().end_object();
  }
  w.end_array().key("total_ms").value(cost.compile_ms + (cpu_us() - walked) / 1e3).key("masks_us").begin_array();
  for (const double t : cost.masks) w.raw(fmt::format("{:.2f}", t));
  w.end_array().key("accept_us").value(cost.accept_us).key("accept_tokens").value(cost.accepted_tokens);
  w.key("again_us").value(cost.again_us).key("again_tokens").value(cost.again_tokens);
  w.key("bytes").value(compiled ? (*compiled)->memory_bytes() : 0).end_object();
  out += '\n';
}

double at(const std::vector<double>& sorted, double q) {
  return sorted.empty()
             ? 0
             : sorted[std::min(sorted.size() - 1, static_cast<size_t>(q * static_cast<double>(sorted.size())))];
}

void print(const char* name, std::vector<double> v) {
  std::ranges::sort(v);
  double sum = 0;
  for (const double x : v) sum += x;
  std::fprintf(stderr, "%-12s n %zu  mean %.3f  p50 %.3f  p90 %.3f  p99 %.3f  p99.9 %.3f  max %.3f\n", name, v.size(),
               v.empty() ? 0 : sum / static_cast<double>(v.size()), at(v, .5), at(v, .9), at(v, .99), at(v, .999),
               v.empty() ? 0 : v.back());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_structured TOKENIZER.json CASES.jsonl [OUT.jsonl [any]]\n");
    return 2;
  }
  const bool any = argc > 4 && std::string_view(argv[4]) == "any";
  const auto order = any ? structured::PropertyOrder::kAny : structured::PropertyOrder::kSchema;
  const std::string json = read_file(argv[1]);
  const double t0 = cpu_us();
  const auto vocabulary = structured::Vocabulary::from_tokenizer_json(json);
  const double parsed = cpu_us();
  if (!vocabulary) {
    std::fprintf(stderr, "%s\n", vocabulary.error().text().c_str());
    return 1;
  }
  std::vector<structured::Vocabulary::Token> tokens;
  for (int32_t i = 0; i < (*vocabulary)->size(); ++i)
    tokens.push_back({std::string((*vocabulary)->bytes(i)), (*vocabulary)->is_special(i)});
  const double t1 = cpu_us();
  const auto again = structured::Vocabulary::create(std::move(tokens));
  const double prepared = cpu_us() - t1;
  std::fprintf(stderr, "vocabulary of %d tokens: prepared in %.1f ms, with reading tokenizer.json %.1f ms\n",
               again->size(), prepared / 1e3, (parsed - t0) / 1e3);
  std::ifstream in(argv[2]);
  std::string out = fmt::format("{{\"prepare_ms\":{:.1f}}}\n", prepared / 1e3);
  std::vector<double> compile, masks, bytes;
  double accept = 0, repeated = 0;
  int64_t accept_tokens = 0, again_tokens = 0;
  int cases = 0;
  for (std::string line; std::getline(in, line);) {
    const auto parsed_line = parse_json(line);
    if (!parsed_line) continue;
    std::string text;
    run_case(*parsed_line, *vocabulary, order, text);
    const Json result = parse_json(text).value();
    ++cases;
    if (result.find("compiled")->as_bool()) {
      compile.push_back(*result.find("compile_ms")->to_double());
      bytes.push_back(*result.find("bytes")->to_double());
    }
    for (const Json& t : result.find("masks_us")->as_array()) masks.push_back(*t.to_double());
    accept += *result.find("accept_us")->to_double();
    accept_tokens += *result.find("accept_tokens")->to_i64();
    repeated += *result.find("again_us")->to_double();
    again_tokens += *result.find("again_tokens")->to_i64();
    out += text;
  }
  std::fprintf(stderr, "%d schemas, %zu compiled\n", cases, compile.size());
  print("compile ms", compile);
  print("mask us", masks);
  print("bytes", bytes);
  double clock = 0;  // what reading the clock adds to each measured piece
  for (int i = 0; i < 1'000; ++i) {
    const double begun = cpu_us();
    clock += (cpu_us() - begun) / 1e3;
  }
  std::fprintf(stderr, "accept us    mean %.3f, of which the clock %.3f; known states in one piece %.3f\n",
               accept / static_cast<double>(std::max<int64_t>(accept_tokens, 1)), clock,
               repeated / static_cast<double>(std::max<int64_t>(again_tokens, 1)));
  if (argc > 3) std::ofstream(argv[3]) << out;
  return 0;
}
