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
from msgspec.structs import replace

from ordered_pubsub.core.log.answering import bounding, read
from ordered_pubsub.core.log.questions import ASKED_MAX, Find, FoundTopics, LogQuestion, Read, ToReader
from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.stage.turns import Turns, Work
from ordered_pubsub.core.topics import matches
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.server.stage.choosing import choosing_rows

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
            answers.append((yield from bounding(self.log, message)))
        left = self._asked.get(reader, 0) - 1
        if left > 0:
            self._asked[reader] = left
        else:
            self._asked.pop(reader, None)
        for answer in answers:
            reader.bring(answer)

    def _reading(self, ask: Read, answers: list[ToReader]) -> Work:
        """Read a piece, and leave out of it, in small steps, what a filter does not let through."""
        rows = read(self.log, ask)
        if ask.where:
            events: list[tuple[int, int, bytes]] = []
            for _ in choosing_rows(ask.where, rows.events, events):
                yield True
            rows = replace(rows, events=events)
        answers.append(rows)

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
