// Any bytes as config.json: an error of one line that names the file, or a configuration of which the memory plan can
// be made.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json.h"
#include "model/config.h"
#include "model/memory_plan.h"
#include "model/schedule.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace model = di::model;
  const auto root = di::parse_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!root) return 0;
  const auto config = model::parse_config(*root, "config.json");
  if (!config) {
    const std::string& message = config.error().message;
    if (!message.starts_with("config.json: ") || message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const auto schedule = model::make_schedule(*config);
  if (!schedule) std::abort();
  // Longer lists of tensors are not wrong, only slow.
  if (int64_t{config->num_hidden_layers} * config->n_routed_experts > 4096) return 0;
  model::PlanOptions options;
  options.context = std::min<int64_t>(options.context, config->max_position_embeddings);
  const auto plan = model::plan_memory(*config, *schedule, options);
  if (plan && plan->total_bytes < plan->weight_bytes) std::abort();
  return 0;
}
