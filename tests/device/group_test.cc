#include "device/group.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <thread>

namespace di::device {
namespace {

using std::chrono_literals::operator""ms;

constexpr auto kLong = std::chrono::minutes(5);

// body(group) in one thread for each rank.
template <class Body>
void on_ranks(const std::vector<std::unique_ptr<Group>>& groups, const Body& body) {
  std::vector<std::jthread> threads;
  for (const auto& group : groups) threads.emplace_back([&] { body(*group); });
}

class LocalGroup : public testing::TestWithParam<int32_t> {};

// Every rank sends every rank, itself too, a different number of bytes in two pieces, many times.
TEST_P(LocalGroup, ExchangesPiecesOfAllSizes) {
  const int32_t ranks = GetParam();
  const auto groups = make_local_group(ranks, kLong);
  const auto bytes = [](int32_t from, int32_t to, int32_t part, int32_t round) {
    return int64_t{(from * 7 + to * 13 + part * 5 + round * 3) % 41};
  };
  const auto value = [](int32_t from, int32_t to, int32_t part, int32_t round, int64_t i) {
    return static_cast<uint8_t>(from * 31 + to * 17 + part * 11 + round * 5 + i);
  };
  on_ranks(groups, [&](Group& group) {
    const int32_t me = group.rank();
    for (int32_t round = 0; round < 50; ++round) {
      std::vector<std::vector<uint8_t>> out;
      std::vector<std::vector<uint8_t>> in;
      std::vector<Piece> pieces;
      for (int32_t part = 0; part < 2; ++part) {
        for (int32_t peer = 0; peer < ranks; ++peer) {
          auto& send = out.emplace_back(static_cast<size_t>(bytes(me, peer, part, round)));
          for (size_t i = 0; i < send.size(); ++i) send[i] = value(me, peer, part, round, static_cast<int64_t>(i));
          auto& receive = in.emplace_back(static_cast<size_t>(bytes(peer, me, part, round)));
          pieces.push_back({peer, send.data(), static_cast<int64_t>(send.size()), receive.data(),
                            static_cast<int64_t>(receive.size())});
        }
      }
      const auto status = group.exchange(pieces, nullptr);
      ASSERT_TRUE(status) << status.error().message;
      for (int32_t part = 0; part < 2; ++part) {
        for (int32_t peer = 0; peer < ranks; ++peer) {
          const auto& received = in[static_cast<size_t>(part * ranks + peer)];
          for (size_t i = 0; i < received.size(); ++i) {
            ASSERT_EQ(received[i], value(peer, me, part, round, static_cast<int64_t>(i)));
          }
        }
      }
    }
  });
  for (const auto& group : groups) EXPECT_FALSE(group->error());
}

TEST_P(LocalGroup, GathersTheValuesOfAllRanks) {
  const auto groups = make_local_group(GetParam(), kLong);
  on_ranks(groups, [&](Group& group) {
    for (int64_t round = 0; round < 200; ++round) {
      const std::vector<int64_t> mine{group.rank() * 1000 + round, -round};
      const auto all = group.gather(mine);
      ASSERT_TRUE(all) << all.error().message;
      ASSERT_EQ(all->size(), static_cast<size_t>(2 * group.size()));
      for (int32_t r = 0; r < group.size(); ++r) {
        EXPECT_EQ((*all)[static_cast<size_t>(2 * r)], r * 1000 + round);
        EXPECT_EQ((*all)[static_cast<size_t>(2 * r + 1)], -round);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, LocalGroup, testing::Values(1, 2, 4, 64));

// Two come, one does not: both leave with the same error, which names the missing one.
TEST(LocalGroupFaults, ARankThatDoesNotComeEndsTheOthers) {
  const auto groups = make_local_group(3, 50ms);
  std::vector<std::string> messages(3);
  on_ranks(groups, [&](Group& group) {
    if (group.rank() == 0) return;
    const std::vector<int64_t> mine{1};
    const auto all = group.gather(mine);
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().code, Errc::kDeadlineExceeded);
    messages[static_cast<size_t>(group.rank())] = all.error().message;
  });
  EXPECT_EQ(messages[1], messages[2]);
  EXPECT_NE(messages[1].find("for rank 0, which did not come"), std::string::npos) << messages[1];
  // The group is over, for the late one too.
  const auto late = groups[0]->exchange({}, nullptr);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().message, messages[1]);
}

TEST(LocalGroupFaults, ARankThatFailsEndsThoseThatWait) {
  const auto groups = make_local_group(4, kLong);
  on_ranks(groups, [&](Group& group) {
    if (group.rank() == 2) {
      group.fail({Errc::kResourceExhausted, "rank 2 has no memory left"});
      return;
    }
    const auto status = group.exchange({}, nullptr);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "rank 2 has no memory left");
  });
  EXPECT_EQ(groups[0]->error()->code, Errc::kResourceExhausted);
}

TEST(LocalGroupFaults, RanksThatDisagreeAreAnError) {
  {
    const auto groups = make_local_group(2, kLong);
    on_ranks(groups, [&](Group& group) {
      uint8_t bytes[8] = {};
      const Piece piece{1 - group.rank(), bytes, group.rank() == 0 ? 3 : 4, bytes + 4, 4};
      const auto status = group.exchange({&piece, 1}, nullptr);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().message, "rank 1 expects 4 bytes from rank 0, which sends 3");
    });
  }
  const auto groups = make_local_group(2, kLong);
  on_ranks(groups, [&](Group& group) {
    const std::vector<int64_t> mine{1};
    const bool failed = group.rank() == 0 ? !group.gather(mine) : !group.exchange({}, nullptr);
    EXPECT_TRUE(failed);
  });
  EXPECT_NE(groups[0]->error()->message.find("ranks must make the same calls"), std::string::npos);
}

}  // namespace
}  // namespace di::device
