#!/usr/bin/env python3
"""Takes the pictures of docs/web.md: each page of the web interface, light and dark, of the release build with the
bundled model under a minute of load.

    tools/web_shots.py [SECONDS of load]
"""
import os
import pathlib
import random
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv/bin/python"  # has what a browser is driven with
if PYTHON.exists() and pathlib.Path(sys.prefix).resolve() != PYTHON.parents[1].resolve():
    os.execv(PYTHON, [str(PYTHON), *sys.argv])
sys.path.insert(0, str(ROOT / "tests/e2e"))

import harness  # noqa: E402
import web  # noqa: E402

IMAGES = ROOT / "docs/images"
MAX_BYTES = 150_000
QUESTIONS = ["Tell me a story.", "What is 3 times 4?", "Name three colours.", "Tell me a long story about a fox.", "How do I boil an egg?"]


class Load(threading.Thread):
    """Clients that come and go, with questions of different lengths and a mistake now and then."""

    def __init__(self, server, number):
        super().__init__(daemon=True)
        self.server, self.random, self.stopping = server, random.Random(number), threading.Event()

    def run(self):
        while not self.stopping.wait(self.random.expovariate(3)):
            body = self.server.body(self.random.choice(QUESTIONS), max_tokens=self.random.choice([20, 60, 200]), temperature=1)
            if self.random.random() < 0.05:
                body["temperature"] = 7
            self.server.request("POST", harness.CHAT, body)


def picture(page, name):
    page.mouse.move(0, 0)  # nothing is pointed at
    path = IMAGES / f"web-{name}.png"
    page.screenshot(path=path, animations="disabled", caret="hide")
    size = path.stat().st_size
    assert size <= MAX_BYTES, f"{path}: {size} bytes, at most {MAX_BYTES}"
    print(f"{path.relative_to(ROOT)} {size} bytes")


def conversation(page, with_schema):
    page.get_by_label("Temperature", exact=True).fill("0")
    for question in ("What is 3 times 4?", "Tell me a story about a fox."):
        ask(page, question)
    if with_schema:
        page.get_by_label("Format").select_option("json_schema")
        ask(page, "Give me a person as JSON: Ann, 34 years old.")
    page.get_by_role("log").evaluate("(node) => node.scrollTo(0, 1e6)")


def ask(page, text):
    answers = page.locator("article.assistant").count()
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")
    page.locator("article.assistant").nth(answers).locator(".foot, .notice").first.wait_for()


def shoot(browser, server, scheme):
    tab = web.Tab(browser, server, color_scheme=scheme, viewport={"width": 1240, "height": 780})
    page = tab.open()
    page.get_by_text("Ready", exact=True).wait_for()
    picture(page, f"empty-{scheme}")
    conversation(page, server.json("GET", "/v1/models")["data"][0]["capabilities"]["json_schema"])
    picture(page, f"chat-{scheme}")
    tab.open("dashboard").get_by_text("Live", exact=True).wait_for()
    page.get_by_role("button", name="1 min").click()
    page.wait_for_timeout(2500)
    picture(page, f"dashboard-{scheme}")
    page.locator("#view-dashboard").evaluate("(node) => node.scrollTo(0, 1e6)")
    picture(page, f"dashboard-end-{scheme}")
    tab.open("requests").locator(".table tbody tr").first.wait_for()
    picture(page, f"requests-{scheme}")
    tab.open("requests/look-at-me").get_by_label("Waterfall").wait_for()
    picture(page, f"timeline-{scheme}")
    tab.close()
    if scheme == "light":
        shoot_narrow(browser, server)


def shoot_narrow(browser, server):
    tab = web.Tab(browser, server, viewport={"width": 390, "height": 780})
    page = tab.open()
    page.get_by_text("Ready", exact=True).wait_for()
    ask(page, "Tell me a story about a fox.")
    picture(page, "narrow-chat")
    page.get_by_role("button", name="Settings", exact=True).click()
    picture(page, "narrow-settings")
    tab.open("dashboard").get_by_text("Live", exact=True).wait_for()
    page.wait_for_timeout(1500)
    picture(page, "narrow-dashboard")
    tab.close()


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 70
    if web.missing():
        sys.exit(f"web_shots: {web.missing()}")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, web.launched() as browser:
        server = harness.Server(pathlib.Path(folder))
        load = [Load(server, i) for i in range(4)]
        try:
            for client in load:
                client.start()
            load[0].join(seconds)
            server.request("POST", harness.CHAT, server.body("Tell me a long story about a fox.", max_tokens=200), {"X-Request-Id": "look-at-me"})
            for scheme in ("light", "dark"):
                shoot(browser, server, scheme)
        finally:
            for client in load:
                client.stopping.set()
            for client in load:
                client.join()
            server.stop()


if __name__ == "__main__":
    main()
