"""Conditions, written as a filter: the one text that filters of the same meaning share.

The sets that conjunctions of predicates can come to have one of three forms: everything but single values (`!=`, `exists`);
single values (`=`, `in`); or a range of texts or numbers, again without single values. This text never has more predicates or
literals than what was read, since each of them is the work of at least one.
"""

from __future__ import annotations

from typing import Any

from ordered_pubsub.core.filters._conditions import Conditions
from ordered_pubsub.core.filters._values import (
    EVERYTHING,
    NUMBERS,
    TEXTS,
    Cut,
    Literal,
    ValueRanges,
    Values,
    after_prefix,
)


def write(conditions: Conditions) -> str:
    """The text that is read as these conditions."""
    return " and ".join(f"{field} {part}" for field, values in conditions for part in _written(values))


def _written(values: Values) -> list[str]:
    if values == EVERYTHING:
        return ["exists"]
    if values.others:
        return _without(_left_out(values))
    points = values.points()
    if points is None:
        return _range(values.texts, TEXTS) if values.texts.cuts else _range(values.numbers, NUMBERS)
    if len(points) == 1:
        return [f"= {_literal(points[0])}"]
    return [f"in ({', '.join(map(_literal, points))})"]


def _left_out(values: Values) -> tuple[Literal, ...]:
    booleans = [boolean for boolean in EVERYTHING.booleans if boolean not in values.booleans]
    return (*values.numbers.holes(*NUMBERS.cuts), *values.texts.holes(*TEXTS.cuts), *booleans)


def _without(literals: tuple[Literal, ...]) -> list[str]:
    return [f"!= {_literal(literal)}" for literal in literals]


def _range(ranges: ValueRanges, whole: ValueRanges) -> list[str]:
    begin, end = ranges.cuts[0], ranges.cuts[-1]
    return [*_ends(begin, end, whole), *_without(ranges.holes(begin, end))]


def _ends(begin: Cut, end: Cut, whole: ValueRanges) -> list[str]:
    lowest, highest = whole.cuts
    if whole is TEXTS and not begin[2] and end == after_prefix(begin[1]):
        return [f"prefix {_literal(begin[1])}"]
    if begin != lowest and end != highest and (begin[2], end[2]) == (0, 1):
        return [f"between {_literal(begin[1])} and {_literal(end[1])}"]
    lower = [f"{'>' if begin[2] else '>='} {_literal(begin[1])}"] if begin != lowest else []
    upper = [f"{'<=' if end[2] else '<'} {_literal(end[1])}"] if end != highest else []
    return lower + upper


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return repr(value)
