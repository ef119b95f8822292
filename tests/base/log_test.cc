#include "base/log.h"

#include <gtest/gtest.h>

namespace di {
namespace {

std::size_t room(std::string_view name) {
  for (std::size_t i = 0; i < kLogRooms.size(); ++i) {
    if (kLogRooms[i] == name) return i;
  }
  return kLogRooms.size();
}

TEST(LogLevels, AreOfAllRoomsAndThenOfSome) {
  const LogLevels levels = parse_log_levels("warn,kv=debug,server=off").value();
  for (std::size_t i = 0; i < kLogRooms.size(); ++i) {
    const LogLevel expected = i == room("kv")       ? LogLevel::kDebug
                              : i == room("server") ? LogLevel::kOff
                                                    : LogLevel::kWarn;
    EXPECT_EQ(levels.of[i], expected) << kLogRooms[i];
  }
  EXPECT_EQ(parse_log_levels("engine=trace").value().of[room("cli")], LogLevel::kInfo);
  EXPECT_EQ(parse_log_levels("engine=trace").value().of[room("engine")], LogLevel::kTrace);
  for (const char* wrong : {"", "loud", "info,debug", "info,kv", "info,attic=debug", "info,kv=loud", "info,,kv=debug"})
    EXPECT_FALSE(parse_log_levels(wrong)) << wrong;
}

TEST(LogLevels, FollowTheFolderOfTheFile) {
  EXPECT_EQ(log_room("/a/src/b/src/server/app.cc"), room("server"));
  EXPECT_EQ(log_room("../../src/kv/block_pool.cc"), room("kv"));
  EXPECT_EQ(log_room("tests/base/log_test.cc"), room("base"));
}

TEST(LogLevels, DecideWhatIsWritten) {
  set_log_levels(parse_log_levels("error,kv=debug").value());
  EXPECT_TRUE(log_enabled(LogLevel::kDebug, room("kv")));
  EXPECT_FALSE(log_enabled(LogLevel::kTrace, room("kv")));
  EXPECT_FALSE(log_enabled(LogLevel::kWarn, room("server")));
  EXPECT_TRUE(log_enabled(LogLevel::kError, room("server")));
  set_log_levels(log_levels(LogLevel::kInfo));
}

}  // namespace
}  // namespace di
