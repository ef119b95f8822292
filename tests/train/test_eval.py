"""The evaluation command against a small HTTP server that plays the model."""
import contextlib
import http.server
import io
import json
import tempfile
import threading
import unittest
from pathlib import Path

from tools.train.data.render import render_prompt
from tools.train.eval import __main__ as command
from tools.train.eval.client import Client, parse_draft_counts, request_body
from tools.train.eval.score import score

WEATHER = {"name": "get_weather", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def item(number, family, ask, content="", calls=None, match="exact", **rest):
    reply = {"role": "assistant", "content": content}
    if calls:
        reply["tool_calls"] = calls
    return {"id": f"{family}-{number}", "family": family, "thinking": False,
            "messages": [{"role": "user", "content": ask}], "answer": reply, "match": match, **rest}


def said(content="", calls=()):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"id": str(i), "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(calls)]}


class Scores(unittest.TestCase):
    def test_text(self):
        one = item(0, "chat", "q", "a")
        self.assertTrue(score(one, said("a")).exact)
        self.assertFalse(score(one, said("a ")).exact)
        self.assertFalse(score(one, {"content": None}).exact)
        self.assertTrue(score(one, {"content": "a", "reasoning_content": "thought"}).exact)
        self.assertIsNone(score({**one, "match": "judge"}, said("b")).exact)

    def test_calls(self):
        one = item(0, "tool_plain", "q", tools=[WEATHER], calls=[
            {"name": "get_weather", "arguments": {"city": "Oslo"}}])
        good = score(one, said(calls=[("get_weather", '{"city": "Oslo"}')]))
        self.assertEqual((good.exact, good.tool_valid), (True, True))
        for calls, valid in (([("get_weather", '{"city": "Rome"}')], True),
                             ([("get_weather", '{"city": 1}')], False),
                             ([("get_weather", '{"city": "Oslo"')], False),
                             ([("get_time", '{"city": "Oslo"}')], False), ([], False)):
            got = score(one, said(calls=calls))
            self.assertEqual((got.exact, got.tool_valid), (False, valid), calls)

    def test_types_and_order(self):
        tool = {"name": "f", "parameters": {"type": "object"}}
        one = item(0, "tool_plain", "q", tools=[tool], calls=[
            {"name": "f", "arguments": {"a": 1, "b": True}}])
        self.assertTrue(score(one, said(calls=[("f", '{"a": 1, "b": true}')])).exact)
        for raw in ('{"b": true, "a": 1}', '{"a": 1.0, "b": true}', '{"a": "1", "b": true}',
                    '{"a": 1, "b": 1}', '{"a": 1}'):
            self.assertFalse(score(one, said(calls=[("f", raw)])).exact, raw)

    def test_json_validity_is_apart_from_the_values(self):
        one = item(0, "json", "q", '{"age": 3}', response_schema=AGE)
        for text, exact, valid in (('{"age": 3}', True, True), ('{"age": 4}', False, True),
                                   ('{"age": "3"}', False, False), ('{"age": 3', False, False)):
            got = score(one, said(text))
            self.assertEqual((got.exact, got.json_valid), (exact, valid), text)
        self.assertIsNone(score(item(0, "json", "q", "Oslo"), said("Oslo")).json_valid)

    def test_a_call_where_none_is_due(self):
        one = item(0, "tool_plain", "What is a dog?", "A dog.", tools=[WEATHER])
        self.assertTrue(score(one, said("A dog.")).tool_valid)
        got = score(one, said(calls=[("get_weather", '{"city": "Oslo"}')]))
        self.assertEqual((got.exact, got.tool_valid), (False, False))


class Requests(unittest.TestCase):
    def test_tool_history(self):
        one = {"id": "x", "family": "tool_think", "thinking": True, "tools": [WEATHER], "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [
                {"name": "a", "arguments": {"z": 1, "b": "é"}}, {"name": "b", "arguments": {}}]},
            {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]}
        body = request_body(one)
        calls = body["messages"][1]["tool_calls"]
        self.assertEqual(calls[0]["function"]["arguments"], '{"z": 1, "b": "é"}')
        self.assertEqual([c["id"] for c in calls],
                         [m["tool_call_id"] for m in body["messages"][2:]])
        self.assertEqual(body["messages"][1]["reasoning_content"], "r")
        self.assertEqual(body["thinking"], {"type": "enabled"})
        self.assertEqual(body["tools"][0], {"type": "function", "function": WEATHER})
        self.assertEqual(body["temperature"], 0)

    def test_response_format(self):
        body = request_body(item(0, "json", "q", '{"age": 1}', response_schema=AGE))
        self.assertEqual(body["response_format"]["json_schema"]["schema"], AGE)
        self.assertEqual(body["thinking"], {"type": "disabled"})
        body = request_body(item(0, "json", "q", json_object=True))
        self.assertEqual(body["response_format"], {"type": "json_object"})

    def test_a_plain_answer_under_a_schema_keeps_the_prompt(self):
        one = item(0, "json", "q", "11", response_schema=AGE)
        for head in ([], [{"role": "system", "content": "Be concise."}]):
            one["messages"] = head + [{"role": "user", "content": "q"}]
            body = request_body(one)
            self.assertNotIn("response_format", body)
            self.assertEqual(render_prompt({"messages": body["messages"], "thinking": False}),
                             render_prompt(one))


