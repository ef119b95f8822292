#include "server/media.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

namespace di::server {
namespace {

using Fetched = std::map<std::string, Result<std::string>, std::less<>>;

// Every link of the request once, several at a time. What lies behind the limit of all images together is not begun:
// the links before it are enough for the error.
Fetched fetch_links(std::span<const codec::ImageSource> sources, const MediaOptions& options) {
  Fetched out;
  for (const codec::ImageSource& source : sources) {
    if (source.kind == codec::ImageSource::Kind::kUrl && source.location.size() <= options.limits.max_url_bytes)
      out.try_emplace(source.location, fail(Errc::kUnavailable, "not fetched"));
  }
  std::vector<Fetched::value_type*> links;  // in the order of the request
  for (const codec::ImageSource& source : sources) {
    const auto at = out.find(source.location);
    if (at != out.end() && std::find(links.begin(), links.end(), &*at) == links.end()) links.push_back(&*at);
  }
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> bytes{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < links.size() && bytes <= options.limits.max_request_bytes; i = next++) {
      links[i]->second = fetch_media(options.fetch, links[i]->first, options.limits.max_image_bytes);
      if (links[i]->second) bytes += links[i]->second->size();
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < std::min(links.size(), options.fetches); ++i) threads.emplace_back(work);
  work();
  threads.clear();
  return out;
}

class DecoderSlot {
 public:
  explicit DecoderSlot(std::counting_semaphore<>& slots) : slots_(slots) { slots_.acquire(); }
  ~DecoderSlot() { slots_.release(); }
  DecoderSlot(const DecoderSlot&) = delete;
  DecoderSlot& operator=(const DecoderSlot&) = delete;

 private:
  std::counting_semaphore<>& slots_;
};

}  // namespace

Media::Media(MediaOptions options, FileStore& files, const Clock& clock)
    : options_(std::move(options)),
      files_(files),
      clock_(clock),
      decoding_(options_.decoders),
      workers_(options_.threads) {}

codec::ApiResult<std::vector<codec::ResolvedImage>> Media::resolve(const std::string& tenant,
                                                                   std::span<const codec::ImageSource> sources) {
  // Too many are too many before anything is fetched.
  Fetched fetched;
  if (sources.size() <= options_.limits.max_images) fetched = fetch_links(sources, options_);
  const codec::ImageFetcher fetch = [&fetched](const std::string& url, std::size_t) -> Result<std::string> {
    const auto at = fetched.find(url);
    if (at == fetched.end()) return fail(Errc::kUnavailable, "not fetched");
    return at->second;
  };
  codec::ImageQuota quota;
  codec::ResolveOptions options;
  options.digests = true;
  options.cache = &cache_;
  options.cache_scope = tenant;
  options.files = [this, &tenant](const std::string& id) -> std::shared_ptr<const std::string> {
    const std::optional<StoredFile> file = files_.get(tenant, id, clock_.unix_seconds());
    return file ? file->bytes : nullptr;
  };
  const DecoderSlot slot(decoding_);
  return codec::resolve_images(sources, options_.limits, options, fetch, quota);
}

}  // namespace di::server
