"""Messages on `fleet`: what workers say of themselves and claim of devices, what operators say to pools.

The topic is compacted and every router keeps it as a table, so each message is the whole state behind its
key; a record without a value takes the key out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.messages import Id, Millis

WorkerState = Literal["loading", "ready", "draining"]
BackendHealth = Literal["healthy", "slow", "unavailable"]
PoolMode = Literal["running", "paused", "draining"]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Owned = Annotated[tuple[int, ...], Field(max_length=256)]  # partitions: no lane has more


class FleetMessage(BaseModel):
    """What all of them share: who says it, and when by the sayer's clock."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sent_ms: Millis

    @property
    @abstractmethod
    def key(self) -> str:
        """The record's key."""


class BackendState(BaseModel):
    """One backend of a pool as its worker sees it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    base_url: str
    health: BackendHealth = "healthy"
    breaker: Literal["closed", "open", "half_open"] = "closed"
    in_flight: int = 0
    tokens_in_flight: float = 0.0
    waiting: float | None = None  # requests that wait inside the server, where it tells


class WorkerBeat(FleetMessage):
    """A worker's heartbeat, every second. Key `worker/{worker}`; taken out when it leaves.

    slots: how many tries it may run now; in_flight: how many it does; queued, queue_seconds: what waits, and
    the predicted work of it (seconds of one slot); quiet_s: seconds since a running try last made progress (a
    token, a start, an end), 0 where nothing runs; owns: partitions by lane topic, adopted lanes too; running:
    tasks with a slot, at most 256 of them.
    """

    worker: Id
    pool: str
    state: WorkerState
    slots: int = Field(ge=0)
    in_flight: int = Field(ge=0)
    queued: int = Field(default=0, ge=0)
    queue_seconds: Share = 0.0
    service_seconds: Share = 0.0  # of a usual task, as seen lately; 0: none seen
    quiet_s: Share = 0.0
    owns: Mapping[str, Owned] = {}
    adopted: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    backends: tuple[BackendState, ...] = ()
    started_ms: Millis = 0

    @property
    def key(self) -> str:
        return f"worker/{self.worker}"


class SlotClaim(FleetMessage):
    """How many slots of a shared device a worker wants and still uses. Key `device/{device}/{worker}`.

    Granted by folding the log in its order: every reader grants the same (`services/core/device_slots.py`).
    """

    worker: Id
    pool: str
    device: str
    wants: int = Field(ge=0)
    uses: int = Field(ge=0)

    @property
    def key(self) -> str:
        return f"device/{self.device}/{self.worker}"


class PoolOrder(FleetMessage):
    """What an operator wants of a pool. Key `pool/{pool}`; stands until the next one.

    paused: its workers start nothing, what waits stays; draining: they start nothing, and what waits moves to
    other pools where it may, else it waits.
    """

    pool: str
    mode: PoolMode
    by: str = ""
    reason: str = ""

    @property
    def key(self) -> str:
        return f"pool/{self.pool}"


FLEET_TYPES: Mapping[str, type[FleetMessage]] = {
    message.__name__: message for message in (WorkerBeat, SlotClaim, PoolOrder)
}
