"""Sliding window + compressed entries in one softmax (model.md §5.4): flex attention, or a dense reference.

Keys are [T window entries | S compressed entries] of one KV head. The sink is applied afterwards by the caller
as o · sigmoid(lse - sink), which is exact.
"""
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .ops import compile_piece


def allowed_pairs(i, j, t, window, ratio):
    """Query i may see key j: a window entry within the window, or a complete compressed entry."""
    in_window = (j < t) & (j <= i) & (i - j < window)
    if not ratio:
        return in_window
    return in_window | ((j >= t) & (j - t < (i + 1) // ratio))


def dense_attention(q, keys, selected, window, ratio, scale):
    """q [B, T, heads, D], keys [B, T+S, D], selected bool [B, T, S] or None -> (o, lse [B, T, heads] fp32)."""
    b, t = q.shape[:2]
    i = torch.arange(t, device=q.device).unsqueeze(1)
    j = torch.arange(keys.shape[1], device=q.device)
    seen = allowed_pairs(i, j, t, window, ratio).expand(b, t, -1)
    if selected is not None:
        seen = seen & torch.cat([torch.ones(b, t, t, dtype=torch.bool, device=q.device), selected], -1)
    score = torch.einsum("bthd,bsd->bhts", q.float(), keys.float()) * scale
    score = score.masked_fill(~seen.unsqueeze(1), float("-inf"))
    lse = torch.logsumexp(score, -1)
    p = torch.exp(score - lse.unsqueeze(-1)).to(q.dtype)
    return torch.einsum("bhts,bsd->bthd", p, keys), lse.transpose(1, 2)


def _flex(q, keys, block_mask, scale, score_mod):
    try:
        from torch.nn.attention.flex_attention import AuxRequest
        o, aux = flex_attention(q, keys, keys, score_mod=score_mod, block_mask=block_mask, scale=scale,
                                enable_gqa=True, return_aux=AuxRequest(lse=True))
        return o, aux.lse
    except ImportError:
        return flex_attention(q, keys, keys, score_mod=score_mod, block_mask=block_mask, scale=scale,
                              enable_gqa=True, return_lse=True)


def flex_dense(q, keys, block_mask, scale: float):
    return _flex(q, keys, block_mask, scale, None)


def flex_selected(q, keys, selected, block_mask, scale: float, t: int):
    def keep_selected(score, b, h, i, j):
        keep = (j < t) | selected[b, i, torch.clamp(j - t, min=0)]
        return torch.where(keep, score, float("-inf"))
    return _flex(q, keys, block_mask, scale, keep_selected)


class Attention:
    """mode: 'dense' (reference) or 'flex' (compiled on a GPU; plain it is slow and serves to check the form)."""

    def __init__(self, mode: str, window: int, scale: float, device, compiled=None):
        self.mode, self.window, self.scale, self.device = mode, window, scale, device
        self.masks = {}
        backend = compiled if mode == "flex" else None
        self.plain, self.selected = compile_piece(flex_dense, backend), compile_piece(flex_selected, backend)

    def block_mask(self, t, s, ratio):
        key = (t, ratio)
        if key not in self.masks:
            window = self.window

            def mask(b, h, i, j):
                return allowed_pairs(i, j, t, window, ratio)
            self.masks[key] = create_block_mask(mask, None, None, t, t + s, device=self.device, BLOCK_SIZE=128)
        return self.masks[key]

    def __call__(self, q, window_keys, compressed, selected, ratio):
        """q [B, T, heads, D], window_keys [B, T, D], compressed [B, S, D] or None -> (o, lse) as dense_attention."""
        keys = window_keys if compressed is None else torch.cat([window_keys, compressed], 1)
        if self.mode == "dense":
            return dense_attention(q, keys, selected, self.window, ratio, self.scale)
        t = q.shape[1]
        mask = self.block_mask(t, keys.shape[1] - t, ratio)
        q, keys = q.transpose(1, 2), keys.unsqueeze(1)
        if selected is None:
            o, lse = self.plain(q, keys, mask, self.scale)
        else:
            o, lse = self.selected(q, keys, selected, mask, self.scale, t)
        return o.transpose(1, 2), lse.transpose(1, 2)
