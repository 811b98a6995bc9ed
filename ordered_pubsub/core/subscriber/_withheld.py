"""Numbers that may be void: what has come of them waits until it is decided (`core.liveness.voids`).

The home stage has asked for them (`core.liveness.sealing`), and the answer was that this subscription has not seen them. Until
the decision comes it must not be notified of them: others may be told that they never happened.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ordered_pubsub.core.messages import TopicRange
from ordered_pubsub.core.ranges import Range, Ranges
from ordered_pubsub.core.subscriber.buffer import Arrival


@attrs.define(eq=False)
class Withheld:
    """The numbers that one subscription must not use yet."""

    _numbers: dict[str, Ranges] = attrs.field(factory=dict)
    _arrivals: dict[str, dict[int, Arrival]] = attrs.field(factory=dict)

    def seal(self, topic: str, first: int, last: int) -> None:
        """Use none of these until it is decided what they are."""
        self._numbers.setdefault(topic, Ranges()).add(first, last)

    def takes(self, arrival: Arrival) -> bool:
        """Whether an event must not be used yet; it is kept."""
        numbers = self._numbers.get(arrival.topic)
        if numbers is None or arrival.number not in numbers:
            return False
        self._arrivals.setdefault(arrival.topic, {})[arrival.number] = arrival
        return True

    def decided(self, topic: str, numbers: Iterable[Range]) -> list[Arrival]:
        """It is known what these are; return those that have come."""
        sealed, arrivals = self._numbers.get(topic), self._arrivals.get(topic, {})
        if sealed is None:
            return []
        come: list[Arrival] = []
        for first, last in numbers:
            sealed.remove(first, last)
            come += [arrivals.pop(number) for number in sorted(arrivals) if first <= number <= last]
        if not arrivals:
            self._arrivals.pop(topic, None)
        if not sealed:
            del self._numbers[topic]
        return come

    def spans(self) -> list[TopicRange]:
        """All numbers that must not be used yet."""
        return [TopicRange(topic, first, last) for topic, numbers in self._numbers.items() for first, last in numbers]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is withheld."""
        return not self._numbers
