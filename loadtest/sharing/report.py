"""The figures as lines: what each arm waited, and the ratios that are promised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadtest.sharing.load import BATCH, FLOODING, INTERACTIVE, SLOTS, TENANT_WORK, TENANTS
from loadtest.sharing.outcomes import Arm

Part = Literal["batch", "tenants"]
MOST_RATIO, LEAST_SHARE, LEAST_WAIT_MS = 1.2, 0.8, 20.0


def _held(good: bool) -> str:
    return "held" if good else "MISSED"


@dataclass(frozen=True, slots=True)
class BesideBatch:
    """Interactive work alone, and beside batch work offered for three times all slots."""

    plain: Arm
    loaded: Arm
    load: str

    @property
    def ratio(self) -> float:
        return self.loaded.p95_ms() / self.plain.p95_ms()

    @property
    def batch_share(self) -> float:
        return self.loaded.spare_share("batch")

    @property
    def kept(self) -> bool:
        enough = self.plain.p95_ms() >= LEAST_WAIT_MS
        return enough and self.ratio <= MOST_RATIO and self.batch_share >= LEAST_SHARE

    def lines(self) -> list[str]:
        plain, loaded, lost = self.plain, self.loaded, self.loaded.spare_share("lost")
        share = self.batch_share
        return [
            f"interactive beside batch: {SLOTS} slots; interactive {INTERACTIVE} at 70 % of them,",
            f"  batch {BATCH} offered for 300 % of them; machine load {self.load}",
            f"  interactive alone: {len(plain.waits())} tasks, {plain.busy_share:.0%} of the slots",
            (
                f"    queue wait p50 {plain.p50_ms():.0f} ms, p95 {plain.p95_ms():.0f} ms;"
                f" first token p95 {plain.first_p95_ms():.0f} ms"
            ),
            f"  with batch: {len(loaded.waits())} tasks, {loaded.busy_share:.0%} of the slots",
            (
                f"    queue wait p50 {loaded.p50_ms():.0f} ms, p95 {loaded.p95_ms():.0f} ms;"
                f" first token p95 {loaded.first_p95_ms():.0f} ms"
            ),
            f"  ratio of p95: {self.ratio:.2f} (at most {MOST_RATIO}: {_held(self.ratio <= MOST_RATIO)})",
            (
                f"  batch got {share:.0%} of the spare slot time (at least {LEAST_SHARE:.0%}:"
                f" {_held(share >= LEAST_SHARE)}); {loaded.evictions} evictions lost {lost:.0%} of it"
            ),
        ]


@dataclass(frozen=True, slots=True)
class BesideFlood:
    """Tenants at a steady rate, and the same beside one of them that floods."""

    plain: Arm
    loaded: Arm
    load: str

    @property
    def ratio(self) -> float:
        return self.loaded.p95_ms(without=FLOODING) / self.plain.p95_ms(without=FLOODING)

    @property
    def kept(self) -> bool:
        return self.ratio <= MOST_RATIO

    def lines(self) -> list[str]:
        plain, loaded = self.plain, self.loaded
        return [
            f"tenants: {SLOTS} slots, {len(TENANTS)} tenants with tasks {TENANT_WORK}, each at 20 % of the",
            f"  slots; then one of them at 200 %; machine load {self.load}",
            f"  the others, none floods: {len(plain.waits(without=FLOODING))} tasks, {_waits(plain)}",
            f"  the others, one floods: {len(loaded.waits(without=FLOODING))} tasks, {_waits(loaded)}",
            f"  ratio of p95: {self.ratio:.2f} (at most {MOST_RATIO}: {_held(self.ratio <= MOST_RATIO)})",
        ]


def _waits(arm: Arm) -> str:
    p50, p95 = arm.p50_ms(without=FLOODING), arm.p95_ms(without=FLOODING)
    return f"queue wait p50 {p50:.0f} ms, p95 {p95:.0f} ms"
