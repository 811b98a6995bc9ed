"""What the ENS lost comes from the stages: real ones, over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import ordered_pubsub
from ordered_pubsub.adapter import Frame
from ordered_pubsub.config.checks import stages_to_serve
from ordered_pubsub.config.files import hash_token, make_token
from ordered_pubsub.config.reading import load
from ordered_pubsub.core.client.machine import ClientMachine
from ordered_pubsub.core.messages import (
    Answer,
    ChangeAsk,
    Chunk,
    LogReply,
    Nack,
    NackRange,
    Progress,
    PublishAsk,
    Recovered,
    Request,
)
from ordered_pubsub.core.recovery.owner_log import OwnerLogs
from ordered_pubsub.errors import AccessDenied, NotOffered
from ordered_pubsub.server.server import Server
from ordered_pubsub.server.serving import Serving
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.wire.logged import read_recalled
from ordered_pubsub.wire.pack import Logged, PackedEvent, decode_logged, encode_logged
from ordered_pubsub.wire.protocol import Ask, Ping, Pong, Rejected, Tell, Welcome
from ordered_pubsub.wire.sessions import SessionKey, make_session, publisher_of
from ordered_pubsub_adapters.memory import MemoryAdapter
from server.messages import greeting
from server.systems import Raw, System, connect, one_stage, raw, serving
from server.waiting import soon, until

NUMBERS_END = 1 << 39
READER, WRITER = make_token(), make_token()


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost last is noticed soon."""
    monkeypatch.setattr("ordered_pubsub.client.engine.TICK_S", 0.1)
    monkeypatch.setattr("ordered_pubsub.client.engine.ClientMachine", partial(ClientMachine, report_s=0.1))
    monkeypatch.setattr("ordered_pubsub.server.stage.node.TICK_S", 0.05)
    monkeypatch.setattr("ordered_pubsub.core.stage.driver.OwnerLogs", lambda reader: OwnerLogs(reader, aet_s=0.2))


@pytest.fixture
def lossy() -> str:
    """An ENS that loses everything."""
    return f"memory://{uuid4().hex}?lose=1.0"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(one_stage()) as server:
        yield server


@pytest.fixture
async def system(tmp_path: Path, lossy: str) -> AsyncIterator[System]:
    """Two stages: the first owns "a", the second "b"."""
    async with System(tmp_path, [["a"], ["b"]], ens=lossy) as system:
        await until(lambda: system.is_linked)
        yield system


