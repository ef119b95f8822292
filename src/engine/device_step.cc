#include "engine/device_step.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <thread>

#include "engine/speculative/handover.h"

namespace di::engine {
namespace {

int32_t mask_threads() {
  return std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

}  // namespace

DeviceStep::DeviceStep(Runner& runner, int32_t max_drafts, int64_t mask_patience_ns, const Clock& clock)
    : runner_(runner),
      clock_(clock),
      max_drafts_(max_drafts),
      masks_(mask_threads(), runner.info().vocab_size, mask_patience_ns),
      speculator_(runner, masks_, max_drafts),
      lanes_(static_cast<size_t>(runner.info().n_slots)) {}

void DeviceStep::fill_lanes(const StepInput& input) {
  for (const StepRows& rows : input.rows) {
    Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    if (rows.admitted != nullptr) {
      lane.spec = rows.admitted;
      lane.tokens.assign(rows.tokens.begin(), rows.tokens.end());
      lane.block_table.clear();
      lane.stopped = false;
      lane.matcher = std::nullopt;
      lane.matcher_due = lane.spec->constraint != nullptr;
      lane.unmatched = lane.skipped = false;
      lane.late_mask = nullptr;
      lane.window_save = nullptr;
      if (rows.window_load != nullptr) move_window(false, rows.slot, *rows.window_load);
      speculator_.forget(rows.slot);
    }
    if (rows.window_save != nullptr) lane.window_save = rows.window_save;
    for (const auto& [place, block] : rows.replaced_blocks) lane.block_table[static_cast<size_t>(place)] = block;
    lane.block_table.insert(lane.block_table.end(), rows.new_blocks.begin(), rows.new_blocks.end());
  }
}

// The first position of a decode row, where the host's is an upper bound.
int32_t DeviceStep::exact_begin(const StepRows& rows) const {
  if (!rows.decode || rows.remap < 0) return rows.begin;
  return rows.begin - (max_drafts_ - accepted_[static_cast<size_t>(rows.remap)]);
}

// Rows of each group: drafts that the lane really has, and none beyond the context or the last token that is wanted.
void DeviceStep::choose_counts(const StepInput& input) {
  counts_.clear();
  std::vector<int32_t> slots;
  int32_t total = 0;
  for (const StepRows& rows : input.rows) {
    counts_.push_back(rows.count);
    if (!rows.decode) continue;
    const Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    slots.push_back(lane.stopped ? -1 : rows.slot);
    total += rows.count;
  }
  std::vector<int32_t> shares;
  if (input.share_rows) shares = speculator_.share_rows(total, slots);
  decode_rows_ = 0;
  prompt_rows_ = 0;
  for (size_t i = 0, decode = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    if (!rows.decode) {
      prompt_rows_ += rows.count;
      continue;
    }
    const Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    const StopRules& stop = lane.spec->stop;
    const int64_t length = exact_begin(rows) + 1;
    const int64_t room = std::min(stop.max_model_len + 1 - length, stop.max_tokens + lane.spec->prompt_tokens - length);
    const int32_t drafts = lane.stopped ? 0 : speculator_.drafts(rows.slot).size();
    const int32_t wanted = shares.empty() ? rows.count : shares[decode];
    counts_[i] =
        static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, std::min<int64_t>(1 + drafts, room))));
    decode_rows_ += counts_[i];
    ++decode;
  }
}

