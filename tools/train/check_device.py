"""Compares flex attention and the Triton kernels with their plain forms on the GPU, gradients included."""
import torch

from model.attention import Attention
from model.kernels import Kernels


def attention_case(t, ratio, chosen, device):
    torch.manual_seed(t + ratio)
    b, heads, d, window = 2, 8, 128, 64
    s = t // ratio if ratio else 0
    grad = torch.randn(b, t, heads, d, device=device)
    selected = torch.rand(b, t, s, device=device) < 0.3 if chosen else None
    results = []
    base = [torch.randn(b, t, heads, d, device=device), torch.randn(b, t, d, device=device),
            torch.randn(b, s, d, device=device) if ratio else None]
    for mode, dtype in (("dense", torch.float32), ("flex", torch.bfloat16)):
        inputs = [None if x is None else x.bfloat16().to(dtype).requires_grad_() for x in base]
        attend = Attention(mode, window, d**-0.5, device, "inductor" if mode == "flex" else None)
        o, lse = attend(*inputs, selected, ratio)
        (o.float() * torch.sigmoid(lse - 0.3).unsqueeze(-1) * grad).sum().backward()
        results.append([o.detach().float(), lse.detach().float()] + [x.grad.float() for x in inputs if x is not None])
    return [float((a - b).norm() / b.norm()) for a, b in zip(results[1], results[0])]


def main():
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    torch.cuda.set_device(device)
    print("kernels", Kernels(True).check(device), flush=True)
    worst = 0.0
    for ratio, chosen in ((0, False), (1, True), (2, True), (1, False)):
        errors = attention_case(256, ratio, chosen, device)
        worst = max(worst, *errors)
        print(f"attention ratio {ratio} selection {chosen}: relative errors o, lse, gradients "
              + " ".join(f"{e:.1e}" for e in errors), flush=True)
    print("device check", "passed" if worst < 2e-2 else "FAILED", flush=True)


if __name__ == "__main__":
    main()
