// ranks_compare MODEL TEXT DEVICES [PROMPTS] [TOKENS]: the same greedy tokens from expert-parallel ranks on DEVICES
// (cuda:0,cuda:1) as from one rank with all experts on the first of them, for the first PROMPTS (200) lines of a text
// file that have something to say. Each rank answers its share of the prompts, many at a time: prompts in one step,
// then decode steps, the last ones with fewer sequences on some ranks or none. Counts steps whose logits differ in any
// bit; tokens may differ only where the two best logits of one rank differ by less than 1e-3.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "cli/backend.h"
#include "cli/local_model.h"
#include "codec/tokenizer/tokenizer.h"
#include "model/fixture.h"

namespace {

using namespace di;

constexpr float kNearTie = 1e-3F;
constexpr int32_t kAtOnce = 32;  // prompts of a rank
constexpr int32_t kBlock = 128;
constexpr int32_t kBlocks = 4;  // of a sequence

struct Answer {
  std::vector<int32_t> tokens;  // prompt and answer
  std::vector<uint64_t> bits;   // of the logits of each step
  std::vector<float> gaps;      // between the two best logits of each step
};

struct Job {
  std::string folder;
  std::vector<std::vector<int32_t>> prompts;
  int32_t steps = 0;
};

Result<std::vector<model::TokenText>> texts(const std::string& dir) {
  const codec::TokenizerRef tokenizer = DI_TRY(codec::Tokenizer::load(dir));
  return cli::token_texts(*tokenizer);
}

uint64_t hash(const float* v, int64_t n) {
  uint64_t h = 1469598103934665603U;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t u;
    std::memcpy(&u, v + i, 4);
    h = (h ^ u) * 1099511628211U;
  }
  return h;
}

int32_t take(Answer& answer, const float* logits, int64_t n) {
  const auto best = static_cast<int32_t>(std::max_element(logits, logits + n) - logits);
  float second = -1e30F;
  for (int64_t i = 0; i < n; ++i) {
    if (i != best) second = std::max(second, logits[i]);
  }
  answer.bits.push_back(hash(logits, n));
  answer.gaps.push_back(logits[best] - second);
  return best;
}

// Answers prompts rank, rank + ranks, …; all ranks make the same number of steps.
Result<void> run_rank(const Job& job, cli::Backend& backend, device::Group* group, std::vector<Answer>& answers,
                      double* seconds) {
  const int32_t ranks = group == nullptr ? 1 : group->size();
  const int32_t rank = group == nullptr ? 0 : group->rank();
  const auto m = DI_TRY(model::FixtureModel::load(job.folder, texts, backend.device.get(), group));
  model::CacheOptions cache_options;
  cache_options.fp4_main = m->config.use_fp4_sparse_kv;
  const model::CacheLayout layout = DI_TRY(model::make_cache_layout(m->config, m->schedule, cache_options));
  model::KvCache cache = DI_TRY(model::KvCache::create(*backend.device, layout, 1 + kAtOnce * kBlocks, 1 + kAtOnce));
  model::ForwardOptions options;
  options.group = group;
  model::Forward forward(m->config, m->schedule, m->weights, *backend.ops, *backend.stream, *backend.device, options);
  std::vector<int32_t> blocks;
  for (int32_t b = 0; b < kAtOnce * kBlocks; ++b) blocks.push_back(1 + b);
  const auto n = static_cast<int32_t>(job.prompts.size());
  const model::EngramTables* engram = m->engram ? &*m->engram : nullptr;
  const auto begin = std::chrono::steady_clock::now();
  for (int32_t first = 0; first < n; first += kAtOnce * ranks) {
    std::vector<int32_t> mine;
    for (int32_t i = first + rank; i < std::min(n, first + kAtOnce * ranks); i += ranks) mine.push_back(i);
    for (int32_t step = 0; step < job.steps; ++step) {
      std::vector<model::SequenceChunk> chunks(mine.size());
      for (size_t s = 0; s < mine.size(); ++s) {
        Answer& answer = answers[static_cast<size_t>(mine[s])];
        if (step == 0) answer.tokens = job.prompts[static_cast<size_t>(mine[s])];
        model::SequenceChunk& chunk = chunks[s];
        chunk.tokens = answer.tokens;
        const auto length = static_cast<int32_t>(answer.tokens.size());
        chunk.begin = step == 0 ? 0 : length - 1;
        chunk.count = length - chunk.begin;
        chunk.state_slot = 1 + static_cast<int32_t>(s);
        chunk.block_table = std::span(blocks).subspan(s * kBlocks, kBlocks);
        chunk.logits_begin = length - 1;
      }
      model::Batch batch;
      DI_TRY(model::build_batch(m->config, m->schedule, engram, model::TruncationRule::kVl, kBlock, chunks, batch));
      const model::ForwardResult result = forward.run(batch, cache);
      std::vector<std::byte> buffer;
      const kernels::Tensor logits = forward.on_host(result.logits, buffer);
      if (group != nullptr && group->error()) return std::unexpected(*group->error());
      for (size_t s = 0; s < mine.size(); ++s) {
        Answer& answer = answers[static_cast<size_t>(mine[s])];
        const float* row = static_cast<const float*>(logits.data) + static_cast<int64_t>(s) * logits.stride;
        answer.tokens.push_back(take(answer, row, logits.cols));
      }
    }
  }
  *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("rank %d of %d on %s: %.2f s, %lld steps replayed as graphs\n", rank, ranks, backend.place.c_str(),
              *seconds, static_cast<long long>(forward.replays()));
  return {};
}

