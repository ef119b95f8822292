// A small safetensors reader for tests: the whole file in memory, tensors by name.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace di::test {

class SafetensorsFile {
 public:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    const uint8_t* data = nullptr;
    int64_t bytes = 0;
  };

  explicit SafetensorsFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open " + path);
    content_.assign(std::istreambuf_iterator<char>(in), {});
    uint64_t header = 0;
    if (content_.size() < 8) throw std::runtime_error(path + " is no safetensors file");
    std::memcpy(&header, content_.data(), 8);
    if (header > content_.size() - 8) throw std::runtime_error(path + " is cut off");
    const auto json = nlohmann::json::parse(content_.begin() + 8, content_.begin() + 8 + static_cast<int64_t>(header));
    for (const auto& [name, entry] : json.items()) {
      if (name == "__metadata__") continue;
      const int64_t begin = entry.at("data_offsets").at(0);
      const int64_t end = entry.at("data_offsets").at(1);
      const int64_t data = 8 + static_cast<int64_t>(header);
      if (begin < 0 || begin > end || data + end > static_cast<int64_t>(content_.size())) {
        throw std::runtime_error(path + ": " + name + " lies outside of the file");
      }
      tensors_[name] = {entry.at("dtype"), entry.at("shape"), content_.data() + data + begin, end - begin};
    }
  }

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const Tensor& at(const std::string& name) const { return tensors_.at(name); }

 private:
  std::vector<uint8_t> content_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace di::test
