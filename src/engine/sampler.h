// From logits to a token (engine.md §5). Pure functions: a token depends on the logits, the parameters and its position
// only. A Sampler is scratch memory for one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/api.h"

namespace di::engine {

inline constexpr double kGreedyTemperature = 1e-5;  // below: argmax, lowest id on ties, no draw
inline constexpr float kPrunedLogprob = -9999.0F;

// Ranges of engine.md §5.2 and §5.5; the error names the parameter, the range and the value.
Result<void> check_sampling(const SamplingParams& params, int32_t vocab_size);

// What a row's logits are changed by before the transforms of Sampler::sample (engine.md §5.5), in order: repetition,
// frequency and presence penalties, bias, allowed ids, bad words, the tokens that are ruled out (min_tokens), and the
// end of thinking where its budget is used up.
// tokens = prompt and output so far; the output starts at prompt_tokens.
void apply_processors(std::span<float> logits, const SamplingParams& params, std::span<const int32_t> tokens,
                      int32_t prompt_tokens, std::span<const int32_t> ruled_out);

// The output has used its thinking budget up and still thinks.
bool thinks_too_long(const SamplingParams& params, std::span<const int32_t> output);

// temperature > 0, top_p in (0, 1], top_k -1 or >= 1, min_p in [0, 1].
struct Transforms {
  double temperature = 1.0;
  double top_p = 1.0;
  int32_t top_k = -1;
  double min_p = 0.0;
};

class Sampler {
 public:
  // `position`: index that the sampled token will have in its sequence (engine.md §5.4). Nothing when no finite
  // logit is left or one is NaN.
  // `ids`, ascending: whose logits these are, all others being ruled out; empty: all. Not with logprobs.
  std::optional<OutputToken> sample(std::span<const float> logits, const SamplingParams& params, int64_t position,
                                    std::span<const int32_t> ids = {});

  // How probable `token` is by softmax(logits) (temperature 1, nothing pruned), with the `top` most probable ones. NaN
  // and -inf count as pruned.
  OutputToken score(std::span<const float> logits, int32_t token, int32_t top);

  // Ids that temperature, top-p, top-k and min-p leave, ascending, and their log-probabilities (of the last sample() or
  // transform() call).
  std::span<const int32_t> survivors() const { return kept_; }
  std::span<const float> survivor_logprobs() const { return logprobs_; }
  // The transforms alone, without the rule for greedy rows. False when no finite logit is left or one is NaN.
  bool transform(std::span<const float> logits, const Transforms& transforms, std::span<const int32_t> ids = {});
  // Fills in the log-probability of out.token, the `top` best and `also`, from survivors(). vocab: ids there are.
  void describe(OutputToken& out, int32_t top, size_t vocab, std::span<const int32_t> also = {});
  // Draws from survivors(): the first id whose cumulated probability exceeds u times the total.
  int32_t draw(double u) const;

 private:
  float logprob_of(int32_t token) const;
  void keep_ranked(double top_p, int64_t top_k, double total);
  void keep_min_p(double min_p);

  std::vector<float> scaled_;    // logits / temperature; at last of kept_ only
  std::vector<double> weights_;  // exp(scaled - largest), the same
  double total_ = 0;             // of the weights of kept_
  std::vector<int32_t> order_;   // scratch of the ranking
  std::vector<int32_t> kept_;    // survivors, ascending by id
  std::vector<float> logprobs_;  // of kept_
};

}  // namespace di::engine
