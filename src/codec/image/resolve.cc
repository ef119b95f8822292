#include "codec/image/resolve.h"

#include <algorithm>
#include <map>

#include "codec/api/common.h"
#include "codec/api/images.h"
#include "codec/rust_text.h"

namespace di::codec {

namespace {

constexpr std::string_view kUnsupported =
    "You have uploaded an unsupported image. Please make sure your image is valid and has one of the following "
    "formats: "
    "webp, png, jpeg, and gif.";

using api::bad_request;

struct Source {
  const ImageSource* source = nullptr;
  std::string where;  // "path.image[k]"
  std::string bytes;
};

bool is_link(const ImageSource& source) {
  return source.kind == ImageSource::Kind::kUrl;
}

std::string before(const std::string& path) {
  return path.empty() ? std::string() : path + ": ";
}

// Counts and addresses, before anything is fetched.
ApiResult<std::vector<Source>> check_sources(std::span<const ImageSource> sources, const ImageLimits& limits,
                                             const ImageQuota& quota) {
  std::vector<Source> out;
  std::map<std::string_view, size_t> of_path;
  for (const ImageSource& source : sources) {
    const size_t index = of_path[source.path]++;
    out.push_back({&source, fmt::format("{}{}image[{}]", source.path, source.path.empty() ? "" : ".", index), {}});
  }
  if (quota.images + sources.size() > limits.max_images) {
    const size_t first = limits.max_images - std::min(limits.max_images, quota.images);
    size_t count = first;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].path == sources[first].path) count = i + 1;
    }
    return bad_request("{}Too many images: max {} images per request, got {}", before(sources[first].path),
                       limits.max_images, quota.images + count);
  }
  for (const ImageSource& source : sources) {
    if (!is_link(source)) continue;
    if (source.location.size() > limits.max_url_bytes) {
      return bad_request("{}external link length {} too long, max link length {}", before(source.path),
                         source.location.size(), limits.max_url_bytes);
    }
    if (!api::is_external_url(source.location)) {
      return bad_request("{}invalid url: {}", before(source.path), rust_debug(source.location));
    }
  }
  return out;
}

// An upper bound of the bytes in a data URL, from its length.
size_t estimate_bytes(const api::DataUrl& data) {
  if (data.base64) return data.body.size() / 4 * 3;
  return data.body.size() - 2 * static_cast<size_t>(std::count(data.body.begin(), data.body.end(), '%'));
}

ApiResult<void> read_bytes(Source& from, const ImageLimits& limits, const ImageFetcher& fetch,
                           const ImageFiles& files) {
  const std::string& location = from.source->location;
  const auto too_large = [&] {
    return bad_request("{}: image file size exceeds limit {} MB", from.where, limits.max_image_bytes >> 20);
  };
  if (from.source->kind == ImageSource::Kind::kFile) {
    const std::shared_ptr<const std::string> file = files ? files(location) : nullptr;
    if (file == nullptr) return bad_request("{}: no file with id {}", from.where, rust_debug(location.substr(0, 100)));
    if (file->size() > limits.max_image_bytes) return too_large();
    from.bytes = *file;
  } else if (is_link(*from.source)) {
    Result<std::string> bytes = fail(Errc::kUnavailable, "links are not fetched here");
    if (fetch) bytes = fetch(location, limits.max_image_bytes);
    if (!bytes && bytes.error().code == Errc::kResourceExhausted) return too_large();
    if (!bytes) return bad_request("{}: Failed to download image from {}", from.where, location);
    from.bytes = std::move(*bytes);
  } else {
    const auto data = api::parse_data_url(location);
    if (!data || !api::is_supported_image_mime(data->mime)) return bad_request("{}: {}", from.where, kUnsupported);
    if (estimate_bytes(*data) > limits.max_image_bytes) return too_large();
    Result<std::string> bytes = read_data_url(location);
    if (!bytes) return bad_request("{}: {}", from.where, kUnsupported);
    from.bytes = std::move(*bytes);
  }
  if (from.bytes.size() > limits.max_image_bytes) return too_large();
  if (from.bytes.empty()) return bad_request("{}: {}", from.where, kUnsupported);
  return {};
}

