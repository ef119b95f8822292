"""Requests of the three APIs and model outputs made at random, for comparing the codec with the reference package: mostly
valid, with any combination of fields, and a few members replaced by something that does not belong there.

The file is long because the makers of the three APIs share their parts and vocabulary."""
import base64
import copy
import json

MODELS = ["DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"]
WORDS = ["", " ", "\n", "\n\n", "hello", "world.", "你好，世界", "ありがとう", "한국어", "naïve", "😀", "👩‍💻", "\u0000", "\u007f", "\u2028", "\ufeff",
         "<think>", "</think>", "<｜User｜>", "<｜Assistant｜>", "<｜image｜>", "｜DSML｜", "<｜DSML｜ calls>", "</｜DSML｜ calls>",
         "<tool_result>", "</tool_result>", "<｜ref｜>a<｜/ref｜>", "<｜box｜>[[1,2]]<｜/box｜>", "<｜point｜>", "<｜/polygon｜>", "<｜ref｜><｜ref｜>",
         "json", "JSON", "{\"a\": 1}", "[1]", "\"q\"", "\\", "\t", "\r\n", "  ", "1234567", "3.14", "½", "&amp;", "<b>", "x-anthropic-billing-header: a",
         "You are", "X-Anthropic-Billing-Header", "<image_resize_notice>", "</image_resize_notice>", "**bold**", "```json\n", "don't"]
PNG = base64.b64encode(bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")).decode()
URLS = ["https://example.com/a.png", "HTTP://x", "http" + "s" * 3, "https://e.com/" + "a" * 8178, "https://e.com/" + "a" * 8179, "ftp://x/a.png", "",
        "file:///etc/passwd", "data:image/png;base64," + PNG, "data:image/jpg;base64,QUJD", "data:image/jpeg;base64,QUJ", "data:image/gif;base64,QUJDRA==",
        "data:image/webp;base64,QUJDRA=", "data:image/bmp;base64,QUJD", "data:image/png;base64,!!!!", "data:image/png;base64,", "data:;base64,QUJD",
        "data:image/png,QUJD", "data:IMAGE/PNG;base64,QUJD", "data:image/png;charset=x;base64,Q U J D", "data:text/plain;base64,QUJD",
        "data: image/png ;base64,QUJD", "DATA:image/png;base64,QUJD", "data:image/png;base64,QUJDR", "data:image/png;base64,Q%55JD",
        "data:image/png;base64 ,QUJD", "data:image/svg+xml;base64,QUJD", "base64,QUJD", "data:image/png;BASE64,QUJD", "data:image/png;base64,QUJD#x",
        "data:image/png;base64,QU=JD", "data:image/png;base64,QUJDRA===", "data:image/png;base64,\nQUJD\n", "data:application/pdf;base64,QUJD"]
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]
ODD = [None, True, False, 0, 1, -1, 2, 20, 21, 255, 256, 1.0, 1.5, -0.0, 1e400, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -2**63,
       -2**63 - 1, 1e-7, 0.95, "", "x", "auto", "none", "required", "text", "function", "user", "tool", "json_object", [], {}, [[]], [None], [""], ["x"], {"type": "text"},
       {"type": "text", "text": "t"}, {"type": "function"}, {"type": None}, {"": None}, [1], ["a", 1], {"name": "x"}, "low", "enabled", "web_search", "custom", "apply_patch"]


def chance(rng, share):
    return rng.random() < share


def text(rng, least=0):
    return "".join(rng.choice(WORDS) + rng.choice(["", " "]) for _ in range(rng.randint(least, 5)))


