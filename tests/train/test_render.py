"""The V4.1 template and JSON writer against recipe.md §2.1-2.7 and, where present, the vectors."""
import json
import os
import unittest
from pathlib import Path

from tools.train.data import render

VECTORS = Path(os.environ.get("DEEPINFER_VECTORS",
                              Path(__file__).parents[2] / ".." / "shared" / "vectors"))
B, E, U, A, S = render.BOS, render.EOS, render.USER, render.ASSISTANT, render.SYSTEM
EFFORT = "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"


def vector_prompts(name):
    with open(VECTORS / "recipe" / name, encoding="utf-8") as file:
        for line in file:
            case = json.loads(line, parse_int=render._number)
            conversation = case["result"]["conversation"]
            if case["result"]["model_version"] != "v41" or any(
                    m.get("image_sources") for m in conversation["messages"]):
                continue
            form = conversation["response_format"]
            yield case, {
                "messages": conversation["messages"], "thinking": conversation["thinking_mode"],
                "tools": conversation["tools"], "tool_choice": conversation["tool_choice"],
                "effort": conversation["reasoning_effort"], "json_object": form == "json_object",
                "response_schema":
                    conversation["response_schema"] if form == "json_schema" else None}


class Prompts(unittest.TestCase):
    def test_vectors(self):
        if not (VECTORS / "recipe" / "requests.jsonl").exists():
            self.skipTest(f"no vectors at {VECTORS}")
        n = 0
        for name in ("requests.jsonl", "fuzz_requests.jsonl"):
            for case, conversation in vector_prompts(name):
                with self.subTest(case["id"]):
                    text, ranges = render.render_prompt(conversation)
                    self.assertEqual(text, case["result"]["prompt"])
                    self.assertEqual(ranges, case["result"]["special_byte_ranges"])
                    n += 1
        self.assertGreater(n, 200)

    def test_plain(self):
        text, ranges = render.render_prompt(
            {"messages": [{"role": "user", "content": "Hi"}], "thinking": False})
        self.assertEqual(text, f"{B}{U}Hi{A}</think>")
        encoded = text.encode()
        self.assertEqual([encoded[a:b].decode() for a, b in ranges], [B, U, A, "</think>"])

    def test_thinking(self):
        text, _ = render.render_prompt(
            {"messages": [{"role": "user", "content": "Hi"}], "thinking": True})
        self.assertEqual(text, f"{B}{S}{EFFORT}{U}Hi{A}<think>")

    def test_unknown_role(self):
        with self.assertRaisesRegex(ValueError, "messages\\[0\\].role"):
            render.render_prompt({"messages": [{"role": "x", "content": ""}], "thinking": False})


def trained(conversation):
    return "".join(s.text if s.trained else "|" for s in render.render_training(conversation))


class Training(unittest.TestCase):
    turns = [{"role": "user", "content": "q1"},
             {"role": "assistant", "content": "a1", "reasoning_content": "r1"},
             {"role": "user", "content": "q2"},
             {"role": "assistant", "content": "a2", "reasoning_content": "r2"}]

    def test_every_answer_without_thinking(self):
        self.assertEqual(trained({"messages": self.turns, "thinking": False}).replace("|", ""),
                         f"a1{E}a2{E}")

    def test_only_the_last_answer_with_thinking(self):
        conversation = {"messages": self.turns, "thinking": True}
        self.assertEqual(trained(conversation).replace("|", ""), f"r2</think>a2{E}")
        text = "".join(s.text for s in render.render_training(conversation))
        self.assertEqual(text, f"{B}{S}{EFFORT}{U}q1{A}</think>a1{E}{U}q2{A}<think>r2</think>a2{E}")

    def test_tools_train_reasoning_and_calls(self):
        tool = {"name": "t", "description": "d", "parameters": {"type": "object"}}
        call = {"role": "assistant", "content": "", "reasoning_content": "r",
                "tool_calls": [{"name": "t", "arguments": {"k": "v", "n": 1}}]}
        text = trained({"messages": [{"role": "user", "content": "q"}, call], "thinking": True,
                        "tools": [tool]}).replace("|", "")
        self.assertTrue(text.startswith("r</think>\n\n<｜DSML｜ calls>"), text)
        self.assertIn('parameter name="n" string="false">1</', text)
        self.assertTrue(text.endswith(f"calls>{E}"), text)

    def test_prompt_is_a_prefix_of_the_training_text(self):
        """What the server renders before an answer is what the model was trained on."""
        for thinking in (False, True):
            whole = "".join(s.text for s in render.render_training(
                {"messages": self.turns, "thinking": thinking}))
            prompt, _ = render.render_prompt({"messages": self.turns[:3], "thinking": thinking})
            self.assertTrue(whole.startswith(prompt))


class Json(unittest.TestCase):
    def test_numbers(self):
        cases = {"1.0": "1.0", "1E5": "100000.0", "1e15": "1000000000000000.0", "1e16": "1e+16",
                 "1.5e300": "1.5e+300", "18446744073709551616": "1.8446744073709552e+19",
                 "0.00001": "1e-05", "0.000099": "9.9e-05", "-0.00001": "-1e-05", "1e-7": "1e-07",
                 "0.0001": "0.0001", "1e-10": "1e-10", "5e-324": "5e-324", "-0.0": "-0.0",
                 "18446744073709551615": "18446744073709551615", "12.25": "12.25"}
        for text, wanted in cases.items():
            self.assertEqual(render.python_style(render.parse_json(text)), wanted)

    def test_strings_and_order(self):
        value = {"b": 'é"\\\n\x01/', "a": [True, None, 2]}
        self.assertEqual(render.python_style(value),
                         '{"b": "é\\"\\\\\\n\\u0001/", "a": [true, null, 2]}')


if __name__ == "__main__":
    unittest.main()
