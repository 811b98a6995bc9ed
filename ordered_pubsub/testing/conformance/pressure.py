"""Checks of slow consumers: what they do not take yet stays out of their memory, is not lost, and holds up nobody else."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from ordered_pubsub.adapter import Frame
from ordered_pubsub.testing.conformance.peers import Peer, first_arrival, fresh_topic, numbered, opened
from ordered_pubsub.testing.conformance.subject import Subject, check, expect

FRAME_BYTES = 16_384
BATCHES, BATCH_FRAMES = 48, 64
"""48 MiB in all."""
HELD_BYTES_MAX = 16 * 2**20
"""What an adapter may hold of them in memory."""
HOLD_S = 4.0
"""For so long the subscriber takes nothing, unless all has been published before. NATS would cut it off after 10 s."""
FLOOD_FRAMES = 12_000
GOES_ON = "`publish`, `subscribe` and `unsubscribe` work while `on_frames` has not returned."


@contextmanager
def traced() -> Iterator[None]:
    """Memory of Python's is counted."""
    was_on = tracemalloc.is_tracing()
    if not was_on:
        tracemalloc.start()
    try:
        yield
    finally:
        if not was_on:
            tracemalloc.stop()


def _held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _batch(topic: str, batch: int) -> list[Frame]:
    first = batch * BATCH_FRAMES
    return [Frame(topic, b"%d/" % number + bytes(FRAME_BYTES)) for number in range(first, first + BATCH_FRAMES)]


async def _publish_all(publisher: Peer, topic: str, taken: list[int]) -> None:
    """Batch by batch, so that the publisher itself holds little."""
    for batch in range(BATCHES):
        await publisher.adapter.publish(_batch(topic, batch))
        taken.append(batch)


@check(
    "while on_frames() has not returned, little is held in memory, and all of it arrives afterwards",
    promise="the adapter stops reading, or leaves the frames with the ENS, as far as that lets it",
    when=lambda subject: not subject.capabilities.loses,
)
async def a_slow_consumer_is_felt_by_the_ens(subject: Subject) -> None:
    """An ENS in this process is itself in this memory; all others are held to the bound."""
    async with opened(subject, 2) as (publisher, receiver):
        topic, taken = fresh_topic(), list[int]()
        await receiver.subscribe(topic)
        receiver.may_receive.clear()
        with traced():
            before = _held_bytes()
            work = asyncio.ensure_future(_publish_all(publisher, topic, taken))
            await asyncio.wait((work,), timeout=HOLD_S)
            held = _held_bytes() - before
        calls = len(receiver.frames)
        receiver.may_receive.set()
        await publisher.within(work, "publish() did not return after the subscriber had taken what waited for it")
        for batch in range(BATCHES):
            await receiver.receive(_batch(topic, batch))
    if publisher.adapter.local_system is None:
        expect(
            held <= HELD_BYTES_MAX,
            f"{held:,} bytes were held in memory ({calls} frames given) of {len(taken) * BATCH_FRAMES * FRAME_BYTES:,} "
            f"that had been published; at most {HELD_BYTES_MAX:,} are allowed",
        )


@check(
    "a topic whose subscriber takes nothing does not hold up publish() of another topic",
    promise="so that a topic that is held up does not hold up others",
)
async def a_topic_that_is_held_up_holds_up_no_other(subject: Subject) -> None:
    """The subscriber of the other topic is another connection."""
    async with opened(subject, 3) as (publisher, slow, quick):
        flood, others = numbered(fresh_topic(), FLOOD_FRAMES), numbered(fresh_topic(), 10)
        await slow.subscribe(flood[0].topic)
        await quick.subscribe(others[0].topic)
        slow.may_receive.clear()
        work = asyncio.ensure_future(publisher.adapter.publish(flood))
        try:
            for frame in others:
                await publisher.publish([frame])
            await quick.receive(others, publisher)
        finally:
            slow.may_receive.set()
            await publisher.within(work, "publish() of the topic that was held up did not return afterwards")
        if not subject.capabilities.loses:
            await slow.receive(flood)


@asynccontextmanager
async def held_up(subject: Subject) -> AsyncIterator[tuple[Peer, Peer]]:
    """A connection whose on_frames() does not return while frames wait for it, and another one."""
    async with opened(subject, 2) as (busy, other):
        waiting = numbered(fresh_topic(), 2_000, size=1_000)
        await busy.subscribe(waiting[0].topic)
        busy.may_receive.clear()
        await first_arrival(Frame(waiting[0].topic, b"first"), other, busy)
        await other.publish(waiting)
        yield busy, other


@check("publish() returns although on_frames() of the same connection has not", promise=GOES_ON)
async def publishing_goes_on_while_frames_wait(subject: Subject) -> None:
    """Or an application that publishes before it reads on would wait for itself."""
    async with held_up(subject) as (busy, other):
        frames = numbered(fresh_topic(), 100)
        await other.subscribe(frames[0].topic)
        await busy.publish(frames)
        await other.receive(frames, busy)


@check("subscribe() and unsubscribe() return although on_frames() of the same connection has not", promise=GOES_ON)
async def subscribing_goes_on_while_frames_wait(subject: Subject) -> None:
    """As an application does that asks for more topics before it reads on."""
    async with held_up(subject) as (busy, other):
        frames, left = numbered(fresh_topic(), 100), fresh_topic("left")
        await busy.subscribe(frames[0].topic, left)
        await busy.within(busy.adapter.unsubscribe([left]), "unsubscribe() did not return")
        await other.publish(frames)
        busy.may_receive.set()
        await busy.receive(frames, other)
