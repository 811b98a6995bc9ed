"""Filters as users meet them: what each predicate matches, how it is written, and several filters together."""

from __future__ import annotations

import gc
import math
import pickle
import weakref
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from ordered_pubsub.core.filters import AnyOf, Filter, _grammar, covering

EXAMPLE = "symbol = 'ACME' and price > 100 and venue in ('X', 'Y')"
TRADE = {"symbol": "ACME", "price": 100.5, "venue": "Y", "quantity": 7}


def matches(text: str, data: object, headers: Mapping[str, Any] | None = None) -> bool:
    return Filter.parse(text).matcher(data, {} if headers is None else headers)


def matching(text: str, *values: object) -> list[object]:
    """Those of the values of the field `x` that match."""
    return [value for value in values if matches(text, {"x": value})]


def test_all_predicates_have_to_match() -> None:
    assert matches(EXAMPLE, TRADE)
    assert not matches(EXAMPLE, {**TRADE, "symbol": "ACMEE"})
    assert not matches(EXAMPLE, {**TRADE, "price": 100})
    assert not matches(EXAMPLE, {**TRADE, "venue": "Z"})


NUMBERS = (-1, 1, 1.0, 2, 2.5, 3, math.inf)
TEXTS = ("", "ab", "abc", "ac", "b", "ä")
OTHERS: tuple[object, ...] = ([], [1], {}, {"y": 1}, b"ab", Decimal(1), object())
BOOLEANS = (False, True)
NOT_THERE = (None, math.nan)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", (1, 1.0)),
        ("x = 1e0", (1, 1.0)),
        ("x != 1", (-1, 2, 2.5, 3, math.inf, *TEXTS, *BOOLEANS, *OTHERS)),
        ("x < 2", (-1, 1, 1.0)),
        ("x <= 2", (-1, 1, 1.0, 2)),
        ("x > 2", (2.5, 3, math.inf)),
        ("x >= 2", (2, 2.5, 3, math.inf)),
        ("x > -2.5", NUMBERS),
        ("x between 1 and 2.5", (1, 1.0, 2, 2.5)),
        ("x = 'ab'", ("ab",)),
        ("x != 'ab'", (*NUMBERS, "", "abc", "ac", "b", "ä", *BOOLEANS, *OTHERS)),
        ("x < 'ab'", ("",)),
        ("x <= 'ab'", ("", "ab")),
        ("x > 'ab'", ("abc", "ac", "b", "ä")),
        ("x >= 'ab'", ("ab", "abc", "ac", "b", "ä")),
        ("x between 'ab' and 'ac'", ("ab", "abc", "ac")),
        ("x prefix 'ab'", ("ab", "abc")),
        ("x prefix ''", TEXTS),
        ("x = true", (True,)),
        ("x != true", (*NUMBERS, *TEXTS, False, *OTHERS)),
        ("x in (1, 'ab', false)", (1, 1.0, "ab", False)),
        ("x in ('b', 'ab', 'b')", ("ab", "b")),
        ("x exists", (*NUMBERS, *TEXTS, *BOOLEANS, *OTHERS)),
        ("x > 1 and x < 3 and x != 2", (2.5,)),
        ("x > 'ab' and x < 'b' and x != 'ac'", ("abc",)),
        ("x != 1 and x != 'b' and x != true and x != false", (-1, 2, 2.5, 3, math.inf, *TEXTS[:4], "ä", *OTHERS)),
        ("x in (1, 2, 'b') and x != 2", (1, 1.0, "b")),
    ],
)
def test_a_predicate_matches_these_values_and_no_others(text: str, expected: tuple[object, ...]) -> None:
    found = matching(text, *NUMBERS, *TEXTS, *BOOLEANS, *OTHERS, *NOT_THERE)
    assert [(type(value), value) for value in found] == [(type(value), value) for value in expected]


def test_a_field_that_is_missing_matches_nothing() -> None:
    for text in ("x = 1", "x != 1", "x exists", "x < 'a'", "x.y != 1"):
        assert not matches(text, {"y": 1})


