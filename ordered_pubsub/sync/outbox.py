"""The way of publications from any thread to the loop: written down here, numbered and sent there.

    publish, publish_nowait ──> put ──> waiting ── one wake-up for many ──> publisher (in the loop)
                                 ^                                              │
    future <── receipts ─────────┴──────────── room again <──── by topic ───────┘

Data becomes bytes in the thread that publishes, so that it may change afterwards. All publications of a client take this way, in
the order in which they were put; so the pipeline's limits (`pipeline_events_max`, `pipeline_bytes_max`) are kept here, where a
thread can wait for room or be told at once that there is none, and the publisher in the loop never lacks any. Threads that
wait for room get it in the order in which they came.

The receipts of a topic come in the order of its publications. So only the first one of each topic is watched, and when it has
come, all that have come with it are told together.
"""

from __future__ import annotations

import threading
import time
from asyncio import Future as LoopFuture
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import attrs

from ordered_pubsub.client.client import Client
from ordered_pubsub.client.event import Receipt
from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.errors import Closed, OrderedPubSubError
from ordered_pubsub.sync.loops import LoopThread


@attrs.define(eq=False)
class Receipts:
    """What became of publications on one topic: the future has all their receipts, or the first error."""

    count: int
    future: Future[list[Receipt]] = attrs.field(factory=Future)
    _receipts: list[Receipt] = attrs.field(factory=list)

    def set_result(self, receipt: Receipt, /) -> None:
        """The next one has its receipt."""
        self._receipts.append(receipt)
        if len(self._receipts) == self.count:
            self.future.set_result(self._receipts)

    def set_exception(self, error: BaseException | None, /) -> None:
        """The next one has none."""
        if not self.future.done():
            self.future.set_exception(error)


BlockingOutcome = Future[Receipt] | Receipts
"""Who is told what became of a publication."""


