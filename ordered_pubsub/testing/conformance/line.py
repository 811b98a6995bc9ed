"""Checks of a line that breaks while the ENS stays up: what is told, what comes back by itself, what is lost or repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ordered_pubsub.adapter import Adapter, Frame
from ordered_pubsub.testing.conformance.delivery import expect_no_repeats
from ordered_pubsub.testing.conformance.link import HOST, Link, linked
from ordered_pubsub.testing.conformance.peers import (
    Peer,
    error_of_opening,
    exchange,
    fresh_topic,
    numbered,
    opened,
    peer_of,
)
from ordered_pubsub.testing.conformance.subject import Subject, bounded, check, expect

CUTS = 3
BATCHES, BATCH_FRAMES = 30, 50
TOLD = "when it breaks, it connects and subscribes again, and tells `on_state` of both."
UNREACHABLE = (
    "`open` of an ENS that cannot be reached raises an `AdapterError` within a minute, which names the address and says "
    "what to do."
)
RETRY = "If it raises, the client hands over the same frames again later: a frame may arrive twice, but not never."


def can_be_cut(subject: Subject) -> bool:
    """Whether there can be a line."""
    return subject.can_be_cut


def maker_at(subject: Subject, link: Link) -> Callable[[], Adapter]:
    """What makes adapters at the end of a line."""
    make_at = subject.make_at
    assert make_at is not None
    return lambda: make_at(HOST, link.port)


@asynccontextmanager
async def line(subject: Subject, is_mute: bool = False) -> AsyncIterator[tuple[Link, Callable[[], Peer]]]:
    """A line, behind which nothing ever answers if it is mute, and what makes users at its end."""
    assert subject.address is not None
    async with linked(*subject.address()) as link:
        link.is_mute = is_mute
        yield link, lambda: peer_of(subject, maker_at(subject, link))


async def until_connections(link: Link, count: int, subject: Subject, otherwise: str) -> None:
    """Wait until so many connections are open."""

    async def wait() -> None:
        while link.connections != count:
            link.changed.clear()
            await link.changed.wait()

    await bounded(wait(), subject.patience_s, otherwise)


@asynccontextmanager
async def far_and_near(subject: Subject) -> AsyncIterator[tuple[Link, Peer, Peer]]:
    """A line, a user of the ENS at its end, and another one beside the ENS."""
    assert subject.address is not None
    async with (
        linked(*subject.address()) as link,
        opened(subject, make=maker_at(subject, link)) as (far,),
        opened(subject) as (near,),
    ):
        yield link, far, near


async def interrupt(link: Link, far: Peer) -> None:
    """Cut the line, and mend it when that was noticed; returns when the connection is back."""
    since = len(far.states)
    link.cut()
    await far.told(False, since)
    link.mend()
    await far.told(True, since)


@check("open() gives up an ENS that never answers, and leaves no connection", promise=UNREACHABLE, when=can_be_cut)
async def a_mute_ens_is_given_up(subject: Subject) -> None:
    """In time, with the address."""
    async with line(subject, is_mute=True) as (link, make):
        error = await error_of_opening(make())
        expect(str(link.port) in error, f"the error does not name the port {link.port}: {error!r}")
        await until_connections(link, 0, subject, "a connection that was given up was not closed")


@check(
    "open() that is cancelled while it waits for the ENS leaves no connection",
    promise="Cancelled, it leaves nothing open.",
    when=can_be_cut,
)
async def a_cancelled_open_leaves_no_connection(subject: Subject) -> None:
    """In the middle of whatever is said first."""
    async with line(subject, is_mute=True) as (link, make):
        peer = make()
        work = asyncio.ensure_future(peer.adapter.open(peer.on_frames, peer.on_state))
        await until_connections(link, 1, subject, "no connection was made")
        work.cancel()
        await asyncio.wait((work,), timeout=subject.patience_s)
        try:
            expect(work.cancelled(), "open() did not end when it was cancelled")
            await until_connections(link, 0, subject, "the connection was not closed")
        finally:
            await peer.close()


@check("a connection that breaks comes back by itself, and so do its subscriptions", promise=TOLD, when=can_be_cut)
async def a_broken_connection_comes_back(subject: Subject) -> None:
    """More than once; from on_state(True) on, everything that is published arrives."""
    async with far_and_near(subject) as (link, far, near):
        topics = [fresh_topic(str(number)) for number in range(3)]
        await far.subscribe(*topics)
        for _ in range(CUTS):
            await interrupt(link, far)
            for topic in topics:
                await exchange(near, [far], numbered(topic, 5))
            await exchange(far, [far], numbered(topics[0], 10)[5:])
            far.forget()


@check(
    "what is published while a subscriber's connection is broken arrives when it is back",
    promise="what is published while a subscriber's connection is broken arrives when it is back",
    when=lambda subject: can_be_cut(subject) and subject.capabilities.keeps_while_away,
)
async def what_is_missed_is_kept(subject: Subject) -> None:
    """Published and confirmed while it is away."""
    async with far_and_near(subject) as (link, far, near):
        frames = numbered(fresh_topic(), 500)
        await far.subscribe(frames[0].topic)
        await exchange(near, [far], frames[:10])
        since = len(far.states)
        link.cut()
        await far.told(False, since)
        await near.publish(frames[10:])
        link.mend()
        await far.receive(frames)


@check(
    "what a client hands over again until it is taken arrives, over a line that breaks in the middle",
    promise=RETRY,
    when=lambda subject: can_be_cut(subject) and subject.capabilities.confirms and not subject.capabilities.loses,
)
async def nothing_confirmed_is_lost_on_the_way(subject: Subject) -> None:
    """The publisher's line breaks, the subscriber's does not."""
    async with far_and_near(subject) as (link, far, near):
        frames = numbered(fresh_topic(), BATCHES * BATCH_FRAMES, size=1_000)
        await near.subscribe(frames[0].topic)
        await _publish_over_cuts(link, far, far, frames)
        await near.receive(frames)


@check(
    "a subscriber whose line breaks in the middle gets everything, once if the ENS does not repeat",
    promise="a frame may arrive more than once",
    when=lambda subject: (
        can_be_cut(subject) and subject.capabilities.keeps_while_away and not subject.capabilities.loses
    ),
)
async def a_broken_line_takes_nothing_away(subject: Subject) -> None:
    """Frames that were on their way when it broke come again."""
    async with far_and_near(subject) as (link, far, near):
        frames = numbered(fresh_topic(), BATCHES * BATCH_FRAMES, size=1_000)
        await far.subscribe(frames[0].topic)
        await _publish_over_cuts(link, far, near, frames)
        await far.receive(frames)
        if not subject.capabilities.duplicates:
            expect_no_repeats(far)


async def _publish_over_cuts(link: Link, far: Peer, publisher: Peer, frames: list[Frame]) -> None:
    """Publish in batches, and cut the far one's line now and then, in the middle of whatever is under way."""
    for batch in range(BATCHES):
        part = frames[batch * BATCH_FRAMES : (batch + 1) * BATCH_FRAMES]
        work = asyncio.ensure_future(publisher.publish_until_taken(part))
        if batch % (BATCHES // CUTS) == BATCHES // CUTS // 2:
            await interrupt(link, far)
        await publisher.within(work, "frames that were handed over again were not taken")
