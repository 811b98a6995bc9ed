"""Filters compared: `covers` and `overlaps` are exact, as is what they are made of.

Each cut between values (see `values`) that a filter can make begins a region in which no filter with the same literals can tell
one value from another. So one value of each region, and the fields that may hold them or be missing, make a universe of
documents in which every difference between two filters shows, and every question about them is answered by looking at all.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ordered_pubsub.core.filters import Filter, covering
from ordered_pubsub.core.filters._grammar import parse
from ordered_pubsub.core.filters._tokens import TEXT_LENGTH_MAX
from ordered_pubsub.core.filters._values import (
    EVERYTHING,
    NUMBERS,
    TEXTS,
    ValueRanges,
    Values,
    after,
    after_prefix,
    all_but,
    before,
    between,
    one_of,
)
from ordered_pubsub.errors import FilterError

TEXT_REGIONS = ["", "Z", "a", "a\0", "ab", "ab\0", "ac", "b", "b\0", "c"]
NUMBER_REGIONS = [0, 1, 1.5, 2, 3]
MISSING = None
VALUES: list[object] = [*TEXT_REGIONS, *NUMBER_REGIONS, False, True, [], MISSING]
DOCUMENTS: list[object] = [
    *({"a": value} for value in VALUES),
    *({"a": {"b": one, "c": two}} for one in VALUES for two in VALUES),
    *({"a": {"b": {"d": one}, "c": two}} for one in VALUES for two in VALUES),
]
HEADERS: list[dict[str, Any]] = [{"h": value} for value in (*TEXT_REGIONS, b"\xff", MISSING)]

FIELDS = [("a",), ("a", "b"), ("a", "c"), ("a", "b", "d"), ("headers", "h")]
TEXT_LITERALS = st.sampled_from(["", "a", "ab", "b"])
NUMBER_LITERALS = st.sampled_from([1, 2])
ORDERED = ["<", "<=", ">", ">="]


@attrs.frozen
class Said:
    """A predicate, as somebody says it."""

    path: tuple[str, ...]
    comparison: str
    literals: tuple[Any, ...] = ()

    def __str__(self) -> str:
        words = [spelled(literal) for literal in self.literals]
        if self.comparison == "in":
            words = [f"({', '.join(words)})"]
        return " ".join([".".join(self.path), self.comparison, " and ".join(words)]).rstrip()

    def is_met_by(self, data: object, headers: dict[str, Any]) -> bool:
        """What the table of the documentation says, word by word."""
        if self.path[0] == "headers":
            return says(self.comparison, self.literals, headers.get(self.path[1]))
        for part in self.path:
            data = data.get(part) if isinstance(data, dict) else MISSING
        return says(self.comparison, self.literals, data)


def spelled(literal: object) -> str:
    if isinstance(literal, bool):
        return str(literal).lower()
    return "'{}'".format(literal.replace("'", "''")) if isinstance(literal, str) else repr(literal)


def kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {str: "text", int: "number", float: "number"}.get(type(value), "other")


def says(comparison: str, literals: tuple[Any, ...], value: Any) -> bool:
    if value is MISSING or value != value:
        return False
    like = [literal for literal in literals if kind(literal) == kind(value)]
    if comparison == "exists":
        return True
    if comparison == "!=":
        return value not in like
    if comparison in ("=", "in"):
        return value in like
    if len(like) < len(literals):
        return False
    if comparison == "between":
        return bool(like[0] <= value <= like[1])
    if comparison == "prefix":
        return bool(value.startswith(like[0]))
    return bool(
        {"<": value < like[0], "<=": value <= like[0], ">": value > like[0], ">=": value >= like[0]}[comparison]
    )


@st.composite
def predicates(
    draw: st.DrawFn, texts: st.SearchStrategy[str], numbers: st.SearchStrategy[float], fields: list[tuple[str, ...]]
) -> Said:
    path = draw(st.sampled_from(fields))
    only_texts = path[0] == "headers"
    ordered: st.SearchStrategy[Any] = texts if only_texts or draw(st.booleans()) else numbers
    comparison = draw(st.sampled_from([*ORDERED, "=", "!=", "in", "between", "prefix", "exists"]))
    if comparison == "exists":
        return Said(path, comparison)
    if comparison == "prefix":
        return Said(path, comparison, (draw(texts),))
    if comparison == "between":
        return Said(path, comparison, tuple(sorted((draw(ordered), draw(ordered)))))
    any_literal = texts if only_texts else st.one_of(texts, numbers, st.booleans())
    if comparison == "in":
        return Said(path, comparison, tuple(draw(st.lists(any_literal, min_size=1, max_size=4))))
    return Said(path, comparison, (draw(ordered if comparison in ORDERED else any_literal),))


SAID = st.lists(predicates(TEXT_LITERALS, NUMBER_LITERALS, FIELDS), min_size=1, max_size=5)


def written(said: list[Said]) -> str:
    return " and ".join(map(str, said))


def read(said: list[Said]) -> Filter | None:
    """The filter, or None if the predicates contradict each other."""
    try:
        return Filter.parse(written(said))
    except FilterError as error:
        if "contradict" not in str(error):
            raise
        return None


def matched(filter_: Filter) -> list[bool]:
    """Whether it matches, of each document of the universe."""
    matches = filter_.matcher
    return [matches(data, headers) for data in DOCUMENTS for headers in HEADERS]


def meant(said: list[Said]) -> list[bool]:
    """What the predicates match, one by one, of payloads and of headers; each of them looks at one of the two only."""
    of_payload = [one for one in said if one.path[0] != "headers"]
    of_headers = [one for one in said if one.path[0] == "headers"]
    in_payload = [all(one.is_met_by(data, {}) for one in of_payload) for data in DOCUMENTS]
    in_headers = [all(one.is_met_by({}, headers) for one in of_headers) for headers in HEADERS]
    return [payload and header for payload in in_payload for header in in_headers]


FILTERS = SAID.map(read).filter(bool)


@settings(max_examples=200)
@given(SAID)
def test_a_filter_matches_what_its_predicates_mean_and_is_refused_if_that_is_nothing(said: list[Said]) -> None:
    expected = meant(said)
    found = read(said)
    assert (found is None) == (not any(expected))
    if found is not None:
        assert matched(found) == expected


@pytest.mark.heavy
@settings(max_examples=300)
@given(FILTERS, FILTERS)
@example(Filter.parse("a exists"), Filter.parse("a.b = 1"))
@example(Filter.parse("a != 1"), Filter.parse("a.b.d = 1"))
@example(Filter.parse("a = 1"), Filter.parse("a.b.d = 1"))
@example(Filter.parse("a.b > 1 and a.c exists"), Filter.parse("a.b < 2 and headers.h = 'a'"))
def test_comparisons_of_two_filters_are_exact(one: Filter, two: Filter) -> None:
    ones, twos = matched(one), matched(two)
    both = [first and second for first, second in zip(ones, twos, strict=True)]
    assert one.overlaps(two) == two.overlaps(one) == any(both)
    assert one.covers(two) == (both == twos)
    assert two.covers(one) == (both == ones)
    assert (one == two) == (ones == twos)


@given(FILTERS, SAID)
def test_a_filter_covers_what_says_more_and_overlaps_with_it(wide: Filter, more: list[Said]) -> None:
    """Random pairs seldom have much in common; these always do, if they do not contradict each other."""
    try:
        narrow = Filter.parse(f"{wide} and {written(more)}")
    except FilterError:
        other = read(more)
        assert other is None or not wide.overlaps(other)
        return
    assert wide.covers(narrow)
    assert wide.overlaps(narrow)
    assert narrow.covers(wide) == (matched(narrow) == matched(wide))
    assert narrow.covers(wide) == (narrow == wide)


@given(SAID, st.randoms(use_true_random=False))
def test_the_order_of_predicates_means_nothing(said: list[Said], random: Any) -> None:
    shuffled = [*said]
    random.shuffle(shuffled)
    assert read(shuffled) == read(said)


@pytest.mark.heavy
@given(st.lists(FILTERS, max_size=3))
def test_several_filters_together_match_what_any_of_them_does(filters: list[Filter]) -> None:
    together = covering(filters)
    vectors = [matched(filter_) for filter_ in filters]
    expected = [any(column) for column in zip(*vectors, strict=True)] or [False] * len(DOCUMENTS) * len(HEADERS)
    assert [together.matches(data, headers) for data in DOCUMENTS for headers in HEADERS] == expected
    assert all(not one.covers(two) for one, two in permutations(together.filters or (), 2))
    assert all(covering(order) == together for order in permutations(filters))


ANY_TEXT = st.text(
    st.one_of(
        st.sampled_from("ab'\x01\ud7fe\ue000\U0010ffff"), st.characters(codec="utf-8", exclude_characters="\0\ud7ff")
    ),
    max_size=4,
)
ANY_NUMBER = st.one_of(
    st.integers(-3, 3),
    st.integers(),
    st.integers(-(10**600), 10**600),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**53, 2**53 + 1, 2.0**60, 10**16, 1e16, 0.1, math.nextafter(0.1, 1), -0.0, 5e-324, 1.7e308]),
)
ANY_FIELD = st.lists(st.text(st.sampled_from('ab."_ é\n'), max_size=3), min_size=1, max_size=3).map(tuple)


def quoted_path(path: tuple[str, ...]) -> str:
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in path)


def regions(said: list[Said]) -> list[object]:
    """A value of each region that the literals make."""
    literals = [literal for one in said for literal in one.literals]
    texts = [literal for literal in literals if isinstance(literal, str)]
    numbers = [literal for literal in literals if kind(literal) == "number"]
    nexts = [cut[1] for cut in map(after_prefix, texts) if cut[1:]]
    return [
        "",
        *texts,
        *(f"{text}\0" for text in texts),
        *nexts,
        *numbers,
        -math.inf,
        math.inf,
        False,
        True,
        [],
        MISSING,
    ]


@settings(max_examples=300)
@given(st.lists(predicates(ANY_TEXT, ANY_NUMBER, [("x",)]), min_size=1, max_size=4), ANY_FIELD)
def test_any_literal_in_any_field_is_matched_and_written_as_it_was_meant(
    said: list[Said], path: tuple[str, ...]
) -> None:
    name = quoted_path(path)
    text = " and ".join(f"{name}{str(one)[1:]}" for one in said)
    values = regions(said)
    expected = [all(one.is_met_by({"x": value}, {}) for one in said) for value in values]
    try:
        found = Filter.parse(text)
    except FilterError as error:
        is_too_long = f"{TEXT_LENGTH_MAX:,} are allowed" in str(error)
        assert is_too_long or not any(expected)
        return
    assert [found.matcher(nested(path, value), {}) for value in values] == expected
    again = Filter.parse(str(found))
    assert again == found
    assert str(again) == str(found)
    assert len(parse(str(found))) <= len(said)
    assert [again.matcher(nested(path, value), {}) for value in values] == expected
    assert [found.conditions[0][1].contains(value) for value in values] == expected


def nested(path: tuple[str, ...], value: object) -> object:
    for part in reversed(path):
        value = {part: value}
    return value


def cuts_of(kind_of_all: ValueRanges, literals: list[Any]) -> list[Any]:
    found = [*kind_of_all.cuts, *map(before, literals), *map(after, literals)]
    found += [after_prefix(literal) for literal in literals if isinstance(literal, str)]
    return sorted(dict.fromkeys(found))


@st.composite
def two_rows(draw: st.DrawFn) -> tuple[ValueRanges, ValueRanges, list[object]]:
    """Two sets of texts or numbers, with whatever ranges; and a value of each region."""
    of_texts = draw(st.booleans())
    literals: list[Any] = draw(st.lists(ANY_TEXT if of_texts else ANY_NUMBER, min_size=1, max_size=4))
    cuts = cuts_of(TEXTS if of_texts else NUMBERS, literals)
    rows = [
        sorted(draw(st.lists(st.sampled_from(cuts), unique=True).filter(lambda row: len(row) % 2 == 0))) for _ in "ab"
    ]
    return ValueRanges(tuple(rows[0])), ValueRanges(tuple(rows[1])), [value_after(cut, cuts) for cut in cuts[:-1]]


def value_after(cut: Any, cuts: list[Any]) -> object:
    """A value between this cut and the next one; of numbers an exact one, since floats may have none there."""
    end = cuts[cuts.index(cut) + 1]
    if cut[1:] and not cut[2]:
        return cut[1]
    if cut[1:] and isinstance(cut[1], str):
        return f"{cut[1]}\0"
    begin = Fraction(cut[1]) if cut[1:] else Fraction(end[1]) - 2
    return (begin + (Fraction(end[1]) if end[1:] else begin + 2)) / 2


@settings(max_examples=300)
@given(two_rows())
def test_the_algebra_of_ranges_is_that_of_the_sets_of_their_values(
    drawn_rows: tuple[ValueRanges, ValueRanges, list[object]],
) -> None:
    one, two, values = drawn_rows
    ones, twos = [value in one for value in values], [value in two for value in values]
    assert [value in one & two for value in values] == [a and b for a, b in zip(ones, twos, strict=True)]
    assert (one == two) == (ones == twos)
    assert one.is_within(two) == ((one & two) == one) == all(b for a, b in zip(ones, twos, strict=True) if a)
    assert bool((one & two).cuts) == any(a and b for a, b in zip(ones, twos, strict=True))
    whole = TEXTS if isinstance(values[0], str) else NUMBERS
    assert [value in one.missing_from(*whole.cuts) for value in values] == [not a for a in ones]


def test_numbers_have_no_gaps_and_texts_have() -> None:
    for upper in ("4", repr(math.nextafter(3, 4))):
        assert Filter.parse("a > 3").overlaps(Filter.parse(f"a < {upper}"))
    only_one: Values = between(before("a"), before("a\0"), like="")
    assert only_one.texts != one_of("a").texts  # which is why U+0000 cannot be written in a filter
    assert all_but("a") & one_of("a") == Values()
    assert EVERYTHING & only_one == only_one


def test_all_kinds_of_values_count_in_a_set() -> None:
    assert not Values()
    for values in (one_of("a"), one_of(1), one_of(False), Values(others=True)):
        assert values
        assert values.is_within(EVERYTHING)
        assert not EVERYTHING.is_within(values)
    assert not EVERYTHING.is_within(attrs.evolve(EVERYTHING, others=False))
