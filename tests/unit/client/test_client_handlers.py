"""Handlers (`notify=`): called in the order, and what happens when they fail, are slow, or close what they belong to."""

from __future__ import annotations

import asyncio

import pytest

import ordered_pubsub
from helpers.clients import PATIENCE_S, Reversed, take, until
from ordered_pubsub import errors
from ordered_pubsub.client.client import Client


async def test_a_handler_is_called_for_each_event_in_order(client: Client) -> None:
    """One after the other, be it plain or async, and it may publish."""
    plain: list[int] = []
    thorough: list[int] = []

    async def handler(event: ordered_pubsub.Event) -> None:
        await client.publish("b", event.data)
        thorough.append(event.data)

    one = await client.subscribe("a", notify=lambda event: plain.append(event.data))
    two = await client.subscribe("a", notify=handler)
    await client.publish_many("a", range(20))
    await one.unsubscribe()
    await two.unsubscribe()
    await asyncio.wait_for(asyncio.gather(one.wait(), two.wait()), PATIENCE_S)

    assert plain == thorough == list(range(20))
    with pytest.raises(errors.UsageError, match="notify="):
        await one.__anext__()


async def test_a_handler_that_raises_stops_its_subscription(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged, and raised by whoever asks; no further event is handled."""
    handled = []

    def handler(event: ordered_pubsub.Event) -> None:
        handled.append(event.data)
        raise ValueError("no such thing")

    subscription = await client.subscribe("a", notify=handler)
    await client.publish_many("a", range(3))

    with pytest.raises(ValueError, match="no such thing"):
        await asyncio.wait_for(subscription.wait(), PATIENCE_S)
    with pytest.raises(ValueError, match="no such thing"):
        await subscription.add("b")
    await subscription.close()  # somebody was told
    assert handled == [0]
    assert "notify= handler failed" in caplog.text
    assert isinstance(subscription.error, ValueError)


async def test_a_handler_that_awaits_what_is_cancelled_stops_its_subscription(client: Client) -> None:
    """That is an error like any other, and not a reason to fall silent."""

    async def handler(event: ordered_pubsub.Event) -> None:
        raise asyncio.CancelledError

    subscription = await client.subscribe("a", notify=handler)
    await client.publish("a", 1)

    with pytest.raises(errors.Closed, match="cancelled"):
        await asyncio.wait_for(subscription.wait(), PATIENCE_S)


async def test_what_nobody_was_told_is_raised_by_close(url: str) -> None:
    """A failed handler is not swallowed."""

    def handler(event: ordered_pubsub.Event) -> None:
        raise ValueError("no such thing")

    client = await ordered_pubsub.connect(url)
    subscription = await client.subscribe("a", notify=handler)
    await client.publish("a", 1)
    await until(lambda: subscription.error)

    with pytest.raises(ValueError, match="no such thing"):
        await client.close()


async def test_the_error_of_the_block_is_the_one_that_is_raised(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """What closing had to say is in the log."""

    def handler(event: ordered_pubsub.Event) -> None:
        raise ValueError("no such thing")

    async def fail() -> None:
        async with ordered_pubsub.connect(url) as client:
            subscription = await client.subscribe("a", notify=handler)
            await client.publish("a", 1)
            await until(lambda: subscription.error)
            raise KeyError("the block's own")

    with pytest.raises(KeyError, match="own"):
        await fail()
    assert "while closing after KeyError" in caplog.text


async def test_a_failing_handler_of_bad_events_stops_the_subscription_too(url: str, client: Client) -> None:
    """Iteration raises its error."""

    def on_bad_event(event: ordered_pubsub.Event) -> None:
        raise LookupError(event.id)

    subscription = await client.subscribe("a", on_bad_event=on_bad_event)
    async with ordered_pubsub.connect(url, serializer=Reversed()) as other:
        await other.publish("a", "abc", id="bad")

    with pytest.raises(LookupError, match="bad"):
        await take(subscription, 1)


async def test_a_handler_may_close_its_client(url: str) -> None:
    """Nobody waits for anybody."""
    client = await ordered_pubsub.connect(url)

    async def handler(event: ordered_pubsub.Event) -> None:
        await client.close()
        closed.set()

    closed = asyncio.Event()
    await client.subscribe("a", notify=handler)
    await client.publish("a", 1)
    await asyncio.wait_for(closed.wait(), PATIENCE_S)

    with pytest.raises(errors.Closed):
        await client.publish("a", 2)


async def test_closing_lets_a_handler_finish_its_event(url: str) -> None:
    """And gives it no other."""
    finished = []

    async def handler(event: ordered_pubsub.Event) -> None:
        started.set()
        await may_finish.wait()
        finished.append((event.data, (await client.publish("b", 0)).number))

    started, may_finish = asyncio.Event(), asyncio.Event()
    client = await ordered_pubsub.connect(url)
    await client.subscribe("a", notify=handler)
    await client.publish_many("a", range(3))
    await asyncio.wait_for(started.wait(), PATIENCE_S)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    may_finish.set()
    await asyncio.wait_for(closing, PATIENCE_S)

    assert finished == [(0, 1)]


async def test_who_interrupts_the_block_does_not_wait_for_a_handler_that_never_returns(url: str) -> None:
    at_work = asyncio.Event()

    async def handler(_: ordered_pubsub.Event) -> None:
        at_work.set()
        await asyncio.Event().wait()

    async def program() -> None:
        async with ordered_pubsub.connect(url) as client:
            subscription = await client.subscribe("t", notify=handler)
            await client.publish("t", 1)
            await subscription.wait()

    task = asyncio.create_task(program())
    await asyncio.wait_for(at_work.wait(), PATIENCE_S)
    task.cancel()
    await asyncio.wait_for(asyncio.wait((task,)), PATIENCE_S)
    assert task.cancelled()


async def test_leaving_the_client_ends_its_handlers_at_the_event_that_they_are_at(url: str) -> None:
    notified = []

    async def handler(event: ordered_pubsub.Event) -> None:
        notified.append(event.number)
        await asyncio.sleep(0)

    async with ordered_pubsub.connect(url) as client:
        await client.subscribe("t", notify=handler)
        await client.publish_many("t", range(1000))
        seen = len(notified)
    assert len(notified) <= seen + 1


async def test_a_failing_handler_is_logged_with_the_event_and_what_follows(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(_: ordered_pubsub.Event) -> None:
        raise ValueError("my handler's bug")

    subscription = await client.subscribe("t", notify=handler)
    await client.publish("t", 1)
    with pytest.raises(ValueError, match="my handler's bug"):
        await asyncio.wait_for(subscription.wait(), PATIENCE_S)
    assert "failed on 't' number 1, so it has ended and notifies no later event" in caplog.text
