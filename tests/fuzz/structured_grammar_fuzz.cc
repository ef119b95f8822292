// Any bytes as a grammar in EBNF, in Lark or in whichever it looks like, and as a list of choices.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "structured_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace di::structured;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr std::array kKinds = {ConstraintKind::kEbnf, ConstraintKind::kLark, ConstraintKind::kGrammar,
                                 ConstraintKind::kChoice};
  fuzzing::compile_and_walk(kKinds[data[0] % kKinds.size()], {}, text);
  return 0;
}
