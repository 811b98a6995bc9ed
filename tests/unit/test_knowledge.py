"""Knowledge: it rises by joining and falls by forgetting, and equals a naive model that has every number by itself."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, product

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.counting import steps
from ordered_pubsub.core.knowledge import Knowledge, Span, Tick, filtered, merged
from ordered_pubsub.core.ranges import ENDLESS

Q, F, S, D, D_STAR, E = Tick.Q, Tick.F, Tick.S, Tick.D, Tick.D_STAR, Tick.E
TOP = 20
"""In the models this number stands for itself and all above it."""
NUMBERS = range(1, TOP + 1)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["data", "data", "final", "forget", "forget_data"]),
        st.integers(1, TOP),
        st.integers(0, TOP),
        st.sampled_from([b"", b"x", None]),
    ),
    min_size=8,
    max_size=30,
)


@attrs.define(eq=False)
class Naive:
    """Every number by itself: what is known of it, and from which operation that came, with which value."""

    ticks: dict[int, Tick] = attrs.field(factory=lambda: dict.fromkeys(NUMBERS, Q))
    values: dict[int, tuple[int, bytes | None]] = attrs.field(factory=dict)
    turn: int = 0

    def do(self, name: str, first: int, last: int, value: bytes | None) -> None:
        self.turn += 1
        for number in range(first, last + 1):
            tick = self.ticks[number]
            if name == "data" and tick is Q:
                self.values[number] = (self.turn, value)
            if name in ("data", "final"):
                self.ticks[number] = tick.join(D if name == "data" else F).lowered
            elif name == "forget" or tick is D:
                self.ticks[number] = Q
            if self.ticks[number] is not D:
                self.values.pop(number, None)

    def runs(self, tick: Tick, first: int, last: int) -> list[tuple[int, int, bytes | None]]:
        """The numbers of a tick as ranges; those with data that came from different operations apart."""
        found = []
        for (is_it, source), numbers in groupby(
            range(first, last + 1), key=lambda n: (self.ticks[n] is tick, self.values.get(n))
        ):
            if is_it:
                run = list(numbers)
                found.append((run[0], end(run[-1]), source[1] if source else None))
        return found


def end(last: int) -> int:
    return ENDLESS if last == TOP else last


def do(knowledge: Knowledge[bytes | None], name: str, first: int, last: int, value: bytes | None) -> None:
    if name == "data":
        knowledge.accumulate_data(first, end(last), value)
    elif name == "final":
        knowledge.accumulate_final(first, end(last))
    elif name == "forget":
        knowledge.forget(first, end(last))
    else:
        knowledge.forget_data(first, end(last))


def ranges(found: Iterable[tuple[int, int, object]]) -> list[tuple[int, int]]:
    return [(first, last) for first, last, _ in found]


# The lattice.

JOINS = """
          Q   F   S   D   D*  E
    Q     Q   F   S   D   D*  E
    F     F   F   S   D*  D*  E
    S     S   S   S   E   E   E
    D     D   D*  E   D   D*  E
    D*    D*  D*  E   D*  D*  E
    E     E   E   E   E   E   E
