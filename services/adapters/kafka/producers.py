"""Building and discarding aiokafka producers: the only place that knows their insides."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    MessageSizeTooLargeError,
    ProducerClosed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from schemas.topics import MAX_RECORD_BYTES
from services.adapters.kafka.traits import BrokerTraits

MAX_BATCH_BYTES = 256 * 1024
METADATA_MAX_AGE_MS = 30_000
_CANCEL_WAIT_S = 1.0

# Raised before a record enters a batch: they speak of the record, never of the producer.
RECORD_FAULTS = (
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
    TopicAuthorizationFailedError,
    AssertionError,
)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer is built. `durable`: acks=all, and idempotent where the broker can; else acks=1."""

    bootstrap_servers: str
    traits: BrokerTraits
    client_id: str
    linger_ms: int = 0
    durable: bool = True
    request_timeout_s: float = 10.0

    @property
    def idempotent(self) -> bool:
        return self.durable and self.traits.idempotent_producer


def new_producer(settings: ProducerSettings) -> Any:
    """An AIOKafkaProducer, not started."""
    return AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap_servers,
        client_id=settings.client_id,
        acks="all" if settings.durable else 1,
        enable_idempotence=settings.idempotent,
        linger_ms=settings.linger_ms,
        max_batch_size=MAX_BATCH_BYTES,
        # The client's own copy of the topics' limit: a broker without topic configs has none.
        max_request_size=MAX_RECORD_BYTES,
        compression_type=settings.traits.compression,
        request_timeout_ms=int(settings.request_timeout_s * 1000),
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
    )


async def discard(producer: Any, *, flush_s: float) -> None:
    """Stop a producer whatever its state, giving what it still holds `flush_s` to be acknowledged.

    Its own `stop` waits for every batch, and an idempotent producer never gives a batch up: without its
    broker it would wait for ever. So the sender is ended first, then what is left fails, then `stop` ends.
    """
    closing = asyncio.create_task(producer.stop())
    if flush_s > 0:
        await asyncio.wait({closing}, timeout=flush_s)
    sender = producer._sender.sender_task  # noqa: SLF001 - no public way to stop without a flush
    for _ in range(2):  # the second cancel ends the wait for a request in flight
        if sender is None or sender.done():
            break
        sender.cancel()
        await asyncio.wait({sender}, timeout=_CANCEL_WAIT_S)
    if not closing.done():
        producer._message_accumulator.fail_all(ProducerClosed())  # noqa: SLF001 - as above
    await asyncio.wait({closing}, timeout=_CANCEL_WAIT_S)
    await _end(closing)


async def _end(closing: asyncio.Task[None]) -> None:
    if not closing.done():
        closing.cancel()
        await asyncio.wait({closing})
    if not closing.cancelled():
        closing.exception()  # retrieved: what a discarded producer says no longer matters
