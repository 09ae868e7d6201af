"""What others wrote (reasons, names, faults of a fleet file) is printed as it is, never read as markup."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from rich.console import Console
from rich.table import Table

import services.cli
from services.cli import top

NASTY = "[/red]a[bold]b :smile: [1]"
MODULES = sorted(f"services.cli.{found.name}" for found in pkgutil.iter_modules(services.cli.__path__))


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_no_console_reads_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A live edit of a fleet file with the name "[/red]" ended `chimera up`, and the fleet with it."""
    console = getattr(importlib.import_module(name), "console", None)
    if not isinstance(console, Console):
        return
    console.print(NASTY)
    table = Table("reason", min_width=40)
    table.add_row(NASTY)
    console.print(table)
    assert capsys.readouterr().out.count(NASTY) == 2


def test_top_shows_what_backends_are_called(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = dict.fromkeys(("ready", "loading", "dead", "slots", "in_flight", "queued", "queue_s"), 1)
    rates = dict.fromkeys(("done_per_s", "tokens_per_s", "queue_ms", "first_token_ms"), 0.5)
    row = {"pool": "p", "mode": "running", **numbers, **rates, "failures_per_s": {}, "backends": [NASTY]}
    top._console(width=240).print(top._table([row], 240))
    told = capsys.readouterr().out
    assert NASTY in told
    assert "1 +1 loading 1 dead" in told
