#include "engine/constraint.h"

#include <algorithm>
#include <limits>

namespace di::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void fill(MaskJob& job) {
  if (job.draft.empty()) {
    job.failed = !job.matcher->fill_mask(job.rows);
    return;
  }
  job.valid = job.matcher->fill_masks_along(job.draft, job.rows);
  job.failed = job.matcher->failed();
}

}  // namespace

Result<std::optional<structured::Matcher>> make_matcher(const structured::CompiledRef& constraint,
                                                        const std::vector<int32_t>& stop_token_ids,
                                                        std::span<const int32_t> tokens) {
  std::optional<structured::Matcher> matcher;
  if (constraint == nullptr) return matcher;
  matcher.emplace(constraint, stop_token_ids);
  for (size_t i = 0; i < tokens.size() && !matcher->terminated(); ++i) {  // after its end (ignore_eos) anything goes
    if (!matcher->accept(tokens[i])) {
      return fail(Errc::kInvalidRequest, "token {} is not allowed by the constraint", tokens[i]);
    }
  }
  return matcher;
}

MaskFiller::MaskFiller(int32_t threads, int32_t vocab_size) : words_((static_cast<size_t>(vocab_size) + 31) / 32) {
  for (int32_t i = 0; i < std::max(threads, 1); ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

MaskFiller::~MaskFiller() {
  (void)finish();
}

void MaskFiller::begin(std::vector<MaskJob> jobs) {
  size_t rows = 0;
  for (const MaskJob& job : jobs) rows += job.draft.size() + 1;
  if (memory_.size() < rows * words_) memory_.resize(rows * words_);
  std::span<uint32_t> rest(memory_);
  for (MaskJob& job : jobs) {
    job.rows = rest.first((job.draft.size() + 1) * words_);
    rest = rest.subspan(job.rows.size());
  }
  const bool several = jobs.size() > 1;
  const bool none = jobs.empty();
  {
    const std::lock_guard lock(mutex_);
    jobs_ = std::move(jobs);
    next_ = 0;
    finished_ = 0;
  }
  if (several) wake_.notify_all();
  if (!several && !none) wake_.notify_one();
}

std::span<const MaskJob> MaskFiller::finish() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return finished_ == jobs_.size(); });
  return jobs_;
}

void MaskFiller::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [&] { return next_ < jobs_.size(); })) {
    MaskJob& job = jobs_[next_++];
    lock.unlock();
    fill(job);
    lock.lock();
    if (++finished_ == jobs_.size()) done_.notify_all();
  }
}

void apply_mask(std::span<float> logits, std::span<const uint32_t> row, std::span<const int32_t> unwanted) {
  for (size_t w = 0; w * 32 < logits.size(); ++w) {
    const uint32_t bits = w < row.size() ? row[w] : 0;
    if (bits == UINT32_MAX) continue;
    const size_t end = std::min<size_t>(32, logits.size() - w * 32);
    for (size_t b = 0; b < end; ++b) {
      if (((bits >> b) & 1U) == 0) logits[w * 32 + b] = kMinusInfinity;
    }
  }
  const auto allowed = [&](int32_t token) {
    const auto i = static_cast<size_t>(token);
    return i / 32 < row.size() && ((row[i / 32] >> (i % 32)) & 1U) != 0;
  };
  size_t unwanted_allowed = 0;
  std::vector<int32_t> distinct(unwanted.begin(), unwanted.end());
  std::ranges::sort(distinct);
  distinct.erase(std::ranges::unique(distinct).begin(), distinct.end());
  for (const int32_t token : distinct) unwanted_allowed += allowed(token) ? 1 : 0;
  if (unwanted_allowed == 0) return;
  size_t all_allowed = 0;
  for (const uint32_t bits : row) all_allowed += static_cast<size_t>(__builtin_popcount(bits));
  if (all_allowed == unwanted_allowed) return;
  for (const int32_t token : distinct) logits[static_cast<size_t>(token)] = kMinusInfinity;
}

}  // namespace di::engine
