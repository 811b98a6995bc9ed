"""Vectors: a subscription's clock as it stood at each notification, for the price of one list entry each.

Consecutive notifications differ by one count, so they share a base and a list of the steps since. A moment is a place in that
list, and a vector, which is made when somebody asks for it, the clock as it stood then. A step is a topic that went on by one, or
a topic and the number that it jumped to. A new base is taken every so often, so the list stays short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import msgspec

SHARED_MAX = 512

Step = str | tuple[str, int]


class Vector(Mapping[str, int]):
    """An immutable mapping topic → count."""

    __slots__ = ("_base", "_counts", "_passed", "_steps")

    def __init__(self, moment: Moment) -> None:
        self._base, self._passed, self._steps = moment.base, moment.passed, moment.steps
        self._counts: dict[str, int] | None = None

    def _all(self) -> dict[str, int]:
        if self._counts is None:
            counts = dict(self._base)
            for step in self._passed[: self._steps]:
                if isinstance(step, str):
                    counts[step] = counts.get(step, 0) + 1
                else:
                    counts[step[0]] = step[1]
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


class Moment(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a vector is made of."""

    base: dict[str, int]
    passed: list[Step] = []
    steps: int = 0
    """so many of those that were passed since"""

    @property
    def vector(self) -> Vector:
        """The clock as it stood then."""
        return Vector(self)


@attrs.define(eq=False)
class History:
    """The moments of one subscription."""

    _base: dict[str, int] = attrs.field(factory=dict)
    _passed: list[Step] = attrs.field(factory=list)

    def restart(self, clock: dict[str, int]) -> None:
        """The clock has jumped."""
        self._base, self._passed = clock, []

    def passed(self, topic: str) -> Moment:
        """One more event of a topic."""
        passed = self._passed
        if len(passed) >= SHARED_MAX:
            passed = self._rebase()
        passed.append(topic)
        return Moment(self._base, passed, len(passed))

    def jumped(self, topic: str, number: int) -> Moment:
        """A topic went on to this number."""
        if len(self._passed) >= SHARED_MAX:
            self._rebase()
        self._passed.append((topic, number))
        return self.now()

    def now(self) -> Moment:
        """After all that has happened."""
        return Moment(self._base, self._passed, len(self._passed))

    def _rebase(self) -> list[Step]:
        self._base, self._passed = dict(self.now().vector), []
        return self._passed
