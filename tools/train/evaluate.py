"""Teacher-forced evaluation inside the training program, through the training graph.

An item is exact when every token of its reference answer is the argmax given the true prefix. Batches have the
shapes of training, so nothing is compiled anew; short rows are filled by repeating the item.
"""
import json
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open

from model import ops


@dataclass
class Item:
    ids: np.ndarray
    answer: int        # index of the first answer token
    family: str
    exact: bool        # the answer has one right wording


def load_items(path):
    with safe_open(path, "np") as f:
        names = json.loads(f.metadata()["families"])
        t = {k: f.get_tensor(k) for k in f.keys()}
    return [Item(t["ids"][a:b].astype(np.int64), int(t["answer"][i]), names[t["family"][i]], bool(t["exact"][i]))
            for i, (a, b) in enumerate(zip(t["start"][:-1], t["start"][1:]))], names


def fill(ids, t):
    return np.tile(ids, -(-t // len(ids)))[:t]


class Evaluation:
    def __init__(self, trainer, path):
        self.t = trainer
        self.items, self.families = load_items(path)

    def batches(self, items):
        """(T, items) with rows/T items each, shortest length that holds them; dealt to the ranks in turn."""
        tr, out = self.t, []
        for i, t in enumerate(tr.lengths):
            low = tr.lengths[i - 1] if i else 0
            mine = [x for x in items if low < len(x.ids) <= t]
            n = tr.rows // t
            out += [(t, mine[j:j + n]) for j in range(0, len(mine), n)]
        return out[tr.rank::tr.world]

    def forward(self, w, t, items, mode):
        tr = self.t
        n = tr.rows // t
        rows = [fill(x.ids, t) for x in items]
        rows += [rows[0]] * (n - len(rows))
        ids = torch.from_numpy(np.stack(rows)).to(tr.device)
        out = tr.backbone.forward(w, ids, mode)
        return ids, {"hidden": out["hidden"].detach(), "features": [f.detach() for f in out["features"]]}

    def gather(self, values):
        if self.t.world == 1:
            return values
        parts = [None] * self.t.world
        dist.all_gather_object(parts, values, group=self.t.control)
        return [v for p in parts for v in p]

    def score(self, w, mode, items, draft=None):
        """Per item: (family, exact, nll sum, tokens, rounds) where rounds come from a draft walk."""
        results = []
        for t, some in self.batches([x for x in items if x.answer < len(x.ids)]):
            ids, out = self.forward(w, t, some, mode)
            hidden = out["hidden"].view(ids.shape[0], t, -1)
            plan = []
            for row, x in enumerate(some):
                h = hidden[row, x.answer - 1:len(x.ids) - 1]
                logits = (h @ w["head"].detach().t()).float()
                want = ids[row, x.answer:len(x.ids)]
                nll = float((torch.logsumexp(logits, -1) - logits.gather(1, want[:, None])[:, 0]).sum())
                plan.append((x, bool((logits.argmax(-1) == want).all()), nll, len(want)))
            rounds = self.walk(draft, w, mode, t, ids, out, plan) if draft else [None] * len(plan)
            results += [(x.family, exact and x.exact, x.exact, nll, n, r) for (x, exact, nll, n), r in zip(plan, rounds)]
        return self.gather(results)

    # ---- draft -----------------------------------------------------------------------------------------
    def walk(self, dw, w, mode, t, ids, out, plan):
        """Greedy rounds over the exact answers of a batch: per item {limit: [accepted…]} and confidences."""
        tr, c = self.t, self.t.config
        n = c.dspark_block_size
        chunk = tr.rows // tr.lengths[0] * tr.args.anchors        # the number of blocks that training compiled
        anchors = [(row, a) for row, (x, exact, _, _) in enumerate(plan) if exact and x.exact
                   for a in range(x.answer - 1, len(x.ids) - 1)]
        drafts, confidences = [], []
        _, contexts = tr.draft.contexts(dw, out["features"], ids.shape[0], t, mode)
        for i in range(0, len(anchors), chunk):
            part = anchors[i:i + chunk]
            padded = part + [part[0]] * (chunk - len(part))
            rows, at = (torch.tensor(v, device=tr.device) for v in zip(*padded))
            golden = ids[rows, at + 1]
            h, _ = tr.draft.blocks(dw, {"embed": w["embed"].detach()}, contexts, t, rows * t + at, golden, mode)
            h = h.detach().view(chunk, n, -1)[:len(part)]
            prev, picked, sure = golden[:len(part)], [], []
            for k in range(n):
                e = dw["mtp.markov.embed"].detach()[prev]
                base = ops.rms_norm(h[:, k], dw["mtp.norm"].detach(), c.rms_norm_eps) @ w["head"].detach().t()
                sure.append(torch.sigmoid((torch.cat([h[:, k], e], -1) @ dw["mtp.confidence"].detach()[0]).float()))
                prev = (base.float() + (e @ dw["mtp.markov.head"].detach().t()).float()).argmax(-1)
                picked.append(prev)
            drafts.append(torch.stack(picked, 1).cpu())
            confidences.append(torch.stack(sure, 1).cpu())
        if not anchors:
            return [None] * len(plan)
        drafts, confidences = torch.cat(drafts).numpy(), torch.cat(confidences).numpy()
        where = {key: i for i, key in enumerate(anchors)}
        out = []
        for row, (x, exact, _, _) in enumerate(plan):
            if not (exact and x.exact):
                out.append(None)
                continue
            rounds = {}
            reached = []
            for limit in range(1, n + 1):
                a, accepted = x.answer - 1, []
                while a + 1 < len(x.ids) and x.ids[a + 1] != c.eos_token_id:
                    i, count = where[(row, a)], 0
                    while count < limit and a + 2 + count < len(x.ids) and drafts[i, count] == x.ids[a + 2 + count]:
                        count += 1
                    if limit == n:
                        for k in range(min(count + 1, n)):
                            if a + 2 + k < len(x.ids):
                                reached.append((k, float(confidences[i, k]), k < count))
                    accepted.append(count)
                    a += count + 1
                rounds[limit] = accepted
            out.append((rounds, reached))
        return out

    # ---- greedy text ------------------------------------------------------------------------------------
    def samples(self, w, mode, count=64):
        """Greedy continuations of the fixed chat prompts, whole window per token."""
        tr = self.t
        t, n = tr.lengths[0], tr.rows // tr.lengths[0]
        prompts = [x for x in self.items if x.family == "chat30" and len(x.ids) + count < t]
        texts = []
        for some in [prompts[i:i + n] for i in range(0, len(prompts), n)][tr.rank::tr.world]:
            ids = torch.from_numpy(np.stack([fill(x.ids, t) for x in some] + [fill(some[0].ids, t)] * (n - len(some)))).to(tr.device)
            at = torch.tensor([len(x.ids) for x in some], device=tr.device)
            row = torch.arange(len(some), device=tr.device)
            for _ in range(count):
                hidden = tr.backbone.forward(w, ids, mode)["hidden"].detach().view(n, t, -1)
                ids[row, at] = (hidden[row, at - 1] @ w["head"].detach().t()).argmax(-1)
                at = at + 1
            for i, x in enumerate(some):
                texts.append((x.ids.tolist(), ids[i, len(x.ids):len(x.ids) + count].tolist()))
        return self.gather(texts)

    # ---- during training ----------------------------------------------------------------------------------
    @torch.no_grad()
    def per_family(self, hidden, w, ids, flags, families):
        out = []
        for row, family in enumerate(families):
            keep = flags[row, 1:] > 0
            logits = (hidden[row][keep] @ w["head"].t()).float()
            want = ids[row, 1:][keep]
            nll = torch.logsumexp(logits, -1) - logits.gather(1, want[:, None])[:, 0]
            out.append((family, float(nll.sum()), float((logits.argmax(-1) == want).sum()), len(want)))
        return out

    def quick(self, mode):
        """Answer loss and accuracy per family on packed held-out items, one batch of the shortest length."""
        tr = self.t
        t, n = tr.lengths[0], tr.rows // tr.lengths[0]
        rng = np.random.default_rng([7, tr.rank])
        families = [f for f in self.families if f != "chat30" and any(len(x.ids) <= t for x in self.items if x.family == f)]
        families = (families * n)[:n]
        ids, flags = np.zeros((n, t + 1), np.int64), np.zeros((n, t + 1), np.uint8)
        for row, family in enumerate(families):
            mine = [x for x in self.items if x.family == family and len(x.ids) <= t]
            at = 0
            while at <= t:
                x = mine[rng.integers(len(mine))]
                m = min(len(x.ids), t + 1 - at)
                ids[row, at:at + m] = x.ids[:m]
                flags[row, at + x.answer:at + m] = 1
                at += m
        ids, flags = (torch.from_numpy(v).to(tr.device) for v in (ids, flags))
        w = tr.copies(tr.params, mode)
        hidden = tr.backbone.forward(w, ids[:, :-1], mode)["hidden"].detach().view(n, t, -1)
        rows = self.gather(self.per_family(hidden, {"head": w["head"].detach()}, ids, flags, families))
        text = []
        for family in dict.fromkeys(r[0] for r in rows):
            s = np.sum([r[1:] for r in rows if r[0] == family], axis=0)
            text.append(f"{family} {s[0] / max(s[2], 1):.3f}/{s[1] / max(s[2], 1):.3f}")
        tr.say("held out, loss/accuracy: " + ", ".join(text))


ABLATIONS = (
    ("nearest entries instead of the selection", dict(select="nearest", candidates="all")),
    ("nearest candidate blocks", dict(candidates="nearest")),
    ("candidate filter off", dict(candidates="all")),
    ("Engram off", dict(engram=False)),
)


def table(results, families):
    out = {}
    for family in families:
        mine = [r for r in results if r[0] == family]
        if mine:
            scored = [r for r in mine if r[2]]
            out[family] = (sum(r[1] for r in scored), len(scored), sum(r[3] for r in mine) / sum(r[4] for r in mine))
    return out


def evaluate(trainer):
    e = trainer.evaluation
    final = trainer.modes()[1]
    w = trainer.copies(trainer.params, final)
    dw = trainer.copies(trainer.draft_params, final)
    full = e.score(w, final, e.items, dw)
    columns = [("trained", table(full, e.families))]
    for name, change in ABLATIONS:
        columns.append((name, table(e.score(w, final.but(**change), e.items), e.families)))
    if trainer.rank == 0:
        trainer.say("evaluation, teacher-forced (exact of scored, mean nll per token):")
        for family in columns[0][1]:
            line = f"{family:<14}"
            for _, t in columns:
                good, n, nll = t[family]
                line += f" | {good:3d}/{n:<3d} {nll:.4f}"
            print(line)
        print("columns: " + " | ".join(name for name, _ in columns))
        walks = [(r[0], r[5]) for r in full if r[5] is not None]
        limits = range(1, trainer.config.dspark_block_size + 1)
        for family in [*e.families, "all"]:
            mine = [w for f, w in walks if family in (f, "all")]
            rounds = {k: [a for rounds, _ in mine for a in rounds[k]] for k in limits}
            if mine and rounds[1]:
                print(f"draft {family:<14} accepted per round with 1..{len(limits)} positions: "
                      + " ".join(f"{np.mean(rounds[k]):.3f}" for k in limits) + f" ({len(rounds[1])} steps)")
        reached = [v for _, w in walks for v in w[1]]
        for k in range(len(limits)):
            mine = np.array([(c, ok) for kk, c, ok in reached if kk == k])
            if len(mine):
                bins = np.minimum((mine[:, 0] * 10).astype(int), 9)
                ece = sum(abs(mine[bins == b].mean(0) @ [1, -1]) * (bins == b).mean() for b in range(10) if (bins == b).any())
                print(f"confidence position {k}: accepted {mine[:, 1].mean():.3f} of {len(mine)}, ECE {ece:.3f}")
    texts = e.samples(w, final, trainer.args.sample_tokens)
    if trainer.rank == 0:
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(trainer.args.tokenizer or f"{trainer.args.config}/tokenizer.json"))
        for prompt, ids in texts:
            if trainer.config.eos_token_id in ids:
                ids = ids[:ids.index(trainer.config.eos_token_id)]
            print(f"> {tokenizer.decode(prompt, skip_special_tokens=False)}\n    {tokenizer.decode(ids, skip_special_tokens=False)!r}",
                  flush=True)
