"""`amqp://`, `amqps://`: RabbitMQ, by way of pika's asyncio connection.

    amqp://user:password@host:5672/vhost?exchange=ordered_pubsub&durable=true&expires_s=3600&message_bytes_max=16777216

Topics are routing keys of one topic exchange (`a/b` is `a.b`), which any AMQP client can publish to and bind to. Each
subscriber has a queue of its own, bound to each of its topics. The queue outlives the connection, so what is published while a
subscriber is away arrives when it is back; `close` deletes it, and the broker does so when its client has been away for
`expires_s`. A queue that was gone when the client came back is reported in the log: events were lost.

`publish` returns when the broker has confirmed all its messages: when they are on its disk, if `durable` (the default).
With `durable=false` queues and messages live in the broker's memory: they survive a client's broken connection, and nothing
survives a restart of the broker; so `loses` is then true.

`reorders` is true for this reason only: when a connection breaks that the broker believes alive (up to two heartbeats), it
gives the messages that it had sent there to the new connection late, after others.

The broker closes the channel on a message that is larger than it takes (`max_message_size`), and does not say before how large
that is: RabbitMQ 4 takes 16 MiB if nothing else is configured, 3.x took 128. So this takes 16 MiB, or what the URL says
(`message_bytes_max`).

Publishing and consuming have a connection each, since RabbitMQ stops reading a connection that publishes when its memory or
disk runs low (`connection.blocked`), and acknowledgements must get through then. The second one is made by the first
`subscribe`, so who only publishes needs no right to make queues. What may be refused (exchange, queue, bindings) is asked for
on channels of their own, because the broker closes the channel on which it refuses something.

A message is acknowledged when the application has taken it. Until then the broker keeps it, and sends no more than `PREFETCH`
beyond what is acknowledged. So a slow consumer leaves its messages with the broker.

Of the headers of plain publishers, numbers, truth values (`true`, `false`) and timestamps (seconds since 1970) arrive as text;
tables, arrays and empty fields are left out. A message with a header that pika cannot read at all is dropped, with a line in
the log: it would make pika hang up, to be given the same message again, for ever (https://github.com/pika/pika/issues/1698;
pika 1.5 reads it).

pika logs each failed attempt to connect several times over. What matters is logged here as well, so
`logging.getLogger("pika").setLevel(logging.CRITICAL)` loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import uuid4

import attrs
import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker
from pika.spec import Basic

from ordered_pubsub.adapter import Capabilities, Frame
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters._rabbitmq_io import LoopServices
from ordered_pubsub_adapters.base import ANSWER_S, CLOSE_S, BrokerAdapter, Connection, NamedFrames, Window
from ordered_pubsub_adapters.names import NameRules
from ordered_pubsub_adapters.urls import UrlRules, one_of, whole

_log = logging.getLogger(__name__)

EXCHANGE = "ordered_pubsub"
EXPIRES_S, EXPIRES_MAX_S = 3600, 30 * 86_400
MESSAGE_BYTES_MAX = 16 * 2**20
"""The largest payload that every broker takes, if nothing else is configured."""
MESSAGE_BYTES_LEAST, MESSAGE_BYTES_MOST = 2**16, 2**29
"""No more can be configured on a broker (`max_message_size`)."""
HEARTBEAT_S = 20
"""A connection on which nothing has come for so long, or twice as long, is broken."""
PREFETCH = 256
"""AMQP bounds messages, not bytes."""
BINDINGS_AT_ONCE = 500
"""A binding takes the broker more than a millisecond, and it answers within a bounded time."""
CONTENT_TYPE = "content-type"
SHORT_MAX = 255
"""bytes of a routing key, a header's name, a content type"""
FIELD_BYTES = 6
"""What a header takes beside its name and value."""
HEADER_BYTES = 300
"""What the frame of a message's headers has beside them; the content type may be long."""
FORBIDDEN, NOT_FOUND = 403, 404
"""Codes with which the broker refuses."""
TRANSIENT, PERSISTENT = 1, 2

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
    "Connect call failed": "nothing listens there: check host and port, and that the broker runs",
    "CERTIFICATE_VERIFY_FAILED": "ca= names the file of the authority that signed the broker's certificate",
    "wrong version number": "no TLS is spoken there: take its port for TLS, or amqp://",
    "indicated EOF": _WENT_AWAY,
    "Stream connection lost": _WENT_AWAY,
}


