// greedy_compare MODEL TEXT [PROMPTS] [TOKENS] [DEVICE] [CACHE]: the same greedy tokens on DEVICE (cuda:0) as on the
// CPU, for the first PROMPTS (200) lines of a text file that have something to say. Where the CPU's two best logits
// differ by less than 1e-3 the device may take the other: such steps are counted and printed. Both sides go on with the
// CPU's token. DEVICE "reference" compares the CPU's plain operators with its fast ones: how far apart two right
// answers are. CACHE "plain" keeps keys and values unquantised, "stored" (the default) as in service, where a
// difference in the last bit can round to another code: how many steps are how far apart is printed.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "cli/backend.h"
#include "cli/local_model.h"
#include "codec/tokenizer/tokenizer.h"
#include "model/fixture.h"

namespace {

using namespace di;

constexpr float kNearTie = 1e-3F;

struct Side {
  cli::Backend backend;
  std::unique_ptr<model::FixtureModel> model;
};

Result<Side> open_side(const std::string& device, const std::string& folder) {
  Side side;
  const bool reference = device == "reference";
  side.backend = DI_TRY(cli::open_backend(reference ? "cpu" : device, 0, reference));
  const auto texts = [](const std::string& dir) -> Result<std::vector<model::TokenText>> {
    const codec::TokenizerRef tokenizer = DI_TRY(codec::Tokenizer::load(dir));
    return cli::token_texts(*tokenizer);
  };
  side.model = DI_TRY(model::FixtureModel::load(folder, texts, side.backend.device.get()));
  return side;
}

Result<std::unique_ptr<model::FixtureRun>> start(Side& side, int32_t tokens, bool stored) {
  model::FixtureOptions options;
  options.kv_quant = stored;
  options.max_tokens = tokens;
  return model::FixtureRun::create(*side.model, {*side.backend.ops, *side.backend.stream, *side.backend.device},
                                   options);
}

int32_t best(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

float gap(std::vector<float> logits) {
  std::nth_element(logits.begin(), logits.begin() + 1, logits.end(), std::greater<>());
  return *std::max_element(logits.begin(), logits.begin() + 1) - logits[1];
}

struct Tally {
  int64_t steps = 0;
  int64_t near_ties = 0;
  int64_t wrong = 0;
  float largest_difference = 0.F;
  // Steps whose logits differ by less than 1e-4, 1e-3 … 1, and by more.
  std::array<int64_t, 6> apart{};
};

Result<void> compare(Side& cpu, Side& cuda, std::vector<int32_t> tokens, int32_t n, bool stored, Tally& tally) {
  const auto prompt = static_cast<int32_t>(tokens.size());
  auto a = DI_TRY(start(cpu, prompt + n, stored));
  auto b = DI_TRY(start(cuda, prompt + n, stored));
  for (int32_t step = 0; step < n; ++step) {
    const int32_t begin = step == 0 ? 0 : prompt + step - 1;
    const auto count = static_cast<int32_t>(tokens.size()) - begin;
    const auto last = static_cast<int32_t>(tokens.size()) - 1;
    const std::vector<float> expected = DI_TRY(a->feed(tokens, begin, count, last));
    const std::vector<float> found = DI_TRY(b->feed(tokens, begin, count, last));
    float apart = 0.F;
    for (size_t i = 0; i < expected.size(); ++i) apart = std::max(apart, std::abs(expected[i] - found[i]));
    tally.largest_difference = std::max(tally.largest_difference, apart);
    size_t class_of = 0;
    for (float limit = 1e-4F; class_of + 1 < tally.apart.size() && apart >= limit; limit *= 10.F) ++class_of;
    ++tally.apart[class_of];
    ++tally.steps;
    const int32_t token = best(expected);
    if (token != best(found)) {
      const float distance = gap(expected);
      const bool tie = distance < kNearTie;
      ++(tie ? tally.near_ties : tally.wrong);
      std::printf("%s at position %zu: CPU %d, device %d, the CPU's two best differ by %.3g\n",
                  tie ? "near tie" : "DIFFERENT", tokens.size(), token, best(found), static_cast<double>(distance));
    }
    tokens.push_back(token);
  }
  return {};
}

Result<int> run(int argc, char** argv) {
  const std::string folder = argv[1];
  const int prompts = argc > 3 ? std::atoi(argv[3]) : 200;
  const int tokens = argc > 4 ? std::atoi(argv[4]) : 32;
  const std::string cache = argc > 6 ? argv[6] : "stored";
  if (cache != "stored" && cache != "plain") return fail(Errc::kInvalidRequest, "CACHE is plain or stored");
  Side cuda = DI_TRY(open_side(argc > 5 ? argv[5] : "cuda:0", folder));
  Side cpu = DI_TRY(open_side("cpu", folder));
  const codec::TokenizerRef tokenizer = DI_TRY(codec::Tokenizer::load(folder));
  std::ifstream in(argv[2]);
  std::string line;
  Tally tally;
  int done = 0;
  while (done < prompts && std::getline(in, line)) {
    if (line.size() < 12) continue;
    std::vector<int32_t> ids = tokenizer->encode_full(line);
    if (ids.empty()) continue;
    DI_TRY(compare(cpu, cuda, std::move(ids), tokens, cache == "stored", tally));
    ++done;
  }
  std::printf("greedy: %d prompts, %lld steps, %lld near ties, %lld different; largest difference of a logit %.3g\n",
              done, static_cast<long long>(tally.steps), static_cast<long long>(tally.near_ties),
              static_cast<long long>(tally.wrong), static_cast<double>(tally.largest_difference));
  std::printf(
      "keys and values %s; steps by their largest difference: below 1e-4 %lld, 1e-3 %lld, 1e-2 %lld, 0.1 %lld, "
      "1 %lld, above %lld\n",
      cache.c_str(), static_cast<long long>(tally.apart[0]), static_cast<long long>(tally.apart[1]),
      static_cast<long long>(tally.apart[2]), static_cast<long long>(tally.apart[3]),
      static_cast<long long>(tally.apart[4]), static_cast<long long>(tally.apart[5]));
  return tally.wrong == 0 && done == prompts ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: greedy_compare MODEL TEXT [PROMPTS] [TOKENS] [DEVICE] [CACHE]\n", stderr);
    return 2;
  }
  const di::Result<int> status = run(argc, argv);
  if (!status) {
    std::fprintf(stderr, "greedy_compare: %s\n", status.error().message.c_str());
    return 1;
  }
  return *status;
}
