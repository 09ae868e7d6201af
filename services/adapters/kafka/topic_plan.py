"""Compare the topics that a fleet needs with those that a broker has: pure, so `plan` and `check` agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.topics import TopicSpec

# Here we ask for the least we need: an operator may keep more, take larger messages, insist on more copies.
_AT_LEAST = frozenset({"retention.ms", "retention.bytes", "max.message.bytes", "min.insync.replicas"})
_UNLIMITED = -1

# `apply` leaves these to people: compacting a log by mistake deletes records, and growing a keyed topic moves
# keys to other partitions under those who read them.
_LEFT_TO_PEOPLE = frozenset({"partitions", "cleanup.policy"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting of one topic that is not as it must be. `key` is `topic`, `partitions` or a config key."""

    topic: str
    key: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.key} is {self.found}, expected {self.expected}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What `apply` would do (`create`, `change`) and what it leaves to people (`mismatch`)."""

    create: tuple[TopicSpec, ...] = ()
    change: tuple[Difference, ...] = ()
    mismatch: tuple[Difference, ...] = ()
    replication: int = 1

    @property
    def empty(self) -> bool:
        """True when the broker's topics are as they must be."""
        return not (self.create or self.change or self.mismatch)

    def faults(self) -> tuple[Difference, ...]:
        """Everything that is not as it must be, missing topics included."""
        missing = tuple(Difference(spec.name, "topic", "missing", "present") for spec in self.create)
        return (*missing, *self.change, *self.mismatch)


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as the broker has it. `config` is empty where the broker keeps none; `overridden` are the keys
    set on the topic itself, which an alteration must repeat."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()


def wanted(specs: Sequence[TopicSpec], replication: int) -> tuple[TopicSpec, ...]:
    """Return the specs with what replication adds: with three copies, acks=all must mean at least two."""
    if replication < 3:
        return tuple(specs)
    in_sync = {"min.insync.replicas": str(replication - 1)}
    return tuple(TopicSpec(s.name, s.partitions, s.purpose, {**in_sync, **s.config}) for s in specs)


def compare(
    specs: Sequence[TopicSpec], found: Mapping[str, FoundTopic], *, replication: int, topic_configs: bool
) -> Plan:
    """Return the plan from what is `found` to `specs`; configs count only where the broker keeps them."""
    specs = wanted(specs, replication)
    differences = [
        difference
        for spec in specs
        if spec.name in found
        for difference in _differences(spec, found[spec.name], topic_configs=topic_configs)
    ]
    return Plan(
        create=tuple(spec for spec in specs if spec.name not in found),
        change=tuple(d for d in differences if d.key not in _LEFT_TO_PEOPLE),
        mismatch=tuple(d for d in differences if d.key in _LEFT_TO_PEOPLE),
        replication=replication,
    )


def _differences(spec: TopicSpec, found: FoundTopic, *, topic_configs: bool) -> list[Difference]:
    differences = []
    if found.partitions < spec.partitions:  # more do no harm: nothing is sent to the rest
        differences.append(
            Difference(spec.name, "partitions", str(found.partitions), f"at least {spec.partitions}")
        )
    for key, expected in spec.config.items() if topic_configs else ():
        value = found.config.get(key, "unset")
        if not _satisfies(key, value, expected):
            at_least = "at least " if key in _AT_LEAST else ""
            differences.append(Difference(spec.name, key, value, f"{at_least}{expected}"))
    return differences


def _satisfies(key: str, value: str, expected: str) -> bool:
    if key not in _AT_LEAST:
        return sorted(value.split(",")) == sorted(expected.split(","))
    try:
        number, least = int(value), int(expected)
    except ValueError:
        return value == expected
    return number == _UNLIMITED or (least != _UNLIMITED and number >= least)
