#include "device/load.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace di::device {
namespace {

constexpr int32_t kMostThreads = 8;  // more wait for the bus and pin memory that takes longer to make (bench loading)
constexpr size_t kMostSlices = 64;   // of a piece: many small tensors make a piece of their own

// Hands out the ranges in their order, in pieces.
class Pieces {
 public:
  Pieces(std::span<const LoadRange> ranges, const LoadOptions& options) : ranges_(ranges), options_(options) {}

  // Parts of ranges, together at most a buffer; empty at the end or after an error.
  void take(std::vector<LoadRange>& piece) {
    piece.clear();
    const std::scoped_lock lock(mutex_);
    if (error_) return;
    for (size_t left = options_.piece_bytes; left > 0 && next_ < ranges_.size() && piece.size() < kMostSlices;) {
      const LoadRange& range = ranges_[next_];
      const size_t n = std::min(left, range.bytes - offset_);
      if (n > 0) piece.push_back({range.to + offset_, range.from + offset_, n});
      left -= n;
      offset_ += n;
      if (offset_ == range.bytes) {
        ++next_;
        offset_ = 0;
      }
    }
  }

  void sent(const std::vector<LoadRange>& piece) {
    if (!options_.progress) return;
    const std::scoped_lock lock(mutex_);
    for (const LoadRange& part : piece) done_ += static_cast<int64_t>(part.bytes);
    options_.progress(done_);
  }

  void failed(Error error) {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::move(error);
  }

  Result<void> result() const {
    if (error_) return std::unexpected(*error_);
    return {};
  }

 private:
  std::span<const LoadRange> ranges_;
  const LoadOptions& options_;
  std::mutex mutex_;  // of what follows
  size_t next_ = 0;
  size_t offset_ = 0;  // in ranges_[next_]
  int64_t done_ = 0;
  std::optional<Error> error_;
};

Result<void> work(Device& device, Pieces& pieces, const LoadOptions& options) {
  const std::unique_ptr<LoadLane> lane = DI_TRY(device.open_lane(options.piece_bytes));
  std::vector<LoadRange> piece;
  for (pieces.take(piece); !piece.empty(); pieces.take(piece)) {
    std::byte* at = DI_TRY(lane->buffer());
    for (const LoadRange& part : piece) {
      if (options.read) {
        DI_TRY(options.read(at, part.from, part.bytes));
      } else {
        std::memcpy(at, part.from, part.bytes);
      }
      DI_TRY(lane->send(part.to, at, part.bytes));
      at += part.bytes;
    }
    pieces.sent(piece);
  }
  return lane->finish();
}

}  // namespace

Result<void> load_ranges(Device& device, std::span<const LoadRange> ranges, const LoadOptions& options) {
  size_t total = 0;
  for (const LoadRange& range : ranges) total += range.bytes;
  int64_t threads = options.threads;
  if (threads <= 0) threads = std::min<int64_t>(kMostThreads, std::max(1U, std::thread::hardware_concurrency()));
  threads = std::clamp<int64_t>(static_cast<int64_t>(total / options.piece_bytes), 1, threads);
  Pieces pieces(ranges, options);
  const auto body = [&] {
    if (Result<void> done = work(device, pieces, options); !done) pieces.failed(std::move(done).error());
  };
  {
    std::vector<std::jthread> others;
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(body);
    body();
  }
  return pieces.result();
}

}  // namespace di::device
