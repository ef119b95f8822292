// Takes the one string out of the arguments {"input": "…"} of a custom tool while they are generated (recipe.md §6.3).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace di::codec::api {

class CustomInputDecoder {
 public:
  // Appends what `arguments` adds to the input.
  void feed(std::string_view arguments, std::string& out);
  // An unfinished prefix or escape is written as it stands.
  void finish(std::string& out);

 private:
  enum class State : uint8_t { kPrefix, kString, kDone, kRaw };

  void feed_prefix(std::string& out);
  void feed_string(std::string& out);
  // Bytes of `held_` that the escape at its start takes; 0: incomplete. Appends the character, or the bytes when
  // invalid.
  size_t escape(std::string_view text, std::string& out) const;

  State state_ = State::kPrefix;
  std::string held_;  // not yet understood
};

}  // namespace di::codec::api
