// Pixels -> the canvas that the model sees, as the service makes it (vision.md §3.2-3.5, processor id v41-service/1):
// detail limit, size of §4, bicubic without antialias, centred on (127,127,127), a WebP round trip at quality 90. The
// same bytes on every machine. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "codec/conversation.h"
#include "codec/image/decode.h"
#include "codec/image/layout.h"

namespace di::codec {

// Area interpolation, for shrinking to the detail limit.
Pixels resize_area(const Pixels& image, uint32_t width, uint32_t height);
// Bicubic with 4 taps whatever the ratio.
Pixels resize_bicubic(const Pixels& image, uint32_t width, uint32_t height);

// The size after the limit of detail `low` (long side 512 pixels).
ImageSize size_for_detail(ImageSize size, ImageDetail detail);
// Layout of an image of this size.
Result<ImageLayout> layout_for_detail(ImageSize size, ImageDetail detail);

// Without the WebP round trip.
Result<Pixels> fit_canvas(Pixels image, ImageDetail detail);
Result<std::string> encode_webp(const Pixels& image);
// Whole way, from decoded pixels.
Result<Pixels> service_canvas(Pixels image, ImageDetail detail);
// Stands for the image in the identity of cached KV (vision.md §9.1).
Sha256 image_digest(const Pixels& canvas);

}  // namespace di::codec
