"""The owner's side: small pieces of the log for whoever asks, and a word to those who are behind."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.log.writer import Kept, LogWriter
from ordered_pubsub.core.messages import AckExpected, Chunk, HomeFloors, LogReply, NackRange, Publication
from ordered_pubsub.core.recovery.owner_log import AET_MOST_S, AET_S, PIECE_BYTES, WANTS_MAX, OwnerLogs


@pytest.fixture
def shelf() -> MemoryShelf:
    return MemoryShelf()


@pytest.fixture
def owner_logs(shelf: MemoryShelf) -> OwnerLogs:
    return OwnerLogs(LogReader(shelf))


def write(shelf: MemoryShelf, topic: str, first: int, count: int = 1, size: int = 1) -> None:
    """One batch of events of a size."""
    chunks = tuple(Chunk(1, b"x" * size) for _ in range(count))
    complete = Publication(topic, count, 1.0, first, 1, False, {"b": first}, [], True)
    LogWriter(shelf).write([Kept(topic, first, chunks)], [complete])


def serve_all(owner_logs: OwnerLogs) -> list[tuple[int, LogReply]]:
    told = []
    while owner_logs.has_work:
        home = owner_logs.next_home(lambda home: False)
        assert home is not None
        told.append((home, owner_logs.serve_home(home)))
    return told


def expected_at(owner_logs: OwnerLogs, until: float, step: float = 0.5) -> list[float]:
    """When somebody is told how far topics are, until a time."""
    times = []
    now = 0.0
    while now <= until:
        if owner_logs.tick(now):
            times.append(now)
        now += step
    return times


# -- recalling --------------------------------------------------------------------------------------------------------


def test_what_is_in_the_log_is_told_to_who_asks(owner_logs: OwnerLogs, shelf: MemoryShelf) -> None:
    write(shelf, "a", 1, 3)
    owner_logs.handle_request(7, [NackRange("a", 2, 2)])
    ((home, told),) = serve_all(owner_logs)

    assert (home, told.topic, told.first, told.read_to) == (7, "a", 2, 2)
    assert [(item.first, item.last) for item in told.items] == [(2, 2)]


def test_what_is_not_in_the_log_is_told_nothing_of(owner_logs: OwnerLogs) -> None:
    owner_logs.handle_request(7, [NackRange("a", 1, 3)])

    assert serve_all(owner_logs) == [(7, LogReply("a", 1, 3, 0, []))]


def test_a_full_timestamp_is_told_if_it_is_wanted(owner_logs: OwnerLogs, shelf: MemoryShelf) -> None:
    write(shelf, "a", 1)
    write(shelf, "a", 2)
    owner_logs.handle_request(7, [NackRange("a", 2, 2, full=True)])
    owner_logs.handle_request(8, [NackRange("a", 2, 2)])

    assert [told.items[0].full for _, told in serve_all(owner_logs)] == [True, False]


def test_a_number_in_the_middle_is_told_with_its_full_timestamp(owner_logs: OwnerLogs, shelf: MemoryShelf) -> None:
    for number in range(1, 6):
        write(shelf, "a", number)
    owner_logs.handle_request(7, [NackRange("a", 1, 5), NackRange("a", 3, 3, full=True)])

    assert [(told.first, told.items[0].full) for _, told in serve_all(owner_logs)] == [(1, False), (3, True)]


def test_the_same_numbers_are_read_once_for_a_home_stage(owner_logs: OwnerLogs, shelf: MemoryShelf) -> None:
    write(shelf, "a", 1, count=10)
    owner_logs.handle_request(7, [NackRange("a", 1, 10)] * 1_000)

    assert len(serve_all(owner_logs)) == 1


def test_of_a_home_stage_the_topics_take_turns(owner_logs: OwnerLogs, shelf: MemoryShelf) -> None:
    for number in range(1, 4):
        write(shelf, "a", number, size=PIECE_BYTES)
    write(shelf, "b", 1)
    owner_logs.handle_request(7, [NackRange("a", 1, 3), NackRange("b", 1, 1)])

    assert [told.topic for _, told in serve_all(owner_logs)] == ["a", "b", "a", "a"]


def test_much_is_told_in_pieces_and_completely(owner_logs: OwnerLogs, shelf: MemoryShelf) -> None:
    for number in range(1, 21):
        write(shelf, "a", number, size=PIECE_BYTES // 4)
    owner_logs.handle_request(7, [NackRange("a", 1, 20)])
    pieces = [told for _, told in serve_all(owner_logs)]

    assert all(sum(len(item.chunks) for item in told.items) <= 4 for told in pieces)
    assert [item.first for told in pieces for item in told.items] == list(range(1, 21))
    assert [told.first for told in pieces] == [1, *(told.read_to + 1 for told in pieces[:-1])]


def test_who_asks_for_much_does_not_delay_who_asks_for_little(owner_logs: OwnerLogs, shelf: MemoryShelf) -> None:
    for number in range(1, 21):
        write(shelf, "a", number, size=PIECE_BYTES)
    owner_logs.handle_request(1, [NackRange("a", 1, 20)])
    owner_logs.handle_request(2, [NackRange("a", 20, 20)])

    assert [home for home, _ in serve_all(owner_logs)][:2] == [1, 2]


def test_what_waits_is_bounded(owner_logs: OwnerLogs) -> None:
    """What finds no room is asked again by who misses it."""
    for part in range(3):
        start = part * WANTS_MAX
        owner_logs.handle_request(
            1, [NackRange("a", 2 * (start + n) + 1, 2 * (start + n) + 1) for n in range(WANTS_MAX // 2 + 1)]
        )
    owner_logs.handle_request(2, [NackRange("a", 1, 1)])

    homes = [home for home, _ in serve_all(owner_logs)]
    assert (homes.count(1), homes.count(2)) == (WANTS_MAX, 1)


# -- acknowledgements -------------------------------------------------------------------------------------------------


def test_who_is_behind_is_told_some_time_after_the_last_event(owner_logs: OwnerLogs) -> None:
    owner_logs.published("a", 5)
    owner_logs.hosts(1, HomeFloors({"a": 4}))
    owner_logs.tick(0.0)

    assert owner_logs.tick(AET_S - 0.1) == []
    assert owner_logs.tick(AET_S) == [(1, AckExpected({"a": 5}))]


def test_only_homes_that_are_behind_are_told(owner_logs: OwnerLogs) -> None:
    owner_logs.published("a", 5)
    for home, acked in enumerate([5, 4, 0, 6]):
        owner_logs.hosts(home, HomeFloors({"a": acked}))
    owner_logs.tick(0.0)

    assert [home for home, _ in owner_logs.tick(AET_S)] == [1, 2]


def test_a_home_that_has_said_nothing_is_told_nothing(owner_logs: OwnerLogs) -> None:
    owner_logs.published("a", 5)

    assert expected_at(owner_logs, 60.0) == []


def test_while_events_come_and_are_acknowledged_nobody_is_told_anything(owner_logs: OwnerLogs) -> None:
    """Clients say once a second how far they are, and homes twice."""
    owner_logs.hosts(1, HomeFloors({"a": 0}))
    told = []
    for step in range(100):
        owner_logs.published("a", step + 1)
        owner_logs.hosts(1, HomeFloors({"a": max(0, step - 2)}))
        told += owner_logs.tick(step * 0.5)

    assert told == []


@pytest.mark.parametrize("period_s", [0.05, 0.1, 0.5, 1.9])
def test_who_gets_nothing_is_told_of_each_event_in_time_whatever_the_rate(
    owner_logs: OwnerLogs, period_s: float
) -> None:
    """The time runs for each event, and is not set anew by the next one."""
    owner_logs.hosts(1, HomeFloors({"a": 0}))
    owner_logs.tick(0.0)
    published: dict[int, float] = {}
    told: dict[int, float] = {}
    for step in range(1, 400):  # at 20 Hz
        now = step * 0.05
        while (len(published) + 1) * period_s <= now:
            published[len(published) + 1] = now
            owner_logs.published("a", len(published))
        for _, expected in owner_logs.tick(now) if step % 10 == 0 else ():
            for number in range(1, expected.counts["a"] + 1):
                told.setdefault(number, now)
    late = {number: told.get(number, 20.0) - at for number, at in published.items() if at < 17.0}

    assert max(late.values()) <= AET_S
    assert min(late.values()) >= AET_S - 0.55


def test_busy_topics_have_no_more_milestones_than_there_are_ticks(owner_logs: OwnerLogs) -> None:
    owner_logs.hosts(1, HomeFloors({"a": 0}))
    for step in range(1, 1_000):
        owner_logs.published("a", step)
        owner_logs.published("b", step)
        owner_logs.tick(step * 0.5)

    assert len(owner_logs._milestones) <= AET_S / 0.5 + 1
    assert list(owner_logs._restless) == ["a"]


def test_nothing_is_expected_that_was_published_just_now(owner_logs: OwnerLogs) -> None:
    """It is on its way, and would be asked for by everybody."""
    owner_logs.hosts(1, HomeFloors({"a": 0}))
    owner_logs.tick(0.0)
    for step in range(1, 40):
        owner_logs.published("a", step)
        for _, expected in owner_logs.tick(step * 0.5):
            assert expected.counts["a"] <= step - 3


def test_it_is_said_again_less_and_less_often_for_as_long_as_it_lasts(owner_logs: OwnerLogs) -> None:
    owner_logs.published("a", 5)
    owner_logs.hosts(1, HomeFloors({"a": 4}))
    times = expected_at(owner_logs, 100.0)
    pauses = [later - earlier for earlier, later in pairwise(times)]

    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] == AET_MOST_S
    assert times[-1] > 100.0 - AET_MOST_S


def test_who_has_caught_up_is_told_nothing_more(owner_logs: OwnerLogs) -> None:
    owner_logs.published("a", 5)
    owner_logs.hosts(1, HomeFloors({"a": 4}))
    owner_logs.tick(0.0)
    assert owner_logs.tick(AET_S)
    owner_logs.hosts(1, HomeFloors({"a": 5}))

    assert expected_at(owner_logs, 60.0) == []


def test_who_comes_late_and_is_behind_is_told(owner_logs: OwnerLogs) -> None:
    owner_logs.published("a", 5)
    assert expected_at(owner_logs, 60.0) == []
    owner_logs.hosts(1, HomeFloors({"a": 3}))
    owner_logs.tick(60.0)

    assert owner_logs.tick(60.0 + AET_S) == [(1, AckExpected({"a": 5}))]


@pytest.mark.parametrize("how", ["left", "gone", "all"])
def test_a_home_without_subscribers_is_told_nothing(owner_logs: OwnerLogs, how: str) -> None:
    owner_logs.published("a", 5)
    owner_logs.hosts(1, HomeFloors({"a": 4}))
    if how == "left":
        owner_logs.hosts(1, HomeFloors({"a": None}))
    elif how == "gone":
        owner_logs.home_is_gone(1)
    else:
        owner_logs.hosts(1, HomeFloors({}, is_all=True))

    assert expected_at(owner_logs, 60.0) == []


def test_topics_of_which_nobody_is_behind_cost_nothing(owner_logs: OwnerLogs) -> None:
    for number in range(1_000):
        owner_logs.published(f"t{number}", 1)
    owner_logs.tick(0.0)
    assert not owner_logs._restless
    owner_logs.tick(AET_S)

    assert not owner_logs._restless
    assert not owner_logs._stirred
    assert not owner_logs._milestones


def test_of_a_topic_that_rests_nothing_is_left(owner_logs: OwnerLogs) -> None:
    owner_logs.hosts(1, HomeFloors({"a": 0, "b": 0}))
    for last in (1, 2):
        owner_logs.published("a", last)
        owner_logs.published("b", last)
        owner_logs.tick(last * AET_S)
    owner_logs.published("a", 3)
    owner_logs.tick(2.5 * AET_S)
    owner_logs.rest(["a"])
    owner_logs.hosts(1, HomeFloors({"a": 0}))

    assert all("a" not in expected.counts for step in range(20) for _, expected in owner_logs.tick((3 + step) * AET_S))
