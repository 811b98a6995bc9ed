"""Vectors: a subscription's clock as it stood at each notification, for the price of one list entry each.

Consecutive notifications differ by one count, so they share a base and a list of the topics passed since; a vector is a
place in that list. A new base is taken every so often, so the list stays short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

SHARED_MAX = 512


class Vector(Mapping[str, int]):
    """An immutable mapping topic → count."""

    __slots__ = ("_base", "_counts", "_passed", "_steps")

    def __init__(self, base: dict[str, int], passed: list[str], steps: int) -> None:
        self._base = base
        self._passed = passed
        self._steps = steps
        self._counts: dict[str, int] | None = None

    def _all(self) -> dict[str, int]:
        if self._counts is None:
            counts = dict(self._base)
            for topic in self._passed[: self._steps]:
                counts[topic] = counts.get(topic, 0) + 1
            self._counts = counts
            self._passed = []
        return self._counts

    def __getitem__(self, topic: str) -> int:
        return self._all()[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return f"Vector({self._all()!r})"


@attrs.define(eq=False)
class History:
    """Makes the vectors of one subscription."""

    _base: dict[str, int] = attrs.field(factory=dict)
    _passed: list[str] = attrs.field(factory=list)

    def restart(self, clock: dict[str, int]) -> None:
        """The clock has jumped."""
        self._base, self._passed = clock, []

    def passed(self, topic: str) -> Vector:
        """The vector after one more event of a topic."""
        if len(self._passed) >= SHARED_MAX:
            self._base, self._passed = dict(Vector(self._base, self._passed, len(self._passed))), []
        self._passed.append(topic)
        return Vector(self._base, self._passed, len(self._passed))