def test_huge_numbers_are_compared_exactly() -> None:
    assert matching(f"x = {2**53 + 1}", 2**53, 2**53 + 1, 2.0**53) == [2**53 + 1]
    assert matching(f"x > {10**400}", 10**400, 10**400 + 1, math.inf, 1e308) == [10**400 + 1, math.inf]
    assert matching("x = 1e22", 10**22, 10**22 + 1) == [10**22]


def test_texts_are_compared_by_code_points() -> None:
    assert matching("x > 'z'", "Z", "é", "\U0001f600", "zz", "\ud800") == ["é", "\U0001f600", "zz", "\ud800"]
    assert matching("x <= 'a'", "a", "a\0", "A") == ["a", "A"]


def test_the_last_character_there_is_can_be_a_prefix() -> None:
    last = "\U0010ffff"
    assert matching(f"x prefix '{last}'", last, f"{last}a", "a") == [last, f"{last}a"]
    assert matching(f"x prefix 'a{last}'", f"a{last}", f"a{last}b", "b", "a") == [f"a{last}", f"a{last}b"]


def test_dots_lead_into_mappings_and_quoted_names_are_taken_as_they_are() -> None:
    data: dict[str, Any] = {"a": {"b": {"c": 1}}, "a.b": 2, "last-name": 3, 'say "x"': 4, "IN": 5, "": 6}
    for text in ("a.b.c = 1", '"a.b" = 2', '"last-name" = 3', '"say ""x""" = 4', '"IN" = 5', '"" = 6', 'a."b".c = 1'):
        assert matches(text, data)
    assert not matches("a.b.c.d exists", data)
    assert not matches("A exists", data)


def test_keywords_may_be_in_capital_letters_and_spaces_left_out() -> None:
    assert matches("x>=1 AND x IN(1,2)And x Between 1 and 2 and y=TRUE and z PREFIX'a'", {"x": 1, "y": True, "z": "ab"})
    assert matches("\tx\n=\r\n'it''s'", {"x": "it's"})


def test_headers_are_text_or_bytes_that_are_text() -> None:
    assert matches("headers.trace = 'ä'", None, {"trace": "ä"})
    assert matches("headers.trace = 'ä'", None, {"trace": "ä".encode()})
    assert matches("headers.\"x-trace\" prefix 'a'", b"", {"x-trace": b"abc"})
    assert not matches("headers.trace = 'a'", None, {"Trace": "a"})
    assert not matches("headers.trace = 'a'", {"trace": "a"})


def test_a_header_that_is_no_text_is_there_and_is_no_text() -> None:
    binary = {"h": b"\xff"}
    assert matches("headers.h exists", None, binary)
    assert matches("headers.h != 'a'", None, binary)
    assert not matches("headers.h >= ''", None, binary)


def test_a_field_that_is_called_headers_is_quoted() -> None:
    assert matches('"headers".x = 1', {"headers": {"x": 1}}, {"x": "2"})
    assert not matches("headers.x = '2'", {"headers": {"x": "2"}})
    assert matches("a.headers = 1", {"a": {"headers": 1}})


def test_a_filter_on_headers_takes_any_payload() -> None:
    found = Filter.parse("headers.h = 'a'")
    assert not found.needs_payload
    assert found.payload_fields == ()
    payloads: list[object] = [None, b"", 5, [], {"a": 1}]
    assert all(found.matcher(data, {"h": "a"}) for data in payloads)


def test_a_payload_that_is_no_mapping_matches_no_field() -> None:
    for data in (None, b"x", "x", 5, [("x", 1)], object()):
        assert not matches("x exists", data)
        assert not matches("x != 1", data)


def test_the_names_at_the_top_of_the_payload_are_those_that_have_to_be_decoded() -> None:
    found = Filter.parse("""b.c = 1 and b.d = 2 and "x.y" exists and headers.h = 'a' and a != 1""")
    assert found.needs_payload
    assert found.payload_fields == ("a", "b", "x.y")


