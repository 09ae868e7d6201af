"""A lane of a pool without workers, read in that lane's own group by the worker that adopted it.

Law: nothing of it is tried here. A record is done once another lane, a parked row or its end holds the task;
what is not done when the adopter leaves comes again to who follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from schemas.failures import FailureKind
from schemas.messages import Failure
from schemas.topics import TopicNames
from services.core.reroute import Fail, Here, Move, Park, Stay, reroute
from services.ports import BlobStore, Clock, GroupSource, InRecord, RecordTooLargeError
from services.runtime.current_fleet import CurrentFleet
from services.runtime.set_aside import fitted
from services.worker_pools.claimed_body import claim_body
from services.worker_pools.desk import Desk
from services.worker_pools.held import Held, Position
from services.worker_pools.intake import Odd, read_record
from services.worker_pools.lane import Lane
from services.worker_pools.moving import Moving
from services.worker_pools.reports import Reports
from services.worker_pools.settings import WorkerKnobs

log = structlog.get_logger(__name__)
_STORE_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class AdopterParts:
    """What every adopted lane works with."""

    worker: str
    fleet: CurrentFleet
    moving: Moving
    reports: Reports
    desk: Desk
    blobs: BlobStore
    clock: Clock
    new_id: Callable[[], str]
    knobs: WorkerKnobs


class AdoptedLane:
    """LaneOwner of one lane. `run` until cancelled, then `leave`."""

    def __init__(self, pool: str, priority: str, source: GroupSource, parts: AdopterParts) -> None:
        self._pool, self._parts, self._knobs = pool, parts, parts.knobs
        names = TopicNames(parts.fleet.now.prefix)
        self.topic = names.lane(pool, priority)
        group = names.lane_group(pool, priority)
        self._lane = Lane(priority, group, source, self, parts.clock, parts.knobs)
        self._under_way: dict[tuple[str, int, int], asyncio.Task[None]] = {}

    @property
    def owned(self) -> tuple[int, ...]:
        return self._lane.owned

    async def run(self) -> None:
        await self._lane.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lane.offsets.commit_forever(self._knobs.commit_every_s))
            await self._lane.poll_forever()

    async def leave(self) -> None:
        """What is under way is given a moment, what was done is committed."""
        self._lane.stop_polling()
        await self._settled_within(self._knobs.handover_s)
        for task in self._under_way.values():
            task.cancel()
        await self._lane.offsets.commit()
        await self._lane.leave()

    # LaneOwner

    def room(self, priority: str) -> int:  # noqa: ARG002 - it has one
        return max(0, self._knobs.adopt_in_flight - len(self._under_way))

    def holds(self, task_id: str | None, position: Position) -> bool:  # noqa: ARG002 - a place is enough
        return position.spot in self._under_way

    def arrived(self, record: InRecord, position: Position, *, redelivered: bool) -> None:
        found = read_record(
            record,
            position.priority,
            partitions=self._parts.fleet.now.partitions,
            max_bytes=self._knobs.max_record_bytes,
            redelivered=redelivered,
        )
        task = asyncio.create_task(self._settle(found, position))
        self._under_way[position.spot] = task
        task.add_done_callback(lambda ended: self._over(position, ended))

    def _over(self, position: Position, ended: asyncio.Task[None]) -> None:
        if self._under_way.get(position.spot) is ended:
            del self._under_way[position.spot]

    def read_on(self) -> None:
        """Every record is on its way already."""

    async def span_is_full(self, priority: str, partition: int, head: int) -> None:
        """Its head is on its way."""

    async def revoked(self, priority: str, partitions: Collection[int]) -> None:  # noqa: ARG002 - all
        await self._settled_within(self._knobs.handover_s)

    def assigned(self, priority: str) -> None:
        """What is under way goes on: a completion of a lost partition changes nothing."""

    async def _settled_within(self, seconds: float) -> None:
        if self._under_way:
            await asyncio.wait(tuple(self._under_way.values()), timeout=seconds)

    # one record

    async def _settle(self, found: Held | Odd, position: Position) -> None:
        try:
            await (self._put_away(found) if isinstance(found, Odd) else self._rerouted(found))
        except Exception:
            # Not done: it comes again, here or to the lane's own worker.
            log.exception("a record of an adopted lane is left where it is", lane=self.topic)
            return
        self._lane.offsets.done(position.place)

    async def _put_away(self, odd: Odd) -> None:
        log.error("not a task", fate=odd.fate, reason=odd.reason, task_id=odd.task_id, lane=self.topic)
        for record in self._parts.reports.put_away(odd):
            await self._parts.reports.deliver(await fitted(record, self._parts.blobs))

    async def _rerouted(self, held: Held) -> None:
        """Returns once another record holds or ends the task."""
        parts = self._parts
        cancelled = parts.desk.stones.cancelled(held.task_id)
        if cancelled is not None:
            if cancelled == "poison":
                await parts.reports.deliver(parts.reports.dead(held, cancelled))
            return
        facts = parts.moving.facts(held)
        if facts is None:
            await self._undecodable(held)
            return
        here, now_s = Here(self._pool, parts.worker, "orphaned"), parts.clock.now_s()
        step = reroute(facts, here, parts.moving.snapshot(), self._knobs.reroute, now_s)
        match step:
            case Move():
                parts.moving.chosen(step)
                try:
                    await parts.moving.send(held, step)
                except RecordTooLargeError:  # parked, its body is a claim, and the next move fits
                    await self._park(held, now_s)
            case Park():
                await self._park(held, step.due_s)
            case Fail():
                log.info("orphaned task failed", task_id=held.task_id, reason=step.failure.message)
                await parts.reports.deliver(parts.reports.failed_untried(held, step.failure))
            case Stay():
                raise AssertionError("nothing stays on an adopted lane")

    async def _park(self, held: Held, due_s: float) -> None:
        """Under an id of its own, which no attempt has: no row that was there before may outlive this one."""
        due_ms = int(due_s * 1000)
        held.headers = held.headers.with_changes(not_before_ms=due_ms)
        while True:
            try:
                await claim_body(held, self._parts.blobs)
                break
            except OSError as fault:
                log.warning("body not claimed, tried again", task_id=held.task_id, fault=str(fault))
            await self._parts.clock.sleep(_STORE_AGAIN_S)
        record = self._parts.reports.parked(held, self._parts.new_id(), due_ms, envelope=True)
        await self._parts.reports.deliver(record)

    async def _undecodable(self, held: Held) -> None:
        reason = "RunTask: not what its headers say"
        failure = Failure(kind=FailureKind.UNDECODABLE, message=reason)
        await self._parts.reports.deliver(self._parts.reports.dead(held, reason))
        await self._parts.reports.deliver(self._parts.reports.failed_untried(held, failure))
