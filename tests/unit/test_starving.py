"""A broker that brings nothing is not felt, since the stage brings everything; so it must be said."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ordered_pubsub.core.messages import Change, LogItem, LogReply
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.subscriber.starving import STARVED_S
from ordered_pubsub.core.subscriber.subscriber_log import SubscriberLog


def unpack(topic: str, item: LogItem) -> list[Arrival]:
    return [Arrival(topic, number, {}) for number in range(item.first, item.last + 1)]


@pytest.fixture
def log() -> SubscriberLog:
    """Holds a and b from their beginnings."""
    missing = Missing()
    made = SubscriberLog(Delivery("s", missing=missing), missing, lambda topic: 0, unpack)
    made.delivery.change_asked()
    made.delivery.change_settled(Change("s", 1, (), ("a", "b"), 2, False, {"a": 0, "b": 0}))
    return made


def stage_says(log: SubscriberLog, at: float, **counts: int) -> None:
    log.set_time(at)
    log.expected(counts)


def stage_brings(log: SubscriberLog, topic: str, numbers: Iterable[int]) -> None:
    log.handle_log_reply(LogReply(topic, 1, 100, 0, [LogItem(n, n, {}, False, [], n, n, 0.0, []) for n in numbers]))


def test_a_topic_that_only_the_stage_brings_is_named(log: SubscriberLog) -> None:
    stage_says(log, 2.0, a=1)
    stage_brings(log, "a", [1])
    stage_says(log, 2.0 + STARVED_S, a=3)
    stage_brings(log, "a", [2, 3])

    assert list(log.starving.topics) == ["a"]
    assert (log.starving.topics["a"].since, log.starving.topics["a"].brought) == (2.0, 3)


def test_one_lost_event_is_no_silence(log: SubscriberLog) -> None:
    stage_says(log, 2.0, a=1)
    stage_brings(log, "a", [1])
    stage_says(log, 12.0, a=1)

    assert log.starving.topics == {}


def test_whatever_the_ens_brings_of_a_topic_ends_it(log: SubscriberLog) -> None:
    stage_says(log, 2.0, a=1, b=1)
    stage_says(log, 6.0, a=2, b=2)
    log.arrived([Arrival("a", 3, {})])

    assert list(log.starving.topics) == ["b"]


def test_while_what_came_is_not_taken_nothing_is_said_of_the_ens(log: SubscriberLog) -> None:
    log.expected({"a": 1}, is_ens_read=False)
    log.set_time(6.0)
    log.expected({"a": 2}, is_ens_read=False)

    assert log.starving.topics == {}


def test_what_came_twice_is_not_counted(log: SubscriberLog) -> None:
    stage_says(log, 2.0, a=4)
    stage_brings(log, "a", [1, 2])
    stage_brings(log, "a", [1, 2, 4])
    stage_brings(log, "a", [4])

    assert log.starving.brought == 3


def test_what_is_lost_is_asked_for_at_once_and_what_waits_is_not(log: SubscriberLog) -> None:
    """Also if much waits: only what was noticed to be missing is looked at."""
    log.arrived([Arrival("a", number, {}) for number in (2, 4, 5)])
    stage_says(log, 0.0, a=7)
    (curious,) = log.take_due(0.0)

    assert [(want.first, want.last) for want in curious.wants] == [(1, 1), (3, 3), (6, 7)]
