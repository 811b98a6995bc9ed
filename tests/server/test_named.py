"""Subscriptions that have a name: they outlive their client, go on where it was, end, and begin anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import ordered_pubsub
from ordered_pubsub.client.client import Client
from ordered_pubsub.errors import ConfigurationError, NotOffered, UsageError
from server.systems import System
from server.waiting import soon, until


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Two stages."""
    async with System(tmp_path, [["a"], ["b"]]) as system:
        await until(lambda: system.is_linked)
        yield system


@pytest.fixture
async def market(system: System) -> AsyncIterator[ordered_pubsub.Client]:
    async with system.connect() as client:
        yield client


async def take(subscription: ordered_pubsub.Subscription, count: int) -> list[ordered_pubsub.Event]:
    return [await soon(subscription.__anext__()) for _ in range(count)]


def data(events: list[ordered_pubsub.Event]) -> list[Any]:
    return [event.data for event in events]


async def test_it_goes_on_after_what_was_acknowledged(system: System, market: ordered_pubsub.Client) -> None:
    async with system.connect(0, name="desk") as client:
        book = await client.subscribe("a", "b", name="book", ack="manual")
        for number in range(6):
            await market.publish("ab"[number % 2], number)
        events = await take(book, 4)
        assert [event.redelivered for event in events] == [False] * 4
        await events[1].ack()
    async with system.connect(1, name="desk") as client:
        book = await client.subscribe(name="book", ack="manual")
        events = await take(book, 4)
        assert data(events) == [2, 3, 4, 5]
        assert [event.position for event in events] == [3, 4, 5, 6]
        assert all(event.redelivered for event in events)
        await book.commit(events[-1].vector)
        await market.publish("a", 6)
        (event,) = await take(book, 1)
        assert (event.data, event.redelivered) == (6, False)


async def test_what_was_published_while_nobody_was_there_comes(system: System, market: ordered_pubsub.Client) -> None:
    async with system.connect(name="desk") as client:
        await client.subscribe("a", "b", name="book")
    await market.publish_many("a", range(100))
    await market.publish_many("b", range(100, 200))
    async with system.connect(name="desk") as client:
        assert data(await take(await client.subscribe(name="book"), 200)) == list(range(200))


@pytest.mark.parametrize("homes", [(0, 0), (0, 1)])
async def test_of_two_clients_that_come_under_a_name_at_once_one_has_it_and_its_subscription(
    system: System, market: ordered_pubsub.Client, homes: tuple[int, int]
) -> None:
    """Whichever stages they come to: the other one gets an error."""
    coming = [system.connect(home, name="desk", connect_timeout_s=5.0) for home in homes]
    outcomes = await soon(asyncio.gather(*(one.__aenter__() for one in coming), return_exceptions=True))
    (client,) = [one for one in outcomes if isinstance(one, Client)]
    (error,) = [one for one in outcomes if isinstance(one, BaseException)]
    book = await client.subscribe("a", name="book")
    await market.publish("a", 1)

    assert isinstance(error, ConfigurationError)
    assert "'desk' is in use by another client" in str(error)
    assert data(await take(book, 1)) == [1]
    await client.close()


async def test_it_goes_on_by_its_filter(system: System, market: ordered_pubsub.Client) -> None:
    async with system.connect(name="desk") as client:
        book = await client.subscribe("a", name="book", where="n > 1")
        await book.add("b")
    for number in range(4):
        await market.publish("ab"[number % 2], {"n": number})
    async with system.connect(name="desk") as client:
        book = await client.subscribe(name="book")
        assert [event.data["n"] for event in await take(book, 3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("topics", "settings", "says"),
    [
        (["a", "b"], {}, "holds 'a'"),
        (["a"], {"order": "topic"}, "another order="),
        (["a"], {"where": "n > 1"}, "another filter"),
    ],
    ids=["topics", "order", "filter"],
)
async def test_one_that_is_there_is_not_taken_for_another(
    system: System, topics: list[str], settings: dict[str, Any], says: str
) -> None:
    async with system.connect(name="desk") as client:
        await (await client.subscribe("a", name="book")).close()
        with pytest.raises(UsageError, match=says):
            await client.subscribe(*topics, name="book", **settings)


async def test_one_with_a_name_gains_no_topic_whose_events_nobody_keeps(tmp_path: Path) -> None:
    """Nobody could give it what it has missed while it was away."""
    ordered = '[[topic]]\npattern = "ticks"\ndelivery = "ordered"\n'
    async with System(tmp_path, [["**"]], before=ordered) as system, system.connect(name="desk") as client:
        book = await client.subscribe("a", name="book", delivery="ordered")
        with pytest.raises(NotOffered, match="topic 'ticks' gives delivery='ordered'"):
            await book.add("ticks")
        assert book.topics == ["a"]


@pytest.mark.parametrize("topics", ["a", "ab", "b"])
async def test_one_that_was_ended_may_be_begun_anew_at_once(
    system: System, market: ordered_pubsub.Client, topics: str
) -> None:
    """It has nothing to do with the one before, and waits for nothing of it, though nothing was published in between."""
    async with system.connect(0, name="desk") as client:
        book = await client.subscribe("a", "b", name="book")
        for _ in range(3):
            await book.remove("b")
            await book.add("b")
        await book.unsubscribe()
        again = await soon(client.subscribe(*topics, name="book"))
        for number in range(4):
            await market.publish(topics[number % len(topics)], number)

        events = await take(again, 4)
        assert data(events) == [0, 1, 2, 3]
        assert [event.position for event in events] == [1, 2, 3, 4]


async def test_one_without_an_event_since_it_ended_can_be_begun_anew_by_another_process(
    system: System, market: ordered_pubsub.Client
) -> None:
    async with system.connect(0, name="desk") as client:
        await (await client.subscribe("a", name="book")).unsubscribe()
    async with system.connect(1, name="desk") as client:
        again = await soon(client.subscribe("a", name="book", start="earliest"))
        await market.publish("a", 1)
        assert data(await take(again, 1)) == [1]
