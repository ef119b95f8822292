"""Reading and writing checkpoints in the published names and formats (model.md §3.1, §4.1)."""
import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from . import quant

E2M1_VALUES = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6])


def read_tensors(folder) -> dict:
    folder = Path(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    out = {}
    for shard in sorted(set(index.values())):
        with safe_open(folder / shard, "pt") as f:
            out.update({name: f.get_tensor(name) for name in f.keys()})
    missing = set(index) - set(out)
    if missing:
        raise ValueError(f"{folder}: listed in the index but absent: {sorted(missing)[:3]}")
    return out


def dequantise(name: str, tensors: dict, kind: str):
    """fp32 value of one checkpoint tensor."""
    w = tensors[name]
    if kind in ("bf16", "f32"):
        return w.float()
    scale = tensors[name.removesuffix(".weight") + ".scale"].view(torch.uint8).float()
    factor = torch.exp2(scale - 127)
    if kind == "fp4r":
        byte = w.view(torch.uint8)
        nibbles = torch.stack([byte & 15, byte >> 4], -1).flatten(-2).long()
        value = E2M1_VALUES[nibbles & 7]
        value = torch.where(nibbles >= 8, -value, value)
        return value * factor.repeat_interleave(32, -1)
    if kind == "fp8b":
        factor = factor.repeat_interleave(32, 0)
    return w.float() * factor.repeat_interleave(32, -1)


@torch.no_grad()
def load_params(params, tensors: dict):
    for s in params.specs:
        parts = [dequantise(name, tensors, s.kind) for name in s.names]
        value = parts[0] if len(parts) == 1 else torch.stack(parts)
        params.values[s.key].copy_(value.reshape(s.shape))
    prefix = params.prefix
    for i in range(params.bias.shape[0]):
        params.bias[i].copy_(tensors[f"{prefix}.{i}.ffn.gate.bias"])


def encode(kind: str, w, store_f32: bool):
    """(tensor to store, scale tensor or None) of one fp32 weight."""
    if kind == "f32":
        return w.float().contiguous(), None
    if kind == "bf16":
        w = w.to(torch.bfloat16)
        return (w.float() if store_f32 else w).contiguous(), None
    make = {"fp8b": quant.quant_fp8b, "fp8r": quant.quant_fp8r, "fp4r": quant.quant_fp4r}[kind]
    codes, e = make(w.float())
    scale = (e + 127).to(torch.uint8).view(torch.float8_e8m0fnu).contiguous()
    if kind != "fp4r":
        return codes.to(torch.float8_e4m3fn).contiguous(), scale
    index = (codes.abs().unsqueeze(-1) == E2M1_VALUES).to(torch.uint8).argmax(-1)
    nibble = index + 8 * torch.signbit(codes).long()
    packed = nibble[..., 0::2] + 16 * nibble[..., 1::2]
    return packed.to(torch.uint8).view(torch.int8).contiguous(), scale


@torch.no_grad()
def checkpoint_tensors(params) -> dict:
    out = {}
    for s in params.specs:
        value = params.values[s.key].detach().cpu()
        for name, part in zip(s.names, s.items(value)):
            data, scale = encode(s.kind, part, s.store_f32)
            out[name] = data
            if scale is not None:
                out[name.removesuffix(".weight") + ".scale"] = scale
    for i in range(params.bias.shape[0]):
        for name in ("bias", "bias_vl"):
            out[f"{params.prefix}.{i}.ffn.gate.{name}"] = params.bias[i].detach().float().cpu().clone()
    return out


def write_checkpoint(folder, tensors: dict, shard_bytes=15 << 20):
    """Shards below `shard_bytes` and the index; names in order, so equal tensors give equal files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model-*.safetensors"):
        old.unlink()
    shards, size = [{}], 0
    for name in sorted(tensors):
        n = tensors[name].numel() * tensors[name].element_size()
        if size + n > shard_bytes - (1 << 19) and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name]
        size += n
    where = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file)
        where.update({name: file for name in shard})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    return total
