"""The public API: publications, subscriptions, and what happens when somebody is slow, wrong or gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import pytest

import ordered_pubsub
from ordered_pubsub import errors
from ordered_pubsub.adapter import Adapter, Capabilities, Frame, FramesHandler, StateHandler, load_adapter
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.frames import CONTENT_TYPE, PACK, STAMP
from ordered_pubsub.client.home import Home, Listener
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.messages import Answer, FromSubscriber, Refusal, Request
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.embedded import EmbeddedHome
from ordered_pubsub.wire.pack import Pack, PackedBatch, PackedEvent, encode_pack
from ordered_pubsub.wire.sessions import SessionKey
from ordered_pubsub.wire.stamp import Stamp, encode_stamp
from ordered_pubsub_adapters import memory
from ordered_pubsub_adapters.memory import MemoryAdapter

PATIENCE_S = 30.0
"""A test that waits longer than this hangs."""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shell of whoever runs the tests has set does not matter."""
    for name in ("ORDERED_PUBSUB_ENS", "ORDERED_PUBSUB_SEQUENCER", "ORDERED_PUBSUB_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def url() -> str:
    """A system of its own."""
    return f"memory://test-{uuid4().hex}"


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with ordered_pubsub.connect(url) as client:
        yield client


@pytest.fixture
async def ordered_client(url: str, ordered_topics: None) -> AsyncIterator[Client]:
    """A client of a system that keeps no events."""
    async with ordered_pubsub.connect(url, delivery="ordered") as client:
        yield client


async def until(condition: Callable[[], object]) -> None:
    """Give way until something is the case."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + PATIENCE_S
    while not condition():
        assert loop.time() < give_up_at, "waited in vain"
        await asyncio.sleep(0)


async def take(subscription: ordered_pubsub.Subscription, count: int) -> list[ordered_pubsub.Event]:
    """The next events."""

    async def read() -> list[ordered_pubsub.Event]:
        return [await subscription.__anext__() for _ in range(count)]

    return await asyncio.wait_for(read(), PATIENCE_S)


async def rest(subscription: ordered_pubsub.Subscription) -> list[ordered_pubsub.Event]:
    """All events until iteration ends."""

    async def read() -> list[ordered_pubsub.Event]:
        return [event async for event in subscription]

    return await asyncio.wait_for(read(), PATIENCE_S)


def names(events: list[ordered_pubsub.Event]) -> list[tuple[str, int]]:
    return [(event.topic, event.number) for event in events]


class HeldAdapter(MemoryAdapter):
    """A `memory://` adapter whose ways can be closed, and that remembers what was done."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.may_publish = asyncio.Event()
        self.may_publish.set()
        self.may_subscribe = asyncio.Event()
        self.may_subscribe.set()
        self.failures: list[Exception] = []
        self.subscribed: list[str] = []
        self.unsubscribed: list[str] = []

    async def publish(self, frames: Sequence[Frame]) -> None:
        await self.may_publish.wait()
        if self.failures:
            raise self.failures.pop(0)
        await super().publish(frames)

    async def subscribe(self, topics: Sequence[str]) -> None:
        await self.may_subscribe.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.subscribed.extend(topics)
        await super().subscribe(topics)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        self.unsubscribed.extend(topics)
        await super().unsubscribe(topics)


class LossyAdapter(MemoryAdapter):
    """A `memory://` adapter on whose way out messages are lost: those of which `is_lost` says so, by their count."""

    def __init__(self, url: str, is_lost: Callable[[int], bool]) -> None:
        super().__init__(url)
        self.is_lost = is_lost
        self.frames = 0

    async def publish(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self.frames += 1
            if not self.is_lost(self.frames):
                await super().publish([frame])


class DeafHome(EmbeddedHome):
    """A home whose connection can be broken: what is sent meanwhile is lost."""

    is_deaf = False

    async def open(self, key: SessionKey, name: str | None, listener: Listener) -> Topology:
        self.on_state = listener.on_state
        return await super().open(key, name, listener)

    def send(self, requests: Sequence[Request]) -> None:
        if not self.is_deaf:
            super().send(requests)


class RefusingHome(Home):
    """A home that refuses whatever it is asked."""

    where = "here"
    levels = Levels()

    def __init__(self, code: str) -> None:
        self.code = code

    async def open(self, key: SessionKey, name: str | None, listener: Listener) -> Topology:
        self.on_answers = listener.on_answers
        return Topology((StageSpec("one"),))

    def send(self, requests: Sequence[Request]) -> None:
        refusals: list[Answer | Refusal] = [
            Refusal(r.client, r.epoch, r.sequence, self.code, "because") for r in requests
        ]
        asyncio.get_running_loop().call_soon(self.on_answers, refusals)

    def say(self, message: FromSubscriber) -> None:
        pass

    async def close(self) -> None:
        pass


async def make_client(adapter: Adapter, home: Home, **settings: Any) -> Client:
    """A client with a home of our choice."""
    engine = Engine(None, adapter, home, Settings.read(settings))
    await engine.open()
    return Client(engine, None)


@pytest.fixture
async def publish_frame(url: str) -> AsyncIterator[Callable[..., Any]]:
    """Publish on the ENS past the client."""
    adapter = load_adapter(url)

    async def nothing(frames: Sequence[Frame]) -> None:
        pass

    await adapter.open(nothing, lambda is_connected, reason: None)

    async def publish(topic: str, payload: bytes, headers: dict[str, bytes | str] | None = None) -> None:
        await adapter.publish([Frame(topic, payload, headers or {})])

    yield publish
    await adapter.close()


def stamp(number: int, **fields: Any) -> dict[str, bytes | str]:
    """The headers of an event that says to have this number."""
    known: dict[str, Any] = {
        "entries": {}, "full": False, "marks": [], "publisher": "x", "id": f"x-{number}", "published_at": 0.0,
    }  # fmt: skip
    return {STAMP: encode_stamp(Stamp(number=number, **{**known, **fields})), CONTENT_TYPE: "application/json"}


# -- publishing and being notified ------------------------------------------------------------------------------------


async def test_an_event_is_what_its_receipt_says(client: Client) -> None:
    """Topic, number and id are the same on both sides, and the publisher is the client's name."""
    subscription = await client.subscribe("a")
    receipt = await client.publish("a", {"x": 1})

    (event,) = await take(subscription, 1)

    assert (event.topic, event.number, event.id) == (receipt.topic, receipt.number, receipt.id) == ("a", 1, receipt.id)
    assert event.publisher == client.name
    assert (event.position, dict(event.vector), event.tx) == (1, {"a": 1}, None)
    assert not event.out_of_order
    assert not event.redelivered


@pytest.mark.parametrize(
    "data", [{"x": [1, 2.5, None, True]}, [], 7, -0.5, "text ünd ☃", None, b"", b"\x00\xff", 2**80]
)
async def test_data_comes_back_as_it_went(client: Client, data: Any) -> None:
    """JSON for mappings, lists, numbers and text; bytes stay bytes."""
    subscription = await client.subscribe("a")
    await client.publish("a", data)

    (event,) = await take(subscription, 1)

    assert event.data == data
    assert type(event.data) is type(data)


async def test_the_payload_is_the_applications_own_bytes(url: str, client: Client) -> None:
    """A plain consumer of the ENS reads what was published, and nothing of the order."""
    payloads = []
    adapter = load_adapter(url)

    async def on_frames(frames: Sequence[Frame]) -> None:
        payloads.extend(frame.payload for frame in frames)

    await adapter.open(on_frames, lambda is_connected, reason: None)
    await adapter.subscribe(["a"])
    await client.publish("a", b"as it is")
    await client.publish("a", {"x": 1})
    await until(lambda: len(payloads) == 2)
    await adapter.close()

    assert payloads == [b"as it is", b'{"x":1}']


@pytest.mark.parametrize("data", [{1, 2}, float("nan"), object(), {"x": b"bytes"}, "\ud800"])
async def test_data_that_json_cannot_say_is_refused(client: Client, data: Any) -> None:
    """Before it has a number, and with the way out in the message."""
    with pytest.raises(errors.UsageError, match=r"cannot be written as JSON.*serializer="):
        await client.publish("a", data)

    assert client.status()["unfinished"] == 0


class Reversed:
    """A serializer."""

    content_type = "text/x-reversed"

    def dumps(self, data: Any) -> bytes:
        return str(data)[::-1].encode()

    def loads(self, payload: bytes) -> Any:
        return payload.decode()[::-1]


async def test_a_serializer_is_used_on_both_sides(url: str) -> None:
    """And only for what it is for: bytes stay bytes."""
    async with ordered_pubsub.connect(url, serializer=Reversed()) as client:
        subscription = await client.subscribe("a")
        await client.publish_many("a", ["abc", b"abc"])

        events = await take(subscription, 2)

    assert [(event.raw, event.data) for event in events] == [(b"cba", "abc"), (b"abc", b"abc")]


async def test_what_cannot_be_decoded_has_no_data_but_an_error(url: str, client: Client) -> None:
    """The event keeps its place in the order, and nothing is raised."""
    subscription = await client.subscribe("a")
    async with ordered_pubsub.connect(url, serializer=Reversed()) as other:
        await other.publish("a", "abc")

    (event,) = await take(subscription, 1)

    assert event.data is None
    assert "text/x-reversed" in str(event.error)
    assert event.raw == b"cba"


async def test_the_handler_of_bad_events_gets_them_instead(url: str, client: Client) -> None:
    """The others are notified as ever."""
    bad: list[ordered_pubsub.Event] = []
    subscription = await client.subscribe("a", on_bad_event=bad.append)
    async with ordered_pubsub.connect(url, serializer=Reversed()) as other:
        await other.publish("a", "abc")
    await client.publish("a", "good")

    events = await take(subscription, 1)

    assert [event.data for event in events] == ["good"]
    assert [event.number for event in bad] == [1]


async def test_headers_travel_with_the_event(client: Client) -> None:
    """Text stays text, bytes stay bytes, and none of ours is among them."""
    subscription = await client.subscribe("a")
    await client.publish("a", 1, headers={"trace": "abc", "raw": b"\x00"})
    await client.publish("a", 2)

    first, second = await take(subscription, 2)

    assert first.headers == {"trace": "abc", "raw": b"\x00"}
    assert second.headers == {}


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "x"},
        {"ordered-pubsub-stamp": b""},
        {"a b": ""},
        {"": ""},
        {"a": 1},
        {1: "a"},
        "a",
        {"a" * 256: ""},
        {"a": "x" * 40_000},
    ],
)
async def test_headers_that_do_not_fit_are_refused(client: Client, headers: Any) -> None:
    """Ours are not the user's to set."""
    with pytest.raises(errors.UsageError, match="header"):
        await client.publish("a", 1, headers=headers)