class PickyAdapter(MemoryAdapter):
    """Loses what it is told to lose, by its topic and its place on it."""

    def __init__(self, url: str, is_lost: Callable[[str, int], bool]) -> None:
        super().__init__(url)
        self.is_lost = is_lost
        self.counts: dict[str, int] = {}

    async def publish(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            count = self.counts[frame.topic] = self.counts.get(frame.topic, 0) + 1
            if not self.is_lost(frame.topic, count):
                await super().publish([frame])


async def take(subscription: ordered_pubsub.Subscription, count: int) -> list[Any]:
    """The data of the next events."""

    async def read() -> list[Any]:
        return [(await subscription.__anext__()).data for _ in range(count)]

    return await soon(read())


# -- one stage --------------------------------------------------------------------------------------------------------


async def test_nothing_is_missed_though_the_ens_loses_everything(server: Server, lossy: str) -> None:
    """By anybody, and in one order."""
    async with connect(server, ens=lossy) as client, connect(server, ens=lossy) as other:
        subscriptions = [await client.subscribe("a", "b"), await other.subscribe("b", "a"), await other.subscribe("a")]
        for number in range(20):
            await client.publish("ab"[number % 2], number)
        one, two = await take(subscriptions[0], 20), await take(subscriptions[1], 20)
        three = await take(subscriptions[2], 10)

    assert one == two == list(range(20))
    assert three == list(range(0, 20, 2))


async def test_what_is_not_wanted_does_not_come_and_nothing_else_is_missing(
    server: Server, lossy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the past, by the filter that the subscription had then, and of the present."""
    brought: list[int] = []
    monkeypatch.setattr(
        "ordered_pubsub.client.incoming.intake.read_recalled",
        lambda topic, item: brought.append(sum(len(chunk.data) for chunk in item.chunks)) or read_recalled(topic, item),
    )
    async with connect(server, ens=lossy) as client:
        await client.publish_many("a", [{"n": n, "text": "x" * 1_000} for n in range(100)])
        subscription = await client.subscribe("a", where="n >= 98", start="earliest")
        await client.publish_many("a", [{"n": n, "text": "x" * 1_000} for n in range(100)])
        events = [await soon(subscription.__anext__()) for _ in range(4)]

    assert [(event.data["n"], event.number, event.position) for event in events] == [
        (98, 99, 99), (99, 100, 100), (98, 199, 199), (99, 200, 200),
    ]  # fmt: skip
    assert sum(brought) < 10_000


async def test_a_recalled_event_is_the_one_that_was_published(server: Server, lossy: str) -> None:
    """With all that belongs to it."""
    async with connect(server, "desk", ens=lossy) as client:
        subscription = await client.subscribe("a")
        receipt = await client.publish("a", {"x": [1]}, headers={"kind": "test", "raw": b"\x00"}, id="mine")
        event = await soon(subscription.__anext__())

    assert (event.topic, event.number, event.id, event.position) == ("a", receipt.number, "mine", 1)
    assert (event.data, event.raw, event.publisher) == ({"x": [1]}, b'{"x":[1]}', "desk")
    assert event.headers == {"kind": "test", "raw": b"\x00"}
    assert not event.out_of_order


@pytest.mark.parametrize("lost", [{1}, {3}, {2, 3, 4}, {1, 3, 5, 7}, {6, 7}])
async def test_a_gap_is_filled_from_the_log(server: Server, lost: set[int]) -> None:
    """Wherever it is, and be it the last event."""
    adapter = PickyAdapter(f"memory://{uuid4().hex}", lambda topic, count: count in lost)
    async with connect(server, ens=adapter) as client:
        subscription = await client.subscribe("a")
        for number in range(1, 8):
            await client.publish("a", number)

        assert await take(subscription, 7) == list(range(1, 8))


async def test_an_event_that_another_topics_event_waits_for_is_asked_for(server: Server) -> None:
    """Nothing that comes later on its own topic tells that it is there."""
    adapter = PickyAdapter(f"memory://{uuid4().hex}", lambda topic, count: topic == "a")
    async with connect(server, ens=adapter) as client:
        subscription = await client.subscribe("a", "b")
        await client.publish("a", "first")
        await client.publish("b", "second")

        assert await take(subscription, 2) == ["first", "second"]


async def test_many_events_that_were_lost_come_in_their_order(server: Server, lossy: str) -> None:
    """More than are asked for in one message, and more than are read in one piece."""
    async with connect(server, ens=lossy) as client:
        subscription = await client.subscribe("a", "b")
        receipts = [client.publish_nowait("ab"[number % 2], [number, "x" * 200]) for number in range(3_000)]
        await soon(asyncio.gather(*receipts))

        assert [data[0] for data in await take(subscription, 3_000)] == list(range(3_000))


async def test_topics_that_are_not_kept_are_given_by_the_ens_only(lossy: str) -> None:
    """So it must lose nothing, and a client must say that it takes them."""
    topics = '[[topic]]\npattern = "ticks/**"\ndelivery = "ordered"\n'
    async with serving(one_stage("", topics)) as server:
        async with connect(server) as client:
            with pytest.raises(NotOffered, match=r"topic 'ticks/a' gives delivery='ordered'"):
                await client.subscribe("a", "ticks/a")
            subscription = await client.subscribe("a", "ticks/a", delivery="ordered")
            async with connect(server, ens=client._engine.adapter.url, delivery="ordered") as other:
                await other.publish("ticks/a", 1)
                await other.publish("a", 2)
            assert await take(subscription, 2) == [1, 2]
        async with connect(server, ens=lossy) as client:
            with pytest.raises(NotOffered, match="must lose nothing"):
                await client.subscribe("ticks/a", delivery="ordered")


# -- several stages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("publisher", "subscriber"), [(0, 0), (0, 1), (1, 0), (1, 1)])
async def test_events_of_other_stages_are_recalled_by_way_of_the_home(
    system: System, publisher: int, subscriber: int
) -> None:
    async with system.connect(publisher) as one, system.connect(subscriber) as two:
        subscription = await two.subscribe("a", "b")
        for number in range(10):
            await one.publish("ab"[number % 2], number)

        assert await take(subscription, 10) == list(range(10))


async def test_the_log_outlives_its_stage(system: System) -> None:
    """What was published before a stage stopped is recalled when it is back."""
    async with system.connect(1) as client:
        subscription = await client.subscribe("a")
        await client.publish("a", 1)
        await system.stop(0)
        await system.start(0)

        assert await take(subscription, 1) == [1]


async def test_what_is_missed_while_a_link_is_cut_comes_when_it_is_healed(system: System) -> None:
    async with system.connect(0) as publisher, system.connect(1) as client:
        subscription = await client.subscribe("a")
        system.lines[1, 0].cut()
        await publisher.publish("a", 1)
        system.lines[1, 0].heal()

        assert await take(subscription, 1) == [1]


# -- what a stage takes -----------------------------------------------------------------------------------------------


async def enter(line: Raw, key: SessionKey, token: str = "") -> None:
    line.send(greeting(key, None, token=token))
    await line.expect(Welcome)


async def subscribe(line: Raw, key: SessionKey, *topics: str) -> str:
    """Hold topics; the subscription."""
    mine = f"{key.session}/1"
    line.send(Ask([Request(key.session, 1, 1, 0, 0, (ChangeAsk(mine, topics),))]))
    (answer,) = (await line.expect(Tell)).answers
    assert isinstance(answer, Answer)
    line.send(Progress(mine, dict.fromkeys(topics, 0), is_all=True))
    return mine


async def recalled(line: Raw, message: Nack) -> LogReply | None:
    """What the stage tells of what is missing; None if it is silent, though it has had time to read its log."""
    line.send(message)
    for _ in range(20):
        line.send(Ping())
        while not isinstance(heard := await line.receive(), Pong):
            if isinstance(heard, Recovered):
                return heard.reply
            assert heard is not None, "the stage has closed the connection"
        await asyncio.sleep(0)
    return None


UNFIT = {
    "before the first": lambda mine: Nack(mine, [NackRange("a", 0, 1)]),
    "below zero": lambda mine: Nack(mine, [NackRange("a", -5, 1)]),
    "backwards": lambda mine: Nack(mine, [NackRange("a", 5, 4)]),
    "too far": lambda mine: Nack(mine, [NackRange("a", 1, NUMBERS_END + 1)]),
    "one of several": lambda mine: Nack(mine, [NackRange("a", 1, 1), NackRange("a", 0, 0)]),
    "acknowledged below zero": lambda mine: Progress(mine, {"a": -1}),
    "acknowledged too far": lambda mine: Progress(mine, {"a": NUMBERS_END + 1}),
    "by no filter": lambda mine: Nack(mine, [NackRange("a", 1, 1, where="n >")]),
    "somebody else's misses": lambda mine: Nack("other#0011/1", [NackRange("a", 1, 1)]),
    "somebody else's state": lambda mine: Progress("other#0011/1", {"a": 1}),
}


@pytest.mark.parametrize("what", UNFIT)
async def test_what_cannot_be_ends_the_connection(server: Server, what: str) -> None:
    key = make_session(None)
    async with raw(server.port) as line:
        await enter(line, key)
        mine = await subscribe(line, key, "a")
        line.send(UNFIT[what](mine))

        assert (await line.expect(Rejected)).code == "bad-frame"
        assert await line.receive() is None


@pytest.mark.parametrize("last", [1, NUMBERS_END])
async def test_what_may_be_does_not_end_it(server: Server, last: int) -> None:
    """The largest number that there can be is asked for in one go."""
    key = make_session(None)
    async with raw(server.port) as line, connect(server) as client:
        await enter(line, key)
        mine = await subscribe(line, key, "a")
        await client.publish("a", "x")
        told = await recalled(line, Nack(mine, [NackRange("a", 1, last)]))

        assert told is not None
        (item,) = told.items
        assert (item.first, item.last) == (1, 1)
        assert decode_logged(item.chunks[0].data, 1).events[0].payload == b'"x"'


async def test_what_a_filter_does_not_let_through_stays_at_the_stage(server: Server) -> None:
    key = make_session(None)
    async with raw(server.port) as line, connect(server) as client:
        await enter(line, key)
        mine = await subscribe(line, key, "a")
        await client.publish_many("a", [{"n": n} for n in range(5)])
        told = await recalled(line, Nack(mine, [NackRange("a", 1, 5, where="n = 3")]))

        assert told is not None
        (item,) = told.items
        assert (told.where, item.first, item.last) == ("n = 3", 1, 5)
        assert [(chunk.count, bool(chunk.data)) for chunk in item.chunks] == [(3, False), (1, True), (1, False)]
        assert decode_logged(item.chunks[1].data, 1).events[0].payload == b'{"n":3}'


# -- rights -----------------------------------------------------------------------------------------------------------


def rights(subscribe: str) -> str:
    """A reader that may subscribe to these topics, and a writer that may publish anything."""
    return (
        f'[[identity]]\nname = "reader"\ntoken_sha256 = "{hash_token(READER)}"\nallow = {{ subscribe = {subscribe} }}\n'
        f'[[identity]]\nname = "writer"\ntoken_sha256 = "{hash_token(WRITER)}"\nallow = {{ publish = ["**"] }}\n'
        f'[[stage]]\nname = "main"\nlisten = "{HOST}:0"\nstore = "memory"\n'
    )


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Serving]:
    """A stage whose reader may subscribe to everything, for now."""
    file = tmp_path / "ordered_pubsub.toml"
    file.write_text(rights('["**"]'))
    loaded = load(str(file), {})
    guarded = Serving(lambda: load(str(file), {}), loaded, stages_to_serve(loaded.configuration))
    ready = asyncio.Event()
    running = asyncio.create_task(guarded.run(lambda _: ready.set()))
    await soon(ready.wait())
    yield guarded
    guarded._stop.set()
    await soon(running)


async def publish(line: Raw, key: SessionKey, topic: str, sequence: int) -> None:
    """An event that is in the log, and nowhere else."""
    logged = encode_logged(
        Logged(publisher_of(key.session, None), [PackedEvent(f"id{sequence}", b"secret", "text/plain")])
    )
    part = PublishAsk(topic, 1, True, (Chunk(1, logged),))
    line.send(Ask([Request(key.session, 1, sequence, sequence - 1, 0, (part,))]))
    (answer,) = (await line.expect(Tell)).answers
    assert isinstance(answer, Answer)


async def test_who_may_not_subscribe_any_more_gets_nothing_from_the_log(guarded: Serving, tmp_path: Path) -> None:
    """Nor does it hear how far its topic is; what it may still have it gets."""
    reader, writer = make_session(None), make_session(None)
    port = guarded.servers[0].port
    async with raw(port) as reading, raw(port) as writing:
        await enter(reading, reader, READER)
        await enter(writing, writer, WRITER)
        mine = await subscribe(reading, reader, "a", "b")
        await publish(writing, writer, "a", 1)
        await publish(writing, writer, "b", 2)
        assert await recalled(reading, Nack(mine, [NackRange("a", 1, 1)])) is not None
        (tmp_path / "ordered_pubsub.toml").write_text(rights('["b"]'))
        guarded.reload()
        await publish(writing, writer, "a", 3)

        assert await recalled(reading, Nack(mine, [NackRange("a", 1, 2)])) is None
        assert await recalled(reading, Nack(mine, [NackRange("a", 2, 2), NackRange("b", 1, 1)])) is None
        told = await recalled(reading, Nack(mine, [NackRange("b", 1, 1)]))
        assert told is not None
        assert told.topic == "b"


async def test_who_may_not_subscribe_gets_nothing_from_the_log_though_it_never_subscribed(guarded: Serving) -> None:
    """To ask for what is missing is not a way around the rights."""
    writer = make_session(None)
    port = guarded.servers[0].port
    async with raw(port) as line:
        await enter(line, writer, WRITER)
        await publish(line, writer, "a", 1)

        assert await recalled(line, Nack(f"{writer.session}/1", [NackRange("a", 1, 1)])) is None


async def test_who_may_not_subscribe_any_more_is_told_so(guarded: Serving, tmp_path: Path) -> None:
    """Its subscription ends with the reason, instead of waiting for what never comes."""
    token = tmp_path / "reader.token"
    token.write_text(READER)
    token.chmod(0o600)
    ens = f"memory://rights-{uuid4()}"
    sequencer = f"ops://{HOST}:{guarded.servers[0].port}"
    async with ordered_pubsub.connect(ens, sequencer=sequencer, token_file=str(token)) as client:
        subscription = await client.subscribe("a")
        (tmp_path / "ordered_pubsub.toml").write_text(rights('["b"]'))
        guarded.reload()

        with pytest.raises(AccessDenied, match="identity 'reader' may not subscribe to 'a'"):
            await soon(subscription.wait())
