"""DeepSeek V4.1 chat template (recipe.md §2.1-2.7) for the training text.

A conversation is a dict:
  messages          list of {role, content, ...}; roles system, user, assistant, tool,
                    latest_reminder. Assistant messages may have `reasoning_content`,
                    `tool_calls` ([{name, arguments}] where arguments is a dict or a JSON string)
                    and `prefix`; tool messages may have `tool_call_id`; system messages `tools`.
  thinking          bool
  tools             optional list of {name, description, parameters[, defer_loading]}
  tool_choice       optional auto | none | required
  effort            optional low | high | xhigh | max
  response_schema   optional JSON schema (response format json_schema)
  json_object       optional bool (response format json_object)

`render_prompt` gives the text the server would feed the model and the byte ranges of its special
tokens; `render_training` gives segments with loss weights, including the answers.
"""
from __future__ import annotations

import json
import re
from typing import NamedTuple

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
THINK = "<think>"
THINK_END = "</think>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
REMINDER = "<｜latest_reminder｜>"
DSML = "｜DSML｜"
GROUNDING = ("<｜ref｜>", "<｜/ref｜>", "<｜box｜>", "<｜/box｜>",
             "<｜point｜>", "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>")
_GROUNDING_RE = re.compile("(" + "|".join(re.escape(g) for g in GROUNDING) + ")")

EFFORT = {None: 75, "none": 75, "low": 50, "high": 75, "xhigh": 75, "max": 100}
SCHEMA_HEAD = ("\n\n## Response Format:\n\n"
               "You MUST strictly adhere to the following schema to reply:\n")


class Segment(NamedTuple):
    """One stretch of the rendered text: plain text or exactly one special token."""
    text: str
    special: bool
    trained: bool


# ---------------------------------------------------------------------------- JSON, §2.2
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f",
            "\r": "\\r"}
_NEEDS_ESCAPE = re.compile(r'["\\\x00-\x1f]')


def _string(text: str) -> str:
    return '"' + _NEEDS_ESCAPE.sub(
        lambda m: _ESCAPES.get(m.group(), "\\u%04x" % ord(m.group())), text) + '"'


def _float(value: float) -> str:
    """Shortest round trip in the layout of §2.2, with the python_style exponent rules."""
    if value != value or value in (float("inf"), float("-inf")):
        return "null"
    sign = "-" if str(value).startswith("-") else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        return sign + "0.0"
    if -5 < point <= 0:
        text = "0." + "0" * -point + digits
    elif 0 < point <= 16:
        text = digits[:point].ljust(point, "0") + "." + (digits[point:] or "0")
    else:
        text = digits[0] + ("." + digits[1:] if digits[1:] else "") + "e%+d" % (point - 1)
    if "e" not in text:
        match = re.fullmatch(r"0\.(0{4,})(\d)(\d*)", text)
        if match:
            zeros, first, rest = match.groups()
            text = first + ("." + rest if rest else "") + "e-%02d" % (len(zeros) + 1)
    elif re.search(r"e-\d$", text):
        text = text[:-1] + "0" + text[-1]
    return sign + text


def _number(text: str) -> int | float:
    value = int(text)
    return value if -2**63 <= value < 2**64 else float(value)


def parse_json(text: str):
    """JSON with the integer range of §2.2 (outside i64/u64 a number becomes a float)."""
    return json.loads(text, parse_int=_number)


