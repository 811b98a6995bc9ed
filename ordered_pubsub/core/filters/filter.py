"""What users and the rest of the library hold: a filter, and several of them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from ordered_pubsub.core.filters._conditions import Conditions, Field, combine
from ordered_pubsub.core.filters._grammar import parse
from ordered_pubsub.core.filters._matching import Matcher, compile_matcher
from ordered_pubsub.core.filters._tokens import TEXT_LENGTH_MAX, quoted
from ordered_pubsub.core.filters._values import Values
from ordered_pubsub.core.filters._writing import write
from ordered_pubsub.errors import FilterError


@attrs.frozen(repr=False)
class Filter:
    """Which events are wanted, by their content. Filters of the same meaning are equal, however they were written."""

    conditions: Conditions

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Read a filter, or raise a `FilterError` that points at the place that does not fit."""
        if not isinstance(text, str):
            raise FilterError(
                f"a filter is a text such as \"symbol = 'ACME' and price > 100\", not {type(text).__name__}: "
                f"{quoted(repr(text))}"
            )
        found = cls(combine(parse(text), text))
        if len(str(found)) > TEXT_LENGTH_MAX:
            raise FilterError(
                f"the filter {quoted(text)} has {len(str(found)):,} characters, written out as {quoted(str(found))}; at most "
                f"{TEXT_LENGTH_MAX:,} are allowed: compare fewer values, or choose in the application"
            )
        return found

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Filter.parse({str(self)!r})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        # What is compiled stays at home.
        return Filter.parse, (str(self),)

    @cached_property
    def matcher(self) -> Matcher:
        """Says whether an event matches; compiled at the first use. It never raises."""
        return compile_matcher(self.conditions)

    @property
    def needs_payload(self) -> bool:
        """Whether it depends on the payload at all, so that this has to be decoded."""
        return bool(self.payload_fields)

    @cached_property
    def payload_fields(self) -> tuple[str, ...]:
        """The names at the top of the payload that it looks at."""
        return tuple(dict.fromkeys(field.path[0] for field, _ in self.conditions if not field.is_header))

    def covers(self, other: Filter) -> bool:
        """Whether everything that the other one matches matches this one as well."""
        for field, values in self.conditions:
            theirs = other._leaves.get(field)
            if theirs is None:
                if not values.others or field not in other._mappings:
                    return False
            elif not theirs.is_within(values):
                return False
        return True

    def overlaps(self, other: Filter) -> bool:
        """Whether there is something that matches both."""
        for field, values in self.conditions:
            theirs = other._leaves.get(field)
            if theirs is not None and not values & theirs:
                return False
        return self._lets_be(other._mappings) and other._lets_be(self._mappings)

    def _lets_be(self, mappings: dict[Field, bool]) -> bool:
        """Whether all these fields may be mappings."""
        return all(values.others or field not in mappings for field, values in self.conditions)

    @cached_property
    def _text(self) -> str:
        return write(self.conditions)

    @cached_property
    def _leaves(self) -> dict[Field, Values]:
        return dict(self.conditions)

    @cached_property
    def _mappings(self) -> dict[Field, bool]:
        """The fields that have to be mappings, since others lie in them."""
        return {above: True for field, _ in self.conditions for above in field.above()}


@attrs.frozen
class AnyOf:
    """What at least one of several filters matches, such as those of all subscribers behind a relay."""

    filters: tuple[Filter, ...] | None
    """None: everything matches. None of them covers another, and they are in the order of their texts."""

    def matches(self, data: object, headers: Mapping[str, bytes | str]) -> bool:
        """Whether an event matches one of them. Never raises."""
        if self.filters is None:
            return True
        return any(filter_.matcher(data, headers) for filter_ in self.filters)

    @property
    def needs_payload(self) -> bool:
        """Whether it depends on the payload at all."""
        return bool(self.payload_fields)

    @cached_property
    def payload_fields(self) -> tuple[str, ...]:
        """The names at the top of the payload that they look at."""
        return tuple(dict.fromkeys(name for filter_ in self.filters or () for name in filter_.payload_fields))


def covering(filters: Iterable[Filter | None]) -> AnyOf:
    """Several subscribers' filters together, without those that others cover. None is the filter of who wants everything."""
    kept: dict[Filter, bool] = {}
    for filter_ in filters:
        if filter_ is None:
            return AnyOf(None)
        if any(other.covers(filter_) for other in kept):
            continue
        for other in [other for other in kept if filter_.covers(other)]:
            del kept[other]
        kept[filter_] = True
    return AnyOf(tuple(sorted(kept, key=str)))
