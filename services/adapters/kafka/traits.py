"""What differs between brokers, in one table: code asks a trait, never which broker it talks to.

The values were found by experiment with aiokafka 0.14 on the local broker (Tansu 0.6) and on Apache Kafka
4.4; tests/integration/test_broker_traits.py provokes them on the real ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

BrokerKind = Literal["local", "kafka", "external"]
PollUse = Literal["interactive", "results", "replies", "control", "standard", "batch"]
Compression = Literal["lz4"]


@dataclass(frozen=True, slots=True)
class BrokerTraits:
    """What a broker can do; each trait says what to do where it cannot."""

    kind: BrokerKind

    durable: bool
    """Acknowledged records and commits survive the broker's restart. If not: services restart with it."""

    idempotent_producer: bool
    """InitProducerId works. If not: `enable_idempotence=False`, and a resent record may be there twice."""

    commit_metadata_bytes: int
    """Longest metadata that comes back with a committed offset (`offset.metadata.max.bytes`; one byte more is
    refused with OffsetMetadataTooLargeError). 0: commits are taken and the metadata is dropped in silence, so
    finished records above the watermark run again after a takeover."""

    offsets_for_times: bool
    """ListOffsets by time is right. If not, it answers 0 for any time: read from the beginning instead."""

    end_offsets: bool
    """ListOffsets "latest" is the end. If not, it is the offset after the *first record of the last batch*:
    `end_offsets`, `seek_to_end` and auto_offset_reset=latest come out too early by the rest of that batch.
    The end, on every broker and for empty partitions too: auto_offset_reset=latest, `assign`, `getmany` until
    `highwater()` is known (one long poll), `seek(highwater())`. Not `seek_to_end` right after `assign`: the
    reset that `assign` began may answer last, and the reader stands at the beginning (seen on Apache Kafka).
    Lag: `highwater() - position`, at least 0."""

    deletes_records: bool
    """DeleteRecords works, and retention removes old records. If not, memory only grows."""

    topic_configs: bool
    """Topic configs are kept to, described and altered, and partitions can be added. If not, a topic is only
    its name and its partition count; limits such as the largest message are ours alone to enforce."""

    unknown_topic_refused: bool
    """A send to a topic that does not exist fails (UnknownTopicOrPartitionError, after the request time-out).
    If not, the topic springs into being, with a partition count of the broker's choice: only
    `topic_admin.check` finds a misspelt name. An assign() reader of an unknown topic hears nothing at all,
    on any broker."""

    lists_group_offsets_whole: bool
    """`list_consumer_group_offsets(group)` works without `partitions=`. If not, it costs the connection."""

    session_timeout_ms: int
    """After how long without a heartbeat a member of a group is dead, and its partitions move."""

    heartbeat_interval_ms: int

    compression: Compression | None
    """For producers. None where the bytes never leave the machine: there it only costs."""

    fetch_max_wait_ms: Mapping[PollUse, int]
    """How long an empty fetch waits at the broker, in ms. Where a waiting fetch is not woken by a new record,
    half of this is added to every idle read, and an idle consumer costs CPU in inverse proportion."""


# Not woken by a new record: 20 ms cost 8 ms at the median and 5 % of a core for each idle consumer.
_LOCAL_WAIT = MappingProxyType[PollUse, int](
    {"interactive": 20, "results": 20, "replies": 20, "control": 100, "standard": 100, "batch": 250}
)

# Woken at once, so longer is only cheaper; but a resumed partition waits for the fetch that is in flight.
_KAFKA_WAIT = MappingProxyType[PollUse, int](
    {"interactive": 250, "results": 250, "replies": 250, "control": 250, "standard": 250, "batch": 250}
)

_KAFKA = BrokerTraits(
    kind="kafka",
    durable=True,
    idempotent_producer=True,
    commit_metadata_bytes=4096,
    offsets_for_times=True,
    end_offsets=True,
    deletes_records=True,
    topic_configs=True,
    unknown_topic_refused=True,
    lists_group_offsets_whole=True,
    session_timeout_ms=6000,  # the least that Apache Kafka takes by default
    heartbeat_interval_ms=1000,
    compression=None,
    fetch_max_wait_ms=_KAFKA_WAIT,
)

TRAITS: Mapping[BrokerKind, BrokerTraits] = MappingProxyType(
    {
        "local": BrokerTraits(
            kind="local",
            durable=False,
            idempotent_producer=False,
            commit_metadata_bytes=0,
            offsets_for_times=False,
            end_offsets=False,
            deletes_records=False,
            topic_configs=False,
            unknown_topic_refused=False,
            lists_group_offsets_whole=False,
            session_timeout_ms=3000,  # every join takes half of this here, and another second beside others
            heartbeat_interval_ms=500,
            compression=None,
            fetch_max_wait_ms=_LOCAL_WAIT,
        ),
        "kafka": _KAFKA,
        # A cluster that somebody else runs: the same, but the bytes cross a network.
        "external": replace(_KAFKA, kind="external", compression="lz4"),
    }
)


def traits_of(kind: BrokerKind) -> BrokerTraits:
    """Return the row of the table for `kind`."""
    return TRAITS[kind]
