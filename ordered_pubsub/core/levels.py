"""What topics give: the level of delivery of each, the same at every stage of a system.

- "exactly-once": the owner keeps the events, on disk before their numbers are answered; who misses one asks for it;
- "ordered": events stay with their publishers, so the ENS must lose nothing.

A client's `delivery=` is the least that it takes. "best-effort" takes any, and recovers nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from ordered_pubsub.core.topics import matches

EXACTLY_ONCE, ORDERED, BEST_EFFORT = "exactly-once", "ordered", "best-effort"
LEVELS = (EXACTLY_ONCE, ORDERED, BEST_EFFORT)
"""From the most to the least."""
REMEMBERED_MAX = 50_000


@attrs.frozen
class Levels:
    """The rules of one system: patterns of topics with their levels, of which the first that matches holds."""

    rules: tuple[tuple[str, str], ...] = ()
    default: str = EXACTLY_ONCE
    _known: dict[str, str] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    def of(self, topic: str) -> str:
        """The level of a topic."""
        level = self._known.get(topic)
        if level is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            level = next((level for pattern, level in self.rules if matches(pattern, topic)), self.default)
            self._known[topic] = level
        return level

    def is_kept(self, topic: str) -> bool:
        """Whether the owner keeps the events of a topic."""
        return (self._known.get(topic) or self.of(topic)) == EXACTLY_ONCE

    def lacking(self, topics: Iterable[str], least: str) -> str | None:
        """A topic that gives less than this level, if there is one."""
        most = LEVELS.index(least)
        return next((topic for topic in topics if LEVELS.index(self.of(topic)) > most), None)

    def dump(self) -> list[list[str]]:
        """The rules as plain data."""
        return [[pattern, level] for pattern, level in self.rules]

    @classmethod
    def load(cls, data: Iterable[Iterable[Any]]) -> Levels:
        """The rules that `dump` wrote."""
        rules = tuple((str(pattern), str(level)) for pattern, level in data)
        if any(level not in LEVELS for _, level in rules):
            raise ValueError(f"a level of delivery is one of {', '.join(LEVELS)}, and the rules are {rules!r}")
        return cls(rules)
