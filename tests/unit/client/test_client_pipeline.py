"""Publications under way: what a full pipeline, a slow or failing ENS, and a refusing stage mean to the publisher."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import ordered_pubsub
from helpers.clients import PATIENCE_S, DeafHome, HeldAdapter, RefusingHome, make_client, names, take, until
from ordered_pubsub import errors
from ordered_pubsub.adapter import Frame, load_adapter
from ordered_pubsub.client.client import Client
from ordered_pubsub_adapters.memory import MemoryAdapter


async def test_a_full_pipeline_is_said_or_waited_for(url: str) -> None:
    """`publish_nowait` raises, `publish` waits for room."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter, pipeline_events_max=3) as client:
        adapter.may_publish.clear()
        receipts = [client.publish_nowait("a", number) for number in range(3)]
        with pytest.raises(errors.WouldBlock, match="pipeline_events_max"):
            client.publish_nowait("a", 3)
        waiting = asyncio.create_task(client.publish("a", 4))
        await until(lambda: "ENS has not taken" in client.status()["waiting_for"])
        assert not waiting.done()
        assert client.status()["unfinished"] == 3
        adapter.may_publish.set()

        assert (await waiting).number == 4
        assert [receipt.result().number for receipt in receipts] == [1, 2, 3]


async def test_those_who_wait_for_room_keep_their_order(url: str) -> None:
    """And nobody who does not wait gets in before them."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter, pipeline_events_max=3) as client:
        subscription = await client.subscribe("a", "b")
        adapter.may_publish.clear()
        publishing = [asyncio.create_task(client.publish("ab"[number % 2], number)) for number in range(50)]
        await until(lambda: client.status()["unfinished"] == 3)
        publishing[3].cancel()
        adapter.may_publish.set()
        with pytest.raises(errors.WouldBlock):
            client.publish_nowait("a", "me first")

        events = await take(subscription, 49)
        assert [event.data for event in events] == [number for number in range(50) if number != 3]
        assert len(await asyncio.gather(*publishing, return_exceptions=True)) == 50


async def test_waiting_for_room_runs_out_of_time(url: str) -> None:
    """Then nothing was published, and it says so; closing lets go of those who still wait."""
    adapter = HeldAdapter(url)
    client = await ordered_pubsub.connect(adapter, pipeline_events_max=1, timeout_s=0.05)
    adapter.may_publish.clear()
    first = client.publish_nowait("a", 1)
    with pytest.raises(errors.Timeout, match=r"was not published.*timeout_s"):
        await client.publish("a", 2)
    waiting = asyncio.create_task(client.publish("a", 3))
    await asyncio.sleep(0)
    closing = asyncio.create_task(client.close())
    with pytest.raises(errors.Closed):
        await waiting
    adapter.may_publish.set()
    await closing

    assert (await first).number == 1


async def test_the_pipeline_is_bounded_in_bytes_too(url: str) -> None:
    """But one event always fits into an empty one."""
    async with ordered_pubsub.connect(url, pipeline_bytes_max=10) as client:
        first = client.publish_nowait("a", b"x" * 20)
        with pytest.raises(errors.WouldBlock, match="pipeline_bytes_max"):
            client.publish_nowait("a", b"")
        await first


async def test_many_more_than_the_pipeline_holds_can_be_published_at_once(url: str) -> None:
    """Their receipts come in their order."""
    async with ordered_pubsub.connect(url, pipeline_events_max=7) as client:
        receipts = await client.publish_many("a", range(100))

    assert [receipt.number for receipt in receipts] == list(range(1, 101))


async def test_of_many_none_is_published_if_one_cannot_be_written(client: Client) -> None:
    """All are checked before the first is sent."""
    with pytest.raises(errors.UsageError, match="JSON"):
        await client.publish_many("a", [1, 2, object()])

    assert (await client.publish("a", 1)).number == 1


async def test_a_payload_over_the_limit_is_refused(url: str) -> None:
    """The message says how big it is, and what the limit is called."""
    async with ordered_pubsub.connect(url, payload_bytes_max=100) as client:
        await client.publish("a", b"x" * 100)
        with pytest.raises(errors.UsageError, match=r"101 bytes.*payload_bytes_max"):
            await client.publish("a", b"x" * 101)
        with pytest.raises(errors.UsageError, match="payload_bytes_max"):
            await client.publish("a", b"x" * 90, headers={"name": "x" * 10})


async def test_running_out_of_time_says_what_was_waited_for(url: str) -> None:
    """The outcome is unknown, and it says so."""
    home = DeafHome(url.removeprefix("memory://"))
    client = await make_client(load_adapter(url), home, timeout_s=0.05)
    home.is_deaf = True
    with pytest.raises(errors.Timeout, match=r"stage embedded.*on 'a'.*unknown"):
        await client.publish("a", 1)
    with pytest.raises(errors.Timeout, match="stage embedded"):
        await client.subscribe("a")
    with pytest.raises(errors.Timeout, match=r"had to leave.*1 on 'a'"):
        await client.close()


async def test_what_was_lost_on_the_way_to_the_stage_is_asked_again(url: str) -> None:
    """When the connection is back, and with the same outcome."""
    home = DeafHome(url.removeprefix("memory://"))
    client = await make_client(load_adapter(url), home)
    home.is_deaf = True
    receipts = [client.publish_nowait("a", number) for number in range(3)]
    await until(lambda: "requests at stage" in client.status()["waiting_for"])
    home.on_state(False, "broken")
    assert client.status()["connected"] is False
    home.is_deaf = False
    home.on_state(True, "back")

    assert [(await receipt).number for receipt in receipts] == [1, 2, 3]
    assert client.status()["connected"] is True
    await client.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("bad-request", errors.UsageError),
        ("session-replaced", errors.SessionExpired),
        ("too-many-topics", errors.UsageError),
        ("ended", errors.Closed),
        ("one of a later release", errors.UnavailableError),
    ],
)
async def test_what_a_stage_refuses_is_raised(url: str, code: str, error: type[Exception]) -> None:
    """With its reason, by the publication or the change that it refused; nothing is left of a subscription."""
    client = await make_client(load_adapter(url), RefusingHome(code))

    with pytest.raises(error, match="because"):
        await client.publish("a", 1)
    with pytest.raises(error, match="because"):
        await client.subscribe("a")
    assert client.status()["subscriptions"] == []
    await client.close()


async def test_a_cancelled_publication_is_published_all_the_same(client: Client) -> None:
    """It has been queued, and its number may have been given."""
    subscription = await client.subscribe("a")
    task = asyncio.create_task(client.publish("a", 1))
    await asyncio.sleep(0)
    task.cancel()

    assert [event.data for event in await take(subscription, 1)] == [1]


async def test_an_ens_that_fails_is_given_the_same_events_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A number that was given must be published."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter) as client:
        subscription = await client.subscribe("a")
        adapter.failures = [errors.AdapterError("no route"), OSError("broken")]

        assert (await client.publish("a", 1)).number == 1
        assert names(await take(subscription, 1)) == [("a", 1)]
    assert "no route" in caplog.text


async def test_a_topic_that_the_ens_holds_up_does_not_hold_up_others(url: str, ordered_topics: None) -> None:
    """Frames are handed over topic by topic."""

    class Picky(MemoryAdapter):
        async def publish(self, frames: Sequence[Frame]) -> None:
            if frames[0].topic == "slow":
                await may_go.wait()
            await super().publish(frames)

    may_go = asyncio.Event()
    async with ordered_pubsub.connect(Picky(url), delivery="ordered") as client:
        slow = client.publish_nowait("slow", 1)
        await client.publish("fast", 1)
        assert not slow.done()
        may_go.set()
        await slow


async def test_what_is_kept_has_its_receipt_before_the_ens_has_taken_it(url: str) -> None:
    """It is published when it is numbered, since the stage has it."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter) as client:
        adapter.may_publish.clear()
        receipt = await asyncio.wait_for(client.publish("a", 1), PATIENCE_S)
        assert receipt.number == 1
        assert client.status()["unfinished"] == 0
        adapter.may_publish.set()


async def test_what_is_not_kept_has_no_receipt_before_the_ens_has_taken_it(url: str, ordered_topics: None) -> None:
    """Nobody else has it."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter, delivery="ordered") as client:
        adapter.may_publish.clear()
        publishing = asyncio.create_task(client.publish("a", 1))
        await until(lambda: "ENS has not taken" in client.status()["waiting_for"])
        assert not publishing.done()
        adapter.may_publish.set()
        assert (await publishing).number == 1


async def test_an_ens_that_takes_nothing_of_what_is_kept_is_left_alone_after_a_while(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its subscribers have it from the stage, and the log says so."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter) as client, ordered_pubsub.connect(url) as reader:
        subscription = await reader.subscribe("a")
        adapter.failures = [errors.AdapterError("no route")] * 10_000
        client._publisher.outbox.patience_s = 0.01
        await client.publish("a", 1)
        await until(lambda: client.status()["unfinished"] == 0)

        assert names(await take(subscription, 1)) == [("a", 1)]
    assert "their topic's log has them" in caplog.text
