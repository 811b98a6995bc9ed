"""Publishing and being notified: data, headers and ids come back as they went, in one order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import ordered_pubsub
from helpers.clients import Reversed, take, until
from ordered_pubsub import errors
from ordered_pubsub.adapter import Frame, load_adapter
from ordered_pubsub.client.client import Client


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


async def test_publish_many_does_not_take_a_text_for_a_list(client: Client) -> None:
    with pytest.raises(errors.UsageError, match=r"takes a list of events, not one str"):
        await client.publish_many("t", "abc")
