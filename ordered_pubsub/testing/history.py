"""History: the events of some topics, read from their owners' logs, in one order that is the same every time.

A subscription that starts in the past may hold topics that nobody held together then: between some pairs no order was
decided. The decided ones are part of the one total order, so they never contradict each other. The rule:

1. the decided pairs, by the entries of the timestamps;
2. for topics of one owner, the order of its journal (`place`);
3. then publication time as journalled, then the topic's name;
4. a transaction comes in one piece: it begins when all of it can follow.

Each owner's log is a queue in the order of its journal. Of the heads whose entries are satisfied, the one with the least
(time, topic) is next. There always is one: every log's order and every entry is part of the one total order of operations, in
which a transaction has one place.

The first event of each topic is judged by its full timestamp: what a delta leaves out was waited for by subscribers who
had handled the topic's earlier events, and this reader has not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge

import attrs

from ordered_pubsub.core.messages import Transaction


@attrs.frozen(slots=True)
class LoggedEvent:
    """A complete batch of publications in its owner's log."""

    topic: str
    first: int
    last: int
    entries: dict[str, int]
    owner: int
    place: int
    published_at: float
    transaction: Transaction | None = None

    @property
    def name(self) -> str:
        """Of its transaction; empty: it is in none."""
        return "" if self.transaction is None else self.transaction.id


@attrs.frozen(slots=True)
class PastEvent:
    """One event of the past."""

    topic: str
    number: int
    logged: LoggedEvent


def full_timestamp(log: Sequence[LoggedEvent], number: int) -> dict[str, int]:
    """The full timestamp of a topic's event, from the deltas of its log up to there: what follows a transaction follows all of
    it.
    """
    full: dict[str, int] = {}
    name, ranges = "", dict[str, tuple[int, int]]()
    for logged in log:
        if logged.first > number:
            break
        if name not in ("", logged.name):
            full.update(
                {topic: max(last, full.get(topic, 0)) for topic, (_, last) in ranges.items() if topic != logged.topic}
            )
        full.update(logged.entries)
        name, ranges = logged.name, {} if logged.transaction is None else logged.transaction.ranges
    return full


def replay(logs: Mapping[str, Sequence[LoggedEvent]], clock: Mapping[str, int]) -> Iterator[PastEvent]:
    """The events of the clock's topics after it, in order. Each log is sorted by number and begins with number 1.

    Stops where nothing more is satisfied: at the end, or where a log ends before what another one's entries need.
    """
    reading = _Reading(logs, clock, dict(clock), _queues(logs, clock))
    while (owner := reading.next_owner()) is not None:
        head = reading.queues[owner].popleft()
        for number in range(reading.counts[head.topic] + 1, head.last + 1):
            yield PastEvent(head.topic, number, head)
        reading.counts[head.topic] = head.last


@attrs.define
class _Reading:
    """How far somebody has come."""

    logs: Mapping[str, Sequence[LoggedEvent]]
    clock: Mapping[str, int]
    counts: dict[str, int]
    queues: dict[int, deque[LoggedEvent]]
    """for each owner its batches that were not read, in the order of its journal"""

    def next_owner(self) -> int | None:
        """Whose head is next."""
        heads = {owner: queue[0] for owner, queue in self.queues.items() if queue}
        ready = sorted(
            (head.published_at, head.topic, owner)
            for owner, head in heads.items()
            if self._is_satisfied(head, self.counts)
        )
        owners = [owner for _, _, owner in ready]
        for owner in owners:
            transaction = heads[owner].transaction
            if transaction is not None and transaction.has_begun(self.counts):
                return owner
        return next(filter(self._may_begin, owners), None)

    def _may_begin(self, owner: int) -> bool:
        """Whether all of what an owner's head is a part of could be read now."""
        transaction = self.queues[owner][0].transaction
        if transaction is None:
            return True
        beyond = dict(self.counts)
        for topic, (_, last) in transaction.ranges.items():
            if topic in beyond:
                beyond[topic] = max(beyond[topic], last)
        for queue in self.queues.values():
            parts = [logged for logged in queue if logged.name == transaction.id]
            if parts and queue[0].name != transaction.id:
                return False
            if not all(self._is_satisfied(part, beyond) for part in parts):
                return False
        return True

    def _is_satisfied(self, head: LoggedEvent, counts: Mapping[str, int]) -> bool:
        needs = _needs(self.logs, head, self.clock)
        return all(
            needed <= counts[topic] for topic, needed in needs.items() if topic in counts and topic != head.topic
        )


def _queues(logs: Mapping[str, Sequence[LoggedEvent]], clock: Mapping[str, int]) -> dict[int, deque[LoggedEvent]]:
    """For each owner its batches after the clock, in the order of its journal."""
    by_owner: dict[int, list[list[LoggedEvent]]] = {}
    for topic, count in clock.items():
        after = [logged for logged in logs.get(topic, ()) if logged.last > count]
        if after:
            by_owner.setdefault(after[0].owner, []).append(after)
    return {owner: deque(merge(*found, key=lambda logged: logged.place)) for owner, found in by_owner.items()}


def _needs(logs: Mapping[str, Sequence[LoggedEvent]], head: LoggedEvent, clock: Mapping[str, int]) -> dict[str, int]:
    """What must come before a batch: its entries, or all of its timestamp if it is the first of its topic."""
    is_first = head.first <= clock[head.topic] + 1
    return full_timestamp(logs[head.topic], head.first) if is_first else head.entries
