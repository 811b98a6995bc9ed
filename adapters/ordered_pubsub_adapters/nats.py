"""`nats://` and `tls://`: NATS, core or with JetStream.

    nats://[user:password@ or token@]host[:4222][,host2...]?jetstream=STREAM&create=true
    tls://...?ca=FILE&cert=FILE&key=FILE

Theory of operation
===================
A topic is a subject, with dots for slashes: `eu/trades` is `eu.trades`. A frame's payload is the message's, and its headers are
the message's headers, so plain clients publish and subscribe as ever.

*Core NATS* (here) passes on what comes and stores nothing. `publish` returns when the server has answered a PING that was
written behind the frames. While a subscriber's connection lasts, one server loses nothing: it would rather cut off who reads too
slowly (after 10 s in which it could not write, `write_deadline`, or with 64 MiB to be written, `max_pending`) than skip a
message. What is published while a connection is away is missed. In a cluster, subscriptions reach the other servers some time
after the answer, connections between servers break unnoticed, and two ways may take different times: so there the capabilities
say that frames get lost and reordered.

nats-py itself never stops reading, and drops what is not taken. `_nats_fast` stops. With a release of nats-py that it does not
fit, messages are dropped when `HELD_BYTES_MAX` wait, and the capabilities say so. An adapter has two connections then: one that
publishes and one that reads, since an application that publishes in its handler must not wait for itself.

*JetStream* (`jetstream=STREAM`, `nats_jetstream.py`) stores what is published in a stream and acknowledges it, so nothing is
missed. With `create=true` the stream is made when it does not exist, without limits, and is given the subjects of topics as they
are used. That is for tests and small systems; otherwise make it with subjects that cover all topics
(`nats stream add EVENTS --subjects 'eu.>'`), and with limits that keep messages for longer than any subscriber is away.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from nats import errors
from nats.aio.msg import Msg

from ordered_pubsub.adapter import Capabilities, Frame
from ordered_pubsub.errors import AdapterError, ConfigurationError, OrderedPubSubError
from ordered_pubsub.wire.tasks import end_task
from ordered_pubsub_adapters._nats_client import NEVER_S, NatsClient, dial, ours
from ordered_pubsub_adapters._nats_fast import FastClient, Headers, MessageHandler, check_safe, fitness
from ordered_pubsub_adapters._nats_headers import header_block, read_headers, write_headers
from ordered_pubsub_adapters.base import BrokerAdapter, Connection, NamedFrames
from ordered_pubsub_adapters.names import NameRules
from ordered_pubsub_adapters.urls import UrlRules, file_name, one_of

_log = logging.getLogger(__name__)

PORT = 4222
KEEPALIVE_S = 20.0
"""A connection is asked whether it lives after so long, and has as long again to answer."""
LOOK_S = 0.2
"""nats-py does not always tell when a connection is over."""
HELD_BYTES_MAX = 4 * 2**20
"""When so much waits for the application, nothing more is read."""
HELD_BYTES_MAX_WHILE_CHANGING = 80 * 2**20
"""While the answer to a subscription is waited for, which stands behind frames: more than a server keeps for one connection
before it cuts it off (`max_pending`, 64 MiB unless it was changed)."""
PIECE_FRAMES, PIECE_BYTES = 1_000, 2**18
"""What is written at once."""
HEADERS_ROOM = 65_536
"""A payload that leaves so much of `max_payload` free needs no closer look."""
REFUSALS_MAX = 4_096
NOBODY = "_INBOX.nobody."
"""An inbox to which nothing is sent."""
SLOW_S, RECENT_S = 0.3, 30.0
"""A connection that was not read for so long may have been cut off for that, if it was not longer ago than this."""

_QUOTED = re.compile(r'"(.*)"')
_STREAM_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f\"]{1,255}")


class Refusals:
    """What the server did not permit lately on one connection.

    It says so before it answers the PING behind it, and names the subject; nats-py makes all letters small. A subject that is
    escaped, or that cannot be kept, may be anybody's: so everybody who waits then is refused.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[str, tuple[int, str]] = {}
        self._last_of_anybody = (0, "")

    def add(self, text: str) -> str | None:
        """The server has refused something; returns the subject, None if it may be any."""
        self.count += 1
        found = _QUOTED.search(text)
        if found is None or not set('"\\').isdisjoint(found[1]) or len(self._last) >= REFUSALS_MAX:
            self._last.clear()
            self._last_of_anybody = (self.count, text)
            return None
        subject = found[1].casefold()
        self._last[subject] = (self.count, text)
        return subject

    def check(self, shown: str, subjects: Iterable[str], since: int) -> None:
        """Raise if something on one of these subjects was refused when more than `since` had been."""
        if self.count > since:
            said = [self._last.get(subject.casefold(), (0, "")) for subject in subjects]
            for number, text in (self._last_of_anybody, *said):
                if number > since:
                    raise not_permitted(shown, text)


