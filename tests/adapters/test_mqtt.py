"""The adapter to MQTT on a real Mosquitto: plain clients, limits, refusals, slow consumers, crashes."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import attrs
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub.testing.brokers import Mosquitto, free_port
from ordered_pubsub.testing.conformance.link import Link, linked
from ordered_pubsub_adapters import mqtt
from ordered_pubsub_adapters._mqtt_properties import properties
from ordered_pubsub_adapters.mqtt import RECEIVE_MAX, MqttAdapter
from ordered_pubsub_adapters.urls import whole

PATIENCE_S = 30.0
"""A test that waits longer than this hangs."""
POLL_S = 0.01
STAMP = {"ordered-pubsub-stamp": bytes(range(100))}
QOS = pytest.mark.parametrize("qos", [0, 1, 2])
CONFIRMED = pytest.mark.parametrize("qos", [1, 2])


# -- brokers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> Iterator[Mosquitto]:
    """One that nobody kills."""
    with Mosquitto() as running:
        yield running


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    """One of a test's own, whose log has every packet."""
    with Mosquitto(log_type="all") as running:
        yield running


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates of 127.0.0.1 and of a client, each its own authority."""
    folder = tmp_path_factory.mktemp("pem")
    for name in ("broker", "client"):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run([*command, *more], cwd=folder, check=True, capture_output=True)
    return folder


# -- clients ----------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class User:
    """A user of an adapter, who remembers everything."""

    adapter: MqttAdapter
    frames: list[Frame] = attrs.field(factory=list)
    batches: list[int] = attrs.field(factory=list)
    states: list[tuple[bool, str]] = attrs.field(factory=list)
    may_receive: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def on_frames(self, frames: Sequence[Frame]) -> None:
        """Take frames, when that is allowed."""
        self.frames.extend(frames)
        self.batches.append(len(frames))
        await self.may_receive.wait()

    def on_state(self, is_connected: bool, reason: str) -> None:
        """Remember."""
        self.states.append((is_connected, reason))

    @property
    def payloads(self) -> list[bytes]:
        """What came."""
        return [frame.payload for frame in self.frames]

    async def gets(self, count: int) -> None:
        """Wait for so many frames."""
        await until(lambda: len(self.frames) >= count, lambda: f"{len(self.frames)} of {count} frames came")

    async def told(self, *states: bool) -> None:
        """Wait until `on_state` has said this."""
        await until(lambda: [state for state, _ in self.states] == list(states), lambda: f"told {self.states}")


async def until(is_so: Callable[[], bool], otherwise: Callable[[], str] = lambda: "") -> None:
    """Wait for a condition, with a deadline."""
    give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
    while not is_so():
        assert asyncio.get_running_loop().time() < give_up_at, otherwise()
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def using(url: str, *topics: str) -> AsyncIterator[User]:
    """A user of an open adapter that is subscribed to some topics."""
    user = User(MqttAdapter(url))
    user.may_receive.set()
    await user.adapter.open(user.on_frames, user.on_state)
    try:
        await user.adapter.subscribe(topics)
        yield user
    finally:
        await asyncio.wait_for(user.adapter.close(), PATIENCE_S)


async def refused(url: str) -> str:
    """Why an adapter cannot be opened."""
    user = User(MqttAdapter(url))
    with pytest.raises(AdapterError) as raised:
        await asyncio.wait_for(user.adapter.open(user.on_frames, user.on_state), PATIENCE_S)
    await user.adapter.close()
    assert user.states == []
    return str(raised.value)


class Plain:
    """A client that knows nothing of us, with paho's own loop in a thread."""

    def __init__(self, port: int, client_id: str = "", *, is_new: bool = True) -> None:
        self.arrived: queue.Queue[MQTTMessage] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()
        self.client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        self.client.on_connect = lambda client, data, flags, reason, more: self.answers.put(flags)
        self.client.on_subscribe = lambda client, data, mid, reasons, more: self.answers.put(reasons)
        self.client.on_message = lambda client, data, message: self.arrived.put(message)
        self.client.connect("127.0.0.1", port, clean_start=is_new)
        self.client.loop_start()
        self.is_resumed = self.answers.get(timeout=PATIENCE_S).session_present

    def subscribe(self, name: str, qos: int = 1) -> None:
        """Subscribe, and wait for the answer."""
        self.client.subscribe(name, qos)
        self.answers.get(timeout=PATIENCE_S)

    def publish(self, name: str, payload: bytes, qos: int = 1, retain: bool = False, **values: Any) -> None:
        """Publish, and wait until it has left, or was taken."""
        made = properties(PacketTypes.PUBLISH, **values)
        self.client.publish(name, payload, qos, retain, made).wait_for_publish(PATIENCE_S)

    def message(self) -> MQTTMessage:
        """The next message."""
        return self.arrived.get(timeout=PATIENCE_S)


