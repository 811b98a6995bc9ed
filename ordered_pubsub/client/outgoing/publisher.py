"""The way of an event out: collected, numbered, given to the ENS, receipted.

    put ──> collected ── once per turn of the loop ──> session ──> home stage
                                                                      │ numbers, timestamps
    future <── receipt ── adapter.publish <── frames, by topic <── outbox

`core.client.outbox` decides what the ENS is given and when there are receipts. This is the shell around it: frames are made here,
anew each time, since a broker that comes back may take less than before; and whoever publishes is held up or told here.

Publications are unfinished from `put` until they have their receipts. How many, and how many bytes, is bounded: that is the
pipeline, and who finds it full waits or is told so.
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
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.core.client.batches import Batch
from ordered_pubsub.core.client.outbox import Outbox, Void
from ordered_pubsub.core.client.session import Outcome, Queued, error_of, refused
from ordered_pubsub.core.messages import ChangeAsk
from ordered_pubsub.errors import (
    Closed,
    EventVoid,
    OrderedPubSubError,
    Timeout,
)
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub.wire.event_frames import HELD_ENTRY_BYTES, PACK_BYTES, frame_bytes, packed, stamped
from ordered_pubsub.wire.logged import Sharing

_log = logging.getLogger(__name__)

_NOT_PUT: Any = None
SHARE = 8
"""Events that share a tag have, together, no more than such a share of what the ENS takes: they cannot be divided later."""


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
    future: asyncio.Future[Any] = _NOT_PUT
    together: Sequence[Outgoing | ChangeAsk] = ()
    """of who stands for a transaction: all of it, in its order. He may be its first one, or none of them"""


Run = tuple[str, list[Outgoing]]
"""Events on one topic."""


@attrs.define(eq=False)
class Publisher:
    """The unfinished publications of one client."""

    name: str
    adapter: Adapter
    settings: Settings
    queue: Callable[[list[Run]], None]
    """gives publications to the session, in their order: runs on one topic, with their events"""
    commit: Callable[[list[Run | ChangeAsk]], Queued]
    """gives it a transaction; what is returned comes back with the outcome"""
    outbox: Outbox
    settle: Callable[[], None]
    """does what the client's machine says"""
    supervisor: Supervisor
    is_closed: bool = False
    failure: Exception | None = None
    """why nothing is published any more, if not since it is closed"""
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _unfinished: dict[int, Outgoing] = attrs.field(factory=dict)
    _commits: dict[int, tuple[Queued, Outgoing]] = attrs.field(factory=dict)
    """transactions without an outcome, by the identity of what was queued → who stands for them"""
    _unfinished_bytes: int = 0
    _serial: int = 0
    _collected: list[tuple[str, list[Outgoing]]] = attrs.field(factory=list)
    _collected_events: int = 0
    _lingering: asyncio.TimerHandle | None = None
    """numbers what is collected when it has waited for long enough"""
    _giving: dict[str, asyncio.Task[None]] = attrs.field(factory=dict)
    """what the ENS is taking, by topic"""
    _waiters: OrderedDict[Outgoing, asyncio.Future[None]] = attrs.field(factory=OrderedDict)
    """publications that wait for room, in their order (a plain dict is slow to lose its first)"""
    _idle: asyncio.Event = attrs.field(factory=asyncio.Event)
    """set when nothing is unfinished any more"""

    def __attrs_post_init__(self) -> None:
        outbox, settings = self.outbox, self.settings
        outbox.weigh = lambda items: sum([item.held + item.more for item in items])
        outbox.early_events_max, outbox.early_bytes_max = (
            settings.pipeline_events_max // 2,
            settings.pipeline_bytes_max // 2,
        )

    # -- in -----------------------------------------------------------------------------------------------------------

    @property
    def unfinished_events(self) -> int:
        """How many publications have no receipt yet."""
        return len(self._unfinished)

    def put_nowait(self, item: Outgoing) -> asyncio.Future[Receipt]:
        """Take a publication, or raise `WouldBlock` if the pipeline is full or others wait for room.

        Of a transaction, the first one stands for all.
        """
        if self.is_closed:
            raise self._closed()
        if self._waiters or not self._has_room(item):
            raise self.settings.full(len(self._unfinished), self._unfinished_bytes)
        self._put(item)
        return item.future

    def _has_room(self, item: Outgoing) -> bool:
        events, size = len(self._unfinished), self._unfinished_bytes
        if not item.together:
            return self.settings.has_room(events, size, item.held)
        outgoing = [one for one in item.together if isinstance(one, Outgoing)]
        return self.settings.has_room(events, size, sum([one.held for one in outgoing]), len(outgoing))

    async def put(self, item: Outgoing, give_up_at: float) -> asyncio.Future[Receipt]:
        """Take a publication as soon as there is room, after those who came before. Cancelled before, it is not taken."""
        if self.is_closed:
            raise self._closed()
        if not self._waiters and self._has_room(item):
            self._put(item)
            return item.future
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[item] = waiter
        try:
            await asyncio.wait((waiter,), timeout=max(give_up_at - self._loop.time(), 0.0))
        finally:
            self._waiters.pop(item, None)
        if not waiter.done():
            raise self.settings.stayed_full(item.topic, self.waiting_for())
        waiter.result()
        return item.future

    def _admit(self) -> None:
        """There may be room: take what waits for it, in its order."""
        while self._waiters:
            item, waiter = next(iter(self._waiters.items()))
            if not self._has_room(item):
                return
            del self._waiters[item]
            self._put(item)
            waiter.set_result(None)

    def _put(self, item: Outgoing) -> None:
        if item.together:
            self._put_together(item)
            return
        self._begin(item)
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

    def _begin(self, item: Outgoing) -> None:
        self._serial += 1
        item.serial = self._serial
        item.future = self._loop.create_future()
        self._unfinished[item.serial] = item
        self._unfinished_bytes += item.held

    def _put_together(self, lead: Outgoing) -> None:
        """A transaction: what was collected before goes before it, and nothing goes with it."""
        if self._lingering is not None:
            self._lingering.cancel()
        self._flush()
        lead.future = self._loop.create_future()
        runs: list[Run | ChangeAsk] = []
        for part in lead.together:
            if isinstance(part, ChangeAsk):
                runs.append(part)
                continue
            self._begin(part)
            last = runs[-1] if runs else None
            if isinstance(last, tuple) and last[0] == part.topic:
                last[1].append(part)
            else:
                runs.append((part.topic, [part]))
        if self.failure is None:
            queued = self.commit(runs)
            if not lead.serial:
                self._commits[id(queued)] = queued, lead

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
        if self.failure is None and collected:
            self.queue(collected)

    # -- numbered -----------------------------------------------------------------------------------------------------

    def take_outcome(self, outcome: Outcome) -> None:
        """The session knows what became of some publications; `go_on` does what is to be done about it."""
        _, lead = self._commits.pop(id(outcome.asked), (None, None))
        if lead is not None and not lead.future.done():
            if outcome.refusal is None:
                lead.future.set_result(outcome.transaction)
            else:
                lead.future.set_exception(refused(outcome.refusal))
            self._look_whether_idle()
        if outcome.refusal is not None:
            refusal = outcome.refusal
            kind = error_of(refusal.code)
            for items in outcome.asked.items:
                for item in items:
                    self._fail(item, kind(f"the event for {item.topic!r} was refused by the stage: {refusal.reason}"))
            self._admit()
            return
        for part, items in zip(outcome.publications, outcome.asked.items, strict=True):
            if part.entries and items:
                items[0].more = HELD_ENTRY_BYTES * len(part.entries)
                self._unfinished_bytes += items[0].more if items[0].serial in self._unfinished else 0
        self.outbox.numbered(outcome, self._loop.time())

    def go_on(self) -> None:
        """Do what the outbox says: tell publishers, and give the ENS what it is to take."""
        self._tell()
        for topic, batches in self.outbox.take_next(self._loop.time()):
            self._giving[topic] = self.supervisor.must(self._give(topic, batches), f"publishing on {topic}")

    def _tell(self) -> None:
        """Whoever waits for a receipt is told what has become of its event."""
        outbox = self.outbox
        if not (outbox.receipts or outbox.voids):
            return
        receipts, outbox.receipts = outbox.receipts, []
        for part, items in receipts:
            for number, item in enumerate(items, part.first):
                if not item.future.done():
                    item.future.set_result(Receipt(part.topic, number, item.id))
            self._forget(items)
        voids, outbox.voids = outbox.voids, []
        for void in voids:
            self._fail_voids(void)
        self._admit()

    def _fail_voids(self, void: Void) -> None:
        first_of_all = void.publication.first
        for first, last in void.ranges:
            for item in void.items[first - first_of_all : last - first_of_all + 1]:
                self._fail(
                    item,
                    EventVoid(
                        f"the event for {item.topic!r} is void: the stages had not heard of this client for "
                        f"{self.outbox.batches.lease.lease_s:g} s before it was at the ENS, and have given up its number. "
                        "Nobody is notified of it: publish it again"
                    ),
                )
        for item in void.items:
            item.written = b""  # what was written together may not be together any more

    async def _give(self, topic: str, batches: list[Batch]) -> None:
        """Have the ENS take what it is to take of a topic, as long as there is something."""
        try:
            while batches:
                frames: list[Frame] = []
                try:
                    frames = self._frames(topic, batches)
                    if frames:
                        await self.adapter.publish(frames)
                except (Exception, asyncio.CancelledError) as error:  # whatever it is, the numbers have been given
                    self._not_taken(topic, batches, frames, error)
                else:
                    self.outbox.taken(topic, self._loop.time())
                batches = self.outbox.next_of(topic, self._loop.time())
                self._tell()
                self._look_whether_idle()
        finally:
            del self._giving[topic]
            if self.outbox.is_troubled:
                self.settle()

    def _not_taken(self, topic: str, batches: list[Batch], frames: list[Frame], error: BaseException) -> None:
        events = sum(len(items) for _, items in batches)
        trouble = (
            f"the ENS did not take {events} events on {topic!r}: {str(error) or repr(error)}{self._remedy(frames)}"
        )
        unexpected = None if isinstance(error, OrderedPubSubError) else error
        if unexpected is not None:
            trouble += "; no adapter should raise this: report it to those who made it, with what the log says"
        now = self._loop.time()
        again_at = self.outbox.not_taken(topic, trouble, now)
        if again_at is not None:
            _log.warning("%s; trying again in %.3g s", trouble, again_at - now, exc_info=unexpected)
        elif not self.outbox.is_abandoned:
            _log.warning(
                "%s; their topic's log has them, and gives them to who misses them", trouble, exc_info=unexpected
            )

    def _frames(self, topic: str, batches: list[Batch]) -> list[Frame]:
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

    def _forget(self, items: Sequence[Outgoing]) -> None:
        """These are finished."""
        unfinished, held = self._unfinished, 0
        for item in items:
            if unfinished.pop(item.serial, None) is not None:
                held += item.held + item.more
        self._unfinished_bytes -= held
        self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if not (self._unfinished or self._commits or self.outbox.early_events):
            self._idle.set()

    # -- the end ------------------------------------------------------------------------------------------------------

    def waiting_for(self) -> str:
        """Say in words what is not finished."""
        counts: dict[str, int] = {}
        for item in self._unfinished.values():
            counts[item.topic] = counts.get(item.topic, 0) + 1
        topics = sorted(counts.items(), key=lambda pair: -pair[1])
        shown = ", ".join(f"{count} on {topic!r}" for topic, count in topics[:3])
        more = f" and on {len(topics) - 3} more topics" if len(topics) > 3 else ""
        held = [topic for topic, _ in topics if self.outbox.is_with_ens(topic)]
        where = f"; the ENS has not taken those on {held[0]!r} yet (perhaps a subscriber does not read)" if held else ""
        commits = f"{len(self._commits)} transactions without an outcome" if self._commits else ""
        reasons = [
            commits,
            f"publications without a receipt ({shown}{more}){where}" if topics else "",
            self.outbox.trouble,
        ]
        return "; ".join(filter(None, reasons)) or "nothing"

    async def drain(self, timeout_s: float) -> str:
        """Take nothing more, wait until everything is finished, and say what had to be left, if anything."""
        self.is_closed = True
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(self._closed())
        self._waiters.clear()
        self.outbox.close()
        self.settle()
        if self._unfinished or self._commits or self.outbox.early_events:
            self._idle.clear()
            timer = self._loop.call_later(timeout_s, self._idle.set)
            await self._idle.wait()
            timer.cancel()
        if not (self._unfinished or self._commits or self.outbox.early_events):
            return ""
        has_all = not self._commits and all(item.future.done() for item in self._unfinished.values())
        left = "" if has_all else self.waiting_for()
        self._give_up()
        self._fail_commits(Timeout("the client was closed before the transaction had an outcome, which is unknown"))
        for item in list(self._unfinished.values()):
            self._fail(
                item, Timeout(f"the client was closed before the event {item.id} had a receipt; the outcome is unknown")
            )
        return left

    def fail(self, error: Exception) -> None:
        """Nothing is published any more: whoever waits for a receipt, or for room, is told."""
        self.is_closed, self.failure = True, error
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
        self._give_up()
        for item in list(self._unfinished.values()):
            self._fail(item, error)
        self._fail_commits(error)
        self._idle.set()

    def _fail_commits(self, error: Exception) -> None:
        for _, lead in self._commits.values():
            if not lead.future.done():
                lead.future.set_exception(error)
        self._commits.clear()

    def _give_up(self) -> None:
        self.outbox.abandon()
        for task in list(self._giving.values()):
            task.cancel()