// Exact first positions of the decode rows, and their tokens: the sampled ones of the step before and its drafts, or
// what the lane has.
void DeviceStep::hand_over_rows(const StepInput& input) {
  std::vector<int32_t> remap;
  std::vector<int32_t> counts;
  std::vector<int32_t> before;
  std::vector<int32_t> fresh;
  device_fed_ = 0;
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    if (!rows.decode) continue;
    remap.push_back(rows.remap);
    counts.push_back(counts_[i]);
    before.push_back(rows.begin);
    const size_t ids = fresh.size();
    fresh.resize(ids + static_cast<size_t>(max_drafts_) + 1, 0);
    if (rows.remap >= 0) {
      ++device_fed_;
    } else {
      fresh[ids] = lanes_[static_cast<size_t>(rows.slot)].tokens.back();
      const std::vector<int32_t>& drafts = speculator_.drafts(rows.slot).tokens;
      std::copy(drafts.begin(), drafts.end(), fresh.begin() + static_cast<std::ptrdiff_t>(ids) + 1);
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
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    model::SequenceChunk chunk;
    chunk.begin = rows.begin;
    chunk.count = counts_[i];
    if (rows.decode) {
      chunk.begin = decode_lengths_[decode++] - chunk.count;
      const auto last = static_cast<int32_t>(lane.spec->stop.max_model_len) - 1;
      if (lane.stopped && chunk.begin > last) {
        // It ended by the context while this step was under way: nothing may be computed beyond, so its last position
        // is computed again, as it is.
        id += static_cast<size_t>(chunk.count);
        chunk.begin = last;
        chunk.count = counts_[i] = 1;
      } else {
        // The tokens before the first row are the lane's; its last one and the drafts behind it come by the hand-over.
        lane.tokens.resize(static_cast<size_t>(chunk.begin));
        for (int32_t k = 0; k < chunk.count; ++k) lane.tokens.push_back(decode_ids_[id++]);
      }
    }
    first_position_.push_back(chunk.begin);
    chunk.tokens = lane.tokens;
    chunk.state_slot = rows.slot;
    chunk.block_table = lane.block_table;
    chunk.window_start = rows.window_start;
    // What a skipped step stored may be shared by now.
    chunk.block_write_begin = std::max(rows.block_write_begin, lane.skipped ? chunk.begin + 1 : 0);
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

void DeviceStep::prepare(const StepInput& input) {
  fill_lanes(input);
  choose_counts(input);
  hand_over_rows(input);
  build_chunks(input);
}

Result<void> DeviceStep::forward(const StepInput& input) {
  if (!input.block_copies.empty() || !input.slot_copies.empty()) {
    runner_.copy(input.block_copies, input.slot_copies);
  }
  for (const StepRows& rows : input.rows) {
    if (rows.receive != nullptr) DI_TRY(receive(rows));
  }
  begin_masks(input);
  Result<LogitsView> logits = runner_.forward(chunks_, tags_);
  filled_ = masks_.finish(input.rows.size() > 1);
  logits_ = DI_TRY(std::move(logits));
  return {};
}

double DeviceStep::flops() const {
  double total = 0;
  for (const model::SequenceChunk& chunk : chunks_) {
    total += chunk.count * runner_.row_flops(chunk.begin + chunk.count / 2);  // that of the middle stands for all
  }
  return total;
}

// Beside the forward pass: the masks of the rows that will be sampled; with drafts, one for each (engine.md §5.6).
void DeviceStep::begin_masks(const StepInput& input) {
  std::vector<MaskJob> jobs;
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    if (!rows.sample || lane.stopped) continue;
    const int32_t drafts = rows.decode ? counts_[i] - 1 : 0;
    make_due_matcher(lane, drafts);
    if (!lane.constrained()) continue;
    MaskJob& job = jobs.emplace_back();
    job.matcher = &*lane.matcher;
    job.constraint = lane.spec->constraint.get();
    job.draft = std::span(lane.tokens).last(static_cast<size_t>(drafts));
    job.work = std::move(lane.late_mask);
  }
  masks_.begin(std::move(jobs));
}

// After the lane's tokens without its drafts. Not while its constraint is at work on a late mask.
void DeviceStep::make_due_matcher(Lane& lane, int32_t drafts) {
  if (!lane.matcher_due || masks_.busy(*lane.spec->constraint)) return;
  const auto begin = static_cast<size_t>(lane.spec->prompt_tokens - lane.spec->constrained_prompt_tokens);
  const auto end = lane.tokens.size() - static_cast<size_t>(drafts);
  auto matcher = make_matcher(lane.spec->constraint, lane.spec->stop.stop_token_ids,
                              std::span(lane.tokens).subspan(begin, end - begin));
  lane.unmatched = !matcher;
  lane.matcher = matcher ? std::move(*matcher) : std::nullopt;
  lane.matcher_due = false;
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
  float* logits = logits_.data;
  size_t mask = 0;
  for (size_t i = 0; i < n; ++i) {
    const StepRows& rows = input.rows[i];
    Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    const bool masked = rows.sample && !lane.stopped && lane.constrained();
    const MaskJob* job = masked ? &filled_[mask++] : nullptr;
    RowsOutput result = sample_rows(i, rows, lane, logits, job);
    const int32_t stay = !rows.decode     ? rows.count
                         : result.skipped ? 0
                                          : std::max<int32_t>(1, static_cast<int32_t>(result.tokens.size()));
    result.window = save_window(rows, lane, first_position_[i] + stay);
    if (rows.send != nullptr) send(rows, lane);
    lane.skipped = result.skipped;
    if (result.skipped) {
      skip(i, rows, lane, job);
    } else if (rows.sample) {
      // A lane without a token (not finite, or ended before) goes on with any: its output is discarded.
      if (result.tokens.empty()) lane.tokens.push_back(0);
      accepted_[i] = std::max(0, static_cast<int32_t>(result.tokens.size()) - 1);
      sampled_[i] = lane.tokens.back();
      speculator_.forget(rows.slot);
    }
    out.push_back(std::move(result));
  }
  return out;
}

// The lane stays as it is, with its drafts; the next step computes the same rows.
void DeviceStep::skip(size_t index, const StepRows& rows, Lane& lane, const MaskJob* mask) {
  if (mask != nullptr) lane.late_mask = mask->work;
  accepted_[index] = -1;
  sampled_[index] = lane.tokens.back();
  const std::vector<int32_t>& drafts = speculator_.drafts(rows.slot).tokens;
  std::ranges::copy(drafts, drafts_.begin() + static_cast<std::ptrdiff_t>(index) * max_drafts_);
}

void DeviceStep::move_window(bool save, int32_t slot, kv::SwaEntry& entry) {
  const int64_t begin = clock_.now_ns();
  if (save) {
    runner_.save_window(slot, entry);
  } else {
    runner_.load_window(slot, entry);
  }
  moves_.push_back({save, static_cast<int64_t>(entry.bytes.size()), clock_.now_ns() - begin});
}

Result<void> DeviceStep::receive(const StepRows& rows) {
  const Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
  const int32_t blocks = blocks_for(rows.begin, runner_.info().block_tokens);
  for (int32_t i = rows.receive_from; i < blocks; ++i) {
    DI_TRY(runner_.write_block(lane.block_table[static_cast<size_t>(i)], rows.receive->block(i)));
  }
  return runner_.write_state(rows.slot, rows.begin, rows.receive->state());
}

void DeviceStep::send(const StepRows& rows, const Lane& lane) {
  const auto prompt = std::span(lane.tokens).first(static_cast<size_t>(lane.spec->prompt_tokens));
  rows.send->inject(runner_.transfer_fault({rows.sequence, lane.spec->prompt_tokens}, prompt));
  for (int32_t i = rows.send_from; i < rows.send_to; ++i) {
    Transfer::Bytes bytes = runner_.read_block(lane.block_table[static_cast<size_t>(i)]);
    sent_bytes_ += static_cast<int64_t>(bytes.size());
    if (!rows.send->write(i, std::move(bytes))) return;  // given up: nobody wants the rest
  }
  if (!rows.sample) return;
  Transfer::Bytes state = runner_.read_state(rows.slot, rows.begin + rows.count);
  sent_bytes_ += static_cast<int64_t>(state.size());
  rows.send->write_state(std::move(state));
}

// `end`: positions that stay.
kv::SwaEntryRef DeviceStep::save_window(const StepRows& rows, Lane& lane, int32_t end) {
  if (lane.window_save == nullptr || lane.window_save->position > end) return nullptr;
  move_window(true, rows.slot, *lane.window_save);
  return std::move(lane.window_save);
}

Result<void> DeviceStep::propose(const StepInput& input, std::vector<RowsOutput>& outputs) {
  if (!input.propose || max_drafts_ == 0) return {};
  std::vector<DraftRequest> requests;
  std::vector<size_t> groups;
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    const Lane& lane = lanes_[static_cast<size_t>(rows.slot)];
    if (!rows.sample || lane.stopped || lane.skipped) continue;
    requests.push_back({rows.slot, rows.sequence, lane.spec.get(), lane.tokens,
                        std::max(rows.window_start, rows.keep_begin), lane.constrained() ? &*lane.matcher : nullptr});
    groups.push_back(i);
  }
  DI_TRY(speculator_.propose(requests));
  for (size_t r = 0; r < groups.size(); ++r) {
    const LaneDrafts& lane = speculator_.drafts(requests[r].slot);
    std::copy(lane.tokens.begin(), lane.tokens.end(),
              drafts_.begin() + static_cast<std::ptrdiff_t>(groups[r]) * max_drafts_);
    outputs[groups[r]].next_confidences = lane.confidences;
  }
  return {};
}

