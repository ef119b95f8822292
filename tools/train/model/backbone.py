"""The backbone's forward pass over whole windows: all layers, all positions, no cache (model.md §5, §6 'exact prefill')."""
from dataclasses import dataclass, replace

import numpy as np
import torch

from . import ops
from .attention import Attention
from .config import Config
from .kernels import Kernels
from .params import cast_values, unbound


@dataclass(frozen=True)
class Mode:
    """What is switched on in a pass."""
    dtype: torch.dtype = torch.bfloat16
    kv_quant: bool = False        # KV and index quantisation (model.md §4.3)
    weight_quant: bool = False    # fake quantisation of the stored weights
    act_quant: bool = False       # E4M3 activations before FP8/FP4 products (model.md §4.2)
    sparse: bool = False          # top-k selection and candidate filter
    kl_rows: int = 0              # query rows per sequence for the indexer loss
    select: str = "index"         # 'index', or 'nearest' as an ablation
    candidates: str = "index"     # 'index', 'nearest' or 'all'
    engram: bool = True

    def but(self, **kw):
        return replace(self, **kw)


class Backbone:
    """Owns no parameters: it runs on the compute copies made by `cast`."""

    def __init__(self, config: Config, vocab_map, device="cpu", compiled=None, attention="dense", use_triton=False):
        c = self.config = config
        self.device = torch.device(device)
        self.pieces = ops.Pieces(compiled)
        self.kernels = Kernels(use_triton)
        self.attention = Attention(attention, c.sliding_window, c.head_dim**-0.5, device, compiled)
        self.constants = {}
        self.rope_cache = {}
        self.vocab_map = torch.as_tensor(vocab_map, device=device)
        self.pad = int(vocab_map[c.engram_pad_token_id])
        as_tensor = lambda a: torch.as_tensor(np.ascontiguousarray(a), device=device)
        orders = c.engram_max_ngram_size - 1
        self.hash_tables = [(as_tensor(m), as_tensor(p), as_tensor(o.reshape(orders, -1))) for m, p, o in
                            zip(c.engram_multipliers(), c.engram_primes(), c.engram_offsets())]
        self.cast = ops.compile_piece(cast_values, compiled)

    def k(self, mode: Mode, draft=False):
        key = (mode.kv_quant, mode.act_quant, draft)
        if key not in self.constants:
            self.constants[key] = ops.Constants(self.config, *key)
        return self.constants[key]

    def compute_copies(self, params, mode: Mode) -> dict:
        kinds = {s.key: s.kind for s in params.specs}
        return unbound(self.cast(params.values, kinds, params.prefix, mode.dtype, mode.weight_quant))

    def rope_tables(self, batch, t, compressed, step=1):
        """cos, sin fp32 [batch * ceil(t / step), rd / 2] at positions 0, step, 2·step, …"""
        key = (batch, t, compressed, step)
        if key not in self.rope_cache:
            f = torch.tensor(self.config.rope_frequencies(compressed), dtype=torch.float32, device=self.device)
            pos = torch.arange(0, t // step, device=self.device, dtype=torch.float32) * step
            angle = (pos.unsqueeze(1) * f).repeat(batch, 1)
            self.rope_cache[key] = (angle.cos(), angle.sin())
        return self.rope_cache[key]

    def forward(self, w: dict, ids, mode: Mode, trace=None) -> dict:
        """ids int64 [B, T] -> hidden [B·T, H] after the final norm, target features, expert loads, indexer loss.

        `trace`, a dict, receives the intermediate values of every layer (reference runs only).
        """
        c, f, k = self.config, self.pieces, self.k(mode)
        b, t = ids.shape
        n = b * t
        x = torch.nn.functional.embedding(ids.flatten(), w["embed"])
        streams = x.unsqueeze(1).expand(-1, c.hc_mult, -1).contiguous()
        mix = torch.zeros(n, c.hc_mult, device=ids.device)
        mix[:, 0] = 1
        tables = {r: self.rope_tables(b, t, r) for r in (False, True)}
        rows = None
        if mode.kl_rows:
            rows = torch.randint(t, (b, mode.kl_rows), device=ids.device)
        features, loads, kl = [], [], []
        main = latent = index_key = None        # of the current kv source
        chosen = blocks = None                  # of the current index source / candidate source
        indexes = {}                            # index source -> what the indexer loss needs
        masses = {}
        for layer in range(c.layers):
            ratio = c.ratio(layer)
            if layer in c.engram_layer_ids:
                i = c.engram_layer_ids.index(layer)
                if mode.engram:
                    hashes = f.engram_hashes(ids, self.vocab_map, *self.hash_tables[i], self.pad)
                    table = torch.nn.functional.embedding(hashes, w[f"engram.embed.{i}"]).view(n, -1)
                    streams, gate = f.engram(streams, table, w["engram.wkv"][i], w["engram.q_weight"][i],
                                             w["engram.k_weight"][i], k)
                    if trace is not None:
                        trace[f"{layer}.engram_gate"], trace[f"{layer}.engram_hash"] = gate, hashes
            if layer in c.dspark_target_layer_ids:
                features.append(streams.float().mean(1).to(mode.dtype))
            cos, sin = tables[ratio > 0]
            L = lambda key: w[f"layers.{key}"][layer]
            pre, post, comb, y, qa, q, kv = f.pre_attention(
                streams, mix, L("hc_attn_fn"), L("hc_attn_base"), L("hc_attn_scale"), L("attn_norm"), L("wq_a"),
                L("q_norm"), L("wq_b"), L("wkv"), L("kv_norm"), cos, sin, k)
            comb = self.kernels.sinkhorn(comb, c.hc_sinkhorn_iters, c.hc_eps)
            if layer in c.kv_source_layer_ids:
                latent, main, index_key = self.compress(w, layer, y, b, t, mode, k)
            if layer in c.index_source_layer_ids:
                i = c.index_source_layer_ids.index(layer)
                chosen, blocks, indexes[layer] = self.index(w, i, layer, y, qa, index_key, blocks, b, t, mode, k, trace)
            q = q.view(b, t, *q.shape[1:])
            o, lse = self.attention(q, kv.view(b, t, -1), main if ratio else None, chosen if ratio else None, ratio)
            o, lse = o.reshape(n, *o.shape[2:]), lse.reshape(n, -1)
            if ratio and rows is not None:
                self.add_mass(masses, layer, q, main, lse.view(b, t, -1), L("sink"), rows)
            streams, pre_f, post_f, comb_f, y_f, attn_out = f.post_attention(
                o, lse, L("sink"), cos, sin, L("wo_a"), L("wo_b"), streams, post, comb, pre, L("hc_ffn_fn"),
                L("hc_ffn_base"), L("hc_ffn_scale"), L("ffn_norm"), k)
            comb_f = self.kernels.sinkhorn(comb_f, c.hc_sinkhorn_iters, c.hc_eps)
            streams, load, route_w, ffn_out = f.moe(y_f, L("gate"), w["bias"][layer], L("w13"), L("w2"), streams,
                                                    post_f, comb_f, k)
            loads.append(load)
            mix = pre_f
            if trace is not None:
                trace.update({f"{layer}.attn_in": y, f"{layer}.attn_out": attn_out, f"{layer}.swa_kv": kv,
                              f"{layer}.streams": streams, f"{layer}.pre_mix": mix, f"{layer}.ffn_out": ffn_out,
                              f"{layer}.route_w": route_w})
                if layer in c.kv_source_layer_ids:
                    trace.update({f"{layer}.latent": latent, f"{layer}.main_kv": main, f"{layer}.index_k": index_key})
        hidden = f.final_hidden(streams, mix, w["norm"], k)
        out = {"hidden": hidden, "features": features, "loads": torch.stack(loads)}
        if rows is not None:
            out["kl"] = self.index_loss(indexes, masses, rows, t)
        return out

    def compress(self, w, layer, y, b, t, mode, k):
        """latent [B·S, D] (before rope), main entries [B, S, D], index keys [B, S, dim] of a kv source."""
        c, f, ratio = self.config, self.pieces, self.config.ratio(layer)
        i = c.kv_source_layer_ids.index(layer)
        s = t // ratio
        cos, sin = self.rope_tables(b, t, True, ratio)
        wkv, norm = w["compressor.wkv"][i], w["compressor.norm"][i]
        if ratio == 1:
            latent, main = f.compress_single(y, wkv, norm, cos, sin, k)
        else:
            whole = y if t % ratio == 0 else y.view(b, t, -1)[:, :s * ratio].reshape(b * s * ratio, -1)
            g = [j for j in c.kv_source_layer_ids if c.ratio(j) > 1].index(layer)
            latent, main = f.compress_pairs(whole, wkv, w["compressor.wgate"][g], norm, cos, sin, k)
        key = f.index_keys(latent.detach(), w["indexer.wk"][i], w["indexer.k_norm"][i], cos, sin, k)
        return latent, main.view(b, s, -1), key.view(b, s, -1)

    def index(self, w, i, layer, y, qa, index_key, blocks, b, t, mode, k, trace):
        """Selection of an index source: bool [B, T, S] or None (dense), candidate blocks, indexer state."""
        c, ratio = self.config, self.config.ratio(layer)
        if not (mode.sparse or mode.kl_rows or trace is not None):
            return None, None, None
        cos, sin = self.rope_tables(b, t, True)
        q, head_w = self.pieces.index_queries(qa.detach(), y.detach(), w["indexer.wq_b"][i],
                                              w["indexer.weights_proj"][i], cos, sin, k)
        q, head_w = q.view(b, t, *q.shape[1:]), head_w.view(b, t, -1)
        state = (q, head_w, index_key, ratio)
        if not mode.sparse:
            return None, None, state
        with torch.no_grad():
            s = index_key.shape[1]
            score = self.kernels.index_scores(q, head_w, index_key, ratio)
            if layer == c.candidate_source_layer_id:
                by = score if mode.candidates != "nearest" else self.nearness(score)
                blocks = self.kernels.candidates(by, c.candidate_topk_blocks, c.candidate_block_size, ratio)
            inside = blocks if c.uses_candidates(layer) and mode.candidates != "all" else None
            by = score if mode.select == "index" else self.nearness(score)
            chosen = self.kernels.topk_mask(by, c.index_topk, inside, c.candidate_block_size)
            if trace is not None:
                trace[f"{layer}.index_score"], trace[f"{layer}.selected"] = score, chosen
                if layer == c.candidate_source_layer_id:
                    trace[f"{layer}.candidates"] = blocks
        return (chosen if s else None), blocks, state

    @staticmethod
    def nearness(score):
        """Scores that prefer the newest entries; -inf stays where nothing is visible."""
        order = torch.arange(score.shape[-1], device=score.device, dtype=score.dtype)
        return torch.where(score > float("-inf"), order, score)

    # ---- indexer loss (tiny-model.md §5) ------------------------------------------------------------
    @torch.no_grad()
    def add_mass(self, masses, layer, q, main, lse, sink, rows):
        """Adds a layer's attention mass on compressed entries, summed over heads, at the sampled rows [B, R]."""
        c = self.config
        pick = rows[..., None, None].expand(-1, -1, *q.shape[2:])
        qr = q.gather(1, pick)
        norm = torch.logaddexp(lse.gather(1, rows[..., None].expand(-1, -1, lse.shape[-1])), sink)
        b, r, heads, d = qr.shape
        dots = torch.bmm(qr.reshape(b, r * heads, d), main.transpose(1, 2)).view(b, r, heads, -1).float()
        mass = torch.exp((dots * c.head_dim**-0.5 - norm.unsqueeze(-1)).clamp_max(20)).sum(2)
        seen = torch.arange(main.shape[1], device=q.device) < ((rows + 1) // c.ratio(layer)).unsqueeze(-1)
        mass = mass.masked_fill(~seen, 0)
        source = c.index_source(layer)
        masses[source] = masses[source] + mass if source in masses else mass
        # the candidate source also decides what later index sources may see
        if 0 <= c.candidate_source_layer_id < source:
            masses[c.candidate_source_layer_id] = masses[c.candidate_source_layer_id] + 0.5 * mass

    def index_loss(self, indexes, masses, rows, t):
        """Mean KL from the normalised attention mass to the softmax of the index scores, fp32 scalar."""
        total = 0.0
        for layer, (q, head_w, key, ratio) in indexes.items():
            qr = q.gather(1, rows[..., None, None].expand(-1, -1, *q.shape[2:]))
            wr = head_w.gather(1, rows[..., None].expand(-1, -1, head_w.shape[-1]))
            b, r, heads, d = qr.shape
            dots = torch.bmm(qr.reshape(b, r * heads, d), key.transpose(1, 2)).view(b, r, heads, -1).float()
            score = (torch.relu(dots) * wr.unsqueeze(-1)).sum(2)
            seen = torch.arange(key.shape[1], device=key.device) < ((rows + 1) // ratio).unsqueeze(-1)
            logp = torch.log_softmax(score.masked_fill(~seen, -1e30), -1)
            teacher = masses[layer]
            teacher = teacher / teacher.sum(-1, keepdim=True).clamp_min(1e-30)
            kl = (teacher * (teacher.clamp_min(1e-30).log() - logp)).masked_fill(~seen, 0).sum(-1)
            some = (seen.sum(-1) > 0).float()
            total = total + (kl * some).sum() / some.sum().clamp_min(1)
        return total / max(len(indexes), 1)
