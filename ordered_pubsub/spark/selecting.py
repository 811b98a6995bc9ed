"""What of Spark's own filters is of use before rows are made: which topics are wanted, and between which positions.

Spark applies its filters itself all the same, so what is not understood here costs time and nothing else. All numbers count for
the order, whatever is wanted of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import attrs


@attrs.frozen
class Selection:
    """Rows that may be wanted."""

    topics: frozenset[str] | None = None
    """None: of any"""
    first: float = -inf
    """the lowest position"""
    last: float = inf

    @classmethod
    def of(cls, filters: Iterable[Any]) -> Selection:
        """What passes all of Spark's filters passes this."""
        selection = cls()
        for one in filters:
            selection = selection.narrowed(type(one).__name__, one)
        return selection

    def narrowed(self, kind: str, one: Any) -> Selection:
        """Also by this one."""
        column = getattr(one, "attribute", None)
        if column == ("topic",) and kind in ("EqualTo", "EqualNullSafe", "In"):
            named = frozenset(one.value if kind == "In" else (one.value,))
            return attrs.evolve(self, topics=named if self.topics is None else self.topics & named)
        if column == ("position",) and kind in _BOUNDS and isinstance(one.value, int):
            first, last = _BOUNDS[kind]
            return attrs.evolve(
                self,
                first=self.first if first is None else max(self.first, one.value + first),
                last=self.last if last is None else min(self.last, one.value + last),
            )
        return self

    def has_topic(self, topic: str) -> bool:
        """Whether any of its events may be wanted."""
        return self.topics is None or topic in self.topics

    def meets(self, before: int, last: int) -> bool:
        """Whether any of these positions may be wanted: those behind the first, up to the second."""
        return self.first <= last and self.last > before


_BOUNDS: dict[str, tuple[int | None, int | None]] = {
    "EqualTo": (0, 0),
    "EqualNullSafe": (0, 0),
    "GreaterThan": (1, None),
    "GreaterThanOrEqual": (0, None),
    "LessThan": (None, -1),
    "LessThanOrEqual": (None, 0),
}
"""What is added to a filter's value to have the first position, and the last."""
