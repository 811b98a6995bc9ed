"""The adapter to RabbitMQ, on a real broker that is killed, cut off, filled up and talked to by plain clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
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

from ordered_pubsub.adapter import Adapter, Frame, load_adapter
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub.testing.brokers import RabbitMq, find_broker, free_port
from ordered_pubsub.testing.conformance.line import linked
from ordered_pubsub_adapters import rabbitmq
from ordered_pubsub_adapters.rabbitmq import BINDINGS_AT_ONCE, EXCHANGE, PREFETCH, RabbitMqAdapter, RabbitMqConnection

PATIENCE_S = 60.0
"""A test that waits longer than this hangs."""
POLL_S = 0.02
STAMP = b"\x01" + bytes(range(130, 230))
PASSWORDS = {"guest": "guest", "writer": "w:/@%", "member": "m", "blind": "b", "nobody": "n"}
OURS = r"^ordered_pubsub(\..*)?$"
"""the exchange, and the queues of subscribers"""
RIGHTS = {
    "guest": (".*", ".*", ".*"),
    "writer": ("", ".*", ""),
    "member": (OURS, OURS, OURS),
    "blind": (OURS, OURS, r"^ordered_pubsub\..*$"),
    "nobody": ("", "", ""),
}
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
    hashes = {
        user: b64encode(salt + sha256(salt + word.encode()).digest()).decode() for user, word in PASSWORDS.items()
    }
    rights = [(user, "/", *what) for user, what in RIGHTS.items()] + [("guest", OTHER_VHOST, ".*", ".*", ".*")]
    return {
        "vhosts": [{"name": "/"}, {"name": OTHER_VHOST}],
        "users": [{"name": user, "password_hash": value, "tags": ""} for user, value in hashes.items()],
        "permissions": [
            dict(zip(("user", "vhost", "configure", "write", "read"), right, strict=True)) for right in rights
        ],
    }


async def control(broker: RabbitMq, *arguments: str) -> str:
    """What an operator does, and is told."""

    def run() -> str:
        program = Path(find_broker("rabbitmq-server")).resolve().with_name("rabbitmqctl")
        command = [str(program), "--quiet", *arguments]
        return subprocess.run(command, env=broker._environment, check=True, capture_output=True, text=True).stdout

    return await asyncio.to_thread(run)


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
        while not await is_so():  # noqa: ASYNC110  # it happens in another process
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


async def publish_plainly(
    broker: RabbitMq, key: str, body: bytes, properties: pika.BasicProperties | None = None
) -> None:
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


async def goes_nowhere(broker: RabbitMq, key: str) -> bool:
    """Whether nobody's queue is bound to a topic."""

    def ask(channel: Any) -> bool:
        channel.confirm_delivery()
        try:
            channel.basic_publish(EXCHANGE, key, b"anybody?", mandatory=True)
        except pika.exceptions.UnroutableError:
            return True
        return False

    answer: bool = await plainly(broker, ask)
    return answer


def queue_of(adapter: Adapter) -> str:
    """The name of its queue."""
    assert isinstance(adapter, RabbitMqAdapter)
    return adapter.queue


async def test_a_plain_consumer_gets_the_payload_and_can_see_the_headers(broker: RabbitMq) -> None:
    """The payload is the application's own; what else there is are properties."""
    name = topic()
    queue = await plainly(broker, lambda channel: channel.queue_declare(name).method.queue)
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
        await publisher.adapter.publish(
            [Frame(f"{name}/eu", b"one"), Frame(f"{name}/eu/x", b""), Frame(f"{name}/us", b"two")]
        )
    bodies = [(await plainly(broker, lambda channel: channel.basic_get(name, auto_ack=True)))[2] for _ in range(3)]
    await plainly(broker, lambda channel: channel.queue_delete(name))
    assert bodies == [b"one", b"two", None]


