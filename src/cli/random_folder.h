// A model folder of random weights, for measurements that need a size and no answers: the topology of another folder
// without Engram and draft module, with other widths. It takes the path of every model folder: files, loader, engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/result.h"

namespace di::cli {

// What a step has to read and to multiply at least; attention is not in it.
struct StepWork {
  double dense_bytes = 0;   // read whatever the rows
  double expert_bytes = 0;  // of all routed experts, read as far as they are selected
  double selected = 0;      // the part of them that one row selects
  double row_flops = 0;     // two a multiply-add

  // Bytes of a step of `rows` rows that select experts independently of each other.
  double bytes(double rows) const;
};

// Of the model in `folder` (its config.json alone). Errors are the loader's.
Result<StepWork> step_work(const std::string& folder);

// Writes config.json (that of `base` with the members of `widths` in place of its own, without those that are null),
// model.safetensors and tokenizer.json (that of `base`) into `folder`, which must exist. Values: E4M3 of magnitude 1/2
// to 2 and any E2M1 under scales of 2^-7, the others up to 1/64: logits stay finite. Errors name the file.
Result<void> write_random_folder(const std::string& base, const Json& widths, const std::filesystem::path& folder);

// A folder in the system's place for temporary files, removed with this object.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> create();
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace di::cli
