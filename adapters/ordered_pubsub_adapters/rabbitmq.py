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
`subscribe`, so who only publishes needs no right to make queues.

The stamp travels in a header, as bytes. Over no header at all that costs the broker about 5 µs of the 40 that a persistent
message of 200 bytes takes; as text, under a shorter name, or in another property (`correlation_id`), it costs the same.
What becomes of the headers of plain publishers is in `rabbitmq_wire`.

pika logs each failed attempt to connect several times over. What matters is logged here as well, so
`logging.getLogger("pika").setLevel(logging.CRITICAL)` loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from pika.spec import Basic

from ordered_pubsub.adapter import Adapter, Capabilities, Frame, FramesHandler, StateHandler
from ordered_pubsub.errors import AdapterError
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub_adapters.names import NameRules, NameTable
from ordered_pubsub_adapters.rabbitmq_connection import CLOSE_S, Line, WireConnection, check_pika, explain, open_line
from ordered_pubsub_adapters.rabbitmq_consuming import PREFETCH, Assembly, Batch, Delivering
from ordered_pubsub_adapters.rabbitmq_link import Link
from ordered_pubsub_adapters.rabbitmq_publishing import MESSAGE_BYTES_MAX, Sink, Window
from ordered_pubsub_adapters.rabbitmq_queue import Queue, declare_exchange
from ordered_pubsub_adapters.rabbitmq_wire import PERSISTENT, SHORT_MAX, TRANSIENT
from ordered_pubsub_adapters.urls import UrlRules, one_of, read_url, whole

_log = logging.getLogger(__name__)

EXCHANGE = "ordered_pubsub"
SUBSCRIBE_S = 60.0
"""So long a subscription is tried over one connection after the other."""
EXPIRES_S = 3600
EXPIRES_MAX_S = 30 * 86_400
MESSAGE_BYTES_LEAST, MESSAGE_BYTES_MOST = 2**16, 2**29
"""No more can be configured on a broker (`max_message_size`)."""
NAMES = NameRules(separator=".", special="*#", bytes_max=SHORT_MAX)

SetUp = Callable[[WireConnection], Awaitable[None]]


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


