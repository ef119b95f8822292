#!/usr/bin/env python3
"""The bundled model under a schema: how many answers are valid JSON of their schema, and what a constrained token costs beside a
free one.

    bench/structured/answers.py [--requests N] [--rounds N] [--concurrency N] [--binary FILE]

Answers: N requests with speculation on and N with it off, over several schemas and seeds, half of them streamed. An answer that
does not end before its limit counts as a failure too. Cost: CPU seconds of the server's process (all threads) per output token, in
turns with and without a schema, everything else equal: prompt, number of tokens, temperature; the median of the rounds' ratios. One
compute thread by default: more of them wait for each other in loops, which is processor time that no token costs.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import sys
import tempfile

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import harness  # noqa: E402

SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                      "tags": {"type": "array", "items": {"enum": ["new", "old", 3]}, "maxItems": 3},
                                      "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 8}]}},
     "required": ["name", "age", "tags", "note"], "additionalProperties": False},
    {"type": "object", "properties": {"when": {"type": "string", "format": "date"}, "part": {"type": "number", "minimum": 0, "maximum": 1}},
     "required": ["when", "part"], "additionalProperties": False},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "minItems": 1, "maxItems": 3},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 99}},
                "required": ["kind", "x"], "additionalProperties": False},
               {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "string", "pattern": "^[A-F]{2,4}$"}},
                "required": ["kind", "y"], "additionalProperties": False}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9},
                                                                                "next": {"$ref": "#/$defs/tree"}},
                                                "required": ["v"], "additionalProperties": False, "maxProperties": 1}}},
]
# Its texts do not end, so that both sides of the comparison give the same number of tokens.
ENDLESS = {"type": "array", "minItems": 1000, "items": {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer", "minimum": 0},
                                                                       "tags": {"type": "array", "items": {"type": "string"}}},
                                      "required": ["name", "n", "tags"], "additionalProperties": False}}


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def answer_of(server, number):
    """None, or what is wrong with the answer to request `number`."""
    schema = SCHEMAS[number % len(SCHEMAS)]
    stream = number // len(SCHEMAS) % 2 == 1
    body = server.body(f"Describe something, number {number}.", max_tokens=400, seed=number, temperature=(0.0, 0.8, 1.3)[number % 3],
                       response_format=schema_format(schema), stream=stream)
    status, _, data = server.request("POST", harness.CHAT, body)
    if status != 200:
        return f"request {number}: status {status}: {data[:200]!r}"
    if stream:
        chunks = [json.loads(event)["choices"] for event in harness.sse_events(data) if event != "[DONE]"]
        text = "".join(choices[0]["delta"].get("content") or "" for choices in chunks if choices)
        reason = [choices[0]["finish_reason"] for choices in chunks if choices][-1]
    else:
        choice = json.loads(data)["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    try:
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"request {number}, ended by {reason}: {text[:200]!r}: {str(error)[:200]}"
    return None


def count_valid(server, requests, concurrency):
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        faults = [fault for fault in pool.map(lambda number: answer_of(server, number), range(requests)) if fault]
    return requests - len(faults), faults


def cpu_seconds(pid):
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) * 1e-9


def cost_of(server, concurrency, tokens, fields):
    """CPU seconds per output token of `concurrency` requests at once; their texts."""
    def ask(number):
        body = server.body("Tell a story.", max_tokens=tokens, seed=number, **fields)
        answer = server.json("POST", harness.CHAT, body)
        return answer["usage"]["completion_tokens"], answer["choices"][0]["message"]["content"]
    before = cpu_seconds(server.process.pid)
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        answers = list(pool.map(ask, range(concurrency)))
    return (cpu_seconds(server.process.pid) - before) / sum(count for count, _ in answers), [text for _, text in answers]


# JSON beside free text, which is another text, so that other drafts are accepted; and what masks cost by themselves: one at every
# position of the very text that is written without them, the likeliest one, which ends by itself. {side: (the side it is compared with, fields)}. (As
# structured_outputs: a response_format would make the prompt longer.)
DRAWN, LIKELIEST = {"temperature": 1.0, "ignore_eos": True}, {"temperature": 0.0}
SIDES = {
    "free": ("free", DRAWN),
    "JSON": ("free", DRAWN | {"structured_outputs": {"json": ENDLESS}}),
    "free, likeliest": ("free, likeliest", LIKELIEST),
    "the same text under a mask": ("free, likeliest", LIKELIEST | {"structured_outputs": {"regex": "[^\\x00]*"}}),
}


def drafts(server):
    return [server.metric(f"vllm:spec_decode_num_{what}_total") for what in ("drafts", "draft_tokens", "accepted_tokens")]


def compare_costs(server, rounds, concurrency, tokens):
    """{side: (seconds a token, ratio to what it is compared with, drafts verified a round, drafts accepted a round, its texts)}"""
    costs, counts, texts = {side: [] for side in SIDES}, {side: [0, 0, 0] for side in SIDES}, {}
    for number in range(-1, rounds):
        for side, (_, fields) in SIDES.items():
            before = drafts(server)
            cost, texts[side] = cost_of(server, concurrency, tokens, fields)
            after = drafts(server)
            if number >= 0:  # the first time constraints are compiled and masks are made
                costs[side].append(cost)
                counts[side] = [count + now - then for count, now, then in zip(counts[side], after, before)]
    return {side: (statistics.median(found), statistics.median(cost / free for cost, free in zip(found, costs[SIDES[side][0]])),
                   *(count / max(1, counts[side][0]) for count in counts[side][1:]), texts[side]) for side, found in costs.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=128, help="output tokens of a request whose cost is measured")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="compute threads of the server")
    parser.add_argument("--speculation", nargs="+", default=["on", "off"], help="on, off, or a number: always so many drafts")
    parser.add_argument("--binary", help="the program (build/release/deepinfer)")
    arguments = parser.parse_args()
    if arguments.binary:
        os.environ["DEEPINFER_BINARY"] = arguments.binary
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, options in [(mode, {"on": (), "off": ("--spec", "off")}.get(mode, ("--spec", mode))) for mode in arguments.speculation]:
            server = harness.Server(pathlib.Path(folder), "--threads", str(arguments.threads), *options)
            if arguments.requests:
                valid, faults = count_valid(server, arguments.requests, arguments.concurrency)
                print(f"speculation {name}: {valid} of {arguments.requests} answers are valid", flush=True)
                for fault in faults[:5]:
                    print("  " + fault)
                failed = failed or bool(faults)
            if arguments.rounds:
                costs = compare_costs(server, arguments.rounds, arguments.concurrency, arguments.tokens)
                for side, (cost, ratio, tried, taken, texts) in costs.items():
                    beside = SIDES[side][0]
                    same = sum(one == other for one, other in zip(texts, costs[beside][4]))
                    print(f"speculation {name}, {side}: {cost * 1e6:.0f} us of CPU time a token, {taken:.2f} of {tried:.2f} drafts accepted a round"
                          + (f", {(ratio - 1) * 100:+.1f} % beside {beside}, {same} of {len(texts)} texts equal" if side != beside else ""), flush=True)
            server.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
