#include "codec/api/read_effort.h"

#include <cmath>

namespace di::codec::api {

Read read_effort(const Json& value, bool extended, ThinkingSettings& out) {
  if (!extended || !value.is_number()) return read_enum(value, kEfforts, out.effort.emplace());
  std::optional<int64_t> number = value.to_i64();
  if (const double d = *value.to_double(); !number && d == std::floor(d) && std::abs(d) < 1e15)
    number = static_cast<int64_t>(d);
  if (!number || *number < 1 || *number > 100) {
    return read_error("invalid_value",
                      fmt::format("invalid value: {}, expected an effort in [1, 100]", describe_json(value)));
  }
  out.effort_number = static_cast<int>(*number);
  return {};
}

}  // namespace di::codec::api
