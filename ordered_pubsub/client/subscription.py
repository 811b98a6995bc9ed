"""A subscription, as its user sees it: an async iterator over its events, in the order.

Events whose turn has come wait in a queue (see `intake`) until the application takes them. An application that is slow makes
the queue full, and then the ENS wait: nothing is dropped, and nothing grows without bound.

With `notify=` a task takes the events and calls the handler, one after the other. A handler that raises stops the
subscription. The error is logged, and raised by `wait`, `close`, or whatever the subscription is used for next; if nobody was
told, by the client's `close`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextvars import ContextVar
from inspect import isawaitable
from types import TracebackType
from typing import Any

import attrs

from ordered_pubsub.client.event import Event
from ordered_pubsub.client.handling import Handler, Handling
from ordered_pubsub.client.intake import Intake
from ordered_pubsub.client.serialization import Decoder
from ordered_pubsub.core.buffer import Notification
from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.topics import check_topic
from ordered_pubsub.errors import Closed, UsageError

_log = logging.getLogger(__name__)

PAUSE_AFTER_EVENTS = 256
"""After so many events in one go the event loop has a turn, also if the application never waits."""

_handling: ContextVar[Subscription | None] = ContextVar("handling", default=None)
"""The subscription whose handler runs here, or started what runs here."""


@attrs.frozen
class Lag:
    """How far a subscription is behind, and what it waits for."""

    unread: int
    """events whose turn has come and that the application has not taken"""
    waiting: int
    """events that came too early and wait for earlier ones"""
    waiting_for: str
    """which ones, in words"""


class Subscription:
    """Some topics in one order. Made by `Client.subscribe`."""

    def __init__(
        self,
        intake: Intake,
        notify: Handling | None,
        on_bad_event: Handler | None,
        on_end: Callable[[Subscription], None],
        check: Callable[[list[str]], None],
    ) -> None:
        self._intake = intake
        self._notify = notify
        self._on_bad_event = on_bad_event
        self._on_end = on_end
        self._check = check
        """raises if it may not hold some topics"""
        self._decoder = Decoder(intake.settings.serializer)
        self._since_pause = 0
        self.settles = True
        """whether asking for more says that what came before was handled"""
        self._handed: Event | None = None
        """what the application was handed last, and has perhaps not handled yet"""
        self._unacked: deque[Notification] = deque()
        """what was taken and not acknowledged, if the application does that itself"""
        self._ended = asyncio.Event()
        self._is_reported = False
        """whether somebody was told of the error that stopped it"""
        self._task: asyncio.Task[None] | None = None
        if notify is not None:
            self._task = intake.engine.loop.create_task(self._run_handler(notify), name=f"notify {self.identity}")
        intake.on_over = self._intake_over
        if intake.is_over:
            self._intake_over()

    def __repr__(self) -> str:
        topics = ", ".join(self.topics) or "no topics"
        return f"<Subscription {self.identity} {self._intake.state} on {topics}; {self.lag}>"

    # -- to look at ---------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """What it is called in the log and at the stage, unique in the system."""
        return self._intake.identity

    @property
    def name(self) -> str | None:
        """The name by which it outlives its client, if it has one."""
        return self.identity.rpartition("//")[2] if self._intake.beginning.is_named else None

    @property
    def topics(self) -> list[str]:
        """The topics that it holds now."""
        return self._intake.topics

    @property
    def clock(self) -> dict[str, int]:
        """For each topic the number of the last event that the application has taken, or at which the topic began."""
        return self._intake.clock

    @property
    def lag(self) -> Lag:
        """How far it is behind, and what it waits for."""
        return Lag(self._intake.unread, self._intake.waiting, self._intake.waiting_for)

    @property
    def error(self) -> Exception | None:
        """Why it stopped, if it did so by itself."""
        return self._intake.error

    def status(self) -> dict[str, Any]:
        """All of this as plain data."""
        lag = self.lag
        return {
            "id": self.identity,
            "topics": self.topics,
            "order": self._intake.order,
            "delivery": self._intake.delivery,
            "clock": self.clock,
            "unread": lag.unread,
            "waiting": lag.waiting,
            "waiting_for": lag.waiting_for,
            "error": None if self.error is None else f"{type(self.error).__name__}: {self.error}",
        }

    # -- taking events ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        """The next event in the order. Cancelled, no event is taken."""
        self._check_readable()
        self._settle()
        if self._on_bad_event is None and self._since_pause < PAUSE_AFTER_EVENTS and self._intake.unread:
            return self._hand(self._take())
        event = await self._next()
        if event is None:
            raise StopAsyncIteration
        return self._hand(event)

    async def batches(self, max_events: int = 1_000, max_wait_s: float = 0.1) -> AsyncIterator[list[Event]]:
        """The events in lists: what there is, or comes within `max_wait_s` of the first, up to `max_events`.

        Cancelled, what is in the unfinished list is lost to the application: close the subscription then.
        """
        self._check_readable()
        if max_events < 1 or max_wait_s < 0:
            raise UsageError(
                f"batches() takes max_events from 1 on and max_wait_s from 0 on, not {max_events}, {max_wait_s}"
            )
        while (event := await self._next()) is not None:
            batch = [event]
            give_up_at = self._intake.engine.loop.time() + max_wait_s
            while len(batch) < max_events and await self._has_another(give_up_at):
                event = self._take()
                if await self._is_good(event):
                    batch.append(event)
            self._hand(batch[-1])
            yield batch
            self._settle()

    def _check_readable(self) -> None:
        if self._notify is not None:
            raise UsageError(
                f"the events of subscription {self.identity} go to its notify= handler; iterate over another one"
            )

    async def _next(self) -> Event | None:
        """The next event; None when there will be none."""
        intake = self._intake
        while True:
            if self._since_pause >= PAUSE_AFTER_EVENTS:
                self._since_pause = 0
                await asyncio.sleep(0)
            if intake.unread:
                event = self._take()
                if self._on_bad_event is None or await self._is_good(event):
                    return event
            elif intake.is_over:
                self._raise_error()
                return None
            else:
                self._since_pause = 0
                await intake.wait_for_news()

    async def _has_another(self, give_up_at: float) -> bool:
        intake = self._intake
        while not intake.unread:
            if intake.is_over or intake.engine.loop.time() >= give_up_at:
                return False
            await intake.wait_for_news(give_up_at)
        return True

    def _take(self) -> Event:
        self._since_pause += 1
        intake = self._intake
        if intake.beginning.is_named:
            return self._take_named()
        return Event(intake.take(), self._decoder)

    def _take_named(self) -> Event:
        intake = self._intake
        notification = intake.take()
        if intake.beginning.is_manual:
            self._unacked.append(notification)
        arrival = notification.arrival
        return Event(notification, self._decoder, self._ack, intake.was_redelivered(arrival.topic, arrival.number))

    @property
    def acknowledges(self) -> bool:
        """Whether what was handed to the application counts as handled when it asks for more."""
        return self._intake.beginning.is_named and not self._intake.beginning.is_manual

    def note_handled(self, event: Event) -> None:
        """The application has handled this event, and all before it."""
        self._intake.handled(event.notification)

    def _settle(self) -> None:
        """The application asks for more: it has handled what it was handed."""
        if self._handed is not None:
            self.note_handled(self._handed)
            self._handed = None

    def _hand(self, event: Event) -> Event:
        if self.settles and self.acknowledges:
            self._handed = event
        return event

    async def _ack(self, notification: Notification) -> None:
        """An event, and all before it, were handled."""
        if not self._intake.beginning.is_manual:
            raise UsageError(
                "event.ack() goes with ack='manual': here an event counts as handled when the next one is taken"
            )
        while self._unacked and self._unacked[0].count <= notification.count:
            self._unacked.popleft()
        await self._intake.save(notification)

    async def _is_good(self, event: Event) -> bool:
        """Whether an event is for the application; a bad one goes to the handler of bad events, if there is one."""
        if self._on_bad_event is None or event.error is None:
            return True
        try:
            outcome = self._on_bad_event(event)
            if isawaitable(outcome):
                await outcome
        except Exception as error:
            self._fail(error, "its handler of bad events failed")
        return False

    async def _run_handler(self, notify: Handling) -> None:
        _handling.set(self)
        at = ""
        try:
            while (event := await self._next()) is not None:
                at = f" on {event.topic!r} number {event.number}"
                await notify(event)
                if self.acknowledges:
                    self.note_handled(event)
        except Exception as error:
            if error is self.error:
                self._is_reported = False  # only this task was told so far
            else:
                self._fail(error, f"its notify= handler failed{at}, so it has ended and notifies no later event")
        except asyncio.CancelledError:
            if not self._intake.is_over and not _is_cancelled():
                self._fail(Closed("the handler awaited something that was cancelled"), "its notify= handler failed")
            raise
        finally:
            self._ended.set()

    # -- changing topics ----------------------------------------------------------------------------------------------

    async def add(self, *topics: str, where: str | None = None) -> None:
        """Hold more topics; return when that has its place: what is published on them from then on is notified.

        `where` is a filter for these topics; without one all their events are notified. Topics that it holds already stay as
        they are. Cancelled, the change may still happen.
        """
        if where is not None:
            Filter.parse(where)
        self._raise_error()
        checked = check_topics(topics)
        self._check(checked)
        await self._intake.change(checked, where=where)

    async def remove(self, *topics: str) -> None:
        """Hold some topics no more; return when that has its place in the order.

        Events before that place are still notified, none after it. Cancelled, the change may still happen.
        """
        await self._change([], check_topics(topics))

    async def unsubscribe(self) -> None:
        """End it; return when that has its place in the order.

        Events before that place are still notified; then iteration ends. Cancelled, it may still happen.
        """
        await self._change([], [], ends=True)

    async def _change(self, add: list[str], remove: list[str] | None = None, ends: bool = False) -> None:
        self._raise_error()
        await self._intake.change(add, remove or [], ends)

    async def commit(self, clock: Mapping[str, int]) -> None:
        """Everything that was taken up to a clock, such as an event's `vector`, was handled; return when that is on disk.

        Cancelled, it may still come there.
        """
        if not self._intake.beginning.is_manual:
            raise UsageError(
                "subscription.commit() goes with a name= and ack='manual', which this one was not made with"
            )
        last: Notification | None = None
        while self._unacked:
            arrival = self._unacked[0].arrival
            if arrival.number > clock.get(arrival.topic, 0):
                break
            last = self._unacked.popleft()
        await self._intake.save(last)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Return when it has ended and its handler has returned; raise what stopped it. Cancelled, nothing changes."""
        await self._ended.wait()
        self._raise_error()

    async def close(self) -> None:
        """End it at once: iteration ends, what was not read is not notified. Raises what stopped it before, once.

        A handler that is at work has `timeout_s` to finish its event. Cancelled, it ends all the same.
        """
        await self._close()
        if not self._is_reported:
            self._raise_error()

    def end_now(self, give_up_handler: bool = False) -> None:
        """Let nothing more be notified, from this moment on; `close` does the rest."""
        unread = self._intake.drop_unread()
        if unread:
            _log.info("subscription %s is closed with %d events unread", self.identity, unread)
        self._intake.stop()
        if give_up_handler and self._task is not None and _handling.get() is not self:
            self._task.cancel()

    async def _close(self) -> None:
        self.end_now()
        if self._task is not None and _handling.get() is not self and not self._task.done():
            await asyncio.wait((self._task,), timeout=self._intake.settings.timeout_s)
            if not self._task.done():
                _log.warning("subscription %s: its handler did not return; it is cancelled", self.identity)
                self._task.cancel()
        if self._intake.leaving is not None:
            await asyncio.wait((self._intake.leaving,), timeout=self._intake.settings.timeout_s)

    def _fail(self, error: Exception, what: str) -> None:
        """A handler failed: no further event is handled."""
        self._intake.fail(error, what)
        self._intake.drop_unread()

    def _intake_over(self) -> None:
        if self._task is None:
            self._ended.set()
        self._on_end(self)

    def _raise_error(self) -> None:
        """Raise what stopped it, if something did."""
        if self.error is not None:
            self._is_reported = True
            raise self.error

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it. If the block failed, that is what is raised; what stopped the subscription is in the log."""
        self.end_now(give_up_handler=is_interrupt(error))
        await self._close()
        if error is None and not self._is_reported:
            self._raise_error()


def is_interrupt(error: BaseException | None) -> bool:
    """Whether a block was left because somebody wants to stop (Ctrl-C, cancellation), and not by an error."""
    return error is not None and not isinstance(error, Exception)


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task, as far as this Python can tell (from 3.11 on)."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0


def check_topics(topics: Iterable[object]) -> list[str]:
    """At least one valid topic."""
    checked = [check_topic(topic) for topic in topics]
    if not checked:
        raise UsageError("expected at least one topic, as in subscribe('trades', 'quotes') or add('trades')")
    return checked
