#include "model/rope.h"

#include <cmath>

#include "support.h"
#include "support/folders.h"

namespace di::model::tests {
namespace {

TEST(Rope, MatchesTheReferenceFrequencies) {
  const std::string path = vectors_dir() + "/model/mod_rope.safetensors";
  DI_NEED_VECTORS(path);
  const Result<Safetensors> file = Safetensors::open(path);
  ASSERT_TRUE(file) << file.error().message;
  const ModelConfig config = *load_config(std::string(di::test::kData) + "/model/config_v41_flash.json");
  const RopeFrequencies f = rope_frequencies(config);
  const auto compare = [&](const char* name, const std::vector<float>& ours) {
    const TensorView* t = file->find(name);
    ASSERT_NE(t, nullptr);
    ASSERT_EQ(t->bytes, static_cast<int64_t>(ours.size() * 4));
    for (size_t i = 0; i < ours.size(); ++i) {
      float expected = 0;
      std::memcpy(&expected, t->data + 4 * i, 4);
      EXPECT_NEAR(ours[i], expected, 2e-7F * expected) << name << " " << i;  // the reference computes in fp32
    }
  };
  compare("main.inv_freq", f.plain);
  compare("compress.inv_freq", f.compressed);
}

// model.md §5.5: low = 15, high = 25 for θ = 160000: below, nothing is scaled; from there on everything is divided
// by 16.
TEST(Rope, YarnScalesTheSlowChannelsOnly) {
  RopeScaling scaling;
  scaling.present = true;
  scaling.factor = 16;
  const std::vector<float> plain = plain_inv_freq(160000, 64);
  const std::vector<float> yarn = yarn_inv_freq(160000, 64, scaling);
  ASSERT_EQ(yarn.size(), 32U);
  EXPECT_EQ(plain[0], 1.0F);
  for (size_t i = 0; i < 32; ++i) {
    if (i <= 15) {
      EXPECT_EQ(yarn[i], plain[i]) << i;
    } else if (i >= 25) {
      EXPECT_FLOAT_EQ(yarn[i], plain[i] / 16) << i;
    } else {
      EXPECT_LT(yarn[i], plain[i]) << i;
      EXPECT_GT(yarn[i], plain[i] / 16) << i;
    }
  }
  EXPECT_FLOAT_EQ(yarn[20], plain[20] * (0.5F / 16 + 0.5F));
}

TEST(Rope, WithoutScalingCompressedLayersUsePlainFrequencies) {
  Json root = parse(kSmallV41);
  edit(root, "rope_scaling", "-");
  const RopeFrequencies f = rope_frequencies(*parse_config(root, "config.json"));
  EXPECT_EQ(f.compressed, plain_inv_freq(160000, 8));
  EXPECT_EQ(f.plain, plain_inv_freq(10000, 8));
}

}  // namespace
}  // namespace di::model::tests
