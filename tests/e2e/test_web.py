"""The web page in a real browser: it streams, moves, explains what is wrong, and works with the keyboard alone."""
import json
import os
import re
import signal
import threading
import time

import harness
import pytest
import web

pytestmark = [pytest.mark.release_only, pytest.mark.skipif(web.missing() is not None, reason=str(web.missing()))]


@pytest.fixture(scope="module")
def browser():
    with web.launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = harness.Server(tmp_path_factory.mktemp("web"))
    yield server
    assert server.stop() == 0


@pytest.fixture
def tab(browser, server):
    """A fresh browser profile on the page; no error may have been logged, and nobody else been asked, at the end."""
    tab = web.Tab(browser, server)
    yield tab
    tab.close()


def set_field(page, label, value):
    page.get_by_label(label, exact=True).fill(value)


def ask(page, text):
    """Sends a question with the keyboard and waits for the whole answer; returns its node."""
    answers = page.locator("article.assistant").count()
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")
    node = page.locator("article.assistant").nth(answers)
    node.locator(".foot, .notice").first.wait_for()
    return node


# Collects the length of the answer at each change of the conversation.
WATCH = """() => {
  window.lengths = [];
  new MutationObserver(() => window.lengths.push(document.querySelector('article.assistant .md')?.textContent.length ?? 0))
    .observe(document.querySelector('.messages'), {childList: true, subtree: true, characterData: true});
}"""


def test_a_conversation_streams(tab, server):
    page = tab.open()
    set_field(page, "Temperature", "0")
    set_field(page, "Longest answer", "400")
    page.evaluate(WATCH)
    node = ask(page, "Tell me a long story about a fox.")
    lengths = page.evaluate("window.lengths")
    assert lengths == sorted(lengths) and len({n for n in lengths if n}) >= 5, lengths
    expected = server.answer("Tell me a long story about a fox.", max_tokens=400)
    words = lambda text: re.sub(r"[\s*_`#]+", " ", text).strip()  # noqa: E731
    assert words(node.locator(".md").inner_text()) == words(expected)
    assert re.search(r"\d+ prompt tokens · \d+ tokens · [\d.]+k? tok/s · first after [\d.]+ m?s", node.locator(".stats").inner_text())

    # The second question goes out with the first turn; both stay over a reload; the request can be looked at.
    ask(page, "And then?")
    page.reload()
    assert page.locator("article.message").count() == 4
    node = ask(page, "The end?")
    node.get_by_role("button", name="Inspect").click()
    sent = json.loads(page.get_by_role("dialog").locator("pre").inner_text())
    assert [m["role"] for m in sent["messages"]] == ["user", "assistant"] * 2 + ["user"]
    page.get_by_role("button", name="curl", exact=True).click()
    assert "curl -N " + tab.origin in page.get_by_role("dialog").locator("pre").inner_text()
    page.get_by_role("button", name="Python", exact=True).click()
    compile(page.get_by_role("dialog").locator("pre").inner_text(), "example", "exec")
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0


def test_an_answer_is_stopped_with_escape(tab, server):
    page = tab.open()
    page.get_by_label("Your message").fill("Tell me a very long story.")
    # The bundled model ends by itself too soon to be stopped, so the request is made endless on its way.
    page.route("**/v1/chat/completions", lambda route: route.continue_(
        post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True, "max_tokens": 20000})))
    page.keyboard.press("Enter")
    page.locator("article.assistant .md").wait_for()
    page.get_by_label("Your message").press("Escape")
    page.get_by_text("Stopped.").wait_for(timeout=60000)
    harness.wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "the request ends in the engine", 5)
    assert page.get_by_role("button", name="Answer again").is_visible()


def test_the_key_is_sent_and_kept_in_memory_only(tab):
    page = tab.open()
    seen = []
    page.on("request", lambda r: seen.append((r.url, r.headers.get("authorization"))))
    page.get_by_role("button", name="API key").click()
    set_field(page, "Key", "secret-123")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Key set").wait_for()
    ask(page, "Hi")
    assert (f"{tab.origin}/v1/chat/completions", "Bearer secret-123") in seen
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert "secret" not in kept
    page.reload()
    page.get_by_role("button", name="API key").wait_for()


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": False}


