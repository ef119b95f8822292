"""The reference package deepseek-recipe 0.2.0 behind the few calls that the comparisons need: one function per step,
plain values out."""
import json
import re

import deepseek_recipe as recipe

REQUESTS = {"chat": recipe.ChatCompletionRequest, "responses": recipe.ResponsesRequest, "messages": recipe.MessagesRequest}
RESPONSES = {"chat": recipe.ChatCompletionResponse, "responses": recipe.ResponsesResponse, "messages": recipe.MessagesResponse}
VERSIONS = {"v4": recipe.ModelVersion.DeepseekV4Pro, "v41": recipe.ModelVersion.DeepseekV41Flash}
FINISH = {"Stop": recipe.InferenceFinishReason.Stop, "Length": recipe.InferenceFinishReason.Length,
          "ContentFilter": recipe.InferenceFinishReason.ContentFilter}


def load_tokenizers(folder):
    """{"v4": .., "v41": ..}: the file, and the file with the renames of tokenizer_v41_patch.json."""
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    v4 = recipe.Tokenizer.from_str(text)
    tree = json.loads(text)
    renames = json.loads((folder / "tokenizer_v41_patch.json").read_text(encoding="utf-8"))["rename_added_tokens"]
    for token in tree["added_tokens"]:
        token["content"] = renames.get(str(token["id"]), token["content"])
    return {"v4": v4, "v41": recipe.Tokenizer.from_str(json.dumps(tree, ensure_ascii=False))}


def options_of(members):
    options = recipe.ConversionOptions()
    for key, value in members.items():
        if key == "aliases":
            for name, version in value.items():
                options = options.with_model_alias(name, VERSIONS[version])
        elif key.endswith("web_search"):
            options = getattr(options, "with_" + key)(getattr(recipe.WebSearchBehavior, value))
        elif key == "reasoning_content_behavior":
            options = options.with_reasoning_content_behavior(getattr(recipe.ReasoningContentBehavior, value))
        else:
            options = getattr(options, "with_" + key)(value)
    return options


def describe_tool(tool):
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict,
            "defer_loading": tool.defer_loading}


def describe_source(source):
    out = {"kind": source.kind, "detail": source.detail, "path": source.path}
    out[source.kind] = source.url if source.kind == "url" else source.data_url
    return out


def describe_message(message):
    out = {"role": message.role, "content": message.content}
    if message.role == "system":
        out["tools"] = None if message.tools is None else [describe_tool(tool) for tool in message.tools]
    if message.role == "assistant":
        calls = message.tool_calls
        out["reasoning_content"] = message.reasoning_content
        out["tool_calls"] = None if calls is None else [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]
        out["prefix"] = message.prefix
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id
    if message.image_sources:
        out["image_sources"] = [describe_source(source) for source in message.image_sources]
    return out


class Request:
    """A converted request; raises recipe.ConversionError or ValueError like the package."""

    def __init__(self, api, body, options):
        self.api = api
        asked = REQUESTS[api](body)
        self.inner = asked.convert(options)
        self.version = "v4" if self.inner.model_version == VERSIONS["v4"] else "v41"

    def describe(self):
        conversation, inference, parsing = self.inner.conversation, self.inner.inference_options, self.inner.parsing_options
        constraint = inference.output_constraint
        stage = parsing.thinking_initial_stage
        return {
            "model_version": self.version, "stream": self.inner.stream,
            "conversation": {
                "messages": [describe_message(message) for message in conversation.messages],
                "thinking_mode": conversation.thinking_mode,
                "tools": [describe_tool(tool) for tool in conversation.tools],
                "tool_choice": conversation.tool_choice, "reasoning_effort": conversation.reasoning_effort,
                "response_format": conversation.response_format, "response_schema": conversation.response_schema,
                "response_regex": conversation.response_regex},
            "inference_options": {
                "max_tokens": inference.max_tokens, "temperature": inference.temperature, "top_p": inference.top_p,
                "logprobs": inference.logprobs, "top_logprobs": inference.top_logprobs, "seed": inference.seed,
                "output_constraint": None if constraint is None else
                {"kind": constraint.kind, "schema": constraint.schema}},
            "parsing_options": {
                "parse_tool_calls": parsing.parse_tool_calls, "starts_in_tool_calls": parsing.starts_in_tool_calls,
                "parse_json_output": parsing.parse_json_output,
                "thinking_initial_stage": None if stage is None else repr(stage).rsplit(".", 1)[-1],
                "stop_sequences": list(parsing.stop_sequences)}}

    def encoding(self, tokenizer=None):
        encoding = recipe.DeepseekV4Encoding() if self.version == "v4" else recipe.DeepseekV41Encoding()
        return encoding if tokenizer is None else encoding.with_tokenizer(tokenizer)

    def processor(self, tokenizer, response_id, model, signature=None):
        generator = REQUESTS[self.api].chunk_generator(self.inner, response_id, model)
        if signature is not None:
            generator = generator.with_signature(signature)
        return recipe.StreamProcessor(generator, self.inner.parsing_options, tokenizer)


def logprobs_of(entry):
    if len(entry) < 3:
        return None
    return [(value, [tuple(top) for top in tops]) for value, tops in entry[2]]


def chunk_of(entry):
    kind, value = entry[0], entry[1]
    if kind == "ready":
        usage = recipe.PromptUsage(prompt_tokens=value.get("prompt_tokens", 0),
                                   prompt_cache_hit_tokens=value.get("prompt_cache_hit_tokens", 0))
        return recipe.InferenceChunk.ready(prompt_usage=usage, system_fingerprint=value.get("system_fingerprint"))
    if kind == "tokens":
        return recipe.InferenceChunk.tokens(value, logprobs_of(entry))
    if kind == "text":
        return recipe.InferenceChunk.text(value, entry[2])
    return recipe.InferenceChunk.finish(FINISH[value])


def mask(text):
    """What differs from run to run: the random part of tool call ids, times."""
    text = re.sub(r"call_(\d{2,})_(ET_)?[A-Za-z0-9]{24}(?![A-Za-z0-9])", r"call_\1_\2*", text)
    return re.sub(r'"(created|created_at|completed_at)":\d+', r'"\1":0', text)
