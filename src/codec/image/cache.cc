#include "codec/image/cache.h"

#include <algorithm>

namespace di::codec {

namespace {

std::string key_of(std::string_view scope, const Sha256& source, ImageDetail detail) {
  // Only `low` makes another canvas.
  std::string key(1, detail == ImageDetail::kLow ? 'l' : 'h');
  key.append(source.begin(), source.end());
  return key.append(scope);
}

}  // namespace

std::optional<ImageFacts> ImageCache::find(std::string_view scope, const Sha256& source, ImageDetail detail) {
  const std::string key = key_of(scope, source, detail);
  const std::lock_guard lock(mutex_);
  ++stats_.queries;
  const auto at = positions_.find(key);
  if (at == positions_.end()) return std::nullopt;
  ++stats_.hits;
  entries_.splice(entries_.begin(), entries_, at->second);
  return at->second->facts;
}

void ImageCache::put(std::string_view scope, const Sha256& source, ImageDetail detail, const ImageFacts& facts) {
  std::string key = key_of(scope, source, detail);
  const std::lock_guard lock(mutex_);
  if (positions_.contains(key)) return;
  entries_.push_front({std::move(key), facts});
  positions_.emplace(entries_.front().key, entries_.begin());
  if (entries_.size() <= max_entries_) return;
  positions_.erase(entries_.back().key);
  entries_.pop_back();
}

ImageCache::Stats ImageCache::stats() const {
  const std::lock_guard lock(mutex_);
  Stats out = stats_;
  out.entries = entries_.size();
  return out;
}

}  // namespace di::codec
