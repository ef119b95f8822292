#include "server/compress.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "server/http.h"

namespace di::server {
namespace {

constexpr std::size_t kPiece = 64 << 10;
constexpr int kGzipWindow = 15 + 16;  // zlib's way to say: with gzip's header

std::unexpected<Error> too_large(std::size_t limit) {
  return fail(Errc::kResourceExhausted, "the request body is larger than {} bytes when it is unpacked", limit);
}

Result<std::string> gunzip(std::string_view bytes, std::size_t limit) {
  z_stream stream{};
  if (inflateInit2(&stream, kGzipWindow) != Z_OK) return fail(Errc::kInternal, "zlib cannot start");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ended(&stream, inflateEnd);
  std::string out;
  std::string piece(kPiece, '\0');
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes.data()));  // NOLINT: zlib reads only
  stream.avail_in = static_cast<uInt>(bytes.size());
  for (;;) {
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());  // NOLINT: zlib's bytes
    stream.avail_out = static_cast<uInt>(piece.size());
    const int status = inflate(&stream, Z_NO_FLUSH);
    const std::size_t made = piece.size() - stream.avail_out;
    if (out.size() + made > limit) return too_large(limit);
    out.append(piece, 0, made);
    if (status == Z_STREAM_END) {
      if (stream.avail_in == 0) return out;
      if (inflateReset(&stream) != Z_OK) break;  // a further member
      continue;
    }
    if (status != Z_OK || (made == 0 && stream.avail_in == 0)) break;
  }
  return fail(Errc::kInvalidRequest, "the body is not valid gzip");
}

Result<std::string> unzstd(std::string_view bytes, std::size_t limit) {
  const std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  std::string out;
  std::string piece(kPiece, '\0');
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::size_t left = 1;  // of the frame; 0 at its end
  while (in.pos < in.size || left != 0) {
    ZSTD_outBuffer made{piece.data(), piece.size(), 0};
    const std::size_t before = in.pos;
    left = ZSTD_decompressStream(context.get(), &made, &in);
    if (ZSTD_isError(left) != 0 || (left != 0 && made.pos == 0 && in.pos == before))
      return fail(Errc::kInvalidRequest, "the body is not valid zstd");
    if (out.size() + made.pos > limit) return too_large(limit);
    out.append(piece, 0, made.pos);
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

Result<std::string> decode_content(std::string_view coding, std::string_view bytes, std::size_t limit) {
  coding = trimmed(coding);
  if (equal_ignoring_case(coding, "gzip") || equal_ignoring_case(coding, "x-gzip")) return gunzip(bytes, limit);
  if (equal_ignoring_case(coding, "zstd")) return unzstd(bytes, limit);
  return fail(Errc::kInvalidRequest, "Content-Encoding is `{}`, expected gzip or zstd", coding.substr(0, 100));
}

bool accepts_gzip(std::string_view accept_encoding) {
  while (!accept_encoding.empty()) {
    const std::size_t comma = std::min(accept_encoding.find(','), accept_encoding.size());
    const std::string_view item = accept_encoding.substr(0, comma);
    accept_encoding.remove_prefix(std::min(comma + 1, accept_encoding.size()));
    const std::size_t semicolon = std::min(item.find(';'), item.size());
    const std::string_view name = trimmed(item.substr(0, semicolon));
    if (!equal_ignoring_case(name, "gzip") && name != "*") continue;
    const std::size_t q = item.find("q=", semicolon);
    if (q == std::string_view::npos) return true;
    double weight = 0;
    std::from_chars(item.data() + q + 2, item.data() + item.size(), weight);
    return weight > 0;
  }
  return false;
}

std::string gzip(std::string_view bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) return {};
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ended(&stream, deflateEnd);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes.data()));  // NOLINT: zlib reads only
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());  // NOLINT: zlib's bytes
  stream.avail_out = static_cast<uInt>(out.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) return {};
  out.resize(stream.total_out);
  return out;
}

}  // namespace di::server
