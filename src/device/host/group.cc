#include "device/group.h"

#include <cstring>

#include "device/meeting.h"

namespace di::device {
namespace {

class LocalGroup final : public Group {
 public:
  LocalGroup(std::shared_ptr<Meeting> meeting, int32_t rank) : meeting_(std::move(meeting)), rank_(rank) {}

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return meeting_->ranks(); }
  void fail(Error error) override { meeting_->fail(std::move(error)); }
  std::optional<Error> error() const override { return meeting_->error(); }

  Result<void> exchange(std::span<const Piece> pieces, void*) override {
    return meeting_->meet(rank_, "exchange", &pieces, [&](const Meeting::Items& all) -> Result<void> {
      std::vector<size_t> next(all.size(), 0);  // by peer: where its next piece for this rank is looked for
      for (const Piece& piece : pieces) {
        const auto peer = static_cast<size_t>(piece.peer);
        const auto& theirs = *static_cast<const std::span<const Piece>*>(all[peer]);
        size_t& at = next[peer];
        while (at < theirs.size() && theirs[at].peer != rank_) ++at;
        const int64_t sent = at < theirs.size() ? theirs[at].send_bytes : -1;
        if (sent != piece.receive_bytes) {
          return di::fail(Errc::kInternal, "rank {} expects {} bytes from rank {}, which sends {}", rank_,
                          piece.receive_bytes, peer, sent < 0 ? "nothing" : fmt::format("{}", sent));
        }
        if (sent > 0) std::memcpy(piece.receive, theirs[at].send, static_cast<size_t>(sent));
        ++at;
      }
      return {};
    });
  }

  Result<std::vector<int64_t>> gather(std::span<const int64_t> values) override {
    return meeting_->gather(rank_, values);
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  int32_t rank_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> make_local_group(int32_t size, std::chrono::milliseconds timeout) {
  const auto meeting = std::make_shared<Meeting>(size, timeout);
  std::vector<std::unique_ptr<Group>> out;
  for (int32_t r = 0; r < size; ++r) out.push_back(std::make_unique<LocalGroup>(meeting, r));
  return out;
}

}  // namespace di::device
