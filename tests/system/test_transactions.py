"""Transactions over real brokers, while stages are killed: nothing is torn, and each event reaches exactly one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

import ordered_pubsub
from ordered_pubsub import errors
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.subscription import Subscription
from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer, RabbitMq
from ordered_pubsub.testing.stages import StageProcesses

LEDGERS = ("high/a", "high/b", "middle/c", "middle/d", "low/e", "low/f")
TRANSFERS = 60
UPDATES, HAND_OVERS = 300, 40
PATIENCE_S, PAUSE_S = 60.0, 0.3


@pytest.fixture
def system(tmp_path: Path) -> Iterator[StageProcesses]:
    """Three stages."""
    found = StageProcesses(tmp_path, [["high/**"], ["middle/**"], ["**"]])
    found.start()
    yield found
    found.kill()


async def kill_one_after_the_other(system: StageProcesses, done: asyncio.Event) -> int:
    """Kill stages, and start them again, until all is done."""
    killed, finished = 0, asyncio.ensure_future(done.wait())
    while not done.is_set():
        stage = system.processes[killed % len(system.processes)]
        await asyncio.to_thread(stage.kill)
        killed += 1
        await asyncio.to_thread(stage.start)
        await asyncio.wait((finished,), timeout=PAUSE_S)  # so that something is done in between
    await finished
    return killed


async def transfer(client: Client, random: Random) -> None:
    """Take from one ledger what another one gets, again and again."""
    for number in range(TRANSFERS):
        one, other = random.sample(LEDGERS, 2)
        amount = random.randint(1, 100)
        await client.publish_batch([(one, -amount), (other, amount), ("audit", [one, other, amount, number])])


async def sum_up(subscription: Subscription, transfers: int) -> dict[str, int]:
    """What the ledgers have, looked at between transactions, when money is nowhere between them."""
    ledgers = dict.fromkeys(LEDGERS, 0)
    open_in = ""
    for _ in range(3 * transfers):
        event = await asyncio.wait_for(anext(subscription), PATIENCE_S)
        assert event.tx
        if event.tx != open_in:
            assert sum(ledgers.values()) == 0, f"{event.tx} begins, and {open_in} is not over"
            open_in = event.tx
        if event.topic != "audit":
            ledgers[event.topic] += event.data
    assert sum(ledgers.values()) == 0
    return ledgers


@pytest.mark.parametrize("start", [Mosquitto, NatsServer, RabbitMq])
def test_money_is_never_between_two_ledgers_whatever_is_killed(start: type[Broker], system: StageProcesses) -> None:
    async def run(url: str) -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    ordered_pubsub.connect(url, sequencer=system.addresses, timeout_s=PATIENCE_S)
                )
                for _ in range(4)
            ]
            watching = [await client.subscribe(*LEDGERS, "audit") for client in clients[:2]]
            done = asyncio.Event()
            killing = asyncio.create_task(kill_one_after_the_other(system, done))
            sums = [asyncio.create_task(sum_up(one, 2 * TRANSFERS)) for one in watching]
            await asyncio.gather(*(transfer(client, Random(place)) for place, client in enumerate(clients[2:])))
            found = await asyncio.gather(*sums)
            done.set()
            assert await killing > 0
            assert found[0] == found[1]

    with start() as broker:
        asyncio.run(run(broker.url))


async def update(client: Client) -> None:
    for number in range(UPDATES):
        await client.publish("high/job", number)


async def hand_over(client: Client, random: Random) -> int:
    """Let the other agent have the job: whoever has it; two dispatchers do it at once, so one of them may be too late."""
    handed = 0
    while handed < HAND_OVERS:
        one = random.choice((1, 2))
        tx = client.static_transaction()
        tx.at(f"agent-{one}").unsubscribe("work", "high/job")
        tx.at(f"agent-{3 - one}").subscribe("work", "high/job")
        try:
            await tx.commit()
            handed += 1
        except errors.TransactionConflict:
            pass
    return handed


async def work(subscription: Subscription) -> list[int]:
    found: list[int] = []
    async for event in subscription:
        if event.topic == "low/end":
            return found
        found.append(event.data)
    raise AssertionError("it has ended")


@pytest.mark.parametrize("start", [Mosquitto, NatsServer])
def test_each_update_reaches_exactly_one_agent_whatever_is_killed(start: type[Broker], system: StageProcesses) -> None:
    async def run(url: str) -> None:
        async with AsyncExitStack() as stack:

            async def connect(name: str | None = None) -> Client:
                client = ordered_pubsub.connect(url, sequencer=system.addresses, name=name, timeout_s=PATIENCE_S)
                return await stack.enter_async_context(client)

            agents = [await connect(f"agent-{number}") for number in (1, 2)]
            dispatchers = [await connect(), await connect()]
            subscriptions = [
                await agents[0].subscribe("high/job", name="work"),
                await agents[1].subscribe(name="work", empty=True),
            ]
            working = [asyncio.create_task(work(one)) for one in subscriptions]
            done = asyncio.Event()
            killing = asyncio.create_task(kill_one_after_the_other(system, done))
            await asyncio.gather(
                update(await connect()), *(hand_over(one, Random(place)) for place, one in enumerate(dispatchers))
            )
            end = dispatchers[0].static_transaction(strict=False)
            for number in (1, 2):
                end.at(f"agent-{number}").subscribe("work", "low/end")
            end.publish("low/end", None)
            await end.commit()
            one, two = await asyncio.gather(*working)
            done.set()
            assert await killing > 0
            assert sorted(one + two) == list(range(UPDATES))
            assert (one, two) == (sorted(one), sorted(two))

    with start() as broker:
        asyncio.run(run(broker.url))
