"""The parameters: stacked over layers, one flat fp32 master buffer, names of the checkpoint (model.md §3.1)."""
from dataclasses import dataclass, field

import torch

from . import quant
from .config import Config


@dataclass
class Spec:
    key: str                 # name inside the program
    names: list              # checkpoint tensors, in stack order (without .weight where `suffix` adds it)
    shape: tuple             # shape of the stack
    kind: str                # fp8b, fp8r, fp4r, bf16, f32: storage, and the fake quantisation that goes with it
    optimiser: str           # muon or adam
    init: object             # standard deviation, or a function of the tensor
    rate: float = 1.0        # learning-rate factor
    store_f32: bool = False  # bf16 values stored as F32 (hyper-connection projections)
    stack_dims: int = 0      # leading dimensions of the shape that count tensors
    offset: int = field(default=0, compare=False)

    def items(self, value):
        """The single tensors of a stack, in the order of `names`."""
        return [value] if not self.stack_dims else list(value.flatten(0, self.stack_dims - 1).unbind(0))

    @property
    def numel(self):
        n = 1
        for d in self.shape:
            n *= d
        return n


def ones(t):
    t.fill_(1)


def zeros(t):
    t.zero_()


def block_specs(c: Config, prefix: str, ids: list, experts: int) -> list:
    """A block of either the backbone (prefix 'layers') or the draft (prefix 'mtp')."""
    n, h, f = len(ids), c.hidden_size, c.moe_intermediate_size
    heads, d, groups = c.num_attention_heads, c.head_dim, c.o_groups
    hc = c.hc_mult
    out = []

    def add(key, name, shape, kind, optimiser, init, **kw):
        out.append(Spec(f"{prefix}.{key}", [f"{prefix}.{i}.{name}" for i in ids], (n, *shape), kind, optimiser, init,
                        stack_dims=1, **kw))

    def base(post):
        def fill(t):
            t.zero_()
            t[:, 1:hc] = -1
            t[:, hc:2 * hc] = -1
            t[:, hc] = 0
            t[:, hc + 1] = post
            comb = torch.full((hc, hc), -2.0)
            comb.fill_diagonal_(2.0)
            t[:, 2 * hc:] = comb.flatten()
        return fill

    for site in ("attn", "ffn"):
        add(f"{site}_norm", f"{site}_norm.weight", (h,), "bf16", "adam", ones)
        add(f"hc_{site}_fn", f"hc_{site}_fn", (c.mix_rows, hc * h), "bf16", "adam", 0.01, rate=0.3, store_f32=True)
        add(f"hc_{site}_base", f"hc_{site}_base", (c.mix_rows,), "f32", "adam", base(-0.5))
        add(f"hc_{site}_scale", f"hc_{site}_scale", (3,), "f32", "adam", lambda t: t.fill_(0.5))
    add("sink", "attn.attn_sink", (heads,), "f32", "adam", zeros)
    add("q_norm", "attn.q_norm.weight", (c.q_lora_rank,), "bf16", "adam", ones)
    add("kv_norm", "attn.kv_norm.weight", (d,), "bf16", "adam", ones)
    add("gate", "ffn.gate.weight", (experts, h), "bf16", "adam", h**-0.5)
    add("wq_a", "attn.wq_a.weight", (c.q_lora_rank, h), "fp8b", "muon", h**-0.5)
    add("wq_b", "attn.wq_b.weight", (heads * d, c.q_lora_rank), "fp8b", "muon", c.q_lora_rank**-0.5)
    add("wkv", "attn.wkv.weight", (d, h), "fp8b", "muon", h**-0.5)
    wide = heads // groups * d
    add("wo_a", "attn.wo_a.weight", (groups * c.o_lora_rank, wide), "fp8b", "muon", wide**-0.5)
    add("wo_b", "attn.wo_b.weight", (h, groups * c.o_lora_rank), "fp8b", "muon", 0.5 * (groups * c.o_lora_rank)**-0.5)
    for w, shape, std in (("w1", (f, h), h**-0.5), ("w3", (f, h), h**-0.5), ("w2", (h, f), 0.5 * f**-0.5)):
        add(f"shared.{w}", f"ffn.shared_experts.{w}.weight", shape, "fp8b", "muon", std)
        names = [f"{prefix}.{i}.ffn.experts.{e}.{w}.weight" for i in ids for e in range(experts)]
        out.append(Spec(f"{prefix}.experts.{w}", names, (n, experts, *shape), "fp4r", "muon", std,
                        stack_dims=2))
    return out


