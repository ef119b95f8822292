#!/usr/bin/env python3
"""The codec's Python module against deepseek-recipe 0.2.0, tokenizers 0.23 and tiktoken 0.14: same texts, same vocabulary, one
run, processor seconds of one thread (the best of several rounds; the competitors take turns within a round). Prints a table.

    PYTHONPATH=build/release/python bench/codec/compare.py TOKENIZER.json TEXTS [ROUNDS]

TEXTS is the folder that bench/codec/texts.py wrote; the peers are those of bench/codec/requirements.txt.
"""
import json
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/python"))

import deepseek_recipe as recipe  # noqa: E402
import tiktoken  # noqa: E402
import tokenizers  # noqa: E402

import reference  # noqa: E402
from deepinfer import codec  # noqa: E402


def byte_alphabet():
    """Stand-in character -> byte."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + i): byte for i, byte in enumerate(other)}


def tiktoken_encoding(tree):
    """The same vocabulary for tiktoken: ranks in the order of the merges, one joined pattern."""
    alphabet = byte_alphabet()
    ranks = {bytes([byte]): byte for byte in range(256)}
    for merge in tree["model"]["merges"]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault(bytes(alphabet[c] for part in parts for c in part), len(ranks))
    patterns = [part["pattern"]["Regex"] for part in tree["pre_tokenizer"]["pretokenizers"] if part["type"] == "Split"]
    return tiktoken.Encoding("deepseek", pat_str="|".join(patterns), mergeable_ranks=ranks, special_tokens={}), ranks


def measure(rounds, competitors):
    """{name: least processor seconds}; every round runs all of them once, in turn."""
    best = dict.fromkeys(competitors, float("inf"))
    for _ in range(rounds):
        for name, call in competitors.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start)
    return best


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def texts_table(folder, rounds, ours, theirs, hub, tik, tik_ranks, alphabet_ids):
    row("text", "ours: Tokenizer.encode_plain, MB/s", "over tiktoken Encoding.encode_ordinary", "over tokenizers Tokenizer.encode",
        "ours: Tokenizer.encode, MB/s", "over deepseek-recipe Tokenizer.encode", "ids equal (recipe, tokenizers, tiktoken)")
    row(*["---"] * 7)
    for path in sorted(folder.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        size = len(text.encode()) / 1e6
        best = measure(rounds, {
            "plain": lambda: ours.encode_plain(text), "full": lambda: ours.encode(text), "tiktoken": lambda: tik.encode_ordinary(text),
            "tokenizers": lambda: hub.encode(text, add_special_tokens=False).ids, "recipe": lambda: theirs.encode(text)})
        mine = ours.encode_plain(text)
        joined = [alphabet_ids[rank] for rank in tik.encode_ordinary(text)]
        full = ours.encode(text)  # tokenizers has no call that leaves special spellings in the text alone
        equal = (full == theirs.encode(text), full == hub.encode(text, add_special_tokens=False).ids, mine == joined)
        row(path.stem, f"{size / best['plain']:.1f}", f"{best['tiktoken'] / best['plain']:.2f}x", f"{best['tokenizers'] / best['plain']:.2f}x",
            f"{size / best['full']:.1f}", f"{best['recipe'] / best['full']:.2f}x", ", ".join("yes" if same else "no" for same in equal))


def requests_table(folder, rounds, ours, theirs):
    print()
    row("request -> ids", "ours: Request(api, body).encode(tokenizer), ms", "over deepseek-recipe ChatCompletionRequest(body).convert(options), encoding.encode")
    row(*["---"] * 3)
    options = reference.options_of({})
    for name in ("chat", "agent"):
        body = (folder / f"{name}.json").read_bytes()
        encoding = recipe.DeepseekV41Encoding().with_tokenizer(theirs)

        def other():
            return encoding.encode(recipe.ChatCompletionRequest(body).convert(options).conversation)

        best = measure(5 * rounds, {"ours": lambda: codec.Request("chat", body).encode(ours), "recipe": other})
        assert codec.Request("chat", body).encode(ours) == other(), f"{name}: ids differ"
        row(f"{name} ({len(body)} bytes)", f"{1e3 * best['ours']:.2f}", f"{best['recipe'] / best['ours']:.1f}x")


def streams_table(folder, rounds, ours, theirs):
    print()
    row("stream, one id a step", "ours: Output.tokens([id]), M tokens/s", "over deepseek-recipe StreamProcessor.push(InferenceChunk.tokens([id])), to_json()")
    row(*["---"] * 3)
    ids = ours.encode((folder / "answer.md").read_text(encoding="utf-8"))
    body = (folder / "agent.json").read_bytes()
    chunks = [recipe.InferenceChunk.tokens([token]) for token in ids]
    steps = [[token] for token in ids]
    request, options = codec.Request("chat", body), reference.options_of({})

    def mine():
        output = codec.Output(request, ours, id="chatcmpl-1", model="m")
        out = []
        for step in steps:
            out += output.tokens(step)
        return [data for _, data in out + output.finish("Stop")]

    def other():
        processor = reference.Request("chat", body, options).processor(theirs, "chatcmpl-1", "m")
        out = []
        for chunk in chunks:
            out += processor.push(chunk)
        return [chunk.to_json() for chunk in out + processor.push(recipe.InferenceChunk.finish(reference.FINISH["Stop"]))]

    assert list(map(reference.mask, mine())) == list(map(reference.mask, other())), "the streams differ"
    best = measure(rounds, {"ours": mine, "recipe": other})
    row(f"Chat Completions, {len(ids)} ids", f"{len(ids) / 1e6 / best['ours']:.2f}", f"{best['recipe'] / best['ours']:.1f}x")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    path, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    tree = json.loads(path.read_text(encoding="utf-8"))
    tik, tik_ranks = tiktoken_encoding(tree)
    alphabet = byte_alphabet()
    vocab = {bytes(alphabet[c] for c in text): token for text, token in tree["model"]["vocab"].items() if all(c in alphabet for c in text)}
    rank_ids = {rank: vocab[text] for text, rank in tik_ranks.items()}
    hub = tokenizers.Tokenizer.from_file(str(path))
    start = time.process_time()
    ours = codec.Tokenizer.load(str(path))
    print(f"load {1e3 * (time.process_time() - start):.0f} ms, {ours.memory_bytes / 1e6:.1f} MB; processor seconds of one thread, best of {rounds} rounds\n")
    texts_table(folder, rounds, ours, recipe.Tokenizer.from_file(str(path)), hub, tik, tik_ranks, rank_ids)
    if (path.parent / "tokenizer_v41_patch.json").exists():
        renames = json.loads((path.parent / "tokenizer_v41_patch.json").read_text(encoding="utf-8"))["rename_added_tokens"]
        v41 = codec.Tokenizer.load(str(path), {int(key): value for key, value in renames.items()})
        theirs = reference.load_tokenizers(path.parent)["v41"]
        requests_table(folder, rounds, v41, theirs)
        streams_table(folder, rounds, v41, theirs)


if __name__ == "__main__":
    main()