class RabbitMqAdapter(Adapter):
    """One client's connections to a RabbitMQ broker."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        check_pika()
        self._url = read_url(url, URLS)
        self._exchange = self._url.get("exchange", EXCHANGE)
        self._durable = self._url.get("durable", "true") == "true"
        self._message_bytes_max: int = self._url.get("message_bytes_max", MESSAGE_BYTES_MAX)
        self._publishing: Link | None = None
        self._consuming: Link | None = None
        self._starting: asyncio.Task[Link] | None = None
        """the making of the connection that consumes"""
        self._is_open = False
        self._turn = asyncio.Lock()
        """one change of what is subscribed to after the other"""

    @property
    def capabilities(self) -> Capabilities:
        """What the module's docstring says."""
        return Capabilities(
            loses=not self._durable,
            reorders=True,
            duplicates=True,
            keeps_while_away=True,
            carries_headers=True,
            confirms=True,
        )

    @property
    def frame_bytes_max(self) -> int | None:
        """What the URL says, since the broker does not."""
        return self._message_bytes_max

    # -- open and close -----------------------------------------------------------------------------------------------

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Connect, and make the exchange."""
        if self._publishing is not None:
            raise AdapterError(f"this adapter for {self._url.shown} is open already; each client has its own")
        self._on_state = on_state
        self._names = NameTable(NAMES)
        self._delivering = Delivering(on_frames)
        self._delivery: asyncio.Task[None] | None = None
        mode = PERSISTENT if self._durable else TRANSIENT
        self._window = Window(self._exchange, self._names.name_of, mode, self._message_bytes_max)
        self._publishing = self._link("publishing", self._set_up_publishing, self._window.detach)
        try:
            await self._publishing.open()
        except BaseException:
            self._publishing = None
            raise
        self._is_open = True

    async def close(self) -> None:
        """Disconnect, and delete the queue. What was not confirmed fails."""
        self._is_open = False
        if self._publishing is not None:
            self._window.detach("the adapter was closed")
            if self._starting is not None:
                self._starting.cancel()
                await asyncio.wait((self._starting,))
            if self._consuming is not None:
                await self._stop_consuming(self._consuming)
                self._consuming = None
            await self._publishing.close()
            self._publishing = None

    def _link(self, purpose: str, set_up: SetUp, on_break: Callable[[str], None]) -> Link:
        return Link(self._url, purpose, set_up, on_break, self._link_changed, self.on_failure)

    def _link_changed(self, is_connected: bool, reason: str) -> None:
        """One of the connections broke, or returned."""
        if is_connected == self._is_connected:
            self._on_state(is_connected, reason)

    @property
    def _is_connected(self) -> bool:
        """Whether all the connections are there that are needed."""
        return all(link.is_connected for link in (self._publishing, self._consuming) if link is not None)

    def _break_off(self, connection: WireConnection, reason: str) -> None:
        """Something that a connection cannot do without is gone: have it made anew."""
        if self._is_open and connection.is_open:
            connection.abandon(reason)

    def _depend_on(self, line: Line) -> None:
        line.ended.add_done_callback(lambda ended: self._break_off(line.connection, explain(ended.result())))

    def _check_open(self) -> None:
        if not self._is_open:
            raise AdapterError(f"{self._url.shown} is not open")

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Hand frames over, and return when the broker has confirmed them all."""
        self._check_open()
        if frames:
            await self._window.publish(frames)

    async def _set_up_publishing(self, connection: WireConnection) -> None:
        await declare_exchange(connection, self._exchange)
        line = await open_line(connection)
        self._depend_on(line)
        connection.add_on_connection_blocked_callback(self._blocked)
        connection.add_on_connection_unblocked_callback(self._unblocked)
        await line.call(line.channel.confirm_delivery, self._settle)
        self._window.attach(Sink(connection.send, line.channel.channel_number, connection.params.frame_max))

    def _settle(self, answer: Any) -> None:
        method = answer.method
        self._window.settle(method.delivery_tag, method.multiple, isinstance(method, Basic.Ack))

    def _blocked(self, connection: WireConnection, notice: Any) -> None:
        self._tell(f"takes no messages until it has room again: {notice.method.reason}")

    def _unblocked(self, connection: WireConnection, notice: Any) -> None:
        self._tell("takes messages again")

    def _tell(self, what: str) -> None:
        """It stays connected; who publishes, waits."""
        reason = f"{self._url.shown} {what}"
        _log.warning("%s", reason)
        self._on_state(self._is_connected, reason)

    # -- consuming ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Bind the queue to these topics; the first time, make it. If the connection breaks meanwhile, over another one."""
        self._check_open()
        async with self._turn:
            self._check_open()
            link = self._consuming or await self._start_consuming()
            give_up_at = asyncio.get_running_loop().time() + SUBSCRIBE_S
            while not await self._bind(await link.wait(), topics, give_up_at):
                self._check_open()

    async def _bind(self, connection: WireConnection, topics: Sequence[str], give_up_at: float) -> bool:
        """Whether the broker has agreed; false if the connection broke, and there is time for another one."""
        new = [topic for topic in topics if self._names.topic_of(self._names.name_of(topic)) is None]
        try:
            await self._queue.bind(connection, [self._names.subscribe(topic) for topic in new])
        except BaseException as error:
            for topic in new:
                self._names.unsubscribe(topic)
            has_broken = isinstance(error, AdapterError) and connection.ended.done()
            if not has_broken or asyncio.get_running_loop().time() > give_up_at:
                raise
            return False
        return True

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Unbind the queue from these topics. What the broker is not told now, it is told when the connection is back."""
        self._check_open()
        async with self._turn:
            names = [self._names.unsubscribe(topic) for topic in topics]
            if self._consuming is not None and self._consuming.is_connected:
                with suppress(AdapterError):
                    await self._queue.unbind(self._consuming.connection, names)

    async def _start_consuming(self) -> Link:
        """Connect to consume. It ends with the call that wants it, and when the adapter is closed."""
        self._starting = starting = asyncio.create_task(self._open_consuming(), name=f"{self._url.shown} consuming")
        try:
            await asyncio.wait((starting,))
        finally:
            starting.cancel()
            await asyncio.wait((starting,))
        if starting.cancelled():
            raise AdapterError(f"{self._url.shown} was closed while it connected to subscribe; open it again first")
        return starting.result()

    async def _open_consuming(self) -> Link:
        expires_s = self._url.get("expires_s", EXPIRES_S)
        name = f"ordered_pubsub.{uuid4().hex}"
        self._queue = Queue(name, self._exchange, self._durable, expires_s, self._names)
        link = self._link("consuming", self._set_up_consuming, lambda reason: self._delivering.detach())
        await link.open()
        self._consuming = link
        supervisor = Supervisor(self._url.shown, self.on_failure)
        self._delivery = supervisor.must(self._delivering.run(), "giving on what has come")
        return link

    async def _set_up_consuming(self, connection: WireConnection) -> None:
        await declare_exchange(connection, self._exchange)
        await self._queue.declare(connection)
        line = await open_line(connection)
        self._depend_on(line)
        channel = line.channel
        channel.add_on_cancel_callback(lambda notice: self._break_off(connection, "the queue was deleted"))
        batch = Batch(lambda tag: channel.is_open and channel.basic_ack(tag, multiple=True))
        assembly = Assembly(self._names.topic_of, batch, self._delivering.attach(batch))
        connection.tap(channel.channel_number, assembly.take)
        await line.call(channel.basic_qos, prefetch_count=PREFETCH)
        await line.call(channel.basic_consume, self._queue.name, assembly.passed_by)

    async def _stop_consuming(self, link: Link) -> None:
        if self._delivery is not None:
            self._delivery.cancel()
            await asyncio.wait((self._delivery,))
        if link.is_connected:
            with suppress(AdapterError, asyncio.TimeoutError):
                await asyncio.wait_for(self._queue.delete(link.connection), CLOSE_S)
        await link.close()