class FakeServer(http.server.BaseHTTPRequestHandler):
    """Repeats what stands after `say:`; `busy` fails once with 503, `broken` always with 400."""
    seen: list = []
    busy = 1

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cls = type(self)
        cls.seen.append((self.path, body))
        ask = body["messages"][-1]["content"]
        if ask.startswith("broken"):
            return self.reply(400, {"error": {"message": "no"}})
        if ask.startswith("busy") and cls.busy:
            cls.busy -= 1
            return self.reply(503, {"error": {"message": "later"}})
        text = ask.split("say:", 1)[-1]
        return self.reply(200, {"choices": [{"message": {"role": "assistant", "content": text},
                                             "finish_reason": "stop"}],
                                "usage": {"completion_tokens": len(text)}})

    def reply(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Command(unittest.TestCase):
    def setUp(self):
        FakeServer.seen, FakeServer.busy, Client.pause = [], 1, 0.001
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeServer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def run_on(self, items, *extra):
        folder = Path(self.folder.name)
        (folder / "set.jsonl").write_text("".join(json.dumps(i) + "\n" for i in items))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = command.main(["--base-url", f"http://127.0.0.1:{self.server.server_port}/v1",
                                 "--set", str(folder / "set.jsonl"),
                                 "--out", str(folder / "report.json"), *extra])
        return code, out.getvalue(), json.loads((folder / "report.json").read_text())

    def test_counts_and_misses(self):
        items = [item(0, "algo", "say:a b", "a b"), item(1, "algo", "say:a c", "a b"),
                 item(0, "chat", "say:hi", match="judge"), item(0, "json", 'say:{"age": 2}',
                                                               '{"age": 3}', response_schema=AGE)]
        code, text, report = self.run_on(items)
        self.assertEqual(code, 0)
        families = report["families"]
        self.assertEqual(families["algo"]["exact"], {"right": 1, "of": 2, "share": 0.5})
        self.assertEqual(families["json"]["json_valid"]["share"], 1.0)
        self.assertEqual(families["json"]["exact"]["right"], 0)
        self.assertEqual(families["algo"]["output_tokens"], 6)
        self.assertEqual({m["id"] for m in report["misses"]}, {"algo-1", "json-0"})
        self.assertEqual([j["got"] for j in report["judged"]], ["hi"])
        self.assertIn("1/2 0.500", text)
        path, body = FakeServer.seen[0]
        self.assertEqual((path, body["model"]), ("/v1/chat/completions", "deepinfer-tiny"))

    def test_busy_is_repeated_and_errors_are_misses(self):
        items = [item(0, "algo", "busy say:x", "x"), item(1, "algo", "broken", "x")]
        code, _, report = self.run_on(items, "--concurrency", "1")
        self.assertEqual(code, 0)
        self.assertEqual(report["families"]["algo"]["exact"]["right"], 1)
        self.assertEqual(report["families"]["algo"]["failures"], 1)
        self.assertIn("HTTP 400", report["misses"][0]["detail"])

    def test_no_server(self):
        self.server.shutdown()
        self.server.server_close()
        code, _, report = self.run_on([item(0, "algo", "broken", "x")])
        self.assertEqual(code, 1)
        self.assertEqual(report["families"]["algo"]["failures"], 1)

    def test_families_and_limit(self):
        items = [item(n, f, "say:x", "x") for f in ("a", "b", "c") for n in range(5)]
        _, _, report = self.run_on(items, "--families", "a,b", "--limit", "2")
        self.assertEqual({k: v["items"] for k, v in report["families"].items()}, {"a": 2, "b": 2})
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            self.run_on(items, "--families", "z")


class DraftCounts(unittest.TestCase):
    def test_reads_the_three_counters_of_all_engines(self):
        text = ("# HELP vllm:spec_decode_num_drafts_total x\n"
                'vllm:spec_decode_num_drafts_total{model_name="m",engine="0"} 10\n'
                'vllm:spec_decode_num_drafts_total{model_name="m",engine="1"} 5\n'
                'vllm:spec_decode_num_draft_tokens_total{model_name="m",engine="0"} 40\n'
                'vllm:spec_decode_num_accepted_tokens_total{model_name="m",engine="0"} 31\n'
                'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 9\n')
        self.assertEqual(parse_draft_counts(text), {"rounds": 15, "verified": 40, "accepted": 31})


if __name__ == "__main__":
    unittest.main()