def python_style(value) -> str:
    """The V4.1 writer: `, ` and `: ` separators, raw non-ASCII, key order kept."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(value) if -2**63 <= value < 2**64 else _float(float(value))
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, dict):
        return "{" + ", ".join(_string(k) + ": " + python_style(v) for k, v in value.items()) + "}"
    return "[" + ", ".join(python_style(v) for v in value) + "]"


# ---------------------------------------------------------------------------- tools, §2.3-2.4
_TOOL_TEXT = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
_TOOL_END = ("\n\nYou MUST strictly follow the above defined tool name and parameter schemas to "
             "invoke tool calls.\n")
_TOOL_PIECES = [(piece, piece in (DSML, THINK, THINK_END)) for piece in
                re.split(f"({DSML}|{THINK}|{THINK_END})", _TOOL_TEXT)]


def definition(tool: dict) -> str:
    return python_style({"name": tool["name"], "description": tool.get("description") or "",
                         "parameters": tool["parameters"]})


class _Writer:
    """Collects segments; adjacent plain text of equal weight is joined."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.trained = False

    def plain(self, text: str) -> None:
        if not text:
            return
        last = self.segments[-1] if self.segments else None
        if last and not last.special and last.trained == self.trained:
            self.segments[-1] = Segment(last.text + text, False, self.trained)
        else:
            self.segments.append(Segment(text, False, self.trained))

    def special(self, token: str) -> None:
        self.segments.append(Segment(token, True, self.trained))

    def grounded(self, text: str) -> None:
        """Assistant text rule of §2.1."""
        if "<｜" not in text:
            self.plain(text)
            return
        for i, piece in enumerate(_GROUNDING_RE.split(text)):
            (self.special if i % 2 else self.plain)(piece)

    def tool_prompt(self, tools: list[dict]) -> None:
        for piece, special in _TOOL_PIECES:
            (self.special if special else self.plain)(piece)
        self.plain("\n".join(definition(t) for t in tools if not t.get("defer_loading")))
        self.plain(_TOOL_END)

    def calls(self, calls: list[dict]) -> None:
        if not calls:
            return
        self.plain("\n\n<")
        self.special(DSML)
        self.plain(" calls>\n")
        for i, call in enumerate(calls):
            self.plain("\n<" if i else "<")
            self.special(DSML)
            self.plain(f" invoke name=\"{call['name']}\">\n")
            for j, (key, value) in enumerate(_arguments(call).items()):
                string = isinstance(value, str)
                self.plain("\n<" if j else "<")
                self.special(DSML)
                self.plain(f" parameter name=\"{key}\" string=\"{'true' if string else 'false'}\">"
                           f"{value if string else python_style(value)}</")
                self.special(DSML)
                self.plain(" parameter>")
            self.plain("\n</")
            self.special(DSML)
            self.plain(" invoke>")
        self.plain("\n</")
        self.special(DSML)
        self.plain(" calls>")


def _arguments(call: dict) -> dict:
    raw = call["arguments"]
    if not isinstance(raw, str):
        return raw
    try:
        value = parse_json(raw)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": raw}


# ---------------------------------------------------------------------------- template, §2.6
def _normalize(messages: list[dict]) -> list[dict]:
    merged: list[dict] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last and message["role"] == last["role"] == "user":
            merged[-1] = dict(last, content=last["content"] + "\n\n" + message["content"])
        elif last and message["role"] == last["role"] == "latest_reminder":
            continue
        else:
            merged.append(message)
    order: dict[str, int] | None = None
    i = 0
    while i < len(merged):
        role = merged[i]["role"]
        if role == "assistant" and merged[i].get("tool_calls"):
            order = {}
            for n, call in enumerate(merged[i]["tool_calls"]):
                order.setdefault(call.get("id"), n)
        if role not in ("user", "tool"):
            i += 1
            continue
        end = i
        while end < len(merged) and merged[end]["role"] in ("user", "tool"):
            end += 1
        slots = [k for k in range(i, end)
                 if merged[k]["role"] == "tool" and merged[k].get("tool_call_id") is not None]
        if len(slots) > 1 and order is not None:
            ranked = sorted((merged[k] for k in slots),
                            key=lambda m: order.get(m["tool_call_id"], 0))
            for k, message in zip(slots, ranked):
                merged[k] = message
        i = end
    return merged


