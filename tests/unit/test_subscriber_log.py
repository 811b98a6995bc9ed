"""A subscription that begins in the past, and what becomes of it where a log has forgotten some of that."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.messages import Change, LogItem, LogReply, Resume
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.subscriber.subscriber_log import SubscriberLog
from ordered_pubsub.errors import HistoryLost

CUT = 9
"""The number of topic "a" at which the subscription has its place in the order."""


def unpack(topic: str, item: LogItem) -> list[Arrival]:
    return [Arrival(topic, number, {}, full=item.full, is_logged=True) for number in range(item.first, item.last + 1)]


def begins(start: dict[str, int]) -> SubscriberLog:
    missing = Missing()
    log = SubscriberLog(Delivery("s", missing=missing), missing, lambda topic: 0, unpack, start)
    log.delivery.change_asked()
    change = Change("s", 1, (), ("a",), 2, False, {"a": CUT})
    log.begin(change)
    log.delivery.change_settled(change)
    return log


def tell(log: SubscriberLog, floor: int, first: int, last: int) -> list[int]:
    """The log has forgotten everything up to its floor, and tells these numbers; what the application gets."""
    items = [LogItem(number, number, {}, True, [], number, number, 0.0, []) for number in range(first, last + 1)]
    log.handle_log_reply(LogReply("a", first, last, floor, items))
    return [notification.arrival.number for notification in log.take_ready()]


def test_who_is_to_have_what_the_log_has_forgotten_is_told_what_is_lost() -> None:
    log = begins({"a": 2})
    with pytest.raises(
        HistoryLost, match=r"subscription 's' needs number 3 of topic 'a', but the log begins at number 5"
    ):
        tell(log, 4, 5, 6)


def test_it_may_be_lost_while_it_is_being_read() -> None:
    log = begins({"a": 2})
    assert tell(log, 0, 3, 4) == [3, 4]
    with pytest.raises(HistoryLost, match=r"needs number 5 of topic 'a', but the log begins at number 8"):
        tell(log, 7, 8, 9)


def test_who_takes_what_there_is_begins_where_the_log_does() -> None:
    log = begins({})
    assert tell(log, 4, 5, CUT) == [5, 6, 7, 8, 9]
    assert not log.reads_past

    log.arrived([Arrival("a", CUT + 1, {})])
    assert [notification.arrival.number for notification in log.take_ready()] == [CUT + 1]


def test_who_goes_on_in_the_past_reads_on_behind_what_was_acknowledged() -> None:
    missing = Missing()
    log = SubscriberLog(Delivery("s", missing=missing), missing, lambda topic: 0, unpack, {})
    first = Change("s", 1, (), ("a",), 2, False, {"a": CUT})
    log.begin(Change("s", 2, ("a",), ("a",), 2, False, {}, Resume(0, (), {"a": 3}, 3, {}, {}, [first])))

    assert log.passed == (0, {"a": 3}, 3)
    assert tell(log, 0, 1, 6) == [4, 5, 6]
    assert (log.passed, log.needed_after, log.reads_past) == ((0, {"a": 6}, 6), {"a": 6}, True)


def test_if_the_log_has_forgotten_all_of_it_the_past_is_over() -> None:
    log = begins({})
    assert tell(log, CUT, CUT + 1, CUT) == []
    assert (log.reads_past, log.needed_after) == (False, {"a": CUT})
