// Sampling fields that only the extended policy reads, in all three APIs (server.md §4.1). Internal to api/.
#pragma once

#include "codec/api/common.h"

namespace di::codec::api {

// top_k, min_p, logit_bias; seed and penalties where the API itself does not have them.
Read read_sampling_extensions(const Json& body, const ReadRules& rules, SamplingRequest& out);

}  // namespace di::codec::api
