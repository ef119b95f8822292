"""The generator: every family keeps its promises, seeds decide everything, nothing held back leaks."""
import itertools
import json
import re
import unittest
from collections import Counter

from tools.train import heldout
from tools.train.data import arith, copying, everyday, handtyped, jsondata, lexicon, pseudo, recall, story
from tools.train.data import subject_story, tools
from tools.train.data.base import Source
from tools.train.data.filter import EvalFilter, build, item_hashes
from tools.train.data.generate import documents
from tools.train.data.phrasing import ask, expand, held_back
from tools.train.data.render import render_training


def take(n, seed=1, kind="short", **rest):
    return list(itertools.islice(documents(seed, kind, **rest), n))


class Stream(unittest.TestCase):
    def test_the_seed_decides(self):
        self.assertEqual(take(60), take(60))
        self.assertNotEqual(take(60), take(60, seed=2))

    def test_all_families_and_both_modes(self):
        seen = Counter((c["family"], c["thinking"]) for c in take(3000))
        for family in ("story", "storyqa", "recall", "arith", "json", "tool", "algo", "chat"):
            self.assertGreater(seen[family, False], 20, family)
            self.assertGreater(seen[family, True], 3, family)

    def test_roles_alternate_and_render(self):
        for conv in take(500):
            roles = [m["role"] for m in conv["messages"]]
            self.assertEqual(roles[-1], "assistant")
            self.assertNotIn(("user", "user"), list(zip(roles, roles[1:])))
            self.assertTrue(any(s.trained for s in render_training(conv)))

    def test_lengths(self):
        for kind, low, high in (("long", 3000, 30000), ("xlong", 25000, 72000)):
            for conv in take(6, kind=kind):
                size = len(conv["messages"][0]["content"]) + len(conv["messages"][1]["content"])
                self.assertTrue(low < size < high, (kind, size))


class Families(unittest.TestCase):
    def setUp(self):
        self.s = Source("test")

    def each(self, make, n=300):
        for _ in range(n):
            self.s.next_document()
            yield make(self.s)

    def test_story_answers_are_in_the_story(self):
        for made in self.each(story.Story):
            self.assertEqual(len({made.hero, made.giver, made.third}), 3)
            for _, reply in made.questions:
                for name in re.findall(r"\b(?:the|some) ([a-z]+)\.", reply):
                    self.assertIn(name, made.text)

    def test_heroes_differ(self):
        for _ in range(200):
            self.s.next_document()
            one = story.Story(self.s)
            two = story.Story(self.s, avoid=(one.hero, one.giver, one.third))
            self.assertNotIn(two.hero, (one.hero, one.giver, one.third))

    def test_recall_answers_stand_in_the_notes_once(self):
        for characters in (300, 3000, 12000):
            notes = recall.Notes(self.s, characters)
            questions = [q for q, _ in notes.facts]
            self.assertEqual(len(set(questions)), len(questions))
            for _, fact in notes.facts:
                self.assertIn(fact, notes.lines)
            self.assertEqual(notes.unknown(self.s)[1], "I do not know that.")

    def test_sums(self):
        for question, reply, steps in self.each(arith.problem, 2000):
            for left, right in re.findall(r"((?:\d+ [-+*/] )+\d+) = (\d+)", f"{steps} {reply}"):
                # pylint: disable=eval-used
                self.assertEqual(eval(left), int(right), (question, steps))

    def test_lists(self):
        for conv in self.each(copying.document):
            turns = [m for m in conv["messages"] if m["role"] != "system"]
            for ask, reply in zip(turns[::2], turns[1::2]):
                text, got = ask["content"], reply["content"]
                if text.startswith(("Repeat this exactly: ", "Say this again: ")):
                    self.assertEqual(text.split(": ", 1)[1], got)
                elif text.startswith("Sort these words: "):
                    self.assertEqual(sorted(text[18:].split(", ")), got.split(", "))
                elif text.startswith("Sort these numbers: "):
                    self.assertEqual(sorted(map(int, text[20:].split(", "))),
                                     list(map(int, got.split(", "))))

    def test_records(self):
        for conv in self.each(jsondata.document):
            reply = next(m for m in conv["messages"] if m["role"] == "assistant")
            value = json.loads(reply["content"])
            schema = conv.get("response_schema")
            if schema:
                self.assertEqual(list(value), schema["required"])

    def test_calls_fit_their_tools(self):
        kinds = {"string": str, "integer": int, "boolean": bool, "number": float, "array": list}
        for conv in self.each(tools.document):
            declared = {t["name"]: t["parameters"] for t in conv["tools"]}
            for message in conv["messages"]:
                for call in message.get("tool_calls", ()):
                    schema = declared[call["name"]]
                    self.assertEqual(list(call["arguments"]), schema["required"])
                    for key, value in call["arguments"].items():
                        self.assertIs(type(value), kinds[schema["properties"][key]["type"]])


