"""A client's way to the stages: when it dials again, what it makes of being sent away, and what it does not send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest

import ordered_pubsub
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.home.home import NOBODY
from ordered_pubsub.client.home.network import GROWTH_BYTES, PAUSE_FIRST_S, PAUSE_MOST_S, NetworkHome
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.core.messages import ChangeAsk, PublishAsk, Request
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import UsageError
from ordered_pubsub.server.doors.claims import Claims
from ordered_pubsub.server.doors.clients import ClientConnection
from ordered_pubsub.supervision import Backoff
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.testing.proxy import Proxy
from ordered_pubsub.wire.framing import HEAD_BYTES, Deframer
from ordered_pubsub.wire.protocol import (
    REQUESTS_MAX,
    VERSION,
    Ask,
    ClientGreeting,
    Rejected,
    Welcome,
    decode,
    encode,
    from_client,
    greetings,
)
from ordered_pubsub.wire.sessions import make_session
from server.systems import connect, one_stage, serving
from server.waiting import soon, until

TOPOLOGY = Topology((StageSpec("main"),))
KEY = make_session("desk")


@attrs.define(eq=False)
class Stage:
    """Something that lets everybody in, and then does what it is told."""

    frame_bytes_max: int = 1 << 20
    greeted: list[ClientGreeting] = attrs.field(factory=list)
    asked: list[Ask] = attrs.field(factory=list)
    sizes: list[int] = attrs.field(factory=list)
    """of the frames that came after the greeting"""
    afterwards: Callable[[asyncio.StreamWriter], None] = lambda writer: None
    """what happens as soon as somebody was let in"""
    writers: list[asyncio.StreamWriter] = attrs.field(factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk with one client."""
        self.writers.append(writer)
        deframer = Deframer(1 << 28)
        is_in = False
        while data := await reader.read(1 << 16):
            for payload in deframer.feed(data):
                if is_in:
                    self.sizes.append(len(payload))
                    message = decode(from_client, payload, "the client")
                    self.asked += [message] if isinstance(message, Ask) else []
                    continue
                is_in = True
                greeting = decode(greetings, payload, "the client")
                assert isinstance(greeting, ClientGreeting)
                self.greeted.append(greeting)
                writer.write(encode(Welcome(VERSION, "main", TOPOLOGY.dump(), 60.0, 1, [], self.frame_bytes_max)))
                self.afterwards(writer)
        writer.close()


@asynccontextmanager
async def at_home(stage: Stage) -> AsyncIterator[tuple[NetworkHome, list[Any], list[bool]]]:
    """A home at such a stage, the answers that it brings, and when it says to be connected and when not."""
    listener = await asyncio.start_server(stage.serve, HOST, 0)
    home = NetworkHome([Address(HOST, listener.sockets[0].getsockname()[1])])
    answers: list[Any] = []
    states: list[bool] = []
    try:
        on_state = lambda is_connected, reason: states.append(is_connected)  # noqa: E731 - named for the line's length
        await home.open(KEY, "desk", attrs.evolve(NOBODY, on_answers=answers.extend, on_state=on_state))
        yield home, answers, states
    finally:
        await home.close()
        listener.close()
        for writer in stage.writers:
            writer.transport.abort()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, without making them."""
    made: list[float] = []

    async def pause(backoff: Backoff) -> None:
        made.append(backoff.limit_s)
        backoff.next_s()
        await asyncio.sleep(0)

    monkeypatch.setattr(Backoff, "pause", pause)
    return made


# -- dialling again ---------------------------------------------------------------------------------------------------


def reject(writer: asyncio.StreamWriter) -> None:
    """Send somebody away who was just let in."""
    writer.write(encode(Rejected("bad-frame", "that was too long")))
    writer.write_eof()


@pytest.mark.parametrize("send_away", [reject, lambda writer: writer.transport.abort()])
async def test_who_is_let_in_and_sent_away_again_and_again_dials_with_growing_pauses(
    send_away: Callable[[asyncio.StreamWriter], None], pauses: list[float]
) -> None:
    stage = Stage()
    async with at_home(stage):
        stage.afterwards = send_away
        send_away(stage.writers[0])
        await until(lambda: len(stage.greeted) > 8)

    assert len(pauses) >= len(stage.greeted) - 1
    assert pauses[:3] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S]
    assert pauses[7] == PAUSE_MOST_S


async def test_who_has_been_in_for_long_dials_again_at_once(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordered_pubsub.client.home.network.LASTED_S", 0.0)
    stage = Stage()
    async with at_home(stage) as (_, _, states):
        stage.writers[0].transport.abort()
        await until(lambda: states == [False, True])

    assert (len(stage.greeted), pauses) == (2, [])


async def test_a_connection_that_has_lasted_makes_the_pauses_short_again(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    async with at_home(stage) as (_, _, states):
        for number in range(3):
            stage.writers[-1].transport.abort()
            await until(lambda: states == [False, True] * (number + 1))  # noqa: B023 - it is over before the next round
        monkeypatch.setattr("ordered_pubsub.client.home.network.LASTED_S", 0.0)
        reject(stage.writers[-1])
        await until(lambda: states == [False, True] * 4)

    assert pauses == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S, PAUSE_FIRST_S]


# -- a name that somebody else has ------------------------------------------------------------------------------------


async def test_who_lost_its_name_comes_back_as_a_newcomer(pauses: list[float]) -> None:
    stage = Stage()
    async with at_home(stage) as (home, _, states):
        stage.writers[0].write(encode(Rejected("name-in-use", "somebody has it")))
        stage.writers[0].write_eof()
        await until(lambda: states == [False, True])
        stage.writers[1].transport.abort()
        await until(lambda: states == [False, True] * 2)
        assert home.trouble == ""

    assert [greeting.resumes for greeting in stage.greeted] == [False, False, True]


async def test_a_client_whose_name_was_given_to_another_says_so_and_waits_until_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine of the first one has slept, its name was given up, and a new client took it."""
    comings: list[bool] = []
    come = Claims.client_came

    def note(claims: Claims, claimant: ClientConnection, resumes: bool) -> None:
        comings.append(resumes)
        come(claims, claimant, resumes)

    monkeypatch.setattr(Claims, "client_came", note)
    async with serving(one_stage()) as server, Proxy((HOST, server.port)) as line:
        first = await ordered_pubsub.connect("memory://names", sequencer=f"ops://{HOST}:{line.port}", name="desk")
        line.cut()
        await until(lambda: not server.claims.names.holders)
        second = await connect(server, "desk")
        line.heal()
        await until(lambda: len(comings) >= 6)
        assert comings[:6] == [False, False, True, False, False, False]
        status = first.status()
        assert not status["connected"]
        assert "the name 'desk' is in use by another client" in status["stage"]
        receipt = asyncio.ensure_future(first.publish("a", 1))
        await second.publish("a", 1)
        await second.close()
        assert (await soon(receipt)).number == 2
        await first.close()