def backbone_specs(c: Config) -> list:
    h, d, hc = c.hidden_size, c.head_dim, c.hc_mult
    out = [
        Spec("embed", ["embed.weight"], (c.vocab_size, h), "bf16", "adam", 0.5),
        Spec("head", ["head.weight"], (c.vocab_size, h), "bf16", "adam", 0.5 * h**-0.5),
        Spec("norm", ["norm.weight"], (h,), "bf16", "adam", ones),
    ]
    out += block_specs(c, "layers", list(range(c.layers)), c.n_routed_experts)

    def add(key, name, layers, shape, kind, optimiser, init, **kw):
        if layers:
            out.append(Spec(key, [f"layers.{i}.{name}" for i in layers], (len(layers), *shape), kind, optimiser, init,
                            stack_dims=1, **kw))

    kv, index, engram = list(c.kv_source_layer_ids), list(c.index_source_layer_ids), list(c.engram_layer_ids)
    gated = [i for i in kv if c.ratio(i) > 1]
    add("compressor.norm", "attn.compressor.norm.weight", kv, (d,), "bf16", "adam", ones)
    add("compressor.wkv", "attn.compressor.wkv.weight", kv, (d, h), "bf16", "muon", h**-0.5)
    add("compressor.wgate", "attn.compressor.wgate.weight", gated, (d, h), "bf16", "muon", h**-0.5)
    ih, idim = c.index_n_heads, c.index_head_dim
    add("indexer.k_norm", "attn.indexer.k_norm.weight", kv, (idim,), "bf16", "adam", ones)
    add("indexer.weights_proj", "attn.indexer.weights_proj.weight", index, (ih, h), "bf16", "adam", h**-0.5)
    add("indexer.wk", "attn.indexer.wk.weight", kv, (idim, d), "bf16", "muon", d**-0.5)
    add("indexer.wq_b", "attn.indexer.wq_b.weight", index, (ih * idim, c.q_lora_rank), "fp8b", "muon", c.q_lora_rank**-0.5)
    wide = c.engram_columns * c.engram_head_dim
    add("engram.q_weight", "engram.q_weight", engram, (hc, h), "bf16", "adam", ones)
    add("engram.k_weight", "engram.k_weight", engram, (hc, h), "bf16", "adam", ones)
    add("engram.wkv", "engram.wkv.weight", engram, ((hc + 1) * h, wide), "fp8b", "muon", wide**-0.5)
    for i, layer in enumerate(engram):
        out.append(Spec(f"engram.embed.{i}", [f"layers.{layer}.engram.embed.weight"],
                        (c.engram_num_embeddings[i], c.engram_head_dim), "fp8r", "adam", 0.3))
    return out


def draft_specs(c: Config) -> list:
    h, last = c.hidden_size, c.num_nextn_predict_layers - 1
    wide = len(c.dspark_target_layer_ids) * h
    rank = c.dspark_markov_rank
    return block_specs(c, "mtp", list(range(last + 1)), c.dspark_n_routed_experts) + [
        Spec("mtp.main_norm", ["mtp.0.main_norm.weight"], (h,), "bf16", "adam", ones),
        Spec("mtp.norm", [f"mtp.{last}.norm.weight"], (h,), "bf16", "adam", ones),
        Spec("mtp.markov.embed", [f"mtp.{last}.markov_head.embed.weight"], (c.vocab_size, rank), "bf16", "adam", 0.5),
        Spec("mtp.markov.head", [f"mtp.{last}.markov_head.head.weight"], (c.vocab_size, rank), "bf16", "adam", 0.02),
        Spec("mtp.confidence", [f"mtp.{last}.confidence_head.proj.weight"], (1, h + rank), "bf16", "adam", zeros),
        Spec("mtp.main_proj", ["mtp.0.main_proj.weight"], (h, wide), "fp8b", "muon", wide**-0.5),
    ]