class Talk(unittest.TestCase):
    """Free chat: every form asks in trained and in kept-back wordings, and the answers agree with each other."""

    def questions(self, held, n=60):
        source = Source("talk")
        for form, _ in everyday.FORMS:
            for _ in range(n):
                source.next_document()
                yield form.__name__, form(everyday.Asker(source, held))

    def test_every_form_asks_and_fills_its_slots(self):
        asked = Counter()
        for name, turns in self.questions(held=False):
            asked[name] += bool(turns)
            for question, reply in turns:
                for text in (question, reply):
                    self.assertNotRegex(text, r"[{}|]|  |\(", name)
                self.assertTrue(reply[0].isupper() or reply[0].isdigit(), reply)
        for form, _ in everyday.FORMS:
            self.assertGreater(asked[form.__name__], 40, form.__name__)

    def test_kept_back_wordings_are_never_trained(self):
        patterns = ("(How do|How can|How would) I {w}(| now| today)?", "(Tell|Show) me how to {w}(| please).")
        source = Source("wordings")
        every = {expand(source, p) for p in patterns for _ in range(300)}
        self.assertEqual(len(every), 13)
        trained = {ask(source, patterns, False, w="{w}") for _ in range(600)}
        self.assertEqual(trained, {w for w in every if not held_back(w)})

    def test_hand_typed_prompts_are_never_trained(self):
        self.assertEqual((len(handtyped.FIRST), len(handtyped.SECOND)), (30, 60))
        for conv in take(3000, kind="talk"):
            for message in conv["messages"]:
                if message["role"] == "user" and conv["family"] == "chat":
                    self.assertNotIn(handtyped.normal(message["content"]), handtyped.LAST)

    def test_a_thing_is_what_it_is(self):
        source = Source("kinds")
        for _ in range(2000):
            source.next_document()
            for question, reply in everyday.is_it(everyday.Asker(source)):
                if reply.startswith("No, "):
                    wrong, right = re.fullmatch(r"No, .* is not (an? .*)\. It is (an? .*)\.", reply).groups()
                    self.assertNotEqual(wrong, right)

    def test_a_story_is_about_its_subject(self):
        source, found = Source("subjects"), 0
        for _ in range(400):
            source.next_document()
            ask_, told = [m["content"] for m in subject_story.document(source)["messages"] if m["role"] != "system"][:2]
            subject = re.search(r"about an? ([a-z]+)[.?!]?$", ask_)
            if subject and subject[1] not in subject_story.THEME_WORDS:
                self.assertRegex(told, rf"\b{subject[1]}\b")
                found += 1
        self.assertGreater(found, 30)


class HeldBack(unittest.TestCase):
    def test_reserved_words_are_never_drawn_for_training(self):
        source, held = Source(5), Source(5, reserved=True)
        source.novel = 1.0
        known = set(lexicon.WORDS) | set(lexicon.ENGLISH)
        for _ in range(3000):
            self.assertFalse(pseudo.is_reserved(source.pseudo_word()))
            self.assertFalse(pseudo.is_reserved(source.code()))
            word = held.pseudo_word()
            self.assertTrue(pseudo.is_reserved(word))
            self.assertNotIn(word, known)

    def test_file(self):
        items = list(heldout.items(per_family=6))
        families = Counter(i["family"] for i in items)
        self.assertEqual(families["chat30"], 30)
        self.assertEqual(families["recall_8k"], 6)
        self.assertEqual(families["unseen_words"], 6)
        self.assertEqual(len({i["id"] for i in items}), len(items))
        for item in items:
            self.assertNotEqual(item["messages"][-1]["role"], "assistant")
            self.assertEqual(item["answer"]["role"], "assistant")
            self.assertNotIn("exact", item["answer"])

    def test_filter_finds_its_items(self):
        items = list(heldout.items(per_family=5))
        found = build(items)
        for item in items:
            conv = {**item, "messages": item["messages"] + [item["answer"]]}
            self.assertIn(item_hashes(render_training(conv))[-1], found.items)
        arith_item = next(i for i in items if i["family"] == "arith_plain")
        conv = {"family": "arith", "thinking": False, "messages": [
            arith_item["messages"][-1], {"role": "assistant", "content": "other"}]}
        self.assertTrue(found.repeats(conv, render_training(conv)))
        other = {"family": "arith", "thinking": False, "messages": [
            {"role": "user", "content": "unheard of"}, {"role": "assistant", "content": "other"}]}
        self.assertFalse(found.repeats(other, render_training(other)))

    def test_committed_hashes(self):
        found = EvalFilter.load()
        self.assertGreaterEqual(len(found.items), 3900)
        for item in heldout.items(per_family=2):
            if item["family"] != "unseen_words":   # its kinds depend on the number of items
                conv = {**item, "messages": item["messages"] + [item["answer"]]}
                self.assertIn(item_hashes(render_training(conv))[-1], found.items,
                              f"{item['id']}: build eval_hashes.bin again (tools/train/README.md)")


if __name__ == "__main__":
    unittest.main()
