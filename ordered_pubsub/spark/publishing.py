"""The rows of one task, published: each topic's in their order, or, with a column to sort by, all of them in one.

What an earlier run of the task has published is left out (`lane`). Stages get their rows side by side, unless one order goes
across them: then a row for another stage waits until those before it have their places.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from typing import Any

import attrs

from ordered_pubsub.adapter import Adapter, Frame, load_adapter
from ordered_pubsub.client.frames import stamped
from ordered_pubsub.client.logged import LogPacker
from ordered_pubsub.client.publisher import Outgoing
from ordered_pubsub.core.messages import Publication, PublishAsk
from ordered_pubsub.core.session import REQUEST_BYTES_MAX
from ordered_pubsub.errors import ConfigurationError, OrderedPubSubError
from ordered_pubsub.reading.stages import Stages
from ordered_pubsub.spark.lane import Lane
from ordered_pubsub.sync.loops import LoopThread, enter
from ordered_pubsub.wire.sessions import derive_session

_log = logging.getLogger(__name__)

REQUEST_EVENTS_MAX = 10_000
REQUEST_PARTS_MAX = 64
Run = tuple[str, list[Outgoing]]


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

    def add(self, item: Outgoing, is_in_one_order: bool) -> None:
        """One more event."""
        run = self.by_topic.get(item.topic)
        if run is None or (is_in_one_order and self.runs[-1][0] != item.topic):
            run = self.by_topic[item.topic] = []
            self.runs.append((item.topic, run))
        run.append(item)
        self.events += 1
        self.bytes += item.size

    @property
    def is_full(self) -> bool:
        """Whether it is to be sent."""
        return (
            self.bytes >= REQUEST_BYTES_MAX or self.events >= REQUEST_EVENTS_MAX or len(self.runs) >= REQUEST_PARTS_MAX
        )


@attrs.define(eq=False)
class _Way:
    """The way to one owner: what is sent next, and what was sent last."""

    lane: Lane
    filling: _Filling = attrs.field(factory=_Filling)
    sent: list[Run] = attrs.field(factory=list)


@attrs.define(eq=False)
class Publishing:
    """What one task publishes."""

    stages: Stages
    identity: Identity
    publisher: str
    is_in_one_order: bool = False
    ens: Ens | None = None
    _ways: dict[int, _Way] = attrs.field(factory=dict)
    _last: _Way | None = None
    """the way of the last event"""
    _packer: LogPacker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._packer = LogPacker(self.publisher, self.stages)

    def put(self, item: Outgoing) -> None:
        """Publish an event, sooner or later, unless an earlier run has."""
        owner = self.stages.topology.owner(item.topic)
        way = self._ways.get(owner) or self._open(owner, item.topic)
        if self.is_in_one_order and self._last is not None and self._last is not way:
            self._flush(self._last)
        self._last, lane = way, way.lane
        if not item.id:
            item.id = f"{lane.key.nonce}-{self.identity.batch}-{lane.rows + 1}"
        if lane.is_news(item):
            way.filling.add(item, self.is_in_one_order)
            if way.filling.is_full:
                self._send(way)

    def finish(self) -> None:
        """All of it is published."""
        for way in self._ways.values():
            self._send(way)
        for way in self._ways.values():
            self._receive(way)
            way.lane.check_end()

    def close(self) -> None:
        """Let go of what is open."""
        for way in self._ways.values():
            way.lane.close()

    def _open(self, owner: int, topic: str) -> _Way:
        self.stages.check_kept([topic])
        identity = self.identity
        stage = self.stages.topology.stages[owner].name
        key = derive_session("ordered_pubsub writer", identity.writer, str(identity.part), stage)
        way = self._ways[owner] = _Way(Lane(self.stages, owner, topic, key, identity.batch + 1))
        way.lane.open()
        return way

    def _flush(self, way: _Way) -> None:
        self._send(way)
        self._receive(way)

    def _send(self, way: _Way) -> None:
        """Ask for what is there, once what was asked for before has its place."""
        filling = way.filling
        if filling.runs:
            pack = self._packer.pack
            asks = [PublishAsk(topic, len(items), True, pack(topic, items)) for topic, items in filling.runs]
            self._receive(way)
            way.lane.begin(asks)
            way.filling, way.sent = _Filling(), filling.runs

    def _receive(self, way: _Way) -> None:
        sent, way.sent = way.sent, []
        published = way.lane.finish()
        if published and self.ens is not None:
            self.ens.hand_over(published, sent, self.publisher)


@attrs.define(eq=False)
class Ens:
    """The broker on which subscribers hear of events at once; what does not reach them there, they get from the logs."""

    adapter: Adapter
    thread: LoopThread
    timeout_s: float
    _is_troubled: bool = False

    @classmethod
    def open(cls, url: str, timeout_s: float) -> Ens:
        """Connect, or raise what is the matter with it."""
        adapter = load_adapter(url)
        if adapter.local_system is not None:
            raise ConfigurationError(
                f"option ens={url!r} is a system within one process, and Spark's workers are others: give the broker, as in "
                "mqtt://127.0.0.1:1883, or leave the option out"
            )
        ens = cls(adapter, enter(adapter), timeout_s)
        try:
            ens._call(adapter.open(_ignore, lambda is_connected, reason: None))
        except BaseException:
            ens.thread.leave(adapter)
            raise
        return ens

    def hand_over(self, published: Sequence[Publication], runs: Sequence[Run], publisher: str) -> None:
        """Let subscribers have it. What the broker does not take, their logs have."""
        frames = [
            stamped(part, index, publisher, item)
            for part, (_, items) in zip(published, runs, strict=True)
            for index, item in enumerate(items)
        ]
        try:
            self._call(self.adapter.publish(frames))
            self._is_troubled = False
        except OrderedPubSubError as error:
            if not self._is_troubled:
                _log.warning("the ENS did not take %d events, which their logs have: %s", len(frames), error)
            self._is_troubled = True

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        self.thread.call(work, self.timeout_s)

    def close(self) -> None:
        """Disconnect."""
        try:
            self._call(self.adapter.close())
        finally:
            self.thread.leave(self.adapter)
            self.thread.join()


async def _ignore(frames: Sequence[Frame]) -> None:
    """Nothing was subscribed to."""
