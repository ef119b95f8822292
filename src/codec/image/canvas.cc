#include "codec/image/canvas.h"

#include <webp/encode.h>

#include <algorithm>
#include <cmath>

namespace di::codec {

namespace {

constexpr uint32_t kLowDetailSide = 512;
constexpr uint8_t kPad = 127;

Pixels blank(uint32_t width, uint32_t height, uint8_t value) {
  Pixels out;
  out.width = width;
  out.height = height;
  out.rgb.assign(size_t{3} * width * height, value);
  return out;
}

uint32_t at_least_one(double side) {
  return static_cast<uint32_t>(std::max(1.0, side));
}

}  // namespace

ImageSize size_for_detail(ImageSize size, ImageDetail detail) {
  const uint32_t longer = std::max(size.width, size.height);
  if (detail != ImageDetail::kLow || longer <= kLowDetailSide) return size;
  const double ratio = static_cast<double>(kLowDetailSide) / longer;
  return {at_least_one(std::round(size.width * ratio)), at_least_one(std::round(size.height * ratio))};
}

Result<ImageLayout> layout_for_detail(ImageSize size, ImageDetail detail) {
  const ImageSize limited = size_for_detail(size, detail);
  return image_layout_for_webp(limited.width, limited.height);
}

Result<Pixels> fit_canvas(Pixels image, ImageDetail detail) {
  const ImageSize limited = size_for_detail({image.width, image.height}, detail);
  if (limited.width != image.width || limited.height != image.height) {
    image = resize_area(image, limited.width, limited.height);
  }
  const ImageLayout layout = DI_TRY(image_layout_for_webp(image.width, image.height));
  if (layout.width == image.width && layout.height == image.height) return image;
  const double w = image.width;
  const double h = image.height;
  const double ratio = w / h;
  const double target = static_cast<double>(layout.width) / layout.height;
  uint32_t inner_w = layout.width;
  uint32_t inner_h = layout.height;
  if (ratio > target) {
    inner_h = at_least_one(std::nearbyint(h / w * layout.width));
  } else if (ratio < target) {
    inner_w = at_least_one(std::nearbyint(w / h * layout.height));
  }
  const Pixels inner = resize_bicubic(image, inner_w, inner_h);
  if (inner_w == layout.width && inner_h == layout.height) return inner;
  Pixels canvas = blank(layout.width, layout.height, kPad);
  const auto left = static_cast<size_t>(std::nearbyint((layout.width - inner_w) / 2.0));
  const auto top = static_cast<size_t>(std::nearbyint((layout.height - inner_h) / 2.0));
  for (size_t y = 0; y < inner_h; ++y) {
    const auto* row = inner.rgb.data() + 3 * y * inner_w;
    std::copy_n(row, size_t{3} * inner_w, canvas.rgb.data() + 3 * ((y + top) * layout.width + left));
  }
  return canvas;
}

Result<std::string> encode_webp(const Pixels& image) {
  uint8_t* bytes = nullptr;
  const size_t n = WebPEncodeRGB(image.rgb.data(), static_cast<int>(image.width), static_cast<int>(image.height),
                                 static_cast<int>(3 * image.width), 90.0F, &bytes);
  std::string out(reinterpret_cast<const char*>(bytes), n);
  WebPFree(bytes);
  if (n == 0) return fail(Errc::kInternal, "a canvas of {} x {} pixels cannot be encoded", image.width, image.height);
  return out;
}

Result<Pixels> service_canvas(Pixels image, ImageDetail detail) {
  const Pixels canvas = DI_TRY(fit_canvas(std::move(image), detail));
  const std::string webp = DI_TRY(encode_webp(canvas));
  image::Raster raster = DI_TRY(image::decode_webp(webp, ImageBounds{.max_side = 16383, .max_pixels = 0}));
  return Pixels{raster.width, raster.height, std::move(raster.data)};
}

Sha256 image_digest(const Pixels& canvas) {
  constexpr std::string_view kProcessor = "v41-service/1";
  std::string text("deepinfer/image/1\0", 18);
  text.push_back(static_cast<char>(kProcessor.size()));
  text += kProcessor;
  for (const uint32_t side : {canvas.width, canvas.height}) {
    for (int shift = 0; shift < 32; shift += 8) text.push_back(static_cast<char>(side >> shift));
  }
  text.append(reinterpret_cast<const char*>(canvas.rgb.data()), canvas.rgb.size());
  return sha256(text);
}

}  // namespace di::codec
