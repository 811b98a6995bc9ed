"""Sets of values: what a field may be, so that the events match.

Theory of operation
===================
Values are of four kinds: text, numbers, booleans, and all others (lists, mappings, bytes, …), about which nothing more is
known than that they are there. A value that is missing or null is in no set, and neither is NaN.

Texts (by code points) and numbers (by size) have an order, so a set of them is a row of ranges. A range begins and ends at a
*cut*: a place just before a value, or just after it, or at an end of the order. With cuts there are no open and closed ends
to tell apart: `> 5` begins after 5, `>= 5` before 5, and 5 alone is what lies between the two. Intersection is one walk over
two sorted rows; a set lies within another if the intersection with it changes nothing.

Numbers are the number line, without gaps: between 3 and 4 there is 3.5, and between two neighbouring floats there is
something, too. Between two texts there may be nothing, as between `'a'` and `'a\\0'`; but since no literal has a U+0000
(`tokens`), there is always a text between a cut and a later one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import attrs

Literal = str | int | float | bool
Cut = tuple[Any, ...]
"""(0, value, 0) before a value, (0, value, 1) after it; (-1,) and (1,) are the ends of the order. Tuples compare as cuts do."""

LOWEST: Cut = (-1,)
HIGHEST: Cut = (1,)
_WHOLE_MAX = 1e16
"""From here on Python writes floats with an exponent."""
_LAST_CHARACTER = "\U0010ffff"


def before(value: str | float) -> Cut:
    """The cut just before a value."""
    return (0, value, 0)


def after(value: str | float) -> Cut:
    """The cut just after a value."""
    return (0, value, 1)


def plain(number: float) -> float:
    """The same number, in the one form that equal numbers share: whole ones as int, unless a float is a lot shorter."""
    try:
        near = float(number)
    except OverflowError:
        return number
    if near != number:
        return number
    return int(near) if near.is_integer() and abs(near) < _WHOLE_MAX else near


def after_prefix(prefix: str) -> Cut:
    """The cut after all the texts that begin so: before the next one that does not."""
    stem = prefix.rstrip(_LAST_CHARACTER)
    return before(stem[:-1] + chr(ord(stem[-1]) + 1)) if stem else HIGHEST


@attrs.frozen
class ValueRanges:
    """A set of texts, or of numbers: every other cut begins a range, the next one ends it.

    INVARIANT: len(cuts) % 2 == 0 and all(a < b for a, b in zip(cuts, cuts[1:])), so equal sets have equal cuts.
    """

    cuts: tuple[Cut, ...] = ()

    def __and__(self, other: ValueRanges) -> ValueRanges:
        mine, theirs, cuts = self.cuts, other.cuts, []
        i = j = 0
        while i < len(mine) and j < len(theirs):
            begin, end = max(mine[i], theirs[j]), min(mine[i + 1], theirs[j + 1])
            if begin < end:
                cuts += [begin, end]
            if mine[i + 1] < theirs[j + 1]:
                i += 2
            else:
                j += 2
        return ValueRanges(tuple(cuts))

    def __contains__(self, value: object) -> bool:
        return bisect_right(self.cuts, (0, value, 0)) % 2 == 1

    def is_within(self, other: ValueRanges) -> bool:
        """Whether each of these ranges lies in one of the other ones."""
        mine, theirs = self.cuts, other.cuts
        for index in range(0, len(mine), 2):
            place = bisect_right(theirs, mine[index])
            if place % 2 == 0 or theirs[place] < mine[index + 1]:
                return False
        return True

    def missing_from(self, begin: Cut, end: Cut) -> ValueRanges:
        """What lies between two cuts and not in this set, which lies between them."""
        cuts = (begin, *self.cuts, end)
        if cuts[:1] == cuts[1:2]:
            cuts = cuts[2:]
        if cuts[-1:] == cuts[-2:-1]:
            cuts = cuts[:-2]
        return ValueRanges(cuts)

    def points(self) -> tuple[Any, ...] | None:
        """The values, if these are single ones; None if there is a range of more."""
        begins, ends = self.cuts[::2], self.cuts[1::2]
        if all(begin[1:2] == end[1:2] != () for begin, end in zip(begins, ends, strict=True)):
            return tuple(begin[1] for begin in begins)
        return None

    def holes(self, begin: Cut, end: Cut) -> tuple[Any, ...]:
        """The single values that were taken out between two cuts: predicates take out nothing else."""
        points = self.missing_from(begin, end).points()
        assert points is not None, self
        return points


NOTHING = ValueRanges()
TEXTS = ValueRanges((before(""), HIGHEST))
NUMBERS = ValueRanges((LOWEST, HIGHEST))


@attrs.frozen
class Values:
    """A set of values of all kinds."""

    texts: ValueRanges = NOTHING
    numbers: ValueRanges = NOTHING
    booleans: tuple[bool, ...] = ()
    """in order: False, True"""
    others: bool = False
    """whether lists, mappings, bytes and the like belong to it"""

    def __and__(self, other: Values) -> Values:
        return Values(
            self.texts & other.texts,
            self.numbers & other.numbers,
            tuple(boolean for boolean in self.booleans if boolean in other.booleans),
            self.others and other.others,
        )

    def __bool__(self) -> bool:
        return bool(self.texts.cuts or self.numbers.cuts or self.booleans or self.others)

    def is_within(self, other: Values) -> bool:
        """Whether all these values are in the other set as well."""
        return (
            (other.others or not self.others)
            and self.texts.is_within(other.texts)
            and self.numbers.is_within(other.numbers)
            and (not self.booleans or self.booleans == other.booleans or len(other.booleans) == 2)
        )

    def contains(self, value: object) -> bool:
        """Whether a value of any type is in this set. Subclasses of text and numbers count as what they derive from."""
        if value is None:
            return False
        if isinstance(value, bool):
            return value in self.booleans
        if isinstance(value, str):
            return str.__str__(value) in self.texts
        if isinstance(value, int):
            return int.__int__(value) in self.numbers
        if isinstance(value, float):
            number = float.__float__(value)
            return number == number and number in self.numbers
        return self.others

    def points(self) -> tuple[Literal, ...] | None:
        """The values, if these are single ones that can be listed."""
        numbers, texts = self.numbers.points(), self.texts.points()
        if self.others or numbers is None or texts is None:
            return None
        return (*numbers, *texts, *self.booleans)


EVERYTHING = Values(TEXTS, NUMBERS, (False, True), others=True)


def one_of(*literals: Literal) -> Values:
    """The values that equal one of these."""
    return Values(
        _points([literal for literal in literals if isinstance(literal, str)]),
        _points(
            [literal for literal in literals if isinstance(literal, int | float) and not isinstance(literal, bool)]
        ),
        tuple(boolean for boolean in (False, True) if any(literal is boolean for literal in literals)),
    )


def _points(values: list[Any]) -> ValueRanges:
    return ValueRanges(tuple(cut for value in sorted(dict.fromkeys(values)) for cut in (before(value), after(value))))


def all_but(literal: Literal) -> Values:
    """All that is there and is something else."""
    left_out = one_of(literal)
    return Values(
        left_out.texts.missing_from(*TEXTS.cuts),
        left_out.numbers.missing_from(*NUMBERS.cuts),
        tuple(boolean for boolean in EVERYTHING.booleans if boolean not in left_out.booleans),
        others=True,
    )


def between(begin: Cut | None, end: Cut | None, like: str | float) -> Values:
    """The values between two cuts (None: the end of the order) of the kind that `like` is of."""
    whole = TEXTS if isinstance(like, str) else NUMBERS
    cut = ValueRanges((begin or whole.cuts[0], end or whole.cuts[1]))
    ranges = cut if cut.cuts[0] < cut.cuts[1] else NOTHING
    return Values(texts=ranges) if isinstance(like, str) else Values(numbers=ranges)