def explain(error: BaseException) -> str:
    """What pika reports, in words that say what to do, if that is known."""
    error = _innermost(error)
    if isinstance(error, OSError) or not error.args:
        text = str(error) or type(error).__name__
    else:  # alone, where pika would put its arguments in brackets and quotes
        text = str(getattr(error, "reply_text", error.args[-1]))
    advice = next((advice for mark, advice in _ADVICE.items() if mark in text), None)
    return f"{text} ({advice})" if advice else text


def _innermost(error: BaseException) -> BaseException:
    """The cause that pika has wrapped, once or several times."""
    for cause in (*getattr(error, "exceptions", ())[-1:], getattr(error, "exception", None), *error.args):
        if isinstance(cause, BaseException):
            return _innermost(cause)
    return error


# -- headers ----------------------------------------------------------------------------------------------------------


def properties_of(headers: Mapping[str, bytes | str], delivery_mode: int) -> pika.BasicProperties:
    """The properties of a message that carries these headers. pika writes bytes and text as fields of different kinds."""
    content_type = headers.get(CONTENT_TYPE)
    if isinstance(content_type, str) and len(content_type.encode()) <= SHORT_MAX:
        headers = {name: value for name, value in headers.items() if name != CONTENT_TYPE}
    else:
        content_type = None
    return pika.BasicProperties(content_type=content_type, headers=headers or None, delivery_mode=delivery_mode)


def headers_of(properties: pika.BasicProperties) -> dict[str, bytes | str]:
    """The headers that a message's properties carry, by the rule above."""
    headers: dict[str, bytes | str] = {}
    for name, value in (properties.headers or {}).items():
        if isinstance(value, (bytes, str)):
            headers[name] = value
        elif isinstance(value, bool):
            headers[name] = str(value).lower()
        elif isinstance(value, (int, float, Decimal)):
            headers[name] = str(value)
        elif isinstance(value, datetime):
            moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
            headers[name] = str(int(moment.timestamp()))
    if properties.content_type is not None:
        headers[CONTENT_TYPE] = properties.content_type
    return headers


def check_fits(frame: Frame, message_bytes_max: int, frame_max: int) -> None:
    """Raise if a broker would close the channel on a frame, or the connection."""
    if len(frame.payload) > message_bytes_max:
        raise AdapterError(
            f"a message on {frame.topic!r} has {len(frame.payload)} bytes; at most {message_bytes_max} are taken "
            "(message_bytes_max in the URL): publish smaller ones, or raise it as far as the broker's max_message_size"
        )
    size = HEADER_BYTES
    for name, value in frame.headers.items():
        length = len(name.encode())
        if length > SHORT_MAX:
            raise AdapterError(
                f"a message on {frame.topic!r} has a header whose name has {length} bytes; AMQP takes at most {SHORT_MAX}: "
                f"give {name[:20]!r}… a shorter one"
            )
        size += FIELD_BYTES + length + len(value if isinstance(value, bytes) else value.encode())
    if size > frame_max:
        raise AdapterError(
            f"a message on {frame.topic!r} has headers of {size} bytes; this broker takes at most {frame_max} (its frame_max): "
            "give it fewer or shorter ones"
        )


# -- pika, awaitable --------------------------------------------------------------------------------------------------


def _settle(future: asyncio.Future[Any], result: Any = None) -> None:
    if not future.done():
        future.set_result(result)


