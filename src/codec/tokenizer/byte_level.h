// The byte-level alphabet: 256 printable stand-in characters for the bytes (recipe.md §1.2 step 5).
#pragma once

#include <string>
#include <string_view>

namespace di::codec {

// Bytes that `text` stands for, or false when one of its characters is not in the alphabet.
bool from_byte_level(std::string_view text, std::string& bytes);

}  // namespace di::codec
