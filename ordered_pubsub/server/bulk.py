"""Reads the logs for those who read much of them, a small piece at a time.

What a reader has asked for waits in a queue of its own, and readers take turns: who asks for little does not wait for who asks
for much, and none of them delays the stage, which does everything else first (`server.node`). Rows go out as they are on disk;
nothing here looks into them, unless a filter was asked for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from ordered_pubsub.core.log import LogReader
from ordered_pubsub.core.topics import matches
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.server.choosing import choose_rows
from ordered_pubsub.wire.reading import (
    ASKED_MAX,
    PIECE_BYTES,
    Bound,
    Bounded,
    Find,
    Found,
    LogQuestion,
    Read,
    Rows,
    ToReader,
)

COMPARISONS_MAX = 2_000
"""So often topics are compared with patterns at a time."""


class Reader(Protocol):
    """Who reads."""

    def may_read(self, topic: str) -> bool:
        """Whether it may know of this topic at all."""

    def bring(self, message: ToReader) -> None:
        """What it asked for."""


@attrs.define
class _Finding:
    """Topics that match, so far."""

    ask: Find
    named: list[str]
    """topics that are there, by their names"""
    left: list[str]
    """topics to be compared with the patterns"""
    patterns: list[str]
    found: dict[str, tuple[int, int]] = attrs.field(factory=dict)


@attrs.define
class _Bounding:
    """A search by halves: `low` is not too far, what is behind `high` is."""

    ask: Bound
    low: int
    high: int


_Work = Read | _Finding | _Bounding


@attrs.define(eq=False)
class Bulk:
    """The readers of one stage's logs."""

    log: LogReader
    topics: Callable[[], Mapping[str, int]]
    """the topics of this stage that have a log"""
    _waiting: OrderedDict[Reader, deque[_Work]] = attrs.field(factory=OrderedDict)
    """what each reader waits for; whose turn is next comes first"""
    pieces: int = 0
    """how many were read"""

    def ask(self, reader: Reader, message: LogQuestion) -> None:
        """A reader, who may, asks for something."""
        queue = self._waiting.setdefault(reader, deque())
        if len(queue) >= ASKED_MAX:
            raise ProtocolError(f"a reader asked for more than {ASKED_MAX} things at a time")
        work: _Work
        if isinstance(message, Find):
            work = self._begin_to_find(message)
        elif isinstance(message, Bound):
            work = _Bounding(message, max(message.low, self.log.shelf.floor(message.topic)), message.high)
        else:
            work = message
        queue.append(work)

    def forget(self, reader: Reader) -> None:
        """It is gone."""
        self._waiting.pop(reader, None)

    @property
    def has_work(self) -> bool:
        """Whether anybody waits for anything."""
        return bool(self._waiting)

    def serve(self) -> None:
        """Do a little for who comes next, if there is anybody."""
        if not self._waiting:
            return
        reader, queue = next(iter(self._waiting.items()))
        answer = self._step(reader, queue[0])
        self.pieces += 1
        if answer is not None:
            queue.popleft()
        if queue:
            self._waiting.move_to_end(reader)
        else:
            del self._waiting[reader]
        if answer is not None:
            reader.bring(answer)

    def _step(self, reader: Reader, work: _Work) -> ToReader | None:
        if isinstance(work, Read):
            return self._read(work)
        if isinstance(work, _Finding):
            return self._find(reader, work)
        return self._bound(work)

    def _read(self, ask: Read) -> Rows:
        found = self.log.rows(ask.topic, ask.first, ask.last, min(ask.bytes_max, PIECE_BYTES))
        full = self.log.full_at(ask.topic, found.stamps[0].first) if ask.full and found.stamps else None
        if ask.full and found.stamps and full is None:  # forgotten since the rest of it was read
            return Rows(ask.number, self.log.shelf.floor(ask.topic), ask.first - 1, None, [], [])
        events = choose_rows(ask.where, found.events) if ask.where else found.events
        return Rows(ask.number, found.floor, found.read_to, full, list(found.stamps), list(events))

    def _begin_to_find(self, ask: Find) -> _Finding:
        topics = self.topics()
        patterns = [pattern for pattern in ask.patterns if "*" in pattern]
        named = [name for name in dict.fromkeys(ask.patterns) if name in topics]
        return _Finding(ask, named, list(topics) if patterns else [], patterns)

    def _find(self, reader: Reader, work: _Finding) -> Found | None:
        count = max(1, COMPARISONS_MAX // max(1, len(work.patterns)))
        looked_at, work.left = work.left[:count], work.left[count:]
        matching = [topic for topic in looked_at if any(matches(pattern, topic) for pattern in work.patterns)]
        named, work.named = work.named[:COMPARISONS_MAX], work.named[COMPARISONS_MAX:]
        shelf = self.log.shelf
        for topic in (*named, *matching):
            if topic not in work.found and reader.may_read(topic):
                work.found[topic] = (shelf.floor(topic), shelf.last(topic))
        return None if work.left or work.named else Found(work.ask.number, work.found)

    def _bound(self, work: _Bounding) -> Bounded | None:
        if work.low < work.high:
            middle = (work.low + work.high + 1) // 2
            if self.log.is_within(work.ask.topic, middle, work.ask.clock):
                work.low = middle
            else:
                work.high = middle - 1
        if work.low < work.high:
            return None
        ask, last = work.ask, work.low
        if ask.is_whole:
            last = max(ask.low, self.log.whole_batches(ask.topic, last))
        is_complete = ask.high <= self.log.shelf.floor(ask.topic) or self.log.full_at(ask.topic, ask.high) is not None
        return Bounded(ask.number, min(last, ask.high), is_complete)
