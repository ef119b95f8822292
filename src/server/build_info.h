// What the program was built from (cmake/Git.cmake). Constant data.
#pragma once

#include <string_view>

namespace di::server {

// Commit of the sources, 12 hex digits; empty: not built from a repository.
std::string_view git_commit();

}  // namespace di::server
