"""`hub://127.0.0.1:7420`: how ordered_pubsub reaches a hub.

What every adapter does is in `ordered_pubsub_adapters.base`: one connection after the other, subscriptions made again, frames
given on one call at a time. Here is what a connection to a hub is. One task reads it for as long as it lives, and never waits
for the application, so the answers to what is published get through; the hub brings one batch at a time, and the next when it
hears `Took`, so nothing piles up. A second task asks for nothing now and then: a line on which no answer comes is as good as
broken, though nobody says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from ordered_pubsub.adapter import Capabilities, Frame
from ordered_pubsub.errors import AdapterError
from ordered_pubsub.wire.tasks import end_task
from ordered_pubsub_adapters.base import BrokerAdapter, Connection, NamedFrames, in_time
from ordered_pubsub_adapters.names import NameRules
from ordered_pubsub_adapters.urls import UrlRules
from ordered_pubsub_hub.wire import (
    MESSAGE_BYTES_MAX,
    Ask,
    Bring,
    Done,
    Item,
    Publish,
    Subscribe,
    Took,
    Unsubscribe,
    batch_of,
    encode,
    read,
)

BEAT_S = 2.0
"""So often it is asked whether the hub is still there."""
ANSWER_S = 5.0
"""It answers that within this time, however long it keeps a publisher waiting."""
BATCH = "a batch"
"""The token of a batch, given back when it was taken."""

CAPABILITIES = Capabilities(
    loses=False,
    reorders=False,
    duplicates=False,
    keeps_while_away=False,
    carries_headers=True,
    confirms=True,
)


class HubConnection(Connection):
    """One connection to a hub."""

    adapter: HubAdapter

    def __init__(self, adapter: HubAdapter) -> None:
        super().__init__(adapter)
        self._numbers = count(1)
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, host: str, port: int) -> None:
        """Connect, and hear that there is a hub."""
        try:
            reader, self._writer = await asyncio.open_connection(host, port)
        except OSError as error:
            raise AdapterError(
                f"the hub at {host}:{port} cannot be used: {error}. Does it run? "
                f"python -m ordered_pubsub_hub.hub --port {port}"
            ) from error
        must = self.adapter.supervisor.must
        self._tasks = [must(self._read(reader), "reading"), must(self._beat(), "asking whether it lives")]
        await self.subscribe([])

    async def close(self, is_last: bool) -> None:
        """The hub forgets who is not there."""
        for task in self._tasks:
            await end_task(task)
        if self._writer is not None:
            self._writer.close()

    async def publish(self, frames: NamedFrames) -> None:
        """Batch by batch; the hub answers when the subscribers of a batch have room for more."""
        rest = [Item(name, frame.payload, frame.headers) for name, frame in frames]
        while rest:
            size = batch_of(rest)
            batch, rest = rest[:size], rest[size:]
            await self._ask(Publish(next(self._numbers), batch))

    async def subscribe(self, names: Sequence[str]) -> None:
        """From the hub's answer on, everything comes."""
        await self._ask(Subscribe(next(self._numbers), list(names)))

    async def unsubscribe(self, names: Sequence[str]) -> None:
        """From the hub's answer on, nothing comes."""
        await self._ask(Unsubscribe(next(self._numbers), list(names)))

    def taken(self, tokens: Sequence[Any]) -> None:
        """Ask for as many more batches."""
        if self._writer is not None:
            for _ in tokens:
                self._writer.write(encode(Took()))

    async def _ask(self, ask: Ask) -> None:
        """Send, and wait for the answer; a connection that breaks before it comes is an error."""
        assert self._writer is not None
        with self.expecting(ask.number) as answer:
            self._writer.write(encode(ask))
            with suppress(OSError):  # then the reading task notices, and says why
                await self._writer.drain()
            await answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Take what the hub says, for as long as it speaks."""
        topic_of = self.adapter.names.topic_of
        try:
            while True:
                message = await read(reader)
                if isinstance(message, Done):
                    self.answer(message.number)
                elif isinstance(message, Bring):
                    for item in message.items:
                        if (topic := topic_of(item.topic)) is not None:
                            self.adapter.received(self, Frame(topic, item.payload, item.headers))
                    self.adapter.received(self, None, BATCH)
        except (OSError, EOFError, ValueError) as error:
            self.end(str(error) or "the hub hung up")

    async def _beat(self) -> None:
        """End a connection that does not answer."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await in_time(self.subscribe([]), ANSWER_S, f"the hub said nothing for {ANSWER_S:g} s")
            except AdapterError as error:
                self.end(str(error))


class HubAdapter(BrokerAdapter):
    """One client's connection to a hub."""

    url_rules = UrlRules(ports={"hub": 7420})
    name_rules = NameRules(separator="/", special="", bytes_max=65_535)
    kind = "a hub"

    @property
    def capabilities(self) -> Capabilities:
        """The same for every hub."""
        return CAPABILITIES

    @property
    def frame_bytes_max(self) -> int | None:
        """A frame is one message at least, to the hub and from it."""
        return MESSAGE_BYTES_MAX

    def make_connection(self) -> HubConnection:
        """A new one."""
        return HubConnection(self)
