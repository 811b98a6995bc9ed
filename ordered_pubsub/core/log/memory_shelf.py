"""A shelf in memory: for embedded stages, demonstrations and the simulation. It forgets everything with its process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import attrs

from ordered_pubsub.core.log.shelf import KINDS, Kind, Row


@attrs.define(slots=True)
class _Rows:
    """The rows of one kind of one topic, in order."""

    firsts: list[int] = attrs.field(factory=list)
    rows: list[Row] = attrs.field(factory=list)

    def put(self, row: Row) -> None:
        if not self.firsts or row.first > self.firsts[-1]:
            at, replaced = len(self.firsts), 0
        else:
            at = bisect_left(self.firsts, row.first)
            replaced = int(self.firsts[at] == row.first)
        self.firsts[at : at + replaced] = [row.first]
        self.rows[at : at + replaced] = [row]

    def at_or_before(self, number: int) -> int:
        """The index of the last row that begins there; -1 if none does."""
        return bisect_right(self.firsts, number) - 1

    def keep(self, start: int, stop: int) -> None:
        self.firsts, self.rows = self.firsts[start:stop], self.rows[start:stop]


@attrs.define(eq=False)
class MemoryShelf:
    """Rows in sorted lists."""

    _rows: dict[tuple[str, Kind], _Rows] = attrs.field(factory=dict)
    _floors: dict[str, int] = attrs.field(factory=dict)
    _numbers: dict[str, int] = attrs.field(factory=dict)
    """topics that rest"""

    def at_once(self) -> AbstractContextManager[object]:
        """Nothing changes while something is read."""
        return nullcontext()

    def begin(self, topic: str, floor: int) -> None:
        """Have a topic, of which everything is gone up to a number."""
        self._floors[topic] = floor

    def put(self, kind: Kind, topic: str, rows: list[Row]) -> None:
        """Keep rows."""
        self._floors.setdefault(topic, 0)
        found = self._rows.setdefault((topic, kind), _Rows())
        for row in rows:
            found.put(row)

    def put_all(self, kind: Kind, rows: Mapping[str, list[Row]]) -> None:
        """Keep rows of several topics."""
        for topic, those in rows.items():
            self.put(kind, topic, those)

    def get(self, kind: Kind, topic: str, first: int, last: int) -> Iterator[Row]:
        """The rows that have to do with these numbers, in order."""
        found = self._rows.get((topic, kind))
        if found is None:
            return
        at = max(found.at_or_before(first), 0)
        while at < len(found.rows) and (row := found.rows[at]).first <= last:
            if row.last >= first:
                yield row
            at += 1

    def before(self, kind: Kind, topic: str, number: int) -> Row | None:
        """The last row that begins at or before a number."""
        found = self._rows.get((topic, kind))
        at = -1 if found is None else found.at_or_before(number)
        return None if found is None or at < 0 else found.rows[at]

    def floor(self, topic: str) -> int:
        """Up to which number everything is gone."""
        floor = self._floors.get(topic)
        return self.number(topic) if floor is None else floor

    def last(self, topic: str) -> int:
        """The last number that has events."""
        found = self.before("events", topic, 1 << 62)
        return self.floor(topic) if found is None else found.last

    def drop(self, topic: str, up_to: int, full: bytes) -> None:
        """Raise the floor."""
        self._floors[topic] = max(up_to, self.floor(topic))
        for kind in KINDS:
            found = self._rows.get((topic, kind))
            if found is not None:
                at = found.at_or_before(up_to)
                gone = at + 1 if at >= 0 and (found.rows[at].last <= up_to or kind == "fulls") else max(at, 0)
                found.keep(gone, len(found.rows))
        MemoryShelf.put(self, "fulls", topic, [Row(up_to, up_to, full)])

    def cut(self, topic: str, after: int) -> None:
        """Remove rows that begin above a number."""
        for kind in KINDS:
            found = self._rows.get((topic, kind))
            if found is not None:
                found.keep(0, found.at_or_before(after) + 1)

    def settle(self, topic: str, first: int, stamps: list[Row]) -> None:
        """A batch is pending no more."""
        found = self._rows.get((topic, "pending"))
        at = -1 if found is None else found.at_or_before(first)
        if found is not None and at >= 0 and found.firsts[at] == first:
            del found.firsts[at], found.rows[at]
        MemoryShelf.put(self, "stamps", topic, stamps)

    def rest(self, numbers: Mapping[str, int]) -> None:
        """Remember the last numbers of topics that rest."""
        self._numbers.update(numbers)

    def number(self, topic: str) -> int:
        """What is remembered of a topic that rests."""
        return self._numbers.get(topic, 0)

    def resting(self) -> Iterator[tuple[str, int]]:
        """The topics of which something is remembered, and what."""
        return iter(list(self._numbers.items()))

    def wake(self, topics: Iterable[str]) -> None:
        """These are in use again."""
        for topic in topics:
            self._numbers.pop(topic, None)

    def clear(self, topics: Iterable[str]) -> None:
        """Remove what is left of topics whose rows are all gone."""
        for topic in topics:
            self._clear(topic)

    def _clear(self, topic: str) -> None:
        if any(
            (found := self._rows.get((topic, kind))) is not None and found.rows for kind in KINDS if kind != "fulls"
        ):
            return
        self._floors.pop(topic, None)
        for kind in KINDS:
            self._rows.pop((topic, kind), None)

    def copy(self, other: MemoryShelf) -> None:
        """Have the rows that another shelf has, and no others."""
        self._floors, self._numbers = dict(other._floors), dict(other._numbers)
        self._rows = {key: _Rows(list(found.firsts), list(found.rows)) for key, found in other._rows.items()}

    def topics(self, kind: Kind | None = None) -> list[str]:
        """The topics that have rows; of this kind, if one is named."""
        return list(self._floors) if kind is None else [topic for topic, _ in self.ends(kind)]

    def ends(self, kind: Kind) -> Iterator[tuple[str, Row]]:
        """The last row of each topic that has rows of this kind."""
        for topic in self._floors:
            found = self._rows.get((topic, kind))
            if found is not None and found.rows:
                yield topic, found.rows[-1]
