"""Whoever can write to the broker can delay an event by what asking for it takes, and can do nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import ordered_pubsub
from helpers.clients import keys_of, names, signed, stamp, take, until
from ordered_pubsub import embedded, errors
from ordered_pubsub.adapter import Frame
from ordered_pubsub.client.client import Client
from ordered_pubsub.core.messages import ChangeMark
from ordered_pubsub.core.trust import inspection
from ordered_pubsub.core.trust.authenticity import NO_TAG, Stamp
from ordered_pubsub.wire.event_frames import CONTENT_TYPE, PACK, STAMP
from ordered_pubsub.wire.stamp import decode_stamp, encode_stamp
from ordered_pubsub_adapters.memory import MemoryAdapter


class Spying(MemoryAdapter):
    """Says what it was given, and may give something else to the broker."""

    def __init__(self, url: str, change: Callable[[Frame], list[Frame]] | None = None) -> None:
        super().__init__(url)
        self.frames: list[Frame] = []
        self.change = change

    async def publish(self, frames: Any) -> None:
        self.frames += frames
        await super().publish(
            frames if self.change is None else [one for frame in frames for one in self.change(frame)]
        )


def stamp_of(frame: Frame) -> tuple[bytes, Stamp]:
    data = frame.headers[STAMP]
    assert isinstance(data, bytes)
    tag, _, found = decode_stamp(data)
    return tag, found


def with_stamp(frame: Frame, **changes: Any) -> Frame:
    tag, found = stamp_of(frame)
    body = msgspec.msgpack.encode(replace(found, **changes))
    return Frame(frame.topic, frame.payload, {**frame.headers, STAMP: encode_stamp(tag, body)})


def untagged(frame: Frame) -> Frame:
    _, found = stamp_of(frame)
    return Frame(
        frame.topic, frame.payload, {**frame.headers, STAMP: encode_stamp(NO_TAG, msgspec.msgpack.encode(found))}
    )


FORGERIES: dict[str, tuple[Callable[[Frame], Frame], str]] = {
    "payload": (lambda frame: Frame(frame.topic, b'"FORGED"', frame.headers), "tag"),
    "content type": (lambda frame: Frame(frame.topic, frame.payload, {**frame.headers, CONTENT_TYPE: "text/x"}), "tag"),
    "another header": (lambda frame: Frame(frame.topic, frame.payload, {**frame.headers, "x": "y"}), "tag"),
    "another number": (lambda frame: with_stamp(frame, number=stamp_of(frame)[1].number + 1), "tag"),
    "entries": (lambda frame: with_stamp(frame, entries={"b": (1 << 39) - 1}), "tag"),
    "entries that cannot be": (lambda frame: with_stamp(frame, entries={"b": 1 << 50}), "impossible"),
    "marks": (lambda frame: with_stamp(frame, marks=[ChangeMark("", 0)]), "tag"),
    "publisher": (lambda frame: with_stamp(frame, publisher="treasury"), "tag"),
    "full": (lambda frame: with_stamp(frame, full=True, entries={"b": 7}), "tag"),
    "zero": (lambda frame: with_stamp(frame, number=0), "number"),
    "below zero": (lambda frame: with_stamp(frame, number=-1), "number"),
    "far ahead": (lambda frame: with_stamp(frame, number=1 << 62), "number"),
    "another system": (lambda frame: with_stamp(frame, system=b"another!"), "system"),
    "no tag": (untagged, "untagged"),
    "keys that cannot be": (lambda frame: with_stamp(frame, key_epoch=1 << 41), "epoch"),
    "keys beyond all": (lambda frame: with_stamp(frame, key_epoch=(1 << 64) - 1), "epoch"),
    "keys below all": (lambda frame: with_stamp(frame, key_epoch=-1), "epoch"),
    "version 1": (lambda frame: Frame(frame.topic, b"", {STAMP: b"\x01\x97"}), "version"),
    "rubbish": (lambda frame: Frame(frame.topic, b"", {STAMP: b"\x02" + bytes(16) + b"rubbish"}), "unreadable"),
    "a pack of rubbish": (lambda frame: Frame(frame.topic, b"\x02rubbish", {PACK: "1"}), "unreadable"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", FORGERIES)
async def test_what_was_changed_on_its_way_has_not_arrived_and_the_log_brings_it(url: str, kind: str) -> None:
    forge, cause = FORGERIES[kind]
    adapter = Spying(url, lambda frame: [forge(frame)])
    async with ordered_pubsub.connect(adapter) as publisher, ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a", "b")
        await publisher.publish_many("a", range(5))
        await publisher.publish("b", 5)
        events = await take(subscription, 6)

    assert [event.data for event in events] == list(range(6))
    assert all(event.publisher == publisher.name for event in events)
    assert cause in client.status()["not_arrived"]


@pytest.mark.parametrize("kind", [kind for kind in FORGERIES if kind != "rubbish"])
async def test_what_was_forged_before_the_genuine_one_takes_nothing_from_it(url: str, kind: str) -> None:
    forge, cause = FORGERIES[kind]
    adapter = Spying(url, lambda frame: [forge(frame), frame, forge(frame)])
    async with ordered_pubsub.connect(adapter) as publisher, ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a", "b")
        await publisher.publish_many("a", range(5))
        events = await take(subscription, 5)
        status = client.status()

    assert [event.data for event in events] == list(range(5))
    assert status["not_arrived"][cause] >= 5
    assert status["subscriptions"][0]["waiting"] == 0


@pytest.mark.parametrize("batch_events_max", [1, 50])
async def test_each_bit_of_what_travels_is_of_weight(
    url: str, batch_events_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header's name and the keys of a mapping of the broker are not ours."""
    monkeypatch.setattr(inspection, "WAIT_S", 0.0)
    monkeypatch.setattr(inspection, "ASK_AGAIN_S", 0.05)
    flipped: list[Frame] = []

    def flip(frame: Frame) -> list[Frame]:
        stamped = frame.headers.get(STAMP)
        whole = [frame.payload] if stamped is None else [frame.payload, stamped]
        for place, part in enumerate(whole):
            assert isinstance(part, bytes)
            for bit in range(0, 8 * len(part), 7):
                changed = bytearray(part)
                changed[bit // 8] ^= 1 << bit % 8
                data = bytes(changed)
                flipped.append(
                    Frame(frame.topic, frame.payload, {**frame.headers, STAMP: data})
                    if place
                    else Frame(frame.topic, data, frame.headers)
                )
        return []

    spy = Spying(url, flip)
    publishing = ordered_pubsub.connect(spy, batch_events_max=batch_events_max)
    async with publishing as publisher, ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a")
        await publisher.publish_many("a", ["some data", "and more"])
        await until(lambda: publisher.status()["unfinished"] == 0 and len(flipped) > 50)
        for frame in flipped:
            await client._engine.reception.take_frames([frame])
        await until(lambda: sum(client.status()["not_arrived"].values()) == len(flipped))
        assert client.status()["connected"]
        events = await take(subscription, 2)

    assert len(flipped) > 50
    assert [event.data for event in events] == ["some data", "and more"]


async def test_an_old_genuine_event_under_the_next_number_has_not_arrived(url: str) -> None:
    spy = Spying(url)
    async with ordered_pubsub.connect(spy) as publisher, ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a")
        await publisher.publish("a", "pay 10")
        await take(subscription, 1)
        await client._engine.reception.take_frames([with_stamp(spy.frames[0], number=2), spy.frames[0]])
        await publisher.publish("a", "real")
        events = await take(subscription, 1)

    assert [(event.number, event.data) for event in events] == [(2, "real")]


async def test_a_genuine_event_of_another_topic_has_not_arrived(url: str) -> None:
    spy = Spying(url)
    async with ordered_pubsub.connect(spy) as publisher, ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a")
        await publisher.publish("b", "for others")
        moved = Frame("a", spy.frames[0].payload, spy.frames[0].headers)
        await client._engine.reception.take_frames([moved])
        await publisher.publish("a", "real")

        assert [event.data for event in await take(subscription, 1)] == ["real"]
        assert client.status()["not_arrived"] == {"tag": 1}


async def test_packed_events_arrive_by_one_tag_for_all_of_them(url: str) -> None:
    spy = Spying(url)
    async with ordered_pubsub.connect(spy, batch_events_max=1_000) as publisher, ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a", "b")
        await publisher.publish_many("a", ["x" * 100] * 2_000)
        events = await take(subscription, 2_000)

    assert names(events) == [("a", number) for number in range(1, 2_001)]
    assert len(spy.frames) < 20
    assert client.status()["not_arrived"] == {}


@pytest.mark.parametrize("batch_events_max", [1, 100])
async def test_what_nobody_keeps_is_tagged_as_well(url: str, ordered_topics: None, batch_events_max: int) -> None:
    spy = Spying(url, lambda frame: [Frame(frame.topic, b'"FORGED"', frame.headers), frame])
    settings: dict[str, Any] = {"delivery": "ordered", "batch_events_max": batch_events_max}
    publishing, subscribing = ordered_pubsub.connect(spy, **settings), ordered_pubsub.connect(url, delivery="ordered")
    async with publishing as publisher, subscribing as client:
        subscription = await client.subscribe("a")
        await publisher.publish_many("a", range(50))
        headers = {"text": "é", "bytes": b"\0"}
        await publisher.publish("a", 50, headers=headers)
        events = await take(subscription, 51)

    assert [event.data for event in events] == list(range(51))
    assert events[-1].headers == headers
    assert client.status()["not_arrived"]


# -- somebody who has the keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stall",
    [{"entries": {"b": (1 << 39) - 1}}, {"entries": {"a": 50}}, {"marks": "own"}],
    ids=["what will never be", "of its own topic", "a change that was never asked for"],
)
async def test_a_subscriber_who_forges_cannot_make_others_wait_where_a_log_knows_better(
    url: str, publish_frame: Callable[..., Any], stall: dict[str, Any]
) -> None:
    async with ordered_pubsub.connect(url) as publisher, ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a", "b")
        if "marks" in stall:
            stall = {"marks": [ChangeMark(subscription._intake.identity, 1 << 30)]}
        await publish_frame("a", b'"FORGED"', stamp(1, **stall))
        await publisher.publish("a", "real")
        await publisher.publish("b", "too")
        events = await take(subscription, 2)

    assert sorted((event.topic, event.data) for event in events) == [("a", "real"), ("b", "too")]


