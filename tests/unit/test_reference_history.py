"""The past, read from the logs: one order, the same every time."""

from __future__ import annotations

from ordered_pubsub.core.subscriber.vector import SHARED_MAX, History
from ordered_pubsub.testing.history import LoggedEvent, full_timestamp, replay


def logged(name: str, place: int, at: float = 0.0, owner: int = 0, count: int = 1, **entries: int) -> LoggedEvent:
    first = int(name[1:])
    return LoggedEvent(name[0], first, first + count - 1, entries, owner, place, at)


def order(logs: list[LoggedEvent], **clock: int) -> list[str]:
    by_topic: dict[str, list[LoggedEvent]] = {}
    for entry in logs:
        by_topic.setdefault(entry.topic, []).append(entry)
    return [f"{event.topic}{event.number}" for event in replay(by_topic, clock)]


def test_decided_pairs_come_first_whatever_the_clocks_say() -> None:
    assert order([logged("a1", 1, at=1.0, owner=0, b=1), logged("b1", 1, at=9.0, owner=1)], a=0, b=0) == ["b1", "a1"]


def test_topics_of_one_owner_come_in_the_order_of_its_journal() -> None:
    assert order([logged("a1", 2, at=1.0), logged("b1", 1, at=9.0)], a=0, b=0) == ["b1", "a1"]


def test_otherwise_the_time_of_publication_decides_and_then_the_name() -> None:
    logs = [logged("b1", 1, at=2.0, owner=1), logged("a1", 1, at=3.0, owner=0), logged("c1", 1, at=2.0, owner=2)]
    assert order(logs, a=0, b=0, c=0) == ["b1", "c1", "a1"]


def test_a_batch_that_the_clock_is_in_the_middle_of_is_read_from_there() -> None:
    assert order([logged("a1", 1, count=4)], a=2) == ["a3", "a4"]


def test_topics_that_are_not_read_are_not_waited_for() -> None:
    assert order([logged("a1", 1, z=9)], a=0) == ["a1"]


def test_the_first_event_of_a_topic_is_judged_by_its_full_timestamp() -> None:
    """a2's delta leaves b out, for who handled a1 has waited for b1 already; who begins at a=1 has not."""
    logs = [logged("a1", 1, at=1.0, owner=0, b=1), logged("a2", 2, at=2.0, owner=0), logged("b1", 1, at=9.0, owner=1)]
    assert full_timestamp([entry for entry in logs if entry.topic == "a"], 2) == {"b": 1}
    assert order(logs, a=1, b=0) == ["b1", "a2"]


def test_reading_stops_where_a_log_does_not_have_what_another_needs() -> None:
    assert order([logged("a1", 1), logged("a2", 2, b=3), logged("b1", 1, owner=1)], a=0, b=0) == ["a1", "b1"]


def test_vectors_stay_what_they_were_while_a_topic_jumps_ahead() -> None:
    history = History()
    history.restart({"a": 0, "b": 0})
    vectors = [(history.passed("b") if n % 2 else history.jumped("a", 3 * n)).vector for n in range(3 * SHARED_MAX)]
    for place in (0, 1, SHARED_MAX - 1, SHARED_MAX, SHARED_MAX + 1, 2 * SHARED_MAX + 1):
        assert dict(vectors[place]) == {"a": 3 * (place - place % 2), "b": (place + 1) // 2}


def test_vectors_stay_what_they_were_while_the_clock_goes_on() -> None:
    history = History()
    history.restart({"a": 10, "b": 0})
    vectors = [history.passed("ab"[n % 2]).vector for n in range(3 * SHARED_MAX)]
    for place in (0, 1, SHARED_MAX - 1, SHARED_MAX, 2 * SHARED_MAX + 1):
        assert dict(vectors[place]) == {"a": 10 + place // 2 + 1, "b": (place + 1) // 2}
    assert vectors[0]["a"] == 11
    assert len(vectors[0]) == 2
    assert repr(vectors[0]) == "Vector({'a': 11, 'b': 0})"
