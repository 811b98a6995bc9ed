"""Ranges of numbers: what is said of many events at once costs as much as what is said of one.

The events of a topic have the numbers 1, 2, 3, … without holes, and what a stage or a subscriber knows, misses or has asked for
is nearly always a few long stretches of them. `Ranges` is a set of numbers, held as such stretches; `RangeMap` has something
to say of each stretch besides. Both keep parallel lists in rising order and find their way by bisection. When something
comes or goes in the middle, a list moves its tail: one `memmove`, a few microseconds among 100,000 ranges. Most numbers are
added at the end, where nothing is moved.

A range is (first, last), both included. One whose last is below its first is empty: it changes nothing and has no parts.
`ENDLESS` as the last number leaves the upper end open.

INVARIANT: ranges are not empty and do not overlap; in `Ranges` there is at least one number between two of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import attrs

ENDLESS = 2**62
"""Beyond any number that an event will ever have."""
SHOWN_MAX = 20
"""How many ranges `repr` shows."""

Range = tuple[int, int]
_Value = TypeVar("_Value")


def shown(first: int, last: int) -> str:
    """A range as it is read: "7", "1-3", or "9-" if its upper end is open."""
    if first == last:
        return str(first)
    return f"{first}-" if last == ENDLESS else f"{first}-{last}"


def shown_list(parts: Sequence[str], count: int) -> str:
    """The first of many parts, and how many more there are."""
    more = [f"… {count - len(parts)} more"] if count > len(parts) else []
    return ", ".join([*parts, *more])


def _between(held: Iterable[Range], first: int, last: int) -> list[Range]:
    """What the held ranges, which are in order and touch first to last, leave out of it."""
    parts = []
    for begin, end in held:
        if first < begin:
            parts.append((first, begin - 1))
        first = end + 1
    if first <= last:
        parts.append((first, last))
    return parts


class Ranges:
    """A set of positive numbers, as sorted ranges that neither overlap nor touch."""

    __slots__ = ("_count", "_firsts", "_lasts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._count = 0
        for first, last in ranges:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Let the numbers from first to last be in it."""
        if last < first:
            return
        assert first >= 1, f"numbers begin at 1, and {first} to {last} were to be added"
        lasts = self._lasts
        if lasts and first == lasts[-1] + 1:  # the next number, as nearly always
            lasts[-1] = last
            self._count += last - first + 1
            return
        low, high = bisect_left(lasts, first - 1), bisect_right(self._firsts, last + 1)
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, lasts[high - 1])
        self._replace(low, high, [first], [last])

    def remove(self, first: int, last: int) -> None:
        """Let none of the numbers from first to last be in it."""
        low, high = self._touched(first, last)
        if low >= high:
            return
        begin, end = self._firsts[low], self._lasts[high - 1]
        rest = [(begin, first - 1)] if begin < first else []
        if end > last:
            rest.append((last + 1, end))
        self._replace(low, high, [begin for begin, _ in rest], [end for _, end in rest])

    def forget_up_to(self, number: int) -> None:
        """Let no number up to this one be in it."""
        self.remove(1, number)

    def _replace(self, low: int, high: int, firsts: list[int], lasts: list[int]) -> None:
        """Put ranges in the place of those from index low up to high."""
        self._count += sum(lasts) - sum(firsts) + len(firsts)
        self._count -= sum(self._lasts[low:high]) - sum(self._firsts[low:high]) + (high - low)
        self._firsts[low:high] = firsts
        self._lasts[low:high] = lasts

    def _touched(self, first: int, last: int) -> tuple[int, int]:
        """The indices, from and up to, of the ranges that have numbers from first to last."""
        if last < first:
            return 0, 0
        return bisect_left(self._lasts, first), bisect_right(self._firsts, last)

    def __contains__(self, number: int) -> bool:
        return self.covers(number, number)

    def covers(self, first: int, last: int) -> bool:
        """Whether all numbers from first to last are in it."""
        if last < first:
            return True
        index = bisect_right(self._firsts, first) - 1
        return index >= 0 and self._lasts[index] >= last

    def within(self, first: int, last: int) -> list[Range]:
        """The parts of first to last that are in it."""
        low, high = self._touched(first, last)
        parts = list(zip(self._firsts[low:high], self._lasts[low:high], strict=True))
        if parts:
            parts[0] = (max(parts[0][0], first), parts[0][1])
            parts[-1] = (parts[-1][0], min(parts[-1][1], last))
        return parts

    def missing(self, first: int, last: int) -> list[Range]:
        """The parts of first to last that are not in it."""
        return _between(self.within(first, last), first, last)

    def reach(self, number: int) -> int:
        """The last of the numbers from this one on that are in it without a hole; the one before it, if it is not."""
        index = bisect_right(self._firsts, number) - 1
        return max(self._lasts[index], number - 1) if index >= 0 else number - 1

    @property
    def first(self) -> int | None:
        """The lowest number, None if there is none."""
        return self._firsts[0] if self._firsts else None

    @property
    def last(self) -> int | None:
        """The highest number, None if there is none."""
        return self._lasts[-1] if self._lasts else None

    @property
    def count(self) -> int:
        """How many numbers are in it."""
        return self._count

    def __len__(self) -> int:
        """How many ranges it has."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._lasts, strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    def __repr__(self) -> str:
        few = zip(self._firsts[:SHOWN_MAX], self._lasts[:SHOWN_MAX], strict=True)
        return f"Ranges({shown_list([shown(first, last) for first, last in few], len(self))})"


@attrs.define(eq=False, repr=False)
class RangeMap(Generic[_Value]):
    """Numbers, each with a value, as sorted ranges of one value.

    Ranges that touch stay apart, though their values be the same: each is what was put in, or what was left of it.
    """

    _firsts: list[int] = attrs.field(factory=list, init=False)
    _lasts: list[int] = attrs.field(factory=list, init=False)
    _values: list[_Value] = attrs.field(factory=list, init=False)

    def put(self, first: int, last: int, value: _Value) -> None:
        """Give the numbers from first to last this value, whatever they had before."""
        if first <= last:
            self._replace(first, last, [(first, last, value)])

    def remove(self, first: int, last: int) -> None:
        """Let the numbers from first to last have no value."""
        if first <= last:
            self._replace(first, last, [])

    def _replace(self, first: int, last: int, parts: list[tuple[int, int, _Value]]) -> None:
        """Put these parts in the place of whatever is from first to last, of which the ends beyond it stay."""
        low, high = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        if low < high:
            before = (self._firsts[low], first - 1, self._values[low])
            after = (last + 1, self._lasts[high - 1], self._values[high - 1])
            parts = [part for part in (before, *parts, after) if part[0] <= part[1]]
        self._firsts[low:high] = [begin for begin, _, _ in parts]
        self._lasts[low:high] = [end for _, end, _ in parts]
        self._values[low:high] = [value for _, _, value in parts]

    def parts(self, first: int = 1, last: int = ENDLESS) -> list[tuple[int, int, _Value]]:
        """What is from first to last, cut to it: (first, last, value) in order."""
        if last < first:
            return []
        low, high = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        found = zip(self._firsts[low:high], self._lasts[low:high], self._values[low:high], strict=True)
        return [(max(begin, first), min(end, last), value) for begin, end, value in found]

    def missing(self, first: int, last: int) -> list[Range]:
        """The parts of first to last that have no value."""
        return _between([(begin, end) for begin, end, _ in self.parts(first, last)], first, last)

    def __len__(self) -> int:
        """How many ranges it has."""
        return len(self._firsts)

    def __repr__(self) -> str:
        few = zip(self._firsts[:SHOWN_MAX], self._lasts[:SHOWN_MAX], self._values[:SHOWN_MAX], strict=True)
        return f"RangeMap({shown_list([f'{shown(first, last)}: {value!r}' for first, last, value in few], len(self))})"
