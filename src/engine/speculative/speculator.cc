#include "engine/speculative/speculator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "base/rng.h"
#include "engine/speculative/verify_length.h"

namespace di::engine {
namespace {

Transforms transforms_of(const SamplingParams& p) {
  return {p.temperature, p.top_p, p.top_k, p.min_p};
}

bool has_processors(const SequenceSpec& spec, int64_t output_tokens) {
  const SamplingParams& p = spec.sampling;
  return output_tokens < spec.stop.min_tokens || p.repetition_penalty != 1.0 || p.frequency_penalty != 0.0 ||
         p.presence_penalty != 0.0 || (p.thinking_budget >= 0 && output_tokens >= p.thinking_budget) ||
         !p.logit_bias.empty() || !p.allowed_token_ids.empty() || !p.bad_words.empty();
}

// Whether the mask leaves one token: draft and target then both take it.
bool forces(std::span<const uint32_t> row) {
  int32_t bits = 0;
  for (size_t i = 0; i < row.size() && bits < 2; ++i) bits += std::popcount(row[i]);
  return bits == 1;
}

}  // namespace

bool chooses_alone(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature || params.seed_given;
}

std::string_view to_string(SpeculationState state) {
  switch (state) {
    case SpeculationState::kActive:
      return "active";
    case SpeculationState::kOff:
      return "off";
    case SpeculationState::kNoDraftModule:
      return "no_draft_module";
    case SpeculationState::kLoad:
      return "load";
  }
  return "off";
}

Speculator::Speculator(Runner& runner, MaskFiller& masks, int32_t max_drafts)
    : runner_(runner), masks_(masks), max_drafts_(max_drafts), lanes_(static_cast<size_t>(runner.info().n_slots)) {}

void Speculator::forget(int32_t slot) {
  LaneDrafts& lane = lanes_[static_cast<size_t>(slot)];
  lane.tokens.clear();
  lane.q.clear();
  lane.confidences.clear();
}

std::vector<int32_t> Speculator::share_rows(int32_t total, std::span<const int32_t> slots) const {
  std::vector<int32_t> remap;
  std::vector<float> confidences;
  for (const int32_t slot : slots) {
    const bool has = slot >= 0 && drafts(slot).size() > 0;
    remap.push_back(has ? static_cast<int32_t>(remap.size()) : -1);
    for (int32_t k = 0; k < max_drafts_; ++k) {
      confidences.push_back(has && k < drafts(slot).size() ? drafts(slot).confidences[static_cast<size_t>(k)] : 0.0F);
    }
  }
  return allocate_rows(total, remap, confidences, max_drafts_);
}

Speculator::Row Speculator::processed(std::span<const float> logits, const SequenceSpec& spec,
                                      std::span<const int32_t> tokens, const MaskJob* masks, size_t row) {
  const int64_t output_tokens = static_cast<int64_t>(tokens.size()) - spec.prompt_tokens;
  const bool processors = has_processors(spec, output_tokens);
  if (masks == nullptr && !processors) return {logits, {}};
  // A constrained text ends before min_tokens, or although the end is to be ignored, only where nothing else is left.
  const bool always = masks != nullptr && spec.stop.ignore_eos;
  const std::vector<int32_t> early = ruled_out_tokens(spec.stop, always ? -1 : output_tokens);
  if (!processors && !spec.sampling.logprobs && sparse_mask(masks->row(row), logits.size(), early, ids_)) {
    row_.clear();
    for (const int32_t id : ids_) row_.push_back(logits[static_cast<size_t>(id)]);
    return {row_, ids_};
  }
  row_.assign(logits.begin(), logits.end());
  apply_processors(row_, spec.sampling, tokens, spec.prompt_tokens,
                   masks == nullptr ? early : std::span<const int32_t>());
  if (masks != nullptr) apply_mask(row_, masks->row(row), early);
  return {row_, {}};
}

VerifiedRows Speculator::verify(int32_t slot, const SequenceSpec& spec, std::span<const int32_t> tokens, int32_t rows,
                                const LogitsView& logits, const MaskJob* masks) {
  VerifiedRows out;
  const LaneDrafts& lane = drafts(slot);
  const SamplingParams& params = spec.sampling;
  const bool alone = chooses_alone(params);
  const auto vocab = static_cast<size_t>(runner_.info().vocab_size);
  const size_t before = tokens.size() - static_cast<size_t>(rows - 1);  // with the last token that was handed out
  for (int32_t r = 0; r < rows; ++r) {
    const auto at = static_cast<size_t>(r);
    const Row row = processed({logits.data + r * logits.stride, vocab}, spec, tokens.first(before + at), masks, at);
    const auto index = static_cast<int64_t>(before) + r;  // of the token in the text
    const int64_t position = alone ? index : row_position(static_cast<int64_t>(before), r);
    std::optional<OutputToken> token;
    RowVerdict verdict;
    const bool last = r == rows - 1;
    if (alone || last) {
      token = sampler_.sample(row.logits, params, position, row.ids);
      if (token && !last) verdict = Verifier::verify_choice(token->token, lane.tokens[at]);
    } else if (sampler_.transform(row.logits, transforms_of(params), row.ids)) {
      verdict = verifier_.verify(sampler_, lane.q[at], lane.tokens[at], params.seed, position);
      token = OutputToken{verdict.token, 0, {}};
      if (params.logprobs) sampler_.describe(*token, params.top_logprobs, vocab, params.logprob_token_ids);
    }
    if (!token) {
      out.failed = out.tokens.empty();  // what was accepted before stands; the next step fails at its first row
      out.finite = std::none_of(logits.data, logits.data + vocab, [](float l) { return std::isnan(l); });
      break;
    }
    out.tokens.push_back(std::move(*token));
    if (last) break;
    out.accept_prob.push_back(verdict.accept_prob);
    if (!verdict.accepted) break;
    ++out.accepted;
  }
  // The last token is the sampled one: when the rows ended early, an accepted draft takes its place.
  out.accepted = std::min(out.accepted, static_cast<int32_t>(out.tokens.size()) - 1);
  return out;
}

// Draft i is drawn at the position it will have: from the draft's stream, or with the uniform that the target will use.
// False when none can be drawn.
bool Speculator::sample_draft(const DraftRequest& request, std::span<const float> logits, float confidence,
                              const MaskJob* mask, LaneDrafts& lane) {
  const SequenceSpec& spec = *request.spec;
  if (!std::isfinite(confidence)) return false;
  const size_t length = request.tokens.size() + lane.tokens.size();
  Row row = {logits, {}};
  if (mask != nullptr || has_processors(spec, static_cast<int64_t>(length) - spec.prompt_tokens)) {
    text_.assign(request.tokens.begin(), request.tokens.end());
    text_.insert(text_.end(), lane.tokens.begin(), lane.tokens.end());
    row = processed(logits, spec, text_, mask, 0);
  }
  if (spec.sampling.temperature < kGreedyTemperature) {
    SamplingParams params = {};
    params.temperature = 0;
    const std::optional<OutputToken> token = sampler_.sample(row.logits, params, 0, row.ids);
    if (!token) return false;
    lane.tokens.push_back(token->token);
    lane.q.emplace_back();
  } else {
    if (!sampler_.transform(row.logits, transforms_of(spec.sampling), row.ids)) return false;
    Distribution& q = lane.q.emplace_back();
    const bool alone = chooses_alone(spec.sampling);
    if (!alone) q.assign(sampler_);
    const uint64_t seed = spec.sampling.seed + (alone ? 0 : kDraftSeedOffset);
    lane.tokens.push_back(sampler_.draw(counter_uniform(seed, static_cast<int64_t>(length), DrawKind::kSample)));
  }
  lane.confidences.push_back(mask != nullptr && forces(mask->row(0)) ? 1.0F : confidence);
  return true;
}

// The masks of the next draft of the texts that go on.
void Speculator::begin_masks() {
  std::vector<MaskJob> jobs;
  for (Text& text : texts_) {
    if (!text.open || !text.matcher) continue;
    MaskJob& job = jobs.emplace_back();
    job.matcher = &*text.matcher;
    job.constraint = text.constraint;
  }
  masks_.begin(std::move(jobs));
}

Result<void> Speculator::propose(std::span<const DraftRequest> requests) {
  if (requests.empty() || max_drafts_ == 0) return {};
  std::vector<DraftStart> starts;
  previous_.clear();
  texts_.clear();
  for (const DraftRequest& r : requests) {
    forget(r.slot);
    starts.push_back({r.sequence, r.tokens.back(), static_cast<int32_t>(r.tokens.size()) - 2, r.slot, r.window_start});
    previous_.push_back(r.tokens.back());
    Text& text = texts_.emplace_back();
    if (r.matcher == nullptr) continue;
    text.matcher = r.matcher->branch();
    text.constraint = r.spec->constraint.get();
  }
  const struct Finish {  // also when the runner fails
    MaskFiller& masks;
    ~Finish() { (void)masks.finish(); }
  } at_end{masks_};
  begin_masks();
  DI_TRY(runner_.draft(starts));
  confidences_.assign(requests.size(), 0.0F);
  for (int32_t k = 0; k < max_drafts_; ++k) {
    if (k > 0) begin_masks();
    draw_drafts(requests, DI_TRY(runner_.draft_step(k, previous_, confidences_)));
  }
  return {};
}

// One draft of each text that goes on, and where the text is after it.
void Speculator::draw_drafts(std::span<const DraftRequest> requests, const LogitsView& logits) {
  const auto vocab = static_cast<size_t>(runner_.info().vocab_size);
  const std::span<const MaskJob> masks = masks_.finish();
  size_t mask = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& r = requests[i];
    Text& text = texts_[i];
    if (!text.open) continue;
    const MaskJob* job = text.matcher ? &masks[mask++] : nullptr;
    LaneDrafts& lane = lanes_[static_cast<size_t>(r.slot)];
    const float* row = logits.data + static_cast<int64_t>(i) * logits.stride;
    // A mask that reached a limit ends the drafts only: if the text itself gets there, it ends too.
    // Nor does it wait for one that is late.
    text.open =
        (job == nullptr || !(job->failed || job->late)) && sample_draft(r, {row, vocab}, confidences_[i], job, lane);
    if (!text.open) continue;
    previous_[i] = lane.tokens.back();
    // Nothing behind the end of the text: what comes there, if anything, is no longer the constraint's.
    text.open = !text.matcher || (text.matcher->accept(lane.tokens.back()) && !text.matcher->terminated());
  }
}

}  // namespace di::engine
