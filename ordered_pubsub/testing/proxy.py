"""A bad line: a TCP proxy that delays, freezes and cuts what goes through it.

Bytes come out in the order in which they went in, `delay_s` later, plus or minus up to `jitter_s`. What is on its way is
bounded by `BYTES_MAX` for each direction of a connection; beyond it the sender is made to wait, as on a real line. `cut`
breaks all connections and lets no new one through until `heal`; `freeze` lets nothing through without breaking anything.

Under load it needs a process of its own: a `WorkerProcess` (`ordered_pubsub.testing.processes`) that runs `serve`, with listen,
target, delay_s and jitter_s for each line, such as `{"lines": [["127.0.0.1:7001", "127.0.0.1:7411", 0.01, 0.002]]}`. It says
when it is ready, and goes on until it is let go.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import suppress
from typing import cast

import attrs

from ordered_pubsub.testing.processes import Starter

BYTES_MAX = 64 << 20
DIAL_S = 10.0


@attrs.define(eq=False)
class _Direction(asyncio.Protocol):
    """One direction of a connection: what it receives, the other lane's transport sends, later."""

    proxy: Proxy
    transport: asyncio.Transport = attrs.field(init=False)
    other: _Direction | None = None
    _waiting: deque[tuple[float, bytes]] = attrs.field(factory=deque)
    """(when it is due, what); the end of the stream is an empty one"""
    _bytes: int = 0
    _last_due: float = 0.0
    _timer: asyncio.TimerHandle | None = None
    _is_blocked: bool = False
    _has_ended: bool = False
    """whether it receives nothing more"""
    _is_told: bool = False
    """whether its transport was told that the other lane receives nothing more"""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected, or the target has answered."""
        self.transport = cast(asyncio.Transport, transport)
        self.proxy.made(self)

    def data_received(self, data: bytes) -> None:
        """Bytes go in."""
        self._put(data)
        if self._bytes > BYTES_MAX:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The other side says nothing more, and may still listen."""
        self._has_ended = True
        self._put(b"")
        self._maybe_close()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """One side is gone: what is on its way still arrives, then the other side is told."""
        self.proxy.gone(self)
        self._put(b"")

    def _put(self, data: bytes) -> None:
        proxy = self.proxy
        jitter_s = random.uniform(-proxy.jitter_s, proxy.jitter_s) if proxy.jitter_s else 0.0
        self._last_due = max(self._last_due, proxy.loop.time() + max(proxy.delay_s + jitter_s, 0.0))
        self._bytes += len(data)
        self._waiting.append((self._last_due, data))
        if not proxy.delay_s:
            self.move()
        elif self._timer is None:
            self._timer = proxy.loop.call_at(self._last_due, self.move)

    def move(self) -> None:
        """Let out what is due."""
        self._timer = None
        if self.proxy.is_frozen or self._is_blocked or self.other is None:
            return  # whoever changes that moves
        now, ready = self.proxy.loop.time() + 0.0005, []
        while self._waiting and self._waiting[0][0] <= now:
            ready.append(self._waiting.popleft()[1])
        sent = b"".join(ready)
        self._bytes -= len(sent)
        out = self.other.transport
        if sent and not out.is_closing():
            out.write(sent)
        if b"" in ready and not out.is_closing():
            self.other.end(is_gone=self.transport.is_closing())
        if self._bytes <= BYTES_MAX and not self.transport.is_closing():
            self.transport.resume_reading()
        if self._waiting:
            self._timer = self.proxy.loop.call_at(self._waiting[0][0], self.move)

    def end(self, is_gone: bool) -> None:
        """The other lane's side says nothing more, or is gone."""
        if is_gone:
            self.transport.close()
        elif not self._is_told:
            self._is_told = True
            with suppress(OSError):  # it is gone, and the loop has not noticed yet
                self.transport.write_eof()
            self._maybe_close()

    def _maybe_close(self) -> None:
        if self._has_ended and self._is_told:
            self.transport.close()

    def pause_writing(self) -> None:
        """This side takes nothing more for now: the other lane stops."""
        if self.other is not None:
            self.other._is_blocked = True

    def resume_writing(self) -> None:
        """It does again."""
        if self.other is not None:
            self.other._is_blocked = False
            self.other.move()


@attrs.define(eq=False)
class Proxy:
    """A line from a port of this machine to a target."""

    target: tuple[str, int]
    delay_s: float = 0.0
    jitter_s: float = 0.0
    port: int = 0
    host: str = "127.0.0.1"
    is_cut: bool = False
    is_frozen: bool = False
    lanes: dict[_Direction, bool] = attrs.field(factory=dict)
    loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _server: asyncio.Server | None = None
    _dialling: dict[asyncio.Task[None], bool] = attrs.field(factory=dict)
    _unused: asyncio.Event = attrs.field(factory=asyncio.Event)
    """set while there are no connections"""

    async def __aenter__(self) -> Proxy:
        """Listen."""
        self._server = await self.loop.create_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Break everything, and listen no more."""
        if self._server is not None:
            self._server.close()
        self.cut()
        while self._dialling:
            await asyncio.wait(list(self._dialling))
        if self.lanes:
            await self._unused.wait()

    def made(self, lane: _Direction) -> None:
        """A side of a connection is there."""
        self.lanes[lane] = True
        self._unused.clear()
        if self.is_cut:
            lane.transport.abort()

    def gone(self, lane: _Direction) -> None:
        """It is gone."""
        self.lanes.pop(lane, None)
        if not self.lanes:
            self._unused.set()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    def cut(self) -> None:
        """Break all connections; new ones are broken at once."""
        self.is_cut = True
        for task in list(self._dialling):
            task.cancel()
        for lane in list(self.lanes):
            lane.transport.abort()

    def heal(self) -> None:
        """Let connections through again."""
        self.is_cut = False

    def freeze(self) -> None:
        """Let nothing through, and break nothing."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Let through what has waited."""
        self.is_frozen = False
        for lane in list(self.lanes):
            lane.move()

    def _accept(self) -> _Direction:
        lane = _Direction(self)
        task = self.loop.create_task(self._connect(lane))
        self._dialling[task] = True
        task.add_done_callback(self._dialling.pop)
        return lane

    async def _connect(self, lane: _Direction) -> None:
        """Join an accepted connection with one to the target."""
        try:
            if self.is_cut:
                raise ConnectionAbortedError("the line is cut")
            connecting = self.loop.create_connection(lambda: _Direction(self), *self.target)
            _, other = await asyncio.wait_for(connecting, DIAL_S)
        except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
            if lane in self.lanes:  # else it is broken as soon as it is there
                lane.transport.abort()
            return
        lane.other, other.other = other, lane
        lane.move()
        other.move()


async def serve(starter: Starter, lines: list[tuple[str, str, float, float]]) -> None:
    """Be a process of its own."""
    for listen, target, delay_s, jitter_s in lines:
        host, _, port = listen.rpartition(":")
        to_host, _, to_port = target.rpartition(":")
        await Proxy((to_host, int(to_port)), delay_s, jitter_s, int(port), host).__aenter__()
    starter.tell(state="ready")
    await starter.hear()
