"""The adapter to RabbitMQ, on a real broker that is killed, cut off, filled up and talked to by plain clients."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timezone
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection

from ordered_pubsub.adapter import Adapter, Frame, load_adapter
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub.testing.brokers import RabbitMq, find_broker, free_port
from ordered_pubsub.testing.conformance.line import linked
from ordered_pubsub_adapters.rabbitmq import EXCHANGE, RabbitMqAdapter
from ordered_pubsub_adapters.rabbitmq_consuming import PREFETCH
from ordered_pubsub_adapters.rabbitmq_publishing import WINDOW_MESSAGES

PATIENCE_S = 60.0
"""A test that waits longer than this hangs."""
POLL_S = 0.02
STAMP = b"\x01" + bytes(range(130, 230))
PASSWORDS = {"guest": "guest", "writer": "w:/@%", "nobody": "n"}
RIGHTS = {"guest": (".*", ".*", ".*"), "writer": ("", ".*", ""), "nobody": ("", "", "")}
"""what each user may make, write and read"""
OTHER_VHOST = "other/place"


# -- the broker ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """One for all tests, since it takes seconds to start."""
    path = tmp_path_factory.mktemp("rabbitmq") / "definitions.json"
    path.write_text(json.dumps(definitions()))
    with RabbitMq(load_definitions=str(path)) as running:
        yield running


def definitions() -> dict[str, Any]:
    """Its users and what they may do."""
    salt = b"salt"
    hashes = {user: b64encode(salt + sha256(salt + word.encode()).digest()).decode() for user, word in PASSWORDS.items()}
    rights = [(user, "/", *what) for user, what in RIGHTS.items()] + [("guest", OTHER_VHOST, ".*", ".*", ".*")]
    return {
        "vhosts": [{"name": "/"}, {"name": OTHER_VHOST}],
        "users": [{"name": user, "password_hash": value, "tags": ""} for user, value in hashes.items()],
        "permissions": [
            dict(zip(("user", "vhost", "configure", "write", "read"), right, strict=True)) for right in rights
        ],
    }


async def control(broker: RabbitMq, *arguments: str) -> None:
    """What an operator does."""
    program = Path(find_broker("rabbitmq-server")).resolve().with_name("rabbitmqctl")
    command = [str(program), "--quiet", *arguments]
    await asyncio.to_thread(subprocess.run, command, env=broker._environment, check=True, capture_output=True)


@asynccontextmanager
async def memory_alarm(broker: RabbitMq) -> AsyncIterator[None]:
    """The broker has too little memory."""
    await control(broker, "set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        yield
    finally:
        await control(broker, "set_vm_memory_high_watermark", "0.6")


# -- users of the adapter -----------------------------------------------------------------------------------------------


class Peer:
    """A user of an adapter, who remembers what came and what was told."""

    def __init__(self, url: str) -> None:
        self.adapter = load_adapter(url)
        self.frames: list[Frame] = []
        self.states: list[tuple[bool, str]] = []
        self.may_receive = asyncio.Event()
        self.may_receive.set()
        self._news = asyncio.Event()

    async def on_frames(self, frames: Sequence[Frame]) -> None:
        self.frames.extend(frames)
        self._news.set()
        await self.may_receive.wait()

    def on_state(self, is_connected: bool, reason: str) -> None:
        self.states.append((is_connected, reason))
        self._news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that a call from the adapter brings about."""

        async def wait() -> None:
            while not is_so():
                self._news.clear()
                await self._news.wait()

        await asyncio.wait_for(wait(), PATIENCE_S)

    async def receive(self, *payloads: bytes) -> None:
        """Wait until all of these have come."""
        await self.until(lambda: set(payloads) <= set(self.payloads))

    async def told(self, is_connected: bool, words: str) -> None:
        """Wait until the adapter has said so."""
        await self.until(lambda: any(state == is_connected and words in reason for state, reason in self.states))

    @property
    def payloads(self) -> list[bytes]:
        return [frame.payload for frame in self.frames]

    async def publish_until_taken(self, frames: Sequence[Frame]) -> None:
        """What a client does."""
        while True:
            try:
                await self.adapter.publish(frames)
            except AdapterError:
                await asyncio.sleep(POLL_S)
            else:
                return


@asynccontextmanager
async def opened(*urls: str) -> AsyncIterator[list[Peer]]:
    """Peers who are connected, and are not in the end."""
    async with AsyncExitStack() as stack:
        peers = []
        for url in urls:
            peer = Peer(url)
            await peer.adapter.open(peer.on_frames, peer.on_state)
            stack.push_async_callback(peer.adapter.close)
            peers.append(peer)
        yield peers
        for peer in peers:
            peer.may_receive.set()


def topic() -> str:
    """One that nobody has used before."""
    return f"test/{uuid4().hex}"


def numbered(topic: str, count: int, size: int = 0) -> list[Frame]:
    """Frames that can be told apart."""
    return [Frame(topic, b"%d/" % number + bytes(size), {"ordered-pubsub-stamp": STAMP}) for number in range(count)]