@asynccontextmanager
async def plain(broker: Mosquitto, client_id: str = "", **more: Any) -> AsyncIterator[Plain]:
    """A plain client."""
    client = await asyncio.to_thread(Plain, broker.port, client_id, **more)
    try:
        yield client
    finally:
        client.client.disconnect()
        await asyncio.to_thread(client.client.loop_stop)


def fresh(name: str = "topic") -> str:
    """A topic that nobody has used before."""
    return f"{uuid4().hex}/{name}"


def numbered(topic: str, count: int, size: int = 0) -> list[Frame]:
    """Frames that can be told apart."""
    return [Frame(topic, b"%d" % number + b"." * size, STAMP) for number in range(count)]


@contextmanager
def stopped(broker: Mosquitto) -> Iterator[None]:
    """The broker's process does nothing during the block."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


CONNECT, SUBSCRIBE, PUBLISH, PUBACK = 0x10, 0x82, 0x32, 0x40
Script = dict[int, Callable[[bytes], bytes]]
"""What a broker of ours answers to packets, by their first byte; the packet is given without its header."""


@asynccontextmanager
async def scripted(script: Script, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A broker that lets everybody in, and then says what is in a script."""
    answers: Script = {CONNECT: lambda packet: b"\x20\x03\x00\x00\x00", **script}
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while True:
                command, size = await reader.readexactly(2)
                packet = await reader.readexactly(size)
                if command in answers:
                    writer.write(answers[command](packet))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"{'mqtts' if context else 'mqtt'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for writer in writers:
            writer.transport.abort()
        server.close()


# -- frames, and plain clients ----------------------------------------------------------------------------------------


@QOS
async def test_thousands_of_frames_arrive_in_their_order(shared: Mosquitto, qos: int) -> None:
    """In calls side by side. At QoS 0 Mosquitto drops what a socket does not take at once, so there are few."""
    topics = [fresh(str(number)) for number in range(3)]
    sent = {topic: numbered(topic, 100 if qos == 0 else 3_000, size=200) for topic in topics}
    async with using(f"{shared.url}?qos={qos}", *topics) as one, using(f"{shared.url}?qos={qos}") as other:
        await asyncio.gather(*(other.adapter.publish(frames) for frames in sent.values()))
        await one.gets(sum(map(len, sent.values())))

    for topic in topics:
        assert [frame for frame in one.frames if frame.topic == topic] == sent[topic]


async def test_what_comes_in_one_read_is_handed_on_at_once(shared: Mosquitto) -> None:
    topic = fresh()
    async with using(shared.url, topic) as user:
        await user.adapter.publish(numbered(topic, 2_000))
        await user.gets(2_000)

    assert len(user.batches) < 1_500


@QOS
async def test_a_plain_client_s_message_arrives_with_its_own_headers(shared: Mosquitto, qos: int) -> None:
    topic = fresh()
    more = {"ContentType": "text/plain", "UserProperty": [("trace", "7"), ("city", "Zürich")]}
    async with using(shared.url, topic) as user, plain(shared) as other:
        await asyncio.to_thread(other.publish, topic, b"hello", qos, **more, CorrelationData=b"7", ResponseTopic="r")
        await user.gets(1)

    assert user.frames == [Frame(topic, b"hello", {"content-type": "text/plain", "trace": "7", "city": "Zürich"})]


async def test_a_plain_client_sees_the_application_s_own_payload_and_headers(shared: Mosquitto) -> None:
    topic = fresh()
    headers = {"content-type": "application/json", **STAMP, "trace": "7", "raw": b"\x00\xff"}
    async with using(shared.url) as user, plain(shared) as other:
        await asyncio.to_thread(other.subscribe, topic)
        await user.adapter.publish([Frame(topic, b'{"price": 1}', headers)])
        message = await asyncio.to_thread(other.message)

    assert (message.topic, message.payload, message.qos) == (topic, b'{"price": 1}', 1)
    assert message.properties is not None
    assert message.properties.ContentType == "application/json"
    assert message.properties.UserProperty == [("trace", "7"), ("raw", "b64:AP8=")]