async def test_an_id_that_was_given_is_kept(client: Client) -> None:
    """In the receipt and in the event."""
    subscription = await client.subscribe("a")
    receipt = await client.publish("a", 1, id="mine")

    (event,) = await take(subscription, 1)

    assert receipt.id == event.id == "mine"


async def test_no_two_events_have_the_same_id(url: str, client: Client) -> None:
    """Whoever published them."""
    async with ordered_pubsub.connect(url) as other:
        receipts = [*await client.publish_many("a", range(50)), *await other.publish_many("a", range(50))]

    assert len({receipt.id for receipt in receipts}) == 100


async def test_an_event_is_frozen_and_equal_by_its_id(client: Client) -> None:
    """Two subscriptions that are notified of the same event have equal ones."""
    one, two = await client.subscribe("a"), await client.subscribe("a", "b")
    await client.publish("a", 1)
    (first,), (second,) = await take(one, 1), await take(two, 1)

    assert first == second
    assert len({first, second}) == 1
    with pytest.raises(AttributeError):
        first.number = 2  # type: ignore[misc]


async def test_two_subscribers_over_an_ens_that_reorders_agree(url: str) -> None:
    """Everybody is notified of everything, in one order, at consecutive positions, and each publisher's order is kept."""
    topics = ["a", "b", "c", "d"]
    async with ordered_pubsub.connect(f"{url}?reorder=0.4&duplicate=0.2&delay_s=0.001&seed=3") as client:
        other = await ordered_pubsub.connect(url)
        subscriptions = [
            await client.subscribe(*topics),
            await other.subscribe(*topics),
            await other.subscribe("d", "a"),
        ]

        async def publish(number: int) -> None:
            async with ordered_pubsub.connect(url, name=f"p{number}") as publisher:
                for count in range(500):
                    publisher.publish_nowait(topics[(count * (number + 1)) % 4], count)
                    if not count % 7:
                        await asyncio.sleep(0)

        await asyncio.gather(*(publish(number) for number in range(4)))
        one, two = await take(subscriptions[0], 2000), await take(subscriptions[1], 2000)
        some = [event for event in one if event.topic in "ad"]
        three = await take(subscriptions[2], len(some))
        await other.close()

    assert one == two
    assert three == some
    assert [event.position for event in one] == list(range(1, 2001))
    for publisher in ("p0", "p1", "p2", "p3"):
        assert [event.data for event in one if event.publisher == publisher] == list(range(500))


