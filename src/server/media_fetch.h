// Fetches the images that requests name by link, within the rules of codec/image/url_policy.h: allowed hosts, addresses
// that are resolved once, all public and connected to as checked, redirects checked anew, bounded time and size. A call
// blocks its thread for at most the policy's total time; safe from several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "codec/image/resolve.h"
#include "codec/image/url_policy.h"

namespace di::server {

struct MediaFetchOptions {
  codec::FetchPolicy policy;
  // A proxy that all links go through, asked to connect to the address that was checked; port 0: none.
  std::string proxy_host;
  uint16_t proxy_port = 0;
  // Whether a resolved address may be connected to; absent: public addresses. Tests put their own loopback server here.
  std::function<bool(const std::string& address)> reachable;
};

// The bytes behind `url`. Errors: kInvalidRequest (the rules refuse it), kUnavailable (no connection, another status
// than 200), kResourceExhausted (more than max_bytes), kDeadlineExceeded.
Result<std::string> fetch_media(const MediaFetchOptions& options, const std::string& url, size_t max_bytes);

// "http://HOST:PORT" or "HOST:PORT" as the proxy of `options`.
Result<void> set_proxy(MediaFetchOptions& options, std::string_view text);

// The same as the codec takes it.
codec::ImageFetcher make_image_fetcher(MediaFetchOptions options);

}  // namespace di::server