async def test_what_a_broker_retained_for_plain_clients_is_not_an_event(shared: Mosquitto) -> None:
    """It was published before the subscription."""
    topic = fresh()
    async with plain(shared) as other:
        await asyncio.to_thread(other.publish, topic, b"old", 1, True)
        async with using(shared.url, topic) as user:
            await asyncio.to_thread(other.publish, topic, b"new")
            await user.gets(1)
        await asyncio.to_thread(other.publish, topic, b"", 1, True)

    assert user.payloads == [b"new"]


# -- opening ----------------------------------------------------------------------------------------------------------


async def test_a_port_where_nobody_listens_is_named() -> None:
    port = free_port()

    said = await refused(f"mqtt://127.0.0.1:{port}")
    assert f"cannot connect to 127.0.0.1:{port}" in said
    assert "is the broker running, and the address right?" in said


async def test_a_name_that_nobody_knows_is_named() -> None:
    assert "cannot connect to no-such-host.invalid:1883" in await refused("mqtt://no-such-host.invalid")


async def test_the_first_of_several_hosts_that_is_there_is_taken(shared: Mosquitto) -> None:
    async with using(f"mqtt://127.0.0.1:{free_port()},127.0.0.1:{shared.port}", topic := fresh()) as user:
        await user.adapter.publish([Frame(topic, b"x")])
        await user.gets(1)


@asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[int]:
    """A port that takes connections, and answers what comes first and hangs up; or says nothing."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if answer is not None:
            await reader.read(1_000)
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        for writer in writers:
            writer.transport.abort()
        server.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "did not answer within 0.3 s (connect_timeout_s); is it an MQTT broker"),
        (
            b"",
            "it was cut by the broker or the network before the broker had let us in; is it an MQTT broker that speaks MQTT 5?",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "before the broker had let us in; is it an MQTT broker"),
        (b"\x20\x02\x00\x01", "Unsupported protocol version; it must speak MQTT 5"),
        (b"\x20\x03\x00\x88\x00", "the broker does not let us in: Server unavailable"),
        (b"\x20\x07\x00\x9c\x04\x1f\x00\x01!", "the broker does not let us in: Use another server (!)"),
    ],
)
async def test_what_is_no_broker_of_ours_is_told_apart(answer: bytes | None, reason: str) -> None:
    async with listening(answer) as port:
        assert reason in await refused(f"mqtt://127.0.0.1:{port}?connect_timeout_s=0.3")


async def test_a_broker_that_hangs_up_while_we_connect_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """paho finds out in its thread, where nobody may be told."""
    connect = Client.connect

    def connect_and_lose(client: Client, *arguments: Any, **more: Any) -> Any:
        outcome = connect(client, *arguments, **more)
        client.disconnect()
        client.loop_write()
        assert client.socket() is None
        return outcome

    monkeypatch.setattr(mqtt.MqttConnection, "_make_client", lambda connection: _without_callbacks(connection))
    monkeypatch.setattr(Client, "connect", connect_and_lose)
    async with listening(None) as port:
        assert "before the broker had let us in; is it an MQTT broker" in await refused(f"mqtt://127.0.0.1:{port}")


make_client = mqtt.MqttConnection._make_client


def _without_callbacks(connection: mqtt.MqttConnection) -> Client:
    """A client that calls nobody yet."""
    client = make_client(connection)
    assert (client.on_connect, client.on_disconnect, client.on_socket_close) == (None, None, None)
    return client


async def test_an_open_that_is_cancelled_hangs_up() -> None:
    """While the broker says nothing."""
    came, went = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.read(1_000)).startswith(b"\x10")
        came.set()
        assert await reader.read() == b""
        writer.close()
        went.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        user = User(MqttAdapter(f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        task = asyncio.create_task(user.adapter.open(user.on_frames, user.on_state))
        await asyncio.wait_for(came.wait(), PATIENCE_S)
        task.cancel()
        await asyncio.wait_for(went.wait(), PATIENCE_S)

    assert task.cancelled()


async def test_a_second_open_is_refused(shared: Mosquitto) -> None:
    async with using(shared.url) as user:
        with pytest.raises(AdapterError, match="is open already; each client has its own"):
            await user.adapter.open(user.on_frames, user.on_state)


# -- users, and what they may do --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A broker with users, who may use topics below `open` only."""
    rules = tmp_path_factory.mktemp("acl") / "acl"
    rules.write_text("user me\ntopic readwrite open/#\n")
    # Without a limit for queues, Mosquitto 2.0.11 hangs up on whoever it refuses a publication.
    with Mosquitto(users={"me": "p@ss/wörd"}, acl_file=str(rules), max_queued_messages=100_000) as running:
        yield running


