"""One identity does its worst, with everything at once, and another client measures what it notices of that.

    python benchmarks/hostile.py [--seconds 300] [--folder DIR] [--untimed]

Two linked stages are processes with small quotas. The identity `evil` may publish and subscribe below `evil/`, and `nobody` may
do nothing; both send what `KINDS` lists, each kind on connections of its own, as fast as the stages take it. Meanwhile a client
of the identity `good` publishes on topics of both stages, and subscribes to them with `order="total"`. What must hold:

- the other client's times, from publishing to the receipt and to the notification: the 99th percentile is below 50 ms;
- each stage's memory: not more than 64 MB above what it had, and what the quotas allow;
- the link between the stages is never cut, and no stage ends;
- after that, both stages are killed, and are ready again within 3 seconds.

The exit code is 0 only if all hold. The times are compared with those of the same client before the attack: on a machine that is
busy with other things, these are long by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import attrs
import msgspec

import ordered_pubsub
from ordered_pubsub.config.files import hash_token, make_token, write_token
from ordered_pubsub.core.log.questions import Bound, Find, Read
from ordered_pubsub.core.messages import (
    Acked,
    ChangeAsk,
    Chunk,
    KeepAlive,
    LeaseRenewal,
    Locate,
    Nack,
    NackRange,
    Progress,
    PublishAsk,
    Request,
    SeenReply,
    TopicRange,
    VoidAsk,
)
from ordered_pubsub.testing.processes import HOST, Starter, WorkerProcess, command_of, free_port, memory_bytes
from ordered_pubsub.testing.stages import StageProcesses
from ordered_pubsub.wire.pack import Logged, PackedEvent, encode_logged
from ordered_pubsub.wire.protocol import VERSION, Ask, ClientGreeting, Ping, encode
from ordered_pubsub.wire.sessions import SessionKey, make_session, publisher_of

P99_S, RESTART_S, SLACK_BYTES = 0.050, 3.0, 64 << 20
MIB = 1 << 20
STATE_BYTES, RECEIVED_BYTES, SENT_BYTES, PAIRS, TOPICS = 16 * MIB, 32 * MIB, 32 * MIB, 200_000, 5_000
PAIR_BYTES = 400
"""What a pair takes in memory at both its topics, about."""
QUOTA_BYTES = STATE_BYTES + RECEIVED_BYTES + SENT_BYTES + PAIRS * PAIR_BYTES
TIMES = ("p99 of another client below 50 ms", "restart after kill -9 within 3 s")
EVERY_S = 0.05
NAMES = ("high", "low")
GOOD = ("good/high/a", "good/low/b")
IDENTITIES = {
    "good": 'allow = { publish = ["good/**"], subscribe = ["good/**"] }',
    "evil": 'allow = { publish = ["evil/**"], subscribe = ["evil/**"] }',
    "nobody": "",
    "peer": "allow = { stage = true }",
}
LIMITS = f"""
[limits]
state_bytes_per_identity_max = {STATE_BYTES}
received_bytes_per_identity_max = {RECEIVED_BYTES}
buffered_bytes_per_identity_max = {SENT_BYTES}
pairs_per_identity_max = {PAIRS}
topics_per_identity_max = {TOPICS}
sessions_per_identity_max = 2000
subscriptions_per_identity_max = 2000
held_topics_per_identity_max = 5000
frame_s = 10
"""


# -- what is attacked ---------------------------------------------------------------------------------------------------


class System:
    """Two stages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = {name: make_token() for name in IDENTITIES}
        self.https = [free_port() for _ in NAMES]
        for name, token in self.tokens.items():
            write_token(str(folder / f"{name}.token"), token)
        parts = [LIMITS]
        for name, rights in IDENTITIES.items():
            parts.append(f'[[identity]]\nname = "{name}"\ntoken_sha256 = "{hash_token(self.tokens[name])}"\n{rights}\n')
        parts.append('[[topic]]\npattern = "evil/*/free/**"\ndelivery = "ordered"\n')
        self.stages = StageProcesses(
            folder,
            [[f"*/{name}/**"] for name in NAMES],
            "os",
            "\n".join(parts),
            [
                {"name": name, "http": f"{HOST}:{http}", "token_file": "peer.token"}
                for name, http in zip(NAMES, self.https, strict=True)
            ],
        )

    @property
    def ports(self) -> list[int]:
        """Where the stages listen."""
        return [stage.port for stage in self.stages.processes]

    def start(self) -> float:
        """Start both at once, as after a loss of power; return how long it took until both were ready and linked."""
        began = time.monotonic()
        self.stages.write()
        for stage in self.stages.processes:
            stage.begin()
        for stage in self.stages.processes:
            stage.wait_until_ready()
        while not all(self.is_ready(http) for http in self.https):
            time.sleep(0.01)
        return time.monotonic() - began

    @staticmethod
    def is_ready(http: int) -> bool:
        """Whether a stage says that it takes requests."""
        try:
            with urlopen(f"http://{HOST}:{http}/healthz", timeout=5) as answer:
                return bool(json.load(answer)["ready"])
        except (URLError, OSError):
            return False

    def memory(self) -> list[int]:
        """What each stage has in memory."""
        return [memory_bytes(stage.pid or 0) for stage in self.stages.processes]

    def cuts(self) -> int:
        """How often a stage has said that a link was cut, after it was there."""
        return sum(stage.said.count("no link to stage") for stage in self.stages.processes)

    def ended(self) -> list[str]:
        """The stages that do not run any more."""
        return [stage.name for stage in self.stages.processes if not stage.is_running]


