"""How long a system waits for who is silent: all its stages and clients go by what the configuration says."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import ordered_pubsub
from ordered_pubsub.client.home.network import NetworkHome
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.errors import ProtocolError, SessionExpired
from ordered_pubsub.server.server import Server
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.wire.protocol import Welcome
from server.systems import System, connect, one_stage, serving
from server.waiting import soon, until

QUICK = '[times]\nsession_ttl = "40s"\nnamed_ttl = "2h"\nlease = 6\n'
SLOW = '[times]\nsession_ttl = "10min"\nnamed_ttl = "2d"\nlease = "1min"\n'


def times_of(client: ordered_pubsub.Client) -> tuple[float, float]:
    """What a client goes by."""
    engine = client._engine
    assert engine.publisher.outbox.batches.lease._renewals.holds_s == engine.publisher.outbox.batches.lease.lease_s / 2
    assert engine.machine.lifeline._renewals.holds_s == engine.machine.lifeline.session_ttl_s / 2
    return engine.machine.lifeline.session_ttl_s, engine.publisher.outbox.batches.lease.lease_s


async def test_a_stage_goes_by_its_configuration_and_its_clients_from_the_beginning() -> None:
    async with serving(one_stage(before=QUICK)) as server, connect(server) as client:
        driver = server.node.driver
        assert (driver.expiry.session_ttl_s, driver.expiry.named_ttl_s, driver.voids.lease_s) == (40.0, 7_200.0, 6.0)
        assert driver.hosting.alive_s == 2.0
        assert times_of(client) == (40.0, 6.0)


async def test_without_a_word_of_it_they_are_the_usual_ones() -> None:
    usual = Times()
    async with serving(one_stage()) as server, connect(server) as client:
        assert times_of(client) == (usual.session_ttl_s, usual.lease_s) == (300.0, 30.0)
        assert (usual.named_ttl_s, server.node.driver.hosting.alive_s) == (7 * 86_400.0, 15.0)


async def test_those_of_an_embedded_stage_are_its_own() -> None:
    async with ordered_pubsub.connect("memory://times") as client:
        assert times_of(client) == (300.0, 30.0)


async def test_a_client_takes_what_the_stage_says_that_it_comes_to_later(tmp_path: Path) -> None:
    async with System(tmp_path, [["**"]], before=QUICK) as system, system.connect(name="desk") as client:
        for said, times in ((SLOW, (600.0, 60.0)), (QUICK, (40.0, 6.0))):
            await system.stop(0)
            system.before = said
            await system.start(0)
            await client.publish("a", 1)
            assert times_of(client) == times


async def test_stages_that_wait_for_another_time_do_not_link(tmp_path: Path) -> None:
    async with System(tmp_path, [["a"], ["b"]], before=QUICK) as system:
        await system.stop(1)
        system.before = QUICK.replace("lease = 6", "lease = 7")
        await system.start(1)
        await until(lambda: all("differ" in server.links[1 - rank].trouble for rank, server in system.servers.items()))

        assert "times.lease is 7.0 (line 4) here and 6.0 (line 4) there" in system.servers[1].links[0].trouble


async def test_what_it_stands_for_is_compared_not_how_it_is_written(tmp_path: Path) -> None:
    async with System(tmp_path, [["a"], ["b"]], before=QUICK) as system:
        await system.stop(1)
        system.before = '[times]\nlease = "6s"\nnamed_ttl = 7200.0\nsession_ttl = 40\n'
        await system.start(1)

        await until(lambda: system.is_linked)


@pytest.mark.parametrize(("key", "value"), [("session_ttl_s", 0.0), ("lease_s", -1.0), ("lease_s", float("nan"))])
async def test_a_stage_that_says_what_cannot_be_is_not_believed(key: str, value: float) -> None:
    class Odd(Server):
        def _welcome(self) -> Welcome:
            return replace(super()._welcome(), **{key: value})

    server = Odd(one_stage(), 0, "")
    await server.open()
    try:
        with pytest.raises(ProtocolError, match=f"{key}=.* is a number of seconds above 0"):
            await connect(server)
    finally:
        await server.close()


async def test_who_is_not_heard_of_ends_after_the_time_that_was_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordered_pubsub.config.schema.TimesSection.values", Times(session_ttl_s=0.5, named_ttl_s=1.0))
    monkeypatch.setattr("ordered_pubsub.core.liveness.expiry.LOOK_S", 0.05)
    monkeypatch.setattr("ordered_pubsub.server.stage.node.TICK_S", 0.02)
    async with System(tmp_path, [["**"]]) as system, system.connect(name="desk") as client:
        registered = system.servers[0].node.driver.stage.state.registrar.subscriptions
        plain, book = await client.subscribe("a"), await client.subscribe("a", name="book")
        assert len(registered) == 2
        home = client._engine.home
        assert isinstance(home, NetworkHome)
        there, home._addresses[:] = list(home._addresses), [Address(HOST, 1)]
        assert home._talk is not None
        home._talk.abort("it vanishes")

        await until(lambda: list(registered) == ["desk//book"])
        await until(lambda: not registered)
        home._addresses[:] = there
        for subscription in (plain, book):
            with pytest.raises(SessionExpired):
                await soon(subscription.__anext__())
