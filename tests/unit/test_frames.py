"""What has a number can be published: frames that every broker carries, whatever is in them, and events that are never lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ordered_pubsub
from ordered_pubsub import errors
from ordered_pubsub.adapter import Frame
from ordered_pubsub.client.client import METADATA_BYTES, METADATA_SHARE, Client
from ordered_pubsub.client.outgoing import publisher
from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.core.messages import ChangeMark, Publication
from ordered_pubsub.wire.event_frames import (
    EVENT_BYTES,
    HEADERS_BYTES_MAX,
    PACK,
    STAMP,
    STAMP_BYTES_MAX,
    check_headers,
    headers_bytes,
    packed,
    read_arrivals,
    stamped,
)
from ordered_pubsub_adapters._mqtt_properties import pack_headers
from ordered_pubsub_adapters._nats_headers import header_block
from ordered_pubsub_adapters.memory import MemoryAdapter
from ordered_pubsub_adapters.rabbitmq import MESSAGE_BYTES_MAX, check_fits

FRAME_MAX = 131_072
"""RabbitMQ's, unless it is told otherwise."""
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
HEADERS = st.dictionaries(NAMES.filter(lambda name: name.lower() != "content-type"), st.one_of(TEXTS, st.binary()))


def on_the_wire(frame: Frame) -> int:
    """How many bytes the frame has with the broker that needs most; raises if one cannot carry it."""
    check_fits(frame, MESSAGE_BYTES_MAX, FRAME_MAX)
    headers = max(len(header_block(frame.headers)), len(pack_headers(frame.headers)) + 9 + len(frame.topic.encode()))
    return headers + len(frame.payload)


class NarrowAdapter(MemoryAdapter):
    """Takes no frame that a broker with this limit would not take."""

    limit = 20_000
    troubles: list[BaseException]

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.troubles = []
        self.sizes: list[int] = []
        self.frames: list[Frame] = []

    @property
    def frame_bytes_max(self) -> int:
        """What it takes."""
        return self.limit

    async def publish(self, frames: Sequence[Frame]) -> None:
        if self.troubles:
            raise self.troubles.pop(0)
        sizes = [on_the_wire(frame) for frame in frames]
        if max(sizes) > self.limit:
            raise errors.AdapterError(f"a frame of {max(sizes)} bytes is too large")
        self.sizes += sizes
        self.frames += frames
        await super().publish(frames)


@pytest.fixture
def adapter() -> NarrowAdapter:
    """A connection to a broker that takes little."""
    return NarrowAdapter(f"memory://{uuid4().hex}")


