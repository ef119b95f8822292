"""Windows of training tokens: worker processes write them into rings on disk, the trainer reads them.

    python3 feed.py --dir POOL --tokenizer tokenizer.json --workers 24 --lengths 2048,8192,16384 --megatokens 400,120,80

A ring of a window length T holds [slots, T+1] token ids (uint16) and trained flags (uint8). Every worker owns an
equal share of the slots and a counter of windows written so far, so nothing is locked. Workers run until the file
POOL/stop appears. The same seed and worker number give the same windows.
"""
import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np


class Rings:
    """The files of a pool, mapped; layout.json describes them."""

    def __init__(self, folder, writable=False):
        self.folder = Path(folder)
        layout = json.loads((self.folder / "layout.json").read_text())
        self.lengths, self.workers = layout["lengths"], layout["workers"]
        mode = "r+" if writable else "r"
        self.ids, self.flags, self.share = {}, {}, {}
        for t, slots in zip(self.lengths, layout["slots"]):
            self.ids[t] = np.memmap(self.folder / f"{t}.ids", np.uint16, mode, shape=(slots, t + 1))
            self.flags[t] = np.memmap(self.folder / f"{t}.flags", np.uint8, mode, shape=(slots, t + 1))
            self.share[t] = slots // self.workers
        self.written = np.memmap(self.folder / "written", np.int64, mode, shape=(len(self.lengths), self.workers))

    @staticmethod
    def create(folder, lengths, megatokens, workers):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        slots = [max(int(m * 1e6 / t) // workers, 2) * workers for t, m in zip(lengths, megatokens)]
        for t, n in zip(lengths, slots):
            for name, size in (("ids", 2), ("flags", 1)):
                with open(folder / f"{t}.{name}", "wb") as f:
                    f.truncate(n * (t + 1) * size)
        with open(folder / "written", "wb") as f:
            f.truncate(len(lengths) * workers * 8)
        (folder / "layout.json").write_text(json.dumps({"lengths": lengths, "slots": slots, "workers": workers}))


class Reader:
    """Draws windows for one rank: unread ones first, then any again."""

    def __init__(self, folder, rank=0, world=1, seed=0):
        self.rings, self.rank, self.world = Rings(folder), rank, world
        self.next = {t: np.full(self.rings.workers, rank, np.int64) for t in self.rings.lengths}
        self.rng = np.random.default_rng([seed, rank])
        self.fresh = self.repeated = 0

    def available(self, t):
        return int(self.rings.written[self.rings.lengths.index(t)].sum())

    def batch(self, t, n):
        """ids int64 [n, T+1], flags uint8 [n, T+1]"""
        rings, cursor = self.rings, self.next[t]
        written = np.array(rings.written[rings.lengths.index(t)])
        share, rows = rings.share[t], []
        np.maximum(cursor, written - share + self.world, out=cursor, where=written > share + cursor)
        for w in self.rng.permutation(np.repeat(np.arange(rings.workers), -(-n // rings.workers))):
            if len(rows) == n:
                break
            if cursor[w] < written[w]:
                rows.append(w * share + cursor[w] % share)
                cursor[w] += self.world
                self.fresh += 1
        if len(rows) < n:      # the other workers may still have unread windows
            for w in self.rng.permutation(rings.workers):
                while len(rows) < n and cursor[w] < written[w]:
                    rows.append(w * share + cursor[w] % share)
                    cursor[w] += self.world
                    self.fresh += 1
        if len(rows) < n:
            full = np.minimum(written, share)
            if full.sum() == 0:
                raise RuntimeError(f"the pool has no window of {t} tokens yet")
            for _ in range(n - len(rows)):
                w = self.rng.choice(rings.workers, p=full / full.sum())
                rows.append(w * share + int(self.rng.integers(full[w])))
                self.repeated += 1
        rows = np.array(rows)
        return rings.ids[t][rows].astype(np.int64), rings.flags[t][rows]

    def state(self):
        return {"next": self.next, "rng": self.rng.bit_generator.state}

    def load_state(self, state):
        for t in self.next:
            if t in state["next"] and len(state["next"][t]) == len(self.next[t]):
                self.next[t] = state["next"][t]
        self.rng.bit_generator.state = state["rng"]


def pack(documents, t):
    """One window of t+1 tokens: whole documents, the last one cut. documents: corpus.Windows."""
    ids, flags, tries = [], [], 0
    documents.start()
    while len(ids) < t + 1:
        d, f = next(documents)
        room = t + 1 - len(ids)
        if len(d) > room and room < t // 2 and tries < 4:
            tries += 1          # rather a shorter document than the beginning of a long one
            continue
        ids += d
        flags += f
        tries = 0
    return np.array(ids[:t + 1], np.uint16), np.array(flags[:t + 1], np.uint8)


def work(folder, worker, seed, tokenizer, first_seconds, talk):
    os.nice(5)
    from corpus import Windows
    rings = Rings(folder, writable=True)
    rng = np.random.default_rng([seed, worker, 77])
    sources = {t: Windows(tokenizer, t, f"{seed}.{worker}.{t}", talk) for t in rings.lengths}
    begin, stop = time.time(), Path(folder) / "stop"
    # the shortest length first, then tokens in the proportion of the rings
    sizes = np.array([rings.share[t] * t for t in rings.lengths], float)
    while not stop.exists():
        early = time.time() - begin < first_seconds
        p = sizes / np.array(rings.lengths)
        t = rings.lengths[0] if early else int(rng.choice(rings.lengths, p=p / p.sum()))
        i = rings.lengths.index(t)
        n = int(rings.written[i, worker])
        slot = worker * rings.share[t] + n % rings.share[t]
        rings.ids[t][slot], rings.flags[t][slot] = pack(sources[t], t)
        rings.written[i, worker] = n + 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--workers", type=int, default=max(os.cpu_count() - 6, 1))
    parser.add_argument("--lengths", default="2048,8192,16384")
    parser.add_argument("--megatokens", default="500,150,120")
    parser.add_argument("--first-seconds", type=float, default=60, help="time at the start for the shortest length only")
    parser.add_argument("--talk", type=float, default=0.0, help="chance that a short document is free chat")
    parser.add_argument("--seed", type=int, default=20270101)
    args = parser.parse_args()
    lengths = [int(v) for v in args.lengths.split(",")]
    Rings.create(args.dir, lengths, [float(v) for v in args.megatokens.split(",")], args.workers)
    jobs = [multiprocessing.Process(target=work, args=(args.dir, w, args.seed, args.tokenizer, args.first_seconds,
                                                       args.talk))
            for w in range(args.workers)]
    for j in jobs:
        j.start()
    for j in jobs:
        j.join()


if __name__ == "__main__":
    main()
