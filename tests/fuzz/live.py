"""What is fuzzed against a stage that runs: connections on which anything is said, while others are served.

The connections are made by hand: a channel of the stage, and a transport that keeps what is written. So an exception that
asyncio would log comes out here, and thousands of connections cost little. `streams` uses real sockets instead.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from random import Random
from typing import Any

import attrs

from fuzz.mutation import TEXTS, mutate_bytes, mutated, split
from ordered_pubsub.config.reading import read_text
from ordered_pubsub.core.log.questions import Bound, Find, FromReader, Read
from ordered_pubsub.core.messages import (
    Acked,
    AckExpected,
    AckSaved,
    Answer,
    AskFloors,
    Change,
    ChangeAsk,
    ChangeMark,
    Chunk,
    Done,
    Ended,
    Floors,
    FromSubscriber,
    Hello,
    HomeFloors,
    Launch,
    LinkAck,
    LinkFrame,
    LogItem,
    LogReply,
    LogRequest,
    Nack,
    NackRange,
    Operation,
    Pass,
    PeerMessage,
    Progress,
    ProgressReports,
    Publication,
    PublishAsk,
    Refusal,
    Relay,
    Reply,
    Request,
    SessionsAlive,
)
from ordered_pubsub.errors import JournalDamaged
from ordered_pubsub.server.server import Server
from ordered_pubsub.wire.channel import Channel
from ordered_pubsub.wire.content import JSON
from ordered_pubsub.wire.framing import HEAD_BYTES, Deframer, frame
from ordered_pubsub.wire.pack import Logged, PackedEvent, encode_logged
from ordered_pubsub.wire.protocol import (
    VERSION,
    Ask,
    Claim,
    Claimed,
    ClientGreeting,
    Differs,
    Inquire,
    NamesGranted,
    PeerGreeting,
    Ping,
    Pong,
    Rejected,
    Report,
    Say,
    Tell,
    decode,
    encode,
    to_client,
)
from ordered_pubsub.wire.sessions import SessionKey, make_session, publisher_of

GROWTH_BYTES_MAX = 256 << 20
"""How much larger the process may become while it is fuzzed."""
SERVE_S = 10.0
CHECK_EVERY = 50
SETTLE_TURNS = 3
ALIVE = "alive"
TOPICS = ("a", "b", "c", "eu/x", "low/1", "low/2", "high/1")
KEPT = ("a", "c", "eu/x", "low/2", "high/1")


class FakeTransport(asyncio.Transport):
    """Keeps what is written, and says that it is gone when it is aborted or has nothing more to write."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.channel = channel
        self.written = bytearray()
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += data
        del self.written[: -(1 << 20)]  # as somebody who reads

    def write_eof(self) -> None:
        self.abort()

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.channel.connection_lost, None)


