// Any bytes as an encoded image, as a data URL, and as a link: an error, or an image of the size its header says with a
// layout; a link that is read and allowed names a host.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "codec/image/resolve.h"
#include "codec/image/url_policy.h"

using namespace di::codec;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const ImageBounds bounds{.max_side = 512, .max_pixels = 1 << 16};
  const auto header = read_image_size(bytes, bounds);
  const auto pixels = decode_image(bytes, bounds);
  if (pixels && !header) std::abort();
  if (pixels) {
    if (pixels->width != header->width || pixels->height != header->height) std::abort();
    if (pixels->rgb.size() != size_t{3} * pixels->width * pixels->height) std::abort();
    if (!layout_for_detail(*header, ImageDetail::kLow)) std::abort();
  }
  static_cast<void>(read_data_url(bytes));
  const auto url = parse_fetch_url(bytes);
  if (url) {
    if (url->host.empty() || url->target.empty() || url->target.front() != '/' || url->port == 0) std::abort();
    static_cast<void>(redirect_target(*url, bytes.substr(size / 2)));
    FetchPolicy policy;
    policy.enabled = true;
    policy.allow_domains = {"*.example.org"};
    if (check_host(policy, *url) && !url->host.ends_with(".example.org")) std::abort();
  }
  return 0;
}
