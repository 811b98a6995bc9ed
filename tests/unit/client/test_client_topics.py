"""Topics come and go at a place in the order, and subscriptions end."""

from __future__ import annotations

import asyncio

import pytest

import ordered_pubsub
from helpers.clients import PATIENCE_S, HeldAdapter, names, rest, take, until
from ordered_pubsub import errors
from ordered_pubsub.client.client import Client

# -- topics come and go -----------------------------------------------------------------------------------------------


async def test_a_subscription_begins_when_subscribe_returns(client: Client) -> None:
    """What was published before is not notified, what is published afterwards is."""
    await client.publish("a", "before")
    subscription = await client.subscribe("a")
    await client.publish("a", "after")

    (event,) = await take(subscription, 1)

    assert (event.data, event.number, event.position) == ("after", 2, 1)


@pytest.mark.parametrize("seed", range(5))
async def test_topics_come_and_go_at_a_place_in_the_order(url: str, seed: int) -> None:
    """A removed topic's events are notified up to one place, an added one's from one place on; all in the common order."""
    async with ordered_pubsub.connect(f"{url}?reorder=0.5&delay_s=0.001&seed={seed}") as client:
        subscription, witness = await client.subscribe("a", "b"), await client.subscribe("a", "b", "c")
        publisher = await ordered_pubsub.connect(url)
        after = {}
        for number in range(300):
            publisher.publish_nowait("abc"[number % 3], number)
            if number == 100:
                await subscription.remove("a")
                after["removal"] = (await client.publish("a", "after the removal")).number
            elif number == 200:
                await publisher.publish("a", "before the addition")
                await subscription.add("c", "a")
                after["addition"] = {
                    topic: (await client.publish(topic, "after the addition")).number for topic in "ca"
                }
        await publisher.close()
        everything = await take(witness, 304)
        await subscription.unsubscribe()
        mine = await rest(subscription)

    numbers = {topic: [event.number for event in mine if event.topic == topic] for topic in "abc"}
    known = set(mine)
    assert mine == [event for event in everything if event in known]
    assert numbers["b"] == [event.number for event in everything if event.topic == "b"]
    assert after["removal"] not in numbers["a"]
    left_at = next(count for count, number in enumerate(numbers["a"], 1) if number != count)
    assert numbers["a"][: left_at - 1] == list(range(1, left_at))
    for topic, begun in (("a", numbers["a"][left_at - 1 :]), ("c", numbers["c"])):
        assert begun == list(range(begun[0], begun[-1] + 1))
        assert begun[0] <= after["addition"][topic] <= begun[-1]


async def test_removing_what_is_not_held_is_an_error(client: Client) -> None:
    """It names the topic, and what is held."""
    subscription = await client.subscribe("a")

    with pytest.raises(errors.UsageError, match="does not hold 'b'; it holds 'a'"):
        await subscription.remove("b")


async def test_a_topic_is_unsubscribed_at_the_ens_when_nobody_holds_it(url: str) -> None:
    """Not while another subscription of the client holds it."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter) as client:
        one, two = await client.subscribe("a", "b"), await client.subscribe("a")
        assert adapter.subscribed == ["a", "b"]
        await one.remove("a", "b")
        await until(lambda: adapter.unsubscribed)
        assert adapter.unsubscribed == ["b"]
        await two.close()
        await until(lambda: "a" in adapter.unsubscribed)
        assert one.topics == []
        await one.add("a")
        await client.publish("a", 1)

        assert names(await take(one, 1)) == [("a", 1)]


async def test_a_subscription_that_the_ens_refuses_leaves_nothing_behind(url: str) -> None:
    """The error is raised, and the next attempt is a fresh one."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter) as client:
        adapter.failures = [errors.AdapterError("not allowed")]
        with pytest.raises(errors.AdapterError, match="not allowed"):
            await client.subscribe("a")
        assert client.status()["subscriptions"] == []
        subscription = await client.subscribe("a")
        adapter.failures = [errors.AdapterError("not allowed")]
        with pytest.raises(errors.AdapterError, match="not allowed"):
            await subscription.add("b")
        await subscription.add("b")
        await client.publish("b", 1)

        assert names(await take(subscription, 1)) == [("b", 1)]


async def test_subscribing_runs_out_of_time_if_the_ens_does_not_answer(url: str) -> None:
    """Then the stage was not asked, and it says so."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter, timeout_s=0.05) as client:
        adapter.may_subscribe.clear()
        with pytest.raises(errors.Timeout, match="the ENS did not subscribe to 'a'"):
            await client.subscribe("a")


async def test_changes_of_one_subscription_are_asked_for_one_after_the_other(url: str) -> None:
    """However many are called for at once."""
    async with ordered_pubsub.connect(f"{url}?reorder=0.3&delay_s=0.001") as client:
        subscription = await client.subscribe("a")
        await asyncio.gather(
            subscription.add("b"), subscription.remove("a"), subscription.add("a", "c"), subscription.remove("b")
        )

        assert sorted(subscription.topics) == ["a", "c"]


# -- the end of a subscription ----------------------------------------------------------------------------------------


async def test_unsubscribe_lets_what_came_before_be_read(client: Client) -> None:
    """Then iteration ends."""
    subscription = await client.subscribe("a")
    await client.publish_many("a", range(5))
    await subscription.unsubscribe()
    await client.publish("a", "after")

    assert [event.data for event in await rest(subscription)] == [0, 1, 2, 3, 4]
    with pytest.raises(errors.Closed):
        await subscription.add("b")


async def test_close_ends_iteration_at_once(client: Client) -> None:
    """Also for whoever is waiting for the next event; a second close is harmless."""
    subscription = await client.subscribe("a")
    reading = asyncio.create_task(rest(subscription))
    await asyncio.sleep(0)
    await subscription.close()
    await subscription.close()
    await subscription.wait()

    assert await reading == []
    assert subscription.topics == []


async def test_a_subscription_is_a_context_manager(client: Client) -> None:
    """It is closed at the end, and the client forgets it."""
    async with await client.subscribe("a") as subscription:
        assert client.status()["subscriptions"][0]["topics"] == ["a"]

    assert client.status()["subscriptions"] == []
    assert await rest(subscription) == []


async def test_batches_have_what_is_there(client: Client) -> None:
    """Up to the number that was asked for."""
    subscription = await client.subscribe("a")
    await client.publish_many("a", range(10))
    await until(lambda: subscription.lag.unread == 10)
    await subscription.unsubscribe()

    sizes = [[event.data for event in batch] async for batch in subscription.batches(4, max_wait_s=0)]

    assert sizes == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_a_batch_waits_for_its_time_and_no_longer(client: Client) -> None:
    """It is given out when it is full, or when its first event has waited long enough."""
    subscription = await client.subscribe("a")
    batches = subscription.batches(3, max_wait_s=0.01)
    await client.publish("a", 0)

    assert len(await asyncio.wait_for(batches.__anext__(), PATIENCE_S)) == 1
    await batches.aclose()  # type: ignore[attr-defined]
