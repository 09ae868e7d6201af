"""The bookkeeper: `results` into rows, one transaction per poll, never awaited by the hot path.

Law: offsets are committed after the transaction that applied their records, and after what it owes to the
bus was acknowledged. While the database does not answer, nothing is read and nothing is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import structlog

from schemas.topics import TopicNames
from services.core.life.errands import LogBatch
from services.orchestrator.keeping import apply_kept
from services.orchestrator.lost_tries import LostTries
from services.orchestrator.owed import Owed, send_each
from services.orchestrator.reading import read
from services.orchestrator.settings import BookkeeperKnobs
from services.orchestrator.sweep import Sweep
from services.ports import (
    Assigned,
    BlobStore,
    BookkeeperStore,
    BusError,
    Commit,
    CommitRefused,
    GroupSource,
    InRecord,
    OutRecord,
    Publisher,
    RowsRefused,
    StoreError,
)
from services.runtime.fleet_view import FleetView
from services.runtime.set_aside import dead_record, fitted

log = structlog.get_logger(__name__)


class _Stopping(Exception):  # noqa: N818 - an outcome: what is unfinished stays uncommitted
    pass


class Bookkeeper:
    """An AssignmentListener and the loop between polls. `run` returns after `stop` is set.

    applied, transactions: counted since the start. database_up: whether it answered last.
    """

    def __init__(
        self,
        source: GroupSource,
        publisher: Publisher,
        store: BookkeeperStore,
        names: TopicNames,
        knobs: BookkeeperKnobs,
        *,
        blobs: BlobStore,
        steady: Callable[[], float],
        wall_ms: Callable[[], int],
        view: FleetView,
    ) -> None:
        self._source, self._publisher, self._store, self._blobs = source, publisher, store, blobs
        self._names, self._knobs, self._steady = names, knobs, steady
        self._owed = Owed(names)
        self.sweep = Sweep(store, publisher, self._owed, knobs, steady=steady, wall_ms=wall_ms)
        self.losses = LostTries(view, store, publisher, names.fleet, knobs, wall_ms)
        self._stop = asyncio.Event()
        self._gone: set[int] = set()  # partitions revoked since their records were polled
        self._turned_s = steady()
        self.joined = False
        self.database_up = True
        self.applied = 0
        self.transactions = 0

    def alive(self) -> bool:
        """Whether the loop turns; a wait for the database counts as turning."""
        return self._steady() - self._turned_s < self._knobs.stalled_s

    async def revoked(self, partitions: Collection[int]) -> None:
        self._gone |= set(partitions)
        self.sweep.revoked(partitions)
        self.losses.revoked(partitions)

    async def assigned(self, partitions: Mapping[int, Assigned]) -> None:
        self.sweep.assigned(partitions.keys())
        self.losses.assigned(partitions.keys())
        self.joined = True

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`: finishes the transaction under way, commits it and leaves the group."""
        self._stop = stop
        joining = asyncio.ensure_future(self._source.start(self))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if joining.done():
                joining.result()
                with contextlib.suppress(_Stopping):
                    await self._until_stopped()
        finally:
            stopping.cancel()
            await self._source.stop()
            joining.cancel()
            await asyncio.gather(joining, stopping, return_exceptions=True)

    async def _until_stopped(self) -> None:
        await self._again_and_again(self._apply_kept)
        while not self._stop.is_set():
            began_s = self._turned_s = self._steady()
            records = await self._poll()
            self._gone.clear()  # what a poll returns belongs to the assignment of this moment
            if records:
                await self._settle(records)
            await self._sweep()
            if len(records) < self._knobs.poll_records:
                await self._pause(began_s + self._knobs.gather_s - self._steady())

    async def _poll(self) -> list[InRecord]:
        try:
            return await self._source.poll(
                timeout_ms=self._knobs.poll_ms, max_records=self._knobs.poll_records
            )
        except BusError as fault:
            log.warning("results not read", fault=str(fault))
            await self._pause(self._knobs.retry_s)
            return []

    async def _settle(self, records: Sequence[InRecord]) -> None:
        """Apply, pay what is owed, commit."""
        owed: list[OutRecord] = []

        async def apply() -> None:
            ours = [record for record in records if record.partition not in self._gone]
            owed[:] = await self._applied(ours)

        await self._again_and_again(apply)
        await self._deliver(owed)
        ours = [record for record in records if record.partition not in self._gone]
        self.sweep.read(ours)
        self.applied += len(ours)
        await self._commit(ours)

    async def _applied(self, records: Sequence[InRecord]) -> list[OutRecord]:
        """What is owed after the records' transaction. What can be neither stored nor folded is found by
        halving: such records go to `tasks.dead`, the others do not wait for them."""
        if not records:
            return []
        try:
            found = read(records, self._names)
            effects = await self._store.apply(LogBatch(found.entries, found.keep))
        except Exception as fault:
            if isinstance(fault, StoreError) and not isinstance(fault, RowsRefused):
                raise
            if len(records) == 1:
                return [self._buried(records[0], fault)]
            half = len(records) // 2
            return [*await self._applied(records[:half]), *await self._applied(records[half:])]
        self.transactions += 1
        return [*found.dead, *(self._owed.record(effect) for effect in effects)]

    def _buried(self, record: InRecord, fault: Exception) -> OutRecord:
        """One record must not end the bookkeeper: it would be the first that the next one reads."""
        if isinstance(fault, RowsRefused):
            return dead_record(record, self._names, str(fault))
        where = "".join(traceback.format_tb(fault.__traceback__)[-3:])  # its message may quote the record
        log.error("a record could not be folded", fault=type(fault).__name__, where=where)
        return dead_record(record, self._names, f"the bookkeeper failed on it: {type(fault).__name__}")

    async def _commit(self, records: Sequence[InRecord]) -> None:
        commits = {record.partition: Commit(record.offset + 1) for record in records}
        try:
            await self._source.commit(commits)
        except CommitRefused:
            log.info("the group moved on: another member reads again what was applied here")
        except BusError as fault:
            log.warning("offsets not committed, the next commit has them too", fault=str(fault))

    async def _sweep(self) -> None:
        try:
            if await self.sweep.turn():
                self.database_up = True
            await self.losses.turn()
        except StoreError as fault:
            self.database_up = False
            log.warning("sweep not finished, the next one goes on", fault=str(fault))

    async def _apply_kept(self) -> None:
        await apply_kept(self._store, self._names, self._deliver, self._owed.record)

    async def _deliver(self, records: Sequence[OutRecord]) -> None:
        """Returns once everything is acknowledged; what is sent twice is the same twice."""
        pause_s, left = self._knobs.retry_s, [await fitted(record, self._blobs) for record in records]
        while left:
            left = await send_each(
                self._publisher, left, timeout_s=self._knobs.ack_timeout_s, instead=self._unsent
            )
            if left:
                pause_s = await self._wait(pause_s)

    async def _unsent(self, record: OutRecord, reason: str) -> OutRecord:
        return await fitted(self._owed.unsent(record, reason), self._blobs)

    async def _again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Until the database takes it. Raises _Stopping when told to stop meanwhile."""
        pause_s = self._knobs.retry_s
        while True:
            try:
                await work()
            except StoreError as fault:
                self.database_up = False
                log.warning("database does not answer, offsets wait", fault=str(fault))
                pause_s = await self._wait(pause_s)
            else:
                self.database_up = True
                return

    async def _wait(self, pause_s: float) -> float:
        """Waits before another try; the pause after it."""
        self._turned_s = self._steady()
        await self._pause(pause_s)
        if self._stop.is_set():
            raise _Stopping
        return min(2 * pause_s, self._knobs.retry_most_s)

    async def _pause(self, seconds: float) -> None:
        """Sleeps, unless told to stop."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
