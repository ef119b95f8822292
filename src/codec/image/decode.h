// Encoded image -> RGB pixels (vision.md §3.1), with bounds on time and memory that hold for any bytes: the size is
// read from the header and checked before anything is allocated for it.
//
// JPEG, PNG, WebP (of an animation the first frame) and GIF (first frame on the logical screen). Orientation and colour
// profiles are ignored. Transparent parts show (253,253,253). Pure functions; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace di::codec {

struct ImageBounds {
  uint32_t max_side = 8192;                  // pixels
  uint64_t max_pixels = uint64_t{40} << 20;  // 0: only the sides count
};

enum class ImageFormat : uint8_t { kUnknown, kJpeg, kPng, kGif, kWebp };
// By the first bytes; what a header calls itself does not count.
ImageFormat sniff_image(std::string_view bytes);

struct Pixels {
  uint32_t width = 0;
  uint32_t height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
};

struct ImageSize {
  uint32_t width = 0;
  uint32_t height = 0;
};
// From the header alone. Errors (kInvalidRequest): no image of the four formats, a damaged header, a size out of
// bounds.
Result<ImageSize> read_image_size(std::string_view bytes, const ImageBounds& bounds);
// Errors as above, and damage that the service refuses too.
Result<Pixels> decode_image(std::string_view bytes, const ImageBounds& bounds);

// One per format; `bytes` begins as that format does. Internal.
namespace image {

inline constexpr uint32_t kBackground = 253;  // of every channel, below transparency

// Channels of 8 bits, interleaved: 1 gray, 3 RGB, 4 RGBA.
struct Raster {
  uint32_t width = 0;
  uint32_t height = 0;
  uint32_t channels = 0;
  std::vector<uint8_t> data;
};
Result<void> check_size(uint64_t width, uint64_t height, const ImageBounds& bounds);
Result<ImageSize> jpeg_size(std::string_view bytes);
Result<ImageSize> png_size(std::string_view bytes);
Result<ImageSize> gif_size(std::string_view bytes);
Result<ImageSize> webp_size(std::string_view bytes);
Result<Raster> decode_jpeg(std::string_view bytes, const ImageBounds& bounds);
Result<Raster> decode_png(std::string_view bytes, const ImageBounds& bounds);
Result<Raster> decode_gif(std::string_view bytes, const ImageBounds& bounds);
Result<Raster> decode_webp(std::string_view bytes, const ImageBounds& bounds);

}  // namespace image

}  // namespace di::codec
