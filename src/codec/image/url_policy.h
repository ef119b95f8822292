// Which links may be fetched (server.md §2, image links): the rules against requests forged to reach what only the
// server can reach. One parse serves check and fetch, so that both mean the same host; a host name is resolved once,
// every address it has must pass, and the connection goes to a checked address; each redirect is checked like the first
// URL. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace di::codec {

struct FetchUrl {
  bool tls = false;
  std::string host;  // lower case; an IPv6 address without its brackets
  bool ip_literal = false;
  uint16_t port = 0;
  std::string target;  // path and query, "/" at least
};
// http or https, no user information, no backslash, no control or non-ASCII character, no fragment kept. A host that is
// all digits and dots, or has hexadecimal parts, must be a dotted quad: other spellings of addresses are refused.
Result<FetchUrl> parse_fetch_url(std::string_view url);
// The URL a Location header of `from` leads to: absolute, or a path on the same host.
Result<FetchUrl> redirect_target(const FetchUrl& from, std::string_view location);

struct FetchPolicy {
  bool enabled = false;
  // Hosts that may be fetched from: "example.org" itself, "*.example.org" what is below it; empty: none.
  std::vector<std::string> allow_domains;
  int max_redirects = 3;
  int64_t connect_ms = 3000;
  int64_t total_ms = 10000;
};
Result<void> check_host(const FetchPolicy& policy, const FetchUrl& url);

using Ipv4 = std::array<uint8_t, 4>;
using Ipv6 = std::array<uint8_t, 16>;
// Addresses of the public internet: not this host, private, shared, link-local (cloud metadata among them), multicast,
// reserved or documentation ranges, nor an IPv6 form that carries such an IPv4 address (mapped, 6to4, NAT64, Teredo).
bool is_public_address(const Ipv4& address);
bool is_public_address(const Ipv6& address);

}  // namespace di::codec
