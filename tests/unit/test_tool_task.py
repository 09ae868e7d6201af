"""Tasks of tools: bodies that are admitted, pools that take them, answers that can travel."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.failures import FailureKind
from schemas.messages import Failure, RunTask
from schemas.payload import Payload
from services.core import mcp_results, tool_task
from services.core.admission import Admitted
from services.core.field_checks import Refusal
from services.core.fleet import BackendKind, Pool
from services.core.outgoing import outgoing
from services.core.routing import Need, NoneAble, route
from services.core.tool_task import admit_tool
from services.runtime.fleet_file import FleetFileError, missing_keys, parse_fleet, to_fleet

TOOLS = Pool("tools", "my-tools", backend="mcp", capabilities=frozenset({"tools"}))
FUNCTION = Pool("function", "f", backend="http", capabilities=frozenset({"tools", "low_cost"}))
CLAUDE = Pool("claude", "c", backend="anthropic", capabilities=frozenset({"chat", "tools"}))
LOCAL = Pool("local", "l", capabilities=frozenset({"chat", "tools", "embed"}))
ALL = (TOOLS, FUNCTION, CLAUDE, LOCAL)


def test_a_body_without_a_model_goes_to_any_pool_of_tools() -> None:
    admitted = admit_tool({"name": "add", "arguments": {"a": 1}})
    assert isinstance(admitted, Admitted)
    assert admitted.model == "auto"
    need = Need("tool", admitted.model, features=admitted.features)
    assert route(need, ALL, {}) in (TOOLS, FUNCTION)
    assert route(Need("tool", "auto", capabilities=("low_cost",)), ALL, {}) is FUNCTION
    assert route(Need("tool", "tools"), ALL, {}) is TOOLS


def test_no_pool_is_asked_for_what_its_backend_has_not() -> None:
    for kind, pool in (("tool", CLAUDE), ("completion", CLAUDE), ("embedding", CLAUDE), ("chat", TOOLS)):
        refused = route(Need(kind, pool.name), ALL, {})  # type: ignore[arg-type] # a tuple of literals widens
        assert isinstance(refused, NoneAble)
        assert f"{pool.name} lacks tasks of kind {kind}" in str(refused)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([], "must be a JSON object"),
        ({"name": ""}, "'name': expected a string"),
        ({"name": "a", "arguments": []}, "'arguments': expected an object"),
        ({"name": "a", "argument": {}}, "'argument': expected only model, name and arguments"),
        ({"model": 3}, "'model': expected a string"),
    ],
)
def test_wrong_bodies_are_refused_by_name(body: Any, says: str) -> None:
    refusal = admit_tool(body)
    assert isinstance(refusal, Refusal)
    assert says in refusal.message


def _run(backend: BackendKind, kind: str, body: dict[str, Any]) -> Any:
    task = RunTask(task_id="t-1", kind=kind, pool="p", arrived_ms=0, body=Payload(inline=body))
    return outgoing(task, body, Pool("p", "m", backend=backend))


def test_what_is_sent_is_the_call_alone_with_the_tasks_key() -> None:
    sent = _run("http", "tool", {"model": "p", "name": "add", "arguments": {"a": 1}})
    assert orjson.loads(sent.body) == {"name": "add", "arguments": {"a": 1}}
    assert (sent.path, sent.streaming, sent.headers) == ("", False, {"idempotency-key": "t-1"})
    assert orjson.loads(_run("http", "tool", {}).body) == {"arguments": {}}
    nameless = _run("mcp", "tool", {})
    assert isinstance(nameless, Refusal)
    assert nameless.param == "name"


def test_a_task_of_another_kind_is_refused_where_it_arrives() -> None:
    for backend, kind in (("mcp", "chat"), ("anthropic", "completion"), ("openai", "tool")):
        refusal = _run(backend, kind, {"messages": []})  # type: ignore[arg-type] # a tuple of literals widens
        assert isinstance(refusal, Refusal)
        assert refusal.code == "no_pool"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_an_answer_travels_or_says_why_not(value: Any) -> None:
    answer = tool_task.answer_of(value)
    if isinstance(answer, Failure):
        assert answer.kind is FailureKind.BAD_ANSWER
    else:
        assert orjson.loads(orjson.dumps(answer)) == {"result": value}


@pytest.mark.parametrize("value", [2**70, "\ud800", {"\ud800": 1}])
def test_what_json_cannot_say_is_no_answer(value: Any) -> None:
    assert isinstance(tool_task.answer_of(value), Failure)


@given(
    st.binary(max_size=64), st.sampled_from(["", "text/plain", "application/json", "text/html", "image/png"])
)
def test_no_body_breaks_anything(body: bytes, kind: str) -> None:
    answer = tool_task.answer_of_body(kind, body)
    assert isinstance(answer, Failure) or orjson.dumps(answer)


def test_errors_of_a_tool_server_have_their_kinds() -> None:
    assert mcp_results.of_error(-32000, "x").kind is FailureKind.RESET
    assert mcp_results.of_error(-32602, "no such city sk-secret-12345678").message == "no such city ***"
    assert mcp_results.of_error(-32603, "Traceback").message == "the tool server failed"
    empty = mcp_results.of_result([], None, True)
    assert isinstance(empty, Failure)
    assert empty.kind is FailureKind.TOOL_ERROR
    assert mcp_results.of_result([], None, False) == {"result": ""}
    assert mcp_results.of_result([{"type": "text", "text": "[draft] a"}], None, False) == {
        "result": "[draft] a"
    }


POOL = """version: 1
pools:
  - name: a
    model: m
    backend: {backend}
    base_url: http://x/v1
{more}"""


@pytest.mark.parametrize(
    ("backend", "more", "line", "says"),
    [
        (
            "anthropic",
            "    features: [tools, completions]",
            7,
            "pools[0].features: completions: backend anthropic",
        ),
        ("anthropic", "    capabilities: [embed]", 7, "pools[0].capabilities: embed: backend anthropic"),
        (
            "http",
            "    capabilities: [tools]\n    features: [vision]",
            8,
            "pools[0].features: vision: backend http",
        ),
        ("mcp", "    capabilities: [chat, tools]", 7, "pools[0].capabilities: chat, tools: backend mcp"),
        (
            "mcp",
            "",
            3,
            "pools[0].capabilities: chat: backend mcp has tools, not models; expected tools, low_cost",
        ),
        ("mcp", "    capabilities: [tools]\n    mcp: {command: [x]}", 3, "either base_url or mcp.command"),
        (
            "mcp",
            "    capabilities: [tools]\n    mcp: {env: {MY_TOKEN: abc}}",
            8,
            "MY_TOKEN: expected a reference",
        ),
        (
            "mcp",
            "    capabilities: [tools]\n    mcp: {env: {A: 'env:9x'}}",
            8,
            "A: expected env: and the name",
        ),
    ],
)
def test_o3_what_a_backend_cannot_do_is_refused_with_line_and_key(
    backend: str, more: str, line: int, says: str
) -> None:
    with pytest.raises(FleetFileError) as fault:
        parse_fleet(POOL.format(backend=backend, more=more), "f.yaml")
    assert str(fault.value).startswith(f"f.yaml:{line}: ")
    assert says in str(fault.value)
    assert "abc" not in str(fault.value)


def test_addresses_of_tools_stay_as_they_are_and_their_variables_are_asked_for() -> None:
    more = "    api_key: env:URL_KEY\n    capabilities: [tools]\n"
    more += "    mcp: {env: {T: 'env:TOOL_KEY', LEVEL: debug}}"
    fleet = to_fleet(parse_fleet(POOL.format(backend="mcp", more=more), "f.yaml"))
    assert fleet.pools[0].base_urls == ("http://x/v1",)
    assert fleet.pools[0].secret_names() == ("URL_KEY", "TOOL_KEY")
    assert missing_keys(fleet, {"URL_KEY": "x"}) == [
        "pool a: mcp.env names the environment variable TOOL_KEY, which is not set"
    ]
