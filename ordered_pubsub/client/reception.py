"""The way of an event in: from the client's one connection to the ENS to those of its subscriptions that hold the topic.

The subscriptions of a client share its connection. Frames are read once, and given to each subscription as one batch. Then
the adapter is kept waiting until every subscription that they went to has room again: so a slow application is felt by the
ENS, and with it by the publishers of these topics, and nothing is dropped. It also means that a subscription that is never
read holds up the client's other subscriptions; it is named in the log when it does.

A frame that was not published through the order, or whose stamp cannot be read, is counted and logged once per topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import attrs

from ordered_pubsub.adapter import Adapter, Frame
from ordered_pubsub.client.frames import read_arrivals, read_unordered
from ordered_pubsub.core.buffer import Arrival
from ordered_pubsub.errors import ProtocolError

_log = logging.getLogger(__name__)

STALLED_AFTER_S = 5.0
"""A subscription that has kept the ENS waiting for so long is named in the log."""


class Receiver(Protocol):
    """What takes arrivals: a subscription's intake."""

    identity: str

    @property
    def is_full(self) -> bool:
        """Whether it wants no more for now."""

    def receive(self, arrivals: list[Arrival]) -> None:
        """Take what came; never raises."""

    def receive_unordered(self, arrivals: list[Arrival]) -> None:
        """Take what has no place in the order; never raises."""

    async def wait_for_room(self) -> None:
        """Return when it is not full any more, or when it is told to `stop_waiting`."""

    def stop_waiting(self) -> None:
        """Let `wait_for_room` return now."""


@attrs.define(eq=False)
class Reception:
    """Who holds what at the ENS."""

    adapter: Adapter
    delivers_unordered: bool
    """whether messages that have no place in the order are notified all the same"""
    is_waiting: bool = False
    """whether what the ENS has brought is not taken now, since somebody is full"""
    unstamped_frames: int = 0
    unreadable_frames: int = 0
    _holders: dict[str, dict[Receiver, bool]] = attrs.field(factory=dict)
    _active: dict[str, bool] = attrs.field(factory=dict)
    """topics that are subscribed to at the ENS"""
    _unsure: dict[str, bool] = attrs.field(factory=dict)
    """topics that may be subscribed to there or not: it was asked for, or taken back, and nobody has waited for the outcome"""
    _changes: int = 0
    """subscribing and unsubscribing at the ENS that is under way or waits"""
    _turn: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    """subscribing and unsubscribing at the ENS happen one after the other"""
    _complained: dict[tuple[str, str], bool] = attrs.field(factory=dict)

    async def hold(self, receiver: Receiver, topics: Sequence[str]) -> None:
        """Let everything that is published on these topics from now on come to a receiver.

        Cancelled or failed, it may come or not; `release` ends it.
        """
        for topic in topics:
            self._holders.setdefault(topic, {})[receiver] = True
        async with self._changing():
            new = [topic for topic in topics if topic not in self._active and topic in self._holders]
            if new:
                self._unsure.update(dict.fromkeys(new, True))
                await self.adapter.subscribe(new)
                self._active.update(dict.fromkeys(new, True))
                self._are_sure(new)

    def forget(self, receiver: Receiver, topics: Iterable[str] | None = None) -> list[str]:
        """Give a receiver nothing more, of these topics or at all; return those that nobody holds now."""
        unheld = []
        for topic in list(self._holders) if topics is None else topics:
            holders = self._holders.get(topic, {})
            holders.pop(receiver, None)
            if not holders:
                self._holders.pop(topic, None)
                unheld.append(topic)
        return unheld

    async def release(self, topics: Sequence[str]) -> None:
        """Unsubscribe at the ENS from those topics that nobody holds. Cancelled or failed, that is done with the next ones."""
        async with self._changing():
            known = [topic for topic in topics if topic in self._active]
            unheld = [topic for topic in dict.fromkeys((*known, *self._unsure)) if topic not in self._holders]
            if unheld:
                for topic in unheld:
                    self._active.pop(topic, None)
                    self._unsure[topic] = True
                await self.adapter.unsubscribe(unheld)
                self._are_sure(unheld)

    def _are_sure(self, topics: Iterable[str]) -> None:
        for topic in topics:
            del self._unsure[topic]

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """One change at the ENS after the other; meanwhile nobody is waited for.

        The ENS's answer comes behind frames on the same connection. Were these not taken because a subscription is full, then a
        task that reads that subscription, and waits for the change, would wait for itself.
        """
        self._changes += 1
        for receiver in dict.fromkeys(receiver for holders in self._holders.values() for receiver in holders):
            receiver.stop_waiting()
        try:
            async with self._turn:
                yield
        finally:
            self._changes -= 1

    async def take_frames(self, frames: Sequence[Frame]) -> None:
        """The ENS brings frames: read them, spread them, and wait for those who are full. Never raises."""
        ordered: dict[Receiver, list[Arrival]] = {}
        unordered: dict[Receiver, list[Arrival]] = {}
        for frame in frames:
            holders = self._holders.get(frame.topic)
            if holders:
                arrivals = self._read(frame)
                batches = ordered if not arrivals or arrivals[0].number else unordered
                for receiver in holders if arrivals else ():
                    batches.setdefault(receiver, []).extend(arrivals)
        for receiver, taken in ordered.items():
            receiver.receive(taken)
        for receiver, taken in unordered.items():
            receiver.receive_unordered(taken)
        for receiver in {**ordered, **unordered}:
            if receiver.is_full and not self._changes:
                await self._wait_for_room(receiver)

    async def _wait_for_room(self, receiver: Receiver) -> None:
        timer = asyncio.get_running_loop().call_later(STALLED_AFTER_S, self._complain_of_stall, receiver)
        self.is_waiting = True
        try:
            await receiver.wait_for_room()
        finally:
            self.is_waiting = False
            timer.cancel()

    def _complain_of_stall(self, receiver: Receiver) -> None:
        _log.warning(
            "subscription %s is full and has not been read for %g s: its client takes nothing more from the ENS until it is. "
            "Read it, close it, give it a client of its own, or raise queue_events_max and queue_bytes_max",
            receiver.identity,
            STALLED_AFTER_S,
        )

    def _read(self, frame: Frame) -> list[Arrival]:
        """What a frame brings: events in the order, one without a number, or nothing."""
        try:
            arrivals = read_arrivals(frame)
        except ProtocolError as error:
            self.unreadable_frames += 1
            self._complain(frame.topic, "unreadable", str(error))
            return []
        if arrivals:
            return arrivals
        self.unstamped_frames += 1
        if self.delivers_unordered:
            return [read_unordered(frame)]
        reason = "it was not published through ordered_pubsub, so it has no place in the order"
        self._complain(frame.topic, "unstamped", f'{reason} (unordered="deliver" would notify it all the same)')
        return []

    def _complain(self, topic: str, kind: str, reason: str) -> None:
        if (topic, kind) not in self._complained:
            self._complained[topic, kind] = True
            _log.warning(
                "a message on %r is not delivered: %s; no more of these are logged for this topic", topic, reason
            )
