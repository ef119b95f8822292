"""The pieces of the forward pass, as functions of flat [rows, ...] tensors (model.md §5).

Each piece is written once. `Pieces` compiles them (training on a GPU) or leaves them alone (reference).
fp32 inputs give the fp32 arithmetic of the specification; bf16 inputs give the rounding points of training.
"""
import torch
import torch.nn.functional as F

from . import quant

# ---- small parts -----------------------------------------------------------------------------------


def rms_norm(x, weight, eps):
    x32 = x.float()
    return (weight.float() * x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def rope(x, cos, sin, inverse=False):
    """Rotates adjacent pairs of the last channels of x [rows, (heads,) d]; cos, sin [rows, rd/2] fp32."""
    rd = 2 * cos.shape[-1]
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if inverse:
        sin = -sin
    re, im = x[..., -rd:].float().unflatten(-1, (rd // 2, 2)).unbind(-1)
    turned = torch.stack([re * cos - im * sin, re * sin + im * cos], -1).flatten(-2)
    return torch.cat([x[..., :-rd], turned.to(x.dtype)], -1)


def collapse(streams, mix):
    """Σ_i mix_i · X_i; streams [N, hc, H], mix fp32 [N, hc]."""
    total = mix[:, 0:1] * streams[:, 0].float()
    for i in range(1, streams.shape[1]):
        total = total + mix[:, i:i + 1] * streams[:, i].float()
    return total.to(streams.dtype)


def expand(out, streams, post, comb):
    """X'_j = post_j · out + Σ_i comb[i, j] · X_i."""
    hc = streams.shape[1]
    o32 = out.float()
    x32 = [streams[:, i].float() for i in range(hc)]
    rows = []
    for j in range(hc):
        total = post[:, j:j + 1] * o32
        for i in range(hc):
            total = total + comb[:, i, j].unsqueeze(1) * x32[i]
        rows.append(total.to(streams.dtype))
    return torch.stack(rows, 1)


def mix_site(streams, fn, base, scale, eps, hc_eps):
    """Coefficients of a site before Sinkhorn: pre [N, hc], post [N, hc], comb logits [N, hc, hc]."""
    hc = streams.shape[1]
    f = streams.flatten(1)
    m = (f @ fn.t()).float() * torch.rsqrt(f.float().square().mean(-1, keepdim=True) + eps)
    m = m * scale + base
    pre = torch.sigmoid(m[:, :hc]) + hc_eps
    post = 2 * torch.sigmoid(m[:, hc:2 * hc])
    return pre, post, m[:, 2 * hc:].unflatten(-1, (hc, hc)).contiguous()


def sinkhorn_reference(logits, iters, eps):
    c = torch.softmax(logits, -1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


def route(scores, bias, k, scale):
    """Routing weights [N, E] fp32 (0 where not chosen) and the choice; ties go to the lower id."""
    s = torch.sqrt(F.softplus(scores))
    left = (s + bias).detach()
    chosen = torch.zeros_like(left, dtype=torch.bool)
    ids = torch.arange(s.shape[-1], device=s.device)
    for _ in range(k):
        hit = ids == left.argmax(-1, keepdim=True)
        chosen = chosen | hit
        left = left.masked_fill(hit, float("-inf"))
    w = torch.where(chosen, s, 0.0)
    return w / (w.sum(-1, keepdim=True) + 1e-20) * scale, chosen


# ---- pieces ----------------------------------------------------------------------------------------
def pre_attention(streams, mix, fn, base, scale, norm, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin, k):
    """Site coefficients, normed input y, query latent, roped queries [N, heads, D], window entry [N, D]."""
    pre, post, comb = mix_site(streams, fn, base, scale, k.eps, k.hc_eps)
    y = rms_norm(collapse(streams, mix), norm, k.eps)
    ya = quant.fq_e4m3_32(y) if k.act_quant else y
    qa = rms_norm(ya @ wq_a.t(), q_norm, k.eps)
    qq = quant.fq_e4m3_32(qa) if k.act_quant else qa
    q = rope((qq @ wq_b.t()).unflatten(-1, (k.heads, k.head_dim)), cos, sin)
    kv = rope(rms_norm(ya @ wkv.t(), kv_norm, k.eps), cos, sin)
    if k.kv_quant:
        kv = quant.fq_e4m3_32(kv)
    return pre, post, comb, y, qa, q, kv


def context_kv(main, wkv, kv_norm, cos, sin, k):
    """Window entries of a draft layer from the main features (model.md §8)."""
    m = quant.fq_e4m3_32(main) if k.act_quant else main
    kv = rope(rms_norm(m @ wkv.t(), kv_norm, k.eps), cos, sin)
    return quant.fq_e4m3_32(kv) if k.kv_quant else kv


def main_features(concat, main_proj, main_norm, k):
    c = quant.fq_e4m3_32(concat) if k.act_quant else concat
    return rms_norm(c @ main_proj.t(), main_norm, k.eps)


def post_attention(o, lse, sink, cos, sin, wo_a, wo_b, streams, post, comb, pre, fn, base, scale, norm, k):
    """Sink, inverse rope, grouped output projection, expand; then the ffn site and the normed ffn input."""
    o = (o.float() * torch.sigmoid(lse - sink).unsqueeze(-1)).to(o.dtype)
    o = rope(o, cos, sin, inverse=True).flatten(1)
    if k.act_quant:
        o = quant.fq_e4m3_32(o)
    z = torch.cat([a @ w.t() for a, w in zip(o.chunk(k.o_groups, -1), wo_a.chunk(k.o_groups, 0))], -1)
    if k.act_quant:
        z = quant.fq_e4m3_32(z)
    out = z @ wo_b.t()
    new = expand(out, streams, post, comb)
    pre_f, post_f, comb_f = mix_site(new, fn, base, scale, k.eps, k.hc_eps)
    y = rms_norm(collapse(new, pre), norm, k.eps)
    return new, pre_f, post_f, comb_f, y, out


def moe(y, gate, bias, w13, w2, streams, post, comb, k):
    """All experts as one product, the routing weight multiplied in before w2; load = tokens per expert."""
    weight, chosen = route(y.float() @ gate.float().t(), bias, k.top_k, k.route_scale)
    weight = F.pad(weight, (0, 1), value=1.0)
    ya = quant.fq_e4m3_32(y) if k.act_quant else y
    g, u = (ya @ w13.t()).float().chunk(2, -1)
    a = F.silu(g.clamp_max(k.limit)) * u.clamp(-k.limit, k.limit)
    a = (a.unflatten(-1, (weight.shape[-1], -1)) * weight.unsqueeze(-1)).flatten(1).to(y.dtype)
    if k.act_quant:
        a = quant.fq_e4m3_32(a)
    out = a @ w2.t()
    return expand(out, streams, post, comb), chosen.float().sum(0), weight, out


def compress_pairs(y, wkv, wgate, norm, cos, sin, k):
    """r = 2: latent [N/2, D] and the main entry after rope (and FP4)."""
    v, s = (y @ wkv.t()).float(), (y @ wgate.t()).float()
    v, s = (t.unflatten(0, (-1, 2)) for t in (v, s))
    c = (torch.softmax(s, 1) * v).sum(1).to(y.dtype)
    c = rms_norm(c, norm, k.eps)
    main = rope(c, cos, sin)
    return c, quant.fq_e2m1_16(main) if k.kv_quant else main


def compress_single(y, wkv, norm, cos, sin, k):
    c = rms_norm(y @ wkv.t(), norm, k.eps)
    main = rope(c, cos, sin)
    return c, quant.fq_e2m1_16(main) if k.kv_quant else main


def index_keys(latent, wk, k_norm, cos, sin, k):
    key = rope(rms_norm(latent @ wk.t(), k_norm, k.eps), cos, sin)
    return quant.fq_e2m1_32(key) if k.kv_quant else key


def index_queries(qa, y, wq_b, weights_proj, cos, sin, k):
    """Index queries [N, heads, dim] and head weights fp32 [N, heads] with both factors of §5.7."""
    qq = quant.fq_e4m3_32(qa) if k.act_quant else qa
    q = rope((qq @ wq_b.t()).unflatten(-1, (k.index_heads, k.index_dim)), cos, sin)
    if k.kv_quant:
        q = quant.fq_e2m1_32(q)
    w = (y @ weights_proj.t()).float() * (k.index_dim**-0.5 * k.index_heads**-0.5)
    return q, w


def engram(streams, rows, wkv, q_weight, k_weight, k):
    """rows [N, columns*width] from the table; returns the written streams and the gate [N, hc]."""
    n, hc, h = streams.shape
    e = quant.fq_e4m3_32(rows) if k.act_quant else rows
    kvp = e @ wkv.t()
    key, value = kvp[:, :hc * h].unflatten(-1, (hc, h)).float(), kvp[:, hc * h:].float()
    x = streams.float()
    dot = (x * q_weight.float() * k_weight.float() * key).sum(-1)
    d = dot * torch.rsqrt(x.square().mean(-1) + k.eps) * torch.rsqrt(key.square().mean(-1) + k.eps) / h**0.5
    gate = torch.sigmoid(torch.copysign(torch.sqrt(d.abs().clamp_min(1e-6)), d))
    return (x + gate.unsqueeze(-1) * value.unsqueeze(1)).to(streams.dtype), gate


def engram_hashes(ids, vocab_map, multipliers, primes, offsets, pad):
    """Table rows [B, T, columns] of one layer (model.md §5.10); ids [B, T] int64."""
    c0 = vocab_map[ids]
    h = c0 * multipliers[0]
    out = []
    for n in range(1, multipliers.shape[0]):
        back = F.pad(c0[:, :-n], (n, 0), value=0)[:, :c0.shape[1]] if n < c0.shape[1] else torch.zeros_like(c0)
        inside = torch.arange(c0.shape[1], device=ids.device) >= n
        h = h ^ (torch.where(inside, back, pad) * multipliers[n])
        out.append(h.unsqueeze(-1) % primes[n - 1] + offsets[n - 1])
    return torch.cat(out, -1)


def final_hidden(streams, mix, norm, k):
    return rms_norm(collapse(streams, mix), norm, k.eps)


def head_loss(hidden, head, targets, weights):
    """Sums over rows: weighted nll, weight, nll and hits on answer tokens (weight 1), their number."""
    logits = (hidden @ head.t()).float()
    nll = torch.logsumexp(logits, -1) - logits.gather(1, targets.unsqueeze(1)).squeeze(1)
    answer = (weights >= 0.999).float()
    hit = (logits.detach().argmax(-1) == targets).float()
    return torch.stack([(nll * weights).sum(), weights.sum(), (nll.detach() * answer).sum(),
                        (hit * answer).sum(), answer.sum()])


class Constants:
    """Numbers that pieces need; plain attributes, so a compiled piece sees constants."""

    def __init__(self, c, kv_quant=False, act_quant=False, draft=False):
        self.eps, self.hc_eps = c.rms_norm_eps, c.hc_eps
        self.heads, self.head_dim, self.o_groups = c.num_attention_heads, c.head_dim, c.o_groups
        self.limit, self.route_scale = c.swiglu_limit, c.routed_scaling_factor
        self.top_k = c.dspark_num_experts_per_tok if draft else c.num_experts_per_tok
        self.index_heads, self.index_dim = c.index_n_heads, c.index_head_dim
        self.kv_quant, self.act_quant = kv_quant, act_quant


class Pieces:
    """The functions above, compiled or not."""
    NAMES = ("pre_attention", "context_kv", "main_features", "post_attention", "moe", "compress_pairs",
             "compress_single", "index_keys", "index_queries", "engram", "engram_hashes", "final_hidden", "head_loss")

    def __init__(self, compiled):
        for name in self.NAMES:
            f = globals()[name]
            setattr(self, name, compile_piece(f, compiled))


def compile_piece(f, backend):
    """torch.compile for fixed shapes with the named backend, or the function itself when there is none."""
    return torch.compile(f, dynamic=False, fullgraph=True, backend=backend) if backend else f