# -- who attacks --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Tally:
    """What was sent of one kind, and what became of it."""

    frames: int = 0
    sent_bytes: int = 0
    connections: int = 0
    refused: int = 0
    """refusals, rejections, ends of subscriptions"""
    codes: dict[str, int] = attrs.field(factory=dict)


@attrs.define(eq=False)
class Line:
    """One connection of an attacker."""

    tally: Tally
    key: SessionKey
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sequence: int = 0
    reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, tally: Tally, port: int, token: str, name: str | None = None, reads: bool = True) -> Line:
        """Connect, and be let in; or not."""
        reader, writer = await asyncio.open_connection(HOST, port)
        line = cls(tally, make_session(name), reader, writer)
        tally.connections += 1
        line.writer.write(encode(ClientGreeting(VERSION, line.key.session, line.key.secret, name, token, False)))
        await asyncio.wait_for(line.welcomed(), 10)
        if reads:
            line.reading = asyncio.get_running_loop().create_task(line.read())
        return line

    async def welcomed(self) -> None:
        """Wait for the first word of the stage."""
        data = await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))
        if b"rejected" in data[:12]:
            self.note(msgspec.msgpack.decode(data))

    async def read(self) -> None:
        """Count what is refused."""
        with suppress(OSError, EOFError):
            while True:
                size = int.from_bytes(await self.reader.readexactly(4), "big")
                data = await self.reader.readexactly(size)
                if size < 100_000 and any(word in data for word in (b"refusal", b"rejected", b"ended", b"unread")):
                    self.note(msgspec.msgpack.decode(data))

    def note(self, message: list[Any]) -> None:
        """Take note of a refusal."""
        tag, codes = message[0], list[str]()
        if tag == "tell":
            codes = [answer[4] for answer in message[1] if answer[0] == "refusal"]
        elif tag == "rejected":
            codes = [message[1]]
        elif tag == "ended":
            codes = [message[3]]
        elif tag == "unread":
            codes = [message[2]]
        self.tally.refused += len(codes)
        for code in codes:
            self.tally.codes[code] = self.tally.codes.get(code, 0) + 1

    async def send(self, *messages: Any) -> None:
        """Messages, or bytes as they are."""
        for message in messages:
            data = message if isinstance(message, bytes) else encode(message)
            self.tally.frames += 1
            self.tally.sent_bytes += len(data)
            self.writer.write(data)
        await self.writer.drain()

    def request(self, *parts: PublishAsk | ChangeAsk) -> Request:
        """The next request; earlier ones are done with."""
        self.sequence += 1
        return Request(self.key.session, 1, self.sequence, self.sequence - 1, self.sequence - 1, parts)

    async def ask(self, *parts: PublishAsk | ChangeAsk) -> None:
        """Ask for something, and do not wait for what becomes of it."""
        await self.send(Ask([self.request(*parts)]))

    def events(self, topic: str, count: int = 1, payload: bytes = b"1") -> PublishAsk:
        """Events that are to be kept."""
        events = [PackedEvent(f"e{number}", payload, "application/json") for number in range(count)]
        publisher = publisher_of(self.key.session, None)
        return PublishAsk(topic, count, True, (Chunk(count, encode_logged(Logged(publisher, events))),))

    def close(self) -> None:
        """Leave."""
        if self.reading is not None:
            self.reading.cancel()
        self.writer.transport.abort()


