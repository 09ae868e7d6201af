"""CHIMERA_NO_SKIPS=1: a run in which a test was skipped has failed (a pytest plugin module).

Where everything that a test may need was installed, a skip is a fault that nobody would see.
"""

from __future__ import annotations

import os

import pytest


class _NoSkips:
    """Counts from the reports: those of other processes come by too where the run is spread over several."""

    def __init__(self) -> None:
        self._skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._skipped:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self._skipped:
            terminalreporter.write_line(f"CHIMERA_NO_SKIPS=1, but skipped: {name}")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CHIMERA_NO_SKIPS") == "1":
        config.pluginmanager.register(_NoSkips())
