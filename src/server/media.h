// The images of requests: read from data URLs and uploaded files, fetched where that is allowed, decoded, counted in
// tokens and given the digest that stands for their pixels in the identity of cached KV (vision.md §2, §9.1). Work goes
// to threads of its own, so that a slow link or a large picture holds up neither text requests nor the network; at most
// `decoders` requests decode at once, one image each, whatever the number of threads. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "codec/image/cache.h"
#include "codec/image/resolve.h"
#include "server/file_store.h"
#include "server/media_fetch.h"
#include "server/workers.h"

namespace di::server {

struct MediaOptions {
  codec::ImageLimits limits;
  MediaFetchOptions fetch;
  int32_t threads = 8;
  int32_t decoders = 2;
  std::size_t fetches = 8;  // of one request at once
};

class Media {
 public:
  // The store and the clock outlive it.
  Media(MediaOptions options, FileStore& files, const Clock& clock);

  void post(std::function<void()> task) { workers_.post(std::move(task)); }
  // Finishes the tasks that are queued; from then on nothing runs.
  void stop() { workers_.stop(); }

  // In the order of the sources, with digests and without pixels. `tenant`: images that it sent lately are known by
  // their bytes and not decoded again.
  codec::ApiResult<std::vector<codec::ResolvedImage>> resolve(const std::string& tenant,
                                                              std::span<const codec::ImageSource> sources);

  const codec::ImageCache& cache() const { return cache_; }

 private:
  const MediaOptions options_;
  FileStore& files_;
  const Clock& clock_;
  std::counting_semaphore<> decoding_;
  codec::ImageCache cache_;
  Workers workers_;
};

}  // namespace di::server
