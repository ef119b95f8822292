"""Sinkhorn, index scores and top-k selection: a Triton kernel of each beside the plain form it is checked against."""
import torch

from .ops import sinkhorn_reference

try:
    import triton
    import triton.language as tl
except ImportError:      # a machine without Triton uses the plain forms
    triton = None

if triton is not None:
    @triton.jit
    def _sinkhorn_forward(x_ptr, c_ptr, row_ptr, col_ptr, n, eps, ITERS: tl.constexpr, BLOCK: tl.constexpr):
        """x, c [n, 4, 4]; row, col [n, ITERS, 4]: the denominators (row 0 is unused: softmax)."""
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = t < n
        i = tl.arange(0, 4)
        at = t[:, None, None] * 16 + i[None, :, None] * 4 + i[None, None, :]
        x = tl.load(x_ptr + at, mask=live[:, None, None], other=0.0)
        x = tl.exp(x - tl.max(x, 2, keep_dims=True))
        c = x / tl.sum(x, 2, keep_dims=True) + eps
        d = tl.sum(c, 1, keep_dims=True) + eps
        c = c / d
        at_col = t[:, None, None] * (ITERS * 4) + i[None, None, :]
        at_row = t[:, None, None] * (ITERS * 4) + i[None, :, None]
        tl.store(col_ptr + at_col, d, mask=live[:, None, None])
        for k in range(1, ITERS):
            d = tl.sum(c, 2, keep_dims=True) + eps
            c = c / d
            tl.store(row_ptr + at_row + k * 4, d, mask=live[:, None, None])
            d = tl.sum(c, 1, keep_dims=True) + eps
            c = c / d
            tl.store(col_ptr + at_col + k * 4, d, mask=live[:, None, None])
        tl.store(c_ptr + at, c, mask=live[:, None, None])

    @triton.jit
    def _sinkhorn_backward(g_ptr, c_ptr, row_ptr, col_ptr, dx_ptr, n, eps, ITERS: tl.constexpr, BLOCK: tl.constexpr):
        """Undoes the normalisations one by one: for c = b/d, d = Σb + eps: db = (dc - Σ(dc·c)) / d."""
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = t < n
        i = tl.arange(0, 4)
        at = t[:, None, None] * 16 + i[None, :, None] * 4 + i[None, None, :]
        g = tl.load(g_ptr + at, mask=live[:, None, None], other=0.0)
        c = tl.load(c_ptr + at, mask=live[:, None, None], other=0.0)
        at_col = t[:, None, None] * (ITERS * 4) + i[None, None, :]
        at_row = t[:, None, None] * (ITERS * 4) + i[None, :, None]
        for k in range(1, ITERS):
            j = ITERS - k
            d = tl.load(col_ptr + at_col + j * 4, mask=live[:, None, None], other=1.0)
            g = (g - tl.sum(g * c, 1, keep_dims=True)) / d
            c = c * d
            d = tl.load(row_ptr + at_row + j * 4, mask=live[:, None, None], other=1.0)
            g = (g - tl.sum(g * c, 2, keep_dims=True)) / d
            c = c * d
        d = tl.load(col_ptr + at_col, mask=live[:, None, None], other=1.0)
        g = (g - tl.sum(g * c, 1, keep_dims=True)) / d
        p = c * d - eps
        tl.store(dx_ptr + at, p * (g - tl.sum(g * p, 2, keep_dims=True)), mask=live[:, None, None])

    @triton.jit
    def _index_scores(q_ptr, w_ptr, k_ptr, out_ptr, T, S, R: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
                      BT: tl.constexpr, BS: tl.constexpr):
        """out[b, t, g] = Σ_h w[b, t, h] · relu(q[b, t, h] · k[b, g]), -inf where g >= (t + 1) // R."""
        tt = tl.program_id(0) * BT + tl.arange(0, BT)
        ss = tl.program_id(1) * BS + tl.arange(0, BS)
        b = tl.program_id(2).to(tl.int64)
        d = tl.arange(0, DIM)
        last = (tl.program_id(0) * BT + BT) // R
        acc = tl.zeros((BT, BS), tl.float32)
        if tl.program_id(1) * BS < last:
            k = tl.load(k_ptr + (b * S + ss[None, :]) * DIM + d[:, None])
            for h in range(HEADS):
                q = tl.load(q_ptr + ((b * T + tt[:, None]) * HEADS + h) * DIM + d[None, :])
                w = tl.load(w_ptr + (b * T + tt) * HEADS + h)
                acc += w[:, None] * tl.maximum(tl.dot(q, k), 0.0)
        acc = tl.where(ss[None, :] < ((tt + 1) // R)[:, None], acc, float("-inf"))
        tl.store(out_ptr + (b * T + tt[:, None]) * S + ss[None, :], acc)

    @triton.jit
    def _topk_mask(score_ptr, cand_ptr, out_ptr, S, K, CAND: tl.constexpr, WIDTH: tl.constexpr):
        """out[row, g] = 1 for the K largest scores above -inf of a row (lower index first among equals).

        With CAND, entries outside the candidate blocks of cand [rows, S / CAND] do not take part. The threshold
        is found by bisection over the ordered integer image of the scores.
        """
        row = tl.program_id(0).to(tl.int64)
        g = tl.arange(0, WIDTH)
        x = tl.load(score_ptr + row * S + g, mask=g < S, other=float("-inf"))
        live = x > float("-inf")
        if CAND > 0:
            live = live & (tl.load(cand_ptr + row * (S // CAND) + g // CAND, mask=g < S, other=0) != 0)
        if tl.sum(live.to(tl.int32), 0) <= K:
            tl.store(out_ptr + row * S + g, live.to(tl.int8), mask=g < S)
        else:
            bits = (x + 0.0).to(tl.int32, bitcast=True)                 # + 0.0: -0 and +0 are equal scores
            key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)            # orders as the floats do
            key = tl.where(live, key, -2147483648)                       # below every finite score
            low = tl.full((), -2147483648, tl.int32)
            high = tl.full((), 2147483647, tl.int32)
            for _ in range(32):                                          # largest value that >= K keys reach
                mid = (low | high) - ((low ^ high) >> 1)                 # ceil of the mean, without overflow
                enough = tl.sum((key >= mid).to(tl.int32), 0) >= K
                low = tl.where(enough, mid, low)
                high = tl.where(enough, high, mid - 1)
            above = key > low
            equal = (key == low) & live
            room = K - tl.sum(above.to(tl.int32), 0)
            take = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= room))
            tl.store(out_ptr + row * S + g, take.to(tl.int8), mask=g < S)


class TritonSinkhorn(torch.autograd.Function):
    BLOCK = 64

    @staticmethod
    def forward(ctx, x, iters, eps):
        n = x.shape[0]
        c = torch.empty_like(x)
        rows, cols = (torch.empty(n, iters, 4, device=x.device) for _ in range(2))
        grid = (triton.cdiv(n, TritonSinkhorn.BLOCK),)
        _sinkhorn_forward[grid](x, c, rows, cols, n, eps, iters, TritonSinkhorn.BLOCK)
        ctx.save_for_backward(c, rows, cols)
        ctx.iters, ctx.eps = iters, eps
        return c

    @staticmethod
    def backward(ctx, grad):
        c, rows, cols = ctx.saved_tensors
        n = c.shape[0]
        dx = torch.empty_like(c)
        grid = (triton.cdiv(n, TritonSinkhorn.BLOCK),)
        _sinkhorn_backward[grid](grad.contiguous(), c, rows, cols, dx, n, ctx.eps, ctx.iters, TritonSinkhorn.BLOCK)
        return dx, None, None


# ---- plain forms -----------------------------------------------------------------------------------
def index_scores_reference(q, w, key, ratio):
    """q [B, T, heads, dim], w fp32 [B, T, heads], key [B, S, dim] -> fp32 [B, T, S], -inf where not visible."""
    dots = torch.einsum("bthd,bsd->bths", q.float(), key.float())
    score = (torch.relu(dots) * w.unsqueeze(-1)).sum(2)
    return score.masked_fill(~visible_entries(q.shape[1], key.shape[1], ratio, q.device), float("-inf"))


def visible_entries(t, s, ratio, device):
    """[T, S] bool: entry g is visible to position t when g < (t + 1) // ratio."""
    return torch.arange(s, device=device) < ((torch.arange(t, device=device) + 1) // ratio).unsqueeze(1)


def topk_mask_reference(score, k, candidates=None, block=0):
    """The k largest scores above -inf of each row [B, T, S], lower index first among equals; bool."""
    live = score > float("-inf")
    if candidates is not None:
        live = live & candidates.bool().repeat_interleave(block, -1)[..., :score.shape[-1]]
    order = score.masked_fill(~live, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
    return torch.zeros_like(live).scatter_(-1, order[..., :k], True) & live


def block_scores(score, size, ratio):
    """Best score of each candidate block [B, T, ceil(S / size)]; the newest visible block gets +inf (§5.8)."""
    t, s = score.shape[1:]
    count = -(-s // size)
    if count * size != s:
        score = torch.nn.functional.pad(score, (0, count * size - s), value=float("-inf"))
    best = score.unflatten(-1, (count, size)).amax(-1)
    seen = (torch.arange(t, device=score.device) + 1) // ratio
    newest = torch.arange(count, device=score.device) == ((seen - 1) // size).unsqueeze(1)   # none while seen = 0
    return best.masked_fill(newest & (seen > 0).unsqueeze(1), float("inf"))


class Kernels:
    """Chooses between the two forms once, at start."""

    def __init__(self, use_triton: bool):
        self.use_triton = use_triton and triton is not None

    def sinkhorn(self, logits, iters, eps):
        if self.use_triton and logits.shape[-1] == 4:
            return TritonSinkhorn.apply(logits, iters, eps)
        return sinkhorn_reference(logits, iters, eps)

    def index_scores(self, q, w, key, ratio):
        if not self.use_triton:
            return index_scores_reference(q, w, key, ratio)
        b, t, heads, dim = q.shape
        s = key.shape[1]
        out = torch.empty(b, t, s, device=q.device)
        bt = bs = 64
        assert t % bt == 0 and s % bs == 0, "window lengths must be multiples of 128"
        _index_scores[(t // bt, s // bs, b)](q.contiguous(), w.contiguous(), key.contiguous(), out, t, s, ratio,
                                             heads, dim, bt, bs)
        return out

    def topk_mask(self, score, k, candidates=None, block=0):
        if not self.use_triton:
            return topk_mask_reference(score, k, candidates, block)
        score = score.contiguous()
        s = score.shape[-1]
        out = torch.empty(score.shape, dtype=torch.int8, device=score.device)
        width = triton.next_power_of_2(s)
        cand = out if candidates is None else candidates.to(torch.int8).contiguous()
        _topk_mask[(score.numel() // s,)](score, cand, out, s, k, 0 if candidates is None else block, width,
                                          num_warps=4 if width <= 2048 else 8 if width <= 8192 else 16)
        return out.view(torch.bool)

    def candidates(self, score, blocks, size, ratio):
        """Candidate blocks of the source layer, bool [B, T, ceil(S / size)]."""
        return self.topk_mask(block_scores(score, size, ratio), blocks)

    @torch.no_grad()
    def check(self, device):
        """Compares every kernel with its plain form; returns the largest deviations, raises on a mismatch."""
        g = torch.Generator().manual_seed(5)
        x = (torch.randn(300, 4, 4, generator=g) * 2).to(device)
        grad = torch.randn(300, 4, 4, generator=g).to(device)
        with torch.enable_grad():
            a, b = (x.clone().requires_grad_() for _ in range(2))
            ya, yb = TritonSinkhorn.apply(a, 20, 1e-6), sinkhorn_reference(b, 20, 1e-6)
            ya.backward(grad)
            yb.backward(grad)
        report = {"sinkhorn": float((ya - yb).abs().max()), "sinkhorn_grad": float((a.grad - b.grad).abs().max())}
        for ratio in (1, 2):
            t, s = 256, 256 // ratio
            dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
            q = torch.randn(2, t, 8, 32, generator=g).to(device, dtype)
            w = torch.randn(2, t, 8, generator=g).to(device) * 0.1
            key = torch.randn(2, s, 32, generator=g).to(device, dtype)
            got, want = self.index_scores(q, w, key, ratio), index_scores_reference(q, w, key, ratio)
            assert bool((got.isinf() == want.isinf()).all())
            report[f"index_scores_r{ratio}"] = float((got - want).nan_to_num(0, 0, 0).abs().max())
            tied = torch.where(want.isinf(), want, (want * 2).round() / 2)
            cand = self.candidates(tied, 8, 8, ratio)
            assert bool((cand == topk_mask_reference(block_scores(tied, 8, ratio), 8)).all()), "candidate blocks"
            assert bool((self.topk_mask(tied, 24) == topk_mask_reference(tied, 24)).all()), "top-k"
            assert bool((self.topk_mask(tied, 24, cand, 8) == topk_mask_reference(tied, 24, cand, 8)).all()), "top-k c"
        assert max(report.values()) < 2e-3, report
        return report