async def test_a_plain_publisher_is_heard(broker: RabbitMq) -> None:
    """Without any properties, and with headers of all the types that pika can send."""
    name = topic()
    scalars = {"int": 7, "long": 2**60, "bool": True, "decimal": Decimal("1.5"), "none": None, "bytes": b"\xff\x00"}
    nested = {
        "table": {"a": {"b": [1, "c"]}},
        "array": [1, {"a": "b"}],
        "time": datetime(2024, 5, 1, tzinfo=timezone.utc),
    }
    odd = {**scalars, **nested, "text": "ü", "ordered-pubsub-stamp": 5}
    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe([name])
        key = name.replace("/", ".")
        await publish_plainly(broker, key, b"bare")
        await publish_plainly(
            broker, key, b"", pika.BasicProperties(content_type="text/plain", headers=odd, timestamp=5)
        )
        await peer.receive(b"bare", b"")
    assert peer.frames[0] == Frame(name, b"bare", {})
    read = {
        "int": "7",
        "long": str(2**60),
        "bool": "true",
        "decimal": "1.5",
        "bytes": b"\xff\x00",
        "time": "1714521600",
    }
    others = {"text": "ü", "ordered-pubsub-stamp": "5", "content-type": "text/plain"}
    assert peer.frames[1].headers == {**read, **others}


async def test_a_header_that_pika_cannot_read_does_no_harm(broker: RabbitMq, caplog: pytest.LogCaptureFixture) -> None:
    """A time in milliseconds, as other languages' clients send it. A pika that cannot read it would hang up, to be given the
    same message again, for ever: so that message is dropped, and nothing else is."""
    name = topic()
    key = name.replace("/", ".")
    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe([name])
        await publish_plainly(broker, key, b"before")
        await publish_plainly(broker, key, b"odd", pika.BasicProperties(headers={"when": FarAway(2024, 5, 1)}))
        await publish_plainly(broker, key, b"after")
        await peer.receive(b"before", b"after")
        await eventually(lambda: is_ready(broker, queue_of(peer.adapter), 0))
    odd = [frame.headers for frame in peer.frames if frame.payload == b"odd"]
    if pika_reads_it():
        assert odd == [{"when": str(MILLISECONDS)}]
        assert peer.states == []
    else:
        assert odd == []
        assert "a message of a plain publisher was dropped, since pika" in caplog.text
        assert [is_connected for is_connected, _ in peer.states] == [False, True]


MILLISECONDS = 1_772_000_000_000


class FarAway(datetime):
    """A time that pika writes as so many seconds, and that may be too much for it to read."""

    def utctimetuple(self) -> Any:
        return (1970, 1, 1, 0, 0, MILLISECONDS)


def pika_reads_it() -> bool:
    """Whether this release does."""
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, {"when": FarAway(2024, 5, 1)})
    try:
        pika.data.decode_table(b"".join(pieces), 0)
    except (ValueError, OverflowError, OSError):
        return False
    return True


# -- what cannot be opened ----------------------------------------------------------------------------------------------


def as_user(broker: RabbitMq, user: str, password: str | None = None, vhost: str = "") -> str:
    """The broker's URL for one of its users."""
    host, port = broker.address
    return f"amqp://{user}:{quote(password or PASSWORDS[user], safe='')}@{host}:{port}/{quote(vhost, safe='')}"


async def test_a_wrong_port_is_told_at_once() -> None:
    """With what to look at."""
    port = free_port()
    reason = await refused(f"amqp://me:secret@127.0.0.1:{port}")
    assert f"amqp://me:***@127.0.0.1:{port}: cannot connect to 127.0.0.1:{port}: " in reason
    assert "nothing listens there: check host and port" in reason


async def test_a_host_that_says_nothing_is_given_up() -> None:
    """After the time that the URL names."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reason = await refused(f"amqp://127.0.0.1:{port}?connect_timeout_s=0.2")
    assert f"127.0.0.1:{port} did not answer within 0.2 s (connect_timeout_s)" in reason


async def test_a_host_that_speaks_something_else_is_told_at_once() -> None:
    """It hangs up."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        reason = await refused(f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert "check the port, and amqp:// against amqps://" in reason


async def test_a_wrong_password_is_told_at_once(broker: RabbitMq) -> None:
    """Without showing it."""
    reason = await refused(as_user(broker, "guest", "wrong"))
    assert "Login was refused" in reason
    assert "check user and password" in reason
    assert "wrong" not in reason