Result<ResolvedImage> decode(const Source& from, const ImageBounds& bounds, const ResolveOptions& options) {
  const ImageDetail detail = from.source->detail;
  ResolvedImage image;
  ImageCache* cache = options.canvases ? nullptr : options.cache;
  const Sha256 source = cache != nullptr ? sha256(from.bytes) : Sha256{};
  if (cache != nullptr) {
    if (const std::optional<ImageFacts> known = cache->find(options.cache_scope, source, detail)) {
      DI_TRY(image::check_size(known->size.width, known->size.height, bounds));
      image.size = known->size;
      image.layout = known->layout;
      image.digest = known->digest;
      return image;
    }
  }
  Pixels pixels = DI_TRY(decode_image(from.bytes, bounds));
  image.size = {pixels.width, pixels.height};
  image.layout = DI_TRY(layout_for_detail(image.size, detail));
  if (!options.canvases && !options.digests) return image;
  image.canvas = DI_TRY(service_canvas(std::move(pixels), detail));
  if (options.digests) image.digest = image_digest(image.canvas);
  if (!options.canvases) image.canvas = Pixels();
  if (cache != nullptr && options.digests)
    cache->put(options.cache_scope, source, detail, {image.size, image.layout, image.digest});
  return image;
}

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

}  // namespace

Result<std::string> read_data_url(std::string_view url) {
  const auto data = api::parse_data_url(url);
  if (!data) return fail(Errc::kInvalidRequest, "no data URL");
  const std::string body = api::percent_decoded(data->body);
  if (!data->base64) return body;
  if (!api::is_forgiving_base64(data->body)) return fail(Errc::kInvalidRequest, "the data URL's base64 is invalid");
  std::string out;
  out.reserve(body.size() / 4 * 3);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : body) {
    const int value = base64_value(c);
    if (value < 0) continue;  // white space and padding
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (++count % 4 == 0) {
      for (int shift = 16; shift >= 0; shift -= 8) out.push_back(static_cast<char>(bits >> shift));
      bits = 0;
    }
  }
  if (count % 4 == 2) out.push_back(static_cast<char>(bits >> 4));
  if (count % 4 == 3) {
    out.push_back(static_cast<char>(bits >> 10));
    out.push_back(static_cast<char>(bits >> 2));
  }
  return out;
}

namespace {

ApiResult<std::vector<ResolvedImage>> resolve(std::span<const ImageSource> sources, const ImageLimits& limits,
                                              const ResolveOptions& options, const ImageFetcher& fetch,
                                              ImageQuota& quota) {
  ApiResult<std::vector<Source>> checked = check_sources(sources, limits, quota);
  if (!checked) return std::unexpected(std::move(checked).error());
  size_t total = quota.bytes;
  for (Source& source : *checked) {
    if (ApiResult<void> read = read_bytes(source, limits, fetch, options.files); !read)
      return std::unexpected(read.error());
    total += source.bytes.size();
    if (total > limits.max_request_bytes) {
      return bad_request("{}Total image size exceeds the limit: max {} MB per request, got {} MB",
                         before(source.source->path), limits.max_request_bytes >> 20, total >> 20);
    }
  }
  const bool many = quota.images + sources.size() >= limits.many;
  const ImageBounds bounds{many ? limits.max_side_of_many : limits.max_side, limits.max_pixels};
  std::vector<ResolvedImage> out;
  for (Source& source : *checked) {
    Result<ResolvedImage> image = decode(source, bounds, options);
    if (!image && image.error().code == Errc::kInternal) {
      return std::unexpected(ApiError{ApiError::Stage::kConvert, 500, image.error().message, "internal_error", ""});
    }
    if (!image) return bad_request("{}: {}", source.where, kUnsupported);
    out.push_back(std::move(*image));
    source.bytes = std::string();
  }
  quota.images += sources.size();
  quota.bytes = total;
  return out;
}

}  // namespace

ApiResult<std::vector<ResolvedImage>> resolve_images(std::span<const ImageSource> sources, const ImageLimits& limits,
                                                     const ResolveOptions& options, const ImageFetcher& fetch,
                                                     ImageQuota& quota) {
  ApiResult<std::vector<ResolvedImage>> images = resolve(sources, limits, options, fetch, quota);
  if (!images) {
    // Of `messages[0].image[2]` the part that the request has.
    std::string& param = images.error().param;
    param = api::error_param(images.error().message);
    param = param.substr(0, std::min(param.size(), param.rfind(".image[")));
  }
  return images;
}

Result<ExpandedPrompt> expand_images(std::span<const TokenId> ids, TokenId placeholder,
                                     std::span<const ResolvedImage> images) {
  const auto found = static_cast<size_t>(std::count(ids.begin(), ids.end(), placeholder));
  if (found != images.size()) {
    return fail(Errc::kInvalidRequest, "the prompt has {} image placeholders for {} images", found, images.size());
  }
  ExpandedPrompt out;
  for (const TokenId id : ids) {
    if (id != placeholder) {
      out.ids.push_back(id);
      continue;
    }
    const size_t image = out.spans.size();
    const size_t length = images[image].layout.tokens;
    out.spans.push_back({out.ids.size(), length, image});
    out.ids.insert(out.ids.end(), length, placeholder);
  }
  return out;
}

}  // namespace di::codec
