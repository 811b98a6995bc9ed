"""What a client says: who has signed its events, whether they are such, and what their topic gives. A test's name says which
check it is; it fails without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator

import pytest
from msgspec.structs import replace

from ordered_pubsub import sync
from ordered_pubsub.config.files import hash_token
from ordered_pubsub.core.levels import ORDERED
from ordered_pubsub.core.log.questions import Find, FoundTopics
from ordered_pubsub.core.messages import Answer, Chunk, Publication, PublishAsk, Refusal, Request
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.server.server import Server
from ordered_pubsub.wire.pack import Logged, PackedEvent, encode_logged
from ordered_pubsub.wire.protocol import Ask, Rejected, Tell, Welcome
from ordered_pubsub.wire.sessions import SessionKey, make_session, publisher_of
from server.messages import greeting, request
from server.systems import Raw, connect, one_stage, raw, serving
from server.waiting import soon

DESK, OTHER = "desk-token".ljust(43, "x"), "other-token".ljust(43, "x")
IDENTITIES = f"""
[[identity]]
name = "desk"
token_sha256 = "{hash_token(DESK)}"
names = ["desk-*", "ledger"]
allow = {{ publish = ["a/**"], subscribe = ["a/**"] }}

[[identity]]
name = "other"
token_sha256 = "{hash_token(OTHER)}"
allow = {{ publish = ["a/**"], subscribe = ["a/**"] }}

[[topic]]
pattern = "a/ticks"
delivery = "{ORDERED}"
"""


@pytest.fixture
async def guarded() -> AsyncIterator[Server]:
    """A stage that knows two identities."""
    async with serving(one_stage("", IDENTITIES)) as server:
        yield server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A stage that lets everybody in."""
    async with serving(one_stage()) as server:
        yield server


def signed(publisher: str, count: int = 1) -> bytes:
    """Events of a publisher, as its topic's log is to have them."""
    return encode_logged(Logged(publisher, [PackedEvent(f"id{at}", b"x", "text/plain") for at in range(count)]))


def kept(data: bytes, topic: str = "a/b", count: int = 1) -> PublishAsk:
    return PublishAsk(topic, count, True, (Chunk(count, data),))


async def say(
    line: Raw, key: SessionKey, *parts: PublishAsk, sequence: int = 1, after: int | None = None
) -> Answer | Refusal:
    """Publish; what becomes of it."""
    line.send(Ask([request(*parts, sequence=sequence, after=after, client=key.session)]))
    (answer,) = (await line.expect(Tell)).answers
    return answer


async def enter(line: Raw, token: str, name: str | None = None) -> SessionKey:
    key = make_session(name)
    line.send(greeting(key, name, token=token))
    assert isinstance(await line.receive(), Welcome)
    return key


# -- who has signed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "name", "publisher", "is_taken"),
    [
        (DESK, None, None, True),
        (DESK, "desk-1", "desk-1", True),
        (DESK, None, "desk-7", True),  # one of the names that were given to its identity
        (DESK, "desk-1", "ledger", True),
        (OTHER, "mine", "mine", True),
        (OTHER, "mine", "yours", False),
        (OTHER, None, "desk-1", False),
        (OTHER, "mine", "", False),
        (DESK, None, "anonymous-00112233445566778899", False),
    ],
)
async def test_nobody_signs_as_somebody_else(
    guarded: Server, token: str, name: str | None, publisher: str | None, is_taken: bool
) -> None:
    async with raw(guarded.port) as line:
        key = await enter(line, token, name)
        said = await say(line, key, kept(signed(publisher_of(key.session, None) if publisher is None else publisher)))
    assert isinstance(said, Answer) == is_taken
    if isinstance(said, Refusal):
        assert said.code == "forbidden"
        assert f"are signed {publisher!r}, and this client may sign as" in said.reason


async def test_where_nobody_is_known_every_name_is_everybodys_but_those_of_the_nameless(server: Server) -> None:
    async with raw(server.port) as line:
        key = await enter(line, "")
        assert isinstance(await say(line, key, kept(signed("spark"))), Answer)
        other = publisher_of(make_session(None).session, None)
        assert isinstance(await say(line, key, kept(signed(other)), sequence=2), Refusal)


async def test_nobody_is_called_as_those_are_who_have_no_name(server: Server) -> None:
    async with raw(server.port) as line:
        name = publisher_of(make_session(None).session, None)
        line.send(greeting(make_session(name), name))
        rejected = await line.expect(Rejected)
    assert rejected.code == "bad-greeting"


# -- whether they are events ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x02abc", "version 2"),
        (b"\x00", "at the broker only"),
        (b"\x02abc", "cannot be read"),
        (signed("mine", 2), "has 2 events where its stage counts 1"),
        (signed("mine") + b"\x01", "trailing"),
    ],
)
async def test_what_is_no_event_is_not_kept(guarded: Server, data: bytes, reason: str) -> None:
    """Nobody needs to read what is there; whoever reads the log would stop at it."""
    async with raw(guarded.port) as line:
        key = await enter(line, OTHER, "mine")
        said = await say(line, key, kept(data))
    assert isinstance(said, Refusal)
    assert said.code == "bad-request"
    assert reason in said.reason


async def test_of_a_batch_every_chunk_is_looked_at(guarded: Server) -> None:
    async with raw(guarded.port) as line:
        key = await enter(line, OTHER, "mine")
        part = PublishAsk("a/b", 2, True, (Chunk(1, signed("mine")), Chunk(1, b"\x02")))
        assert isinstance(await say(line, key, kept(signed("mine")), part), Refusal)


