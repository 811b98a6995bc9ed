"""Who cannot be heard by the stage that keeps its subscription stops by itself: real stages, over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.errors import SessionExpired
from server.systems import System
from server.waiting import soon, until

TTL_S = 2.0


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordered_pubsub.config.schema.TimesSection.values", Times(session_ttl_s=TTL_S))
    monkeypatch.setattr("ordered_pubsub.client.engine.TICK_S", 0.05)
    monkeypatch.setattr("ordered_pubsub.server.stage.node.TICK_S", 0.05)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Three stages."""
    async with System(tmp_path, [["a"], ["b"], ["c"]]) as system:
        await until(lambda: system.is_linked)
        yield system


async def test_who_is_heard_of_goes_on(system: System) -> None:
    async with system.connect(0) as client:
        subscription = await client.subscribe("a", "b", "c")
        (living,) = client._engine.machine.lifeline._watched.values()
        begin = living.since
        await until(lambda: client._engine.loop.time() > begin + 2 * TTL_S)
        await client.publish("b", 1)
        assert (await soon(subscription.__anext__())).data == 1


@pytest.mark.parametrize("delivery", ["exactly-once", "best-effort"])
async def test_who_is_cut_off_from_the_keeper_of_its_subscription_stops(system: System, delivery: str) -> None:
    """One with a name goes on."""
    async with system.connect(0, name="desk") as client:
        subscriptions = [await client.subscribe("a", delivery=delivery) for _ in range(8)]
        named = await client.subscribe("a", name="book")
        registrar = system.servers[0].node.topology.registrar
        away = [one for one in subscriptions if registrar(one._intake.identity) != 0]
        there = [one for one in subscriptions if one not in away]
        assert away
        for line in system.lines.values():
            line.freeze()

        for one in away:
            with pytest.raises(SessionExpired, match=r"was cut off: the stage that keeps it has not answered for 1 s"):
                await soon(one.__anext__())
        assert [one.error for one in (*there, named)] == [None] * (len(there) + 1)
        for line in system.lines.values():
            line.thaw()
