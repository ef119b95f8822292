"""Muon for the matrices and Adam for the rest, on the flat buffers of Params (tiny-model.md §6)."""
import torch

NS = (3.4445, -4.7750, 2.0315)


def orthogonalise(g, steps=5):
    """Newton-Schulz on every matrix of a stack [n, rows, cols], in bf16 (fp32 on a CPU, which is slow at bf16)."""
    x = g.to(torch.bfloat16) if g.is_cuda else g
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-20).to(x.dtype)
    a, b, c = NS
    for _ in range(steps):
        s = torch.bmm(x, x.mT)
        m = torch.baddbmm(s, s, s, beta=b, alpha=c)
        x = torch.baddbmm(x, m, x, beta=a)
    return x.mT if tall else x


class Optimiser:
    def __init__(self, params, muon_rate=4e-3, adam_rate=3e-3, momentum=0.95, decay=0.05, betas=(0.9, 0.98), eps=1e-10):
        self.p = params
        self.muon_rate, self.adam_rate, self.momentum, self.decay = muon_rate, adam_rate, momentum, decay
        self.betas, self.eps = betas, eps
        n = params.adam_size
        self.velocity = torch.zeros_like(params.flat[n:])
        self.m, self.v = torch.zeros_like(params.flat[:n]), torch.zeros_like(params.flat[:n])
        self.rates = params.rates()
        self.steps = 0
        self.matrices = [s for s in params.specs if s.optimiser == "muon"]

    @torch.no_grad()
    def step(self, factor: float, frozen=()):
        """One update at `factor` times the peak rates; keys starting with a prefix in `frozen` stay."""
        self.steps += 1
        n, size = self.p.adam_size, self.p.size
        flat, grad = self.p.flat, self.p.flat_grad[:size]
        b1, b2 = self.betas
        g = grad[:n]
        self.m.lerp_(g, 1 - b1)
        self.v.mul_(b2).addcmul_(g, g, value=1 - b2)
        denom = (self.v / (1 - b2**self.steps)).sqrt_().add_(self.eps)
        update = (self.m / denom).mul_(self.rates)
        flat[:n].add_(update, alpha=-self.adam_rate * factor / (1 - b1**self.steps))

        g = grad[n:]
        self.velocity.mul_(self.momentum).add_(g)
        look_ahead = torch.add(g, self.velocity, alpha=self.momentum)
        rate = self.muon_rate * factor
        for s in self.matrices:
            if s.key.startswith(tuple(frozen)):
                continue
            rows, cols = s.shape[-2:]
            update = orthogonalise(look_ahead[s.offset - n:s.offset - n + s.numel].view(-1, rows, cols))
            p = flat[s.offset:s.offset + s.numel].view(-1, rows, cols)
            p.mul_(1 - rate * self.decay).add_(update.to(p.dtype), alpha=-rate * 0.2 * max(rows, cols)**0.5)

    @torch.no_grad()
    def balance(self, load, factor: float, speed=2e-3):
        """Moves the routing bias against the load [layers, experts]."""
        self.p.bias.add_(torch.sign(load.mean(1, keepdim=True) - load), alpha=speed * factor)

    def state(self):
        return {"velocity": self.velocity, "m": self.m, "v": self.v, "steps": self.steps}

    def load_state(self, state):
        for key in ("velocity", "m", "v"):
            getattr(self, key).copy_(state[key])
        self.steps = state["steps"]
