"""Trains the bundled model: backbone, then draft, by the clock (tiny-model.md §5, §6). One process per GPU.

    torchrun --nproc-per-node 2 train.py --config ../../models/tiny --pool POOL --out STATE \
        --backbone-seconds 1050 --draft-seconds 260

Everything that a phase changes is decided by rank 0 and sent to the others before each step, so the processes
stay together. The full state is written every minute (STATE/state.pt), with a bf16 copy of all weights in pieces
below 16 MiB beside it (STATE/snapshot.*), and a run continues from it when started again.
"""
import argparse
import json
import math
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from evaluate import Evaluation, evaluate
from feed import Reader
from model import snapshot
from model.backbone import Backbone, Mode
from model.checkpoint import load_params, read_tensors
from model.config import engram_vocab_map, load_config
from model.draft import Draft
from model.params import make_backbone, make_draft
from optimiser import Optimiser

WARM_UP = 150
DECAY_FROM = 0.45
KL_WEIGHT = 0.3
OTHER_WEIGHT = 0.1


@dataclass
class Phase:
    end: float           # share of the backbone's time
    lengths: tuple       # indices into --lengths
    chances: tuple
    kl: bool
    sparse: bool         # selection, candidates and every quantisation


PHASES = (
    Phase(0.50, (0,), (1.0,), False, False),
    Phase(0.58, (1,), (1.0,), True, False),
    Phase(0.84, (0, 1), (0.5, 0.5), True, True),
    Phase(1.00, (0, 1, 2), (0.45, 0.25, 0.30), True, True),
)


# A continued training begins with everything on and its rates fall from the start.
PHASES_CONTINUED = (Phase(1.0, (0, 1, 2), (0.65, 0.20, 0.15), True, True),)


