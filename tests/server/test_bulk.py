"""Who reads much of the logs takes them as they are on disk, piece by piece: from real stages, over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import msgspec
import pytest

from ordered_pubsub.config.files import hash_token, make_token
from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.questions import ASKED_MAX, Bound, Bounded, Find, FoundTopics, Read, Rows, ToReader, Unread
from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.log.shelf import LogStamp, Row
from ordered_pubsub.server.server import Server
from ordered_pubsub.server.stage._bulk import Bulk
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.wire.content import JSON
from ordered_pubsub.wire.pack import Logged, PackedEvent, decode_logged, encode_logged
from ordered_pubsub.wire.protocol import Rejected, Welcome, encode
from ordered_pubsub.wire.sessions import make_session
from server.messages import greeting
from server.systems import Raw, System, configure, connect, one_stage, raw, serving
from server.waiting import until

LAST = 1 << 39


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(one_stage()) as server:
        yield server


async def enter(line: Raw, token: str = "") -> None:
    line.send(greeting(make_session(None), None, token=token))
    await line.expect(Welcome)


async def read(
    line: Raw, topic: str, first: int, last: int = LAST, full: bool = False, bytes_max: int = 1 << 40
) -> Rows:
    line.send(Read(1, topic, first, last, full, bytes_max))
    rows = await line.expect(Rows)
    assert isinstance(rows, Rows)
    return rows


def payloads(rows: Rows) -> list[bytes]:
    """Of all events in it."""
    return [
        event.payload for first, last, data in rows.events for event in decode_logged(data, last - first + 1).events
    ]


async def test_a_reader_gets_what_was_published_with_its_timestamps(server: Server) -> None:
    async with raw(server.port) as line, connect(server) as client:
        await client.subscribe("a", "b")
        await client.publish("b", "first")
        await client.publish_many("a", [1, 2, 3])
        await enter(line)
        rows = await read(line, "a", 1, full=True)

    assert (rows.floor, rows.read_to, rows.full) == (0, 3, {"b": 1})
    assert payloads(rows) == [b"1", b"2", b"3"]
    ((first, last, data),) = rows.stamps
    stamp = msgspec.msgpack.decode(data, type=LogStamp)
    assert (first, last, stamp.entries) == (1, 3, {"b": 1})


async def test_what_was_not_published_yet_is_not_there(server: Server) -> None:
    async with raw(server.port) as line, connect(server) as client:
        await enter(line)
        assert (await read(line, "a", 1)).read_to == 0
        await client.publish("a", 1)
        assert (await read(line, "a", 1)).read_to == 1
        assert await read(line, "a", 2, full=True) == Rows(1, 0, 1, None, [], [])


async def test_much_comes_in_pieces_without_gaps(server: Server) -> None:
    """As large as the reader wants them."""
    async with raw(server.port) as line, connect(server) as client:
        for number in range(50):
            await client.publish_many("a", [f"{number}-{index}" for index in range(1 + number % 3)])
        await enter(line)
        found: list[bytes] = []
        pieces, last = 0, await last_of(line, "a")
        while len(found) < last:
            rows = await read(line, "a", len(found) + 1, bytes_max=1_000)
            assert sum(len(data) for _, _, data in (*rows.events, *rows.stamps)) < 1_500
            found += payloads(rows)
            pieces += 1
            assert rows.read_to == len(found)

    assert found == [f'"{n}-{index}"'.encode() for n in range(50) for index in range(1 + n % 3)]
    assert pieces > 3


async def last_of(line: Raw, topic: str) -> int:
    line.send(Find(2, [topic]))
    found = await line.expect(FoundTopics)
    return int(found.topics[topic][1])


async def test_a_batch_that_is_cut_comes_whole(server: Server) -> None:
    async with raw(server.port) as line, connect(server) as client:
        await client.publish_many("a", [1, 2, 3])
        await enter(line)
        rows = await read(line, "a", 2, 2)

    assert (rows.read_to, [row[:2] for row in rows.stamps]) == (2, [(1, 3)])
    assert payloads(rows) == [b"1", b"2", b"3"]


async def test_topics_are_found_by_name_and_pattern_where_they_are_owned(tmp_path: Path) -> None:
    async with System(tmp_path, [["a/**"], ["**"]]) as system, system.connect(0) as client:
        for topic in ("a/1", "a/1", "a/2", "b/1", "c"):
            await client.publish(topic, 1)
        await until(lambda: len(system.servers[0].node.driver.stage.state.kept) == 2)
        found = []
        for rank, patterns in ((0, ["**"]), (1, ["**"]), (0, ["a/2", "c"]), (1, ["*/1"]), (1, ["x"])):
            async with raw(system.ports[rank]) as line:
                await enter(line)
                line.send(Find(7, patterns))
                found.append((await line.expect(FoundTopics)).topics)

        async with raw(system.ports[1]) as line:
            await enter(line)
            line.send(Read(3, "a/1", 1, 9))
            assert (await line.expect(Unread)).code == "not-owned"

    assert found == [{"a/1": (0, 2), "a/2": (0, 1)}, {"b/1": (0, 1), "c": (0, 1)}, {"a/2": (0, 1)}, {"b/1": (0, 1)}, {}]


async def test_a_bound_does_not_divide_a_batch_unless_it_may(server: Server) -> None:
    async with raw(server.port) as line, connect(server) as client:
        for _ in range(3):
            await client.publish_many("a", [1, 2, 3])
        await enter(line)
        answers = []
        for is_whole in (True, False):
            for low, high in ((0, 9), (0, 8), (0, 6), (0, 5), (0, 3), (0, 2), (4, 5), (7, 8), (9, 9)):
                line.send(Bound(4, "a", low, high, {}, is_whole))
                answers.append((await line.expect(Bounded)).last)

    assert answers == [9, 6, 6, 3, 3, 0, 4, 7, 9, *(9, 8, 6, 5, 3, 2, 5, 8, 9)]


async def test_a_bound_is_where_something_beyond_a_clock_comes_before(server: Server) -> None:
    """a1 b1 a2 b2 a3 b3 …, in one group."""
    async with raw(server.port) as line, connect(server) as client:
        await client.subscribe("a", "b")
        for number in range(600):
            await client.publish("ab"[number % 2], number)
        await enter(line)
        answers = []
        for topic, low, high, clock in (
            ("a", 0, 300, {"a": 300, "b": 17}),
            ("b", 0, 300, {"a": 17, "b": 300}),
            ("a", 0, 10, {"b": 17}),
            ("a", 3, 300, {"b": 0}),
            ("a", 0, 300, {"b": 300}),
            ("a", 0, 900, {"b": 900}),
            ("a", 5, 5, {}),
            ("nothing", 0, 5, {}),
        ):
            line.send(Bound(4, topic, low, high, clock))
            answers.append((await line.expect(Bounded)).last)

    assert answers == [18, 17, 10, 3, 300, 300, 5, 0]


@pytest.mark.parametrize(
    "message",
    [
        Read(1, "a", -1, 5),
        Read(1, "a", 7, 5),
        Read(1, "a", 1, LAST + 1),
        Bound(1, "a", -1, 5, {}),
        Bound(1, "a", 9, 5, {}),
    ],
)
async def test_numbers_that_cannot_be_end_the_connection(server: Server, message: Read | Bound) -> None:
    async with raw(server.port) as line:
        await enter(line)
        line.send(message)
        assert (await line.expect(Rejected)).code == "bad-frame"


async def test_who_asks_for_too_much_at_once_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read meanwhile, as it may be where others have their turns first."""
    monkeypatch.setattr(Bulk, "serve", lambda bulk: False)
    async with serving(one_stage()) as server, raw(server.port) as line:
        await enter(line)
        line.send(b"".join(encode(Read(number, "a", 1, 9)) for number in range(ASKED_MAX + 1)))
        assert (await line.find(Rejected)).code == "bad-frame"


