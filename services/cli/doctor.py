"""`chimera doctor`: why all is slow, answers are poor, streams break, sessions mix, load makes it fail."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
from cyclopts import App, Parameter
from rich.console import Console

from services.cli.doctor_evidence import gather
from services.cli.running_fleet import find_fleet
from services.core.diagnosis import Evidence, Finding, diagnose
from services.core.diagnosis_rules import RULES

doctor_app = App(name="doctor", help="Find out what ails a fleet, and what cures it.")
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
_GRAVE = 0.5  # what weighs less is advice
_SYMPTOMS = {
    "down": "does not work",
    "slow": "all slow",
    "poor": "poor answers",
    "broken_streams": "broken streams",
    "mixed_sessions": "mixed-up sessions",
    "fails_under_load": "fails under load",
}


@doctor_app.default
def doctor(
    *,
    window_s: float = 300.0,
    probes: int = 2,
    json: bool = False,
    state_dir: Annotated[Path, Parameter(name="--state-dir")] = Path(".chimera"),
) -> None:
    """Look at heartbeats, the log of the last minutes and a few probes; name causes and cures.

    Exits 1 where something grave was found.

    Parameters
    ----------
    window_s
        How far back the log is read.
    probes
        Short questions asked of each pool at once (they cost tokens); 0 asks none.
    json
        One JSON document.
    state_dir
        Where `chimera up` keeps its state; CHIMERA_* variables win over it.
    """
    began = time.monotonic()
    evidence = asyncio.run(gather(find_fleet(state_dir), window_s, probes))
    findings = diagnose(evidence, RULES)
    if json:
        shown = {"findings": [asdict(finding) for finding in findings], "evidence": asdict(evidence)}
        print(orjson.dumps(shown, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode())
    else:
        _show(evidence, findings, time.monotonic() - began)
    if any(finding.weight >= _GRAVE for finding in findings):
        raise SystemExit(1)


def _show(evidence: Evidence, findings: list[Finding], seconds: float) -> None:
    for finding in findings:
        console.print(f"{_SYMPTOMS[finding.symptom]}: ", style="bold", end="")
        console.print(f"{finding.where}: {finding.cause}", markup=False)
        console.print(f"  cure: {finding.cure}", markup=False)
    for pool in evidence.pools:
        console.print(
            f"{pool.name}: {pool.ready} ready, {pool.in_flight}/{pool.slots} slots, {pool.queued} queued; "
            f"last {evidence.window_s:.0f} s: {pool.succeeded} succeeded, "
            f"{sum(pool.failures.values())} failed tries, p95 ms queue {pool.queue_ms[1]:.0f}, "
            f"first token {pool.first_token_ms[1]:.0f}, rest {pool.decode_ms[1]:.0f}",
            markup=False,
        )
    said = "nothing found" if not findings else f"{len(findings)} found"
    console.print(f"{said}; looked for {seconds:.1f} s")