def lr_factor(step, share, warm_up=WARM_UP, decay_from=DECAY_FROM):
    rising = min(1.0, (step + 1) / warm_up)
    return rising * (1.0 if share < decay_from else max((1 - share) / (1 - decay_from), 0.0))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        cuda = args.device == "cuda"
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        self.control = None
        if self.world > 1:
            dist.init_process_group("nccl" if cuda else "gloo")
            self.control = dist.new_group(backend="gloo")
        torch.backends.cuda.matmul.allow_tf32 = True      # only products whose operands are bf16 values use it
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.accumulated_recompile_limit = 512
        torch.manual_seed(args.seed + 1000 * self.rank)
        self.config = load_config(args.config)
        vocab_map = engram_vocab_map(self.config, args.tokenizer or Path(args.config) / "tokenizer.json")
        self.lengths = [int(v) for v in args.lengths.split(",")]
        self.rows = args.tokens_per_step // self.world       # B·T of this process, fixed
        use_triton = cuda and not args.no_triton
        compiled = None if args.compile == "none" else args.compile
        self.backbone = Backbone(self.config, vocab_map, self.device, compiled,
                                 args.attention or ("flex" if cuda else "dense"), use_triton)
        self.draft = Draft(self.backbone, compiled)
        if use_triton:
            try:
                self.say(f"kernels {self.backbone.kernels.check(self.device)}")
            except Exception as error:      # the plain forms are slower, not different
                self.say(f"Triton kernels are off: {error!r}"[:500])
                self.backbone.kernels.use_triton = False
                sinkhorn = torch.compile(self.backbone.kernels.sinkhorn.__globals__["sinkhorn_reference"], dynamic=False)
                self.backbone.kernels.sinkhorn = sinkhorn
        self.params, self.draft_params = (make(self.config, self.device) for make in (make_backbone, make_draft))
        self.params.initialise(args.seed)
        self.draft_params.initialise(args.seed + 1)
        self.phases = PHASES_CONTINUED if args.continued else PHASES
        self.decay_from = 0.0 if args.continued else DECAY_FROM
        self.opt = Optimiser(self.params, args.muon_rate * args.rate, args.adam_rate * args.rate)
        self.draft_opt = Optimiser(self.draft_params, args.muon_rate * args.draft_rate, args.adam_rate * args.draft_rate)
        self.dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
        self.reader = Reader(args.pool, self.rank, self.world, args.seed)
        self.rng = np.random.default_rng(args.seed)
        self.clock = {"backbone": 0.0, "draft": 0.0}
        self.steps = {"backbone": 0, "draft": 0}
        self.tokens = 0
        self.events, self.writer = [], None
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        if (self.out / "state.pt").exists():
            self.load()
        elif args.init:
            self.begin_with(Path(args.init))
        self.last_save = self.last_look = time.time()
        self.evaluation = Evaluation(self, args.eval) if args.eval else None

    def say(self, text):
        if self.rank == 0:
            print(time.strftime("%H:%M:%S ") + text, flush=True)

    def begin_with(self, folder):
        """Weights of a snapshot or of a published checkpoint; the optimisers start fresh."""
        if (folder / "model.safetensors.index.json").exists():
            tensors = read_tensors(folder)
            for params in (self.params, self.draft_params):
                load_params(params, tensors)
            self.say(f"starts from the checkpoint in {folder}: {len(tensors)} tensors")
        else:
            self.say(f"starts from the weights of {snapshot.read(folder, self.params, self.draft_params)}")

    # ---- state ------------------------------------------------------------------------------------
    def save(self, wait=False):
        """Copies everything to the host, then writes in a thread."""
        self.last_save = time.time()
        if self.writer is not None:
            self.writer.join()
        reader = [None] * self.world
        if self.world > 1:
            dist.all_gather_object(reader, self.reader.state(), group=self.control)
        else:
            reader[0] = self.reader.state()
        if self.rank:
            return
        host = lambda d: {k: v.cpu() if torch.is_tensor(v) else v for k, v in d.items()}
        state = {"params": host(self.params.state()), "draft": host(self.draft_params.state()),
                 "opt": host(self.opt.state()), "draft_opt": host(self.draft_opt.state()), "reader": reader,
                 "rng": self.rng.bit_generator.state, "clock": dict(self.clock), "steps": dict(self.steps),
                 "tokens": self.tokens}

        def write():
            torch.save(state, self.out / "state.tmp")
            os.replace(self.out / "state.tmp", self.out / "state.pt")
            snapshot.write(self.out, state["params"], state["draft"],
                           {k: state[k] for k in ("clock", "steps", "tokens")})
        self.writer = threading.Thread(target=write)
        self.writer.start()
        if wait:
            self.writer.join()

    def load(self):
        state = torch.load(self.out / "state.pt", map_location="cpu", weights_only=False)
        self.params.load_state(state["params"])
        self.draft_params.load_state(state["draft"])
        self.opt.load_state(state["opt"])
        self.draft_opt.load_state(state["draft_opt"])
        if self.rank < len(state["reader"]):
            self.reader.load_state(state["reader"][self.rank])
        self.rng.bit_generator.state = state["rng"]
        self.clock, self.steps, self.tokens = state["clock"], state["steps"], state["tokens"]
        self.say(f"continues: clock {self.clock}, steps {self.steps}, {self.tokens / 1e6:.1f} M tokens")

    # ---- shared by both parts -----------------------------------------------------------------------
    def decide(self, values):
        """Rank 0's numbers, on every rank."""
        t = torch.tensor(values, dtype=torch.float64)
        if self.world > 1:
            dist.broadcast(t, 0, group=self.control)
        return t.tolist()

    def batch(self, t):
        ids, flags = self.reader.batch(t, self.rows // t)
        ids, flags = torch.from_numpy(ids), torch.from_numpy(flags)
        if self.device.type == "cuda":
            ids, flags = ids.pin_memory(), flags.pin_memory()
        return ids.to(self.device, non_blocking=True), flags.to(self.device, non_blocking=True)

    def throttle(self):
        """Keeps the host at most two steps ahead, so that the clock means something."""
        if self.device.type == "cuda":
            self.events.append(torch.cuda.Event())
            self.events[-1].record()
            if len(self.events) > 2:
                self.events.pop(0).synchronize()

    def not_counted(self, begin, what):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.say(f"{what}: first step took {time.time() - begin:.1f} s, not counted")
        return time.time()

    def reduce(self, params):
        """Averages gradients and loads over the ranks; a step with a non-finite gradient becomes a zero step."""
        g = params.flat_grad
        if self.world > 1:
            dist.all_reduce(g, op=dist.ReduceOp.SUM)
            g.div_(self.world)
        norm = torch.linalg.vector_norm(g[:params.size])
        torch.where(torch.isfinite(norm), g, torch.zeros_like(g), out=g)
        return norm

    def copies(self, params, mode):
        w = self.backbone.compute_copies(params, mode)
        w["bias"] = params.bias
        return w

    def modes(self):
        dense = Mode(dtype=self.dtype)
        final = Mode(dtype=self.dtype, sparse=True, kv_quant=True, weight_quant=True, act_quant=self.args.act_quant)
        return dense, final

    # ---- backbone -----------------------------------------------------------------------------------
    def backbone_step(self, ids, flags, mode, factor):
        self.params.zero_grad()
        w = self.copies(self.params, mode)
        out = self.backbone.forward(w, ids[:, :-1], mode)
        weights = torch.where(flags[:, 1:] > 0, 1.0, OTHER_WEIGHT).flatten()
        sums = self.backbone.pieces.head_loss(out["hidden"], w["head"], ids[:, 1:].flatten(), weights)
        loss = sums[0] / sums[1]
        kl = out.get("kl")
        (loss if kl is None else loss + KL_WEIGHT * kl).backward()
        self.params.load.copy_(out["loads"])
        norm = self.reduce(self.params)
        self.opt.step(factor, () if kl is not None else ("indexer.wq_b", "indexer.wk"))
        self.opt.balance(self.params.load, factor * self.args.rate)
        load = self.params.load
        busiest = (load.max(1).values / load.mean(1).clamp_min(1e-9)).max()
        zero = torch.zeros((), device=self.device)
        return torch.cat([sums.detach(), torch.stack([zero if kl is None else kl.detach(), norm, busiest])])

    def train_backbone(self):
        args, limit = self.args, self.args.backbone_seconds
        kl_rows = 64
        dense, final = self.modes()
        log, log_tokens, log_time = [], 0, time.time()
        tick = time.time()
        current, compiled = None, set()
        while True:
            now = time.time()
            self.clock["backbone"] += now - tick
            tick = now
            share = self.clock["backbone"] / limit
            phase = next((i for i, p in enumerate(self.phases) if share < p.end), -1)
            at = 0
            if phase >= 0:
                p = self.phases[phase]
                at = self.rng.choice(p.lengths, p=p.chances)
            save = now - self.last_save > args.save_seconds
            look = self.evaluation is not None and now - self.last_look > args.look_seconds
            share, phase, at, save, look = self.decide([share, phase, at, float(save), float(look)])
            phase, t = int(phase), self.lengths[int(at)]
            if phase < 0 or (args.max_steps and self.steps["backbone"] >= args.max_steps):
                break
            if save:
                self.save()
            p = self.phases[phase]
            mode = final if p.sparse else dense
            if look:
                self.last_look = time.time()
                self.evaluation.quick(mode)
            mode = mode.but(kl_rows=kl_rows if p.kl else 0)
            if (phase, t) != current:
                if current is None or current[0] != phase:
                    self.say(f"phase {phase + 1}: window lengths {[self.lengths[i] for i in p.lengths]}, {mode}")
                current = (phase, t)
            factor = lr_factor(self.steps["backbone"], share, 60 if args.continued else WARM_UP, self.decay_from)
            ids, flags = self.batch(t)
            log.append((t, self.backbone_step(ids, flags, mode, factor)))
            self.throttle()
            if (p.sparse, p.kl, t) not in compiled:      # the first step of a shape compiles; the clock does not count it
                compiled.add((p.sparse, p.kl, t))
                tick = self.not_counted(tick, f"windows of {t}")
            self.steps["backbone"] += 1
            self.tokens += self.rows * self.world
            log_tokens += self.rows * self.world
            if self.steps["backbone"] % args.log_steps == 0 or self.steps["backbone"] <= 3:
                self.log_backbone(log, log_tokens, time.time() - log_time, factor, share)
                log, log_tokens, log_time = [], 0, time.time()
        self.say(f"backbone done: {self.steps['backbone']} steps, {self.tokens / 1e6:.1f} M tokens")
        self.save()

    def log_backbone(self, log, tokens, seconds, factor, share):
        parts = []
        for t in sorted({t for t, _ in log}):
            m = torch.stack([v for u, v in log if u == t]).double().cpu()
            s = m.sum(0)
            parts.append(f"T{t} n{len(m)} loss {s[0] / s[1]:.4f} answer {s[2] / s[4].clamp_min(1):.4f} "
                         f"acc {s[3] / s[4].clamp_min(1):.4f} kl {m[:, 5].mean():.3f}")
            norm, busiest = m[:, 6], float(m[:, 7].mean())
            bad = int((~torch.isfinite(norm)).sum())
            tail = f"|g| {float(norm[torch.isfinite(norm)].mean() if bad < len(norm) else math.nan):.3f} busy {busiest:.2f}"
            if bad:
                tail += f" NON-FINITE {bad}"
            parts.append(tail)
        r = self.reader
        self.say(f"step {self.steps['backbone']} {self.tokens / 1e6:.1f}M {share:.3f} lr {factor:.3f} "
                 + " | ".join(parts) + f" | {tokens / seconds / 1e6:.3f} Mtok/s again {r.repeated / max(r.repeated + r.fresh, 1):.2f}")

    # ---- draft --------------------------------------------------------------------------------------
    def draft_step(self, w, ids, flags, mode, factor):
        c, t = self.config, ids.shape[1] - 1
        b, n = ids.shape[0], c.dspark_block_size
        out = self.backbone.forward(w, ids[:, :-1], mode)
        hidden, features = out["hidden"].detach(), [f.detach() for f in out["features"]]
        # anchors a: the first drafted token, a + 2, is part of an answer
        chance = (flags[:, 2:t - n + 2] > 0).float() + 1e-6
        a = torch.multinomial(chance, self.args.anchors, replacement=True)               # [B, K]
        ahead = torch.arange(n, device=self.device)
        ok = (flags.gather(1, (a.unsqueeze(-1) + 2 + ahead).flatten(1)) > 0).view(*a.shape, n)
        ok = ok.float().cumprod(-1)
        take = lambda offset: ids.gather(1, (a.unsqueeze(-1) + offset + ahead).flatten(1)).flatten()
        start = torch.arange(b, device=self.device).unsqueeze(1) * t
        rows = ((start + a).unsqueeze(-1) + 1 + ahead).flatten()
        self.draft_params.zero_grad()
        dw = self.copies(self.draft_params, mode)
        _, contexts = self.draft.contexts(dw, features, b, t, mode)
        h, loads = self.draft.blocks(dw, w_detached(w), contexts, t, (start + a).flatten(), ids.gather(1, a + 1).flatten(), mode)
        decay = torch.exp(-ahead / n).repeat(a.numel())
        loss, hit, sums = self.draft.loss(h, dw["mtp.norm"], w["head"].detach(), dw["mtp.markov.embed"],
                                          dw["mtp.markov.head"], dw["mtp.confidence"], take(1), take(2), hidden[rows],
                                          decay, ok.flatten(), self.backbone.k(mode, draft=True))
        loss.backward()
        self.draft_params.load.copy_(loads)
        norm = self.reduce(self.draft_params)
        self.draft_opt.step(factor)
        self.draft_opt.balance(self.draft_params.load, factor * self.args.draft_rate)
        accepted = hit.view(-1, n).cumprod(-1).sum() / ok[..., 0].sum().clamp_min(1)
        first = hit.view(-1, n)[:, 0].sum() / ok[..., 0].sum().clamp_min(1)
        full = ok[..., -1].flatten()
        whole = (hit.view(-1, n).cumprod(-1).sum(-1) * full).sum() / full.sum().clamp_min(1)
        return torch.stack([loss.detach(), accepted, first, whole, *(sums[:3] / sums[3].clamp_min(1)), norm])

    def train_draft(self):
        args, limit = self.args, self.args.draft_seconds
        final = self.modes()[1]
        t = self.lengths[0]
        # the backbone's graph is kept (and never used) so that its compiled pieces serve here as well
        w = self.copies(self.params, final)
        log, tick, log_time, first = [], time.time(), time.time(), True
        self.say(f"draft: {args.anchors} anchors per window of {t}")
        while True:
            now = time.time()
            self.clock["draft"] += now - tick
            tick = now
            save = now - self.last_save > args.save_seconds
            share, save = self.decide([self.clock["draft"] / limit, float(save)])
            if share >= 1 or (args.max_steps and self.steps["draft"] >= args.max_steps):
                break
            if save:
                self.save()
            factor = lr_factor(self.steps["draft"], share, 60, self.decay_from)
            ids, flags = self.batch(t)
            log.append(self.draft_step(w, ids, flags, final, factor))
            self.throttle()
            if first:
                first, tick = False, self.not_counted(tick, "draft")
            self.steps["draft"] += 1
            if self.steps["draft"] % args.log_steps == 0 or self.steps["draft"] <= 2:
                m = torch.stack(log).double().cpu()
                bad = int((~torch.isfinite(m[:, 7])).sum())
                m = m.mean(0)
                self.say(f"draft {self.steps['draft']} {share:.3f} lr {factor:.3f} loss {m[0]:.4f} accepted {m[1]:.3f} "
                         f"(whole blocks {m[3]:.3f}) first {m[2]:.3f} nll {m[4]:.3f} distance {m[5]:.3f} bce {m[6]:.3f} "
                         f"|g| {m[7]:.3f} {len(log) / (time.time() - log_time):.2f} steps/s"
                         + (f" NON-FINITE {bad}" if bad else ""))
                log, log_time = [], time.time()
        self.say(f"draft done: {self.steps['draft']} steps")
        self.save(wait=True)


def w_detached(w):
    return {"embed": w["embed"].detach()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True, help="folder with config.json and tokenizer.json")
    parser.add_argument("--tokenizer")
    parser.add_argument("--pool", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--backbone-seconds", type=float, default=1050)
    parser.add_argument("--draft-seconds", type=float, default=260)
    parser.add_argument("--lengths", default="2048,8192,16384")
    parser.add_argument("--tokens-per-step", type=int, default=65536)
    parser.add_argument("--anchors", type=int, default=384, help="draft blocks per window")
    parser.add_argument("--muon-rate", type=float, default=4e-3)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--continued", action="store_true", help="all quantisation and selection from the first step, rates fall at once")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of both rates for the backbone")
    parser.add_argument("--draft-rate", type=float, default=1.0, help="factor of both rates for the draft")
    parser.add_argument("--act-quant", action="store_true")
    parser.add_argument("--seed", type=int, default=20270101)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--compile", default="inductor", help="backend of torch.compile, or 'none'")
    parser.add_argument("--attention", default="", help="dense or flex; by default flex on a GPU")
    parser.add_argument("--log-steps", type=int, default=50)
    parser.add_argument("--save-seconds", type=float, default=60)
    parser.add_argument("--max-steps", type=int, default=0)
    parser.add_argument("--eval", help="evaluation items (prepare_eval.py)")
    parser.add_argument("--look-seconds", type=float, default=120, help="time between short looks at them")
    parser.add_argument("--sample-tokens", type=int, default=64)
    parser.add_argument("--init", help="folder of a snapshot or a checkpoint to start from")
    args = parser.parse_args()
    trainer = Trainer(args)
    if trainer.clock["backbone"] < args.backbone_seconds:
        trainer.train_backbone()
    if trainer.clock["draft"] < args.draft_seconds:
        trainer.train_draft()
    if args.eval:
        evaluate(trainer)
    if trainer.writer is not None:
        trainer.writer.join()
    (trainer.out / "done").touch()
    if trainer.world > 1:
        dist.barrier(group=trainer.control)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
