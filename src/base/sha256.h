// SHA-256 of a byte string, and its lower-case hex form. Pure; safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace di {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::string_view bytes);
std::string to_hex(const Sha256& digest);

}  // namespace di
