#include "structured/schema/format.h"

#include <string>
#include <vector>

#include "structured/regex/pattern.h"

namespace di::structured {
namespace {

// 29 February only in leap years of the Gregorian calendar.
std::string leap_year() {
  const std::string two = "(?:0[48]|[2468][048]|[13579][26])";  // 04, 08, ... 96
  return "(?:[0-9]{2}" + two + "|(?:" + two + "|00)00)";
}

std::string full_date() {
  return "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-"
         "9]|1[0-9]|2[0-8]))|" +
         leap_year() + "-02-29)";
}

std::string full_time() {
  const std::string offset = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  return "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?" + offset + "|23:59:60(?:\\.[0-9]+)?[Zz])";
}

std::string ipv4() {
  const std::string octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return "(?:" + octet + "(?:\\." + octet + "){3})";
}

std::string ipv6() {
  const std::string h = "[0-9a-fA-F]{1,4}";
  const std::string l = "(?:" + h + ":" + h + "|" + ipv4() + ")";
  auto c = [&](int n) { return "(?:" + h + ":){" + std::to_string(n) + "}"; };
  auto upto = [&](int n) {
    return n == 0 ? "(?:" + h + ")?" : "(?:(?:" + h + ":){0," + std::to_string(n) + "}" + h + ")?";
  };
  return "(?:" + c(6) + l + "|::" + c(5) + l + "|" + upto(0) + "::" + c(4) + l + "|" + upto(1) + "::" + c(3) + l + "|" +
         upto(2) + "::" + c(2) + l + "|" + upto(3) + "::" + h + ":" + l + "|" + upto(4) + "::" + l + "|" + upto(5) +
         "::" + h + "|" + upto(6) + "::)";
}

// Labels of letters, digits and inner hyphens; no `--` in places 3 and 4 (A-labels cannot be judged without IDNA
// tables).
std::string host_label() {
  const std::string ld = "[A-Za-z0-9]";
  const std::string ldh = "[A-Za-z0-9-]";
  // Places 3 and 4 not both hyphens: up to two characters, or a third or fourth that is none.
  const std::string one = "(?:" + ld + "|" + ld + ld + "|" + ld + ldh + ld + "(?:" + ldh + "{0,59}" + ld + ")?|" + ld +
                          ldh + "-" + ld + "(?:" + ldh + "{0,58}" + ld + ")?)";
  return one;
}

std::string host() {
  return "(?:" + host_label() + "(?:\\." + host_label() + ")*)";
}

// `wide`: the international form (RFC 3987), without the private ranges.
std::string uri_body(bool reference, bool wide) {
  const std::string pct = "%[0-9A-Fa-f]{2}";
  const std::string unreserved =
      std::string("A-Za-z0-9\\-._~") +
      (wide ? "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef\\u{10000}-\\u{1fffd}\\u{20000}-\\u{2fffd}" : "");
  const std::string sub = "!$&'()*+,;=";
  const std::string pchar = "(?:[" + unreserved + sub + ":@]|" + pct + ")";
  const std::string seg_nc = "(?:(?:[" + unreserved + sub + "@]|" + pct + ")+)";
  const std::string userinfo = "(?:(?:[" + unreserved + sub + ":]|" + pct + ")*@)?";
  const std::string literal = "\\[(?:" + ipv6() + "|[vV][0-9A-Fa-f]+\\.[" + unreserved + sub + ":]+)\\]";
  const std::string authority =
      userinfo + "(?:" + literal + "|(?:[" + unreserved + sub + "]|" + pct + ")*)(?::[0-9]*)?";
  const std::string abempty = "(?:/" + pchar + "*)*";
  const std::string absolute = "/(?:" + pchar + "+" + abempty + ")?";
  const std::string rootless = pchar + "+" + abempty;
  const std::string tail = "(?:\\?(?:" + pchar + "|[/?])*)?(?:#(?:" + pchar + "|[/?])*)?";
  const std::string full =
      "[A-Za-z][A-Za-z0-9+.\\-]*:(?://" + authority + abempty + "|" + absolute + "|" + rootless + "|)" + tail;
  if (!reference) return full;
  return "(?:" + full + "|(?://" + authority + abempty + "|" + absolute + "|" + seg_nc + abempty + "|)" + tail + ")";
}

std::string duration() {
  const std::string time = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
  const std::string day = "[0-9]+D";
  const std::string month = "[0-9]+M(?:" + day + ")?";
  const std::string year = "[0-9]+Y(?:" + month + ")?";
  return "P(?:(?:" + day + "|" + month + "|" + year + ")(?:" + time + ")?|" + time + "|[0-9]+W)";
}

std::string email() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-]+";
  const std::string quoted = "\"(?:[\\x20-\\x21\\x23-\\x5b\\x5d-\\x7e]|\\\\[\\x20-\\x7e])*\"";
  return "(?:" + atom + "(?:\\." + atom + ")*|" + quoted + ")@(?:" + host() + "|\\[(?:" + ipv4() + "|IPv6:" + ipv6() +
         ")\\])";
}

