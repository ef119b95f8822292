// Image sources of a request -> decoded images with their token counts (vision.md §2), and the placeholders of a prompt
// -> as many ids as the images take (vision.md §7.1).
//
// Links are refused unless the caller brings a fetcher; the rules a fetcher must keep are in url_policy.h. Ids of
// uploaded files are refused unless the caller brings a reader of them. All bounds
// are checked before memory is taken for what they bound. Thread-safe; the work is done by the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "codec/codec.h"
#include "codec/image/cache.h"
#include "codec/image/canvas.h"
#include "codec/image/decode.h"
#include "codec/image/layout.h"

namespace di::codec {

struct ImageLimits {
  size_t max_images = 600;  // of a request
  size_t max_url_bytes = 8192;
  size_t max_image_bytes = size_t{32} << 20;    // encoded
  size_t max_request_bytes = size_t{64} << 20;  // encoded, all images of a request
  uint32_t max_side = 8192;                     // pixels
  uint32_t max_side_of_many = 4096;             // when the request has `many` images or more
  size_t many = 15;
  uint64_t max_pixels = uint64_t{40} << 20;  // 0: only the sides count
};

// Bytes behind a URL, at most `max_bytes`; more is an error.
using ImageFetcher = std::function<Result<std::string>(const std::string& url, size_t max_bytes)>;

struct ResolvedImage {
  ImageSize size;      // of the source
  ImageLayout layout;  // of its canvas
  Sha256 digest{};     // of its canvas, if asked for
  Pixels canvas;       // empty unless asked for
};

// Bytes of an uploaded file; null: there is none of that id.
using ImageFiles = std::function<std::shared_ptr<const std::string>(const std::string& id)>;

// What is wanted beside sizes. Images are decoded in any case, to see that they can be.
struct ResolveOptions {
  bool canvases = false;
  bool digests = false;
  // Images known by their bytes are not decoded again, unless canvases are wanted. May be null.
  ImageCache* cache = nullptr;
  std::string cache_scope;
  ImageFiles files;  // may be empty
};

// What the earlier calls of one request took; pass the same one to each.
struct ImageQuota {
  size_t images = 0;
  size_t bytes = 0;
};

// In the order of the sources. The error names the source; a failed call leaves the quota as it was.
ApiResult<std::vector<ResolvedImage>> resolve_images(std::span<const ImageSource> sources, const ImageLimits& limits,
                                                     const ResolveOptions& options, const ImageFetcher& fetch,
                                                     ImageQuota& quota);

// Bytes of a data URL: base64 (forgiving) or percent-encoded. Error: it is none, or its body cannot be decoded.
Result<std::string> read_data_url(std::string_view url);

struct ImageSpan {
  size_t begin = 0;  // index of the first id
  size_t length = 0;
  size_t image = 0;
};
struct ExpandedPrompt {
  std::vector<TokenId> ids;
  std::vector<ImageSpan> spans;  // ascending
};
// Every placeholder becomes layout.tokens times itself. Error (kInvalidRequest): not as many placeholders as layouts.
Result<ExpandedPrompt> expand_images(std::span<const TokenId> ids, TokenId placeholder,
                                     std::span<const ResolvedImage> images);

}  // namespace di::codec
