"""The way of an event in: from the client's one connection to the ENS to those of its subscriptions that hold the topic.

The subscriptions of a client share its connection. Frames are read once, and given to each subscription as one batch. Then
the adapter is kept waiting until every subscription that they went to has room again: so a slow application is felt by the
ENS, and with it by the publishers of these topics, and nothing is dropped. It also means that a subscription that is never
read holds up the client's other subscriptions; it is named in the log when it does.

Nothing that the broker brings is believed before `core.inspection` has judged it. So a topic's keys are asked for before the
topic is held at the ENS. What has not arrived is counted by its cause, and logged now and then; a frame that was not
published through the order is counted, and logged once per topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
from msgspec.structs import replace

from ordered_pubsub.adapter import Adapter, Frame
from ordered_pubsub.client.frames import Claim, arrivals_of, read_claims, read_unordered
from ordered_pubsub.client.publisher import error_of
from ordered_pubsub.core.buffer import Arrival
from ordered_pubsub.core.inspection import ARRIVED, WAIT, Inspection
from ordered_pubsub.core.messages import AskKeys, Keys, Unarrived
from ordered_pubsub.errors import ProtocolError, SystemMismatch, UnknownVersion
from ordered_pubsub.supervision import Supervisor

_log = logging.getLogger(__name__)

STALLED_AFTER_S = 5.0
"""A subscription that has kept the ENS waiting for so long is named in the log."""
REPORT_S = 5.0
"""So long after something has not arrived the stage is told, and of all that has not arrived until then."""
COMPLAINED_MAX = 1_000
"""So many topics are remembered of which it was logged that they have messages without a place in the order."""


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

    def fail(self, error: Exception, what: str) -> None:
        """Nothing more can come."""


@attrs.define(eq=False)
class Reception:
    """Who holds what at the ENS."""

    adapter: Adapter
    delivers_unordered: bool
    """whether messages that have no place in the order are notified all the same"""
    inspection: Inspection
    say: Callable[[AskKeys | Unarrived], None]
    """tells the stage"""
    supervisor: Supervisor
    is_waiting: bool = False
    """whether what the ENS has brought is not taken now, since somebody is full"""
    unstamped_frames: int = 0
    _holders: dict[str, dict[Receiver, bool]] = attrs.field(factory=dict)
    _active: dict[str, bool] = attrs.field(factory=dict)
    """topics that are subscribed to at the ENS"""
    _unsure: dict[str, bool] = attrs.field(factory=dict)
    """topics that may be subscribed to there or not: it was asked for, or taken back, and nobody has waited for the outcome"""
    _changes: int = 0
    """subscribing and unsubscribing at the ENS that is under way or waits"""
    _turn: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    """subscribing and unsubscribing at the ENS happen one after the other"""
    _complained: dict[str, bool] = attrs.field(factory=dict)
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _key_news: asyncio.Event = attrs.field(factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None
    """asks for keys again"""
    _report_timer: asyncio.TimerHandle | None = None
    """tells the stage how much has not arrived"""

    async def hold(self, receiver: Receiver, topics: Sequence[str]) -> None:
        """Let everything that is published on these topics from now on come to a receiver.

        Cancelled or failed, it may come or not; `release` ends it.
        """
        for topic in topics:
            self._holders.setdefault(topic, {})[receiver] = True
        async with self._changing():
            new = [topic for topic in topics if topic not in self._active and topic in self._holders]
            if new:
                await self._get_keys(new)
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
            self.inspection.release(topic for topic in topics if topic not in self._holders)
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

    # -- keys ---------------------------------------------------------------------------------------------------------

    async def _get_keys(self, topics: Sequence[str]) -> None:
        """Return when what comes on these topics can be judged; raise what the stage says if it must not be read."""
        self.inspection.hold(topics)
        while lacking := [topic for topic in topics if not self.inspection.is_ready(topic)]:
            for topic in lacking:
                refusal = self.inspection.refusal(topic)
                if refusal is not None:
                    code, reason = refusal
                    raise error_of(code)(f"the change was refused by the stage: {reason}")
            self._key_news.clear()
            self._ask_for_keys()
            await self._key_news.wait()

    def lacks_keys(self, topics: Iterable[str]) -> bool:
        """Whether the stage has not given the keys of some topics that are to be held."""
        return any(topic in self._holders and not self.inspection.is_ready(topic) for topic in topics)

    def _ask_for_keys(self) -> None:
        self.inspection.now = self._loop.time()
        for ask in self.inspection.take_due():
            self.say(ask)
        due = self.inspection.next_due
        if due is not None and self._timer is None:
            self._timer = self.supervisor.at(due, self._time_has_come, "asking for keys")

    def _time_has_come(self) -> None:
        self._timer = None
        self._ask_for_keys()

    def connected(self, has_tags: bool) -> None:
        """There is a home stage, perhaps another one."""
        self.inspection.has_tags = has_tags
        self.inspection.connected()
        self._ask_for_keys()

    def new_epoch(self) -> None:
        """The stage says that there are other keys."""
        self.inspection.new_epoch()
        self._ask_for_keys()

    def take_keys(self, keys: Keys) -> None:
        """The stage has given keys: what waited for them may have arrived."""
        self.inspection.now = self._loop.time()
        taken: dict[Receiver, list[Arrival]] = {}
        for topic, claim in self.inspection.given(keys):
            arrivals = self._judge(topic, [claim])
            for receiver in self._holders.get(topic, ()) if arrivals else ():
                taken.setdefault(receiver, []).extend(arrivals)
        for receiver, arrivals in taken.items():
            receiver.receive(arrivals)
        self._key_news.set()
        self._say_what_has_not_arrived()

    def close(self) -> None:
        """Ask for nothing any more, and report nothing."""
        for timer in (self._timer, self._report_timer):
            if timer is not None:
                timer.cancel()

    # -- frames -------------------------------------------------------------------------------------------------------

    async def take_frames(self, frames: Sequence[Frame]) -> None:
        """The ENS brings frames: read them, spread them, and wait for those who are full. Never raises."""
        ordered: dict[Receiver, list[Arrival]] = {}
        unordered: dict[Receiver, list[Arrival]] = {}
        self.inspection.now = self._loop.time()
        for frame in frames:
            holders = self._holders.get(frame.topic)
            if holders:
                arrivals, batches = self._read(frame), ordered
                if arrivals is None:
                    arrivals, batches = self._read_unordered(frame), unordered
                for receiver in holders if arrivals else ():
                    batches.setdefault(receiver, []).extend(arrivals)
        for receiver, taken in ordered.items():
            receiver.receive(taken)
        for receiver, taken in unordered.items():
            receiver.receive_unordered(taken)
        self._say_what_has_not_arrived()
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

    def _report(self) -> None:
        """Tell the stage, whose metrics are looked at, how much has not arrived."""
        self._report_timer = None
        counts, self.inspection.unreported = self.inspection.unreported, {}
        self.say(Unarrived(self.inspection.session, counts))

    def _read(self, frame: Frame) -> list[Arrival] | None:
        """What has arrived with a frame; None if it was not published through the order."""
        topic = frame.topic
        try:
            claims = read_claims(frame, self.inspection.has_tags)
        except ProtocolError as error:
            self._refuse(topic, error)
            return []
        return self._judge(topic, claims) if claims else None

    def _judge(self, topic: str, claims: Iterable[Claim]) -> list[Arrival]:
        """The events of those claims that have arrived."""
        judge = self.inspection.judge
        arrivals: list[Arrival] = []
        for claim in claims:
            verdict = judge(topic, claim.tag, claim.stamp, claim.head, claim.content)
            if verdict == ARRIVED:
                try:
                    arrivals += arrivals_of(topic, claim)
                except ProtocolError as error:
                    self._refuse(topic, error)
            elif verdict == WAIT:
                content = bytes(claim.content)  # a copy, since the rest of the frame is not to be kept
                waiting = replace(claim, content=content)
                self.inspection.wait(topic, claim.stamp.key_epoch, len(content) + len(claim.head), (topic, waiting))
                self._ask_for_keys()
            else:
                self.inspection.not_arrived(topic, verdict)
        return arrivals

    def _refuse(self, topic: str, error: ProtocolError) -> None:
        cause = "version" if isinstance(error, UnknownVersion) else "unreadable"
        self.inspection.not_arrived(topic, cause, why=str(error))

    def _read_unordered(self, frame: Frame) -> list[Arrival]:
        """A message that has no place in the order."""
        self.unstamped_frames += 1
        if self.delivers_unordered:
            return [read_unordered(frame)]
        if frame.topic not in self._complained:
            if len(self._complained) >= COMPLAINED_MAX:
                self._complained.clear()
            self._complained[frame.topic] = True
            _log.warning(
                "a message on %r is not delivered: it was not published through ordered_pubsub, so it has no place in the order "
                '(unordered="deliver" would notify it all the same); no more of these are logged for this topic',
                frame.topic,
            )
        return []

    def _say_what_has_not_arrived(self) -> None:
        for note in self.inspection.take_notes():
            _log.warning(
                "%d of what the broker brought on %r has not arrived: %s. Nobody is notified of it; of this topic and cause, "
                "no more is logged for a minute (client.status() counts)",
                note.events,
                note.topic,
                note.why,
            )
        if self.inspection.unreported and self._report_timer is None:
            self._report_timer = self.supervisor.later(REPORT_S, self._report, "reporting what has not arrived")
        mixed, self.inspection.mixed = self.inspection.mixed, ""
        for receiver in list(self._holders.get(mixed, ())) if mixed else ():
            error = SystemMismatch(
                f"another system publishes on topic {mixed!r} of this broker, and without tags neither can tell the events of "
                "both for sure: several systems share a broker with tags = true ([security], at all stages), or with topics "
                "that begin differently"
            )
            receiver.fail(error, "it stops")
