"""What adapters to brokers have in common: a client that keeps itself connected.

Theory of operation
===================
An adapter has one `Connection` after the other, and nothing of a connection outlives it. To write an adapter, say how a URL and
a topic are spelled (`url_rules`, `name_rules`), and write a `Connection`: it connects, publishes, subscribes, brings what comes
(`BrokerAdapter.received`), and says once that it is over (`Connection.end`). All else is here:

    publish ──> Window ──> Connection (the broker's library, a client of its own) ──> received ──> on_frames ──> taken
                               └──> end ──> another one: open, subscribe to what is wanted, unsubscribe from what is not

- *One connection after the other.* When one ends, whoever waits for an answer gets an `AdapterError`, `on_state` is told, and
  the hosts of the URL are tried in turn, after pauses that grow and differ between clients, for as long as it takes.
- *Changes of subscriptions* happen one at a time. One that a broken connection interrupts is made over the next; one whose
  caller is cancelled goes on. What the broker could not be told to forget, the next connection tells it.
- *What came* is given on one call of `on_frames` at a time, as much at once as there is. When that has returned, the
  connection is told (`taken`), if it still lives. What an earlier connection brought is dropped if the new one brings it again.
- *What is published* and not confirmed is bounded (`Window`). Calls take turns in it, so that a long one does not hold up a
  short one for another topic, and the frames of one call keep their order.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

import attrs

from ordered_pubsub.adapter import Adapter, Frame, FramesHandler, StateHandler
from ordered_pubsub.errors import AdapterError, OrderedPubSubError
from ordered_pubsub.supervision import Backoff, Supervisor
from ordered_pubsub.wire import tasks
from ordered_pubsub.wire.tasks import end_task
from ordered_pubsub_adapters.names import NameRules, NameTable
from ordered_pubsub_adapters.urls import UrlRules, read_url

_log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 0.1, 5.0
ANSWER_S = 30.0
"""So long may a broker take to answer, and a change of subscriptions to find a connection that lasts."""
CLOSE_S = 2.0
"""So long may closing take before it is done without the broker."""
FRAME_BYTES = 1_000
"""What a frame takes in memory beside its payload, about."""

NamedFrames = Sequence[tuple[str, Frame]]
"""Frames, each with the broker's name of its topic."""
T = TypeVar("T")


async def in_time(work: Awaitable[T], seconds: float, otherwise: str) -> T:
    """The outcome of some work; if it takes longer, it is cancelled, and that is an `AdapterError`."""
    return await tasks.in_time(work, seconds, AdapterError(otherwise), CLOSE_S)


# -- what is published ------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Call:
    """One call of `publish`."""

    frames: NamedFrames
    done: asyncio.Future[None]
    sent: int = 0
    confirmed: int = 0

    def fail(self, error: Exception) -> None:
        """It does not matter any more what becomes of its frames."""
        if not self.done.done():
            self.done.set_exception(error)