async def until(condition: Callable[[], object]) -> None:
    """Give way until something is the case."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + 30
    while not condition():
        assert loop.time() < give_up_at, "waited in vain"
        await asyncio.sleep(0)


async def until_trouble(client: Client, what: str) -> None:
    """Until the client says so of its publications."""
    await until(lambda: what in client.status()["waiting_for"])


async def take(subscription: ordered_pubsub.Subscription, count: int) -> list[ordered_pubsub.Event]:
    async def collect() -> list[ordered_pubsub.Event]:
        return [await anext(subscription) for _ in range(count)]

    return await asyncio.wait_for(collect(), 30)


def item(payload: bytes = b"x", headers: Mapping[str, bytes | str] | None = None, identity: str = "id") -> Outgoing:
    size = EVENT_BYTES + len(payload) + headers_bytes(headers or {}) + len(identity.encode())
    return Outgoing("t", identity, payload, "text/plain", headers or {}, size)


def entries_of(count: int) -> dict[str, int]:
    return {f"markets/europe/instrument-{number:06}/quotes": 10**9 + number for number in range(count)}


# -- packs fit --------------------------------------------------------------------------------------------------------


async def test_packs_are_no_larger_than_the_ens_takes(adapter: NarrowAdapter) -> None:
    """Whatever the setting for payloads says."""
    async with ordered_pubsub.connect(adapter, batch_events_max=1_000) as client:
        subscription = await client.subscribe("a")
        await asyncio.wait_for(client.publish_many("a", [b"x" * 1_000] * 100), 30)
        events = await take(subscription, 100)

    assert [event.number for event in events] == list(range(1, 101))
    assert len(adapter.frames) < 20


@pytest.mark.parametrize(("headers", "identity"), [(None, "é" * 200), ({"name": "é" * 300}, "")], ids=["id", "headers"])
async def test_what_is_no_payload_counts_in_a_pack(
    adapter: NarrowAdapter, headers: dict[str, bytes | str] | None, identity: str
) -> None:
    """Events without any payload fill one as well."""
    async with ordered_pubsub.connect(adapter, batch_events_max=1_000) as client:
        subscription = await client.subscribe("a")
        sent = [client.publish_nowait("a", b"", headers=headers, id=f"{identity}{n:03}") for n in range(100)]
        await asyncio.wait_for(asyncio.gather(*sent), 30)
        events = await take(subscription, 100)

    assert [event.number for event in events] == list(range(1, 101))


@pytest.mark.parametrize("batch_events_max", [1, 100])
async def test_an_event_that_is_as_large_as_may_be_is_sent(adapter: NarrowAdapter, batch_events_max: int) -> None:
    """With headers, and with the longest id and topic, which a broker may spell with three times as many bytes."""
    adapter.limit = 100_000
    room = adapter.limit - max(METADATA_BYTES, adapter.limit // METADATA_SHARE)
    headers: dict[str, bytes | str] = {"bytes": b"\xff" * 15_000, "text": "é" * 4_000}
    payload = b"x" * (room - headers_bytes(headers))
    topic, identity = "日" * 255, "日" * 255
    async with ordered_pubsub.connect(adapter, batch_events_max=batch_events_max, timeout_s=5) as client:
        subscription = await client.subscribe(topic)
        with pytest.raises(errors.UsageError, match="what the ENS takes"):
            await client.publish(topic, payload + b"x", headers=headers, id=identity)
        await client.publish(topic, payload, headers=headers, id=identity)
        (event,) = await take(subscription, 1)

    assert (event.number, event.raw, event.headers, event.id) == (1, payload, headers, identity)


@given(
    st.lists(st.tuples(st.lists(st.binary(max_size=400), min_size=1, max_size=9), st.integers(0, 9), st.booleans())),
    st.integers(1, 12),
    st.integers(500, 3_000),
)
def test_no_pack_of_several_events_is_larger_than_asked_and_none_is_missing(
    drawn: list[tuple[list[bytes], int, bool]], events_max: int, bytes_max: int
) -> None:
    """And each event has its number, and the first of a batch its entries and marks."""
    batches, first = [], 1
    for payloads, entry_count, full in drawn:
        part = Publication(
            "t", len(payloads), 0.0, first, 0, full, entries_of(entry_count), [ChangeMark("s", 1)] * entry_count
        )
        batches.append((part, [item(payload, {"h": payload}, f"日{len(payload)}") for payload in payloads]))
        first += len(payloads)

    frames = packed("t", batches, events_max, bytes_max)

    arrivals = [read_arrivals(frame) for frame in frames]
    for frame, found in zip(frames, arrivals, strict=True):
        assert len(found) == 1 or (len(frame.payload) <= bytes_max and len(found) <= events_max)
    together = [arrival for found in arrivals for arrival in found]
    assert [(a.number, a.body.payload) for a in together] == list(
        enumerate((payload for payloads, _, _ in drawn for payload in payloads), 1)
    )
    for part, _ in batches:
        of_batch = together[part.first - 1 : part.last]
        assert [bool(a.entries) for a in of_batch] == [
            bool(part.entries) and (part.full or not n) for n in range(part.count)
        ]
        assert [a.marks for a in of_batch] == [part.marks if not n else [] for n in range(part.count)]


def test_marks_count_in_a_pack() -> None:
    """A topic that many subscriptions leave and gain has hundreds."""
    marks = [ChangeMark("session" * 12, number) for number in range(3)]
    parts = [Publication("t", 1, 0.0, number, 0, False, {}, marks) for number in range(1, 51)]
    frames = packed("t", [(part, [item()]) for part in parts], 50, 3_000)

    assert max(len(frame.payload) for frame in frames) <= 3_000
    assert len(frames) > 5


async def test_a_broker_that_comes_back_with_a_smaller_limit_gets_smaller_packs(adapter: NarrowAdapter) -> None:
    """What was refused is put together anew."""
    adapter.limit, adapter.troubles = 100_000, [errors.AdapterError("gone")]
    async with ordered_pubsub.connect(adapter, batch_events_max=1_000) as client:
        sent = [client.publish_nowait("a", b"x" * 1_000) for _ in range(50)]
        await until(lambda: not adapter.troubles)
        adapter.limit = 20_000
        await asyncio.wait_for(asyncio.gather(*sent), 30)

    assert max(adapter.sizes) <= 20_000


# -- stamps fit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_a_stamp_that_is_too_long_for_a_header_travels_in_a_pack_of_one(full: bool) -> None:
    """The event is the same for whoever reads it."""
    part = Publication("t", 2, 5.0, 7, 0, full, entries_of(1_000), [ChangeMark("s", 3)], publisher="p")
    headers: dict[str, bytes | str] = {"text": "é", "bytes": b"\0"}
    frames = stamped(part, [item(b"%d" % index, headers) for index in range(2)])

    assert [PACK in frame.headers for frame in frames] == [True, full]
    (first,), (second,) = map(read_arrivals, frames)
    assert (first.number, first.entries, first.marks, first.full) == (7, part.entries, part.marks, full)
    assert (second.number, second.entries, second.marks, second.full) == (8, part.entries if full else {}, [], full)
    assert (first.body.payload, first.body.headers, first.body.id, first.body.publisher) == (b"0", headers, "id", "p")
    assert first.body.published_at == 5.0


@given(st.integers(0, 400), HEADERS)
def test_whatever_the_timestamp_and_the_headers_a_frame_has_no_header_that_a_broker_could_not_carry(
    entry_count: int, headers: dict[str, bytes | str]
) -> None:
    """Beside payload and headers of the user there is less than a client keeps free."""
    part = Publication("t", 1, 0.0, 1, 0, False, entries_of(entry_count))
    (frame,) = stamped(part, [item(b"", headers, "日" * 255)])

    assert len(frame.headers.get(STAMP, b"")) <= STAMP_BYTES_MAX
    if STAMP in frame.headers:
        assert on_the_wire(frame) <= headers_bytes(headers) + METADATA_BYTES
    else:
        assert on_the_wire(Frame("t", b"", frame.headers)) < 1_000


@pytest.mark.heavy
async def test_an_event_with_a_thousand_entries_is_published(adapter: NarrowAdapter) -> None:
    """It was not, by any broker: its stamp is longer than their headers may be."""
    topics = list(entries_of(1_000))
    adapter.limit = 1 << 20
    async with ordered_pubsub.connect(adapter, timeout_s=10) as client:
        subscription = await client.subscribe(*topics)
        for topic in topics:
            client.publish_nowait(topic, 0)
        await client.publish(topics[0], "last")
        events = await take(subscription, 1_001)

    assert events[-1].data == "last"
    assert sum(PACK in frame.headers for frame in adapter.frames) > 500


async def test_an_event_that_its_timestamp_makes_too_large_is_said_with_what_helps(
    adapter: NarrowAdapter,
    caplog: pytest.LogCaptureFixture,
    ordered_topics: None,
) -> None:
    """It waits, and comes when the ENS takes it."""
    topics = list(entries_of(300))
    adapter.limit = 1 << 20
    async with ordered_pubsub.connect(adapter, delivery="ordered", timeout_s=10) as client:
        await client.subscribe(*topics)
        await asyncio.gather(*[client.publish_nowait(topic, 0) for topic in topics])
        adapter.limit = 10_000
        sent = client.publish_nowait(topics[0], 1)
        await until_trouble(client, "With its timestamp")
        said = client.status()["waiting_for"]
        adapter.limit = 1 << 20
        await sent
        assert client._publisher.outbox.trouble == ""

    for part in ("the ENS takes 10000 at most", "max_payload", "order='pairwise'", "order='topic'", "fewer topics"):
        assert part in said
        assert part in caplog.text


async def test_a_kept_event_that_its_timestamp_makes_too_large_comes_from_the_log(adapter: NarrowAdapter) -> None:
    """Its subscribers wait for nobody who changes the ENS's limits."""
    topics = list(entries_of(300))
    adapter.limit = 1 << 20
    async with ordered_pubsub.connect(adapter, timeout_s=10) as client:
        subscription = await client.subscribe(*topics)
        await asyncio.gather(*[client.publish_nowait(topic, 0) for topic in topics])
        await take(subscription, 300)
        adapter.limit = 10_000
        await client.publish(topics[0], 1)
        (event,) = await take(subscription, 1)
        adapter.limit = 1 << 20

    assert event.data == 1


