"""A publisher that vanishes between its number and its publication holds nobody up for ever: real stages, over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ordered_pubsub
from ordered_pubsub.adapter import Frame
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.core.messages import (
    Answer,
    ChangeAsk,
    LeaseRenewal,
    PublishAsk,
    Request,
    SeenAsk,
    SeenReply,
    TopicRange,
    VoidAsk,
)
from ordered_pubsub.errors import EventVoid
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.testing.proxy import Proxy
from ordered_pubsub.wire.protocol import Ask, Tell, Welcome
from ordered_pubsub.wire.sessions import make_session
from ordered_pubsub_adapters.memory import MemoryAdapter
from server.messages import greeting
from server.systems import Raw, System, raw
from server.waiting import soon, until

LEASE_S = 0.5
ORDERED = '[[topic]]\npattern = "**"\ndelivery = "ordered"\n'


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordered_pubsub.config.schema.TimesSection.values", Times(lease_s=LEASE_S))
    monkeypatch.setattr("ordered_pubsub.core.liveness.lease.SAY_S", LEASE_S / 8)
    monkeypatch.setattr("ordered_pubsub.core.liveness.voids.LOOK_S", LEASE_S / 8)
    monkeypatch.setattr("ordered_pubsub.server.stage.node.TICK_S", LEASE_S / 16)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Two stages: the first owns "a", the second "b"; nobody keeps their events."""
    async with System(tmp_path, [["a"], ["b"]], before=ORDERED) as system:
        await until(lambda: system.is_linked)
        yield system


