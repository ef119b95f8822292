#include "model/verify.h"

#include "support.h"

namespace di::model::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Result<VerifyReport> verify(const FileTensors& tensors, std::span<const TokenText> tokens = {},
                            const VerifyProgress& progress = {}) {
  const std::string bytes = safetensors_bytes(tensors);
  const Result<Safetensors> file = Safetensors::from_memory(std::as_bytes(std::span(bytes)), "model.safetensors");
  EXPECT_TRUE(file.has_value());
  return verify_checkpoint(config_of(kSmallV41), *file, tokens, progress);
}

void put(FileTensor& t, size_t index, uint32_t bits, size_t size) {
  std::memcpy(t.data.data() + index * size, &bits, size);
}

TEST(Verify, ReadsEveryDeclaredTensorOnce) {
  FileTensors tensors = checkpoint_of(config_of(kSmallV41));
  int64_t bytes = 0;
  for (const auto& [name, t] : tensors) bytes += static_cast<int64_t>(t.data.size());
  const auto declared = static_cast<int64_t>(tensors.size());
  tensors["extra"] = zeros("BF16", 2, {3});
  int64_t last = 0;
  const Result<VerifyReport> report = verify(tensors, {}, [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, bytes);
    last = done;
  });
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->tensors, declared);
  EXPECT_EQ(report->bytes, bytes);
  EXPECT_EQ(last, bytes);
  EXPECT_THAT(report->problems, IsEmpty());
  EXPECT_THAT(report->unknown_tensors, ElementsAre("extra"));
}

TEST(Verify, FindsValuesThatAreNoNumbers) {
  struct Case {
    const char* tensor;
    size_t index;
    uint32_t bits;
    size_t size;
    const char* place;
  };
  for (const Case& c : {Case{"norm.weight", 5, 0x7fc0U, 2, "[5]"}, Case{"embed.weight", 65, 0xff80U, 2, "[1, 1]"},
                        Case{"layers.2.hc_attn_fn", 130, 0x7f800001U, 4, "[1, 2]"},
                        Case{"layers.2.attn.attn_sink", 3, 0x7f800000U, 4, "[3]"},
                        Case{"layers.0.attn.wkv.weight", 64, 0x7fU, 1, "[1, 0]"},
                        Case{"layers.0.attn.wkv.weight", 2047, 0xffU, 1, "[31, 63]"},
                        Case{"layers.4.ffn.experts.3.w1.scale", 3, 0xffU, 1, "[1, 1]"}}) {
    FileTensors tensors = checkpoint_of(config_of(kSmallV41));
    put(tensors[c.tensor], c.index, c.bits, c.size);
    const Result<VerifyReport> report = verify(tensors);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_THAT(
        report->problems,
        ElementsAre(fmt::format("model.safetensors: tensor {}: expected finite numbers, found 1 that are not, the "
                                "first at {}",
                                c.tensor, c.place)));
  }
}

TEST(Verify, SinksMayBeMinusInfinity) {
  FileTensors tensors = checkpoint_of(config_of(kSmallV41));
  put(tensors["layers.2.attn.attn_sink"], 3, 0xff800000U, 4);
  EXPECT_THAT(verify(tensors)->problems, IsEmpty());
}

TEST(Verify, BrokenRulesOfLoadingAreErrors) {
  FileTensors tensors = checkpoint_of(config_of(kSmallV41));
  tensors.erase("norm.weight");
  EXPECT_THAT(verify(tensors).error().message,
              HasSubstr("tensor norm.weight: expected BF16 [64], found no such tensor"));
}

}  // namespace
}  // namespace di::model::tests
