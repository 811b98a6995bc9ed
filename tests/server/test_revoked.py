"""Rights are those of the moment at which something is brought, whatever they were when it was asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from ordered_pubsub.config.files import hash_token
from ordered_pubsub.config.schema import Configuration
from ordered_pubsub.core.log.questions import Bound, Find, FoundTopics, Read, Rows, Trace, Unread
from ordered_pubsub.core.messages import (
    Answer,
    ChangeAsk,
    Ended,
    Keys,
    Located,
    LogReply,
    Nack,
    NackRange,
    Progress,
    PublishAsk,
    Recovered,
    SeenAsk,
    SeenReply,
    TopicHeads,
)
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.server.doors.clients import ClientConnection
from ordered_pubsub.server.server import Server
from ordered_pubsub.wire.channel import Channel
from ordered_pubsub.wire.protocol import Ask, Ping, Pong, Tell, Welcome
from ordered_pubsub.wire.sessions import SessionKey, make_session
from server.messages import greeting, request, with_events
from server.systems import Raw, one_stage, raw, serving
from server.waiting import until

TOKEN = "reader-".ljust(43, "x")


def configured(subscribe: str) -> Configuration:
    return one_stage(
        "",
        f'[[identity]]\nname = "reader"\ntoken_sha256 = "{hash_token(TOKEN)}"\n'
        f'allow = {{ publish = ["**"], subscribe = {subscribe} }}\n',
    )


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A stage whose reader may have everything, for now."""
    async with serving(configured('["**"]')) as server:
        yield server


def revoke(server: Server) -> None:
    """From now on it may have "b" only."""
    server.renew(server.prepare(configured('["b"]')))


async def enter(line: Raw) -> SessionKey:
    key = make_session(None)
    line.send(greeting(key, None, token=TOKEN))
    assert isinstance(await line.receive(), Welcome)
    return key


async def ask(line: Raw, key: SessionKey, part: PublishAsk | ChangeAsk, sequence: int) -> None:
    line.send(Ask([request(with_events(part, key.session), sequence=sequence, client=key.session)]))
    (answer,) = (await line.find(Tell)).answers
    assert isinstance(answer, Answer)


def connection_of(server: Server) -> ClientConnection:
    (connection,) = server._clients
    return connection


async def test_what_was_asked_for_before_is_not_brought_and_the_subscription_ends(server: Server) -> None:
    """It misses numbers that do not exist yet: they come when it may not have them any more."""
    async with raw(server.port) as line:
        key = await enter(line)
        await ask(line, key, ChangeAsk(f"{key.session}/1", ("a",)), 1)
        line.send(Nack(f"{key.session}/1", [NackRange("a", 1, 50)]), Ping())
        await line.find(Pong)
        revoke(server)
        assert (await line.find(Ended)).code == "forbidden"
        inform = Recovered(f"{key.session}/1", LogReply("a", 1, 1, 0, []))
        connection_of(server).send_messages(
            [inform, replace(inform, reply=LogReply("b", 1, 1, 0, []))]
        )  # as it comes from the log
        assert "may not subscribe to 'a'" in (await line.find(Ended)).reason
        assert (await line.expect(Recovered)).reply.topic == "b"


@pytest.mark.parametrize("says", [True, False])
async def test_a_subscription_is_told_at_once_that_it_has_ended_and_others_go_on(server: Server, says: bool) -> None:
    """One that was asked for on this connection, and one that has said what it holds, as who resumes it does."""
    async with raw(server.port) as line:
        key = await enter(line)
        await ask(line, key, ChangeAsk(f"{key.session}/1", ("a", "b")), 1)
        await ask(line, key, ChangeAsk(f"{key.session}/2", ("b",)), 2)
        if says:
            line.send(Progress(f"{key.session}/1", {"a": 0, "b": 0}, True, 1), Ping())
            await line.find(Pong)
            connection_of(server)._holdings.subscriptions.clear()
        revoke(server)
        ended = await line.find(Ended)
        assert (ended.subscription, ended.code) == (f"{key.session}/1", "forbidden")
        line.send(Ping())
        await line.expect(Pong)


