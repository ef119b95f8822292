"""Scores of one answer (tiny-model.md §11): exact equality of the text, of the tool names, the
parameters, their types and their order; validity of JSON and of tool calls counted apart. Thinking
text is never compared."""
from __future__ import annotations

import json
from typing import NamedTuple

import jsonschema


class Score(NamedTuple):
    exact: bool | None        # None: the item has no single right wording
    json_valid: bool | None   # None: no JSON object was asked for
    tool_valid: bool | None   # None: no tools are declared
    detail: str = ""          # why an answer is not exact, for the report


def ordered(value):
    """A comparable form that keeps key order and types: 1, 1.0 and true differ."""
    if isinstance(value, dict):
        return ("object", tuple((k, ordered(v)) for k, v in value.items()))
    if isinstance(value, list):
        return ("array", tuple(ordered(v) for v in value))
    return (type(value).__name__, value)


def reply_calls(message: dict) -> list[tuple[str, object]]:
    """(name, arguments) of a response message; arguments that are no JSON stay a string."""
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function", {})
        raw = function.get("arguments", "")
        try:
            arguments = json.loads(raw) if isinstance(raw, str) else raw
        except ValueError:
            arguments = raw
        calls.append((function.get("name", ""), arguments))
    return calls


def _valid(value, schema) -> bool:
    try:
        jsonschema.validate(value, schema)
    except jsonschema.ValidationError:
        return False
    return True


def _json_object(text: str) -> dict | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _wants_json(item: dict) -> bool:
    answer = item["answer"].get("content") or ""
    return item["family"].startswith("json") and _json_object(answer) is not None


def _json_score(item: dict, text: str) -> bool | None:
    if not _wants_json(item):
        return None
    value = _json_object(text)
    if value is None:
        return False
    schema = item.get("response_schema")
    return schema is None or _valid(value, schema)


def _tool_score(item: dict, calls: list[tuple[str, object]]) -> bool | None:
    """Calls where calls are due, none where none is, every call declared and fitting its schema."""
    if not item.get("tools"):
        return None
    if bool(calls) != bool(item["answer"].get("tool_calls")):
        return False
    schemas = {t["name"]: t["parameters"] for t in item["tools"]}
    return all(name in schemas and isinstance(arguments, dict) and _valid(arguments, schemas[name])
               for name, arguments in calls)


def score(item: dict, message: dict) -> Score:
    """Scores the response message of one item."""
    text = message.get("content") or ""
    calls = reply_calls(message)
    json_valid = _json_score(item, text)
    tool_valid = _tool_score(item, calls)
    if item.get("match") != "exact":
        return Score(None, json_valid, tool_valid)
    expected = item["answer"]
    wanted = [(c["name"], ordered(c["arguments"])) for c in expected.get("tool_calls") or []]
    got = [(name, ordered(arguments)) for name, arguments in calls]
    if wanted != got:
        return Score(False, json_valid, tool_valid, "tool calls")
    if text != (expected.get("content") or ""):
        return Score(False, json_valid, tool_valid, "text")
    return Score(True, json_valid, tool_valid)