@attrs.define(eq=False)
class Line:
    """A connection to the stage."""

    channel: Channel
    transport: FakeTransport

    @classmethod
    def to(cls, server: Server) -> Line:
        channel = server.doors.channel()
        transport = FakeTransport(channel)
        channel.connection_made(transport)
        return cls(channel, transport)

    @property
    def is_open(self) -> bool:
        return self.channel.is_open

    def say(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.channel.data_received(data)

    def heard(self, decoder: Any = to_client) -> list[Any]:
        """What the stage has said since the last call."""
        payloads = Deframer(1 << 28).feed(bytes(self.transport.written))
        self.transport.written.clear()
        return [decode(decoder, payload, "the stage") for payload in payloads]

    def close(self) -> None:
        self.transport.abort()


@attrs.define(eq=False)
class Bench:
    """A stage to be fuzzed, and somebody whom it must go on serving."""

    server: Server
    configuration: str = ""
    rank: int = 0
    troubles: list[str] = attrs.field(factory=list)
    """what asyncio would have logged"""
    _began_bytes: int = 0
    _client: Line | None = None
    _key: SessionKey = attrs.field(factory=lambda: make_session(None))
    _asked: int = 0
    _cases: int = 0

    @classmethod
    async def open(cls, configuration: str, rank: int = 0) -> Bench:
        server = Server(read_text(configuration), rank, "")
        await server.open()
        bench = cls(server, configuration, rank)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: bench.troubles.append(str(context)))
        bench._began_bytes = resident_bytes()
        return bench

    async def settle(self) -> None:
        """Let the stage do what is to be done."""
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)

    async def check(self) -> None:
        """Whether all is well: after some of the cases, whether somebody else is served."""
        await self.settle()
        assert not self.troubles, self.troubles[0]
        if self.server.node.failed.done():
            await self._start_again()
        self._cases += 1
        if self._cases % CHECK_EVERY == 0:
            if self.server.node.status()["ready"]:
                await self._serve_somebody()
            assert resident_bytes() - self._began_bytes < GROWTH_BYTES_MAX, "the stage has grown too much"

    async def _start_again(self) -> None:
        """A stage stops if another one says that it has had more from it than it knows: its store is not its own."""
        error = self.server.node.failed.exception()
        if not isinstance(error, JournalDamaged) or "would give numbers again" not in str(error):
            self.server.node.failed.result()
        await self.server.close()
        self.server, self._client, self._asked = Server(read_text(self.configuration), self.rank, ""), None, 0
        await self.server.open()

    async def _serve_somebody(self) -> None:
        """An event gets the next number."""
        if self._client is None or not self._client.is_open:
            self._client = Line.to(self.server)
            self._client.say(encode(greet(self._key)))
        self._asked += 1
        ask = Request(self._key.session, 1, self._asked, self._asked - 1, self._asked - 1, (PublishAsk(ALIVE),))
        self._client.say(encode(Ask([ask])))
        answers: list[Answer | Refusal] = []
        give_up_at = time.monotonic() + SERVE_S
        while time.monotonic() < give_up_at:
            await asyncio.sleep(0)  # it may have to wait for a thread
            answers += [one for told in self._client.heard() if isinstance(told, Tell) for one in told.answers]
            if answers:
                break
        assert [part.first for answer in answers for part in answer.parts] == [self._asked], (self._asked, answers)

    async def close(self) -> None:
        await self.server.close()


def resident_bytes() -> int:
    """How large this process is; 0 where the kernel does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def greet(key: SessionKey, name: str | None = None, resumes: bool = False) -> ClientGreeting:
    return ClientGreeting(VERSION, key.session, key.secret, name, "", resumes)


LEVELS = "".join(f'[[topic]]\npattern = "{pattern}"\ndelivery = "ordered"\n' for pattern in (ALIVE, "b", "low/1"))
"""The others' events are kept."""
ONE_STAGE = f'{LEVELS}[[stage]]\nname = "main"\nlisten = "127.0.0.1:0"\nstore = "memory"\n'
TABLES = f"{ONE_STAGE}[limits]\nconnections_max = 100000\nconnections_per_address_max = 100000\n"
TABLES += "connections_per_identity_max = 100000\nsubscriptions_per_client_max = 100000\nauthentication_s = 1000\n"
LINE_OF_STAGES = LEVELS + "".join(
    f'[[stage]]\nname = "{name}"\nlisten = "127.0.0.1:0"\nadvertise = "ops://127.0.0.1:{port}"\nstore = "memory"\n'
    f"topics = {topics}\n"
    for name, port, topics in (
        ("high", 1, f'["{ALIVE}", "high/**", "a"]'),
        ("middle", 2, '["b", "eu/**"]'),
        ("low", 3, '["low/**", "**"]'),
    )
)


# -- the first frame --------------------------------------------------------------------------------------------------


def draw_greeting(random: Random) -> bytes:
    """A greeting that is good, or was."""
    name = random.choice((None, "desk", *TEXTS))
    key = make_session(name)
    peer = PeerGreeting(random.choice((VERSION, 2)), random.choice((0, 1, 2, -1)), random.choice(TEXTS), "digest")
    greeting = random.choice((greet(key, name, random.random() < 0.3), peer, Ping(), Differs({"a": [1]}), Ask([])))
    message = encode(greeting)[HEAD_BYTES:]
    return mutated(random, message)


async def first_frame(bench: Bench, random: Random) -> None:
    """What strangers say first"""
    line = Line.to(bench.server)
    data = frame(draw_greeting(random) or b"\xc0")
    if random.random() < 0.2:
        data = mutate_bytes(random, data)
    for piece in split(random, data + (random.randbytes(9) if random.random() < 0.2 else b"")):
        line.say(piece)
    await bench.check()
    line.close()