// The row of position p says how probable the prompt's token p+1 was.
void DeviceStep::read_prompt_logprobs(const StepRows& rows, const Lane& lane, float*& logits, RowsOutput& out) {
  const auto vocab = static_cast<size_t>(runner_.info().vocab_size);
  const int32_t read = rows.sample ? rows.count - 1 : rows.count;
  for (int32_t i = 0; i < read; ++i, logits += logits_.stride) {
    const int32_t next = rows.begin + i + 1;
    if (next >= lane.spec->prompt_tokens) continue;
    out.prompt.push_back(
        sampler_.score({logits, vocab}, lane.tokens[static_cast<size_t>(next)], lane.spec->prompt_logprobs));
  }
}

RowsOutput DeviceStep::sample_rows(size_t index, const StepRows& rows, Lane& lane, float*& logits,
                                   const MaskJob* mask) {
  RowsOutput out;
  if (rows.prompt_logprobs) read_prompt_logprobs(rows, lane, logits, out);  // leaves the row to be sampled
  if (!rows.sample) return out;
  const int32_t count = rows.decode ? counts_[index] : 1;
  const LogitsView view{logits, count, logits_.stride};
  logits += logits_.stride * count;
  if (lane.stopped) return out;
  if (lane.matcher_due || (mask != nullptr && mask->late)) {
    lane.tokens.resize(lane.tokens.size() - static_cast<size_t>(count - 1));
    out.skipped = true;
    return out;
  }
  if (lane.unmatched || (mask != nullptr && mask->failed)) {
    lane.tokens.resize(lane.tokens.size() - static_cast<size_t>(count - 1));
    out.failed = out.constraint_failed = lane.stopped = true;
    return out;
  }
  VerifiedRows verified = speculator_.verify(rows.slot, *lane.spec, lane.tokens, count, view, mask);
  out.scheduled = count - 1;
  out.accepted = verified.accepted;
  out.accept_prob = std::move(verified.accept_prob);
  out.tokens = std::move(verified.tokens);
  out.failed = verified.failed;
  out.constraint_failed = verified.failed && mask != nullptr && verified.finite;
  lane.stopped = out.failed;
  keep_tokens(lane, static_cast<int32_t>(lane.tokens.size()) - (count - 1), out);
  return out;
}

