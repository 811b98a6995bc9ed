"""Publications on several topics that are one transaction."""

from __future__ import annotations

import asyncio

import pytest

import ordered_pubsub
from helpers.clients import HeldAdapter, take, until
from ordered_pubsub import errors
from ordered_pubsub.client.client import Client
from ordered_pubsub.core.transactions import TRANSACTION_TOPIC_EVENTS_MAX, TRANSACTION_TOPICS_MAX


async def test_a_batch_is_one_transaction_in_its_order(client: Client) -> None:
    subscription = await client.subscribe("a", "b", "c")
    await client.publish("a", "before")
    batch = [("b", 1), ("a", 2), ("b", 3), ("c", 4), ("c", 5)]
    receipts = await client.publish_batch(batch)
    await client.publish("a", "after")

    events = await take(subscription, 7)
    assert [(receipt.topic, receipt.number) for receipt in receipts] == [
        ("b", 1),
        ("a", 2),
        ("b", 2),
        ("c", 1),
        ("c", 2),
    ]
    assert [(event.topic, event.data) for event in events[1:6]] == batch
    assert [event.id for event in events[1:6]] == [receipt.id for receipt in receipts]
    assert [event.position for event in events] == list(range(1, 8))
    (transaction,) = {event.tx for event in events[1:6]}
    assert transaction
    assert (events[0].tx, events[6].tx) == (None, None)


async def test_each_has_a_name_of_its_own(client: Client) -> None:
    subscription = await client.subscribe("a", "b")
    for number in range(3):
        await client.publish_batch([("a", number), ("b", number)])
    assert len({event.tx for event in await take(subscription, 6)}) == 3


async def test_it_keeps_its_place_among_what_is_published_without_waiting(client: Client) -> None:
    subscription = await client.subscribe("a", "b")
    before = [client.publish_nowait("ab"[number % 2], number) for number in range(10)]
    together = asyncio.create_task(client.publish_batch([("b", 10), ("a", 11)]))
    await asyncio.sleep(0)
    after = [client.publish_nowait("ab"[number % 2], number) for number in range(12, 20)]

    await asyncio.gather(*before, together, *after)
    assert [event.data for event in await take(subscription, 20)] == list(range(20))


async def test_events_that_share_messages_are_no_part_of_it(url: str) -> None:
    async with ordered_pubsub.connect(url, linger_s=0.05, batch_events_max=100) as client:
        subscription = await client.subscribe("a", "b")
        before = client.publish_nowait("a", "before")
        await client.publish_batch([("a", 1), ("b", 2), ("a", 3)])
        after = client.publish_nowait("a", "after")

        await asyncio.gather(before, after)
        events = await take(subscription, 5)
        assert [event.data for event in events] == ["before", 1, 2, 3, "after"]
        assert [bool(event.tx) for event in events] == [False, True, True, True, False]


async def test_it_waits_for_room_for_all_of_it(url: str) -> None:
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter, pipeline_events_max=4) as client:
        adapter.may_publish.clear()
        first = [client.publish_nowait("a", number) for number in range(3)]
        await until(lambda: client.status()["unfinished"] == 3)
        together = asyncio.create_task(client.publish_batch([("a", 2), ("b", 3), ("c", 4)]))
        await asyncio.sleep(0)
        with pytest.raises(errors.WouldBlock):
            client.publish_nowait("a", "me first")
        assert not together.done()
        adapter.may_publish.set()
        assert [receipt.topic for receipt in await together] == ["a", "b", "c"]
        await asyncio.gather(*first)


async def test_one_that_is_given_up_leaves_nothing(url: str) -> None:
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter, pipeline_events_max=1) as client:
        adapter.may_publish.clear()
        first = client.publish_nowait("a", 1)
        together = asyncio.create_task(client.publish_batch([("a", 2), ("b", 3)]))
        await asyncio.sleep(0)
        together.cancel()
        with pytest.raises(asyncio.CancelledError):
            await together
        adapter.may_publish.set()
        await first
        assert (await client.publish("b", 4)).number == 1
        assert client.status()["unfinished"] == 0


async def test_what_cannot_be_one_is_refused_with_the_reason_and_nothing_is_published(client: Client) -> None:
    for batch, error, why in (
        ([("a", 1), ("b", object())], errors.UsageError, "JSON"),
        ([("a", 1), "b"], errors.UsageError, "pairs of a topic"),
        ([("a", 1), ("", 2)], errors.TopicError, "topic"),
        ([(f"t{n}", n) for n in range(TRANSACTION_TOPICS_MAX + 1)], errors.UsageError, "at most 64 topics"),
        ([("a", n) for n in range(TRANSACTION_TOPIC_EVENTS_MAX + 1)], errors.UsageError, "on one topic"),
        ([("ab"[n % 2], "x" * 900_000) for n in range(5)], errors.UsageError, "payload_bytes_max"),
    ):
        with pytest.raises(error, match=why):
            await client.publish_batch(batch)  # type: ignore[arg-type]
    assert await client.publish_batch([]) == []
    assert (await client.publish("a", 1)).number == 1


async def test_topics_that_are_not_kept_are_refused(ordered_client: Client) -> None:
    with pytest.raises(errors.NotOffered, match="exactly-once"):
        await ordered_client.publish_batch([("a", 1), ("b", 2)])


async def test_who_reads_the_past_is_told_as_well(client: Client) -> None:
    await client.publish_batch([("a", 1), ("b", 2)])
    await client.publish("a", 3)
    subscription = await client.subscribe("a", "b", start="earliest")
    events = await take(subscription, 3)
    assert [event.data for event in events] == [1, 2, 3]
    assert events[0].tx == events[1].tx != None  # noqa: E711
    assert events[2].tx is None