# -- clients ----------------------------------------------------------------------------------------------------------


def draw_request(random: Random, session: str, sequence: int) -> Request:
    """Something that a client may ask, mostly."""
    parts: list[PublishAsk | ChangeAsk] = []
    for _ in range(random.choice((0, 1, 1, 1, 2, 5))):
        if random.random() < 0.6:
            count = random.choice((1, 1, 2, 100_000, 0, -1, 2**63 - 1))
            topic = _topic(random)
            is_kept = (topic in KEPT) == (random.random() < 0.9)
            chunks = _chunks(random, count, session) if random.random() < 0.1 + 0.8 * is_kept else ()
            parts.append(PublishAsk(topic, count, is_kept, chunks))
        else:
            identity = f"{session}/{random.choice((1, 2, 'x', ''))}" if random.random() < 0.95 else random.choice(TEXTS)
            add, remove = (tuple(_topic(random) for _ in range(random.choice((0, 1, 3)))) for _ in range(2))
            weight = random.choice((0, 1, 2, 2, 3, -1))
            parts.append(ChangeAsk(identity, add, remove, weight, random.random() < 0.3, random.random() < 0.2))
    after = sequence - 1 if random.random() < 0.9 else random.choice((0, -1, 5, 2**63 - 1))
    done = random.choice((0, sequence - 1, sequence, -1, 2**63 - 1))
    epoch = 1 if random.random() < 0.97 else random.choice((0, 2, -1, 2**63 - 1))
    return Request(session if random.random() < 0.99 else "x", epoch, sequence, after, done, tuple(parts))


def _chunks(random: Random, count: int, session: str = "") -> tuple[Chunk, ...]:
    """Events of a batch, mostly as many as it has, and the session's own."""
    kind = random.random()
    if kind < 0.1:
        return ()
    if kind < 0.8 and 0 < count < 10:
        label = session.rpartition("#")[0]
        publisher = publisher_of(session, None if label == "anonymous" else label)
        events = [PackedEvent(f"id{at}", random.choice((b"", b"{}", b'{"n":2}')), JSON) for at in range(count)]
        return (Chunk(count, encode_logged(Logged(publisher, events))),)
    if kind < 0.9:
        return (Chunk(count, b"events"),)
    return tuple(Chunk(random.choice((1, 2, 0, -1, 2**62)), random.randbytes(3)) for _ in range(random.randrange(4)))


NUMBERS = (1, 1, 2, 3, 7) * 4 + (0, -1, 2**39, 2**39 + 1, 2**62)


FILTERS = ("", "", "", "n > 1", "n > 1", "n >", "x" * 5_000)


def _wants(random: Random) -> list[NackRange]:
    return [
        NackRange(
            _topic(random),
            random.choice(NUMBERS),
            random.choice(NUMBERS),
            random.random() < 0.3,
            random.choice(FILTERS),
        )
        for _ in range(random.choice((0, 1, 1, 3)))
    ]


def _counts(random: Random) -> dict[str, int]:
    return {_topic(random): random.choice(NUMBERS) for _ in range(random.randrange(3))}


def draw_of_subscriber(random: Random, session: str) -> FromSubscriber:
    """What a subscription may say of what it has and what it misses, mostly."""
    identity = f"{session}/1" if random.random() < 0.95 else random.choice(TEXTS)
    kind = random.randrange(5)
    if kind < 2:
        return Nack(identity, _wants(random))
    if kind < 4:
        return Progress(identity, _counts(random), random.random() < 0.3, random.choice(NUMBERS))
    serial, version, position = (random.choice(NUMBERS) for _ in range(3))
    return Acked(identity, session, serial, version, _counts(random), position)


