"""A range of the logs: what is asked for, what its answers give, and which batch is next."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import attrs
import msgspec
import pytest

from ordered_pubsub.core.log.questions import ASKED_MAX, Read, Rows
from ordered_pubsub.core.log.range_reader import (
    INCOMPLETE_PAUSE_S,
    MEMORY_BYTES,
    PIECE_BYTES_MIN,
    OwnerRange,
    RangeReader,
    raise_lost,
)
from ordered_pubsub.core.log.shelf import LogStamp
from ordered_pubsub.errors import HistoryLost, ProtocolError, UnavailableError

OWNERS = {"a": 0, "b": 0, "c": 1}


@attrs.frozen
class Logged:
    """A batch in a log."""

    first: int
    last: int
    place: int
    entries: Mapping[str, int] = attrs.field(factory=dict)
    at: float = 1.0
    has_events: bool = True

    @property
    def stamp(self) -> tuple[int, int, bytes]:
        stamp = LogStamp(dict(self.entries), False, [], self.place, self.at, True)
        return self.first, self.last, msgspec.msgpack.encode(stamp)

    @property
    def events(self) -> list[tuple[int, int, bytes]]:
        return [(self.first, self.last, b"x" * 100)] if self.has_events else []


def rows(ask: Read, *logged: Logged, full: dict[str, int] | None = None, floor: int = 0) -> Rows:
    """An answer to what was asked for; with the first timestamp in full, if that was asked for."""
    if full is None and ask.full and logged:
        full = dict(logged[0].entries)
    read_to = min(logged[-1].last, ask.last) if logged else ask.first - 1
    events = [event for one in logged for event in one.events]
    return Rows(ask.number, floor, read_to, full, [one.stamp for one in logged], events)


def reader_of(
    start: Mapping[str, int], end: Mapping[str, int], piece_bytes: int = 100_000, lose: object = None
) -> RangeReader:
    said = raise_lost("test") if lose is None else lose
    return RangeReader.of(OWNERS.__getitem__, start, end, said, piece_bytes=piece_bytes)  # type: ignore[arg-type]


def asks_of(owner: OwnerRange, now: float = 0.0, first: int = 1) -> dict[str, Read]:
    return {ask.topic: ask for ask in owner.asks(now, count(first).__next__)}


def taken(reader: RangeReader) -> list[tuple[str, int]]:
    return [(batch.topic, batch.first) for batch in reader.take()]


def test_of_one_owners_topics_only_that_is_next_before_which_nothing_can_come() -> None:
    reader = reader_of({}, {"a": 3, "b": 3})
    owner = reader.owners[0]
    asks = asks_of(owner)
    owner.hear(rows(asks["a"], Logged(1, 1, 1), Logged(2, 2, 4)), 0.0)

    assert taken(reader) == []
    assert reader.lacking == 0

    owner.hear(rows(asks["b"], Logged(1, 1, 2), Logged(2, 2, 3), Logged(3, 3, 7)), 0.0)
    assert taken(reader) == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert not reader.is_over


def test_between_owners_a_batch_waits_for_what_its_timestamp_names_and_the_earliest_is_next() -> None:
    reader = reader_of({}, {"a": 2, "c": 2})
    a, c = asks_of(reader.owners[0])["a"], asks_of(reader.owners[1], first=9)["c"]
    reader.owners[0].hear(rows(a, Logged(1, 1, 1, {"c": 1}, at=1.0), Logged(2, 2, 2, at=4.0)), 0.0)
    reader.owners[1].hear(rows(c, Logged(1, 1, 1, at=2.0), Logged(2, 2, 2, at=3.0)), 0.0)

    assert taken(reader) == [("c", 1), ("a", 1), ("c", 2), ("a", 2)]
    assert reader.is_over


def test_the_rest_of_a_batch_in_which_a_range_begins_waits_as_the_batch_would() -> None:
    """A clock that somebody has made up may have its beginning, and not what comes before it."""
    reader = reader_of({"a": 1}, {"a": 3, "c": 1})
    a, c = asks_of(reader.owners[0])["a"], asks_of(reader.owners[1], first=9)["c"]
    reader.owners[0].hear(rows(a, Logged(1, 3, 1, {"c": 1}, at=1.0)), 0.0)
    reader.owners[1].hear(rows(c, Logged(1, 1, 1, at=2.0)), 0.0)

    assert taken(reader) == [("c", 1), ("a", 1)]


def test_no_more_is_asked_for_of_a_topic_that_holds_a_piece() -> None:
    owner = reader_of({}, {"a": 9, "b": 9}, piece_bytes=500).owners[0]
    asks = asks_of(owner)
    owner.hear(rows(asks["a"], Logged(1, 1, 1), Logged(2, 2, 2)), 0.0)

    assert list(asks_of(owner, first=5)) == []
    assert owner.topics[0].held_bytes == 800

    owner.hear(rows(asks["b"], Logged(1, 1, 3)), 0.0)
    owner.take()
    assert list(asks_of(owner, first=7)) == ["a", "b"]


def test_what_is_held_of_many_topics_is_bounded_by_smaller_pieces() -> None:
    many = {f"t{number}": 1 for number in range(2_000)}

    def piece_bytes(topics: int) -> int:
        end = dict(list(many.items())[:topics])
        return RangeReader.of(lambda topic: 0, {}, end, raise_lost("test")).owners[0].piece_bytes

    assert piece_bytes(1) > piece_bytes(500) == MEMORY_BYTES // 1_000 > piece_bytes(2_000) == MEMORY_BYTES // 4_000
    assert piece_bytes(2_000) > PIECE_BYTES_MIN
    assert len(asks_of(RangeReader.of(lambda topic: 0, {}, many, raise_lost("test")).owners[0])) == ASKED_MAX


def test_what_is_not_complete_is_asked_for_again_after_a_while_and_not_for_ever() -> None:
    owner = reader_of({}, {"a": 1}).owners[0]
    assert not owner.hear(rows(asks_of(owner)["a"]), 5.0)

    assert not owner.is_asked
    assert asks_of(owner, now=5.0) == {}
    assert list(asks_of(owner, now=5.0 + INCOMPLETE_PAUSE_S)) == ["a"]
    owner.check_patience(10.0, 30.0)
    with pytest.raises(UnavailableError, match="number 1 of topic 'a' is not complete"):
        owner.check_patience(36.0, 30.0)


def test_patience_begins_anew_when_something_has_come() -> None:
    owner = reader_of({}, {"a": 2}).owners[0]
    owner.hear(rows(asks_of(owner)["a"]), 0.0)
    assert owner.hear(rows(asks_of(owner, now=1.0)["a"], Logged(1, 1, 1)), 1.0)

    owner.check_patience(100.0, 30.0)


def test_a_first_timestamp_that_is_not_full_is_asked_for_again() -> None:
    owner = reader_of({}, {"a": 1}).owners[0]
    answer = msgspec.structs.replace(rows(asks_of(owner)["a"], Logged(1, 1, 1)), full=None)

    assert not owner.hear(answer, 0.0)
    assert asks_of(owner)["a"].full


def test_events_that_do_not_come_are_not_taken_for_silence() -> None:
    owner = reader_of({}, {"a": 2}).owners[0]
    with pytest.raises(ProtocolError, match="no events of topic 'a' from number 2 on"):
        owner.hear(rows(asks_of(owner)["a"], Logged(1, 1, 1), Logged(2, 2, 2, has_events=False)), 0.0)


def test_a_range_that_is_no_cut_ends_with_an_error() -> None:
    reader = reader_of({}, {"a": 1, "c": 1})
    a, c = asks_of(reader.owners[0])["a"], asks_of(reader.owners[1], first=9)["c"]
    reader.owners[0].hear(rows(a, Logged(1, 1, 1, {"c": 2})), 0.0)
    reader.owners[1].hear(rows(c, Logged(1, 1, 1, {"a": 1})), 0.0)

    with pytest.raises(ProtocolError, match="'a' waits for something that is not in it"):
        reader.take()


def test_on_another_line_everything_is_asked_for_again_under_other_numbers() -> None:
    owner = reader_of({}, {"a": 1, "b": 1}).owners[0]
    before = asks_of(owner)
    owner.begin_anew()
    after = asks_of(owner, first=3)

    assert list(before) == list(after)
    assert before["a"].number not in owner.asked
    assert after["a"].number in owner.asked


def test_what_is_gone_is_said_and_what_comes_behind_it_needs_its_full_timestamp() -> None:
    lost: list[tuple[str, int, int]] = []
    reader = reader_of({}, {"a": 9}, lose=lambda *gone: lost.append(gone))
    owner = reader.owners[0]
    owner.hear(rows(asks_of(owner)["a"], Logged(1, 2, 1)), 0.0)
    owner.hear(rows(asks_of(owner)["a"], floor=5), 0.0)
    ask = asks_of(owner)["a"]

    assert lost == [("a", 3, 6)]
    assert (ask.first, ask.full) == (6, True)
    assert taken(reader) == [("a", 1), ("a", 3)]
    with pytest.raises(HistoryLost, match="'a'"):
        raise_lost("test")(*lost[0])
