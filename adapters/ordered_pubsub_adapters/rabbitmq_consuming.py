"""The way in: messages of a consumer, put together from frames of the wire, given on in batches, acknowledged.

    bytes ──> Assembly ──> arrived, not acknowledged (at most PREFETCH) ──> on_frames ──> basic.ack of the whole batch

A message is acknowledged when `on_frames` has returned. Until then the broker keeps it, and sends it again if the connection
breaks; it sends no more than PREFETCH beyond what is acknowledged. So a slow consumer leaves its messages with the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import attrs

from ordered_pubsub.adapter import Frame, FramesHandler
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters import rabbitmq_wire as wire

PREFETCH = 256
"""AMQP bounds messages, not bytes."""


@attrs.define(eq=False)
class Batch:
    """What has arrived on one channel, and waits to be given on."""

    acknowledge: Callable[[int], None]
    """tells the broker that everything up to a tag was taken"""
    frames: list[Frame] = attrs.field(factory=list)
    last_tag: int = 0

    def take(self) -> tuple[list[Frame], int]:
        """Everything that has arrived, and the tag that stands for it."""
        frames, self.frames = self.frames, []
        return frames, self.last_tag


@attrs.define(eq=False)
class Assembly:
    """Puts messages together, as a tap of the channel that they come on."""

    topic_of: Callable[[str], str | None]
    batch: Batch
    on_news: Callable[[], None]
    _tag: int = 0
    _topic: str | None = None
    _headers: dict[str, bytes | str] = attrs.field(factory=dict)
    _missing: int = 0
    """bytes of the payload that have not come"""
    _parts: list[bytes] = attrs.field(factory=list)

    def take(self, kind: int, data: bytes, start: int, end: int) -> bool:
        """Take a frame of the wire, if it belongs to a message for the consumer."""
        if kind == wire.METHOD:
            if not wire.is_delivery(data, start):
                return False
            self._tag, name = wire.read_delivery(data, start)
            self._topic = self.topic_of(name)
            return True
        if kind == wire.HEADER:
            self._missing, self._headers = wire.read_header(data, start)
        elif kind == wire.BODY:
            self._parts.append(data[start:end])
            self._missing -= end - start
        else:
            return False
        if not self._missing:
            self._finish()
        return True

    def passed_by(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """pika has read a message itself. Dropping it silently would lose it."""
        raise AdapterError(
            "pika delivered a message that was to be read as bytes: this version of pika does not fit this version of "
            "ordered_pubsub_adapters; install the newest of both"
        )

    def _finish(self) -> None:
        """The message is complete. One of a topic that is not held any more only has to be acknowledged."""
        batch, parts = self.batch, self._parts
        batch.last_tag = self._tag
        if self._topic is not None:
            batch.frames.append(Frame(self._topic, parts[0] if len(parts) == 1 else b"".join(parts), self._headers))
        self._parts = []
        self.on_news()


@attrs.define(eq=False)
class Delivering:
    """Gives batches to `on_frames`, one after the other, whatever channel they come on."""

    on_frames: FramesHandler
    _batch: Batch | None = None
    _news: asyncio.Event = attrs.field(factory=asyncio.Event)

    def attach(self, batch: Batch) -> Callable[[], None]:
        """There is a new channel; returns what is to be called when something has arrived on it."""
        self._batch = batch
        self._news.clear()  # it was of the channel before
        return self._news.set

    def detach(self) -> None:
        """The channel is gone: what was not given on will be sent again."""
        self._batch = None

    async def run(self) -> None:
        """Deliver, for as long as the adapter is open."""
        while True:
            await self._news.wait()
            self._news.clear()
            batch = self._batch
            if batch is not None:
                frames, tag = batch.take()
                if frames:
                    await self.on_frames(frames)
                if tag and batch is self._batch:  # to the broker, tag 0 is everything that it has sent
                    batch.acknowledge(tag)