class Refused(AdapterError):
    """The broker has closed a channel; `code` says why."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@attrs.define(eq=False)
class Channel:
    """A channel of a connection. Every wait ends when the channel does."""

    pika: Any
    ended: asyncio.Future[Exception]
    """done when it is closed, with the reason"""

    async def call(self, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call a method of the channel, and return the broker's answer; an error of ours if it refuses."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.tell(method, *args, callback=lambda frame: _settle(answer, frame), **more)
        await asyncio.wait((answer, self.ended), timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result().method
        self._check_open()
        raise AdapterError(f"the broker did not answer {method.__name__} within {ANSWER_S:g} s")

    def tell(self, method: Callable[..., Any], *args: Any, **more: Any) -> None:
        """Call a method of the channel; an error of ours if the channel has ended."""
        self._check_open()
        try:
            method(*args, **more)
        except AMQPError as error:
            raise AdapterError(explain(error)) from error

    def _check_open(self) -> None:
        if self.ended.done():
            reason = self.ended.result()
            if isinstance(reason, ChannelClosedByBroker):
                raise Refused(explain(reason), reason.reply_code)
            raise AdapterError(explain(reason))

    async def close(self) -> None:
        """Close it, and return when the broker knows."""
        with suppress(AMQPError):
            self.pika.close()
            await asyncio.wait((self.ended,), timeout=CLOSE_S)


class Wire:
    """A connection of pika's."""

    def __init__(self, adapter: RabbitMqAdapter, host: str, port: int, purpose: str) -> None:
        loop, url = asyncio.get_running_loop(), adapter.parsed
        context = url.tls_context()
        self.opened: asyncio.Future[None] = loop.create_future()
        """done when it can be used, or never will"""
        self.ended: asyncio.Future[Exception] = loop.create_future()
        """done when it is closed, with the reason"""
        self.on_unreadable: Callable[[], object] = lambda: None
        self._services = LoopServices(self._unreadable)
        self.pika = AsyncioConnection(
            pika.ConnectionParameters(
                host=host,
                port=port,
                virtual_host=url.path or "/",
                credentials=pika.PlainCredentials(
                    url.user or "guest", url.read_password() or ("" if url.user else "guest")
                ),
                heartbeat=HEARTBEAT_S,
                socket_timeout=url.connect_timeout_s,
                stack_timeout=url.connect_timeout_s,
                ssl_options=pika.SSLOptions(context, host) if context else None,
                client_properties={"connection_name": f"ordered_pubsub {purpose}"},
            ),
            on_open_callback=lambda _: _settle(self.opened),
            on_open_error_callback=self._note_end,
            on_close_callback=self._note_end,
            custom_ioloop=self._services,
        )

    def _note_end(self, _: Any, error: Exception) -> None:
        _settle(self.opened)
        _settle(self.ended, error)

    def _unreadable(self, error: Exception) -> None:
        _log.warning("pika %s cannot read what the broker has sent: %r", pika.__version__, error)
        self.on_unreadable()
        assert self._services.stream is not None
        self._services.stream.hang_up(f"pika cannot read what came: {error!r}")

    async def channel(self) -> Channel:
        """A new channel."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        ended: asyncio.Future[Exception] = loop.create_future()
        try:
            channel = self.pika.channel(on_open_callback=lambda channel: _settle(opened, channel))
        except AMQPError as error:
            raise AdapterError(f"no channel can be opened: {explain(error)}") from error
        channel.add_on_close_callback(lambda _, reason: _settle(ended, reason))
        await asyncio.wait((opened, ended), timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            reason = explain(ended.result()) if ended.done() else "no answer"
            raise AdapterError(f"no channel could be opened: {reason}")
        return Channel(channel, ended)

    @asynccontextmanager
    async def passing_channel(self) -> AsyncIterator[Channel]:
        """A channel for what may be refused."""
        channel = await self.channel()
        try:
            yield channel
        finally:
            await channel.close()

    async def close(self) -> None:
        """Close it, and return when it is closed; if the broker does not answer, without it."""
        stream = self._services.stream
        if stream is not None and not self.opened.done():
            stream.drop("it was given up")  # to close it now is more than pika can bear, at least up to 1.4
        elif not self.ended.done():
            with suppress(AMQPError):  # it is closing
                self.pika.close()
        await asyncio.wait((self.ended,), timeout=CLOSE_S)
        if (stream := self._services.stream) is not None:
            stream.drop("the broker did not answer")
            await asyncio.wait((self.ended,), timeout=CLOSE_S)


# -- a connection -----------------------------------------------------------------------------------------------------


class RabbitMqConnection(Connection):
    """A connection that publishes, and another one that consumes as soon as there is something to subscribe to."""

    adapter: RabbitMqAdapter
    brings_again = True
    window: Window

    def __init__(self, adapter: RabbitMqAdapter) -> None:
        super().__init__(adapter)
        self.window = Window(self._send)
        self._wires: list[Wire] = []
        self._publishing: Channel | None = None
        self._consuming: Channel | None = None
        self._sent = self._settled = 0
        """tags: the last one that was sent, and the one up to which all are confirmed"""
        self._received = 0
        """the tag of the last message that came"""

    async def open(self, host: str, port: int) -> None:
        """Connect to publish, and make the exchange."""
        self._place = host, port
        wire = await self._connect("publishing")
        await self._declare_exchange(wire)
        self._publishing = channel = await wire.channel()
        self._frame_max = wire.pika.params.frame_max
        wire.pika.add_on_connection_blocked_callback(
            lambda _, notice: self.adapter.tell(f"takes no messages until it has room again: {notice.method.reason}")
        )
        wire.pika.add_on_connection_unblocked_callback(lambda *_: self.adapter.tell("takes messages again"))
        await channel.call(channel.pika.confirm_delivery, self._confirmed)
        self._depend_on(wire, channel)

    def _depend_on(self, wire: Wire, channel: Channel) -> None:
        for ended in (wire.ended, channel.ended):
            ended.add_done_callback(lambda ended: self.end(explain(ended.result())))

    async def _connect(self, purpose: str) -> Wire:
        host, port = self._place
        wire = Wire(self.adapter, host, port, purpose)
        self._wires.append(wire)
        await wire.opened
        if wire.ended.done():
            raise AdapterError(f"{self.adapter.shown}: cannot connect to {host}:{port}: {explain(wire.ended.result())}")
        return wire

    async def _declare_exchange(self, wire: Wire) -> None:
        """Make the exchange, if it is not there. Who may not make one can use one that is there."""
        name = self.adapter.exchange
        try:
            async with wire.passing_channel() as channel:
                await channel.call(channel.pika.exchange_declare, name, exchange_type="topic", durable=True)
        except Refused as refusal:
            if refusal.code == FORBIDDEN and await self._is_there(wire, "exchange_declare", name):
                return
            raise AdapterError(
                f"{self.adapter.shown}: the exchange {name!r} cannot be used; expected a durable topic exchange, or the right "
                f"to make one: {refusal}"
            ) from refusal

    async def _is_there(self, wire: Wire, method: str, name: str) -> bool:
        try:
            async with wire.passing_channel() as channel:
                await channel.call(getattr(channel.pika, method), name, passive=True)
        except Refused as refusal:
            if refusal.code in (FORBIDDEN, NOT_FOUND):
                return False
            raise
        return True

    async def close(self, is_last: bool) -> None:
        """Delete the queue, if it will not be needed any more, and disconnect."""
        if is_last and self._consuming is not None and not self._consuming.ended.done():
            with suppress(AMQPError):
                self._consuming.pika.queue_delete(self.adapter.queue)
        await asyncio.gather(*(wire.close() for wire in self._wires))

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(self, frames: NamedFrames) -> None:
        """Return when the broker has confirmed all of them; nothing is sent if one of them cannot be."""
        for _, frame in frames:
            check_fits(frame, self.adapter.message_bytes_max, self._frame_max)
        await self.window.publish(frames)

    def _send(self, frames: NamedFrames) -> Sequence[int]:
        assert self._publishing is not None
        publish, exchange, mode = self._publishing.pika.basic_publish, self.adapter.exchange, self.adapter.delivery_mode
        first = self._sent + 1
        for name, frame in frames:
            try:
                publish(exchange, name, frame.payload, properties_of(frame.headers, mode))
            except AMQPError as error:
                raise AdapterError(f"an event on {frame.topic!r} cannot be sent: {explain(error)}") from error
            self._sent += 1
        return range(first, self._sent + 1)

    def _confirmed(self, answer: Any) -> None:
        """The broker has taken a message, or has refused it; with `multiple` all before it, too."""
        method, window = answer.method, self.window
        tag = method.delivery_tag
        for one in range(self._settled + 1, tag + 1) if method.multiple else (tag,):
            if isinstance(method, Basic.Ack):
                window.confirm(one)
            else:
                window.refuse(one, _not_taken)
        if method.multiple:
            self._settled = tag
        window.fill_soon()

    # -- consuming ----------------------------------------------------------------------------------------------------

    async def subscribe(self, names: Sequence[str]) -> None:
        """Bind the queue to these names; the first time, make it."""
        if not names and not self.adapter.has_queue:
            return
        if self._consuming is None:
            await self._consume()
        queue, exchange = self.adapter.queue, self.adapter.exchange
        for at in range(0, len(names), BINDINGS_AT_ONCE):
            some = names[at : at + BINDINGS_AT_ONCE]
            async with self._wires[-1].passing_channel() as channel:
                for name in some[:-1]:  # without an answer: that to the last one stands for all
                    channel.tell(channel.pika.queue_bind, queue, exchange, name)
                await channel.call(channel.pika.queue_bind, queue, exchange, some[-1])

    async def unsubscribe(self, names: Sequence[str]) -> None:
        """Unbind the queue from these names."""
        if self._consuming is not None:
            async with self._wires[-1].passing_channel() as channel:
                for name in names:
                    await channel.call(channel.pika.queue_unbind, self.adapter.queue, self.adapter.exchange, name)

    async def _consume(self) -> None:
        """Connect to consume, and have the queue; refused, it leaves nothing."""
        adapter, wire = self.adapter, await self._connect("consuming")
        try:
            was_lost = adapter.has_queue and not await self._is_there(wire, "queue_declare", adapter.queue)
            async with wire.passing_channel() as channel:
                await channel.call(
                    channel.pika.queue_declare,
                    adapter.queue,
                    durable=adapter.delivery_mode == PERSISTENT,
                    arguments={"x-queue-type": "classic", "x-expires": adapter.expires_s * 1000},
                )
            adapter.has_queue, self.brings_again = True, not was_lost
            self._consuming = channel = await wire.channel()
            channel.pika.add_on_cancel_callback(lambda _: self.end("the queue was deleted"))
            wire.on_unreadable = self._drop_unreadable
            await channel.call(channel.pika.basic_qos, prefetch_count=PREFETCH)
            await channel.call(channel.pika.basic_consume, adapter.queue, self._came)
        except BaseException:
            self._consuming = None
            self._wires.remove(wire)
            await wire.close()
            raise
        self._depend_on(wire, channel)
        if was_lost:
            is_durable = adapter.delivery_mode == PERSISTENT
            adapter.warn_of_loss(
                f"the queue {adapter.queue!r} was gone when its client came back",
                f"{adapter.expires_s} s (expires_s)",
                "somebody deleted it, or the broker lost its disk" if is_durable else "the broker was started again",
            )

    def _came(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self._received = tag = method.delivery_tag
        topic = self.adapter.names.topic_of(method.routing_key)
        frame = None if topic is None else Frame(topic, body, headers_of(properties))
        self.adapter.received(self, frame, tag)

    def taken(self, tokens: Sequence[int]) -> None:
        """Acknowledge everything up to the last one."""
        if tokens and self._consuming is not None and not self._consuming.ended.done():
            self._consuming.pika.basic_ack(tokens[-1], multiple=True)

    def _drop_unreadable(self) -> None:
        """pika could not read the message behind the last one that came: have the broker drop it, or it would come again."""
        if self._consuming is not None and not self._consuming.ended.done():
            self._consuming.pika.basic_reject(self._received + 1, requeue=False)
            _log.warning(
                "%s: a message of a plain publisher was dropped, since pika %s cannot read its headers; pika 1.5 reads more",
                self.adapter.shown,
                pika.__version__,
            )


def _not_taken(topic: str) -> AdapterError:
    return AdapterError(
        f"the broker refused a message on {topic!r} or another of its call (basic.nack): its log may say why"
    )


# -- the adapter ------------------------------------------------------------------------------------------------------


def _exchange_name(text: str) -> str:
    if not 0 < len(text.encode()) <= SHORT_MAX:
        raise ValueError(f"a name of 1 to {SHORT_MAX} bytes")
    return text


URLS = UrlRules(
    ports={"amqp": 5672, "amqps": 5671},
    encrypted=("amqps",),
    parameters={
        "exchange": _exchange_name,
        "durable": one_of("true", "false"),
        "expires_s": whole(1, EXPIRES_MAX_S),
        "message_bytes_max": whole(MESSAGE_BYTES_LEAST, MESSAGE_BYTES_MOST),
    },
    has_path=True,
)
NAMES = NameRules(separator=".", special="*#", bytes_max=SHORT_MAX)


class RabbitMqAdapter(BrokerAdapter):
    """One client of a RabbitMQ broker."""

    url_rules = URLS
    name_rules = NAMES
    kind = "RabbitMQ"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.exchange: str = self.parsed.get("exchange", EXCHANGE)
        self.delivery_mode = PERSISTENT if self.parsed.get("durable", "true") == "true" else TRANSIENT
        self.expires_s: int = self.parsed.get("expires_s", EXPIRES_S)
        self.message_bytes_max: int = self.parsed.get("message_bytes_max", MESSAGE_BYTES_MAX)

    @property
    def capabilities(self) -> Capabilities:
        """What the module's docstring says."""
        return Capabilities(
            loses=self.delivery_mode == TRANSIENT,
            reorders=True,
            duplicates=True,
            keeps_while_away=True,
            carries_headers=True,
            confirms=True,
        )

    @property
    def frame_bytes_max(self) -> int | None:
        """What the URL says, since the broker does not."""
        return self.message_bytes_max

    def begin(self) -> None:
        """The queue's name is unique; it is not exclusive, since such a queue goes with its connection.

        It is a classic queue whatever the vhost's default is: a quorum queue would give up messages that were delivered too
        often, and would put those that come back behind others.
        """
        self.queue = f"ordered_pubsub.{uuid4().hex}"
        self.has_queue = False
        """whether it was made"""

    def make_connection(self) -> RabbitMqConnection:
        """New connections of pika's."""
        return RabbitMqConnection(self)
