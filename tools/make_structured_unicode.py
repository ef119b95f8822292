#!/usr/bin/env python3
"""Writes src/structured/regex/unicode_table.cc: General_Category (Python's unicodedata) and Script (fontTools)."""
import pathlib
import unicodedata

from fontTools.unicodedata import Scripts

LONG = {
    "Lu": "Uppercase_Letter", "Ll": "Lowercase_Letter", "Lt": "Titlecase_Letter", "Lm": "Modifier_Letter",
    "Lo": "Other_Letter", "Mn": "Nonspacing_Mark", "Mc": "Spacing_Mark", "Me": "Enclosing_Mark", "Nd": "Decimal_Number",
    "Nl": "Letter_Number", "No": "Other_Number", "Pc": "Connector_Punctuation", "Pd": "Dash_Punctuation",
    "Ps": "Open_Punctuation", "Pe": "Close_Punctuation", "Pi": "Initial_Punctuation", "Pf": "Final_Punctuation",
    "Po": "Other_Punctuation", "Sm": "Math_Symbol", "Sc": "Currency_Symbol", "Sk": "Modifier_Symbol", "So": "Other_Symbol",
    "Zs": "Space_Separator", "Zl": "Line_Separator", "Zp": "Paragraph_Separator", "Cc": "Control", "Cf": "Format",
    "Cs": "Surrogate", "Co": "Private_Use", "Cn": "Unassigned",
}


def ranges_of(values):
    out = {}
    for c, k in values:
        r = out.setdefault(k, [])
        if r and r[-1][1] == c - 1:
            r[-1][1] = c
        else:
            r.append([c, c])
    return out


def main():
    chars = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    cats = ranges_of((c, unicodedata.category(chr(c))) for c in chars)
    starts = list(Scripts.RANGES) + [0x110000]
    scripts = {}
    for i, v in enumerate(Scripts.VALUES):
        if v != "Zzzz":
            scripts.setdefault(v, []).append([starts[i], starts[i + 1] - 1])
    lines = [
        "// Made by tools/make_structured_unicode.py (Unicode %s); not edited by hand." % unicodedata.unidata_version,
        '#include "structured/regex/unicode_table.h"',
        "",
        "namespace di::structured {",
        "namespace {",
        "",
    ]
    rows = []
    for kind, table, names in (("kCategory", cats, LONG), ("kScript", scripts, Scripts.NAMES)):
        for key in sorted(table):
            var = "%s_%s" % (kind, key)
            body = ", ".join("{%d, %d}" % tuple(r) for r in table[key])
            lines.append("constexpr UnicodeRange %s[] = {%s};" % (var, body))
            rows.append('    {UnicodeKind::%s, "%s", "%s", %s},' % (kind, key, names.get(key, key), var))
    lines += ["", "constexpr UnicodeEntry kEntries[] = {"] + rows + ["};", "", "}  // namespace", ""]
    lines += ["std::span<const UnicodeEntry> unicode_entries() { return kEntries; }", "", "}  // namespace di::structured", ""]
    path = pathlib.Path(__file__).resolve().parent.parent / "src/structured/regex/unicode_table.cc"
    path.write_text("\n".join(lines))


main()
