"""A line between an adapter and its ENS that can be cut: a small TCP proxy on 127.0.0.1, within the event loop.

While it is cut, connections are taken and dropped at once, as by a host whose service is gone. Its port stays its own, so
nobody else can turn up there meanwhile. While it is mute, connections are taken, and nothing ever answers. `hush` does that to
the connections that exist, as when a cable is pulled or a router forgets them: nothing breaks, and nothing comes. `hold` lets
so much through and keeps the rest back until `release`: so whoever waits for an answer waits, however fast the ENS is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs

HOST = "127.0.0.1"
PIECE_BYTES = 65_536


@attrs.define(eq=False)
class Link:
    """The line."""

    ens_host: str
    ens_port: int
    port: int = 0
    is_cut: bool = False
    is_mute: bool = False
    connections: int = 0
    """how many the adapter has open"""
    pieces: int = 0
    """how often something has come through, in either direction"""
    changed: asyncio.Event = attrs.field(factory=asyncio.Event)
    """set whenever one of these numbers has changed"""
    is_holding: bool = False
    """something waits until it is let go"""
    _held_from: float = math.inf
    """so many pieces may have come through"""
    _released: asyncio.Event = attrs.field(factory=asyncio.Event)
    _ends: set[asyncio.StreamWriter] = attrs.field(factory=set)
    _hushed: set[asyncio.StreamWriter] = attrs.field(factory=set)
    """the adapter's ends of connections that have fallen silent"""
    _tasks: set[asyncio.Task[None]] = attrs.field(factory=set)

    def cut(self) -> None:
        """Drop all connections, without a word to either side; new ones are dropped as well."""
        self.is_cut = True
        for end in self._ends:
            end.transport.abort()

    def mend(self) -> None:
        """Let connections through again."""
        self.is_cut = False

    def hush(self) -> None:
        """Let nothing more through on the connections that there are, not even their end. New ones are not concerned."""
        self._hushed.update(self._ends)

    def hold(self, pieces: int) -> None:
        """Let so many more pieces through, and keep back what comes after them."""
        self._held_from = self.pieces + pieces
        self._released.clear()

    def release(self) -> None:
        """Let through what was kept back, and whatever comes."""
        self._held_from, self.is_holding = math.inf, False
        self._released.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody connects."""
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        self._count(1)
        try:
            if self.is_mute:
                await _swallow(reader, writer)
            else:
                await self._connect_through(reader, writer)
        except OSError:
            writer.transport.abort()
        finally:
            self._ends.discard(writer)
            self._hushed.discard(writer)
            self._count(-1)

    async def _connect_through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far = await asyncio.open_connection(self.ens_host, self.ens_port)
        self._ends.add(far)
        if self.is_cut:  # before, or since
            self.cut()
        await asyncio.gather(self._pass_on(reader, far, writer), self._pass_on(far_reader, writer, writer))
        writer.close()
        self._ends.discard(far)
        self._hushed.discard(far)

    async def _pass_on(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, near: asyncio.StreamWriter
    ) -> None:
        """Copy one direction until it ends; what was read is still written, unless the adapter's end has fallen silent."""
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                if self.pieces >= self._held_from:
                    self.is_holding = True
                    self.changed.set()
                    await self._released.wait()
                self.pieces += 1
                self.changed.set()
                if near not in self._hushed:
                    to.write(data)
                    await to.drain()
        if to is not near or near not in self._hushed:
            to.close()

    def _count(self, more: int) -> None:
        self.connections += more
        self.changed.set()

    async def close(self) -> None:
        """End all connections, and what serves them."""
        self.cut()
        self.release()
        await asyncio.gather(*self._tasks)


async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take what comes, and answer nothing."""
    with suppress(OSError):
        while await reader.read(PIECE_BYTES):
            pass
    writer.close()


@asynccontextmanager
async def linked(ens_host: str, ens_port: int) -> AsyncIterator[Link]:
    """A line to an ENS, for as long as the block lasts."""
    link = Link(ens_host, ens_port)
    server = await asyncio.start_server(link.accept, HOST, 0)
    try:
        link.port = server.sockets[0].getsockname()[1]
        yield link
    finally:
        server.close()
        await link.close()
        await server.wait_closed()
