"""Cases of the kind `dspark` made at random, with values computed here from the formulas (speculative.md, engine.md §5 and §7) in plain
Python: a second reading of them beside the program's own.

    python3 tests/e2e/dspark_cases.py OUT_DIR [--seed N] [--cases N]    then: deepinfer-conformance dspark OUT_DIR
"""
from __future__ import annotations

import argparse
import json
import math
import random
import struct
from pathlib import Path

MASK = (1 << 64) - 1
C = 0x9E3779B97F4A7C15
DRAFT_SEED = 1000000007
ROW_STEP = 10000019
INF = float("inf")


def f32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


# --- engine.md §5.4

def uniform(seed: int, position: int, case: int) -> float:
    seq = ((position * 3 + case) * C) & MASK
    z = seed ^ seq if case == 2 else (seed + (seq ^ ((seq << 13) & MASK))) & MASK
    z = (z + C) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return (z >> 11) * 2.0 ** -53


def pick(weights: list[float], u: float) -> tuple[int, float]:
    """The index drawn and how far from a border the draw lies, as a share of the total."""
    total = math.fsum(weights)
    cdf, near, chosen = 0.0, 1.0, -1
    for i, w in enumerate(weights):
        cdf += w
        if w > 0:
            near = min(near, abs(cdf / total - u))
        if chosen < 0 and cdf > u * total:
            chosen = i
    return chosen, near


# --- engine.md §5.3

def transform(logits: list[float], temperature: float, top_p: float, top_k: int) -> tuple[dict[int, float], float]:
    """Log-probabilities of the survivors, and how far the cut at top_p lies from a border."""
    inverse = f32(1.0 / temperature)
    scaled = [f32(x * inverse) for x in logits]
    top = max(scaled)
    weights = [math.exp(x - top) for x in scaled]
    total = math.fsum(weights)
    order = sorted((i for i in range(len(logits)) if scaled[i] > -INF), key=lambda i: (-scaled[i], i))
    kept, before, near = [], 0.0, 1.0
    for rank, i in enumerate(order):
        if top_p < 1:
            near = min(near, abs(before - top_p))
        if rank > 0 and top_p < 1 and before > top_p:
            break
        kept.append(i)
        before += weights[i] / total
    if top_k >= 0:
        kept = kept[:top_k]
    log_total = math.log(math.fsum(weights[i] for i in kept))
    return {i: scaled[i] - top - log_total for i in sorted(kept)}, near


def sampled(logprobs: dict[int, float], seed: int, position: int, case: int = 0) -> tuple[int, float]:
    ids = list(logprobs)
    at, near = pick([math.exp(logprobs[i]) for i in ids], uniform(seed & MASK, position, case))
    return ids[at], near


