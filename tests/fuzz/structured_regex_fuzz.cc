// Any bytes as a regular expression: the whole output, and as a schema's pattern.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "structured_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace di::structured;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1U) == 0) {
    fuzzing::compile_and_walk(ConstraintKind::kRegex, {}, text);
    return 0;
  }
  std::string schema = R"({"type":"string","pattern":)";
  di::append_json_string(schema, text);
  fuzzing::compile_and_walk(ConstraintKind::kJsonSchema, {}, schema + "}");
  return 0;
}
