// How old things were when something happened to them (kv-cache.md §10).
#pragma once

#include <array>

#include "base/metrics.h"

namespace di::kv {

// Upper bounds, seconds.
inline constexpr std::array<double, 21> kAgeBounds = {.001, .002, .005, .01, .02, .05, .1,  .2,  .5,   1,   2,
                                                      5,    10,   20,   30,  60,  120, 300, 600, 1200, 1800};
using Ages = Buckets<kAgeBounds>;

}  // namespace di::kv
