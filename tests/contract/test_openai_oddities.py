"""What servers do beside their API's letter, one by one, through a worker: no client sees any of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from schemas.messages import TaskFailed, TaskSucceeded
from tests.contract.client_view import check_plain, seen, streamed
from tests.integration.worker_rig import WorkerRig, chat, openai_rig, tries

USAGE = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
JSON = "application/json"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess() as running:
        yield running


@pytest.fixture
async def rig(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    async with openai_rig(server.root_url, tmp_path) as made:
        await made.work()
        yield made


def chunk(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def said(*events: Any, end: str = "data: [DONE]\n\n") -> str:
    return "".join(f"data: {orjson.dumps(event).decode()}\n\n" for event in events) + end


ROLE, ONE, TWO = chunk({"role": "assistant"}), chunk({"content": "one "}), chunk({"content": "two"})
STOP, COUNT = chunk({}, "stop"), {"choices": [], "usage": USAGE}
PLAIN = said(ROLE, ONE, TWO, STOP, COUNT)
WHOLE = orjson.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "one two"}, "finish_reason": "stop"}
        ],
        "usage": USAGE,
    }
).decode()
GROWING = [{**USAGE, "completion_tokens": n, "total_tokens": 4 + n} for n in range(3)]
ODD: dict[str, dict[str, Any]] = {
    "crlf": {"raw": PLAIN.replace("\n", "\r\n")},
    "cr alone": {"raw": PLAIN.replace("\n", "\r")},
    "comments and other fields": {
        "raw": ": hello\n\n" + PLAIN.replace("data:", "id: 7\nretry: 10\nevent: message\n: ping\ndata:")
    },
    "an event over several lines": {"raw": PLAIN.replace('"choices":', '\ndata: "choices":\ndata:')},
    "no blank behind the colon": {"raw": PLAIN.replace("data: ", "data:")},
    "a byte order mark": {"raw": "\ufeff" + PLAIN},
    "a byte at a time": {"raw": PLAIN, "split_bytes": 1, "content_type": "text/plain"},
    "no [DONE]": {"raw": said(ROLE, ONE, TWO, STOP, COUNT, end="")},
    "no last blank line": {"raw": PLAIN.rstrip("\n")},
    "blanks around [DONE]": {"raw": PLAIN.replace("[DONE]", " [DONE] ")},
    "words behind [DONE]": {"raw": PLAIN + said(TWO)},
    "no role at all": {"raw": said(ONE, TWO, STOP, COUNT)},
    "a role in every chunk": {
        "raw": said(*(chunk({"role": "assistant", "content": text}) for text in ("one ", "two")), STOP, COUNT)
    },
    "empty chunks": {
        "raw": said(
            {"choices": []}, {"object": "x"}, ROLE, chunk({}), chunk(None), ONE, chunk({"content": ""}),
            chunk({"content": None}), TWO, {"choices": None}, STOP, COUNT,
        )
    },
    "a finish that is an empty string": {"raw": said(chunk({"content": "one "}, ""), TWO, STOP, COUNT)},
    "a second finish": {"raw": said(ROLE, ONE, TWO, STOP, STOP, chunk({}, "length"), COUNT)},
    "a finish in its own words": {"raw": said(ROLE, ONE, TWO, chunk({}, "eos_token"), COUNT)},
    "a finish with the last words": {"raw": said(ROLE, ONE, chunk({"content": "two"}, "stop"), COUNT)},
    "no index": {
        "raw": said({"choices": [{"delta": {"content": "one two"}}]}, STOP, COUNT).replace('"index":0,', "")
    },
    "usage in every chunk": {
        "raw": said(
            ROLE | {"usage": GROWING[0]}, ONE | {"usage": GROWING[1]}, TWO | {"usage": GROWING[2]}, STOP
        )
    },
    "usage null but once": {
        "raw": said(ROLE | {"usage": None}, ONE, TWO, STOP | {"usage": USAGE}, {"usage": None})
    },
    "usage twice": {"raw": said(ROLE, ONE, TWO, STOP | {"usage": USAGE}, COUNT, COUNT)},
    "figures of its own": {
        "raw": said(
            {"choices": [], "prompt_progress": {"total": 9}}, ROLE, ONE, TWO,
            STOP | {"timings": {"predicted_ms": 1}, "__verbose": {"prompt": "secret"}, "error": None}, COUNT,
        )
    },
    "ids and times of its own": {
        "raw": said(ROLE | {"created": 0}, ONE | {"id": "y", "created": 5}, TWO | {"model": "z"}, STOP, COUNT)
    },
    "the message instead of deltas": {
        "raw": said(
            {"choices": [{"index": 0, "message": {"role": "assistant", "content": "one two"}}]}, STOP, COUNT
        )
    },
    "json": {"raw": WHOLE, "content_type": JSON},
    "json that says it is a stream": {"raw": WHOLE, "content_type": "text/event-stream"},
    "json that says nothing": {"raw": "\n " + WHOLE, "content_type": "text/plain"},
    "a stream that says it is json": {"raw": PLAIN, "content_type": JSON},
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("usage", [True, False], ids=["usage", "silent"])
async def test_no_client_sees_what_is_odd(rig: WorkerRig, odd: str, usage: bool) -> None:
    events, answer = await streamed(rig, ODD[odd], usage=usage)
    check_plain(events, usage_asked=usage)
    got = seen(events)
    assert (got.text, got.finish) == ("one two", "stop")
    assert got.usage == (USAGE if usage else None)
    assert answer["usage"] == USAGE
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "one two"}
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_s8_a_zero_that_was_said_stays_and_a_count_that_was_not_is_marked(rig: WorkerRig) -> None:
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    events, answer = await streamed(rig, {"raw": said(ROLE, ONE, TWO, STOP, {"choices": [], "usage": zero})})
    assert seen(events).usage == answer["usage"] == zero
    events, answer = await streamed(rig, {"raw": said(ROLE, ONE, TWO, STOP)})
    check_plain(events, usage_asked=True)
    assert answer["usage"]["estimated"] is True
    assert seen(events).usage == answer["usage"]


async def test_choices_reasoning_refusals_and_logprobs_pass(rig: WorkerRig) -> None:
    logprobs = {
        "content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}],
        "refusal": None,
    }
    told = [
        {"choices": [{"index": i, "delta": {"role": "assistant", "content": None}} for i in (0, 1)]},
        {"choices": [{"index": 0, "delta": {"reasoning_content": "hm "}}]},
        {"choices": [{"index": 0, "delta": {"reasoning_content": "so"}}]},
        {"choices": [{"index": 1, "delta": {"refusal": "I will not"}}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": logprobs}]},
        {"choices": [{"index": i, "delta": {}, "finish_reason": "stop"} for i in (1, 0)]},
        COUNT,
    ]
    events, answer = await streamed(rig, {"raw": said(*told)}, n=2)
    check_plain(events, usage_asked=True)
    first, second = answer["choices"]
    assert first["message"]["reasoning_content"] == "hm so"
    assert first["message"]["content"] == "a"
    assert first["logprobs"]["content"] == logprobs["content"]
    assert second["message"]["refusal"] == "I will not"
    streamed_logprobs = [c["logprobs"] for e in events for c in e["choices"] if c.get("logprobs")]
    assert streamed_logprobs == [logprobs]


async def test_calls_without_id_get_one_and_decoded_arguments_are_json_again(rig: WorkerRig) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "東京"}}}
    told = said(ROLE, chunk({"tool_calls": call}), chunk({}, "tool_calls"), COUNT)
    events, answer = await streamed(rig, {"raw": told})
    (made,) = answer["choices"][0]["message"]["tool_calls"]
    assert orjson.loads(made["function"]["arguments"]) == {"city": "東京"}
    assert made["id"]
    assert seen(events).calls == [(made["id"], "weather", made["function"]["arguments"])]


FAULTS: dict[str, dict[str, Any]] = {
    "an error in the stream": {"raw": said({"error": {"message": "bad sk-abcdefgh1234 value", "code": 400}})},
    "in digits": {"raw": said({"error": {"message": "bad sk-abcdefgh1234 value", "code": "400"}})},
    "as an event": {"raw": 'event: error\ndata: {"message": "bad sk-abcdefgh1234 value", "code": 400}\n\n'},
    "in TGI's shape": {
        "status": 422, "error_body": {"error": "bad Bearer abcdefgh1234 value", "error_type": "validation"},
    },
    "in FastAPI's shape": {
        "status": 422, "error_body": {"detail": [{"loc": ["body", "n"], "msg": "bad sk-abcdefgh1234 value"}]},
    },
    "in vLLM's shape": {
        "status": 400, "error_body": {"object": "error", "message": "bad sk-abcdefgh1234 value", "code": 400},
    },
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
async def test_r8_what_the_caller_must_mend_is_said_without_any_key(rig: WorkerRig, fault: str) -> None:
    task_id = await rig.submit(chat(x_script=FAULTS[fault], stream=True), stream=True)
    end = await rig.end(task_id)
    assert isinstance(end, TaskFailed)
    assert (end.failure.kind, end.tries) == (FailureKind.BAD_REQUEST, 1)
    assert end.failure.message == "bad *** value"
    assert rig.chunks(task_id) == []


@pytest.mark.parametrize(
    "broken",
    [
        {"html_error": True},
        {"html_error": True, "status": 200},
        {"raw": said(ROLE, end="")},
        {"raw": said(ROLE, chunk({}, "stop"))},
        {"raw": "data: {"},
        {"raw": ""},
        {"close_before": True},
    ],
    ids=str,
)
async def test_s1_what_broke_before_content_is_tried_again_unseen(
    rig: WorkerRig, broken: dict[str, Any]
) -> None:
    body = tries(f"broken-{broken}", broken, {"raw": PLAIN}) | {"stream": True}
    task_id = await rig.submit(body, stream=True)
    events = await rig.events(task_id)
    check_plain(events, usage_asked=False)
    assert seen(events).text == "one two"
    failed = await rig.failed_try(task_id)
    assert "<" not in failed.failure.message
    assert isinstance(await rig.end(task_id), TaskSucceeded)


async def test_a_stream_that_ends_without_its_finish_is_broken(rig: WorkerRig) -> None:
    end = await rig.end(
        await rig.submit(chat(x_script={"raw": said(ROLE, ONE, COUNT)}, stream=True), stream=True)
    )
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.INTERRUPTED