def test_other_mappings_than_dictionaries_match_as_well() -> None:
    assert matches("a.b = 1", MappingProxyType({"a": MappingProxyType({"b": 1})}), MappingProxyType({}))


class Colour(IntEnum):
    RED = 1


class Venue(str, Enum):
    X = "x"


class Price(float):
    pass


def test_subclasses_of_text_and_numbers_count_as_what_they_derive_from() -> None:
    assert matching("x in (1, 'x')", Colour.RED, Venue.X, Price(1), Price(2)) == [Colour.RED, Venue.X, Price(1)]
    assert matching("x != 1", Colour.RED, Price(2), Price(math.nan)) == [Price(2)]


class Sly(str):
    """Says that it comes before whatever it is compared with."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return True

    def __gt__(self, other: object) -> bool:
        return False


def test_a_text_that_compares_in_its_own_way_is_compared_as_any_other() -> None:
    assert matches("x = 'b'", {"x": Sly("b")})
    assert matches("x between 'a' and 'c'", {"x": Sly("b")})
    assert not matches("x < 'a'", {"x": Sly("b")})


class Refuses(dict[str, Any]):
    """Raises whatever is done with it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None


class Pretends:
    """Says that it is a text."""

    __class__ = str  # type: ignore[assignment]  # a lie


