"""Connecting and closing: what is opened, what is flushed, and what is left."""

from __future__ import annotations

import asyncio
import logging

import pytest

import ordered_pubsub
from helpers.clients import HeldAdapter, RefusingHome, make_client, rest, take
from ordered_pubsub import errors
from ordered_pubsub.adapter import FramesHandler, StateHandler
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.home.home import Listener
from ordered_pubsub.core.messages import NewEpoch
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.wire.sessions import SessionKey
from ordered_pubsub_adapters.memory import MemoryAdapter


async def test_connect_can_be_awaited_or_entered_once() -> None:
    """Without arguments it connects to a system in the process."""
    client = await ordered_pubsub.connect()
    await client.close()
    connecting = ordered_pubsub.connect()
    async with connecting as client:
        assert client.status()["ens"] == "memory://"
    with pytest.raises(errors.UsageError, match="connect"):
        await connecting


async def test_the_environment_names_the_ens(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument comes before it."""
    monkeypatch.setenv("ORDERED_PUBSUB_ENS", url)
    async with ordered_pubsub.connect() as client, ordered_pubsub.connect(f"{url}-other") as other:
        assert client.status()["ens"] == url
        assert other.status()["ens"] == f"{url}-other"


async def test_a_connection_that_fails_leaves_nothing_open(url: str) -> None:
    """Neither the stage nor the client's name is taken."""

    class Broken(MemoryAdapter):
        async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
            raise errors.AdapterError("unreachable")

    with pytest.raises(errors.AdapterError, match="unreachable"):
        await ordered_pubsub.connect(Broken(url), name="one")
    async with ordered_pubsub.connect(url, name="one"):
        pass


async def test_a_name_belongs_to_one_client_at_a_time(url: str) -> None:
    """It is free again when that one is closed; its events carry it."""
    async with ordered_pubsub.connect(url, name="desk") as client:
        subscription = await client.subscribe("a")
        await client.publish("a", 1)
        assert (await take(subscription, 1))[0].publisher == client.name == "desk"
        with pytest.raises(errors.ConfigurationError, match="'desk' is in use"):
            await ordered_pubsub.connect(url, name="desk")
    async with ordered_pubsub.connect(url, name="desk") as client:
        await client.publish("a", 1)


async def test_the_embedded_stage_lives_as_long_as_its_clients(url: str) -> None:
    """Clients of a system share its numbers; when the last has gone they begin anew."""
    one = await ordered_pubsub.connect(url)
    await one.publish("a", 1)
    two = await ordered_pubsub.connect(url)
    await one.close()
    assert (await two.publish("a", 1)).number == 2
    await two.close()
    async with ordered_pubsub.connect(url) as three:
        assert (await three.publish("a", 1)).number == 1


async def test_closing_flushes_what_was_published(url: str) -> None:
    """Receipts come, and others are notified."""
    async with ordered_pubsub.connect(url) as reader:
        subscription = await reader.subscribe("a")
        writer = await ordered_pubsub.connect(url)
        receipts = [writer.publish_nowait("a", number) for number in range(100)]
        await writer.close()

        assert [receipt.result().number for receipt in receipts] == list(range(1, 101))
        assert len(await take(subscription, 100)) == 100


async def test_closing_says_what_it_had_to_leave(url: str, ordered_topics: None) -> None:
    """And so do the receipts that will never come."""
    adapter = HeldAdapter(url)
    client = await ordered_pubsub.connect(adapter, delivery="ordered", timeout_s=0.05)
    adapter.may_publish.clear()
    receipts = [client.publish_nowait("ab"[number % 2], number) for number in range(10)]

    with pytest.raises(errors.Timeout, match=r"had to leave.*5 on 'a', 5 on 'b'.*outcome is unknown"):
        await client.close()
    for receipt in receipts:
        with pytest.raises(errors.Timeout, match="outcome is unknown"):
            await receipt


async def test_a_closed_client_refuses_everything(url: str) -> None:
    """But to be closed again."""
    client = await ordered_pubsub.connect(url)
    subscription = await client.subscribe("a")
    await client.close()
    await client.close()

    for call in (client.publish("a", 1), client.publish_many("a", [1]), client.subscribe("a"), subscription.add("b")):
        with pytest.raises(errors.Closed):
            await call
    with pytest.raises(errors.Closed):
        client.publish_nowait("a", 1)
    assert client.status()["connected"] is False


async def test_closing_ends_all_subscriptions(url: str) -> None:
    """Whoever waits for an event is let go."""
    client = await ordered_pubsub.connect(url)
    reading = [asyncio.create_task(rest(await client.subscribe("a", "b"))) for _ in range(3)]
    await asyncio.sleep(0)
    await client.close()

    assert await asyncio.gather(*reading) == [[], [], []]


async def test_subscribing_to_a_client_that_is_being_closed_is_refused(url: str) -> None:
    """Also if it was under way."""
    adapter = HeldAdapter(url)
    client = await ordered_pubsub.connect(adapter)
    adapter.may_subscribe.clear()
    subscribing = asyncio.create_task(client.subscribe("a"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    adapter.may_subscribe.set()

    with pytest.raises(errors.Closed):
        await subscribing
    await closing
    assert adapter.subscribed == adapter.unsubscribed


async def test_cancelled_closing_goes_on(url: str) -> None:
    """The name is free in the end."""
    client = await ordered_pubsub.connect(url, name="one")
    await client.subscribe("a")
    task = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    task.cancel()
    await client.close()

    async with ordered_pubsub.connect(url, name="one"):
        pass


async def test_the_status_is_plain_data(client: Client) -> None:
    """Connected to what, how much is unfinished, and what each subscription waits for."""
    subscription = await client.subscribe("a", order="pairwise")
    await client.publish("a", 1)
    await take(subscription, 1)

    status = client.status()

    assert status["connected"] is True
    assert (status["unfinished"], status["waiting_for"]) == (0, "nothing")
    (shown,) = status["subscriptions"]
    assert (shown["topics"], shown["order"], shown["delivery"], shown["clock"]) == (
        ["a"],
        "pairwise",
        "exactly-once",
        {"a": 1},
    )
    assert (shown["unread"], shown["waiting"], shown["waiting_for"], shown["error"]) == (0, 0, "nothing", None)


def test_a_client_belongs_to_its_event_loop(url: str) -> None:
    """From elsewhere it is refused, with the way in the message."""

    async def connect() -> Client:
        return await ordered_pubsub.connect(url)

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(connect())
    with pytest.raises(errors.UsageError, match=r"ordered_pubsub\.sync"):
        client.publish_nowait("a", 1)
    loop.run_until_complete(client.close())
    loop.close()


async def test_nothing_is_logged_when_nothing_is_wrong(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A log that says something means something."""
    caplog.set_level(logging.INFO)
    async with ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a")
        await client.publish_many("a", range(100))
        await take(subscription, 100)

    assert caplog.records == []


async def test_a_forgotten_await_of_connect_is_explained(url: str) -> None:
    with pytest.raises(AttributeError, match=r"no 'publish' before it is awaited: client = await connect"):
        ordered_pubsub.connect(url).publish  # noqa: B018 - the access is what is tested
    with pytest.raises(errors.UsageError, match="needs `async with`"), ordered_pubsub.connect(url):
        pass


async def test_a_closed_client_says_that_it_is_closed(url: str) -> None:
    client = await ordered_pubsub.connect(url)
    await client.close()
    assert client.status()["waiting_for"] == "nothing: it is closed"


class TalkativeHome(RefusingHome):
    """A stage that says something as soon as it has let a client in; its connection breaks then, and comes back."""

    def __init__(self) -> None:
        super().__init__("limit")

    async def open(self, key: SessionKey, name: str | None, listener: Listener) -> Topology:
        topology = await super().open(key, name, listener)
        listener.on_told([NewEpoch(key.session, 2)])
        listener.on_state(False, "it broke at once")
        listener.on_told([NewEpoch(key.session, 3)])
        listener.on_state(True, "connected again")
        return topology


async def test_a_stage_may_say_something_before_its_client_has_looked_up(url: str) -> None:
    client = await make_client(MemoryAdapter(url), TalkativeHome())
    try:
        status = client.status()
        assert (status["connected"], client._engine.failure) == (True, None)
    finally:
        await client.close()