async def test_a_batch_is_signed_by_one(guarded: Server) -> None:
    """Its tag is for one publisher."""
    async with raw(guarded.port) as line:
        key = await enter(line, DESK, "desk-1")
        part = PublishAsk("a/b", 2, True, (Chunk(1, signed("desk-2")), Chunk(1, signed("desk-3"))))
        said = await say(line, key, part)
    assert isinstance(said, Refusal)
    assert "signed by one" in said.reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x03abc", "version 3"),
        (signed("mine", 2), "has 2 events where its stage counts 1"),
        (signed("yours"), "signed 'yours', and come as 'mine'"),
    ],
)
async def test_what_another_stage_brings_is_looked_at_as_well(server: Server, data: bytes, reason: str) -> None:
    """Before it has a number: another stage may have a bug, or be somebody else's by now."""
    check = server.node.driver.check_events
    with pytest.raises(ProtocolError, match=reason):
        check(replace(kept(data), publisher="mine"))
    with pytest.raises(ProtocolError, match=reason):
        check(Publication("a/b", 1, 1.0, is_kept=True, chunks=(Chunk(1, data),), publisher="mine"))
    check(replace(kept(signed("mine")), publisher="mine"))


# -- what the topic gives ---------------------------------------------------------------------------------------------


async def test_a_publisher_cannot_drop_the_log_of_a_topic(guarded: Server) -> None:
    """By a number of which it does not bring the event, and another one of which it does."""
    async with raw(guarded.port) as line, raw(guarded.port) as evil:
        key, evil_key = await enter(line, DESK), await enter(evil, OTHER, "evil")
        mine = publisher_of(key.session, None)
        for sequence in range(1, 11):
            await say(line, key, kept(signed(mine)), sequence=sequence)
        said = await say(evil, evil_key, PublishAsk("a/b"))
        assert isinstance(said, Refusal)
        assert said.code == "level"
        assert isinstance(await say(evil, evil_key, kept(signed("evil")), sequence=2, after=0), Answer)
        line.send(Find(1, ["a/**"]))
        assert (await line.expect(FoundTopics)).topics == {"a/b": (0, 11)}
    assert guarded.node.status()["since_start"]["refusals"] == 1


async def test_what_nobody_keeps_is_not_taken_for_a_log(guarded: Server) -> None:
    async with raw(guarded.port) as line:
        key = await enter(line, OTHER, "mine")
        assert isinstance(await say(line, key, kept(signed("mine"), "a/ticks")), Refusal)
        assert isinstance(await say(line, key, PublishAsk("a/ticks"), sequence=2, after=0), Answer)


# -- who reads what cannot be read ------------------------------------------------------------------------------------


def as_it_is(connection: object, request: Request) -> Generator[None, None, tuple[Request, None]]:
    """Nobody looks at it."""
    yield from ()
    return request, None


async def test_who_meets_what_it_cannot_read_is_told_so_and_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a stage of another release, or from before this was looked at: an event with an `error`, in its place."""
    monkeypatch.setattr("ordered_pubsub.server.doors.clients.ClientConnection._signing", as_it_is)
    async with connect(server) as client, raw(server.port) as line:
        subscription = await client.subscribe("a")
        await client.publish("a", "one")
        key = await enter(line, "")
        await say(line, key, kept(b"\x03abc", "a"), sequence=1)
        await say(line, key, kept(b"\x02abc", "a"), sequence=2)
        await client.publish("a", "four")
        events = [await soon(subscription.__anext__()) for _ in range(4)]
    assert [(event.number, event.data) for event in events] == [(1, "one"), (2, None), (3, None), (4, "four")]
    assert events[0].error is None
    assert "version 3, and this release reads version 2" in str(events[1].error)
    assert "cannot be read" in str(events[2].error)
    assert (events[1].raw, events[1].publisher, events[1].content_type) == (b"\x03abc", "", None)


UNREADABLE = (b"\x03abc", b"\x02abc")


async def publish_unreadable(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two events in the log of "a" that nobody can read."""
    monkeypatch.setattr("ordered_pubsub.server.doors.clients.ClientConnection._signing", as_it_is)
    async with raw(server.port) as line:
        key = await enter(line, "")
        for sequence, data in enumerate(UNREADABLE, 1):
            await say(line, key, kept(data, "a"), sequence=sequence)


@pytest.mark.parametrize("where", ["n > 5", "headers.kind = 'x'"])
async def test_no_filter_leaves_out_what_nobody_can_read(
    server: Server, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Nobody knows what it says: also not whether it is wanted."""
    async with connect(server) as client:
        subscription = await client.subscribe("a", where=where)
        await client.publish("a", {"n": 1})
        await publish_unreadable(server, monkeypatch)
        await client.publish("a", {"n": 9}, headers={"kind": "x"})
        events = [await soon(subscription.__anext__()) for _ in range(3)]
    assert [event.number for event in events] == [2, 3, 4]
    assert [event.error is None for event in events] == [False, False, True]


@pytest.mark.parametrize("where", [None, "n > 5"])
async def test_the_blocking_face_says_so_too(
    server: Server, monkeypatch: pytest.MonkeyPatch, where: str | None
) -> None:
    def read() -> list[tuple[int, str, object]]:
        ens, address = "memory://unreadable", f"ops://127.0.0.1:{server.port}"
        with sync.connect(ens, sequencer=address) as client:
            subscription = client.subscribe("a", start="earliest", where=where)
            return [(event.number, str(event.error), event.raw) for event in (subscription.next(10) for _ in range(2))]

    await publish_unreadable(server, monkeypatch)
    events = await soon(asyncio.to_thread(read))

    assert [number for number, _, _ in events] == [1, 2]
    assert ["version 3, and this release" in events[0][1], "cannot be read" in events[1][1]] == [True, True]
    assert [data for _, _, data in events] == [*UNREADABLE]