def _render(conv: dict, generate: bool, trained: bool) -> list[Segment]:
    w = _Writer()
    messages = _normalize(conv["messages"])
    thinking = bool(conv["thinking"])
    tools = conv.get("tools") or []
    choice = conv.get("tool_choice", "auto")
    tools_on = bool(tools) and choice != "none"
    schema = conv.get("response_schema")
    if conv.get("json_object"):
        schema = {"type": "json_object"}
    w.special(BOS)
    if (tools_on or schema is not None) and (not messages or messages[0]["role"] != "system"):
        messages = [{"role": "system", "content": ""}] + messages
    last_answer = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    previous = None
    for i, message in enumerate(messages):
        role = message["role"]
        content = message["content"]
        if i == 0 and (thinking or role == "system"):
            w.special(SYSTEM)
            if thinking:
                w.plain(f"Reasoning Effort: {EFFORT[conv.get('effort')]} (range 1-100, the higher "
                        "the value, the more thorough the reasoning)\n\n")
        if role == "system":
            if i:
                w.special(SYSTEM)
            w.plain(content)
            if i == 0 and tools_on:
                w.plain("\n\n")
                w.tool_prompt(tools)
            if i == 0 and schema is not None:
                w.plain(SCHEMA_HEAD + python_style(schema))
            if message.get("tools"):
                w.plain("\n\n### Updated Tool Schemas\n\n"
                        + "\n".join(definition(t) for t in message["tools"]))
        elif role in ("user", "tool"):
            if previous in ("user", "tool"):
                w.plain("\n\n")
            else:
                w.special(USER)
            w.plain(content if role == "user" else f"<tool_result>{content}</tool_result>")
        elif role == "latest_reminder":
            w.special(REMINDER)
            w.plain(content)
        elif role == "assistant":
            train_this = trained and (tools_on or not thinking or i == last_answer)
            _assistant(w, message, thinking, i, train_this,
                       keep=tools_on or (trained and i == last_answer))
        else:
            raise ValueError(f"messages[{i}].role: expected system, user, assistant, tool or "
                             f"latest_reminder, found {role!r}")
        previous = role
    if generate and not (messages and messages[-1].get("prefix")):
        w.special(ASSISTANT)
        w.special(THINK if thinking else THINK_END)
    if generate and tools_on and choice == "required":
        w.plain("\n\n<")
        w.special(DSML)
        w.plain(" calls>\n")
    return w.segments


def _assistant(w: _Writer, message: dict, thinking: bool, index: int, trained: bool,
               keep: bool) -> None:
    """One assistant message; `keep` = its reasoning stays (tools on, or the trained answer)."""
    prefix = bool(message.get("prefix"))
    content = message["content"] or ""
    calls = message.get("tool_calls") or []
    show = thinking and index > 0 and (keep or prefix)
    reasoning = (message.get("reasoning_content") or "") if show else ""
    close = show and not (prefix and not content and not calls)
    w.special(ASSISTANT)
    w.special(THINK if reasoning or close or (show and prefix) else THINK_END)
    w.trained = trained
    w.grounded(reasoning)
    if close:
        w.special(THINK_END)
    w.grounded(content)
    w.calls(calls)
    if not prefix:
        w.special(EOS)
    w.trained = False


def render_training(conv: dict) -> list[Segment]:
    """Whole conversation. Trained: assistant text, reasoning, `</think>`, calls and EOS; in a
    thinking conversation without tools only the last answer, with its reasoning, because the
    template drops the earlier reasoning (tiny-model.md §4)."""
    return _render(conv, generate=False, trained=True)


def render_prompt(conv: dict) -> tuple[str, list[list[int]]]:
    """Prompt text for the next answer and the UTF-8 byte ranges of its special tokens."""
    parts, ranges, at = [], [], 0
    for segment in _render(conv, generate=True, trained=False):
        size = len(segment.text.encode())
        if segment.special:
            ranges.append([at, at + size])
        at += size
        parts.append(segment.text)
    return "".join(parts), ranges


def prompt_segments(conv: dict) -> list[Segment]:
    return _render(conv, generate=True, trained=False)
