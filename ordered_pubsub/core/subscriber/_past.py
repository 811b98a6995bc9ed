"""Reading the past: what was published on some topics between two clocks, in one order that is the same every time.

A subscription that starts in the past reads what came before its place in the order from the logs, by the rule of `history`: the
decided pairs first, by the entries of the timestamps; of one owner's topics, the order of its journal; then publication time,
then the topic's name. A batch stays in one piece, wherever what is read of it was cut, and wherever the reading began; and so
does a transaction, which begins when all of it can follow.

What is next is known when the next part of every topic that is not at its end is here; until then nothing is said, for what is
missing could come first. `missing` asks for it, no further ahead than it may wait in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter

import attrs

from ordered_pubsub.core.messages import LogItem, Transaction
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.subscriber.buffer import Arrival


@attrs.frozen(slots=True, eq=False)
class Part:
    """Consecutive events of one batch, or silence, as a log has told."""

    topic: str
    first: int
    last: int
    batch: int
    place: int
    published_at: float
    entries: dict[str, int]
    full: bool
    arrivals: list[Arrival]
    """its events and silence, without gaps"""
    transaction: Transaction | None = None
    """what takes its place together with it"""

    @classmethod
    def of(cls, topic: str, item: LogItem, arrivals: list[Arrival]) -> Part:
        """What a log has told, with what it was unpacked to."""
        return cls(
            topic,
            item.first,
            item.last,
            item.batch,
            item.place,
            item.published_at,
            item.entries,
            item.full,
            arrivals,
            item.transaction,
        )


@attrs.define(eq=False)
class Past:
    """The past of one subscription, from its clock up to a cut."""

    clock: dict[str, int]
    """how far it was read"""
    cut: Mapping[str, int]
    """up to where it is read"""
    owner: Callable[[str], int]
    missing: Missing
    _parts: dict[str, dict[int, Part]] = attrs.field(factory=dict)
    """topic → first number → what is here and was not read yet"""
    _owners: dict[int, list[str]] = attrs.field(factory=dict)
    """owner → its topics that are not at their end"""
    _began: dict[str, bool] = attrs.field(factory=dict)
    """topics whose first timestamp was full"""
    _inside: Transaction | None = None
    """what has begun, and is read to its end before anything else: all of it is here"""
    _last: tuple[int, int] | None = None
    """owner and place of the last part"""

    def __attrs_post_init__(self) -> None:
        for topic, last in self.cut.items():
            count = self.clock.setdefault(topic, 0)
            if count < last:
                self._owners.setdefault(self.owner(topic), []).append(topic)
                self.missing.lost(topic, count + 1, last)
                self.missing.needs_full(topic, count + 1)

    @property
    def is_over(self) -> bool:
        """Whether all of it was read."""
        return not self._owners

    def skip(self, topic: str, floor: int) -> None:
        """There is nothing of a topic up to here, and that is as it should be: it begins there."""
        if topic in self.cut and self.clock[topic] < floor:
            self._go_to(topic, min(floor, self.cut[topic]))
            if self.clock[topic] < self.cut[topic]:
                self.missing.needs_full(topic, self.clock[topic] + 1)

    def take(self, part: Part) -> None:
        """A log has told a part."""
        clock = self.clock.get(part.topic)
        if clock is None or part.last <= clock or part.first > self.cut[part.topic]:
            return
        if part.topic not in self._began and part.first <= clock + 1 and not part.full:
            return  # its full timestamp was asked for
        first = max(part.first, clock + 1)
        parts = self._parts.setdefault(part.topic, {})
        known = parts.get(first)
        if known is None or known.last < part.last:
            parts[first] = part
        self.missing.came(part.topic, first, part.last)

    def read(self) -> Iterable[tuple[Part, int, int]]:
        """What is next, as far as it is known: parts, and which of their numbers."""
        while (part := self._next()) is not None:
            topic = part.topic
            first, last = self.clock[topic] + 1, min(part.last, self.cut[topic])
            self._last, self._began[topic] = (self.owner(topic), part.place), True
            self._go_to(topic, last)
            yield part, first, last

    def _next(self) -> Part | None:
        if self._inside is not None:
            part = self._next_inside(self._inside)
            if part is not None:
                return part
            self._inside = None
        heads: dict[int, Part] = {}
        for owner, topics in self._owners.items():
            parts = [self._head(topic) for topic in topics]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            heads[owner] = min(known, key=lambda part: part.place)
        ready = [(owner, head) for owner, head in heads.items() if self._is_satisfied(head, self.clock)]
        for owner, head in ready:
            if self._continues(owner, head):
                return head
        return self._first_of([head for _, head in ready], heads)

    def _first_of(self, ready: list[Part], heads: Mapping[int, Part]) -> Part | None:
        """What is next of what could be: the rest of a transaction that has begun, or else the earliest."""
        found = [(not self._has_begun(head), head.published_at, head.topic, head) for head in ready]
        for is_first, _, _, head in sorted(found, key=itemgetter(0, 1, 2)):
            if head.transaction is None:
                return head
            may_begin = self._may_begin(head.transaction, heads)
            if may_begin is None:
                return None  # it may be next: that is known when all of it is here
            if may_begin:
                self._inside = head.transaction
            if may_begin or not is_first:
                return head
        return None

    def _has_begun(self, head: Part) -> bool:
        """Whether some of what this is a part of was read before."""
        return head.transaction is not None and head.transaction.has_begun(self.clock)

    def _next_inside(self, transaction: Transaction) -> Part | None:
        """What is next of a transaction that has begun, all of which is here; None: it is over."""
        heads: dict[int, Part] = {}
        for topic, (_, last) in transaction.ranges.items():
            if self.clock.get(topic, last) >= min(last, self.cut.get(topic, 0)):
                continue
            part, owner = self._head(topic), self.owner(topic)
            if part is not None and (owner not in heads or part.place < heads[owner].place):
                heads[owner] = part
        ready = [head for head in heads.values() if self._is_satisfied(head, self.clock)]
        return min(ready, key=lambda head: (head.published_at, head.topic), default=None)

    def _may_begin(self, transaction: Transaction, heads: Mapping[int, Part]) -> bool | None:
        """Whether all of a transaction could be read now; None: not all of it is here."""
        ends = {
            topic: min(last, self.cut[topic]) for topic, (_, last) in transaction.ranges.items() if topic in self.cut
        }
        beyond = {**self.clock, **{topic: max(end, self.clock[topic]) for topic, end in ends.items()}}
        is_here = True
        for topic, end in ends.items():
            number = self.clock[topic] + 1
            if number > end:
                continue
            head = heads[self.owner(topic)].transaction
            if number < transaction.ranges[topic][0] or head is None or head.id != transaction.id:
                return False
            parts = self._parts.get(topic, {})
            while number <= end:
                part = parts.get(number)
                if part is None:
                    is_here = False
                    break
                if not self._is_satisfied(part, beyond):
                    return False
                number = part.last + 1
        return True if is_here else None

    def _continues(self, owner: int, head: Part) -> bool:
        """Whether it is the rest of a batch that was read in part."""
        if self._last is not None:
            return self._last == (owner, head.place)
        return head.batch <= self.clock[head.topic]

    def _head(self, topic: str) -> Part | None:
        parts = self._parts.get(topic)
        return parts.get(self.clock[topic] + 1) if parts else None

    @staticmethod
    def _is_satisfied(head: Part, clock: Mapping[str, int]) -> bool:
        return all(
            count <= clock[topic] for topic, count in head.entries.items() if topic in clock and topic != head.topic
        )

    def _go_to(self, topic: str, number: int) -> None:
        before, self.clock[topic] = self.clock[topic], number
        parts = self._parts.get(topic, {})
        for passed in range(before + 1, number + 1) if parts else ():
            part = parts.pop(passed, None)
            if part is not None and part.last > number:
                parts.setdefault(number + 1, part)
        self.missing.passed(topic, number)
        if number >= self.cut[topic]:
            owner = self.owner(topic)
            self._owners[owner].remove(topic)
            if not self._owners[owner]:
                del self._owners[owner]