async def test_a_wrong_vhost_is_told_at_once(broker: RabbitMq) -> None:
    """One that does not exist, and one that this user may not enter."""
    for url in (as_user(broker, "guest", vhost="nowhere"), as_user(broker, "writer", vhost=OTHER_VHOST)):
        assert "the vhost is the URL's path" in await refused(url)


async def test_an_exchange_of_another_type_is_told_at_once(broker: RabbitMq) -> None:
    """It would not route topics."""
    reason = await refused(f"{broker.url}/?exchange=amq.fanout")
    assert "the exchange 'amq.fanout' cannot be used; expected a durable topic exchange" in reason
    assert "inequivalent arg 'type'" in reason


async def test_who_may_not_make_an_exchange_needs_one_that_is_there(broker: RabbitMq) -> None:
    """And is told so."""
    assert "the broker's administrator has to permit it" in await refused(
        f"{as_user(broker, 'nobody')}?exchange=missing"
    )


async def test_who_may_only_write_can_publish_and_is_told_that_it_cannot_subscribe(broker: RabbitMq) -> None:
    """To an exchange that somebody else has made."""
    name = topic()
    async with opened(broker.url, as_user(broker, "writer")) as (reader, writer):
        await reader.adapter.subscribe([name])
        await writer.adapter.publish([Frame(name, b"one")])
        with pytest.raises(AdapterError, match=r"ACCESS_REFUSED - .* queue"):
            await writer.adapter.subscribe([name])
        await writer.adapter.publish([Frame(name, b"two")])
        await reader.receive(b"one", b"two")
        assert writer.states == []


async def test_the_rights_that_are_written_down_are_enough(broker: RabbitMq) -> None:
    """In docs/adapters.md. Binding a queue is reading from the exchange, to RabbitMQ."""
    name = topic()
    async with opened(as_user(broker, "member"), as_user(broker, "blind")) as (member, blind):
        await member.adapter.subscribe([name])
        await member.adapter.publish([Frame(name, b"one")])
        await member.receive(b"one")
        with pytest.raises(AdapterError, match=r"ACCESS_REFUSED - .*access to exchange 'ordered_pubsub'"):
            await blind.adapter.subscribe([name])


async def test_a_message_that_is_too_large_for_the_broker_is_told_with_what_to_do(broker: RabbitMq) -> None:
    """It closes the channel; what comes after is taken again."""
    await control(broker, "eval", "application:set_env(rabbit, max_message_size, 100000).")
    try:
        async with opened(broker.url) as (peer,):
            with pytest.raises(AdapterError, match=r"larger than configured max size 100000 .*max_message_size"):
                await peer.adapter.publish([Frame(topic(), bytes(100_001))])
            await peer.told(True, "connected again")
            await peer.publish_until_taken([Frame(topic(), bytes(100_000))])
    finally:
        await control(broker, "eval", "application:set_env(rabbit, max_message_size, 134217728).")


async def test_closing_while_the_first_subscription_connects_leaves_no_connection(broker: RabbitMq) -> None:
    """Whenever that is."""
    async with linked(*broker.address) as line:
        for turns in (1, 5, 20, 50, 100):
            peer = Peer(broker.url_at("127.0.0.1", line.port))
            await peer.adapter.open(peer.on_frames, peer.on_state)
            work = asyncio.ensure_future(peer.adapter.subscribe([topic()]))
            for _ in range(turns):
                await asyncio.sleep(0)
            await peer.adapter.close()
            await asyncio.gather(work, return_exceptions=True)

        async def are_gone() -> bool:
            return line.connections == 0

        await eventually(are_gone)


async def test_who_may_not_write_is_told_why(broker: RabbitMq) -> None:
    """Each publication is refused; the connection comes back."""
    async with opened(broker.url, as_user(broker, "nobody")) as (_, peer):
        with pytest.raises(AdapterError, match=r"ACCESS_REFUSED - .*the broker's administrator has to permit it"):
            await peer.adapter.publish([Frame(topic(), b"")])
        await peer.told(True, "connected again")


