// Every file of single modules through the reference and the fast operators.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/thread_pool.h"
#include "kernels/conformance_modules.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu_tables.h"
#include "support/folders.h"
#include "support/safetensors.h"

namespace di::kernels {
namespace {

std::vector<std::string> module_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(di::test::kData) + "/model")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("mod_")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<NamedTensor> named(const di::test::SafetensorsFile& file) {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, t] : file.tensors()) tensors.push_back({name, t.dtype, t.shape, t.data, t.bytes});
  return tensors;
}

std::vector<const Ops*> tables() {
  std::vector<const Ops*> all{&cpu::reference_ops()};
  for (const Ops* ops : test::cpu_tables()) all.push_back(ops);
  return all;
}

TEST(Modules, AllKindsAreThere) {
  EXPECT_EQ(module_files().size(), 11U);
}

TEST(Modules, EveryTableReproducesThem) {
  ThreadPool pool(2);
  const cpu::StreamPtr stream = cpu::make_stream(pool);
  for (const Ops* ops : tables()) {
    for (const std::string& name : module_files()) {
      const di::test::SafetensorsFile file(std::string(di::test::kData) + "/model/" + name);
      const std::vector<ModuleCheck> checks = run_module_file(name, named(file), *ops, *stream);
      EXPECT_FALSE(checks.empty()) << name;
      for (const ModuleCheck& check : checks) {
        EXPECT_TRUE(check.passed) << ops->name << " " << check.name << ": " << check.detail << " (error " << check.error
                                  << ", bound " << check.bound << ")";
      }
    }
  }
}

// A changed expectation is noticed in every tensor that holds one.
TEST(Modules, NoticeAWrongValue) {
  ThreadPool pool(1);
  const cpu::StreamPtr stream = cpu::make_stream(pool);
  const std::map<std::string, std::vector<std::string>> expected = {
      {"mod_candidates.safetensors", {"block_scores"}},
      {"mod_cast.safetensors",
       {"e4m3_g32_ue8m0.data", "e4m3_g32_ue8m0.scale", "e4m3_g32_ue8m0.dequant", "e2m1_g32_ue8m0.data",
        "e2m1_g32_ue8m0.dequant", "e2m1_g16_e4m3.scale", "e2m1_g16_e4m3.dequant"}},
      {"mod_compressor.safetensors", {"pooled", "chunk1", "chunk2", "decode"}},
      {"mod_dequant.safetensors", {"fp8b.dequant", "fp4r.dequant"}},
      {"mod_dspark.safetensors", {"conf_t1", "conf_t085", "target_feature"}},
      {"mod_engram.safetensors", {"gate", "out"}},
      {"mod_kv_records.safetensors", {"swa_interleaved", "main_fp4_interleaved", "swa_dequant", "main_fp4_dequant"}},
      {"mod_mhc.safetensors", {"mix", "pre", "post", "comb", "comb_logits", "collapse_pre", "expanded", "v4_head_mix"}},
      {"mod_rope.safetensors", {"main.cos", "compress.sin", "main.rotated", "compress.inverse_of_x"}},
      {"mod_router.safetensors", {"idx", "w", "idx_nobias", "w_nobias", "idx_vl", "w_vl"}},
      {"mod_swiglu.safetensors", {"out"}},
  };
  for (const auto& [name, keys] : expected) {
    const di::test::SafetensorsFile file(std::string(di::test::kData) + "/model/" + name);
    for (const std::string& key : keys) {
      std::vector<NamedTensor> tensors = named(file);
      for (NamedTensor& t : tensors) {
        if (t.name != key) continue;
        const uint8_t* bytes = static_cast<const uint8_t*>(t.data);
        std::vector<uint8_t> changed(bytes, bytes + t.bytes);
        // The second value of the last row: the lowest bit of its byte with the exponent's (or the value's) end.
        const size_t item = t.dtype == "F32" ? 4 : t.dtype == "BF16" ? 2 : t.dtype == "I64" ? 8 : 1;
        const size_t columns = static_cast<size_t>(t.shape.back());
        const size_t index = changed.size() / item - columns + std::min<size_t>(1, columns - 1);
        const size_t byte = t.dtype == "F32" || t.dtype == "BF16" ? item - 1 : 0;
        changed[index * item + byte] = static_cast<uint8_t>(changed[index * item + byte] ^ 1U);
        t.data = changed.data();
        int failed = 0;
        for (const ModuleCheck& check : run_module_file(name, tensors, cpu::reference_ops(), *stream)) {
          failed += check.passed ? 0 : 1;
        }
        EXPECT_GE(failed, 1) << name << " " << key;
        break;
      }
    }
  }
}

TEST(Modules, UnknownFilesGiveNoChecks) {
  ThreadPool pool(1);
  const cpu::StreamPtr stream = cpu::make_stream(pool);
  EXPECT_TRUE(run_module_file("mod_other.safetensors", {}, cpu::reference_ops(), *stream).empty());
}

}  // namespace
}  // namespace di::kernels
