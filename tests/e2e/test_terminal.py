"""`deepinfer chat` as a person uses it: at a terminal, with keys, colours and commands."""
import base64
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import harness
import pytest

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Chat:
    """The program on a terminal of its own."""

    def __init__(self, folder, *options, columns=100, **environment):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.master, self.output = master, ""
        env = {**os.environ, "HOME": str(folder), "TERM": "xterm-256color", **environment}
        env.pop("XDG_STATE_HOME", None)
        model = [] if "--url" in options else [str(harness.model_dir())]
        command = [str(harness.binary()), "chat", *model, "--temperature", "0", *options]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.wait("/help lists commands")
        self.wait("> ")

    def type(self, keys):
        self.output = ""
        os.write(self.master, keys.encode())

    def wait(self, pattern, seconds=120):
        """What the screen got since the last type(), once it holds the pattern."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.plain()):
            assert time.monotonic() < end, f"no {pattern!r} within {seconds} s in {self.output!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.master, 65536).decode(errors="replace")
                except OSError:  # the other side is closed
                    assert re.search(pattern, self.plain()), self.output
        return self.plain()

    def plain(self):
        lines = re.sub(r"\r+\n", "\n", ANSI.sub("", self.output)).split("\n")
        # Each is redrawn from its start; the last return only places the cursor.
        return "\n".join(([part for part in line.split("\r") if part] or [""])[-1] for line in lines)

    def ask(self, keys, after=r"first after \d+ ms"):
        self.type(keys + "\r")
        return self.wait(f"(?s)(?:{after}).*\n> $")

    def close(self):
        self.type("\x04")
        status = self.process.wait(20)
        os.close(self.master)
        return status


@pytest.fixture
def chat(tmp_path):
    chats = []

    def start(*options, **more):
        chats.append(Chat(tmp_path, *options, **more))
        return chats[-1]

    yield start
    for one in chats:
        if one.process.poll() is None:
            one.process.kill()


def test_an_answer_with_its_figures(chat):
    c = chat()
    text = c.ask("What is 3 times 4?")
    assert "12" in text and re.search(r"\d+ prompt tokens · \d+ tokens", text)
    assert "\x1b[2m" in c.output  # the figures are dimmed
    assert re.search(r"\d+ of \d+ tokens", c.ask("/ctx", r"of \d+ tokens"))
    assert c.close() == 0


def test_editing_keys_and_history(chat, tmp_path):
    c = chat()
    # Typed with a mistake in front that Home and Delete take away, and one word too many that Ctrl-W does.
    c.ask("xWhat is 3 times 5? bogus\x17\x7f\x1b[H\x1b[3~")
    sent = json.loads(c.ask("/raw", r'"role": "assistant"').split('{"model"', 1)[1].join(['{"model"', ""]).splitlines()[0])
    assert sent["messages"][-1]["content"] == "What is 3 times 5?"
    c.type("\x1b[A\x1b[A")
    c.wait("What is 3 times 5")
    c.type("\x15/he\t")
    c.wait("/help")
    c.type("\x03")
    c.wait(r"Ctrl-D or /quit leaves\n> $")  # keys before the prompt meet another mode of the terminal
    assert c.close() == 0
    history = tmp_path / ".local/state/deepinfer/chat_history"
    assert history.read_text().splitlines() == ["What is 3 times 5?", "/raw"]
    assert history.stat().st_mode & 0o077 == 0
    c = chat()
    c.type("\x1b[A\x1b[A")
    c.wait("What is 3 times 5")
    c.process.kill()


def test_several_lines(chat):
    def last_question(c):
        raw = c.ask("/raw", r'"role": "assistant"')
        line = next(line for line in raw.splitlines() if line.startswith('{"model"'))
        return json.loads(line)["messages"][-1]["content"]

    c = chat(columns=4000)
    c.type("one\\\r")
    c.wait(r"\. ")
    c.ask("two")
    assert last_question(c) == "one\ntwo"
    c.type('"""first\r')
    c.wait(r"\. ")
    c.ask('second"""')
    assert last_question(c) == "first\nsecond"
    c.type("\x1b[200~pasted\r\nlines\x1b[201~")
    c.wait("pasted")
    c.ask("")
    assert last_question(c).replace("\n\n", "\n") == "pasted\nlines"


def test_ctrl_c_stops_an_answer_and_not_the_program(chat):
    c = chat("--max-tokens", "4000")
    c.type("Tell me a very long story about a fox and a bear and a wolf.\r")
    c.wait(r"\n[A-Za-z]")
    os.killpg(c.process.pid, signal.SIGINT)
    c.wait(r"stopped\n\n> $")
    c.ask("What is 3 times 4?")
    assert c.close() == 0


def test_answers_in_a_form(chat):
    c = chat()
    c.type('/json {"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}\r')
    c.wait("> $")
    text = c.ask("Give me a person as JSON.")
    answer = json.loads(re.search(r"\{[^{}]*\}", text.split("JSON.", 1)[1])[0])
    assert list(answer) == ["name"]
    c.type("/regex [0-9]{3}-[0-9]{2}\r")
    c.wait("> $")
    assert re.search(r"\n\d{3}-\d{2}\s", c.ask("A number?").replace("\r", ""))
    assert "no schema" in c.ask("/json {oops", "no schema.*")


