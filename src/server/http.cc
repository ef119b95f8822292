#include "server/http.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"

namespace di::server {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

bool is_normal_path(std::string_view path) {
  if (path.empty() || path.front() != '/' || path.find('%') != std::string_view::npos) return false;
  for (const std::string_view part : {"//", "/./", "/../"}) {
    if (path.find(part) != std::string_view::npos) return false;
  }
  return !path.ends_with("/.") && !path.ends_with("/..");
}

bool is_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') || c == '.' || c == '_' || c == '-';
  });
}

std::string header_text(std::string_view text) {
  std::string out(text.substr(0, 500));
  std::replace_if(out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return out;
}

std::string random_hex32() {
  return fmt::format("{:016x}{:016x}", random_u64(), random_u64());
}

}  // namespace di::server
