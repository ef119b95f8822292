// Where a plain text may be cut so that encoding the parts gives the ids of the whole (recipe.md §1.4 (iii)).
#pragma once

#include <cstddef>
#include <string_view>

namespace di::codec {

// True when encode_plain(text[0, at)) followed by encode_plain(text[at, end)) equals encode_plain(text). `at` is a byte
// position; a position inside a character is never safe.
bool is_safe_cut(std::string_view text, size_t at);

// First safe cut at or after `from`, or text.size().
size_t next_safe_cut(std::string_view text, size_t from);

}  // namespace di::codec
