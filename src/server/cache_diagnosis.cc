#include "server/cache_diagnosis.h"

#include <xxhash.h>

#include <algorithm>

namespace di::server {
namespace {

uint64_t hash_of(const Json* value) {
  if (value == nullptr || value->is_null()) return 0;
  const std::string text = to_json(*value);
  return XXH3_64bits(text.data(), text.size());
}

// A member of an object that is a member of the body.
uint64_t hash_inside(const Json& body, std::string_view outer, std::string_view inner) {
  const Json* object = body.find_value(outer);
  return object == nullptr || !object->is_object() ? 0 : hash_of(object->find_value(inner));
}

}  // namespace

PromptMarks prompt_marks(const Json& body, std::span<const int32_t> prompt) {
  PromptMarks out;
  out.tokens = static_cast<int64_t>(prompt.size());
  constexpr auto kStep = static_cast<std::size_t>(PromptMarks::kSegmentTokens);
  uint64_t chain = 0;
  for (std::size_t at = 0; at + kStep <= prompt.size(); at += kStep) {
    chain = XXH3_64bits_withSeed(prompt.data() + at, kStep * sizeof(int32_t), chain);
    out.segments.push_back(chain);
  }
  out.model = hash_of(body.find_value("model"));
  out.cache_key = hash_of(body.find_value("prompt_cache_key"));
  out.tools = hash_of(body.find_value("tools"));
  out.text_format = hash_inside(body, "text", "format");
  out.verbosity = hash_inside(body, "text", "verbosity");
  out.effort = hash_inside(body, "reasoning", "effort");
  out.service_tier = hash_of(body.find_value("service_tier"));
  const Json* input = body.find_value("input");
  if (input != nullptr && input->is_array()) {
    out.compacted = std::any_of(input->as_array().begin(), input->as_array().end(), [](const Json& item) {
      const Json* type = item.is_object() ? item.find_value("type") : nullptr;
      return type != nullptr && type->is_string() && type->as_string() == "compaction";
    });
  }
  return out;
}

Json cache_diagnosis(const PromptMarks& earlier, const PromptMarks& now) {
  const std::size_t shorter = std::min(earlier.segments.size(), now.segments.size());
  const auto differ = std::mismatch(
      earlier.segments.begin(), earlier.segments.begin() + static_cast<std::ptrdiff_t>(shorter), now.segments.begin());
  const auto common = static_cast<std::size_t>(differ.first - earlier.segments.begin());
  Json out(Json::Object{});
  if (common == shorter) {
    out.set("type", Json("cache_hit"));
    return out;
  }
  const char* reason = earlier.model != now.model                 ? "model_changed"
                       : earlier.cache_key != now.cache_key       ? "prompt_cache_key_changed"
                       : earlier.tools != now.tools               ? "tools_changed"
                       : earlier.text_format != now.text_format   ? "text_format_changed"
                       : earlier.effort != now.effort             ? "reasoning_effort_changed"
                       : earlier.verbosity != now.verbosity       ? "verbosity_changed"
                       : now.compacted && !earlier.compacted      ? "context_compacted"
                       : earlier.service_tier != now.service_tier ? "service_tier_changed"
                                                                  : "input_changed";
  const auto reusable = static_cast<int64_t>(common) * PromptMarks::kSegmentTokens;
  out.set("type", Json("cache_miss"));
  out.set("reason", Json(reason));
  out.set("cache_missed_tokens", Json(now.tokens - reusable));
  out.set("comparison_reusable_tokens", Json(reusable));
  return out;
}

void PromptHistory::put(std::string id, std::string tenant, PromptMarks marks) {
  const std::lock_guard lock(mutex_);
  while (static_cast<int64_t>(entries_.size()) >= most_) entries_.pop_front();
  entries_.push_back({std::move(id), std::move(tenant), std::move(marks)});
}

std::optional<PromptMarks> PromptHistory::get(std::string_view tenant, std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.rbegin(), entries_.rend(),
                                  [&](const Entry& e) { return e.id == id && e.tenant == tenant; });
  if (found == entries_.rend()) return std::nullopt;
  return found->marks;
}

}  // namespace di::server
