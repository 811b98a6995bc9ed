"""What a broker would never take is refused before it has a number: nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ordered_pubsub
from ordered_pubsub.errors import UsageError
from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer
from ordered_pubsub.testing.trial.system import Stages


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[str]:
    stages = Stages(tmp_path, [["**"]], durability="os")
    stages.start()
    yield stages.addresses[0]
    stages.kill()


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
