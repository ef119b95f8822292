"""Writes the kept-back evaluation set: the generator with a seed that no training run uses, in the
format of shared/data/tiny/eval.jsonl.zst (README there).

    python -m tools.train.heldout --out heldout.jsonl.zst

Families: those of the reference set, and
    recall_8k      one question on the first fact of notes of about 8,000 tokens
    unseen_words   copying, naming, reading and calling with invented words whose checksum keeps
                   them out of every training text (data/pseudo.py)
    chat30         30 fixed prompts typed by hand, no fixed answer"""
from __future__ import annotations

import argparse
from typing import Callable, Iterator

from .data import arith, chat, copying, jsondata, recall, story, tools
from .data.base import Source, answer, capital, conversation, user
from .data.lines import write_lines

SEED = "kept back 1"

CHAT30: tuple[tuple[str, ...], ...] = (
    ("Hello, nice to see you!",),
    ("Can you tell me what an elephant is?",),
    ("Please tell me something about the moon.",),
    ("Why does the sky have a blue color?",),
    ("How do I make a cup of tea?",),
    ("Do you know what the capital of France is?",),
    ("Hi, my name is Kim.", "Can you tell me my name?"),
    ("Please write a short story about a dragon.",),
    ("Tell me a story about a lost dog.",),
    ("What are you able to do?",),
    ("Hi! Who am I talking to?",),
    ("What is a database good for?",),
    ("explain what a computer does",),
    ("How many days does one week have?",),
    ("It is cold outside. What should I wear?",),
    ("What do bees do all day?",),
    ("Can you give me three examples of a fruit?",),
    ("What word is the opposite of cold?",),
    ("Which one is bigger, a whale or a mouse?",),
    ("Where can I see penguins?",),
    ("What do I need to make bread?",),
    ("I am tired today. What should I do?",),
    ("Name one musical instrument, please.",),
    ("How is it possible that an airplane flies?",),
    ("What's the difference between a cat and a dog?",),
    ("what is a bridge used for",),
    ("Why do people need water?",),
    ("What makes somebody a good friend?",),
    ("Which season comes after winter?",),
    ("Thank you for your help, goodbye!",))


def item(conv: dict, name: str, number: int, at: int = -1, match: str | None = None) -> dict:
    """An evaluation line: the conversation up to its answer number `at`, which is the reference."""
    messages = conv["messages"]
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    last = answers[at]
    reference = dict(messages[last])
    exact = reference.pop("exact", False)
    line = {"id": f"{name}-{number:03d}", "family": name, "thinking": conv["thinking"],
            "messages": [{k: v for k, v in m.items() if k != "exact"} for m in messages[:last]],
            "answer": reference, "match": match or ("exact" if exact else "judge")}
    line.update({k: conv[k] for k in ("tools", "response_schema", "json_object") if k in conv})
    return line


def _recall(tokens: int) -> Callable[[Source], dict]:
    return lambda s: recall.document(s, int(4.15 * tokens), 1, single="first")


def _unseen_copy(s: Source) -> dict:
    r = s.r
    draw = r.choice((s.pseudo_word, s.name, s.pseudo_word, s.code))
    words = s.distinct(draw, r.randint(1, 8))
    kind = r.randrange(4)
    if kind < 2 or len(words) == 1:
        text = " ".join(words)
        order = r.choice(("Repeat this exactly", "Say this again", "Copy the following text"))
        return conversation("algo", [user(f"{order}: {text}"), answer(text)])
    if kind == 2:
        return conversation("algo", [user("Reverse this list: " + ", ".join(words)),
                                     answer(", ".join(reversed(words)))])
    return conversation("algo", [user("Write one item per line: " + ", ".join(words)),
                                 answer("\n".join(words))])


def _unseen_name(s: Source) -> dict:
    name = s.name()
    between = Source(s.r.random(), reference=True)
    messages = [user(f"My name is {name}."), answer(f"Nice to meet you, {name}!")]
    for _ in range(s.r.randint(0, 4)):
        for question, reply in chat.reference_turn(between):
            messages += [user(question), answer(reply, exact=False)]
    messages += [user("What is my name?"), answer(f"Your name is {name}.")]
    return conversation("chat", messages)


def _unseen_recall(s: Source) -> dict:
    return recall.document(s, s.r.randint(300, 3000), 1, s.r.choice(("first", "middle", "last")))


def _unseen_note(s: Source) -> dict:
    """A tool call whose argument is made of unseen words."""
    word = s.pseudo_word()
    text = " ".join(s.pseudo_word() for _ in range(s.r.randint(1, 5)))
    to = s.name()
    wanted = [t for t in tools.TOOLS if t.name in ("create_note", "send_message", "get_weather")]
    messages, call = s.r.choice((
        ([user(f"Make a note: {text}")], {"name": "create_note", "arguments": {"text": text}}),
        ([user(f"Tell {to}: {capital(text)}.")],
         {"name": "send_message", "arguments": {"to": to, "text": f"{capital(text)}."}}),
        ([user(f"What is the weather in {capital(word)}?")],
         {"name": "get_weather", "arguments": {"city": capital(word)}})))
    reply = answer("")
    reply["tool_calls"] = [call]
    return conversation("tool", messages + [reply], tools=[t.definition for t in wanted])


def _unseen(number: int) -> Callable[[Source], dict]:
    if number < 110:
        return _unseen_copy
    if number < 210:
        return _unseen_name
    return (_unseen_recall, jsondata.document, _unseen_note)[number % 3]


def _first_exact(conv: dict) -> dict:
    """Without a later question that has no single right answer."""
    answers = [i for i, m in enumerate(conv["messages"]) if m["role"] == "assistant"]
    exact = [i for i in answers if conv["messages"][i].get("exact")]
    return {**conv, "messages": conv["messages"][:exact[-1] + 1]} if exact else conv


FAMILIES: dict[str, Callable[[Source], dict]] = {
    "story": story.write, "storyqa": story.questions,
    "recall_short": lambda s: _first_exact(recall.short(s)),
    "recall_1k": _recall(1000), "recall_2k": _recall(2000), "recall_4k": _recall(4000),
    "recall_8k": _recall(8000),
    "arith_think": lambda s: arith.document(s, True),
    "arith_plain": lambda s: arith.document(s, False), "json": jsondata.document,
    "tool_plain": lambda s: tools.document(s, False),
    "tool_think": lambda s: tools.document(s, True),
    "algo": copying.document, "chat": chat.document}


def items(per_family: int = 300) -> Iterator[dict]:
    for name, make in FAMILIES.items():
        s = Source(f"{SEED} {name}")
        for n in range(per_family):
            s.next_document()
            conv = make(s)
            turns = sum(m["role"] == "assistant" for m in conv["messages"])
            at = s.r.randrange(turns) if name in ("tool_plain", "tool_think") else -1
            yield item(conv, name, n, at)
    s = Source(f"{SEED} unseen", reserved=True)
    for n in range(per_family):
        yield item(_unseen(n * 300 // per_family)(s), "unseen_words", n)
    for n, prompts in enumerate(CHAT30):
        messages = []
        for i, prompt in enumerate(prompts):
            messages.append(user(prompt))
            if i + 1 < len(prompts):
                messages.append(answer("Nice to meet you, Kim!", exact=False))
        messages.append(answer("", exact=False))
        yield item(conversation("chat", messages), "chat30", n, match="judge")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, help=".jsonl or .jsonl.zst")
    parser.add_argument("--per-family", type=int, default=300)
    args = parser.parse_args()
    write_lines(args.out, items(args.per_family))


if __name__ == "__main__":
    main()