def test_an_answer_in_a_schema_is_marked_valid(tab, server):
    if not server.json("GET", "/v1/models")["data"][0]["capabilities"]["json_schema"]:
        pytest.skip("this server does not constrain answers to a schema")
    page = tab.open()
    set_field(page, "Temperature", "0")
    page.get_by_label("Format").select_option("json_schema")
    set_field(page, "Schema", json.dumps(SCHEMA))
    node = ask(page, "Give me a person as JSON: Ann, 34 years old.")
    mark = node.locator("[data-valid]")
    assert mark.get_attribute("data-valid") == "true", node.inner_text()
    assert mark.inner_text() == "✓ Matches the schema"
    value = json.loads(node.locator("pre code").inner_text())
    assert set(value) == {"name", "age"} and isinstance(value["age"], int)


VERDICTS = [
    ('{"name":"Ann","age":3}', SCHEMA, None),
    ('{"name":"Ann","age":3.0}', SCHEMA, None),
    ('{"name":"Ann","age":"3"}', SCHEMA, "$.age: expected integer, found string"),
    ('{"name":"Ann"}', SCHEMA, "$: age is missing"),
    ('{"name":"Ann","age":3,"x":1}', SCHEMA, "$: x is not in the schema"),
    ('[1,2,2]', {"type": "array", "uniqueItems": True}, "$: items repeat"),
    ('[1,"a"]', {"items": {"type": "number"}}, "$[1]: expected number, found string"),
    ('{"a":{"a":{}}}', {"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, None),
    ('{"a":{"b":{}}}', {"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, "$.a: b is not in the schema"),
    ('"abc"', {"pattern": "^a.c$", "minLength": 3}, None),
    ('"abd"', {"pattern": "^a.c$"}, "$: does not match ^a.c$"),
    ('7', {"oneOf": [{"type": "integer"}, {"minimum": 5}]}, "$: fits 2 of oneOf, expected exactly one"),
    ('7', {"not": {"type": "string"}, "exclusiveMaximum": 8, "multipleOf": 3.5}, None),
    ('null', {"type": ["string", "null"]}, None),
    ('{"k":1}', {"patternProperties": {"^k": {"type": "string"}}}, "$.k: expected string, found integer"),
    ('{"b":2,"a":1}', {"const": {"a": 1, "b": 2}}, None),
]


def test_the_mark_of_validity_says_what_is_wrong(tab):
    page = tab.open()
    judge = "async ([answer, format]) => (await import(new URL('ui/schema.js', document.baseURI))).verdict(answer, format)"
    for answer, schema, problem in VERDICTS:
        verdict = page.evaluate(judge, [answer, {"kind": "json_schema", "schema": schema}])
        assert verdict["ok"] == (problem is None), (answer, schema, verdict)
        assert problem is None or verdict["text"] == f"Not as the schema wants: {problem}"
    assert page.evaluate(judge, ["{", {"kind": "json_object"}])["text"].startswith("Not JSON")
    assert page.evaluate(judge, ["[]", {"kind": "json_object"}])["ok"] is False
    assert page.evaluate(judge, ["2024-01-31", {"kind": "regex", "regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}])["ok"]
    assert page.evaluate(judge, ["on 2024-01-31", {"kind": "regex", "regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}])["ok"] is False
    assert page.evaluate(judge, ["hi", {"kind": "text"}]) is None


def test_markdown_becomes_nodes_and_never_markup(tab):
    page = tab.open()
    render = "async (text) => (await import(new URL('ui/markdown.js', document.baseURI))).markdown(text).innerHTML"
    cases = {
        "a **b** _c_ `d<e>`": "<p>a <strong>b</strong> <em>c</em> <code>d&lt;e&gt;</code></p>",
        "snake_case_name and 2*3*4": "<p>snake_case_name and 2*3*4</p>",
        "# T\ntext": "<h2>T</h2><p>text</p>",
        "- a\n- b\n  - c": "<ul><li>a</li><li><p>b</p><ul><li>c</li></ul></li></ul>",
        "3. x\n4. y": '<ol start="3"><li>x</li><li>y</li></ol>',
        "|a|b|\n|-|-|\n|1|2|": "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>",
        "> q": "<blockquote><p>q</p></blockquote>",
        "<script>alert(1)</script><img src=x onerror=alert(1)>": "<p>&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;</p>",
        "[x](javascript:alert(1))": "<p>[x](javascript:alert(1))</p>",
        "![x](https://example.org/a.png)": '<p>!<a href="https://example.org/a.png" rel="noopener noreferrer" target="_blank">x</a></p>',
    }
    for text, expected in cases.items():
        assert page.evaluate(render, text) == expected, text
    code = page.evaluate(render, "```py\nx = '<b>'\n```\nafter")
    assert "x = '&lt;b&gt;'" in code and "<p>after</p>" in code and ">py<" in code
    assert "half" in page.evaluate(render, "```\nhalf a block")
    # Nothing a model may write takes long.
    for text in ("*" * 3000, "[" * 3000, "`" * 3000, "> " * 3000, "- " * 3000, "_a" * 3000, "**a" * 1000, "[a](" * 1000):
        began = time.monotonic()
        page.evaluate(render, text)
        assert time.monotonic() - began < 2, text[:8]


class Load:
    """Requests through the API, as many as the server takes with three clients, and what /metrics said meanwhile."""

    def __init__(self, server):
        self.server, self.stopping, self.scrapes = server, threading.Event(), []
        self.threads = [threading.Thread(target=self.client) for _ in range(3)] + [threading.Thread(target=self.scraper)]

    def client(self):
        while not self.stopping.is_set():
            self.server.answer("Tell me a story.", max_tokens=40)

    def scraper(self):
        while not self.stopping.is_set():
            before = time.time()
            samples = self.server.metrics()
            value = lambda name: sum(v for n, _, v in samples if n == name)  # noqa: E731
            self.scrapes.append((before, time.time(), {key: value(name) for key, name in SHOWN.items()}))
            self.stopping.wait(0.1)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


SHOWN = {"requests_total": "deepinfer:http_requests_total", "prompt_tokens_total": "vllm:prompt_tokens_total", "generation_tokens_total": "vllm:generation_tokens_total"}
# The totals on the page at each frame, with the time at which they were shown.
RECORD = """() => {
  window.frames_seen = [];
  const view = document.getElementById('view-dashboard');
  const read = (key) => Number(document.querySelector(`[data-total=${key}]`)?.textContent.replaceAll(',', '') ?? 0);
  new MutationObserver(() => window.frames_seen.push([Date.now() / 1000,
    {requests_total: read('requests_total'), prompt_tokens_total: read('prompt_tokens_total'), generation_tokens_total: read('generation_tokens_total')}]))
    .observe(view, {attributes: true, attributeFilter: ['data-time']});
}"""


def test_the_dashboard_moves_under_load_and_shows_what_metrics_says(tab, server):
    page = tab.open("dashboard")
    page.get_by_text("Live", exact=True).wait_for()
    page.evaluate(RECORD)
    with Load(server) as load:
        harness.wait_until(lambda: page.evaluate("window.frames_seen.length") >= 6, "six frames", 15)
        running = page.locator("[data-metric=running]").inner_text()
        rate = page.locator("[data-metric=output]").inner_text()
    frames = page.evaluate("window.frames_seen")
    assert float(re.match(r"[\d.]+", rate)[0]) > 0 and int(re.match(r"\d+", running)[0]) in range(0, 17)
    compared = 0
    for shown_at, values in frames:
        # Counters grow, so a value of the last second lies between the scrapes before and after it.
        before = [scrape for start, end, scrape in load.scrapes if end < shown_at - 1.0]
        after = [scrape for start, end, scrape in load.scrapes if start > shown_at]
        if not before or not after:
            continue
        compared += 1
        for key in SHOWN:
            assert before[-1][key] <= values[key] <= after[0][key], (key, before[-1], values, after[0])
    assert compared >= 2 and frames[-1][1]["generation_tokens_total"] > frames[0][1]["generation_tokens_total"] > 0
    # At rest both are the same to the last digit.
    rest = {key: server.metric(name) for key, name in SHOWN.items()}
    shown = "(key) => Number(document.querySelector(`[data-total=${key}]`).textContent.replaceAll(',', ''))"
    harness.wait_until(lambda: {key: page.evaluate(shown, key) for key in rest} == rest, f"the page shows {rest}", 5)
    for title in ("Requests per second", "Tokens per second", "Time to first token", "Engine time"):
        assert page.get_by_role("img", name=re.compile(f"^{title}:.*[1-9]")).is_visible(), title
    for title in ("Expert load", "Workers", "KV transfer", "Replicas"):
        assert page.locator(f"section[aria-label^='{title}']:visible").count() == 0, title


def test_a_timeline_opens_from_the_table(tab, server):
    status, headers, _ = server.request("POST", harness.CHAT, server.body("Tell me a story.", max_tokens=30), {"X-Request-Id": "look-at-me"})
    assert status == 200 and headers["x-request-id"] == "look-at-me"
    page = tab.open("requests")
    page.get_by_label("Search").fill("look-at")
    page.get_by_role("link", name="look-at-me").click()
    page.get_by_label("Waterfall").wait_for()
    line = server.json("GET", "/admin/requests/look-at-me")
    assert {s["stage"] for s in line["stages"]} >= {"parse", "tokenize", "queue", "prefill"} and line["total_steps"] > 0
    for name in ("Parse", "Tokenize", "Queue", "Prefill", "Decode"):
        assert page.get_by_label("Stages").get_by_role("img", name=re.compile(f"^{name}: ")).is_visible(), name
    facts = page.get_by_label("Facts").inner_text()
    assert f"{line['prompt_tokens']} token" in facts and f"{line['output_tokens']} token" in facts
    left = page.locator(".fall .lane > div").evaluate_all("(nodes) => nodes.map((n) => parseFloat(n.style.left))")
    assert left == sorted(left)
    with page.expect_download() as download:
        page.get_by_role("button", name="Chrome trace").click()
    trace = json.loads(open(download.value.path()).read())
    assert {"prefill", "decode"} <= {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"}
    page.get_by_role("link", name="All requests").click()
    page.get_by_label("Search").fill("nothing like this")
    page.get_by_text("Nothing matches").wait_for()


def test_first_start_has_empty_states(browser, start):
    tab = web.Tab(browser, start())
    page = tab.open("requests")
    page.get_by_text("No requests yet").wait_for()
    page = tab.open("dashboard")
    page.get_by_text("No requests in this window").wait_for()
    page.get_by_role("link", name="Chat", exact=True).click()
    page.get_by_text("What would you like to ask?").wait_for()
    page.get_by_role("button", name="Write a haiku").click()
    page.locator("article.assistant .foot").wait_for()
    tab.close()


def test_a_missing_key_is_asked_for(browser, server):
    tab = web.Tab(browser, server)
    body = json.dumps({"error": {"message": "no valid API key was given", "type": "authentication_error", "param": None, "code": "invalid_api_key"}})
    refuse = lambda route: route.continue_() if route.request.headers.get("authorization") == "Bearer right" else route.fulfill(  # noqa: E731
        status=401, content_type="application/json", body=body)
    for pattern in ("**/v1/**", "**/ui/feed", "**/admin/**"):
        tab.page.route(pattern, refuse)
    page = tab.open("dashboard")
    page.get_by_role("heading", name="This server wants an API key").wait_for()
    tab.open("requests").get_by_role("heading", name="This server wants an API key").wait_for()
    page.get_by_role("link", name="Chat", exact=True).click()
    ask(page, "Hi").get_by_role("button", name="Enter a key").click()
    set_field(page, "Key", "wrong")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Key set").wait_for()
    page.get_by_role("alert").get_by_text("This server does not accept the key.").wait_for()
    page.get_by_text("Key refused", exact=True).wait_for()
    page.get_by_role("button", name="Enter another key").click()
    set_field(page, "Key", "right")
    page.keyboard.press("Enter")
    page.get_by_text("Ready", exact=True).wait_for()
    page.get_by_role("button", name="Try again").or_(page.get_by_role("button", name="Enter a key")).first.wait_for()
    ask(page, "Hi again").locator(".stats").wait_for()
    page.get_by_role("link", name="Dashboard", exact=True).click()
    page.get_by_text("Live", exact=True).wait_for()
    tab.close(expect_errors=True)


def test_a_server_that_dies_and_comes_back(browser, start, monkeypatch):
    server = start()
    tab = web.Tab(browser, server)
    page = tab.open("dashboard")
    page.get_by_text("Live", exact=True).wait_for()
    page.get_by_role("link", name="Chat", exact=True).click()
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True, "max_tokens": 20000})))
    page.get_by_label("Your message").fill("Tell me a very long story.")
    page.keyboard.press("Enter")
    page.locator("article.assistant .md").wait_for()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    page.get_by_text("The answer broke off.").wait_for()
    page.get_by_text("Unreachable", exact=True).wait_for()
    page.get_by_text("The server cannot be reached. Trying again by itself.").wait_for()
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Try again").click()
    page.locator("article").get_by_text("The server cannot be reached. Is it running?").wait_for()
    page.get_by_role("link", name="Dashboard", exact=True).click()
    page.get_by_text(re.compile("Connection lost|cannot be reached")).first.wait_for()
    monkeypatch.setattr(harness, "free_port", lambda: server.port)
    start()
    page.get_by_text("Ready", exact=True).wait_for()
    page.get_by_text("Live", exact=True).wait_for()
    tab.close(expect_errors=True)


def test_everything_is_reached_with_the_keyboard(tab):
    page = tab.open()
    page.get_by_text("Ready", exact=True).wait_for()
    seen = []
    for _ in range(60):  # once around
        page.keyboard.press("Tab")
        name, visible = page.evaluate("""() => {
          const e = document.activeElement;
          if (e === document.body) return ['', true];
          const style = getComputedStyle(e), box = e.closest('.box');
          const label = e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent;
          return [label.trim(), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 || (box !== null && getComputedStyle(box).boxShadow !== 'none')];
        }""")
        assert visible, f"no visible focus on {name!r}"
        seen.append(name)
    for name in ("Skip to the content", "Chat", "Dashboard", "Requests", "API key", "New conversation", "Your message", "Send", "Model", "Temperature", "Format", "Token probabilities"):
        assert name in seen, (name, seen)
    page.get_by_role("link", name="Dashboard", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_text("Live", exact=True).wait_for()
    chart = page.get_by_role("img", name=re.compile("^Resident memory"))
    chart.focus()
    page.keyboard.press("ArrowLeft")
    assert re.search(r"\d MiB", page.locator("#live").text_content())
    page.get_by_role("button", name="1 min").focus()
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="1 min").get_attribute("aria-pressed") == "true"
    theme = page.locator("#theme-button")
    theme.focus()
    for expected in ("light", "dark"):
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == expected
    page.get_by_role("button", name="API key").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "key-button"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser, server, scheme):
    tab = web.Tab(browser, server, color_scheme=scheme)
    server.request("POST", harness.CHAT, server.body(max_tokens=8), {"X-Request-Id": "axe"})
    page = tab.open()
    page.get_by_text("Ready", exact=True).wait_for()
    # Colours are all that differs in the dark.
    rules = None if scheme == "light" else ["color-contrast"]
    found = {"empty chat": web.axe_violations(page, rules)}
    page.get_by_label("Token probabilities").check()
    page.get_by_label("Think before answering").check()
    page.get_by_label("Format").select_option("json_schema")
    ask(page, "Write some `code` with a list.").get_by_role("button", name="Probabilities").click()
    found["chat"] = web.axe_violations(page, rules)
    page.get_by_role("button", name="Inspect").click()
    found["inspector"] = web.axe_violations(page, rules)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="API key").click()
    found["key"] = web.axe_violations(page, rules)
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Dashboard", exact=True).click()
    page.get_by_text("Live", exact=True).wait_for()
    page.get_by_role("region", name="Latencies").wait_for()
    found["dashboard"] = web.axe_violations(page, rules)
    page.get_by_role("link", name="Requests", exact=True).click()
    page.get_by_role("link", name="Request axe").first.wait_for()
    found["requests"] = web.axe_violations(page, rules)
    page.get_by_role("link", name="Request axe").first.click()
    page.get_by_label("Waterfall").wait_for()
    found["timeline"] = web.axe_violations(page, rules)
    assert {view: lines for view, lines in found.items() if lines} == {}
    tab.close()


def test_a_narrow_page_has_everything(browser, server):
    server.request("POST", harness.CHAT, server.body(max_tokens=8), {"X-Request-Id": "narrow"})
    tab = web.Tab(browser, server, viewport={"width": 360, "height": 740})
    page = tab.open()
    inside = "() => document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll('.top a, .top button')]" \
        ".filter((n) => n.checkVisibility()).every((n) => n.getBoundingClientRect().right <= innerWidth)"
    page.get_by_text("Ready", exact=True).wait_for()
    assert page.evaluate(inside)

    # The conversations and the settings lie over the chat, one at a time, and go away again.
    ask(page, "Hi there")
    conversations, settings = (page.get_by_role("complementary", name=name) for name in ("Conversations", "Settings of the request"))
    assert not conversations.is_visible() and not settings.is_visible()
    page.get_by_role("button", name="Conversations").click()
    conversations.get_by_role("button", name="New conversation").click()
    assert page.locator("article").count() == 0 and not conversations.is_visible()
    page.get_by_role("button", name="Conversations").click()
    conversations.get_by_role("button", name="Hi there", exact=True).click()
    assert page.locator("article").count() == 2 and not conversations.is_visible()
    button = page.get_by_role("button", name="Settings", exact=True)
    button.click()
    page.get_by_label("Temperature", exact=True).fill("0.5")
    assert web.axe_violations(page) == []
    page.get_by_role("button", name="Close the settings").click()
    assert not settings.is_visible()
    button.press("Enter")
    assert settings.is_visible()
    page.keyboard.press("Escape")
    assert not settings.is_visible() and page.evaluate("document.activeElement.getAttribute('aria-label')") == "Settings"

    for view, shown in (("dashboard", page.get_by_role("region", name="Latencies")), ("requests", page.get_by_role("link", name="Request narrow").first),
                        ("requests/narrow", page.get_by_label("Waterfall"))):
        tab.open(view)
        shown.wait_for()
        assert page.evaluate(inside), view
        assert web.axe_violations(page) == [], view
    page.set_viewport_size({"width": 1280, "height": 740})
    tab.open("chat")
    assert conversations.is_visible() and settings.is_visible()
    tab.close()


def test_where_the_accepted_lengths_lie_adds_up(tab, server):
    page = tab.open("dashboard")
    page.get_by_text("Live", exact=True).wait_for()
    if not page.get_by_role("region", name="Accepted length").is_visible():
        pytest.skip("this server does not draft")
    bars = page.get_by_role("region", name="Accepted length").get_by_role("img")
    counts = [int(part.split(": ")[1]) for part in bars.get_attribute("aria-label").removeprefix("Accepted length: ").split(", ")]
    names = page.get_by_role("region", name="Accepted length").locator(".bars-axis strong").all_inner_texts()
    assert len(names) == len(counts) and "+Inf" not in names
    assert sum(counts) <= server.metric("deepinfer:spec_accept_len_count")
