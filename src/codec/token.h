// The one token type that other rooms share with the codec.
#pragma once

#include <cstdint>

namespace di {

using TokenId = int32_t;

}  // namespace di
