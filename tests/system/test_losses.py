"""What a broker cannot hold: NATS core forgets what it could not deliver while a subscriber was away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import ordered_pubsub
from ordered_pubsub.testing.brokers import NatsServer
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.testing.proxy import Proxy
from ordered_pubsub.testing.trial.system import Stages

DEADLINE_S = 20.0


async def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[str]:
    stages = Stages(tmp_path, [["**"]], durability="os")
    stages.start()
    yield stages.addresses[0]
    stages.kill()


@pytest.fixture
async def line(nats: NatsServer) -> AsyncIterator[Proxy]:
    async with Proxy((HOST, nats.port)) as proxy:
        yield proxy


async def lose_the_second(publisher: ordered_pubsub.Client, subscriber: ordered_pubsub.Client, line: Proxy) -> None:
    """Publish three events, the second while the subscriber's line to the broker is cut."""
    await publisher.publish("a", 1)
    line.cut()
    await until(lambda: not subscriber.status()["connected_to"]["ens"])
    await publisher.publish("a", 2)
    line.heal()
    await until(lambda: subscriber.status()["connected_to"]["ens"])
    await publisher.publish("a", 3)


async def test_a_lost_event_is_waited_for_and_the_status_says_for_which(
    nats: NatsServer, stage: str, line: Proxy
) -> None:
    async with (
        ordered_pubsub.connect(nats.url, sequencer=stage) as publisher,
        ordered_pubsub.connect(f"nats://{line.address}", sequencer=stage) as subscriber,
    ):
        subscription = await subscriber.subscribe("a", "b")
        await lose_the_second(publisher, subscriber, line)
        await publisher.publish("b", "has a to wait for")
        await until(lambda: subscription.lag.waiting == 2)

        assert (await anext(subscription)).data == 1
        assert subscription.lag.unread == 0
        (status,) = subscriber.status()["subscriptions"]
        assert status["waiting_for"] == "'a' for its number 2; 'b' number 1 for number 3 of 'a' (now 1)"


async def test_a_best_effort_subscription_is_notified_with_a_tag(nats: NatsServer, stage: str, line: Proxy) -> None:
    async with (
        ordered_pubsub.connect(nats.url, sequencer=stage) as publisher,
        ordered_pubsub.connect(f"nats://{line.address}", sequencer=stage) as subscriber,
    ):
        subscription = await subscriber.subscribe("a", "b", delivery="best-effort", ttl_s=0.05)
        await lose_the_second(publisher, subscriber, line)

        first = await asyncio.wait_for(anext(subscription), DEADLINE_S)
        third = await asyncio.wait_for(anext(subscription), DEADLINE_S)
        assert (first.number, first.out_of_order) == (1, False)
        assert (third.number, third.out_of_order) == (3, True)
