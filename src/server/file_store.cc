#include "server/file_store.h"

#include <algorithm>

#include "server/http.h"

namespace di::server {
namespace {

constexpr std::size_t kMostParts = 64;

// The value of name="…" or name=… in a header value; empty: absent.
std::string parameter(std::string_view header, std::string_view name) {
  for (std::size_t at = header.find(';'); at != std::string_view::npos; at = header.find(';', at + 1)) {
    std::string_view rest = header.substr(at + 1);
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    if (rest.size() <= name.size() || rest[name.size()] != '=' ||
        !equal_ignoring_case(rest.substr(0, name.size()), name))
      continue;
    rest.remove_prefix(name.size() + 1);
    if (!rest.starts_with('"')) return std::string(rest.substr(0, rest.find_first_of("; \t")));
    std::string out;
    for (std::size_t i = 1; i < rest.size() && rest[i] != '"'; ++i) {
      if (rest[i] == '\\' && i + 1 < rest.size()) ++i;
      out += rest[i];
    }
    return out;
  }
  return {};
}

std::string_view header_value(std::string_view head, std::string_view name) {
  while (!head.empty()) {
    const std::size_t end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + 2, head.size()));
    if (line.size() > name.size() && line[name.size()] == ':' && equal_ignoring_case(line.substr(0, name.size()), name))
      return line.substr(name.size() + 1);
  }
  return {};
}

}  // namespace

Result<void> FileStore::add(StoredFile file, int64_t now) {
  const std::lock_guard lock(mutex_);
  expire_locked(now);
  const uint64_t size = file.bytes->size();
  if (bytes_ + size > most_bytes_) {
    return fail(Errc::kResourceExhausted, "there is no room for {} bytes: {} of {} are taken", size, bytes_,
                most_bytes_);
  }
  bytes_ += size;
  files_.push_back(std::move(file));
  return {};
}

std::optional<StoredFile> FileStore::get(std::string_view tenant, std::string_view id, int64_t now) {
  const std::lock_guard lock(mutex_);
  expire_locked(now);
  const auto found =
      std::find_if(files_.begin(), files_.end(), [&](const StoredFile& f) { return f.id == id && f.tenant == tenant; });
  if (found == files_.end()) return std::nullopt;
  return *found;
}

bool FileStore::remove(std::string_view tenant, std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(files_.begin(), files_.end(), [&](const StoredFile& f) { return f.id == id && f.tenant == tenant; });
  if (found == files_.end()) return false;
  bytes_ -= found->bytes->size();
  files_.erase(found);
  return true;
}

std::vector<StoredFile> FileStore::all(std::string_view tenant, int64_t now) {
  const std::lock_guard lock(mutex_);
  expire_locked(now);
  std::vector<StoredFile> out;
  std::copy_if(files_.begin(), files_.end(), std::back_inserter(out),
               [&](const StoredFile& f) { return f.tenant == tenant; });
  return out;
}

void FileStore::expire_locked(int64_t now) {
  for (auto it = files_.begin(); it != files_.end();) {
    if (it->expires == 0 || it->expires > now) {
      ++it;
      continue;
    }
    bytes_ -= it->bytes->size();
    it = files_.erase(it);
  }
}

std::string_view sniff_image(std::string_view bytes) {
  if (bytes.starts_with("\xFF\xD8\xFF")) return "image/jpeg";
  if (bytes.starts_with("\x89PNG\r\n\x1A\n")) return "image/png";
  if (bytes.starts_with("GIF87a") || bytes.starts_with("GIF89a")) return "image/gif";
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP") return "image/webp";
  return {};
}

Result<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body) {
  constexpr std::string_view kForm = "multipart/form-data";
  const std::string boundary = parameter(content_type, "boundary");
  if (!equal_ignoring_case(content_type.substr(0, kForm.size()), kForm) || boundary.empty())
    return fail(Errc::kInvalidRequest, "Content-Type is `{}`, expected multipart/form-data with a boundary",
                content_type.substr(0, 100));
  const std::string mark = "--" + boundary;
  const auto malformed = [] { return fail(Errc::kInvalidRequest, "the body is no complete multipart/form-data"); };
  std::vector<FormPart> out;
  std::size_t at = body.find(mark);
  if (at == std::string_view::npos) return malformed();
  for (;;) {
    at += mark.size();
    if (body.substr(at, 2) == "--") return out;
    if (body.substr(at, 2) != "\r\n" || out.size() == kMostParts) return malformed();
    const std::size_t content = body.find("\r\n\r\n", at);
    const std::size_t end = content == std::string_view::npos ? content : body.find("\r\n" + mark, content + 2);
    if (end == std::string_view::npos) return malformed();
    const std::string_view disposition = header_value(body.substr(at + 2, content - at), "content-disposition");
    FormPart part{parameter(disposition, "name"), parameter(disposition, "filename"), {}};
    if (end >= content + 4) part.content = body.substr(content + 4, end - content - 4);
    out.push_back(std::move(part));
    at = end + 2;
  }
}

}  // namespace di::server
