"""What a broker would never take is refused before it has a number, and whatever has one is taken: nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ordered_pubsub
from ordered_pubsub.errors import UsageError
from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer, RabbitMq
from ordered_pubsub.testing.stages import StageProcesses

PATIENCE_S = 30


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[str]:
    stages = StageProcesses(tmp_path, [["**"]], durability="os")
    stages.start()
    yield stages.addresses[0]
    stages.kill()


async def take(subscription: ordered_pubsub.Subscription, count: int) -> list[ordered_pubsub.Event]:
    """The next events."""

    async def read() -> list[ordered_pubsub.Event]:
        return [await anext(subscription) for _ in range(count)]

    return await asyncio.wait_for(read(), PATIENCE_S)


@pytest.mark.parametrize("start", [lambda: Mosquitto(max_packet_size=100_000), NatsServer], ids=["mqtt", "nats"])
async def test_an_event_that_the_broker_does_not_take_gets_no_number(start: Callable[[], Broker], stage: str) -> None:
    with start() as broker:
        async with ordered_pubsub.connect(broker.url, sequencer=stage, payload_bytes_max=1 << 30) as client:
            subscription = await client.subscribe("a")
            with pytest.raises(UsageError, match="what the ENS takes"):
                await client.publish("a", b"x" * (1 << 20))
            await client.publish("a", b"x" * 70_000)

            event = await anext(subscription)
    assert (event.number, len(event.raw)) == (1, 70_000)


@pytest.mark.parametrize("start", [lambda: Mosquitto(max_packet_size=100_000), NatsServer], ids=["mqtt", "nats"])
async def test_packs_are_no_larger_than_the_broker_takes(start: Callable[[], Broker], stage: str) -> None:
    """Headers and ids count, too: 300 events are some megabytes here."""
    headers = {"h": "é" * 1_000}
    with start() as broker:
        async with ordered_pubsub.connect(broker.url, sequencer=stage, batch_events_max=1_000) as client:
            subscription = await client.subscribe("a")
            sent = [client.publish_nowait("a", b"x" * 5_000, headers=headers, id=f"{n:0200}") for n in range(300)]
            receipts = await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)

            events = await take(subscription, 300)
    assert [receipt.number for receipt in receipts] == [event.number for event in events] == list(range(1, 301))


@pytest.mark.parametrize("start", [Mosquitto, NatsServer, RabbitMq], ids=["mqtt", "nats", "rabbitmq"])
async def test_an_event_with_a_timestamp_too_long_for_headers_arrives(start: Callable[[], Broker], stage: str) -> None:
    """No broker takes a header of so many bytes."""
    topics = [f"{'long' * 45}-{number}" for number in range(800)]
    with start() as broker:
        async with ordered_pubsub.connect(broker.url, sequencer=stage) as client:
            await asyncio.gather(*[client.publish_nowait(topic, 0) for topic in topics])
            subscription = await client.subscribe(*topics)
            sent = [client.publish_nowait(topics[0], n, headers={"h": b"x"}) for n in range(2)]
            await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)

            events = await take(subscription, 2)
    assert [(event.number, event.data, event.headers) for event in events] == [(2, 0, {"h": b"x"}), (3, 1, {"h": b"x"})]
