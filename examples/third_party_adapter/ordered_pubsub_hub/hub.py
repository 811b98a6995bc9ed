"""The hub: `python -m ordered_pubsub_hub.hub --port 7420`. It passes each frame on to whoever subscribes to its topic now.

What a subscriber does not take yet waits in its queue. A publisher is told `Done` when the queues that its frames went into
have room again: that is how a slow subscriber is felt by the publishers of its topics, and by nobody else.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress

from ordered_pubsub_hub.wire import (
    Bring,
    Done,
    Item,
    Message,
    Publish,
    Subscribe,
    Took,
    Unsubscribe,
    batch_of,
    encode,
    read,
    size_of,
)

QUEUE_BYTES_MAX = 2**22


class Line:
    """One client, and what waits for it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.queue: list[Item] = []
        self.queue_bytes = 0
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self.took = asyncio.Event()
        self.took.set()

    def put(self, item: Item) -> None:
        """Let a frame wait for its turn."""
        self.queue.append(item)
        self.queue_bytes += size_of(item)
        self.news.set()
        if self.queue_bytes > QUEUE_BYTES_MAX:
            self.room.clear()

    async def bring(self) -> None:
        """Bring what waits, batch by batch, as fast as the client takes it."""
        while True:
            await self.news.wait()
            await self.took.wait()
            self.took.clear()
            count = batch_of(self.queue)
            batch, self.queue = self.queue[:count], self.queue[count:]
            self.queue_bytes -= sum(map(size_of, batch))
            if not self.queue:
                self.news.clear()
            if self.queue_bytes <= QUEUE_BYTES_MAX:
                self.room.set()
            self.writer.write(encode(Bring(batch)))


class Hub:
    """Who subscribes to what."""

    def __init__(self) -> None:
        self.subscribers: dict[str, dict[Line, bool]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it goes."""
        line = Line(writer)
        tasks = {asyncio.create_task(line.bring())}
        with suppress(OSError, EOFError, ValueError):  # it has gone, or does not speak our language
            while True:
                answering = self.take(line, await read(reader))
                tasks.add(answering)
                answering.add_done_callback(tasks.discard)
        for topic in list(self.subscribers):
            self.unsubscribe(line, topic)
        line.room.set()
        for task in tasks:
            task.cancel()
        writer.close()

    def take(self, line: Line, message: Message) -> asyncio.Task[None]:
        """Do what a message says at once, so that the order stays; the answer may have to wait."""
        full: list[Line] = []
        if isinstance(message, Publish):
            for item in message.items:
                for subscriber in self.subscribers.get(item.topic, ()):
                    subscriber.put(item)
                    full.append(subscriber)
        elif isinstance(message, Subscribe):
            for topic in message.topics:
                self.subscribers.setdefault(topic, {})[line] = True
        elif isinstance(message, Unsubscribe):
            for topic in message.topics:
                self.unsubscribe(line, topic)
        elif isinstance(message, Took):
            line.took.set()
        return asyncio.create_task(self.answer(line, message, dict.fromkeys(full)))

    def unsubscribe(self, line: Line, topic: str) -> None:
        """Let a topic not go to a client any more."""
        lines = self.subscribers.get(topic, {})
        lines.pop(line, None)
        if not lines:
            self.subscribers.pop(topic, None)

    async def answer(self, line: Line, message: Message, full: dict[Line, None]) -> None:
        """Say that it is done, when there is room again in the queues that it filled."""
        for subscriber in full:
            await subscriber.room.wait()
        if isinstance(message, (Publish, Subscribe, Unsubscribe)):
            line.writer.write(encode(Done(message.number)))


async def run(port: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.start_server(Hub().serve, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m ordered_pubsub_hub.hub", description=__doc__)
    parser.add_argument("--port", type=int, default=7420, help="where to listen on 127.0.0.1 (default: 7420)")
    with suppress(KeyboardInterrupt):
        asyncio.run(run(parser.parse_args().port))


if __name__ == "__main__":
    main()
