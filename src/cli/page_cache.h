// Files and the page cache, for measurements that begin with or without them in memory.
#pragma once

#include <string>

namespace di::cli {

// Takes the files of a folder out of the page cache, as far as nobody else holds them.
void forget_pages(const std::string& folder);

}  // namespace di::cli
