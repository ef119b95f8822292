// Any bytes as a structural tag or as tools that may be called.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "structured_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace di::structured;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  SpecOptions options = fuzzing::options_of(data[0]);
  options.tool_choice = static_cast<ToolChoice>((data[0] >> 1U) % 3);
  options.parallel_tool_calls = (data[0] & 8U) != 0;
  const bool tools = (data[0] & 1U) != 0;
  fuzzing::compile_and_walk(tools ? ConstraintKind::kToolCalls : ConstraintKind::kStructuralTag, options, text,
                            (data[0] & 32U) != 0);
  return 0;
}