@attrs.define(eq=False)
class BlockingOutbox:
    """Publications of one client that have no receipt yet."""

    client: Client
    thread: LoopThread
    _room: threading.Condition = attrs.field(factory=threading.Condition)
    """guards all below; notified when there may be room"""
    unfinished_events: int = 0
    """how many publications have no receipt yet"""
    _unfinished_bytes: int = 0
    _put: deque[tuple[Outgoing, BlockingOutcome]] = attrs.field(factory=deque)
    """not yet in the loop"""
    _sent: dict[str, deque[tuple[Outgoing, BlockingOutcome]]] = attrs.field(factory=dict)
    """belongs to the loop: by topic, what the publisher has"""
    _queue: deque[object] = attrs.field(factory=deque)
    """threads that wait for room, in their order"""
    _is_woken: bool = False
    """whether the loop has been told that something was put"""
    _is_closed: bool = False

    # -- in -----------------------------------------------------------------------------------------------------------

    def put_nowait(self, item: Outgoing) -> Future[Receipt]:
        """Take a publication, or raise `WouldBlock`."""
        self.thread.check_process()
        with self._room:
            self._check_open()
            if self._queue or not self._has_room(item):
                raise self._settings.full(self.unfinished_events, self._unfinished_bytes)
            future: Future[Receipt] = Future()
            future.set_running_or_notify_cancel()  # what was put is not taken back
            self._take(item, future)
            return future

    def put(self, items: Sequence[Outgoing], outcome: BlockingOutcome, give_up_at: float) -> None:
        """Take publications as soon as there is room, one after the other. Interrupted, the rest is not taken."""
        self.thread.check_process()
        with self._room:
            ticket = object()
            self._queue.append(ticket)
            try:
                for item in items:
                    self._take_in_turn(item, outcome, ticket, give_up_at)
            finally:
                self._queue.remove(ticket)
                self._room.notify_all()

    def put_together(self, items: Sequence[Outgoing], outcomes: Sequence[Future[Receipt]], give_up_at: float) -> None:
        """Take the publications of a transaction as soon as there is room for all of them."""
        self.thread.check_process()
        with self._room:
            ticket = object()
            self._queue.append(ticket)
            try:
                self._wait_in_turn(items, ticket, give_up_at)
                for item, outcome in zip(items, outcomes, strict=True):
                    self._take(item, outcome)
            finally:
                self._queue.remove(ticket)
                self._room.notify_all()

    @contextmanager
    def room_for(self, items: Sequence[Outgoing], give_up_at: float) -> Iterator[None]:
        """Wait until there is room for all of these, and keep it for them: somebody else hands them to the loop."""
        self.thread.check_process()
        with self._room:
            ticket = object()
            self._queue.append(ticket)
            try:
                if items:
                    self._wait_in_turn(items, ticket, give_up_at)
                self.unfinished_events += len(items)
                self._unfinished_bytes += sum([item.held for item in items])
            finally:
                self._queue.remove(ticket)
                self._room.notify_all()
        try:
            yield
        finally:
            with self._room:
                self.unfinished_events -= len(items)
                self._unfinished_bytes -= sum([item.held for item in items])
                self._room.notify_all()

    def _take_in_turn(self, item: Outgoing, outcome: BlockingOutcome, ticket: object, give_up_at: float) -> None:
        self._wait_in_turn((item,), ticket, give_up_at)
        self._take(item, outcome)

    def _wait_in_turn(self, items: Sequence[Outgoing], ticket: object, give_up_at: float) -> None:
        def may_go() -> bool:
            return self._is_closed or (self._queue[0] is ticket and self._has_room(*items))

        if not may_go() and not self._room.wait_for(may_go, max(give_up_at - time.monotonic(), 0.0)):
            earlier = f"{self.unfinished_events} publications without a receipt"
            raise self._settings.stayed_full(items[0].topic, earlier)
        self._check_open()

    def _has_room(self, *items: Outgoing) -> bool:
        more = sum([item.held for item in items])
        return self._settings.has_room(self.unfinished_events, self._unfinished_bytes, more, len(items))

    def _take(self, item: Outgoing, outcome: BlockingOutcome) -> None:
        self.unfinished_events += 1
        self._unfinished_bytes += item.held
        self._put.append((item, outcome))
        if not self._is_woken:
            self._is_woken = self.thread.post(self._send)

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Give what was put to the publisher."""
        with self._room:
            self._is_woken = False
            put, self._put = self._put, deque()
        publisher, ids = self.client._publisher, self.client._ids
        for item, _ in put:
            item.id = item.id or next(ids)
        error: OrderedPubSubError | None = None
        left = 0
        for item, outcome in put:
            if left:  # it came with the first one of its transaction
                left -= 1
            else:
                error, left = None, max(len(item.together) - 1, 0)
                try:
                    publisher.put_nowait(item)
                except OrderedPubSubError as found:
                    error = found
            if error is not None:
                self._free([(item, outcome)])
                outcome.set_exception(error)
                continue
            self._sent.setdefault(item.topic, deque()).append((item, outcome))
            if len(self._sent[item.topic]) == 1:
                self._watch(item)

    def _watch(self, first: Outgoing) -> None:
        first.future.add_done_callback(partial(self._settle, first.topic))

    def _settle(self, topic: str, _: LoopFuture[Receipt]) -> None:
        """The first publication of a topic has its outcome, and perhaps others."""
        sent = self._sent[topic]
        settled: list[tuple[Outgoing, BlockingOutcome]] = []
        while sent and sent[0][0].future.done():
            settled.append(sent.popleft())
        if sent:
            self._watch(sent[0][0])
        else:
            del self._sent[topic]
        self._free(settled)
        for item, outcome in settled:
            error = item.future.exception()
            if error is None:
                outcome.set_result(item.future.result())
            else:
                outcome.set_exception(error)

    def _free(self, settled: Sequence[tuple[Outgoing, BlockingOutcome]]) -> None:
        with self._room:
            self.unfinished_events -= len(settled)
            self._unfinished_bytes -= sum([item.held for item, _ in settled])
            if self._queue:
                self._room.notify_all()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take nothing more; who waits for room is told."""
        with self._room:
            self._is_closed = True
            self._room.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"client {self.client.name!r} is closed and publishes nothing any more")

    @property
    def _settings(self) -> Settings:
        return self.client._settings
