"""What one worker process is told: which pool it serves, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from services.core.fleet_table import ADOPT_AFTER_S
from services.core.order import OrderName
from services.core.reroute import RerouteLaw
from services.runtime.settings import ServiceSettings

_LEAST_LOOK_S = 0.05
_LEAST_ADOPT_S = 2.0  # ten beats at the least scale: a worker that is busy starting must be heard
_LEAST_HOLD_S = 3.0  # three renewals: one must get through though the machine or the broker is busy
_LEAST_BEAT_S = 0.2  # however small the scale: what others wait for a beat is not scaled


@dataclass(frozen=True, slots=True)
class WorkerKnobs:
    """Times in seconds. The defaults are those of LIFECYCLE; tests scale the times."""

    announce_s: float = 0.025  # a try that lasts longer is announced: by law at 50 ms, but the record travels
    journal_s: float = 0.02  # an announcement that waits longer for the log is kept on this machine
    chunk_flush_s: float = 0.04
    chunk_events: int = 32
    chunk_backlog: int = 4_096  # chunk records that wait for their producer; more are dropped, to be repaired
    chunk_backlog_bytes: int = 32 * 1024 * 1024
    commit_every_s: float = 0.15
    commit_after: int = 64  # completions
    ack_timeout_s: float = 5.0
    send_again_s: float = 0.25  # first pause after an unacknowledged record; doubles up to 8 of them
    handover_s: float = 0.8  # of the second that a revoke may take
    hold_s: float = 30.0  # a task parked with this worker is due that long after its last renewal
    renew_s: float = 10.0
    drain_s: float = 30.0
    settle_s: float = 5.0  # after the drain: for acknowledgements still under way
    tick_s: float = 0.25
    beat_s: float = 1.0  # between heartbeats on `fleet`; who is silent for 3 s is dead to others
    beat_timeout_s: float = 1.0
    device_expires_s: float = 10.0  # without a word of a worker its claims on a shared device are void
    claim_every_s: float = 0.05
    claim_falls_after_s: float = 2.0
    poll_ms: int = 250
    poll_records: int = 500
    order: OrderName = "fcfs"  # of a tenant's own tasks within a priority
    tenant_burst_tokens: float = 5_120.0  # weighted: what a tenant that asked little is ahead of the others
    held_tasks: int = 10_000
    held_bytes: int = 256 * 1024 * 1024
    unsettled: int = 4_096  # ended tries whose record is not acknowledged; beyond, nothing new starts
    max_record_bytes: int = 512 * 1024  # of a lane record: more would not fit a parked envelope
    longest_deadline_s: float = 7 * 86_400.0
    look_s: float = 0.25  # between looks at a backend that does not serve yet; doubles up to 8 of them
    metrics_s: float = 2.0  # between looks at a backend's own metrics
    warm_up_s: float = 30.0  # the longest that the one call of a warm-up is waited for
    move_batch: int = 32  # tasks that are looked at for another lane in one tick
    adopt_after_s: float = ADOPT_AFTER_S  # without a ready or loading beat of a pool its lanes are adopted
    adopt_look_s: float = 1.0
    adopt_in_flight: int = 64  # records of an adopted lane that are under way to another one
    reroute: RerouteLaw = RerouteLaw()  # noqa: RUF009 - frozen
    stalled_s: float = 90.0  # a loop that did not turn for that long is dead; a rebalance may take 30

    def scaled(self, factor: float) -> WorkerKnobs:
        """All waiting times by `factor`; counts, acknowledgement time-outs and the longest deadline stay."""
        return replace(
            self,
            announce_s=self.announce_s * factor,
            journal_s=self.journal_s * factor,
            chunk_flush_s=self.chunk_flush_s * factor,
            commit_every_s=self.commit_every_s * factor,
            send_again_s=self.send_again_s * factor,
            hold_s=max(_LEAST_HOLD_S, self.hold_s * factor),
            renew_s=max(_LEAST_HOLD_S / 3, self.renew_s * factor),
            tick_s=self.tick_s * factor,
            look_s=max(_LEAST_LOOK_S, self.look_s * factor),
            beat_s=max(_LEAST_BEAT_S, self.beat_s * factor),
            device_expires_s=max(10 * _LEAST_BEAT_S, self.device_expires_s * factor),
            claim_falls_after_s=self.claim_falls_after_s * factor,
            poll_ms=max(20, int(self.poll_ms * factor)),
            adopt_after_s=max(_LEAST_ADOPT_S, self.adopt_after_s * factor),
            adopt_look_s=max(_LEAST_BEAT_S, self.adopt_look_s * factor),
            reroute=self.reroute.scaled(factor),
        )


class WorkerSettings(ServiceSettings):
    """`CHIMERA_POOL` names the pool of the fleet file that this process serves."""

    pool: str = Field(min_length=1, description="name of the pool in the fleet file")
    worker_id: str = Field(default="", max_length=128, description="empty: pool, host, pid and a random part")
    journal_dir: Path | None = Field(
        default=None,
        description="tries that the log is slow to hear of are kept here for the next worker on this machine;"
        " default: `journal` beside blob_dir",
    )
    order: OrderName = Field(default="fcfs", description="of a tenant's own tasks within a priority")
    tenant_burst_tokens: float = Field(
        default=5_120.0,
        ge=0,
        description="weighted tokens that a tenant which asked for less than its share is ahead",
    )

    def journal_of(self, prefix: str) -> Path:
        """The fleet's own folder in it."""
        return (self.journal_dir or self.blob_dir.parent / "journal") / (prefix.strip(".") or "fleet")

    def knobs(self) -> WorkerKnobs:
        scaled = WorkerKnobs().scaled(self.time_scale)
        return replace(
            scaled, drain_s=self.drain_s, order=self.order, tenant_burst_tokens=self.tenant_burst_tokens
        )
