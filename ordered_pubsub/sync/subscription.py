"""A subscription for threads: a plain iterator over its events, in the order.

    loop: subscription ── batches ──> _events ──> next ──> threads
                             ^                      │
                             └──── the budget ──────┘ renewed by whoever finds nothing

The first thread that wants an event starts a task in the loop (`_bring`). It brings what there is, batch by batch, until it has
brought as much as its budget allows; then it waits until a thread has found `_events` empty, which renews the budget. So
threads meet once per batch at most, and hardly anything is between the queue of the subscription and the application. What
has been brought and not taken counts as unread: `clock` and `lag` say what the application has, and `close` drops the rest.

A thread that stops waiting (Ctrl-C, a timeout) takes nothing; each event goes to one thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from types import TracebackType
from typing import Any

import attrs

from ordered_pubsub.client.event import Event
from ordered_pubsub.client.subscription import Lag
from ordered_pubsub.client.subscription import Subscription as AsyncSubscription
from ordered_pubsub.errors import Closed, Timeout
from ordered_pubsub.sync.loops import LoopThread, check_may_block

BATCH_EVENTS_MAX = 1_000
BUDGET_EVENTS = 1_000
BUDGET_BYTES = 1 << 20
"""When so much has been brought, no further batch is before a thread has found nothing left."""


class Subscription:
    """Some topics in one order. Made by `Client.subscribe`."""

    def __init__(self, inner: AsyncSubscription, thread: LoopThread, patience_s: float) -> None:
        self._inner = inner
        self._thread = thread
        self._patience_s = patience_s
        """how long a call takes at most, if the loop is not held up"""
        self._events: deque[Event] = deque()
        """brought, and not taken"""
        self._news = threading.Condition()
        """guards what follows; notified when there are events, or will be none"""
        self._bringing: futures.Future[None] | None = None
        self._budget_events = 0
        self._budget_bytes = 0
        self._wanted = asyncio.Event()
        """belongs to the loop: set when the budget was renewed"""
        self._is_over = False
        """whether nothing more is brought"""
        self._is_dropped = False
        """whether nothing more is taken, either"""
        self._inner.settles = False
        self._mine = threading.local()
        """of each thread: what it has taken and, as far as is known, not handled (`events`)"""
        self._handled: deque[Event] = deque()
        """what was handled, and the loop does not know yet"""
        self._is_telling = False
        """whether the loop is about to learn it"""
        self._error: BaseException | None = None
        """what ended the bringing"""

    def __repr__(self) -> str:
        return f"<sync.Subscription {self.identity}>"

    # -- to look at ---------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """What it is called in the log and at the stage, unique in the system."""
        return self._inner.identity

    @property
    def topics(self) -> list[str]:
        """The topics that it holds now."""
        return self._thread.look(lambda: self._inner.topics)

    @property
    def clock(self) -> dict[str, int]:
        """For each topic the number of the last event that the application has taken, or at which the topic began."""
        return self._thread.look(self._clock)

    @property
    def lag(self) -> Lag:
        """How far it is behind, and what it waits for."""
        return self._thread.look(self._lag)

    @property
    def error(self) -> Exception | None:
        """Why it stopped, if it did so by itself."""
        return self._inner.error

    def status(self) -> dict[str, Any]:
        """All of this as plain data."""
        return self._thread.look(self.status_in_loop)

    def status_in_loop(self) -> dict[str, Any]:
        """The same, for whoever is in the loop already."""
        return {**self._inner.status(), "clock": self._clock(), "unread": self._lag().unread}

    def _clock(self) -> dict[str, int]:
        first = next((event for event in tuple(self._events) if event.number), None)
        if first is None:
            return self._inner.clock
        clock = dict(first.vector)
        if clock.get(first.topic) == first.number:
            clock[first.topic] -= 1
        return clock

    def _lag(self) -> Lag:
        lag = self._inner.lag
        return attrs.evolve(lag, unread=lag.unread + len(self._events))

    # -- taking events ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Event]:
        """The events in the order, to the end; waits for them. Interrupted, no event is taken."""
        thread, events = self._thread, self._events
        while True:
            thread.check_process()
            self._settle()
            try:
                event = events.popleft()
            except IndexError:
                event = None
            if event is not None:
                yield self._hand([event])[0]
            elif not self._fill(None):
                return

    def __next__(self) -> Event:
        """The next event in the order; waits for it. Interrupted, no event is taken."""
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event, or None when there will be none any more; raises `Timeout` if none comes in this time."""
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._thread.check_process()
        self._settle()
        while True:
            with suppress(IndexError):
                return self._hand([self._events.popleft()])[0]
            found = self._fill(give_up_at)
            if found is None:
                raise Timeout(f"no event of subscription {self.identity} came within {timeout_s:g} s")
            if not found:
                return None

    def _hand(self, events: list[Event]) -> list[Event]:
        """Give events to this thread."""
        if self._inner.acknowledges:
            self._mine.events = events
        return events

    def _settle(self) -> None:
        """This thread asks for more: it has handled what it has taken. The loop learns that now and then."""
        events: Sequence[Event] = getattr(self._mine, "events", ())
        if events:
            self._handled.extend(events)
            self._mine.events = ()
            if not self._is_telling:
                self._is_telling = True
                self._thread.post(self._tell_handled)

    def _tell_handled(self) -> None:
        self._is_telling = False  # first, so that what is handled from now on is told, too
        with suppress(IndexError):
            while True:
                self._inner.note_handled(self._handled.popleft())

    def commit(self, clock: Mapping[str, int]) -> None:
        """Everything that was taken up to a clock, such as an event's `vector`, was handled; return when that is on disk.

        For ack="manual". Interrupted, it may still come there.
        """
        self._call(self._inner.commit(clock))

    def batches(self, max_events: int = 1_000, max_wait_s: float = 0.1) -> Iterator[list[Event]]:
        """The events in lists: what there is, or comes within `max_wait_s` of the first, up to `max_events`."""
        self._inner.batches(max_events, max_wait_s)  # raises what does not fit
        return self._batches(max_events, max_wait_s)

    def _batches(self, max_events: int, max_wait_s: float) -> Iterator[list[Event]]:
        for first in self:
            batch = [first]
            try:
                give_up_at = time.monotonic() + max_wait_s
                while len(batch) < max_events:
                    with suppress(IndexError):
                        batch.append(self._events.popleft())
                        continue
                    if not self._has_another(give_up_at):
                        break
            except BaseException:
                self._hand([])
                self._events.extendleft(reversed(batch))  # interrupted: they were not taken
                raise
            yield self._hand(batch)

    def _has_another(self, give_up_at: float) -> bool:
        try:
            return bool(self._fill(give_up_at))
        except Exception:
            return False  # what stopped it is raised when what came before has been taken

    def _fill(self, give_up_at: float | None) -> bool | None:
        """Wait until there are events: True. Or until there will be none: False. Or until the time is up: None."""
        check_may_block()
        with self._news:
            while not self._events:
                if self._is_over:
                    error = self._inner.error if self._is_dropped else self._error
                    if error is not None:
                        raise error
                    return False
                is_spent = self._budget_events <= 0 or self._budget_bytes <= 0
                self._budget_events, self._budget_bytes = BUDGET_EVENTS, BUDGET_BYTES
                if self._bringing is None:
                    self._bringing = self._thread.submit(self._bring())
                    self._bringing.add_done_callback(self._brought)
                    continue  # it may be over by now, and then nobody would say so again
                if is_spent:
                    self._thread.post(self._wanted.set)
                timeout_s = None if give_up_at is None else give_up_at - time.monotonic()
                if timeout_s is not None and timeout_s <= 0:
                    return None
                self._news.wait(timeout_s)
        return True

    async def _bring(self) -> None:
        """In the loop: put what there is into `_events`, as far as the budget goes."""
        async for batch in self._inner.batches(BATCH_EVENTS_MAX, 0.0):
            self._put(batch)
            while (self._budget_events <= 0 or self._budget_bytes <= 0) and not self._is_dropped:
                self._wanted.clear()
                await self._wanted.wait()

    def _put(self, batch: list[Event]) -> None:
        with self._news:
            if not self._is_dropped:
                self._events.extend(batch)
                self._budget_events -= len(batch)
                self._budget_bytes -= sum([len(event.raw) for event in batch])
                self._news.notify_all()

    def _brought(self, bringing: futures.Future[None]) -> None:
        with self._news:
            self._is_over = True
            self._error = None if bringing.cancelled() else bringing.exception()
            self._news.notify_all()

    # -- changing topics ----------------------------------------------------------------------------------------------

    def add(self, *topics: str, where: str | None = None) -> None:
        """Hold more topics; return when that has its place: what is published on them from then on is notified.

        `where` is a filter for these topics; without one all their events are notified. Topics that it holds already stay as
        they are. Interrupted, the change may still happen.
        """
        self._call(self._inner.add(*topics, where=where))

    def remove(self, *topics: str) -> None:
        """Hold some topics no more; return when that has its place in the order.

        Events before that place are still notified, none after it. Interrupted, the change may still happen.
        """
        self._call(self._inner.remove(*topics))

    def unsubscribe(self) -> None:
        """End it; return when that has its place in the order.

        Events before that place are still notified; then iteration ends. Interrupted, it may still happen.
        """
        self._call(self._inner.unsubscribe())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        self._thread.call(work, self._patience_s)

    # -- the end ------------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when it has ended and its handler has returned; raise what stopped it, or `Timeout`."""
        if self._thread.is_over:
            if self.error is not None:
                raise self.error
            return
        self._thread.call(self._wait(timeout_s))

    async def _wait(self, timeout_s: float | None) -> None:
        try:
            await asyncio.wait_for(self._inner.wait(), timeout_s)
        except asyncio.TimeoutError:
            raise Timeout(f"subscription {self.identity} has not ended within {timeout_s:g} s") from None

    def close(self) -> None:
        """End it at once: iteration ends, what was not read is not notified. Raises what stopped it before, once.

        A handler that is at work has `timeout_s` to finish its event. Interrupted, it ends all the same.
        """
        self._end(self._close())

    async def _close(self) -> None:
        self.drop()
        await self._inner.close()

    def drop(self) -> None:
        """In the loop: let nothing more be taken."""
        with self._news:
            self._is_dropped = self._is_over = True
            self._events.clear()
            self._news.notify_all()
        self._wanted.set()

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._call(work)
        except Closed:
            if not self._thread.is_over:
                raise

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it. If the block failed, that is what is raised; what stopped the subscription is in the log."""
        if self._thread.is_elsewhere:
            return  # the block was left by a fork's child, and it is not the child's
        self._end(self._exit(kind, error, traceback))

    async def _exit(self, *reason: Any) -> None:
        self.drop()
        await self._inner.__aexit__(*reason)