# -- requests that do not fit -----------------------------------------------------------------------------------------


def change(sequence: int, topics: int, after: int | None = None) -> Request:
    """A request that is as long as one likes."""
    ask = ChangeAsk(f"{KEY.session}/1", tuple(f"topic/number/{number:06}" for number in range(topics)))
    return Request(KEY.session, 1, sequence, sequence - 1 if after is None else after, 0, (ask,))


def size_of(*requests: Request) -> int:
    """In a frame of their own."""
    return len(encode(Ask(list(requests)))) - HEAD_BYTES


async def test_a_request_that_is_as_large_as_a_frame_may_be_is_sent_and_sent_again() -> None:
    stage = Stage(size_of(change(1, 100)) + GROWTH_BYTES)
    async with at_home(stage) as (home, answers, _):
        home.send([change(1, 100)])
        home.send([msgspec.structs.replace(change(1, 100), done=1 << 40)])
        await until(lambda: len(stage.asked) == 2)

    assert (stage.sizes, answers) == ([stage.frame_bytes_max - GROWTH_BYTES, stage.frame_bytes_max], [])


async def test_a_request_that_is_larger_than_a_frame_may_be_is_refused_and_not_sent() -> None:
    stage = Stage(size_of(change(1, 100)) + GROWTH_BYTES - 1)
    async with at_home(stage) as (home, answers, states):
        home.send([change(1, 10), change(2, 100), change(3, 10)])
        assert answers == []  # not from within `send`
        await until(lambda: sum(len(ask.requests) for ask in stage.asked) == 2)
        await until(lambda: answers)

    assert [request.sequence for ask in stage.asked for request in ask.requests] == [1, 3]
    (refusal,) = answers
    assert (refusal.sequence, refusal.code, refusal.taken, states) == (2, "limit", False, [])
    assert f"takes at most {stage.frame_bytes_max} at once (limits.frame_bytes_max)" in refusal.reason


async def test_a_request_that_a_stage_may_have_taken_is_not_refused_here() -> None:
    """A stage with larger frames may have given it numbers."""
    stage = Stage()
    async with at_home(stage) as (home, answers, states):
        home.send([change(1, 100)])
        await until(lambda: stage.asked)
        stage.frame_bytes_max = 100
        stage.writers[0].transport.abort()
        await until(lambda: states == [False, True])
        home.send([change(1, 100)])
        await until(lambda: len(stage.asked) == 2)

    assert answers == []


async def test_requests_go_in_frames_of_as_many_and_as_many_bytes_as_a_stage_takes() -> None:
    requests = [Request(KEY.session, 1, n, n - 1, 0, (PublishAsk("a"),)) for n in range(1, 2 * REQUESTS_MAX + 2)]
    for frame_bytes_max in (1 << 28, 50_000):
        stage = Stage(frame_bytes_max)
        async with at_home(stage) as (home, answers, _):
            home.send(requests)
            await until(lambda: sum(len(ask.requests) for ask in stage.asked) == len(requests))  # noqa: B023 - as above
        assert [request for ask in stage.asked for request in ask.requests] == requests
        assert max(stage.sizes) <= frame_bytes_max
        assert answers == []


async def test_whoever_names_too_many_topics_at_once_is_told_and_goes_on() -> None:
    limits = "[limits]\npayload_bytes_max = 1\nframe_bytes_max = 65536\nbuffered_bytes_max = 262144"
    async with serving(one_stage("", limits)) as server:
        client: Client
        async with connect(server) as client:
            topics = [f"{number:03}/" + "x" * 200 for number in range(500)]
            with pytest.raises(UsageError, match=r"takes at most 65536 at once \(limits\.frame_bytes_max\)"):
                await client.subscribe(*topics)
            subscription = await client.subscribe(*topics[:100])
            await subscription.add(topics[100])
            assert (await client.publish(topics[0], 1)).number == 1
            assert client.status()["connected"]
        assert server.node.counters.refusals == 0
