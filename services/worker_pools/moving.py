"""A task on its way to another lane: what is known of it, of the fleet, and the record that holds it next."""

from __future__ import annotations

from collections import defaultdict, deque

import structlog

from schemas.codec import SchemaError, decode_as
from schemas.fleet_messages import WorkerBeat
from schemas.headers import SWEPT
from schemas.messages import RunTask
from schemas.topics import TopicNames
from services.core.fleet_load import stations
from services.core.reroute import FleetSnapshot, Move, TaskFacts
from services.core.routing import Need
from services.ports import OutRecord
from services.runtime.current_fleet import CurrentFleet
from services.runtime.fleet_view import FleetView
from services.worker_pools.held import Held
from services.worker_pools.reports import Reports

log = structlog.get_logger(__name__)
MOST_WORKERS = 256  # beyond, those that the fleet does not know any more are forgotten
_REMEMBERED = 4_096  # moves to a worker: no more are made between two of its beats


class Moving:
    """Writes tasks to other lanes, for who re-routes and who adopts."""

    def __init__(self, fleet: CurrentFleet, view: FleetView, reports: Reports) -> None:
        self._fleet, self._view, self._reports = fleet, view, reports
        self._names = TopicNames(fleet.now.prefix)
        self._sent_s: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))

    def snapshot(self) -> FleetSnapshot:
        """The fleet now; what was moved since a worker's beat counts as its work."""
        table, fleet = self._view.table, self._fleet.now
        by_name = {pool.name: pool for pool in fleet.pools}
        return FleetSnapshot(
            names=self._names,
            partitions=fleet.partitions,
            pools=fleet.pools,
            stations=stations(table, by_name, self._view.now_s(), self._sent_since),
            modes={name: table.mode(name) for name in by_name},
        )

    def facts(self, held: Held) -> TaskFacts | None:
        """What its record says, read once; None for a record that is no task."""
        if held.facts is None:
            try:
                task = decode_as(RunTask, held.lane_value)
            except SchemaError:
                return None
            held.tenant = task.tenant
            held.facts = _facts(held, task)
        return held.facts

    def chosen(self, move: Move) -> None:
        """Counts at once, so that the next decision sees it."""
        if len(self._sent_s) > MOST_WORKERS:
            self._forget_strangers()
        self._sent_s[move.worker].append(self._view.now_s())

    async def send(self, held: Held, move: Move) -> None:
        """Returns once the other lane holds the task. Raises RecordTooLargeError.

        Whoever held it before may have begun it: then its next try announces itself before it starts.
        """
        due = {} if move.pool == self._pool_of(held) else {"not_before_ms": 0}
        headers = held.headers.with_changes(hops=held.headers.hops + 1, **due).to_text()
        if held.redelivered:
            headers[SWEPT] = "1"
        wire = [(name, value.encode()) for name, value in headers.items()]
        record = OutRecord(move.lane, held.task_id.encode(), held.lane_value, wire, move.partition)
        await self._reports.deliver(record)
        log.info(
            "task moved",
            task_id=held.task_id,
            request_id=held.headers.request_id,
            origin=held.lane,
            lane=move.lane,
            partition=move.partition,
            hops=held.headers.hops + 1,
        )

    def _forget_strangers(self) -> None:
        """Who left comes back under another name: its moves would be kept for ever."""
        for worker in [name for name in self._sent_s if self._view.table.member(name) is None]:
            del self._sent_s[worker]

    def _pool_of(self, held: Held) -> str:
        """The pool of the lane it stands on: what its value says may be an earlier one."""
        lane = held.lane.removeprefix(f"{self._fleet.now.prefix}tasks.")
        return lane.removesuffix(f".{held.priority}")

    def _sent_since(self, beat: WorkerBeat, since_s: float) -> int:
        count = 0
        for sent_s in reversed(self._sent_s.get(beat.worker, ())):
            if sent_s <= since_s:
                break
            count += 1
        return count


def _facts(held: Held, task: RunTask) -> TaskFacts:
    return TaskFacts(
        task_id=task.task_id,
        need=Need(
            kind=task.kind,
            model=task.model,
            objective=task.objective,
            capabilities=task.required_capabilities,
            features=frozenset(task.features),
            input_tokens=task.input_tokens,
            output_tokens=task.output_tokens,
            data_policy=task.data_policy,
        ),
        asked=task.pool,
        priority=task.priority,
        deadline_s=held.headers.deadline_ms / 1000,
        arrived_s=task.arrived_ms / 1000,
        hops=held.headers.hops,
        session_id=task.session_id,
        affinity=task.affinity,
    )
