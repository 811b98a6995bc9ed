"""pika's connection on the running loop, made awaitable, with a short cut for messages.

pika keeps the connection: handshake, heartbeats, channels and their methods. What it tells by callbacks is told here by
futures, and every wait ends when the channel or the connection does.

Two things go past it, because they cost most of the time (`rabbitmq_wire`): messages are written as bytes, and those for a
consumer are read from the bytes. Both happen at the seam between pika's `Connection` and its adapters to event loops, of which
this is one more: `_adapter_emit_data` (bytes to be sent) and `_on_data_available` (bytes that came). Neither is public API, so
`check_pika` refuses a version that does not have them. Bytes to be sent are collected for one
turn of the loop and written at once; pika alone makes a system call for each frame, three for a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from typing import Any

import attrs
import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker, StreamLostError

from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters.rabbitmq_wire import FRAME_OVERHEAD, FRAME_START
from ordered_pubsub_adapters.urls import BrokerUrl

HEARTBEAT_S = 20
"""A connection on which nothing has come for so long, or twice as long, is broken."""
CALL_S = 30.0
"""So long may the broker take to answer."""
CLOSE_S = 3.0
"""So long may closing take before it is done without the broker."""

Tap = Callable[[int, bytes, int, int], bool]
"""Takes a frame of a channel: its type, and where its content starts and ends; returns whether it was for the tap."""


_SEAM = {"_adapter_emit_data": "data", "_on_data_available": "data_in", "_terminate_stream": "error"}
"""What is replaced or called, and the one argument of each."""
_HELD = ("_transport", "bytes_received")


def check_pika() -> None:
    """Raise a `ConfigurationError` if this version of pika is not one that this module fits."""
    for name, argument in _SEAM.items():
        method = getattr(AsyncioConnection, name, None)
        if method is None or list(signature(method).parameters) != ["self", argument]:
            raise _unfit(f"{name}({argument})")
    idle = AsyncioConnection(custom_ioloop=object(), internal_connection_workflow=False)  # it connects to nothing
    missing = [name for name in _HELD if not hasattr(idle, name)]
    if missing:
        raise _unfit(missing[0])


def _unfit(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"pika {pika.__version__} does not have {name}, which the adapter for amqp:// needs; install 'pika>=1.3.2,<2'"
    )


class WireConnection(AsyncioConnection):  # type: ignore[misc]  # pika has no types
    """pika's connection, which writes once per turn of the loop, and lets taps read some of the frames."""

    def __init__(self, parameters: pika.ConnectionParameters) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._unsent: list[bytes] = []
        self._unread = b""
        self._taps: dict[int, Tap] = {}
        self.opened: asyncio.Future[None] = loop.create_future()
        """done when the connection can be used, or never will"""
        self.ended: asyncio.Future[Exception] = loop.create_future()
        """done when it is closed, with the reason"""
        super().__init__(
            parameters,
            on_open_callback=self._note_open,
            on_open_error_callback=self._note_end,
            on_close_callback=self._note_end,
            custom_ioloop=loop,
        )

    def _note_open(self, connection: WireConnection) -> None:
        _settle(self.opened)

    def _note_end(self, connection: WireConnection, error: Exception) -> None:
        _settle(self.opened)
        _settle(self.ended, error)

    def tap(self, channel: int, take: Tap) -> None:
        """Give the frames of a channel to a tap first."""
        self._taps[channel] = take

    def send(self, data: bytes) -> None:
        """Send frames of the wire, after all that was sent before."""
        self._adapter_emit_data(data)

    def _adapter_emit_data(self, data: bytes) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(data)

    def _flush(self) -> None:
        data = b"".join(self._unsent)
        self._unsent.clear()
        try:
            if self._transport is not None:
                super()._adapter_emit_data(data)
        except Exception as error:
            self.abandon(f"it could not be written to: {error!r}")

    def _on_data_available(self, data_in: bytes) -> None:
        data = self._unread + data_in if self._unread else data_in
        at, end = 0, len(data)
        if data.startswith(b"AMQP"):  # a broker of another version says so, and nothing else
            super()._on_data_available(data)
            return
        while end - at >= FRAME_OVERHEAD:
            kind, channel, size = FRAME_START.unpack_from(data, at)
            after = at + size + FRAME_OVERHEAD
            if after > end:
                break
            tap = self._taps.get(channel)
            if tap is not None and tap(kind, data, at + FRAME_START.size, after - 1):
                self.bytes_received += after - at  # so that the heartbeat knows that something came
            else:
                super()._on_data_available(data[at:after])
            at = after
        self._unread = data[at:]

    def abandon(self, reason: str) -> None:
        """Break an open connection off, without a word to the broker."""
        if self.opened.done() and not self.ended.done():
            self._terminate_stream(StreamLostError(reason))

    async def shut(self) -> None:
        """Close the connection, and return when it is closed; if the broker does not answer, without it."""
        if self.ended.done():
            return
        with suppress(AMQPError):  # it is closing
            self.close()
        for reason in ("the broker did not answer", "it was given up"):
            await asyncio.wait((self.ended,), timeout=CLOSE_S)
            if self.ended.done():
                return
            self.abandon(reason)


