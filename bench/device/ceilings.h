#pragma once

#include <cstdint>

namespace di::bench {

enum class Fill : uint8_t { kRandom, kBf16, kF32, kE4m3, kScale };

void launch_read(const void* data, int64_t bytes, uint32_t* sink, void* stream);
// bytes: a multiple of 4.
void launch_fill(void* data, int64_t bytes, Fill fill, uint64_t seed, void* stream);

}  // namespace di::bench
