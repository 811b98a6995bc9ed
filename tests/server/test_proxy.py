"""The proxy that stands for a distance: it delays, loses nothing, and breaks when it is told to."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, cast

import pytest

from ordered_pubsub.testing import proxy
from ordered_pubsub.testing.proxy import Proxy
from server.waiting import soon, until


class Listener(asyncio.Protocol):
    """One side of each connection that is accepted."""

    everyone: ClassVar[list[Listener]] = []
    is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.everyone.append(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True


class Deaf(Listener):
    """Reads nothing after the first words."""

    def data_received(self, data: bytes) -> None:
        self.transport.pause_reading()


@pytest.fixture(params=[Listener])
async def echo(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """The port of a listener that says what it hears."""
    server = await asyncio.get_running_loop().create_server(request.param, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for end in Listener.everyone:
        end.transport.abort()
    await until(lambda: all(end.is_lost for end in Listener.everyone))
    Listener.everyone.clear()


@asynccontextmanager
async def connected(link: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def test_what_is_sent_comes_back_unchanged(echo: int) -> None:
    sent = bytes(range(256)) * 40_000
    async with Proxy(("127.0.0.1", echo)) as link, connected(link) as (reader, writer):
        writer.write(sent)
        assert await soon(reader.readexactly(len(sent))) == sent


async def test_nothing_arrives_before_it_may(echo: int) -> None:
    loop = asyncio.get_running_loop()
    async with Proxy(("127.0.0.1", echo), delay_s=0.02) as link, connected(link) as (reader, writer):
        writer.write(b"x")
        assert await soon(reader.readexactly(1)) == b"x"
        started = loop.time()
        writer.write(b"y")
        await soon(reader.readexactly(1))
        assert loop.time() - started >= 0.038  # but for the clock's resolution


async def test_a_delay_keeps_the_order_also_when_it_becomes_shorter(echo: int) -> None:
    async with Proxy(("127.0.0.1", echo), delay_s=0.05) as link, connected(link) as (reader, writer):
        writer.write(b"1")
        await soon(reader.readexactly(1))
        writer.write(b"2")
        await writer.drain()
        link.delay_s = 0.0
        writer.write(b"3")
        assert await soon(reader.readexactly(2)) == b"23"


async def test_a_link_that_is_cut_breaks_and_refuses_until_it_is_healed(echo: int) -> None:
    async with Proxy(("127.0.0.1", echo)) as link, connected(link) as (reader, writer):
        writer.write(b"x")
        await soon(reader.readexactly(1))
        link.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await soon(reader.readexactly(1))
        async with connected(link) as (refused, _):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await soon(refused.readexactly(1))
        link.heal()
        async with connected(link) as (healed, asking):
            asking.write(b"y")
            assert await soon(healed.readexactly(1)) == b"y"


async def test_a_link_that_is_frozen_keeps_what_was_under_way(echo: int) -> None:
    async with Proxy(("127.0.0.1", echo)) as link, connected(link) as (reader, writer):
        writer.write(b"1")
        await soon(reader.readexactly(1))
        link.freeze()
        writer.write(b"23")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        link.thaw()
        assert await soon(reader.readexactly(2)) == b"23"


@pytest.mark.parametrize("echo", [Deaf], indirect=True)
async def test_no_more_is_under_way_than_the_window_holds(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "BYTES_MAX", 1 << 18)
    async with Proxy(("127.0.0.1", echo)) as link, connected(link) as (_, writer):
        for _ in range(200):
            writer.write(b"x" * (1 << 18))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.2)
        assert 0 < max(lane._bytes for lane in link.lanes) < 1 << 20


async def test_the_end_of_one_side_is_told_to_the_other_after_what_was_sent(echo: int) -> None:
    async with Proxy(("127.0.0.1", echo), delay_s=0.01) as link, connected(link) as (reader, writer):
        writer.write(b"last")
        writer.write_eof()
        assert await soon(reader.read()) == b"last"
        await until(lambda: not link.lanes)


async def test_where_nobody_listens_a_connection_is_broken(unused_tcp_port: int) -> None:
    async with Proxy(("127.0.0.1", unused_tcp_port)) as link, connected(link) as (reader, _):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await soon(reader.readexactly(1))
        await until(lambda: not link.lanes)


@pytest.mark.parametrize("echo", [Deaf], indirect=True)
async def test_a_side_that_is_gone_is_not_told_of_the_end_of_the_other(echo: int) -> None:
    """It goes in the moment in which a frozen line thaws, and the loop has not noticed."""
    async with Proxy(("127.0.0.1", echo)) as link:
        with socket.create_connection(("127.0.0.1", link.port)) as side:
            side.send(b"x")
            await until(lambda: Listener.everyone and not Listener.everyone[0].transport.is_reading())
            link.freeze()
            Listener.everyone[0].transport.write_eof()
            await until(lambda: any(lane._waiting for lane in link.lanes))
            side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # go without a word
        link.thaw()
        await until(lambda: not link.lanes)
