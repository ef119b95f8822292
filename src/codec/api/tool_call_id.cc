#include <xxhash.h>

#include "codec/api/events.h"

namespace di::codec::api {

std::string make_tool_call_id(size_t index, bool empty_thinking, const std::string& random) {
  const std::string id = fmt::format("call_{:02}_{}{}", index, empty_thinking ? "ET_" : "", random);
  std::string plain;
  for (const char c : id) {
    if (c != '_') plain.push_back(c);
  }
  return fmt::format("{}{:04}", id, XXH3_64bits(plain.data(), plain.size()) % 10000);
}

}  // namespace di::codec::api
