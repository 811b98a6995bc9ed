"""`nats://` and `tls://`: NATS, core or with JetStream.

    nats://[user:password@ or token@]host[:4222][,host2...]?jetstream=STREAM&create=true
    tls://...?ca=FILE&cert=FILE&key=FILE

Theory of operation
===================
A topic is a subject, with dots for slashes: `eu/trades` is `eu.trades`. A frame's payload is the message's, and its headers are
the message's headers, so plain clients publish and subscribe as ever.

An adapter has two connections: one that publishes and one that reads. Reading stops when the application is slow, and an
application that publishes in its handler must not wait for itself then.

*Core NATS* passes on what comes and stores nothing. `publish` returns when the server has answered a PING that it wrote behind
the frames. While a subscriber's connection lasts, one server loses nothing: it would rather cut off who reads too slowly
(after 10 s in which it could not write, `write_deadline`, or with 64 MiB to be written, `max_pending`) than skip a message.
What is published while a connection is away is missed. In a cluster, subscriptions reach the other servers some time after
the answer, connections between servers break unnoticed, and two ways may take different times: so there the capabilities say
that frames get lost and reordered.

*JetStream* (`jetstream=STREAM`) stores what is published in a stream and acknowledges it, so nothing is missed; see
`nats_publisher.py` and `nats_consumer.py`. With `create=true` the stream is made when it does not exist, without limits, and is
given the subjects of topics as they are used. That is for tests and small systems; otherwise make it with subjects that
cover all topics (`nats stream add EVENTS --subjects 'eu.>'`), and with limits that keep messages for longer than any
subscriber is away.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Protocol

import attrs

from ordered_pubsub.adapter import Adapter, Capabilities, Frame, FramesHandler, StateHandler
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters.names import NameRules, NameTable
from ordered_pubsub_adapters.nats_client import check_nats
from ordered_pubsub_adapters.nats_connection import Connection
from ordered_pubsub_adapters.nats_consumer import Consumer
from ordered_pubsub_adapters.nats_inbox import Inbox
from ordered_pubsub_adapters.nats_publisher import StreamPublisher
from ordered_pubsub_adapters.nats_stream import Stream
from ordered_pubsub_adapters.nats_waiting import end
from ordered_pubsub_adapters.nats_wire import pieces, read_headers
from ordered_pubsub_adapters.urls import UrlRules, file_name, one_of, read_url

PORT = 4222
PIECE_FRAMES = 1_000
SUBJECT_BYTES_MAX = 1_024
"""A server reads lines of 4,096 bytes."""

NAMES = NameRules(separator=".", special="*>", bytes_max=SUBJECT_BYTES_MAX, reserved=("$", "_INBOX"))
_STREAM_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f\"]{1,255}")


def stream_name(value: str) -> str:
    """A reader of a stream's name."""
    if not _STREAM_NAME.fullmatch(value):
        raise ValueError(
            "the name of a stream: up to 255 characters, none of them a space, a quote or one of . * > / \\"
        )
    return value


RULES = UrlRules(
    ports={"nats": PORT, "tls": PORT},
    encrypted=("tls",),
    parameters={
        "jetstream": stream_name,
        "create": one_of("true", "false"),
        "creds": file_name,
        "nkey": file_name,
    },
)