async def connect(url: BrokerUrl, host: str, port: int, purpose: str) -> WireConnection:
    """A connection to one of the URL's hosts, or an `AdapterError`. Cancelled, nothing stays open."""
    connection = WireConnection(_parameters(url, host, port, purpose))
    try:
        await asyncio.wait((connection.opened,), timeout=url.connect_timeout_s)
        if not connection.opened.done():
            raise AdapterError(
                f"{url.shown}: {host}:{port} did not answer within {url.connect_timeout_s:g} s (connect_timeout_s)"
            )
        if connection.ended.done():
            raise AdapterError(f"{url.shown}: cannot connect to {host}:{port}: {explain(connection.ended.result())}")
    except BaseException:
        await connection.shut()
        raise
    return connection


def _parameters(url: BrokerUrl, host: str, port: int, purpose: str) -> pika.ConnectionParameters:
    context = url.tls_context()
    return pika.ConnectionParameters(
        host=host,
        port=port,
        virtual_host=url.path or "/",
        credentials=pika.PlainCredentials(url.user or "guest", url.read_password() or ("" if url.user else "guest")),
        heartbeat=HEARTBEAT_S,
        socket_timeout=url.connect_timeout_s,
        stack_timeout=url.connect_timeout_s,
        ssl_options=pika.SSLOptions(context, host) if context else None,
        client_properties={"connection_name": f"ordered_pubsub {purpose}"},
    )


def explain(error: BaseException) -> str:
    """What pika reports, in words that say what to do, if that is known."""
    text = _words(_innermost(error))
    advice = next((advice for mark, advice in _ADVICE.items() if mark in text), None)
    return f"{text} ({advice})" if advice else text


_WENT_AWAY = "the broker went away; if it never answers, check the port, and amqp:// against amqps://"
_ADVICE = {
    "ACCESS_REFUSED - Login": "check user and password; guest may come from the broker's own machine only",
    "ACCESS_REFUSED": "the broker's administrator has to permit it",
    "NOT_ALLOWED": "the vhost is the URL's path, or '/' if there is none; write a '/' in its name as %2F",
    "larger than configured max size": (
        "publish smaller messages, or raise max_message_size there; message_bytes_max in the URL says what it takes"
    ),
    "inequivalent arg": "it exists with other properties: delete it, or take another one",
    "Connection refused": "nothing listens there: check host and port, and that the broker runs",
    "CERTIFICATE_VERIFY_FAILED": "ca= names the file of the authority that signed the broker's certificate",
    "wrong version number": "no TLS is spoken there: take its port for TLS, or amqp://",
    "indicated EOF": _WENT_AWAY,
    "Stream connection lost": _WENT_AWAY,
}


def _innermost(error: BaseException) -> BaseException:
    """The cause that pika has wrapped, once or several times."""
    for cause in (*getattr(error, "exceptions", ())[-1:], getattr(error, "exception", None), *error.args):
        if isinstance(cause, BaseException):
            return _innermost(cause)
    return error


def _words(error: BaseException) -> str:
    """An error's text alone, where pika would put its arguments in brackets and quotes."""
    if isinstance(error, OSError) or not error.args:
        return str(error) or type(error).__name__
    return str(getattr(error, "reply_text", error.args[-1]))


@attrs.define(eq=False)
class Line:
    """A channel of a connection."""

    connection: WireConnection
    channel: Any
    ended: asyncio.Future[Exception]
    """done when it is closed, with the reason"""

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return not self.ended.done()

    async def call(self, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call a method of the channel, and return the broker's answer; an `AdapterError` if it refuses."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.tell(method, *args, callback=lambda frame: _settle(answer, frame), **more)
        await asyncio.wait((answer, self.ended), timeout=CALL_S, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result().method
        self._check_open()
        raise AdapterError(f"the broker did not answer {method.__name__} within {CALL_S:g} s")

    def tell(self, method: Callable[..., Any], *args: Any, **more: Any) -> None:
        """Call a method of the channel; an `AdapterError` if the channel has ended."""
        self._check_open()
        try:
            method(*args, **more)
        except AMQPError as error:
            raise AdapterError(explain(error)) from error

    def _check_open(self) -> None:
        if self.ended.done():
            raise Refused.of(self.ended.result())

    async def close(self) -> None:
        """Close it, and return when the broker knows."""
        with suppress(AMQPError):
            self.channel.close()
            await asyncio.wait((self.ended,), timeout=CLOSE_S)


class Refused(AdapterError):
    """A channel was closed; `code` says why, 0 if not by the broker."""

    code = 0

    @classmethod
    def of(cls, reason: Exception) -> Refused:
        """The error for a channel that was closed."""
        error = cls(explain(reason))
        if isinstance(reason, ChannelClosedByBroker):
            error.code = reason.reply_code
        return error


async def open_line(connection: WireConnection) -> Line:
    """A new channel."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Any] = loop.create_future()
    ended: asyncio.Future[Exception] = loop.create_future()
    try:
        channel = connection.channel(on_open_callback=lambda channel: _settle(opened, channel))
    except AMQPError as error:
        raise AdapterError(f"no channel can be opened: {explain(error)}") from error
    channel.add_on_close_callback(lambda channel, reason: _settle(ended, reason))
    await asyncio.wait((opened, ended), timeout=CALL_S, return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        raise AdapterError("no channel could be opened: " + (explain(ended.result()) if ended.done() else "no answer"))
    return Line(connection, channel, ended)


def _settle(future: asyncio.Future[Any], result: Any = None) -> None:
    if not future.done():
        future.set_result(result)