async def test_a_user_with_the_right_password_is_let_in(guarded: Mosquitto, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("p@ss/wörd\n")
    for url in (guarded.url, f"mqtt://me@127.0.0.1:{guarded.port}?password_file={quote(str(tmp_path / 'word'), '')}"):
        async with using(url, "open/x") as user:
            await user.adapter.publish([Frame("open/x", b"x")])
            await user.gets(1)


@pytest.mark.parametrize("login", ["me:wrong@", "me@", "nobody:wrong@", ":wrong@", ""])
async def test_a_wrong_password_is_an_error_at_once(guarded: Mosquitto, login: str) -> None:
    said = await refused(f"mqtt://{login}127.0.0.1:{guarded.port}")

    assert "the broker does not let us in: Not authorized; check user and password" in said
    assert "wrong" not in said


async def test_a_password_file_that_is_missing_is_named(guarded: Mosquitto) -> None:
    user = User(MqttAdapter(f"mqtt://me@127.0.0.1:{guarded.port}?password_file=/no/such/file"))

    with pytest.raises(ConfigurationError, match="password_file='/no/such/file' cannot be read"):
        await user.adapter.open(user.on_frames, user.on_state)


@CONFIRMED
async def test_a_publication_that_is_not_allowed_is_an_error_and_others_go_on(guarded: Mosquitto, qos: int) -> None:
    async with using(f"{guarded.url}?qos={qos}", "open/x") as user:
        with pytest.raises(AdapterError, match="the broker refused an event on 'closed': Not authorized"):
            await user.adapter.publish([Frame("closed", b"")])
        await user.adapter.publish(numbered("open/x", 50))
        await user.gets(50)

    assert user.states == []


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (0x87, "the broker refused the subscription to 'closed': Not authorized"),
        (0x97, "the broker refused the subscription to 'closed': Quota exceeded"),
        (0x00, "the broker grants QoS 0 on 'closed', and QoS 1 was asked for: take ?qos=0"),
    ],
)
async def test_a_subscription_that_is_not_granted_is_an_error(reason: int, said: str) -> None:
    """Mosquitto's file of rules grants all of them, and then sends nothing."""
    script: Script = {SUBSCRIBE: lambda packet: b"\x90\x05" + packet[:2] + bytes((0, 1, reason))}
    async with scripted(script) as url, using(url) as user:
        with pytest.raises(AdapterError, match=re.escape(said)):
            await user.adapter.subscribe(["open", "closed"])


async def test_a_change_of_subscriptions_that_is_not_answered_fails_in_time() -> None:
    async with scripted({}) as url, using(f"{url}?connect_timeout_s=0.2") as user:
        with pytest.raises(AdapterError, match=r"did not confirm a change of subscriptions within 0.2 s"):
            await user.adapter.subscribe(["a"])


# -- TLS --------------------------------------------------------------------------------------------------------------


async def test_tls_with_certificates_on_both_sides(pem: Path) -> None:
    """Large payloads, too: TLS may hold what the socket has no more."""
    files = {"ca": "broker.pem", "cert": "client.pem", "key": "client.key"}
    query = "&".join(f"{name}={quote(str(pem / file), '')}" for name, file in files.items())
    topic = fresh()
    with Mosquitto(tls=(pem / "broker.pem", pem / "broker.key", pem / "client.pem")) as broker:
        async with using(f"{broker.url}?{query}", topic) as user:
            frames = [*numbered(topic, 500, size=300), *numbered(topic, 5, size=300_000), *numbered(topic, 500)]
            await user.adapter.publish(frames)
            await user.gets(len(frames))
            assert user.frames == frames

        said = await refused(f"{broker.url}?ca={quote(str(pem / 'broker.pem'), '')}")
        assert "before the broker had let us in" in said
        assert "does it want a certificate (cert, key)?" in said