def draw_of_log(random: Random) -> PeerMessage:
    """What a stage may say of what its clients miss, or of what its log has, mostly."""
    counts = _counts(random)
    hosts = {topic: None if random.random() < 0.2 else count for topic, count in counts.items()}
    first, last, floor = (random.choice(NUMBERS) for _ in range(3))
    recalled = [
        LogItem(
            first, last, _counts(random), random.random() < 0.3, [ChangeMark("s", 1)], first, 1, 1.7e9, list(chunks)
        )
        for chunks in (_chunks(random, last - first + 1) for _ in range(random.randrange(3)))
    ]
    return random.choice(
        (
            LogRequest(_wants(random)),
            LogReply(_topic(random), first, last, floor, recalled),
            HomeFloors(hosts, random.random() < 0.3),
            AckExpected(counts),
            Floors(first, counts),
            AskFloors(last),
            ProgressReports([Progress(random.choice(("s#1/1", *TEXTS)), counts, random.random() < 0.3, first)]),
            SessionsAlive(
                dict.fromkeys(random.sample(("s#1", "s#2", *TEXTS), random.randrange(3)), random.randrange(9))
            ),
            Acked("s#1/1", "s#1", first, last, counts, floor),
            AckSaved("s#1/1", "s#1", first),
            Ended("s#1/1", "s#1", "ended", "reason"),
        )
    )


def _topic(random: Random) -> str:
    return random.choice(TOPICS) if random.random() < 0.95 else random.choice(TEXTS)


def draw_of_reader(random: Random) -> FromReader:
    """Something of the logs that a client asks for."""
    number, first, last = random.randint(0, 3), random.choice(NUMBERS), random.choice(NUMBERS)
    return random.choice(
        (
            Find(number, [random.choice(("**", "*/*", _topic(random), _topic(random)))]),
            Read(number, _topic(random), first, last, random.random() < 0.5),
            Bound(number, _topic(random), first, last, {_topic(random): random.choice(NUMBERS)}),
        )
    )


async def client_frames(bench: Bench, random: Random) -> None:
    """What clients say that were let in"""
    name = random.choice((None, None, "desk"))
    key = make_session(name)
    line = Line.to(bench.server)
    line.say(encode(greet(key, name, resumes=name is not None)))
    sequence = 0
    for _ in range(random.choice((1, 3, 10))):
        requests = []
        for _ in range(random.choice((1, 1, 2, 6))):
            sequence = sequence + 1 if random.random() < 0.95 else random.choice((0, 1, -1, 2**63 - 1))
            requests.append(draw_request(random, key.session, sequence))
        message = random.choice((Ask(requests), Ask(requests), Ask(requests), Inquire(sequence), Ping(), Pong()))
        if random.random() < 0.2:
            message = draw_of_reader(random)
        said = draw_of_subscriber(random, key.session) if random.random() < 0.3 else message
        payload = encode(said)[HEAD_BYTES:]
        line.say(frame(payload if random.random() < 0.7 else mutated(random, payload) or b"\xc0"))
        await bench.settle()
    await bench.check()
    line.close()


# -- stages -----------------------------------------------------------------------------------------------------------


def draw_operation(random: Random) -> Operation:
    """An operation, of which not everything fits."""
    parts: list[Publication | Change] = []
    for _ in range(random.choice((1, 1, 2, 4, 0))):
        entries = {_topic(random): random.choice((0, 1, 7) * 5 + (-1, 2**62)) for _ in range(random.randrange(3))}
        if random.random() < 0.6:
            first, place = (random.choice((0, 0, 1, 2, 9) * 4 + (-4, 2**62)) for _ in range(2))
            marks = [ChangeMark("s", 1)] * random.randrange(3)
            count = random.choice((1, 1, 3) * 5 + (0, -2, 2**62))
            part = Publication(_topic(random), count, 1.7e9, first, place, random.random() < 0.2, entries, marks)
            part.is_kept, part.chunks = random.random() < 0.5, _chunks(random, count)
            parts.append(part)
        else:
            old, new = (tuple(_topic(random) for _ in range(random.randrange(4))) for _ in range(2))
            version, weight = random.choice((1, 2, 3) * 5 + (0, -3)), random.choice((0, 1, 2) * 5 + (5,))
            subscription = random.choice(("s", "t", "", "x" * 300))
            parts.append(Change(subscription, version, old, new, weight, random.random() < 0.3, entries))
    top, bottom = random.choice(((0, 1), (0, 2), (0, 0), (0, 2), (1, 2), (2, 0), (0, 3), (-1, 2**40)))
    home, asked = (random.choice((0, 1, 2) * 5 + (3, -1, 2**40)) for _ in range(2))
    return Operation(random.choice(("c", "d")), 1, random.randrange(5), home, asked, bottom, top, parts)


