// Syntax check of regular expressions in schemas: would the engine behind the official service's schema check (a
// backtracking engine with look-around and back references) accept the pattern? Nothing is matched here.
#pragma once

#include <string_view>

namespace di::codec::api {

bool is_valid_regex(std::string_view pattern);

}  // namespace di::codec::api
