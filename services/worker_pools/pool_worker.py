"""One process in front of one pool: reads its lanes, runs `slots` tries at once, reports on `results`.

A task is, in this order: arrived (queued), served (a slot; decoded, tried), settled (its slot is free; what
its end means is being acknowledged), let go of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import structlog

from schemas.failures import FailureKind
from schemas.messages import CancelTask
from services.core.fleet import Fleet, Pool
from services.ports import InRecord
from services.runtime.set_aside import fitted
from services.worker_pools.away import away
from services.worker_pools.backends import Backends
from services.worker_pools.crew import Identity, assembled
from services.worker_pools.held import Held, Phase, Position
from services.worker_pools.intake import Odd, read_record
from services.worker_pools.lane import Lane
from services.worker_pools.parts import WorkerParts
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.try_watch import Verdict
from services.worker_pools.waits import event_set, first_of, until
from services.worker_pools.worker_metrics import WorkerMetrics

log = structlog.get_logger(__name__)
_MOST_ODD = 64  # records that are being put away, of up to a megabyte each: beyond, nothing is read


class PoolWorker:
    """`run` until `stop`: then it drains, commits and leaves its groups."""

    def __init__(
        self,
        pool: Pool,
        fleet: Fleet,
        worker_id: str,
        parts: WorkerParts,
        knobs: WorkerKnobs,
        metrics: WorkerMetrics,
    ) -> None:
        identity = Identity(worker_id, pool, fleet)
        self._fleet = fleet
        self._parts = parts
        self._knobs = knobs
        self._clock = parts.clock
        crew = self._crew = assembled(identity, parts, knobs, metrics, self._done, self._cancel)
        self._backlog, self._desk, self._reports = crew.backlog, crew.desk, crew.reports
        self._endings, self._slots, self._control = crew.endings, crew.slots, crew.control
        self._hand_over, self._desk.again = crew.hand_over, self._take
        self._away = away(identity, crew, parts, knobs)
        names = identity.names
        self._lanes: dict[str, Lane] = {
            priority: Lane(priority, names.lane_group(pool.name, priority), source, self, parts.clock, knobs)
            for priority, source in parts.lanes.items()
        }
        crew.presence.profile.owns = lambda: {
            **{names.lane(pool.name, priority): lane.owned for priority, lane in self._lanes.items()},
            **self._away.adoption.owns(),
        }
        self._limbo: dict[str, list[Held]] = {}
        self._odd: set[tuple[str, int, int]] = set()
        self._stop = asyncio.Event()
        self.turned_s = parts.clock.now_s()

    # for the composition root

    def stop(self) -> None:
        """Begins the drain; `run` returns when it is over."""
        self._stop.set()

    def ready(self) -> Mapping[str, bool]:
        """What must hold before this worker is of use, by name."""
        return {
            "control_read": self._control.caught_up.is_set(),
            "fleet_read": self._crew.presence.view.caught_up.is_set(),
            "lanes_assigned": all(lane.ready() for lane in self._lanes.values()),
            "backend_ready": "loading" not in self._crew.gate.reasons,
            "not_draining": not self._stop.is_set(),
        }

    def alive(self) -> bool:
        """Whether the loops turn: progress, not a pulse."""
        joined = [lane.turned_s for lane in self._lanes.values() if lane.joined]
        oldest_s = min([self.turned_s, *joined])
        return self._stop.is_set() or self._clock.now_s() - oldest_s < self._knobs.stalled_s

    def backend_answered(self) -> bool:
        """Whether a try of this worker ever got an answer."""
        return self._crew.serving.answered

    def gate(self) -> tuple[str, ...]:
        """Why nothing starts here, if anything keeps it."""
        return self._crew.gate.reasons

    def beats_unsent(self) -> int:
        return self._crew.presence.beats.unsent

    def backends(self) -> Backends:
        """For those who show them."""
        return self._crew.backends

    def in_flight(self) -> int:
        return self._slots.in_flight

    def held(self) -> int:
        return len(self._desk)

    def chunks_dropped(self) -> int:
        return self._crew.pump.dropped

    async def run(self) -> None:
        """Serves until `stop`; a fault in a loop of its own ends it with that fault."""
        loops = [
            asyncio.create_task(loop)
            for loop in (
                self._read_control(),
                self._crew.pump.run(),
                *self._crew.presence.loops(),
                self._crew.backend_watch.run(),
                self._tick_forever(),
            )
        ]
        stopping = asyncio.create_task(event_set(self._stop))
        try:
            caught_up = asyncio.create_task(self._all_read())
            await first_of(caught_up, stopping, *loops)
            caught_up.cancel()
            if not self._stop.is_set():
                self._reports.later(self._reports.say_left_behind(self._fleet.partitions))
                self._crew.gate.release("starting")
                loops += [asyncio.create_task(self._serve_lane(lane)) for lane in self._lanes.values()]
                loops.append(asyncio.create_task(self._hand_over.renew_forever()))
                loops += [asyncio.create_task(loop) for loop in self._away.loops()]
                await first_of(stopping, *loops)
            await self._drain()
        finally:
            stopping.cancel()
            await self._end(loops)

    async def _all_read(self) -> None:
        """Cancels, and whether the pool is paused, are known before anything starts."""
        await self._control.caught_up.wait()
        await self._crew.presence.view.caught_up.wait()

    async def _read_control(self) -> None:
        await self._control.start()
        await self._control.read_forever()

    async def _serve_lane(self, lane: Lane) -> None:
        await lane.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(lane.offsets.commit_forever(self._knobs.commit_every_s))
            await lane.poll_forever()
            await asyncio.Event().wait()  # commits go on through the drain

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._knobs.tick_s)
            self.turned_s = self._clock.now_s()
            self._desk.stones.purge(self.turned_s)
            self._slots.fill()
            self._away.rerouting.tick()

    async def _end(self, loops: list[asyncio.Task[Any]]) -> None:
        self._slots.close()
        for task in [*self._slots.work, *loops]:
            task.cancel()
        await asyncio.gather(*self._slots.work, *loops, return_exceptions=True)
        await self._away.adoption.leave()
        for lane in self._lanes.values():
            await lane.offsets.commit()
            await lane.leave()
        await self._reports.close(0)
        await self._control.stop()
        await self._crew.presence.leave()

    # LaneOwner

    def read_on(self) -> None:
        self._slots.fill()

    def room(self, priority: str) -> int:
        waits = not self._crew.gate.serves or len(self._odd) >= _MOST_ODD
        return 0 if waits else self._backlog.room(priority)

    def holds(self, task_id: str | None, position: Position) -> bool:
        if position.spot in self._odd:
            return True
        held = None if task_id is None else self._desk.get(task_id)
        return held is not None and held.at(*position.spot)

    def arrived(self, record: InRecord, position: Position, *, redelivered: bool) -> None:
        found = read_record(
            record,
            position.priority,
            partitions=self._fleet.partitions,
            max_bytes=self._knobs.max_record_bytes,
            redelivered=redelivered,
        )
        if isinstance(found, Odd):
            self._odd.add(position.spot)
            self._slots.spawn(self._put_away(found, position))
            return
        self._take(found, position)

    def _take(self, found: Held, position: Position) -> None:
        reason = self._desk.take(found, position)
        if reason is not None:
            self._slots.spawn(self._endings.prune(found, reason))
        elif found.positions:  # else it was known, or done
            self._away.rerouting.arrived(found)

    async def _put_away(self, odd: Odd, position: Position) -> None:
        log.error(
            "not a task", fate=odd.fate, reason=odd.reason, task_id=odd.task_id, place=str(position.spot)
        )
        try:
            for record in self._reports.put_away(odd):
                await self._reports.deliver(await fitted(record, self._parts.blobs))
            self._done(position)
        finally:
            self._odd.discard(position.spot)

    async def span_is_full(self, priority: str, partition: int, head: int) -> None:
        held = next((held for held in self._desk.all() if held.at(priority, partition, head)), None)
        if held is None:
            return
        if held.phase is Phase.QUEUED and self._backlog.put_first(held.task_id):
            self._slots.fill()
        elif held.phase is Phase.TRYING and not held.lent:
            await self._hand_over.lend(held, self._knobs.ack_timeout_s)

    async def revoked(self, priority: str, partitions: Collection[int]) -> None:
        waiting = self._backlog.take_partitions(priority, partitions)
        self._limbo[priority] = self._limbo.get(priority, []) + waiting
        await self._hand_over.at_revoke(priority, partitions, waiting)

    def assigned(self, priority: str) -> None:
        lane, now_s = self._lanes[priority], self._clock.now_s()
        for held in self._desk.all():
            if held.positions:
                held.positions[:] = [
                    at for at in held.positions if at.priority != priority or lane.offsets.owns(at.place)
                ]
        for held in self._limbo.pop(priority, []):
            if self._desk.get(held.task_id) is not held:
                continue
            if held.positions:
                not_before_s = held.headers.not_before_ms / 1000
                self._backlog.push(held, now_s, not_before_s if not_before_s > now_s else None)
            else:
                self._desk.drop(held)
        self._slots.fill()
        self._crew.presence.beats.changed()

    def _done(self, position: Position) -> None:
        self._lanes[position.priority].offsets.done(position.place)

    def _cancel(self, message: CancelTask) -> None:
        if message.attempt is None:  # else the task itself may run on, as another attempt
            self._desk.stones.add(message.task_id, message.reason, message.deadline_ms / 1000)
        pruned = self._desk.cancel(message.task_id, message.attempt, message.reason)
        if pruned is not None:
            self._slots.spawn(self._endings.prune(pruned, message.reason))

    # the end

    async def _drain(self) -> None:
        """Nothing new starts; what waits goes back, what runs may finish, and is parked where it does not."""
        self._slots.close()
        self._desk.closing = True
        leaving = asyncio.create_task(self._away.adoption.leave())
        for lane in self._lanes.values():
            lane.stop_polling()
        waiting = self._backlog.take_all()
        retries = [held for held in waiting if held.attempt is not None]
        for held in waiting:
            if held.attempt is None:
                self._desk.drop(held)
        log.info("draining", held=len(self._desk), in_flight=self._slots.in_flight)
        for held in retries:
            self._slots.spawn(self._hand_over.leave(held, self._knobs.ack_timeout_s))
        await until(lambda: not self._slots.in_flight, self._knobs.drain_s)
        await leaving
        for held in self._desk.all():
            if held.phase is Phase.TRYING and held.watch is not None:
                held.watch.stop(Verdict("drain", FailureKind.INTERNAL))
        await until(lambda: not (self._slots.work or self._reports.unsent), self._knobs.settle_s)
        await until(lambda: not self._crew.pump.waiting, self._knobs.ack_timeout_s)
        log.info("drained", left=len(self._desk))