class Params:
    """One flat fp32 master buffer and one flat gradient buffer; parameters are views.

    The Adam parameters come first, so each optimiser works on one contiguous range. `bias` [layers, experts]
    is the routing balance bias, which no gradient reaches. The tail of the gradient buffer carries the
    expert loads, so that one all-reduce does everything.
    """

    def __init__(self, specs: list, experts: int, layers: int, prefix: str, device="cpu"):
        self.specs = sorted(specs, key=lambda s: s.optimiser != "adam")
        self.prefix, self.experts = prefix, experts
        offset = 0
        for s in self.specs:
            s.offset = offset
            offset += (s.numel + 63) // 64 * 64    # every view starts on a 256-byte boundary
        self.size = offset
        self.adam_size = next((s.offset for s in self.specs if s.optimiser == "muon"), offset)
        self.flat = torch.zeros(offset, device=device)
        self.flat_grad = torch.zeros(offset + layers * experts, device=device)
        self.bias = torch.zeros(layers, experts, device=device)
        self.load = self.flat_grad[offset:].view(layers, experts)
        self.values = {}
        for s in self.specs:
            p = self.flat[s.offset:s.offset + s.numel].view(s.shape).requires_grad_()
            p.grad = self.flat_grad[s.offset:s.offset + s.numel].view(s.shape)
            self.values[s.key] = p

    @torch.no_grad()
    def initialise(self, seed: int):
        generator = torch.Generator().manual_seed(seed)
        for s in self.specs:
            t = torch.empty(s.shape)
            if callable(s.init):
                s.init(t)
            else:
                t.normal_(0, s.init, generator=generator)
            self.values[s.key].copy_(t)

    def zero_grad(self):
        self.flat_grad.zero_()

    def state(self) -> dict:
        return {"flat": self.flat, "bias": self.bias}

    @torch.no_grad()
    def load_state(self, state: dict):
        self.flat.copy_(state["flat"])
        self.bias.copy_(state["bias"])

    def rates(self):
        """Learning-rate factor of every element of the Adam range."""
        out = torch.ones(self.adam_size)
        for s in self.specs:
            if s.optimiser == "adam":
                out[s.offset:s.offset + s.numel] = s.rate
        return out.to(self.flat.device)


def make_backbone(c: Config, device="cpu") -> Params:
    return Params(backbone_specs(c), c.n_routed_experts, c.layers, "layers", device)


def make_draft(c: Config, device="cpu") -> Params:
    return Params(draft_specs(c), c.dspark_n_routed_experts, c.num_nextn_predict_layers, "mtp", device)


# ---- compute copies --------------------------------------------------------------------------------
def cast_values(values: dict, kinds: dict, prefix: str, dtype, weight_quant: bool) -> dict:
    """Parameters in compute precision: fake-quantised when asked, experts and shared expert joined.

    w13 [layers, 2*(E+1)*F, H]: gates of all experts, then the shared gate, then the same for up.
    w2 [layers, H, (E+1)*F].
    """
    out = {}
    for key, p in values.items():
        kind = kinds[key]
        if kind == "f32":
            out[key] = p
        else:
            out[key] = (quant.FAKE_QUANT[kind](p) if weight_quant else p).to(dtype)
    w1, w3, w2 = (out.pop(f"{prefix}.experts.{w}") for w in ("w1", "w3", "w2"))
    s1, s3, s2 = (out.pop(f"{prefix}.shared.{w}") for w in ("w1", "w3", "w2"))
    out[f"{prefix}.w13"] = torch.cat([w1.flatten(1, 2), s1, w3.flatten(1, 2), s3], 1)
    out[f"{prefix}.w2"] = torch.cat([w2.transpose(1, 2).flatten(2), s2], 2)
    for site in ("attn", "ffn"):      # one factor per row of the projection instead of three numbers
        scale = out.pop(f"{prefix}.hc_{site}_scale")
        hc = int(round((1 + out[f"{prefix}.hc_{site}_base"].shape[1]) ** 0.5)) - 1
        out[f"{prefix}.hc_{site}_scale"] = torch.cat(
            [scale[:, :1].expand(-1, hc), scale[:, 1:2].expand(-1, hc), scale[:, 2:].expand(-1, hc * hc)], 1)
    return out


def unbound(cast: dict) -> dict:
    """Stacks to lists of layers; global tensors stay as they are."""
    whole = ("embed", "head", "norm", "mtp.main_norm", "mtp.norm", "mtp.markov.embed", "mtp.markov.head",
             "mtp.confidence", "mtp.main_proj")
    return {k: v if k in whole or k.startswith("engram.embed.") else list(v.unbind(0)) for k, v in cast.items()}