class Stuck(MemoryAdapter):
    """An ENS that takes nothing until it may."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.may_go = asyncio.Event()

    async def publish(self, frames: Sequence[Frame]) -> None:
        await self.may_go.wait()
        await super().publish(frames)


async def publish_and_vanish(system: System, topic: str, count: int) -> None:
    """A client gets numbers, and is gone before it publishes anything."""
    key = make_session(None)
    async with raw(system.ports[0]) as line:
        line.send(greeting(key, None))
        await line.expect(Welcome)
        line.send(Ask([Request(key.session, 1, 1, 0, 0, (PublishAsk(topic, count),))]))
        (answer,) = (await line.find(Tell)).answers
        assert isinstance(answer, Answer)


async def take(subscription: ordered_pubsub.Subscription, count: int) -> list[tuple[Any, int | None]]:
    async def collect() -> list[tuple[Any, int | None]]:
        return [(event.data, event.position) for event in [await anext(subscription) for _ in range(count)]]

    return await soon(collect())


@pytest.mark.parametrize("topic", ["a", "b"])
async def test_what_a_publisher_that_vanished_never_published_is_passed(system: System, topic: str) -> None:
    async with system.connect(0, delivery="ordered") as one, system.connect(1, delivery="ordered") as two:
        subscriptions = [await one.subscribe("a", "b"), await two.subscribe("a", "b")]
        await one.publish(topic, "before")
        await publish_and_vanish(system, topic, 3)
        await two.publish(topic, "after")

        for subscription in subscriptions:
            assert await take(subscription, 2) == [("before", 1), ("after", 5)]


async def test_it_is_passed_by_who_holds_both_topics_in_their_order(system: System) -> None:
    async with system.connect(0, delivery="ordered") as client:
        both, one = await client.subscribe("a", "b"), await client.subscribe("b")
        await publish_and_vanish(system, "a", 1)
        await client.publish("b", "after")

        assert await take(one, 1) == [("after", 1)]
        assert await take(both, 1) == [("after", 2)]


@pytest.mark.parametrize("home", [0, 1])
async def test_who_is_there_and_does_not_answer_holds_nobody_up_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: int
) -> None:
    """Its subscription ends, as that of one that is not there."""
    monkeypatch.setattr(
        "ordered_pubsub.config.schema.TimesSection.values", Times(lease_s=LEASE_S, session_ttl_s=4 * LEASE_S)
    )
    monkeypatch.setattr("ordered_pubsub.core.liveness.expiry.LOOK_S", LEASE_S / 8)
    monkeypatch.setattr("ordered_pubsub.core.liveness.voids.SEAL_AGAIN_MOST_S", LEASE_S)
    monkeypatch.setattr("ordered_pubsub.client.engine.TICK_S", LEASE_S / 8)
    async with System(tmp_path, [["a"], ["b"]], before=ORDERED) as system, raw(system.ports[home]) as line:
        await until(lambda: system.is_linked)
        key = make_session(None)
        line.send(greeting(key, None))
        await line.expect(Welcome)
        line.send(Ask([Request(key.session, 1, 1, 0, 0, (ChangeAsk(f"{key.session}/1", ("a",)),))]))
        await line.find(Tell)
        async with system.connect(1, delivery="ordered") as client:
            subscription = await client.subscribe("a")
            await publish_and_vanish(system, "a", 2)
            await client.publish("a", "after")

            assert (await line.find(SeenAsk)).topic == "a"
            assert await take(subscription, 1) == [("after", 3)]
        registrars = [server.node.driver.stage.state.registrar for server in system.servers.values()]
        assert not any(f"{key.session}/1" in registrar.subscriptions for registrar in registrars)


async def test_the_owner_may_be_restarted_meanwhile(system: System) -> None:
    async with system.connect(1, delivery="ordered") as client:
        subscription = await client.subscribe("a")
        await publish_and_vanish(system, "a", 2)
        await system.restart(0)
        await client.publish("a", "after")

        assert await take(subscription, 1) == [("after", 3)]
        await system.restart(0)
        late = await client.subscribe("a")
        await client.publish("a", "later")
        assert await take(late, 1) == [("later", 1)]


async def test_a_publisher_whose_ens_is_slow_keeps_its_numbers_as_long_as_it_is_there(system: System) -> None:
    adapter = Stuck(system.ens)
    connecting = ordered_pubsub.connect(adapter, sequencer=[system.address(0)], delivery="ordered")
    async with connecting as publisher, system.connect(1, delivery="ordered") as client:
        subscription = await client.subscribe("a")
        receipt = publisher.publish_nowait("a", "slow")
        owner = system.servers[0].node.driver.voids
        await until(lambda: owner._batches)
        begin = owner._looked_at
        await until(lambda: owner._looked_at > begin + 3 * LEASE_S)
        adapter.may_go.set()

        assert (await soon(receipt)).number == 1
        assert await take(subscription, 1) == [("slow", 1)]
        await until(lambda: not owner._batches)


async def test_a_publisher_that_was_cut_off_for_too_long_is_told_that_its_event_is_void(system: System) -> None:
    """It is not published when it comes back, whatever its ENS would take."""
    async with Proxy((HOST, system.ports[0])) as line:
        adapter = Stuck(system.ens)
        address = f"ops://{HOST}:{line.port}"
        connecting = ordered_pubsub.connect(adapter, sequencer=[address], delivery="ordered")
        async with connecting as publisher, system.connect(1, delivery="ordered") as client:
            subscription = await client.subscribe("a")
            receipt = publisher.publish_nowait("a", "lost")
            await until(lambda: system.servers[0].node.driver.voids._batches)
            line.freeze()
            await client.publish("a", "after")
            assert await take(subscription, 1) == [("after", 2)]
            adapter.may_go.set()
            line.thaw()

            with pytest.raises(EventVoid, match=r"event for 'a' is void.*publish it again"):
                await soon(receipt)
            await publisher.publish("a", "again")
            assert await take(subscription, 1) == [("again", 3)]


async def test_what_is_at_the_ens_is_not_pending_any_more(system: System) -> None:
    """So a stage that is asked to keep nothing keeps nothing."""
    async with system.connect(0, delivery="ordered") as client:
        for number in range(100):
            await client.publish("ab"[number % 2], number)
        await until(lambda: not any(server.node.driver.voids._batches for server in system.servers.values()))


# -- what may not be said -----------------------------------------------------------------------------------------------

UNFIT = {
    "for somebody else": lambda mine: LeaseRenewal("other#0011", 1, 1, [0], []),
    "to no stage": lambda mine: LeaseRenewal(mine, 1, 1, [2], []),
    "to one stage twice": lambda mine: LeaseRenewal(mine, 1, 1, [0, 0], []),
    "below zero": lambda mine: VoidAsk(mine, [TopicRange("a", -1, 1)]),
    "backwards": lambda mine: VoidAsk(mine, [TopicRange("a", 2, 1)]),
    "too far": lambda mine: LeaseRenewal(mine, 1, 1, [0], [TopicRange("a", 1, 1 << 40)]),
    "too much": lambda mine: SeenReply(1, 0, [mine], [(1, 1)] * 10_001),
    "for several": lambda mine: SeenReply(1, 0, [mine, "other#0011"], []),
}


@pytest.mark.parametrize("what", UNFIT)
async def test_what_cannot_be_ends_the_connection(system: System, what: str) -> None:
    key = make_session(None)

    async def enter(line: Raw) -> None:
        line.send(greeting(key, None))
        await line.expect(Welcome)

    async with raw(system.ports[0]) as line:
        await enter(line)
        line.send(UNFIT[what](key.session))
        while (heard := await line.receive()) is not None:
            last = heard
        assert last.code == "bad-frame"
