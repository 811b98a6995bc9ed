"""Sees that what has states becomes only what its table says, as far as a simulation can look at it from outside.

Some things go by their table themselves (`core.states`). Others have their states only as a way of speaking: where they are kept
says which it is. These are looked at after every input; a table in which something cannot happen that does is found by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ordered_pubsub.core.states import States


@attrs.define(eq=False)
class Watch:
    """All things of one kind, at one machine."""

    states: States
    absent: str
    """what is not there any more is in this state"""
    seen: dict[tuple[str, str], int] = attrs.field(factory=dict)
    """how often which state was seen after which"""
    _last: dict[Any, str] = attrs.field(factory=dict)

    def look(self, now: Mapping[Any, str]) -> None:
        """These are there now. Raises an `AssertionError` if one of them cannot be what it is."""
        for thing in [*self._last, *(thing for thing in now if thing not in self._last)]:
            before, after = self._last.get(thing), now.get(thing, self.absent)
            if before is not None and before != after:
                assert self.states.reaches(before, after), (
                    f"{self.states.of}, {thing}: {before} does not become {after}"
                )
                self.seen[before, after] = self.seen.get((before, after), 0) + 1
        self._last = dict(now)

    def begin_anew(self) -> None:
        """The machine is another one: nothing is known of its things."""
        self._last = {}
