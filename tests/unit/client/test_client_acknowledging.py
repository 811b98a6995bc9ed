"""What an application has handled is acknowledged, and nothing else: also by several tasks, and if they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import ordered_pubsub
from helpers.clients import PATIENCE_S, HeldAdapter, take, until
from ordered_pubsub import errors
from ordered_pubsub.client.client import Client


@pytest.fixture
async def market(url: str) -> AsyncIterator[Client]:
    """It is there for as long as the test, and so is the stage."""
    async with ordered_pubsub.connect(url) as client:
        yield client


async def next_of(url: str) -> int:
    """Where a subscription goes on when its client comes again."""
    async with ordered_pubsub.connect(url, name="desk") as client:
        (event,) = await take(await client.subscribe(name="book"), 1)
        return int(event.number)


async def test_what_another_task_works_on_is_not_acknowledged(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe("a", name="book")
        await market.publish_many("a", range(5))
        working, may_end = asyncio.Event(), asyncio.Event()

        async def work_long() -> None:
            await book.__anext__()
            working.set()
            await may_end.wait()

        slow = asyncio.create_task(work_long())
        await until(working.is_set)
        await take(book, 3)
        slow.cancel()

    assert await next_of(url) == 1


async def test_what_was_handled_behind_it_is_acknowledged_when_it_is(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe("a", name="book")
        await market.publish_many("a", range(5))
        turn = asyncio.Event()

        async def work_long() -> None:
            await book.__anext__()
            await turn.wait()
            await book.__anext__()

        slow = asyncio.create_task(work_long())
        await until(lambda: book.lag.unread == 4)
        await take(book, 2)
        turn.set()
        await slow

    assert await next_of(url) == 3


async def test_a_task_that_failed_has_handled_nothing(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe("a", name="book")
        await market.publish_many("a", range(5))

        async def fail() -> None:
            await book.__anext__()
            raise KeyError("planted")

        with pytest.raises(KeyError):
            await asyncio.create_task(fail())
        await take(book, 3)

    assert await next_of(url) == 1


async def test_what_was_awaited_with_a_limit_is_handled_by_who_asks_again(url: str, market: Client) -> None:
    """`wait_for` runs it in a task of its own, up to Python 3.11."""
    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe("a", name="book")
        await market.publish_many("a", range(5))
        for _ in range(4):
            await asyncio.wait_for(book.__anext__(), PATIENCE_S)

    assert await next_of(url) == 4


@pytest.mark.parametrize("awaits", range(6))
async def test_an_unfinished_batch_that_is_cancelled_is_not_taken(url: str, market: Client, awaits: int) -> None:
    """Wherever it is cancelled, nothing is lost, and nothing of it is acknowledged later."""
    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe("a", name="book")
        batches = book.batches(10, max_wait_s=PATIENCE_S)
        taking = asyncio.create_task(batches.__anext__())
        for step in range(awaits):
            if step == 1:
                await market.publish_many("a", range(3))
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait((taking,))
        await market.publish("a", 3)
        await until(lambda: book.lag.unread == book.clock["a"] + 4 - book.clock["a"] - (awaits < 2) * 3)
        (event,) = await take(book, 1)

        assert event.number == 1


async def test_batches_go_on_after_a_time_limit(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe("a", name="book")
        await market.publish_many("a", range(3))
        batches = book.batches(4, max_wait_s=PATIENCE_S)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(batches.__anext__(), 0.01)
        await market.publish("a", 3)

        assert [event.data for event in await asyncio.wait_for(batches.__anext__(), PATIENCE_S)] == [0, 1, 2, 3]


async def test_a_bad_event_whose_handler_is_cancelled_comes_again(url: str, market: Client) -> None:
    seen: list[int] = []
    blocked = asyncio.Event()

    async def on_bad_event(event: ordered_pubsub.Event) -> None:
        seen.append(event.number)
        if len(seen) == 1:
            blocked.set()
            await asyncio.Event().wait()

    async with ordered_pubsub.connect(url, serializer=_Bad()) as reader:
        book = await reader.subscribe("a", on_bad_event=on_bad_event)
        await market.publish_many("a", ["bad", "good"])
        taking = asyncio.ensure_future(book.__anext__())
        await until(blocked.is_set)
        taking.cancel()
        await asyncio.wait((taking,))
        (event,) = await take(book, 1)

        assert (seen, event.number) == ([1, 1], 2)


class _Bad:
    """Cannot read some events."""

    content_type = "application/json"

    def dumps(self, data: object) -> bytes:
        return str(data).encode()

    def loads(self, payload: bytes) -> object:
        if b"bad" in payload:
            raise ValueError("bad")
        return payload


# -- what is not acknowledged -----------------------------------------------------------------------------------------


async def test_what_is_not_acknowledged_is_bounded_and_that_is_said(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk", unacknowledged_events_max=3) as client:
        book = await client.subscribe("a", name="book", ack="manual")
        await market.publish_many("a", range(5))
        events = await take(book, 3)
        asking = asyncio.ensure_future(book.__anext__())
        await until(lambda: book.lag.unread == 2)

        assert not asking.done()
        assert (book.status()["unacknowledged"], book.status()["waiting_for"][:16]) == (3, "acknowledgements")
        await events[0].ack()
        assert (await asyncio.wait_for(asking, PATIENCE_S)).data == 3


async def test_a_batch_ends_where_the_bound_is(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk", unacknowledged_events_max=3) as client:
        book = await client.subscribe("a", name="book", ack="manual")
        await market.publish_many("a", range(5))
        batches = book.batches(max_wait_s=0.0)
        first = await asyncio.wait_for(batches.__anext__(), PATIENCE_S)
        await book.commit(first[-1].vector)

        assert [len(first), len(await asyncio.wait_for(batches.__anext__(), PATIENCE_S))] == [3, 2]


async def test_one_who_acknowledges_by_asking_is_never_held_up(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk", unacknowledged_events_max=1) as client:
        book = await client.subscribe("a", name="book")
        await market.publish_many("a", range(5))

        assert [event.data for event in await take(book, 5)] == list(range(5))


# -- one name ---------------------------------------------------------------------------------------------------------


async def test_of_two_who_open_a_name_at_once_one_has_it_and_the_other_one_an_error(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk") as client:
        outcomes = await asyncio.gather(
            client.subscribe("a", name="book"), client.subscribe("a", name="book"), return_exceptions=True
        )
        (book,) = [one for one in outcomes if isinstance(one, ordered_pubsub.Subscription)]
        (error,) = [one for one in outcomes if isinstance(one, BaseException)]
        await market.publish("a", 1)

        assert isinstance(error, errors.UsageError)
        assert "is opening subscription 'book' already" in str(error)
        assert [event.data for event in await take(book, 1)] == [1]


async def test_a_name_whose_opening_failed_may_be_opened(url: str, market: Client) -> None:
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter, name="desk") as client:
        adapter.may_subscribe.clear()
        opening = asyncio.ensure_future(client.subscribe("a", name="book"))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait((opening,))
        adapter.may_subscribe.set()
        book = await client.subscribe("a", name="book")

        assert book.topics == ["a"]


async def test_one_whose_broker_does_not_answer_keeps_no_other_one_waiting(url: str, market: Client) -> None:
    """As long as somebody waits for it, those after it wait; and nothing is left of it."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter) as client:
        adapter.may_subscribe.clear()
        stuck = asyncio.ensure_future(client.subscribe("stuck"))
        await until(lambda: client._engine.machine.holding.under_way)
        other = asyncio.ensure_future(client.subscribe("a"))
        await asyncio.sleep(0)
        stuck.cancel()
        await asyncio.wait((stuck,))
        adapter.may_subscribe.set()
        assert (await other).topics == ["a"]
        await until(lambda: client._engine.machine.holding.topics == ["a"])
        assert client._engine._outcomes == {}