@attrs.define(eq=False)
class Attacker:
    """What all kinds have in common."""

    port: int
    http: int
    where: str
    """the stage that is attacked at first hand, as its topics say"""
    tokens: dict[str, str]
    big: bytes = b'{"a": 1, "b": [' + b"1," * 100_000 + b"1]}"

    def topic(self, rest: str) -> str:
        """A topic that it may use."""
        return f"evil/{self.where}/{rest}"


Kind = Callable[[Attacker, Line], AsyncIterator[None]]
_far = 1 << 38


async def handed(at: Attacker, line: Line) -> AsyncIterator[None]:
    """asks for the voids of a log, without a right"""
    while True:
        await line.send(LeaseRenewal(line.key.session, 1, 0, [0, 1], [TopicRange("good/low/b", 1, _far)] * 1_000))
        yield


async def undecided(at: Attacker, line: Line) -> AsyncIterator[None]:
    """asks what has become of everything"""
    while True:
        await line.send(VoidAsk(line.key.session, [TopicRange(at.topic("t"), 1, _far)] * 1_000))
        yield


async def locate_one(at: Attacker, line: Line) -> AsyncIterator[None]:
    """asks where one topic was, 10,000 times"""
    for serial in itertools.count(1):
        await line.send(Locate(line.key.session, serial, [at.topic("t")] * 10_000, 1.8e9))
        yield


async def locate_many(at: Attacker, line: Line) -> AsyncIterator[None]:
    """asks where 10,000 topics were"""
    for serial in itertools.count(1):
        await line.send(Locate(line.key.session, serial, [at.topic(f"n{n}") for n in range(10_000)], 1.8e9))
        yield


async def by_filters(at: Attacker, line: Line) -> AsyncIterator[None]:
    """misses one large event by very many filters"""
    for number in itertools.count():
        wants = [NackRange(at.topic("big"), 1, 1, False, f"a = {(number * 4 + n) % 900}") for n in range(4)]
        await line.send(Nack(f"{line.key.session}/s{number % 200}", wants))
        yield


async def long_filters(at: Attacker, line: Line) -> AsyncIterator[None]:
    """asks by long filters, each another one"""
    for number in itertools.count():
        values = ", ".join(str(number * 1_000 + n) for n in range(400))
        await line.send(Nack(f"{line.key.session}/s", [NackRange(at.topic("t"), 1, 1, False, f"x in ({values})")]))
        yield


async def find(at: Attacker, line: Line) -> AsyncIterator[None]:
    """looks for topics by 1,000 expensive patterns"""
    for number in itertools.count():
        patterns = ["**/" + "a/" * 50 + f"*/b{number % 7}{n}" for n in range(1_000)]
        await line.send(Find(number, patterns))
        yield


async def read(at: Attacker, line: Line) -> AsyncIterator[None]:
    """reads the log, by filters, and where it may end"""
    for number in itertools.count():
        await line.send(
            Read(2 * number, at.topic("big"), 1, 10, True, MIB, f"a = {number % 50}"),
            Bound(2 * number + 1, at.topic("t"), 0, _far, {at.topic("x"): 1}),
        )
        await asyncio.sleep(0.01)
        yield


async def curious(at: Attacker, line: Line) -> AsyncIterator[None]:
    """misses all of a log, again and again"""
    for number in itertools.count():
        await line.send(Nack(f"{line.key.session}/s{number % 100}", [NackRange(at.topic("t"), 1, _far)] * 100))
        yield


async def invented(at: Attacker, line: Line) -> AsyncIterator[None]:
    """speaks for subscriptions that are not there"""
    for number in itertools.count():
        await line.send(Nack(f"{line.key.session}/x{number}", [NackRange(at.topic("t"), 1, 1)]))
        yield