# -- headers fit ------------------------------------------------------------------------------------------------------


@given(HEADERS)
def test_headers_are_counted_as_the_broker_carries_them_that_needs_most(headers: dict[str, bytes | str]) -> None:
    """Not less, and not much more."""
    carried = max(len(header_block(headers)) - len(header_block({})), len(pack_headers(headers)))

    assert carried <= headers_bytes(headers) + 2 <= 3 * carried + 15 * len(headers) + 2


@pytest.mark.parametrize(
    "headers",
    [
        {"a": "日" * 22_000},
        {"a": b"x" * 25_000},
        {"a": " " + "x" * 25_000},
        {"a": "b64:" + "x" * 25_000},
        {f"{n}": "" for n in range(3_000)},
    ],
)
def test_headers_that_grow_beyond_the_limit_on_a_broker_are_refused(headers: Mapping[str, bytes | str]) -> None:
    """22,000 characters may be 88,004 bytes."""
    with pytest.raises(errors.UsageError, match=rf"bytes together on a broker.*at most {HEADERS_BYTES_MAX}.*payload"):
        check_headers(headers)


@pytest.mark.parametrize("batch_events_max", [1, 10])
async def test_text_that_is_not_unicode_is_refused_in_a_header(adapter: NarrowAdapter, batch_events_max: int) -> None:
    """It is named, before the event has a number; what follows is published."""
    async with ordered_pubsub.connect(adapter, batch_events_max=batch_events_max, timeout_s=5) as client:
        with pytest.raises(errors.UsageError, match=r"header 'trace'.*not Unicode.*other text, or bytes"):
            await client.publish("a", 1, headers={"trace": "a\ud800"})
        with pytest.raises(errors.UsageError, match="id="):
            await client.publish("a", 1, id="a\ud800")

        assert (await client.publish("a", 1)).number == 1


