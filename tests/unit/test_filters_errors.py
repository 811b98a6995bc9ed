"""What is no filter is refused, with the place and what was expected there; and reading takes no longer than it must."""

from __future__ import annotations

import sys
from itertools import combinations
from types import FrameType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.filters._conditions import combine
from ordered_pubsub.core.filters._grammar import DEPTH_MAX, DIGITS_MAX, LITERALS_MAX, PREDICATES_MAX, parse
from ordered_pubsub.core.filters._tokens import KEYWORDS, TEXT_LENGTH_MAX
from ordered_pubsub.errors import FilterError, UsageError


def refusal(text: object) -> str:
    with pytest.raises(FilterError) as caught:
        Filter.parse(text)  # type: ignore[arg-type]  # some are no text
    return str(caught.value)


def place_of(message: str) -> int:
    """The column that the caret is under, of the text that is shown."""
    _, shown, caret = message.split("\n")
    assert caret.strip() == "^"
    assert shown.startswith("    ")
    return caret.index("^") - 4


COMPARISON = "expected a comparison (= != < <= > >= in between prefix exists)"


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        (
            "",
            0,
            'expected a field (what is no plain word is written in double quotes, as in "last-name") at the beginning, and',
        ),
        ("price", 5, f"{COMPARISON} after 'price', and the filter ends there"),
        ("price 5", 6, f"{COMPARISON} after 'price', not '5'"),
        ("a.b == 5", 4, f"{COMPARISON} after 'a.b', not '=='"),
        ("a like 'x'", 2, f"{COMPARISON} after 'a', not 'like'"),
        ("last-name = 'x'", 4, "not '-'; what is no plain word is written in double quotes"),
        ("h-1 = 'x'", 1, "not '-1'; what is no plain word is written in double quotes"),
        ("price >", 7, "expected a text in single quotes, or a number after '>', and the filter ends there"),
        ("price > limit", 8, "expected a text in single quotes, or a number after '>', not 'limit'"),
        ("a < true", 4, "expected a text in single quotes, or a number after '<', not 'true'"),
        (
            'a = "ACME"',
            4,
            "expected a literal (a text in single quotes, a number, true or false) after '=', not '\"ACME\"'",
        ),
        ("a = null", 4, "expected a literal (a text in single quotes, a number, true or false) after '=', not 'null'"),
        ("a = 100and", 4, "expected a number such as 1, -2.5 or 1e3 after '=', not '100and'"),
        ("a = 1_000", 4, "expected a number such as"),
        ("a = 1.", 4, "expected a number such as"),
        ("a = .5", 4, "expected a literal"),
        ("a = ٣", 4, "expected a literal"),
        ("a = 1e400", 4, "'1e400' is too large: expected a number within ±1.8e308, or a whole one"),
        ("a = -1e400", 4, "'-1e400' is too large"),
        ("a prefix 5", 9, "expected a text in single quotes after 'prefix', not '5'"),
        ("a in 5", 5, "expected '(' after 'in', not '5'"),
        ("a in ()", 6, "expected a literal (a text in single quotes, a number, true or false) after '(', not ')'"),
        ("a in (1 2)", 8, "expected ',' or ')' after '1', not '2'"),
        ("a in (1,", 8, "expected a literal (a text in single quotes, a number, true or false) after ',', and"),
        ("a between 1", 11, "expected 'and' and the upper end after '1', and the filter ends there"),
        ("a between 1 and 'x'", 16, "expected a number such as 1, -2.5 or 1e3 after 'and', not \"'x'\""),
        ("a between 'x' and 1", 18, "expected a text in single quotes after 'and', not '1'"),
        ("a between true and false", 10, "expected a text in single quotes, or a number after 'between', not 'true'"),
        ("a = 1 b = 2", 6, "expected 'and' or the end of the filter after '1', not 'b'"),
        ("a = 1, b = 2", 5, "expected 'and' or the end of the filter after '1', not ','"),
        ("a = 1 and", 9, "expected a field (what is no plain word is written in double quotes"),
        ("a. = 1", 3, "expected a part of a field"),
        ("a..b = 1", 2, "expected a part of a field"),
        (
            "In = 5",
            0,
            'expected a field (what is no plain word is written in double quotes, as in "last-name") at the beginning',
        ),
        ("a = 'x", 4, "expected ' at the end of a text, and there is none"),
        ("a = 'it's'", 9, "expected ' at the end of a text, and there is none"),
        ('a = 1 and "b = 2', 10, 'expected " at the end of a name, and there is none'),
        (
            "headers = 1",
            8,
            "expected '.' and the name of a header (a field of the payload is written \"headers\") after",
        ),
        ("headers. = 'x'", 9, "expected the name of a header"),
        ("headers.a.b = 'x'", 9, 'the name of a header has no parts; one with a dot is written as headers."x.y"'),
        ("headers.a > 5", 12, "expected a text in single quotes, which is what headers have after '>', not '5'"),
        (
            "headers.a in ('a', true)",
            19,
            "expected a text in single quotes, which is what headers have after ',', not 'true'",
        ),
        ("a = 'b\0'", 6, "U+0000 cannot be written in a filter"),
        ("a = '\ud7ff'", 5, "U+D7FF cannot be written in a filter"),
        ("a = '\ud800'", 5, "U+D800 cannot be written in a filter"),
    ],
)
def test_an_error_says_what_was_expected_and_points_at_the_place(text: str, place: int, says: str) -> None:
    message = refusal(text)
    assert says in message
    assert place_of(message) == place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a = 1 or b = 2", 6),
        ("a = 1 || b = 2", 6),
        ("not a = 1", 0),
        ("!a", 0),
        ("a NOT in (1)", 2),
        ("(a = 1)", 0),
        ("a = 1 and (b = 2)", 10),
        ("a = 1)", 5),
        ("lower(a) = 'x'", 5),
    ],
)
def test_what_is_more_than_a_conjunction_is_refused_with_what_to_do(text: str, place: int) -> None:
    message = refusal(text)
    assert "predicates are joined by 'and' only" in message
    assert "use in (...) for several values of one field, != to leave a value out, or two subscriptions" in message
    assert place_of(message) == place


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("price > 5 and price < 3", 14, "'price > 5' and 'price < 3' contradict each other: no value of price is left"),
        ("x = 1 and y = 2 and x = 2", 20, "'x = 1' and 'x = 2' contradict each other"),
        ("x > 'a' and x < 5", 12, "\"x > 'a'\" and 'x < 5' contradict each other"),
        ("x between 5 and 3", 0, "'x between 5 and 3' contradicts itself: no value of x is left; change it"),
        ("x < ''", 0, "contradicts itself"),
        (
            "x in (1, 2) and x != 1 and y = 1 and x > 0 and x != 2",
            47,
            "'x in (1, 2)' and 'x != 1' and 'x != 2' contradict each",
        ),
        ("a = 1 and a.b = 2", 10, "'a = 1' and 'a.b = 2' contradict each other: a.b is there only if a is a mapping"),
        ("a.b.c exists and a != 1 and a < 5", 28, "'a.b.c exists' and 'a < 5' contradict each other"),
        ("headers.h = 'a' and headers.h = 'b'", 20, "no value of headers.h is left; take out one of them"),
    ],
)
def test_predicates_that_contradict_each_other_are_named(text: str, place: int, says: str) -> None:
    message = refusal(text)
    assert says in message
    assert place_of(message) == place