async def test_what_is_asked_wrong_is_answered_so(server: Server) -> None:
    async with raw(server.port) as line:
        await enter(line)
        line.send(Read(1, "", 1, 9), Find(2, ["a//b"]), Read(3, "a", 1, 9))
        assert [(await line.expect(Unread)).code, (await line.expect(Unread)).code] == ["bad-request", "bad-request"]
        assert (await line.expect(Rows)).number == 3


@attrs.define(eq=False)
class Reading:
    """Somebody who reads everything."""

    identity_name: str = "somebody"
    brought: list[ToReader] = attrs.field(factory=list)

    def may_read(self, topic: str) -> bool:
        return True

    def bring(self, message: ToReader) -> None:
        self.brought.append(message)


def test_readers_take_turns() -> None:
    """Who asks for little does not wait for who asks for much."""
    bulk, much, little = Bulk(LogReader(MemoryShelf()), dict), Reading(), Reading()
    for number in range(ASKED_MAX):
        bulk.ask(much, Read(number, "a", 1, 9))
    bulk.ask(little, Read(1, "a", 1, 9))
    bulk.serve()
    bulk.serve()
    assert (len(much.brought), len(little.brought)) == (1, 1)
    while bulk.has_work:
        bulk.serve()
    assert [message.number for message in much.brought] == list(range(ASKED_MAX))


