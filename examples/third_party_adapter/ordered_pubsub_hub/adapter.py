"""`hub://127.0.0.1:7420`: how ordered_pubsub reaches a hub.

One task reads the connection for as long as the adapter is open, and opens another one when it breaks. It never waits for
the application: what is brought goes to a second task, which calls `on_frames` and says `Took` afterwards. Until then the
hub brings no more, so nothing piles up here, and the answers to what is published still get through. A third one asks for
nothing now and then: a line on which no answer comes is as good as broken, though nobody says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from ordered_pubsub.adapter import Adapter, Capabilities, Frame, FramesHandler, StateHandler, redacted
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_hub.wire import (
    MESSAGE_BYTES_MAX,
    Ask,
    Bring,
    Done,
    Message,
    Publish,
    Subscribe,
    Took,
    Unsubscribe,
    batch_of,
    encode,
    frames_of,
    items_of,
    read,
)

CONNECT_S = 5.0
BEAT_S = 2.0
"""So often it is asked whether the hub is still there."""
ANSWER_S = 5.0
"""It answers that within this time, however long it keeps a publisher waiting."""
PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Before trying to connect again; the last one stays."""

CAPABILITIES = Capabilities(
    loses=False,
    reorders=False,
    duplicates=False,
    keeps_while_away=False,
    carries_headers=True,
    confirms=True,
)

Brought = tuple[asyncio.StreamWriter, list[Frame]]
"""A batch, and the connection on which it came."""


class HubAdapter(Adapter):
    """One client's connection to a hub."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 7420
        except ValueError as error:
            raise ConfigurationError(f"{redacted(url)!r} is not hub://host:port: {error}") from None
        if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigurationError(f"{redacted(url)!r}: expected hub://host:port and nothing else")
        self._writer: asyncio.StreamWriter | None = None
        self._trouble = "it is not open"
        self._topics: dict[str, bool] = {}
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def capabilities(self) -> Capabilities:
        """The same for every hub."""
        return CAPABILITIES

    @property
    def frame_bytes_max(self) -> int | None:
        """A frame is one message at least, to the hub and from it."""
        return MESSAGE_BYTES_MAX

    # -- what a client calls ------------------------------------------------------------------------------------------

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Connect once; from then on a task keeps the connection."""
        if self._tasks:
            raise AdapterError(f"this adapter for {self.url} is open already; each client has its own")
        self._brought: asyncio.Queue[Brought] = asyncio.Queue(maxsize=2)
        reader, self._writer = await self._connect()
        self._tasks = [
            asyncio.create_task(self._keep(reader, on_state), name=f"{self.url} reading"),
            asyncio.create_task(self._give(on_frames), name=f"{self.url} giving"),
            asyncio.create_task(self._beat(), name=f"{self.url} beating"),
        ]

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Batch by batch; the hub answers when the subscribers of a batch have room for more."""
        rest = items_of(frames)
        while rest:
            count = batch_of(rest)
            batch, rest = rest[:count], rest[count:]
            await self._ask(Publish(self._next_number(), batch))

    async def subscribe(self, topics: Sequence[str]) -> None:
        """From the hub's answer on, everything comes."""
        self._check_connected()
        self._topics.update(dict.fromkeys(topics, True))
        await self._ask(Subscribe(self._next_number(), list(topics)))

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """From the hub's answer on, nothing comes."""
        self._check_connected()
        for topic in topics:
            self._topics.pop(topic, None)
        await self._ask(Unsubscribe(self._next_number(), list(topics)))

    async def close(self) -> None:
        """End the tasks and the connection."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._lose_connection("it is closed")

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self, ask: Ask) -> None:
        """Send, and wait for the answer; a connection that breaks before it comes is an error."""
        writer = self._check_connected()
        answer = self._asked[ask.number] = asyncio.get_running_loop().create_future()
        try:
            writer.write(encode(ask))
            with suppress(OSError):  # then the reading task notices, and says why
                await writer.drain()
            await answer
        finally:
            self._asked.pop(ask.number, None)

    def _check_connected(self) -> asyncio.StreamWriter:
        if self._writer is None:
            raise AdapterError(f"the adapter for {self.url} has no connection: {self._trouble}")
        return self._writer

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # -- the connection -----------------------------------------------------------------------------------------------

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and subscribe to what is held. The hub's answer shows that there is one, and that everything will come."""
        try:
            return await asyncio.wait_for(self._greet(), CONNECT_S)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            raise AdapterError(
                f"the hub at {self._host}:{self._port} cannot be used: {str(error) or 'it does not answer'}. Does it run? "
                f"python -m ordered_pubsub_hub.hub --port {self._port}"
            ) from error

    async def _greet(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(encode(Subscribe(self._next_number(), list(self._topics))))
            while not isinstance(message := await read(reader), Done):
                await self._take(message, writer)
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _keep(self, reader: asyncio.StreamReader, on_state: StateHandler) -> None:
        """Read; when the connection breaks, come back, and go on."""
        while True:
            reason = await self._read(reader)
            self._lose_connection(reason)
            on_state(False, reason)
            reader, self._writer = await self._come_back()
            on_state(True, f"connected to {self.url} again")

    async def _read(self, reader: asyncio.StreamReader) -> str:
        """Take what the hub says, for as long as it speaks; returns why it does not any more."""
        try:
            while True:
                await self._take(await read(reader), self._writer)
        except (OSError, EOFError, ValueError) as error:
            return f"the connection to {self.url} broke: {error}"

    async def _take(self, message: Message, writer: asyncio.StreamWriter | None) -> None:
        if isinstance(message, Bring) and writer is not None:
            await self._brought.put((writer, frames_of(message.items)))
        elif isinstance(message, Done) and (answer := self._asked.get(message.number)) and not answer.done():
            answer.set_result(None)

    def _lose_connection(self, reason: str) -> None:
        writer, self._writer = self._writer, None
        self._trouble = reason
        if writer is not None:
            writer.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(AdapterError(f"{reason}; whether it was done is unknown"))

    async def _come_back(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect again, as often as it takes."""
        pauses, pause_s = iter(PAUSES_S), 0.0
        while True:
            await asyncio.sleep(pause_s := next(pauses, pause_s))
            try:
                return await self._connect()
            except AdapterError as error:
                self._trouble = str(error)

    async def _beat(self) -> None:
        """Ask for nothing, and drop the connection if there is no answer in time: then the reading task makes another one."""
        while True:
            await asyncio.sleep(BEAT_S)
            if (writer := self._writer) is None:
                continue
            timer = asyncio.get_running_loop().call_later(ANSWER_S, writer.transport.abort)
            try:
                with suppress(AdapterError):  # the reading task says why
                    await self._ask(Subscribe(self._next_number(), []))
            finally:
                timer.cancel()

    async def _give(self, on_frames: FramesHandler) -> None:
        """Give what was brought to the client, and ask for more when it has taken it."""
        while True:
            writer, frames = await self._brought.get()
            await on_frames(frames)
            if writer is self._writer:
                writer.write(encode(Took()))