def logits_of(rng: random.Random, vocab: int, spread: float) -> list[float]:
    out = [f32(round(rng.gauss(0, spread), 4)) for _ in range(vocab)]
    if rng.random() < 0.3:  # equal ones
        for _ in range(vocab // 4):
            out[rng.randrange(vocab)] = out[rng.randrange(vocab)]
    return out


def rng_cases(rng: random.Random, n: int) -> dict:
    cases = []
    for _ in range(n):
        seed = rng.choice([rng.randrange(1 << 64), rng.randrange(100), MASK - rng.randrange(3)])
        position = rng.choice([rng.randrange(1 << 31), rng.randrange(5000), 0, (1 << 31) - 1])
        u = {name: repr(uniform(seed, position, case)) for name, case in (("u_draw", 0), ("u_residual", 1), ("u_accept", 2))}
        cases.append({"seed_u64": str(seed), "position": position, **u})
    return {"function": "counter_rng", "cases": cases}


def sampler_cases(rng: random.Random, n: int) -> dict:
    cases = []
    for _ in range(n):
        vocab = rng.choice([2, 7, 16, 33, 64, 257, 1000, 4099])
        case: dict = {key: [] for key in ("logits", "temperature", "top_p", "top_k", "seed_u64", "position")}
        want: dict = {key: [] for key in ("token", "token_draft_stream", "survivors", "token_logprob")}
        while len(case["logits"]) < 6:
            logits = logits_of(rng, vocab, rng.choice([0.5, 2, 6]))
            temperature = f32(rng.choice([1e-5, 0.1, 0.6, 1.0, 1.3, 2.0]))
            top_p = f32(rng.choice([1.0, 1.0, 0.05, 0.5, 0.9, 0.999]))
            top_k = rng.choice([-1, -1, 1, 2, 20, 5000])
            seed, position = rng.randrange(1 << 64), rng.randrange(100000)
            logprobs, edge = transform(logits, temperature, top_p, top_k)
            token, near = sampled(logprobs, seed, position)
            draft, near_draft = sampled(logprobs, seed + DRAFT_SEED, position)
            if min(edge, near, near_draft) < 1e-6:
                continue
            for key, value in (("logits", logits), ("temperature", temperature), ("top_p", top_p), ("top_k", top_k), ("seed_u64", str(seed)), ("position", position)):
                case[key].append(value)
            for key, value in (("token", token), ("token_draft_stream", draft), ("survivors", list(logprobs)), ("token_logprob", logprobs[token])):
                want[key].append(value)
        cases.append({**case, "expected": want})
    return {"function": "transform_and_sample", "cases": cases}


# --- speculative.md §3

def verified_row(logits, q, draft, temperature, top_p, top_k, seed, position, fresh):
    """(token, accepted, accept probability, distance of the draws from a border)."""
    p, near = transform(logits, temperature, top_p, top_k)
    if fresh:
        token, edge = sampled(p, seed, position)
        return token, True, 1.0, min(near, edge)
    residual = [max((math.exp(p[i]) if i in p else 0.0) - (math.exp(q[i] - 5e-5) if q[i] > -INF else 0.0), 0.0) for i in range(len(logits))]
    chance = max(0.0, 1.0 - math.fsum(residual))
    accepted = False
    if draft >= 0:
        share = math.exp(p[draft] - q[draft]) if draft in p and q[draft] > -INF else 0.0
        u = uniform(seed, position, 2)
        accepted = min(1.0, share) > u
        near = min(near, abs(share - u))
    if accepted:
        return draft, True, chance, near
    token, edge = pick(residual, uniform(seed, position, 1))
    return token, False, chance, min(near, edge)


def verification_case(rng: random.Random) -> dict | None:
    vocab, nextn, n = rng.choice([8, 24, 40, 129]), rng.choice([1, 3, 5, 7]), rng.randint(1, 6)
    q_lens = [rng.randint(1, nextn + 1) for _ in range(n)]
    request = {"temperature": [f32(rng.choice([0.3, 0.7, 1.0, 1.5])) for _ in range(n)], "top_p": [f32(rng.choice([1.0, 0.9, 0.6])) for _ in range(n)],
               "top_k": [rng.choice([-1, -1, 5]) for _ in range(n)], "seed_u64": [str(rng.randrange(1 << 64)) for _ in range(n)],
               "position": [rng.randrange(5000) for _ in range(n)], "stop_token_ids": [[-1, -1] for _ in range(n)]}
    total = sum(q_lens)
    case: dict = {"seqlens_q": q_lens, "vocab": vocab, "nextn": nextn, "request": request, "logits": [], "draft_logprobs": [], "draft_token_ids": [],
                  "golden": [rng.randrange(vocab) if rng.random() < 0.3 else -1 for _ in range(total)] if rng.random() < 0.4 else None,
                  "confidence": [f32(rng.random()) for _ in range(total)]}
    want: dict = {key: [] for key in ("is_verify", "row_position", "raw_accept", "row_token", "effective_accept", "is_final", "accept_prob", "accepted_per_request",
                                      "sampled_token", "verified_token", "emitted_stop")}
    generated, counted, error = [0] * nextn, [0] * nextn, 0.0
    for r, length in enumerate(q_lens):
        live, accepted, emitted = True, 0, []
        for i in range(length):
            row, fresh = len(case["logits"]), i == length - 1
            logits = logits_of(rng, vocab, rng.choice([1, 2]))
            q, _ = transform([f32(x + rng.gauss(0, 0.7)) for x in logits], request["temperature"][r], request["top_p"][r], request["top_k"][r])
            q_row = [f32(q[j]) if j in q else -1e30 for j in range(vocab)]
            draft = -1 if fresh or rng.random() < 0.1 else rng.choices(list(q), [math.exp(v) for v in q.values()])[0]
            position = request["position"][r] + i * ROW_STEP
            token, raw, chance, near = verified_row(logits, [v if v > -1e29 else -INF for v in q_row], draft, request["temperature"][r], request["top_p"][r], request["top_k"][r],
                                                    int(request["seed_u64"][r]), position, fresh)
            if near < 1e-5:
                return None
            golden = case["golden"][row] if case["golden"] else -1
            if golden >= 0:
                token = golden
            taken = live and not fresh and (draft == golden if golden >= 0 else raw)
            final = live and not taken
            case["logits"].append(logits)
            case["draft_logprobs"].append(q_row)
            case["draft_token_ids"].append(draft)
            for key, value in (("is_verify", not fresh), ("row_position", position), ("raw_accept", raw), ("row_token", token), ("effective_accept", taken), ("is_final", final),
                               ("accept_prob", chance), ("verified_token", token if taken else -1)):
                want[key].append(value)
            if taken or final:
                emitted.append(token)
            if final:
                want["sampled_token"].append(token)
            if not fresh:
                error += abs(chance - case["confidence"][row])
                counted[i] += 1
                generated[i] += taken
            accepted += taken
            live = taken
        want["accepted_per_request"].append(accepted)
        if rng.random() < 0.5:
            request["stop_token_ids"][r][rng.randrange(2)] = rng.choice(emitted + [rng.randrange(vocab)])
        want["emitted_stop"].append(any(t in request["stop_token_ids"][r] for t in emitted))
    want.update(num_generated_per_step=generated, num_verified_per_step=counted, confidence_error=error)
    return {**case, "expected": want}


def verification_cases(rng: random.Random, n: int) -> dict:
    cases: list[dict] = []
    while len(cases) < n:
        case = verification_case(rng)
        if case is not None:
            cases.append(case)
    return {"function": "verification", "cases": cases}


# --- speculative.md §4.2

def median(values: list[float]) -> float:
    v = sorted(values)
    return v[len(v) // 2] if len(v) % 2 else (v[len(v) // 2 - 1] + v[len(v) // 2]) / 2


def at(curve, rows):
    return next(((size, ms) for size, ms in curve if size >= rows), None)


def scheduled(curve, updates, batch) -> list[int]:
    if not curve:
        return [1 + s["num_drafts"] for s in batch]
    steps, by_seqs, everything = [], {}, []
    for seqs, size, forward, sampler in updates:
        by_seqs.setdefault(seqs, []).append(sampler)
        everything.append(sampler)
        steps.append((size, (forward - dict(curve)[size]) / size))
    by_size: dict[int, list[float]] = {}
    for size, excess in steps[-5000:]:
        by_size.setdefault(size, []).append(excess)
    medians = [median(v) for v in by_size.values() if len(v) >= 10]
    slope = max(0.0, median(medians)) if medians else 0.0
    own = by_seqs.get(len(batch), [])[-9:]
    sampler_ms = median(own) if len(own) >= 5 else median(everything[-9:]) if len(everything[-9:]) >= 5 else 0.0
    budget, shares = [], []
    for r, s in enumerate(batch):
        late = s["schedule_cnt"] == s["process_cnt"] + 1
        missing = 1.0 if s["has_draft_info"] or late else 0.0
        for out, rates in ((budget, s["accept_rates"] if late else s["prev_accept_rates"]), (shares, s["accept_rates"])):
            out += [(rate, r) for rate in (rates or [missing] * s["num_drafts"])]
    budget.sort(key=lambda e: (-e[0], e[1]))
    shares.sort(key=lambda e: (-e[0], e[1]))
    expected, rows, best, best_rows = float(len(batch)), len(batch), 0.0, 0
    for rate in [None] + [e[0] for e in budget]:
        if rate is not None:
            expected, rows = f32(expected + rate), rows + 1
        point = at(curve, rows)
        if point and expected / (point[1] + slope * point[0] + sampler_ms) > best:
            best, best_rows = expected / (point[1] + slope * point[0] + sampler_ms), rows
    out = [1] * len(batch)
    for _, r in shares[:best_rows - len(batch)]:
        out[r] += 1
    return out


def scheduler_file(rng: random.Random) -> dict:
    drafts, most = rng.choice([1, 3, 5, 7]), rng.choice([1, 4, 16, 48])
    sizes = buckets(most * (1 + drafts), rng.choice([4, 8, 16]))
    if rng.random() < 0.2:  # ends before the longest step
        sizes = [s for s in sizes if s <= most] or sizes[:1]
        sizes = sizes if sizes[-1] >= most else sizes + [most]
    ms, curve = rng.uniform(1, 8), []
    jump = rng.choice([0, 0, 0.2])
    grow = rng.choice([0, 0.001, 0.02, 0.2])
    for i, size in enumerate(sizes):
        ms += grow * (size - (sizes[i - 1] if i else 0)) + (rng.uniform(0, 4) if rng.random() < jump else 0)
        if rng.random() < 0.1:
            ms *= rng.uniform(0.9, 1)
        curve.append([size, f32(round(ms, 4))])
    if rng.random() < 0.05:
        curve = []
    updates = []
    if curve and rng.random() < 0.6:
        slope = rng.choice([-0.01, 0.005, 0.05])
        some = rng.sample(sizes, min(len(sizes), rng.choice([1, 3, 12])))
        for _ in range(rng.choice([3, 20, 200, 400])):
            size = rng.choice(some)
            updates.append([rng.choice([most, most, 1 + most // 2]), size, round(dict(map(tuple, curve))[size] + slope * size + rng.gauss(0, 0.05), 5), round(rng.uniform(0.3, 0.9), 5)])
    batches, plans = [], []
    for _ in range(6):
        batch = []
        for _ in range(rng.randint(1, most)):
            has = rng.random() < 0.9
            process = rng.randint(1, 20)

            def survival():
                out, a = [], 1.0
                for _ in range(drafts):
                    a *= rng.choice([rng.random(), rng.uniform(0.8, 1), 0.5])
                    out.append(f32(round(a, 6)))
                return out
            batch.append({"num_drafts": drafts, "has_draft_info": has, "process_cnt": process, "schedule_cnt": process + rng.choice([0, 1]),
                          "accept_rates": survival() if has else [], "prev_accept_rates": survival() if has and rng.random() < 0.9 else []})
        batches.append(batch)
        plans.append(scheduled([tuple(p) for p in curve], updates, batch))
    return {"function": "host_verify_length_scheduler",
            "input": {"decode_curve_size_ms": curve, "runtime_updates_numseqs_graph_forwardms_samplerms": updates, "batches": batches},
            "expected": {"seqlens_q": plans, "total_q": [sum(p) for p in plans]}}


# --- speculative.md §4.1, §4.3, engine.md §7

def algorithm_1(confidence, sps, early):
    drafts = []
    for r, row in enumerate(confidence):
        a = 1.0
        for k, c in enumerate(row):
            a *= c
            drafts.append((-a, r, k))
    drafts.sort()
    rows = len(confidence)
    expected, best, lengths, out = float(rows), rows * sps[rows], [0] * rows, [0] * rows
    for i, (minus, r, _) in enumerate(drafts):
        if rows + i + 1 >= len(sps):
            break
        expected -= minus
        lengths[r] += 1
        theta = expected * sps[rows + i + 1]
        if theta > best:
            best, out = theta, list(lengths)
        elif early:
            break
    return {"lengths": out, "theta": best}


def algorithm_cases(rng: random.Random, n: int) -> dict:
    cases = []
    for i in range(n):
        rows, drafts = rng.randint(1, 12), rng.randint(1, 7)
        confidence = [[round(rng.choice([rng.random(), rng.uniform(0.7, 1), 0.5, 1.0, 0.0]), 4) for _ in range(drafts)] for _ in range(rows)]
        rate, sps = rng.uniform(50, 300), [0.0]
        for _ in range(rng.choice([rows * (1 + drafts), rows + 2, rows])):
            rate *= rng.choice([1, 0.999, 0.99, 0.9, 0.6] if rng.random() < 0.5 else [0.995])
            sps.append(round(rate, 5))
        cases.append({"name": f"random{i}", "confidence": confidence, "sps": sps, "expected_early_stop": algorithm_1(confidence, sps, True),
                      "expected_global": algorithm_1(confidence, sps, False)})
    return {"function": "paper_algorithm_1", "cases": cases}


def allocation_cases(rng: random.Random, n: int) -> dict:
    cases = []
    for _ in range(n):
        before, now, drafts = rng.randint(1, 12), rng.randint(1, 16), rng.randint(1, 7)
        confidence = [[f32(round(rng.choice([rng.random(), rng.uniform(0.8, 1), 0.5, 0.0, 1.0]), 5)) for _ in range(drafts)] for _ in range(before)]
        remap = [rng.choice([-1, rng.randrange(before), rng.randrange(before)]) for _ in range(now)]
        total = rng.randint(now, now * (1 + drafts))
        entries = []
        for r, j in enumerate(remap):
            a = 1.0
            for k in range(drafts):
                a = f32(a * confidence[j][k]) if j >= 0 else 0.0
                entries.append((-a, r * drafts + k))
        out = [1] * now
        for _, flat in sorted(entries)[:total - now]:
            out[flat // drafts] += 1
        cases.append({"total_q": total, "remap": remap, "prev_confidence": confidence, "expected_seqlens_q": out})
    return {"function": "device_verify_length_allocation", "cases": cases}


def buckets(most: int, interval: int) -> list[int]:
    sizes, s = [], 1
    while s < interval:
        sizes.append(s)
        s *= 2
    sizes += range(interval, most + 1, interval)
    return sorted({s for s in sizes if s <= most} | {most})


def bucket_cases(rng: random.Random, n: int) -> dict:
    pairs = [(rng.randint(1, 600), rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 32, 64])) for _ in range(n)]
    return {"function": "graph_buckets", "cases": [{"max": m, "interval": i, "expected": buckets(m, i)} for m, i in pairs]}


# --- speculative.md §6 (deviceside lengths), vectors/dspark README: zos

def handover_cases(rng: random.Random, n: int) -> dict:
    cases = []
    for _ in range(n):
        nextn, before, now = rng.randint(1, 7), rng.randint(1, 10), rng.randint(1, 12)
        remap = [rng.choice([-1] + [rng.randrange(before)] * 3) for _ in range(now)]
        q = [rng.randint(1, nextn + 1) for _ in range(now)]
        k = [rng.randint(nextn + 2, 500) for _ in range(now)]
        fresh = [[rng.randrange(1000) for _ in range(nextn + 1)] for _ in range(now)]
        accepted = [rng.randint(0, nextn) for _ in range(before)]
        last = [rng.randrange(1000) for _ in range(before)]
        drafts = [[rng.randrange(1000) for _ in range(nextn)] for _ in range(before)]
        lengths, ids = [], []
        for r, j in enumerate(remap):
            if j < 0:
                lengths.append(k[r] + q[r] - 0)
                ids += fresh[r][:q[r]]
            else:
                lengths.append(k[r] + q[r] - (nextn - accepted[j]))
                ids += [last[j], *drafts[j]][:q[r]]
        cases.append({"nextn": nextn, "remap": remap, "seqlens_q": q, "seqlens_k_before": k, "prev_accepted": accepted, "fresh_tokens": fresh, "prev_sampled": last,
                      "prev_drafts": drafts, "expected": {"seqlens_k": lengths, "input_ids": ids}})
    return {"function": "async_handover", "cases": cases}


# --- speculative.md §1.4 and §5

def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, x))))


def bf16(rng: random.Random, spread: float) -> float:
    bits = struct.unpack("<I", struct.pack("<f", rng.gauss(0, spread)))[0] & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def confidence_file(rng: random.Random, n: int) -> dict:
    groups = []
    for _ in range(n):
        rows, d, rank = rng.randint(1, 6), rng.choice([1, 8, 31, 64]), rng.choice([1, 8, 16])
        hidden = [[bf16(rng, 1) for _ in range(d)] for _ in range(rows)]
        embedding = [[bf16(rng, 1) for _ in range(rank)] for _ in range(rows)]
        weight = [bf16(rng, rng.choice([0.2, 20])) for _ in range(d + rank)]
        cases = []
        for t in (1.0, f32(0.35), f32(2.7)):
            cases.append({"temperature": t, "expected": [sigmoid(math.fsum(w * x for w, x in zip(weight, h + e)) / t) for h, e in zip(hidden, embedding)]})
        groups.append({"hidden": hidden, "markov_emb": embedding, "weight": weight, "cases": cases})
    return {"function": "confidence_head", "tolerance": 0.0001, "groups": groups}


def bin_of(p: float, bins: int) -> int:
    return min(int(p * bins), bins - 1)


def ece(predicted, observed, bins):
    sums: dict[int, float] = {}
    for p, o in zip(predicted, observed):
        sums[bin_of(p, bins)] = sums.get(bin_of(p, bins), 0.0) + p - o
    return sum(map(abs, sums.values())) / len(predicted)


def metrics(position, predicted, observed, bins, fine):
    n = len(predicted)
    up, down = [0.0] * fine, [0.0] * fine
    for p, o in zip(predicted, observed):
        up[bin_of(p, fine)] += o
        down[bin_of(p, fine)] += 1 - o
    below = pairs = 0.0
    for u, d in zip(up, down):
        pairs += u * (below + d / 2)
        below += d
    auc = pairs / (sum(up) * below) if sum(up) and below else 0.5
    return {"position": position, "total_weight": float(n), "ece": ece(predicted, observed, bins), "auc": auc, "brier": sum((p - o) ** 2 for p, o in zip(predicted, observed)) / n,
            "pred_mean": sum(predicted) / n, "target_mean": sum(observed) / n}


def calibration_case(rng: random.Random) -> dict:
    rounds, positions, bins, fine = rng.choice([50, 300]), rng.randint(1, 6), rng.choice([5, 10, 15]), 200
    logits = [[round(rng.gauss(1.5, 1), 4) for _ in range(positions)] for _ in range(rounds)]
    labels = []
    for row in logits:
        live, out = 1.0, []
        for x in row:
            live *= rng.random() < sigmoid(x / 1.7)
            out.append(live)
        labels.append(out)
    grid = [round(0.5 + 0.05 * i, 2) for i in range(51)]

    def predicted(temperatures):
        columns, survival = [], [1.0] * rounds
        for k, t in enumerate(temperatures):
            survival = [s * sigmoid(f32(row[k]) / t) for s, row in zip(survival, logits)]
            columns.append(survival)
        return columns
    chosen: list[float] = []
    for k in range(positions):
        observed = [row[k] for row in labels]
        chosen.append(min(grid, key=lambda t: (ece(predicted(chosen + [t])[k], observed, bins), abs(t - 1), t)))
    before = [metrics(k, p, [row[k] for row in labels], bins, fine) for k, p in enumerate(predicted([1.0] * positions))]
    after = [metrics(k, p, [row[k] for row in labels], bins, fine) for k, p in enumerate(predicted(chosen))]
    summary = {f"{name}_mean" if not name.endswith("mean") else name: sum(m[name] for m in before) / positions for name in ("ece", "auc", "brier", "pred_mean", "target_mean")}
    return {"num_bins": bins, "num_fine_bins": fine, "logits": logits, "prefix_labels": labels, "expected_metrics": before, "expected_summary": summary,
            "sts": {"grid": grid, "temperatures": chosen, "ece_before": [m["ece"] for m in before], "ece_after": [m["ece"] for m in after]}}


def write_cases(out: Path, seed: int, n: int) -> None:
    rng = random.Random(seed)
    files = {"rng": rng_cases(rng, 4 * n), "sampler": sampler_cases(rng, n), "verification": verification_cases(rng, n), "algorithm": algorithm_cases(rng, n),
             "allocation": allocation_cases(rng, 2 * n), "buckets": bucket_cases(rng, n), "handover": handover_cases(rng, 2 * n), "confidence": confidence_file(rng, n),
             "calibration": {"function": "calibration_metrics_and_sts", "cases": [calibration_case(rng) for _ in range(max(1, n // 8))]}}
    files.update({f"scheduler_{i}": scheduler_file(rng) for i in range(n)})
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out / f"{name}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=16)
    args = parser.parse_args()
    write_cases(args.out, args.seed, args.cases)
