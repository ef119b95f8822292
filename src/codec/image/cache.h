// Images that were decoded lately, by the SHA-256 of their encoded bytes: agents send every image again with every
// turn, and a hit costs one hash instead of decoding, resizing and a WebP round trip (vision.md §9.3). Kept per scope
// (tenant), so that nobody can find out by timing what others have sent. Bounded by entries, least recently used first.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/sha256.h"
#include "codec/conversation.h"
#include "codec/image/decode.h"
#include "codec/image/layout.h"

namespace di::codec {

// What is left of an image when its pixels are gone.
struct ImageFacts {
  ImageSize size;      // of the source
  ImageLayout layout;  // of its canvas
  Sha256 digest{};     // of the canvas: vision.md §9.1
};

class ImageCache {
 public:
  explicit ImageCache(std::size_t max_entries = 4096) : max_entries_(max_entries) {}

  std::optional<ImageFacts> find(std::string_view scope, const Sha256& source, ImageDetail detail);
  void put(std::string_view scope, const Sha256& source, ImageDetail detail, const ImageFacts& facts);

  struct Stats {
    uint64_t queries = 0;
    uint64_t hits = 0;
    std::size_t entries = 0;
  };
  Stats stats() const;

 private:
  struct Entry {
    std::string key;
    ImageFacts facts;
  };
  const std::size_t max_entries_;
  mutable std::mutex mutex_;                                                    // guards what follows
  Stats stats_;                                                                 // but entries
  std::list<Entry> entries_;                                                    // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> positions_;  // keys point into the entries
};

}  // namespace di::codec
