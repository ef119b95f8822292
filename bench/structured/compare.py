#!/usr/bin/env python3
"""The structured library beside xgrammar and llguidance, on the same schemas and tokens, in one run.

    python bench/structured/compare.py --program build/release/bench_structured --tokenizer TOKENIZER.json \
        --cases real.jsonl [--every 6 --first 2] [--engines deepinfer,llguidance,xgrammar] [--limit-seconds 5] [--out FILE.json]

Engines: deepinfer is bench_structured, deepinfer.any the same with members of objects in any order, deepinfer.structured
the library from Python (PYTHONPATH=build/release/python). Valid instances whose members stand in another order than the
schema has them are not accepted by an engine that keeps to that order.
bench_structured goes first: it also says which tokens each instance has. Then each other engine walks the same instances in
the same order, in a process of its own that is replaced when a schema takes longer than the limit. Every mask is asked for
before its token; all times are processor time of the one thread. The table is Markdown.

Over several cores: each of N processes runs every N-th schema, all engines on the same ones in the same order, and the
parts are put together, percentiles over the masks and schemas of all of them:

    for k in $(seq 0 11); do python bench/structured/compare.py … --shard $k/12 --raw part-$k.json & done; wait
    python bench/structured/compare.py --merge part-*.json
"""
import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time

WORDS_TYPE = "int32"


