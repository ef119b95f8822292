"""Offline batches: every line answered once, whatever happens in between."""
import json
import signal
import subprocess

import pytest
from harness import binary, model_dir, wait_until

LINES = 60


def request_line(number, **fields):
    body = {"model": "deepinfer-tiny", "messages": [{"role": "user", "content": f"What is {number} plus 1?"}], "max_tokens": 24,
            "temperature": 0, "thinking": {"type": "disabled"}, **fields}
    return {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


@pytest.fixture
def served_name():
    """A batch names the model as the server would; any name that the program accepts will do."""
    return "deepinfer-tiny"


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def command(source, target, *options):
    return [str(binary()), "generate", str(source), str(target), str(model_dir()), *options]


def generate(source, target, *options):
    return subprocess.run(command(source, target, *options), capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)


def read_lines(path):
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def contents(path):
    lines = read_lines(path)
    found = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}
    assert len(found) == len(lines), "a line was answered twice"
    return found


def test_a_batch_in_the_form_of_openai(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, [request_line(i) for i in range(8)])
    result = generate(source, target)
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stderr, "a progress bar is for terminals"
    lines = read_lines(target)
    assert {line["custom_id"] for line in lines} == {f"request-{i}" for i in range(8)}
    for line in lines:
        assert line["error"] is None and line["id"]
        assert line["response"]["status_code"] == 200 and line["response"]["request_id"]
        assert line["response"]["body"]["object"] == "chat.completion"
        assert line["response"]["body"]["choices"][0]["message"]["content"]


def test_bare_bodies_are_known_by_their_line_number(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, [request_line(i)["body"] for i in range(3)])
    assert generate(source, target).returncode == 0
    assert len({line["custom_id"] for line in read_lines(target)}) == 3


def test_a_bad_line_fails_alone(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bad = request_line(1, temperature="hot")
    source.write_text(json.dumps(request_line(0)) + "\n" + json.dumps(bad) + "\n{broken\n" + json.dumps(request_line(3)) + "\n")
    result = generate(source, target)
    lines = {line["custom_id"]: line for line in read_lines(target)}
    assert len(lines) == 4, result.stderr
    assert lines["request-0"]["response"]["status_code"] == 200 and lines["request-3"]["response"]["status_code"] == 200
    failed = lines["request-1"]
    response = failed["response"] or {}
    assert response.get("status_code", 400) == 400
    assert "temperature" in json.dumps(failed)


def test_a_finished_batch_is_not_done_again(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, [request_line(i) for i in range(4)])
    assert generate(source, target).returncode == 0
    before = target.read_bytes()
    assert generate(source, target).returncode == 0
    assert target.read_bytes() == before
    write_lines(source, [request_line(i) for i in range(6)])
    assert generate(source, target).returncode == 0
    assert target.read_bytes().startswith(before) and len(contents(target)) == 6


def test_a_torn_last_line_is_cut_off_and_done_again(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, [request_line(i) for i in range(4)])
    assert generate(source, target).returncode == 0
    whole = contents(target)
    target.write_bytes(target.read_bytes()[:-20])
    assert generate(source, target).returncode == 0
    assert contents(target) == whole


@pytest.mark.release_only
def test_a_killed_batch_goes_on_without_losing_or_repeating_a_line(tmp_path):
    source, target, straight = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "straight.jsonl"
    write_lines(source, [request_line(i) for i in range(LINES)])
    assert generate(source, straight).returncode == 0
    expected = contents(straight)
    assert len(expected) == LINES
    kills = 0
    for wanted in (1, LINES // 4, LINES // 2, LINES - 5):
        process = subprocess.Popen(command(source, target), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: process.poll() is not None or (target.exists() and target.read_bytes().count(b"\n") >= wanted),
                   f"{wanted} lines", 300)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 2, "the batch was over before it could be killed"
    assert generate(source, target).returncode == 0
    assert contents(target) == expected
