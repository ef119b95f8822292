"""A pool of encoded documents on disk, written by worker processes and read as packed windows.

    python -m tools.train.data.pool --out DIR --seed 1 --workers 14 --short-docs 600000 --long-docs 20000

Shard n of a kind (short | long | xlong) is three files:
    <kind>_<n>.tokens.npy   uint16, all documents one after the other
    <kind>_<n>.weights.npy  uint8, 10 = loss weight 1.0, 1 = 0.1
    <kind>_<n>.docs.npy     int64, start offset of every document
The tokens file appears last, by an atomic rename, so a reader that sees it sees the whole shard.
A shard depends on the seed, kind and n only, not on the number of workers."""
from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import time
from pathlib import Path

import numpy as np

from .encode import Encoder
from .filter import EvalFilter
from .generate import documents
from .render import render_training

KINDS = ("short", "long", "xlong")
# Documents per shard: about 1.5 M tokens each, so that a reader can begin within seconds.
SHARD_DOCUMENTS = {"short": 6000, "long": 380, "xlong": 125}
TOKENIZER = Path(__file__).parents[3] / "models" / "tiny" / "tokenizer.json"

_worker: dict = {}


def _set_up(out: str, seed: int, tokenizer: str) -> None:
    _worker.update(out=Path(out), seed=seed, encoder=Encoder(tokenizer), filter=EvalFilter.load())


def _save(path: Path, array: np.ndarray) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "wb") as file:
        np.save(file, array)
    os.replace(temporary, path)


def write_shard(job: tuple[str, int, int]) -> tuple[str, int, int]:
    """Generates, filters, encodes and writes one shard; (kind, tokens, dropped documents)."""
    kind, number, n_docs = job
    out, encoder, blocked = _worker["out"], _worker["encoder"], _worker["filter"]
    stem = f"{kind}_{number:05d}"
    if (out / f"{stem}.tokens.npy").exists():
        return kind, 0, 0
    tokens: list[int] = []
    weights: list[int] = []
    starts: list[int] = []
    dropped = 0
    for conv in documents(f"{_worker['seed']}.{kind}.{number}", kind):
        if len(starts) == n_docs:
            break
        segments = render_training(conv)
        if blocked.repeats(conv, segments):
            dropped += 1
            continue
        ids, w = encoder.encode(segments)
        starts.append(len(tokens))
        tokens += ids
        weights += w
    _save(out / f"{stem}.docs.npy", np.array(starts, np.int64))
    _save(out / f"{stem}.weights.npy", np.array(weights, np.uint8))
    _save(out / f"{stem}.tokens.npy", np.array(tokens, np.uint16))
    return kind, len(tokens), dropped


def jobs(counts: dict[str, int]) -> list[tuple[str, int, int]]:
    """Shards of all kinds, interleaved so that every kind is there early."""
    made = []
    for kind, total in counts.items():
        size = SHARD_DOCUMENTS[kind]
        n = -(-total // size)
        made += [((i + 0.5) / n if i else 0.0, kind, i, min(size, total - i * size))
                 for i in range(n)]
    made.sort(key=lambda job: job[0])
    return [job[1:] for job in made]


def fill(out: Path | str, seed: int, workers: int, counts: dict[str, int],
         tokenizer: Path | str = TOKENIZER, report=print) -> int:
    """Writes the pool; returns the number of tokens written."""
    Path(out).mkdir(parents=True, exist_ok=True)
    begin, total, dropped = time.monotonic(), 0, 0
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _set_up, (str(out), seed, str(tokenizer))) as pool:
        for i, (_, n, d) in enumerate(pool.imap_unordered(write_shard, jobs(counts)), 1):
            total, dropped = total + n, dropped + d
            if i % 20 == 0:
                spent = time.monotonic() - begin
                report(f"{total / 1e6:.1f} M tokens, {i} shards, {spent:.1f} s, "
                       f"{total / spent / 1e6:.2f} M tokens/s, {dropped} documents dropped",
                       flush=True)
    return total


