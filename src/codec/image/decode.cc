#include "codec/image/decode.h"

namespace di::codec {

ImageFormat sniff_image(std::string_view bytes) {
  if (bytes.starts_with("\xFF\xD8\xFF")) return ImageFormat::kJpeg;
  if (bytes.starts_with("\x89PNG")) return ImageFormat::kPng;
  if (bytes.starts_with("GIF")) return ImageFormat::kGif;
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP") return ImageFormat::kWebp;
  return ImageFormat::kUnknown;
}

namespace image {

Result<void> check_size(uint64_t width, uint64_t height, const ImageBounds& bounds) {
  if (width == 0 || height == 0) return fail(Errc::kInvalidRequest, "image of {} x {} pixels is empty", width, height);
  if (width > bounds.max_side || height > bounds.max_side) {
    return fail(Errc::kInvalidRequest, "image of {} x {} pixels: at most {} a side", width, height, bounds.max_side);
  }
  if (bounds.max_pixels != 0 && width * height > bounds.max_pixels) {
    return fail(Errc::kInvalidRequest, "image of {} x {} pixels: at most {} in all", width, height, bounds.max_pixels);
  }
  return {};
}

}  // namespace image

namespace {

Pixels to_rgb(image::Raster raster) {
  Pixels out;
  out.width = raster.width;
  out.height = raster.height;
  if (raster.channels == 3) {
    out.rgb = std::move(raster.data);
    return out;
  }
  const size_t n = size_t{raster.width} * raster.height;
  out.rgb.resize(3 * n);
  const uint8_t* in = raster.data.data();
  uint8_t* rgb = out.rgb.data();
  for (size_t i = 0; i < n; ++i, rgb += 3) {
    if (raster.channels == 1) {
      rgb[0] = rgb[1] = rgb[2] = *in++;
      continue;
    }
    const uint32_t alpha = in[3];
    for (int c = 0; c < 3; ++c) {
      rgb[c] = static_cast<uint8_t>((in[c] * alpha + image::kBackground * (255 - alpha) + 127) / 255);
    }
    in += 4;
  }
  return out;
}

}  // namespace

Result<ImageSize> read_image_size(std::string_view bytes, const ImageBounds& bounds) {
  const auto size = [&]() -> Result<ImageSize> {
    switch (sniff_image(bytes)) {
      case ImageFormat::kJpeg:
        return image::jpeg_size(bytes);
      case ImageFormat::kPng:
        return image::png_size(bytes);
      case ImageFormat::kGif:
        return image::gif_size(bytes);
      case ImageFormat::kWebp:
        return image::webp_size(bytes);
      case ImageFormat::kUnknown:
        break;
    }
    return fail(Errc::kInvalidRequest, "no JPEG, PNG, GIF or WebP image");
  }();
  if (!size) return size;
  DI_TRY(image::check_size(size->width, size->height, bounds));
  return size;
}

Result<Pixels> decode_image(std::string_view bytes, const ImageBounds& bounds) {
  DI_TRY(read_image_size(bytes, bounds));
  switch (sniff_image(bytes)) {
    case ImageFormat::kJpeg:
      return to_rgb(DI_TRY(image::decode_jpeg(bytes, bounds)));
    case ImageFormat::kPng:
      return to_rgb(DI_TRY(image::decode_png(bytes, bounds)));
    case ImageFormat::kGif:
      return to_rgb(DI_TRY(image::decode_gif(bytes, bounds)));
    default:
      return to_rgb(DI_TRY(image::decode_webp(bytes, bounds)));
  }
}

}  // namespace di::codec