Result<std::vector<std::vector<int32_t>>> read_prompts(const std::string& folder, const char* path, int32_t n,
                                                       int32_t tokens) {
  const codec::TokenizerRef tokenizer = DI_TRY(codec::Tokenizer::load(folder));
  std::ifstream in(path);
  std::vector<std::vector<int32_t>> out;
  for (std::string line; static_cast<int32_t>(out.size()) < n && std::getline(in, line);) {
    if (line.size() < 12) continue;
    std::vector<int32_t> ids = tokenizer->encode_full(line);
    if (!ids.empty() && static_cast<int32_t>(ids.size()) + tokens <= kBlock * kBlocks) out.push_back(std::move(ids));
  }
  return out;
}

Result<int> run(int argc, char** argv) {
  Job job;
  job.folder = argv[1];
  const std::string devices = argv[3];
  const int32_t wanted = argc > 4 ? std::atoi(argv[4]) : 200;
  job.steps = argc > 5 ? std::atoi(argv[5]) : 32;
  job.prompts = DI_TRY(read_prompts(job.folder, argv[2], wanted, job.steps));
  std::vector<Answer> expected(job.prompts.size());
  std::vector<Answer> found(job.prompts.size());
  double seconds = 0;
  {
    cli::Ranks one = DI_TRY(cli::open_ranks(devices.substr(0, devices.find(',')), 0, false, std::chrono::minutes(2)));
    DI_TRY(run_rank(job, one.backends[0], nullptr, expected, &seconds));
  }
  cli::Ranks ranks = DI_TRY(cli::open_ranks(devices, 0, false, std::chrono::minutes(2)));
  if (ranks.groups.empty()) return fail(Errc::kInvalidRequest, "DEVICES: expected two or more, found '{}'", devices);
  std::vector<Result<void>> status(ranks.groups.size());
  std::vector<double> times(ranks.groups.size());
  {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < ranks.groups.size(); ++r) {
      threads.emplace_back([&, r] {
        status[r] = run_rank(job, ranks.backends[r], ranks.groups[r].get(), found, &times[r]);
        if (!status[r]) ranks.groups[r]->fail(status[r].error());
      });
    }
  }
  for (const Result<void>& s : status) DI_TRY(s);
  int64_t steps = 0;
  int64_t other_bits = 0;
  int64_t near_ties = 0;
  int64_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t prompt = job.prompts[i].size();
    for (size_t s = 0; s < expected[i].bits.size(); ++s) {
      ++steps;
      other_bits += expected[i].bits[s] != found[i].bits[s] ? 1 : 0;
      if (expected[i].tokens[prompt + s] == found[i].tokens[prompt + s]) continue;
      const float gap = expected[i].gaps[s];
      ++(gap < kNearTie ? near_ties : wrong);
      std::printf("%s: prompt %zu, step %zu: one rank %d, group %d, the two best differ by %.3g\n",
                  gap < kNearTie ? "near tie" : "DIFFERENT", i, s, expected[i].tokens[prompt + s],
                  found[i].tokens[prompt + s], static_cast<double>(gap));
      break;  // what follows stands on other tokens
    }
  }
  std::printf("ranks: %zu prompts, %lld steps, %lld with other bits, %lld near ties, %lld different\n", expected.size(),
              static_cast<long long>(steps), static_cast<long long>(other_bits), static_cast<long long>(near_ties),
              static_cast<long long>(wrong));
  return wrong == 0 && static_cast<int32_t>(expected.size()) == wanted ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("usage: ranks_compare MODEL TEXT DEVICES [PROMPTS] [TOKENS]\n", stderr);
    return 2;
  }
  const di::Result<int> status = run(argc, argv);
  if (!status) {
    std::fprintf(stderr, "ranks_compare: %s\n", status.error().message.c_str());
    return 1;
  }
  return *status;
}
