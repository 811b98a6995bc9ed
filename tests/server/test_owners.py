"""What is kept under a name belongs to the identity that began it, whatever somebody else is called."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ordered_pubsub.config.files import hash_token
from ordered_pubsub.core.messages import Acked, AckSaved, Answer, Change, ChangeAsk, Ended, PublishAsk, Refusal
from ordered_pubsub.core.stage.naming import NameTable
from ordered_pubsub.wire.protocol import Ask, Rejected, Tell, Welcome
from ordered_pubsub.wire.sessions import SessionKey, make_session
from server.messages import greeting, request, with_events
from server.systems import Raw, System, one_stage, raw, serving
from server.waiting import until

TOKENS = {name: f"{name}-".ljust(43, "x") for name in ("desk", "thief", "limited", "stage")}
BOOK = "desk-1//book"


def identities(limited: str = '["a/**"]') -> str:
    """Somebody with all rights; somebody with none; somebody whose rights are said."""
    rights = {
        "desk": '{ publish = ["**"], subscribe = ["**"] }',
        "thief": "{}",
        "limited": f'{{ publish = ["**"], subscribe = {limited} }}',
        "stage": "{ stage = true }",
    }
    return "".join(
        f'[[identity]]\nname = "{name}"\ntoken_sha256 = "{hash_token(TOKENS[name])}"\nallow = {allow}\n'
        for name, allow in rights.items()
    )


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """One stage, on a disk."""
    async with System(tmp_path, [["**"]], identities()) as system:
        await until(lambda: system.is_linked)
        yield system


async def enter(
    line: Raw, who: str, name: str | None = None, key: SessionKey | None = None, **fields: Any
) -> SessionKey:
    """Greet, and be let in."""
    key = key or make_session(name)
    line.send(greeting(key, name, token=TOKENS[who], **fields))
    answer = await line.receive()
    assert isinstance(answer, Welcome), answer
    return key


async def ask(
    line: Raw, key: SessionKey, *parts: PublishAsk | ChangeAsk, sequence: int, after: int | None = None
) -> Answer | Refusal:
    line.send(
        Ask(
            [
                request(
                    *(with_events(part, key.session) for part in parts),
                    sequence=sequence,
                    after=after,
                    client=key.session,
                )
            ]
        )
    )
    (answer,) = (await line.find(Tell)).answers
    return answer


async def begun(system: System, who: str = "desk", *topics: str) -> SessionKey:
    """A subscription of that name is there, and nobody is connected."""
    async with raw(system.ports[0]) as line:
        key = await enter(line, who, "desk-1")
        assert isinstance(await ask(line, key, ChangeAsk(BOOK, topics or ("a/b",), opens=1), sequence=1), Answer)
        await ask(line, key, PublishAsk("a/b", 3), sequence=2)
    await until(lambda: not system.servers[0]._clients)
    return key


def lose_names(system: System) -> None:
    """The keeper of the name does not know any more whose it is: what belongs to somebody does not rest on that alone."""
    stage = system.servers[0].node.driver.stage
    stage.state.names = NameTable()


async def resumed(line: Raw, key: SessionKey, epoch: int, sequence: int) -> Change | str:
    """What becomes of opening it: the change, or the code of the refusal."""
    answer = await ask(line, key, ChangeAsk(BOOK, opens=epoch), sequence=sequence)
    if isinstance(answer, Refusal):
        return answer.code
    assert isinstance(answer.parts[0], Change)
    return answer.parts[0]


@pytest.mark.parametrize("epoch", [1, 2, 3, 50, 1 << 40])
async def test_nobody_opens_what_another_identity_has_begun(system: System, epoch: int) -> None:
    """Nor is its owner locked out by an epoch that nobody can follow."""
    await begun(system)
    lose_names(system)
    async with raw(system.ports[0]) as line:
        key = await enter(line, "thief", "desk-1")
        assert await resumed(line, key, epoch, 1) == "not-yours"
    await until(lambda: not system.servers[0]._clients)
    lose_names(system)
    async with raw(system.ports[0]) as line:
        key = await enter(line, "desk", "desk-1")
        change = await resumed(line, key, 2, 1)
        assert isinstance(change, Change)
        assert change.resume is not None
        assert change.resume.clock == {}


async def test_nobody_ends_or_changes_what_another_identity_has_begun(system: System) -> None:
    await begun(system)
    lose_names(system)
    async with raw(system.ports[0]) as line:
        key = await enter(line, "limited", "desk-1")
        for sequence, change in enumerate((ChangeAsk(BOOK, ends=True), ChangeAsk(BOOK, ("a/c",))), 1):
            answer = await ask(line, key, change, sequence=sequence, after=0)
            assert isinstance(answer, Refusal)
            assert answer.code == "not-yours"


async def test_nobody_acknowledges_what_another_identity_has_begun(system: System) -> None:
    """Also one that knows the session: what it says of itself counts for nothing."""
    key = await begun(system)
    lose_names(system)
    async with raw(system.ports[0]) as line:
        thief = await enter(line, "thief", "desk-1")
        line.send(Acked(BOOK, thief.session, 1, 1, {"a/b": 3}, 3, "desk"))
        ended = await line.find(Ended)
        assert ended.code == "not-yours"
    registrar = system.servers[0].node.driver.stage.state.registrar
    resume = registrar.subscriptions[BOOK].resume
    assert resume is not None
    assert (resume.clock, registrar.subscriptions[BOOK].client) == ({}, key.session)


async def test_its_owner_acknowledges_opens_and_ends_it(system: System) -> None:
    await begun(system)
    async with raw(system.ports[0]) as line:
        key = await enter(line, "desk", "desk-1")
        assert isinstance(await resumed(line, key, 2, 1), Change)
        line.send(Acked(BOOK, key.session, 1, 2, {"a/b": 2}, 2))
        assert isinstance(await line.find(AckSaved), AckSaved)
        assert isinstance(await ask(line, key, ChangeAsk(BOOK, remove=("a/b",), ends=True), sequence=2), Answer)


@pytest.mark.parametrize("epoch", [0, 3, 50])
async def test_who_opens_it_names_the_epoch_after_the_last(system: System, epoch: int) -> None:
    """Else it could be moved to where nobody follows; and the refusal says which one was the last."""
    await begun(system)
    async with raw(system.ports[0]) as line:
        key = await enter(line, "desk", "desk-1")
        if epoch:
            answer = await ask(line, key, ChangeAsk(BOOK, opens=epoch), sequence=1)
            assert isinstance(answer, Refusal)
            assert (answer.code, answer.opened) == ("epoch", 1)
        new = await ask(line, key, ChangeAsk("desk-1//new", ("a/b",), opens=epoch or 2), sequence=2, after=0)
        assert isinstance(new, Refusal)
        assert (new.code, new.opened) == ("epoch", 0)


async def test_who_opens_it_must_be_allowed_to_have_all_that_it_holds(tmp_path: Path) -> None:
    """Not only what it adds, which is nothing; and nothing has changed when it is told so."""
    async with System(tmp_path, [["**"]], identities('["a/**", "b"]')) as system:
        await begun(system, "limited", "a/b", "b")
        system.before = identities('["a/**"]')
        await system.restart(0)
        await until(lambda: system.is_linked)
        async with raw(system.ports[0]) as line:
            key = await enter(line, "limited", "desk-1")
            answer = await ask(line, key, ChangeAsk(BOOK, opens=2), sequence=1)
            assert isinstance(answer, Refusal)
            assert answer.code == "forbidden"
            assert "holds 'b', and 'limited' may not subscribe to that" in answer.reason
        assert system.servers[0].node.driver.stage.state.registrar.subscriptions[BOOK].epoch == 1


# -- sessions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_session_goes_on_under_the_identity_that_began_it(system: System, restarts: bool) -> None:
    """Whoever has its secret, and another token, has two things that do not belong together."""
    async with raw(system.ports[0]) as line:
        key = await enter(line, "desk")
        await ask(line, key, PublishAsk("a/b"), sequence=1)
        if not restarts:
            async with raw(system.ports[0]) as other:
                other.send(greeting(key, None, token=TOKENS["limited"]))
                assert (await other.expect(Rejected)).code == "denied"
    if restarts:
        await system.restart(0)
        await until(lambda: system.is_linked)
    async with raw(system.ports[0]) as other:
        other.send(greeting(key, None, token=TOKENS["limited"]))
        assert (await other.expect(Rejected)).code == "denied"
    async with raw(system.ports[0]) as line:
        await enter(line, "desk", key=key)
        assert isinstance(await ask(line, key, PublishAsk("a/b"), sequence=2), Answer)


async def test_a_stage_takes_nothing_in_a_session_of_another_identity_from_another_home(tmp_path: Path) -> None:
    """The home does not know the session yet; the stage that takes its requests does."""
    async with System(tmp_path, [["a/**"], ["**"]], identities(), token=TOKENS["stage"]) as system:
        await until(lambda: system.is_linked)
        async with raw(system.ports[0]) as line:
            key = await enter(line, "desk")
            await ask(line, key, PublishAsk("a/b"), sequence=1)
        async with raw(system.ports[1]) as line:
            await enter(line, "limited", key=key)
            answer = await ask(line, key, PublishAsk("a/b"), sequence=2)
            assert isinstance(answer, Refusal)
            assert (answer.code, answer.taken) == ("forbidden", False)


# -- names ----------------------------------------------------------------------------------------------------------------


async def test_within_the_seconds_after_a_restart_nobody_goes_on_under_another_ones_name(system: System) -> None:
    """Somebody else is sent away at once; another session of the same identity is a guest, of whom nothing is taken."""
    async with raw(system.ports[0]) as line:
        owner = await enter(line, "desk", "desk-1")
        assert isinstance(await ask(line, owner, ChangeAsk(BOOK, ("a/b",), opens=1), sequence=1), Answer)
    await system.restart(0)
    await until(lambda: system.is_linked)
    async with raw(system.ports[0]) as line, raw(system.ports[0]) as other, raw(system.ports[0]) as mine:
        line.send(greeting(make_session("desk-1"), "desk-1", token=TOKENS["limited"], resumes=True))
        assert (await line.find(Rejected)).code == "name-in-use"

        key = await enter(other, "desk", "desk-1", resumes=True)
        changes = (ChangeAsk(BOOK, opens=2), with_events(PublishAsk("a/b"), key.session))
        other.send(*(Ask([request(change, sequence=at, client=key.session)]) for at, change in enumerate(changes, 1)))
        await enter(mine, "desk", "desk-1", owner, resumes=True)
        assert isinstance(await ask(mine, owner, ChangeAsk(BOOK, ("a/c",)), sequence=2), Answer)
        assert (await other.find(Rejected)).code == "name-in-use"
        assert all(not isinstance(message, Tell) for message in other.heard)
    state = system.servers[0].node.driver.stage.state
    assert (state.registrar.subscriptions[BOOK].client, key.session in state.requests.sessions) == (
        owner.session,
        False,
    )


PATTERNS = f"""
[[identity]]
name = "bound"
token_sha256 = "{hash_token("bound-".ljust(43, "x"))}"
names = ["trader-*"]
allow = {{ publish = ["**"] }}
"""


@pytest.mark.parametrize(
    ("who", "name", "may"),
    [
        ("bound", "trader-7", True),
        ("bound", None, True),
        ("bound", "desk-1", False),
        ("desk", "trader-7", False),
        ("desk", "desk-1", True),
        ("desk", "anonymous", False),
        ("desk", "anonymous-00112233445566778899", False),
        ("desk", "@expiring-0", False),
    ],
)
async def test_names_that_the_configuration_gives_to_an_identity_are_its_own_and_its_only_ones(
    tmp_path: Path, who: str, name: str | None, may: bool
) -> None:
    async with System(tmp_path, [["**"]], identities() + PATTERNS) as system, raw(system.ports[0]) as line:
        token = {**TOKENS, "bound": "bound-".ljust(43, "x")}[who]
        line.send(greeting(make_session(name), name, token=token))
        answer = await line.receive()
        assert isinstance(answer, Welcome) == may, answer


async def test_an_identity_has_as_many_names_as_it_may(tmp_path: Path) -> None:
    before = identities() + "[limits]\nnames_per_identity_max = 2\n"
    async with System(tmp_path, [["**"]], before) as system:
        for name in ("one", "two", "one"):
            async with raw(system.ports[0]) as line:
                await enter(line, "desk", name)
            await until(lambda: not system.servers[0]._clients)
        async with raw(system.ports[0]) as line:
            line.send(greeting(make_session("three"), "three", token=TOKENS["desk"]))
            rejected = await line.find(Rejected)
            assert rejected.code == "limit"
            assert "has 2 names at one stage, as many as allowed (limits.names_per_identity_max)" in rejected.reason


async def test_where_nobody_is_told_from_anybody_names_count_as_one_identitys() -> None:
    async with serving(one_stage(before="[limits]\nnames_per_identity_max = 1\n")) as server:
        codes = []
        for name in ("one", "two"):
            async with raw(server.port) as line:
                line.send(greeting(make_session(name), name))
                answer = await line.receive()
                codes.append(answer.code if isinstance(answer, Rejected) else "")

    assert codes == ["", "limit"]
