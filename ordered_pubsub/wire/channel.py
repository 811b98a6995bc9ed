"""One connection: frames in, frames out, and a sign of life.

A channel knows nothing of what its frames mean. All the frames that one read brings are handed on together. What cannot be
written yet is bounded: a channel over its limit is `is_clogged`, and its owner decides what becomes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.framing import Deframer

GRACE_S = 1.0
"""How long a connection that was closed may take to send what was written before."""


class Owner(Protocol):
    """What a channel tells what happens."""

    def opened(self, channel: Channel) -> None:
        """The connection is there."""

    def received(self, payloads: list[bytes]) -> None:
        """Frames came. A `ProtocolError` goes to `broken`."""

    def broken(self, error: ProtocolError) -> None:
        """The other side sent what it must not."""

    def lost(self, reason: str) -> None:
        """The connection is gone; nothing comes after this."""


class Channel(asyncio.Protocol):
    """A connection on the event loop."""

    def __init__(self, owner: Owner, frame_bytes_max: int, buffered_bytes_max: int) -> None:
        self.owner = owner
        self.buffered_bytes_max = buffered_bytes_max
        self.heard_at = 0.0
        self.is_open = False
        self.farewell: Callable[[], None] | None = None
        """called when the connection is gone, whoever owns it then"""
        self._deframer = Deframer(frame_bytes_max)
        self._transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self._reason = ""

    def widen(self, frame_bytes_max: int) -> None:
        """Take larger frames from now on."""
        self._deframer.frame_bytes_max = frame_bytes_max

    def extra(self, name: str) -> Any:
        """What the transport knows, such as "peername"."""
        return self._transport.get_extra_info(name)

    def send(self, frame: bytes) -> None:
        """Write a frame, now or as soon as the other side takes it."""
        if self.is_open:
            self._transport.write(frame)

    @property
    def is_clogged(self) -> bool:
        """Whether more is waiting to be written than may be."""
        return self.is_open and self._transport.get_write_buffer_size() > self.buffered_bytes_max

    def close(self, reason: str, last: bytes = b"") -> None:
        """Send what was written, and a last frame, but not for long; then disconnect."""
        if not self.is_open:
            return
        self.is_open = False
        self._reason = reason
        if last:
            self._transport.write(last)
        self._transport.close()
        self._loop.call_later(GRACE_S, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Disconnect at once."""
        if self.is_open:
            self.is_open = False
            self._reason = reason
            self._transport.abort()

    def pause(self) -> None:
        """Read nothing for now."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    # -- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.is_open = True
        self.heard_at = self._loop.time()
        self.owner.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self.heard_at = self._loop.time()
        if not self.is_open:
            return
        try:
            payloads = self._deframer.feed(data)
            if payloads:
                self.owner.received(payloads)
        except ProtocolError as error:
            self.owner.broken(error)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self.is_open = False
        if self.farewell is not None:
            self.farewell()
        self.owner.lost(self._reason or (str(error) if error else "the other side closed the connection"))
