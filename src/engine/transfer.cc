#include "engine/transfer.h"

#include <xxhash.h>

#include <utility>

namespace di::engine {
namespace {

// How far behind the commit the block comes that it overtakes.
constexpr int64_t kOvertakenNs = 20 * kNsPerMs;

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

Transfer::Transfer(uint64_t id, const Clock& clock, int64_t timeout_ns)
    : id_(id), clock_(clock), deadline_ns_(clock.now_ns() + timeout_ns) {}

TransferStage Transfer::stage() const {
  const std::lock_guard lock(mutex_);
  return stage_;
}

std::optional<TransferFailure> Transfer::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Transfer::on_change(Side side, std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_[static_cast<size_t>(side)] = std::move(wake);
}

void Transfer::wake(Side side) {
  if (const auto& call = wake_[static_cast<size_t>(side)]) call();
}

void Transfer::fail_locked(TransferFailure why) {
  if (stage_ == TransferStage::kFailed || stage_ == TransferStage::kSuccess) return;
  stage_ = TransferStage::kFailed;
  failure_ = std::move(why);
  blocks_.clear();
  state_ = {};
  wake(Side::kSender);
  wake(Side::kReceiver);
}

bool Transfer::expire() {
  const std::lock_guard lock(mutex_);
  if (clock_.now_ns() >= deadline_ns_) {
    fail_locked(
        {Error{Errc::kUnavailable, "the hand-over of the prompt took longer than its time limit"}, true, false});
  }
  return stage_ == TransferStage::kFailed;
}

void Transfer::abort(TransferFailure why) {
  const std::lock_guard lock(mutex_);
  fail_locked(std::move(why));
}

void Transfer::prepare(const TransferTarget& target) {
  const std::lock_guard lock(mutex_);
  if (stage_ != TransferStage::kBootstrapping) return;
  stage_ = TransferStage::kWaiting;
  target_ = target;
  blocks_.resize(static_cast<size_t>(target.blocks));
  wake(Side::kSender);
}

std::optional<TransferTarget> Transfer::target() const {
  const std::lock_guard lock(mutex_);
  return target_;
}

bool Transfer::put(int32_t block, Bytes bytes) {
  const uint64_t sum = checksum(bytes);
  const std::lock_guard lock(mutex_);
  if (stage_ != TransferStage::kWaiting && stage_ != TransferStage::kTransferring) return false;
  DI_CHECK(block == kState || static_cast<size_t>(block) < blocks_.size(), "block {} of {}", block, blocks_.size());
  stage_ = TransferStage::kTransferring;
  if (block != kState && fault_.wrong_order && held_block_ < 0) held_block_ = block;
  if (fault_.damage && !bytes.empty()) bytes.front() ^= std::byte{1};
  (block == kState ? state_ : blocks_[static_cast<size_t>(block)]) = {std::move(bytes), sum, true, false};
  return true;
}

void Transfer::inject(const TransferFault& fault) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
}

bool Transfer::commit(TransferCommit commit) {
  const std::lock_guard lock(mutex_);
  if (stage_ != TransferStage::kTransferring) return false;
  commit_ = std::move(commit);
  visible_ns_ = clock_.now_ns() + fault_.late_ns;
  if (fault_.wrong_order) held_until_ns_ = visible_ns_ + kOvertakenNs;
  wake(Side::kReceiver);
  return true;
}

bool Transfer::check(Piece& piece) {
  piece.checked = piece.checked || checksum(piece.bytes) == piece.sum;
  return piece.checked;
}

// What has come is checked as it comes, so that little is left to do behind the commit.
Transfer::Progress Transfer::poll() {
  const std::lock_guard lock(mutex_);
  if (stage_ == TransferStage::kFailed) return Progress::kFailed;
  if (!target_) return Progress::kIncomplete;
  const int64_t now = clock_.now_ns();
  bool complete = state_.written && commit_ && now >= visible_ns_;
  bool right = !state_.written || check(state_);
  for (auto i = static_cast<size_t>(target_->first_needed); i < blocks_.size(); ++i) {
    const bool held = static_cast<int32_t>(i) == held_block_ && (!commit_ || now < held_until_ns_);
    if (!blocks_[i].written || held) {
      complete = false;
    } else {
      right = right && check(blocks_[i]);
    }
  }
  if (!right) {
    fail_locked({Error{Errc::kUnavailable, "the prompt's KV was damaged on its way"}, true, false});
    return Progress::kFailed;
  }
  return complete ? Progress::kReady : Progress::kIncomplete;
}

bool Transfer::accept() {
  const std::lock_guard lock(mutex_);
  if (stage_ != TransferStage::kTransferring || !commit_) return false;
  stage_ = TransferStage::kSuccess;
  wake(Side::kSender);
  return true;
}

std::span<const std::byte> Transfer::block(int32_t index) const {
  return blocks_[static_cast<size_t>(index)].bytes;
}

}  // namespace di::engine
