"""An OpenAI chat request said in Anthropic's Messages API (anthropic-version 2023-06-01).

What has no counterpart and would change the answer (several choices, logprobs, penalties, audio) is refused
by name; hints that only tune (seed, service_tier, reasoning_effort) and fields that nobody knows are left
out, for Anthropic refuses what it does not know. A temperature above 1, the highest there, is sent as 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from services.core.anthropic_turns import UntranslatableError, system_and_turns
from services.core.field_checks import Refusal, expected
from services.core.fleet import Pool

DEFAULT_MAX_TOKENS = 4096  # the API wants a limit where OpenAI's has none
_PASSED = ("top_p", "top_k", "thinking")
_JSON_ONLY = "Answer with one JSON object and nothing else: no prose, no code fence."
_NEUTRAL: Mapping[str, Callable[[Any], bool]] = {
    "n": lambda value: value == 1,
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "presence_penalty": lambda value: value == 0,
    "frequency_penalty": lambda value: value == 0,
    "logit_bias": lambda value: value == {},
    "functions": lambda value: value == [],
    "modalities": lambda value: value == ["text"],
}


def messages_request(body: Mapping[str, Any], pool: Pool, *, streaming: bool) -> dict[str, Any] | Refusal:
    """The JSON for `POST /v1/messages` from an admitted chat body; a Refusal names what cannot be said."""
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and not neutral(value):
            return _not_here(name, pool)
    try:
        system, turns = system_and_turns(body["messages"])
        sent: dict[str, Any] = {
            "model": pool.backend_model or pool.model,
            "max_tokens": _max_tokens(body, pool),
            "messages": turns,
        }
        sent |= _formatted(body.get("response_format"), system)
        if system:
            sent["system"] = [{"type": "text", "text": text} for text in system]
        sent |= _tools(body)
    except UntranslatableError as fault:
        return fault.refusal
    sent |= _sampling(body)
    if streaming:
        sent["stream"] = True
    return sent


def _not_here(name: str, pool: Pool) -> Refusal:
    return Refusal(
        f"'{name}' cannot be used with pool {pool.name}: Anthropic's API has nothing like it.",
        name,
        "unsupported_parameter",
    )


def _max_tokens(body: Mapping[str, Any], pool: Pool) -> int:
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    return int(asked) if asked else min(DEFAULT_MAX_TOKENS, pool.context_tokens)


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    sent = {name: body[name] for name in _PASSED if body.get(name) is not None}
    if body.get("temperature") is not None:
        sent["temperature"] = min(body["temperature"], 1)
    stop = body.get("stop")
    if stop:
        sent["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    user = (body.get("metadata") or {}).get("user_id") or body.get("user")
    if user:
        sent["metadata"] = {"user_id": user}
    return sent


def _formatted(wanted: Mapping[str, Any] | None, system: list[str]) -> dict[str, Any]:
    """`json_object` is asked for in words, added to `system`: the API has no such mode."""
    kind = (wanted or {}).get("type", "text")
    if kind == "text":
        return {}
    if kind == "json_object":
        system.append(_JSON_ONLY)
        return {}
    schema = (wanted or {}).get("json_schema", {}).get("schema")
    if kind == "json_schema" and isinstance(schema, dict):
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    if kind == "json_schema":
        raise UntranslatableError(expected("response_format.json_schema.schema", "an object"))
    raise UntranslatableError(expected("response_format.type", "text, json_object or json_schema"))


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    tools = body.get("tools")
    if not tools:
        return {}
    sent: dict[str, Any] = {"tools": [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]}
    choice = _choice(body.get("tool_choice"))
    if body.get("parallel_tool_calls") is False and (choice or {}).get("type") != "none":
        choice = (choice or {"type": "auto"}) | {"disable_parallel_tool_use": True}
    return sent if choice is None else sent | {"tool_choice": choice}


def _tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    if tool["type"] != "function":
        raise UntranslatableError(expected(f"{path}.type", "function: this pool has no other tools"))
    function = tool["function"]
    sent = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    if function.get("description"):
        sent["description"] = function["description"]
    return sent


def _choice(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return {"type": {"none": "none", "auto": "auto", "required": "any"}[value]}
    function = value.get("function")
    if (
        value.get("type") == "function"
        and isinstance(function, dict)
        and isinstance(function.get("name"), str)
    ):
        return {"type": "tool", "name": function["name"]}
    raise UntranslatableError(expected("tool_choice", "none, auto, required or a function by its name"))
