"""Two stages that run: nothing that a client says makes them fall out with each other, and a stage with a bug is not cut off for
what may get lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ordered_pubsub.core.checking import COUNT_MAX, ID_LENGTH_MAX, REASON_LENGTH_MAX
from ordered_pubsub.core.messages import (
    Acked,
    Answer,
    ChangeAsk,
    Hello,
    LinkAck,
    LinkFrame,
    LogRequest,
    NackRange,
    Pass,
    Progress,
    PublishAsk,
)
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.server.monitoring import metrics
from ordered_pubsub.wire.framing import HEAD_BYTES, frame
from ordered_pubsub.wire.protocol import (
    Ask,
    Claim,
    Claimed,
    NamesGranted,
    Ping,
    Pong,
    Rejected,
    Say,
    Tell,
    Welcome,
    decode_from_peer,
    decode_said,
    encode,
)
from ordered_pubsub.wire.sessions import SessionKey, make_session
from server.messages import OPERATION, greeting, request, with_events
from server.systems import Raw, System, raw
from server.waiting import until

NUMBERS = (COUNT_MAX, COUNT_MAX + 1, 1 << 60)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Two stages: the first owns "hi/**", the second everything else."""
    async with System(tmp_path, [["hi/**"], ["**"]]) as system:
        await until(lambda: system.is_linked)
        yield system


async def enter(line: Raw, name: str | None = None) -> SessionKey:
    key = make_session(name)
    line.send(greeting(key, name))
    assert isinstance(await line.receive(), Welcome)
    return key


def channels(system: System) -> list[object]:
    """The connections between the stages, as they are now."""
    return [link._channel for server in system.servers.values() for link in server.links.values()]


async def crosses(system: System) -> bool:
    """Whether what needs both stages is answered."""
    async with raw(system.ports[1]) as line:
        key = await enter(line)
        line.send(Ask([request(with_events(PublishAsk("hi/x"), key.session), client=key.session)]))
        return isinstance((await line.expect(Tell)).answers[0], Answer)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("home", [0, 1])
async def test_no_number_that_a_client_says_cuts_the_link_of_its_stage(system: System, number: int, home: int) -> None:
    """It is taken by all stages, or the client is sent away by its own: also without any right, in the name of nothing."""
    before = channels(system)
    for name in ("n0", "n1", "n2", "n3"):  # of some the one stage is the registrar, of some the other
        async with raw(system.ports[home]) as line:
            key = await enter(line, name)
            said = (
                Acked(f"{name}//s", key.session, 1, 1, {"hi/a": number, "a": number}, 1),
                Progress(f"{key.session}/1", {"hi/a": number, "a": number}, True, 1),
            )
            for message in said:
                line.send(message)
            line.send(Ping())
            assert await line.find(Pong if number <= COUNT_MAX else Rejected) is not None
    for _ in range(3):
        for server in system.servers.values():
            server.node.driver.tick(server.node._loop.time() + 60, 0.0)
            server.node._plan_flush()
    assert await crosses(system)
    assert channels(system) == before
    assert [server.node.status()["since_start"]["unfit_messages"] for server in system.servers.values()] == [0, 0]


@pytest.mark.parametrize("number", [1 << 60, -1])
async def test_a_subscription_that_begins_nowhere_is_refused_and_not_journalled(system: System, number: int) -> None:
    """Else it would come again at each start, and be refused by the other stage each time."""
    async with raw(system.ports[1]) as line:
        key = await enter(line, "desk")
        change = ChangeAsk("desk//s", ("hi/a", "a"), opens=1, start={"hi/a": number, "a": number})
        line.send(Ask([request(change, client=key.session)]))
        (refusal,) = (await line.expect(Tell)).answers
        assert (refusal.code, refusal.taken) == ("bad-request", False)
    for rank in (0, 1):
        await system.restart(rank)
    await until(lambda: system.is_linked)
    assert await crosses(system)


