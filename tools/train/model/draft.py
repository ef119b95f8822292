"""The DSpark draft module: forward of many anchors at once, greedy rounds, training loss (model.md §8, speculative.md §1)."""
import torch
import torch.nn.functional as F

from . import ops
from .backbone import Backbone, Mode


def block_attention(q, own, context, context_ok, scale):
    """q [A, block, heads, D], own [A, block, D], context [A, W, D], context_ok [A, W] -> o, lse [A, block, heads].

    Not causal inside the block: every query sees the window before the anchor and the whole block.
    """
    keys = torch.cat([context, own], 1)
    a, n, heads, d = q.shape
    score = torch.bmm(q.reshape(a, n * heads, d), keys.transpose(1, 2)).float() * scale
    ok = F.pad(context_ok, (0, n), value=True)
    score = score.masked_fill(~ok.unsqueeze(1), float("-inf"))
    lse = torch.logsumexp(score, -1)
    p = torch.exp(score - lse.unsqueeze(-1)).to(q.dtype)
    return torch.bmm(p, keys).view(a, n, heads, d), lse.view(a, n, heads)


def draft_hidden(streams, mix):
    return ops.collapse(streams, mix)


def draft_loss(hidden, norm, head, embed, markov_head, confidence, prev, target, teacher_hidden, decay, ok, k):
    """Sums over draft rows (model.md §8; tiny-model.md §6).

    hidden [M, H] before the norm; prev, target [M]; teacher_hidden [M, H] normed hidden of the backbone at the
    position that predicts `target`; decay, ok [M]. Returns (loss parts [6], hit [M], confidence logit [M]).
    """
    e = F.embedding(prev, embed)
    q_logits = (ops.rms_norm(hidden, norm, k.eps) @ head.t()).float() + (e @ markov_head.t()).float()
    logq = torch.log_softmax(q_logits, -1)
    p = torch.softmax((teacher_hidden @ head.t()).float(), -1)
    distance = (p - logq.exp()).abs().sum(-1)
    nll = -logq.gather(1, target.unsqueeze(1)).squeeze(1)
    c = (torch.cat([hidden, e], -1) @ confidence.t()).float().squeeze(1).clamp(-60, 60)
    want = (1 - 0.5 * distance).detach()
    bce = F.softplus(c) - want * c
    weight = decay * ok
    hit = (logq.detach().argmax(-1) == target).float() * ok
    loss = ((0.1 * nll + 0.9 * distance + bce) * weight).sum() / weight.sum().clamp_min(1)
    return loss, hit, torch.stack([(nll.detach() * ok).sum(), (distance.detach() * ok).sum(),
                                   (bce.detach() * ok).sum(), ok.sum()])


