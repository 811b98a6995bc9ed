"""The home's side: what many clients miss is asked for once, told to all of them, and to nobody else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from msgspec.structs import replace

from helpers.draining import drain
from ordered_pubsub.core.messages import (
    AckExpected,
    Chunk,
    Ended,
    HomeFloors,
    LogItem,
    LogReply,
    Nack,
    NackRange,
    Progress,
    Recovered,
    TopicHeads,
)
from ordered_pubsub.core.recovery import told as module
from ordered_pubsub.core.recovery.curiosity import CURIOUS_FOR_S, STREAMS_AT_ONCE
from ordered_pubsub.core.recovery.hosting import Hosting
from ordered_pubsub.core.recovery.missing import NRT_FLOOR_S
from ordered_pubsub.core.recovery.told import ANSWERED_MAX, ITEM_BYTES, Chosen
from ordered_pubsub.core.topology import StageSpec, Topology

TWO = Topology((StageSpec("high", ("a", "b")), StageSpec("low", ("c",))))
EVERYBODY = [f"client{number}" for number in range(100)]


@pytest.fixture
def hosting() -> Hosting:
    return Hosting(TWO)


def want(hosting: Hosting, session: str, first: int, last: int | None = None, *, now: float = 0.0, full: bool = False,
         topic: str = "a", where: str = "") -> None:  # fmt: skip
    """A client misses something."""
    drain(
        hosting.curiosity.wanting(
            session, Nack(f"{session}/1", [NackRange(topic, first, last or first, full, where)]), now
        )
    )


def item(first: int, last: int | None = None, *, full: bool = False, size: int = 10) -> LogItem:
    last = last or first
    return LogItem(first, last, {"b": 1}, full, [], first, 1, 1.0, [Chunk(last - first + 1, b"x" * size)])


def told(*items: LogItem, topic: str = "a", floor: int = 0) -> LogReply:
    first, read_to = (items[0].first, items[-1].last) if items else (1, 1)
    return LogReply(topic, first, read_to, floor, list(items))


def tell(hosting: Hosting, told: LogReply) -> None:
    """An owner says this, and everybody has its turn."""
    chosen = Chosen(1 << 20)
    for identity in hosting.curiosity.hear(told):
        drain(hosting.curiosity.telling(told, identity, chosen))


def take_informed(hosting: Hosting) -> dict[str, list[int]]:
    """Who was told of which numbers since the last call."""
    found: dict[str, list[int]] = {}
    for session, message in hosting.tells:
        assert isinstance(message, Recovered)
        assert message.subscription == f"{session}/1"
        for one in message.reply.items:
            found.setdefault(session, []).extend(range(one.first, one.last + 1))
    hosting.tells.clear()
    return found


def asked(hosting: Hosting) -> list[tuple[int, list[NackRange]]]:
    """Who is asked for what."""
    return [(rank, list(recall.wants)) for rank, recall in hosting.curiosity.take_log_requests()]


# -- consolidation ----------------------------------------------------------------------------------------------------


def test_what_a_hundred_subscribers_miss_is_asked_for_once(hosting: Hosting) -> None:
    for session in EVERYBODY:
        want(hosting, session, 5)

    assert asked(hosting) == [(0, [NackRange("a", 5, 5)])]


def test_it_is_asked_for_once_again_when_the_answer_may_be_lost(hosting: Hosting) -> None:
    """A hundred that ask ten times as often as that make one recall for each interval."""
    recalls = []
    for step in range(50):
        now = step / 32
        for session in EVERYBODY:
            want(hosting, session, 5, now=now)
        recalls += [(now, wants) for wants in asked(hosting)]

    times = [now for now, _ in recalls]
    assert all(NRT_FLOOR_S <= later - earlier < NRT_FLOOR_S + 1 / 32 for earlier, later in pairwise(times))
    assert len(times) == 8
    assert all(wants == (0, [NackRange("a", 5, 5)]) for _, wants in recalls)


def test_of_what_overlaps_only_the_rest_is_asked_for(hosting: Hosting) -> None:
    want(hosting, "one", 1, 10)
    want(hosting, "two", 5, 15)

    assert asked(hosting) == [(0, [NackRange("a", 1, 10), NackRange("a", 11, 15)])]


def test_each_topic_is_asked_for_at_its_owner(hosting: Hosting) -> None:
    want(hosting, "one", 1, topic="a")
    want(hosting, "one", 1, topic="c")

    assert asked(hosting) == [(0, [NackRange("a", 1, 1)]), (1, [NackRange("c", 1, 1)])]


def test_a_full_timestamp_is_asked_for_though_the_number_was(hosting: Hosting) -> None:
    want(hosting, "one", 5)
    want(hosting, "two", 5, full=True)
    want(hosting, "three", 5, full=True)

    assert asked(hosting) == [(0, [NackRange("a", 5, 5), NackRange("a", 5, 5, full=True)])]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_is_told_to_all_who_miss_it_and_to_nobody_else(hosting: Hosting) -> None:
    for session in EVERYBODY:
        want(hosting, session, 5)
    want(hosting, "other", 6)
    tell(hosting, told(item(5)))

    assert take_informed(hosting) == {session: [5] for session in EVERYBODY}


def test_everybody_is_told_what_it_misses_only(hosting: Hosting) -> None:
    want(hosting, "one", 1, 2)
    want(hosting, "two", 3, 4)
    tell(hosting, told(item(1), item(2), item(3), item(4)))

    assert take_informed(hosting) == {"one": [1, 2], "two": [3, 4]}


def test_the_same_answer_again_is_told_to_nobody(hosting: Hosting) -> None:
    want(hosting, "one", 5)
    tell(hosting, told(item(5)))
    take_informed(hosting)
    tell(hosting, told(item(5)))

    assert take_informed(hosting) == {}


def test_who_comes_late_is_answered_from_the_cache(hosting: Hosting) -> None:
    want(hosting, "one", 5)
    tell(hosting, told(item(5)))
    hosting.curiosity.take_log_requests()
    take_informed(hosting)
    want(hosting, "two", 5, now=100.0)

    assert take_informed(hosting) == {"two": [5]}
    assert asked(hosting) == []


def test_of_what_is_partly_in_the_cache_the_rest_is_asked_for(hosting: Hosting) -> None:
    want(hosting, "one", 5)
    tell(hosting, told(item(5)))
    hosting.curiosity.take_log_requests()
    take_informed(hosting)
    want(hosting, "two", 4, 6, now=100.0)

    assert take_informed(hosting) == {"two": [5]}
    assert asked(hosting) == [(0, [NackRange("a", 4, 4), NackRange("a", 6, 6)])]


def test_a_full_timestamp_is_not_in_the_cache(hosting: Hosting) -> None:
    want(hosting, "one", 5)
    tell(hosting, told(item(5)))
    hosting.curiosity.take_log_requests()
    take_informed(hosting)
    want(hosting, "two", 5, full=True, now=100.0)
    assert take_informed(hosting) == {}
    assert asked(hosting) == [(0, [NackRange("a", 5, 5, full=True)])]
    tell(hosting, told(item(5, full=True)))

    assert take_informed(hosting) == {"two": [5]}


def test_of_what_is_known_here_a_part_is_told_and_the_rest_is_asked_for(hosting: Hosting) -> None:
    want(hosting, "one", 1, 100)
    tell(hosting, told(*(item(number) for number in range(1, 101))))
    take_informed(hosting)
    asked(hosting)
    want(hosting, "two", 1, 100, now=100.0)

    assert take_informed(hosting) == {"two": list(range(1, ANSWERED_MAX + 1))}
    assert asked(hosting) == [(0, [NackRange("a", ANSWERED_MAX + 1, 100)])]


def test_the_cache_is_bounded_and_forgets_the_oldest(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES_MAX", 10_000)
    for number in range(1, 21):
        want(hosting, "one", number)
        tell(hosting, told(item(number, size=1_000)))
    hosting.curiosity.take_log_requests()
    take_informed(hosting)
    want(hosting, "two", 1, 20, now=100.0)
    cached = take_informed(hosting)["two"]

    assert cached == list(range(cached[0], 21))
    assert 5 <= len(cached) <= 10
    assert asked(hosting) == [(0, [NackRange("a", 1, cached[0] - 1)])]


def test_what_an_owner_does_not_have_is_not_missed_any_more(hosting: Hosting) -> None:
    """Its subscriber is told up to where everything is gone."""
    want(hosting, "one", 1, 3)
    tell(hosting, LogReply("a", 1, 3, 10, []))
    ((session, message),) = hosting.tells
    assert isinstance(message, Recovered)
    assert (session, message.reply.floor) == ("one", 10)
    hosting.tells.clear()
    tell(hosting, told(item(1), item(2), item(3)))

    assert take_informed(hosting) == {}


# -- filters ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def choosing(hosting: Hosting) -> list[str]:
    """The stage leaves everything out; the filters by which it was asked to, in their order."""
    asked: list[str] = []

    def choose(where: str, items: Iterable[LogItem]) -> Iterator[LogItem | None]:
        for item in items:
            asked.append(where)
            yield None
            yield replace(item, chunks=[Chunk(chunk.count, b"") for chunk in item.chunks])

    hosting.curiosity.choose = choose
    return asked


def take_told(hosting: Hosting) -> list[tuple[str, str, bool]]:
    """Who was told something since the last call, by which filter, and whether the events are there."""
    found = [
        (session, message.reply.where, bool(message.reply.items[0].chunks[0].data))
        for session, message in hosting.tells
        if isinstance(message, Recovered)
    ]
    hosting.tells.clear()
    return found


def test_a_filter_takes_out_only_for_those_who_have_it(hosting: Hosting, choosing: list[str]) -> None:
    """And it is applied once for all of them."""
    for session, where in (("one", "x > 1"), ("two", ""), ("three", "x > 2"), ("four", "x > 1")):
        want(hosting, session, 5, where=where)
    tell(hosting, told(item(5)))

    assert take_told(hosting) == [
        ("one", "x > 1", False), ("two", "", True), ("three", "x > 2", False), ("four", "x > 1", False),
    ]  # fmt: skip
    assert choosing == ["x > 1", "x > 2"]


def test_what_is_in_the_cache_is_whole(hosting: Hosting, choosing: list[str]) -> None:
    want(hosting, "one", 5, where="x > 1")
    tell(hosting, told(item(5)))
    want(hosting, "two", 5)
    want(hosting, "three", 5, where="x > 2")

    assert take_told(hosting) == [("one", "x > 1", False), ("two", "", True), ("three", "x > 2", False)]


def test_what_a_subscription_misses_by_two_filters_is_chosen_by_each(hosting: Hosting, choosing: list[str]) -> None:
    """It reads the past by another one than the present."""
    want(hosting, "one", 5, where="x > 1")
    want(hosting, "one", 9, where="x > 2")
    tell(hosting, told(item(9)))
    tell(hosting, told(item(5)))

    assert [where for _, where, _ in take_told(hosting)] == ["x > 2", "x > 1"]


def test_a_subscription_that_asks_by_many_filters_is_known_by_the_last(hosting: Hosting, choosing: list[str]) -> None:
    for number in range(1, 100):
        want(hosting, "one", number, where=f"x > {number}")
    for number in range(1, 100):
        tell(hosting, told(item(number)))

    assert [where for _, where, _ in take_told(hosting)] == [f"x > {number}" for number in range(96, 100)]
    assert "a" not in hosting.curiosity._streams


def test_a_stage_that_cannot_read_events_leaves_nothing_out(hosting: Hosting) -> None:
    want(hosting, "one", 5, where="x > 1")
    tell(hosting, told(item(5)))

    assert take_told(hosting) == [("one", "x > 1", True)]


def test_what_was_chosen_for_one_identity_is_not_chosen_again_for_another(
    hosting: Hosting, choosing: list[str]
) -> None:
    """Though both have their turns at the same time, as far as one of them is ahead."""
    for session in ("one", "two"):
        hosting.client_came(session, f"{session}'s")
        want(hosting, session, 5, 6, where="x > 1")
    said, chosen = told(item(5), item(6)), Chosen(1 << 20)
    works = [hosting.curiosity.telling(said, identity, chosen) for identity in hosting.curiosity.hear(said)]
    next(works[0])
    for _ in range(4):
        for work in works:
            next(work, None)

    assert take_informed(hosting) == {"one": [5, 6], "two": [5, 6]}
    assert len(choosing) == 3


def test_of_what_was_chosen_only_the_last_is_kept() -> None:
    chosen = Chosen(3 * ITEM_BYTES)
    for number in range(1, 6):
        chosen.keep("x > 1", item(number, size=50))
    chosen.keep("x > 1", item(9, size=3 * ITEM_BYTES))

    assert [number for number in range(1, 10) if chosen.find("x > 1", number)] == [4, 5]
    assert chosen.find("x > 2", 5) is None


def test_what_is_known_here_is_chosen_in_small_steps(hosting: Hosting, choosing: list[str]) -> None:
    want(hosting, "other", 1, 9)
    tell(hosting, told(*map(item, range(1, 10))))
    hosting.tells.clear()
    hosting.curiosity.take_log_requests()
    steps = list(hosting.curiosity.wanting("one", Nack("one/1", [NackRange("a", 1, 9, where="x > 1")]), 100.0))

    assert len(steps) == 9
    assert len(choosing) == 9
    assert take_informed(hosting) == {"one": list(range(1, 10))}
    assert asked(hosting) == []


def test_who_goes_while_something_is_chosen_for_it_is_told_nothing(hosting: Hosting, choosing: list[str]) -> None:
    want(hosting, "one", 5, where="x > 1")
    want(hosting, "two", 5)
    want(hosting, "three", 5, where="x > 1")
    said = told(item(5))
    work = hosting.curiosity.telling(said, "", Chosen(0))
    assert hosting.curiosity.hear(said) == [""]
    next(work)
    hosting.forget("one")
    drain(work)

    assert [session for session, _, _ in take_told(hosting)] == ["two", "three"]


def test_what_is_missed_since_something_is_chosen_is_asked_for(hosting: Hosting, choosing: list[str]) -> None:
    """It is not taken for something that was chosen."""
    want(hosting, "one", 5, where="x > 1")
    hosting.curiosity.take_log_requests()
    said = LogReply("a", 5, 5_000, 0, [item(5), item(6)])
    hosting.curiosity.hear(said)
    work = hosting.curiosity.telling(said, "", Chosen(0))
    next(work)
    want(hosting, "one", 6, where="x > 1")
    drain(work)

    assert take_informed(hosting) == {"one": [5]}
    assert asked(hosting) == [(0, [NackRange("a", 6, 6)])]


def test_each_identity_is_told_by_itself(hosting: Hosting) -> None:
    for session, identity in (("one", "desk"), ("two", "desk"), ("three", "market")):
        hosting.client_came(session, identity)
        want(hosting, session, 5)
    said = told(item(5))

    assert hosting.curiosity.hear(said) == ["desk", "market"]
    drain(hosting.curiosity.telling(said, "market", Chosen(0)))
    assert take_informed(hosting) == {"three": [5]}
    drain(hosting.curiosity.telling(said, "desk", Chosen(0)))
    assert take_informed(hosting) == {"one": [5], "two": [5]}
    assert (hosting.curiosity.hear(said), hosting.curiosity._weights) == ([], {})


def test_many_who_miss_nothing_any_more_are_forgotten_a_few_at_a_time(hosting: Hosting) -> None:
    for number in range(10 * STREAMS_AT_ONCE):
        drain(hosting.curiosity.wanting("one", Nack(f"one/{number}", [NackRange("a", 5, 5)]), 0.0))
    streams = hosting.curiosity._streams
    left = [len(streams["a"].curious[""]) if "a" in streams else 0 for _ in hosting.curiosity.tidying(CURIOUS_FOR_S)]

    assert max(before - after for before, after in pairwise([10 * STREAMS_AT_ONCE, *left, 0])) <= STREAMS_AT_ONCE
    assert hosting.curiosity._streams.keys() <= {"a"}
    assert hosting.curiosity._weights == {}


def test_what_nobody_misses_is_told_to_nobody(hosting: Hosting) -> None:
    tell(hosting, told(item(5)))

    assert hosting.tells == []


# -- who is gone ------------------------------------------------------------------------------------------------------


def test_who_is_gone_is_told_nothing(hosting: Hosting) -> None:
    for session in ("one", "two"):
        hosting.note_progress(session, Progress(f"{session}/1", {"a": 4}))
        want(hosting, session, 5)
    hosting.forget("one")
    tell(hosting, told(item(5)))
    assert take_informed(hosting) == {"two": [5]}
    hosting.expected(AckExpected({"a": 9}))

    assert hosting.tells == [("two", TopicHeads("two/1", {"a": 9}))]


def test_who_has_not_repeated_what_it_misses_does_not_miss_it_any_more(hosting: Hosting) -> None:
    want(hosting, "one", 5)
    want(hosting, "two", 5)
    want(hosting, "two", 5, now=CURIOUS_FOR_S - 1)
    drain(hosting.curiosity.tidying(CURIOUS_FOR_S))
    tell(hosting, told(item(5)))

    assert take_informed(hosting) == {"two": [5]}


@pytest.mark.parametrize("answer", [replace(told(), given=0), replace(told(floor=7), given=7)])
def test_nothing_is_left_of_a_topic_that_does_not_have_what_is_missed(hosting: Hosting, answer: LogReply) -> None:
    """Who misses something of very many topics, again and again of others, leaves nothing behind."""
    want(hosting, "x", 1, 7)
    tell(hosting, answer)
    assert not hosting.curiosity._streams


def test_nothing_is_left_of_those_who_are_gone(hosting: Hosting) -> None:
    for session in EVERYBODY:
        hosting.note_progress(session, Progress(f"{session}/1", {"a": 4, "c": 1}))
        want(hosting, session, 5, 9)
        hosting.forget(session)
    drain(hosting.curiosity.tidying(CURIOUS_FOR_S))
    hosting.take_hosts()

    assert (hosting._acked, hosting._held, hosting.curiosity._streams, hosting._stirred) == ({}, {}, {}, {})


# -- acknowledgements -------------------------------------------------------------------------------------------------


def test_an_owner_is_told_of_the_last_of_all_subscribers(hosting: Hosting) -> None:
    for number, session in enumerate(EVERYBODY):
        hosting.note_progress(session, Progress(f"{session}/1", {"a": 10 + number, "c": number}))

    assert hosting.take_hosts() == [(0, HomeFloors({"a": 10})), (1, HomeFloors({"c": 0}))]


def test_an_owner_is_told_of_what_has_changed_only(hosting: Hosting) -> None:
    hosting.note_progress("one", Progress("one/1", {"a": 1, "b": 1}))
    hosting.take_hosts()
    assert hosting.take_hosts() == []
    hosting.note_progress("one", Progress("one/1", {"a": 2}))

    assert hosting.take_hosts() == [(0, HomeFloors({"a": 2}))]


def test_an_owner_is_told_when_nobody_holds_a_topic_any_more(hosting: Hosting) -> None:
    hosting.note_progress("one", Progress("one/1", {"a": 1, "b": 1}))
    hosting.take_hosts()
    hosting.note_progress("one", Progress("one/1", {"b": 1}, is_all=True))

    assert hosting.take_hosts() == [(0, HomeFloors({"a": None, "b": 1}))]


def test_an_owner_whose_link_is_there_again_is_told_everything(hosting: Hosting) -> None:
    hosting.note_progress("one", Progress("one/1", {"a": 3, "b": 1, "c": 5}))
    hosting.note_progress("two", Progress("two/1", {"a": 2}))

    assert hosting.all_hosts(0) == HomeFloors({"a": 2, "b": 1}, is_all=True)


def test_who_follows_more_than_its_identity_may_is_told_that_it_ends(hosting: Hosting) -> None:
    """The others go on."""
    hosting.followed_max = lambda identity: 3
    for session, topics in (("one", "ab"), ("two", "bc"), ("three", "a")):
        hosting.client_came(session, "desk")
        hosting.note_progress(session, Progress(f"{session}/1", dict.fromkeys(topics, 1)))
    ((session, ended),) = hosting.tells
    assert isinstance(ended, Ended)
    assert (session, ended.subscription, ended.code) == ("two", "two/1", "limit")
    assert "'desk'" in ended.reason
    assert hosting.followed_by("two") == {}
    assert hosting.take_hosts() == [(0, HomeFloors({"a": 1, "b": 1}))]
    said = [follows.subscription for _, progress in hosting.take_progress() for follows in progress.news]
    assert said == ["one/1", "three/1"], "what has ended is not passed on"
    hosting.note_progress("one", Progress("one/1", {}, is_all=True))
    hosting.note_progress("two", Progress("two/1", {"b": 1, "c": 1}))
    assert list(hosting.followed_by("two")) == ["two/1"]


def test_those_who_are_behind_are_told_how_far_a_topic_is(hosting: Hosting) -> None:
    for session, acked in (("one", 4), ("two", 5), ("three", 0)):
        hosting.note_progress(session, Progress(f"{session}/1", {"a": acked}))
    hosting.expected(AckExpected({"a": 5, "b": 7}))

    assert hosting.tells == [("one", TopicHeads("one/1", {"a": 5})), ("three", TopicHeads("three/1", {"a": 5}))]


# -- who misses too much ------------------------------------------------------------------------------------------------


def test_one_identity_that_misses_too_much_is_not_listened_to_and_others_are(hosting: Hosting) -> None:
    hosting.curiosity.curious_max = 5
    hosting.identities |= {"greedy": "x", "greedy-too": "x", "modest": "y"}
    for first in range(1, 40, 2):  # each a stretch of its own
        want(hosting, "greedy", first)
    want(hosting, "greedy-too", 101)
    assert hosting.curiosity.too_much > 0
    asked_of_greedy = [each for _, wants in asked(hosting) for each in wants]
    assert 0 < len(asked_of_greedy) < 10
    assert max(each.last for each in asked_of_greedy) < 100
    want(hosting, "modest", 201)
    assert asked(hosting) == [(0, [NackRange("a", 201, 201)])]
    tell(hosting, told(*(item(number) for number in range(1, 41))))
    want(hosting, "greedy-too", 101)  # what it got, it does not miss any more
    assert asked(hosting) == [(0, [NackRange("a", 101, 101)])]
