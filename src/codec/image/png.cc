// PNG by libpng. The settings are those that give the service's pixels (vision.md §3.1): palettes and low depths
// expand, a colour key makes RGB transparent but not gray, 16 bit is reduced by rounding.
#include <png.h>

#include <csetjmp>
#include <cstring>

#include "codec/image/decode.h"

namespace di::codec::image {

namespace {

// All that must outlive a long jump out of libpng; nothing with a destructor is made between setjmp and the jump.
struct Reader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  png_infop end = nullptr;
  std::string_view rest;
  Raster raster;
  std::vector<png_bytep> rows;
  uint32_t depth = 0;
  const char* problem = "damaged";

  ~Reader() { png_destroy_read_struct(&png, &info, &end); }
};

void read_bytes(png_structp png, png_bytep to, size_t n) {
  Reader& reader = *static_cast<Reader*>(png_get_io_ptr(png));
  if (n > reader.rest.size()) png_error(png, "the file ends early");
  std::memcpy(to, reader.rest.data(), n);
  reader.rest.remove_prefix(n);
}

void on_warning(png_structp, png_const_charp) {}

[[noreturn]] void on_error(png_structp png, png_const_charp) {
  png_longjmp(png, 1);
}

// False after an error of the library.
bool open(Reader& reader, std::string_view bytes, const ImageBounds& bounds) {
  reader.rest = bytes;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, on_error, on_warning);
  if (reader.png == nullptr) return false;
  reader.info = png_create_info_struct(reader.png);
  reader.end = png_create_info_struct(reader.png);
  if (reader.info == nullptr || reader.end == nullptr) return false;
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_user_limits(reader.png, bounds.max_side, bounds.max_side);
  png_set_chunk_malloc_max(reader.png, 8U << 20);
  png_set_chunk_cache_max(reader.png, 128);
  png_set_read_fn(reader.png, &reader, read_bytes);
  png_read_info(reader.png, reader.info);
  return true;
}

// Sets the transformations and allocates; throws nothing, jumps nowhere but through libpng.
bool prepare(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  const int type = png_get_color_type(reader.png, reader.info);
  reader.depth = png_get_bit_depth(reader.png, reader.info);
  const bool key = png_get_valid(reader.png, reader.info, PNG_INFO_tRNS) != 0;
  const bool gray = type == PNG_COLOR_TYPE_GRAY;
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(reader.png);
  if (gray && reader.depth < 8) png_set_expand_gray_1_2_4_to_8(reader.png);
  if (key && !gray) png_set_tRNS_to_alpha(reader.png);
  if (type == PNG_COLOR_TYPE_GRAY_ALPHA) png_set_gray_to_rgb(reader.png);
  if (reader.depth == 16) png_set_swap(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  reader.raster.width = png_get_image_width(reader.png, reader.info);
  reader.raster.height = png_get_image_height(reader.png, reader.info);
  reader.raster.channels = png_get_channels(reader.png, reader.info);
  return true;
}

bool read_image(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, reader.rows.data());
  png_read_end(reader.png, reader.end);
  return true;
}

std::unexpected<Error> damaged() {
  return fail(Errc::kInvalidRequest, "the PNG image is damaged");
}

}  // namespace

Result<ImageSize> png_size(std::string_view bytes) {
  constexpr std::string_view kStart("\x89PNG\r\n\x1A\n\0\0\0\rIHDR", 16);
  if (bytes.size() < 33 || !bytes.starts_with(kStart)) return damaged();
  const auto number = [&](size_t at) {
    uint32_t n = 0;
    for (size_t i = 0; i < 4; ++i) n = n << 8 | static_cast<uint8_t>(bytes[at + i]);
    return n;
  };
  return ImageSize{number(16), number(20)};
}

Result<Raster> decode_png(std::string_view bytes, const ImageBounds& bounds) {
  Reader reader;
  if (!open(reader, bytes, bounds) || !prepare(reader)) return damaged();
  Raster& raster = reader.raster;
  DI_TRY(check_size(raster.width, raster.height, bounds));
  if (raster.channels != 1 && raster.channels != 3 && raster.channels != 4) return damaged();
  const bool wide = reader.depth == 16;
  const size_t samples = size_t{raster.width} * raster.channels;
  const size_t row_bytes = samples * (wide ? 2 : 1);
  if (png_get_rowbytes(reader.png, reader.info) != row_bytes) return damaged();
  std::vector<uint8_t> data(row_bytes * raster.height);
  reader.rows.resize(raster.height);
  for (size_t y = 0; y < raster.height; ++y) reader.rows[y] = data.data() + y * row_bytes;
  if (!read_image(reader)) return damaged();
  if (!wide) {
    raster.data = std::move(data);
    return std::move(raster);
  }
  raster.data.resize(samples * raster.height);
  for (size_t i = 0; i < raster.data.size(); ++i) {
    uint16_t sample = 0;
    std::memcpy(&sample, data.data() + 2 * i, 2);
    raster.data[i] = static_cast<uint8_t>((sample + 128U) / 257U);
  }
  return std::move(raster);
}

}  // namespace di::codec::image
