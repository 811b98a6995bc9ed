"""An event is written once: what its topic's log has of it, what its tag is made from, and what travels are the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from helpers.clients import until
from ordered_pubsub.adapter import Frame
from ordered_pubsub.client.outgoing.publisher import Outgoing, Publisher
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.core.client.batches import UnkeptBatches
from ordered_pubsub.core.client.outbox import Outbox
from ordered_pubsub.core.client.session import Outcome, Queued
from ordered_pubsub.core.levels import EXACTLY_ONCE, ORDERED, Levels
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.messages import LeaseReply, Publication, PublishAsk, TopicRange
from ordered_pubsub.core.trust.authenticity import TAG_BYTES, digest_of
from ordered_pubsub.errors import EventVoid
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub.wire.event_frames import EVENT_BYTES, headers_bytes, packed, read_arrivals, written_together
from ordered_pubsub.wire.logged import LogPacker, Sharing
from ordered_pubsub.wire.pack import decode_logged, decode_pack, head_of_chunk
from ordered_pubsub_adapters.memory import MemoryAdapter

HEADERS = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.one_of(st.binary(max_size=9), st.text(max_size=9)))


class Home:
    """It knows what topics give."""

    def __init__(self, level: str) -> None:
        self.levels = Levels(default=level)


def item(number: int, payload: bytes, headers: Mapping[str, bytes | str]) -> Outgoing:
    return Outgoing(
        "t", f"id-{number}", payload, "text/plain", headers, EVENT_BYTES + len(payload) + headers_bytes(headers)
    )


def answer(ask: PublishAsk) -> Publication:
    """What the stages make of it."""
    pieces = ask.pieces or (1,) * ask.count
    tags = b"".join(bytes([number]) * TAG_BYTES for number in range(len(pieces)))
    return Publication("t", ask.count, 5.0, 1, 0, False, {"u": 3}, [], ask.is_kept, pieces=ask.pieces, tags=tags)


@given(
    st.lists(st.tuples(st.binary(max_size=90), HEADERS), min_size=1, max_size=9), st.integers(1, 9), st.integers(1, 900)
)
def test_what_the_log_has_is_what_is_digested_and_what_travels(
    drawn: list[tuple[bytes, dict[str, bytes | str]]], events_max: int, bytes_max: int
) -> None:
    """And it is the same whether it was written before or is written anew."""
    for level in (EXACTLY_ONCE, ORDERED):
        items = [item(number, *one) for number, one in enumerate(drawn)]
        ask = LogPacker("desk", Home(level), Sharing(events_max, lambda: bytes_max)).ask("t", items)
        batches = [(answer(ask), items)]
        frames = packed("t", batches, 5, 700)
        sent = [bytes(batch.events) for frame in frames for batch in decode_pack(frame.payload)]
        for one in items:
            one.written = b""

        assert packed("t", batches, 5, 700) == frames
        if level == EXACTLY_ONCE:
            assert [chunk.data for chunk in ask.chunks] == [head_of_chunk("desk") + events for events in sent]
            assert {decode_logged(chunk.data, chunk.count).publisher for chunk in ask.chunks} == {"desk"}
        else:
            assert ask.digests == b"".join(map(digest_of, sent))


class Collecting(MemoryAdapter):
    """It takes everything, and carries nothing."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.frames: list[Frame] = []

    async def publish(self, frames: Sequence[Frame]) -> None:
        self.frames += frames


def no_more() -> None:
    """Nothing else is to be done."""


async def test_what_was_written_together_with_what_is_void_is_written_anew() -> None:
    """A tag is of all events of a piece, so what is left of it is not genuine; but it is there."""
    ask_of = LogPacker("desk", Home(ORDERED), Sharing(9, lambda: 900)).ask
    items = [item(number, b"%d" % number, {}) for number in range(1, 4)]
    for one in items:
        one.future = asyncio.get_running_loop().create_future()
    part = answer(ask_of("t", items))
    assert items[0].written == written_together(items)
    outbox, adapter = Outbox(UnkeptBatches(Lease("s"), lambda topic: 0)), Collecting("memory://written-once")
    supervisor, now = Supervisor("a test", lambda error: None), asyncio.get_running_loop().time()
    publisher = Publisher(
        "s", adapter, Settings(batch_events_max=9), lambda runs: None, lambda parts: None, outbox, no_more, supervisor
    )
    outbox.numbered(Outcome(1, Queued(["t"], [items]), [part], None, None, now - 100.0), now)

    publisher.go_on()
    asked = outbox.take_due(now + 1.0)
    assert asked is not None
    outbox.leased(LeaseReply("s", asked.serial, 0, [TopicRange("t", 3, 3)]), now + 1.0)
    publisher.go_on()
    await until(lambda: adapter.frames)

    arrivals = [arrival for frame in adapter.frames for arrival in read_arrivals(frame)]
    assert [(arrival.number, arrival.body.payload) for arrival in arrivals] == [(1, b"1"), (2, b"2")]
    await until(lambda: items[0].future.done())
    assert isinstance(items[2].future.exception(), EventVoid)