async def test_what_is_read_of_the_logs_is_judged_when_it_is_brought(server: Server) -> None:
    async with raw(server.port) as line:
        key = await enter(line)
        for sequence, topic in enumerate(("a", "b"), 1):
            await ask(line, key, PublishAsk(topic), sequence)
        connection = connection_of(server)
        for message in (Read(1, "a", 1, 1), Bound(2, "a", 0, 1, {}), Find(3, ["**"])):
            connection._read(message)
        revoke(server)
        for number in (1, 2):
            unread = await line.find(Unread)
            assert (unread.number, unread.code) == (number, "forbidden")
        assert list((await line.find(FoundTopics)).topics) == ["b"]
        assert connection._reading == {}


@pytest.mark.parametrize("again", [Read(1, "b", 1, 1), Bound(1, "b", 0, 1, {}), Find(1, ["**"]), Trace(1)])
@pytest.mark.parametrize("before", [Read(1, "a", 1, 1), Find(1, ["**"])])
async def test_a_number_that_has_no_answer_yet_is_not_used_again(server: Server, before: Read, again: Read) -> None:
    """Else what is read of the one topic would be brought by the rights on the other."""
    async with raw(server.port) as line:
        await enter(line)
        connection = connection_of(server)
        connection._read(before)
        with pytest.raises(ProtocolError, match="under number 1, which has no answer yet"):
            connection._read(again)
        await line.find(FoundTopics if isinstance(before, Find) else Rows)
        connection._read(again)


async def test_who_may_not_read_a_topic_is_not_asked_what_it_has_seen_of_it(server: Server) -> None:
    """It would learn that the topic is there, and how far it is. Nobody waits for its answer."""
    async with raw(server.port) as line:
        key = await enter(line)
        connection, rounds = connection_of(server), server.node.driver.rounds
        revoke(server)
        for serial, topic in ((1, "a"), (2, "b")):
            rounds.ask(SeenAsk("", serial, 0, topic, [(1, 4)]), [key.session], server.node._loop.time())
            connection.send_messages([SeenAsk(key.session, serial, 0, topic, [(1, 4)])])
        assert (await line.receive()).topic == "b"
        assert rounds.tick(server.node._loop.time()) == [SeenReply(1, 0, [key.session], [])]


async def test_of_several_topics_only_what_it_may_have_is_told(server: Server) -> None:
    async with raw(server.port) as line:
        key = await enter(line)
        connection, session = connection_of(server), key.session
        revoke(server)
        connection.send_messages(
            [
                TopicHeads(f"{session}/1", {"a": 7, "b": 8}),
                TopicHeads(f"{session}/1", {"a": 7}),
                Located(session, 1, {"a": 7, "b": 8}),
                Keys(session, b"", [], {"a": [b"1"], "b": [b"2"]}, age_s=0.0),
            ]
        )
        assert (await line.receive()).counts == {"b": 8}
        assert (await line.receive()).numbers == {"b": 8}
        assert (await line.receive()).keys == {"b": [b"2"]}


async def test_what_waits_to_be_sent_is_not_sent_to_who_has_lost_a_right(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can look at it again; so the client connects anew, and asks for what it still may have."""
    async with raw(server.port) as line:
        await enter(line)
        monkeypatch.setattr(Channel, "unsent_bytes", property(lambda channel: 1))
        revoke(server)
        assert await line.receive() is None


async def test_who_gains_a_right_or_keeps_all_of_them_is_not_disturbed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw(server.port) as line:
        await enter(line)
        monkeypatch.setattr(Channel, "unsent_bytes", property(lambda channel: 1))
        server.renew(server.prepare(configured('["**", "c"]')))
        line.send(Ping())
        await line.expect(Pong)
        await until(lambda: connection_of(server).may_read("c"))
