#include "cli/stream_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"

namespace di::cli {
namespace {

// The fault of a stream of these events, "[DONE]" among them.
std::string fault_of(const std::vector<std::string>& events) {
  StreamCheck check;
  for (const std::string& event : events) {
    if (event == "[DONE]") {
      check.done();
      continue;
    }
    const Result<Json> json = parse_json(event);
    EXPECT_TRUE(json) << event;
    check.take(*json);
  }
  check.end();
  return check.fault();
}

std::string chunk(const std::string& delta, const std::string& reason = "null", const std::string& id = "a") {
  return R"({"id":")" + id + R"(","model":"m","created":1,"choices":[{"index":0,"delta":)" + delta +
         R"(,"finish_reason":)" + reason + "}]}";
}

const std::string kFirst = chunk(R"({"role":"assistant","content":""})");
const std::string kText = chunk(R"({"content":"x"})");
const std::string kLast = chunk(R"({"content":""})", R"("stop")");
const std::string kUsage = R"({"id":"a","model":"m","created":1,"choices":[],"usage":{}})";

TEST(StreamCheck, TakesWholeStreamsOfChunks) {
  EXPECT_EQ(fault_of({kFirst, kText, kLast, "[DONE]"}), "");
  EXPECT_EQ(fault_of({kFirst, kText, kLast, kUsage, "[DONE]"}), "");
  EXPECT_EQ(fault_of({kFirst, R"({"error":{"message":"x"}})", "[DONE]"}), "");
}

TEST(StreamCheck, SeesWhatIsWrongWithChunks) {
  EXPECT_NE(fault_of({kFirst, kText, "[DONE]"}), "") << "no reason";
  EXPECT_NE(fault_of({kFirst, kLast}), "") << "no [DONE]";
  EXPECT_NE(fault_of({kFirst, kLast, kText, "[DONE]"}), "") << "text after the reason";
  EXPECT_NE(fault_of({kFirst, kLast, kLast, "[DONE]"}), "") << "two reasons";
  EXPECT_NE(fault_of({kFirst, chunk(R"({"content":"x"})", "null", "b"), kLast, "[DONE]"}), "") << "another id";
  EXPECT_NE(fault_of({kFirst, chunk(R"({"content":"x","reasoning_content":"y"})"), kLast, "[DONE]"}), "")
      << "both texts";
  EXPECT_NE(fault_of({kFirst, chunk("{}", R"("")"), kLast, "[DONE]"}), "") << "an empty reason";
  EXPECT_NE(fault_of({kFirst, kLast, "[DONE]", kText}), "") << "after the end";
}

TEST(StreamCheck, CountsResponsesEvents) {
  const auto event = [](const std::string& type, int n) {
    return R"({"type":"response.)" + type + R"(","sequence_number":)" + std::to_string(n) + "}";
  };
  EXPECT_EQ(fault_of({event("created", 0), event("in_progress", 1), event("completed", 2)}), "");
  EXPECT_NE(fault_of({event("created", 0), event("completed", 2)}), "") << "a gap";
  EXPECT_NE(fault_of({event("in_progress", 0), event("completed", 1)}), "") << "another beginning";
  EXPECT_NE(fault_of({event("created", 0), event("in_progress", 1)}), "") << "no end";
}

TEST(StreamCheck, FollowsBlocksOfMessages) {
  const auto block = [](const std::string& what, int n) {
    return R"({"type":"content_block_)" + what + R"(","index":)" + std::to_string(n) + "}";
  };
  const std::string begin = R"({"type":"message_start"})";
  const std::string reason = R"({"type":"message_delta","delta":{"stop_reason":"end_turn"}})";
  const std::string end = R"({"type":"message_stop"})";
  EXPECT_EQ(
      fault_of({begin, block("start", 0), R"({"type":"ping"})", block("delta", 0), block("stop", 0), reason, end}), "");
  EXPECT_NE(fault_of({begin, block("start", 0), block("stop", 0), end}), "") << "no stop_reason";
  EXPECT_NE(fault_of({begin, block("start", 0), reason, end}), "") << "an open block";
  EXPECT_NE(fault_of({begin, block("start", 1), block("stop", 1), reason, end}), "") << "a block out of turn";
  EXPECT_NE(fault_of({begin, block("start", 0), block("delta", 1), block("stop", 0), reason, end}), "")
      << "a foreign delta";
  EXPECT_NE(fault_of({block("start", 0), block("stop", 0), reason, end}), "") << "no beginning";
}

}  // namespace
}  // namespace di::cli
