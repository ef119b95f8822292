// Passes over a row of logits, most of what sampling costs: written for vector registers, four or eight values at a
// time, the same in every build. Pure functions.
#pragma once

#include <span>

namespace di::engine {

// The largest value; -infinity for none. Nothing when one is NaN: has_nan is set and the result has no meaning.
float largest_of(std::span<const float> values, bool& has_nan);

// weights[i] = exp(logits[i] - largest) in double precision, to a few units in the last place (exactly 1 for the
// largest, 0 below e^-708); returns their sum. largest: that of `logits`, finite.
double softmax_weights(std::span<const float> logits, float largest, std::span<double> weights);

}  // namespace di::engine