class XGrammar:
    def __init__(self, vocabulary, eos):
        import numpy
        import xgrammar
        self.xgrammar, self.numpy = xgrammar, numpy
        began = time.thread_time()
        info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=[eos])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.prepare_ms = (time.thread_time() - began) * 1e3
        self.mask = numpy.zeros((1, (len(vocabulary) + 31) // 32), dtype=WORDS_TYPE)

    def compile(self, schema):
        return self.compiler.compile_json_schema(schema)

    def matcher(self, compiled):
        return self.xgrammar.GrammarMatcher(compiled)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.mask)

    def accept(self, matcher, token):
        return matcher.accept_token(token)

    ends = None


class LlGuidance:
    def __init__(self, vocabulary, eos):
        import llguidance
        import llguidance.numpy
        import numpy
        self.llguidance, self.fill_into = llguidance, llguidance.numpy.fill_next_token_bitmask
        began = time.thread_time()

        by_bytes = {t: i for i, t in enumerate(vocabulary) if t}

        class Tokens:
            eos_token_id = eos
            bos_token_id = None
            tokens = vocabulary
            special_token_ids = [i for i, t in enumerate(vocabulary) if t.startswith(b"<\xef\xbd\x9c")]

            def __call__(self, text):
                """Longest match first: forced text is tokenized by it."""
                data, ids = text if isinstance(text, bytes) else text.encode(), []
                while data:
                    size = next(n for n in range(min(len(data), 128), 0, -1) if data[:n] in by_bytes)
                    ids.append(by_bytes[data[:size]])
                    data = data[size:]
                return ids

        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens()))
        self.prepare_ms = (time.thread_time() - began) * 1e3
        self.mask = llguidance.numpy.allocate_token_bitmask(1, len(vocabulary))
        del numpy

    def compile(self, schema):
        grammar = self.llguidance.LLMatcher.grammar_from_json_schema(schema)
        matcher = self.llguidance.LLMatcher(self.tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def matcher(self, compiled):
        return compiled.deep_copy()

    def fill(self, matcher):
        self.fill_into(matcher, self.mask, 0)

    def accept(self, matcher, token):
        return matcher.consume_token(token)

    def ends(self, matcher):
        """A matcher that has stopped takes no end token any more."""
        return matcher.is_accepting()


class Binding:
    """The structured library through its Python module: the same calls from Python as for the others."""

    def __init__(self, vocabulary, eos):
        import numpy
        from deepinfer import structured
        self.structured = structured
        special = [i for i, t in enumerate(vocabulary) if t.startswith(b"<\xef\xbd\x9c")]
        began = time.thread_time()
        self.vocabulary = structured.Vocabulary(vocabulary, special, [("eos", eos)])
        self.prepare_ms = (time.thread_time() - began) * 1e3
        self.mask = numpy.zeros((1, (len(vocabulary) + 31) // 32), dtype=WORDS_TYPE)

    def compile(self, schema):
        return self.structured.Constraint(self.vocabulary, "json_schema", schema)

    def matcher(self, compiled):
        return self.structured.Matcher(compiled)

    def fill(self, matcher):
        matcher.fill_mask(self.mask)

    def accept(self, matcher, token):
        return matcher.accept(token)

    ends = None


ENGINES = {"xgrammar": XGrammar, "llguidance": LlGuidance, "deepinfer.structured": Binding}


def walk(engine, compiled, tokens, cost):
    matcher = engine.matcher(compiled)
    clock = time.thread_time_ns
    for position, token in enumerate(tokens):
        t0 = clock()
        engine.fill(matcher)
        t1 = clock()
        if position == len(tokens) - 1 and engine.ends is not None:
            if cost is not None:
                cost["masks_us"].append((t1 - t0) / 1e3)
            return engine.ends(matcher)
        if not (int(engine.mask[0, token >> 5]) >> (token & 31)) & 1:
            return False
        t2 = clock()
        if not engine.accept(matcher, token):
            return False
        t3 = clock()
        if cost is not None:
            cost["masks_us"].append((t1 - t0) / 1e3)
            cost["accept_us"] += (t3 - t2) / 1e3
            cost["accept_tokens"] += 1
    return True


def serve(kind, vocabulary, eos, pipe):
    engine = ENGINES[kind](vocabulary, eos)
    pipe.send({"prepare_ms": engine.prepare_ms})
    while True:
        schema, tests = pipe.recv()
        cost = {"compiled": False, "compile_ms": 0.0, "masks_us": [], "accept_us": 0.0, "accept_tokens": 0, "accepted": []}
        began = time.thread_time()
        try:
            compiled = engine.compile(schema)
        except BaseException as error:  # xgrammar raises errors of its own kinds
            cost["error"] = str(error)[:200]
            pipe.send(cost)
            continue
        cost["compiled"], cost["compile_ms"] = True, (time.thread_time() - began) * 1e3
        for test in tests:
            try:
                cost["accepted"].append(walk(engine, compiled, test["tokens"], cost if test["valid"] else None))
            except BaseException as error:
                cost["accepted"].append(False)
                cost["error"] = str(error)[:200]
        pipe.send(cost)


class Peer:
    def __init__(self, kind, vocabulary, eos):
        importlib.import_module(kind)  # here, so that processes that replace others need not read it again
        self.arguments = (kind, vocabulary, eos)
        self.start()

    def start(self):
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, args=(*self.arguments, other), daemon=True)
        self.process.start()
        other.close()
        self.prepare_ms = self.pipe.recv()["prepare_ms"]

    def used(self):
        """Processor seconds of the process so far."""
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run(self, schema, tests, limit):
        before = self.used()
        self.pipe.send((schema, tests))
        while not self.pipe.poll(0.05):
            if not self.process.is_alive() or self.used() - before > limit:
                self.process.kill()
                self.process.join()
                self.start()
                return {"compiled": False, "over": True, "compile_ms": 0.0, "masks_us": [], "accept_us": 0.0, "accept_tokens": 0, "accepted": []}
        return self.pipe.recv()


def token_bytes(path):
    document = json.load(open(path))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    vocabulary = {}
    for text, token in document["model"]["vocab"].items():
        vocabulary[token] = b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in text)
    eos = None
    for added in document["added_tokens"]:
        vocabulary[added["id"]] = added["content"].encode()
        if added["content"] == "<\uff5cend\u2581of\u2581sentence\uff5c>":
            eos = added["id"]
    return [vocabulary.get(i, b"") for i in range(max(vocabulary) + 1)], eos


def percentile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def summary(results, cases):
    compiled = [(r, c) for r, c in zip(results, cases) if r["compiled"]]
    masks = [m for r, _ in compiled for m in r["masks_us"]]
    times = [r["compile_ms"] for r, _ in compiled]
    good = bad = kept = leaked = right = 0
    for r, c in compiled:
        whole = True
        for accepted, test in zip(r["accepted"], c["tests"]):
            if test["valid"]:
                good += accepted
                bad += not accepted and not test["soft"]
                whole &= accepted or test["soft"]
            else:
                kept += not accepted
                leaked += accepted
                whole &= not accepted
        right += whole
    n = max(1, sum(r["accept_tokens"] for r, _ in compiled))
    return {
        "compiled": f"{len(compiled)} of {len(cases)} ({100 * len(compiled) / len(cases):.1f} %)",
        "refused / over the limit": f"{sum(not r['compiled'] and not r.get('over') for r in results)} / {sum(bool(r.get('over')) for r in results)}",
        "compile ms p50 / p90 / p99 / max": " / ".join(f"{percentile(times, q):.2f}" for q in (.5, .9, .99, 1)),
        "mask us p50 / p90 / p99 / p99.9 / max": " / ".join(f"{percentile(masks, q):.1f}" for q in (.5, .9, .99, .999, 1)),
        "mask us mean": f"{sum(masks) / max(1, len(masks)):.1f}",
        "masks": f"{len(masks)}",
        "accept us mean": f"{sum(r['accept_us'] for r, _ in compiled) / n:.2f}",
        "valid instances accepted (of compiled)": f"{good} of {good + bad}",
        "invalid instances refused (of compiled)": f"{kept} of {kept + leaked}",
        "schemas wholly right, of all": f"{right} ({100 * right / len(cases):.1f} %)",
    }


def run_ours(options, texts, *order):
    """The cases with the tokens of their instances, and what they cost."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as ours, tempfile.NamedTemporaryFile("w", suffix=".jsonl") as asked:
        asked.writelines(texts)
        asked.flush()
        subprocess.run([options.program, options.tokenizer, asked.name, ours.name, *order], check=True, stderr=subprocess.DEVNULL)
        lines = [json.loads(line) for line in open(ours.name)]
    head, cases = lines[0], lines[1:]
    assert len(texts) == len(cases)
    results = []
    for case in cases:
        result = {key: case[key] for key in ("compiled", "compile_ms", "masks_us", "accept_us", "accept_tokens")}
        result |= {"accepted": [t.get("accepted") for t in case["tests"]], "over": case["total_ms"] > 1e3 * options.limit_seconds}
        result["compiled"] &= not result["over"]
        results.append(result)
    return cases, results, head["prepare_ms"]


def run_peer(engine, options, schemas, cases):
    peer = Peer(engine, *token_bytes(options.tokenizer))
    prepare, results = peer.prepare_ms, []
    for i, (schema, case) in enumerate(zip(schemas, cases)):
        results.append(peer.run(schema, case["tests"], options.limit_seconds))
        if i % 100 == 99:
            print(engine, i + 1, file=sys.stderr, flush=True)
    peer.process.kill()
    return results, prepare


def measure(options):
    """{what was asked for, which schemas, results of each engine in their order}."""
    shard, shards = (int(part) for part in options.shard.split("/"))
    if not 0 <= shard < shards:
        sys.exit(f"--shard {options.shard}: expected K/N with K from 0 to N - 1")
    chosen = open(options.cases).readlines()[options.first::options.every][:options.limit]
    texts = chosen[shard::shards]
    cases, ours, prepare = run_ours(options, texts)
    schemas = [json.dumps(json.loads(line)["schema"]) for line in texts]
    results, prepared = {}, {}
    for engine in options.engines.split(","):
        if engine == "deepinfer":
            results[engine], prepared[engine] = ours, prepare
        elif engine == "deepinfer.any":
            _, results[engine], prepared[engine] = run_ours(options, texts, "any")
        else:
            results[engine], prepared[engine] = run_peer(engine, options, schemas, cases)
    told = hashlib.sha256("".join(chosen).encode()).hexdigest()
    return {
        "asked": {"cases": len(chosen), "sha256": told, "shards": shards, "limit_seconds": options.limit_seconds, "engines": options.engines},
        "shard": shard,
        "prepare_ms": prepared,
        "cases": [{"id": c["id"], "tests": [{"valid": t["valid"], "soft": t["soft"]} for t in c["tests"]]} for c in cases],
        "results": results,
    }


def merge(files):
    parts = sorted((json.load(open(path)) for path in files), key=lambda part: part["shard"])
    asked = parts[0]["asked"]
    if any(part["asked"] != asked for part in parts):
        sys.exit("--merge: the files are parts of different runs (cases, engines, limit or number of shards differ)")
    if [part["shard"] for part in parts] != list(range(asked["shards"])):
        sys.exit(f"--merge: expected one file of each of {asked['shards']} shards, found {[part['shard'] for part in parts]}")
    whole = {"asked": asked, "shard": 0, "cases": [c for part in parts for c in part["cases"]], "results": {}, "prepare_ms": {}}
    assert len(whole["cases"]) == asked["cases"]
    for engine in asked["engines"].split(","):
        whole["results"][engine] = [r for part in parts for r in part["results"][engine]]
        whole["prepare_ms"][engine] = percentile([part["prepare_ms"][engine] for part in parts], .5)
    return whole


def table(run, only=None):
    """A column for each engine; only: the places of the cases that count."""
    columns = {}
    for engine, results in run["results"].items():
        places = range(len(results)) if only is None else only
        columns[engine] = summary([results[i] for i in places], [run["cases"][i] for i in places])
        columns[engine] |= {"vocabulary preparation ms": f"{run['prepare_ms'][engine]:.0f}"}
    return columns


def show(columns):
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for row in next(iter(columns.values())):
        print(f"| {row} | " + " | ".join(column[row] for column in columns.values()) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program")
    parser.add_argument("--tokenizer")
    parser.add_argument("--cases")
    parser.add_argument("--engines", default="deepinfer,llguidance,xgrammar")
    parser.add_argument("--every", type=int, default=1, help="only each so manieth case")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--limit", type=int, help="at most so many of them")
    parser.add_argument("--limit-seconds", type=float, default=5.0, help="processor time for one schema and its instances, for every engine")
    parser.add_argument("--shard", default="0/1", help="K/N: of the chosen cases each N-th, from the K-th on")
    parser.add_argument("--raw", help="write what was measured, for --merge")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="put the parts of a run together instead of measuring")
    parser.add_argument("--out", help="write the table as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not options.merge and not (options.program and options.tokenizer and options.cases):
        parser.error("--program, --tokenizer and --cases are needed, or --merge")
    run = merge(options.merge) if options.merge else measure(options)
    if options.raw:
        json.dump(run, open(options.raw, "w"))
    columns = table(run)
    if options.out:
        json.dump(columns, open(options.out, "w"), indent=1)
    show(columns)
    asked = run["asked"]
    print(f"\n{asked['cases']} schemas in {asked['shards']} shard(s), limit {asked['limit_seconds']:g} s of processor time a schema with its instances, the same for all")
    common = [i for i in range(len(run["cases"])) if all(results[i]["compiled"] for results in run["results"].values())]
    if len(run["results"]) > 1 and common:
        print("\nOnly the schemas that all of them compile:\n")
        show(table(run, common))


if __name__ == "__main__":
    main()
