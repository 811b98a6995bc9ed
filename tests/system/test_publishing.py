"""What a task of Spark publishes reaches the broker as well, if it is told of one; and if that fails, the logs have it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import ordered_pubsub
from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.spark import ens as ens_of_tasks
from ordered_pubsub.spark import publishing
from ordered_pubsub.spark.ens import TaskEns
from ordered_pubsub.spark.publishing import Identity, TaskPublishing
from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer, RabbitMq
from ordered_pubsub.testing.stages import StageProcesses
from ordered_pubsub.wire.content import JSON
from ordered_pubsub.wire.pack import NO_HEADERS

COUNT = 500
PATIENCE_S = 60.0


@pytest.fixture
def system(tmp_path: Path) -> Iterator[StageProcesses]:
    """Two stages."""
    found = StageProcesses(tmp_path, [["eu/**"], ["**"]])
    found.start()
    yield found
    found.kill()


def publish(system: StageProcesses, ens: TaskEns) -> None:
    with StageLines(ReaderAccess(ClientSection(sequencer=tuple(system.addresses)))) as stages:
        task = TaskPublishing(stages, Identity("query", 0, 0), "spark", ens=ens)
        for number in range(COUNT):
            task.put(Outgoing(("eu/a", "us/b")[number % 2], "", str(number).encode(), JSON, NO_HEADERS, 100))
        task.finish()
        task.close()


async def numbers(subscription: ordered_pubsub.Subscription) -> list[int]:
    found = [await asyncio.wait_for(subscription.__anext__(), PATIENCE_S) for _ in range(COUNT)]
    assert {event.publisher for event in found} == {"spark"}
    return [event.data for event in found]


@pytest.mark.parametrize("start", [Mosquitto, NatsServer, RabbitMq])
def test_subscribers_that_look_into_no_log_hear_of_it_on_the_broker(
    start: type[Broker], system: StageProcesses
) -> None:
    async def run(url: str) -> list[int]:
        settings = {"sequencer": system.addresses, "delivery": "best-effort"}
        async with ordered_pubsub.connect(url, **settings) as client:
            subscription = await client.subscribe("eu/a", "us/b")
            ens = await asyncio.to_thread(TaskEns.open, url, 30.0)
            await asyncio.to_thread(publish, system, ens)
            await asyncio.to_thread(ens.close)
            return await numbers(subscription)

    with start() as broker:
        found = asyncio.run(run(broker.url))
    assert sorted(found) == list(range(COUNT))


def test_a_broker_that_is_gone_takes_nothing_away_and_no_time(
    system: StageProcesses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once, and then left alone, however many requests there are."""
    monkeypatch.setattr(publishing, "REQUEST_EVENTS_MAX", 10)
    monkeypatch.setattr(ens_of_tasks, "TIMEOUT_S", 1.0)
    with Mosquitto() as broker:
        ens = TaskEns.open(broker.url, 30.0)
        broker.kill()
        with caplog.at_level(logging.WARNING):
            publish(system, ens)
        ens.close()

    async def run() -> list[int]:
        async with ordered_pubsub.connect("memory://elsewhere", sequencer=system.addresses) as client:
            return await numbers(await client.subscribe("eu/a", "us/b", start="earliest"))

    assert sorted(asyncio.run(run())) == list(range(COUNT))
    (warning,) = [record.getMessage() for record in caplog.records if "ENS did not take" in record.getMessage()]
    assert "which their logs have" in warning


def test_a_broker_that_cannot_be_reached_is_said_before_anything_is_published() -> None:
    with pytest.raises(OrderedPubSubError, match=r"127\.0\.0\.1:1\b"):
        TaskEns.open("mqtt://127.0.0.1:1", 5.0)
