"""bf16 copies of all weights in pieces below 16 MiB, to bring home from a machine that may go away."""
import json
import os
from pathlib import Path

import torch

PIECE = 15 << 20


def write(folder, params: dict, draft: dict, meta: dict):
    """params and draft as Params.state(): flat fp32 and bias."""
    folder = Path(folder)
    parts = [params["flat"].bfloat16(), draft["flat"].bfloat16()]
    data = b"".join(p.view(torch.int16).numpy().tobytes() for p in parts)
    data += b"".join(s["bias"].float().numpy().tobytes() for s in (params, draft))
    sizes = [params["flat"].numel(), draft["flat"].numel(), list(params["bias"].shape), list(draft["bias"].shape)]
    count = -(-len(data) // PIECE)
    pointer = folder / "snapshot.latest"        # the folder that is complete; the other one is written
    name = "snapshot.b" if pointer.exists() and pointer.read_text() == "snapshot.a" else "snapshot.a"
    (folder / name).mkdir(exist_ok=True)
    for i in range(count):
        (folder / name / f"snapshot.{i}.bin").write_bytes(data[i * PIECE:(i + 1) * PIECE])
    (folder / name / "snapshot.json").write_text(json.dumps({"pieces": count, "sizes": sizes, **meta}))
    (folder / "pointer.tmp").write_text(name)
    os.replace(folder / "pointer.tmp", pointer)


def read(folder, params, draft) -> dict:
    """Fills two Params from a snapshot; returns what was stored about the run."""
    folder = Path(folder)
    meta = json.loads((folder / "snapshot.json").read_text())
    data = bytearray(b"".join((folder / f"snapshot.{i}.bin").read_bytes() for i in range(meta["pieces"])))
    n, m, bias, draft_bias = meta["sizes"]
    flat = torch.frombuffer(data, dtype=torch.bfloat16, count=n + m).float()
    tail = torch.frombuffer(data, dtype=torch.float32, offset=2 * (n + m))
    cut = bias[0] * bias[1]
    params.load_state({"flat": flat[:n], "bias": tail[:cut].view(bias)})
    draft.load_state({"flat": flat[n:], "bias": tail[cut:].view(draft_bias)})
    return meta