async def test_the_vector_counts_what_was_passed(client: Client) -> None:
    """Topic by topic, at each event."""
    subscription = await client.subscribe("a", "b")
    for topic in "aba":
        await client.publish(topic, 0)

    events = await take(subscription, 3)

    assert [dict(event.vector) for event in events] == [{"a": 1, "b": 0}, {"a": 1, "b": 1}, {"a": 2, "b": 1}]


@pytest.mark.parametrize(("order", "positions"), [("total", [1, 2]), ("pairwise", [1, 2]), ("topic", [None, None])])
async def test_every_order_can_be_asked_for(client: Client, order: str, positions: list[int | None]) -> None:
    """There are positions where topics are ordered against each other."""
    subscription = await client.subscribe("a", "b", order=order)
    await client.publish("a", 0)
    await client.publish("b", 0)

    assert [event.position for event in await take(subscription, 2)] == positions


# -- the pipeline -----------------------------------------------------------------------------------------------------


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


async def test_an_ens_that_fails_is_given_the_same_events_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that was given must be published."""
    monkeypatch.setattr("ordered_pubsub.client.publisher.RETRY_FIRST_S", 0.001)
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
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its subscribers have it from the stage, and the log says so."""
    monkeypatch.setattr("ordered_pubsub.client.publisher.RETRY_FIRST_S", 0.001)
    monkeypatch.setattr("ordered_pubsub.client.publisher.KEPT_RETRY_S", 0.01)
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter) as client, ordered_pubsub.connect(url) as reader:
        subscription = await reader.subscribe("a")
        adapter.failures = [errors.AdapterError("no route")] * 10_000
        await client.publish("a", 1)
        await until(lambda: client.status()["unfinished"] == 0)

        assert names(await take(subscription, 1)) == [("a", 1)]
    assert "their topic's log has them" in caplog.text


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


