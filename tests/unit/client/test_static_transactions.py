"""Transactions that one client commits: what it publishes, and changes of named subscriptions, its own and others'."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import ordered_pubsub
from helpers.clients import DeafHome, make_client, take, until
from ordered_pubsub import embedded, errors
from ordered_pubsub.adapter import load_adapter
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.subscription import Subscription


@pytest.fixture
async def agents(url: str) -> AsyncIterator[list[Client]]:
    async with ordered_pubsub.connect(url, name="agent-1") as one, ordered_pubsub.connect(url, name="agent-2") as two:
        yield [one, two]


async def holds(subscription: Subscription, *topics: str) -> None:
    """Wait until a subscription knows that it holds these."""
    await until(lambda: sorted(subscription.topics) == sorted(topics))


async def test_a_topic_is_handed_over_and_each_event_reaches_exactly_one(client: Client, agents: list[Client]) -> None:
    one = await agents[0].subscribe("jobs", "a", name="work")
    two = await agents[1].subscribe("b", name="work")
    for number in range(5):
        await client.publish("jobs", number)

    tx = client.static_transaction()
    tx.publish("jobs", "before")
    tx.at("agent-1").unsubscribe("work", "jobs")
    tx.at("agent-2").subscribe("work", "jobs")
    tx.publish("jobs", "after")
    receipts = await tx.commit()

    for number in range(5, 10):
        await client.publish("jobs", number)
    await client.publish("a", "end")
    assert [(receipt.topic, receipt.number) for receipt in receipts] == [("jobs", 6), ("jobs", 7)]
    first, second = await take(one, 7), await take(two, 6)
    assert [event.data for event in first] == [0, 1, 2, 3, 4, "before", "end"]
    assert [event.data for event in second] == ["after", 5, 6, 7, 8, 9]
    assert first[5].tx == second[0].tx == tx.id
    assert tx.id
    await holds(one, "a")
    await holds(two, "b", "jobs")


async def test_who_is_away_finds_it_when_he_comes_back(client: Client, url: str) -> None:
    async with ordered_pubsub.connect(url, name="away") as away:
        subscription = await away.subscribe("a", name="work")
        await client.publish("a", 1)
        await take(subscription, 1)
    tx = client.static_transaction()
    tx.at("away").subscribe("work", "b")
    tx.publish("b", 2)
    await tx.commit()
    await client.publish("b", 3)

    async with ordered_pubsub.connect(url, name="away") as away:
        subscription = await away.subscribe(name="work")
        events = await take(subscription, 3)
        assert [event.data for event in events] == [1, 2, 3]  # the first was not acknowledged
        assert [bool(event.tx) for event in events] == [False, True, False]
        assert sorted(subscription.topics) == ["a", "b"]


async def test_a_subscription_may_begin_with_nothing(client: Client, agents: list[Client]) -> None:
    subscription = await agents[0].subscribe(name="work", empty=True)
    assert list(subscription.topics) == []
    tx = client.static_transaction()
    tx.at("agent-1").subscribe("work", "jobs", where="n > 1")
    tx.publish_many("jobs", [{"n": 1}, {"n": 2}, {"n": 3}])
    await tx.commit()

    assert [event.data["n"] for event in await take(subscription, 2)] == [2, 3]


@pytest.mark.parametrize(("name", "topics"), [(None, ()), ("work", ("a",))])
async def test_beginning_with_nothing_needs_a_name_and_no_topics(
    client: Client, name: str | None, topics: tuple[str, ...]
) -> None:
    with pytest.raises(errors.UsageError, match="empty=True goes with name="):
        await client.subscribe(*topics, name=name, empty=True)


async def test_what_does_not_fit_is_a_conflict_that_names_it_and_nothing_happens(
    client: Client, agents: list[Client]
) -> None:
    one = await agents[0].subscribe("jobs", name="work")
    tx = client.static_transaction()
    tx.publish("jobs", "never")
    tx.at("agent-1").subscribe("work", "jobs")
    with pytest.raises(errors.TransactionConflict, match="'agent-1//work' holds 'jobs' already"):
        await tx.commit()
    with pytest.raises(errors.UsageError, match="was committed"):
        tx.publish("jobs", "again")

    assert tx.id is None
    assert (await client.publish("jobs", "first")).number == 1
    assert [event.data for event in await take(one, 1)] == ["first"]
    loose = client.static_transaction(strict=False)
    loose.at("agent-1").subscribe("work", "jobs")
    assert await loose.commit() == []


async def test_its_own_subscription_is_changed_when_commit_returns(agents: list[Client]) -> None:
    (one, _) = agents
    subscription = await one.subscribe("a", name="work")
    tx = one.static_transaction()
    tx.at("agent-1").subscribe("work", "b").unsubscribe("work", "a")
    await tx.commit()

    assert list(subscription.topics) == ["b"]


async def test_the_client_goes_on_publishing_while_it_commits(client: Client, agents: list[Client]) -> None:
    await agents[0].subscribe("a", name="work")
    tx = client.static_transaction()
    tx.at("agent-1").subscribe("work", "b")
    tx.publish("b", "in it")
    before = client.publish_nowait("c", 1)
    commit = asyncio.create_task(tx.commit())
    await asyncio.sleep(0)
    after = client.publish_nowait("c", 2)
    receipts = await asyncio.gather(before, after)
    assert [receipt.number for receipt in receipts] == [1, 2]
    assert [receipt.topic for receipt in await commit] == ["b"]


async def test_what_cannot_be_written_down_is_said_at_once(client: Client) -> None:
    tx = client.static_transaction()
    with pytest.raises(errors.UsageError, match="nothing is in this transaction"):
        await tx.commit()
    for call, error in (
        (lambda: tx.at(""), errors.UsageError),
        (lambda: tx.at("a//b"), errors.UsageError),
        (lambda: tx.at("a").subscribe("", "t"), errors.UsageError),
        (lambda: tx.at("a").subscribe("s", "t", where="and"), errors.FilterError),
        (lambda: tx.at("a").subscribe("s", "a/*"), errors.TopicError),
        (lambda: tx.publish("t", object()), errors.UsageError),
    ):
        with pytest.raises(error):
            call()
    with pytest.raises(errors.UsageError, match="nothing is in this transaction"):
        await tx.commit()


async def test_what_is_not_there_is_named(client: Client) -> None:
    tx = client.static_transaction()
    tx.at("nobody").subscribe("work", "t")
    with pytest.raises(errors.UsageError, match="no subscription 'nobody//work'"):
        await tx.commit()


async def test_topics_that_are_not_kept_cannot_be_gained(ordered_client: Client) -> None:
    tx = ordered_client.static_transaction()
    with pytest.raises(errors.NotOffered, match="exactly-once"):
        tx.at("agent").subscribe("work", "t")


async def test_many_hand_overs_leave_one_holder_and_lose_nothing(client: Client, agents: list[Client]) -> None:
    subscriptions = [await agent.subscribe(name="work", empty=True) for agent in agents]
    first = client.static_transaction()
    first.at("agent-1").subscribe("work", "jobs")
    await first.commit()
    holder = 0

    async def publish() -> None:
        for number in range(100):
            await client.publish("jobs", number)

    publishing = asyncio.create_task(publish())
    for _ in range(20):
        tx = agents[1].static_transaction()
        tx.at(f"agent-{holder + 1}").unsubscribe("work", "jobs")
        tx.at(f"agent-{2 - holder}").subscribe("work", "jobs")
        await tx.commit()
        holder = 1 - holder
    await publishing
    end = client.static_transaction(strict=False)
    end.at("agent-1").subscribe("work", "end")
    end.at("agent-2").subscribe("work", "end")
    end.publish("end", None)
    await end.commit()

    found: list[list[int]] = [[], []]
    for place, subscription in enumerate(subscriptions):
        async for event in subscription:
            if event.topic == "end":
                break
            found[place].append(event.data)
    assert sorted(found[0] + found[1]) == list(range(100))
    assert all(numbers == sorted(numbers) for numbers in found)


async def test_an_agent_without_events_acknowledges_what_others_have_changed(
    client: Client, agents: list[Client], url: str
) -> None:
    """Else it would take no more of it after a while."""
    subscription = await agents[0].subscribe(name="work", empty=True)
    for number in range(6):
        tx = client.static_transaction()
        if number % 2:
            tx.at("agent-1").unsubscribe("work", "jobs")
        else:
            tx.at("agent-1").subscribe("work", "jobs")
        await tx.commit()
    driver = embedded._stages[url.removeprefix("memory://")].driver
    registered = driver.stage.state.registrar.subscriptions["agent-1//work"]
    assert registered.resume is not None
    reading = asyncio.create_task(anext(subscription))
    await until(lambda: registered.resume and not registered.resume.changes)
    assert not registered.news
    reading.cancel()


async def unanswered(url: str) -> tuple[Client, DeafHome, errors.TransactionUnknown]:
    """A client that has asked for a commit, and its stage has not heard of it."""
    home = DeafHome(url.removeprefix("memory://"))
    client = await make_client(load_adapter(url), home, timeout_s=0.05)
    home.is_deaf = True
    tx = client.static_transaction()
    tx.at("agent-1").subscribe("work", "b")
    with pytest.raises(errors.TransactionUnknown) as caught:
        await tx.commit()
    return client, home, caught.value


async def test_a_commit_without_an_answer_is_unknown_and_may_be_waited_for(url: str, agents: list[Client]) -> None:
    work = await agents[0].subscribe("a", name="work")
    client, home, unknown = await unanswered(url)
    going_on = asyncio.ensure_future(unknown.outcome())
    home.on_state(False, "broken")
    home.is_deaf = False
    home.on_state(True, "back")
    assert await going_on
    await holds(work, "a", "b")
    await client.close()


async def test_closing_says_that_a_commit_has_no_outcome(url: str, agents: list[Client]) -> None:
    await agents[0].subscribe("a", name="work")
    client, _, unknown = await unanswered(url)
    with pytest.raises(errors.Timeout, match="1 transactions without an outcome"):
        await client.close()
    with pytest.raises(errors.Timeout, match="was closed before the transaction had an outcome"):
        await unknown.outcome()
