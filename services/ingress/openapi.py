"""The OpenAPI document, written by hand: bodies are OpenAI's, the headers are ours."""

from __future__ import annotations

from typing import Any

from schemas.topics import LONGEST_DEADLINE_MS, PRIORITIES
from services.core.call_options import OBJECTIVES

Json = dict[str, Any]
_METADATA_NOTE = (
    " Also as the metadata key of the same name with underscores (chimera_...); the header wins. Such keys "
    "go on to the backend with the rest of `metadata`, because a body is never rewritten on its way."
)


def openapi_document() -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Chimera",
            "version": "1",
            "description": "OpenAI-compatible API. Unknown fields are passed to the model's backend.",
        },
        "paths": {
            "/v1/chat/completions": {
                "post": _model_call("A chat completion, whole or as SSE", "ChatRequest")
            },
            "/v1/completions": {
                "post": _model_call("A text completion, whole or as SSE", "CompletionRequest")
            },
            "/v1/embeddings": {
                "post": _model_call(
                    "Embeddings of up to 2,048 inputs, by pools with the capability embed", "EmbeddingRequest"
                )
            },
            "/v1/models": {"get": _read("The models, the pools and `auto`")},
            "/v1/models/{model}": {"get": _read("One of them", _path_parameter("model"))},
            "/healthz": {"get": _read("The process answers")},
            "/readyz": {"get": _read("200 when calls are taken; says whether the database is up")},
            "/metrics": {"get": _read("Prometheus text format")},
        },
        "components": {"schemas": _schemas()},
    }


def _model_call(summary: str, schema: str) -> Json:
    failures = {
        "400": "The body or an option is wrong (`param` names it), or no pool is able",
        "404": "model_not_found",
        "413": "The body is larger than 8 MiB",
        "422": "The Idempotency-Key was used with another body",
        "429": "The model's backend limits the rate; Retry-After",
        "502": "The model's backend failed; `x-should-retry: false`, it has been tried again already",
        "503": "Not taken in time; Retry-After",
        "504": "The deadline passed; `x-should-retry: false`",
    }
    body = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}
    answer = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "summary": summary,
        "parameters": _headers(),
        "requestBody": {"required": True, **body},
        "responses": {
            "200": {"description": "`x-chimera-pool` names the pool that answered", "content": answer},
            **{status: {"description": text, "content": error} for status, text in failures.items()},
        },
    }


def _read(summary: str, *parameters: Json) -> Json:
    return {"summary": summary, "parameters": list(parameters), "responses": {"200": {"description": "OK"}}}


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _headers() -> list[Json]:
    ours: dict[str, tuple[Json, str]] = {
        "x-chimera-priority": ({"enum": list(PRIORITIES)}, "The lane; interactive unless told otherwise."),
        "x-chimera-objective": ({"enum": list(OBJECTIVES)}, "What to optimise; balanced by default."),
        "x-chimera-deadline-ms": (
            {"type": "integer", "minimum": 1, "maximum": LONGEST_DEADLINE_MS},
            "Milliseconds from the arrival of the request, not a time of day.",
        ),
        "x-chimera-session-id": ({"type": "string", "maxLength": 128}, "Keeps a session on one partition."),
        "x-chimera-degraded": (
            {"enum": ["deny", "allow"]},
            "`allow`: an older or a fixed answer, marked as such, rather than a failure that is not yours.",
        ),
        "x-chimera-required-capabilities": ({"type": "string"}, "Names with commas between; all are needed."),
    }
    standard = {
        "Idempotency-Key": "Runs the call once; others with the same key and body join it or get its answer. "
        "A call with a key goes on when its client hangs up.",
        "x-request-id": "Comes back in the answer and in every log line; minted where absent.",
        "traceparent": "W3C trace context.",
    }
    return [
        *(_header(name, schema, text + _METADATA_NOTE) for name, (schema, text) in ours.items()),
        *(_header(name, {"type": "string"}, text) for name, text in standard.items()),
    ]


def _header(name: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": text}


def _schemas() -> Json:
    text, nullable = {"type": "string"}, {"type": ["string", "null"]}
    shared = {
        "model": {**text, "description": "`auto`, a pool's name, or a model's name"},
        "stream": {"type": "boolean"},
        "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
        "n": {"type": "integer", "minimum": 1, "maximum": 128},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "max_tokens": {"type": "integer", "minimum": 1},
        "stop": {"oneOf": [text, {"type": "array", "items": text}]},
        "seed": {"type": "integer"},
        "metadata": {"type": "object", "additionalProperties": text},
    }
    error = {"message": text, "type": text, "param": nullable, "code": nullable}
    return {
        "ChatRequest": _request({**shared, "messages": {"type": "array", "minItems": 1}}, "messages"),
        "CompletionRequest": _request({**shared, "prompt": {}}, "prompt"),
        "EmbeddingRequest": _request(
            {
                "model": shared["model"],
                "input": {"description": "A string, strings, tokens, or lists of tokens"},
                "encoding_format": {"enum": ["float", "base64"], "default": "float"},
                "dimensions": {"type": "integer", "minimum": 1},
                "user": text,
                "metadata": shared["metadata"],
            },
            "input",
        ),
        "Error": {"type": "object", "properties": {"error": {"type": "object", "properties": error}}},
    }


def _request(properties: Json, content: str) -> Json:
    required = ["model", content]
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": True}
