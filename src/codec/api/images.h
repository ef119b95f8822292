// Images in requests: data URLs and links (recipe.md §3.0 "Images"). Internal to api/.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "codec/codec.h"

namespace di::codec::api {

inline constexpr size_t kMaxImageUrl = 8192;
inline constexpr std::string_view kUnsupportedImage = "[Unsupported Image]";

struct DataUrl {
  std::string mime;  // essence, lower case: image/png
  bool base64 = false;
  std::string_view body;
};
// nullopt when it is no data URL.
std::optional<DataUrl> parse_data_url(std::string_view url);

// The text with %hh as bytes; other percent signs stay.
std::string percent_decoded(std::string_view text);

// Forgiving-base64 decode of the WHATWG data URL rules; false when it cannot be decoded.
bool is_forgiving_base64(std::string_view text);

bool is_external_url(std::string_view url);  // starts with "http", in any case
bool is_supported_image_mime(std::string_view mime);

// Images by the id of an uploaded file: extended policy only (server.md §8.3).
ApiResult<void> check_file_id(std::string_view path, const CodecOptions& options);

// Checks a data URL that is an image; the error carries `path`.
ApiResult<void> check_image_data_url(std::string_view url, std::string_view path);

}  // namespace di::codec::api
