"""The instruments of the checks: users of an adapter who remember what came, and waiting that ends.

Nothing here waits for a time to pass in order to see that nothing happens: a check publishes something that comes later
and waits for that (`Peer.receive`). An ENS that loses frames is given those that are missing again, as often as it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import uuid4

import attrs

from ordered_pubsub.adapter import Adapter, Frame
from ordered_pubsub.errors import AdapterError
from ordered_pubsub.testing.conformance.subject import ConformanceError, Subject, bounded, expect

AGAIN_S = 0.05
"""So often a frame that may be lost is published again, and one that was refused is handed over again."""

T = TypeVar("T")


def fresh_topic(name: str = "topic") -> str:
    """A topic that nobody has used before."""
    return f"conformance/{uuid4().hex[:16]}/{name}"


def numbered(topic: str, count: int, size: int = 0) -> list[Frame]:
    """Frames that can be told apart."""
    return [Frame(topic, b"%d" % number + b"." * size, {"number": str(number)}) for number in range(count)]


@attrs.define(eq=False)
class Peer:
    """A user of an adapter."""

    adapter: Adapter
    loses: bool
    patience_s: float
    frames: list[Frame] = attrs.field(factory=list)
    states: list[tuple[bool, str]] = attrs.field(factory=list)
    may_receive: asyncio.Event = attrs.field(factory=asyncio.Event)
    """while it is not set, `on_frames` does not return"""
    is_closed: bool = False
    misdeeds: list[str] = attrs.field(factory=list)
    """what no adapter may do at any time"""
    handled: set[tuple[str, bytes]] = attrs.field(factory=set)
    """what `on_frames` has returned from; it may be cancelled before that"""
    calls: int = 0
    """of `on_frames`"""
    _is_receiving: bool = False
    _seen: set[tuple[str, bytes]] = attrs.field(factory=set)
    _news: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def on_frames(self, frames: Sequence[Frame]) -> None:
        """Take what came, and return as soon as more may come."""
        if self._is_receiving:
            self.misdeeds.append("on_frames was called again before it had returned")
        if self.is_closed:
            self.misdeeds.append("on_frames was called after close() had returned")
        self._is_receiving = True
        try:
            self.frames.extend(frames)
            self._seen.update((frame.topic, frame.payload) for frame in frames)
            self.calls += 1
            self._news.set()
            await self.may_receive.wait()
            self.handled.update((frame.topic, frame.payload) for frame in frames)
            self._news.set()
        finally:
            self._is_receiving = False

    def let_one_return(self) -> None:
        """Let the call of `on_frames` that waits return, and the next one wait."""
        self.may_receive.set()
        self.may_receive.clear()

    def on_state(self, is_connected: bool, reason: str) -> None:
        """Remember whether the ENS is connected."""
        if not reason.strip():
            self.misdeeds.append(f"on_state({is_connected}) was given no reason")
        self.states.append((is_connected, reason))
        self._news.set()

    async def within(self, work: Awaitable[T], otherwise: str) -> T:
        """The outcome of a call that has to return."""
        return await bounded(work, self.patience_s, otherwise)

    async def open(self) -> None:
        """Open a reachable ENS."""
        await self.within(self.adapter.open(self.on_frames, self.on_state), "open() did not return")

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Publish, as `publish` of a reachable ENS must do."""
        await self.within(self.adapter.publish(frames), f"publish() of {len(frames)} frames did not return")

    async def publish_until_taken(self, frames: Sequence[Frame]) -> None:
        """What a client does: hand the same frames over again until the ENS has taken them."""
        while True:
            try:
                await self.adapter.publish(frames)
            except AdapterError:
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def subscribe(self, *topics: str) -> None:
        """Subscribe to topics at a reachable ENS."""
        await self.within(self.adapter.subscribe(topics), f"subscribe() to {len(topics)} topics did not return")

    async def until(self, is_so: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        """Wait for something that a call of `on_frames` or `on_state` may bring about."""
        give_up_at = asyncio.get_running_loop().time() + self.patience_s
        while not is_so():
            left = give_up_at - asyncio.get_running_loop().time()
            expect(left > 0, f"{otherwise()} within {self.patience_s:g} s")
            await self._wait(left)

    async def _wait(self, seconds: float) -> None:
        """Wait for news, or until the time is over; then there are none."""
        self._news.clear()
        waiting = asyncio.ensure_future(self._news.wait())
        await asyncio.wait((waiting,), timeout=seconds)
        waiting.cancel()

    def has(self, frame: Frame) -> bool:
        """Whether this frame has come, as it was."""
        return (frame.topic, frame.payload) in self._seen

    async def receive(self, frames: Sequence[Frame], publisher: Peer | None = None) -> None:
        """Wait until all of these have come; `publisher` publishes again what may have been lost."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + self.patience_s
        for index, frame in enumerate(frames):
            while not self.has(frame):
                left = give_up_at - clock()
                expect(left > 0, self._complaint(frames))
                await self._wait(min(left, AGAIN_S) if self.loses else left)
                if publisher is not None and self.loses and not self._news.is_set():
                    await publisher.publish([missing for missing in frames[index:] if not self.has(missing)])

    @property
    def is_held_up(self) -> bool:
        """Whether a call of `on_frames` waits."""
        return self._is_receiving and not self.may_receive.is_set()

    async def handle(self, frames: Sequence[Frame]) -> None:
        """Wait until `on_frames` has returned for all of these."""

        def left() -> int:
            return sum((frame.topic, frame.payload) not in self.handled for frame in frames)

        await self.until(lambda: not left(), lambda: f"on_frames() did not return for {left()} of {len(frames)} frames")

    def forget(self) -> None:
        """Let the same frames count as new ones."""
        self.frames.clear()
        self._seen.clear()

    async def gets_something_on(self, topic: str) -> bool:
        """Wait for the first frame of a topic; if it may have been lost, only for a while."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + (AGAIN_S if self.loses else self.patience_s)
        while not self.payloads(topic):
            left = give_up_at - clock()
            if left <= 0:
                expect(self.loses, f"nothing came on {topic!r} within {self.patience_s:g} s")
                return False
            await self._wait(left)
        return True

    def _complaint(self, frames: Sequence[Frame]) -> str:
        missing = [frame for frame in frames if not self.has(frame)]
        topic, payload = missing[0].topic[:80], missing[0].payload[:40]
        return (
            f"{len(missing)} of {len(frames)} frames did not come within {self.patience_s:g} s "
            f"(the first of them, on {topic!r}: {payload!r}); {len(self.frames)} came"
        )

    def payloads(self, topic: str) -> list[bytes]:
        """What came of a topic, in the order in which it came."""
        return [frame.payload for frame in self.frames if frame.topic == topic]

    async def told(self, is_connected: bool, since: int = 0) -> str:
        """Wait until `on_state` says so, after so many other things that it has said; returns the reason."""

        def found() -> list[str]:
            return [reason for state, reason in self.states[since:] if state is is_connected]

        word = "the return" if is_connected else "the break"
        await self.until(lambda: bool(found()), lambda: f"on_state was not told of {word}; it was told {self.states}")
        return found()[0]

    async def close(self) -> None:
        """Close, and see to it that nothing comes afterwards."""
        if not self.is_closed:
            await self.within(self.adapter.close(), "close() did not return")
            self.is_closed = True


def peer_of(subject: Subject, make: Callable[[], Adapter] | None = None) -> Peer:
    """A user of a new adapter, which is not opened yet."""
    peer = Peer((make or subject.make)(), subject.capabilities.loses, subject.patience_s)
    peer.may_receive.set()
    return peer


async def exchange(publisher: Peer, receivers: Sequence[Peer], frames: Sequence[Frame]) -> None:
    """Publish frames, and wait until all receivers have them."""
    await publisher.publish(frames)
    for receiver in receivers:
        await receiver.receive(frames, publisher)


async def first_arrival(frame: Frame, publisher: Peer, receiver: Peer) -> Frame:
    """What comes on a topic on which only this frame is published."""
    while True:
        await publisher.publish([frame])
        if await receiver.gets_something_on(frame.topic):
            return next(came for came in receiver.frames if came.topic == frame.topic)


async def error_of_opening(peer: Peer) -> str:
    """What an adapter says of an ENS that it cannot use."""
    try:
        await peer.open()
    except AdapterError as error:
        return str(error)
    await peer.close()
    raise ConformanceError("open() raised nothing though the ENS could not be used")


@asynccontextmanager
async def opened(
    subject: Subject, count: int = 1, make: Callable[[], Adapter] | None = None
) -> AsyncIterator[list[Peer]]:
    """Open so many adapters; in the end they are closed, and none may have done what none may do."""
    peers: list[Peer] = []
    try:
        for _ in range(count):
            peer = peer_of(subject, make)
            await peer.open()
            peers.append(peer)
        yield peers
    finally:
        for peer in peers:
            peer.may_receive.set()
            await peer.close()
    misdeeds = [misdeed for peer in peers for misdeed in peer.misdeeds]
    expect(not misdeeds, "; ".join(dict.fromkeys(misdeeds)))
