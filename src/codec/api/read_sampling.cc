#include "codec/api/read_sampling.h"

#include <charconv>
#include <cmath>

namespace di::codec::api {

Read read_sampling_extensions(const Json& body, const ReadRules& rules, SamplingRequest& out) {
  SamplingRequest::Extensions& extensions = out.extensions;
  const auto bias = [&](const Json& v) -> Read {
    const Json::Object* map = v.if_object();
    if (map == nullptr) return invalid_type(v, "a map");
    for (const JsonMember& member : *map) {
      TokenId id = -1;
      const char* end = member.key.data() + member.key.size();
      const auto parsed = std::from_chars(member.key.data(), end, id);
      float value = 0;
      DI_TRY(at_field(member.key, read_f32(member.value, value)));
      if (parsed.ptr != end || member.key.empty() || id < 0 || !(value >= -100 && value <= 100)) {
        return read_error("invalid_value",
                          fmt::format("invalid entry `{}`: expected a token id and a bias in [-100, 100]", member.key));
      }
      extensions.logit_bias[id] = value;
    }
    return {};
  };
  const auto top_k = [&](const Json& v) -> Read {
    std::optional<int64_t> value = v.to_i64();
    if (v.kind() == Json::Kind::kDouble) {  // 4.0 counts as 4
      const double d = *v.to_double();
      if (d == std::floor(d) && std::abs(d) < 1e15) value = static_cast<int64_t>(d);
    }
    if (!value) return invalid_type(v, "an integer >= -1");
    if (*value < -1 || *value > INT32_MAX) {
      return read_error("invalid_value", fmt::format("invalid value: {}, expected an integer >= -1", describe_json(v)));
    }
    extensions.top_k = static_cast<int32_t>(*value);
    return {};
  };
  DI_TRY(read_struct(body, "a map", optional("top_k", top_k), optional("min_p", into(extensions.min_p)),
                     optional("logit_bias", bias), optional("seed", into(out.seed, rules)),
                     optional("presence_penalty", into(out.presence_penalty)),
                     optional("frequency_penalty", into(out.frequency_penalty))));
  if (extensions.min_p && !(*extensions.min_p >= 0 && *extensions.min_p <= 1)) {
    return at_field("min_p", read_error("invalid_value", "Invalid min_p value, the valid range of min_p is [0, 1]"));
  }
  return {};
}

}  // namespace di::codec::api