def test_commands_explain_themselves(chat):
    c = chat()
    assert "/regex EXPRESSION" in c.ask("/?", "Ctrl-D\r?\n?leaves|Ctrl-D leaves|leaves\\.")
    assert "no such command: /nothing" in c.ask("/nothing", "no such command.*")
    assert "there is no question" in c.ask("/retry", "there is no.*")
    c.ask("Hi")
    assert "first after" in c.ask("/retry")
    assert "taken back" in c.ask("/undo", "taken back")
    assert "low, medium, high or max" in c.ask("/effort enormous", "effort is.*")
    assert "from 0 to 2, found hot" in c.ask("/temp hot", "expected a number.*")
    assert "from 0 to 9007199254740992, found -3" in c.ask("/seed -3", "expected a number.*")
    assert "from 1 to 393216, found 0" in c.ask("/max 0", "expected a number.*")


@pytest.mark.release_only
def test_without_colour(chat):
    c = chat(NO_COLOR="1")
    c.ask("What is 3 times 4?")
    assert "\x1b[2m" not in c.output and "\x1b[1m" not in c.output


# ---- with a running server ----

@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    script = [
        {"match": "Kresult", "text": "Two files."},
        {"match": "Ktool", "text": "Look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"bash\">\n<｜DSML｜ parameter name=\"command\" "
                                   "string=\"true\">ls</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"},
        {"match": "Klong", "text": "word " * 2000, "delays_ms": 20},
        {"match": "Kfault", "text": "one two three", "fault": {"kind": "error", "at": 2}},
        {"match": "first question", "text": "first answer"},
        {"text": "ok"},
    ]
    path = harness.write_script(tmp_path_factory.mktemp("remote"), script)
    with harness.scripted_server(path, "--served-model-name", "far,other", "--api-key", "secret:team:inference", "--max-model-len", "4096") as server:
        yield server


def test_a_conversation_with_a_running_server(remote, tmp_path):
    far = Chat(tmp_path, "--url", f"http://127.0.0.1:{remote.port}", "--api-key", "secret")
    assert re.search(r"far, 4096 tokens of context", far.plain())
    assert "first answer" in far.ask("first question")
    far.ask("second")
    far.type("/raw\r")
    assert '"first answer"' in far.wait(r"(?s)\}.*\n> $"), "the conversation goes along"
    assert "status" not in far.ask("Kfault", after="error|fault|fail")
    far.type("Klong\r")
    far.wait("word word")
    os.kill(far.process.pid, signal.SIGINT)
    far.wait(r"(?s)stopped.*\n> $")
    key = {"Authorization": "Bearer secret"}
    harness.wait_until(lambda: json.loads(remote.request("GET", "/load", headers=key)[2])["server_load"] == 0, "the place is free again")
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]))
    far.type(f"/tools {tools}\r")
    far.wait(r"1 tools")
    far.type("Ktool\r")
    assert "bash" in far.wait("result> ")
    assert "Two files." in far.ask("Kresult")
    far.type("/quit\r")
    assert far.process.wait(30) == 0


PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def test_a_picture_goes_with_the_next_question(remote, tmp_path):
    (tmp_path / "a.png").write_bytes(PIXEL)
    (tmp_path / "b.txt").write_text("no picture")
    far = Chat(tmp_path, "--url", f"http://127.0.0.1:{remote.port}", "--api-key", "secret")
    far.type(f"/image {tmp_path}/missing.png\r")
    far.wait("cannot read")
    far.type(f"/image {tmp_path}/b.txt\r")
    far.wait("no PNG, JPEG, WebP or GIF")
    far.type(f"/image {tmp_path}/a.png\r")
    far.wait("1 picture goes with the next question")
    assert "first answer" in far.ask("first question")
    far.type("/raw\r")
    raw = far.wait(r"(?s)\}.*\n> $")
    sent = json.loads(next(line for line in raw.splitlines() if line.startswith('{"model"')))["messages"][0]["content"]
    assert [part["type"] for part in sent] == ["image_url", "text"] and sent[1]["text"] == "first question"
    head, data = sent[0]["image_url"]["url"].split(",")
    assert (head, base64.b64decode(data)) == ("data:image/png;base64", PIXEL)
    far.ask("second")
    far.type("/raw\r")
    raw = far.wait(r"(?s)\}.*\n> $")
    assert json.loads(next(line for line in raw.splitlines() if line.startswith('{"model"')))["messages"][2]["content"] == "second"
    far.type("/quit\r")
    assert far.process.wait(30) == 0


def test_one_question_to_a_running_server(remote):
    def asked(*options, text="first question\n"):
        return subprocess.run([str(harness.binary()), "chat", *options], input=text, capture_output=True, text=True, timeout=60)
    url = f"http://127.0.0.1:{remote.port}"
    assert asked("--url", url, "--api-key", "secret").stdout == "first answer\n"
    assert asked("--url", url, "--api-key", "secret", "--served-model-name", "other").stdout == "first answer\n"
    wrong = asked("--url", url, "--api-key", "wrong")
    assert wrong.returncode == 1 and "401" in wrong.stderr
    wrong = asked("--url", url, "--api-key", "secret", "--served-model-name", "nobody")
    assert wrong.returncode == 1 and "nobody" in wrong.stderr
    assert asked("--url", "gopher://x").returncode == 2
    assert asked("--url", f"http://127.0.0.1:{harness.free_port()}").returncode == 1
