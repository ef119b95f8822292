"""Counts per family, the printed table and the report file."""
from __future__ import annotations

from dataclasses import dataclass, field

_COUNTS = ("exact", "json_valid", "tool_valid")


@dataclass
class Family:
    items: int = 0
    failures: int = 0
    cut: int = 0                     # answers that ended at the token limit
    output_tokens: int = 0
    counts: dict = field(default_factory=lambda: {k: [0, 0] for k in _COUNTS})

    def add(self, score, response: dict) -> None:
        self.items += 1
        self.output_tokens += (response.get("usage") or {}).get("completion_tokens") or 0
        self.failures += "failure" in response
        for choice in response.get("choices") or []:
            self.cut += choice.get("finish_reason") == "length"
        for name in _COUNTS:
            value = getattr(score, name)
            if value is not None:
                self.counts[name][0] += value
                self.counts[name][1] += 1

    def merge(self, other: "Family") -> None:
        self.items += other.items
        self.failures += other.failures
        self.cut += other.cut
        self.output_tokens += other.output_tokens
        for name, (good, total) in other.counts.items():
            self.counts[name][0] += good
            self.counts[name][1] += total

    def as_dict(self) -> dict:
        result = {"items": self.items, "failures": self.failures, "cut": self.cut,
                  "output_tokens": self.output_tokens}
        for name, (good, total) in self.counts.items():
            if total:
                result[name] = {"right": good, "of": total, "share": round(good / total, 4)}
        return result


def _cell(count: list[int]) -> str:
    return f"{count[0]}/{count[1]} {count[0] / count[1]:.3f}" if count[1] else "-"


def table(families: dict[str, Family]) -> str:
    """One line per family and a last line for all of them."""
    total = Family()
    for family in families.values():
        total.merge(family)
    lines = [f"{'family':<18}{'items':>6}{'exact':>18}{'JSON valid':>18}{'tools valid':>18}"
             f"{'failed':>8}{'cut':>5}"]
    for name, f in [*families.items(), ("all", total)]:
        cells = "".join(f"{_cell(f.counts[k]):>18}" for k in _COUNTS)
        lines.append(f"{name:<18}{f.items:>6}{cells}{f.failures:>8}{f.cut:>5}")
    return "\n".join(lines)