# -- handlers ---------------------------------------------------------------------------------------------------------


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


# -- slow, lost and foreign -------------------------------------------------------------------------------------------


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
    monkeypatch.setattr("ordered_pubsub.client.reception.STALLED_AFTER_S", 0.001)
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
    pack = encode_pack(Pack("p", [PackedBatch(2, entries, True, [], 0.0, events)]))
    async with ordered_pubsub.connect(url, delivery="ordered", buffer_bytes_max=15_000) as client:
        subscription = await client.subscribe("a")
        await publish_frame("a", pack, {PACK: "1"})
        await until(lambda: subscription.lag.waiting == 5)
        await publish_frame("a", pack.replace(b"\x02", b"\x07", 1), {PACK: "1"})
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
    assert (status["frames_unstamped"], status["frames_unreadable"]) == (2, 4)
    assert len([record for record in caplog.records if "not delivered" in record.message]) == 2


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


# -- what is refused --------------------------------------------------------------------------------------------------


async def test_what_is_kept_can_be_subscribed_to_over_an_ens_that_loses(url: str) -> None:
    """Every event comes, in its place, at either level, whatever was lost."""
    async with ordered_pubsub.connect(f"{url}?lose=0.5&seed=1") as client:
        client.require(order="total", delivery="exactly-once")
        strict = await client.subscribe("a", "b")
        lax = await client.subscribe("b", "a", delivery="ordered")
        await client.publish_many("a", range(20))
        await client.publish_many("b", range(20))

        assert names(await take(strict, 40)) == names(await take(lax, 40))


async def test_the_last_event_is_not_missed_for_ever(url: str) -> None:
    """Nothing that comes after it tells that it was there: the stage does."""
    async with ordered_pubsub.connect(LossyAdapter(url, lambda count: count > 3)) as client:
        subscription = await client.subscribe("a")
        await client.publish_many("a", range(5))

        assert [event.data for event in await take(subscription, 5)] == list(range(5))


async def test_ordered_delivery_over_an_ens_that_loses_is_refused(url: str, ordered_topics: None) -> None:
    """Where nobody keeps the events."""
    async with ordered_pubsub.connect(f"{url}?lose=0.1", delivery="ordered") as client:
        with pytest.raises(errors.NotOffered, match=r"must lose nothing.*best-effort"):
            await client.subscribe("a")
        await client.subscribe("a", delivery="best-effort")
        await client.publish("a", 1)