def not_permitted(shown: str, text: str) -> AdapterError:
    """The error of who asked for what the server does not permit."""
    return AdapterError(f"{shown}: the server does not permit this user what it asked for ({text}); grant it there")


class Client:
    """A client of nats-py, watched, and fast if it can be."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self.adapter = connection.adapter
        self.refusals = Refusals()
        self.is_fast = False
        self._room = asyncio.Event()
        self._room.set()
        self._trouble: Exception | None = None
        self._shut_at = self._held_up_s = self._read_on_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._flushes: dict[asyncio.Task[None], asyncio.Future[None]] = {}
        """who sends a PING, and the answer to it"""
        self._next_pong: asyncio.Future[None] | None = None

    async def open(
        self, host: str, port: int, on_message: MessageHandler, subjects: Mapping[bytes, Any], inbox: str
    ) -> None:
        """Connect. What comes on these subjects, below this inbox, and of a stream is given to `on_message`."""
        url = self.adapter.parsed
        fit = await fitness()
        check_safe(fit, url.is_encrypted, url.shown)
        self.is_fast, self._on_message = fit.is_fast, on_message
        self.nats: NatsClient = NatsClient(url.is_encrypted)
        if fit.is_fast:
            self.nats = fast = FastClient(url.is_encrypted, on_message, subjects, inbox)
            self._room = fast.room
        self._connection.clients.append(self)
        try:
            await dial(self.nats, url, host, port, error_cb=self._report, closed_cb=self._closed)
        except OrderedPubSubError as error:
            if self._trouble is not None and type(error) is AdapterError:
                raise AdapterError(f"{error} ({self._trouble})") from error
            raise
        if self.nats.greeting and not self.nats.greeting.get("headers"):
            raise AdapterError(
                f"{url.shown}: the server carries no headers; take one from version 2.2 on, and not no_header_support"
            )
        keep = self.adapter.supervisor.keep
        self._tasks = [keep(self._watch, "watching the connection"), keep(self._keep_alive, "asking whether it lives")]

    async def close(self) -> None:
        """Disconnect."""
        for task in (*self._tasks, *self._flushes):
            await end_task(task)
        self._room.set()
        await self.nats.finish()

    # -- whether it lives ---------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self.nats.is_closed:  # noqa: ASYNC110  # nobody tells, see LOOK_S
            await asyncio.sleep(LOOK_S)
        await self._closed()

    async def _closed(self) -> None:
        self._connection.end(self._reason)

    async def _report(self, error: Exception) -> None:
        """nats-py met an error. Of what the server refuses it goes on; whatever else it is ends the connection."""
        text = str(error)
        if "permissions violation" in text.lower():
            _log.warning("%s: %s", self.adapter.shown, text)
            self._connection.refused(self.refusals.add(text), text)
        else:
            self._trouble = error

    @property
    def _reason(self) -> str:
        """Why it is over, as far as that is known."""
        error = self.nats.last_error or self._trouble
        is_cut = error is None or isinstance(error, errors.UnexpectedEOF)
        text = "the server closed the connection" if is_cut else str(error) or type(error).__name__
        held_up_s = monotonic() - self._shut_at if not self._room.is_set() else self._held_up_s
        is_recent = not self._room.is_set() or monotonic() - self._read_on_at < RECENT_S
        if held_up_s < SLOW_S or not is_recent:
            return text
        return (
            f"{text}; for {held_up_s:.3g} s nothing had been read, because the application did not take what had come: "
            "a server cuts off who reads too slowly (its write_deadline and max_pending)"
        )

    async def _keep_alive(self) -> None:
        """End a connection that does not answer. One that is not read is left alone."""
        while True:
            await asyncio.sleep(KEEPALIVE_S)
            pong = self._pong()
            heard = -1
            while not pong.done() and (heard != self.nats.heard or not self._room.is_set()):
                heard = self.nats.heard
                await asyncio.wait((pong,), timeout=KEEPALIVE_S)
            if not pong.done():
                self._connection.end(f"no answer within {KEEPALIVE_S:g} s")

    def _pong(self) -> asyncio.Future[None]:
        """The answer to a PING behind all that was sent in this turn of the loop; all who ask in this turn share it."""
        if self._next_pong is None:
            self._next_pong = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(self._flush())
            self._flushes[task] = self._next_pong
            task.add_done_callback(self._flushes.pop)
        return self._next_pong

    async def _flush(self) -> None:
        """Is not cancelled before the connection is over: nats-py cannot bear that."""
        pong, self._next_pong = self._next_pong, None
        assert pong is not None
        reason = "it was closed"
        try:
            if isinstance(self.nats, FastClient):
                self.nats.write_out()
            await self.nats.flush(NEVER_S)
            if not pong.done():
                pong.set_result(None)
        except (errors.Error, OSError, asyncio.TimeoutError) as error:
            reason = str(error)
        finally:
            self._give_up(pong, reason)

    def give_up(self, reason: str) -> None:
        """The connection is over: nobody waits for an answer any more."""
        for pong in (*self._flushes.values(), *filter(None, (self._next_pong,))):
            self._give_up(pong, reason)

    def _give_up(self, pong: asyncio.Future[None], reason: str) -> None:
        if not pong.done():
            what = "nobody knows whether the server has what was sent"
            pong.set_exception(AdapterError(f"{self.adapter.shown}: {what}: {reason}"))
            pong.exception()  # who asked may have gone

    async def settle(self, was_written: bool = False) -> None:
        """Return when the server has handled everything that was sent before.

        nats-py writes a PING before what is pending; so the one that counts is the second, unless all was written already.
        """
        if not was_written:
            await asyncio.shield(self._pong())
        await asyncio.shield(self._pong())

    # -- what comes ---------------------------------------------------------------------------------------------------

    async def subscribe(self, subject: str) -> Any:
        """Let messages come."""
        with ours(self.adapter.shown, "subscribing"):
            return await self.nats.subscribe(subject, cb=None if self.is_fast else self._read)

    async def _read(self, message: Msg) -> None:
        """nats-py has read a message itself."""
        self.nats.heard += 1
        self._on_message(message.subject, message.reply, read_headers(message.headers), message.data)

    def shut(self) -> None:
        """Read nothing more, if that can be done."""
        if self._room.is_set():
            self._room.clear()
            self._shut_at = monotonic()

    def reopen(self) -> None:
        """Read on."""
        if not self._room.is_set():
            self._read_on_at = monotonic()
            self._held_up_s = self._read_on_at - self._shut_at
            self._room.set()

    # -- what goes ----------------------------------------------------------------------------------------------------

    def check_size(self, frame: Frame) -> None:
        """Raise if the server would not take a frame."""
        most = self.nats.max_payload
        if len(frame.payload) + HEADERS_ROOM > most:
            size = len(frame.payload) + (len(header_block(frame.headers)) if frame.headers else 0)
            if size > most:
                raise AdapterError(
                    f"{self.adapter.shown}: a message on {frame.topic!r} has {size:,} bytes with its headers, and the server "
                    f"takes {most:,}; raise max_payload in its configuration"
                )

    async def publish(self, frames: NamedFrames, replies: Sequence[str] = ()) -> None:
        """Have nats-py publish them."""
        to = replies or [""] * len(frames)
        with ours(self.adapter.shown, "publishing"):
            for (name, frame), reply in zip(frames, to, strict=True):
                await self.nats.publish(name, frame.payload, reply, headers=write_headers(frame.headers))


class NatsConnection(Connection):
    """What core NATS and JetStream have in common."""

    adapter: NatsAdapter

    def __init__(self, adapter: NatsAdapter) -> None:
        super().__init__(adapter)
        self.clients: list[Client] = []

    def refused(self, subject: str | None, text: str) -> None:
        """The server does not permit something on a subject; None is any of them."""

    def end(self, reason: str) -> None:
        """It is over."""
        super().end(reason)
        for client in self.clients:
            client.give_up(self.ended.result())

    async def close(self, is_last: bool) -> None:
        """NATS forgets who is not there."""
        await asyncio.gather(*(client.close() for client in self.clients))


class CoreConnection(NatsConnection):
    """NATS without a stream: a connection that publishes, and one that reads."""

    def __init__(self, adapter: NatsAdapter) -> None:
        super().__init__(adapter)
        self._out, self._into = Client(self), Client(self)
        self._topics: dict[bytes, str] = {}
        self._subscriptions: dict[str, Any] = {}

    async def open(self, host: str, port: int) -> None:
        """Connect twice."""
        await self._out.open(host, port, self._came, {}, NOBODY)
        await self._into.open(host, port, self._came, self._topics, NOBODY)
        greeting = self._out.nats.greeting
        self.adapter.is_cluster = bool(greeting.get("cluster") or greeting.get("connect_urls"))
        self.adapter.is_fast, self.adapter.bytes_max = self._into.is_fast, self._out.nats.max_payload

    async def publish(self, frames: NamedFrames) -> None:
        """Return when the server has passed all of them on."""
        out, begin, size = self._out, 0, 0
        for _, frame in frames:
            out.check_size(frame)
        for at, (_, frame) in enumerate(frames, 1):
            size += len(frame.payload)
            if at == len(frames) or at - begin == PIECE_FRAMES or size > PIECE_BYTES:
                await self._publish(frames[begin:at])
                begin, size = at, 0

    async def _publish(self, piece: NamedFrames) -> None:
        since = self._out.refusals.count
        if isinstance(self._out.nats, FastClient):
            self._out.nats.write(piece)
        else:
            await self._out.publish(piece)
        await self._out.settle(was_written=self._out.is_fast)
        if self._out.refusals.count > since:
            self._out.refusals.check(self.adapter.shown, (name for name, _ in piece), since)

    async def subscribe(self, names: Sequence[str]) -> None:
        """A subscription for each."""
        new = [name for name in names if name not in self._subscriptions]
        since = self._into.refusals.count
        self._into.reopen()  # the answer stands behind frames
        try:
            for name in new:
                self._topics[name.encode()] = name
                self._subscriptions[name] = await self._into.subscribe(name)
            await self._into.settle()
            self._into.refusals.check(self.adapter.shown, new, since)
        except BaseException:
            await self.unsubscribe(new)
            raise

    async def unsubscribe(self, names: Sequence[str]) -> None:
        """What is on its way may still come."""
        for name in names:
            self._topics.pop(name.encode(), None)
            subscription = self._subscriptions.pop(name, None)
            if subscription is not None and not self.ended.done():
                with ours(self.adapter.shown, "unsubscribing"):
                    await subscription.unsubscribe()

    def _came(self, subject: str, _: str, headers: Headers, data: bytes) -> None:
        adapter = self.adapter
        topic = adapter.names.topic_of(subject)
        if topic is None:
            return
        held = adapter.held_bytes
        is_full = held > HELD_BYTES_MAX and (not adapter.is_changing or held > HELD_BYTES_MAX_WHILE_CHANGING)
        if is_full and not self._into.is_fast:
            self.dropped += 1
            return
        adapter.received(self, Frame(topic, data, headers))
        if is_full:
            self._into.shut()

    def taken(self, tokens: Sequence[Any]) -> None:
        """There is room again."""
        self._into.reopen()
        self.report_dropped("messages")


# -- the adapter ------------------------------------------------------------------------------------------------------


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
    parameters={"jetstream": stream_name, "create": one_of("true", "false"), "creds": file_name, "nkey": file_name},
)
# A server reads lines of 4,096 bytes.
NAMES = NameRules(separator=".", special="*>", bytes_max=1_024, reserved=("$", "_INBOX"))


class NatsAdapter(BrokerAdapter):
    """One client of a NATS server."""

    url_rules = RULES
    name_rules = NAMES
    kind = "a NATS server"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.stream_name: str | None = self.parsed.get("jetstream")
        self.may_create = self.parsed.get("create") == "true"
        if self.stream_name is None and "create" in self.parsed.parameters:
            raise ConfigurationError(
                f"{self.shown}: create is for a stream, and none is named; add jetstream=STREAM, or leave create out"
            )
        self.bytes_max: int | None = None
        self.is_cluster, self.is_fast = False, True
        """as far as that is known"""

    def begin(self) -> None:
        """Read the stream from its end."""
        if self.stream_name is not None:
            from ordered_pubsub_adapters.nats_jetstream import Stream

            self.stream = Stream(self, self.stream_name, self.may_create)

    @property
    def capabilities(self) -> Capabilities:
        """A stream keeps what a lone server loses, and a cluster without one promises little."""
        is_stream = self.stream_name is not None
        return Capabilities(
            loses=not is_stream and (self.is_cluster or not self.is_fast),
            reorders=not is_stream and self.is_cluster,
            duplicates=False,
            keeps_while_away=is_stream,
            carries_headers=True,
            confirms=True,
        )

    @property
    def frame_bytes_max(self) -> int | None:
        """The server's `max_payload`, which counts headers."""
        return self.bytes_max if self.is_open else None

    def make_connection(self) -> NatsConnection:
        """New clients of nats-py."""
        if self.stream_name is None:
            return CoreConnection(self)
        from ordered_pubsub_adapters.nats_jetstream import StreamConnection

        return StreamConnection(self)