async def streams(at: Attacker, line: Line) -> AsyncIterator[None]:
    """misses something of very many topics"""
    for number in itertools.count():
        wants = [NackRange(at.topic(f"m{number}/{n}"), 1, 1) for n in range(2_000)]
        await line.send(Nack(f"{line.key.session}/x", wants))
        yield


async def follows(at: Attacker, line: Line) -> AsyncIterator[None]:
    """says how far very much is"""
    for number in itertools.count():
        topics = {at.topic(f"f{number}/{n}"): 1 for n in range(900)}
        await line.send(Progress(f"{line.key.session}/f{number % 900}", topics, True, 1))
        yield


async def sessions(at: Attacker, line: Line) -> AsyncIterator[None]:
    """comes anew each time, without a right, and asks once"""
    while True:
        other = await Line.open(line.tally, at.port, at.tokens["nobody"])
        await other.ask(PublishAsk("a"))
        await asyncio.sleep(0.02)
        other.close()
        yield


async def named(at: Attacker, line: Line) -> AsyncIterator[None]:
    """begins subscriptions with names, and leaves them"""
    for number in itertools.count():
        name = f"e{number}{at.where}"
        other = await Line.open(line.tally, at.port, at.tokens["evil"], name)
        await asyncio.sleep(0.02)
        await other.send(
            Ask([other.request(ChangeAsk(f"{name}//s{n}", (at.topic("t"),), weight=0, opens=1)) for n in range(100)])
        )
        await asyncio.sleep(0.1)
        other.close()
        yield


async def new_topics(at: Attacker, line: Line) -> AsyncIterator[None]:
    """publishes on topics that nobody has heard of"""
    for number in itertools.count():
        await line.ask(*(line.events(at.topic(f"new{number}/{n}" + "é" * 100)) for n in range(50)))
        yield


async def pairs(at: Attacker, line: Line) -> AsyncIterator[None]:
    """holds many topics that are ordered against each other"""
    for number in itertools.count():
        topics = tuple(at.topic(f"p{number % 20}/{n}") for n in range(200))
        await line.ask(ChangeAsk(f"{line.key.session}/{number}", topics))
        await line.ask(ChangeAsk(f"{line.key.session}/{number}", ends=True))
        await asyncio.sleep(0.05)
        yield


async def parts(at: Attacker, line: Line) -> AsyncIterator[None]:
    """asks for very many things in each request, and at once"""
    while True:
        await line.send(Ask([line.request(*[line.events(at.topic("t"))] * 250) for _ in range(80)]))
        await asyncio.sleep(0.05)
        yield


async def where(at: Attacker, line: Line) -> AsyncIterator[None]:
    """changes a subscription to a filter of megabytes"""
    for number in itertools.count():
        topic = at.topic("t")
        await line.ask(ChangeAsk(f"{line.key.session}/{number}", (topic,), where={topic: "z" * 3_000_000}))
        yield


async def acked(at: Attacker, line: Line) -> AsyncIterator[None]:
    """acknowledges topics that are not there"""
    name = f"acks{at.where}"
    other = await Line.open(line.tally, at.port, at.tokens["evil"], name)
    await asyncio.sleep(0.2)
    await other.ask(ChangeAsk(f"{name}//s", (at.topic("t"),), weight=0, opens=1))
    for serial in itertools.count(1):
        clock = {f"z{serial}/{n}" * 10: 1 for n in range(5_000)}
        await other.send(Acked(f"{name}//s", other.key.session, serial, 1, clock, serial))
        yield


async def never_acked(at: Attacker, line: Line) -> AsyncIterator[None]:
    """changes a subscription with a name, and acknowledges nothing"""
    name = f"changes{at.where}"
    other = await Line.open(line.tally, at.port, at.tokens["evil"], name)
    await asyncio.sleep(0.2)
    first = tuple(at.topic(f"h{n}") for n in range(500))
    await other.ask(ChangeAsk(f"{name}//s", first, weight=0, opens=1))
    for number in itertools.count():
        add, remove = (at.topic(f"y{number}"),), (at.topic(f"y{number - 1}"),) if number else ()
        await other.ask(ChangeAsk(f"{name}//s", add, remove, weight=0))
        yield


