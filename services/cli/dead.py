"""`chimera dead list|show|replay`: what could not be done, why, and once more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from services.cli.dead_replay import Plan, ReplayLimits, plan, read_letters, send
from services.cli.running_fleet import find_fleet
from services.core.dead_letters import DeadLetter, Filter, by_cause

dead_app = App(name="dead", help="Dead letters: what could not be done, why, and once more.")
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
StateOption = Annotated[Path, Parameter(name="--state-dir")]
_SHOWN_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Which:
    """Which letters a command is about.

    Parameters
    ----------
    cause
        Only letters whose cause or reason has this text in it.
    lane
        Only letters of lanes whose name has this text in it.
    task_id
        Only this task's letter.
    tenant
        Only letters of this tenant.
    since_s
        Only letters of the last so many seconds.
    """

    cause: str | None = None
    lane: str | None = None
    task_id: str | None = None
    tenant: str | None = None
    since_s: float | None = None

    def filter(self) -> Filter:
        since_ms = 0 if self.since_s is None else int((time.time() - self.since_s) * 1000)
        return Filter(self.cause, self.lane, self.task_id, self.tenant, since_ms)


WhichOptions = Annotated[Which, Parameter(name="*")]
_ALL = Which()


@dead_app.command(name="list")
def list_(
    *,
    which: WhichOptions = _ALL,
    each: bool = False,
    json: bool = False,
    state_dir: StateOption = Path(".chimera"),
) -> None:
    """Show dead letters, grouped by cause.

    Parameters
    ----------
    each
        Every letter by itself instead of groups.
    json
        One JSON document instead of a table.
    state_dir
        Where `chimera up` keeps its state; CHIMERA_* variables win over it.
    """
    chosen = _chosen(state_dir, which.filter())
    shown = [_letter(letter) for letter in chosen] if each else _groups(chosen)
    if json:
        print(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
        return
    if not shown:
        console.print("no dead letters")
        return
    names = [name for name in shown[0] if name != "headers"]
    table = Table(*names)
    for row in shown:
        table.add_row(*(str(row[name]) for name in names))
    console.print(table)


@dead_app.command
def show(letter: str, *, json: bool = False, state_dir: StateOption = Path(".chimera")) -> None:
    """Show one letter whole: reason, origin, headers and the original bytes.

    Parameters
    ----------
    letter
        A task id, or `partition/offset` in tasks.dead as `list --each` shows it.
    """
    found = [one for one in _chosen(state_dir, Filter()) if letter in (one.task_id, _place(one))]
    if not found:
        raise ValueError(f"no dead letter {letter}: expected a task id, or partition/offset (list --each)")
    for one in found:
        whole = {**_letter(one), "value": (one.value or b"").decode("utf-8", "backslashreplace")}
        if json:
            print(orjson.dumps(whole, option=orjson.OPT_INDENT_2).decode())
            continue
        for name, value in whole.items():
            if name == "headers":
                console.print("headers:")
                for header, said in one.headers.items():
                    console.print(f"  {header}: {said}", markup=False)
            else:
                console.print(f"{name}: {str(value)[:_SHOWN_BYTES]}", markup=False)


@dead_app.command
def replay(
    *,
    which: WhichOptions = _ALL,
    n: int = 1,
    most: int | None = None,
    budget_usd: float | None = None,
    deadline_s: float | None = None,
    dry_run: bool = False,
    json: bool = False,
    state_dir: StateOption = Path(".chimera"),
) -> None:
    """Send letters again as new tasks; the n-th replay of a letter is one task, sent until it has ended.

    Parameters
    ----------
    n
        Which replay this is: another number is another task.
    most
        At most so many tasks.
    budget_usd
        Only as many as cost no more than this even at worst: all tries, longest answers.
    deadline_s
        Seconds that each has from now; what its priority has by default.
    dry_run
        Say what would be sent, and send nothing.
    """
    if n < 1:
        raise ValueError(f"--n {n}: expected at least 1")
    limits = ReplayLimits(n, most, budget_usd, deadline_s)
    asyncio.run(_replay(state_dir, which.filter(), limits, dry_run, json))


async def _replay(
    state_dir: Path, wanted: Filter, limits: ReplayLimits, dry_run: bool, as_json: bool
) -> None:
    running = find_fleet(state_dir)
    letters = [letter for letter in await read_letters(running) if wanted.takes(letter)]
    found = await plan(running, letters, limits)
    sent = 0 if dry_run else await send(running, [one for _, one in found.replays])
    if as_json:
        print(orjson.dumps(_planned(found, sent), option=orjson.OPT_INDENT_2).decode())
        return
    for letter, one in found.replays:
        console.print(
            f"{'would send' if dry_run else 'sent'} {one.old} as {one.task.task_id}: {letter.cause}"
        )
    for letter, why in found.refused:
        console.print(f"cannot be sent again: {letter.task_id or _place(letter)}: {why}", markup=False)
    left = f", {found.left_out} left out by the limits" if found.left_out else ""
    console.print(
        f"{len(found.replays)} of {len(letters)} letters{' (dry run)' if dry_run else ''}, "
        f"at worst {found.worst_usd:.4f} USD{left}"
    )


def _planned(found: Plan, sent: int) -> dict[str, Any]:
    return {
        "sent": sent,
        "replays": [{"replay_of": one.old, "task_id": one.task.task_id} for _, one in found.replays],
        "refused": [{"letter": _place(letter), "why": why} for letter, why in found.refused],
        "left_out": found.left_out,
        "worst_usd": found.worst_usd,
    }


def _chosen(state_dir: Path, wanted: Filter) -> list[DeadLetter]:
    letters = asyncio.run(read_letters(find_fleet(state_dir)))
    return [letter for letter in letters if wanted.takes(letter)]


def _place(letter: DeadLetter) -> str:
    return f"{letter.partition}/{letter.offset}"


def _when(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))


def _groups(letters: Sequence[DeadLetter]) -> list[dict[str, Any]]:
    return [
        {
            "count": cause.count,
            "cause": cause.cause,
            "lane": cause.lane,
            "first": _when(cause.first_ms),
            "last": _when(cause.last_ms),
            "example": cause.example.task_id or _place(cause.example),
        }
        for cause in by_cause(letters)
    ]


def _letter(letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": _place(letter),
        "at": _when(letter.at_ms),
        "task": letter.task_id,
        "reason": letter.reason,
        "tries": letter.tries,
        "origin": letter.origin,
        "bytes": len(letter.value or b""),
        "headers": dict(letter.headers),
    }