async def eventually(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that can only be looked at."""

    async def wait() -> None:
        while not await is_so():
            await asyncio.sleep(POLL_S)

    await asyncio.wait_for(wait(), PATIENCE_S)


async def refused(url: str) -> str:
    """Why it cannot be opened."""
    adapter = load_adapter(url)
    with pytest.raises(AdapterError) as caught:
        await adapter.open(Peer(url).on_frames, lambda is_connected, reason: None)
    await adapter.close()
    return str(caught.value)


# -- plain clients ------------------------------------------------------------------------------------------------------


async def plainly(broker: RabbitMq, use: Callable[[Any], Any]) -> Any:
    """What somebody does with pika alone, on a channel of his own."""

    def run() -> Any:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            return use(connection.channel())

    return await asyncio.to_thread(run)


async def publish_plainly(broker: RabbitMq, key: str, body: bytes, properties: pika.BasicProperties | None = None) -> None:
    """As the tutorial does."""
    await plainly(broker, lambda channel: channel.basic_publish(EXCHANGE, key, body, properties))


async def messages_ready(broker: RabbitMq, queue: str) -> int | None:
    """How many messages wait in a queue that the broker has not handed out, None if there is no such queue."""

    def ask(channel: Any) -> int | None:
        try:
            return int(channel.queue_declare(queue, passive=True).method.message_count)
        except pika.exceptions.ChannelClosedByBroker:
            return None

    found: int | None = await plainly(broker, ask)
    return found


def queue_of(adapter: Adapter) -> str:
    """The name of its queue."""
    assert isinstance(adapter, RabbitMqAdapter)
    return adapter._queue.name


async def test_a_plain_consumer_gets_the_payload_and_can_see_the_headers(broker: RabbitMq) -> None:
    """The payload is the application's own; what else there is are properties."""
    name = topic()
    queue = await plainly(broker, lambda channel: (channel.queue_declare(name).method.queue))
    async with opened(broker.url) as (publisher,):
        await plainly(broker, lambda channel: channel.queue_bind(name, EXCHANGE, name.replace("/", ".")))
        table = {"content-type": "application/json", "ordered-pubsub-stamp": STAMP, "text": "ü"}
        await publisher.adapter.publish([Frame(name, b'{"price": 1}', table)])
    _, properties, body = await plainly(broker, lambda channel: channel.basic_get(queue, auto_ack=True))
    await plainly(broker, lambda channel: channel.queue_delete(queue))
    assert body == b'{"price": 1}'
    assert properties.content_type == "application/json"
    assert properties.headers == {"ordered-pubsub-stamp": STAMP, "text": "ü"}
    assert properties.delivery_mode == 2


async def test_a_plain_consumer_may_use_wildcards(broker: RabbitMq) -> None:
    """Levels of a topic are words of a routing key."""
    name = topic()
    async with opened(broker.url) as (publisher,):
        await plainly(broker, lambda channel: channel.queue_declare(name))
        await plainly(broker, lambda channel: channel.queue_bind(name, EXCHANGE, f"{name.replace('/', '.')}.*"))
        await publisher.adapter.publish([Frame(f"{name}/eu", b"one"), Frame(f"{name}/eu/x", b""), Frame(f"{name}/us", b"two")])
    bodies = [(await plainly(broker, lambda channel: channel.basic_get(name, auto_ack=True)))[2] for _ in range(3)]
    await plainly(broker, lambda channel: channel.queue_delete(name))
    assert bodies == [b"one", b"two", None]


async def test_a_plain_publisher_is_heard(broker: RabbitMq) -> None:
    """Without any properties, and with headers of all the types that pika can send."""
    name = topic()
    odd = {
        **{"int": 7, "long": 2**60, "bool": True, "decimal": Decimal("1.5"), "none": None, "bytes": b"\xff\x00"},
        "time": datetime(2024, 5, 1, tzinfo=timezone.utc),
        **{"table": {"a": {"b": [1, "c"]}}, "array": [1, {"a": "b"}], "text": "ü", "ordered-pubsub-stamp": 5},
    }
    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe([name])
        key = name.replace("/", ".")
        await publish_plainly(broker, key, b"bare")
        await publish_plainly(broker, key, b"", pika.BasicProperties(content_type="text/plain", headers=odd, timestamp=5))
        await peer.receive(b"bare", b"")
    assert peer.frames[0] == Frame(name, b"bare", {})
    assert peer.frames[1].headers == {
        **{"int": "7", "long": str(2**60), "bool": "true", "decimal": "1.5", "bytes": b"\xff\x00", "time": "1714521600"},
        **{"text": "ü", "ordered-pubsub-stamp": "5", "content-type": "text/plain"},
    }


async def test_a_header_that_pika_cannot_read_does_no_harm(broker: RabbitMq) -> None:
    """A time in milliseconds, as other languages' clients send it: pika would drop the connection, again and again."""
    name = topic()
    async with opened(broker.url, broker.url) as (publisher, peer):
        await peer.adapter.subscribe([name])
        adapter = publisher.adapter
        assert isinstance(adapter, RabbitMqAdapter)
        sink = adapter._window._sink
        assert sink is not None
        usual, send = b"\x05whendS\x00\x00\x00\x08", sink.send
        field = b"\x04whenS\x00\x00\x00\x08"
        assert usual != field
        sink.send = lambda data: send(data.replace(field + b"mmmmmmmm", b"\x04whenT" + (1_772_000_000_000).to_bytes(8, "big") + b"\x03pad" + b"V"))
        await adapter.publish([Frame(name, b"odd", {"when": "mmmmmmmm"})])
        await peer.receive(b"odd")
    assert peer.frames[0].headers == {"when": "1772000000000"}
    assert peer.states == []
