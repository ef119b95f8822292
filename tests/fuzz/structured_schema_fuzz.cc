// Any bytes as a JSON Schema, under several options: a refusal with a code, or masks that agree with the matcher.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "structured_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace di::structured;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  fuzzing::compile_and_walk(ConstraintKind::kJsonSchema, fuzzing::options_of(data[0]), text, (data[0] & 32U) != 0);
  return 0;
}
