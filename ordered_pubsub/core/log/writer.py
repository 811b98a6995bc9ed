"""Writes the log of one stage: what was numbered, what is known of it, and what becomes of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs
import msgspec

from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.log.shelf import (
    ENDLESS,
    KINDS,
    FullTimestamp,
    LogStamp,
    Pending,
    Row,
    Shelf,
    decode_full,
    decode_pending,
    decode_stamp,
)
from ordered_pubsub.core.messages import Chunk, Publication, Transaction
from ordered_pubsub.errors import JournalDamaged

FULL_AFTER = 256
"""A full timestamp is written after so many batches and entries, or four times its own entries if that is more."""
RUNNING_MAX = 1_000
"""Topics whose full timestamp is kept in memory."""
_encode = msgspec.msgpack.Encoder().encode


class Kept(NamedTuple):
    """Events that were numbered, on their way to the log."""

    topic: str
    first: int
    chunks: tuple[Chunk, ...]


class Decision(NamedTuple):
    """What has become of a pending batch."""

    topic: str
    first: int
    last: int
    voids: list[tuple[int, int]]
    """nothing: all of it was published"""


class _Early(NamedTuple):
    """A batch that may come after one that is not complete."""

    last: int
    entries: dict[str, int]
    transaction: Transaction | None


@attrs.define(slots=True)
class _Running:
    """The full timestamp of a topic's last batch before which nothing is incomplete."""

    timestamp: FullTimestamp
    steps: int = 0
    """batches and entries since a full timestamp was written"""
    early: dict[int, _Early] = attrs.field(factory=dict)
    """batches beyond one that is not complete: by their first numbers"""

    def run_on(self) -> list[Row]:
        """Take in what is complete now; return the full timestamps that are to be written."""
        rows: list[Row] = []
        timestamp = self.timestamp
        while (following := self.early.pop(timestamp.last + 1, None)) is not None:
            first = timestamp.last + 1
            timestamp.go_on(*following)
            self.steps += 1 + len(following.entries)
            if self.steps >= FULL_AFTER and self.steps >= 4 * len(timestamp.full):
                rows.append(Row(first, timestamp.last, _encode(timestamp.full)))
                self.steps = 0
        return rows