class _Mode(Protocol):
    """What core NATS and JetStream do differently."""

    async def start(self) -> None:
        """The connections are open: see whether everything is as it must be."""

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Hand frames over."""

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Let the frames of these topics come, too."""

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Let them come no more."""

    async def close(self) -> None:
        """Give up what is under way."""


@attrs.define(eq=False)
class _Core:
    """NATS without a stream."""

    out: Connection
    into: Connection
    inbox: Inbox
    names: NameTable
    _topics: dict[int, str] = attrs.field(factory=dict)
    _sids: dict[str, int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.into.on_message = self._take

    async def start(self) -> None:
        """There is nothing to be seen to."""

    async def close(self) -> None:
        """Nothing is under way."""

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Return when the server has passed all of them on."""
        for piece in pieces(frames, PIECE_FRAMES):
            self.out.check_up()
            since = self.out.turn
            self.out.publish(piece, self.names)
            await self.out.flush()
            self.out.check_refusals((self.names.name_of(frame.topic) for frame in piece), since)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Return when the server knows of the topics. Cancelled or failed, they will not come."""
        new = [topic for topic in dict.fromkeys(topics) if topic not in self._sids]
        for topic in new:
            sid = self._sids[topic] = self.into.subscribe(self.names.name_of(topic))
            self._topics[sid] = topic
        try:
            await self.into.settle([self.names.name_of(topic) for topic in new])
        except BaseException:
            self._forget(new)
            raise

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """They may be topics that were not held."""
        self._forget(topics)

    def _forget(self, topics: Sequence[str]) -> None:
        for topic in topics:
            sid = self._sids.pop(topic, None)
            if sid is not None:
                del self._topics[sid]
                self.into.unsubscribe(sid)

    def _take(self, sid: int, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        topic = self._topics.get(sid)
        if topic is None:
            return
        if headers:
            self.inbox.put(Frame(topic, data, read_headers(headers)), len(data) + len(headers))
        else:
            self.inbox.put(Frame(topic, data), len(data))


class _JetStream:
    """NATS with a stream."""

    def __init__(self, out: Connection, into: Connection, inbox: Inbox, names: NameTable, stream: Stream) -> None:
        self._out = out
        self._stream = stream
        self._publisher = StreamPublisher(out, names, stream)
        self._consumer = Consumer(into, inbox, names, stream)
        into.on_message = self._consumer.take
        into.on_up = self._consumer.resume
        inbox.on_room = self._consumer.go_on

    async def start(self) -> None:
        """See whether the stream can be used."""
        await self._stream.check(self._out)
        self._consumer.start()

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Return when the stream has all of them."""
        await self._publisher.publish(frames)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Return when everything that is stored from now on will come."""
        await self._consumer.add(topics)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """They may be topics that were not held."""
        await self._consumer.remove(topics)

    async def close(self) -> None:
        """Give up what is under way."""
        await self._consumer.close()


async def _nobody(frames: Sequence[Frame]) -> None:
    """Nothing comes over the connection that publishes."""


@attrs.define(eq=False)
class _Opened:
    """What an adapter has while it is open."""

    out: Connection
    into: Connection
    mode: _Mode
    reading: asyncio.Task[None]
    on_state: StateHandler
    was_up: bool = True


class NatsAdapter(Adapter):
    """One client's connections to a NATS server."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        check_nats()
        self._url = read_url(url, RULES)
        self._stream: str | None = self._url.get("jetstream")
        if self._stream is None and "create" in self._url.parameters:
            raise ConfigurationError(
                f"{self._url.shown}: create is for a stream, and none is named; add jetstream=STREAM, or leave create out"
            )
        self._opened: _Opened | None = None
        self._is_cluster = False

    @property
    def capabilities(self) -> Capabilities:
        """A stream keeps what a lone server loses, and a cluster without one promises little."""
        is_stream = self._stream is not None
        is_weak = self._is_cluster and not is_stream
        return Capabilities(
            loses=is_weak,
            reorders=is_weak,
            duplicates=False,
            keeps_while_away=is_stream,
            carries_headers=True,
            confirms=True,
        )

    @property
    def frame_bytes_max(self) -> int | None:
        """The server's `max_payload`, which counts headers."""
        return self._opened.out.server.get("max_payload") if self._opened is not None else None

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Connect twice, and look at the stream. Cancelled or failed, it leaves nothing open."""
        if self._opened is not None:
            raise AdapterError(f"{self._url.shown}: this adapter is open already; each client has its own")
        inbox = Inbox(on_frames)
        has_replies = self._stream is not None
        out = Connection(self._url, Inbox(_nobody), self._changed, self.on_failure, has_replies=has_replies)
        into = Connection(self._url, inbox, self._changed, self.on_failure, has_replies=has_replies)
        mode = self._make_mode(out, into, inbox)
        try:
            await out.open()
            await into.open()
            await mode.start()
        except BaseException:
            await asyncio.gather(out.close(), into.close())
            raise
        self._is_cluster = bool(out.server.get("cluster") or out.server.get("connect_urls"))
        reading = into.supervisor.must(inbox.run(), "giving on what has come")
        self._opened = _Opened(out, into, mode, reading, on_state)
        self._changed("it broke while it was opened")

    def _make_mode(self, out: Connection, into: Connection, inbox: Inbox) -> _Mode:
        names = NameTable(NAMES)
        if self._stream is None:
            return _Core(out, into, inbox, names)
        return _JetStream(out, into, inbox, names, Stream(self._stream, self._url.get("create") == "true"))

    def _changed(self, reason: str) -> None:
        """One of the connections is up or down."""
        opened = self._opened
        if opened is None:
            return
        is_up = opened.out.is_up and opened.into.is_up
        if is_up != opened.was_up:
            opened.was_up = is_up
            opened.on_state(is_up, f"{self._url.shown}: {reason}")

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Return when the server, or its stream, has all of them."""
        await self._mode().publish(frames)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Return when the server knows. While the connection is broken, this waits for it."""
        await self._mode().subscribe(topics)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """What was on its way may still come."""
        await self._mode().unsubscribe(topics)

    async def close(self) -> None:
        """Disconnect. Whoever still waits for the server gets an error."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        await asyncio.gather(end(opened.reading), opened.mode.close(), opened.out.close(), opened.into.close())

    def _mode(self) -> _Mode:
        if self._opened is None:
            raise AdapterError(f"{self._url.shown}: this adapter is not open; await its open() first")
        return self._opened.mode
