// Texts of error messages that quote strings as Rust's {:?} does (recipe.md §1.4, §3.3).
#pragma once

#include <string>
#include <string_view>

namespace di::codec {

std::string rust_debug(std::string_view text);

}  // namespace di::codec
