"""The plain client on RabbitMQ: pika, with durable queues, persistent messages and publisher confirms.

`BlockingConnection` waits for each confirm. So this takes `SelectConnection`, which costs a fifth less than pika's connection
for asyncio: the publisher runs its loop for as long as it publishes, a subscriber has a thread for it. Messages are acknowledged
fifty at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pika

from ordered_pubsub.bench.sides import BenchReceiver, Sender, SidePlan, make_payload, now_ns
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.rabbitmq import EXPIRES_S, URLS
from ordered_pubsub_adapters.urls import BrokerUrl, read_url

EXCHANGE = "amq.topic"
"""A durable one that every broker has."""
IN_FLIGHT = 256
PREFETCH = 500
ACKNOWLEDGE_EVERY = 50
PERSISTENT, TRANSIENT = 2, 1
OPEN_S = 30.0


def parameters_of(url: BrokerUrl) -> pika.ConnectionParameters:
    """How to connect. There are no heartbeats: between its measurements, a publisher's loop does not run."""
    host, port = url.hosts[0]
    context = url.tls_context()
    return pika.ConnectionParameters(
        host=host,
        port=port,
        virtual_host=url.path or "/",
        credentials=pika.PlainCredentials(url.user or "guest", url.read_password() or ("" if url.user else "guest")),
        heartbeat=0,
        ssl_options=pika.SSLOptions(context, host) if context else None,
    )


def is_durable(url: BrokerUrl) -> bool:
    """As the adapter reads it."""
    return bool(url.get("durable", "true") == "true")


def key_of(topic: str) -> str:
    """A topic as a routing key."""
    return topic.replace("/", ".")


class PlainConnection:
    """A connection with one channel, on pika's own loop, which runs until it is told to stop."""

    def __init__(self, url: BrokerUrl) -> None:
        self.channel: Any = None
        self.error: Exception | None = None
        self.connection = pika.SelectConnection(
            parameters_of(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._ended,
            on_close_callback=self._ended,
        )

    def _opened(self, channel: Any) -> None:
        self.channel = channel
        channel.add_on_close_callback(self._ended)
        self.stop()

    def _ended(self, what: Any, error: Exception) -> None:
        self.error = error
        self.stop()

    def stop(self) -> None:
        """Let `run` return."""
        self.connection.ioloop.stop()

    def run(self) -> None:
        """Run the loop until somebody stops it; raise if the connection ends."""
        self.connection.ioloop.start()
        if self.error is not None:
            raise AdapterError(f"the plain client's connection to RabbitMQ ended: {self.error!r}")

    def call(self, method: Callable[..., Any], *args: Any, **more: Any) -> None:
        """Call a method of the channel, and wait for the broker's answer."""
        method(*args, callback=lambda _: self.stop(), **more)
        self.run()


class RabbitSender(Sender):
    """Publishes with a window of confirms."""

    def __init__(self, plan: SidePlan) -> None:
        super().__init__(plan)
        self._url = read_url(plan.ens, URLS)
        self._properties = pika.BasicProperties(delivery_mode=PERSISTENT if is_durable(self._url) else TRANSIENT)
        self._payload = b""
        self._next = self._count = self._tag = 0
        self._first = 1
        """no lower tag is unconfirmed"""
        self._unconfirmed: set[int] = set()
        self._is_pacing = False
        """whether more is to be published, whatever is confirmed"""

    async def open(self) -> None:
        """Connect."""
        self._link = PlainConnection(self._url)
        self._link.run()
        self._link.call(self._link.channel.confirm_delivery, self._on_confirm)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if not isinstance(method, pika.spec.Basic.Ack):
            raise AdapterError(f"the broker refused message {method.delivery_tag} of the plain client")
        if method.multiple:
            self._unconfirmed.difference_update(range(self._first, method.delivery_tag + 1))
            self._first = method.delivery_tag + 1
        else:
            self._unconfirmed.discard(method.delivery_tag)
        self._fill()
        if not self._unconfirmed and not self._is_pacing:
            self._link.stop()

    async def rush(self, payload: bytes, count: int) -> None:
        """Publish whenever the window has room."""
        self._payload, self._next, self._count = payload, 0, count
        self._fill()
        self._link.run()
        self._next = self._count = 0

    def _fill(self) -> None:
        while self._next < self._count and len(self._unconfirmed) < IN_FLIGHT:
            self._send(self.topic(self._next), self._payload)
            self._next += 1

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish one message."""
        self._send(topic, payload)

    def _send(self, topic: str, payload: bytes) -> None:
        self._tag += 1
        self._unconfirmed.add(self._tag)
        self._link.channel.basic_publish(EXCHANGE, key_of(topic), payload, self._properties)

    async def pace(self, phase: int, count: int, interval_s: float) -> None:
        """As any sender does, on pika's loop."""
        call_later = self._link.connection.ioloop.call_later
        began_ns, sent = now_ns(), 0

        def publish_next() -> None:
            nonlocal sent
            self._is_pacing = sent + 1 < count
            self._send(self.topic(sent), make_payload(phase, now_ns()))
            sent += 1
            if self._is_pacing:
                due_ns = began_ns + int(sent * interval_s * 1e9)
                call_later(max(due_ns - now_ns(), 0) / 1e9, publish_next)

        publish_next()
        self._link.run()

    async def settle(self) -> None:
        """Nothing is unconfirmed when `rush` and `pace` have returned."""

    async def close(self) -> None:
        """Disconnect."""
        self._link.connection.close()
        self._link.connection.ioloop.start()


class RabbitReceiver(BenchReceiver):
    """Is called by pika with each message, in a thread of its own."""

    def __init__(self, plan: SidePlan, take: Callable[[bytes], None]) -> None:
        super().__init__(plan, take)
        self._url = read_url(plan.ens, URLS)
        self._queue = f"{key_of(plan.topics[0])}.{uuid4().hex}"
        self._unacknowledged = 0

    async def open(self) -> None:
        """Connect, make a queue, bind it, and consume."""
        self._link = link = PlainConnection(self._url)
        link.run()
        channel = link.channel
        arguments = {"x-queue-type": "classic", "x-expires": EXPIRES_S * 1000}
        link.call(channel.queue_declare, self._queue, durable=is_durable(self._url), arguments=arguments)
        for key in self._keys:
            link.call(channel.queue_bind, self._queue, EXCHANGE, key)
        link.call(channel.basic_qos, prefetch_count=PREFETCH)
        link.call(channel.basic_consume, self._queue, self._on_message)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def _keys(self) -> Sequence[str]:
        return [key_of(topic) for topic in self.plan.topics]

    def _run(self) -> None:
        self._link.connection.ioloop.start()

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.take(body)
        self._unacknowledged += 1
        if self._unacknowledged == ACKNOWLEDGE_EVERY:
            self._unacknowledged = 0
            channel.basic_ack(method.delivery_tag, multiple=True)

    async def close(self) -> None:
        """Delete the queue, and stop."""
        ioloop, channel = self._link.connection.ioloop, self._link.channel
        ioloop.add_callback_threadsafe(lambda: channel.queue_delete(self._queue, callback=lambda _: ioloop.stop()))
        self._thread.join(OPEN_S)
