"""A headless Chromium on the server's web page. What is missing is told as the reason of a skip."""
import contextlib
import os
import pathlib
import shutil

# Nothing but the server is reachable: the page must not need anything else.
FLAGS = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-gpu"]


def missing():
    """Why the tests of the page cannot run here; None when they can."""
    try:
        import axe_playwright_python  # noqa: F401
        import playwright  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed (tools/install.sh --test)"
    if chromium() is None:
        return "no Chromium (tools/install.sh --test installs Debian's chromium)"
    return None


def chromium():
    return os.environ.get("DEEPINFER_CHROMIUM") or shutil.which("chromium")


@contextlib.contextmanager
def launched():
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


class Tab:
    """A page with what went wrong in it: errors of the console, exceptions, requests to anyone but the server."""

    def __init__(self, browser, server, **options):
        self.server = server
        self.origin = f"http://127.0.0.1:{server.port}"
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, "accept_downloads": True, **options})
        self.context.set_default_timeout(120_000)  # a loaded machine is slow, and nothing here is about speed
        self.page = self.context.new_page()
        self.errors, self.elsewhere = [], []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", self.on_request)

    def on_request(self, request):
        if not request.url.startswith((self.origin + "/", "data:", "blob:")):
            self.elsewhere.append(request.url)

    def open(self, view="chat"):
        self.page.goto(f"{self.origin}/#{view}")
        return self.page

    def close(self, expect_errors=False):
        self.context.close()
        assert self.elsewhere == []
        assert expect_errors or self.errors == []


def axe_violations(page, rules=None):
    """What axe-core finds, one line per rule and element; of all its rules when none are named."""
    import axe_playwright_python
    source = (pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    if not page.evaluate("'axe' in window"):
        page.evaluate(source + "\n;0")
    only = {"runOnly": {"type": "rule", "values": rules}} if rules else {}
    found = page.evaluate("(options) => axe.run(document, options)", {"resultTypes": ["violations"], **only})
    return [f"{v['id']} ({v['impact']}): {node['html'][:160]} — {(node['any'] or node['all'] or node['none'] or [{}])[0].get('message', '')}"
            for v in found["violations"] for node in v["nodes"]]
