"""What counts as a difference between the topics that a fleet needs and those that are there."""

import pytest

from schemas.topics import TopicSpec
from services.adapters.kafka.topic_plan import Difference, FoundTopic, Plan, compare


def _compare(spec: TopicSpec, found: FoundTopic, *, replication: int = 1) -> Plan:
    return compare([spec], {found.name: found}, replication=replication, topic_configs=True)


@pytest.mark.parametrize(
    ("key", "found", "expected", "right"),
    [
        ("retention.ms", "86400000", "86400000", True),
        ("retention.ms", "86400001", "86400000", True),
        ("retention.ms", "-1", "86400000", True),
        ("retention.ms", "86399999", "86400000", False),
        ("retention.ms", "86400000", "-1", False),
        ("retention.ms", "-1", "-1", True),
        ("max.message.bytes", "2097152", "1048576", True),
        ("max.message.bytes", "1000012", "1048576", False),
        ("cleanup.policy", "compact,delete", "delete,compact", True),
        ("cleanup.policy", "compact,delete", "compact", False),
        ("compression.type", "zstd", "producer", False),
    ],
)
def test_a_limit_may_be_wider_and_anything_else_must_be_equal(
    key: str, found: str, expected: str, right: bool
) -> None:
    plan = _compare(TopicSpec("t", 1, "", {key: expected}), FoundTopic("t", 1, {key: found}))
    assert plan.empty is right
    assert [(d.topic, d.key, d.found) for d in plan.faults()] == ([] if right else [("t", key, found)])


def test_a_key_that_the_broker_does_not_show_is_unset() -> None:
    plan = _compare(TopicSpec("t", 1, "", {"retention.ms": "5"}), FoundTopic("t", 1))
    assert plan.change == (Difference("t", "retention.ms", "unset", "at least 5"),)


def test_with_three_copies_two_must_have_acknowledged() -> None:
    """acks=all alone would mean one copy on a broker whose default is one."""
    spec = TopicSpec("t", 1, "")
    single = FoundTopic("t", 1, {"min.insync.replicas": "1"})
    assert _compare(spec, single).empty
    plan = _compare(spec, single, replication=3)
    assert plan.change == (Difference("t", "min.insync.replicas", "1", "at least 2"),)
    created = compare([spec], {}, replication=3, topic_configs=True).create
    assert [dict(made.config) for made in created] == [{"min.insync.replicas": "2"}]


def test_a_missing_topic_is_a_fault() -> None:
    plan = compare([TopicSpec("t", 3, "")], {}, replication=1, topic_configs=False)
    assert [str(fault) for fault in plan.faults()] == ["topic t: topic is missing, expected present"]
