"""One connection: frames in, frames out, and a sign of life.

    transport ──> (TLS) ──> frames ──> owner          owner ──> (TLS) ──> transport

A channel knows nothing of what its frames mean. All the frames that one read brings are handed on together. What cannot be
written yet is bounded: a channel over its limit is `is_clogged`, and its owner decides what becomes of it.

Whoever closes a channel says why in a last frame, and then reads on for a moment without looking: a connection that is closed
over unread bytes is reset, and the other side might never see that frame.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.framing import Deframer
from ordered_pubsub.wire.tls import TlsLayer, describe

MEASURED_BYTES = 1 << 14
"""What a connection holds is told whenever it has changed by more than this."""
GRACE_S = 1.0
"""How long a connection that was closed may take to send what was written before."""


class Owner:
    """What a channel tells what happens. As it is here it owns a connection that is gone, or that nobody wants."""

    __slots__ = ()

    def opened(self, channel: Channel) -> None:
        """The connection is there, and as safe as was asked for. Not told to who takes it over later."""

    def received(self, payloads: list[bytes]) -> None:
        """Frames came. A `ProtocolError` goes to `broken`."""

    def broken(self, error: ProtocolError) -> None:
        """The other side sent what it must not."""

    def lost(self, reason: str) -> None:
        """The connection is gone; nothing comes after this."""


class Channel(asyncio.Protocol):
    """A connection on the event loop."""

    def __init__(
        self, owner: Owner, frame_bytes_max: int, buffered_bytes_max: int, tls: TlsLayer | None = None
    ) -> None:
        self.owner = owner
        self.buffered_bytes_max = buffered_bytes_max
        self.heard_at = 0.0
        self.is_open = False
        self.arrival: Callable[[Channel], None] | None = None
        """called when the connection is there, before any TLS"""
        self.farewell: Callable[[], None] | None = None
        """called when the connection is gone, whoever owns it then"""
        self.measure: Callable[[int], None] | None = None
        """called with how many bytes more are held of what has come, or fewer"""
        self.measured_bytes = 0
        """what it was told of so far"""
        self.queued_bytes = 0
        """what the owner holds of what has come and was not looked at yet"""
        self.half_since: float | None = None
        """since when a frame has begun and has not come to its end"""
        self.is_paused = False
        self._tls = tls
        self._deframer = Deframer(frame_bytes_max)
        self._transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self._reason = ""
        self._timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()

    def widen(self, frame_bytes_max: int) -> None:
        """Take larger frames from now on."""
        self._deframer.frame_bytes_max = frame_bytes_max

    @property
    def address(self) -> str:
        """The other side's network address, without the port."""
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else "local"

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What the other side has shown and TLS has verified; None if it has shown nothing."""
        return self._tls.certificate if self._tls is not None else None

    def send(self, frame: bytes) -> None:
        """Write a frame, now or as soon as the other side takes it."""
        if self.is_open:
            self._write(frame)

    def _write(self, data: bytes) -> None:
        if self._tls is None:
            self._put(data)
        elif self._tls.is_established:
            try:
                self._tls.send(data)
            except ssl.SSLError as error:
                self.abort(describe(error))
            else:
                self._put(self._tls.to_write())

    def _put(self, data: bytes) -> None:
        with suppress(RuntimeError):  # uvloop's way to say that the connection is gone; `connection_lost` is to come
            self._transport.write(data)

    @property
    def unsent_bytes(self) -> int:
        """What waits to be written, since the other side does not read it; also on a connection that is being closed."""
        return 0 if self._gone.is_set() else self._transport.get_write_buffer_size()

    @property
    def is_clogged(self) -> bool:
        """Whether more is waiting to be written than may be."""
        return self.is_open and self.unsent_bytes > self.buffered_bytes_max

    def pause(self) -> None:
        """Read nothing for now: what the other side sends waits there."""
        if self.is_open and not self.is_paused:
            self.is_paused = True
            with suppress(RuntimeError):
                self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.is_paused:
            self.is_paused = False
            if self.half_since is not None:
                self.half_since = self._loop.time()  # that it did not go on was not the other side's doing
            self.heard_at = self._loop.time()
            if self.is_open:
                with suppress(RuntimeError):
                    self._transport.resume_reading()

    def count_held(self) -> None:
        """Tell how much is held of what has come, if that has changed by much."""
        held = self.queued_bytes + self._deframer.waiting_bytes
        if self._tls is not None:
            held += self._tls.waiting_bytes
        change = held - self.measured_bytes
        if self.measure is not None and not -MEASURED_BYTES < change < MEASURED_BYTES:
            self.measured_bytes = held
            self.measure(change)

    def close(self, reason: str, last: bytes = b"") -> None:
        """Send what was written, and a last frame, but not for long; then disconnect."""
        if not self.is_open:
            return
        if last:
            self._write(last)
        self._end(reason)

    def _end(self, reason: str) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._reason = reason
        self._deframer.forget()
        if self._transport.is_closing():
            return
        if self._tls is not None:
            self._tls.end()
            self._put(self._tls.to_write())
        # As in `_put`; or the other side has gone, and the loop has not noticed yet.
        with suppress(RuntimeError, OSError):
            self._transport.write_eof()
        self._timer = self._loop.call_later(GRACE_S, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Disconnect at once."""
        if self.is_open:
            self.is_open = False
            self._reason = reason
            self._transport.abort()

    def drop(self) -> None:
        """Disconnect at once, whatever is still waiting to be written."""
        self.is_open = False
        self._transport.abort()

    async def wait_until_gone(self) -> None:
        """Return when the connection is gone; after `close` that is soon."""
        await self._gone.wait()

    # -- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.is_open = True
        self.heard_at = self._loop.time()
        if self.arrival is not None:
            self.arrival(self)
        if not self.is_open:
            return  # not wanted
        if self._tls is None:
            self.owner.opened(self)
        else:
            self._tls.start()
            self._put(self._tls.to_write())

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self.heard_at = self._loop.time()
        if not self.is_open:
            return
        try:
            if self._tls is not None:
                data = self._uncover(self._tls, data)
            payloads = self._deframer.feed(data)
            if not (self._deframer.waiting_bytes or (self._tls is not None and self._tls.waiting_bytes)):
                self.half_since = None
            elif payloads or self.half_since is None:
                self.half_since = self.heard_at
            if payloads:
                self.owner.received(payloads)
            self.count_held()
        except ProtocolError as error:
            self.owner.broken(error)
        except ssl.SSLError as error:
            self._end(describe(error))

    def _uncover(self, tls: TlsLayer, data: bytes) -> bytes:
        was_established = tls.is_established
        try:
            data = tls.receive(data)
        finally:
            self._put(tls.to_write())
        if tls.is_established and not was_established:
            self.owner.opened(self)
        if tls.is_ended and self.is_open and not data:
            self._end("the other side closed the connection")
        return data if self.is_open else b""

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone, and what had come on it, though whoever had it may be here for a while."""
        self.is_open = False
        self._deframer.forget()
        if self._timer is not None:
            self._timer.cancel()
        self._gone.set()
        farewell, owner = self.farewell, self.owner
        self._let_go()
        if farewell is not None:
            farewell()
        owner.lost(self._reason or (str(error) if error else "the other side closed the connection"))

    def _let_go(self) -> None:
        """Know nobody any more who knows this channel: then all that the connection had is given back at once, whoever opens
        however many, and not when Python looks for cycles, which takes the longer the more of them there are.
        """
        self.owner = Owner()
        self.arrival = self.farewell = self.measure = None
