// The files of src/server/web/, as they were when the program was built (cmake/Embed.cmake). Constant data.
#pragma once

#include <span>
#include <string_view>

namespace di::server {

struct WebAsset {
  std::string_view name;  // file name
  std::string_view content_type;
  std::string_view etag;  // with its quotes
  std::string_view bytes;
};

std::span<const WebAsset> web_assets();

}  // namespace di::server