// RFC 6570.
std::string uri_template() {
  const std::string pct = "%[0-9A-Fa-f]{2}";
  const std::string literal =
      "[!#$&-;=?-\\[\\]_a-z~\\u{10000}-\\u{1fffd}\\u{20000}-\\u{2fffd}\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef]";
  const std::string var = "(?:[A-Za-z0-9_]|" + pct + ")(?:\\.?(?:[A-Za-z0-9_]|" + pct + "))*(?::[1-9][0-9]{0,3}|\\*)?";
  return "(?:" + literal + "|" + pct + "|\\{[+#./;?&=,!@|]?" + var + "(?:," + var + ")*\\})*";
}

// A sound part of the international names: ASCII labels, and labels of lower-case or caseless letters that need no
// contextual rule, short enough for their ASCII form to fit.
std::string idn_host() {
  const std::string letters =
      "[\\u00df-\\u00f6\\u00f8-\\u00ff\\u03b1-\\u03c9\\u0430-\\u044f\\u0905-\\u0939\\u3041-\\u3096\\u30a1-"
      "\\u30fa\\u4e00-\\u9fa5\\uac00-\\ud7a3]";
  const std::string one = "(?:" + host_label() + "|(?:" + letters + "|[a-z0-9]){1,15})";
  return "(?:" + one + "(?:[.\\u3002\\uff0e\\uff61]" + one + "){0,3})";
}

// RFC 6531 §3.3: any character beyond ASCII.
std::string idn_atom() {
  return "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-\\u0080-\\ud7ff\\ue000-\\uffff\\u{10000}-\\u{10ffff}]+";
}

// At most 64 bytes before the @ (RFC 5321 §4.5.3.1.1).
NodeId idn_email(Arena& a) {
  auto re = [&](const std::string& p) { return compile_pattern(a, p, PatternUse::kWhole).value_or(kNothing); };
  const std::string quoted =
      "\"(?:[\\x20-\\x21\\x23-\\x5b\\x5d-\\x7e\\u0080-\\ud7ff\\ue000-\\uffff\\u{10000}-\\u{10ffff}]|\\\\[\\x20-\\x7e])*"
      "\"";
  const NodeId local = re("(?:" + idn_atom() + "(?:\\." + idn_atom() + ")*|" + quoted + ")");
  // Labels with combining marks behind ASCII letters are valid too; the accents of Latin, composed or not.
  const std::string label = "(?:[a-z0-9]{0,6}[a-z]\\u0301[a-z0-9]{0,6})";
  const NodeId domain = re("(?:" + idn_host() + "|" + label + "(?:\\." + host_label() + ")*)");
  return a.concat({a.both(local, a.repeat(a.bytes(ByteSet::range(0, 255)), 1, 64)), a.byte('@'), domain});
}

