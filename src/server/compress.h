// Content codings of HTTP bodies (server.md §2): gzip and zstd in requests, gzip in answers. Pure functions, safe from
// any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace di::server {

// The bytes behind `coding` ("gzip", "x-gzip" or "zstd", in any case). Errors: kInvalidRequest (not of that form, cut
// off, or another coding), kResourceExhausted (more than `limit` bytes; no more than that is ever kept).
Result<std::string> decode_content(std::string_view coding, std::string_view bytes, std::size_t limit);

// Whether an Accept-Encoding header takes gzip: named, or `*`, with a weight above 0.
bool accepts_gzip(std::string_view accept_encoding);

// As gzip at the fastest level, without a time stamp: equal bytes give equal results.
std::string gzip(std::string_view bytes);

}  // namespace di::server