def value(rng, depth=0):
    kind = rng.randint(0, 9 if depth < 3 else 6)
    if kind <= 2:
        return text(rng)
    if kind == 3:
        return rng.choice([0, 1, -5, 2**63, 2**64, 2**70, -2**63, 123456789012345678])
    if kind == 4:
        return rng.choice([1.0, 1e5, 1e15, 1e16, 1.5e300, 1e-5, 1e-6, 9.9e-5, 1e-7, -1e-5, 5e-324, -0.0, 0.1, 123.456e-9, rng.random() * 10 ** rng.randint(-12, 20)])
    if kind <= 6:
        return rng.choice([True, False, None])
    if kind == 7:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {text(rng): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def name(rng):
    return rng.choice(["f", "get_weather", "search-web_2", "a" * 128, "_x", "x_", "f1", "f", "g", "ns__f", "tool_search", "apply_patch"] +
                      (["a" * 129, "", "a b", "né"] if chance(rng, 0.03) else []))


def schema(rng, strict, depth=0):
    """An object schema; with strict mostly within the official subset."""
    properties = {rng.choice("abcdefgh") + text(rng)[:2]: node(rng, strict, depth + 1) for _ in range(rng.randint(0 if depth == 0 else 1, 3))}
    out = {"type": "object", "properties": properties}
    if chance(rng, 0.6):
        out["required"] = list(properties) if strict or chance(rng, 0.5) else list(properties)[:1]
    if chance(rng, 0.5):
        out["additionalProperties"] = False if strict or chance(rng, 0.5) else rng.choice([True, {}, {"type": "string"}])
    if chance(rng, 0.3):
        out["description"] = text(rng)
    if chance(rng, 0.07):
        out[rng.choice(["title", "$comment", "x-extra", "$defs", "$def", "definitions", "examples"])] = rng.choice(
            [{"n": {"type": "string"}}, {"n": schema(rng, strict, 3)}]) if chance(rng, 0.7) else value(rng)
    items = list(out.items())
    if chance(rng, 0.4):
        rng.shuffle(items)
    return dict(items)


def node(rng, strict, depth):
    kinds = ["string", "number", "integer", "boolean", "null"] + (["object", "array", "anyOf", "types", "$ref"] if depth < 4 else [])
    kind = rng.choice(kinds)
    out = {"type": kind}
    if kind == "object":
        return schema(rng, strict, depth)
    if kind == "array":
        out["items"] = node(rng, strict, depth + 1)
        if chance(rng, 0.2):
            out[rng.choice(["minItems", "maxItems", "uniqueItems"])] = rng.choice([0, 1, 5])
    elif kind == "anyOf":
        out = {"anyOf": [node(rng, strict, depth + 1) for _ in range(rng.randint(1, 3))]}
    elif kind == "types":
        out = {"type": rng.sample(["string", "number", "integer", "boolean", "null"], rng.randint(1, 3))}
    elif kind == "$ref":
        return {"$ref": rng.choice(["#"] * 9 + ["#/$defs/n", "#/$def/n", "#/definitions/n"])}
    elif kind == "string":
        for key, values in (("enum", [["a"], ["a", "b"], []]), ("pattern", ["^a+$", "[", ""]), ("format", ["email", "hostname", "ipv4", "ipv6", "uuid", "date"]),
                            ("minLength", [0, 3]), ("const", ["x"])):
            if chance(rng, 0.2):
                out[key] = rng.choice(values)
    elif kind in ("number", "integer"):
        for key in ("const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"):
            if chance(rng, 0.15):
                number = rng.choice([0, 1, 5, -3, 10**20, 2**63] if kind == "integer" else [0, 1.5, -2, 1e30, 0.00001])
                out[key] = [number] if key == "enum" else number
    if chance(rng, 0.3):
        out["description"] = text(rng)
    return out


def function(rng, strict):
    out = {"name": name(rng)}
    if chance(rng, 0.7):
        out["description"] = rng.choice([text(rng), text(rng), None])
    if chance(rng, 0.85):
        out["parameters"] = schema(rng, strict)
        if chance(rng, 0.04):
            out["parameters"] = rng.choice([None, True, {}, {"type": "array"}, {"type": ["object"]}, {"type": "object", "properties": 5}, [], "x",
                                            {"type": "object", "required": [1]}, {"type": "objekt"}])
    if strict or chance(rng, 0.2):
        out["strict"] = strict if chance(rng, 0.95) else rng.choice([True, False, None])
    items = list(out.items())
    if chance(rng, 0.2):
        rng.shuffle(items)
    return dict(items)


def functions(rng):
    strict = chance(rng, 0.3)
    made = [function(rng, strict) for _ in range(rng.randint(0, 3))]
    if chance(rng, 0.9):  # mostly without duplicates
        made = list({tool["name"]: tool for tool in made}.values())
    return made


def maybe(rng, out, share, **members):
    for key, values in members.items():
        if chance(rng, share):
            out[key] = rng.choice(values)


def sampling(rng, out, limit):
    maybe(rng, out, 0.12, temperature=[0, 1, 2, 0.7, 2.1, -0.1, None, 1e-9], top_p=[0, 1, 0.5, 0.95, 0.97, 1.1, 1e-40, None], top_logprobs=[0, 5, 20, 21, None],
          **{limit: [1, 0, 100, 393216, 393217, 2**32 - 1, None]})


def arguments(rng):
    if chance(rng, 0.15):
        return rng.choice(["", "x", "[1]", "{", "{} ", " {}", "{}x", "null", "\"s\"", "{\"a\": 1, \"b\": 2, \"a\": 3}", "{\"a\": 1e400}", "{\"\\ud800\": 1}", "{\"a\": 01}",
                           "{\"a\": " + "[" * 130 + "]" * 130 + "}", "{\"a\": -0}", "{\"a\": 1E+2, \"b\": 1e-09}"])
    return json.dumps({text(rng): value(rng) for _ in range(rng.randint(0, 3))}, ensure_ascii=chance(rng, 0.5))


def chat_content(rng):
    if chance(rng, 0.6):
        return text(rng)
    parts = []
    for _ in range(rng.randint(0, 3)):
        kind = rng.random()
        if kind < 0.7:
            parts.append({"type": "text", "text": text(rng)})
        elif kind < 0.85:
            image = {"url": rng.choice(URLS)} if chance(rng, 0.3) else {"url": "data:image/png;base64," + PNG}
            maybe(rng, image, 0.3, detail=["low", "high", "original", "auto", None])
            parts.append({"type": "image_url", "image_url": image})
        else:
            file = {"type": "file", "file_data": rng.choice(URLS) if chance(rng, 0.3) else "data:image/png;base64," + PNG}
            maybe(rng, file, 0.05, file_id=["file-1", ""], filename=["a.png", ""])
            if chance(rng, 0.05):
                file.pop("file_data")
            parts.append(file)
    return parts


def call_id(rng, used):
    made = rng.choice(["call_%02d_" % rng.randint(0, 12), "call_00_ET_", "call_100_", "c", "", "ET", "call_0ET"] if chance(rng, 0.98) else ["né"]) + str(rng.randint(0, 99))
    if made in used and chance(rng, 0.9):
        return call_id(rng, used)
    used.append(made)
    return made


def chat(rng):
    messages = []
    for _ in range(rng.randint(1, 6)):
        role = rng.choice(["system", "user", "user", "user", "assistant", "assistant", "calls", "latest_reminder"])
        if role == "calls":
            used = []
            calls = [{"id": call_id(rng, used), "type": "function", "function": {"name": name(rng), "arguments": arguments(rng)}} for _ in range(rng.randint(1, 3))]
            message = {"role": "assistant", "tool_calls": calls}
            maybe(rng, message, 0.5, content=[text(rng), None, "", chat_content(rng)])
            maybe(rng, message, 0.5, reasoning_content=[text(rng), "", None])
            messages.append(message)
            results = [{"role": "tool", "tool_call_id": call["id"], "content": chat_content(rng)} for call in calls]
            rng.shuffle(results)
            if chance(rng, 0.05):
                results = rng.choice([results[:-1], results + results[:1], results + [{"role": "user", "content": "x"}] + results])
            messages += results
            continue
        message = {"role": role, "content": text(rng) if role == "latest_reminder" else chat_content(rng)}
        if role == "assistant":
            maybe(rng, message, 0.5, reasoning_content=[text(rng), "", None])
            maybe(rng, message, 0.02, tool_calls=[[], None], content=[None])
        maybe(rng, message, 0.1, name=["n", None])
        messages.append(message)
    if chance(rng, 0.15):
        last = {"role": "assistant", "content": rng.choice([text(rng), "", None, []]), "prefix": rng.choice([True, True, False, None])}
        maybe(rng, last, 0.5, reasoning_content=[text(rng), "", None])
        messages.append(last)
    body = {"model": rng.choice(MODELS), "messages": messages}
    sampling(rng, body, "max_tokens")
    if chance(rng, 0.5):
        body["tools"] = [{"type": "function", "function": tool} for tool in functions(rng)]
    maybe(rng, body, 0.1, frequency_penalty=[0, 2, -2, 2.1, None], presence_penalty=[0, 2, -2.1, 1], n=[1, 2, 0, None], seed=[0, 5, 2**63 - 1, 2**63],
          logprobs=[True, False, None], stop=["x", "", ["a", "\n"], [], ["a", ""], ["s"] * 17, ["s"] * 16, None, ["<", "<｜"]], stream=[True, False, None],
          parallel_tool_calls=[True, False], user=["u"], max_completion_tokens=[5, "x"])
    maybe(rng, body, 0.4 if body.get("stream") else 0.01, stream_options=[{"include_usage": True}, {}, None])
    maybe(rng, body, 0.3, thinking=[{"type": "enabled"}, {"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 5}, None],
          reasoning_effort=EFFORTS + [None])
    if chance(rng, 0.25):
        body["response_format"] = response_format(rng)
    if chance(rng, 0.3):
        body["tool_choice"] = rng.choice(["auto", "none", "required", {"type": "function", "function": {"name": name(rng)}}, None])
        if body["tool_choice"] not in ("auto", "none", None) and chance(rng, 0.7):
            body["thinking"] = {"type": "disabled"}
    return body


def response_format(rng):
    kind = rng.choice(["text", "json_object", "json_schema", "regex"])
    out = {"type": kind}
    if kind == "json_schema":
        strict = chance(rng, 0.5)
        out["json_schema"] = {"name": "n", "schema": schema(rng, strict)}
        maybe(rng, out["json_schema"], 0.5, strict=[strict, None])
    if kind == "regex":
        out["regex"] = rng.choice(["a+", "", "[", text(rng)])
    return out


def item_content(rng, kind):
    if chance(rng, 0.5):
        return text(rng)
    parts = []
    for _ in range(rng.randint(0, 3)):
        if chance(rng, 0.7):
            parts.append({"type": rng.choice(["input_text", "output_text"] if kind == "message" else ["input_text"]), "text": text(rng)})
        elif chance(rng, 0.6):
            image = {"type": "input_image", "image_url": rng.choice(URLS) if chance(rng, 0.3) else "data:image/png;base64," + PNG}
            maybe(rng, image, 0.3, detail=["low", "high", "original", "auto", None])
            maybe(rng, image, 0.05, file_id=["f", "", None], image_url=["", None])
            parts.append(image)
        else:
            parts.append({"type": "input_file", "file_id": "f"})
    return parts


def responses_tools(rng, found=False):
    tools = [{"type": "function", **tool} for tool in functions(rng)]
    for _ in range(rng.choice([0, 0, 1, 2])):
        members = [{"type": "function", **tool} for tool in functions(rng)]
        if chance(rng, 0.05):
            members.append({"type": "custom", "name": "c"})
        space = {"type": "namespace", "name": rng.choice(["ns", "ns_", "f", "get", "a" * 120]), "description": text(rng), "tools": members}
        tools.append(rng.choice([space] * 3 + [{"type": "custom", "name": rng.choice(["apply_patch"] * 5 + ["x"])}, {"type": "web_search"},
                     {"type": "web_search_2025_08_26"}] + [{"type": "local_shell"}, {"type": "mcp", "x": 1}] * (not found or chance(rng, 0.1)) + [
                     {"type": "tool_search", **({"execution": rng.choice(["client", "server", None])} if chance(rng, 0.8) else {}),
                      **({"description": text(rng)} if chance(rng, 0.5) else {}), **({"parameters": schema(rng, False)} if chance(rng, 0.6) else {})}]))
    rng.shuffle(tools)
    return tools


def responses(rng):
    items, used, open_calls = [], [], []
    for _ in range(rng.randint(1, 8)):
        kind = rng.choice(["message"] * 5 + ["reasoning", "function_call", "function_call", "custom_tool_call", "tool_search_call", "web_search_call", "other", "loose"])
        if kind == "message":
            message = {"role": rng.choice(["user", "user", "assistant", "assistant", "system", "developer"]), "content": item_content(rng, kind)}
            maybe(rng, message, 0.5, type=["message"], id=["msg_1"], status=["completed"], phase=["commentary"])
            items.append(message)
        elif kind == "reasoning":
            items.append({"type": "reasoning", "summary": [], **({"content": [{"type": "reasoning_text", "text": text(rng)} for _ in range(rng.randint(0, 2))]}
                          if chance(rng, 0.9) else {}), **({"encrypted_content": "x"} if chance(rng, 0.3) else {})})
        elif kind == "web_search_call":
            items.append({"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}})
        elif kind == "other":
            items.append({"type": rng.choice(["item_reference", "computer_call", "image_generation_call", "compaction"]), "id": "x"})
        elif kind == "loose":
            items.append({"type": "function_call_output", "output": item_content(rng, "output")})
        else:
            for _ in range(rng.choice([1, 1, 2, 3])):
                made = call_id(rng, used)
                open_calls.append((kind, made))
                if kind == "function_call":
                    call = {"type": kind, "call_id": made, "name": name(rng), "arguments": arguments(rng)}
                    maybe(rng, call, 0.25, namespace=["ns", "ns_", "f", "", None], id=["fc_1"])
                elif kind == "custom_tool_call":
                    call = {"type": kind, "call_id": made, "name": "apply_patch", "input": text(rng)}
                else:
                    call = {"type": kind, "call_id": made, "arguments": value(rng) if chance(rng, 0.1) else {"q": text(rng)}}
                    maybe(rng, call, 0.7, execution=["client", "server", None], call_id=[made, None] if chance(rng, 0.1) else [made])
                items.append(call)
            if chance(rng, 0.97):
                rng.shuffle(open_calls)
                for which, made in open_calls:
                    if which == "tool_search_call":
                        output = {"type": "tool_search_output", "call_id": made, "tools": responses_tools(rng, True)}
                        maybe(rng, output, 0.7, execution=["client", "server", None])
                    else:
                        output = {"type": which + "_output", "call_id": made, "output": item_content(rng, "output")}
                    items.append(output)
                    if chance(rng, 0.15):
                        items.append({"role": "developer", "content": [{"type": "input_text", "text": "<image_resize_notice>" + text(rng) + "</image_resize_notice>"}]})
                open_calls = []
    body = {"model": rng.choice(MODELS), "input": items if chance(rng, 0.9) else text(rng)}
    sampling(rng, body, "max_output_tokens")
    if chance(rng, 0.5):
        body["tools"] = responses_tools(rng)
    maybe(rng, body, 0.15, instructions=[text(rng), "", None], stream=[True, False, None], user=["u", None], truncation=["auto"], store=[True, 5],
          parallel_tool_calls=[False], include=[["reasoning.encrypted_content"]], metadata=[{}], previous_response_id=["resp_1"])
    maybe(rng, body, 0.3, reasoning=[{"effort": rng.choice(EFFORTS + [None])}, {"summary": rng.choice(["auto", "concise", "detailed", None])},
          {"effort": rng.choice(EFFORTS), "generate_summary": "auto"}, {"effort": "none"}, {}, None])
    if chance(rng, 0.25):
        kind = rng.choice(["text", "json_object", "json_schema"])
        strict = chance(rng, 0.5)
        body["text"] = {"format": {"type": kind, **({"name": "n", "schema": schema(rng, strict), "strict": strict} if kind == "json_schema" else {})}}
        maybe(rng, body["text"], 0.3, verbosity=["low", "medium", "high", None], format=[None])
        if kind == "json_schema" and body["text"]["format"]:
            maybe(rng, body["text"]["format"], 0.2, description=[text(rng), None], strict=[None])
    if chance(rng, 0.3):
        body["tool_choice"] = rng.choice(["auto", "none", "required", {"type": "function", "name": name(rng)}, {"type": "custom", "name": "apply_patch"},
                                          {"type": "web_search"}, {"type": "web_search_2025_08_26"}, {"type": "allowed_tools", "tools": []}, None])
        if chance(rng, 0.6):
            body["reasoning"] = {"effort": "none"}
    return body


def image_block(rng):
    source = rng.choice([{"type": "base64", "media_type": rng.choice(["image/png", "image/jpg", "image/jpeg", "image/gif", "image/webp", "image/bmp"]),
                          "data": rng.choice([PNG, "QUJD", "QUJDRA==", "QUJDRA=", "QUJDRA", "QUJ", "!!", "", "=", "QUJDR===", "QUJD\n", "QU JD"]) if chance(rng, 0.3) else PNG},
                         {"type": "url", "url": rng.choice(URLS[:6] + ["not a \"url\"\n"] + URLS[6:]) if chance(rng, 0.3) else "https://example.com/a.png"},
                         {"type": "base64", "media_type": "image/png", "data": PNG}] + ([{"type": "file", "file_id": "f"}] if chance(rng, 0.05) else []))
    return {"type": "image", "source": source}


def text_block(rng):
    block = {"type": "text", "text": text(rng)}
    maybe(rng, block, 0.1, cache_control=[{"type": "ephemeral"}], citations=[None])
    return block


def user_blocks(rng, names):
    out = []
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.7:
            out.append(text_block(rng))
        elif kind < 0.85:
            out.append(image_block(rng))
        else:
            out.append({"type": "document", "source": rng.choice([{"type": "base64", "media_type": "application/pdf", "data": "x"}, {"type": "text"}, {"media_type": None}])})
    return out


def result_content(rng, names):
    if chance(rng, 0.4):
        return text(rng)
    return [rng.choice([text_block(rng), text_block(rng), image_block(rng), {"type": "tool_reference", "tool_name": rng.choice(names + ["f"])},
                        {"type": "document", "source": {"media_type": "text/plain"}}]) for _ in range(rng.randint(0, 3))]


def messages(rng):
    tools = []
    for tool in functions(rng) if chance(rng, 0.6) else []:
        made = {"name": tool["name"], "input_schema": tool.get("parameters", {"type": "object"})}
        maybe(rng, made, 0.6, description=[text(rng), None])
        maybe(rng, made, 0.25, defer_loading=[True, False, None])
        maybe(rng, made, 0.15, strict=[True, False, None], cache_control=[{"type": "ephemeral"}])
        tools.append(made)
    if chance(rng, 0.04):
        tools.append({"type": rng.choice(["web_search_20250305", "custom", "bash_20250124", "web_search"]), "name": "web_search"})
    names = [tool["name"] for tool in tools] or ["f"]
    turns = []
    for _ in range(rng.randint(1, 5)):
        role = rng.choice(["user", "user", "assistant", "calls", "calls", "system"])
        if role == "user":
            turns.append({"role": "user", "content": text(rng) if chance(rng, 0.5) else user_blocks(rng, names)})
        elif role == "system":
            content = text(rng) if chance(rng, 0.5) else [text_block(rng) for _ in range(rng.randint(1, 2))]
            if isinstance(content, list) and chance(rng, 0.3):
                content.insert(rng.randint(0, 1), {"type": "tool_addition", "tool": {"type": "tool_reference", "name": rng.choice(names)}})
            turns.append({"role": "system", "content": content})
        else:
            blocks = []
            if chance(rng, 0.5):
                blocks += [{"type": "thinking", "thinking": text(rng), **({"signature": "s"} if chance(rng, 0.8) else {})} for _ in range(rng.choice([1, 1, 2]))]
            blocks += [rng.choice([text_block(rng), text_block(rng), {"type": "document", "source": {"media_type": "a/b"}}]) for _ in range(rng.randint(0, 2))]
            used = []
            if role == "calls":
                for _ in range(rng.randint(1, 3)):
                    blocks.append({"type": "tool_use", "id": call_id(rng, used), "name": name(rng), "input": value(rng) if chance(rng, 0.1) else
                                   {text(rng): value(rng) for _ in range(rng.randint(0, 3))}})
            if chance(rng, 0.05):
                blocks.append(rng.choice([text_block(rng), {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                                          {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, {"type": "redacted_thinking", "data": "x"}]))
            content = blocks or text(rng)
            if role == "assistant" and chance(rng, 0.4):
                content = text(rng)
            turns.append({"role": "assistant", "content": content})
            if used and isinstance(content, list):
                results = []
                for made in used:
                    result = {"type": "tool_result", "tool_use_id": made}
                    if chance(rng, 0.9):
                        result["content"] = result_content(rng, names)
                    maybe(rng, result, 0.1, is_error=[True, False, None])
                    results.append(result)
                rng.shuffle(results)
                if chance(rng, 0.04):
                    results = rng.choice([results[1:], results + results[:1], []]) or [text_block(rng)]
                if chance(rng, 0.3):
                    results.insert(rng.randint(0, len(results)) if chance(rng, 0.3) else len(results), text_block(rng))
                turns.append({"role": "user", "content": results})
    body = {"model": rng.choice(MODELS), "messages": turns, **({"max_tokens": 100} if chance(rng, 0.9) else {})}
    sampling(rng, body, "max_tokens")
    if tools or chance(rng, 0.1):
        body["tools"] = tools
    maybe(rng, body, 0.25, system=[text(rng), [text_block(rng) for _ in range(rng.randint(0, 3))], "", None])
    maybe(rng, body, 0.15, stop_sequences=[["x"], [], [""], ["a"] * 17, None, ["a", "a"]], stream=[True, False, None], metadata=[{"user_id": "u"}, {}, {"user_id": None}, None],
          top_k=[5], output_config=[{"effort": rng.choice(EFFORTS + [None])}, {}, None], service_tier=["auto"])
    maybe(rng, body, 0.3, thinking=[{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled"}, None])
    if chance(rng, 0.3):
        body["tool_choice"] = rng.choice([{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": rng.choice(names)}, {"type": "tool", "name": name(rng)},
                                          {"type": "auto", "disable_parallel_tool_use": True}, None])
        if chance(rng, 0.6):
            body["thinking"] = {"type": "disabled"}
    return body


def places(tree, path=()):
    """Every (container, key) of a JSON tree."""
    members = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in list(members):
        yield tree, key
        yield from places(child, path + (key,))


def by_position(rng, members):
    """A structure as the list of its members: in some order, with too few or too many."""
    tag = [v for k, v in members.items() if k in ("type", "role")]
    rest = [v for k, v in members.items() if k not in ("type", "role")]
    if chance(rng, 0.5):
        rng.shuffle(rest)
    out = tag + rest
    if chance(rng, 0.4):
        del out[rng.randint(0, len(out)):]
    for _ in range(rng.choice([0, 0, 1, 2, 4])):
        out.insert(rng.randint(min(1, len(out)), len(out)), rng.choice([None, None, "x", True, 1]))
    return out


def disturb(rng, body):
    body = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 2])):
        spots = list(places(body))
        if not spots:
            break
        container, key = rng.choice(spots)
        kind = rng.random()
        if kind < 0.25:
            del container[key]
        elif kind < 0.7:
            container[key] = copy.deepcopy(rng.choice(ODD))
        elif kind < 0.75:
            if isinstance(container[key], dict):
                container[key] = by_position(rng, container[key])
        elif kind < 0.8 and isinstance(container, list):
            container.insert(key, copy.deepcopy(rng.choice(container)))
        elif kind < 0.9 and isinstance(container, dict):
            container[rng.choice(["type", "role", "name", "content", "text", "id", "extra", "tools", "strict"])] = copy.deepcopy(rng.choice(ODD))
        else:
            other, where = rng.choice(spots)
            container[key] = copy.deepcopy(other[where]) if where in (other if isinstance(other, dict) else range(len(other))) else None
    return body


def as_text(rng, body):
    out = json.dumps(body, ensure_ascii=chance(rng, 0.5)).replace("Infinity", "1e400")
    if chance(rng, 0.02):
        at = rng.randint(0, len(out))
        out = rng.choice([out[:at], out + rng.choice([" ", "x", "{}", "\n", ","]), out[:at] + rng.choice(["\"", "{", ",", "\\u", "\x01", "-", "1e", "\\ud800"]) + out[at:],
                          "[" + out + "]", "\ufeff" + out, " \n\t" + out, out.replace(":", ":\n", 3)])
    if chance(rng, 0.03) and out.startswith("{"):
        key = rng.choice(list(body) or ["model"]) if isinstance(body, dict) else "model"
        out = "{" + json.dumps(key) + ": " + json.dumps(rng.choice(ODD)).replace("Infinity", "1e400") + ", " + out[1:]
    return out


MAKERS = {"chat": chat, "responses": responses, "messages": messages}


def options(rng):
    out = {}
    maybe(rng, out, 0.1, default_thinking_mode=[False, True], reasoning_content_behavior=["Reject", "FillEmpty"], responses_web_search=["Drop", "Reject"],
          messages_web_search=["Drop", "Reject"], thinking_max_tokens_upper_bound=[100, 393216], non_thinking_max_tokens_upper_bound=[100, 5])
    return out


def request(rng, api, share_disturbed=0.5):
    body = MAKERS[api](rng)
    if chance(rng, share_disturbed):
        body = disturb(rng, body)
    return as_text(rng, body)


# --- model outputs ---

def tool_block(rng, version, names):
    """A block of calls as the model writes it, with now and then a part missing or misspelled."""
    block, invoke, parameter = ("tool_calls", "invoke", "parameter") if version == "v4" else (" calls", " invoke", " parameter")
    if chance(rng, 0.05):
        block, invoke, parameter = rng.choice(["tool_calls", " calls", "x"]), rng.choice(["invoke", " invoke"]), rng.choice(["parameter", " parameter"])
    parts = ["\n\n", f"<｜DSML｜{block}>", "\n"]
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        parts += [f"<｜DSML｜{invoke} name=\"", rng.choice(names), "\">", "\n"]
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            string = chance(rng, 0.6)
            parts += [f"<｜DSML｜{parameter} name=\"", rng.choice(["city", "a b", "é", "", "input", "q\\", "\n"]), "\" string=\"", "true" if string else "false", "\">",
                      text(rng) if string or chance(rng, 0.1) else json.dumps(value(rng), ensure_ascii=False),
                      rng.choice(["", "", "", "\u0001", "<", "</", "*** Begin Patch\n", "\\ud83d"]), f"</｜DSML｜{parameter}>", "\n"]
        parts += [f"</｜DSML｜{invoke}>", "\n"]
    parts += [f"</｜DSML｜{block}>"]
    if chance(rng, 0.3):
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(parts))
            kind = rng.random()
            if kind < 0.4:
                del parts[at]
            elif kind < 0.6:
                parts.insert(at, rng.choice(WORDS))
            elif kind < 0.8:
                parts[at] = parts[at][:rng.randint(0, len(parts[at]))]
            else:
                parts.insert(at, parts[rng.randrange(len(parts))])
            if not parts:
                return []
    return parts


def answer(rng, version, names):
    parts = []
    if chance(rng, 0.7):
        parts += [rng.choice(["", "\n", "\n\n"]), text(rng), rng.choice(["", "\n", "\n\n", "\n<\n"]), "</think>", rng.choice(["", "\n\n", "\n"])]
    for _ in range(rng.randint(0, 3)):
        parts += rng.choice([lambda: [text(rng)], lambda: [text(rng)], lambda: tool_block(rng, version, names), lambda: ["</think>"], lambda: ["\n\n\n"],
                             lambda: [rng.choice(["```json\n", "```\n", "", "Sure: "]), json.dumps(value(rng), ensure_ascii=False), rng.choice(["\n```", "", "\n``", " done"])],
                             lambda: [rng.choice(["{\"input\": \"a\\n\\ud83d\\ude00", "END", "<", "own fox"])]])()
    return parts


def output(rng, version, tokenizer, names):
    """Inputs of a stream as in streams.jsonl: ready, tokens or text, finish, in chunks of any size."""
    parts = answer(rng, version, names)
    inputs = []
    if chance(rng, 0.25):  # as text
        joined = "".join(parts)
        while joined:
            n = rng.choice([1, 1, 2, 3, 5, 8, 40])
            inputs.append(["text", joined[:n], rng.choice([0, 1, 1, 2])])
            joined = joined[n:]
        if chance(rng, 0.1):
            inputs.insert(rng.randint(0, len(inputs)), ["text", "", 1])
    else:
        ids = []
        for part in parts:
            ids += tokenizer.encode_plain(part) if chance(rng, 0.08) else tokenizer.encode(part)
        for _ in range(rng.choice([0, 0, 0, 1, 2, 5])):
            ids.insert(rng.randint(0, len(ids)), rng.choice([rng.randrange(129280), rng.randrange(260), 1, 128000, 128803, 128821, 128822, 128825, 129264, 129279, 200000]))
        if chance(rng, 0.1):
            del ids[rng.randint(0, len(ids)):]
        most = rng.choice([1, 1, 2, 4, 64])
        logprobs = chance(rng, 0.2)
        while ids:
            n = rng.randint(1, most)
            chunk = ["tokens", ids[:n]]
            if logprobs and chance(rng, 0.97):
                entries = [[round(-rng.random() * 10, rng.randint(0, 8)), [[rng.randrange(129280), -rng.random()] for _ in range(rng.choice([0, 1, 3]))]] for _ in ids[:n]]
                if chance(rng, 0.01):
                    entries.pop()
                chunk.append(entries)
            inputs.append(chunk)
            ids = ids[n:]
        if chance(rng, 0.05):
            inputs.insert(rng.randint(0, len(inputs)), rng.choice([["tokens", []], ["text", "\n</think>x", 1]]))
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2])):
        ready = {"prompt_tokens": rng.choice([0, 7, 120]), "prompt_cache_hit_tokens": rng.choice([0, 5, 120, 200])}
        maybe(rng, ready, 0.3, system_fingerprint=["fp_1", None, ""])
        inputs.insert(0 if chance(rng, 0.8) else rng.randint(0, len(inputs)), ["ready", ready])
    if chance(rng, 0.9):
        inputs.insert(len(inputs) if chance(rng, 0.93) else rng.randint(0, len(inputs)), ["finish", rng.choice(["Stop", "Stop", "Length", "ContentFilter"])])
    return inputs


def stream(rng, api, tokenizers, version_of):
    """A whole case of streams.jsonl, or None when this request is refused. version_of(api, body, options) says "v4", "v41" or None."""
    body = MAKERS[api](rng)
    chosen = options(rng)
    sent = json.dumps(body, ensure_ascii=False).replace("Infinity", "1e400")
    version = version_of(api, sent, chosen)
    if version is None:
        return None
    names = ["f", "get_weather", "apply_patch", "tool_search", "ns::f", "ns__f", "a::b::c", "é", ""]
    for tool in body.get("tools") or []:
        names += [(tool.get("function") or tool).get("name") or "f"] * 2
    case = {"api": api, "request": sent, "options": chosen, "response_id": rng.choice(["resp-1", "chatcmpl-9", ""]), "model": "m-1",
            "inputs": output(rng, version, tokenizers[version], names)}
    maybe(rng, case, 0.05, signature=["sig"] if api == "messages" else ["sig"], with_tokenizer=[False])
    if api != "messages":
        case.pop("signature", None)
    return case
