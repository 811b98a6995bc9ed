"""Where topics were at a time: asked of the home stage again and again, until it has said that of all of them.

The answer to a question may be lost, or come in parts. Whoever asked gives up when it likes (`give_up`); nothing is left then.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ordered_pubsub.core.messages import Locate, Located

AGAIN_S = 1.0
"""So long after it was asked something is asked again."""


@attrs.define(eq=False)
class Search:
    """Somebody wants to know where some topics were."""

    serial: int
    at: float
    """the time at which they were there, in seconds since 1970"""
    missing: dict[str, bool]
    """topics of which that is not known yet"""
    numbers: dict[str, int] = attrs.field(factory=dict)
    """for each of the others the last number before that time"""
    due_at: float = float("-inf")
    """when it is to be asked"""


@attrs.define(eq=False)
class Locating:
    """The searches of one client."""

    session: str
    _last: int = 0
    _searches: dict[int, Search] = attrs.field(factory=dict)

    def begin(self, topics: Sequence[str], at: float) -> Search:
        """Begin to ask."""
        self._last += 1
        search = self._searches[self._last] = Search(self._last, at, dict.fromkeys(topics, True))
        return search

    def give_up(self, search: Search) -> None:
        """Nobody wants to know it any more."""
        self._searches.pop(search.serial, None)

    def located(self, located: Located) -> Search | None:
        """The stages say where some topics were; return the search that has found everything by this."""
        search = self._searches.get(located.serial)
        if search is None:
            return None
        for topic, number in located.numbers.items():
            if search.missing.pop(topic, False):
                search.numbers[topic] = number
        if search.missing:
            return None
        del self._searches[search.serial]
        return search

    def take_due(self, now: float) -> list[Locate]:
        """What to ask now."""
        due = [search for search in self._searches.values() if search.due_at <= now]
        for search in due:
            search.due_at = now + AGAIN_S
        return [Locate(self.session, search.serial, list(search.missing), search.at) for search in due]

    @property
    def next_due(self) -> float | None:
        """When there is something to ask."""
        return min((search.due_at for search in self._searches.values()), default=None)
