"""CHIMERA_NO_SKIPS=1: a run in which a test was skipped has failed (a pytest plugin module).

Where everything that a test may need was installed, a skip is a fault that nobody would see.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

_SKIPPED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SKIPPED] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        item.config.stash[_SKIPPED].append(item.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CHIMERA_NO_SKIPS") == "1" and session.config.stash[_SKIPPED]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if os.environ.get("CHIMERA_NO_SKIPS") == "1":
        for name in config.stash[_SKIPPED]:
            terminalreporter.write_line(f"CHIMERA_NO_SKIPS=1, but skipped: {name}")
