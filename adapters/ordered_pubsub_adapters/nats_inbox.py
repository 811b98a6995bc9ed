"""Frames that have come over a NATS connection and that the client has not taken yet.

NATS pushes. nats-py would keep up to half a million messages for each subscription, and then drop what comes; here nothing is
dropped, and what is held is bounded by not reading on: the connection waits in `wait_for_room` while the inbox is full, so the
rest stays in the buffers of the kernel and of the server.

What is waited for on the same connection stands behind the frames in its stream: the answer to a subscription, for example,
which an application may ask for in the very handler that keeps the inbox full. So as long as someone waits (`more_room`),
more may be held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from ordered_pubsub.adapter import Frame, FramesHandler

HELD_BYTES_MAX = 4 * 2**20
HELD_BYTES_MAX_WHILE_WAITED_FOR = 80 * 2**20
"""More than a server keeps for one connection before it cuts it off (`max_pending`, 64 MiB unless it was changed)."""
FRAME_BYTES = 1_000
"""What a frame takes beside what it brought."""


def _nothing() -> None:
    """Nobody needs to know."""


@attrs.define(eq=False)
class Inbox:
    """What has come and was not taken."""

    on_frames: FramesHandler
    on_room: Callable[[], None] = _nothing
    """is told when it has been full, and is not any more"""
    is_full: bool = False
    _frames: list[Frame] = attrs.field(factory=list)
    _bytes: int = 0
    _waiting: int = 0
    _news: asyncio.Event = attrs.field(factory=asyncio.Event)
    _room: asyncio.Event = attrs.field(factory=asyncio.Event)

    def put(self, frame: Frame, size: int) -> None:
        """A frame has come, with so many bytes of payload and headers."""
        if not self._frames:
            self._news.set()
        self._frames.append(frame)
        self._bytes += FRAME_BYTES + size
        if self._bytes > HELD_BYTES_MAX:
            self._measure()

    async def wait_for_room(self) -> None:
        """Return when it is not full any more."""
        await self._room.wait()

    @contextmanager
    def more_room(self) -> Iterator[None]:
        """For as long as something is waited for that stands behind frames."""
        self._waiting += 1
        self._measure()
        try:
            yield
        finally:
            self._waiting -= 1
            self._measure()

    def _measure(self) -> None:
        was_full = self.is_full
        self.is_full = self._bytes > (HELD_BYTES_MAX_WHILE_WAITED_FOR if self._waiting else HELD_BYTES_MAX)
        if self.is_full:
            self._room.clear()
        elif was_full:
            self._room.set()
            self.on_room()

    async def run(self) -> None:
        """Give the frames to the client, for as long as the adapter is open."""
        while True:
            await self._news.wait()
            self._news.clear()
            frames, self._frames, self._bytes = self._frames, [], 0
            self._measure()
            await self.on_frames(frames)
