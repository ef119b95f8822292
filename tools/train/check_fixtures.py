"""Compares the reference mode of the training program with the expected values of the model fixtures.

    python3 check_fixtures.py VECTORS/model [--quick]
"""
import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open

from model.backbone import Backbone, Mode
from model.checkpoint import load_params, read_tensors
from model.config import engram_vocab_map, load_config
from model.draft import Draft
from model.params import make_backbone, make_draft

EXACT = Mode(dtype=torch.float32, sparse=True)
failures = []


def report(case, what, error, limit):
    ok = error <= limit
    if not ok:
        failures.append((case, what))
    print(f"{'ok  ' if ok else 'FAIL'} {case:<12} {what:<44} {error:.2e} (limit {limit:.0e})", flush=True)


def load(folder):
    with safe_open(folder, "pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}


class Model:
    def __init__(self, folder):
        self.config = load_config(folder)
        vocab_map = engram_vocab_map(self.config, folder / "tokenizer.json")
        self.backbone = Backbone(self.config, vocab_map)
        self.draft = Draft(self.backbone)
        tensors = read_tensors(folder)
        self.params, self.draft_params = make_backbone(self.config), make_draft(self.config)
        load_params(self.params, tensors)
        load_params(self.draft_params, tensors)
        self.w = self.backbone.compute_copies(self.params, EXACT)
        self.w["bias"] = self.params.bias
        self.dw = self.backbone.compute_copies(self.draft_params, EXACT)
        self.dw["bias"] = self.draft_params.bias

    @torch.no_grad()
    def run(self, ids, mode, trace=None):
        out = self.backbone.forward(self.w, ids.long().view(1, -1), mode, trace)
        out["logits"] = out["hidden"] @ self.w["head"].t()
        return out


def tiny(root, name):
    model = Model(root / name)
    c = model.config
    for kind in ("plain", "kvq"):
        mode = EXACT.but(kv_quant=kind == "kvq")
        want = load(root / name / f"expected_{kind}.safetensors")
        if kind == "plain":
            report(name, "engram primes", float((torch.tensor(c.engram_primes()) != want["engram.primes"]).sum()), 0)
            report(name, "engram multipliers",
                   float((torch.tensor(c.engram_multipliers()) != want["engram.multipliers"]).sum()), 0)
        ids, n = want["input_ids"], int(want["n_prefill"])
        trace = {}
        out = model.run(ids, mode, trace)
        everything = torch.cat([want["prefill.logits"], want["decode.logits"]])
        report(name, f"{kind} logits", float((out["logits"] - everything).abs().max()), 2e-4)
        for layer in range(c.layers):
            for key, mine in (("streams", "streams"), ("swa_kv", "swa_kv"), ("ffn_out", "ffn_out")):
                full = f"prefill.layers.{layer}.{key}"
                if full in want and kind == "plain":
                    d = (trace[f"{layer}.{mine}"][:n].reshape(want[full].shape) - want[full]).abs().max() / want[full].std()
                    report(name, f"{kind} {full}", float(d), 1e-3)
            full = f"prefill.layers.{layer}.topk"
            if full in want:
                rows = trace[f"{layer}.selected"][0, :n]
                got = [set(r.nonzero().flatten().tolist()) for r in rows]
                exp = [set(int(v) for v in r if v >= 0) for r in want[full]]
                report(name, f"{kind} {full}", sum(g != e for g, e in zip(got, exp)), 0)
    if (root / name / "expected_dspark.safetensors").exists():
        want = load(root / name / "expected_dspark.safetensors")
        ids = want["input_ids"]
        out = model.run(ids, EXACT)
        d = model.draft.greedy_round(model.dw, model.w, out["features"], ids.shape[0] - 1, int(want["golden"]), EXACT)
        report(name, "draft main", float((d["main"] - want["main"]).abs().max()), 1e-4)
        for s in range(c.num_nextn_predict_layers):
            mine = d["context"][s][-want[f"mtp.{s}.context_kv"].shape[0]:]
            report(name, f"draft context {s}", float((mine - want[f"mtp.{s}.context_kv"]).abs().max()), 1e-4)
        report(name, "draft head hidden", float((d["hidden"] - want["head_hidden"]).abs().max()), 1e-4)
        report(name, "draft logits", float((d["logits"] - want["draft_logits"]).abs().max()), 2e-4)
        report(name, "draft confidence", float((d["confidence"] - want["confidence"]).abs().max()), 1e-5)
        report(name, "draft ids", float((d["ids"] != want["draft_ids"]).sum()), 0)


def trained(root, quick):
    folder = root / "v41_trained"
    model = Model(folder)
    prompts = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    plain, kvq = load(folder / "expected_plain.safetensors"), load(folder / "expected_kvq.safetensors")
    drafts = load(folder / "expected_dspark_plain.safetensors")
    names = ["p00", "p01", "p09", "p12"] if quick else ["p00", "p01", "p04", "p09", "p12", "p16", "p17", "p21", "p24", "p25", "p26"]
    for p in [q for q in prompts if q["id"] in names]:
        for kind, want in (("plain", plain), ("kvq", kvq)):
            key = p["id"] + "."
            tokens = torch.cat([want[key + "input_ids"], want[key + "greedy_ids"]]).long()
            rows = want[key + "positions"].long()
            out = model.run(tokens[:int(rows.max()) + 1], EXACT.but(kv_quant=kind == "kvq"))
            got = out["logits"][rows].gather(1, want[key + "top16_ids"].long())
            d = (got - want[key + "top16_values"]).abs().amax(1)
            if kind == "plain":
                report("v41_trained", f"{p['id']} {kind} logits", float(d.max()), 2e-4)
            else:
                bad = (d > 0.02 + 4 * want[key + "spread"]).float().mean()
                report("v41_trained", f"{p['id']} {kind} share of rows beyond spread", float(bad), 0.05)
        key = p["id"] + "."
        if key + "round.golden" in drafts:
            tokens = drafts[key + "tokens"].long()
            out = model.run(tokens, EXACT)
            worst, other, conf = 0.0, 0, 0.0
            rounds = zip(drafts[key + "round.context_position"], drafts[key + "round.golden"])
            for i, (a, golden) in enumerate(rounds):
                cut = [f[:int(a) + 1] for f in out["features"]]
                d = model.draft.greedy_round(model.dw, model.w, cut, int(a), int(golden), EXACT)
                got = d["logits"].gather(1, drafts[key + "round.corrected_top8_ids"][i].long())
                worst = max(worst, float((got - drafts[key + "round.corrected_top8_values"][i]).abs().max()))
                conf = max(conf, float((d["confidence"] - drafts[key + "round.confidence"][i]).abs().max()))
                other += int((d["ids"] != drafts[key + "round.draft_ids"][i]).sum())
            report("v41_trained", f"{p['id']} draft logits, all rounds", worst, 2e-4)
            report("v41_trained", f"{p['id']} draft confidence", conf, 1e-5)
            report("v41_trained", f"{p['id']} other draft ids", other, 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    tiny(args.folder, "v41_tiny_a")
    tiny(args.folder, "v41_tiny_b")
    trained(args.folder, args.quick)
    print(f"{len(failures)} failed" if failures else "all equal within the limits")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
