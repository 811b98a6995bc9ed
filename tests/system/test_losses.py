"""What a broker cannot hold: NATS core forgets what it could not deliver while a subscriber was away.

Stages that keep events give it back. Of topics that they do not keep, it is waited for, and best effort goes on without.
"""

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
from ordered_pubsub.testing.stages import StageProcesses

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
    """Its topics that begin with "ticks" are not kept."""
    more = '[[topic]]\npattern = "ticks/**"\ndelivery = "ordered"\n'
    stages = StageProcesses(tmp_path, [["**"]], durability="os", more=more)
    stages.start()
    yield stages.addresses[0]
    stages.kill()


@pytest.fixture
async def line(nats: NatsServer) -> AsyncIterator[Proxy]:
    async with Proxy((HOST, nats.port)) as proxy:
        yield proxy


async def lose_the_second(
    publisher: ordered_pubsub.Client,
    subscriber: ordered_pubsub.Client,
    subscription: ordered_pubsub.Subscription,
    line: Proxy,
) -> None:
    """Publish three events on its first topic, the second while the subscriber's line to the broker is cut."""
    topic = subscription.topics[0]
    await publisher.publish(topic, 1)
    await until(lambda: subscription.lag.unread == 1)
    line.cut()
    await until(lambda: not subscriber.status()["connected_to"]["ens"])
    await publisher.publish(topic, 2)
    await until(lambda: not publisher.status()["unfinished"])
    line.heal()
    await until(lambda: subscriber.status()["connected_to"]["ens"])
    await publisher.publish(topic, 3)


async def test_a_lost_event_comes_from_the_stage(nats: NatsServer, stage: str, line: Proxy) -> None:
    async with (
        ordered_pubsub.connect(nats.url, sequencer=stage) as publisher,
        ordered_pubsub.connect(f"nats://{line.address}", sequencer=stage) as subscriber,
    ):
        subscription = await subscriber.subscribe("a", "b")
        await lose_the_second(publisher, subscriber, subscription, line)
        await publisher.publish("b", 4)
        events = [await asyncio.wait_for(anext(subscription), DEADLINE_S) for _ in range(4)]

    assert [event.data for event in events] == [1, 2, 3, 4]


async def test_a_lost_event_is_waited_for_and_the_status_says_for_which(
    nats: NatsServer, stage: str, line: Proxy
) -> None:
    async with (
        ordered_pubsub.connect(nats.url, sequencer=stage, delivery="ordered") as publisher,
        ordered_pubsub.connect(f"nats://{line.address}", sequencer=stage, delivery="ordered") as subscriber,
    ):
        subscription = await subscriber.subscribe("ticks/a", "ticks/b")
        await lose_the_second(publisher, subscriber, subscription, line)
        await publisher.publish("ticks/b", "has a to wait for")
        await until(lambda: subscription.lag.waiting == 2)

        assert (await anext(subscription)).data == 1
        assert subscription.lag.unread == 0
        (status,) = subscriber.status()["subscriptions"]
        assert status["waiting_for"] == (
            "'ticks/a' for its number 2; 'ticks/b' number 1 for number 3 of 'ticks/a' (now 1)"
        )


async def test_a_best_effort_subscription_is_notified_with_a_tag(nats: NatsServer, stage: str, line: Proxy) -> None:
    async with (
        ordered_pubsub.connect(nats.url, sequencer=stage) as publisher,
        ordered_pubsub.connect(f"nats://{line.address}", sequencer=stage) as subscriber,
    ):
        subscription = await subscriber.subscribe("a", "b", delivery="best-effort", ttl_s=0.05)
        await lose_the_second(publisher, subscriber, subscription, line)

        first = await asyncio.wait_for(anext(subscription), DEADLINE_S)
        third = await asyncio.wait_for(anext(subscription), DEADLINE_S)
        assert (first.number, first.out_of_order) == (1, False)
        assert (third.number, third.out_of_order) == (3, True)
