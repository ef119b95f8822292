"""JSON lines, compressed with zstd when the name ends in .zst."""
from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Iterable, Iterator


def read_lines(path: Path | str) -> Iterator[dict]:
    if str(path).endswith(".zst"):
        import zstandard
        with open(path, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            yield from map(json.loads, io.TextIOWrapper(stream, encoding="utf-8"))
    else:
        with open(path, encoding="utf-8") as file:
            yield from map(json.loads, file)


def write_lines(path: Path | str, items: Iterable[dict]) -> None:
    data = "".join(json.dumps(i, ensure_ascii=False) + "\n" for i in items).encode()
    if str(path).endswith(".zst"):
        import zstandard
        data = zstandard.ZstdCompressor(level=19).compress(data)
    Path(path).write_bytes(data)
