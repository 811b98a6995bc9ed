"""What the log may forget: what everybody has acknowledged, not too young, not too little; and what is beyond all bounds."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.retention import BUCKETS, LOOK_S, TOPICS_AT_ONCE, LogTrimmer, Policies, Policy
from ordered_pubsub.core.log.writer import Kept, LogWriter
from ordered_pubsub.core.messages import Chunk, Floors, Publication

FOR_EVER = float("inf")
AT_ONCE = Policy(keep_age_s=0.0, max_age_s=FOR_EVER)
"""Forgets what is not needed, and nothing else."""
LATER = 1_000.0
"""By the clock on the wall, after everything was published."""


@pytest.fixture
def shelf() -> MemoryShelf:
    return MemoryShelf()


def write(shelf: MemoryShelf, count: int, topic: str = "a", size: int = 1) -> None:
    """Events 1, 2, 3, …, each a batch of its own, published at the second of its number."""
    writer = LogWriter(shelf)
    for number in range(1, count + 1):
        complete = Publication(topic, 1, float(number), number, number, False, {}, [], True)
        writer.write([Kept(topic, number, (Chunk(1, b"x" * size),))], [complete])


def retention_of(shelf: MemoryShelf, policy: Policy = AT_ONCE, registrars: int = 1) -> LogTrimmer:
    return LogTrimmer(shelf, Policies(default=policy), registrars)


def all_acknowledged(shelf: MemoryShelf, policy: Policy, count: int, size: int = 1) -> LogTrimmer:
    """Of so many events on one topic nobody needs anything any more."""
    write(shelf, count, size=size)
    retention = retention_of(shelf, policy)
    say(retention, 0, retention.ask({"a": count}).round, a=count)
    return retention


def say(retention: LogTrimmer, registrar: int, number: int, **floors: int) -> None:
    """A registrar answers in this round."""
    retention.floors(registrar, Floors(number, floors))


# -- who needs what -----------------------------------------------------------------------------------------------------


def test_what_is_not_acknowledged_is_kept(shelf: MemoryShelf) -> None:
    write(shelf, 9)
    retention = retention_of(shelf)
    say(retention, 0, retention.ask({"a": 9}).round, a=4)
    assert retention.find_old(0.0, LATER) == [("a", 4)]


def test_the_one_that_needs_most_counts(shelf: MemoryShelf) -> None:
    write(shelf, 9)
    retention = retention_of(shelf, registrars=3)
    number = retention.ask({"a": 9}).round
    for registrar, floor in enumerate((7, 3, 9)):
        say(retention, registrar, number, a=floor)
    assert retention.find_old(0.0, LATER) == [("a", 3)]


def test_as_long_as_one_registrar_has_not_spoken_everything_is_needed(shelf: MemoryShelf) -> None:
    write(shelf, 9)
    retention = retention_of(shelf, registrars=2)
    say(retention, 0, retention.ask({"a": 9}).round, a=9)
    assert retention.find_old(0.0, LATER) == []


def test_of_a_topic_that_is_not_named_only_what_there_was_when_it_was_asked_is_not_needed(shelf: MemoryShelf) -> None:
    """A subscription may be gaining it just now, after the registrar has spoken."""
    write(shelf, 9)
    retention = retention_of(shelf)
    say(retention, 0, retention.ask({"a": 5}).round)
    assert retention.find_old(0.0, LATER) == [("a", 5)]


def test_an_answer_to_an_earlier_round_does_not_count(shelf: MemoryShelf) -> None:
    """What it does not name would be taken for what there is now."""
    write(shelf, 9)
    retention = retention_of(shelf)
    earlier = retention.ask({"a": 2}).round
    retention.ask({"a": 9})
    say(retention, 0, earlier)
    assert retention.find_old(0.0, LATER) == []


def test_the_answer_of_an_earlier_round_holds_until_there_is_another(shelf: MemoryShelf) -> None:
    write(shelf, 9)
    retention = retention_of(shelf)
    say(retention, 0, retention.ask({"a": 2}).round)
    retention.ask({"a": 9})
    assert retention.find_old(0.0, LATER) == [("a", 2)]


def test_what_the_log_does_not_have_is_not_forgotten(shelf: MemoryShelf) -> None:
    write(shelf, 3)
    retention = retention_of(shelf)
    say(retention, 0, retention.ask({"a": 9}).round, a=9)
    assert retention.find_old(0.0, LATER) == [("a", 3)]


# -- on top of that ---------------------------------------------------------------------------------------------------------


def test_what_is_younger_than_keep_age_is_kept_though_nobody_needs_it(shelf: MemoryShelf) -> None:
    retention = all_acknowledged(shelf, Policy(keep_age_s=10.0, max_age_s=FOR_EVER), 20)
    assert retention.find_old(0.0, 15.5) == [("a", 5)]


def test_the_last_keep_bytes_are_kept_though_nobody_needs_them(shelf: MemoryShelf) -> None:
    policy = Policy(keep_age_s=0.0, keep_bytes=100 * BUCKETS, max_age_s=FOR_EVER)
    retention = all_acknowledged(shelf, policy, BUCKETS + 36, size=100)
    assert retention.find_old(0.0, LATER) == [("a", 36)]


def test_what_is_in_either_of_them_is_kept(shelf: MemoryShelf) -> None:
    policy = Policy(keep_age_s=LATER - 20.5, keep_bytes=100 * BUCKETS, max_age_s=FOR_EVER)
    retention = all_acknowledged(shelf, policy, BUCKETS + 36, size=100)
    assert retention.find_old(0.0, LATER) == [("a", 20)]


# -- whatever happens -------------------------------------------------------------------------------------------------------


def test_what_is_older_than_max_age_is_forgotten_though_it_is_needed(shelf: MemoryShelf) -> None:
    write(shelf, 20)
    retention = retention_of(shelf, Policy(keep_age_s=0.0, max_age_s=12.0))
    assert retention.find_old(0.0, 20.5) == [("a", 8)]


def test_beyond_max_bytes_it_is_forgotten_though_it_is_needed(shelf: MemoryShelf) -> None:
    write(shelf, BUCKETS + 36, size=100)
    retention = retention_of(shelf, Policy(keep_age_s=0.0, max_age_s=FOR_EVER, max_bytes=100 * BUCKETS))
    assert retention.find_old(0.0, LATER) == [("a", 36)]


def test_max_bytes_goes_before_keep_age(shelf: MemoryShelf) -> None:
    policy = Policy(keep_age_s=FOR_EVER, max_age_s=FOR_EVER, max_bytes=100 * BUCKETS)
    retention = all_acknowledged(shelf, policy, BUCKETS + 36, size=100)
    assert retention.find_old(0.0, LATER) == [("a", 36)]


def test_what_is_written_and_what_is_forgotten_counts_in_bytes(shelf: MemoryShelf) -> None:
    write(shelf, BUCKETS + 36, size=100)
    retention = retention_of(shelf, Policy(keep_age_s=0.0, max_age_s=FOR_EVER, max_bytes=100 * BUCKETS))
    ((topic, up_to),) = retention.find_old(0.0, LATER)
    LogWriter(shelf).forget(topic, up_to)
    retention.forgotten(topic, up_to)
    assert retention.find_old(LOOK_S, LATER) == []
    write(shelf, BUCKETS + 40, size=100)  # the last four are new
    for number in range(BUCKETS + 37, BUCKETS + 41):
        retention.written(topic, number, 100)
    assert retention.find_old(2 * LOOK_S, LATER) == [("a", 40)]
    assert len(retention._sizes[topic].buckets) == BUCKETS + 4


# -- which rule, and when ---------------------------------------------------------------------------------------------------


def test_the_first_rule_that_matches_a_topic_holds() -> None:
    short, long, default = Policy(keep_age_s=1.0), Policy(keep_age_s=2.0), Policy()
    policies = Policies((("news/sport", short), ("news/**", long)), default)
    assert [policies.of(topic) for topic in ("news/sport", "news/art", "other")] == [short, long, default]


def test_many_topics_are_looked_at_some_at_a_time(shelf: MemoryShelf) -> None:
    count = 2 * TOPICS_AT_ONCE + 1
    for number in range(count):
        write(shelf, 1, topic=f"t{number}")
    retention = retention_of(shelf)
    retention.floors(0, Floors(retention.ask({f"t{number}": 1 for number in range(count)}).round, {}))
    found = [retention.find_old(0.1 * step, LATER) for step in range(4)]
    assert [len(old) for old in found] == [TOPICS_AT_ONCE, TOPICS_AT_ONCE, 1, 0]
    assert len({topic for old in found for topic, _ in old}) == count


def test_a_topic_is_looked_at_again_after_a_while(shelf: MemoryShelf) -> None:
    retention = all_acknowledged(shelf, AT_ONCE, 3)
    assert [bool(retention.find_old(now, LATER)) for now in (0.0, LOOK_S / 2, LOOK_S)] == [True, False, True]


def test_what_is_forgotten_already_is_not_found_again(shelf: MemoryShelf) -> None:
    retention = all_acknowledged(shelf, AT_ONCE, 3)
    ((topic, up_to),) = retention.find_old(0.0, LATER)
    LogWriter(shelf).forget(topic, up_to)
    assert retention.find_old(LOOK_S, LATER) == []


# -- small events are counted together ----------------------------------------------------------------------------------


def test_of_very_many_small_events_no_less_is_kept_than_was_asked_for_and_little_more(shelf: MemoryShelf) -> None:
    """They are weighed in heaps, each of which goes as a whole."""
    heap, count = 10, 3 * 10 * BUCKETS
    policy = Policy(keep_age_s=FOR_EVER, max_age_s=FOR_EVER, max_bytes=heap * BUCKETS)
    write(shelf, count)
    retention = retention_of(shelf, policy)
    ((_, up_to),) = retention.find_old(0.0, LATER)
    assert heap * BUCKETS <= count - up_to < heap * BUCKETS + heap
    assert len(retention._sizes["a"].buckets) <= 3 * BUCKETS + 1
