"""Events that wait: for a slow consumer, for earlier ones that are lost, and those that have no place in the order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import ordered_pubsub
from helpers.clients import HeldAdapter, LossyAdapter, names, signed_batch, stamp, take, until
from ordered_pubsub import errors
from ordered_pubsub.client.client import Client
from ordered_pubsub.wire.event_frames import PACK, STAMP
from ordered_pubsub.wire.pack import PackedEvent, encode_pack
from ordered_pubsub_adapters import memory


async def test_a_slow_consumer_is_felt_by_the_publisher(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing grows without bound and nothing is dropped: publications wait until events are read."""
    monkeypatch.setattr(memory, "LANE_FRAMES_MAX", 10)
    monkeypatch.setattr(memory, "BATCH_FRAMES_MAX", 5)
    publisher = await ordered_pubsub.connect(url, pipeline_events_max=10)
    async with ordered_pubsub.connect(url, queue_events_max=20) as client:
        subscription = await client.subscribe("a", "b")
        publishing = asyncio.create_task(publisher.publish_many("a", range(500)))
        await until(lambda: "does not read" in publisher.status()["waiting_for"] and subscription.lag.unread >= 20)
        for _ in range(100):
            await asyncio.sleep(0)
        assert subscription.lag.unread <= 25
        assert not publishing.done()
        async with ordered_pubsub.connect(url) as other:
            await other.publish("c", "others are not held up")

        assert [event.data for event in await take(subscription, 500)] == list(range(500))
        assert len(await publishing) == 500
    await publisher.close()


async def test_a_queue_is_bounded_in_bytes_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few big events fill it as many small ones do."""
    monkeypatch.setattr(memory, "BATCH_FRAMES_MAX", 1)
    async with ordered_pubsub.connect(url, queue_bytes_max=1000) as client:
        subscription = await client.subscribe("a")
        await client.publish_many("a", [b"x" * 400] * 10)
        for _ in range(100):
            await asyncio.sleep(0)
        assert subscription.lag.unread == 3

        assert len(await take(subscription, 10)) == 10


async def test_a_full_subscription_can_be_changed_by_the_task_that_reads_it(url: str) -> None:
    """The ENS's answer comes behind frames on the same connection, so these are taken meanwhile."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(url) as publisher, ordered_pubsub.connect(adapter, queue_events_max=5) as client:
        subscription = await client.subscribe("a")
        adapter.may_subscribe.clear()  # opened by the last of the frames that come first
        publishing = asyncio.create_task(publisher.publish_many("a", range(5_000)))
        await until(lambda: subscription.lag.unread >= 5)
        adding = asyncio.create_task(subscription.add("b"))
        await until(lambda: subscription.lag.unread == 5_000)
        adapter.may_subscribe.set()
        await adding
        assert len(await publishing) == 5_000
        assert [event.data for event in await take(subscription, 5_000)] == list(range(5_000))


