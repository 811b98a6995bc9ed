"""What every variant has: a side that sends, a side that receives, and a count of what has come.

A payload begins with the time at which its event was published, by a clock that all processes of a machine share, and the
number of its phase. What came is only counted, so that counting is as cheap for the fastest client as for the slowest; the last
event of a phase must say that it belongs to it.
"""

from __future__ import annotations

import asyncio
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import attrs

from ordered_pubsub.bench.plan import PAYLOAD_BYTES

_HEAD = struct.Struct("<QI")
_FILLER = b"x" * (PAYLOAD_BYTES - _HEAD.size)
now_ns = time.perf_counter_ns


def make_payload(phase: int, published_ns: int = 0) -> bytes:
    """An event's payload."""
    return _HEAD.pack(published_ns, phase) + _FILLER


def read_payload(payload: bytes) -> tuple[int, int]:
    """When it was published, and in which phase."""
    published_ns, phase = _HEAD.unpack_from(payload)
    return published_ns, phase


@attrs.frozen(kw_only=True)
class SidePlan:
    """What one process is for; it is given this as JSON."""

    role: str
    """publisher or subscriber"""
    kind: str
    """of the set-up"""
    is_plain: bool
    ens: str
    topics: list[str]
    run: int
    """how many events go to one topic before it is the other one's turn"""
    sequencer: str | None = None
    config: str | None = None
    delivery: str | None = None
    settings: dict[str, Any] = attrs.field(factory=dict)


class Sender(ABC):
    """The side that publishes."""

    def __init__(self, plan: SidePlan) -> None:
        self.plan = plan

    def topic(self, number: int) -> str:
        """The topic of an event: the topics take turns."""
        topics = self.plan.topics
        return topics[(number // self.plan.run) % len(topics)]

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def rush(self, payload: bytes, count: int) -> None:
        """Publish so many events as fast as a bounded pipeline allows; return when all of them are confirmed."""

    async def pace(self, phase: int, count: int, interval_s: float) -> None:
        """Publish events at a steady rate; return when all of them are confirmed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(count):
            await asyncio.sleep(began + number * interval_s - loop.time())
            await self.publish(self.topic(number), make_payload(phase, now_ns()))
        await self.settle()

    @abstractmethod
    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish one event, in the way that is quickest for it; it need not be confirmed yet."""

    @abstractmethod
    async def settle(self) -> None:
        """Return when everything is confirmed."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


class BenchReceiver(ABC):
    """The side that subscribes."""

    def __init__(self, plan: SidePlan, take: Callable[[bytes], None]) -> None:
        self.plan = plan
        self.take = take
        """is given each payload that comes, in whatever thread it comes"""

    @abstractmethod
    async def open(self) -> None:
        """Connect and subscribe; what is published after this comes."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


@attrs.define(eq=False)
class BenchTally:
    """What has come in a phase."""

    on_complete: Callable[[], None]
    """called once in each phase, in the thread in which its last event came"""
    phase: int = 0
    expected: int = 0
    is_timed: bool = False
    count: int = 0
    last_ns: int = 0
    last_phase: int = 0
    """what the last event said"""
    latencies_ns: list[int] = attrs.field(factory=list)

    def begin(self, phase: int, expected: int, is_timed: bool) -> None:
        """Count anew."""
        self.phase, self.expected, self.is_timed = phase, expected, is_timed
        self.count, self.last_ns, self.last_phase, self.latencies_ns = 0, 0, 0, []

    @property
    def surplus(self) -> int:
        """How many events came that nobody expects."""
        return max(self.count - self.expected, 0)

    def take(self, payload: bytes) -> None:
        """An event came."""
        self.count += 1
        if self.is_timed:
            self.latencies_ns.append(now_ns() - read_payload(payload)[0])
        if self.count == self.expected:
            self.last_ns = now_ns()
            self.last_phase = read_payload(payload)[1]
            self.on_complete()
