"""Curiosity: what is asked for, when, and how often, against explicit times and a naive model of every number."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.counting import steps
from ordered_pubsub.core.ranges import ENDLESS
from ordered_pubsub.core.recovery import _nacks as module
from ordered_pubsub.core.recovery._nacks import (
    ASKED_RANGES_MAX,
    RTO_FIRST_S,
    STALE_TURNS_MAX,
    Consolidation,
    Nacks,
    Rto,
)

TOP = 10
PAIRS = st.builds(lambda first, length: (first, min(first + length - 1, TOP)), st.integers(1, TOP), st.integers(0, 5))
"""First and last of a range, which may be empty."""


def operations_of(*names: str) -> st.SearchStrategy[list[tuple[str, tuple[int, int], float]]]:
    """Lists of what may happen, to which numbers, and for how long if it is to wait."""
    return st.lists(
        st.tuples(st.sampled_from(names), PAIRS, st.sampled_from([0.25, 0.5, 1.0, 4.0])), min_size=12, max_size=40
    )


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers in rising order as ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        first = found.pop()[0] if found and found[-1][1] == number - 1 else number
        found.append((first, number))
    return found


def curious(gct_s: float = 0.5, floor_s: float = 0.25, ceiling_s: float = 4.0) -> Nacks:
    return Nacks(gct_s, Rto(floor_s, ceiling_s))


# The interval of repetition.


def test_before_any_round_trip_the_interval_is_a_second_if_floor_and_ceiling_let_it() -> None:
    assert Rto(0.1, 60.0).rto_s == RTO_FIRST_S == 1.0
    assert Rto(2.0, 60.0).rto_s == 2.0
    assert Rto(0.1, 0.5).rto_s == 0.5


def test_the_first_round_trip_is_the_estimate_and_half_of_it_the_variation() -> None:
    rto = Rto(0.1, 60.0)
    rto.sample(0.5)
    assert (rto.srtt_s, rto.rttvar_s, rto.rto_s) == (0.5, 0.25, 1.5)


def test_later_round_trips_move_the_variation_by_a_quarter_and_then_the_estimate_by_an_eighth() -> None:
    rto = Rto(0.1, 60.0)
    rto.sample(0.5)
    rto.sample(1.0)
    assert (rto.srtt_s, rto.rttvar_s) == (0.5 + 0.5 / 8, 0.25 * 3 / 4 + 0.5 / 4)  # |srtt - rtt| with the srtt before
    rto.sample(0.0625)
    assert (rto.srtt_s, rto.rttvar_s) == (0.5625 * 7 / 8 + 0.0625 / 8, 0.3125 * 3 / 4 + 0.5 / 4)


def test_the_interval_doubles_from_the_floor_up_to_the_ceiling_and_stays_there() -> None:
    rto = Rto(0.25, 3.0)
    rto.sample(0.001)
    assert [rto.interval_s(attempt) for attempt in (0, 1, 2, 3, 4, 1_000_000)] == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_floor_is_above_nothing_and_below_the_ceiling() -> None:
    for floor_s, ceiling_s in ((0.0, 1.0), (2.0, 1.0)):
        with pytest.raises(AssertionError, match="above 0 and not above the ceiling"):
            Rto(floor_s, ceiling_s)


# One subscriber's stream.


@attrs.define
class Naive:
    """Every number by itself: when it is due, how often it was asked for, and when last."""

    gct_s: float
    rto: Rto
    numbers: dict[int, tuple[float, int, float]] = attrs.field(factory=dict)
    acknowledged: int = 0

    def want(self, first: int, last: int, due_at: float) -> None:
        for number in range(max(first, self.acknowledged + 1), last + 1):
            self.numbers.setdefault(number, (due_at, 0, 0.0))

    def want_now(self, first: int, last: int, now: float) -> None:
        self.want(first, last, now)
        for number in range(first, last + 1):
            due_at, attempts, asked_at = self.numbers.get(number, (0.0, 1, 0.0))
            if not attempts:
                self.numbers[number] = (min(due_at, now), attempts, asked_at)

    def satisfied(self, first: int, last: int, now: float) -> None:
        gone = [self.numbers.pop(number) for number in range(first, last + 1) if number in self.numbers]
        sampled = [asked_at for _, attempts, asked_at in gone if attempts == 1]
        for place, asked_at in enumerate(sampled):
            if asked_at not in sampled[:place]:
                self.rto.sample(now - asked_at)

    def acknowledge(self, up_to: int) -> None:
        self.acknowledged = max(self.acknowledged, up_to)
        self.numbers = {number: turn for number, turn in self.numbers.items() if number > up_to}

    def take(self, now: float, limit: int) -> list[tuple[int, int]]:
        taken = sorted(number for number, (due_at, _, _) in self.numbers.items() if due_at <= now)[:limit]
        for number in taken:
            attempts = self.numbers[number][1]
            self.numbers[number] = (now + self.rto.interval_s(attempts), attempts + 1, now)
        return runs(taken)


@settings(max_examples=600)
@given(
    operations_of("want", "want_now", "satisfied", "acknowledge", "take", "take", "wait"),
    st.sampled_from([0.0, 0.5, 2.0]),
)
def test_whatever_happens_a_stream_asks_as_one_that_has_every_number_by_itself(
    operations: list[tuple[str, tuple[int, int], float]], gct_s: float
) -> None:
    stream, naive, now = Nacks(gct_s, Rto(0.25, 4.0)), Naive(gct_s, Rto(0.25, 4.0)), 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STALE_TURNS_MAX", 0)  # so that few of them are too many
        for name, (first, last), wait_s in operations:
            if name == "wait":
                now += wait_s
            elif name == "take":
                assert stream.take_due(now, first) == naive.take(now, first)
            elif name == "acknowledge":
                stream.acknowledge(first)
                naive.acknowledge(first)
            else:
                getattr(stream, name)(first, last, now)
                getattr(naive, name)(first, last, now + gct_s if name == "want" else now)
            check(stream, naive, now)


def check(stream: Nacks, naive: Naive, now: float) -> None:
    assert list(stream.curious) == runs(sorted(naive.numbers))
    assert stream.is_curious == bool(naive.numbers)
    assert stream.acknowledged == naive.acknowledged
    assert stream.rto == naive.rto
    earliest = min((due_at for due_at, _, _ in naive.numbers.values()), default=None)
    if earliest is None or earliest > now:
        assert stream.next_due == earliest
    else:
        assert stream.next_due is not None
        assert stream.next_due <= now


def test_a_gap_is_asked_for_when_it_has_lasted_for_the_threshold_and_not_before() -> None:
    stream = curious(gct_s=0.5)
    stream.want(3, 5, now=10.0)
    assert stream.take_due(10.49) == []
    assert stream.next_due == 10.5
    assert stream.take_due(10.5) == [(3, 5)]


def test_a_gap_that_closes_by_itself_is_never_asked_for() -> None:
    stream = curious()
    stream.want(3, 5, now=10.0)
    stream.satisfied(3, 5, now=10.1)
    assert stream.next_due is None
    assert not stream.is_curious
    assert stream.take_due(99.0) == []


def test_a_gap_that_is_wanted_again_keeps_its_time() -> None:
    stream = curious(gct_s=0.5)
    stream.want(3, 5, now=10.0)
    stream.want(3, 6, now=10.25)
    assert stream.take_due(10.5) == [(3, 5)]
    assert stream.take_due(10.75) == [(6, 6)]


def test_what_is_lost_for_certain_is_asked_for_at_once_although_it_was_waiting() -> None:
    stream = curious(gct_s=0.5)
    stream.want(3, 5, now=10.0)
    stream.want_now(4, 7, now=10.25)
    assert stream.take_due(10.25) == [(4, 7)]
    assert stream.take_due(10.5) == [(3, 3)]


def test_what_was_asked_for_keeps_its_turn_however_urgent_it_becomes() -> None:
    stream = curious()
    stream.want_now(3, 5, now=10.0)
    assert stream.take_due(10.0) == [(3, 5)]
    stream.want_now(3, 5, now=10.5)
    stream.want(3, 5, now=10.5)
    assert stream.next_due == 11.0
    assert stream.take_due(10.99) == []


def test_without_an_answer_it_is_asked_again_after_intervals_that_double_up_to_the_ceiling() -> None:
    stream = curious(ceiling_s=4.0)
    stream.want_now(3, 3, now=0.0)
    asked_at = []
    for _ in range(6):
        assert stream.next_due is not None
        asked_at.append(stream.next_due)
        assert stream.take_due(asked_at[-1]) == [(3, 3)]
    assert asked_at == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0]


def test_numbers_are_merged_where_they_touch_whatever_their_past() -> None:
    stream = curious(gct_s=0.5)
    stream.want_now(4, 5, now=0.0)
    assert stream.take_due(0.0) == [(4, 5)]
    stream.want(3, 3, now=0.25)
    stream.want(6, 9, now=0.5)
    stream.want(11, 11, now=0.5)
    assert stream.take_due(1.0) == [(3, 9), (11, 11)]
    # 3 and 6 to 11 were asked for once, 4 and 5 twice
    assert stream.take_due(2.0) == [(3, 3), (6, 9), (11, 11)]
    assert stream.take_due(3.0) == [(4, 5)]


def test_the_lowest_numbers_are_asked_for_first_and_the_others_stay_due() -> None:
    stream = curious()
    stream.want_now(8, 9, now=0.0)
    stream.want_now(1, 5, now=0.0)
    assert stream.take_due(0.0, limit=3) == [(1, 3)]
    assert stream.next_due == 0.0
    assert stream.take_due(0.0, limit=3) == [(4, 5), (8, 8)]
    assert stream.take_due(0.0, limit=3) == [(9, 9)]
    assert stream.take_due(0.0, limit=3) == []


def test_no_more_is_asked_for_at_a_time_than_one_nack_may_lose() -> None:
    stream = curious()
    stream.want_now(7, ENDLESS, now=0.0)
    assert stream.take_due(0.0) == [(7, 6 + module.NACK_NUMBERS_MAX)]


def test_at_least_one_number_is_asked_for_at_a_time() -> None:
    with pytest.raises(AssertionError, match="at least one number is asked for at a time, not 0"):
        curious().take_due(0.0, limit=0)


def test_what_is_acknowledged_is_not_asked_for_and_never_wanted_again() -> None:
    stream = curious()
    stream.want_now(1, 9, now=0.0)
    stream.acknowledge(4)
    stream.acknowledge(2)
    stream.want(1, 9, now=0.0)
    stream.want_now(1, 9, now=0.0)
    assert stream.acknowledged == 4
    assert stream.take_due(9.0) == [(5, 9)]


def test_what_is_acknowledged_while_it_is_due_is_not_asked_for() -> None:
    stream = curious()
    stream.want_now(1, 9, now=0.0)
    assert stream.take_due(0.0, limit=2) == [(1, 2)]
    stream.acknowledge(4)
    stream.satisfied(6, 6, now=0.0)
    assert stream.take_due(0.0) == [(5, 5), (7, 9)]


def test_what_came_and_was_lost_again_has_no_past() -> None:
    stream = curious(gct_s=0.5)
    stream.want_now(3, 3, now=0.0)
    stream.take_due(0.0)
    stream.satisfied(3, 3, now=0.25)
    stream.want(3, 3, now=0.5)
    assert stream.next_due == 1.0
    stream.take_due(1.0)
    assert stream.next_due == 1.0 + stream.rto.interval_s(0)


# What is learned from answers.


def asked(*times: float) -> Nacks:
    """A stream that asked for 1 to 9 at these times."""
    stream = curious()
    stream.want_now(1, 9, now=times[0])
    for time in times:
        assert stream.take_due(time) == [(1, 9)]
    return stream


def test_the_answer_to_what_was_asked_once_is_a_sample() -> None:
    stream = asked(0.0)
    stream.satisfied(1, 9, now=0.125)
    assert stream.rto.srtt_s == 0.125


def test_an_answer_to_a_part_is_a_sample_and_so_is_one_to_the_rest() -> None:
    stream = asked(0.0)
    stream.satisfied(4, 5, now=0.125)
    assert stream.rto.srtt_s == 0.125
    stream.satisfied(1, 9, now=0.25)
    assert stream.rto.srtt_s == 0.125 + 0.125 / 8


def test_one_answer_to_many_ranges_of_one_nack_is_one_sample() -> None:
    stream = asked(0.0)
    for number in (2, 4, 6):
        stream.satisfied(number, number, now=0.125)
    expected = attrs.evolve(stream.rto)
    expected.srtt_s, expected.rttvar_s = stream.rto.srtt_s, stream.rto.rttvar_s
    expected.sample(0.25)
    stream.satisfied(1, 9, now=0.25)
    assert stream.rto == expected


def test_nothing_is_learned_from_what_was_asked_twice() -> None:
    stream = asked(0.0, 1.0)
    stream.satisfied(1, 9, now=1.125)
    assert stream.rto.srtt_s is None


def test_nothing_is_learned_from_what_was_not_asked_for_yet() -> None:
    stream = curious()
    stream.want(1, 9, now=0.0)
    stream.satisfied(1, 9, now=0.125)
    assert stream.rto.srtt_s is None


def test_nothing_is_learned_from_what_is_acknowledged() -> None:
    stream = asked(0.0)
    stream.acknowledge(9)
    stream.satisfied(1, 9, now=0.125)
    assert stream.rto.srtt_s is None


def test_a_late_answer_to_what_is_due_again_is_a_sample_still() -> None:
    stream = asked(0.0)
    stream.want_now(20, 20, now=0.0)
    assert stream.take_due(1.0, limit=3) == [(1, 3)]
    stream.satisfied(4, 4, now=1.25)
    assert stream.rto.srtt_s == 1.25


# The work.


def gaps(count: int) -> Nacks:
    """A stream in which every other number is missing, each since another moment, and due in ten seconds."""
    stream = curious(gct_s=10.0)
    for n in range(count):
        stream.want(2 * n + 1, 2 * n + 1, now=n / count)
    return stream


@pytest.mark.heavy
@pytest.mark.parametrize(
    "work",
    [
        lambda stream, middle: stream.want(middle, middle + 20, 2.0),
        lambda stream, middle: stream.want_now(middle, middle + 20, 2.0),
        lambda stream, middle: stream.satisfied(middle, middle + 20, 2.0),
        lambda stream, middle: stream.acknowledge(20),
        lambda stream, middle: stream.take_due(2.0),
        lambda stream, middle: stream.next_due,
        lambda stream, middle: stream.is_curious,
    ],
    ids=["want", "want_now", "satisfied", "acknowledge", "take_due", "next_due", "is_curious"],
)
def test_a_step_among_100_000_gaps_costs_what_it_does_among_1_000(work: Callable[[Nacks, int], object]) -> None:
    small, large = gaps(1_000), gaps(100_000)
    assert 0 < steps(lambda: work(large, 100_001)) == steps(lambda: work(small, 1_001)) < 2_000


def test_the_cost_of_asking_for_many_gaps_grows_as_their_number_does() -> None:
    def of(count: int) -> int:
        stream = gaps(count)

        def work() -> None:
            while stream.take_due(20.0, limit=10):
                pass
            for n in range(count):
                stream.satisfied(2 * n + 1, 2 * n + 1, 20.5)

        return steps(work)

    assert of(4_000) < 4.5 * of(1_000)


def test_numbers_that_were_missed_one_by_one_and_asked_for_together_are_one_from_then_on() -> None:
    single, together = curious(), curious()
    for number in range(1, 101):
        single.want_now(number, number, now=number / 100)
    together.want_now(1, 100, now=1.0)
    for stream in (single, together):
        assert stream.take_due(1.0) == [(1, 100)]
    assert steps(lambda: single.take_due(2.0)) == steps(lambda: together.take_due(2.0)) > 0


def test_turns_that_nobody_has_any_more_do_not_gather_and_others_are_kept() -> None:
    stream = curious(gct_s=1_000.0)
    for n in range(10 * STALE_TURNS_MAX):
        stream.want(1, 9, now=float(n))
        stream.satisfied(1, 9, now=float(n))
        if n == STALE_TURNS_MAX // 2:
            stream.want(10, 10, now=n + 0.5)
        assert len(stream._heap) <= STALE_TURNS_MAX + 4
    assert stream.next_due == 1_000.5 + STALE_TURNS_MAX // 2


def test_a_representation_says_what_is_missing_and_what_is_not_needed() -> None:
    stream = curious()
    stream.acknowledge(2)
    stream.want(4, 6, now=1.0)
    assert repr(stream) == "Nacks(C=Ranges(4-6), A up to 2, next due at 1.5)"


# The stage between.


@settings(max_examples=400)
@given(operations_of("fresh", "fresh", "satisfied", "forget_expired", "wait"))
def test_whatever_happens_a_number_is_passed_on_once_within_the_interval(
    operations: list[tuple[str, tuple[int, int], float]],
) -> None:
    consolidation, asked_at, now = Consolidation(1.0), dict[int, float](), 0.0
    for name, (first, last), wait_s in operations:
        numbers = range(first, last + 1)
        if name == "fresh":
            fresh = [number for number in numbers if asked_at.get(number, -1.0) + 1.0 <= now]
            assert consolidation.fresh(first, last, now) == runs(fresh)
            asked_at |= dict.fromkeys(fresh, now)
        elif name == "satisfied":
            consolidation.satisfied(first, last)
            asked_at = {number: at for number, at in asked_at.items() if number not in numbers}
        elif name == "forget_expired":
            consolidation.forget_expired(now)
        else:
            now += wait_s
        if name in ("fresh", "forget_expired"):
            asked_at = {number: at for number, at in asked_at.items() if at + 1.0 > now}
        assert bool(len(consolidation)) == bool(asked_at)


def test_what_many_miss_is_asked_for_once() -> None:
    consolidation = Consolidation(1.0)
    assert consolidation.fresh(3, 7, now=0.0) == [(3, 7)]
    assert consolidation.fresh(3, 7, now=0.5) == []
    assert consolidation.fresh(1, 9, now=0.5) == [(1, 2), (8, 9)]


def test_a_nack_that_is_repeated_after_the_interval_gets_through() -> None:
    consolidation = Consolidation(1.0)
    consolidation.fresh(3, 7, now=0.0)
    assert consolidation.fresh(3, 7, now=0.99) == []
    assert consolidation.fresh(3, 7, now=1.0) == [(3, 7)]
    assert consolidation.fresh(3, 7, now=1.5) == []


def test_what_was_answered_and_lost_again_is_asked_for_at_once_and_then_waits_for_its_own_time() -> None:
    consolidation = Consolidation(1.0)
    consolidation.fresh(3, 7, now=0.0)
    consolidation.satisfied(4, 5)
    assert consolidation.fresh(3, 7, now=0.5) == [(4, 5)]
    assert consolidation.fresh(3, 7, now=1.0) == [(3, 3), (6, 7)]
    assert consolidation.fresh(3, 7, now=1.5) == [(4, 5)]


def test_what_has_expired_takes_no_room() -> None:
    consolidation = Consolidation(1.0)
    for number in range(1, 100, 2):
        consolidation.fresh(number, number, now=number / 100)
    assert len(consolidation) == 50
    consolidation.forget_expired(1.5)
    assert len(consolidation) == 25
    consolidation.fresh(1, 1, now=9.0)
    assert len(consolidation) == 1


def test_who_forgets_for_lack_of_room_asks_once_more_and_no_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_RANGES_MAX", 3)
    consolidation = Consolidation(1.0)
    for number in (1, 3, 5, 7):
        assert consolidation.fresh(number, number, now=number / 100) == [(number, number)]
    assert len(consolidation) == 3
    assert consolidation.fresh(1, 7, now=0.5) == [(1, 2), (4, 4), (6, 6)]


@pytest.mark.heavy
def test_the_cost_of_a_nack_does_not_grow_with_what_was_asked_lately() -> None:
    def of(count: int) -> int:
        consolidation = Consolidation(1.0)
        for n in range(count):
            consolidation.fresh(2 * n + 1, 2 * n + 1, now=n / count / 2)
        return steps(lambda: consolidation.satisfied(count, count + 20)) + steps(
            lambda: consolidation.fresh(count, count + 20, now=0.6)
        )

    assert 0 < of(ASKED_RANGES_MAX) == of(1_000) < 1_000
