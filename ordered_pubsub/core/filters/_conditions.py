"""From predicates to conditions: of each field, the set of values that all predicates on it let through.

Theory of operation
===================
Fields lie in trees: `a.b` is a field of the mapping `a`, and there is one tree for the payload, and a flat one for the
headers. A condition on `a.b` can only be met if `a` is a mapping, so it makes any condition on `a` itself superfluous, or
impossible to meet: sets know of mappings only whether they let all of them through (`exists`, `!=`) or none. So what is left
are conditions on *leaves*: no field of them lies below another. Nothing is missing in them, and none depends on another: any
choice of values, one out of each leaf's set, is a document that matches. That is why a comparison of two filters may compare
leaf with leaf, and is exact.

Equal meanings have equal conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from ordered_pubsub.core.filters._tokens import KEYWORDS, WORD, pointed, quoted
from ordered_pubsub.core.filters._values import EVERYTHING, Values
from ordered_pubsub.errors import FilterError

HEADERS = "headers"


@attrs.frozen(order=True, cache_hash=True)
class Field:
    """Where a value stands: a header of that name, or the way to it through the mappings of the payload."""

    is_header: bool
    path: tuple[str, ...]

    def __str__(self) -> str:
        first, *rest = self.path
        if self.is_header:
            return f"{HEADERS}.{_written(first)}"
        return ".".join([f'"{HEADERS}"' if first == HEADERS else _written(first), *map(_written, rest)])

    def above(self) -> Iterator[Field]:
        """The mappings that it lies in."""
        return (Field(self.is_header, self.path[:length]) for length in range(1, len(self.path)))


def _written(part: str) -> str:
    if WORD.fullmatch(part) and part.lower() not in KEYWORDS:
        return part
    return '"{}"'.format(part.replace('"', '""'))


@attrs.frozen
class Predicate:
    """What a filter says of a field, and where in its text."""

    field: Field
    values: Values
    start: int
    end: int


Conditions = tuple[tuple[Field, Values], ...]
"""The leaves in order, and their sets."""


def combine(predicates: Sequence[Predicate], text: str) -> Conditions:
    """The conditions that the predicates come to, or a `FilterError` that says which of them contradict each other."""
    by_field: dict[Field, list[Predicate]] = {}
    below: dict[Field, Predicate] = {}
    for predicate in predicates:
        by_field.setdefault(predicate.field, []).append(predicate)
        for field in predicate.field.above():
            below.setdefault(field, predicate)
    conditions: dict[Field, Values] = {}
    for field, ours in by_field.items():
        values = _intersected(ours, text)
        if field not in below:
            conditions[field] = values
        elif not values.others:
            raise _no_mapping(ours, below[field], text)
    return tuple(sorted(conditions.items(), key=lambda condition: condition[0]))


def _intersected(predicates: list[Predicate], text: str) -> Values:
    values = EVERYTHING
    for count, predicate in enumerate(predicates, 1):
        values &= predicate.values
        if not values:
            raise _contradiction(predicates[:count], text)
    return values


def _contradiction(predicates: list[Predicate], text: str) -> FilterError:
    """Name only those that are needed for it: each one found goes with the last one until nothing is left.

    Finite sets go first, so that what is intersected over and over again is small.
    """
    last = predicates[-1]
    candidates = sorted(predicates[:-1], key=lambda predicate: predicate.values.others)
    culprits, common = [last], last.values
    while common:
        left = common
        for candidate in candidates:
            left &= candidate.values
            if not left:
                culprits.insert(0, candidate)
                common &= candidate.values
                break
    names = _listed(sorted(culprits, key=lambda culprit: culprit.start), text)
    several = len(culprits) > 1
    verb, remedy = ("contradict each other", "take out one of them") if several else ("contradicts itself", "change it")
    return pointed(f"{names} {verb}: no value of {last.field} is left; {remedy}", text, last.start)


def _no_mapping(predicates: list[Predicate], below: Predicate, text: str) -> FilterError:
    culprit = next(predicate for predicate in predicates if not predicate.values.others)
    names = _listed(sorted((culprit, below), key=lambda predicate: predicate.start), text)
    return pointed(
        f"{names} contradict each other: {below.field} is there only if {culprit.field} is a mapping, and no mapping is let "
        "through; take out one of them",
        text,
        max(culprit.start, below.start),
    )


def _listed(predicates: Sequence[Predicate], text: str) -> str:
    return " and ".join(quoted(text[predicate.start : predicate.end]) for predicate in predicates)
