#include "engine/constraint.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace di::engine {

struct MaskWork {
  enum class State : uint8_t { kWaiting, kRunning, kDone };
  explicit MaskWork(structured::Matcher m) : matcher(std::move(m)) {}

  structured::Matcher matcher;
  const structured::Compiled* constraint = nullptr;
  std::vector<int32_t> draft;
  std::vector<uint32_t> rows;
  size_t valid = 0;
  bool failed = false;
  // Guarded by the filler's mutex.
  State state = State::kWaiting;
  bool late = false;
};

namespace {

constexpr int32_t kSpareThreads = 8;  // for masks that are late

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void fill(MaskWork& work) {
  if (work.draft.empty()) {
    work.valid = 0;
    work.failed = !work.matcher.fill_mask(work.rows);
    return;
  }
  work.valid = work.matcher.fill_masks_along(work.draft, work.rows);
  work.failed = work.matcher.failed();
}

// Those of 32 logits whose bit is 0 become -infinity, four at a time.
void forbid(uint32_t bits, float* logits) {
  using Four = float __attribute__((vector_size(16)));
  using FourBits = uint32_t __attribute__((vector_size(16)));
  constexpr FourBits kEach = {1, 2, 4, 8};
  for (uint32_t b = 0; b < 32; b += 4) {
    Four v;
    std::memcpy(&v, logits + b, sizeof v);
    const FourBits four = FourBits{} + (bits >> b);
    v = (four & kEach) != 0 ? v : Four{} + kMinusInfinity;
    std::memcpy(logits + b, &v, sizeof v);
  }
}

// Those tokens that the row allows, ascending, each once.
std::vector<int32_t> allowed_of(std::span<const int32_t> tokens, std::span<const uint32_t> row) {
  std::vector<int32_t> out;
  for (const int32_t token : tokens) {
    const auto i = static_cast<size_t>(token);
    if (i / 32 < row.size() && ((row[i / 32] >> (i % 32)) & 1U) != 0) out.push_back(token);
  }
  std::ranges::sort(out);
  out.erase(std::ranges::unique(out).begin(), out.end());
  return out;
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

MaskFiller::MaskFiller(int32_t threads, int32_t vocab_size, int64_t patience_ns)
    : words_((static_cast<size_t>(vocab_size) + 31) / 32), at_once_(std::max(threads, 1)), patience_ns_(patience_ns) {
  for (int32_t i = 0; i < at_once_ + kSpareThreads; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

MaskFiller::~MaskFiller() {
  const std::lock_guard lock(mutex_);
  queue_.clear();
}

std::shared_ptr<MaskWork> MaskFiller::new_work(const MaskJob& job) {
  std::shared_ptr<MaskWork> work;
  if (idle_.empty()) {
    work = std::make_shared<MaskWork>(job.matcher->branch());
  } else {
    work = std::move(idle_.back());
    idle_.pop_back();
    work->matcher = job.matcher->branch();
    work->state = MaskWork::State::kWaiting;
    work->late = false;
  }
  work->constraint = job.constraint;
  work->draft.assign(job.draft.begin(), job.draft.end());
  work->rows.resize((job.draft.size() + 1) * words_);
  return work;
}

bool MaskFiller::busy_locked(const structured::Compiled& constraint) const {
  return std::ranges::any_of(late_, [&](const auto& work) { return work->constraint == &constraint; });
}

bool MaskFiller::busy(const structured::Compiled& constraint) {
  const std::lock_guard lock(mutex_);
  std::erase_if(late_, [](const auto& work) { return work->state == MaskWork::State::kDone; });
  return busy_locked(constraint);
}

// Works of the last step that nobody needs any more are used again.
void MaskFiller::collect() {
  for (MaskJob& job : jobs_) {
    if (job.work != nullptr && !job.late && job.work.use_count() == 1) idle_.push_back(std::move(job.work));
  }
  jobs_.clear();
}

void MaskFiller::begin(std::vector<MaskJob> jobs) {
  collect();
  jobs_ = std::move(jobs);
  int32_t start = 0;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(late_, [](const auto& work) { return work->state == MaskWork::State::kDone; });
    open_ = 0;
    for (MaskJob& job : jobs_) {
      // A late one that failed has failed; masks that one has made are found again at once.
      job.failed = job.work != nullptr && job.work->state == MaskWork::State::kDone && job.work->failed;
      job.late = !job.failed && busy_locked(*job.constraint);
      if (job.failed || job.late) continue;
      job.work = new_work(job);
      queue_.push_back(job.work);
      ++open_;
    }
    start = std::min(at_once_ - running_, static_cast<int32_t>(queue_.size()));
  }
  begun_ = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < start; ++i) wake_.notify_one();
}

std::span<const MaskJob> MaskFiller::finish(bool others) {
  const std::chrono::nanoseconds patience(patience_ns_);
  const auto from = others ? begun_ : std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  if (open_ > 0 && !done_.wait_until(lock, from + patience, [&] { return open_ == 0; })) {
    for (MaskJob& job : jobs_) {
      if (job.failed || job.late || job.work->state == MaskWork::State::kDone) continue;
      job.work->late = true;
      late_.push_back(job.work);
      if (job.work->state == MaskWork::State::kRunning) --running_;
    }
    open_ = 0;
    for (MaskJob& job : jobs_) job.late = job.late || (!job.failed && busy_locked(*job.constraint));
    if (!queue_.empty()) wake_.notify_all();
  }
  for (MaskJob& job : jobs_) {
    if (job.failed || job.late) continue;
    job.rows = job.work->rows;
    job.valid = job.work->valid;
    job.failed = job.work->failed;
  }
  return jobs_;
}

void MaskFiller::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [&] { return !queue_.empty() && running_ < at_once_; })) {
    const std::shared_ptr<MaskWork> work = std::move(queue_.front());
    queue_.pop_front();
    work->state = MaskWork::State::kRunning;
    if (!work->late) ++running_;
    lock.unlock();
    fill(*work);
    lock.lock();
    work->state = MaskWork::State::kDone;
    if (work->late) continue;
    --running_;
    if (--open_ == 0) done_.notify_all();
  }
}

