#!/usr/bin/env python3
"""Writes src/codec/tokenizer/unicode_table.cc from unicode_classes.json (ranges of \\p{N} \\p{L} \\p{M} \\p{P} \\p{S} \\s as
the tokenizer's regular-expression engine has them, Unicode 16; recipe.md §1.2).

    python3 tools/make_unicode_tables.py CLASSES.json [OUT.cc]

Two-stage table: kUnicodeBlock[cp >> 7] names a block of 128 class bytes. tests/codec/unicode_test.cc compares every code
point with the ranges.
"""
import json
import sys

BITS = {"L": 1, "M": 2, "N": 4, "P": 8, "S": 16, "s": 32}
IDEOGRAPH = 64  # the class of the second split: U+4E00-9FA5, U+3040-309F, U+30A0-30FF
IDEOGRAPH_RANGES = [(0x4E00, 0x9FA5), (0x3040, 0x309F), (0x30A0, 0x30FF)]
LINE_END = 128  # CR, LF
BLOCK = 128


def class_bytes(classes):
    table = bytearray(0x110000)
    for name, ranges in classes.items():
        bit = BITS[name.replace("\\p{", "").replace("}", "").replace("\\", "")]
        for first, last in ranges:
            for cp in range(first, last + 1):
                table[cp] |= bit
    for first, last in IDEOGRAPH_RANGES:
        for cp in range(first, last + 1):
            table[cp] |= IDEOGRAPH
    table[0x0A] |= LINE_END
    table[0x0D] |= LINE_END
    return bytes(table)


def rows(values, per_row):
    for i in range(0, len(values), per_row):
        yield "    " + ", ".join(str(v) for v in values[i : i + per_row]) + ","


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        table = class_bytes(json.load(f)["classes"])
    blocks, index = {}, []
    for at in range(0, len(table), BLOCK):
        block = table[at : at + BLOCK]
        index.append(blocks.setdefault(block, len(blocks)))
    out = [
        "// Made by tools/make_unicode_tables.py from the class ranges of recipe.md §1.2; do not edit.",
        '#include "codec/tokenizer/unicode.h"',
        "",
        "namespace di::codec {",
        "",
        "// clang-format off",
        f"const uint16_t kUnicodeBlock[{len(index)}] = {{",
        *rows(index, 32),
        "};",
        "",
        f"const uint8_t kUnicodeClass[{len(blocks)} * 128] = {{",
    ]
    for block in blocks:
        out += rows(list(block), 64)
    out += ["};", "// clang-format on", "", "}  // namespace di::codec", ""]
    text = "\n".join(out)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", encoding="utf-8") as f:
            f.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
