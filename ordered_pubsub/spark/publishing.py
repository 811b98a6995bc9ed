"""The rows of one task, published: each topic's in their order, or, with a column to sort by, all of them in one.

What is asked for when, and what an earlier run of the task has published, says `core.client.writer`; here are the rows as the log
keeps them, the lines to the stages (`writer_line`), and the broker.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import attrs

from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.core.client.writer import REQUEST_EVENTS_MAX, StageWriter, Steps, TaskWriter
from ordered_pubsub.core.messages import PublishAsk
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.spark.ens import TaskEns
from ordered_pubsub.spark.writer_line import WriterLine
from ordered_pubsub.wire.logged import LogPacker
from ordered_pubsub.wire.sessions import derive_session, publisher_of

TOPICS_REMEMBERED_MAX = 65_536


@attrs.frozen
class Identity:
    """Which rows these are, however often they come: those of a part of a batch of a writer."""

    writer: str
    part: int
    batch: int


@attrs.define(eq=False)
class TaskPublishing:
    """What one task publishes."""

    stages: StageLines
    identity: Identity
    publisher: str | None = None
    """with which name it signs; None: with one of its own for each stage"""
    is_in_one_order: bool = False
    ens: TaskEns | None = None
    _task: TaskWriter = attrs.field(init=False)
    _lines: dict[StageWriter, WriterLine] = attrs.field(factory=dict)
    _packers: dict[int, LogPacker] = attrs.field(factory=dict)
    """by the rank of the stage"""
    _nonces: dict[int, str] = attrs.field(factory=dict)
    _kept: dict[str, bool] = attrs.field(factory=dict)
    """topics that have a log"""

    def __attrs_post_init__(self) -> None:
        owner = self.stages.topology.owner
        self._task = TaskWriter(owner, self._begin, self, self.is_in_one_order, REQUEST_EVENTS_MAX)

    @property
    def rows(self) -> int:
        """How many there were."""
        return self._task.rows

    def put(self, item: Outgoing) -> None:
        """Publish an event, sooner or later, unless an earlier run has."""
        if item.topic not in self._kept:
            self._check_topic(item.topic)
        self._drive(self._task.put(item, _digest(item, self._task.digest)))

    def finish(self, is_whole: bool = True) -> None:
        """All of it is published. What is not known to be all of it may go on in another run."""
        self._drive(self._task.finish(is_whole))

    def close(self) -> None:
        """Let go of what is open."""
        for line in self._lines.values():
            line.close()

    def _check_topic(self, topic: str) -> None:
        self.stages.check_kept([topic])
        if len(self._kept) >= TOPICS_REMEMBERED_MAX:
            self._kept.clear()
        self._kept[topic] = True

    def _drive(self, steps: Steps) -> None:
        """Wait for those stages that have to answer first."""
        for writer in steps:
            self._carry()
            self._lines[writer].settle()
        self._carry()

    def _carry(self) -> None:
        """Say what is to be said; let the broker have what has its place."""
        task = self._task
        if task.asking:
            asking, task.asking = task.asking, []
            for writer in asking:
                self._lines[writer].say()
        if task.published:
            published, task.published = task.published, []
            if self.ens is not None:
                self.ens.hand_over(published)

    # -- what the machine needs ---------------------------------------------------------------------------------------

    def _begin(self, rank: int, topic: str) -> StageWriter:
        identity, stage = self.identity, self.stages.topology.stages[rank].name
        key = derive_session("ordered_pubsub writer", identity.writer, str(identity.part), stage)
        publisher = self.publisher or publisher_of(key.session, None)
        self._packers[rank] = LogPacker(publisher, self.stages, is_tagged=self.ens is not None)
        self._nonces[rank] = key.nonce
        writer = StageWriter(stage, topic, key.session, identity.batch + 1)
        self._lines[writer] = WriterLine(self.stages, rank, key, writer)
        return writer

    def name(self, row: Outgoing, number: int, rank: int) -> None:
        """An event without an id has one that is the same if it is published again."""
        row.id = row.id or f"{self._nonces[rank]}-{self.identity.batch}-{number}"

    def ask(self, rank: int, topic: str, rows: Sequence[Any]) -> PublishAsk:
        """Ask for numbers for all these events, which go along as the log keeps them."""
        return self._packers[rank].ask(topic, rows)


def _digest(item: Outgoing, before: int) -> int:
    """Of an event, and of all before it; not of an id that it is given here."""
    texts = [
        item.topic,
        item.id,
        item.content_type,
        *(f"{name}\0{value!r}" for name, value in sorted(item.headers.items())),
    ]
    return zlib.crc32(item.payload, zlib.crc32("\0".join(texts).encode(), before))
