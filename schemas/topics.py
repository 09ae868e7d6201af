"""The topic table: every topic of a fleet, what it carries and how the broker must keep it.

Law: every name begins with the fleet's prefix, so that two fleets share a cluster unharmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Priority = Literal["interactive", "standard", "batch"]
PRIORITIES: tuple[Priority, ...] = ("interactive", "standard", "batch")

DAY_MS = 24 * 3600 * 1000
LONGEST_DEADLINE_MS = 7 * DAY_MS
DURABLE_RETENTION_MS = LONGEST_DEADLINE_MS + DAY_MS
REPLY_RETENTION_MS = 10 * 60 * 1000
MAX_RECORD_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it must be. `config` holds the broker's own keys; all values are strings, as Kafka wants."""

    name: str
    partitions: int
    purpose: str
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of one fleet's topics and groups, all derived from its prefix (such as `chimera.`)."""

    prefix: str

    def lane(self, capability: str, priority: str) -> str:
        return f"{self.prefix}tasks.{capability}.{priority}"

    @property
    def dead(self) -> str:
        return f"{self.prefix}tasks.dead"

    @property
    def submissions(self) -> str:
        return f"{self.prefix}submissions"

    @property
    def workflows(self) -> str:
        return f"{self.prefix}workflows"

    @property
    def results(self) -> str:
        return f"{self.prefix}results"

    @property
    def replies(self) -> str:
        return f"{self.prefix}replies"

    @property
    def events(self) -> str:
        return f"{self.prefix}events"

    @property
    def control(self) -> str:
        return f"{self.prefix}control"

    @property
    def fleet(self) -> str:
        return f"{self.prefix}fleet"

    def lane_group(self, capability: str, priority: str) -> str:
        """The consumer group of a lane: derived, never a setting."""
        return self.lane(capability, priority)

    @property
    def submissions_group(self) -> str:
        """The consumer group of the ingresses, which admit and route what producers submit."""
        return self.submissions

    @property
    def bookkeeper_group(self) -> str:
        return f"{self.prefix}bookkeeper"


def _kept(retention_ms: int) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "max.message.bytes": str(MAX_RECORD_BYTES),
    }


# What comes from outside must still fit `tasks.dead` or `results`, with the reason in its headers.
_SUBMITTED = _kept(DURABLE_RETENTION_MS) | {"max.message.bytes": str(MAX_RECORD_BYTES - 64 * 1024)}
_COMPACTED_AND_AGED = _kept(DURABLE_RETENTION_MS) | {"cleanup.policy": "compact,delete"}
# Every worker beats each second and every reader begins at the beginning: segments are closed, and so
# compacted, every ten minutes and not every week.
_BEATEN = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(MAX_RECORD_BYTES),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}


def fleet_topics(names: TopicNames, capabilities: Iterable[str], partitions: int) -> tuple[TopicSpec, ...]:
    """All topics of a fleet.

    `capabilities` are the pools' own ones (their lanes are named by them); `partitions` counts those of each
    lane, of `results` and of `replies`: 8 locally, 24 in a fleet. `control` and `fleet` are read whole by
    every worker, so they have one partition: their order is then the order of the cancels.
    """
    durable = _kept(DURABLE_RETENTION_MS)
    lanes = [
        TopicSpec(
            names.lane(capability, priority), partitions, "RunTask records of one pool and priority", durable
        )
        for capability in sorted(set(capabilities))
        for priority in PRIORITIES
    ]
    return (
        *lanes,
        TopicSpec(names.dead, 1, "original bytes of what could not be done, replayable", durable),
        TopicSpec(names.submissions, partitions, "SubmitTask from producers that don't route", _SUBMITTED),
        TopicSpec(names.workflows, partitions, "commands to workflows", durable),
        TopicSpec(names.results, partitions, "the one log that decides", durable),
        TopicSpec(names.replies, partitions, "token chunks for waiting clients", _kept(REPLY_RETENTION_MS)),
        TopicSpec(names.events, partitions, "lifecycle events of workflows", _kept(DAY_MS)),
        TopicSpec(names.control, 1, "CancelTask, until its deadline", _COMPACTED_AND_AGED),
        TopicSpec(names.fleet, 1, "heartbeats and profiles of workers", _BEATEN),
    )
