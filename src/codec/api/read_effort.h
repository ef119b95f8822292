// Reasoning effort, by name or, in the extended policy, as a number. Internal to api/.
#pragma once

#include "base/json.h"
#include "codec/api/common.h"
#include "codec/api/reader.h"

namespace di::codec::api {

// One of kEfforts; extended: also a whole number from 1 to 100.
Read read_effort(const Json& value, bool extended, ThinkingSettings& out);

}  // namespace di::codec::api
