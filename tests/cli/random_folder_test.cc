#include "cli/random_folder.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "cli/local_model.h"
#include "support/folders.h"

namespace di::cli {
namespace {

const std::string kBase = std::string(di::test::kModels) + "/tiny";

Json small() {
  Json widths;
  widths.set("hidden_size", 128);
  widths.set("num_attention_heads", 4);
  widths.set("q_lora_rank", 64);
  widths.set("moe_intermediate_size", 64);
  widths.set("n_routed_experts", 4);
  widths.set("num_experts_per_tok", 1);
  return widths;
}

TEST(RandomFolder, IsAModelLikeAnyOther) {
  std::filesystem::path path;
  {
    const auto folder = TemporaryFolder::create();
    ASSERT_TRUE(folder) << folder.error().message;
    path = folder->path();
    const Result<void> written = write_random_folder(kBase, small(), path);
    ASSERT_TRUE(written) << written.error().message;
    const SystemClock clock;
    ModelOptions options;
    options.folder = path.string();
    options.threads = 1;
    options.spec = "off";
    options.numerics = "trained";
    options.max_num_seqs = 2;
    options.max_model_len = 256;
    const auto model = load_model(options, codec::ApiPolicy::kExtended, clock);
    ASSERT_TRUE(model) << model.error().message;
    engine::GenerateRequest request;
    request.prompt = {3, 4, 5};
    request.max_tokens = 4;
    request.ignore_eos = true;
    std::mutex mutex;
    std::condition_variable changed;
    engine::FinishReason finish = engine::FinishReason::kNone;
    const auto id = (*model)->engine->submit(request, [&](const engine::Output& out) {
      const std::lock_guard lock(mutex);
      finish = out.finish;
      if (finish != engine::FinishReason::kNone) changed.notify_all();
    });
    ASSERT_TRUE(id);
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return finish != engine::FinishReason::kNone; });
    EXPECT_EQ(finish, engine::FinishReason::kLength);  // a logit that is no number is an error
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(RandomFolder, CountsWhatAStepReads) {
  const auto folder = TemporaryFolder::create();
  ASSERT_TRUE(folder);
  ASSERT_TRUE(write_random_folder(kBase, small(), folder->path()));
  const Result<StepWork> work = step_work(folder->path().string());
  ASSERT_TRUE(work) << work.error().message;
  // 10 layers of 4 experts of three matrices of 64 x 128 in FP4 with a scale byte for 32.
  EXPECT_EQ(work->expert_bytes, 10 * 4 * 3 * 64 * 128 * (0.5 + 1.0 / 32));
  EXPECT_EQ(work->selected, 0.25);
  EXPECT_DOUBLE_EQ(work->bytes(1), work->dense_bytes + work->expert_bytes / 4);
  EXPECT_NEAR(work->bytes(1000), work->dense_bytes + work->expert_bytes, 1);
  EXPECT_GT(work->row_flops, 2 * 4096 * 128);
}

TEST(RandomFolder, LeavesOutWhatIsNull) {
  const auto folder = TemporaryFolder::create();
  ASSERT_TRUE(folder);
  Json widths = small();
  widths.set("quantization_config", nullptr);
  ASSERT_TRUE(write_random_folder(kBase, widths, folder->path()));
  const Result<StepWork> work = step_work(folder->path().string());
  ASSERT_TRUE(work) << work.error().message;
  EXPECT_EQ(work->expert_bytes, 10 * 4 * 3 * 64 * 128 * 2);  // BF16
}

TEST(RandomFolder, NamesWhatIsMissing) {
  const auto folder = TemporaryFolder::create();
  ASSERT_TRUE(folder);
  const Result<void> written = write_random_folder("/nowhere", small(), folder->path());
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().message.find("/nowhere"), std::string::npos);
}

}  // namespace
}  // namespace di::cli
