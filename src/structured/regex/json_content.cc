#include "structured/regex/json_content.h"

#include "structured/regex/char_set.h"

namespace di::structured {

NodeId json_content(Arena& a) {
  CharSet raw = CharSet::all();
  CharSet cut;
  cut.add(0, 0x1f);
  cut.add('"', '"');
  cut.add('\\', '\\');
  cut.normalise();
  CharSet keep = cut.complement();
  auto hex = [&](std::string_view digits) {
    ByteSet s;
    for (const char c : digits) s.add(static_cast<uint8_t>(c));
    return a.bytes(s);
  };
  const NodeId any = hex("0123456789abcdefABCDEF");
  const NodeId d = hex("dD");
  const NodeId low = a.concat({a.literal("\\u"), d, hex("cdefCDEF"), any, any});
  const NodeId high = a.concat({d, hex("89abAB"), any, any, low});
  const NodeId single =
      a.alt(a.concat({hex("0123456789abcefABCEF"), any, any, any}), a.concat({d, hex("01234567"), any, any}));
  const NodeId escape = a.concat(a.byte('\\'), a.alt(hex("\"\\/bfnrt"), a.concat(a.byte('u'), a.alt(single, high))));
  return a.star(a.alt(utf8_class(a, keep), escape));
}

}  // namespace di::structured
