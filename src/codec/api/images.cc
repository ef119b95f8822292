#include "codec/api/images.h"

#include <algorithm>
#include <array>

#include "codec/api/common.h"

namespace di::codec::api {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = lower(c);
  return out;
}

std::string_view trim(std::string_view text) {  // C0 controls and spaces
  while (!text.empty() && static_cast<unsigned char>(text.front()) <= ' ') text.remove_prefix(1);
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.remove_suffix(1);
  return text;
}

// The parser of URLs passes over these, in the scheme and the type alike.
bool is_tab_or_line_end(char c) {
  return c == '\t' || c == '\n' || c == '\r';
}

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

constexpr std::array<bool, 256> kBase64 = [] {
  std::array<bool, 256> table{};
  for (const char c : std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")) {
    table[static_cast<unsigned char>(c)] = true;
  }
  return table;
}();

}  // namespace

std::optional<DataUrl> parse_data_url(std::string_view url) {
  url = trim(url);
  for (const char expected : std::string_view("data:")) {
    while (!url.empty() && is_tab_or_line_end(url.front())) url.remove_prefix(1);
    if (url.empty() || lower(url.front()) != expected) return std::nullopt;
    url.remove_prefix(1);
  }
  const size_t comma = url.find(',');
  if (comma == std::string_view::npos || url.substr(0, comma).find('#') != std::string_view::npos) return std::nullopt;
  DataUrl out;
  out.body = url.substr(comma + 1);
  if (const size_t fragment = out.body.find('#'); fragment != std::string_view::npos) {
    out.body = out.body.substr(0, fragment);
  }
  std::string written(url.substr(0, comma));
  std::erase_if(written, is_tab_or_line_end);
  std::string_view head = trim(written);
  if (head.size() >= 6 && lower(head.substr(head.size() - 6)) == "base64") {
    std::string_view before = head.substr(0, head.size() - 6);
    while (!before.empty() && before.back() == ' ') before.remove_suffix(1);
    if (!before.empty() && before.back() == ';') {
      out.base64 = true;
      head = before.substr(0, before.size() - 1);
    }
  }
  const std::string_view essence = trim(head.substr(0, head.find(';')));
  const size_t slash = essence.find('/');
  const bool is_type = slash != std::string_view::npos && slash > 0 && slash + 1 < essence.size();
  out.mime = is_type ? lower(essence) : "text/plain";
  return out;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

bool is_forgiving_base64(std::string_view text) {
  size_t symbols = 0;
  size_t padding = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      c = static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    }
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f') continue;
    if (c == '=') {
      ++padding;
    } else if (!kBase64[static_cast<unsigned char>(c)] || padding > 0) {
      return false;
    } else {
      ++symbols;
    }
  }
  switch (symbols % 4) {
    case 0:
      return padding == 0;
    case 2:
      return padding == 0 || padding == 2;
    case 3:
      return padding <= 1;
    default:
      return false;
  }
}

bool is_external_url(std::string_view url) {
  return url.size() >= 4 && lower(url.substr(0, 4)) == "http";
}

bool is_supported_image_mime(std::string_view mime) {
  constexpr std::array<std::string_view, 5> kMimes = {"image/jpeg", "image/jpg", "image/png", "image/gif",
                                                      "image/webp"};
  return std::find(kMimes.begin(), kMimes.end(), mime) != kMimes.end();
}

ApiResult<void> check_file_id(std::string_view path, const CodecOptions& options) {
  if (options.policy == ApiPolicy::kExtended) return {};
  return bad_request("{}: file_id is not supported. Pass the image as a base64 data url instead.", path);
}

ApiResult<void> check_image_data_url(std::string_view url, std::string_view path) {
  const std::optional<DataUrl> data = parse_data_url(url);
  if (url.find("base64,") == std::string_view::npos || !data) {
    return bad_request("{}: Unsupported image_url format", path);
  }
  if (!is_supported_image_mime(data->mime)) {
    return bad_request(
        "{}: You have uploaded an unsupported image. Please make sure your image is valid and has one of the following "
        "formats: webp, png, jpeg, and gif.",
        path);
  }
  if (data->base64 && !is_forgiving_base64(data->body)) return bad_request("{}: Invalid base64 data", path);
  return {};
}

}  // namespace di::codec::api
