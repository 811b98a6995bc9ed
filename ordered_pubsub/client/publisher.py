"""The way of an event out: collected, numbered, handed to the ENS, receipted.

    put ──> collected ── once per turn of the loop ──> session ──> home stage
                                                                      │ numbers, timestamps
    future <── receipt ── adapter.publish <── frames, by topic <── numbered

Where the topic's log keeps the event, it is published when it is numbered, whatever happens then. So its publisher has the
receipt at once, unless half a pipeline of such events still waits for the ENS: then the publisher is to feel it. Else the receipt
comes when the ENS has taken it.

Publications are unfinished from `put` until the ENS has taken them. How many, and how many bytes, is bounded: that is the
pipeline, and who finds it full waits or is told so. Frames are handed over topic by topic, so a topic whose subscribers are
slow holds up its own publications only.

A number that was given must be published, or subscribers wait for it. So what the ENS does not take is handed over again,
for as long as the client lives, whatever became of those who waited for a receipt, and whatever went wrong. Frames are made
anew each time, since a broker that comes back may take less than before. What a log keeps is handed over for a while only:
subscribers get it from there. What nobody keeps may have become void, if the stages have not heard of this client for long; then
it is not handed over, and its publisher is told.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import msgspec

from ordered_pubsub.adapter import Adapter, Frame
from ordered_pubsub.client.event import Receipt
from ordered_pubsub.client.frames import HELD_ENTRY_BYTES, PACK_BYTES, frame_bytes, packed, stamped
from ordered_pubsub.client.leasing import Leasing
from ordered_pubsub.client.logged import Sharing
from ordered_pubsub.client.remembering import Remembered
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.core.batches import Batch
from ordered_pubsub.core.messages import Publication
from ordered_pubsub.core.ranges import Range
from ordered_pubsub.core.session import Outcome
from ordered_pubsub.errors import (
    AccessDenied,
    Closed,
    EventVoid,
    OrderedPubSubError,
    SessionExpired,
    Timeout,
    TopicError,
    UnavailableError,
    UsageError,
    WouldBlock,
)
from ordered_pubsub.supervision import Backoff, Supervisor

_log = logging.getLogger(__name__)

_NOT_PUT: Any = None
SHARE = 8
"""Events that share a tag have, together, no more than such a share of what the ENS takes: they cannot be divided later."""
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 5.0
KEPT_RETRY_S = 10.0
"""For so long the ENS is given what a log keeps as well."""


class Outgoing(msgspec.Struct, eq=False):
    """One publication on its way."""

    topic: str
    id: str
    payload: bytes
    content_type: str
    headers: Mapping[str, bytes | str]
    size: int
    """how many bytes of a pack it takes, at most"""
    held: int = 0
    """how many bytes of payload and headers are held"""
    more: int = 0
    """and of the timestamp of its batch, once that has one"""
    written: bytes = b""
    """the events that share its tag, as they are written, if that was done and it is the first of them"""
    serial: int = 0
    future: asyncio.Future[Receipt] = _NOT_PUT


@attrs.define(eq=False)
class Publisher:
    """The unfinished publications of one client."""

    name: str
    adapter: Adapter
    settings: Settings
    queue: Callable[[list[tuple[str, list[Outgoing]]]], None]
    """gives publications to the session, in their order: runs on one topic, and their events"""
    leasing: Leasing
    supervisor: Supervisor
    is_closed: bool = False
    failure: Exception | None = None
    """why nothing is published any more, if not since it is closed"""
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _unfinished: dict[int, Outgoing] = attrs.field(factory=dict)
    _unfinished_bytes: int = 0
    _serial: int = 0
    _collected: list[tuple[str, list[Outgoing]]] = attrs.field(factory=list)
    _collected_events: int = 0
    _lingering: asyncio.TimerHandle | None = None
    """numbers what is collected when it has waited for long enough"""
    _numbered: dict[str, list[tuple[Publication, list[Outgoing]]]] = attrs.field(factory=dict)
    _hand_overs: dict[str, asyncio.Task[None]] = attrs.field(factory=dict)
    _troubles: dict[str, str] = attrs.field(factory=Remembered)
    """topic → why the ENS did not take what was handed over"""
    _given_up: dict[str, bool] = attrs.field(factory=Remembered)
    """topics of which the ENS has not taken what their log keeps: until it takes something, it is asked once each time"""
    _backlog_events: int = 0
    """how many have their receipt, since their log has them, and are still to be handed to the ENS"""
    _backlog_bytes: int = 0
    _in_backlog: dict[int, int] = attrs.field(factory=dict)
    """how many bytes they have, by the identity of the batches in `_numbered`, which lives as long"""
    _is_abandoned: bool = False
    """whether what has no receipt is given up"""
    _waiters: OrderedDict[Outgoing, asyncio.Future[None]] = attrs.field(factory=OrderedDict)
    """publications that wait for room, in their order (a plain dict is slow to lose its first)"""
    _idle: asyncio.Event = attrs.field(factory=asyncio.Event)
    """set when nothing is unfinished any more"""

    # -- in -----------------------------------------------------------------------------------------------------------

    @property
    def unfinished_events(self) -> int:
        """How many publications have no receipt yet."""
        return len(self._unfinished)

    def has_room(self, size: int) -> bool:
        """Whether one more publication, of so many bytes, may be unfinished; into an empty pipeline, any fits."""
        settings = self.settings
        return not self._unfinished or (
            len(self._unfinished) < settings.pipeline_events_max
            and self._unfinished_bytes + size <= settings.pipeline_bytes_max
        )

    def put_nowait(self, item: Outgoing) -> asyncio.Future[Receipt]:
        """Take a publication, or raise `WouldBlock` if the pipeline is full or others wait for room."""
        if self.is_closed:
            raise self._closed()
        if self._waiters or not self.has_room(item.held):
            raise WouldBlock(
                f"{len(self._unfinished)} publications with {self._unfinished_bytes} bytes have no receipt yet; at most "
                f"{self.settings.pipeline_events_max} (pipeline_events_max) and {self.settings.pipeline_bytes_max} "
                "(pipeline_bytes_max) may be: await earlier ones first, or use publish(), which waits"
            )
        self._put(item)
        return item.future

    async def put(self, item: Outgoing, give_up_at: float) -> asyncio.Future[Receipt]:
        """Take a publication as soon as there is room, after those who came before. Cancelled before, it is not taken."""
        if self.is_closed:
            raise self._closed()
        if not self._waiters and self.has_room(item.held):
            self._put(item)
            return item.future
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[item] = waiter
        try:
            await asyncio.wait((waiter,), timeout=max(give_up_at - self._loop.time(), 0.0))
        finally:
            self._waiters.pop(item, None)
        if not waiter.done():
            raise Timeout(
                f"the event for {item.topic!r} was not published: the pipeline stayed full for as long as a call may take "
                f"({self.settings.timeout_s:g} s, timeout_s); waited for {self.waiting_for()}"
            )
        waiter.result()
        return item.future

    def _admit(self) -> None:
        """There may be room: take what waits for it, in its order."""
        while self._waiters:
            item, waiter = next(iter(self._waiters.items()))
            if not self.has_room(item.held):
                return
            del self._waiters[item]
            self._put(item)
            waiter.set_result(None)

    def _put(self, item: Outgoing) -> None:
        self._serial += 1
        item.serial = self._serial
        item.future = self._loop.create_future()
        self._unfinished[item.serial] = item
        self._unfinished_bytes += item.held
        collected = self._collected
        if not collected:
            self._plan_flush()
        self._collected_events += 1
        if self._lingering is not None and self._collected_events >= self.settings.batch_events_max:
            self._lingering.cancel()
            self._lingering = None
            self.supervisor.soon(self._flush, "numbering")
        if collected and collected[-1][0] == item.topic:
            collected[-1][1].append(item)
        else:
            collected.append((item.topic, [item]))

    def _closed(self) -> Exception:
        return self.failure or Closed(f"client {self.name!r} is closed and publishes nothing any more")

    def _plan_flush(self) -> None:
        """Number what is collected in this turn of the loop, or, if events may share messages, after a while."""
        if self.settings.linger_s:
            self._lingering = self.supervisor.later(self.settings.linger_s, self._flush, "numbering")
        else:
            self.supervisor.soon(self._flush, "numbering")

    def _flush(self) -> None:
        collected, self._collected, self._collected_events = self._collected, [], 0
        self._lingering = None
        if self.failure is None:
            self.queue(collected)

    # -- numbered -----------------------------------------------------------------------------------------------------

    def take_outcome(self, outcome: Outcome) -> None:
        """The session knows what became of some publications; `hand_over` gives them to the ENS."""
        if outcome.refusal is not None:
            refusal = outcome.refusal
            kind = error_of(refusal.code)
            for items in outcome.asked.items:
                for item in items:
                    self._fail(item, kind(f"the event for {item.topic!r} was refused by the stage: {refusal.reason}"))
            self._admit()
            return
        unkept: list[Batch] = []
        for part, items in zip(outcome.publications, outcome.asked.items, strict=True):
            if part.entries and items:
                items[0].more = HELD_ENTRY_BYTES * len(part.entries)
                self._unfinished_bytes += items[0].more if items[0].serial in self._unfinished else 0
            if not part.is_kept:
                unkept.append((part, items))
            elif self._may_lag(len(items)):
                _give_receipts(part, items)
                self._backlog_events += len(items)
                self._in_backlog[id(items)] = held = self._forget(items)
                self._backlog_bytes += held
            self._numbered.setdefault(part.topic, []).append((part, items))
        if unkept:
            self.leasing.numbered(unkept, outcome)

    def _may_lag(self, count: int) -> bool:
        """Whether events that their log keeps may have their receipts before the ENS has them: half a pipeline of them may."""
        settings = self.settings
        return (
            2 * (self._backlog_events + count) <= settings.pipeline_events_max
            and 2 * self._backlog_bytes <= settings.pipeline_bytes_max
        )

    def hand_over(self) -> None:
        """Give everything that has a number to the ENS."""
        for topic in self._numbered if not self._is_abandoned else ():
            if topic not in self._hand_overs:
                self._hand_overs[topic] = self.supervisor.must(self._hand_over(topic), f"publishing on {topic}")

    async def _hand_over(self, topic: str) -> None:
        batches: list[tuple[Publication, list[Outgoing]]] = []
        try:
            while batches := self._numbered.pop(topic, []):
                await self._give(topic, batches)
                await self._drop_voids(batches)  # while it took its time, they may have become so
                for part, items in batches:
                    self._handed_over(part, items)
                self._look_whether_idle()
                self._admit()
        except (Exception, asyncio.CancelledError) as error:
            self._keep(topic, batches, error)  # also if it was cancelled: then it is begun again, or abandoned
        finally:
            del self._hand_overs[topic]

    def _handed_over(self, part: Publication, items: list[Outgoing]) -> None:
        held = self._in_backlog.pop(id(items), None)
        if held is None:
            _give_receipts(part, items)
            self.leasing.handed(items)
            self._forget(items)
        else:
            self._backlog_events -= len(items)
            self._backlog_bytes -= held

    async def _drop_voids(self, batches: list[tuple[Publication, list[Outgoing]]]) -> None:
        """Take out what is void, if that may be."""
        leasing = self.leasing
        if leasing.are_good(batches):
            return
        for place in reversed(range(len(batches))):
            part, items = batches[place]
            while not (part.is_kept or leasing.is_good(part, items)):
                self._troubles[part.topic] = (
                    f"the stages have not heard of this client for too long: it asks whether its events on {part.topic!r} are "
                    "void"
                )
                voids, left = await leasing.settle(part, items)
                self._troubles.pop(part.topic, None)
                if voids:
                    self._fail_voids(part, items, voids)
                    batches[place : place + 1] = left
                    break

    def _fail_voids(self, part: Publication, items: list[Outgoing], voids: list[Range]) -> None:
        for first, last in voids:
            for item in items[first - part.first : last - part.first + 1]:
                self._fail(
                    item,
                    EventVoid(
                        f"the event for {item.topic!r} is void: the stages had not heard of this client for "
                        f"{self.leasing.batches.lease.lease_s:g} s before it was at the ENS, and have given up its number. "
                        "Nobody is notified of it: publish it again"
                    ),
                )
        self._admit()

    def _keep(self, topic: str, batches: list[tuple[Publication, list[Outgoing]]], error: BaseException) -> None:
        """A hand-over ended before its time: begin it again, unless the client is at its end."""
        if not self._is_abandoned:
            self._numbered[topic] = [*batches, *self._numbered.get(topic, ())]
            self._complain(
                topic, f"handing over what was published on {topic!r} ended with {error!r}", error, RETRY_MOST_S
            )
            self.supervisor.later(RETRY_MOST_S, self.hand_over, "handing over again")

    def _frames(self, topic: str, batches: list[tuple[Publication, list[Outgoing]]]) -> list[Frame]:
        if self.settings.batch_events_max > 1:
            return packed(topic, batches, self.settings.batch_events_max, self._pack_bytes_max())
        return [frame for part, items in batches for frame in stamped(part, items)]

    def _pack_bytes_max(self) -> int:
        """What several events in one message may have together."""
        return min(self.settings.payload_bytes_max, (self.adapter.frame_bytes_max or sys.maxsize) - PACK_BYTES)

    @property
    def sharing(self) -> Sharing | None:
        """How events share messages, if they do. What shares a tag fits into a broker that comes back and takes less."""
        events_max = self.settings.batch_events_max
        return Sharing(events_max, lambda: self._pack_bytes_max() // SHARE) if events_max > 1 else None

    async def _give(self, topic: str, batches: list[tuple[Publication, list[Outgoing]]]) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        give_up_at = self._loop.time() + (0.0 if topic in self._given_up else KEPT_RETRY_S)
        while True:
            frames: list[Frame] = []
            try:
                await self._drop_voids(batches)
                frames = self._frames(topic, batches)
                if frames:
                    await self.adapter.publish(frames)
            except Exception as error:  # whatever it is, the numbers have been given
                events = sum(len(items) for _, items in batches)
                trouble = f"the ENS did not take {events} events on {topic!r}: {error}{self._remedy(frames)}"
                if (self.is_closed or self._loop.time() >= give_up_at) and all(part.is_kept for part, _ in batches):
                    _log.warning("%s; their topic's log has them, and gives them to who misses them", trouble)
                    self._given_up[topic] = True
                    return
                self._complain(topic, trouble, error, backoff.limit_s)
                await backoff.pause()
            else:
                self._troubles.pop(topic, None)
                self._given_up.pop(topic, None)
                return

    def _complain(self, topic: str, trouble: str, error: BaseException, pause_s: float) -> None:
        if not isinstance(error, OrderedPubSubError):
            trouble += "; no adapter should raise this: report it to those who made it, with what the log says"
        self._troubles[topic] = trouble
        unexpected = None if isinstance(error, OrderedPubSubError) else error
        _log.warning("%s; trying again in %.3g s", trouble, pause_s, exc_info=unexpected)

    def _remedy(self, frames: Sequence[Frame]) -> str:
        """What helps if an event has become too large by its timestamp; several together never are."""
        largest = max(map(frame_bytes, frames), default=0)
        most = self.adapter.frame_bytes_max
        if most is None or largest <= most:
            return ""
        return (
            f". With its timestamp an event has {largest} bytes, and the ENS takes {most} at most, so its subscribers wait: "
            "raise the ENS's limit (max_payload, max_packet_size). Timestamps become shorter if groups are split: subscribe "
            "with order='pairwise' or order='topic', or to fewer topics together"
        )

    def _fail(self, item: Outgoing, error: Exception) -> None:
        self._forget([item])
        if not item.future.done():
            item.future.set_exception(error)

    def _forget(self, items: Sequence[Outgoing]) -> int:
        """These are finished; return how many bytes they have."""
        unfinished, held = self._unfinished, 0
        for item in items:
            if unfinished.pop(item.serial, None) is not None:
                held += item.held + item.more
        self._unfinished_bytes -= held
        self._look_whether_idle()
        return held

    def _look_whether_idle(self) -> None:
        if not self._unfinished and not self._backlog_events:
            self._idle.set()

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why the ENS did not take something, if that is so now."""
        return next(iter(self._troubles.values()), "")

    def waiting_for(self) -> str:
        """Say in words what is not finished."""
        counts: dict[str, int] = {}
        for item in self._unfinished.values():
            counts[item.topic] = counts.get(item.topic, 0) + 1
        topics = sorted(counts.items(), key=lambda pair: -pair[1])
        shown = ", ".join(f"{count} on {topic!r}" for topic, count in topics[:3])
        more = f" and on {len(topics) - 3} more topics" if len(topics) > 3 else ""
        held = [topic for topic, _ in topics if topic in self._hand_overs]
        where = f"; the ENS has not taken those on {held[0]!r} yet (perhaps a subscriber does not read)" if held else ""
        reasons = [f"publications without a receipt ({shown}{more}){where}" if topics else "", self.trouble]
        return "; ".join(filter(None, reasons)) or "nothing"

    async def drain(self, timeout_s: float) -> str:
        """Take nothing more, wait until everything is finished, and say what had to be left, if anything."""
        self.is_closed = True
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(self._closed())
        self._waiters.clear()
        if self._unfinished or self._backlog_events:
            self._idle.clear()
            timer = self._loop.call_later(timeout_s, self._idle.set)
            await self._idle.wait()
            timer.cancel()
        return self._abandon() if self._unfinished or self._backlog_events else ""

    def fail(self, error: Exception) -> None:
        """Nothing is published any more: whoever waits for a receipt, or for room, is told."""
        self.is_closed, self.failure = True, error
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
        self._is_abandoned = True
        for task in list(self._hand_overs.values()):
            task.cancel()
        for item in list(self._unfinished.values()):
            self._fail(item, error)
        self._backlog_events = self._backlog_bytes = 0
        self._idle.set()

    def _abandon(self) -> str:
        left = "" if all(item.future.done() for item in self._unfinished.values()) else self.waiting_for()
        self._is_abandoned = True
        for task in list(self._hand_overs.values()):
            task.cancel()
        for item in list(self._unfinished.values()):
            self._fail(
                item, Timeout(f"the client was closed before the event {item.id} had a receipt; the outcome is unknown")
            )
        return left


_ERRORS: dict[str, type[OrderedPubSubError]] = {
    "bad-request": UsageError,
    "session-expired": SessionExpired,
    "session-replaced": SessionExpired,
    "not-yours": UsageError,
    "forbidden": AccessDenied,
    "unknown-topic": TopicError,
    "limit": UsageError,
    "too-many-topics": UsageError,
    "ended": Closed,
    "exists": UsageError,
    "unknown": UsageError,
    "taken-over": SessionExpired,
    "level": UsageError,
}


def _give_receipts(part: Publication, items: Sequence[Outgoing]) -> None:
    topic = part.topic
    for number, item in enumerate(items, part.first):
        if not item.future.done():
            item.future.set_result(Receipt(topic, number, item.id))


def error_of(code: str) -> type[OrderedPubSubError]:
    """The kind of error that a stage's refusal is."""
    return _ERRORS.get(code, UnavailableError)
