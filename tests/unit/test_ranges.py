"""Ranges of numbers: they equal what a naive model says that has every number by itself, and cost what they change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.counting import steps
from ordered_pubsub.core.ranges import ENDLESS, SHOWN_MAX, RangeMap, Ranges

TOP = 14
"""In the models this number stands for itself and all above it."""
NUMBERS = range(1, TOP + 1)
PAIRS = st.builds(lambda first, length: (first, min(first + length - 1, TOP)), st.integers(1, TOP), st.integers(0, 7))
"""First and last of a range, which may be empty."""

BISECTION_MORE = 30
"""A hundred times as many ranges are seven more halvings of each list, and a few lists are searched."""


def end(last: int) -> int:
    return ENDLESS if last == TOP else last


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers in rising order as ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        first = found.pop()[0] if found and found[-1][1] == number - 1 else number
        found.append((first, number))
    return [(first, end(last)) for first, last in found]


def every_third(count: int) -> Ranges:
    """So many ranges of two numbers, with a hole of one between them."""
    return Ranges((3 * n + 1, 3 * n + 2) for n in range(count))


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "forget"]), PAIRS), min_size=8), PAIRS)
def test_whatever_is_added_and_removed_they_equal_a_set_of_numbers(
    operations: list[tuple[str, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    ranges, model = Ranges(), set[int]()
    for name, (first, last) in operations:
        if name == "add":
            ranges.add(first, end(last))
            model |= set(range(first, last + 1))
        elif name == "remove":
            ranges.remove(first, end(last))
            model -= set(range(first, last + 1))
        else:
            ranges.forget_up_to(end(last))
            model -= set(range(1, last + 1))
        check(ranges, model, asked)


def check(ranges: Ranges, model: set[int], asked: tuple[int, int]) -> None:
    expected = runs(sorted(model))
    assert list(ranges) == expected
    assert len(ranges) == len(expected)
    assert bool(ranges) == bool(model)
    assert ranges == Ranges(reversed(expected))
    assert (ranges.first, ranges.last) == ((expected[0][0], expected[-1][1]) if expected else (None, None))
    assert ranges.count == len(model) + (ENDLESS - TOP) * (TOP in model)
    assert [number for number in NUMBERS if number in ranges] == sorted(model)
    first, last = asked
    wanted = range(first, last + 1)
    assert ranges.within(first, end(last)) == runs(n for n in wanted if n in model)
    assert ranges.missing(first, end(last)) == runs(n for n in wanted if n not in model)
    assert ranges.covers(first, end(last)) == (set(wanted) <= model)
    reach = next((number - 1 for number in range(first, TOP + 1) if number not in model), ENDLESS)
    assert ranges.reach(first) == reach


@settings(max_examples=400)
@given(st.lists(st.tuples(st.booleans(), PAIRS, st.sampled_from("ab")), min_size=8), PAIRS)
def test_whatever_is_put_and_removed_a_map_equals_a_dict_of_numbers(
    operations: list[tuple[bool, tuple[int, int], str]], asked: tuple[int, int]
) -> None:
    held: RangeMap[str] = RangeMap()
    model: dict[int, tuple[int, str]] = {}
    for turn, (is_put, (first, last), value) in enumerate(operations):
        if is_put:
            held.put(first, end(last), value)
            model.update(dict.fromkeys(range(first, last + 1), (turn, value)))
        else:
            held.remove(first, end(last))
            model = {number: value for number, value in model.items() if not first <= number <= last}
    assert held.parts() == pieces(model, 1, TOP)
    assert len(held) == len(pieces(model, 1, TOP))
    first, last = asked
    assert held.parts(first, end(last)) == pieces(model, first, last)
    assert held.missing(first, end(last)) == runs(n for n in range(first, last + 1) if n not in model)


def pieces(model: dict[int, tuple[int, str]], first: int, last: int) -> list[tuple[int, int, str]]:
    """What a model says of some numbers: each run of one `put` by itself."""
    found = []
    for put, numbers in groupby(range(first, last + 1), key=model.get):
        if put is not None:
            found += [(begin, final, put[1]) for begin, final in runs(numbers)]
    return found


def test_ranges_that_touch_become_one() -> None:
    assert list(Ranges([(1, 2), (5, 6), (3, 4)])) == [(1, 6)]
    assert list(Ranges([(1, 2), (4, 4)])) == [(1, 2), (4, 4)]


def test_every_number_of_a_longer_range_at_the_end_is_counted() -> None:
    ranges = Ranges([(1, 2)])
    ranges.add(3, 9)
    assert (list(ranges), ranges.count) == ([(1, 9)], 9)


def test_what_is_left_at_both_ends_of_what_is_put_keeps_its_value() -> None:
    held: RangeMap[str] = RangeMap()
    held.put(1, 4, "a")
    held.put(6, 9, "b")
    held.put(3, 7, "c")
    assert held.parts() == [(1, 2, "a"), (3, 7, "c"), (8, 9, "b")]


def test_ranges_that_touch_in_a_map_stay_what_was_put() -> None:
    held: RangeMap[str] = RangeMap()
    held.put(1, 2, "a")
    held.put(3, 4, "a")
    assert held.parts() == [(1, 2, "a"), (3, 4, "a")]


def test_ranges_equal_ranges_only() -> None:
    assert Ranges([(1, 2)]) != Ranges([(1, 3)])
    assert Ranges([(1, 2)]) != Ranges([(2, 2)])
    assert Ranges([(1, 2)]) != [(1, 2)]


def test_numbers_begin_at_one() -> None:
    with pytest.raises(AssertionError, match="numbers begin at 1, and 0 to 3 were to be added"):
        Ranges([(0, 3)])


def test_a_representation_can_be_read_however_many_there_are() -> None:
    assert repr(Ranges([(7, 7), (1, 3), (9, ENDLESS)])) == "Ranges(1-3, 7, 9-)"
    assert repr(Ranges()) == "Ranges()"
    assert repr(every_third(SHOWN_MAX + 5)).endswith("58-59, … 5 more)")
    held: RangeMap[str] = RangeMap()
    held.put(1, 3, "a")
    assert repr(held) == "RangeMap(1-3: 'a')"


def test_adding_the_next_number_costs_the_same_whatever_is_there() -> None:
    def work(ranges: Ranges) -> int:
        last = ranges.last or 0
        return steps(lambda: [ranges.add(number, number) for number in range(last + 1, last + 101)])

    assert work(every_third(100_000)) == work(every_third(10)) <= 100 * 9


class Counted(list[int]):
    """A list that counts how many of its elements are looked at, by whatever way; bisection's, too."""

    seen = 0

    def __getitem__(self, index: int | slice) -> int | list[int]:  # type: ignore[override]  # one signature is enough here
        found = super().__getitem__(index)
        Counted.seen += len(found) if isinstance(found, list) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        Counted.seen += len(self)
        return super().__iter__()