@attrs.define(eq=False)
class Window:
    """What was sent over one connection and is not confirmed yet, and the calls that take turns in it."""

    send: Callable[[NamedFrames], Sequence[Hashable]]
    """sends frames, and returns for each a tag, by which it will be confirmed; raises an error if it cannot"""
    frames_max: int = 256
    bytes_max: int = 8 * 2**20
    """one frame may be larger; then it is alone"""
    turn_frames: int = 32
    _calls: deque[_Call] = attrs.field(factory=deque)
    """that have frames to send"""
    _unconfirmed: dict[Hashable, tuple[_Call, str, int]] = attrs.field(factory=dict)
    """tag -> whose frame it is, the name of its topic, and its size"""
    _bytes: int = 0
    _will_fill: bool = False

    def __len__(self) -> int:
        """How many frames are not confirmed."""
        return len(self._unconfirmed)

    async def publish(self, frames: NamedFrames) -> None:
        """Send frames as soon as there is room, and return when all of them are confirmed."""
        call = _Call(frames, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self.fill()
        await call.done

    def fill_soon(self) -> None:
        """Send what there is room for at the end of this turn of the loop, when more may have been confirmed."""
        if self._calls and not self._will_fill:
            self._will_fill = True
            asyncio.get_running_loop().call_soon(self.fill)

    def fill(self) -> None:
        """Send what there is room for, in turns."""
        self._will_fill = False
        calls = self._calls
        while calls and (room := self._room()) > 0:
            call = calls.popleft()
            if call.done.done():  # cancelled or refused: the rest is not sent
                continue
            part = call.frames[call.sent : call.sent + (min(room, self.turn_frames) if calls else room)]
            if sum(len(frame.payload) for _, frame in part) > self.bytes_max - self._bytes:
                part = part[:1]
            try:
                tags = self.send(part)
            except Exception as error:  # it is told to whoever publishes
                call.fail(error)
                continue
            for tag, (name, frame) in zip(tags, part, strict=True):
                self._unconfirmed[tag] = (call, name, len(frame.payload))
                self._bytes += len(frame.payload)
            call.sent += len(part)
            if call.sent < len(call.frames):
                calls.append(call)

    def _room(self) -> int:
        if self._unconfirmed and self._bytes >= self.bytes_max:
            return 0
        return self.frames_max - len(self._unconfirmed)

    def confirm(self, tag: Hashable) -> None:
        """The broker has taken a frame. To be followed by `fill`, or `fill_soon`."""
        found = self._unconfirmed.pop(tag, None)
        if found is not None:
            call, _, size = found
            self._bytes -= size
            call.confirmed += 1
            if call.confirmed == len(call.frames) and not call.done.done():
                call.done.set_result(None)

    def confirm_all(self) -> None:
        """The broker has taken all that was sent. To be followed by `fill`."""
        for tag in self.tags:
            self.confirm(tag)

    @property
    def tags(self) -> list[Hashable]:
        """Of the frames that are not confirmed."""
        return list(self._unconfirmed)

    def refuse(self, tag: Hashable, reason: Callable[[str], Exception]) -> None:
        """The broker has refused a frame; what is raised is made of its topic. To be followed by `fill`."""
        found = self._unconfirmed.pop(tag, None)
        if found is not None:
            call, _, size = found
            self._bytes -= size
            call.fail(reason(call.frames[0][1].topic))

    def refuse_all(self, is_it: Callable[[str], bool], reason: Callable[[str], Exception]) -> None:
        """The broker has refused what was sent on some names. To be followed by `fill`."""
        for tag in [tag for tag, (_, name, _) in self._unconfirmed.items() if is_it(name)]:
            self.refuse(tag, reason)

    def fail(self, reason: str) -> None:
        """What was not confirmed may be lost: nobody knows what became of the frames without a confirmation."""
        calls = dict.fromkeys(self._calls, True) | {call: True for call, _, _ in self._unconfirmed.values()}
        self._calls.clear()
        self._unconfirmed.clear()
        self._bytes = 0
        for call in calls:
            topic = call.frames[0][1].topic
            call.fail(AdapterError(f"{len(call.frames)} events on {topic!r} were not confirmed: {reason}"))


# -- a connection -----------------------------------------------------------------------------------------------------


class Connection(ABC):
    """One connection to the broker, from its beginning to its end. Its methods may raise an `AdapterError`."""

    brings_again = False
    """what the last connection brought, and nobody has taken, comes again over this one; known when the first of it comes"""
    greeting = ""
    """what more is told when it is there again"""
    window: Window | None = None
    """fails when the connection ends"""
    dropped = 0
    """how many messages could not be kept for the application, and were not reported yet"""

    def __init__(self, adapter: BrokerAdapter) -> None:
        self.adapter = adapter
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """done when it is over, with the reason"""
        self._asked: dict[Hashable, asyncio.Future[Any]] = {}

    @abstractmethod
    async def open(self, host: str, port: int) -> None:
        """Connect. It may be cancelled, and is closed then."""

    async def publish(self, frames: NamedFrames) -> None:
        """Return when the broker has taken all of them."""
        assert self.window is not None
        await self.window.publish(frames)

    @abstractmethod
    async def subscribe(self, names: Sequence[str]) -> None:
        """Return when whatever is published on these from now on will come. The broker may know some of them already."""

    @abstractmethod
    async def unsubscribe(self, names: Sequence[str]) -> None:
        """Return when the broker brings no more of these. It may not know some of them."""

    def taken(self, tokens: Sequence[Any]) -> None:  # noqa: B027  # not every broker needs to know
        """The application has taken something; these are the tokens of what came over this connection, if any, in order."""

    def report_dropped(self, what: str) -> None:
        """Say in the log how many messages were dropped since the last time, if any were."""
        if self.dropped:
            reason = "since the application did not take them"
            _log.warning("%s: %d %s were dropped, %s", self.adapter.shown, self.dropped, what, reason)
            self.dropped = 0

    @abstractmethod
    async def close(self, is_last: bool) -> None:
        """Leave nothing open. `is_last`: the client will not come back, and the broker may forget it."""

    @contextmanager
    def expecting(self, key: Hashable) -> Iterator[asyncio.Future[Any]]:
        """What will be said by `answer`, an error of ours if the connection ends before."""
        self._asked[key] = future = asyncio.get_running_loop().create_future()
        try:
            if self.ended.done():
                self._give_up(future)
            yield future
        finally:
            self._asked.pop(key, None)
            if future.done() and not future.cancelled():
                future.exception()  # whoever asked may have gone

    def answer(self, key: Hashable, what: Any = None) -> None:
        """The broker has answered; an exception is raised where it is waited for."""
        future = self._asked.get(key)
        if future is not None and not future.done():
            if isinstance(what, Exception):
                future.set_exception(what)
            else:
                future.set_result(what)

    def end(self, reason: str) -> None:
        """It is over."""
        if not self.ended.done():
            self.ended.set_result(reason)
            for future in self._asked.values():
                self._give_up(future)
            if self.window is not None:
                self.window.fail(f"{self.adapter.shown}: {reason}")
            self.adapter.lost(self, reason)

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(AdapterError(f"{self.adapter.shown}: no answer: {self.ended.result()}"))


# -- an adapter -------------------------------------------------------------------------------------------------------


class BrokerAdapter(Adapter):
    """A client of a broker, which keeps itself connected."""

    url_rules: ClassVar[UrlRules]
    name_rules: ClassVar[NameRules]
    kind: ClassVar[str] = "a broker"
    """what is expected at the other end, for error messages"""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.parsed = read_url(url, self.url_rules)
        self.shown = self.parsed.shown
        """the URL as it may be shown"""
        self._tasks: list[asyncio.Task[None]] = []
        self._connection: Connection | None = None
        self._host = 0
        """of the URL's hosts, the one that is tried first"""

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed."""
        return bool(self._tasks)

    @abstractmethod
    def make_connection(self) -> Connection:
        """A new connection, which is not open yet."""

    def begin(self) -> None:
        """It is being opened: forget what was known when it was open before."""

    def warn_of_loss(self, what: str, limit: str, otherwise: str) -> None:
        """Say in the log that the broker has not kept what came while we were away, why that may be, and what to do."""
        _log.warning(
            "%s: %s, and with it what was published meanwhile on %d topics: the client was away for more than %s, or %s. "
            "Subscriptions that miss events wait for them: close them, and subscribe again",
            self.shown, what, len(self.names.subscribed), limit, otherwise,
        )  # fmt: skip

    # -- its life -----------------------------------------------------------------------------------------------------

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Connect to the first of the hosts that lets us in. Cancelled or failed, it leaves nothing open."""
        if self._tasks:
            raise AdapterError(f"this adapter for {self.shown} is open already; each client has its own")
        self._on_frames, self._on_state, self._reason = on_frames, on_state, "it was closed"
        self.names = NameTable(self.name_rules)
        self._stale: dict[str, bool] = {}
        """names that the broker may bring, and that nobody wants"""
        self._frames: list[Frame] = []
        self._tokens: list[Any] = []
        self._source: Connection | None = None
        """what these tokens are of"""
        self.held_frames = self.held_bytes = 0
        """what came and was not taken"""
        self._news, self._up, self._turn = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self._changes: dict[asyncio.Task[None], bool] = {}
        self.supervisor = Supervisor(self.shown, self.on_failure)
        self.begin()
        await self._connect()
        self._tasks = [
            self.supervisor.keep(self._stay_connected, "staying connected"),
            self.supervisor.must(self._give_on(), "giving on what has come"),
        ]

    async def close(self) -> None:
        """Disconnect; whoever waits for the broker gets an `AdapterError`."""
        own, self._tasks = self._tasks, []
        if not own:
            return
        self._reason = "the adapter was closed"
        self._up.set()
        for task in (*own, *self._changes):
            await end_task(task)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end(self._reason)
            await connection.close(is_last=True)

    async def _connect(self) -> None:
        """Have a connection to the first of the hosts that lets us in."""
        refusals = []
        for _ in self.parsed.hosts:
            try:
                self._connection = await self._connect_to(*self.parsed.hosts[self._host])
            except AdapterError as error:
                refusals.append(str(error))
                self._host = (self._host + 1) % len(self.parsed.hosts)
            else:
                self._up.set()
                self._connection.taken(())
                return
        raise AdapterError("; ".join(refusals))

    async def _connect_to(self, host: str, port: int) -> Connection:
        connection = self.make_connection()
        try:
            await in_time(
                connection.open(host, port),
                self.parsed.connect_timeout_s,
                f"{self.shown}: {host}:{port} did not answer within {self.parsed.connect_timeout_s:g} s (connect_timeout_s); "
                f"is it {self.kind}, is the address right, and does the network let it through?",
            )
            try:
                await connection.subscribe(self.names.subscribed)
                await self._forget_stale(connection)
            except AdapterError:
                if not connection.ended.done():
                    raise
            if connection.ended.done():
                raise AdapterError(f"{self.shown}: the connection broke at once: {connection.ended.result()}")
        except BaseException:
            connection.end("it could not be used")
            await connection.close(is_last=False)
            raise
        return connection

    async def _stay_connected(self) -> None:
        while True:
            if self._connection is not None:  # else an error has ended this task before it had another one
                connection, reason = self._connection, await asyncio.shield(self._connection.ended)
                self._connection = None
                self._on_state(False, f"{self.shown}: the connection broke: {reason}")
                await connection.close(is_last=False)
            backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
            while not self._up.is_set():
                await backoff.pause()
                try:
                    await self._connect()
                except Exception as error:  # whatever it is, the next attempt may succeed
                    if self._reason != str(error):
                        self._reason = str(error)
                        is_expected = isinstance(error, OrderedPubSubError)
                        _log.warning("%s; trying again, for as long as it takes", error, exc_info=not is_expected)
            assert self._connection is not None
            self._on_state(True, f"{self.shown}: connected again{self._connection.greeting}")

    def lost(self, connection: Connection, reason: str) -> None:
        """A connection is over: nothing more is asked of it."""
        if connection is self._connection:
            self._up.clear()
            self._reason = reason

    async def _connected(self) -> Connection:
        """The connection, as soon as there is one; an error if it takes longer than connecting may."""
        if not self._tasks:
            raise AdapterError(f"{self.shown} is not open; await its open() first")
        if not self._up.is_set():
            with suppress(AdapterError):
                await in_time(self._up.wait(), self.parsed.connect_timeout_s, "it is not there yet")
        if not self._tasks or self._connection is None or not self._up.is_set():
            raise AdapterError(f"{self.shown} is not connected: {self._reason}")
        return self._connection

    def tell(self, what: str) -> None:
        """Tell the user something of a connection that stays."""
        _log.warning("%s %s", self.shown, what)
        self._on_state(True, f"{self.shown} {what}")

    # -- frames -------------------------------------------------------------------------------------------------------

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Return when the broker has taken all of them. While there is no connection, this waits a moment for one."""
        connection, name_of = await self._connected(), self.names.name_of
        if frames:
            await connection.publish([(name_of(frame.topic), frame) for frame in frames])

    def received(self, connection: Connection, frame: Frame | None, token: Any = None) -> None:
        """Something came over a connection: a frame, or what nobody wants but whose token is to be given back.

        What comes when it is over already does not count.
        """
        if connection.ended.done():
            return
        if connection is not self._source:
            self._source, self._tokens = connection, []
            if connection.brings_again:
                self.held_frames -= len(self._frames)
                self.held_bytes -= sum(len(one.payload) + FRAME_BYTES for one in self._frames)
                self._frames = []
        if frame is not None:
            self._frames.append(frame)
            self.held_frames += 1
            self.held_bytes += len(frame.payload) + FRAME_BYTES
        if token is not None:
            self._tokens.append(token)
        self._news.set()

    async def _give_on(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            source, tokens, frames = self._source, self._tokens, self._frames
            self._frames, self._tokens = [], []
            if frames:
                await self._on_frames(frames)
                self.held_frames -= len(frames)
                self.held_bytes -= sum(len(one.payload) + FRAME_BYTES for one in frames)
            if source is not None and not source.ended.done():  # it may be one that is being made
                source.taken(tokens)
            current = self._connection
            if current is not None and current is not source and not current.ended.done():
                current.taken(())

    # -- subscriptions ------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Return when the broker has agreed. While there is no connection, this waits a moment for one."""
        await self._connected()
        await self._change(self._subscribe(topics))

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Return when the broker brings no more of these. While there is no connection, it is told later."""
        if not self._tasks:
            raise AdapterError(f"{self.shown} is not open; await its open() first")
        await self._change(self._unsubscribe(topics))

    @property
    def is_changing(self) -> bool:
        """Whether the broker's answer to a change of subscriptions is waited for."""
        return self._turn.locked()

    async def _change(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that goes on if whoever waits for it is cancelled, and ends when the adapter is closed."""
        task = asyncio.ensure_future(work)
        self._changes[task] = True
        task.add_done_callback(self._changed)
        await asyncio.wait((task,))
        if task.cancelled():
            raise AdapterError(f"{self.shown} was closed meanwhile")
        task.result()

    def _changed(self, task: asyncio.Task[None]) -> None:
        self._changes.pop(task, None)
        if not task.cancelled():
            task.exception()  # whoever asked is told, if still there

    async def _subscribe(self, topics: Sequence[str]) -> None:
        """If the connection breaks before the broker has agreed, it is asked over the next one, as long as there is time."""
        async with self._turn:
            give_up_at = asyncio.get_running_loop().time() + ANSWER_S
            while True:
                connection = await self._connected()
                new = [
                    topic for topic in dict.fromkeys(topics) if self.names.topic_of(self.names.name_of(topic)) is None
                ]
                names = [self.names.subscribe(topic) for topic in new]
                for name in names:
                    self._stale.pop(name, None)
                try:
                    if names:
                        await connection.subscribe(names)
                    return
                except BaseException as error:
                    self._leave(new)
                    has_broken = type(error) is AdapterError and connection.ended.done()  # any other is a refusal
                    if not has_broken or asyncio.get_running_loop().time() > give_up_at:
                        raise

    async def _unsubscribe(self, topics: Sequence[str]) -> None:
        async with self._turn:
            self._leave(topics)
            connection = self._connection
            if connection is not None and not connection.ended.done():
                try:
                    await self._forget_stale(connection)
                except AdapterError:
                    if not connection.ended.done():
                        raise

    def _leave(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._stale[self.names.unsubscribe(topic)] = True

    async def _forget_stale(self, connection: Connection) -> None:
        """Tell the broker what nobody wants."""
        if names := list(self._stale):
            await connection.unsubscribe(names)
            for name in names:
                self._stale.pop(name, None)
