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
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from inspect import isawaitable
from types import TracebackType
from typing import Any

import attrs

from ordered_pubsub.client.event import Event
from ordered_pubsub.client.incoming.handling import Handler, Handling
from ordered_pubsub.client.incoming.intake import Intake
from ordered_pubsub.client.incoming.reception import STALLED_AFTER_S
from ordered_pubsub.client.serialization import Decoder
from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.subscriber.acknowledging import HandledPlace
from ordered_pubsub.core.subscriber.buffer import Notification
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


@attrs.frozen
class BatchIterator:
    """The events of a subscription in lists: an async iterator, which may be cancelled and gone on with."""

    _subscription: Subscription
    _max_events: int
    _max_wait_s: float

    def __aiter__(self) -> BatchIterator:
        return self

    def __anext__(self) -> Coroutine[Any, Any, list[Event]]:
        """The next list. Cancelled, no event is taken."""
        subscription = self._subscription
        return subscription.take_batch(subscription.holder(), self._max_events, self._max_wait_s)

    async def aclose(self) -> None:
        """Nothing needs to be closed."""


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
        self._is_named = intake.beginning.is_named
        self._unacknowledged_max = intake.settings.unacknowledged_events_max
        self.acknowledges = intake.beginning.is_named and not intake.beginning.is_manual
        """whether what was handed to the application counts as handled when it asks for more"""
        self._waits_for_acknowledgements = False
        """whether somebody waits until less is unacknowledged"""
        self._decoder = Decoder(intake.settings.serializer)
        self._since_pause = 0
        self.settles = True
        """whether asking for more says that what came before was handled"""
        self._in_hand = intake.in_hand
        """what was taken and is not acknowledged, if it has a name"""
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

    @property
    def is_over(self) -> bool:
        """Whether no more events come in."""
        return self._intake.is_over

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
            "waiting_for": lag.waiting_for if not self._is_held_up else self._held_up_by,
            "unacknowledged": len(self._in_hand),
            "error": None if self.error is None else f"{type(self.error).__name__}: {self.error}",
        }

    # -- taking events ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Subscription:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Event]:
        """The next event in the order. Cancelled, no event is taken.

        With ack="auto" whoever asks says that he has handled what he was given before: the task that calls this, also if
        another one awaits it (`asyncio.wait_for`).
        """
        return self._take_next(self.holder() if self.acknowledges else None)

    async def _take_next(self, holder: object) -> Event:
        if self._notify is not None:
            self._check_readable()
        if holder is not None:
            self._settle(holder)
        if self._on_bad_event is None and self._since_pause < PAUSE_AFTER_EVENTS and self._has_one:
            return self._take(holder)
        event = await self._next(holder)
        if event is None:
            raise StopAsyncIteration
        return event

    def batches(self, max_events: int = 1_000, max_wait_s: float = 0.1) -> BatchIterator:
        """The events in lists: what there is, or comes within `max_wait_s` of the first, up to `max_events`.

        Cancelled, no event is taken: what was in the unfinished list is in the next one, or goes to whoever else asks.
        """
        self._check_readable()
        if max_events < 1 or max_wait_s < 0:
            raise UsageError(
                f"batches() takes max_events from 1 on and max_wait_s from 0 on, not {max_events}, {max_wait_s}"
            )
        return BatchIterator(self, max_events, max_wait_s)

    async def take_batch(self, holder: object, max_events: int, max_wait_s: float) -> list[Event]:
        """The next of them; see `batches`."""
        self._check_readable()
        if holder is not None:
            self._settle(holder)
        batch: list[Event] = []
        try:
            event = await self._next(holder)
            if event is None:
                raise StopAsyncIteration
            batch.append(event)
            give_up_at = self._intake.engine.loop.time() + max_wait_s
            while len(batch) < max_events and (self._has_one or await self._has_another(give_up_at)):
                event = self._take(holder)
                if self._on_bad_event is None or await self._is_wanted(event, holder):
                    batch.append(event)
        except BaseException:
            self._give_back(batch, holder)
            raise
        return batch

    def _check_readable(self) -> None:
        if self._notify is not None:
            raise UsageError(
                f"the events of subscription {self.identity} go to its notify= handler; iterate over another one"
            )

    async def _next(self, holder: object) -> Event | None:
        """The next event; None when there will be none. Cancelled, no event is taken."""
        intake = self._intake
        while True:
            if self._since_pause >= PAUSE_AFTER_EVENTS:
                self._since_pause = 0
                await asyncio.sleep(0)
            if self._has_one:
                event = self._take(holder)
                if self._on_bad_event is None or await self._is_wanted(event, holder):
                    return event
            elif intake.is_over:
                self._raise_error()
                return None
            else:
                self._since_pause = 0
                await self._wait()

    async def _wait(self, give_up_at: float | None = None) -> None:
        """Return when there may be an event. If acknowledgements are what is waited for, that is said after a while."""
        intake = self._intake
        if not self._is_held_up:
            await intake.wait_for_news(give_up_at)
            return
        timer = intake.engine.supervisor.later(STALLED_AFTER_S, self._complain, "a warning")
        self._waits_for_acknowledgements = True
        try:
            await intake.wait_for_news(give_up_at)
        finally:
            self._waits_for_acknowledgements = False
            timer.cancel()

    def _complain(self) -> None:
        _log.warning("subscription %s waits for %s", self.identity, self._held_up_by)

    @property
    def _is_held_up(self) -> bool:
        """Whether the application has taken as much as it may without acknowledging it."""
        return len(self._in_hand) >= self._unacknowledged_max and not self._intake.is_over

    @property
    def _held_up_by(self) -> str:
        return (
            f"acknowledgements: {len(self._in_hand)} events were taken from the first on that is not acknowledged, and no more "
            "are given (unacknowledged_events_max). Acknowledge what was handled (event.ack(), commit()), or raise the limit"
        )

    @property
    def _has_one(self) -> bool:
        """Whether an event may be taken now."""
        return self._intake.unread > 0 and not (self._is_named and self._is_held_up)

    async def _has_another(self, give_up_at: float) -> bool:
        intake = self._intake
        while not self._has_one:
            if intake.is_over or intake.engine.loop.time() >= give_up_at:
                return False
            await self._wait(give_up_at)
        return True

    def _take(self, holder: object) -> Event:
        self._since_pause += 1
        intake = self._intake
        if self._is_named:
            notification = intake.take()
            self._in_hand.take(notification, holder)
            arrival = notification.arrival
            return Event(notification, self._decoder, self._ack, intake.was_redelivered(arrival.topic, arrival.number))
        return Event(intake.take(), self._decoder)

    def _give_back(self, events: Sequence[Event], holder: object) -> None:
        """These were taken in vain."""
        if events and not self._intake.is_dropped:
            notifications = [event.notification for event in events]
            self._in_hand.give_back(notifications, holder)
            self._intake.give_back(notifications)

    def note_handled(self, event: Event) -> None:
        """The application has handled an event that was taken by nobody in particular."""
        self._acknowledge(self._in_hand.handled(event.notification))

    def holder(self) -> object:
        """In whose hand is what is taken here: that of this task, if that matters."""
        return asyncio.current_task() if self.settles and self.acknowledges else None

    def _settle(self, holder: object) -> None:
        """Somebody asks for more, and has handled what was in that hand.

        What a task that has ended well had in hand it has handled, or given to whoever asks next, who has nothing in hand.
        """
        in_hand = self._in_hand
        only = in_hand.ask_only(holder)
        if only is not None:
            self._acknowledge(only)
            return
        if not in_hand.is_in_hand_of(holder):
            for other in in_hand.holders if len(in_hand) else ():
                if isinstance(other, asyncio.Task) and other.done() and not other.cancelled() and not other.exception():
                    self._acknowledge(in_hand.ask(other))
            return
        self._acknowledge(in_hand.ask(holder))

    def _acknowledge(self, place: HandledPlace | Notification | None) -> None:
        if place is not None:
            self._intake.handled(place)
            if self._waits_for_acknowledgements:
                self._intake.wake()

    async def _ack(self, notification: Notification) -> None:
        """An event, and all before it, were handled."""
        if not self._intake.beginning.is_manual:
            raise UsageError(
                "event.ack() goes with ack='manual': here an event counts as handled when the next one is taken"
            )
        self._in_hand.handled_to(notification.count)
        self._intake.wake()
        await self._intake.save(HandledPlace.of(notification))

    async def _is_wanted(self, event: Event, holder: object) -> bool:
        """Whether an event that was taken is for the application. A bad one is handled here; cancelled, it was not taken."""
        try:
            is_good = self._on_bad_event is None or event.error is None
            if self._on_bad_event is not None and not is_good:
                try:
                    outcome = self._on_bad_event(event)
                    if isawaitable(outcome):
                        await outcome
                except Exception as error:
                    self._fail(error, "its handler of bad events failed")
        except BaseException:
            self._give_back([event], holder)
            raise
        if not is_good and self._is_named and self.error is None and self.acknowledges:
            self._in_hand.give_back([event.notification], holder)  # out of the hand
            self._in_hand.take(event.notification)
            self.note_handled(event)
        return is_good

    async def _run_handler(self, notify: Handling) -> None:
        _handling.set(self)
        at = ""
        try:
            while (event := await self._next(None)) is not None:
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
        last = self._in_hand.handled_to_clock(clock)
        self._intake.wake()
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
