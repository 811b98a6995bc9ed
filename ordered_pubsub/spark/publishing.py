"""The rows of one task, published: each topic's in their order, or, with a column to sort by, all of them in one.

What an earlier run of the task has published is left out (`lane`). Stages get their rows side by side, unless one order goes
across them: then a row for another stage waits until those before it have their places.
"""

from __future__ import annotations

import zlib

import attrs

from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.core.client.session import REQUEST_BYTES_MAX
from ordered_pubsub.errors import UsageError
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.spark.ens import Run, TaskEns
from ordered_pubsub.spark.stage_writer import ROWS_MAX, StageWriter
from ordered_pubsub.wire.logged import LogPacker
from ordered_pubsub.wire.sessions import derive_session, publisher_of

REQUEST_EVENTS_MAX = 10_000
REQUEST_PARTS_MAX = 64
TOPICS_REMEMBERED_MAX = 65_536


@attrs.frozen
class Identity:
    """Which rows these are, however often they come: those of a part of a batch of a writer."""

    writer: str
    part: int
    batch: int


@attrs.define
class _Filling:
    """The next request of a lane."""

    runs: list[Run] = attrs.field(factory=list)
    by_topic: dict[str, list[Outgoing]] = attrs.field(factory=dict)
    events: int = 0
    bytes: int = 0
    row: int = 0
    """the last row of the task that goes along"""
    digest: int = 0
    """of all rows up to there"""

    def has_room(self, item: Outgoing) -> bool:
        """Whether one more goes along; into an empty one, any does."""
        return not self.runs or (
            self.bytes + item.size <= REQUEST_BYTES_MAX
            and self.events < REQUEST_EVENTS_MAX
            and len(self.runs) < REQUEST_PARTS_MAX
        )

    def add(self, item: Outgoing, is_in_one_order: bool) -> None:
        """One more event."""
        run = self.by_topic.get(item.topic)
        if run is None or (is_in_one_order and self.runs[-1][0] != item.topic):
            run = self.by_topic[item.topic] = []
            self.runs.append((item.topic, run))
        run.append(item)
        self.events += 1
        self.bytes += item.size


@attrs.define(eq=False)
class _Way:
    """The way to one owner: what is sent next, and what was sent last."""

    lane: StageWriter
    packer: LogPacker
    filling: _Filling = attrs.field(factory=_Filling)
    sent: list[Run] = attrs.field(factory=list)


@attrs.define(eq=False)
class TaskPublishing:
    """What one task publishes."""

    stages: StageLines
    identity: Identity
    publisher: str | None = None
    """with which name it signs; None: with one of its own for each stage"""
    is_in_one_order: bool = False
    ens: TaskEns | None = None
    rows: int = 0
    """how many there were"""
    _digest: int = 0
    """of these"""
    _ways: dict[int, _Way] = attrs.field(factory=dict)
    _last: _Way | None = None
    """the way of the last event"""
    _kept: dict[str, bool] = attrs.field(factory=dict)
    """topics that have a log"""

    def put(self, item: Outgoing) -> None:
        """Publish an event, sooner or later, unless an earlier run has."""
        if item.topic not in self._kept:
            self._check_topic(item.topic)
        self.rows = row = self.rows + 1
        if row > ROWS_MAX:
            raise UsageError(f"a task has more than {ROWS_MAX:,} rows: divide the batch into more parts (repartition)")
        self._digest = _digest(item, self._digest)
        owner = self.stages.topology.owner(item.topic)
        way = self._ways.get(owner) or self._open(owner, item.topic)
        for other in self._ways.values():
            other.lane.check(row, self._digest, other is way)
        if way.lane.is_news(row):
            item.id = item.id or f"{way.lane.key.nonce}-{self.identity.batch}-{row}"
            self._publish(item, way)

    def _publish(self, item: Outgoing, way: _Way) -> None:
        if self.is_in_one_order and self._last is not None and self._last is not way:
            self._send(self._last)
            self._receive(self._last)
        self._last = way
        if not way.filling.has_room(item):
            self._send(way)
        way.filling.add(item, self.is_in_one_order)
        way.filling.row, way.filling.digest = self.rows, self._digest

    def finish(self, is_whole: bool = True) -> None:
        """All of it is published. What is not known to be all of it may go on in another run."""
        for way in self._ways.values():
            self._send(way, is_whole)
        for way in self._ways.values():
            self._receive(way)
            way.lane.check_end(self.rows)

    def close(self) -> None:
        """Let go of what is open."""
        for way in self._ways.values():
            way.lane.close()

    def _check_topic(self, topic: str) -> None:
        self.stages.check_kept([topic])
        if len(self._kept) >= TOPICS_REMEMBERED_MAX:
            self._kept.clear()
        self._kept[topic] = True

    def _open(self, owner: int, topic: str) -> _Way:
        identity = self.identity
        stage = self.stages.topology.stages[owner].name
        key = derive_session("ordered_pubsub writer", identity.writer, str(identity.part), stage)
        way = self._ways[owner] = _Way(
            StageWriter(self.stages, owner, topic, key, identity.batch + 1),
            LogPacker(self.publisher or publisher_of(key.session, None), self.stages, is_tagged=self.ens is not None),
        )
        way.lane.open(self.rows)
        return way

    def _send(self, way: _Way, is_last: bool = False) -> None:
        """Ask for what is there, once what was asked for before has its place."""
        filling = way.filling
        if filling.runs:
            asks = [way.packer.ask(topic, items) for topic, items in filling.runs]
            self._receive(way)
            way.lane.begin(asks, filling.row, filling.digest, is_last)
            way.filling, way.sent = _Filling(), filling.runs

    def _receive(self, way: _Way) -> None:
        sent, way.sent = way.sent, []
        published = way.lane.finish()
        if published and self.ens is not None:
            self.ens.hand_over(published, sent)


def _digest(item: Outgoing, before: int) -> int:
    """Of an event, and of all before it; not of an id that it is given here."""
    texts = [
        item.topic,
        item.id,
        item.content_type,
        *(f"{name}\0{value!r}" for name, value in sorted(item.headers.items())),
    ]
    return zlib.crc32(item.payload, zlib.crc32("\0".join(texts).encode(), before))