async def test_who_waits_for_the_disk_is_told_if_the_subscription_ends(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe("a", name="book", ack="manual")
        await market.publish("a", 1)
        (event,) = await take(book, 1)
        client._engine.home.say = lambda message: None  # type: ignore[method-assign]  # what it says is lost
        acking = asyncio.ensure_future(event.ack())
        await asyncio.sleep(0)
        await book.close()
        with pytest.raises(errors.Closed, match="has ended before it was known whether"):
            await asyncio.wait_for(acking, PATIENCE_S)


async def test_a_name_whose_subscription_has_ended_may_be_opened_again(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe("a", name="book")
        book._intake.fail(errors.SessionExpired("planted"), "it stops")
        again = await client.subscribe(name="book")

        assert again.topics == ["a"]
        with pytest.raises(errors.SessionExpired):
            await book.close()


async def test_what_a_filter_leaves_out_is_acknowledged(url: str, market: Client) -> None:
    """Else one that wants hardly anything would never come further, and the logs would keep all of it."""
    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe("a", name="book", where="n > 100")
        await market.publish_many("a", [{"n": number} for number in range(5)])
        await until(lambda: book.clock == {"a": 5})
        following = book._intake._following
        assert following is not None
        await until(lambda: following.subscriber.saved)

    async with ordered_pubsub.connect(url, name="desk") as client:
        book = await client.subscribe(name="book")
        assert book.clock == {"a": 5}


async def test_one_that_is_closed_and_opened_again_is_not_said_to_be_over(url: str, market: Client) -> None:
    async with ordered_pubsub.connect(url, name="desk") as client:
        first = await client.subscribe("a", name="book")
        await first.close()
        assert len(client._engine.machine.leaving) == 1
        await client.subscribe(name="book")

        assert len(client._engine.machine.leaving) == 0