async def test_a_topic_that_gives_less_than_was_asked_for_is_refused(url: str, ordered_topics: None) -> None:
    """By publications and by subscriptions; who takes less gets it."""
    async with ordered_pubsub.connect(url) as client:
        with pytest.raises(errors.NotOffered, match=r"topic 'a' gives delivery='ordered'.*'exactly-once'"):
            await client.publish("a", 1)
        with pytest.raises(errors.NotOffered, match=r"topic 'a' gives delivery='ordered'.*'exactly-once'"):
            await client.subscribe("a")
        subscription = await client.subscribe("a", delivery="ordered")
        async with ordered_pubsub.connect(url, delivery="ordered") as other:
            await other.publish("a", 1)

        assert names(await take(subscription, 1)) == [("a", 1)]


async def test_best_effort_takes_any_topic(url: str, ordered_topics: None) -> None:
    """To publish on and to subscribe to."""
    async with ordered_pubsub.connect(url, delivery="best-effort") as client:
        subscription = await client.subscribe("a")
        await client.publish("a", 1)

        assert names(await take(subscription, 1)) == [("a", 1)]


@pytest.mark.parametrize("delivery", ["exactly-once", "ordered", "best-effort"])
async def test_a_subscription_says_at_which_level_it_is(url: str, delivery: str) -> None:
    """That of its client, if it says nothing else."""
    async with ordered_pubsub.connect(url, delivery=delivery) as client:
        await client.subscribe("a")

        assert client.status()["subscriptions"][0]["delivery"] == delivery


@pytest.mark.parametrize(
    "asked",
    [
        {"delivery": "best-effort", "order": "topic"},
    ],
)
async def test_what_is_not_there_yet_is_refused(client: Client, asked: dict[str, Any]) -> None:
    """Nothing is silently ignored."""
    with pytest.raises(errors.NotOffered):
        await client.subscribe("a", **asked)


@pytest.mark.parametrize(
    "asked", [{"order": "any"}, {"delivery": "any"}, {"ttl_s": 1}, {"notify": 7}, {"ack": "manual"}]
)
async def test_what_makes_no_sense_is_refused(client: Client, asked: dict[str, Any]) -> None:
    """As an error of usage."""
    with pytest.raises(errors.UsageError, match=next(iter(asked))):
        await client.subscribe("a", **asked)


@pytest.mark.parametrize("topic", ["", "a//b", "eu/*", "x" * 256, 7, ["a"]])
async def test_a_bad_topic_is_refused_everywhere(client: Client, topic: Any) -> None:
    """Before anything happens."""
    subscription = await client.subscribe("a")
    for call in (
        client.publish(topic, 1),
        client.subscribe(topic),
        subscription.add(topic),
        subscription.remove(topic),
    ):
        with pytest.raises(errors.TopicError):
            await call


async def test_no_topic_at_all_is_refused(client: Client) -> None:
    """By everything that takes topics."""
    subscription = await client.subscribe("a")
    for call in (client.subscribe(), subscription.add(), subscription.remove()):
        with pytest.raises(errors.UsageError, match="at least one topic"):
            await call


@pytest.mark.parametrize("identity", ["", "x" * 256, "a\n", 7])
async def test_a_bad_id_is_refused(client: Client, identity: Any) -> None:
    """Before the event has a number."""
    with pytest.raises(errors.UsageError, match="id="):
        await client.publish("a", 1, id=identity)


@pytest.mark.parametrize(
    "name", ["transaction", "static_transaction", "tx_begin", "tx_commit", "move", "advertise", "on"]
)
async def test_methods_that_come_later_say_so(client: Client, name: str) -> None:
    """They are there, and refuse."""
    with pytest.raises(errors.NotOffered, match=rf"{name}\(\) is not available yet"):
        getattr(client, name)("whatever")


async def test_what_has_no_name_cannot_be_acknowledged(client: Client) -> None:
    """Neither an event nor a clock: nobody would remember it."""
    subscription = await client.subscribe("a")
    await client.publish("a", 1)
    (event,) = await take(subscription, 1)

    with pytest.raises(errors.UsageError, match=r"name=.*ack='manual'"):
        await event.ack()
    with pytest.raises(errors.UsageError):
        await subscription.commit(subscription.clock)


async def test_a_stage_that_is_not_there_is_said_so(url: str) -> None:
    """With what to do about it."""
    with pytest.raises(
        errors.UnavailableError, match=r"no stage can be reached: ops://127\.0\.0\.1:1.*ordered-pubsub serve"
    ):
        await ordered_pubsub.connect(url, sequencer="ops://127.0.0.1:1")


