"""Checks of bad moments: a line that falls silent, one that breaks while frames are handled, an end in the middle of a beginning.

Nobody meets these on purpose. What goes wrong in them does so rarely, in production, and takes events with it or a connection.
"""

from __future__ import annotations

import asyncio

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError
from ordered_pubsub.testing.conformance.line import can_be_cut, far_and_near, line, maker_at, until_connections
from ordered_pubsub.testing.conformance.link import Link
from ordered_pubsub.testing.conformance.peers import Peer, exchange, fresh_topic, numbered, opened
from ordered_pubsub.testing.conformance.subject import Subject, bounded, check, expect

HELD_FRAMES = 3_000
CLOSE_AFTER_TURNS = (0, 1, 2, 3, 5, 8)
PIECES_MAX = 64
"""More is not said for one subscription."""


@check(
    "a line that falls silent is left: what is published is taken on another one, and frames come again",
    promise="A line that falls silent without breaking is as one that breaks",
    when=can_be_cut,
)
async def a_silent_line_is_left(subject: Subject) -> None:
    """By who publishes, and by who only reads. Nobody says that the connection is gone; what was on its way may be lost."""
    async with (
        far_and_near(subject) as (link, far, near),
        opened(subject, make=maker_at(subject, link)) as (reader,),
    ):
        frames, since = numbered(fresh_topic(), 30), len(far.states)
        for peer in (far, reader):
            await peer.subscribe(frames[0].topic)
        await exchange(near, [far, reader], frames[:10])
        link.hush()
        for peer in (far, reader):
            peer.patience_s = subject.silence_s
            peer.loses = True  # near publishes again, until the connection that frames come by is a new one as well
        work = asyncio.ensure_future(far.publish_until_taken(frames[10:20]))
        await far.within(work, "publish() neither returned nor raised, or no other connection was made,")
        for peer in (far, reader):
            await peer.told(False, since)
            await peer.told(True, since)
        await exchange(near, [far, reader], frames[20:])


@check(
    "what on_frames() has not returned from when the connection breaks is not taken for handled",
    promise="Until then the ENS keeps it.",
    when=lambda subject: (
        can_be_cut(subject) and subject.capabilities.keeps_while_away and not subject.capabilities.loses
    ),
)
async def what_is_not_handled_comes_again(subject: Subject) -> None:
    """It may return while the connection is away, or when there is another one: that says nothing of what comes there."""
    async with far_and_near(subject) as (link, far, near):
        frames, calls = numbered(fresh_topic(), HELD_FRAMES, size=1_000), 0
        await far.subscribe(frames[0].topic)
        far.may_receive.clear()
        await near.publish(frames)
        for is_back_first in (True, False, True):
            calls, since = await _next_call(far, calls, frames), len(far.states)
            link.cut()
            await far.told(False, since)
            if not is_back_first:
                far.let_one_return()
            link.mend()
            await far.told(True, since)
            if is_back_first:
                far.let_one_return()
        far.may_receive.set()
        await far.handle(frames)


async def _next_call(peer: Peer, calls: int, frames: list[Frame]) -> int:
    """Wait for one more call of on_frames than these, unless it was called with everything; returns how many there were."""
    await peer.until(
        lambda: peer.calls > calls or all(peer.has(frame) for frame in frames), lambda: "on_frames was not called again"
    )
    return peer.calls


@check(
    "close() in the middle of the first subscribe() leaves neither a connection nor a task",
    promise="`close` may be called at any time, and twice.",
    when=can_be_cut,
)
async def closing_while_subscribing_leaves_nothing(subject: Subject) -> None:
    """After each turn of the first ones, and after each piece of what is said on the way, until nothing is left to wait for."""
    async with line(subject) as (link, make):
        for turns in CLOSE_AFTER_TURNS:
            await _close_while_subscribing(subject, link, make(), turns, 0)
        for pieces in range(1, PIECES_MAX):
            if await _close_while_subscribing(subject, link, make(), 0, pieces):
                return


async def _close_while_subscribing(subject: Subject, link: Link, peer: Peer, turns: int, pieces: int) -> bool:
    """Close after so many turns of the loop, or pieces on the line; returns whether subscribe() had returned before.

    What comes after these pieces is on its way while it closes, and arrives then.
    """
    when = f"closed {f'after {turns} turns of the loop' if turns else f'after {pieces} pieces of what was said'}"
    before = asyncio.all_tasks()
    await peer.open()
    link.hold(pieces)
    work = asyncio.ensure_future(peer.adapter.subscribe([fresh_topic()]))
    for _ in range(turns):
        await asyncio.sleep(0)
    if pieces:
        await _until_held(link, work, subject)
    had_returned = work.done()
    closing = asyncio.ensure_future(peer.close())
    await asyncio.sleep(0)
    link.release()
    await closing
    await asyncio.wait((work,), timeout=subject.patience_s)
    expect(work.done(), f"{when}, subscribe() neither returned nor raised")
    error = "CancelledError" if work.cancelled() else work.exception()
    expect(error is None or isinstance(error, AdapterError), f"{when}, subscribe() raised {error!r}")
    await until_connections(link, 0, subject, f"{when}, it left a connection open")
    left = asyncio.all_tasks() - before
    if left:
        await asyncio.wait(left, timeout=subject.patience_s)
    names = [task.get_name() for task in left if not task.done()]
    expect(not names, f"{when}, it left the tasks {', '.join(names)}")
    return had_returned


async def _until_held(link: Link, work: asyncio.Future[None], subject: Subject) -> None:
    """Wait until something is kept back, or the work is done."""

    async def wait() -> None:
        while not (link.is_holding or work.done()):
            link.changed.clear()
            await link.changed.wait()

    work.add_done_callback(lambda _: link.changed.set())
    await bounded(wait(), subject.patience_s, "subscribe() did not return")
