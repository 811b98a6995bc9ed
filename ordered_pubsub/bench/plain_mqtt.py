"""The plain client on MQTT: paho at QoS 1, on the running event loop.

paho offers a thread of its own (`loop_start`), a loop to be called, and hooks for somebody else's event loop. The last is the
fastest for both sides, with about half of the processor time of the thread: all that has come is read at once, and the writer is
not woken for each message. paho looks at all messages in flight at each acknowledgement, so it is told not to count them
(`max_inflight_messages_set(0)`), and the window is kept here. MQTT 3.1.1, paho's default, costs it less than MQTT 5.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Callable
from typing import Any, cast

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from ordered_pubsub.bench.sides import BenchReceiver, Sender, SidePlan
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.mqtt import QOS, RULES
from ordered_pubsub_adapters.urls import read_url

WINDOW = 100
READS_PER_TURN = 100
TICK_S = 5.0
OPEN_S = 10.0


class PlainLoop:
    """paho's client on the running event loop."""

    def __init__(self, url: str) -> None:
        self._url = read_url(url, RULES)
        self.qos: int = self._url.get("qos", QOS)
        self._loop = asyncio.get_running_loop()
        self.client = Client(CallbackAPIVersion.VERSION2)
        self.client.max_inflight_messages_set(0)
        self.after_turn: Callable[[], None] = lambda: None
        self._connected = self._loop.create_future()

    async def open(self) -> None:
        """Connect."""
        client, url = self.client, self._url
        client.username_pw_set(url.user, url.read_password())
        if (context := url.tls_context()) is not None:
            client.tls_set_context(context)
        client.on_connect = self._on_connect
        client.on_socket_register_write = self._on_want_write
        try:
            client.connect(*url.hosts[0])
        except OSError as error:
            raise AdapterError(f"{url.shown}: the plain client cannot connect: {error}") from error
        self._socket = cast(Any, client.socket())
        self._loop.add_reader(self._socket, self._read)
        self._tick()
        client.loop_write()
        await asyncio.wait_for(self._connected, OPEN_S)

    def _on_connect(self, client: Any, data: Any, flags: Any, reason: Any, more: Any) -> None:
        if reason.is_failure:
            self._connected.set_exception(AdapterError(f"{self._url.shown} does not let the plain client in: {reason}"))
        else:
            self._connected.set_result(None)

    def _on_want_write(self, client: Any, data: Any, socket: Any) -> None:
        self._loop.call_soon(self._write)

    def _write(self) -> None:
        self.client.loop_write()
        if self.client.want_write():
            self._loop.add_writer(self._socket, self._write_rest)
        self.after_turn()

    def _write_rest(self) -> None:
        self._loop.remove_writer(self._socket)
        self._write()

    def _read(self) -> None:
        for _ in range(READS_PER_TURN):
            if self.client.loop_read() or not self._has_more():
                break
        self.after_turn()

    def _has_more(self) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(select.select([self._socket], [], [], 0)[0])

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self.client.loop_misc()

    async def close(self) -> None:
        """Disconnect."""
        self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self.client.on_socket_register_write = None
        self.client.disconnect()
        self.client.loop_write()


class MqttSender(Sender):
    """Publishes with a window of acknowledgements."""

    def __init__(self, plan: SidePlan) -> None:
        super().__init__(plan)
        self._payload = b""
        self._next = self._count = self._unacknowledged = 0
        self._idle = asyncio.Event()

    async def open(self) -> None:
        """Connect."""
        self._mqtt = PlainLoop(self.plan.ens)
        self._mqtt.client.on_publish = self._on_publish
        self._mqtt.after_turn = self._fill
        await self._mqtt.open()

    async def rush(self, payload: bytes, count: int) -> None:
        """Publish whenever the window has room."""
        self._payload, self._next, self._count = payload, 0, count
        self._fill()
        await self.settle()
        self._next = self._count = 0

    def _fill(self) -> None:
        while self._next < self._count and self._unacknowledged < WINDOW:
            self._send(self.topic(self._next), self._payload)
            self._next += 1
        if not self._unacknowledged:
            self._idle.set()

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish one message."""
        self._send(topic, payload)

    def _send(self, topic: str, payload: bytes) -> None:
        self._unacknowledged += 1
        self._mqtt.client.publish(topic, payload, self._mqtt.qos)

    def _on_publish(self, client: Any, data: Any, mid: int, reason: Any, more: Any) -> None:
        self._unacknowledged -= 1

    async def settle(self) -> None:
        """Wait for all acknowledgements."""
        while self._unacknowledged:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Disconnect."""
        await self._mqtt.close()


class MqttReceiver(BenchReceiver):
    """Is called by paho with each message."""

    async def open(self) -> None:
        """Connect and subscribe."""
        self._mqtt = PlainLoop(self.plan.ens)
        client, take = self._mqtt.client, self.take
        client.on_message = lambda client, data, message: take(bytes(message.payload))
        subscribed = asyncio.get_running_loop().create_future()
        client.on_subscribe = lambda *_: subscribed.set_result(None)
        await self._mqtt.open()
        client.subscribe([(topic, self._mqtt.qos) for topic in self.plan.topics])
        await asyncio.wait_for(subscribed, OPEN_S)

    async def close(self) -> None:
        """Disconnect."""
        await self._mqtt.close()