def test_what_the_environment_says_is_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERED_PUBSUB_SEQUENCER", "http://x")
    with pytest.raises(errors.ConfigurationError, match=r"ORDERED_PUBSUB_SEQUENCER.*http://x"):
        ordered_pubsub.connect(url)


def test_what_the_file_says_is_used(url: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[client]\nsequencer = "http://x"\n')
    with pytest.raises(errors.ConfigurationError, match=r"x\.toml.*line 2.*http://x"):
        ordered_pubsub.connect(url, config=str(file))


def test_an_unknown_setting_is_named_and_the_known_ones_are_listed(url: str) -> None:
    """A typing error must not pass for a setting."""
    with pytest.raises(errors.ConfigurationError, match=r"'time_out'; there are timeout_s.*serializer"):
        ordered_pubsub.connect(url, time_out=1)


@pytest.mark.parametrize(
    "setting",
    [
        {"timeout_s": 0},
        {"timeout_s": "60"},
        {"timeout_s": float("inf")},
        {"pipeline_events_max": 0},
        {"queue_events_max": 1.5},
        {"payload_bytes_max": True},
        {"buffer_events_max": 0},
        {"buffer_bytes_max": 0},
        {"ttl_s": -1},
        {"serializer": 7},
        {"delivery": "perfect"},
        {"name": ""},
        {"name": "a\n"},
    ],
)
def test_a_setting_that_does_not_fit_is_named(url: str, setting: dict[str, Any]) -> None:
    """With its value, and what would fit."""
    with pytest.raises(errors.ConfigurationError, match=rf"{next(iter(setting))}=.*(does not fit)"):
        ordered_pubsub.connect(url, **setting)


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "nats", "tls", "amqp", "amqps"])
def test_a_broker_needs_a_stage(scheme: str) -> None:
    """The message says how to start one, and shows no password."""
    with pytest.raises(errors.ConfigurationError, match=r"ordered-pubsub serve.*sequencer=") as caught:
        ordered_pubsub.connect(f"{scheme}://user:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("ens", ["kafka://host", "localhost:1883", "", "://x", 7])
def test_an_ens_that_nobody_knows_is_refused(ens: Any) -> None:
    """The installed schemes are listed, or the form of a URL is shown."""
    with pytest.raises(errors.ConfigurationError, match="memory://"):
        ordered_pubsub.connect(ens)


def test_an_ens_outside_needs_a_stage_outside(url: str) -> None:

    class Distant(MemoryAdapter):
        local_system = None  # type: ignore[assignment]

    with pytest.raises(errors.ConfigurationError, match="sequencer="):
        ordered_pubsub.connect(Distant(url))


async def test_an_ens_without_headers_does_not_do(url: str) -> None:
    """And nothing stays open."""

    class Bare(MemoryAdapter):
        @property
        def capabilities(self) -> Capabilities:
            return attrs.evolve(super().capabilities, carries_headers=False)

    with pytest.raises(errors.ConfigurationError, match="headers"):
        await ordered_pubsub.connect(Bare(url))
    assert memory._systems.get(url.removeprefix("memory://")) is None


# -- connecting and closing -------------------------------------------------------------------------------------------


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


# -- what a first-time user did -------------------------------------------------------------------------------------------


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


async def test_a_forgotten_await_of_connect_is_explained(url: str) -> None:
    with pytest.raises(AttributeError, match=r"no 'publish' before it is awaited: client = await connect"):
        ordered_pubsub.connect(url).publish  # noqa: B018 - the access is what is tested
    with pytest.raises(errors.UsageError, match="needs `async with`"), ordered_pubsub.connect(url):
        pass


async def test_publish_many_does_not_take_a_text_for_a_list(client: Client) -> None:
    with pytest.raises(errors.UsageError, match=r"takes a list of events, not one str"):
        await client.publish_many("t", "abc")


async def test_a_closed_client_says_that_it_is_closed(url: str) -> None:
    client = await ordered_pubsub.connect(url)
    await client.close()
    assert client.status()["waiting_for"] == "nothing: it is closed"


async def test_faults_are_named_as_they_are_written(url: str) -> None:
    async with ordered_pubsub.connect(url + "?reorder=0.5"):
        with pytest.raises(
            errors.ConfigurationError, match=r"is open with \?reorder=0\.5, and was asked for with \?lose=0\.1"
        ):
            await ordered_pubsub.connect(url + "?lose=0.1")