async def half(at: Attacker, line: Line) -> AsyncIterator[None]:
    """begins large frames, and does not end them"""
    while True:
        lines = [await Line.open(line.tally, at.port, at.tokens["evil"]) for _ in range(20)]
        await asyncio.sleep(0.1)
        for other in lines:
            with suppress(OSError):
                await other.send((4_000_000).to_bytes(4, "big") + b"\0" * 3_900_000)
        await asyncio.sleep(3)
        for other in lines:
            other.close()
        yield


async def slow(at: Attacker, line: Line) -> AsyncIterator[None]:
    """asks for much, and reads nothing"""
    while True:
        lines = [await Line.open(line.tally, at.port, at.tokens["evil"], reads=False) for _ in range(10)]
        await asyncio.sleep(0.1)
        for other in lines:
            other.writer.transport.pause_reading()
            for number in range(60):
                await other.send(Read(number, at.topic("big"), 1, 1, False, MIB))
        await asyncio.sleep(2)
        for other in lines:
            other.close()
        yield


async def pings(at: Attacker, line: Line) -> AsyncIterator[None]:
    """wants a sign of life, thousands of times at once"""
    data = encode(Ping()) * 5_000
    while True:
        await line.send(data)
        yield


async def not_kept(at: Attacker, line: Line) -> AsyncIterator[None]:
    """keeps nothing of what is to be kept"""
    while True:
        await line.ask(PublishAsk(at.topic("t")))
        await line.ask(line.events(at.topic("t")))
        yield


async def values(at: Attacker, line: Line) -> AsyncIterator[None]:
    """names numbers that cannot be"""
    for number in itertools.count():
        other = await Line.open(line.tally, at.port, at.tokens["evil"])
        bad = (-1, 1 << 62, (1 << 39) + 1)[number % 3]
        with suppress(OSError):
            await other.send(
                Progress(f"{other.key.session}/1", {at.topic("t"): bad}, True, bad),
                SeenReply(bad, 0, [other.key.session], [(1, bad)]),
                KeepAlive(other.key.session, bad),
            )
        await asyncio.sleep(0.02)
        other.close()
        yield


async def opens(at: Attacker, line: Line) -> AsyncIterator[None]:
    """takes what belongs to others, in epochs that cannot be"""
    for number in itertools.count():
        epoch = (1, 1 << 62, -5)[number % 3]
        await line.ask(ChangeAsk("desk//main", (at.topic("t"),), opens=epoch, start={"good/low/b": -7}))
        yield


async def garbage(at: Attacker, line: Line) -> AsyncIterator[None]:
    """says what is no message"""
    while True:
        other = await Line.open(line.tally, at.port, at.tokens["evil"])
        with suppress(OSError):
            await other.send((20_000).to_bytes(4, "big") + b"\x91" * 20_000)
        await asyncio.sleep(0.02)
        other.close()
        yield


async def elements(at: Attacker, line: Line) -> AsyncIterator[None]:
    """says a million things in a frame"""
    data = msgspec.msgpack.encode(["undecided", line.key.session, [["a", 1, 1]] * 400_000])
    while True:
        other = await Line.open(line.tally, at.port, at.tokens["evil"])
        await asyncio.sleep(0.05)
        with suppress(OSError):
            await other.send(len(data).to_bytes(4, "big") + data)
        await asyncio.sleep(0.2)
        other.close()
        yield


async def health(at: Attacker, line: Line) -> AsyncIterator[None]:
    """asks for the health, and leaves the question half"""
    while True:
        opened = [await asyncio.open_connection(HOST, at.http) for _ in range(50)]
        for _, writer in opened:
            line.tally.connections += 1
            writer.write(b"GET /healthz HT")
        await asyncio.sleep(1)
        for _, writer in opened:
            writer.transport.abort()
        yield


KINDS: tuple[Kind, ...] = (
    handed, undecided, locate_one, locate_many, by_filters, long_filters, find, read, curious, invented, streams, follows,
    sessions, named, new_topics, pairs, parts, where, acked, never_acked, half, slow, pings, not_kept, values, opens,
    garbage, elements, health,
)  # fmt: skip


