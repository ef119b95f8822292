#include "cli/chat_image.h"

#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "codec/image/decode.h"

namespace di::cli {
namespace {

constexpr size_t kLargest = size_t{32} << 20U;

std::string_view media_type(std::string_view bytes) {
  switch (codec::sniff_image(bytes)) {
    case codec::ImageFormat::kJpeg:
      return "image/jpeg";
    case codec::ImageFormat::kPng:
      return "image/png";
    case codec::ImageFormat::kGif:
      return "image/gif";
    case codec::ImageFormat::kWebp:
      return "image/webp";
    case codec::ImageFormat::kUnknown:
      break;
  }
  return {};
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8U | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += i + k > bytes.size() ? '=' : kDigits[group >> (18U - 6U * static_cast<uint32_t>(k)) & 63U];
    }
  }
  return out;
}

}  // namespace

Result<Json> image_part(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in || bytes.empty()) return fail(Errc::kNotFound, "cannot read {}", path);
  if (bytes.size() > kLargest) {
    return fail(Errc::kInvalidRequest, "{} has {} bytes, a picture may have {}", path, bytes.size(), kLargest);
  }
  const std::string_view type = media_type(bytes);
  if (type.empty()) return fail(Errc::kInvalidRequest, "{} is no PNG, JPEG, WebP or GIF", path);
  Json url(Json::Object{});
  url.set("url", Json(fmt::format("data:{};base64,{}", type, base64(bytes))));
  Json part(Json::Object{});
  part.set("type", Json("image_url"));
  part.set("image_url", std::move(url));
  return part;
}

}  // namespace di::cli
