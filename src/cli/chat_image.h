// A picture of a file as a part of a chat message.
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"

namespace di::cli {

// {"type": "image_url", "image_url": {"url": "data:…;base64,…"}}. Errors: the file cannot be read, is no picture of a
// kind that servers take (PNG, JPEG, WebP, GIF), or is larger than the 32 MiB they take.
Result<Json> image_part(const std::string& path);

}  // namespace di::cli