class Draft:
    def __init__(self, backbone: Backbone, compiled=None):
        self.backbone, self.config = backbone, backbone.config
        self.attention, self.loss = (ops.compile_piece(f, compiled) for f in (block_attention, draft_loss))
        self.collapse = ops.compile_piece(draft_hidden, compiled)
        self.noise = self.config.dspark_noise_token_id

    def contexts(self, dw, features, b, t, mode: Mode):
        """Main features [B·T, H] and the window entries of every draft layer [B·T, D]."""
        f, k = self.backbone.pieces, self.backbone.k(mode, draft=True)
        main = f.main_features(torch.cat(features, -1), dw["mtp.main_proj"], dw["mtp.main_norm"], k)
        cos, sin = self.backbone.rope_tables(b, t, False)
        return main, [f.context_kv(main, dw["mtp.wkv"][s], dw["mtp.kv_norm"][s], cos, sin, k)
                      for s in range(self.config.num_nextn_predict_layers)]

    def blocks(self, dw, w, contexts, t, anchors, golden, mode: Mode):
        """Hidden [A·block, H] before the norm of a block per anchor, and the expert loads.

        contexts: per draft layer [B·T, D]; anchors int64 [A]: flat index b·T + a of the last accepted position;
        golden [A]: the token at position a + 1.
        """
        c, f, k = self.config, self.backbone.pieces, self.backbone.k(mode, draft=True)
        n, window, a = c.dspark_block_size, c.sliding_window, anchors.shape[0]
        ids = torch.full((a, n), self.noise, device=anchors.device)
        ids[:, 0] = golden
        streams = F.embedding(ids.flatten(), w["embed"]).unsqueeze(1).expand(-1, c.hc_mult, -1).contiguous()
        mix = torch.zeros(a * n, c.hc_mult, device=anchors.device)
        mix[:, 0] = 1
        position = anchors % t
        freq = torch.tensor(c.rope_frequencies(False), dtype=torch.float32, device=anchors.device)
        block_pos = position.unsqueeze(1) + 1 + torch.arange(n, device=anchors.device)
        angle = block_pos.flatten().float().unsqueeze(1) * freq
        cos, sin = angle.cos(), angle.sin()
        back = torch.arange(window - 1, -1, -1, device=anchors.device)
        ok = position.unsqueeze(1) >= back
        rows = torch.where(ok, anchors.unsqueeze(1) - back, anchors.unsqueeze(1))
        loads = []
        for s in range(c.num_nextn_predict_layers):
            L = lambda key: dw[f"mtp.{key}"][s]
            pre, post, comb, y, qa, q, kv = f.pre_attention(
                streams, mix, L("hc_attn_fn"), L("hc_attn_base"), L("hc_attn_scale"), L("attn_norm"), L("wq_a"),
                L("q_norm"), L("wq_b"), L("wkv"), L("kv_norm"), cos, sin, k)
            comb = self.backbone.kernels.sinkhorn(comb, c.hc_sinkhorn_iters, c.hc_eps)
            o, lse = self.attention(q.view(a, n, *q.shape[1:]), kv.view(a, n, -1), F.embedding(rows, contexts[s]), ok,
                                    c.head_dim**-0.5)
            streams, pre_f, post_f, comb_f, y_f, _ = f.post_attention(
                o.reshape(a * n, *o.shape[2:]), lse.reshape(a * n, -1), L("sink"), cos, sin, L("wo_a"), L("wo_b"),
                streams, post, comb, pre, L("hc_ffn_fn"), L("hc_ffn_base"), L("hc_ffn_scale"), L("ffn_norm"), k)
            comb_f = self.backbone.kernels.sinkhorn(comb_f, c.hc_sinkhorn_iters, c.hc_eps)
            streams, load, _, _ = f.moe(y_f, L("gate"), dw["bias"][s], L("w13"), L("w2"), streams, post_f, comb_f, k)
            loads.append(load)
            mix = pre_f
        return self.collapse(streams, mix), torch.stack(loads)

    @torch.no_grad()
    def greedy_round(self, dw, w, features, position: int, golden: int, mode: Mode) -> dict:
        """One greedy draft after `position` of a single sequence; features: per target layer [T, H]."""
        t = features[0].shape[0]
        main, contexts = self.contexts(dw, features, 1, t, mode)
        device = main.device
        hidden, _ = self.blocks(dw, w, contexts, t, torch.tensor([position], device=device),
                                torch.tensor([golden], device=device), mode)
        base = (ops.rms_norm(hidden, dw["mtp.norm"], self.config.rms_norm_eps) @ w["head"].t()).float()
        prev, ids, logits, confidence = golden, [], [], []
        for i in range(self.config.dspark_block_size):
            e = dw["mtp.markov.embed"][prev]
            logits.append(base[i] + (e @ dw["mtp.markov.head"].t()).float())
            confidence.append(torch.sigmoid((torch.cat([hidden[i], e]) @ dw["mtp.confidence"][0]).float()))
            prev = int(logits[-1].argmax())
            ids.append(prev)
        return {"main": main, "context": contexts, "hidden": hidden, "base": base, "logits": torch.stack(logits),
                "confidence": torch.stack(confidence), "ids": torch.tensor(ids, dtype=torch.int32)}
