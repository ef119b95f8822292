"""Cases made at random whose values are computed here, from the formulas: of drafts, sampling and verify lengths (dspark_cases.py), and of
the identity of KV blocks. DEEPINFER_SEED=N makes others."""
import hashlib
import json
import os
import random
import struct
import subprocess

import pytest

import dspark_cases
import harness

PROGRAM = harness.binary().parent / "deepinfer-conformance"
SEED = int(os.environ.get("DEEPINFER_SEED", "0"))

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")


def run(kind, folder):
    done = subprocess.run([PROGRAM, kind, folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    return int(done.stdout.split(" passed, 0 failed")[0].split()[-1])


def test_speculation_and_sampling_follow_the_formulas(tmp_path):
    dspark_cases.write_cases(tmp_path, SEED, 8)
    assert run("dspark", tmp_path) > 150
    broken = json.loads((tmp_path / "verification.json").read_text())
    broken["cases"][0]["expected"]["row_token"][0] += 1
    (tmp_path / "verification.json").write_text(json.dumps(broken))
    assert subprocess.run([PROGRAM, "dspark", tmp_path], capture_output=True, timeout=300).returncode != 0


def sha(data):
    return hashlib.sha256(data).digest()


def hash_case(rng, name):
    """kv-cache.md §2.2."""
    size = rng.choice([64, 128, 256, 512, 1024])
    fields = {1: rng.choice(["family", "é模型", ""]).encode(), 2: rng.randbytes(32), 3: rng.randbytes(32), 4: b"ds41/1", 7: struct.pack("<I", size)}
    for tag, lengths in ((5, [32]), (6, [0, 1, 32, 300])):
        if rng.random() < 0.5:
            fields[tag] = rng.randbytes(rng.choice(lengths))
    tokens = [rng.randrange(129280) for _ in range(rng.choice([0, 1, size - 1, size, size + 1, rng.randrange(1, 5 * size)]))]
    media, at = [], rng.randrange(size)
    while at < len(tokens) and rng.random() < 0.7:
        length = rng.choice([1, 3, size - 1, size, 2 * size + 5])
        media.append((at, length, rng.randbytes(32)))
        at += length + rng.choice([0, 0, 1, size // 2])
    root = parent = sha(b"deepinfer/kv/root/1\0" + b"".join(struct.pack("<HI", tag, len(v)) + v for tag, v in sorted(fields.items())))
    blocks = []
    for first in range(0, len(tokens), size):
        block = tokens[first:first + size]
        items = [struct.pack("<iI", start - first, length) + digest for start, length, digest in media if start < first + len(block) and start + length > first]
        parent = sha((b"\x42" if len(block) == size else b"\x54") + parent + struct.pack(f"<I{len(block)}I", len(block), *block) + struct.pack("<H", len(items)) + b"".join(items))
        blocks.append(parent.hex())
    rng.shuffle(media)
    return {"name": name, "fields": {str(tag): v.hex() for tag, v in fields.items()}, "block_tokens": size, "tokens": tokens,
            "media": [{"start": s, "length": n, "digest": d.hex()} for s, n, d in media], "root": root.hex(), "blocks": blocks}


def test_blocks_are_named_by_their_content(tmp_path):
    rng = random.Random(SEED)
    (tmp_path / "block_hash.json").write_text(json.dumps([hash_case(rng, f"random {i}") for i in range(60)]))
    assert run("kv", tmp_path) == 60
