"""Writes the trained model as a checkpoint in the published names and formats, and checks what was written.

    python3 export.py --config ../../models/tiny --from SNAPSHOT_OR_STATE --out ../../models/tiny
    python3 export.py --config ../../models/tiny --items items.safetensors \
        --logits ../../tests/data/tiny_logits.safetensors     # expected logits of the checkpoint that is there

The check reads the shards with a reader of its own, dequantises, and compares every weight with the fake-quantised
one of training, and the logits of a prompt.
"""
import argparse
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from model import quant, snapshot
from model.backbone import Backbone, Mode
from model.checkpoint import checkpoint_tensors, load_params, read_tensors, write_checkpoint
from model.config import engram_vocab_map, load_config
from model.params import make_backbone, make_draft

EXACT = Mode(dtype=torch.float32, sparse=True)


def independent_read(folder):
    """name -> fp32 array, from the bytes of the shards (no library, no code of model/)."""
    raw = {}
    for shard in sorted(Path(folder).glob("model-*.safetensors")):
        data = shard.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                a, b = (8 + size + x for x in t["data_offsets"])
                raw[name] = (t["dtype"], t["shape"], data[a:b])
    byte = np.arange(256)
    sign = np.where(byte >= 128, -1.0, 1.0)
    e, m = (byte >> 3) & 15, byte & 7
    e4m3 = sign * np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0**(e - 7.0))
    e2m1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6])
    out = {}
    for name, (dtype, shape, data) in raw.items():
        if dtype == "F8_E8M0":
            continue
        if dtype == "F32":
            out[name] = np.frombuffer(data, np.float32).reshape(shape)
            continue
        if dtype == "BF16":
            out[name] = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
            continue
        scale_type, scale_shape, scale = raw[name.removesuffix(".weight") + ".scale"]
        assert scale_type == "F8_E8M0", name
        factor = 2.0**(np.frombuffer(scale, np.uint8).astype(float) - 127).reshape(scale_shape)
        q = np.frombuffer(data, np.uint8).reshape(shape)
        if dtype == "I8":
            value = np.stack([e2m1[q & 15], e2m1[q >> 4]], -1).reshape(shape[0], -1)
        else:
            value = e4m3[q]
            factor = np.repeat(factor, shape[0] // scale_shape[0], 0)
        out[name] = (value * np.repeat(factor, 32, 1)).astype(np.float32)
    return out


def check_weights(params_list, folder):
    """Largest difference between the stored and the fake-quantised weights (0 is expected)."""
    stored, worst = independent_read(folder), 0.0
    for params in params_list:
        for s in params.specs:
            value = quant.FAKE_QUANT[s.kind](params.values[s.key].detach())
            for name, part in zip(s.names, s.items(value)):
                worst = max(worst, float((torch.from_numpy(stored.pop(name).copy()) - part).abs().max()))
    left = [n for n in stored if not n.endswith((".gate.bias", ".gate.bias_vl"))]
    assert not left, f"tensors nobody wrote: {left[:3]}"
    return worst


@torch.no_grad()
def run(backbone, params, ids, mode):
    w = backbone.compute_copies(params, mode)
    w["bias"] = params.bias
    return backbone.forward(w, ids.view(1, -1), mode)["hidden"] @ w["head"].t()


def reference_logits(backbone, params, items_path, out_path, prompts=20, rows=2):
    """Logits of the last `rows` positions of held-out prompts, exact arithmetic, no KV quantisation."""
    from evaluate import load_items
    items, names = load_items(items_path)
    wanted, tensors = [], {}
    order = [n for n in names if n not in ("recall_8k", "recall_15k", "recall_4k")] * 2
    for name in order + ["recall_4k"]:
        mine = [x for x in items if x.family == name and id(x) not in {id(w) for w in wanted}]
        if mine and len(wanted) < prompts:
            wanted.append(mine[0])
    for i, x in enumerate(wanted):
        ids = torch.from_numpy(x.ids[:x.answer])
        logits = run(backbone, params, ids, EXACT)
        keep = min(rows, len(ids))
        tensors[f"p{i:02d}.input_ids"] = ids.to(torch.int32)
        tensors[f"p{i:02d}.positions"] = torch.arange(len(ids) - keep, len(ids), dtype=torch.int32)
        tensors[f"p{i:02d}.logits"] = logits[-keep:].contiguous()
    save_file(tensors, out_path, {"families": json.dumps([x.family for x in wanted]),
                                  "mode": "exact arithmetic, no KV quantisation, weights as stored"})
    return len(wanted)


def export(args):
    config = load_config(args.config)
    params, draft = make_backbone(config), make_draft(config)
    if args.source.is_dir():
        meta = snapshot.read(args.source, params, draft)
    else:
        meta = torch.load(args.source, map_location="cpu", weights_only=False)
        params.load_state(meta["params"])
        draft.load_state(meta["draft"])
    for p in (params, draft):
        assert torch.isfinite(p.flat).all() and torch.isfinite(p.bias).all(), "weights are not finite"
    tensors = {**checkpoint_tensors(params), **checkpoint_tensors(draft)}
    total = write_checkpoint(args.out, tensors)
    for name in ("config.json", "tokenizer.json"):
        source = Path(args.config) / name
        if source.exists() and source.resolve() != (args.out / name).resolve():
            shutil.copy(source, args.out / name)
    print(f"{args.out}: {len(tensors)} tensors, {total / 1e6:.1f} MB, after {meta['tokens'] / 1e6:.1f} M tokens, {meta['clock']}")
    if args.no_check:
        return
    worst = check_weights([params, draft], args.out)
    print(f"stored against trained weights: largest difference {worst:.1e}")
    assert worst == 0
    loaded = make_backbone(config)
    load_params(loaded, read_tensors(args.out))
    backbone = Backbone(config, engram_vocab_map(config, args.out / "tokenizer.json"))
    ids = torch.randint(config.vocab_size, (300,), generator=torch.Generator().manual_seed(1))
    a = run(backbone, params, ids, EXACT.but(weight_quant=True))
    b = run(backbone, loaded, ids, EXACT)
    print(f"logits, trained (fake-quantised) against loaded: {float((a - b).abs().max()):.1e}")
    assert float((a - b).abs().max()) < 1e-4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--from", dest="source", type=Path, help="state.pt or a folder with a snapshot")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--items", help="evaluation items (prepare_eval.py)")
    parser.add_argument("--logits", help="file for expected logits")
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
    if args.source:
        export(args)
    if args.logits:
        folder = args.out or Path(args.config)
        config = load_config(folder)
        params = make_backbone(config)
        load_params(params, read_tensors(folder))
        backbone = Backbone(config, engram_vocab_map(config, folder / "tokenizer.json"))
        print(f"{args.logits}: {reference_logits(backbone, params, args.items, args.logits)} prompts")


if __name__ == "__main__":
    main()