CONTRADICTING = st.lists(
    st.sampled_from(
        ["x != 1", "x != 2", "x in (1, 2)", "x in (2, 3)", "x > 1", "x <= 2", "x != 3", "x exists", "x != true"]
    ),
    min_size=2,
    unique=True,
)


@given(CONTRADICTING)
def test_only_predicates_without_which_there_is_no_contradiction_are_named(parts: list[str]) -> None:
    try:
        Filter.parse(" and ".join(parts))
    except FilterError as error:
        named = [part for part in parts if repr(part) in str(error).partition(" contradict")[0]]
        assert is_contradiction(named)
        assert not any(is_contradiction(list(fewer)) for fewer in combinations(named, len(named) - 1))


def is_contradiction(parts: list[str]) -> bool:
    text = " and ".join(parts)
    if not text:
        return False
    try:
        combine(parse(text), text)
    except FilterError:
        return True
    return False


def test_an_error_of_a_filter_is_one_of_usage() -> None:
    assert issubclass(FilterError, UsageError)


@pytest.mark.parametrize("text", [None, 5, b"x = 1", ["x = 1"]])
def test_what_is_no_text_is_refused(text: object) -> None:
    assert f"not {type(text).__name__}: " in refusal(text)


def test_a_filter_of_the_longest_text_is_read_and_a_longer_one_refused() -> None:
    text = f"x = '{'a' * (TEXT_LENGTH_MAX - 6)}'"
    assert str(Filter.parse(text)) == text
    assert "has 4,097 characters; at most 4,096 are allowed" in refusal(text + " ")


def test_a_filter_that_is_too_long_when_it_is_written_out_is_refused() -> None:
    """Since the text is what others are told, they must be able to read it."""
    listed = ",".join(f"{number}e15" for number in range(1, 500))
    assert "characters, written out as 'x in (1000000000000000, " in refusal(f"x in ({listed})")


def test_more_predicates_than_allowed_are_refused() -> None:
    most = " and ".join(["x != 1"] * PREDICATES_MAX)
    assert str(Filter.parse(most)) == "x != 1"
    message = refusal(f"{most} and y = 1")
    assert "a filter has at most 64 predicates" in message
    assert message.split("\n")[1][4 + place_of(message) :] == "y = 1"


