"""The Publisher port on aiokafka: acknowledged sends with a deadline; a producer that breaks is replaced.

Law: every record handed over has one acknowledgement of ours, apart from aiokafka's. A caller that stops
waiting, or a producer that is replaced, settles ours and leaves the library's state alone. Records are in the
order in which the calls that handed them over returned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any

from services.adapters.kafka.faults import LIBRARY_FAULTS, bus_error
from services.adapters.kafka.producers import (
    MAX_BATCH_BYTES,
    RECORD_FAULTS,
    ProducerSettings,
    discard,
    new_producer,
)
from services.adapters.kafka.traits import BrokerTraits
from services.ports import BusError, OutRecord

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 1.0
_LOG_EVERY_S = 1.0

Ack = asyncio.Future[None]


class KafkaPublisher:
    """Publisher port. `durable`: acks=all and idempotent where the broker can; False (tokens): acks=1.

    `recreate_after_s`: the producer is replaced when sends have failed for so long without one success.
    `post_faults` counts posts that were not acknowledged, `recreated` the producers replaced.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        traits: BrokerTraits,
        *,
        client_id: str,
        linger_ms: int = 0,
        durable: bool = True,
        request_timeout_s: float = 10.0,
        recreate_after_s: float = 20.0,
        stop_flush_s: float = 5.0,
    ) -> None:
        self._settings = ProducerSettings(
            bootstrap_servers, traits, client_id, linger_ms, durable, request_timeout_s
        )
        self._recreate_after_s = recreate_after_s
        self._stop_flush_s = stop_flush_s
        self._producer: Any = None
        self._away_since_s: float | None = time.monotonic()
        self._up = asyncio.Event()  # set while there is a producer, and for good once stopped
        self._broken = asyncio.Event()
        self._stopped = False
        self._supervisor: asyncio.Task[None] | None = None
        self._discards: set[asyncio.Task[None]] = set()
        self._in_flight: set[Ack] = set()
        self._failing_since: float | None = None
        self._logged_at = -_LOG_EVERY_S
        self.post_faults = 0
        self.recreated = 0

    async def start(self) -> None:
        """Returns once the broker answered, however long that takes; BusError when stopped before."""
        self._supervisor = asyncio.create_task(self._supervise())
        await self._up.wait()
        if self._stopped:
            raise BusError("the publisher was stopped before the broker answered")

    async def stop(self) -> None:
        """Gives what was handed over a few seconds to be acknowledged; the rest ends with BusError."""
        self._stopped = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        producer, self._producer = self._producer, None
        self._up.set()
        if producer is not None:
            await discard(producer, flush_s=self._stop_flush_s)
        if self._discards:
            await asyncio.wait(self._discards)
        self._fail_in_flight("the publisher was stopped")

    async def send(self, record: OutRecord, *, timeout_s: float) -> None:
        """Returns once the broker acknowledged it; raises BusError after `timeout_s` or on refusal."""
        try:
            async with asyncio.timeout(timeout_s):
                ack = await self._hand_over(record)
                await ack
        except TimeoutError:
            self._note_failure()
            raise BusError(f"{record.topic}: not acknowledged within {timeout_s:g} s") from None

    async def post(self, record: OutRecord) -> Awaitable[None]:
        """Hands the record over and returns its acknowledgement. Waits only while a batch of 256 KiB is full,
        or (at most a request time-out) while there is no producer. Never raises BusError itself."""
        try:
            if self._producer is not None:
                ack = await self._hand_over(record)
            else:
                async with asyncio.timeout(self._settings.request_timeout_s):
                    ack = await self._hand_over(record)
        except TimeoutError:
            ack = _failed(BusError(f"{record.topic}: no producer"))
        except BusError as fault:
            ack = _failed(fault)
        ack.add_done_callback(self._note_post)
        return ack

    def away_s(self) -> float:
        """Since the producer was given up, after `recreate_after_s` of failures, and none has connected."""
        return 0.0 if self._away_since_s is None else time.monotonic() - self._away_since_s

    async def _hand_over(self, record: OutRecord) -> Ack:
        while (producer := self._producer) is None:
            if self._stopped:
                raise BusError(f"{record.topic}: the publisher is stopped")
            await self._up.wait()
        try:
            theirs = await producer.send(
                record.topic,
                record.value,
                record.key,
                record.partition,
                headers=record.headers,
            )
        except RECORD_FAULTS as fault:
            raise bus_error(record.topic, fault) from fault
        except LIBRARY_FAULTS as fault:
            self._note_failure()
            self._replace_if_dead(producer, fault)
            raise bus_error(record.topic, fault) from fault
        ours: Ack = asyncio.get_running_loop().create_future()
        self._in_flight.add(ours)
        # A larger one has a batch of its own, so that what the broker says of the batch is said of it.
        alone = len(record.value or b"") >= MAX_BATCH_BYTES
        theirs.add_done_callback(partial(self._settle, ours, producer, alone))
        return ours

    def _settle(self, ours: Ack, producer: Any, alone: bool, theirs: asyncio.Future[Any]) -> None:
        self._in_flight.discard(ours)
        fault = BusError("cancelled by the producer") if theirs.cancelled() else theirs.exception()
        if fault is None:
            self._failing_since = None
            if not ours.done():
                ours.set_result(None)
            return
        if producer is self._producer:
            self._note_failure()
            # The sequence number of a batch that failed is spent: every later one would be out of order.
            if self._settings.idempotent:
                self._replace(f"a batch failed: {fault!r}")
        if not ours.done():
            told = bus_error("not acknowledged", fault)
            _fail(ours, told if alone else BusError(str(told)))

    def _note_failure(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > self._recreate_after_s:
            self._failing_since = None
            self._replace(f"nothing acknowledged for {self._recreate_after_s:g} s")

    def _replace_if_dead(self, producer: Any, fault: BaseException) -> None:
        sender = producer._sender.sender_task  # noqa: SLF001 - a dead sender is not to be seen otherwise
        if producer is self._producer and sender.done():
            self._replace(f"its sender ended: {fault!r}")

    def _replace(self, reason: str) -> None:
        if self._producer is None or self._stopped:
            return
        producer, self._producer = self._producer, None
        self._away_since_s = time.monotonic()
        self._up.clear()
        self.recreated += 1
        log.error("producer %s is replaced: %s", self._settings.client_id, reason)
        self._fail_in_flight("the producer was replaced")
        discarding = asyncio.create_task(discard(producer, flush_s=0))
        self._discards.add(discarding)
        discarding.add_done_callback(self._discards.discard)
        self._broken.set()

    def _fail_in_flight(self, reason: str) -> None:
        for ours in tuple(self._in_flight):
            if not ours.done():
                _fail(ours, BusError(reason))
        self._in_flight.clear()

    async def _supervise(self) -> None:
        while True:
            self._broken.clear()
            self._producer = await self._connect()
            self._away_since_s = None
            self._up.set()
            await self._broken.wait()

    async def _connect(self) -> Any:
        pause_s = _FIRST_RETRY_S
        while True:
            producer = new_producer(self._settings)
            try:
                await producer.start()
            except LIBRARY_FAULTS as fault:
                log.warning("producer %s: the broker does not answer: %r", self._settings.client_id, fault)
                await discard(producer, flush_s=0)
            except Exception:
                log.exception("producer %s: could not start", self._settings.client_id)
                await discard(producer, flush_s=0)
            except asyncio.CancelledError:
                await discard(producer, flush_s=0)
                raise
            else:
                return producer
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_RETRY_S)

    def _note_post(self, ack: Ack) -> None:
        fault = None if ack.cancelled() else ack.exception()
        if fault is None:
            return
        self.post_faults += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            log.warning("post not acknowledged (%d so far): %s", self.post_faults, fault)


def _fail(ack: Ack, fault: BusError) -> None:
    ack.set_exception(fault)
    ack.exception()  # retrieved: nobody need await it


def _failed(fault: BusError) -> Ack:
    ack: Ack = asyncio.get_running_loop().create_future()
    _fail(ack, fault)
    return ack