"""


def joins() -> list[tuple[Tick, Tick, Tick]]:
    """The table, row by row."""
    named = {"Q": Q, "F": F, "S": S, "D": D, "D*": D_STAR, "E": E}
    head, *rows = [line.split() for line in JOINS.strip().splitlines()]
    return [
        (named[row[0]], named[column], named[cell]) for row in rows for column, cell in zip(head, row[1:], strict=True)
    ]


def test_the_table_has_every_pair() -> None:
    assert {(one, other) for one, other, _ in joins()} == set(product(Tick, Tick))


@pytest.mark.parametrize(("one", "other", "joined"), joins())
def test_ticks_join_as_the_lattice_says(one: Tick, other: Tick, joined: Tick) -> None:
    assert one.join(other) is joined


def test_joining_is_commutative_associative_and_idempotent() -> None:
    for one, other, third in product(Tick, Tick, Tick):
        assert one.join(other) is other.join(one)
        assert one.join(other).join(third) is one.join(other.join(third))
        assert one.join(one) is one


def test_ticks_are_ordered_as_the_paper_draws_them() -> None:
    below = {(one, other) for one, other in product(Tick, Tick) if one is not other and one.join(other) is other}
    drawn = {(Q, F), (F, S), (F, D_STAR), (Q, D), (D, D_STAR), (S, E), (D_STAR, E)}
    through = {(Q, S), (Q, D_STAR), (Q, E), (F, E), (D, E)}
    assert below == drawn | through


def test_silence_and_dealt_with_data_are_lowered_to_final_and_nothing_else_is() -> None:
    assert [tick.lowered for tick in (Q, F, S, D, D_STAR, E)] == [Q, F, F, D, F, E]


def test_what_is_lowered_is_never_more_than_it_was() -> None:
    assert all(tick.lowered.join(tick) is tick for tick in Tick)


# The stream.


@given(OPERATIONS, st.integers(1, TOP), st.integers(0, TOP))
def test_whatever_happens_a_stream_equals_one_that_has_every_number_by_itself(
    operations: list[tuple[str, int, int, bytes | None]], first: int, last: int
) -> None:
    knowledge: Knowledge[bytes | None] = Knowledge()
    naive = Naive()
    for operation in operations:
        do(knowledge, *operation)
        naive.do(*operation)
        check(knowledge, naive, first, last)


def check(knowledge: Knowledge[bytes | None], naive: Naive, first: int, last: int) -> None:
    assert {number: knowledge.tick(number) for number in NUMBERS} == naive.ticks
    assert knowledge.tick(ENDLESS) is naive.ticks[TOP]
    assert knowledge.data(first, end(last)) == naive.runs(D, first, last)
    assert knowledge.finals(first, end(last)) == ranges(naive.runs(F, first, last))
    assert knowledge.gaps(first, end(last)) == ranges(naive.runs(Q, first, last))
    for after in range(TOP):
        assert knowledge.horizon(after) == next(
            (n - 1 for n in range(after + 1, TOP + 1) if naive.ticks[n] is Q), ENDLESS
        )
    spans = [Span(*run[:2], D, run[2]) for run in naive.runs(D, 1, TOP)]
    spans += [Span(*run[:2], F) for run in naive.runs(F, 1, TOP)]
    assert list(knowledge.spans()) == sorted(spans, key=lambda span: span.first)
    assert len(knowledge) == len(spans)


@given(OPERATIONS)
def test_accumulating_never_lowers_and_forgetting_never_raises(
    operations: list[tuple[str, int, int, bytes | None]],
) -> None:
    knowledge: Knowledge[bytes | None] = Knowledge()
    for operation in operations:
        before = {number: knowledge.tick(number) for number in NUMBERS}
        do(knowledge, *operation)
        for number, was in before.items():
            now = knowledge.tick(number)
            if operation[0] in ("data", "final"):
                # F is what D* is lowered to, so D to F is a rise: through D*.
                assert was.join(now) is now or (was, now) == (D, F)
            else:
                assert now in (was, Q)


@given(OPERATIONS, st.randoms(use_true_random=False))
def test_what_is_accumulated_may_come_in_any_order_and_twice(
    operations: list[tuple[str, int, int, bytes | None]], random: object
) -> None:
    told = [(name, first, last, None) for name, first, last, _ in operations if name in ("data", "final")]
    once: Knowledge[bytes | None] = Knowledge()
    again: Knowledge[bytes | None] = Knowledge()
    for operation in told:
        do(once, *operation)
    shuffled = told * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for operation in shuffled:
        do(again, *operation)
    assert [once.tick(number) for number in NUMBERS] == [again.tick(number) for number in NUMBERS]


def test_data_stays_with_its_first_value() -> None:
    knowledge: Knowledge[str] = Knowledge()
    knowledge.accumulate_data(2, 3, "first")
    knowledge.accumulate_data(1, 4, "second")
    assert knowledge.data(1, 9) == [(1, 1, "second"), (2, 3, "first"), (4, 4, "second")]


def test_data_that_comes_late_does_not_undo_what_is_final() -> None:
    knowledge: Knowledge[str] = Knowledge()
    knowledge.accumulate_final(2, 3)
    knowledge.accumulate_data(1, 4, "late")
    assert [knowledge.tick(number) for number in range(1, 6)] == [D, F, F, D, Q]


def test_a_span_that_is_cut_keeps_the_whole_value() -> None:
    knowledge: Knowledge[list[str]] = Knowledge()
    batch = ["a", "b", "c", "d"]
    knowledge.accumulate_data(1, 4, batch)
    knowledge.accumulate_final(2, 2)
    ((_, _, one), (first, last, other)) = knowledge.data(1, 3)
    assert one is batch
    assert other is batch
    assert (first, last) == (3, 3)


def test_publications_with_the_same_value_stay_two() -> None:
    knowledge: Knowledge[bytes] = Knowledge()
    knowledge.accumulate_data(1, 1, b"")
    knowledge.accumulate_data(2, 2, b"")
    assert knowledge.data(1, 2) == [(1, 1, b""), (2, 2, b"")]


def test_a_cache_that_forgets_its_data_still_knows_what_is_final() -> None:
    knowledge: Knowledge[str] = Knowledge()
    knowledge.accumulate_data(1, 6, "a")
    knowledge.accumulate_final(3, 4)
    knowledge.forget_data(1, 5)
    assert knowledge.gaps(1, 6) == [(1, 2), (5, 5)]
    assert knowledge.finals(1, 6) == [(3, 4)]
    assert knowledge.data(1, 6) == [(6, 6, "a")]


def test_the_horizon_stops_before_the_first_doubt_whatever_comes_behind_it() -> None:
    knowledge: Knowledge[str] = Knowledge()
    knowledge.accumulate_data(1, 2, "a")
    knowledge.accumulate_final(3, 5)
    knowledge.accumulate_data(7, 9, "b")
    assert [knowledge.horizon(after) for after in (0, 4, 5, 6, 9)] == [5, 5, 5, 9, 9]


def test_a_representation_says_what_is_known_of_what() -> None:
    knowledge: Knowledge[str] = Knowledge()
    knowledge.accumulate_final(1, 3)
    knowledge.accumulate_data(4, 6, "a")
    knowledge.accumulate_data(7, 7, "b")
    knowledge.accumulate_final(9, ENDLESS)
    assert repr(knowledge) == "Knowledge(F 1-3, D 4-6, D 7, F 9-)"


@pytest.mark.parametrize("operation", ["horizon", "tick", "gaps", "data", "finals", "accumulate_data", "forget_data"])
def test_an_operation_among_100_000_spans_takes_as_many_steps_as_among_1_000(operation: str) -> None:
    def work(count: int) -> int:
        knowledge: Knowledge[int] = Knowledge()
        for n in range(count):
            knowledge.accumulate_data(2 * n + 1, 2 * n + 2, n)
        for number in range(0, count, 50):
            knowledge.accumulate_final(2 * number + 2, 2 * number + 2)
        knowledge.forget(count - 1, count)
        arguments = {"horizon": (0,), "tick": (count,), "accumulate_data": (count - 3, count + 3, -1)}
        return steps(lambda: getattr(knowledge, operation)(*arguments.get(operation, (count - 3, count + 3))))

    assert 0 < work(100_000) == work(1_000) < 300


def test_long_stretches_are_few_spans_however_many_numbers_they_have() -> None:
    knowledge: Knowledge[str] = Knowledge()
    for number in range(1, 1_001):
        knowledge.accumulate_final(number, number)
    knowledge.accumulate_data(1_001, 10**12, "a")
    assert len(knowledge) == 2


# The edges of the knowledge graph.

STREAMS = st.lists(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from([F, D]), st.sampled_from([b"", b"x", None])),
        max_size=8,
    ),
    max_size=3,
)
"""Streams of spans, each as the gap before it, its length, its tick and its value."""


def stream(drawn: list[tuple[int, int, Tick, bytes | None]]) -> list[Span[bytes | None]]:
    spans, number = [], 1
    for gap, length, tick, value in drawn:
        number += gap + length
        spans.append(Span(number - length, number - 1, tick, value if tick is D else None))
    return spans


def of(spans: list[Span[bytes | None]], number: int) -> Span[bytes | None] | None:
    return next((span for span in spans if span.first <= number <= span.last), None)


def whole(sources: list[Span[bytes | None] | None]) -> list[Span[bytes | None]]:
    """The fewest spans that say of the numbers 1, 2, 3, … what these spans say."""
    found: list[Span[bytes | None]] = []
    source: Span[bytes | None] | None = None
    for number, following in enumerate(sources, start=1):
        if following is None:
            pass
        elif source is not None and (source is following or source.tick is following.tick is F):
            found[-1] = attrs.evolve(found[-1], last=number)
        else:
            found.append(attrs.evolve(following, first=number, last=number))
        source = following
    return found


@given(STREAMS)
def test_a_merge_passes_data_of_any_and_final_of_all(drawn: list[list[tuple[int, int, Tick, bytes | None]]]) -> None:
    streams = [stream(each) for each in drawn]
    expected: list[Span[bytes | None] | None] = []
    for number in range(1, 60):
        here = [of(spans, number) for spans in streams]
        data = [span for span in here if span is not None and span.tick is D]
        final = here[0] if here and all(span is not None and span.tick is F for span in here) else None
        expected.append(data[0] if data else final)
    assert list(merged(*streams)) == whole(expected)


@given(STREAMS)
def test_a_filter_passes_final_and_makes_final_what_does_not_match(
    drawn: list[list[tuple[int, int, Tick, bytes | None]]],
) -> None:
    for spans in map(stream, drawn):
        expected: list[Span[bytes | None] | None] = []
        for number in range(1, 60):
            span = of(spans, number)
            passes = span is None or span.tick is F or span.value == b"x"
            expected.append(span if passes or span is None else Span(span.first, span.last, F))
        assert list(filtered(spans, lambda value: value == b"x")) == whole(expected)


def test_a_filter_is_asked_about_data_only() -> None:
    asked = []
    spans = [Span(1, 2, F), Span[str | None](3, 3, D, "a"), Span(4, 9, F)]
    assert list(filtered(spans, lambda value: asked.append(value) is not None)) == [Span(1, 9, F)]
    assert asked == ["a"]


def test_a_merge_is_read_no_further_than_it_is_used() -> None:
    def forever() -> Iterable[Span[int]]:
        number = 0
        while True:
            number += 1
            yield Span(number, number, D, number)

    assert next(iter(merged(forever(), forever()))) == Span(1, 1, D, 1)


def test_what_a_filter_left_out_the_merge_with_another_path_supplies() -> None:
    knowledge: Knowledge[str] = Knowledge()
    for number, value in enumerate(["acme", "zeta", "acme"], start=1):
        knowledge.accumulate_data(number, number, value)
    acme = filtered(knowledge.spans(), lambda value: value == "acme")
    zeta = filtered(knowledge.spans(), lambda value: value == "zeta")
    nobody = filtered(knowledge.spans(), lambda value: False)
    assert list(merged(acme, zeta)) == list(knowledge.spans())
    acme = filtered(knowledge.spans(), lambda value: value == "acme")
    assert [span.tick for span in merged(acme, nobody)] == [D, F, D]
