"""A bad network between subscribers and their broker: a TCP proxy that loses, repeats and delays events.

Bytes from a subscriber pass untouched. What the broker says is cut into frames (`broker_frames`), and each frame with an event
(a PUBLISH of QoS 0, a MSG or HMSG) has its fate drawn from the seed: it is dropped, or sent twice, the second time later, or
sent later only. Later means after 1 to `OVERTAKERS_MAX` following events, or when `HOLD_S` have passed and not so many have come.
All else passes as it came, PUBLISH packets of QoS 1 and 2 included: they are never dropped, repeated or delayed.

What is held back is bounded: `OVERTAKERS_MAX` frames of each connection. Where one side reads slowly, the other is made to wait.

Under load it needs a process of its own: a `WorkerProcess` (`ordered_pubsub.testing.processes`) that runs `serve`, with a plan
such as `{"target": "127.0.0.1:1883", "kind": "mqtt", "drop": 0.1, "repeat": 0.1}`. It says where it listens, and, when it is told
to finish, what it has done.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from random import Random
from typing import Any, cast

import attrs

from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub.testing.broker_frames import SPLITTERS, FrameSplitter
from ordered_pubsub.testing.processes import Starter

OVERTAKERS_MAX = 16
HOLD_S = 0.05
DIAL_S = 10.0


def _check_share(_: Loss, field: attrs.Attribute[float], share: float) -> None:
    if not 0 <= share <= 1:
        raise ConfigurationError(
            f"{field.name}={share!r} does not fit; {field.name} is a share of the events, from 0 to 1"
        )


@attrs.frozen
class Loss:
    """Of all events, the shares that are dropped, repeated and delayed."""

    drop: float = attrs.field(default=0.0, validator=_check_share)
    repeat: float = attrs.field(default=0.0, validator=_check_share)
    delay: float = attrs.field(default=0.0, validator=_check_share)

    def __attrs_post_init__(self) -> None:
        if self.drop + self.repeat + self.delay > 1 + 1e-9:
            raise ConfigurationError(
                f"{self} does not fit: each event has one fate, so the shares are at most 1 together; lower one"
            )


@attrs.define
class Losses:
    """What was done to events."""

    events: int = 0
    dropped: int = 0
    repeated: int = 0
    delayed: int = 0


@attrs.define(eq=False)
class Fates:
    """What becomes of the events of one connection."""

    splitter: FrameSplitter
    loss: Loss
    random: Random
    losses: Losses
    _count: int = 0
    _held: list[tuple[int, int, bytes]] = attrs.field(factory=list)
    """(after how many events it is sent, how many had come before it, the frame)"""

    @property
    def holds(self) -> bool:
        """Whether anything is to be sent later."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """Take what the broker says; return what the subscriber hears now."""
        out: list[bytes] = []
        for piece, is_event in self.splitter.feed(data):
            if is_event:
                self._decide(piece, out)
            else:
                out.append(piece)
        return b"".join(out)

    def release(self) -> bytes:
        """Everything that is held back, if a frame may be sent now."""
        held = self._held if self.splitter.is_between else []
        frames = [heappop(held)[2] for _ in range(len(held))]
        return b"".join(frames)

    def _decide(self, frame: bytes, out: list[bytes]) -> None:
        loss, losses, drawn = self.loss, self.losses, self.random.random()
        self._count += 1
        losses.events += 1
        is_dropped = drawn < loss.drop
        is_repeated = not is_dropped and drawn < loss.drop + loss.repeat
        is_delayed = not is_dropped and not is_repeated and drawn < loss.drop + loss.repeat + loss.delay
        losses.dropped += is_dropped
        losses.repeated += is_repeated
        losses.delayed += is_delayed
        if not is_dropped and not is_delayed:
            out.append(frame)
        while self._held and self._held[0][0] <= self._count:
            out.append(heappop(self._held)[2])
        if is_repeated or is_delayed:
            heappush(self._held, (self._count + self.random.randint(1, OVERTAKERS_MAX), self._count, frame))


@attrs.define(eq=False)
class _Side(asyncio.Protocol):
    """One end of a connection: what it receives, the other end sends."""

    line: LossyLine
    fates: Fates | None = None
    """of what it receives, if it is the broker's"""
    transport: asyncio.Transport = attrs.field(init=False)
    other: _Side | None = None
    _early: bytes = b""
    """what was read before the other end was there"""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected, or the broker has answered."""
        self.transport = cast(asyncio.Transport, transport)
        self.line.made(self)

    def join(self, other: _Side) -> None:
        """The other end is there."""
        self.other = other
        if self._early:
            self.data_received(self._early)
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Bytes come; as long as there is no other end, no more than once."""
        if self.other is None:
            self._early = data
            self.transport.pause_reading()
            return
        if self.fates is None:
            self._pass_on(data)
            return
        self._pass_on(self.fates.feed(data))
        self._hold()

    def _pass_on(self, data: bytes) -> None:
        if data and self.other is not None and not self.other.transport.is_closing():
            self.other.transport.write(data)

    def _hold(self) -> None:
        if self.fates is not None and self.fates.holds and self._timer is None:
            self._timer = self.line.loop.call_later(HOLD_S, self._release)

    def _release(self) -> None:
        self._timer = None
        if self.fates is not None:
            self._pass_on(self.fates.release())
            self._hold()

    def connection_lost(self, error: Exception | None) -> None:
        """This end is gone: what is held back still goes out, then the other end is closed."""
        if self._timer is not None:
            self._timer.cancel()
        if self.fates is not None:
            self._pass_on(self.fates.release())
        if self.other is not None:
            self.other.transport.close()
        self.line.gone(self)

    def pause_writing(self) -> None:
        """Who listens here is slow: the other end reads no more."""
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It goes on."""
        if self.other is not None:
            self.other.transport.resume_reading()


@attrs.define(eq=False)
class LossyLine:
    """A line from a port of this machine to a broker."""

    target: tuple[str, int]
    kind: str
    """the scheme of the broker's URL, mqtt or nats"""
    loss: Loss
    seed: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    losses: Losses = attrs.field(factory=Losses)
    loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _connections: int = 0
    _server: asyncio.Server | None = None
    _sides: dict[_Side, bool] = attrs.field(factory=dict)
    _dialling: dict[asyncio.Task[None], bool] = attrs.field(factory=dict)
    _unused: asyncio.Event = attrs.field(factory=asyncio.Event)
    """set while there are no connections"""

    def __attrs_post_init__(self) -> None:
        if self.kind not in SPLITTERS:
            raise ConfigurationError(
                f"kind={self.kind!r} does not fit: only the frames of {', '.join(SPLITTERS)} are known, without encryption"
            )

    async def __aenter__(self) -> LossyLine:
        """Listen."""
        self._server = await self.loop.create_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Break all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._dialling):
            task.cancel()
        for side in list(self._sides):
            side.transport.abort()
        while self._dialling:
            await asyncio.wait(list(self._dialling))
        if self._sides:
            await self._unused.wait()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    def made(self, side: _Side) -> None:
        """An end of a connection is there."""
        self._sides[side] = True
        self._unused.clear()

    def gone(self, side: _Side) -> None:
        """It is gone."""
        self._sides.pop(side, None)
        if not self._sides:
            self._unused.set()

    def _accept(self) -> _Side:
        side = _Side(self)
        task = self.loop.create_task(self._connect(side))
        self._dialling[task] = True
        task.add_done_callback(self._dialling.pop)
        return side

    def _side_of_broker(self) -> _Side:
        self._connections += 1
        random = Random(f"{self.seed}/{self._connections}")
        return _Side(self, Fates(SPLITTERS[self.kind](), self.loss, random, self.losses))

    async def _connect(self, side: _Side) -> None:
        """Join an accepted connection with one to the broker."""
        try:
            connecting = self.loop.create_connection(self._side_of_broker, *self.target)
            _, other = await asyncio.wait_for(connecting, DIAL_S)
        except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
            side.transport.abort()
            return
        if side.transport.is_closing() or other.transport.is_closing():
            other.transport.abort()
            side.transport.abort()
            return
        other.join(side)
        side.join(other)


async def serve(starter: Starter, target: str, kind: str, seed: int = 0, **shares: Any) -> None:
    """Be a process of its own."""
    host, _, port = target.rpartition(":")
    async with LossyLine((host, int(port)), kind, Loss(**shares), seed) as line:
        starter.tell(address=line.address)
        await starter.hear()
    starter.tell(**attrs.asdict(line.losses))