void apply_mask(std::span<float> logits, std::span<const uint32_t> row, std::span<const int32_t> unwanted) {
  for (size_t w = 0; w * 32 < logits.size(); ++w) {
    const uint32_t bits = w < row.size() ? row[w] : 0;
    if (bits == UINT32_MAX) continue;
    if ((w + 1) * 32 <= logits.size()) {
      forbid(bits, logits.data() + w * 32);
      continue;
    }
    for (size_t b = 0; w * 32 + b < logits.size(); ++b) {
      if (((bits >> b) & 1U) == 0) logits[w * 32 + b] = kMinusInfinity;
    }
  }
  const std::vector<int32_t> gone = allowed_of(unwanted, row);
  if (gone.empty()) return;
  size_t all_allowed = 0;
  for (const uint32_t bits : row) all_allowed += static_cast<size_t>(std::popcount(bits));
  if (all_allowed == gone.size()) return;
  for (const int32_t token : gone) logits[static_cast<size_t>(token)] = kMinusInfinity;
}

bool sparse_mask(std::span<const uint32_t> row, size_t vocab, std::span<const int32_t> unwanted,
                 std::vector<int32_t>& ids) {
  ids.clear();
  size_t count = 0;
  for (const uint32_t bits : row) count += static_cast<size_t>(std::popcount(bits));
  if (count > vocab / kSparseMask) return false;
  for (size_t w = 0; w < row.size(); ++w) {
    for (uint32_t bits = row[w]; bits != 0; bits &= bits - 1) {
      ids.push_back(static_cast<int32_t>(w * 32) + std::countr_zero(bits));
    }
  }
  const std::vector<int32_t> gone = allowed_of(unwanted, row);
  if (gone.size() < ids.size()) {
    std::erase_if(ids, [&](int32_t id) { return std::ranges::binary_search(gone, id); });
  }
  return true;
}

}  // namespace di::engine