async def test_a_subscription_that_is_never_read_is_named_in_the_log(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And does not keep its client from closing."""
    monkeypatch.setattr("ordered_pubsub.client.incoming.reception.STALLED_AFTER_S", 0.001)
    async with ordered_pubsub.connect(url, queue_events_max=5) as client:
        subscription = await client.subscribe("a")
        await client.publish_many("a", range(5))
        await until(lambda: "has not been read" in caplog.text)

    assert subscription.identity in caplog.text


async def test_too_many_events_that_wait_stop_the_subscription(
    ordered_client: Client, publish_frame: Callable[..., Any]
) -> None:
    """What came before the gap can be read, then the error is raised; other subscriptions go on."""
    client = ordered_client
    subscription, other = await client.subscribe("a", buffer_events_max=3), await client.subscribe("b")
    for number in (1, 3, 4, 5, 6, 7):
        await publish_frame("a", b"0", stamp(number))
    await until(lambda: subscription.error)

    assert names(await take(subscription, 1)) == [("a", 1)]
    assert subscription.clock == {"a": 1}
    with pytest.raises(errors.BufferOverflow, match="limit is 3"):
        await take(subscription, 1)
    await client.publish("b", 1)
    assert names(await take(other, 1)) == [("b", 1)]


async def test_what_is_kept_may_wait_in_any_number(url: str) -> None:
    """What the buffer has no room for is let go, and asked for when its turn has come."""
    async with ordered_pubsub.connect(LossyAdapter(url, lambda count: count == 1)) as client:
        subscription = await client.subscribe("a", buffer_events_max=3)
        await client.publish_many("a", range(50))

        assert [event.data for event in await take(subscription, 50)] == list(range(50))


async def test_what_waits_is_bounded_in_bytes_too(
    url: str, publish_frame: Callable[..., Any], ordered_topics: None
) -> None:
    """Payloads count, and headers, and timestamps."""
    async with ordered_pubsub.connect(url, delivery="ordered", buffer_bytes_max=10_000) as client:
        for topic, payload, more, entries in (
            ("a", b"x" * 6_000, {}, {}),
            ("b", b"", {"header": "x" * 6_000}, {}),
            ("c", b"", {}, {f"{number}": 1 for number in range(60)}),
        ):
            subscription = await client.subscribe(topic)
            await publish_frame(topic, payload, {**stamp(2, entries=entries), **more})
            await until(lambda held=subscription: held.lag.waiting)
            await publish_frame(topic, payload, {**stamp(3, entries=entries), **more})
            await until(lambda held=subscription: held.error)
            with pytest.raises(errors.BufferOverflow, match=r"10000 bytes \(buffer_bytes_max\)"):
                await subscription.close()


async def test_a_best_effort_buffer_full_of_bytes_gives_its_oldest_event(
    url: str, publish_frame: Callable[..., Any]
) -> None:
    """Long before its patience ends."""
    async with ordered_pubsub.connect(url, delivery="best-effort", buffer_bytes_max=10_000, ttl_s=1e6) as client:
        subscription = await client.subscribe("a")
        for number in (2, 4):
            await publish_frame("a", b"x" * 6_000, stamp(number, full=True))

        assert names(await take(subscription, 1)) == [("a", 2)]


async def test_packed_events_that_wait_count_their_bytes_too(
    url: str, publish_frame: Callable[..., Any], ordered_topics: None
) -> None:
    """With their headers; what all events of a batch share counts once."""
    events = [PackedEvent(f"{n}", b"x" * 1_000, "text/plain", {"h": "x" * 1_000}) for n in range(5)]
    entries = {f"{number}": 1 for number in range(40)}
    first = stamp(2, entries=entries, full=True)[STAMP]
    async with ordered_pubsub.connect(url, delivery="ordered", buffer_bytes_max=15_000) as client:
        subscription = await client.subscribe("a")
        await publish_frame("a", encode_pack([signed_batch(url, "a", events, first)]), {PACK: "1"})
        await until(lambda: subscription.lag.waiting == 5)
        later = signed_batch(url, "a", events, replace(first, number=7))
        await publish_frame("a", encode_pack([later]), {PACK: "1"})
        await until(lambda: subscription.error)
        with pytest.raises(errors.BufferOverflow, match="buffer_bytes_max"):
            await subscription.close()


async def test_a_handler_reads_up_to_the_overflow_and_no_one_misses_the_error(
    url: str, publish_frame: Callable[..., Any], ordered_topics: None
) -> None:
    """It is raised by close, since nobody was told."""
    handled = []
    client = await ordered_pubsub.connect(url, delivery="ordered")
    subscription = await client.subscribe("a", buffer_events_max=2, notify=lambda event: handled.append(event.number))
    for number in (1, 3, 4, 5):
        await publish_frame("a", b"0", stamp(number))
    await until(lambda: subscription.error and handled)

    with pytest.raises(errors.BufferOverflow):
        await client.close()
    assert handled == [1]


async def test_lag_says_what_is_waited_for(client: Client, publish_frame: Callable[..., Any]) -> None:
    """By topic and number, in the subscription and in the client's status."""
    subscription = await client.subscribe("a", "b")
    await publish_frame("a", b"0", stamp(2))
    await until(lambda: subscription.lag.waiting)

    assert subscription.lag == ordered_pubsub.Lag(unread=0, waiting=1, waiting_for="'a' for its number 1")
    status = client.status()
    assert status["subscriptions"][0]["waiting_for"] == "'a' for its number 1"
    assert status["waiting_for"] == f"subscription {status['subscriptions'][0]['id']}: 'a' for its number 1"


async def test_the_clock_is_what_the_application_has_taken(client: Client) -> None:
    """Not what waits for it in the queue."""
    subscription = await client.subscribe("a", "b")
    await client.publish_many("a", range(3))
    await until(lambda: subscription.lag.unread == 3)
    clocks = [subscription.clock]
    for _ in range(3):
        await take(subscription, 1)
        clocks.append(subscription.clock)

    assert clocks == [{"a": count, "b": 0} for count in range(4)]


async def test_what_was_not_published_through_the_order_is_counted_and_not_delivered(
    client: Client, publish_frame: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once per topic, whether it has no stamp or one that cannot be read."""
    subscription = await client.subscribe("a")
    for headers in ({}, {}, {STAMP: b""}, {STAMP: b"\x63"}, {STAMP: b"\x01junk"}, {STAMP: "text"}):
        await publish_frame("a", b"plain", headers)
    await client.publish("a", "ours")

    assert [event.data for event in await take(subscription, 1)] == ["ours"]
    status = client.status()
    assert status["frames_unstamped"] == 2
    assert status["not_arrived"] == {"unreadable": 2, "version": 2}
    assert len([record for record in caplog.records if "not delivered" in record.message]) == 1
    assert len([record for record in caplog.records if "has not arrived" in record.message]) == 2


async def test_best_effort_goes_on_over_an_ens_that_loses(url: str) -> None:
    """Every event that comes is notified; those that came late or over a gap are tagged."""
    async with ordered_pubsub.connect(f"{url}?lose=0.3&seed=5", delivery="best-effort", ttl_s=0.01) as client:
        subscription = await client.subscribe("a", "b", buffer_events_max=10)
        for number in range(200):
            client.publish_nowait("ab"[number % 2], number)
        await until(lambda: client.status()["unfinished"] == 0)
        await until(lambda: subscription.lag.unread and not subscription.lag.waiting)
        await until(lambda: sum(subscription.clock.values()) == 0 and subscription.lag.unread > 100)
        events = await take(subscription, subscription.lag.unread)

    assert 100 < len(events) < 180
    assert all(event.position is None for event in events)
    assert {event.out_of_order for event in events} == {True, False}


async def test_best_effort_notifies_what_has_waited_long_enough(
    client: Client, publish_frame: Callable[..., Any]
) -> None:
    """Out of order, and says so; an event that had been passed is notified late."""
    subscription = await client.subscribe("a", delivery="best-effort", ttl_s=0.001)
    await publish_frame("a", b"2", stamp(2, full=True))
    first = await take(subscription, 1)
    await publish_frame("a", b"1", stamp(1, full=True))
    second = await take(subscription, 1)

    assert [(event.number, event.out_of_order) for event in first + second] == [(2, True), (1, True)]