class Deaf(Mapping[str, Any]):
    """A mapping that has nothing to say."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


@pytest.mark.parametrize(
    "text", ["x = 'a'", "x != 1", "x < 5", "x in ('a', 'b', 1, 2)", "x.y exists", "headers.x = 'a'"]
)
def test_matching_never_raises(text: str) -> None:
    for bad in (Refuses(), Pretends(), Deaf()):
        assert not matches(text, bad, bad)  # type: ignore[arg-type]  # just what must not matter
        assert matches(text, {"x": bad}, {"x": bad}) in (False, True)
        assert not matches("y = 1 and " + text, {"x": bad}, {"x": bad})
    assert Filter.parse(text).matcher(None, None) is False  # type: ignore[arg-type]  # just what must not matter


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (EXAMPLE, "price > 100 and symbol = 'ACME' and venue in ('X', 'Y')"),
        ("x IN (2, 'b', true, 1.0, 'a', 1, false)", "x in (1, 2, 'a', 'b', false, true)"),
        ("x in (1)", "x = 1"),
        ("x between 1 and 1", "x = 1"),
        ("x>=1 and x<=2", "x between 1 and 2"),
        ("x between 1 and 3 and x != 1 and x!=2", "x > 1 and x <= 3 and x != 2"),
        ("x > 1 and x > 2 and x != -5", "x > 2"),
        ("x >= 'ab' and x < 'ac'", "x prefix 'ab'"),
        ("x prefix 'a' and x prefix 'ab'", "x prefix 'ab'"),
        ("x prefix 'a' and x != 'a'", "x > 'a' and x < 'b'"),
        ("x >= ''", "x prefix ''"),
        ("x < 'it''s'", "x < 'it''s'"),
        ("x != '' and x != 1 and x != true", "x != 1 and x != '' and x != true"),
        ("x exists and x != 1", "x != 1"),
        ("x exists and x.y exists", "x.y exists"),
        ("x != 1 and x.y = 2", "x.y = 2"),
        ('"plain" = 1 and "in" = 2 and "a b" = 3', '"a b" = 3 and "in" = 2 and plain = 1'),
        ('"headers".x = 1 and a."headers" = 2', 'a.headers = 2 and "headers".x = 1'),
        ("headers.\"x-b\" = '1' and c = 1e3 and b = 1.50", "b = 1.5 and c = 1000 and headers.\"x-b\" = '1'"),
        (f"x = {2**60} and y = {2**60 + 1} and z = 1e-7", f"x = {2.0**60} and y = {2**60 + 1} and z = 1e-07"),
    ],
)
def test_filters_of_the_same_meaning_are_equal_and_share_their_text(text: str, canonical: str) -> None:
    found = Filter.parse(text)
    assert str(found) == canonical
    assert Filter.parse(canonical) == found
    assert hash(Filter.parse(canonical)) == hash(found)
    assert repr(found) == f"Filter.parse({canonical!r})"


def test_a_filter_can_be_pickled_whether_it_was_used_or_not() -> None:
    found = Filter.parse(EXAMPLE)
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.matcher(TRADE, {})
    assert pickle.loads(pickle.dumps(found)).matcher(TRADE, {})


def test_a_filter_is_compiled_once() -> None:
    found = Filter.parse(EXAMPLE)
    assert found.matcher is found.matcher


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("x exists", "x = 1"),
        ("x exists", "x.y = 1"),
        ("x != 1", "x.y = 1"),
        ("x != 1", "x > 1"),
        ("x >= 1", "x = 1"),
        ("x prefix 'a'", "x in ('a', 'ab')"),
        ("x in (1, 'a')", "x = 'a'"),
        ("x > 1", "x > 1 and y = 2"),
        ("headers.h exists", "headers.h = 'a'"),
    ],
)
def test_one_covers_the_other_and_not_the_other_way_round(wide: str, narrow: str) -> None:
    one, two = Filter.parse(wide), Filter.parse(narrow)
    assert one.covers(two)
    assert not two.covers(one)
    assert one.overlaps(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("x = 1", "x = 2"),
        ("x = 1", "x.y = 1"),
        ("x.y = 1", "x.y.z = 1"),
        ("x < 'b'", "x < 1"),
        ("x prefix 'a'", "x prefix 'b'"),
        ("x = 1", "x != 1"),
        ("x > 3 and y = 1", "x <= 3"),
        ("headers.h = 'a'", "headers.h = 'b'"),
    ],
)
def test_these_have_nothing_in_common(one: str, two: str) -> None:
    assert not Filter.parse(one).overlaps(Filter.parse(two))
    assert not Filter.parse(two).overlaps(Filter.parse(one))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("x = 1", "y = 1"),
        ("x.y = 1", "x.z = 1"),
        ("x > 3", "x < 4"),
        ("headers.x = 'a'", "x = 'b'"),
        ("x != 1", "x.y = 1"),
    ],
)
def test_these_have_something_in_common(one: str, two: str) -> None:
    assert Filter.parse(one).overlaps(Filter.parse(two))
    assert Filter.parse(two).overlaps(Filter.parse(one))


def test_the_page_of_the_documentation_has_the_grammar_of_the_module() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "filters.md").read_text(encoding="utf-8")
    rules = [line for line in str(_grammar.__doc__).splitlines() if line.startswith("    ")]
    assert len(rules) == 11
    assert "\n".join(rules) in page


def parsed(*texts: str) -> list[Filter]:
    return [Filter.parse(text) for text in texts]


def test_several_filters_together_match_what_one_of_them_matches() -> None:
    together = covering(parsed("x = 1", "headers.h = 'a'"))
    assert together.matches({"x": 1}, {})
    assert together.matches(b"", {"h": "a"})
    assert not together.matches({"x": 2}, {})


def test_what_another_one_covers_is_left_out() -> None:
    together = covering(parsed("x = 1", "x > 0", "y = 1 and x > 5", "x in (1, 2)", "x>0", "y = 1"))
    assert [str(one) for one in together.filters or ()] == ["x > 0", "y = 1"]
    assert together.needs_payload
    assert together.payload_fields == ("x", "y")


def test_who_wants_everything_covers_all_others() -> None:
    together = covering([Filter.parse("x = 1"), None])
    assert together == AnyOf(None)
    assert together.matches(None, {})
    assert not together.needs_payload


def test_without_any_filters_nothing_is_wanted() -> None:
    assert covering([]) == AnyOf(())
    assert not covering([]).matches({"x": 1}, {})
    assert not covering([]).needs_payload


def test_a_compiled_filter_goes_when_nobody_has_it_any_more() -> None:
    gc.disable()
    try:
        matcher = Filter.parse("x in (1, 2, 3)").matcher
        gone = weakref.ref(matcher)
        assert matcher({"x": 2}, {})
        del matcher
        assert gone() is None
    finally:
        gc.enable()