async def test_a_stage_that_says_what_cannot_be_stays_linked_and_is_counted_and_named(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    before, low, high = channels(system), system.servers[1], system.servers[0]
    for _ in range(5):
        low.links[0].say([LogRequest([NackRange("hi/a", 0, 1)]), LinkAck(1 << 62)])
    low.links[0]._write(
        frame(encode(Say([LogRequest([NackRange("hi/a", 1, 1)])]))[HEAD_BYTES:].replace(b"hi/a", b"hi/\xff"))
    )
    await until(lambda: high.node.status()["since_start"]["unfit_messages"] == 11)
    assert "ordered_pubsub_unfit_messages_total" in metrics(high.status())
    assert await crosses(system)
    assert channels(system) == before
    said = [record for record in caplog.records if "stage s1 says what cannot be" in record.getMessage()]
    assert len(said) == 1


async def test_a_frame_that_cannot_be_ends_the_link_and_says_whose_it_is(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    before, low = channels(system), system.servers[1]
    number = system.servers[0].node.driver.stage.state.links[1].received + 1
    bad = OPERATION.__copy__()
    bad.home = 7
    low.links[0].say([LinkFrame(number, Pass(bad))])
    await until(lambda: channels(system) != before and system.is_linked)
    assert any("no link to stage s1" in record.getMessage() for record in caplog.records)


# -- several messages in a frame, of which some cannot be read ----------------------------------------------------------------


def payload_of(*messages: object) -> bytes:
    return encode(Say(list(messages)))[HEAD_BYTES:]  # type: ignore[arg-type]  # they are messages of stages


def test_of_what_is_said_at_once_the_rest_is_taken() -> None:
    payload = payload_of(LinkAck(1), LogRequest([NackRange("unreadable", 1, 1)]), LinkAck(2)).replace(
        b"unreadable", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
    )
    said, errors = decode_said(payload, "stage s1")
    assert said.messages == [LinkAck(1), LinkAck(2)]
    assert len(errors) == 1
    assert str(errors[0]).startswith("stage s1 sent a frame of")


UNREADABLE = "x" * (ID_LENGTH_MAX + 1)
OF_NAMES: list[Claim | Claimed | NamesGranted] = [
    Claim("", "desk#1", "anyone"),
    Claim(UNREADABLE, "desk#1", "anyone"),
    Claim("desk", UNREADABLE, "anyone"),
    Claim("desk", "desk#1", UNREADABLE),
    Claimed("desk", "desk#1", "x" * (REASON_LENGTH_MAX + 1)),
    Claimed(UNREADABLE, "desk#1", ""),
    NamesGranted([Claim("desk", UNREADABLE, "anyone")]),
]


@pytest.mark.parametrize("message", OF_NAMES, ids=lambda message: type(message).__name__)
def test_of_names_too_what_cannot_be_is_only_dropped(message: Claim | Claimed | NamesGranted) -> None:
    said, errors = decode_from_peer(encode(message)[HEAD_BYTES:], "stage s1")
    assert said == Say([])
    assert [str(error)[: len("stage s1 sent a frame")] for error in errors] == ["stage s1 sent a frame"]


async def test_what_a_stage_says_of_names_and_cannot_be_leaves_the_link_as_it_is(system: System) -> None:
    before, low, high = channels(system), system.servers[1], system.servers[0]
    for message in OF_NAMES:
        low.links[0].send(message)
    await until(lambda: high.node.status()["since_start"]["unfit_messages"] == len(OF_NAMES))
    assert await crosses(system)
    assert channels(system) == before


@pytest.mark.parametrize("message", [LinkFrame(1, Pass(OPERATION)), Hello("fingerprint", 1)])
def test_what_must_not_get_lost_and_cannot_be_read_is_an_error(message: LinkFrame | Hello) -> None:
    payload = payload_of(LinkAck(1), message)
    broken = payload.replace(b"fingerprint", b"\xff" * 11).replace(b"desk-1", b"\xff" * 6)
    assert broken != payload
    with pytest.raises(ProtocolError):
        decode_said(broken, "stage s1")