// The lane's text is what was there before the drafts and what was decided now, up to the token that ends it.
void DeviceStep::keep_tokens(Lane& lane, int32_t length, RowsOutput& out) const {
  const SequenceSpec& spec = *lane.spec;
  lane.tokens.resize(static_cast<size_t>(length));
  for (size_t i = 0; i < out.tokens.size() && !lane.stopped; ++i) {
    lane.tokens.push_back(out.tokens[i].token);
    if (lane.constrained() && !lane.matcher->accept(out.tokens[i].token)) {
      lane.stopped = out.failed = out.constraint_failed = true;
      out.tokens.clear();
      return;
    }
    lane.stopped = check_stop(spec.stop, out.tokens[i].token, spec.prompt_tokens,
                              static_cast<int64_t>(lane.tokens.size()) - spec.prompt_tokens) != FinishReason::kNone;
    if (!lane.stopped) continue;
    // Drafts behind the end stand for nothing: neither accepted nor refused.
    const auto drafts = static_cast<int32_t>(i) + 1;
    out.tokens.resize(i + 1);
    out.scheduled = std::min(out.scheduled, drafts);
    out.accepted = std::min(out.accepted, drafts);
    out.accept_prob.resize(std::min(out.accept_prob.size(), i + 1));
  }
}

}  // namespace di::engine
