"""What pika reads from and writes to: asyncio's own transports, by the interface that pika has for event loops.

pika's own for asyncio makes a system call for each frame, three for a message. Here what is written in one turn of the loop is
written at once. Besides, a connection can be dropped without a word (`drop`), and who uses it is told of bytes that pika
cannot read, instead of pika alone.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from pika.adapters.utils.nbio_interface import AbstractIOReference, AbstractIOServices, AbstractStreamTransport


class Stream(asyncio.Protocol, AbstractStreamTransport):  # type: ignore[misc]  # pika has no types
    """One connection of the network: asyncio's protocol, and pika's transport."""

    _transport: asyncio.Transport

    def __init__(self, protocol: Any, services: LoopServices) -> None:
        self._protocol = protocol
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._is_readable = True
        self._dropped: ConnectionError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It can be used."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._services.stream = self
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """Let pika read; behind what it cannot read, it reads nothing."""
        if self._is_readable:
            try:
                self._protocol.data_received(data)
            except Exception as error:  # whatever pika raises while it decodes
                self._is_readable = False
                self._services.on_unreadable(error)

    def eof_received(self) -> bool | None:
        """The broker says no more."""
        return bool(self._protocol.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._protocol.connection_lost(exc or self._dropped)

    def write(self, data: bytes) -> None:
        """Write, at the end of this turn of the loop."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(data)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(unsent))

    def hang_up(self, reason: str) -> None:
        """Close it behind what was written, and tell pika why."""
        self._dropped, self._is_readable = ConnectionError(reason), False
        self._flush()
        self._transport.close()

    def drop(self, reason: str) -> None:
        """Close it, forget what was not sent, and tell pika why."""
        self._dropped, self._is_readable = ConnectionError(reason), False
        self._transport.abort()

    def abort(self) -> None:
        """Close it, and forget what was not sent; pika knows why."""
        self._transport.abort()

    def get_protocol(self) -> Any:
        """Pika's side."""
        return self._protocol

    def get_write_buffer_size(self) -> int:
        """How many bytes were written and not sent."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._unsent))


class LoopServices(AbstractIOServices):  # type: ignore[misc]  # pika has no types
    """The running loop, for one connection of pika's."""

    def __init__(self, on_unreadable: Callable[[Exception], None]) -> None:
        self.on_unreadable = on_unreadable
        self._loop = asyncio.get_running_loop()
        self.stream: Stream | None = None
        """as soon as it can be used"""

    def get_native_ioloop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return self._loop

    def add_callback_threadsafe(self, callback: Callable[[], None]) -> None:
        """Call something soon."""
        self._loop.call_soon_threadsafe(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call something later."""
        return self._loop.call_later(delay, callback)

    def getaddrinfo(
        self,
        host: str,
        port: int,
        on_done: Callable[[Any], None],
        family: int = 0,
        socktype: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Work:
        """Look a name up."""
        work = self._loop.getaddrinfo(host, port, family=family, type=socktype, proto=proto, flags=flags)
        return Work(work, on_done)

    def connect_socket(self, sock: socket.socket, resolved_addr: Any, on_done: Callable[[Any], None]) -> Work:
        """Connect a socket."""
        return Work(self._loop.sock_connect(sock, resolved_addr), on_done)

    def create_streaming_connection(
        self,
        protocol_factory: Callable[[], Any],
        sock: socket.socket,
        on_done: Callable[[Any], None],
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> Work:
        """Encrypt, if need be, and begin."""

        async def begin() -> tuple[Stream, Any]:
            _, stream = await self._loop.create_connection(
                lambda: Stream(protocol_factory(), self),
                sock=sock,
                ssl=ssl_context,
                server_hostname=server_hostname if ssl_context else None,
            )
            return stream, stream.get_protocol()

        return Work(begin(), on_done, sock)

    def run(self) -> None:
        """The loop runs already."""
        raise NotImplementedError

    stop = close = run


class Work(AbstractIOReference):  # type: ignore[misc]  # pika has no types
    """Something that pika has asked for. It is told the outcome, or the exception, unless it does not want it any more."""

    def __init__(self, work: Awaitable[Any], on_done: Callable[[Any], None], sock: socket.socket | None = None) -> None:
        self._on_done, self._socket = on_done, sock
        self._is_wanted = True
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._done)

    def cancel(self) -> bool:
        """Nobody wants it."""
        self._is_wanted = False
        self._task.cancel()
        return True

    def _done(self, _: asyncio.Future[Any]) -> None:
        outcome = None if self._task.cancelled() else self._task.exception() or self._task.result()
        if self._is_wanted and not self._task.cancelled():
            self._on_done(outcome)
        elif isinstance(outcome, tuple) and isinstance(outcome[0], Stream):
            outcome[0].abort()
        elif self._socket is not None:
            self._socket.close()