// Regular expressions as a format: a sound part of the dialect with groups nested at most five deep, whose brackets,
// ranges and quantifiers are well-formed. (All of them would need counting.)
NodeId regex_format(Arena& a) {
  auto re = [&](const std::string& p) { return compile_pattern(a, p, PatternUse::kWhole).value_or(kNothing); };
  std::string ranges;
  for (const auto& [low, high] : {std::pair{'a', 'z'}, std::pair{'A', 'Z'}, std::pair{'0', '9'}}) {
    for (char c = low; c <= high; ++c) ranges += std::string("|") + c + "-[" + c + "-" + high + "]";
  }
  const std::string escape = R"(\\[dDwWsStnrfv0/.*+?^$()\[\]{}|\\])";
  const NodeId chars = re("\\[\\^?\\]|\\[\\^?(?:[^\\]\\[\\\\^\\-]|" + escape + "|\\\\-" + ranges + ")+-?\\]");
  std::string bounds = "[0-9]{1,4}|[0-9]{1,4},|[0-9],[1-9][0-9]{1,3}";
  for (char c = '0'; c <= '9'; ++c) bounds += std::string("|") + c + ",[" + c + "-9]";
  const NodeId times = a.optional(re("(?:[*+?]|\\{(?:" + bounds + ")\\})\\??"));
  const NodeId simple = a.alt({re(R"([^\\^$.*+?()\[\]{}|])"), re(escape), re(R"(\\c[A-Za-z])"), a.byte('.'), chars});
  NodeId alternatives = kEmptyText;
  NodeId branch = kEmptyText;
  NodeId more = kEmptyText;
  for (int depth = 0; depth < 5; ++depth) {
    NodeId piece = a.alt({a.concat(simple, times), a.byte('^'), a.byte('$'), re(R"(\\[bB])")});
    if (depth > 0) {
      const NodeId close = a.byte(')');
      piece = a.alt({piece, a.concat({a.byte('('), a.optional(a.literal("?:")), alternatives, close, times}),
                     a.concat({re(R"(\(\?[=!])"), alternatives, close})});
    }
    branch = a.star(piece);
    more = a.star(a.concat(a.byte('|'), branch));
    alternatives = a.concat(branch, more);
  }
  // At most one group has a name, so no name comes twice; one of a single letter may be referred to behind it.
  const auto group = [&](NodeId name) {
    return a.concat({a.literal("(?<"), name, a.byte('>'), alternatives, a.byte(')'), times, branch});
  };
  std::vector<NodeId> rest{more, group(re("[A-Za-z_$][A-Za-z0-9_$]*"))};
  for (char c = 'a'; c <= 'z'; ++c) {
    const NodeId reference = a.concat(a.literal(std::string("\\k<") + c + '>'), times);
    rest.push_back(a.concat({group(a.byte(static_cast<uint8_t>(c))), reference, branch}));
  }
  return a.concat(branch, a.alt(std::move(rest)));
}

std::optional<std::string> pattern_of(std::string_view name) {
  if (name == "date-time") return full_date() + "[Tt]" + full_time();
  if (name == "date") return full_date();
  if (name == "time") return full_time();
  if (name == "duration") return duration();
  if (name == "email") return email();
  if (name == "hostname") return host();
  if (name == "ipv4") return ipv4();
  if (name == "ipv6") return ipv6();
  if (name == "uuid") return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
  if (name == "uri") return uri_body(false, false);
  if (name == "uri-reference") return uri_body(true, false);
  if (name == "iri") return uri_body(false, true);
  if (name == "iri-reference") return uri_body(true, true);
  if (name == "uri-template") return uri_template();
  if (name == "idn-hostname") return idn_host();
  if (name == "json-pointer") return "(?:/(?:[^/~]|~[01])*)*";
  if (name == "relative-json-pointer") return "(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)";
  return std::nullopt;
}

}  // namespace

std::optional<NodeId> compile_format(Arena& arena, std::string_view name) {
  if (name == "regex") return regex_format(arena);
  if (name == "idn-email") return idn_email(arena);
  const auto pattern = pattern_of(name);
  if (!pattern) return std::nullopt;
  const auto node = compile_pattern(arena, *pattern, PatternUse::kWhole);
  if (!node) return std::nullopt;
  if (name == "hostname") return arena.both(*node, arena.repeat(arena.any_char(), 1, 253));
  return *node;
}

}  // namespace di::structured
