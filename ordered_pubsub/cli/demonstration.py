"""What `ordered-pubsub demo` carries out: publishers, subscribers, and a tap before each of these.

Several publishers publish on several topics of a `memory://` system whose ENS reorders. Two clients subscribe to all the
topics. What the ENS gives to each is seen by a tap on its adapter, what each is notified of by its subscription; everything
goes through the public API. Counted is in how many pairs of events the orders differ.

The same runs over a real broker, with a stage in this process unless one is named.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random

import attrs

import ordered_pubsub
from ordered_pubsub.adapter import Adapter, Frame, FramesHandler, StateHandler, load_adapter
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.schema import Configuration, StageSection
from ordered_pubsub.connecting import Connecting
from ordered_pubsub.server.server import Server
from ordered_pubsub.wire.event_frames import read_arrivals

SUBSCRIBERS = ("alice", "bob")
TOPICS = ("trades", "quotes", "orders", "news")
BURST_EVENTS_MAX = 8
PATIENCE_S = 30.0
"""A subscriber that has not been notified of everything so long after the last publication is counted as it stands."""


@attrs.frozen
class DemoPlan:
    """What is to be shown."""

    seed: int
    topics: int
    publishers: int
    events: int
    ens: str | None = None
    """a real broker; None: an ENS of its own"""
    sequencer: tuple[str, ...] = ()
    """real stages; none: one in this process"""
    token_file: str | None = None
    prefix: str = ""
    """what its topics begin with"""

    @property
    def topic_names(self) -> list[str]:
        """The topics."""
        names = [*TOPICS[: self.topics], *(f"topic-{number}" for number in range(len(TOPICS) + 1, self.topics + 1))]
        return [self.prefix + name for name in names]

    @property
    def url(self) -> str:
        """The ENS: the broker that was named, or one of its own, which reorders."""
        return self.ens or f"memory://demo-{os.getpid()}?reorder=0.3&delay_s=0.002&seed={self.seed}"

    def connect(self, adapter: Adapter, name: str) -> Connecting:
        """A client. Names are for a system of its own: elsewhere, others may have them."""
        return ordered_pubsub.connect(
            adapter,
            sequencer=list(self.sequencer),
            name=name if self.ens is None else None,
            delivery="ordered",
            token_file=self.token_file,
        )


@attrs.frozen
class Result:
    """What was observed: for each subscriber, the events in the order in which they came."""

    given: list[list[str]]
    """by the ENS"""
    notified: list[list[str]]
    """by its subscription"""
    labels: dict[str, str]
    """id of an event → how it is shown"""
    duration_s: float

    @property
    def pairs(self) -> int:
        """How many pairs of events there are."""
        return len(self.labels) * (len(self.labels) - 1) // 2

    @property
    def ens_disagreements(self) -> int:
        """Pairs of events that the ENS gave in different order."""
        return count_disagreements(*self.given)

    @property
    def ordered_disagreements(self) -> int:
        """Pairs of events that were notified in different order."""
        return count_disagreements(*self.notified)

    @property
    def against_order(self) -> list[int]:
        """For each subscriber, the pairs of events that the ENS gave in another order than they were notified in."""
        return [count_disagreements(*orders) for orders in zip(self.given, self.notified, strict=True)]

    @property
    def missing(self) -> int:
        """Events of which a subscriber was not notified, or was more than once."""
        return sum(len(set(self.labels) ^ set(events)) + len(events) - len(set(events)) for events in self.notified)

    @property
    def is_good(self) -> bool:
        """Whether everybody was notified of everything, in the same order."""
        return not self.ordered_disagreements and not self.missing


def count_disagreements(one: Sequence[str], two: Sequence[str]) -> int:
    """In how many pairs of those that both have, the first element of one order is the second of the other.

    Inversions are counted in O(n log n), by a tree of counts (Fenwick) over the places in the second order.
    """
    place = {event: number for number, event in enumerate(two, 1)}
    tree = [0] * (len(two) + 1)
    inversions = seen = 0
    for event in one:
        if event in place:
            at = place[event]
            inversions += seen
            while at:
                inversions -= tree[at]
                at &= at - 1
            at = place[event]
            while at < len(tree):
                tree[at] += 1
                at += at & -at
            seen += 1
    return inversions


# -- the run ----------------------------------------------------------------------------------------------------------


def tapped_adapter(url: str, tap: Callable[[Frame], None]) -> Adapter:
    """An adapter that shows what the ENS delivers, before the client has it."""
    adapter = load_adapter(url)
    open_untapped = adapter.open

    async def open_tapped(on_frames: FramesHandler, on_state: StateHandler) -> None:
        async def tapped(frames: Sequence[Frame]) -> None:
            for frame in frames:
                tap(frame)
            await on_frames(frames)

        await open_untapped(tapped, on_state)

    adapter.open = open_tapped  # type: ignore[method-assign]  # of this one only
    return adapter


async def run(plan: DemoPlan) -> Result:
    """Publish, subscribe, and observe."""
    given: list[list[str]] = [[] for _ in SUBSCRIBERS]
    notified: list[list[str]] = [[] for _ in SUBSCRIBERS]
    labels: dict[str, str] = {}
    started_at = time.perf_counter()
    async with _stage_for(plan) as plan, AsyncExitStack() as clients:
        reading = []
        for name, tapped, order in zip(SUBSCRIBERS, given, notified, strict=True):
            adapter = tapped_adapter(plan.url, partial(_note, tapped))
            client = await clients.enter_async_context(plan.connect(adapter, name))
            subscription = await client.subscribe(*plan.topic_names)
            reading.append(asyncio.create_task(_read(subscription, plan.events, order)))
        await asyncio.gather(*(_publish(plan, number, labels) for number in range(plan.publishers)))
        _, unfinished = await asyncio.wait(reading, timeout=PATIENCE_S)
        for task in unfinished:
            task.cancel()
    return Result([list(dict.fromkeys(order)) for order in given], notified, labels, time.perf_counter() - started_at)


@asynccontextmanager
async def _stage_for(plan: DemoPlan) -> AsyncIterator[DemoPlan]:
    """The plan with the stage that it is carried out with."""
    if plan.ens is None or plan.sequencer:
        yield plan
        return
    section = StageSection(name="demo", listen="127.0.0.1:0", store="memory")
    server = Server(Configuration(stage=(section,)), 0, "")
    await server.open()
    try:
        yield attrs.evolve(plan, sequencer=(str(Address(section.address.host, server.port)),))
    finally:
        await server.close()


def _note(order: list[str], frame: Frame) -> None:
    order.extend(arrival.body.id for arrival in read_arrivals(frame))


async def _read(subscription: ordered_pubsub.Subscription, count: int, notified: list[str]) -> None:
    async for event in subscription:
        notified.append(event.id)
        if len(notified) == count:
            return


async def _publish(plan: DemoPlan, number: int, labels: dict[str, str]) -> None:
    """Publish this publisher's share, in bursts on topics drawn by lot."""
    random = Random(f"{plan.seed} {number}")
    topics = plan.topic_names
    share = plan.events // plan.publishers + (number < plan.events % plan.publishers)
    async with plan.connect(load_adapter(plan.url), f"publisher-{number + 1}") as client:
        while share:
            burst = min(share, random.randint(1, BURST_EVENTS_MAX))
            receipts = [client.publish_nowait(random.choice(topics), {"left": share - place}) for place in range(burst)]
            for receipt in await asyncio.gather(*receipts):
                labels[receipt.id] = f"{receipt.topic.removeprefix(plan.prefix)} {receipt.number}"
            share -= burst