class _Stream:
    """Documents of one kind in a resumable order: unread shards first, in their order, then again
    any shard at random with its documents shuffled."""

    def __init__(self, folder: Path, kind: str, seed: int, rank: int, world: int,
                 patience: float) -> None:
        self.folder, self.kind, self.seed = folder, kind, seed
        self.rank, self.world, self.patience = rank, world, patience
        self.rng = np.random.default_rng([seed, rank, KINDS.index(kind)])
        self.visits: dict[int, int] = {}
        self.shard = -1
        self.position = 0
        self._order = self._tokens = self._weights = self._starts = None

    def _present(self) -> list[int]:
        pattern = re.compile(rf"{self.kind}_(\d+)\.tokens\.npy")
        found = sorted(int(m.group(1)) for m in map(pattern.fullmatch, os.listdir(self.folder))
                       if m)
        mine = [n for n in found if n % self.world == self.rank]
        return mine or found

    def _open(self) -> None:
        stem = self.folder / f"{self.kind}_{self.shard:05d}"
        self._tokens = np.load(f"{stem}.tokens.npy", mmap_mode="r")
        self._weights = np.load(f"{stem}.weights.npy", mmap_mode="r")
        starts = np.load(f"{stem}.docs.npy")
        self._starts = np.append(starts, len(self._tokens))
        n, visit = len(starts), self.visits[self.shard]
        self._order = np.arange(n) if visit == 1 else \
            np.random.default_rng([self.seed, self.shard, visit]).permutation(n)

    def _advance(self) -> None:
        deadline = time.monotonic() + self.patience
        while not (present := self._present()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.folder}: no {self.kind}_*.tokens.npy after "
                                   f"{self.patience:.0f} s")
            time.sleep(0.2)
        unread = [n for n in present if n not in self.visits]
        self.shard = unread[0] if unread else int(self.rng.choice(present))
        self.visits[self.shard] = self.visits.get(self.shard, 0) + 1
        self.position = 0
        self._open()

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        if self.shard >= 0 and self._order is None:
            self._open()
        if self.shard < 0 or self.position == len(self._order):
            self._advance()
        k = self._order[self.position]
        self.position += 1
        a, b = self._starts[k], self._starts[k + 1]
        return self._tokens[a:b], self._weights[a:b]

    def state_dict(self) -> dict:
        return {"visits": dict(self.visits), "shard": self.shard, "position": self.position,
                "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict) -> None:
        self.visits = {int(k): v for k, v in state["visits"].items()}
        self.shard, self.position = state["shard"], state["position"]
        self.rng.bit_generator.state = state["rng"]
        self._order = None


class Packer:
    """Windows of T + 1 tokens: whole documents one after the other, the first one fresh, the last
    one cut at the end. Nothing is masked between documents.

    kind_mix   kind -> chance that a document is of it
    first_mix  the same for the first document of a window (default kind_mix); long documents
               belong there, since a cut one loses its questions
    rank, world  readers of several processes share the shards"""

    def __init__(self, folder: Path | str, kind_mix: dict[str, float], T: int, batch: int,
                 seed: int, first_mix: dict[str, float] | None = None, rank: int = 0,
                 world: int = 1, patience: float = 600.0) -> None:
        self.T, self.batch = T, batch
        self.mix = self._cumulative(kind_mix)
        self.first = self._cumulative(first_mix or kind_mix)
        kinds = [k for k in KINDS if kind_mix.get(k) or (first_mix or {}).get(k)]
        self.streams = {k: _Stream(Path(folder), k, seed, rank, world, patience) for k in kinds}
        self.rng = np.random.default_rng([seed, rank, len(KINDS), T])

    @staticmethod
    def _cumulative(mix: dict[str, float]) -> tuple[list[str], np.ndarray]:
        for kind in mix:
            if kind not in KINDS:
                raise ValueError(f"kind_mix: expected one of {KINDS}, found {kind!r}")
        names = [k for k in KINDS if mix.get(k)]
        shares = np.cumsum([mix[k] for k in names])
        return names, shares / shares[-1]

    def _document(self, mix) -> tuple[np.ndarray, np.ndarray]:
        names, bounds = mix
        at = min(int(np.searchsorted(bounds, self.rng.random(), "right")), len(names) - 1)
        return self.streams[names[at]].next()

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """(tokens int64 [B, T+1], weights float32 [B, T+1])."""
        size = self.T + 1
        tokens = np.empty((self.batch, size), np.int64)
        weights = np.empty((self.batch, size), np.float32)
        for row in range(self.batch):
            at = 0
            while at < size:
                t, w = self._document(self.first if at == 0 else self.mix)
                n = min(len(t), size - at)
                tokens[row, at:at + n] = t[:n]
                weights[row, at:at + n] = w[:n]
                at += n
        weights *= np.float32(0.1)
        return tokens, weights

    def state_dict(self) -> dict:
        """JSON-serialisable."""
        return {"rng": self.rng.bit_generator.state,
                "streams": {k: s.state_dict() for k, s in self.streams.items()}}

    def load_state_dict(self, state: dict) -> None:
        self.rng.bit_generator.state = state["rng"]
        for kind, stream in self.streams.items():
            stream.load_state_dict(state["streams"][kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--short-docs", type=int, default=600_000)
    parser.add_argument("--long-docs", type=int, default=20_000)
    parser.add_argument("--xlong-docs", type=int, default=3_000)
    parser.add_argument("--tokenizer", default=str(TOKENIZER))
    args = parser.parse_args()
    counts = {"short": args.short_docs, "long": args.long_docs, "xlong": args.xlong_docs}
    total = fill(args.out, args.seed, args.workers, {k: n for k, n in counts.items() if n},
                 args.tokenizer)
    print(f"{total / 1e6:.1f} M tokens")


if __name__ == "__main__":
    main()
