// JPEG by libjpeg-turbo at its defaults. A file without its end marker is refused, damaged data before one is not
// (vision.md §3.1, "Damage"). A progressive file may hold any number of scans, each of which costs as much as an image:
// their number is bounded.
#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>

#include "codec/image/decode.h"

// clang-format off: these need what stands above
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

namespace di::codec::image {

namespace {

struct Reader {
  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  jpeg_progress_mgr progress = {};
  std::jmp_buf jump = {};
  int max_scans = 0;
  bool ended_early = false;
  Raster raster;

  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    if (info.mem != nullptr) jpeg_destroy_decompress(&info);
  }
};

Reader& reader_of(j_common_ptr info) {
  return *static_cast<Reader*>(info->client_data);
}

[[noreturn]] void on_error(j_common_ptr info) {
  std::longjmp(reader_of(info).jump, 1);
}

void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  if (info->err->msg_code == JWRN_JPEG_EOF) reader_of(info).ended_early = true;
  ++info->err->num_warnings;
}

void on_output(j_common_ptr) {}

void on_progress(j_common_ptr info) {
  Reader& reader = reader_of(info);
  if (reader.info.input_scan_number > reader.max_scans) on_error(info);
}

bool read_header(Reader& reader, std::string_view bytes) {
  if (setjmp(reader.jump) != 0) return false;
  reader.info.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = on_error;
  reader.errors.emit_message = on_message;
  reader.errors.output_message = on_output;
  reader.info.client_data = &reader;
  jpeg_create_decompress(&reader.info);
  reader.info.client_data = &reader;
  jpeg_mem_src(&reader.info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return jpeg_read_header(&reader.info, TRUE) == JPEG_HEADER_OK && !reader.ended_early;
}

bool start(Reader& reader) {
  if (setjmp(reader.jump) != 0) return false;
  reader.progress.progress_monitor = on_progress;
  reader.info.progress = &reader.progress;
  switch (reader.info.num_components) {
    case 1:
      reader.info.out_color_space = JCS_GRAYSCALE;
      break;
    case 4:
      reader.info.out_color_space = JCS_CMYK;
      break;
    default:
      reader.info.out_color_space = JCS_RGB;
      break;
  }
  return jpeg_start_decompress(&reader.info) == TRUE;
}

bool read_rows(Reader& reader) {
  if (setjmp(reader.jump) != 0) return false;
  const size_t stride = size_t{reader.info.output_width} * static_cast<size_t>(reader.info.output_components);
  while (reader.info.output_scanline < reader.info.output_height) {
    JSAMPROW row = reader.raster.data.data() + stride * reader.info.output_scanline;
    jpeg_read_scanlines(&reader.info, &row, 1);
  }
  return jpeg_finish_decompress(&reader.info) == TRUE && !reader.ended_early;
}

std::unexpected<Error> damaged() {
  return fail(Errc::kInvalidRequest, "the JPEG image is damaged");
}

// Four components as they are stored (Adobe: inverted): R = K - (255 - C) K / 256.
void cmyk_to_rgb(Raster& raster) {
  const size_t n = size_t{raster.width} * raster.height;
  std::vector<uint8_t> rgb(3 * n);
  for (size_t i = 0; i < n; ++i) {
    const uint8_t* in = raster.data.data() + 4 * i;
    for (size_t c = 0; c < 3; ++c) rgb[3 * i + c] = static_cast<uint8_t>(in[3] - (((255U - in[c]) * in[3]) >> 8));
  }
  raster.data = std::move(rgb);
  raster.channels = 3;
}

}  // namespace

Result<ImageSize> jpeg_size(std::string_view bytes) {
  Reader reader;
  if (!read_header(reader, bytes)) return damaged();
  return ImageSize{reader.info.image_width, reader.info.image_height};
}

Result<Raster> decode_jpeg(std::string_view bytes, const ImageBounds& bounds) {
  Reader reader;
  if (!read_header(reader, bytes)) return damaged();
  DI_TRY(check_size(reader.info.image_width, reader.info.image_height, bounds));
  const uint64_t pixels = uint64_t{reader.info.image_width} * reader.info.image_height;
  reader.max_scans = static_cast<int>(std::min<uint64_t>(500, 40 + (uint64_t{1} << 29) / pixels));
  if (!start(reader)) return damaged();
  Raster& raster = reader.raster;
  raster.width = reader.info.output_width;
  raster.height = reader.info.output_height;
  raster.channels = static_cast<uint32_t>(reader.info.output_components);
  if (raster.channels != 1 && raster.channels != 3 && raster.channels != 4) return damaged();
  raster.data.resize(size_t{raster.width} * raster.height * raster.channels);
  if (!read_rows(reader)) return damaged();
  if (raster.channels == 4) cmyk_to_rgb(raster);
  return std::move(raster);
}

}  // namespace di::codec::image
