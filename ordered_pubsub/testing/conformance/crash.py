"""Checks of an ENS that crashes and comes back, and of one that is not there at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from ordered_pubsub.adapter import Frame
from ordered_pubsub.testing.conformance.line import RETRY, TOLD, UNREACHABLE
from ordered_pubsub.testing.conformance.peers import (
    Peer,
    error_of_opening,
    exchange,
    fresh_topic,
    numbered,
    opened,
    peer_of,
)
from ordered_pubsub.testing.conformance.subject import Subject, check, expect

FRAMES = 200


REMEDY_CHARACTERS = 40
"""A message that says what happened and what to do is longer than this; whether it does is for a person to judge."""


def can_crash(subject: Subject) -> bool:
    """Whether the ENS can be killed."""
    return subject.can_crash


@asynccontextmanager
async def crashed(subject: Subject) -> AsyncIterator[None]:
    """The ENS is down during the block, and up afterwards."""
    assert subject.kill is not None
    assert subject.start is not None
    await asyncio.to_thread(subject.kill)
    try:
        yield
    finally:
        await asyncio.to_thread(subject.start)


@check(
    "open() of an ENS that is not there fails in time, and says where it looked and what to do",
    promise=UNREACHABLE,
    when=can_crash,
)
async def an_absent_ens_is_named(subject: Subject) -> None:
    """And leaves nothing open; a new adapter finds the ENS when it is there."""
    async with crashed(subject):
        before = asyncio.all_tasks()
        peer = peer_of(subject)
        error = await error_of_opening(peer)
        place = urlsplit(peer.adapter.url).netloc.rpartition("@")[2]
        expect(place in error, f"the error does not name {place!r}: {error!r}")
        rest = error.replace(place, "")
        expect(len(rest) > REMEDY_CHARACTERS, f"the error hardly says what to do: {error!r}")
        await peer.close()
        left = [task.get_name() for task in asyncio.all_tasks() - before if not task.done()]
        expect(not left, f"it left the tasks {', '.join(left)}")
    async with opened(subject):
        pass


@check("an ENS that comes back is used again, and subscriptions with it", promise=TOLD, when=can_crash)
async def subscriptions_come_back(subject: Subject) -> None:
    """From on_state(True) on, everything that is published arrives."""
    async with opened(subject, 2) as (publisher, receiver):
        frames = numbered(fresh_topic(), FRAMES)
        await receiver.subscribe(frames[0].topic)
        await exchange(publisher, [receiver], frames[:10])
        async with crashed(subject):
            for peer in (publisher, receiver):
                await peer.told(False)
        for peer in (publisher, receiver):
            await peer.told(True)
        await exchange(publisher, [receiver], frames[10:])


@check(
    "publish() while the ENS is down raises an AdapterError or waits, and works again afterwards",
    promise=RETRY,
    when=can_crash,
)
async def publishing_survives_an_outage(subject: Subject) -> None:
    """Handed over again until it is taken; then what follows arrives."""
    async with opened(subject, 2) as (publisher, receiver):
        frames, later = numbered(fresh_topic(), FRAMES), numbered(fresh_topic(), 10)
        await receiver.subscribe(frames[0].topic, later[0].topic)
        async with crashed(subject):
            work = asyncio.ensure_future(publisher.publish_until_taken(frames))
            await receiver.told(False)
        await publisher.within(work, "frames that were handed over again were not taken")
        await receiver.told(True)
        await exchange(publisher, [receiver], later)
        if subject.keeps_when_killed and subject.capabilities.keeps_while_away:
            await receiver.receive(frames)


@check(
    "a crash of the ENS loses nothing that it took responsibility for",
    promise=RETRY,
    when=lambda subject: can_crash(subject) and subject.keeps_when_killed and subject.capabilities.keeps_while_away,
)
async def a_crash_loses_nothing(subject: Subject) -> None:
    """Neither what was published before, nor what is under way; the subscriber takes nothing until the end."""
    async with opened(subject, 2) as (publisher, receiver):
        topic = fresh_topic()
        batches = [[Frame(topic, b"%d/%d" % (batch, i)) for i in range(FRAMES)] for batch in range(6)]
        await receiver.subscribe(topic)
        receiver.may_receive.clear()
        await _publish_all(publisher, batches[:3])
        work = asyncio.ensure_future(_publish_all(publisher, batches[3:]))
        async with crashed(subject):
            await publisher.told(False)
        await publisher.within(work, "frames that were handed over again were not taken")
        receiver.may_receive.set()
        for frames in batches:
            await receiver.receive(frames)


async def _publish_all(publisher: Peer, batches: list[list[Frame]]) -> None:
    for frames in batches:
        await publisher.publish_until_taken(frames)