def test_more_literals_than_allowed_are_refused() -> None:
    assert Filter.parse(f"x in ({','.join('1' * LITERALS_MAX)})") == Filter.parse("x = 1")
    message = refusal(f"x in ({','.join('1' * LITERALS_MAX)}) and y = 'z'")
    assert "a filter has at most 1,000 literals" in message
    assert message.split("\n")[1][4 + place_of(message) :] == "'z'"
    assert "at most 1,000 literals" in refusal(f"x in ({'1,' * (LITERALS_MAX - 2)}'a',true,1)")


def test_a_field_that_lies_deeper_than_allowed_is_refused() -> None:
    deepest = ".".join("a" * DEPTH_MAX)
    assert str(Filter.parse(f"{deepest} exists")) == f"{deepest} exists"
    assert "at most 16 parts" in refusal(f"{deepest}.a exists")


def test_a_number_with_more_digits_than_allowed_is_refused() -> None:
    most = "9" * DIGITS_MAX
    assert Filter.parse(f"x = {most}").matcher({"x": int(most)}, {})
    assert "a number has at most 640 characters" in refusal(f"x = {most}9")


def test_of_a_long_text_the_part_around_the_place_is_shown() -> None:
    message = refusal(f"x = '{'a' * 500}' andd y = '{'b' * 500}'")
    shown = message.split("\n")[1][4:]
    assert len(shown) < 110
    assert shown.startswith("...aaa")
    assert shown.endswith("bbb...")
    assert shown[place_of(message) :].startswith("andd y = ")


def test_of_a_long_text_that_ends_too_early_the_end_is_shown() -> None:
    message = refusal(f"x = '{'a' * 500}' and")
    assert message.split("\n")[1] == f"    ...{'a' * 95}' and"
    assert place_of(message) == 103


def test_what_cannot_be_printed_is_shown_as_a_space() -> None:
    message = refusal("x\n=\t1 \x1b[31m = 'é'")
    assert message.split("\n")[1:] == ["    x = 1  [31m = 'é'", "          ^"]


PIECES = st.sampled_from(
    [
        *KEYWORDS,
        *"=<>!().,'\"- ",
        "!=",
        "<=",
        ">=",
        "AND",
        "x",
        "y.z",
        "headers.h",
        "'a'",
        "1",
        "-2.5e3",
        "''",
        '""',
        "\n",
        "\0",
        "é",
    ]
)
ANY = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join), st.lists(PIECES, max_size=40).map(" ".join))


@settings(max_examples=1000)
@given(ANY)
@example("'" * TEXT_LENGTH_MAX)
@example('"' * (TEXT_LENGTH_MAX - 1))
@example("x = 1 and " * 400)
@example("x." * 2000)
def test_any_text_is_a_filter_or_refused_with_a_place_within_it(text: str) -> None:
    try:
        found = Filter.parse(text)
    except FilterError as error:
        check_place(str(error))
        return
    assert Filter.parse(str(found)) == found


def check_place(message: str) -> None:
    """It can be printed, and points into the text, or right behind it if that is where something is missing."""
    assert message.encode()
    if "are allowed" not in message:  # of the text as a whole
        assert 0 <= place_of(message) <= len(message.split("\n")[1]) - 4


def work(text: str) -> int:
    """How many calls and returns it takes to read a text, or to find that it is none."""
    count = 0

    def profile(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        Filter.parse(text)
    except FilterError:
        pass
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    "write",
    [
        lambda size: "'" * (size * 4),
        lambda size: "'" * (size * 4 + 1),
        lambda size: '"' * (size * 4 + 1),
        lambda size: "x" * (size * 4),
        lambda size: "(" * (size * 4),
        lambda size: "x." * size,
        lambda size: "1e+" * size,
        lambda size: " " * (size * 4),
        lambda size: f"x in ({','.join(str(n) for n in range(size))})",
        lambda size: f"x in ({','.join(str(n) for n in range(size))}) and x < 0",
        lambda size: " and ".join(f"x != {n}" for n in range(size // 15)),
    ],
)
def test_reading_twice_as_much_takes_about_twice_the_work(write: object) -> None:
    assert callable(write)
    half, whole = write(480), write(960)
    assert len(whole) <= TEXT_LENGTH_MAX
    assert work(whole) <= 3 * work(half) + 500


def test_a_contradiction_of_as_many_predicates_as_there_may_be_is_found_at_once() -> None:
    """Each one found takes another walk over all of them: a square, of numbers that are small."""
    count = PREDICATES_MAX - 1
    listed = ",".join(str(number) for number in range(count))
    text = " and ".join([*(f"x != {number}" for number in range(count)), f"x in ({listed})"])
    assert "contradict each other" in refusal(text)
    assert work(text) < 500_000