class Odd:
    """A serializer whose content type no broker takes."""

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type

    def dumps(self, data: Any) -> bytes:
        return b""

    def loads(self, payload: bytes) -> Any:
        return None


@pytest.mark.parametrize("content_type", ["text/\udc80", "x" * 256, "é" * 128])
async def test_a_content_type_that_does_not_fit_is_refused(adapter: NarrowAdapter, content_type: str) -> None:
    """With the setting, and with the event if it has changed since."""
    with pytest.raises(errors.ConfigurationError, match=r"serializer=.*does not fit.*content type"):
        Settings(serializer=Odd(content_type))
    serializer = Odd("text/plain")
    async with ordered_pubsub.connect(adapter, serializer=serializer) as client:
        serializer.content_type = content_type
        with pytest.raises(errors.UsageError, match="content type"):
            await client.publish("a", 1)


# -- nothing is lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [ValueError("a bug"), asyncio.CancelledError(), MemoryError("full")])
@pytest.mark.parametrize("batch_events_max", [1, 10])
async def test_whatever_an_adapter_raises_no_event_is_lost(
    adapter: NarrowAdapter,
    trouble: BaseException,
    batch_events_max: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said in the log and to who asks, and tried again."""
    adapter.troubles = [trouble, trouble]
    async with ordered_pubsub.connect(adapter, batch_events_max=batch_events_max, timeout_s=10) as client:
        subscription = await client.subscribe("a")
        sent = [client.publish_nowait("a", number) for number in range(5)]
        await until_trouble(client, "report it")
        await asyncio.gather(*sent)
        events = await take(subscription, 5)

    assert [event.data for event in events] == list(range(5))
    assert "trying again" in caplog.text
    assert "Traceback" in caplog.text


async def test_what_cannot_be_framed_is_kept_and_tried_again(
    adapter: NarrowAdapter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours loses nothing either."""
    faults = [RuntimeError("of ours")]

    def frames_of(*arguments: Any) -> list[Frame]:
        if faults:
            raise faults.pop()
        return packed(*arguments)

    monkeypatch.setattr(publisher, "packed", frames_of)
    async with ordered_pubsub.connect(adapter, batch_events_max=10, timeout_s=10) as client:
        receipts = await client.publish_many("a", range(5))

    assert [receipt.number for receipt in receipts] == [1, 2, 3, 4, 5]
    assert "of ours" in caplog.text


async def test_the_trouble_of_one_topic_is_told_while_another_goes_on(
    adapter: NarrowAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is stuck for ever must not be hidden by those that are not."""
    may_go = asyncio.Event()

    async def publish(frames: Sequence[Frame]) -> None:
        if frames[0].topic == "stuck" and not may_go.is_set():
            raise errors.AdapterError("no such exchange")
        await MemoryAdapter.publish(adapter, frames)

    monkeypatch.setattr(adapter, "publish", publish)
    async with ordered_pubsub.connect(adapter) as client:
        stuck = client.publish_nowait("stuck", 1)
        await until_trouble(client, "no such exchange")
        await client.publish("fine", 1)
        assert "no such exchange" in client.status()["waiting_for"]
        may_go.set()
        await stuck


async def test_a_client_that_gives_up_begins_no_hand_over_again(
    adapter: NarrowAdapter,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    ordered_topics: None,
) -> None:
    """Closing says what is left, and that is all."""
    caplog.set_level(logging.WARNING)
    held = asyncio.Event()
    monkeypatch.setattr(adapter, "publish", lambda frames: held.wait())
    client = await ordered_pubsub.connect(adapter, delivery="ordered", timeout_s=0.05)
    sent = client.publish_nowait("a", 1)
    with pytest.raises(errors.Timeout, match="had to leave"):
        await client.close()
    with pytest.raises(errors.Timeout):
        await sent
    assert caplog.text == ""


async def test_what_was_to_be_handed_over_again_is_given_up_with_the_client(
    adapter: NarrowAdapter, ordered_topics: None
) -> None:
    """An adapter that is closed is given nothing."""
    adapter.troubles = [asyncio.CancelledError()] * 1_000
    client = await ordered_pubsub.connect(adapter, delivery="ordered", timeout_s=0.05)
    sent = client.publish_nowait("a", 1)
    with pytest.raises(errors.Timeout, match="had to leave"):
        await client.close()
    with pytest.raises(errors.Timeout):
        await sent
    client._publisher.go_on()

    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("publish on")]
