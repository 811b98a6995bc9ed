"""History: the events of some topics, read from their owners' logs, in one order that is the same every time.

A subscription that starts in the past may hold topics that nobody held together then: between some pairs no order was
decided. The decided ones are part of the one total order, so they never contradict each other. The rule:

1. the decided pairs, by the entries of the timestamps;
2. for topics of one owner, the order of its journal (`place`);
3. then publication time as journalled, then the topic's name.

Each owner's log is a queue in the order of its journal. Of the heads whose entries are satisfied, the one with the least
(time, topic) is next. There always is one: every log's order and every entry is part of the one total order of operations.

The first event of each topic is judged by its full timestamp: what a delta leaves out was waited for by subscribers who
had handled the topic's earlier events, and this reader has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge

import attrs


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


@attrs.frozen(slots=True)
class PastEvent:
    """One event of the past."""

    topic: str
    number: int
    logged: LoggedEvent


def full_timestamp(log: Sequence[LoggedEvent], number: int) -> dict[str, int]:
    """The full timestamp of a topic's event, from the deltas of its log up to there."""
    full: dict[str, int] = {}
    for logged in log:
        if logged.first > number:
            break
        full.update(logged.entries)
    return full


def replay(logs: Mapping[str, Sequence[LoggedEvent]], clock: Mapping[str, int]) -> Iterator[PastEvent]:
    """The events of the clock's topics after it, in order. Each log is sorted by number and begins with number 1.

    Stops where nothing more is satisfied: at the end, or where a log ends before what another one's entries need.
    """
    counts = dict(clock)
    queues = _queues(logs, counts)
    heads = {owner: head for owner, queue in queues.items() if (head := next(queue, None)) is not None}
    while heads:
        ready = [
            (head.published_at, head.topic, owner)
            for owner, head in heads.items()
            if _is_satisfied(head, _needs(logs, head, clock), counts)
        ]
        if not ready:
            return
        owner = min(ready)[2]
        head = heads.pop(owner)
        for number in range(counts[head.topic] + 1, head.last + 1):
            yield PastEvent(head.topic, number, head)
        counts[head.topic] = head.last
        following = next(queues[owner], None)
        if following is not None:
            heads[owner] = following


def _queues(logs: Mapping[str, Sequence[LoggedEvent]], clock: Mapping[str, int]) -> dict[int, Iterator[LoggedEvent]]:
    """For each owner its batches after the clock, in the order of its journal."""
    by_owner: dict[int, list[list[LoggedEvent]]] = {}
    for topic, count in clock.items():
        after = [logged for logged in logs.get(topic, ()) if logged.last > count]
        if after:
            by_owner.setdefault(after[0].owner, []).append(after)
    return {owner: merge(*found, key=lambda logged: logged.place) for owner, found in by_owner.items()}


def _needs(logs: Mapping[str, Sequence[LoggedEvent]], head: LoggedEvent, clock: Mapping[str, int]) -> dict[str, int]:
    """What must come before a batch: its entries, or all of its timestamp if it is the first of its topic."""
    is_first = head.first <= clock[head.topic] + 1
    return full_timestamp(logs[head.topic], head.first) if is_first else head.entries


def _is_satisfied(head: LoggedEvent, needs: Mapping[str, int], counts: Mapping[str, int]) -> bool:
    return all(needed <= counts[topic] for topic, needed in needs.items() if topic in counts and topic != head.topic)
