#include "codec/image/layout.h"

#include <algorithm>
#include <cmath>

namespace di::codec {

namespace {

constexpr uint32_t kWebpSide = 16383;

ImageLayout layout_of(double width, double height) {
  ImageLayout out;
  out.width = static_cast<uint32_t>(width);
  out.height = static_cast<uint32_t>(height);
  out.columns = static_cast<uint32_t>(std::ceil(width / kImagePatch / 3));
  out.rows = static_cast<uint32_t>(std::ceil(height / kImagePatch / 3));
  out.tokens = out.rows * (out.columns + 1) + 2;
  return out;
}

}  // namespace

ImageLayout image_layout_once(uint32_t width, uint32_t height) {
  constexpr double kPatch = kImagePatch;
  constexpr double kCell = 3 * kPatch;
  constexpr double kMinArea = 544.0 * 544.0;
  double w = width;
  double h = height;
  if (const double area = w * h; area > 0 && area < kMinArea) {
    const double ratio = std::sqrt(kMinArea / area);
    w = std::trunc(w * ratio);
    h = std::trunc(h * ratio);
  }
  const ImageLayout whole = layout_of(std::ceil(w / kPatch) * kPatch, std::ceil(h / kPatch) * kPatch);
  if (whole.tokens <= kMaxImageTokens) return whole;
  const double ratio = h / w;
  const double mw = std::sqrt(1022 / ratio + 0.25) - 0.5;
  const double mh = mw * ratio;
  if (mw < 1) return layout_of(kCell, 511 * kCell);
  if (mh < 1) return layout_of(1021 * kCell, kCell);
  const double beta = std::min(std::trunc(mw) * kCell / w, std::trunc(mh) * kCell / h);
  return layout_of(std::trunc(w * beta / kPatch) * kPatch, std::trunc(h * beta / kPatch) * kPatch);
}

Result<ImageLayout> image_layout(uint32_t width, uint32_t height) {
  if (width == 0 || height == 0) return fail(Errc::kInvalidRequest, "image of {} x {} pixels is empty", width, height);
  ImageLayout layout = image_layout_once(width, height);
  for (int round = 1; round < 10; ++round) {
    const ImageLayout next = image_layout_once(layout.width, layout.height);
    if (next == layout) return layout;
    layout = next;
  }
  return fail(Errc::kInternal, "image of {} x {} pixels: the token count does not settle", width, height);
}

Result<ImageLayout> image_layout_for_webp(uint32_t width, uint32_t height) {
  ImageLayout layout = DI_TRY(image_layout(width, height));
  for (int round = 0; round < 6; ++round) {
    if (layout.width <= kWebpSide && layout.height <= kWebpSide) return layout;
    constexpr double kLong = kWebpSide / kImagePatch * kImagePatch;
    const bool wide = layout.width > layout.height;
    const double longer = wide ? layout.width : layout.height;
    const double shorter = wide ? layout.height : layout.width;
    const auto fitted = static_cast<uint32_t>(
        std::ceil(std::max(1.0, std::round(shorter * kLong / longer)) / kImagePatch) * kImagePatch);
    const auto side = static_cast<uint32_t>(kLong);
    layout = DI_TRY(wide ? image_layout(side, fitted) : image_layout(fitted, side));
  }
  return fail(Errc::kInvalidRequest, "image of {} x {} pixels: no canvas within {} pixels a side", width, height,
              kWebpSide);
}

Result<uint32_t> image_token_count(uint32_t width, uint32_t height) {
  return DI_TRY(image_layout(width, height)).tokens;
}

}  // namespace di::codec
