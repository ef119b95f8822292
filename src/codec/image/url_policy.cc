#include "codec/image/url_policy.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace di::codec {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

std::unexpected<Error> refused(std::string_view why) {
  return fail(Errc::kInvalidRequest, "link: {}", why);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Spellings that some resolvers read as an address: the last label is a number, decimal or hexadecimal.
bool looks_like_ipv4(std::string_view host) {
  const std::string_view last = host.substr(host.rfind('.') + 1);
  if (last.empty()) return true;
  if (std::all_of(last.begin(), last.end(), is_digit)) return true;
  return last.starts_with("0x");
}

bool is_dotted_quad(const std::string& host) {
  in_addr parsed = {};
  return inet_pton(AF_INET, host.c_str(), &parsed) == 1;
}

Result<void> read_host(std::string_view text, FetchUrl& out) {
  if (text.empty()) return refused("no host");
  if (text.front() == '[') {
    if (text.size() < 4 || text.back() != ']') return refused("damaged IPv6 address");
    out.host = text.substr(1, text.size() - 2);
    in6_addr parsed = {};
    if (inet_pton(AF_INET6, out.host.c_str(), &parsed) != 1) return refused("damaged IPv6 address");
    out.ip_literal = true;
    return {};
  }
  out.host.assign(text);
  std::transform(out.host.begin(), out.host.end(), out.host.begin(), lower);
  if (out.host.back() == '.') out.host.pop_back();
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || is_digit(c) || c == '-' || c == '.' || c == '_'; };
  if (out.host.empty() || out.host.size() > 253 || !std::all_of(out.host.begin(), out.host.end(), allowed) ||
      out.host.front() == '.' || out.host.find("..") != std::string::npos) {
    return refused("damaged host name");
  }
  if (looks_like_ipv4(out.host)) {
    if (!is_dotted_quad(out.host)) return refused("an address that is no dotted quad");
    out.ip_literal = true;
  }
  return {};
}

bool in_range(const Ipv4& a, uint32_t network, int bits) {
  const uint32_t value = uint32_t{a[0]} << 24 | uint32_t{a[1]} << 16 | uint32_t{a[2]} << 8 | a[3];
  return (value ^ network) >> (32 - bits) == 0;
}

bool starts(const Ipv6& a, std::initializer_list<int> bytes) {
  size_t i = 0;
  for (const int byte : bytes) {
    if (a[i++] != byte) return false;
  }
  return true;
}

Ipv4 part_of(const Ipv6& a, size_t at) {
  return {a[at], a[at + 1], a[at + 2], a[at + 3]};
}

}  // namespace

Result<FetchUrl> parse_fetch_url(std::string_view url) {
  for (const char c : url) {
    if (c <= ' ' || c > '~' || c == '\\') return refused("a character that has no place in a URL");
  }
  FetchUrl out;
  std::string scheme(url.substr(0, url.find(':')));
  std::transform(scheme.begin(), scheme.end(), scheme.begin(), lower);
  if (scheme != "http" && scheme != "https") return refused("only http and https are fetched");
  out.tls = scheme == "https";
  std::string_view rest = url.substr(scheme.size());
  if (!rest.starts_with("://")) return refused("no host");
  rest.remove_prefix(3);
  rest = rest.substr(0, rest.find('#'));
  const size_t slash = std::min(rest.find_first_of("/?"), rest.size());
  std::string_view authority = rest.substr(0, slash);
  out.target = rest.substr(slash);
  if (out.target.empty() || out.target.front() == '?') out.target.insert(out.target.begin(), '/');
  if (authority.find('@') != std::string_view::npos) return refused("user information");
  out.port = out.tls ? 443 : 80;
  const size_t colon = authority.rfind(':');
  if (colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos) {
    const std::string_view port = authority.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
    if (error != std::errc() || end != port.data() + port.size() || out.port == 0) return refused("damaged port");
    authority = authority.substr(0, colon);
  }
  DI_TRY(read_host(authority, out));
  return out;
}

Result<FetchUrl> redirect_target(const FetchUrl& from, std::string_view location) {
  if (location.starts_with("//")) {
    return parse_fetch_url((from.tls ? "https:" : "http:") + std::string(location));
  }
  if (location.starts_with("/")) {
    FetchUrl out = from;
    const std::string host = from.host.find(':') == std::string::npos ? from.host : "[" + from.host + "]";
    const FetchUrl parsed =
        DI_TRY(parse_fetch_url(fmt::format("{}://{}:{}{}", from.tls ? "https" : "http", host, from.port, location)));
    out.target = parsed.target;
    return out;
  }
  FetchUrl out = DI_TRY(parse_fetch_url(location));
  if (from.tls && !out.tls) return refused("a redirect from https to http");
  return out;
}

Result<void> check_host(const FetchPolicy& policy, const FetchUrl& url) {
  if (!policy.enabled) return refused("links are not fetched here");
  if (url.ip_literal) {
    in_addr v4 = {};
    in6_addr v6 = {};
    bool is_public = false;
    if (inet_pton(AF_INET, url.host.c_str(), &v4) == 1) {
      Ipv4 address;
      std::copy_n(reinterpret_cast<const uint8_t*>(&v4), address.size(), address.begin());
      is_public = is_public_address(address);
    } else if (inet_pton(AF_INET6, url.host.c_str(), &v6) == 1) {
      Ipv6 address;
      std::copy_n(reinterpret_cast<const uint8_t*>(&v6), address.size(), address.begin());
      is_public = is_public_address(address);
    }
    if (!is_public) return refused("an address that is not public");
  }
  for (const std::string& domain : policy.allow_domains) {
    if (url.host == domain) return {};
    if (domain.starts_with("*.") && url.host.size() > domain.size() - 1 && url.host.ends_with(domain.substr(1))) {
      return {};
    }
  }
  return refused("the host is not among the allowed domains");
}

bool is_public_address(const Ipv4& a) {
  constexpr std::pair<uint32_t, int> kNotPublic[] = {
      {0x00000000, 8},  {0x0A000000, 8},  {0x64400000, 10}, {0x7F000000, 8},  {0xA9FE0000, 16},
      {0xAC100000, 12}, {0xC0000000, 24}, {0xC0000200, 24}, {0xC0586300, 24}, {0xC0A80000, 16},
      {0xC6120000, 15}, {0xC6336400, 24}, {0xCB007100, 24}, {0xE0000000, 4},  {0xF0000000, 4},
  };
  return std::none_of(std::begin(kNotPublic), std::end(kNotPublic),
                      [&](const auto& range) { return in_range(a, range.first, range.second); });
}

bool is_public_address(const Ipv6& a) {
  if (starts(a, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF})) return is_public_address(part_of(a, 12));        // mapped
  if (starts(a, {0x00, 0x64, 0xFF, 0x9B, 0, 0, 0, 0, 0, 0, 0, 0})) return is_public_address(part_of(a, 12));  // NAT64
  if (starts(a, {0x20, 0x02})) return is_public_address(part_of(a, 2));                                       // 6to4
  if ((a[0] & 0xE0) != 0x20) return false;  // outside 2000::/3: ::, ::1, fc00::/7, fe80::/10, ff00::/8, 64:ff9b:1::/48
  if (starts(a, {0x20, 0x01, 0x0D, 0xB8})) return false;     // documentation
  if (starts(a, {0x20, 0x01}) && a[2] < 0x02) return false;  // 2001::/23: Teredo, benchmarking, ORCHID
  return !starts(a, {0x3F, 0xFF, 0x00}) && !(starts(a, {0x3F, 0xFF}) && (a[2] & 0xF0) == 0);  // documentation
}

}  // namespace di::codec
