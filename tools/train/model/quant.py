"""Number formats of model.md §4: fake quantisation for training and packing for export.

Every fake quantiser returns the dequantised value with a straight-through gradient. Scales use the
division form and a floor on amax. All scale arithmetic stays in normal fp32 numbers, because GPUs flush
subnormals: floors below 1e-30 are raised to it.
"""
import torch

E4M3_MAX = 448.0
E2M1_MAX = 6.0
TINY = 1e-30


def ceil_log2(x):
    """ceil(log2(x)) of positive normal fp32 values, read from the bits; int32."""
    bits = x.view(torch.int32)
    return ((bits - 1) >> 23) + (1 - 127)


def exp2_int(e):
    """2^e as fp32 for integer e in [-126, 127], exact."""
    return ((e + 127) << 23).view(torch.float32)


def round_e4m3(x):
    return x.to(torch.float8_e4m3fn).to(torch.float32)


def round_e2m1(x):
    """Nearest E2M1 value of |x| <= 6, ties to the even code, sign of zero kept."""
    a = x.abs()
    r = torch.where(a < 2, torch.round(2 * a) * 0.5, torch.where(a < 4, torch.round(a), torch.round(a * 0.5) * 2))
    return torch.copysign(r, x)


def e4m3_groups(x, floor=1e-4):
    """(codes as fp32, exponent int32) of groups along the last axis of x [..., group]."""
    amax = x.abs().amax(-1, keepdim=True).clamp_min(floor)
    e = ceil_log2(amax / E4M3_MAX)
    return round_e4m3((x * exp2_int(-e)).clamp(-E4M3_MAX, E4M3_MAX)), e


def e2m1_groups(x):
    amax = x.abs().amax(-1, keepdim=True).clamp_min(TINY)
    e = ceil_log2(amax / E2M1_MAX)
    return round_e2m1((x * exp2_int(-e)).clamp(-E2M1_MAX, E2M1_MAX)), e


def e2m1_e4m3_groups(x):
    """(codes as fp32, scale fp32) with an E4M3 scale per group, no second level."""
    amax = x.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-9)
    s = round_e4m3((amax / E2M1_MAX).clamp_max(E4M3_MAX))
    return round_e2m1((x / s).clamp(-E2M1_MAX, E2M1_MAX)), s


def grouped(x, n):
    return x.unflatten(-1, (x.shape[-1] // n, n))


def straight_through(x, q):
    return x + (q.to(x.dtype) - x).detach()


# ---- activations, keys and index vectors (model.md §4.2, §4.3): input is read as bf16 --------------
def fq_e4m3_32(x):
    codes, e = e4m3_groups(grouped(x.to(torch.bfloat16).float(), 32))
    return straight_through(x, (codes * exp2_int(e)).flatten(-2))


def fq_e2m1_32(x):
    codes, e = e2m1_groups(grouped(x.to(torch.bfloat16).float(), 32))
    return straight_through(x, (codes * exp2_int(e)).flatten(-2))


def fq_e2m1_16(x):
    codes, s = e2m1_e4m3_groups(grouped(x.to(torch.bfloat16).float(), 16))
    return straight_through(x, (codes * s).flatten(-2))


# ---- weights (model.md §4.1) ------------------------------------------------------------------------
def tiles(w, b=32):
    """[..., o, i] -> [..., o/b, i/b, b*b]"""
    o, i = w.shape[-2:]
    return w.reshape(*w.shape[:-2], o // b, b, i // b, b).transpose(-3, -2).flatten(-2)


def untile(t, o, i, b=32):
    return t.unflatten(-1, (b, b)).transpose(-3, -2).reshape(*t.shape[:-3], o, i)


def quant_fp8b(w):
    """E4M3 with one exponent per 32x32 tile: (codes [..., o, i] fp32, exponents [..., o/32, i/32])."""
    codes, e = e4m3_groups(tiles(w), floor=TINY)
    return untile(codes, *w.shape[-2:]), e.squeeze(-1)


def quant_fp8r(w):
    """E4M3 with one exponent per 32 columns of a row."""
    codes, e = e4m3_groups(grouped(w, 32), floor=TINY)
    return codes.flatten(-2), e.squeeze(-1)


def quant_fp4r(w):
    """E2M1 with one exponent per 32 columns of a row."""
    codes, e = e2m1_groups(grouped(w, 32))
    return codes.flatten(-2), e.squeeze(-1)


def expand_fp8b(codes, e, b=32):
    return codes * exp2_int(e).repeat_interleave(b, -2).repeat_interleave(b, -1)


def expand_rows(codes, e):
    return codes * exp2_int(e).repeat_interleave(32, -1)


def fq_fp8b(w):
    codes, e = e4m3_groups(tiles(w), floor=TINY)
    return straight_through(w, untile(codes * exp2_int(e), *w.shape[-2:]))


def fq_fp8r(w):
    codes, e = e4m3_groups(grouped(w, 32), floor=TINY)
    return straight_through(w, (codes * exp2_int(e)).flatten(-2))


def fq_fp4r(w):
    codes, e = e2m1_groups(grouped(w, 32))
    return straight_through(w, (codes * exp2_int(e)).flatten(-2))


def fq_bf16(w):
    return straight_through(w, w.to(torch.bfloat16).float())


FAKE_QUANT = {"fp8b": fq_fp8b, "fp8r": fq_fp8r, "fp4r": fq_fp4r, "bf16": fq_bf16, "f32": lambda w: w}