async def test_what_tls_holds_is_read_though_the_socket_has_no_more(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer and hundreds of messages come in one piece. Nothing else makes the link look again."""
    monkeypatch.setattr(mqtt, "TICK_S", 3_600.0)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem / "broker.pem", pem / "broker.key")
    message, count = b"\x30\x05\x00\x01t\x00x", 3 * mqtt.READS_PER_TURN
    script: Script = {SUBSCRIBE: lambda packet: b"\x90\x04" + packet[:2] + b"\x00\x01" + message * count}
    async with scripted(script, context) as url, using(f"{url}?ca={quote(str(pem / 'broker.pem'), '')}", "t") as user:
        await user.gets(count)

    assert user.payloads == [b"x"] * count


async def test_a_certificate_of_an_unknown_authority_is_told_apart(pem: Path) -> None:
    with Mosquitto(tls=(pem / "broker.pem", pem / "broker.key", None)) as broker:
        assert "name its authority with ca=FILE" in await refused(broker.url)
        assert "name its authority with ca=FILE" in await refused(
            f"{broker.url}?ca={quote(str(pem / 'client.pem'), '')}"
        )


async def test_a_port_without_tls_is_told_apart(shared: Mosquitto) -> None:
    assert "TLS failed" in await refused(f"mqtts://127.0.0.1:{shared.port}?connect_timeout_s=2")


async def test_a_port_with_tls_is_told_apart(pem: Path) -> None:
    with Mosquitto(tls=(pem / "broker.pem", pem / "broker.key", None)) as broker:
        assert "is it an MQTT broker" in await refused(f"mqtt://127.0.0.1:{broker.port}?connect_timeout_s=2")


# -- the broker's limits ----------------------------------------------------------------------------------------------


async def test_an_event_that_is_too_large_is_an_error_and_the_connection_stays() -> None:
    topic = fresh()
    with Mosquitto(max_packet_size=2_000) as broker:
        async with using(broker.url, topic) as user:
            with pytest.raises(AdapterError, match="the broker takes 2000 at most"):
                await user.adapter.publish([*numbered(topic, 3), Frame(topic, b"x" * 2_000)])
            fits = 2_000 - 9 - len(topic) - 1
            await user.adapter.publish([Frame(topic, b"y" * fits)])
            await user.gets(1)

    assert user.payloads == [b"y" * fits]
    assert user.states == []


async def test_many_topics_are_subscribed_to_in_packets_that_the_broker_takes() -> None:
    topics = [fresh(str(number)) for number in range(500)]
    with Mosquitto(max_packet_size=2_000) as broker:
        async with using(broker.url, *topics) as user:
            await asyncio.gather(*(user.adapter.publish([Frame(topic, topic.encode())]) for topic in topics))
            await user.gets(500)
            await user.adapter.unsubscribe(topics[1:])
            await asyncio.gather(*(user.adapter.publish([Frame(topic, b"2")]) for topic in reversed(topics)))
            await user.gets(501)

    assert sorted(user.payloads[:500]) == sorted(topic.encode() for topic in topics)
    assert user.frames[500:] == [Frame(topics[0], b"2")]


@CONFIRMED
async def test_a_broker_that_takes_one_message_at_a_time_gets_one_at_a_time(qos: int) -> None:
    topic = fresh()
    with Mosquitto(max_inflight_messages=1) as broker:
        async with using(f"{broker.url}?qos={qos}", topic) as user:
            frames = numbered(topic, 300)
            await asyncio.gather(user.adapter.publish(frames), user.adapter.publish(numbered("other", 50)))
            await user.gets(300)

    assert user.frames == frames
    assert user.states == []


async def test_a_quality_of_service_that_the_broker_does_not_offer_is_an_error() -> None:
    with Mosquitto(max_qos=1) as broker:
        assert "the broker offers QoS 1 at most, and QoS 2 was asked for: take ?qos=1" in await refused(
            f"{broker.url}?qos=2"
        )


# -- speed ------------------------------------------------------------------------------------------------------------


async def test_nobody_waits_for_a_kernel_that_saves_acknowledgements(shared: Mosquitto) -> None:
    """Mosquitto's Nagle and our delayed acknowledgements would make it 40 ms for each of these."""
    calls, topic = 50, fresh()
    async with using(shared.url) as user:
        began = time.monotonic()
        for _ in range(calls):
            await user.adapter.publish(numbered(topic, 3))
        took = time.monotonic() - began

    assert took < calls * 0.020


# -- slow consumers ---------------------------------------------------------------------------------------------------


@CONFIRMED
async def test_a_slow_consumer_leaves_frames_with_the_broker(qos: int) -> None:
    """And its own publications are confirmed meanwhile."""
    topic = fresh()
    with Mosquitto(max_inflight_messages=0) as broker:
        async with using(f"{broker.url}?qos={qos}", topic) as slow, using(f"{broker.url}?qos={qos}") as other:
            slow.may_receive.clear()
            await other.adapter.publish(numbered(topic, 1_000))
            await slow.adapter.publish(numbered("something/else", 100))
            held = slow.adapter.held_frames
            slow.may_receive.set()
            await slow.gets(1_000)

    assert 0 < held <= RECEIVE_MAX
    assert slow.frames == numbered(topic, 1_000)


async def test_a_flood_that_nobody_counts_is_dropped_when_it_is_not_taken(
    shared: Mosquitto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who handles a frame may well publish, and wait until that is confirmed."""
    monkeypatch.setattr(mqtt, "HELD_BYTES_MAX", 500_000)
    flood, topic = fresh("flood"), fresh("answer")
    async with using(shared.url, flood, topic) as user, using(f"{shared.url}?qos=0") as other:
        user.may_receive.clear()
        await other.adapter.publish([Frame(flood, b"x" * 100)] * 10_000)
        await user.adapter.publish([Frame(topic, b"confirmed")])
        held = user.adapter.held_bytes
        user.may_receive.set()
        await until(lambda: b"confirmed" in user.payloads)
        await until(lambda: "messages of QoS 0 were dropped" in caplog.text)

    assert held <= 510_000


@asynccontextmanager
async def far_and_near(broker: Mosquitto, query: str, *topics: str) -> AsyncIterator[tuple[Link, User, User]]:
    """A line that can be cut, a user at its end, who is subscribed, and another one beside the broker."""
    async with (
        linked(*broker.address) as link,
        using(broker.url_at("127.0.0.1", link.port) + query, *topics) as far,
        using(broker.url + query) as near,
    ):
        yield link, far, near


# -- crashes and breaks -----------------------------------------------------------------------------------------------


@QOS
async def test_a_broker_that_is_killed_and_comes_back_is_used_again(broker: Mosquitto, qos: int) -> None:
    """It has forgotten the subscriptions; when the return is told, they are active again."""
    topic = fresh()
    async with using(f"{broker.url}?qos={qos}", topic) as user, using(f"{broker.url}?qos={qos}") as other:
        await asyncio.to_thread(broker.kill)
        await user.told(False)
        await asyncio.to_thread(broker.start)
        await user.told(False, True)
        await other.told(False, True)
        await other.adapter.publish([Frame(topic, b"x")])
        await user.gets(1)

    assert user.states[0][1] == f"{broker.url}: the connection broke: it was cut by the broker or the network"
    assert user.states[1][1] == f"{broker.url}: connected again; the broker has forgotten the session"


@CONFIRMED
async def test_a_kill_in_the_middle_fails_what_was_not_confirmed(broker: Mosquitto, qos: int) -> None:
    """Handed over again until it is taken, all of it arrives, in order but for what is repeated."""
    topic = fresh()
    frames = numbered(topic, 5_000)
    async with using(f"{broker.url}?qos={qos}", topic) as user:
        work = asyncio.create_task(user.adapter.publish(frames))
        await user.gets(100)
        await asyncio.to_thread(broker.kill)
        with pytest.raises(
            AdapterError, match=r"5000 events on .* were not confirmed: .*cut by the broker or the network"
        ):
            await work
        await asyncio.to_thread(broker.start)
        before = len(user.frames)
        await user.adapter.publish(frames)
        await until(lambda: frames[-1].payload in user.payloads[-1:])

    assert user.frames[before:] == frames


async def test_publishing_waits_a_moment_for_the_connection_to_come_back(broker: Mosquitto) -> None:
    topic = fresh()
    async with using(f"{broker.url}?connect_timeout_s=20", topic) as user:
        await asyncio.to_thread(broker.kill)
        await user.told(False)
        calls = [
            asyncio.create_task(user.adapter.publish([Frame(topic, b"x")])),
            asyncio.create_task(user.adapter.subscribe(["b"])),
        ]
        await asyncio.sleep(0)
        await asyncio.to_thread(broker.start)
        await asyncio.gather(*calls)
        await user.gets(1)


async def test_publishing_fails_when_the_connection_stays_broken(broker: Mosquitto) -> None:
    async with using(f"{broker.url}?connect_timeout_s=0.2") as user:
        await asyncio.to_thread(broker.kill)
        for call in (user.adapter.publish([Frame("a", b"")]), user.adapter.subscribe(["a"])):
            with pytest.raises(AdapterError, match=r"is not connected|were not confirmed"):
                await call
        await user.adapter.unsubscribe(["a"])


@pytest.fixture
def _quick_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter than users may have it."""
    parameters = {**mqtt.RULES.parameters, "keepalive_s": whole(1, 10)}
    monkeypatch.setattr(MqttAdapter, "url_rules", attrs.evolve(mqtt.RULES, parameters=parameters))


@pytest.mark.usefixtures("_quick_keepalive")
async def test_a_broker_that_stops_answering_is_noticed(broker: Mosquitto) -> None:
    async with using(f"{broker.url}?keepalive_s=1") as user:
        with stopped(broker):
            await user.told(False)

    assert "has not been heard of for longer than keepalive_s allows (1 s)" in user.states[0][1]


@pytest.mark.usefixtures("_quick_keepalive")
async def test_a_connection_that_has_nothing_to_say_stays(broker: Mosquitto) -> None:
    """Also while its consumer takes nothing."""
    async with using(f"{broker.url}?keepalive_s=1", topic := fresh()) as user:
        user.may_receive.clear()
        await user.adapter.publish(numbered(topic, 100))
        await until(lambda: broker.log.count("Received PINGREQ") >= 3)
        user.may_receive.set()

    assert user.states == []


async def test_a_session_that_is_resumed_has_kept_what_was_published_meanwhile(broker: Mosquitto) -> None:
    topic = fresh()
    async with far_and_near(broker, "", topic) as (link, user, other):
        link.cut()
        await user.told(False)
        await other.adapter.publish(numbered(topic, 100))
        link.mend()
        await user.gets(100)

    assert user.frames == numbered(topic, 100)
    assert "the broker has kept the session" in user.states[1][1]


async def test_a_topic_that_was_left_while_away_is_left_at_the_broker_too(broker: Mosquitto) -> None:
    gone, kept = fresh("gone"), fresh("kept")
    async with far_and_near(broker, "", gone, kept) as (link, user, other):
        link.cut()
        await user.told(False)
        await user.adapter.unsubscribe([gone])
        await other.adapter.publish([Frame(gone, b"1"), Frame(kept, b"2")])
        link.mend()
        await user.told(False, True)
        assert "Received UNSUBSCRIBE" in broker.log
        await other.adapter.publish([Frame(gone, b"3"), Frame(kept, b"4")])
        await user.gets(2)

    assert user.payloads == [b"2", b"4"]


async def test_at_qos_2_what_was_on_its_way_is_finished_by_the_resumed_session(broker: Mosquitto) -> None:
    """The window that it took is free again afterwards, however often that happens."""
    topic = fresh()
    async with far_and_near(broker, "?qos=2", topic) as (link, user, _):
        for attempt in range(1, 6):
            work = asyncio.create_task(user.adapter.publish(numbered(topic, 1_000)))
            await user.gets(len(user.frames) + 10)
            link.cut()
            with pytest.raises(AdapterError):
                await work
            await user.told(*[False, True] * (attempt - 1), False)
            link.mend()
            await user.told(*[False, True] * attempt)
        last = numbered(topic, 200, size=9)
        await user.adapter.publish(last)
        await until(lambda: user.frames[-200:] == last)


async def test_a_broker_that_hangs_up_may_say_why() -> None:
    """As MQTT 5 has it; Mosquitto 2.0.11 just hangs up."""
    async with scripted({PUBLISH: lambda packet: b"\xe0\x02\x8b\x00"}) as url, using(url) as user:
        with pytest.raises(AdapterError, match="the broker ended the connection: Server shutting down"):
            await user.adapter.publish([Frame("a", b"")])
        await user.told(False, True)


async def test_nothing_is_said_on_a_new_connection_before_the_greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what came over the last one is handled while the new one is being made, in a thread of its own."""
    said: list[int] = []
    may_connect = threading.Event()
    may_connect.set()
    create = Client._create_socket

    def wait_and_create(client: Client) -> Any:
        assert may_connect.wait(PATIENCE_S)
        return create(client)

    def heard(command: int, answer: bytes) -> bytes:
        said.append(command)
        return answer

    def subscribed(packet: bytes) -> bytes:
        agreed = heard(SUBSCRIBE, b"\x90\x04" + packet[:2] + b"\x00\x01")
        if said.count(SUBSCRIBE) > 1:
            return agreed
        may_connect.clear()
        return agreed + b"\x32\x06\x00\x01t\x00\x07\x00" + b"\xe0\x00"  # a message, and good-bye

    monkeypatch.setattr(Client, "_create_socket", wait_and_create)
    script: Script = {
        CONNECT: lambda packet: heard(CONNECT, b"\x20\x03\x00\x00\x00"),
        SUBSCRIBE: subscribed,
        PUBACK: lambda packet: heard(PUBACK, b""),
    }
    async with scripted(script) as url, using(url) as user:
        user.may_receive.clear()
        await user.adapter.subscribe(["t"])
        await user.gets(1)
        await until(lambda: user.adapter.attempt is not None)
        user.may_receive.set()
        for _ in range(5):
            await asyncio.sleep(0)  # what was received is handled meanwhile
        may_connect.set()
        await user.told(False, True)

    assert said == [CONNECT, SUBSCRIBE] * 2


@pytest.mark.parametrize(
    ("query", "is_told"), [("", True), ("?qos=2", True), ("?qos=0", False), ("?session_s=0", False)]
)
async def test_a_session_that_was_lost_is_told_in_the_log(
    broker: Mosquitto, query: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What was published meanwhile is gone; subscriptions in order wait for it. Without a session it is expected."""
    async with using(broker.url + query, "a", "b") as user:
        await asyncio.to_thread(broker.restart)
        await user.told(False, True)

    words = "the broker has forgotten the session, and with it what was published meanwhile on 2 topics"
    assert (words in caplog.text) is is_told


async def test_a_session_that_had_no_topics_is_no_loss(broker: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    async with using(broker.url) as user:
        await asyncio.to_thread(broker.restart)
        await user.told(False, True)

    assert "forgotten" not in caplog.text


async def test_a_connection_that_breaks_while_it_is_made_again_is_not_told_as_back() -> None:
    """The subscription is confirmed, and the connection ended, in one piece."""
    subscriptions = 0

    def subscribed(packet: bytes) -> bytes:
        nonlocal subscriptions
        subscriptions += 1
        return b"\x90\x04" + packet[:2] + b"\x00\x01" + (b"\xe0\x02\x8b\x00" if subscriptions == 2 else b"")

    script: Script = {SUBSCRIBE: subscribed, PUBLISH: lambda packet: b"\xe0\x02\x8b\x00"}
    async with scripted(script) as url, using(url, "a") as user:
        with pytest.raises(AdapterError, match="Server shutting down"):
            await user.adapter.publish([Frame("b", b"")])
        await until(lambda: subscriptions == 3)
        await user.told(False, True)


# -- closing ----------------------------------------------------------------------------------------------------------


@QOS
async def test_close_ends_the_session_at_the_broker(shared: Mosquitto, qos: int) -> None:
    async with using(f"{shared.url}?qos={qos}", fresh()) as user:
        identity = user.adapter.client_id
    async with plain(shared, identity, is_new=False) as other:
        assert not other.is_resumed


async def test_a_session_outlives_a_break(shared: Mosquitto) -> None:
    """The opposite of the above: it is `close` that ends it."""
    async with using(shared.url, fresh()) as user:
        identity = user.adapter.client_id
        async with plain(shared, identity, is_new=False) as other:
            assert other.is_resumed


async def test_close_fails_what_was_not_confirmed(shared: Mosquitto) -> None:
    async with using(shared.url) as user:
        work = asyncio.create_task(user.adapter.publish(numbered(fresh(), 50_000)))
        await asyncio.sleep(0)
    with pytest.raises(AdapterError, match=r"50000 events on .* were not confirmed: .*the adapter was closed"):
        await work


async def test_close_returns_while_the_broker_is_away(broker: Mosquitto) -> None:
    async with using(broker.url) as user:
        await asyncio.to_thread(broker.kill)
        await user.told(False)


async def test_close_returns_although_the_broker_takes_nothing(broker: Mosquitto) -> None:
    with ExitStack() as later:
        async with using(broker.url) as user:
            later.enter_context(stopped(broker))
            work = asyncio.create_task(user.adapter.publish([Frame("a", bytes(10_000_000))]))
            await asyncio.sleep(0)
        with pytest.raises(AdapterError, match="the adapter was closed"):
            await work


async def test_each_adapter_is_somebody_else_to_the_broker(shared: Mosquitto) -> None:
    """The same name would push the other one out."""
    async with AsyncExitStack() as stack:
        users = [await stack.enter_async_context(using(shared.url)) for _ in range(5)]
        for user in users:
            await user.adapter.publish([Frame("a", b"")])

    assert [user.states for user in users] == [[]] * 5