def cost(held: Ranges | RangeMap[int], operation: str, *arguments: int) -> int:
    """How many lines an operation runs, and how many elements it looks at."""
    for name in ("_firsts", "_lasts", "_values"):
        if hasattr(held, name):
            setattr(held, name, Counted(getattr(held, name)))
    Counted.seen = 0
    lines = steps(lambda: getattr(held, operation)(*arguments))
    assert Counted.seen > 0
    return lines + Counted.seen


@pytest.mark.parametrize("operation", ["add", "remove", "within", "missing", "covers", "reach", "forget_up_to"])
def test_an_operation_among_100_000_ranges_costs_what_it_does_among_1_000(operation: str) -> None:
    def of(count: int) -> int:
        middle = count // 2 * 3
        arguments = {"reach": (middle,), "forget_up_to": (8,)}.get(operation, (middle, middle + 20))
        return cost(every_third(count), operation, *arguments)

    assert of(100_000) <= of(1_000) + BISECTION_MORE < 400


@pytest.mark.parametrize("operation", ["put", "remove", "parts", "missing"])
def test_an_operation_of_a_map_among_100_000_ranges_costs_what_it_does_among_1_000(operation: str) -> None:
    def of(count: int) -> int:
        held: RangeMap[int] = RangeMap()
        for n in range(count):
            held.put(3 * n + 1, 3 * n + 2, n)
        middle = count // 2 * 3
        return cost(held, operation, middle, middle + 20, *([-1] if operation == "put" else []))

    assert of(100_000) <= of(1_000) + BISECTION_MORE < 400
