// WebP by libwebp; of an animation the first frame.
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "codec/image/decode.h"

namespace di::codec::image {

namespace {

std::unexpected<Error> damaged() {
  return fail(Errc::kInvalidRequest, "the WebP image is damaged");
}

const uint8_t* bytes_of(std::string_view bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

Result<WebPBitstreamFeatures> features_of(std::string_view bytes) {
  WebPBitstreamFeatures features = {};
  if (WebPGetFeatures(bytes_of(bytes), bytes.size(), &features) != VP8_STATUS_OK) return damaged();
  if (features.width <= 0 || features.height <= 0) return damaged();
  return features;
}

}  // namespace

Result<ImageSize> webp_size(std::string_view bytes) {
  const WebPBitstreamFeatures features = DI_TRY(features_of(bytes));
  return ImageSize{static_cast<uint32_t>(features.width), static_cast<uint32_t>(features.height)};
}

Result<Raster> decode_webp(std::string_view bytes, const ImageBounds& bounds) {
  const WebPBitstreamFeatures features = DI_TRY(features_of(bytes));
  Raster raster;
  raster.width = static_cast<uint32_t>(features.width);
  raster.height = static_cast<uint32_t>(features.height);
  DI_TRY(check_size(raster.width, raster.height, bounds));
  raster.channels = features.has_animation != 0 || features.has_alpha != 0 ? 4 : 3;
  raster.data.resize(size_t{raster.width} * raster.height * raster.channels);
  const int stride = static_cast<int>(raster.width * raster.channels);
  if (features.has_animation != 0) {
    WebPAnimDecoderOptions options;
    if (WebPAnimDecoderOptionsInit(&options) == 0) return damaged();
    options.color_mode = MODE_RGBA;
    const WebPData data = {bytes_of(bytes), bytes.size()};
    const std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)> decoder(
        WebPAnimDecoderNew(&data, &options), WebPAnimDecoderDelete);
    WebPAnimInfo info = {};
    uint8_t* frame = nullptr;
    int time = 0;
    if (decoder == nullptr || WebPAnimDecoderGetInfo(decoder.get(), &info) == 0 || info.canvas_width != raster.width ||
        info.canvas_height != raster.height || WebPAnimDecoderGetNext(decoder.get(), &frame, &time) == 0) {
      return damaged();
    }
    raster.data.assign(frame, frame + raster.data.size());
    return raster;
  }
  const auto decode = raster.channels == 4 ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (decode(bytes_of(bytes), bytes.size(), raster.data.data(), raster.data.size(), stride) == nullptr) {
    return damaged();
  }
  return raster;
}

}  // namespace di::codec::image
