"""Reads the logs for those who read much of them, a small piece at a time.

What readers have asked for is done by turns, of identities and of their connections (`core.stage.turns`): who asks for little
does not wait for who asks for much, and none of them delays the stage, which does everything else first (`server.stage.node`).
Rows go out as they are on disk; nothing here looks into them, unless a filter was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Protocol

import attrs

from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.stage.turns import Turns, Work
from ordered_pubsub.core.topics import matches
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.server.stage.choosing import choosing_rows
from ordered_pubsub.wire.reading import (
    ASKED_MAX,
    PIECE_BYTES,
    Bound,
    Bounded,
    Find,
    FoundTopics,
    LogQuestion,
    Read,
    Rows,
    ToReader,
)

COMPARISONS_MAX = 50
"""So often topics are compared with patterns in one step."""
LOOKED_UP = 10
"""Looking up how far a topic is costs as much as so many comparisons."""


class BulkReader(Protocol):
    """Who reads."""

    def __hash__(self) -> int:
        """It is no other one."""

    @property
    def identity_name(self) -> str:
        """Who it is."""

    def may_read(self, topic: str) -> bool:
        """Whether it may know of this topic at all."""

    def bring(self, message: ToReader) -> None:
        """What it asked for."""


@attrs.define(eq=False)
class Bulk:
    """The readers of one stage's logs."""

    log: LogReader
    topics: Callable[[], Mapping[str, int]]
    """the topics of this stage that have a log"""
    turns: Turns = attrs.field(factory=Turns)
    _asked: dict[BulkReader, int] = attrs.field(factory=dict)
    """how much each reader waits for"""
    pieces: int = 0
    """how many were read"""

    def ask(self, reader: BulkReader, message: LogQuestion) -> None:
        """A reader, who may, asks for something."""
        count = self._asked.get(reader, 0)
        if count >= ASKED_MAX:
            raise ProtocolError(f"a reader asked for more than {ASKED_MAX} things at a time")
        self._asked[reader] = count + 1
        self.turns.put(reader.identity_name, reader, self._answering(reader, message))

    def forget(self, reader: BulkReader) -> None:
        """It is gone."""
        self._asked.pop(reader, None)
        self.turns.forget(reader.identity_name, reader)

    @property
    def has_work(self) -> bool:
        """Whether anybody waits for anything."""
        return self.turns.has_work

    def serve(self) -> bool:
        """Do a little for who comes next; whether there is anybody."""
        if not self.turns.has_work:
            return False
        self.pieces += 1
        return self.turns.step()

    def _answering(self, reader: BulkReader, message: LogQuestion) -> Work:
        """Find the answer in small steps, and bring it."""
        answers: list[ToReader] = []
        if isinstance(message, Read):
            yield from self._reading(message, answers)
        elif isinstance(message, Find):
            yield from self._finding(reader, message, answers)
        else:
            yield from self._bounding(message, answers)
        left = self._asked.get(reader, 0) - 1
        if left > 0:
            self._asked[reader] = left
        else:
            self._asked.pop(reader, None)
        for answer in answers:
            reader.bring(answer)

    def _reading(self, ask: Read, answers: list[ToReader]) -> Work:
        """Read a piece, and leave out of it, in small steps, what a filter does not let through."""
        found = self.log.rows(ask.topic, ask.first, ask.last, min(ask.bytes_max, PIECE_BYTES))
        full = self.log.full_at(ask.topic, found.stamps[0].first) if ask.full and found.stamps else None
        if ask.full and found.stamps and full is None:  # forgotten since the rest of it was read
            answers.append(Rows(ask.number, self.log.shelf.floor(ask.topic), ask.first - 1, None, [], []))
            return
        events = found.events
        if ask.where:
            events = []
            for _ in choosing_rows(ask.where, found.events, events):
                yield True
        answers.append(Rows(ask.number, found.floor, found.read_to, full, list(found.stamps), list(events)))

    def _finding(self, reader: BulkReader, ask: Find, answers: list[ToReader]) -> Work:
        """Compare the topics with the patterns, so many at a time."""
        topics, shelf = self.topics(), self.log.shelf
        named = dict.fromkeys(ask.patterns, True)
        patterns = [pattern for pattern in named if "*" in pattern]
        found: dict[str, tuple[int, int]] = {}
        done = 0
        for topic in chain(list(topics), (name for name, _ in shelf.resting())) if patterns else named:
            if topic in found:
                continue  # it has rested, and is in use again
            is_wanted = topic in named and bool(patterns or topic in topics or shelf.number(topic))
            for pattern in () if is_wanted else patterns:
                done += 1
                is_wanted = matches(pattern, topic)
                if is_wanted:
                    break
                if done >= COMPARISONS_MAX:
                    done = 0
                    yield True
            if is_wanted and reader.may_read(topic):
                found[topic] = (shelf.floor(topic), shelf.last(topic))
                done += LOOKED_UP
            if done >= COMPARISONS_MAX:
                done = 0
                yield True
        answers.append(FoundTopics(ask.number, found))

    def _bounding(self, ask: Bound, answers: list[ToReader]) -> Work:
        """Search by halves: `low` is not too far, what is behind `high` is."""
        low, high = max(ask.low, self.log.shelf.floor(ask.topic)), ask.high
        while low < high:
            middle = (low + high + 1) // 2
            if self.log.is_within(ask.topic, middle, ask.clock):
                low = middle
            else:
                high = middle - 1
            yield True
        last = max(ask.low, self.log.whole_batches(ask.topic, low)) if ask.is_whole else low
        is_complete = ask.high <= self.log.shelf.floor(ask.topic) or self.log.full_at(ask.topic, ask.high) is not None
        answers.append(Bounded(ask.number, min(last, ask.high), is_complete))
