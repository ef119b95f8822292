#include "engine/device_step.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <thread>

#include "engine/speculative/handover.h"

namespace di::engine {
namespace {

// Rows of verification use draws far apart from those of later positions (engine.md §5.4).
constexpr int64_t kRowStride = 10'000'019;

int32_t mask_threads() {
  return std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

}  // namespace

DeviceStep::DeviceStep(Runner& runner, int32_t max_drafts)
    : runner_(runner),
      max_drafts_(max_drafts),
      lanes_(static_cast<size_t>(runner.info().n_slots)),
      masks_(mask_threads(), runner.info().vocab_size) {}

void DeviceStep::fill_lanes(const StepInput& input) {
  for (const StepRows& rows : input.rows) {
    Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    if (rows.admitted != nullptr) {
      lane.spec = rows.admitted;
      lane.tokens.assign(rows.tokens.begin(), rows.tokens.end());
      lane.block_table.clear();
      lane.stopped = false;
      const auto begin = static_cast<size_t>(lane.spec->prompt_tokens - lane.spec->constrained_prompt_tokens);
      auto matcher =
          make_matcher(lane.spec->constraint, lane.spec->stop.stop_token_ids, std::span(lane.tokens).subspan(begin));
      lane.unmatched = !matcher;
      lane.matcher = matcher ? std::move(*matcher) : std::nullopt;
      lane.window_save = nullptr;
      if (rows.window_load != nullptr) runner_.load_window(rows.slot, *rows.window_load);
    }
    if (rows.window_save != nullptr) lane.window_save = rows.window_save;
    for (const auto& [place, block] : rows.replaced_blocks) lane.block_table[static_cast<size_t>(place)] = block;
    lane.block_table.insert(lane.block_table.end(), rows.new_blocks.begin(), rows.new_blocks.end());
  }
}

// Exact first positions of the decode rows, and their tokens: the sampled ones of the step before, or what the lane
// has.
void DeviceStep::hand_over_rows(const StepInput& input) {
  std::vector<int32_t> remap;
  std::vector<int32_t> counts;
  std::vector<int32_t> before;
  std::vector<int32_t> fresh;
  device_fed_ = 0;
  for (const StepRows& rows : input.rows) {
    if (!rows.decode) continue;
    remap.push_back(rows.remap);
    counts.push_back(rows.count);
    before.push_back(rows.begin);
    const size_t ids = fresh.size();
    fresh.resize(ids + static_cast<size_t>(max_drafts_) + 1, 0);
    if (rows.remap >= 0) {
      ++device_fed_;
    } else {
      fresh[ids] = lanes_[static_cast<size_t>(rows.slot)].tokens.back();
    }
  }
  const StepOutputs previous{accepted_, sampled_, drafts_, max_drafts_};
  decode_lengths_ = correct_lengths(before, counts, remap, previous);
  decode_ids_ = gather_tokens(counts, remap, fresh, previous);
}

void DeviceStep::build_chunks(const StepInput& input) {
  chunks_.clear();
  tags_.clear();
  first_position_.clear();
  size_t decode = 0;
  size_t id = 0;
  for (const StepRows& rows : input.rows) {
    Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    model::SequenceChunk chunk;
    chunk.begin = rows.begin;
    chunk.count = rows.count;
    if (rows.decode) {
      chunk.begin = decode_lengths_[decode++] - rows.count;
      // The tokens before the first row are the lane's; its last one and the drafts behind it come by the hand-over.
      lane.tokens.resize(static_cast<size_t>(chunk.begin));
      for (int32_t i = 0; i < rows.count; ++i) lane.tokens.push_back(decode_ids_[id++]);
    }
    first_position_.push_back(chunk.begin);
    chunk.tokens = lane.tokens;
    chunk.state_slot = rows.slot;
    chunk.block_table = lane.block_table;
    chunk.window_start = rows.window_start;
    chunk.block_write_begin = rows.block_write_begin;
    chunk.keep_begin = rows.keep_begin;
    chunk.masked = rows.masked;
    chunk.logits_begin = rows.prompt_logprobs         ? chunk.begin
                         : rows.sample && rows.decode ? chunk.begin
                         : rows.sample                ? chunk.begin + chunk.count - 1
                                                      : INT_MAX;
    chunks_.push_back(chunk);
    tags_.push_back({rows.sequence, lane.spec->prompt_tokens});
  }
}

Result<void> DeviceStep::forward(const StepInput& input) {
  fill_lanes(input);
  if (!input.block_copies.empty() || !input.slot_copies.empty()) {
    runner_.copy(input.block_copies, input.slot_copies);
  }
  hand_over_rows(input);
  build_chunks(input);
  begin_masks(input);
  Result<LogitsView> logits = runner_.forward(chunks_, tags_);
  filled_ = masks_.finish();
  logits_ = DI_TRY(std::move(logits));
  return {};
}

// Beside the forward pass: the masks of the rows that will be sampled; with drafts, one for each (engine.md §5.6).
void DeviceStep::begin_masks(const StepInput& input) {
  std::vector<MaskJob> jobs;
  for (const StepRows& rows : input.rows) {
    Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    if (!rows.sample || lane.stopped || !lane.constrained()) continue;
    MaskJob& job = jobs.emplace_back();
    job.matcher = &*lane.matcher;
    if (rows.decode) job.draft = std::span(lane.tokens).last(static_cast<size_t>(rows.count - 1));
  }
  masks_.begin(std::move(jobs));
}

void DeviceStep::clear_outputs(size_t groups) {
  accepted_.assign(groups, 0);
  sampled_.assign(groups, 0);
  drafts_.assign(groups * static_cast<size_t>(max_drafts_), 0);
}

void DeviceStep::abandon(const StepInput& input) {
  clear_outputs(input.rows.size());
}

std::vector<RowsOutput> DeviceStep::sample(const StepInput& input, const SampleInput&) {
  std::vector<RowsOutput> out;
  const size_t n = input.rows.size();
  clear_outputs(n);
  const float* logits = logits_.data;
  size_t mask = 0;
  for (size_t i = 0; i < n; ++i) {
    const StepRows& rows = input.rows[i];
    Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    const bool masked = rows.sample && !lane.stopped && lane.constrained();
    RowsOutput result = sample_rows(rows, lane, logits, masked ? &filled_[mask++] : nullptr);
    const int32_t end = first_position_[i] + (rows.decode ? 1 + result.accepted : rows.count);
    result.window = save_window(rows, lane, end);
    if (rows.sample) {
      // A lane without a token (not finite, or ended before) goes on with any: its output is discarded.
      accepted_[i] = result.accepted;
      sampled_[i] = result.tokens.empty() ? 0 : result.tokens.back().token;
      lane.tokens.push_back(sampled_[i]);
    }
    out.push_back(std::move(result));
  }
  return out;
}

// `end`: positions that stay.
kv::SwaEntryRef DeviceStep::save_window(const StepRows& rows, Lane& lane, int32_t end) {
  if (lane.window_save == nullptr || lane.window_save->position > end) return nullptr;
  runner_.save_window(rows.slot, *lane.window_save);
  return std::move(lane.window_save);
}

// The row of position p says how probable the prompt's token p+1 was.
void DeviceStep::read_prompt_logprobs(const StepRows& rows, const Lane& lane, const float*& logits, RowsOutput& out) {
  const auto vocab = static_cast<size_t>(runner_.info().vocab_size);
  const int32_t read = rows.sample ? rows.count - 1 : rows.count;
  for (int32_t i = 0; i < read; ++i, logits += logits_.stride) {
    const int32_t next = rows.begin + i + 1;
    if (next >= lane.spec->prompt_tokens) continue;
    out.prompt.push_back(
        sampler_.score({logits, vocab}, lane.tokens[static_cast<size_t>(next)], lane.spec->prompt_logprobs));
  }
}

// From row_, which has the logits.
std::optional<OutputToken> DeviceStep::sample_token(const Lane& lane, const MaskJob* mask) {
  const SequenceSpec& spec = *lane.spec;
  const auto length = static_cast<int64_t>(lane.tokens.size());
  // A constrained text ends before min_tokens, or although the end is to be ignored, only where nothing else is left.
  const bool always = mask != nullptr && spec.stop.ignore_eos;
  const std::vector<int32_t> early = ruled_out_tokens(spec.stop, always ? -1 : length - spec.prompt_tokens);
  apply_processors(row_, spec.sampling, lane.tokens, spec.prompt_tokens,
                   mask == nullptr ? early : std::span<const int32_t>());
  if (mask != nullptr) apply_mask(row_, mask->row(0), early);
  return sampler_.sample(row_, spec.sampling, length);
}

RowsOutput DeviceStep::sample_rows(const StepRows& rows, Lane& lane, const float*& logits, const MaskJob* mask) {
  RowsOutput out;
  const auto vocab = static_cast<size_t>(runner_.info().vocab_size);
  if (rows.prompt_logprobs) read_prompt_logprobs(rows, lane, logits, out);  // leaves the row to be sampled
  if (!rows.sample) return out;
  const float* source = logits;
  logits += logits_.stride * (rows.decode ? rows.count : 1);
  if (lane.stopped) return out;
  row_.assign(source, source + vocab);
  const bool finite = mask == nullptr || std::ranges::none_of(row_, [](float l) { return std::isnan(l); });
  const bool blocked = lane.unmatched || (mask != nullptr && mask->failed);
  std::optional<OutputToken> token;
  if (!blocked) token = sample_token(lane, mask);
  const bool accepted = token && (mask == nullptr || lane.matcher->accept(token->token));
  if (!accepted) {
    out.failed = true;
    out.constraint_failed = blocked || (mask != nullptr && finite);
    lane.stopped = true;
    return out;
  }
  lane.stopped = !lane.spec->stop.ignore_eos && lane.spec->stop.is_stop(token->token);
  out.tokens.push_back(std::move(*token));
  return out;
}

}  // namespace di::engine
