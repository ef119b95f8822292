// How far the tests go in sanitizer builds: long prompts and large samples look for arithmetic, which the sanitizers do
// not change; there they only cost minutes.
#pragma once

#include <cstdint>

namespace di::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // g++
inline constexpr bool kSanitized = true;
#elif defined(__clang__)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

// Tokens of the longest prompt that is worth its time.
inline constexpr int32_t kLongestPrompt = kSanitized ? 320 : 1 << 20;

// Processor time that one piece of work may be given where a limit on it is not what is tested.
inline constexpr int64_t kPatientMs = 60'000;

}  // namespace di::test
