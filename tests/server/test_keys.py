"""Keys over the network: who may subscribe has them, and nobody else; a command changes them, and a right that is taken away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import ordered_pubsub
from ordered_pubsub.cli import main
from ordered_pubsub.client.home.home import NOBODY
from ordered_pubsub.client.home.network import NetworkHome
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.files import hash_token, make_token
from ordered_pubsub.core.messages import AskKeys, Keys
from ordered_pubsub.errors import AccessDenied
from ordered_pubsub.server.doors.access import has_lost_keys, has_lost_subscribe
from ordered_pubsub.server.server import Server
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.wire.protocol import Rejected, Welcome
from ordered_pubsub.wire.sessions import make_session
from server.messages import greeting
from server.systems import System, configure, one_stage, raw, serving
from server.waiting import soon, until

TOKEN = make_token()


def identities(subscribe: str, more: str = "") -> str:
    return (
        f'[[identity]]\nname = "trader"\ntoken_sha256 = "{hash_token(TOKEN)}"\n'
        f'allow = {{ subscribe = {subscribe}, publish = ["**"]{more} }}\n'
    )


async def ask(server: Server, topics: list[str]) -> list[Keys]:
    """What a stage says to who asks for the keys of topics."""
    async with raw(server.port) as line:
        key = make_session(None)
        line.send(greeting(key, None, token=TOKEN))
        assert isinstance(await line.find(Welcome), Welcome)
        line.send(AskKeys(key.session, topics))
        found = [await soon(line.find(Keys))]
        if found[0].refused and len(found[0].refused) < len(topics):
            found.append(await soon(line.find(Keys)))
        return found


async def test_only_who_may_subscribe_gets_the_keys_of_a_topic() -> None:
    async with serving(one_stage(before=identities('["mine/**"]'))) as server:
        refused, given = await ask(server, ["mine/a", "theirs/a"])

    assert list(refused.refused) == ["theirs/a"]
    assert refused.refused["theirs/a"][0] == "forbidden"
    assert list(given.keys) == ["mine/a"]


async def test_who_may_not_subscribe_is_told_before_it_is_at_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERED_PUBSUB_TOKEN", TOKEN)
    async with serving(one_stage(before=identities('["mine/**"]'))) as server:
        address = f"ops://{HOST}:{server.port}"
        async with ordered_pubsub.connect("memory://keys", sequencer=address) as client:
            with pytest.raises(AccessDenied, match="may not subscribe to 'theirs/a'"):
                await client.subscribe("mine/a", "theirs/a")
            assert client._engine.machine.holding.topics == []
            await client.subscribe("mine/a")


async def test_who_asks_in_another_name_or_for_too_much_is_disconnected() -> None:
    async with serving(one_stage()) as server:
        for message in (AskKeys("another", ["a"]), AskKeys("", [f"t{number}" for number in range(1_001)])):
            async with raw(server.port) as line:
                key = make_session(None)
                line.send(greeting(key, None))
                await line.find(Welcome)
                line.send(message if message.session else AskKeys(key.session, message.topics))
                rejected = await soon(line.find(Rejected))
                assert rejected.code == "bad-frame"


async def test_a_right_that_is_taken_away_changes_the_keys_at_once() -> None:
    async with serving(one_stage(before=identities('["a", "b"]'))) as server:
        (before,) = await ask(server, ["a"])
        server.renew(server.prepare(one_stage(before=identities('["b"]'))))
        await until(lambda: server.node.driver.stage.state.keys.epoch > 1)
        (after,) = await ask(server, ["b"])
        (refused,) = await ask(server, ["a"])

    assert [epoch for epoch, _ in before.epochs] == [1, 2]
    assert [epoch for epoch, _ in after.epochs] == [1, 3, 4]
    assert after.epochs[0][1] <= 60.0
    assert list(refused.refused) == ["a"]


async def test_a_right_that_is_given_changes_no_keys() -> None:
    async with serving(one_stage(before=identities('["a"]'))) as server:
        server.renew(server.prepare(one_stage(before=identities('["a", "b"]'))))
        await asyncio.sleep(0)

        assert server.node.driver.keeper._wanted is None


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        ('allow = { subscribe = ["a"] }', 'allow = { subscribe = ["a", "b"] }', False),
        ('allow = { subscribe = ["a"] }', 'allow = { subscribe = ["b"] }', True),
        ('allow = { subscribe = ["a"] }', 'allow = { publish = ["a"] }', True),
        ('allow = { subscribe = ["a"] }', 'allow = { subscribe = ["a"] }\ndeny = { subscribe = ["a"] }', True),
        ('allow = { subscribe = ["a"] }\ndeny = { subscribe = ["b"] }', 'allow = { subscribe = ["a"] }', False),
        ('allow = { publish = ["a"] }', 'allow = { publish = ["b"] }', False),
    ],
)
def test_whether_somebody_has_lost_a_right(before: str, now: str, lost: bool) -> None:
    head = f'[[identity]]\nname = "trader"\ntoken_sha256 = "{hash_token(TOKEN)}"\n'
    rights = [configure(head + text).identity for text in (before, now)]

    assert has_lost_subscribe(*rights) is lost
    assert has_lost_subscribe(None, rights[1])
    assert not has_lost_subscribe(rights[0], None)
    assert has_lost_subscribe(rights[0], ()) is ("subscribe = " in before)


STOLEN, OTHER = hash_token("stolen".ljust(43, "x")), hash_token("other".ljust(43, "x"))


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        (f'token_sha256 = ["{STOLEN}", "{OTHER}"]', f'token_sha256 = "{OTHER}"', True),
        (f'token_sha256 = "{OTHER}"', f'token_sha256 = ["{STOLEN}", "{OTHER}"]', False),
        (f'token_sha256 = "{OTHER}"', f'token_sha256 = "{OTHER.upper()}"', False),
        ('certificate = "desk"', 'certificate = "desk-2"', True),
        ('certificate = "desk"', f'certificate = "desk"\ntoken_sha256 = "{OTHER}"', False),
    ],
)
def test_whoever_shows_what_is_no_proof_any_more_has_lost_his_keys(before: str, now: str, lost: bool) -> None:
    head = '[[identity]]\nname = "trader"\nallow = { subscribe = ["a"] }\n'
    tls = '[[stage]]\nname = "main"\ntls = { cert = "c", key = "k", client_ca = "a" }\n'
    rights = [configure(head + text + "\n" + (tls if "certificate" in text else "")).identity for text in (before, now)]

    assert has_lost_keys(*rights) is lost
    assert not has_lost_subscribe(*rights)


async def test_keys_are_rotated_by_whatever_stage_is_asked(tmp_path: Path) -> None:
    async with System(tmp_path, [["a"], ["**"]]) as system:
        await until(lambda: all(server.node.status()["ready"] for server in system.servers.values()))
        for rank in (0, 1):
            home = NetworkHome([Address(HOST, system.servers[rank].port)])
            await home.open(make_session(None), None, NOBODY)
            before = await home.turn_keys(10)
            await until(lambda before=before: all(epoch_of(server) > before for server in system.servers.values()))
            await home.close()

        assert [epoch_of(server) for server in system.servers.values()] == [3, 3]
        assert len({server.node.status()["system"] for server in system.servers.values()}) == 1


def epoch_of(server: Server) -> int:
    return server.node.driver.stage.state.keys.epoch


async def test_the_command_returns_when_new_keys_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(one_stage()) as server:
        code = await asyncio.to_thread(main, ["keys", "rotate", "--sequencer", f"ops://{HOST}:{server.port}"])

        assert (code, epoch_of(server)) == (0, 2)
    assert capsys.readouterr().out == "the keys of epoch 2 are used now, instead of those of epoch 1\n"


async def test_who_may_not_administer_changes_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(one_stage(before=identities('["a"]'))) as server:
        home = NetworkHome([Address(HOST, server.port)], TOKEN)
        await home.open(make_session(None), None, NOBODY)
        with pytest.raises(AccessDenied, match="needs the right 'administer'"):
            await home.turn_keys(10)
        await home.close()

        assert server.node.driver.keeper._wanted is None


async def test_no_secret_is_in_what_a_stage_says_of_itself() -> None:
    async with serving(one_stage()) as server:
        secret = server.node.driver.stage.state.keys.secret
        said = json.dumps(server.status(), default=str)

    assert secret.hex() not in said
    assert repr(secret) not in said