@attrs.define(eq=False)
class LogWriter:
    """Writes the log of one stage."""

    shelf: Shelf
    base: int = 0
    """the numbers of topics that are new begin behind this one"""
    _running: OrderedDict[str, _Running] = attrs.field(factory=OrderedDict)

    def write(self, kept: Iterable[Kept], completed: Iterable[Publication]) -> None:
        """Put numbered events, and what is known of complete ones, onto the shelf."""
        self._write_events(kept)
        self._write_stamps(completed)

    def _write_events(self, kept: Iterable[Kept]) -> None:
        rows: dict[str, list[Row]] = {}
        for topic, first, chunks in kept:
            if self.base and first == self.base + 1:
                self.shelf.drop(topic, self.base, _encode({}))  # nothing was there: the first timestamp is a full one
            those = rows.setdefault(topic, [])
            for chunk in chunks:
                those.append(Row(first, first + chunk.count - 1, chunk.data))
                first += chunk.count
        self.shelf.put_all("events", rows)

    def _write_stamps(self, completed: Iterable[Publication]) -> None:
        parts: dict[str, list[Publication]] = {}
        rows: dict[str, list[Row]] = {}
        for part in completed:
            stamp = LogStamp(
                part.entries, part.full, part.marks, part.place, part.published_at, part.is_kept, part.transaction
            )
            row = Row(part.first, part.last, _encode(stamp))
            those = rows.get(part.topic)
            if those is None:
                rows[part.topic], parts[part.topic] = [row], [part]
            else:
                those.append(row)
                parts[part.topic].append(part)
        if rows:
            self.shelf.put_all("stamps", rows)
            fulls = {topic: full for topic, those in parts.items() if (full := self._run_with(topic, those))}
            self.shelf.put_all("fulls", fulls)

    def _run_with(self, topic: str, parts: list[Publication]) -> list[Row]:
        """Batches, whose stamps are on the shelf, count in the full timestamp of their topic; return those to be written."""
        running = self._running.get(topic)
        if running is None:
            running = self._running[topic] = self._load(topic)  # these stamps included
            if len(self._running) > RUNNING_MAX:
                self._running.popitem(last=False)
        else:
            self._running.move_to_end(topic)
            for part in parts:
                running.early[part.first] = _Early(part.last, part.entries, part.transaction)
        return running.run_on()

    def _load(self, topic: str) -> _Running:
        found = self.shelf.before("fulls", topic, ENDLESS)
        if found is None:
            timestamp = FullTimestamp(topic, self.shelf.floor(topic), {})
        else:
            timestamp = FullTimestamp(topic, found.last, decode_full(topic, found))
        running = _Running(timestamp)
        for row in self.shelf.get("stamps", topic, max(timestamp.last, 1), ENDLESS):
            stamp = decode_stamp(topic, row)
            if row.last <= timestamp.last:
                timestamp.transaction = stamp.transaction
            else:
                running.early[row.first] = _Early(row.last, stamp.entries, stamp.transaction)
        return running

    def hold(self, session: str, sequence: int, part: Publication) -> None:
        """Remember a batch of which nobody keeps the events, until it is known to be published, or void."""
        stamp = LogStamp(part.entries, part.full, part.marks, part.place, part.published_at)
        pending = Pending(session, sequence, stamp)
        self.shelf.put("pending", part.topic, [Row(part.first, part.last, _encode(pending))])

    def decide(self, decision: Decision) -> None:
        """A batch is pending no more; what is void of it has a place like an event."""
        topic, first, _, voids = decision
        row = self.shelf.before("pending", topic, first)
        if row is None or row.first != first:
            return
        stamp = decode_pending(topic, row).stamp
        later = msgspec.structs.replace(stamp, entries={}, full=False, marks=[])
        stamps = [Row(start, end, _encode(stamp if start == first else later)) for start, end in voids]
        self.shelf.settle(topic, first, stamps)

    def forget(self, topic: str, up_to: int) -> int:
        """Drop what ends at or below a number and is complete; return up to where everything is gone."""
        found = self.shelf.before("stamps", topic, up_to + 1)
        floor = self.shelf.floor(topic)
        if found is None or found.first <= floor:
            return floor
        up_to = found.last if found.last <= up_to else found.first - 1
        full = LogReader(self.shelf).full_behind(topic, up_to)
        if up_to <= floor or full is None:
            return floor
        self.shelf.drop(topic, up_to, _encode(full))
        return up_to

    def begin_after(self, topic: str, number: int) -> bool:
        """The log of a topic begins behind this number, since its level was another one until then; return if that is news."""
        is_news = self.shelf.floor(topic) < number
        if is_news:
            self.shelf.drop(topic, number, _encode({}))  # what comes next has a full timestamp
            self._running.pop(topic, None)
        return is_news

    def rest(self, numbers: Mapping[str, int]) -> None:
        """Nothing but their last numbers is remembered of some topics from now on. What is left of them is cleared later."""
        if numbers:
            self.shelf.rest(numbers)

    def clear(self, topics: Iterable[str]) -> None:
        """These rest, and that is on disk."""
        topics = list(topics)
        for topic in topics:
            self._running.pop(topic, None)
        if topics:
            self.shelf.clear(topics)

    def begin(self, numbers: Mapping[str, int]) -> None:
        """These topics have rested, and are kept: their logs begin behind their last numbers."""
        for topic, number in numbers.items():
            self.shelf.drop(topic, number, _encode({}))  # what comes next has a full timestamp
            self._running.pop(topic, None)

    def wake(self, topics: Iterable[str]) -> None:
        """These have rested, and are in use again: that is on disk."""
        topics = list(topics)
        if topics:
            self.shelf.wake(topics)

    def cut(self, numbers: dict[str, int], kept: dict[str, int]) -> None:
        """Remove what the journal knows nothing of, and see that all is there that it says was kept."""
        beyond: dict[str, bool] = {}
        ends: dict[str, int] = {}
        for kind in KINDS:
            for topic, row in self.shelf.ends(kind):
                if row.first > numbers.get(topic, row.first):
                    beyond[topic] = True
                elif kind == "events":
                    ends[topic] = row.last
        for topic in beyond:
            self.shelf.cut(topic, numbers[topic])
        for topic in self.shelf.topics():
            if topic not in numbers:  # it rests, or has never been
                self.shelf.cut(topic, self.shelf.number(topic))
                self.shelf.clear([topic])
        for topic, last in kept.items():
            if ends.get(topic, 0) >= last:
                continue
            if (there := self.shelf.last(topic)) < last and not self._is_void(topic, there + 1, last):
                raise JournalDamaged(
                    f"the log ends at number {there} of topic {topic!r}, but the journal says that number {last} was kept: what "
                    "was published is lost"
                )

    def check_resting(self, numbers: Mapping[str, int], count: int, events: int) -> None:
        """See that the last numbers of all topics that rest are there: a topic must never start again at 1."""
        topics = total = 0
        awake: list[str] = []
        for topic, number in self.shelf.resting():
            if topic in numbers:
                awake.append(topic)
            else:
                topics, total = topics + 1, total + number
        self.wake(awake)
        if (topics, total) != (count, events):
            raise JournalDamaged(
                f"the store has the last numbers of {topics:,} topics that rest, {total:,} in all, but the journal says that "
                f"there are {count:,}, with {events:,}: some are lost"
            )

    def _is_void(self, topic: str, first: int, last: int) -> bool:
        """Whether all of these numbers have stamps that say that nothing was kept of them."""
        for row in self.shelf.get("stamps", topic, first, last):
            if row.first > first or decode_stamp(topic, row).is_kept:
                return False
            first = row.last + 1
        return first > last
