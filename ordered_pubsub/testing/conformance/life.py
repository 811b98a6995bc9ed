"""Checks of a connection's life: what holds before it is open, after it is closed, and when a call is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError
from ordered_pubsub.testing.conformance.peers import (
    Peer,
    exchange,
    first_arrival,
    fresh_topic,
    numbered,
    opened,
    peer_of,
)
from ordered_pubsub.testing.conformance.subject import Subject, check, expect

CANCEL_AFTER_TURNS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55)
"""Calls are cancelled after so many turns of the event loop, to meet them in different states."""

NOT_OPEN = "Before `open` and after `close`, `publish`, `subscribe` and `unsubscribe` raise an `AdapterError`."


@check(
    "an opened adapter says of itself what it is claimed to be",
    promise="What this ENS can be relied on for, as far as it is known; for certain once it is open.",
)
async def capabilities_are_as_claimed(subject: Subject) -> None:
    """The claims decide what else is checked."""
    async with opened(subject) as (peer,):
        said = peer.adapter.capabilities
        expect(said == subject.capabilities, f"it says {said}, and the subject claims {subject.capabilities}")


async def _expect_refusals(peer: Peer, when: str) -> None:
    topic = fresh_topic()
    calls: dict[str, Callable[[], Awaitable[None]]] = {
        "publish()": lambda: peer.adapter.publish([Frame(topic, b"")]),
        "subscribe()": lambda: peer.adapter.subscribe([topic]),
        "unsubscribe()": lambda: peer.adapter.unsubscribe([topic]),
    }
    for name, call in calls.items():
        try:
            await peer.within(call(), f"{name} {when} did not return")
        except AdapterError:
            continue
        expect(False, f"{name} {when} raised nothing")


@check("an adapter that was never opened refuses what needs a connection, and can be closed", promise=NOT_OPEN)
async def what_is_not_open_refuses(subject: Subject) -> None:
    """With an error of this library."""
    peer = peer_of(subject)
    await _expect_refusals(peer, "before open()")
    await peer.close()
    await _expect_refusals(peer, "after close() without open()")


@check("a closed adapter refuses what needs a connection, and may be closed again", promise=NOT_OPEN)
async def what_is_closed_refuses(subject: Subject) -> None:
    """With an error of this library."""
    async with opened(subject) as (peer,):
        await peer.close()
        await peer.within(peer.adapter.close(), "close() did not return the second time")
        await _expect_refusals(peer, "after close()")


@check(
    "after close() has returned, on_frames() is not called any more",
    promise="`on_frames` is not called any more.",
)
async def close_is_final(subject: Subject) -> None:
    """Though its topic is published on before, meanwhile and afterwards."""
    async with opened(subject, 3) as (publisher, receiver, witness):
        frames, later = numbered(fresh_topic(), 500), numbered(fresh_topic(), 1)
        for peer in (receiver, witness):
            await peer.subscribe(frames[0].topic, later[0].topic)
        await publisher.publish(frames[:250])
        work = asyncio.ensure_future(publisher.publish(frames[250:]))
        await receiver.close()
        came = len(receiver.frames)
        await work
        await exchange(publisher, [witness], later)
        expect(len(receiver.frames) == came, f"{len(receiver.frames) - came} frames came after close() had returned")


@check(
    "close() returns although on_frames() has not",
    promise="`on_frames` is not called any more.",
)
async def close_does_not_wait_for_a_slow_consumer(subject: Subject) -> None:
    """A client that is closed may have a subscription that nobody reads."""
    async with opened(subject, 2) as (publisher, receiver):
        frames = numbered(fresh_topic(), 500)
        first = Frame(fresh_topic(), b"first")
        await receiver.subscribe(first.topic, frames[0].topic)
        receiver.may_receive.clear()
        await first_arrival(first, publisher, receiver)
        await publisher.publish(frames)
        await receiver.close()


@check(
    "what was confirmed before close() arrives, though the connection is gone",
    promise="What was published and confirmed stays so",
    when=lambda subject: subject.capabilities.confirms and not subject.capabilities.loses,
)
async def close_takes_nothing_back(subject: Subject) -> None:
    """Several times, closed as soon as publish() has returned."""
    async with opened(subject) as (receiver,):
        for _ in range(5):
            frames = numbered(fresh_topic(), 100, size=2_000)
            await receiver.subscribe(frames[0].topic)
            async with opened(subject) as (publisher,):
                await publisher.publish(frames)
            await receiver.receive(frames)


async def _cancelled(peer: Peer, call: Coroutine[Any, Any, None], turns: int) -> None:
    """Begin a call, and cancel it after so many turns of the event loop."""
    work = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    work.cancel()
    done, _ = await asyncio.wait((work,), timeout=peer.patience_s)
    expect(
        bool(done),
        f"a call that was cancelled after {turns} turns of the loop did not end within {peer.patience_s:g} s",
    )
    error = None if work.cancelled() else work.exception()
    expect(error is None, f"a call that was cancelled after {turns} turns of the loop raised {error!r}")


@check(
    "open() that is cancelled leaves nothing open",
    promise="Cancelled, it leaves nothing open.",
)
async def a_cancelled_open_leaves_nothing(subject: Subject) -> None:
    """No task of its own goes on, and closing it is no error."""
    for turns in CANCEL_AFTER_TURNS:
        before = asyncio.all_tasks()
        peer = peer_of(subject)
        await _cancelled(peer, peer.adapter.open(peer.on_frames, peer.on_state), turns)
        await peer.close()
        left = asyncio.all_tasks() - before
        if left:
            await asyncio.wait(left, timeout=peer.patience_s)
        names = [task.get_name() for task in left if not task.done()]
        expect(not names, f"cancelled after {turns} turns of the loop, it left the tasks {', '.join(names)}")


@check(
    "publish() that is cancelled leaves the adapter usable",
    promise="Cancelled, any of them may or may not have been published.",
)
async def a_cancelled_publish_harms_nothing(subject: Subject) -> None:
    """What is published afterwards arrives, in its order."""
    async with opened(subject, 2) as (publisher, receiver):
        for turns in CANCEL_AFTER_TURNS:
            given_up, frames = numbered(fresh_topic(), 200), numbered(fresh_topic(), 20)
            await receiver.subscribe(given_up[0].topic, frames[0].topic)
            await _cancelled(publisher, publisher.adapter.publish(given_up), turns)
            await exchange(publisher, [receiver], frames)
            await exchange(publisher, [receiver], given_up)


@check(
    "subscribe() that is cancelled leaves the adapter usable, and the topic may be subscribed to again",
    promise="Cancelled, they may or may not come.",
)
async def a_cancelled_subscribe_harms_nothing(subject: Subject) -> None:
    """As a client does."""
    async with opened(subject, 2) as (publisher, receiver):
        for turns in CANCEL_AFTER_TURNS:
            frames, others = numbered(fresh_topic(), 20), numbered(fresh_topic(), 5)
            await _cancelled(receiver, receiver.adapter.subscribe([frames[0].topic]), turns)
            await receiver.subscribe(others[0].topic)
            await exchange(publisher, [receiver], others)
            await receiver.subscribe(frames[0].topic)
            await exchange(publisher, [receiver], frames)


@check(
    "unsubscribe() that is cancelled leaves the adapter usable, and may be called again",
    promise="Cancelled, they may or may not go on coming.",
)
async def a_cancelled_unsubscribe_harms_nothing(subject: Subject) -> None:
    """Afterwards the topic can be subscribed to again."""
    async with opened(subject, 2) as (publisher, receiver):
        for turns in CANCEL_AFTER_TURNS:
            topic = fresh_topic()
            await receiver.subscribe(topic)
            await _cancelled(receiver, receiver.adapter.unsubscribe([topic]), turns)
            await receiver.within(receiver.adapter.unsubscribe([topic]), "unsubscribe() did not return")
            await receiver.subscribe(topic)
            await exchange(publisher, [receiver], [Frame(topic, b"again")])
