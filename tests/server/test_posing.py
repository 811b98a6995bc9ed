"""Who may link as which stage, and that nobody breaks a link that works by coming as the stage at its other end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from ordered_pubsub.config.files import hash_token
from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub.wire.protocol import VERSION, PeerGreeting, Rejected, Say, Welcome, encode, from_peer
from server.systems import Raw, System, configure, raw
from server.waiting import until

TOKENS = {name: f"{name}-".ljust(43, "x") for name in ("any", "one", "other")}
RIGHTS = {"any": "true", "one": '"s1"', "other": '["s2", "s3"]'}
IDENTITIES = "".join(
    f'[[identity]]\nname = "{name}"\ntoken_sha256 = "{hash_token(token)}"\nallow = {{ stage = {RIGHTS[name]} }}\n'
    for name, token in TOKENS.items()
)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Two stages, of which the second dials the first."""
    async with System(tmp_path, [["a"], ["**"]], IDENTITIES, token=TOKENS["any"]) as system:
        await until(lambda: system.is_linked)
        yield system


def greeting_of(system: System, token: str, rank: int = 1) -> PeerGreeting:
    return PeerGreeting(VERSION, rank, TOKENS[token], system.servers[0]._common.digest)


async def greet(line: Raw, system: System, token: str) -> Rejected | Welcome:
    """Come as the second stage; what the first one says to it."""
    line.send(greeting_of(system, token))
    answer = await line.receive()
    assert isinstance(answer, (Rejected, Welcome))
    return answer


@pytest.mark.parametrize(("token", "may"), [("any", True), ("one", True), ("other", False)])
async def test_who_may_link_as_some_stages_may_not_as_another(system: System, token: str, may: bool) -> None:
    await system.stop(1)
    await until(lambda: not system.servers[0].links[1].is_up)
    async with raw(system.ports[0], decoder=from_peer) as line:
        answer = await greet(line, system, token)
        assert isinstance(answer, Welcome) == may
        if isinstance(answer, Rejected):
            assert answer.code == "denied"
            assert answer.reason == "identity 'other' may not link as stage 's1': it needs the right 'stage'"


async def test_a_link_that_works_is_not_replaced(system: System) -> None:
    """Whoever has a token that is good for it: it would only have to come again and again."""
    link = system.servers[0].links[1]
    before = link._channel
    for _ in range(2):
        async with raw(system.ports[0], decoder=from_peer) as line:
            answer = await greet(line, system, "one")
            assert isinstance(answer, Rejected)
            assert (answer.code, answer.reason) == (
                "unavailable",
                "stage s1 is linked to stage s0 already, by a connection that works",
            )
    assert link._channel is before
    assert link.is_up


async def test_a_sign_of_life_counts_however_coarse_the_clock_is(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some event loops the answer has the same time as the question."""
    link = system.servers[0].links[1]
    before = link._channel
    assert before is not None
    now = asyncio.get_running_loop().time()
    still = property(lambda channel: now, lambda channel, value: None)
    monkeypatch.setattr(type(before), "heard_at", still, raising=False)
    async with raw(system.ports[0], decoder=from_peer) as line:
        assert isinstance(await greet(line, system, "one"), Rejected)
    assert link._channel is before


async def test_while_one_is_asked_the_next_ones_are_sent_away_at_once(system: System) -> None:
    async with raw(system.ports[0], decoder=from_peer) as line, raw(system.ports[0], decoder=from_peer) as third:
        line.send(greeting_of(system, "one"))
        await until(lambda: system.servers[0].links[1]._rival is not None)
        assert isinstance(await greet(third, system, "one"), Rejected)
        assert system.servers[0].links[1]._rival is not None
        assert isinstance(await line.receive(), Rejected)


async def test_a_link_whose_other_end_does_not_answer_is_replaced(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a cut that only the other side has noticed: its stage does not wait until this one notices, too."""
    monkeypatch.setattr("ordered_pubsub.server.links.peers.SIGN_OF_LIFE_S", 0.2)
    link = system.servers[0].links[1]
    before = link._channel
    system.lines[1, 0].freeze()
    async with raw(system.ports[0], decoder=from_peer) as line:
        assert isinstance(await greet(line, system, "one"), Welcome)
        assert await line.find(Say) is not None
        assert link._channel is not before
    system.lines[1, 0].thaw()
    await until(lambda: system.is_linked)


async def test_who_goes_away_while_the_older_one_is_asked_changes_nothing(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordered_pubsub.server.links.peers.SIGN_OF_LIFE_S", 0.1)
    link = system.servers[0].links[1]
    before = link._channel
    async with raw(system.ports[0], decoder=from_peer) as line:
        line.send(encode(greeting_of(system, "one")))
        await until(lambda: link._rival is not None)
    await until(lambda: link._rival is None)
    assert link._channel is before


async def test_who_may_not_link_any_more_is_not_let_in_by_the_silence_of_another(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordered_pubsub.server.links.peers.SIGN_OF_LIFE_S", 0.5)
    server = system.servers[0]
    system.lines[1, 0].freeze()
    async with raw(system.ports[0], decoder=from_peer) as line:
        line.send(greeting_of(system, "one"))
        await until(lambda: server.links[1]._rival is not None)
        identities = tuple(identity for identity in server.configuration.identity or () if identity.name != "one")
        server.renew(server.prepare(attrs.evolve(server.configuration, identity=identities)))
        answer = await line.receive()
        assert isinstance(answer, Rejected)
        assert answer.code == "denied"
    await until(lambda: server.links[1]._rival is None)
    system.lines[1, 0].thaw()


async def test_a_link_that_is_closed_lets_nobody_in_who_waits(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordered_pubsub.server.links.peers.SIGN_OF_LIFE_S", 0.1)
    link = system.servers[0].links[1]
    async with raw(system.ports[0], decoder=from_peer) as line:
        line.send(greeting_of(system, "one"))
        await until(lambda: link._rival is not None)
        await link.close()
        assert link._rival is None
        answer = await line.receive()
        assert isinstance(answer, Rejected)
        assert answer.code == "draining"


@pytest.mark.parametrize("said", ['"not a name!"', "7", '["a", 3]', "{ a = 1 }"])
def test_what_is_no_stage_does_not_fit_the_right(said: str) -> None:
    text = f'[[identity]]\nname = "x"\ntoken_sha256 = "{hash_token("t" * 40)}"\nallow = {{ stage = {said} }}\n'
    with pytest.raises(ConfigurationError, match="stage"):
        configure(text)


def test_deny_wins_over_the_stages_that_are_allowed() -> None:
    (identity,) = (
        configure(
            f'[[identity]]\nname = "x"\ntoken_sha256 = "{hash_token("t" * 40)}"\n'
            'allow = { stage = true }\ndeny = { stage = "eu" }\n'
        ).identity
        or ()
    )
    assert [identity.may("stage", name) for name in ("eu", "us")] == [False, True]