async def test_another_vhost_and_a_password_with_marks_can_be_written(broker: RabbitMq) -> None:
    """Encoded, as URLs have it."""
    async with opened(
        as_user(broker, "guest", vhost=OTHER_VHOST), as_user(broker, "guest", vhost=OTHER_VHOST)
    ) as peers:
        publisher, reader = peers
        await reader.adapter.subscribe(["t"])
        await publisher.adapter.publish([Frame("t", b"there")])
        await reader.receive(b"there")
    async with opened(broker.url, as_user(broker, "writer")) as (_, writer):  # who may make the exchange comes first
        await writer.adapter.publish([Frame("t", b"")])


async def test_a_password_can_be_in_a_file_that_changes(broker: RabbitMq, tmp_path: Path) -> None:
    """It is read when the connection is made."""
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    host, port = broker.address
    url = f"amqp://guest@{host}:{port}?password_file={quote(str(secret), safe='')}"
    assert "Login was refused" in await refused(url)
    secret.write_text("guest\n")
    async with opened(url):
        pass
    secret.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        await load_adapter(url).open(Peer(url).on_frames, lambda is_connected, reason: None)


# -- how much ----------------------------------------------------------------------------------------------------------


async def test_thousands_of_frames_on_several_topics_come_in_order(broker: RabbitMq) -> None:
    """As long as nothing breaks, each once."""
    batches = [numbered(topic(), 2_000, size) for size in (0, 200, 3_000)]
    async with opened(broker.url, broker.url) as (publisher, peer):
        await peer.adapter.subscribe([frames[0].topic for frames in batches])
        await asyncio.gather(*(publisher.adapter.publish(frames) for frames in batches))
        await peer.until(lambda: len(peer.frames) >= 6_000)
        for frames in batches:
            assert [frame for frame in peer.frames if frame.topic == frames[0].topic] == frames


async def test_many_topics_can_be_held(broker: RabbitMq) -> None:
    """In one call, and left in one."""
    names = [f"{topic()}/{number}" for number in range(BINDINGS_AT_ONCE + 2)]
    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe(names)
        await asyncio.gather(*(peer.adapter.publish([Frame(name, name.encode())]) for name in names))
        await peer.receive(*(name.encode() for name in names))
        await peer.adapter.unsubscribe(names[1:])
        await peer.adapter.publish([Frame(name, b"later") for name in names[::-1]])
        await peer.receive(b"later")
        assert [frame.topic for frame in peer.frames if frame.payload == b"later"] == names[:1]


async def test_a_slow_reader_leaves_its_messages_with_the_broker(broker: RabbitMq) -> None:
    """But for the first of them; and they come when it reads again."""
    frames = numbered(topic(), 3_000)
    async with opened(broker.url, broker.url) as (publisher, slow):
        await slow.adapter.subscribe([frames[0].topic])
        slow.may_receive.clear()
        await publisher.adapter.publish(frames)
        queue = queue_of(slow.adapter)
        await eventually(lambda: is_ready(broker, queue, len(frames) - PREFETCH))
        assert len(slow.frames) <= PREFETCH
        slow.may_receive.set()
        await slow.until(lambda: len(slow.frames) >= len(frames))
        assert slow.frames == frames
        await eventually(lambda: is_ready(broker, queue, 0))


async def is_ready(broker: RabbitMq, queue: str, count: int | None) -> bool:
    """Whether so many messages wait in a queue."""
    return await messages_ready(broker, queue) == count


async def test_a_broker_that_is_short_of_memory_holds_up_publishing_only(
    broker: RabbitMq, caplog: pytest.LogCaptureFixture
) -> None:
    """Who publishes waits, and is told why; who reads gets what is there, and can acknowledge it."""
    frames, later = numbered(topic(), 2_000), numbered(topic(), 2_000)
    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe([frames[0].topic, later[0].topic])
        peer.may_receive.clear()
        await peer.adapter.publish(frames)
        async with memory_alarm(broker):
            work = asyncio.ensure_future(peer.adapter.publish(later))
            await peer.told(True, "takes no messages until it has room again: low on memory")
            peer.may_receive.set()
            await peer.until(lambda: len(peer.frames) >= len(frames))
            await eventually(lambda: is_ready(broker, queue_of(peer.adapter), 0))
            assert not work.done()
        await work
        await peer.told(True, "takes messages again")
        await peer.until(lambda: len(peer.frames) >= len(frames) + len(later))
    assert "takes no messages" in caplog.text
    assert all(is_connected for is_connected, _ in peer.states)