async def attack(at: Attacker, kind: Kind, tally: Tally, until: float) -> None:
    """Do one thing until the time is over, whatever becomes of it."""
    while time.monotonic() < until:
        line = None
        with suppress(OSError, EOFError, asyncio.TimeoutError):
            line = await Line.open(tally, at.port, at.tokens["nobody" if kind is handed else "evil"])
            async for _ in kind(at, line):
                if time.monotonic() >= until or line.writer.is_closing():
                    break
                await asyncio.sleep(0)
        if line is not None:
            line.close()
        await asyncio.sleep(0.1)


async def attack_all(
    starter: Starter, ports: list[int], https: list[int], tokens: dict[str, str], seconds: float
) -> None:
    """All kinds at once, half of them at each stage; say what was sent."""
    os.nice(10)
    attackers = [Attacker(port, http, name, tokens) for port, http, name in zip(ports, https, NAMES, strict=True)]
    prepared = Tally()
    for at in attackers:
        line = await Line.open(prepared, at.port, at.tokens["evil"])
        for _ in range(20):
            await line.ask(line.events(at.topic("t"), 100))
        await line.ask(line.events(at.topic("big"), 1, at.big))
        for number in range(40):
            await line.ask(line.events(at.topic("a/" * 110 + f"a{number}")))
        await asyncio.sleep(1)
        line.close()
    tallies = {kind.__name__: Tally() for kind in KINDS}
    until = time.monotonic() + seconds
    work: list[Awaitable[None]] = [
        attack(attackers[(number + side) % 2], kind, tallies[kind.__name__], until)
        for number, kind in enumerate(KINDS)
        for side in range(2)
    ]
    await asyncio.wait([asyncio.ensure_future(one) for one in work], timeout=seconds + 10)
    starter.tell(**{name: attrs.asdict(tally) for name, tally in tallies.items()})


# -- who measures -------------------------------------------------------------------------------------------------------


async def measure(starter: Starter, ports: list[int], token: str, seconds: float) -> None:
    """Publish and subscribe, and say how long that took."""
    receipts: list[float] = []
    notified: list[float] = []
    failures = 0
    async with ordered_pubsub.connect(
        f"memory://{os.getpid()}",
        sequencer=[f"ops://{HOST}:{port}" for port in ports],
        token_file=token,
    ) as client:
        subscription = await client.subscribe(*GOOD, order="total")

        async def listen() -> None:
            async for event in subscription:
                notified.append(time.monotonic() - float(event.data))

        listening = asyncio.ensure_future(listen())
        until = time.monotonic() + seconds
        for topic in itertools.cycle(GOOD):
            began = time.monotonic()
            if began >= until:
                break
            try:
                await client.publish(topic, began)
                receipts.append(time.monotonic() - began)
            except ordered_pubsub.OrderedPubSubError:
                failures += 1
            await asyncio.sleep(EVERY_S)
        await asyncio.sleep(0.5)
        listening.cancel()
    starter.tell(receipts=receipts, notified=notified, failures=failures)


@attrs.frozen
class Times:
    """What another client has noticed."""

    receipts: list[float]
    notified: list[float]
    failures: int

    @property
    def p99_s(self) -> float:
        """The worse of both."""
        return max(_quantile(self.receipts, 0.99), _quantile(self.notified, 0.99))

    def __str__(self) -> str:
        shown = [
            f"{what} p50 {_quantile(times, 0.5) * 1e3:.1f} ms, p99 {_quantile(times, 0.99) * 1e3:.1f} ms, "
            f"most {max(times, default=float('inf')) * 1e3:.0f} ms ({len(times)})"
            for what, times in (("receipts:", self.receipts), ("notified:", self.notified))
        ]
        return f"{'; '.join(shown)}; failed: {self.failures}"


def _quantile(times: list[float], share: float) -> float:
    return sorted(times)[min(int(len(times) * share), len(times) - 1)] if times else float("inf")


# -- all of it ----------------------------------------------------------------------------------------------------------


def start(system: System, part: Callable[..., Any], **plan: Any) -> WorkerProcess:
    """Somebody else, as a process."""
    worker = WorkerProcess(part.__name__, command_of(part), system.folder / f"{part.__name__}.log", plan=plan)
    worker.begin()
    return worker


def measured(system: System, seconds: float, watch: Callable[[], object] = lambda: None) -> Times:
    """What another client notices for so long."""
    token = str(system.folder / "good.token")
    worker = start(system, measure, ports=system.ports[::-1], token=token, seconds=seconds)
    try:
        while (said := worker.hear_within(0.25)) is None:
            watch()
        return Times(**said)
    finally:
        worker.end()


