#include "engine/handover.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/json.h"

namespace di::engine {
namespace {

std::string vectors_file(const std::string& name) {
  return std::string(DI_TEST_VECTORS) + "/dspark/" + name;
}

// Numbers of an array, nested ones laid end to end.
void append_ints(const Json& value, std::vector<int32_t>& out) {
  if (!value.is_array()) {
    out.push_back(static_cast<int32_t>(*value.to_i64()));
    return;
  }
  for (const Json& item : value.as_array()) append_ints(item, out);
}
std::vector<int32_t> ints(const Json& object, const char* key) {
  std::vector<int32_t> out;
  append_ints(*object.find(key), out);
  return out;
}

TEST(Handover, EqualsTheReferenceLengthsAndIds) {
  const std::string file = vectors_file("zos_handover.json");
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no reference vectors at " << file;
  const Json root = parse_json_file(file).value();
  ASSERT_FALSE(root.find("cases")->as_array().empty());
  Handover out;
  for (const Json& c : root.find("cases")->as_array()) {
    const std::vector<int32_t> remap = ints(c, "remap");
    const std::vector<int32_t> counts = ints(c, "seqlens_q");
    const std::vector<int32_t> before = ints(c, "seqlens_k_before");
    const std::vector<int32_t> fresh = ints(c, "fresh_tokens");
    const std::vector<int32_t> accepted = ints(c, "prev_accepted");
    const std::vector<int32_t> sampled = ints(c, "prev_sampled");
    const std::vector<int32_t> drafts = ints(c, "prev_drafts");
    const auto nextn = static_cast<int32_t>(*c.find("nextn")->to_i64());
    hand_over({remap, counts, before, fresh}, {nextn, accepted, sampled, drafts}, out);
    EXPECT_EQ(out.lengths, ints(*c.find("expected"), "seqlens_k"));
    EXPECT_EQ(out.input_ids, ints(*c.find("expected"), "input_ids"));
  }
}

TEST(Handover, WithoutDraftsIsTheSampledTokenAtTheNextPosition) {
  Handover out;
  const std::vector<int32_t> remap = {1, -1, 0};
  const std::vector<int32_t> counts = {1, 1, 1};
  const std::vector<int32_t> before = {10, 20, 30};
  const std::vector<int32_t> fresh = {7, 8, 9};
  const std::vector<int32_t> accepted = {0, 0};
  const std::vector<int32_t> sampled = {50, 51};
  hand_over({remap, counts, before, fresh}, {0, accepted, sampled, {}}, out);
  EXPECT_EQ(out.lengths, (std::vector<int32_t>{11, 21, 31}));
  EXPECT_EQ(out.input_ids, (std::vector<int32_t>{51, 8, 50}));
}

TEST(GraphBuckets, EqualTheReferenceSizes) {
  const std::string file = vectors_file("graph_buckets.json");
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no reference vectors at " << file;
  const Json root = parse_json_file(file).value();
  ASSERT_FALSE(root.find("cases")->as_array().empty());
  for (const Json& c : root.find("cases")->as_array()) {
    const auto largest = static_cast<int32_t>(*c.find("max")->to_i64());
    const auto interval = static_cast<int32_t>(*c.find("interval")->to_i64());
    EXPECT_EQ(graph_buckets(largest, interval), ints(c, "expected")) << "max " << largest;
  }
}

}  // namespace
}  // namespace di::engine