async def test_what_the_broker_refuses_is_told(broker: RabbitMq) -> None:
    """Somebody else's queue on the topic is full, and is set up to refuse then."""
    name = topic()
    limits = {"x-max-length": 3, "x-overflow": "reject-publish"}
    async with opened(broker.url) as (publisher,):
        await plainly(broker, lambda channel: channel.queue_declare(name, arguments=limits))
        await plainly(broker, lambda channel: channel.queue_bind(name, EXCHANGE, name.replace("/", ".")))
        with pytest.raises(AdapterError, match=r"the broker refused a message on .* \(basic.nack\)"):
            await publisher.adapter.publish(numbered(name, 500))
        await plainly(broker, lambda channel: channel.queue_delete(name))
        await publisher.adapter.publish(numbered(name, 500))


async def test_closing_does_not_wait_for_a_broker_that_reads_nothing(broker: RabbitMq) -> None:
    """What was not confirmed fails."""
    async with memory_alarm(broker), opened(broker.url) as (peer,):
        work = asyncio.ensure_future(peer.adapter.publish(numbered(topic(), 10)))
        await peer.told(True, "takes no messages")
        await asyncio.wait_for(peer.adapter.close(), PATIENCE_S)
        with pytest.raises(AdapterError, match=r"10 events on .* were not confirmed: .*the adapter was closed"):
            await work


# -- what breaks --------------------------------------------------------------------------------------------------------


async def test_a_broker_that_is_killed_while_thousands_are_on_their_way_loses_none(broker: RabbitMq) -> None:
    """What it confirmed is on its disk; what it did not is handed over again."""
    name = topic()
    before, during = numbered(name, 500), [Frame(name, b"during %d" % number) for number in range(20_000)]
    async with opened(broker.url, broker.url) as (publisher, peer):
        await peer.adapter.subscribe([name])
        peer.may_receive.clear()
        await publisher.adapter.publish(before)
        work = asyncio.ensure_future(publisher.adapter.publish(during))
        await peer.until(lambda: len(peer.frames) > 0)
        await asyncio.to_thread(broker.kill)
        with pytest.raises(AdapterError, match=r"20000 events on .* were not confirmed: .*the broker went away"):
            await work
        await publisher.told(False, "broke: ")
        await asyncio.to_thread(broker.start)
        peer.may_receive.set()
        await publisher.told(True, "connected again")
        await publisher.publish_until_taken(during)
        await peer.receive(*(frame.payload for frame in before + during))
        await peer.told(True, "connected again")