async def test_what_the_log_brings_is_right_whatever_the_broker_has_brought_before(
    url: str, publish_frame: Callable[..., Any]
) -> None:
    adapter = Spying(url, lambda frame: [])
    async with ordered_pubsub.connect(adapter) as publisher, ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a")
        await publish_frame("a", b'"FORGED"', stamp(2))
        await until(lambda: subscription.lag.waiting == 1)
        await publisher.publish_many("a", ["one", "two"])
        events = await take(subscription, 1)

    assert [event.data for event in events] == ["one"]


# -- keys ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revokes", [False, True])
async def test_nobody_notices_that_keys_are_rotated(url: str, revokes: bool) -> None:
    async with ordered_pubsub.connect(url) as publisher, ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a")
        driver = embedded._stages[url.removeprefix("memory://").partition("?")[0]].driver
        for number in range(3):
            await publisher.publish("a", number)
            driver.rotate_keys(revokes)
            before = keys_of(url).epoch
            await until(lambda before=before: keys_of(url).epoch > before)
        await publisher.publish("a", 3)
        events = await take(subscription, 4)

    assert [event.data for event in events] == [0, 1, 2, 3]
    assert client.status()["not_arrived"] == {}


async def test_a_client_asks_for_the_keys_of_a_topic_before_it_holds_it(url: str) -> None:
    async with ordered_pubsub.connect(url) as client:
        await client.subscribe("a")

        assert client._engine.reception.inspection.is_ready("a")


async def test_without_tags_a_subscription_that_meets_another_system_ends_with_what_to_do(
    client: Client, publish_frame: Callable[..., Any]
) -> None:
    client._engine.reception.inspection.has_tags = False
    subscription = await client.subscribe("a")
    await publish_frame("a", b"0", stamp(1, system=b"another!"))

    with pytest.raises(errors.SystemMismatch, match="several systems share a broker with tags = true"):
        await take(subscription, 1)


async def test_a_forged_event_is_said_in_the_log(url: str, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    await client.subscribe("a")
    forged = signed(url, "a", b"1", stamp(1))
    frames = [Frame("a", b"other", forged.headers)] * 100
    await client._engine.reception.take_frames(frames)

    said = [record.message for record in caplog.records if "has not arrived" in record.message]
    assert len(said) == 1
    assert "its tag is wrong" in said[0]
    assert client.status()["not_arrived"] == {"tag": 100}
