// The first frame of a GIF on its logical screen, by giflib's record interface (its one-call reader would read every
// frame). Outside the frame the screen is transparent.
#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "codec/image/decode.h"

namespace di::codec::image {

namespace {

std::unexpected<Error> damaged() {
  return fail(Errc::kInvalidRequest, "the GIF image is damaged");
}

int read_bytes(GifFileType* gif, GifByteType* to, int n) {
  auto& rest = *static_cast<std::string_view*>(gif->UserData);
  const size_t count = std::min(rest.size(), static_cast<size_t>(std::max(n, 0)));
  std::memcpy(to, rest.data(), count);
  rest.remove_prefix(count);
  return static_cast<int>(count);
}

void close(GifFileType* gif) {
  DGifCloseFile(gif, nullptr);
}

// Reads one extension; of a graphics control block the transparent colour.
bool read_extension(GifFileType* gif, int& transparent) {
  int code = 0;
  GifByteType* block = nullptr;
  if (DGifGetExtension(gif, &code, &block) == GIF_ERROR) return false;
  while (block != nullptr) {
    GraphicsControlBlock control = {};
    if (code == GRAPHICS_EXT_FUNC_CODE && DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK) {
      transparent = control.TransparentColor;
    }
    if (DGifGetExtensionNext(gif, &block) == GIF_ERROR) return false;
  }
  return true;
}

bool read_frame(GifFileType* gif, int transparent, const ImageBounds& bounds, Raster& screen) {
  if (DGifGetImageDesc(gif) == GIF_ERROR) return false;
  const GifImageDesc& frame = gif->Image;
  if (frame.Width <= 0 || frame.Height <= 0 ||
      !check_size(static_cast<uint64_t>(frame.Width), static_cast<uint64_t>(frame.Height), bounds)) {
    return false;
  }
  const ColorMapObject* colors = frame.ColorMap != nullptr ? frame.ColorMap : gif->SColorMap;
  std::vector<GifPixelType> line(static_cast<size_t>(frame.Width));
  const auto draw = [&](int y) {
    const int row = frame.Top + y;
    if (row < 0 || static_cast<uint32_t>(row) >= screen.height) return;
    for (int x = 0; x < frame.Width; ++x) {
      const int column = frame.Left + x;
      const int color = line[static_cast<size_t>(x)];
      if (column < 0 || static_cast<uint32_t>(column) >= screen.width || color == transparent) continue;
      uint8_t* out = screen.data.data() + 4 * (static_cast<size_t>(row) * screen.width + static_cast<size_t>(column));
      if (colors != nullptr && color < colors->ColorCount) {
        const GifColorType& c = colors->Colors[color];
        out[0] = c.Red;
        out[1] = c.Green;
        out[2] = c.Blue;
      }
      out[3] = 255;
    }
  };
  constexpr int kFirst[] = {0, 4, 2, 1};
  constexpr int kStep[] = {8, 8, 4, 2};
  for (int pass = 0; pass < (frame.Interlace ? 4 : 1); ++pass) {
    for (int y = frame.Interlace ? kFirst[pass] : 0; y < frame.Height; y += frame.Interlace ? kStep[pass] : 1) {
      if (DGifGetLine(gif, line.data(), frame.Width) == GIF_ERROR) return false;
      draw(y);
    }
  }
  return true;
}

}  // namespace

Result<ImageSize> gif_size(std::string_view bytes) {
  if (bytes.size() < 13 || (!bytes.starts_with("GIF87a") && !bytes.starts_with("GIF89a"))) return damaged();
  const auto number = [&](size_t at) {
    return static_cast<uint32_t>(static_cast<uint8_t>(bytes[at]) | static_cast<uint8_t>(bytes[at + 1]) << 8);
  };
  return ImageSize{number(6), number(8)};
}

Result<Raster> decode_gif(std::string_view bytes, const ImageBounds& bounds) {
  std::string_view rest = bytes;
  int error = 0;
  const std::unique_ptr<GifFileType, decltype(&close)> gif(DGifOpen(&rest, read_bytes, &error), close);
  if (gif == nullptr || gif->SWidth <= 0 || gif->SHeight <= 0) return damaged();
  Raster screen;
  screen.width = static_cast<uint32_t>(gif->SWidth);
  screen.height = static_cast<uint32_t>(gif->SHeight);
  screen.channels = 4;
  DI_TRY(check_size(screen.width, screen.height, bounds));
  int transparent = NO_TRANSPARENT_COLOR;
  while (true) {
    GifRecordType type = UNDEFINED_RECORD_TYPE;
    if (DGifGetRecordType(gif.get(), &type) == GIF_ERROR) return damaged();
    if (type == EXTENSION_RECORD_TYPE) {
      if (!read_extension(gif.get(), transparent)) return damaged();
    } else if (type == IMAGE_DESC_RECORD_TYPE) {
      break;
    } else {
      return damaged();
    }
  }
  screen.data.resize(size_t{4} * screen.width * screen.height);
  if (!read_frame(gif.get(), transparent, bounds, screen)) return damaged();
  return screen;
}

}  // namespace di::codec::image
