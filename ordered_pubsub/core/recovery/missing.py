"""What one subscription misses, and asks its home stage for.

`Delivery` says what it notices: that some numbers of a topic exist and have not come, since a later one has, or since another
topic's event waits for them, or since the owner says so. They are asked for when that has lasted (`gct_s`), again when there is
no answer, and no more when they have come, whichever way. Where nobody keeps the events, the ENS loses nothing; what does not
come all the same may be void, so it is asked what has become of it, but later and less often.

A subscriber that begins anew judges the first event of each topic by its full timestamp, which only the log has; so that number
is asked for as well if its event has come without.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ordered_pubsub.core.messages import NackRange
from ordered_pubsub.core.recovery._nacks import Nacks, Rto

GCT_S = 0.2
"""Gap curiosity threshold: so long a gap may last before it is asked for."""
NRT_FLOOR_S, NRT_CEILING_S = 0.2, 5.0
"""Nack repetition threshold: between these, by the round trips so far."""
SLOW_GCT_S, SLOW_NRT_FLOOR_S, SLOW_NRT_CEILING_S = 5.0, 5.0, 60.0
"""The same where nobody keeps the events."""
UNDER_WAY_MAX = 4_096
"""Events of one topic that are asked for at a time."""
AHEAD_MAX = 8_192
"""So far beyond what was notified they are asked for: what would come earlier would have to wait in memory."""


def _everything(topic: str) -> bool:
    return True


@attrs.define(eq=False)
class Missing:
    """What one subscription misses."""

    is_kept: Callable[[str], bool] = _everything
    """whether somebody keeps the events of a topic"""
    gct_s: float = GCT_S
    now: float = 0.0
    """the time; whoever gives an input sets it before"""
    rto: Rto = attrs.field(factory=lambda: Rto(NRT_FLOOR_S, NRT_CEILING_S))
    slow_rto: Rto = attrs.field(factory=lambda: Rto(SLOW_NRT_FLOOR_S, SLOW_NRT_CEILING_S))
    _topics: dict[str, Nacks] = attrs.field(factory=dict)
    _base: dict[str, int] = attrs.field(factory=dict)
    """topic → where the subscription is, or a little before"""
    _full: dict[str, int] = attrs.field(factory=dict)
    """topic → the number that is wanted with its full timestamp"""

    def noticed(self, topic: str, first: int, last: int) -> None:
        """These numbers exist, and have not come."""
        if first <= last:
            self._of(topic, first).want(first, last, self.now)

    def lost(self, topic: str, first: int, last: int) -> None:
        """These numbers exist, and will not come unless they are asked for."""
        if first <= last and self.is_kept(topic):
            self._of(topic, first).want_now(first, last, self.now)

    def needs_full(self, topic: str, number: int) -> None:
        """A number is wanted with its full timestamp, also if its event is here."""
        if self.is_kept(topic):
            self._full[topic] = number
            self._of(topic, number).want_now(number, number, self.now)

    def _of(self, topic: str, first: int) -> Nacks:
        found = self._topics.get(topic)
        if found is None:
            is_kept = self.is_kept(topic)
            found = Nacks(self.gct_s, self.rto) if is_kept else Nacks(SLOW_GCT_S, self.slow_rto)
            self._topics[topic] = found
            self._base[topic] = first - 1
        elif first <= self._base[topic]:
            self._base[topic] = first - 1
        return found

    def came(self, topic: str, first: int, last: int) -> None:
        """These numbers are here."""
        found = self._topics.get(topic)
        if found is not None:
            found.satisfied(first, last, self.now)

    def none_beyond(self, topic: str, number: int) -> None:
        """The owner of a topic has given no number beyond this one: what seems to be missing there is not."""
        found = self._topics.get(topic)
        if found is not None:
            found.forget_beyond(number)
            if not found.is_curious:
                del self._topics[topic], self._base[topic]

    def passed(self, topic: str, number: int) -> None:
        """The subscription is beyond this number of a topic."""
        found = self._topics.get(topic)
        if found is not None:
            found.acknowledge(number)
            self._base[topic] = max(number, self._base[topic])
            if self._full.get(topic, number + 1) <= number:
                del self._full[topic]
            if not found.is_curious:
                del self._topics[topic], self._base[topic]

    def left(self, topic: str) -> None:
        """The subscription does not hold a topic any more."""
        self._topics.pop(topic, None)
        self._base.pop(topic, None)
        self._full.pop(topic, None)

    def take_due(self, now: float) -> list[NackRange]:
        """What to ask for now."""
        wants: list[NackRange] = []
        for topic, curiosity in self._topics.items():
            room = UNDER_WAY_MAX - curiosity.under_way(now)
            if room > 0:
                full = self._full.get(topic)
                due = curiosity.take_due(now, room, self._base[topic] + AHEAD_MAX)
                wants += [NackRange(topic, first, last, first == full) for first, last in due]
        return wants

    @property
    def next_due(self) -> float | None:
        """When `take_due` should be called next, if nothing comes until then; None if nothing is missing."""
        times = [curiosity.next_turn for curiosity in self._topics.values()]
        return min((time for time in times if time is not None), default=None)

    @property
    def is_curious(self) -> bool:
        """Whether anything is missing."""
        return bool(self._topics)

    @property
    def count(self) -> int:
        """How many numbers are missing."""
        return sum(curiosity.curious.count for curiosity in self._topics.values())
