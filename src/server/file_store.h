// Uploaded images (server.md §8.3): kept in memory, within a bound on their bytes, seen by the tenant that sent them.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace di::server {

struct StoredFile {
  std::string id;  // file-api-<32 hex>
  std::string tenant;
  std::string name;
  std::string purpose;
  std::string media_type;  // by its first bytes
  int64_t created = 0;     // Unix seconds
  int64_t expires = 0;     // 0: never
  std::shared_ptr<const std::string> bytes;
};

class FileStore {
 public:
  explicit FileStore(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  bool enabled() const { return most_bytes_ > 0; }
  // Errors: kResourceExhausted, when there is no room; files are not given up for others.
  Result<void> add(StoredFile file, int64_t now);
  std::optional<StoredFile> get(std::string_view tenant, std::string_view id, int64_t now);
  bool remove(std::string_view tenant, std::string_view id);
  // In the order of their arrival.
  std::vector<StoredFile> all(std::string_view tenant, int64_t now);

 private:
  void expire_locked(int64_t now);

  const uint64_t most_bytes_;
  std::mutex mutex_;  // guards the members below
  std::list<StoredFile> files_;
  uint64_t bytes_ = 0;
};

// The media type of an image by its first bytes: JPEG, PNG, GIF, WebP; empty: none of them.
std::string_view sniff_image(std::string_view bytes);

// One part of a multipart/form-data body.
struct FormPart {
  std::string name;
  std::string filename;
  std::string_view content;  // inside the body
};
// Errors: kInvalidRequest, when the content type names no boundary or the body is not of that form.
Result<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body);

}  // namespace di::server
