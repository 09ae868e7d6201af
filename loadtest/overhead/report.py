"""The figures of one run as a table for people and as JSON for files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from loadtest.overhead.statistics import Latency, Measured


@dataclass(frozen=True, slots=True)
class Cell:
    """All rounds of one subject (direct, floor, path), whole or streamed, at one rate."""

    subject: str
    stream: bool
    rate: int
    rounds: tuple[Measured, ...]

    @property
    def done(self) -> Latency:
        return Latency.median([one.done for one in self.rounds])

    @property
    def first(self) -> Latency | None:
        firsts = [one.first for one in self.rounds if one.first is not None]
        return Latency.median(firsts) if firsts else None

    @property
    def completed(self) -> float:
        return sum(one.completed for one in self.rounds) / max(1, sum(one.sent for one in self.rounds))

    @property
    def growth(self) -> float:
        return statistics.median(one.growth for one in self.rounds)

    @property
    def held(self) -> bool:
        return sum(one.held for one in self.rounds) * 2 > len(self.rounds)


@dataclass(frozen=True, slots=True)
class Report:
    """`cpu_ms` is CPU per request of each process, in milliseconds, by (streamed, rate)."""

    broker: str
    cells: tuple[Cell, ...]
    cpu_ms: Mapping[tuple[bool, int], Mapping[str, float]]
    checks: tuple[str, ...]
    load: str

    def cell(self, subject: str, rate: int, *, stream: bool = False) -> Cell:
        return next(c for c in self.cells if (c.subject, c.stream, c.rate) == (subject, stream, rate))

    def ratios(self, rate: int) -> tuple[float, float]:
        """What the path adds to a direct call over the floor's latency: at p50 and at p95 (whole answers)."""
        path, direct = self.cell("path", rate).done, self.cell("direct", rate).done
        floor = self.cell("floor", rate).done
        return (path.p50 - direct.p50) / floor.p50, (path.p95 - direct.p95) / floor.p95

    def table(self) -> Table:
        table = Table(title=f"broker {self.broker}: milliseconds, median of the rounds; load {self.load}")
        for column in (
            "rate",
            "what",
            "p50",
            "p95",
            "p99",
            "first p50",
            "first p95",
            "done",
            "growth",
            "held",
        ):
            table.add_column(column, justify="right")
        for cell in sorted(self.cells, key=lambda c: (c.rate, c.stream, c.subject)):
            first = cell.first
            table.add_row(
                *(str(cell.rate), f"{cell.subject}{' streamed' if cell.stream else ''}"),
                *(f"{value:.1f}" for value in (cell.done.p50, cell.done.p95, cell.done.p99)),
                *((f"{first.p50:.1f}", f"{first.p95:.1f}") if first else ("", "")),
                *(f"{cell.completed:.1%}", f"{cell.growth:.2f}", "yes" if cell.held else "no"),
            )
        return table

    def lines(self) -> list[str]:
        """The ratios, the CPU and the checks as text."""
        rates = sorted({cell.rate for cell in self.cells})
        lines = [
            f"at {rate}/s: added p50 is {p50:.2f} times the floor's p50, added p95 {p95:.2f} times its p95"
            for rate in rates
            for p50, p95 in [self.ratios(rate)]
        ]
        for (stream, rate), used in sorted(self.cpu_ms.items()):
            shares = ", ".join(f"{name} {ms:.2f}" for name, ms in sorted(used.items()))
            lines.append(f"CPU ms per {'streamed' if stream else 'whole'} chat at {rate}/s: {shares}")
        return [*lines, *self.checks]

    def as_json(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "load": self.load,
            "cells": [
                {
                    "subject": cell.subject,
                    "stream": cell.stream,
                    "rate": cell.rate,
                    "done_ms": cell.done,
                    "first_ms": cell.first,
                    "completed": cell.completed,
                    "growth": cell.growth,
                    "held": cell.held,
                }
                for cell in self.cells
            ],
            "cpu_ms": [
                {"stream": stream, "rate": rate, **used} for (stream, rate), used in self.cpu_ms.items()
            ],
            "checks": list(self.checks),
        }