def test_who_reads_by_a_filter_has_its_answer_after_small_steps() -> None:
    """Who asks for little does not wait until all of it was judged."""
    shelf = MemoryShelf()
    events = [PackedEvent("", msgspec.json.encode({"n": number}), JSON) for number in range(1, 5_001)]
    shelf.put("events", "a", [Row(1, 5_000, encode_logged(Logged("p", events)))])
    stamp = LogStamp({}, True, [], 1, 1.0, True)
    shelf.put("stamps", "a", [Row(1, 5_000, msgspec.msgpack.encode(stamp))])
    bulk, much, little = Bulk(LogReader(shelf), dict), Reading("much"), Reading("little")
    bulk.ask(much, Read(1, "a", 1, LAST, where="n > 4999"))
    bulk.serve()
    bulk.ask(little, Read(2, "b", 1, 9))
    bulk.serve()
    bulk.serve()
    assert (len(much.brought), len(little.brought)) == (0, 1)
    while bulk.has_work:
        bulk.serve()
    (rows,) = much.brought
    assert isinstance(rows, Rows)
    assert ([row[:2] for row in rows.events], rows.read_to) == ([(5_000, 5_000)], 5_000)
    assert payloads(rows) == [b'{"n":5000}']


def test_what_was_asked_by_who_is_gone_is_dropped() -> None:
    bulk, reader = Bulk(LogReader(MemoryShelf()), dict), Reading()
    bulk.ask(reader, Read(1, "a", 1, 9))
    bulk.forget(reader)
    assert not bulk.has_work


async def test_rights_hold_for_readers(tmp_path: Path) -> None:
    """What somebody may not read is not found, either."""
    token = make_token()
    allow = '{ subscribe = ["a"], publish = ["**"] }'
    configuration = configure(
        f'[[identity]]\nname = "reader"\ntoken_sha256 = "{hash_token(token)}"\nallow = {allow}\n'
        f'[[stage]]\nname = "main"\nlisten = "{HOST}:0"\nstore = "memory"\n'
    )
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    async with serving(configuration) as server, connect(server, token_file=str(tmp_path / "token")) as client:
        await client.publish("a", 1)
        await client.publish("b", 1)
        async with raw(server.port) as line:
            await enter(line, token)
            line.send(Find(1, ["**"]), Read(2, "b", 1, 9), Bound(3, "b", 0, 9, {}))
            assert [(await line.expect(Unread)).code for _ in range(2)] == ["forbidden", "forbidden"]
            assert (await line.expect(FoundTopics)).topics == {"a": (0, 1)}
