"""One connection to a NATS server, which comes back by itself.

Theory of operation
===================
Each connection is a client of nats-py of its own, from its beginning to its end. nats-py's `flush` writes its PING before what
was published, so the PONG says nothing; and what is still to be written when a connection breaks it writes to the next one,
long after the publisher was told that it failed. So that is not used. Here everything of one turn of the event loop is one
write, with one PING behind it for all who wait, and what was not written dies with its connection.

A connection that broke is made again for ever, after pauses that grow and are cut by chance. Then its subscriptions are made
again, `on_up` does what else is needed, and only then is it up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from random import sample
from typing import Any

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError, OrderedPubSubError
from ordered_pubsub.supervision import Backoff, Failing, Supervisor
from ordered_pubsub_adapters.names import NameTable
from ordered_pubsub_adapters.nats_client import MessageHandler, NatsClient, dial
from ordered_pubsub_adapters.nats_inbox import Inbox
from ordered_pubsub_adapters.nats_refusals import Refusals
from ordered_pubsub_adapters.nats_replies import Replies
from ordered_pubsub_adapters.nats_waiting import bounded, end, settle
from ordered_pubsub_adapters.nats_wire import PING, command, header_block, plain, subscription, unsubscription
from ordered_pubsub_adapters.urls import BrokerUrl

_log = logging.getLogger(__name__)

KEEPALIVE_S = 20.0
"""A connection on which nothing came for so long is asked whether it lives, and has as long again to answer."""
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 5.0
WAIT_S = 30.0
"""How long a subscription waits for a connection."""
ASK_AGAIN_S = 5.0
ASK_ATTEMPTS = 6
PAYLOAD_BYTES_MAX = 2**20
"""of a message with its headers, if the server does not say"""
REPLIES = 1
"""The number of the subscription to answers."""


class Connection:
    """A connection to the server of a URL."""

    def __init__(
        self,
        url: BrokerUrl,
        inbox: Inbox,
        on_change: Callable[[str], None],
        on_failure: Failing,
        *,
        has_replies: bool,
    ) -> None:
        self.url = url
        self.supervisor = Supervisor(url.shown, on_failure)
        self.on_message: MessageHandler = _ignore
        self.on_up: Callable[[], Awaitable[None]] = self.flush
        """what is to be done when it has come back"""
        self.why_down = "it is not open"
        self.turn = 0
        """how many PINGs were written: what is sent now is refused, if it is, when as many were answered, or later"""
        self._refusals = Refusals()
        self.replies = Replies()
        self._inbox = inbox
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._client: NatsClient | None = None
        self._last: NatsClient | None = None
        self._up = asyncio.Event()
        self._is_closed = False
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._keeper: asyncio.Task[None] | None = None
        self._subjects: dict[int, str] = {}
        self._sid = REPLIES
        self._outgoing: list[bytes] = []
        self._next_pong: asyncio.Future[str] | None = None
        if has_replies:
            self._subjects[REPLIES] = self.replies.pattern

    # -- its life ---------------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether it can be used."""
        return self._up.is_set() and not self._is_closed

    @property
    def server(self) -> Mapping[str, Any]:
        """What the server said of itself when it was last reached."""
        return self._last.server if self._last else {}

    async def open(self) -> None:
        """Connect. Failed or cancelled, nothing is left."""
        await self._connect()
        self._keeper = self.supervisor.keep(self._keep, "staying connected")

    async def close(self) -> None:
        """Disconnect. What waits is told that it failed."""
        self._is_closed = True
        self._up.set()
        if self._keeper is not None:
            await end(self._keeper)
        self._lost(self._client, "it was closed")
        if self._last is not None:
            await self._last.finish()

    def fail(self, reason: str) -> None:
        """Something is wrong with this connection: begin anew."""
        self._lost(self._client, reason)

    async def _connect(self) -> None:
        client = self._last = await self._reach()
        self._client = client
        self._ended = self._loop.create_future()
        client.reading.add_done_callback(lambda _: self._lost(client, client.reason))
        try:
            self._check_headers()
            self.send(*(subscription(subject, sid) for sid, subject in self._subjects.items()))
            await self._make_up()
            self._check(client)
        except BaseException:
            self._lost(client, "it could not be used")
            await client.finish()
            raise
        self._up.set()
        self._on_change("connected")

    async def _make_up(self) -> None:
        """Do what is needed on a new connection; not for ever, if the server falls silent."""
        watch = self._loop.create_task(self._watch(), name=f"{self.url.shown} watches its new connection")
        try:
            await self.on_up()
        finally:
            await end(watch)

    async def _reach(self) -> NatsClient:
        """The first of the URL's servers that lets us in, in any order."""
        trouble: OrderedPubSubError | None = None
        for host, port in sample(self.url.hosts, len(self.url.hosts)):
            client = NatsClient(self._take, self._inbox, self._refused, self.url.is_encrypted)
            try:
                await dial(client, self.url, host, port)
            except OrderedPubSubError as error:
                trouble = error
            else:
                return client
        raise trouble or AdapterError(f"{self.url.shown}: names no host")

    def _lost(self, client: NatsClient | None, reason: str) -> None:
        """A connection is over: nothing more goes out on it, and whoever waits for an answer gets none."""
        if client is None or client is not self._client:
            return
        self._client = None
        self.why_down = reason
        client.abort()
        for future in [*client.pongs, self._next_pong] if self._next_pong else client.pongs:
            settle(future, reason)
        self._next_pong = None
        self.replies.give_up(reason)
        settle(self._ended, reason)
        if self._up.is_set() and not self._is_closed:
            self._up.clear()
            self._on_change(reason)

    async def _keep(self) -> None:
        """Connect again whenever the connection breaks."""
        while True:
            await self._watch()
            if self._last is not None:
                await self._last.finish()
            await self._connect_again()

    async def _watch(self) -> None:
        """Return when the connection is over; it is, too, if it does not answer. One that is not read is left alone."""
        pong, heard = None, -1
        while not (await asyncio.wait((self._ended,), timeout=KEEPALIVE_S))[0]:
            now_heard = self._client.heard if self._client else 0
            if pong is None or pong.done() or now_heard != heard or self._inbox.is_full:
                pong, heard = self._pong(), now_heard  # PINGs also tell the server that we live
            else:
                self.fail(f"no answer within {KEEPALIVE_S:g} s")

    async def _connect_again(self) -> None:
        backoff, told = Backoff(RETRY_FIRST_S, RETRY_MOST_S), ""
        while True:
            await backoff.pause()
            try:
                return await self._connect()
            except Exception as error:  # whatever it is, the next attempt may succeed
                self.why_down = str(error)
                if self.why_down != told:
                    expected = isinstance(error, OrderedPubSubError)
                    _log.warning("%s; trying again, for as long as it takes", error, exc_info=not expected)
                    told = self.why_down

    async def wait_until_up(self, timeout_s: float = WAIT_S) -> None:
        """Return when it can be used."""
        try:
            await bounded(self._up.wait(), timeout_s)
        except asyncio.TimeoutError:
            raise self.error(f"not connected within {timeout_s:g} s: {self.why_down}") from None
        self.check_up()

    def check_up(self) -> None:
        """Raise if it cannot be used now."""
        if self._is_closed:
            raise self.error("the adapter was closed meanwhile; open another one")
        if not self.is_up:
            raise self.error(f"not connected: {self.why_down}. It connects again by itself")

    def _check_headers(self) -> None:
        if not self.server.get("headers"):
            version = self.server.get("version", "unknown")
            raise self.error(
                f"the server (version {version}) carries no headers; take one from 2.2 on, and not no_header_support"
            )

    def _check(self, client: NatsClient) -> None:
        if client is not self._client:
            raise self.error(self.why_down)

    def error(self, text: str) -> AdapterError:
        """An error, with the address."""
        return AdapterError(f"{self.url.shown}: {text}")

    # -- out --------------------------------------------------------------------------------------------------------------

    def send(self, *commands: bytes) -> None:
        """Write these at the end of this turn of the event loop, if the connection lives."""
        if self._client is not None:
            if not self._outgoing and self._next_pong is None:
                self.supervisor.soon(self._write, "writing")
            self._outgoing += commands

    def publish(self, frames: Sequence[Frame], names: NameTable, reply: bytes = b"") -> None:
        """Send frames, and raise if the server would not take one."""
        payload_max = self.server.get("max_payload", PAYLOAD_BYTES_MAX)
        commands = []
        for frame in frames:
            text = command(names.name_of(frame.topic).encode(), reply, frame)
            if len(text) > payload_max:
                self._check_size(frame, payload_max)
            commands.append(text)
        self.send(*commands)

    def _check_size(self, frame: Frame, payload_max: int) -> None:
        size = len(frame.payload) + (len(header_block(frame.headers)) if frame.headers else 0)
        if size > payload_max:
            raise self.error(
                f"a message on {frame.topic!r} has {size:,} bytes with its headers, and the server takes {payload_max:,}; raise "
                "max_payload in its configuration"
            )

    def _pong(self) -> asyncio.Future[str]:
        """The answer to a PING behind everything that was sent: empty, or why there is none. It is shared."""
        if self._next_pong is None:
            future: asyncio.Future[str] = self._loop.create_future()
            if self._client is None:
                settle(future, self.why_down)
                return future
            if not self._outgoing:
                self.supervisor.soon(self._write, "writing")
            self._next_pong = future
        return self._next_pong

    def _write(self) -> None:
        client, commands, pong = self._client, self._outgoing, self._next_pong
        self._outgoing, self._next_pong = [], None
        if client is None:
            return  # what was to be written dies with its connection
        if pong is not None:
            commands.append(PING)
            client.pongs.append(pong)
            self.turn += 1
        if commands:
            client.write(b"".join(commands))

    async def flush(self) -> None:
        """Return when the server has handled everything that was sent before; raise if the connection breaks."""
        trouble = await asyncio.shield(self._pong())
        if trouble:
            raise self._broken(trouble)

    def check_refusals(self, subjects: Iterable[str], since: int) -> None:
        """Raise if the server has refused something on one of these subjects that was sent in this `turn` or later."""
        text = self._refusals.on(subjects, since)
        if text:
            raise self.error(f"the server does not permit this user what it asked for ({text}); grant it there")

    def _refused(self, text: str) -> None:
        _log.warning("%s: %s", self.url.shown, text)
        self._refusals.add(text, self.turn - (len(self._client.pongs) if self._client else 0))

    # -- in ---------------------------------------------------------------------------------------------------------------

    def subscribe(self, subject: str) -> int:
        """Let messages of a subject come, now and after each break; returns the number under which they do."""
        self._sid += 1
        self._subjects[self._sid] = subject
        self.send(subscription(subject, self._sid))
        return self._sid

    def unsubscribe(self, sid: int) -> None:
        """Let no more messages come under this number."""
        if self._subjects.pop(sid, None) is not None:
            self.send(unsubscription(sid))

    async def settle(self, subjects: Iterable[str]) -> None:
        """Return when the server has all subscriptions that were made so far, over breaks if need be."""
        give_up_at, since = self._loop.time() + WAIT_S, self.turn
        with self._inbox.more_room():
            while True:
                await self.wait_until_up(max(give_up_at - self._loop.time(), 0.0))
                with suppress(AdapterError):
                    await self.flush()
                    break
        self.check_refusals(subjects, since)

    async def request(self, subject: str, payload: bytes = b"") -> tuple[bytes | None, bytes]:
        """Ask, and return the answer's header block and payload.

        A busy server was seen to lose an answer now and then, so it is asked again. Whoever asks must stand that.
        """
        came: list[tuple[bytes | None, bytes]] = []

        def read(headers: bytes | None, data: bytes) -> str:
            came.append((headers, data))
            return ""

        answers = self.replies.expect(1, read)
        try:
            with self._inbox.more_room():
                for _ in range(ASK_ATTEMPTS):
                    since = self.turn
                    self.send(plain(subject, answers.reply, payload))
                    await self.flush()
                    self.check_refusals((subject,), since)
                    await asyncio.wait((answers.done,), timeout=ASK_AGAIN_S)
                    if answers.done.done():
                        break
        finally:
            self.replies.forget(answers)
        if came:
            return came[0]
        if answers.done.done():
            raise self._broken(answers.done.result())
        raise self.error(
            f"no answer to {subject} within {ASK_ATTEMPTS * ASK_AGAIN_S:g} s; is JetStream well on the server?"
        )

    def _broken(self, reason: str) -> AdapterError:
        return self.error(f"the connection broke before the server answered: {reason}")

    def _take(self, sid: int, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        if sid != REPLIES:
            self.on_message(sid, subject, reply, headers, data)
        else:
            self.replies.take(subject, headers, data)


def _ignore(sid: int, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
    """Nobody wants it."""
