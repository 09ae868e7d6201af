"""What the orchestrator process is told, and the bookkeeper's waiting times."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import Field

from services.runtime.settings import ServiceSettings


@dataclass(frozen=True, slots=True)
class BookkeeperKnobs:
    """Times in seconds unless the name says otherwise."""

    poll_ms: int = 250
    poll_records: int = 2_000
    gather_s: float = 0.2  # nobody waits for the rows, and a transaction costs the same for many records
    ack_timeout_s: float = 5.0
    retry_s: float = 0.25  # first pause after the database or the broker failed; doubles up to retry_most_s
    retry_most_s: float = 5.0
    sweep_every_s: float = 1.0
    sweep_limit: int = 500
    proof_timeout_s: float = 10.0  # for a sweep to read its own mark back
    lost_after_s: float = 60.0  # after its deadline a try that nobody heard of is lost
    lost_every_s: float = 1.0  # between looks for tries of workers that are dead in `fleet`
    unheard_grace_s: float = 10.0  # for a worker that is in no table to be heard of
    bury_every_s: float = 60.0  # between looks for workers that have been dead for long
    purge_every_s: float = 300.0
    stalled_s: float = 60.0  # a loop that did not turn for that long is dead

    def scaled(self, factor: float) -> BookkeeperKnobs:
        """All waiting times by `factor`; counts and time-outs of others' answers stay."""
        return replace(
            self,
            poll_ms=max(20, int(self.poll_ms * factor)),
            gather_s=self.gather_s * factor,
            retry_s=self.retry_s * factor,
            retry_most_s=self.retry_most_s * factor,
            sweep_every_s=self.sweep_every_s * factor,
            lost_after_s=self.lost_after_s * factor,
            lost_every_s=self.lost_every_s * factor,
            purge_every_s=self.purge_every_s * factor,
        )


class OrchestratorSettings(ServiceSettings):
    """`CHIMERA_*` variables of the orchestrator."""

    database_timeout_s: float = Field(default=5.0, gt=0, description="seconds that a transaction may take")
    sweep_interval_s: float = Field(default=1.0, gt=0, description="seconds between sweeps of parked tasks")
    instance_id: str = Field(default="", max_length=128, description="empty: host and pid")

    def knobs(self) -> BookkeeperKnobs:
        return BookkeeperKnobs(sweep_every_s=self.sweep_interval_s).scaled(self.time_scale)
