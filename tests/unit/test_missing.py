"""What one subscription misses: it is asked for in time, not too often, not too much at once, and no longer than needed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.core.messages import NackRange
from ordered_pubsub.core.recovery import missing as module
from ordered_pubsub.core.recovery.missing import (
    AHEAD_MAX,
    GCT_S,
    NRT_CEILING_S,
    SLOW_GCT_S,
    SLOW_NRT_FLOOR_S,
    UNDER_WAY_MAX,
    Missing,
)


def numbers(wants: list[NackRange]) -> list[int]:
    """All numbers that are asked for."""
    return [number for want in wants for number in range(want.first, want.last + 1)]


def noticed(*ranges: tuple[int, int], topic: str = "a") -> Missing:
    """Somebody who misses these numbers since time 0."""
    missing = Missing()
    for first, last in ranges:
        missing.noticed(topic, first, last)
    return missing


def test_a_gap_is_asked_for_when_it_has_lasted() -> None:
    missing = noticed((2, 4))

    assert missing.take_due(GCT_S / 2) == []
    assert missing.next_due == GCT_S
    assert missing.take_due(GCT_S) == [NackRange("a", 2, 4)]


def test_a_gap_that_closes_by_itself_is_not_asked_for() -> None:
    missing = noticed((2, 4))
    missing.came("a", 2, 4)

    assert missing.next_due is None
    assert missing.take_due(GCT_S) == []


def test_what_is_lost_is_asked_for_at_once() -> None:
    missing = noticed((2, 4))
    missing.lost("a", 2, 3)

    assert missing.take_due(0.0) == [NackRange("a", 2, 3)]
    assert missing.take_due(GCT_S) == [NackRange("a", 4, 4)]


def test_what_is_missed_later_may_come_before_what_was_missed_first() -> None:
    """A full buffer lets go of its last events, and then of those before them."""
    missing = noticed((9, 9))
    missing.noticed("a", 5, 6)

    assert numbers(missing.take_due(GCT_S)) == [5, 6, 9]


def test_what_was_not_answered_is_asked_for_again_less_and_less_often_and_for_ever() -> None:
    missing = noticed((2, 4))
    asked_at: list[float] = []
    now = GCT_S
    for _ in range(12):
        assert missing.take_due(now) == [NackRange("a", 2, 4)]
        asked_at.append(now)
        due = missing.next_due
        assert due is not None
        assert missing.take_due((now + due) / 2) == []
        now = due

    pauses = [round(later - earlier, 3) for earlier, later in pairwise(asked_at)]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] == NRT_CEILING_S


def test_what_came_is_not_asked_for_again() -> None:
    missing = noticed((2, 4))
    missing.take_due(GCT_S)
    missing.came("a", 3, 3)

    assert numbers(missing.take_due(100.0)) == [2, 4]


def test_what_was_passed_is_not_asked_for() -> None:
    missing = noticed((2, 4), (7, 7))
    missing.passed("a", 3)
    assert numbers(missing.take_due(GCT_S)) == [4, 7]
    missing.passed("a", 7)

    assert (missing.is_curious, missing.count, missing.next_due) == (False, 0, None)


def test_a_topic_that_was_left_is_not_asked_for() -> None:
    missing = noticed((2, 4))
    missing.needs_full("a", 1)
    missing.left("a")

    assert missing.take_due(100.0) == []
    assert not missing.is_curious


def test_what_nobody_keeps_is_asked_for_later_and_less_often() -> None:
    """It may be void; else the ENS brings it."""
    missing = Missing(is_kept=lambda topic: topic == "a")
    for topic in "ab":
        missing.noticed(topic, 1, 1)

    assert {want.topic for want in missing.take_due(SLOW_GCT_S - 0.1)} == {"a"}
    assert "b" in {want.topic for want in missing.take_due(SLOW_GCT_S)}
    assert "b" not in {want.topic for want in missing.take_due(SLOW_GCT_S + SLOW_NRT_FLOOR_S - 0.1)}
    assert "b" in {want.topic for want in missing.take_due(SLOW_GCT_S + SLOW_NRT_FLOOR_S)}


def test_what_nobody_keeps_is_not_lost_and_has_no_full_timestamp() -> None:
    missing = Missing(is_kept=lambda topic: False)
    missing.lost("a", 2, 2)
    missing.needs_full("a", 3)

    assert missing.take_due(100.0) == []


def test_a_full_timestamp_is_asked_for_at_once_and_until_it_is_passed() -> None:
    missing = noticed((1, 4))
    missing.needs_full("a", 1)
    assert missing.take_due(0.0) == [NackRange("a", 1, 1, full=True)]
    later = missing.take_due(100.0)
    assert later[0] == NackRange("a", 1, later[0].last, full=True)
    missing.passed("a", 1)

    assert not any(want.full for want in missing.take_due(200.0))


def test_no_more_than_a_window_is_asked_for_at_a_time() -> None:
    missing = noticed((1, 3 * UNDER_WAY_MAX))

    assert numbers(missing.take_due(GCT_S)) == list(range(1, UNDER_WAY_MAX + 1))
    assert missing.take_due(GCT_S) == []


def test_the_window_moves_on_with_what_comes() -> None:
    missing = noticed((1, 3 * UNDER_WAY_MAX))
    missing.take_due(GCT_S)
    missing.now = 2 * GCT_S
    missing.came("a", 1, 100)

    assert numbers(missing.take_due(2 * GCT_S)) == list(range(UNDER_WAY_MAX + 1, UNDER_WAY_MAX + 101))


def test_what_would_wait_for_long_is_not_asked_for_yet() -> None:
    """It would fill the memory. When others were passed, its turn has come."""
    missing = noticed((1, 3 * AHEAD_MAX))
    asked: list[int] = []
    while wanted := numbers(missing.take_due(GCT_S)):
        missing.came("a", wanted[0], wanted[-1])
        asked += wanted
    assert asked == list(range(1, AHEAD_MAX + 1))
    missing.passed("a", 10)

    assert numbers(missing.take_due(GCT_S)) == list(range(AHEAD_MAX + 1, AHEAD_MAX + 11))


def test_each_topic_has_a_window_of_its_own() -> None:
    missing = noticed((1, 2 * UNDER_WAY_MAX))
    missing.noticed("b", 1, 5)

    assert NackRange("b", 1, 5) in missing.take_due(GCT_S)


@given(st.integers(1, 60), st.lists(st.sampled_from(["all", "half", "nothing"]), max_size=40))
def test_the_window_never_stalls(last: int, answers: list[str]) -> None:
    """However much is missing and however many answers are lost: in the end everything has been asked for and has come."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "UNDER_WAY_MAX", 8)
        patched.setattr(module, "AHEAD_MAX", 16)
        missing = noticed((1, last))
        left, script, now = set(range(1, last + 1)), iter(answers), 0.0
        for _ in range(300):
            wanted = numbers(missing.take_due(now))
            assert len(wanted) <= 8
            assert set(wanted) <= left
            answer = next(script, "all")
            come = {"all": wanted, "half": wanted[len(wanted) // 2 :], "nothing": []}[answer]
            for number in come:
                missing.came("a", number, number)
            left -= set(come)
            missing.passed("a", min(left, default=last + 1) - 1)
            due = missing.next_due
            if not come and due is not None:  # who was answered asks for more at once
                now = missing.now = max(now, due)

    assert left == set()
    assert not missing.is_curious
