"""What a streaming client may count on, whatever server spoke; and one call through a worker to see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.worker_rig import WorkerRig, chat

RECORDED = Path(__file__).parent / "dialects"
DIALECTS = sorted({path.name.split(".")[0] for path in RECORDED.glob("*.sse")})
TEXT = "Héllo wörld 🙂"
CALLS = [
    ("call_a", "weather", '{"city": "Zürich"}'),
    ("call_b", "weather", '{"city": "東京"}'),
]
FOREIGN = ("timings", "prompt_progress", "__verbose", "error")


def recorded(dialect: str, kind: str) -> bytes:
    """A stream as that server frames it: `kind` text says TEXT, tools makes CALLS; usage is 11 and 5."""
    return (RECORDED / f"{dialect}.{kind}.sse").read_bytes()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client puts together from plain chunks: text, calls and finish of the first choice."""

    text: str
    calls: list[tuple[str, str, str]]
    finish: str | None
    usage: dict[str, Any] | None


def check_plain(events: Sequence[dict[str, Any]], *, usage_asked: bool) -> None:
    """Fails where a chunk has anything that OpenAI's own stream would not have."""
    assert len({(event["id"], event["object"], event["created"], event["model"]) for event in events}) == 1
    assert not [name for event in events for name in FOREIGN if name in event]
    spoken = list(events)
    if usage_asked:
        last = spoken.pop()
        assert last["choices"] == []
        assert last["usage"] is not None
        assert all("usage" in event and event["usage"] is None for event in spoken)
    else:
        assert not [event for event in spoken if "usage" in event]
    assert all(event["choices"] for event in spoken)
    roles: Counter[int] = Counter()
    finished: set[int] = set()
    for choice in (choice for event in spoken for choice in event["choices"]):
        index = choice["index"]
        assert index not in finished, "something is said of a choice behind its end"
        assert ("role" in choice["delta"]) == (not roles[index]), "the role comes once, and first"
        roles[index] += 1
        if choice["finish_reason"] is not None:
            finished.add(index)
    assert finished == set(roles)


def seen(events: Sequence[dict[str, Any]]) -> Seen:
    """As a client joins it: strings added up by index, also ids and names, which must therefore come once."""
    text, finish = "", None
    calls: dict[int, list[str]] = {}
    for event in events:
        for choice in event["choices"]:
            if choice["index"] != 0:
                continue
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
            for part in choice["delta"].get("tool_calls") or ():
                held = calls.setdefault(part["index"], ["", "", ""])
                function = part.get("function") or {}
                said = (part.get("id"), function.get("name"), function.get("arguments"))
                calls[part["index"]] = [old + (new or "") for old, new in zip(held, said, strict=True)]
    usages = [event["usage"] for event in events if event.get("usage")]
    joined = [(call[0], call[1], call[2]) for _, call in sorted(calls.items())]
    return Seen(text, joined, finish, usages[0] if usages else None)


async def streamed(
    rig: WorkerRig, script: dict[str, Any], *, usage: bool = True, **fields: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The chunks that a client of this call gets, and the whole answer of its record."""
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    task_id = await rig.submit(chat(x_script=script, stream=True, **options, **fields), stream=True)
    return await rig.events(task_id), await rig.answer(task_id)
