"""A function or a service as a pool's backend, on a real one: JSON and text are answers, nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from infra.process import free_port
from loadtest.model_server.attempts import AttemptRecord
from schemas.failures import FAILURE_FACTS, FailureKind
from services.adapters.model_backends.choice import PoolClient, client_of
from services.core.fleet import Pool, Timeouts
from services.core.tool_task import MOST_RESULT_BYTES
from tests.backends_like.processes import ToolServiceProcess
from tests.contract.tool_calls import fault_of, result_of, tool_call

KEY = "very-secret-tool-key-1234567890"
PATIENCE_S = 20.0
TOO_LARGE = {"body": "x" * 1024, "times": MOST_RESULT_BYTES // 1024 + 1, "type": "text/plain"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[ToolServiceProcess]:
    async with ToolServiceProcess() as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[PoolClient]:
    made = client_of(Pool("p", "m", backend="http", slots=4, api_key_env="KEY"), {"KEY": KEY}, lambda: 0.5)
    yield made
    await made.aclose()


async def logged(service: ToolServiceProcess, attempt: str) -> AttemptRecord:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := [one for one in service.log() if one.attempt == attempt]):
            await asyncio.sleep(0.02)
    return found[0]


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ({"sum": [1, 2]}, {"sum": 3, "name": "add"}),
        ({"body": "[1, null]"}, [1, None]),
        ({"body": "null"}, None),
        ({"body": '"text"', "type": "text/plain"}, "text"),
        ({"body": "äöü 🙂", "type": "text/plain; charset=utf-8"}, "äöü 🙂"),
        ({"body": "", "status": 204}, None),
        ({"body": '{"error": "is an answer like any"}'}, {"error": "is an answer like any"}),
        ({"body": '{"made": true}', "status": 201, "type": "application/problem+json"}, {"made": True}),
    ],
)
async def test_any_json_or_text_is_the_result(
    service: ToolServiceProcess, client: PoolClient, said: dict[str, Any], result: Any
) -> None:
    assert await result_of(client, tool_call("http", service.tool_url, "add", said)) == result


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"body": "<html>", "type": "text/html"}, FailureKind.BAD_ANSWER),
        ({"body": "{", "type": "application/json"}, FailureKind.BAD_ANSWER),
        ({"body": "PK", "type": "application/zip"}, FailureKind.BAD_ANSWER),
        ({"body": "[" * 200 + "]" * 200}, FailureKind.BAD_ANSWER),
        (TOO_LARGE, FailureKind.BAD_ANSWER),
        ({"status": 302}, FailureKind.BAD_ANSWER),
        ({"status": 400}, FailureKind.BAD_REQUEST),
        ({"status": 422}, FailureKind.BAD_REQUEST),
        ({"status": 413}, FailureKind.TOO_LONG),
        ({"status": 401}, FailureKind.KEY_REFUSED),
        ({"status": 404}, FailureKind.NOT_FOUND),
        ({"status": 429}, FailureKind.RATE_LIMITED),
        ({"status": 500}, FailureKind.SERVER_ERROR),
        ({"status": 503, "body": "<html>", "type": "text/html"}, FailureKind.OVERLOADED),
        ({"reset": True}, FailureKind.RESET),
        ({"half": True, "body": "{}"}, FailureKind.RESET),
    ],
)
async def test_s3_what_is_no_answer_has_its_kind_and_words_of_tools(
    service: ToolServiceProcess, client: PoolClient, said: dict[str, Any], kind: FailureKind
) -> None:
    fault = await fault_of(client, tool_call("http", service.tool_url, "add", said))
    assert fault.kind is kind
    assert "model" not in fault.message
    assert "<" not in fault.message


async def test_an_answer_beyond_its_bound_is_not_read_to_its_end(
    service: ToolServiceProcess, client: PoolClient
) -> None:
    said = {"body": "x" * 1024, "times": 64 * 1024, "type": "text/plain"}
    fault = await fault_of(client, tool_call("http", service.tool_url, "add", said, attempt="endless"))
    assert fault.kind is FailureKind.BAD_ANSWER
    assert (await logged(service, "endless")).outcome == "disconnected"


async def test_what_the_caller_can_mend_is_said_in_the_services_words_without_the_key(
    service: ToolServiceProcess, client: PoolClient
) -> None:
    detail = '{"detail": [{"loc": ["body", "arguments", "city"], "msg": "no such city near KEY"}]}'
    said = {"status": 422, "body": detail.replace("KEY", KEY)}
    fault = await fault_of(client, tool_call("http", service.tool_url, "add", said))
    assert fault.message == "no such city near ***"
    assert fault.param == "arguments.city"
    assert not FAILURE_FACTS[fault.kind].counts_against_backend


async def test_r2_retry_after_is_heard(service: ToolServiceProcess, client: PoolClient) -> None:
    said = {"status": 429, "headers": {"retry-after": "7"}}
    assert (await fault_of(client, tool_call("http", service.tool_url, None, said))).retry_after_s == 7


async def test_a_service_hears_the_task_and_the_try(service: ToolServiceProcess, client: PoolClient) -> None:
    await result_of(client, tool_call("http", service.tool_url, "add", attempt="named"))
    record = await logged(service, "named")
    assert (record.attempt, record.marker) == ("named", "task-of-named")


async def test_s4_s5_time_and_a_hang_up_end_a_call_at_the_service_too(
    service: ToolServiceProcess, client: PoolClient
) -> None:
    short = Timeouts(connect_s=0.2, first_token_s=0.2, idle_s=0.2, total_s=0.3)
    slow = tool_call("http", service.tool_url, "x", {"delay_s": 30}, attempt="slow", timeouts=short)
    fault = await fault_of(client, slow)
    assert fault.kind is FailureKind.FIRST_TOKEN_TIMEOUT
    assert (await logged(service, "slow")).outcome == "disconnected"
    call = tool_call("http", service.tool_url, "x", {"hang": True}, attempt="left")
    calling = asyncio.create_task(result_of(client, call))
    async with asyncio.timeout(PATIENCE_S):
        while "left" not in [one.attempt for one in await service.running_attempts()]:
            await asyncio.sleep(0.02)
    calling.cancel()
    await asyncio.wait({calling}, timeout=PATIENCE_S)
    assert (await logged(service, "left")).outcome == "disconnected"


async def test_a_probe_needs_no_get(service: ToolServiceProcess, client: PoolClient) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/run"
    assert await client.answers(service.tool_url)
    assert not await client.answers(nowhere)
    assert (await fault_of(client, tool_call("http", nowhere, "x"))).kind is FailureKind.UNREACHABLE
