#include "structured/error.h"

namespace di::structured {

std::string CompileError::text() const {
  std::string out = code + " at #" + pointer;
  if (!keyword.empty()) out += ", keyword \"" + keyword + "\"";
  return out + ": " + message;
}

}  // namespace di::structured
