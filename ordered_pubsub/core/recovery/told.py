"""What owners have told: items of their logs, in the order of their numbers, as a home stage keeps them and chooses of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import attrs

from ordered_pubsub.core.messages import LogItem
from ordered_pubsub.core.ranges import RangeMap, Ranges

CACHE_BYTES_MAX = 24 << 20
ANSWERED_MAX = 64
"""So many items are brought at once from what is known here; what is more is asked for."""
ITEM_BYTES, RUN_BYTES, RANGE_BYTES = 450, 400, 200
"""What an item takes in memory beside its events, about, and what a run of them, and each topic of its transaction."""


def size_of(item: LogItem) -> int:
    """About how many bytes an item takes in memory."""
    ranges = 0 if item.transaction is None else len(item.transaction.ranges)
    return ITEM_BYTES + RANGE_BYTES * ranges + sum([len(chunk.data) for chunk in item.chunks])


def runs(items: Sequence[LogItem]) -> Iterator[Sequence[LogItem]]:
    """Items in the order of their numbers, cut where numbers are missing between them: what is done for each run is not done
    for each item."""
    begin = 0
    for at in range(1, len(items)):
        if items[at].first != items[at - 1].last + 1:
            yield items[begin:at]
            begin = at
    if items:
        yield items[begin:] if begin else items


def within(items: Sequence[LogItem], numbers: Ranges) -> Sequence[LogItem]:
    """Those of some items, in the order of their numbers, that have any of these numbers."""
    if not items or numbers.covers(items[0].first, items[-1].last):
        return items
    found: list[LogItem] = []
    at = 0
    for first, last in numbers.within(items[0].first, items[-1].last):
        at = max(at, bisect_left(items, first, key=_last_of))
        while at < len(items) and items[at].first <= last:
            found.append(items[at])
            at += 1
    return found


@attrs.define(slots=True, eq=False)
class Chosen:
    """What filters have left of something that an owner has told, for the next ones that choose by the same: the last of it."""

    bytes_max: int
    _items: OrderedDict[tuple[str, int], tuple[LogItem, int]] = attrs.field(factory=OrderedDict)
    """filter, first number → the item and its size; the oldest first"""
    _bytes: int = 0

    def find(self, where: str, first: int) -> LogItem | None:
        """What a filter has left of an item."""
        found = self._items.get((where, first))
        return None if found is None else found[0]

    def keep(self, where: str, item: LogItem) -> None:
        """A filter has left this."""
        size = size_of(item)
        if size <= self.bytes_max and (where, item.first) not in self._items:
            self._items[where, item.first] = item, size
            self._bytes += size
            while self._bytes > self.bytes_max:
                self._bytes -= self._items.popitem(last=False)[1][1]


NOTHING_CHOSEN = Chosen(0)


@attrs.define(slots=True, eq=False)
class Told:
    """Some of what was told lately, for who misses it next: a bounded cache of runs of items."""

    _topics: dict[str, RangeMap[Sequence[LogItem]]] = attrs.field(factory=dict)
    _runs: OrderedDict[tuple[str, int], tuple[int, int]] = attrs.field(factory=OrderedDict)
    """topic, first number → last number and bytes of a run; the oldest first"""
    _bytes: int = 0

    def has(self, topic: str) -> bool:
        """Whether anything is kept of a topic."""
        return topic in self._topics

    def known(self, topic: str, first: int, last: int) -> list[LogItem]:
        """What is kept of these numbers, but not more than is brought at once."""
        items: list[LogItem] = []
        kept = self._topics.get(topic)
        for _, _, run in () if kept is None else kept.parts(first, last):
            start = bisect_left(run, first, key=_last_of)
            items += (item for item in run[start : start + ANSWERED_MAX - len(items)] if item.first <= last)
            if len(items) >= ANSWERED_MAX:
                break
        return items

    def remember(self, topic: str, items: Sequence[LogItem]) -> None:
        """Keep what is not kept already; what was told first is forgotten when it is too much."""
        kept = self._topics.setdefault(topic, RangeMap())
        for run in runs(items):
            for first, last in kept.missing(run[0].first, run[-1].last):
                if (first, last) == (run[0].first, run[-1].last):
                    self._keep(topic, kept, run)
                elif part := [item for item in run if first <= item.first and item.last <= last]:
                    self._keep(topic, kept, part)
        while self._bytes > CACHE_BYTES_MAX:
            (oldest, first), (last, size) = self._runs.popitem(last=False)
            self._bytes -= size
            self._topics[oldest].remove(first, last)
            self._maybe_drop(oldest)
        self._maybe_drop(topic)

    def _maybe_drop(self, topic: str) -> None:
        """Nothing is left of a topic of which nothing is kept."""
        kept = self._topics.get(topic)
        if kept is not None and not len(kept):
            del self._topics[topic]

    def _keep(self, topic: str, kept: RangeMap[Sequence[LogItem]], run: Sequence[LogItem]) -> None:
        first, last, size = run[0].first, run[-1].last, RUN_BYTES + sum(map(size_of, run))
        kept.put(first, last, run)
        self._runs[topic, first] = (last, size)
        self._bytes += size


def _last_of(item: LogItem) -> int:
    return item.last
