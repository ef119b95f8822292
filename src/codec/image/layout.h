// Size of the canvas that an image is fitted to, and how many tokens it takes (recipe.md §2.8, vision.md §4). Pure
// functions.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace di::codec {

inline constexpr uint32_t kImagePatch = 14;  // pixels of a patch's side; 3 x 3 patches are a token
inline constexpr uint32_t kMaxImageTokens = 1024;

struct ImageLayout {
  uint32_t width = 0;  // of the canvas, a multiple of kImagePatch
  uint32_t height = 0;
  uint32_t columns = 0;  // tokens of a row, without the row's end token
  uint32_t rows = 0;
  uint32_t tokens = 0;  // rows * (columns + 1) + 2

  friend bool operator==(const ImageLayout&, const ImageLayout&) = default;
};

// One round: at least 544 x 544 pixels of area, at most 1024 tokens.
ImageLayout image_layout_once(uint32_t width, uint32_t height);
// Rounds until the size repeats. Errors: an empty image (kInvalidRequest), no repetition in 10 rounds (kInternal).
Result<ImageLayout> image_layout(uint32_t width, uint32_t height);
// The same, for a canvas that goes through WebP, whose sides end at 16383.
Result<ImageLayout> image_layout_for_webp(uint32_t width, uint32_t height);

// Tokens of an image of this size in a V4.1 prompt.
Result<uint32_t> image_token_count(uint32_t width, uint32_t height);

}  // namespace di::codec