@attrs.frozen
class Result:
    """What was seen."""

    before: Times
    during: Times
    memory_before: list[int]
    memory_most: list[int]
    tallies: dict[str, dict[str, Any]]
    cuts: int
    ended: list[str]
    restart_s: float
    memory_after: list[int]

    def lines(self) -> list[tuple[str, str, bool]]:
        """What must hold, what was seen, and whether it holds."""
        grown = [most - before for most, before in zip(self.memory_most, self.memory_before, strict=True)]
        return [
            (TIMES[0], str(self.during), self.during.p99_s < P99_S),
            ("it has all its receipts", f"{self.during.failures} failed", not self.during.failures),
            (
                f"memory: at most {(QUOTA_BYTES + SLACK_BYTES) / MIB:.0f} MiB more (quota and 64 MiB)",
                ", ".join(f"{name} +{more / MIB:.0f} MiB" for name, more in zip(NAMES, grown, strict=True)),
                max(grown) <= QUOTA_BYTES + SLACK_BYTES,
            ),
            (
                "no link is cut, no stage ends",
                f"{self.cuts} cut, ended: {self.ended or 'none'}",
                not (self.cuts or self.ended),
            ),
            (TIMES[1], f"{self.restart_s:.2f} s", self.restart_s <= RESTART_S),
            (
                "memory after the restart within the quota",
                ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in zip(NAMES, self.memory_after, strict=True)),
                all(
                    after <= before + STATE_BYTES + PAIRS * PAIR_BYTES + SLACK_BYTES
                    for after, before in zip(self.memory_after, self.memory_before, strict=True)
                ),
            ),
        ]


def run(folder: Path, seconds: float) -> Result:
    """All of it."""
    system, attacking = System(folder), None
    system.start()
    time.sleep(1)
    try:
        before = measured(system, min(10.0, seconds))
        cuts = system.cuts()
        memory_before = system.memory()
        most = list(memory_before)

        def watch() -> None:
            most[:] = map(max, most, system.memory())

        attacking = start(
            system, attack_all, ports=system.ports, https=system.https, tokens=system.tokens, seconds=seconds
        )
        time.sleep(min(3.0, seconds / 2))
        during = measured(system, max(seconds - 3.0, seconds / 2), watch)
        said = attacking.hear(seconds + 60)
        cuts = system.cuts() - cuts
        ended = system.ended()
        system.stages.kill()
        restart_s = system.start()
        time.sleep(0.5)
        return Result(before, during, memory_before, most, said, cuts, ended, restart_s, system.memory())
    finally:
        if attacking is not None:
            attacking.kill()
        system.stages.kill()


def show(result: Result, is_timed: bool) -> bool:
    """Print it; whether all holds, or all but the times."""
    print(f"{'kind':<14}{'what it does':<58}{'frames':>9}{'MB':>8}{'lines':>7}{'refused':>9}  codes")
    for kind in KINDS:
        tally = result.tallies[kind.__name__]
        codes = ", ".join(f"{code} {count}" for code, count in sorted(tally["codes"].items()))
        print(
            f"{kind.__name__:<14}{(kind.__doc__ or '')[:57]:<58}{tally['frames']:>9}{tally['sent_bytes'] / 1e6:>8.1f}"
            f"{tally['connections']:>7}{tally['refused']:>9}  {codes}"
        )
    print(f"\nbefore: {result.before}")
    lines = result.lines()
    for what, seen, holds in lines:
        print(f"{'yes' if holds else 'NO ':<4}{what}: {seen}")
    return all(holds for what, _, holds in lines if is_timed or what not in TIMES)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--folder", type=Path, help="where the stores and logs are; left out: gone afterwards")
    parser.add_argument(
        "--untimed", action="store_true", help="the times do not count, as where other things run beside"
    )
    arguments = parser.parse_args()
    with TemporaryDirectory() as gone:
        folder = arguments.folder or Path(gone)
        folder.mkdir(exist_ok=True)
        return 0 if show(run(folder, arguments.seconds), not arguments.untimed) else 1


if __name__ == "__main__":
    sys.exit(main())