async def test_a_broker_that_falls_silent_is_given_up_and_found_again(
    broker: RabbitMq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its heartbeats; the connection itself looks as if it were alive."""
    monkeypatch.setattr(rabbitmq, "HEARTBEAT_S", 1)
    name = topic()
    async with opened(f"{broker.url}?connect_timeout_s=1") as (peer,):
        await peer.adapter.subscribe([name])
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            work = asyncio.ensure_future(peer.adapter.publish([Frame(name, b"lost")]))
            await peer.told(False, "heartbeat")
            with pytest.raises(AdapterError, match="heartbeat"):
                await work
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await peer.told(True, "connected again")
        await peer.publish_until_taken([Frame(name, b"new")])
        await peer.receive(b"new")


async def test_what_is_published_while_a_subscriber_is_cut_off_arrives_when_it_is_back(broker: RabbitMq) -> None:
    """Its queue waits for it. Topics may be left meanwhile."""
    kept, left, other = numbered(topic(), 300), numbered(topic(), 300), topic()
    async with linked(*broker.address) as line, opened(broker.url, broker.url_at("127.0.0.1", line.port)) as peers:
        publisher, peer = peers
        await peer.adapter.subscribe([kept[0].topic, left[0].topic])
        line.cut()
        await peer.told(False, "broke: ")
        await publisher.adapter.publish(kept)
        await publisher.adapter.publish(left)
        waiting = asyncio.ensure_future(peer.adapter.publish([Frame(other, b"waits")]))
        await peer.adapter.unsubscribe([left[0].topic])
        line.mend()
        await peer.told(True, "connected again")
        await waiting
        await publisher.adapter.publish([Frame(left[0].topic, b"later"), Frame(kept[0].topic, b"end")])
        await peer.receive(b"end")
        assert [frame for frame in peer.frames if frame.topic == kept[0].topic][:-1] == kept
        assert {frame.topic for frame in peer.frames} == {kept[0].topic}
        assert await goes_nowhere(broker, left[0].topic.replace("/", "."))


async def test_a_topic_that_was_left_takes_no_room_at_the_broker(broker: RabbitMq) -> None:
    """Its messages do not even reach the queue; also if the call that left it was cancelled."""
    one, two = topic(), topic()
    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe([one, two])
        await peer.adapter.unsubscribe([one])
        assert await goes_nowhere(broker, one.replace("/", "."))
        work = asyncio.ensure_future(peer.adapter.unsubscribe([two]))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait((work,))
        await peer.adapter.unsubscribe([two])
        assert await goes_nowhere(broker, two.replace("/", "."))


async def test_subscribing_waits_for_a_connection_that_comes_back(broker: RabbitMq) -> None:
    """And not for longer than connecting may take."""
    name = topic()
    async with linked(*broker.address) as line:
        url = broker.url_at("127.0.0.1", line.port)
        async with opened(f"{url}?connect_timeout_s=60", f"{url}?connect_timeout_s=0.3") as (patient, hasty):
            for peer in (patient, hasty):
                await peer.adapter.subscribe(["other"])
            line.cut()
            for peer in (patient, hasty):
                await peer.told(False, "broke: ")
            work = asyncio.ensure_future(patient.adapter.subscribe([name]))
            with pytest.raises(AdapterError, match="is not connected: "):
                await hasty.adapter.subscribe([name])
            line.mend()
            await work
            await hasty.told(True, "connected again")
            await patient.told(True, "connected again")
            await hasty.adapter.publish([Frame(name, b"come")])
            await patient.receive(b"come")
            assert hasty.frames == []


async def test_a_subscription_whose_connection_breaks_is_made_over_the_next_one(
    broker: RabbitMq, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, subscribe, broken = topic(), RabbitMqConnection.subscribe, []

    async def breaking(connection: RabbitMqConnection, names: Sequence[str]) -> None:
        if not broken:
            broken.append(connection)
            connection.end("cut in the middle")
            raise AdapterError("cut in the middle")
        await subscribe(connection, names)

    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe(["other"])
        monkeypatch.setattr(RabbitMqConnection, "subscribe", breaking)
        await peer.adapter.subscribe([name])
        await peer.adapter.publish([Frame(name, b"come")])
        await peer.receive(b"come")


async def test_a_queue_is_deleted_when_its_client_closes(broker: RabbitMq) -> None:
    """With whatever is in it."""
    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe([topic()])
        queue = queue_of(peer.adapter)
        assert await messages_ready(broker, queue) == 0
    assert await messages_ready(broker, queue) is None


async def test_an_adapter_that_was_closed_can_be_opened_again(broker: RabbitMq) -> None:
    """As if it were new: with no topics."""
    one, two = topic(), topic()
    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe([one, two])
        await peer.adapter.close()
        await peer.adapter.open(peer.on_frames, peer.on_state)
        await peer.adapter.subscribe([two])
        await peer.adapter.publish([Frame(one, b"one"), Frame(two, b"two")])
        await peer.receive(b"two")
        assert peer.payloads == [b"two"]
        with pytest.raises(AdapterError, match="is open already"):
            await peer.adapter.open(peer.on_frames, peer.on_state)


async def test_a_client_whose_queue_has_expired_says_that_events_are_lost(
    broker: RabbitMq, caplog: pytest.LogCaptureFixture
) -> None:
    """And goes on with a new one."""
    name = topic()
    async with (
        linked(*broker.address) as line,
        opened(f"{broker.url_at('127.0.0.1', line.port)}?expires_s=1") as (peer,),
    ):
        await peer.adapter.subscribe([name])
        line.cut()

        async def is_gone() -> bool:
            return queue_of(peer.adapter) not in await control(
                broker, "list_queues", "name"
            )  # looking at it would keep it

        await eventually(is_gone)
        line.mend()
        await peer.told(True, "connected again")
        await peer.adapter.publish([Frame(name, b"new")])
        await peer.receive(b"new")
    assert f"the queue '{queue_of(peer.adapter)}' was gone when its client came back" in caplog.text
    assert "the client was away for more than 1 s (expires_s)" in caplog.text


async def test_a_queue_that_somebody_deletes_is_made_again(broker: RabbitMq, caplog: pytest.LogCaptureFixture) -> None:
    """The broker says so, and so does the log."""
    name = topic()
    async with opened(broker.url) as (peer,):
        await peer.adapter.subscribe([name])
        await plainly(broker, lambda channel: channel.queue_delete(queue_of(peer.adapter)))
        await peer.told(False, "the queue was deleted")
        await peer.told(True, "connected again")
        await peer.adapter.publish([Frame(name, b"new")])
        await peer.receive(b"new")
    assert "was gone when its client came back" in caplog.text


async def test_an_exchange_that_somebody_deletes_is_made_again(broker: RabbitMq) -> None:
    """What is published meanwhile is refused, and taken afterwards."""
    exchange = uuid4().hex
    async with opened(f"{broker.url}?exchange={exchange}") as (publisher,):
        await plainly(broker, lambda channel: channel.exchange_delete(exchange))
        with pytest.raises(AdapterError, match=f"no exchange '{exchange}' in vhost"):
            await publisher.adapter.publish(numbered(topic(), 3))
        await publisher.told(True, "connected again")
        await publisher.adapter.publish(numbered(topic(), 3))
    await plainly(broker, lambda channel: channel.exchange_delete(exchange))


async def test_what_is_not_durable_does_not_survive_the_broker_and_the_log_says_so(
    broker: RabbitMq, caplog: pytest.LogCaptureFixture
) -> None:
    """It is faster, and its capabilities say what it costs."""
    name = topic()
    async with opened(f"{broker.url}?durable=false") as (peer,):
        assert peer.adapter.capabilities.loses
        await peer.adapter.subscribe([name])
        peer.may_receive.clear()
        await peer.adapter.publish([Frame(name, b"first")])
        await peer.receive(b"first")
        await peer.adapter.publish([*numbered(name, PREFETCH), Frame(name, b"forgotten")])
        await asyncio.to_thread(broker.restart)
        peer.may_receive.set()
        await peer.told(True, "connected again")
        await peer.publish_until_taken([Frame(name, b"new")])
        await peer.receive(b"new")
        assert b"forgotten" not in peer.payloads
    assert "or the broker was started again" in caplog.text


# -- TLS ---------------------------------------------------------------------------------------------------------------


async def test_an_encrypted_connection_checks_the_broker(tmp_path: Path) -> None:
    """Against the authority that the URL names."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, [*command, *more], check=True, capture_output=True)
    broker = RabbitMq(tls=(certificate, key, None))
    try:
        await asyncio.to_thread(broker.start)
        assert "ca= names the file of the authority" in await refused(broker.url)
        url = f"{broker.url}?ca={quote(str(certificate), safe='')}"
        large = [Frame("t", os.urandom(300_000)) for _ in range(5)]
        async with opened(url, url) as (publisher, peer):
            await peer.adapter.subscribe(["t"])
            await publisher.adapter.publish(large)
            await peer.until(lambda: peer.frames == large)
        plain = f"amqps://127.0.0.1:{free_port()}"
        assert "nothing listens there" in await refused(plain)
    finally:
        await asyncio.to_thread(broker.stop)


async def test_a_broker_without_tls_is_told_apart(broker: RabbitMq) -> None:
    """By what its answer looks like."""
    host, port = broker.address
    assert "no TLS is spoken there" in await refused(f"amqps://{host}:{port}")
