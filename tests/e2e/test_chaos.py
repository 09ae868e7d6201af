"""Two short seeds of the chaos run, whole: real processes, three Kafka nodes, PostgreSQL, four readers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from loadtest.chaos.report import SeedReport
from loadtest.chaos.run import ChaosOptions, run_chaos
from loadtest.chaos.schedule import BROKER_KINDS

pytestmark = pytest.mark.asyncio(loop_scope="module")
# 112: a worker, both ingresses and the orchestrator die, a node hangs, backends lie and hang.
# 127: a worker dies, the database hangs, all nodes restart at once, backends refuse and hang.
SEEDS = (112, 127)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reports(
    kafka_possible: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[SeedReport]]:
    """Times are bounded by ten times what is promised: a busy machine is no breach."""
    folder: Path = tmp_path_factory.mktemp("chaos")
    options = ChaosOptions(
        SEEDS, seconds=9.0, others=(3, 4), rate=15.0, settle_s=300.0, unheard_s=0.5, evidence=folder
    )
    yield await run_chaos(options, print)


async def test_every_accepted_task_has_one_outcome_for_client_ingress_rows_and_log(
    reports: list[SeedReport],
) -> None:
    """And every attempt its ledger row; whatever died, hung, broke or lied meanwhile."""
    for report in reports:
        assert report.unhealed == ()
        assert report.verdict.breaches == ()
        assert report.verdict.outcomes["succeeded"] > 0
        assert report.live_s is not None


async def test_the_seeds_struck_what_they_are_here_for(reports: list[SeedReport]) -> None:
    """A change of the drawing must not leave a run without faults, nor kill workers while brokers are away:
    what a worker could not say before it died is nobody's to find."""
    for report in reports:
        kinds = {fault.kind for fault in report.faults}
        assert {"worker_kill", "backend"} < kinds
        kills = [fault.at_s for fault in report.faults if fault.kind == "worker_kill"]
        brokers = [fault.at_s for fault in report.faults if fault.kind in BROKER_KINDS]
        assert brokers
        assert max(kills) < min(brokers)