def draw_peer_message(random: Random, number: int, fingerprint: str) -> PeerMessage:
    """What a stage may say, mostly."""
    kind = random.randrange(14)
    if kind > 9:
        return draw_of_log(random)
    if kind < 5:
        return LinkFrame(number, random.choice((Launch, Pass, Done))(draw_operation(random)))
    if kind == 5:
        return LinkAck(random.choice((0, 1, 2, 5, -1, 2**62)))
    if kind == 6:
        return Hello(fingerprint if random.random() < 0.8 else random.choice(TEXTS), random.choice((0, 0, 0, 1, 7, -1)))
    if kind == 7:
        operation = draw_operation(random)
        answer = Answer("c", 1, 1, operation.parts)
        return Reply(answer if random.random() < 0.7 else Refusal("c", 1, 1, "code", "reason", True))
    return Relay(random.choice((0, 1, 2, 2, 9, -1)), draw_request(random, "c", random.randrange(4)))


def draw_of_names(random: Random) -> Claim | Claimed | NamesGranted:
    claims = [
        Claim(random.choice(TEXTS), random.choice(("s#1", "s#2")), "x", random.random() < 0.3, random.random() < 0.5)
        for _ in range(random.choice((0, 1, 4)))
    ]
    return random.choice(
        (Claimed(random.choice(TEXTS), "s#1", random.choice(("", "no"))), NamesGranted(claims), *claims[:1])
    )


async def peer_frames(bench: Bench, random: Random) -> None:
    """What stages say that were let in"""
    server = bench.server
    fingerprint = server.topology.fingerprint
    lines = {rank: Line.to(server) for rank in (1, 2)}
    for rank, line in lines.items():
        line.say(encode(PeerGreeting(VERSION, rank, "", server._common.digest)))
        await bench.settle()
        line.say(encode(Say([Hello(fingerprint, server.node.driver.stage.state.links[rank].sent)])))
        await bench.settle()
    rank = random.choice((1, 2))
    line, number = lines[rank], server.node.driver.stage.state.links[rank].received
    for _ in range(random.choice((1, 3, 12))):
        number = number + 1 if random.random() < 0.9 else random.choice((0, -1, number + 5))
        message = random.choice((Ping(), draw_of_names(random), Rejected("draining", "x"), Report(1, {})))
        if random.random() < 0.85:
            message = Say([draw_peer_message(random, number, fingerprint)])
        payload = encode(message)[HEAD_BYTES:]
        line.say(frame(payload if random.random() < 0.8 else mutated(random, payload) or b"\xc0"))
        await bench.settle()
    await bench.check()
    for line in lines.values():
        line.close()
    await bench.settle()


# -- byte streams -----------------------------------------------------------------------------------------------------


async def streams(bench: Bench, random: Random) -> None:
    """Bytes on a real connection, in pieces, with the end anywhere"""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    key = make_session(None)
    good = encode(greet(key)) + encode(Ask([draw_request(random, key.session, 1)])) + encode(Ping())
    data = random.choice((good, mutate_bytes(random, good), random.randbytes(random.choice((4, 300, 20_000))), b""))
    try:
        for piece in split(random, data)[: random.choice((1, 5, 10_000))]:
            writer.write(piece)
            if random.random() < 0.3:
                await asyncio.sleep(0)
        if random.random() < 0.5:
            await asyncio.wait_for(reader.read(random.choice((1, 10_000))), 0.002)
    except (OSError, asyncio.TimeoutError):
        pass  # it has been closed, or has nothing to say
    writer.transport.abort()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    await bench.check()


@attrs.frozen
class LiveTarget:
    """What is done with a stage, and which one it is."""

    work: Callable[[Bench, Random], Awaitable[None]]
    configuration: str
    rank: int = 0

    async def cases(self, randoms: Iterator[Random]) -> int:
        """Do it with each; return how often that was."""
        bench = await Bench.open(self.configuration, self.rank)
        count = 0
        try:
            for random in randoms:
                await self.work(bench, random)
                count += 1
        finally:
            await bench.close()
        return count


TARGETS: Mapping[str, LiveTarget] = {
    "first-frame": LiveTarget(first_frame, TABLES),
    "client-frames": LiveTarget(client_frames, TABLES),
    "peer-frames": LiveTarget(peer_frames, LINE_OF_STAGES),
    "streams": LiveTarget(streams, TABLES),
}
