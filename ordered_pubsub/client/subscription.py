"""A subscription: an async iterator over its events, in the order.

Events whose turn has come wait in a queue until the application takes them. When the queue is full the subscription is full:
its client then takes nothing more from the ENS, until half of the queue has been read. At no point is an event dropped, and
no list grows without bound: the queue has its limit (`queue_events_max`, `queue_bytes_max`; what one arrival wakes may pass
it), and so has the buffer of events that wait for earlier ones (`buffer_events_max`), where one too many stops the
subscription with `BufferOverflow`.

With `notify=` a task takes the events and calls the handler, one after the other. A handler that raises stops the
subscription: the error is logged, and raised by `wait`, `close`, or whatever the subscription is used for next.

Changes are announced to the delivery buffer, made active at the ENS and asked for in one go, one change after the other: the
order of the asks is the order that the buffer was told of, and what is published after a change has its place cannot be missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from inspect import isawaitable
from types import TracebackType
from typing import Any, NoReturn

import attrs

from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.event import Event, event_of
from ordered_pubsub.client.serialization import Decoder
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.client.waiting import forget_outcome, within
from ordered_pubsub.core.best_effort import BestEffort
from ordered_pubsub.core.delivery import BUFFER_EVENTS_MAX, WEIGHTS, Arrival, Delivery, Notification, Order
from ordered_pubsub.core.messages import Change, ChangeAsk
from ordered_pubsub.core.topics import check_topic
from ordered_pubsub.errors import Closed, NotOffered, OrderedPubSubError, Timeout, UsageError

_log = logging.getLogger(__name__)

Handler = Callable[[Event], Awaitable[object] | object]
"""What `notify=` takes: a plain or an async function."""

BEST_EFFORT_BUFFER_EVENTS_MAX = 1_000
PAUSE_AFTER_EVENTS = 256
"""After so many events in one go the event loop has a turn, also if the application never waits."""
TICK_S_MIN = 0.005


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
        engine: Engine,
        identity: str,
        order: Order,
        delivery: str,
        settings: Settings,
        notify: Handler | None,
        on_bad_event: Handler | None,
        on_end: Callable[[Subscription], None],
    ) -> None:
        self.identity = identity
        self.order = order
        self.delivery = delivery
        self._engine = engine
        self._settings = settings
        self._notify = notify
        self._on_bad_event = on_bad_event
        self._on_end = on_end
        self._decoder = Decoder(settings.serializer)
        self._buffer = _make_buffer(identity, order, delivery, settings)
        self._ready: deque[Notification] = deque()
        self._ready_bytes = 0
        self._since_pause = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        self._wanted: dict[str, bool] = {}
        """the topics that it will hold when all that was asked for has happened"""
        self._maybe_left: dict[str, bool] = {}
        """topics that may not be needed at the ENS any more"""
        self._is_known = False
        """whether the stage was ever asked for it"""
        self._is_ending = False
        """whether its end was asked for"""
        self._is_over = False
        """whether no more events come in"""
        self._last_clock: dict[str, int] | None = None
        """its clock when it was over"""
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        self._is_reported = True
        self._timer: asyncio.TimerHandle | None = None
        self._handler_task: asyncio.Task[None] | None = None
        self._leaving_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "ended" if self._is_over else "ending" if self._is_ending else "open"
        return f"<Subscription {self.identity} {state} on {', '.join(self.topics) or 'no topics'}; {self.lag}>"

    # -- to look at ---------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        """The topics that it holds now."""
        return [] if self._is_over else self._buffer.topics

    @property
    def clock(self) -> dict[str, int]:
        """For each topic the number of the last event that the application has taken, or at which the topic began."""
        clock = self._buffer.clock if self._last_clock is None else dict(self._last_clock)
        if self._ready:
            first = self._ready[0]
            clock = dict(first.vector)
            if clock.get(first.arrival.topic) == first.arrival.number:
                clock[first.arrival.topic] -= 1
        return clock

    @property
    def lag(self) -> Lag:
        """How far it is behind, and what it waits for."""
        return Lag(len(self._ready), self._buffer.buffered, self._buffer.waiting_for())

    @property
    def error(self) -> BaseException | None:
        """Why it stopped, if it did so by itself."""
        return self._error

    def status(self) -> dict[str, Any]:
        """All of this as plain data."""
        lag = self.lag
        return {
            "id": self.identity,
            "topics": self.topics,
            "order": self.order,
            "delivery": self.delivery,
            "clock": self.clock,
            "unread": lag.unread,
            "waiting": lag.waiting,
            "waiting_for": lag.waiting_for,
            "error": None if self._error is None else f"{type(self._error).__name__}: {self._error}",
        }

    # -- taking events ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        """The next event in the order. Cancelled, no event is taken."""
        self._check_readable()
        event = await self._next()
        if event is None:
            raise StopAsyncIteration
        return event

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
            give_up_at = self._engine.loop.time() + max_wait_s
            while len(batch) < max_events and await self._something_ready(give_up_at):
                event = self._take()
                if await self._is_good(event):
                    batch.append(event)
            yield batch

    def _check_readable(self) -> None:
        if self._notify is not None:
            raise UsageError(
                f"the events of subscription {self.identity} go to its notify= handler; iterate over another one"
            )

    async def _next(self) -> Event | None:
        """The next event; None when there will be none."""
        while True:
            if self._since_pause >= PAUSE_AFTER_EVENTS:
                self._since_pause = 0
                await asyncio.sleep(0)
            if self._ready:
                event = self._take()
                if self._on_bad_event is None or await self._is_good(event):
                    return event
            elif self._error is not None:
                self._raise_error()
            elif self._is_over:
                return None
            else:
                self._since_pause = 0
                self._news.clear()
                await self._news.wait()

    async def _something_ready(self, give_up_at: float) -> bool:
        loop = self._engine.loop
        while not self._ready:
            if self._is_over or loop.time() >= give_up_at:
                return False
            self._news.clear()
            timer = loop.call_at(give_up_at, self._news.set)
            try:
                await self._news.wait()
            finally:
                timer.cancel()
        return True

    def _take(self) -> Event:
        self._since_pause += 1
        notification = self._ready.popleft()
        self._ready_bytes -= len(notification.arrival.body.frame.payload)
        if not self._room.is_set() and self._is_half_empty:
            self._room.set()
        return event_of(notification, self._decoder)

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

    async def _run_handler(self, notify: Handler) -> None:
        try:
            while (event := await self._next()) is not None:
                outcome = notify(event)
                if isawaitable(outcome):
                    await outcome
        except Exception as error:
            if error is self._error:
                self._is_reported = False  # only this task was told so far
            else:
                self._fail(error, "its notify= handler failed")
        finally:
            self._ended.set()

    # -- what comes in ------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether it wants no more events until some have been read."""
        full = (
            len(self._ready) >= self._settings.queue_events_max or self._ready_bytes >= self._settings.queue_bytes_max
        )
        return full and not self._is_over

    @property
    def _is_half_empty(self) -> bool:
        settings = self._settings
        return 2 * len(self._ready) <= settings.queue_events_max and 2 * self._ready_bytes <= settings.queue_bytes_max

    async def wait_for_room(self) -> None:
        """Return when half of the queue is free, or nothing more will be put into it."""
        if not self._is_over:
            self._room.clear()
            await self._room.wait()

    def receive(self, arrivals: list[Arrival]) -> None:
        """The ENS brought events of the topics that it holds. Never raises."""
        if self._is_over:
            return
        buffer = self._buffer
        try:
            if isinstance(buffer, BestEffort):
                now = self._engine.loop.time()
                for arrival in arrivals:
                    buffer.receive(arrival, now)
            else:
                for arrival in arrivals:
                    buffer.receive(arrival)
        except Exception as error:
            self._give_up(error)
        self._collect()

    def settled(self, change: Change) -> None:
        """A change of it has its place."""
        try:
            self._buffer.change_settled(change)
        except Exception as error:
            self._give_up(error)
        self._collect()

    def refused(self, ask: ChangeAsk) -> None:
        """A change that was asked for will not happen."""
        removes = ask.remove
        self._buffer.change_refused(removes)
        for topic in ask.add:
            self._wanted.pop(topic, None)
            self._maybe_left[topic] = True
        self._wanted.update(dict.fromkeys(removes, True))
        if ask.ends:
            self._is_ending = False
        self._collect()

    def _give_up(self, error: Exception) -> None:
        """The buffer took one event too many, or has a bug: what is ready may still be taken, and nothing more comes."""
        self._collect()
        self._fail(error, "it stops", keeps_ready=True)

    def _collect(self) -> None:
        """Take what the buffer has ready."""
        buffer = self._buffer
        ready = buffer.take_ready()
        if ready and not self._is_over:
            self._ready.extend(ready)
            for notification in ready:
                self._ready_bytes += len(notification.arrival.body.frame.payload)
            self._news.set()
        for topic in buffer.take_left():
            self._maybe_left[topic] = True
        if self._maybe_left:
            self._release_left()
        if self._is_ending and not self._is_over and not buffer.changes.asked and not buffer.clock:
            self._stop()
        if isinstance(buffer, BestEffort):
            self._arm(buffer)

    def _arm(self, buffer: BestEffort) -> None:
        """Have the time told to a buffer in which events wait for the end of their patience."""
        if self._timer is not None or self._is_over:
            return
        deadline = buffer.next_deadline()
        if deadline is not None:
            loop = self._engine.loop
            self._timer = loop.call_at(max(deadline, loop.time() + TICK_S_MIN), self._tick, buffer)

    def _tick(self, buffer: BestEffort) -> None:
        self._timer = None
        buffer.tick(self._engine.loop.time())
        self._collect()

    def _release_left(self) -> None:
        """Unsubscribe at the ENS from what is needed no more; not while a change may bring it back."""
        if self._buffer.changes.asked and not self._is_over:
            return
        held = {} if self._is_over else self._buffer.clock
        left = [topic for topic in self._maybe_left if topic not in held and topic not in self._wanted]
        self._maybe_left.clear()
        self._release(self._engine.reception.forget(self, left))

    def _release(self, topics: Sequence[str]) -> None:
        if topics:
            self._engine.spawn(self._engine.reception.release(topics), f"unsubscribing from {', '.join(topics[:3])}")

    # -- changing topics ----------------------------------------------------------------------------------------------

    async def begin(self, topics: Sequence[str]) -> None:
        """Take its first topics. Failed or cancelled, it is closed."""
        try:
            await self._change(topics)
        except BaseException:
            self.close_now()
            raise
        if self._notify is not None:
            self._handler_task = self._engine.loop.create_task(
                self._run_handler(self._notify), name=f"notify {self.identity}"
            )

    async def add(self, *topics: str) -> None:
        """Hold more topics; return when that has its place: what is published on them from then on is notified.

        Topics that it holds already stay as they are. Cancelled, the change may still happen.
        """
        await self._change(_checked(topics))

    async def remove(self, *topics: str) -> None:
        """Hold some topics no more; return when that has its place in the order.

        Events before that place are still notified, none after it. Cancelled, the change may still happen.
        """
        await self._change((), _checked(topics))

    async def unsubscribe(self) -> None:
        """End it; return when that has its place in the order.

        Events before that place are still notified; then iteration ends. Cancelled, it may still happen.
        """
        await self._change((), (), ends=True)

    async def commit(self, clock: object) -> NoReturn:
        """Not offered in this release: what was taken from the subscription counts as handled."""
        raise NotOffered("subscription.commit() goes with ack='manual', which comes with a later release")

    async def _change(self, add: Sequence[str], remove: Sequence[str] = (), ends: bool = False) -> None:
        loop, timeout_s = self._engine.loop, self._settings.timeout_s
        give_up_at = loop.time() + timeout_s
        try:
            future = await asyncio.wait_for(self._ask(add, remove, ends), timeout_s)
        except asyncio.TimeoutError:
            raise Timeout(
                f"the change of subscription {self.identity} was not asked for: the ENS did not subscribe to "
                f"{', '.join(map(repr, add)) or 'anything'} within {timeout_s:.3g} s (timeout_s)"
            ) from None
        await within(give_up_at - loop.time(), future, self._engine.waiting_for)

    async def _ask(self, add: Sequence[str], remove: Sequence[str], ends: bool) -> asyncio.Future[None]:
        """Announce a change, make it active at the ENS, and ask for it: in one go, and one change after the other."""
        async with self._turn:
            self._check_open()
            gained = [topic for topic in dict.fromkeys(add) if topic not in self._wanted]
            lost = list(self._wanted) if ends else self._held(remove)
            self._buffer.change_asked(lost)
            try:
                await self._engine.reception.hold(self, gained)
                self._check_open()
            except BaseException:
                self._buffer.change_refused(lost)
                self._maybe_left.update(dict.fromkeys(gained, True))
                self._release_left()
                raise
            return self._asked(gained, lost, ends)

    def _asked(self, gained: Sequence[str], lost: Sequence[str], ends: bool) -> asyncio.Future[None]:
        self._is_known = True
        self._is_ending = ends
        self._wanted.update(dict.fromkeys(gained, True))
        for topic in lost:
            del self._wanted[topic]
        ask = ChangeAsk(
            subscription=self.identity,
            add=tuple(gained),
            remove=tuple(lost),
            weight=WEIGHTS[self.order],
            best_effort=self.delivery == "best-effort",
            ends=ends,
        )
        return self._engine.ask(ask, self)

    def _held(self, topics: Sequence[str]) -> list[str]:
        unheld = [topic for topic in topics if topic not in self._wanted]
        if unheld:
            raise UsageError(
                f"subscription {self.identity} does not hold {', '.join(map(repr, unheld))}; it holds "
                f"{', '.join(map(repr, self._wanted)) or 'nothing'}"
            )
        return list(dict.fromkeys(topics))

    def _check_open(self) -> None:
        if self._error is not None:
            self._raise_error()
        if self._is_over or self._is_ending:
            raise Closed(f"subscription {self.identity} has ended; make another one with client.subscribe()")

    # -- the end ------------------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Return when it has ended and its handler has returned; raise what stopped it. Cancelled, nothing changes."""
        await self._ended.wait()
        if self._error is not None:
            self._raise_error()

    async def close(self) -> None:
        """End it at once: iteration ends, what was not read is not notified. Raises what stopped it before, once.

        A handler that is at work may finish its event. Cancelled, it ends all the same.
        """
        self.close_now()
        await self.closed()
        if not self._is_reported:
            self._raise_error()

    def close_now(self) -> None:
        """Take nothing more, neither in nor out."""
        if self._ready:
            _log.info("subscription %s is closed with %d events unread", self.identity, len(self._ready))
        self._drop_ready()
        self._stop()

    async def closed(self) -> None:
        """Wait until the handler has returned and the stage knows, but not for ever."""
        handler, leaving = self._handler_task, self._leaving_task
        if handler is not None and handler is not asyncio.current_task() and not handler.done():
            await asyncio.wait((handler,), timeout=self._settings.timeout_s)
            if not handler.done():
                _log.warning("subscription %s: its handler did not return; it is cancelled", self.identity)
                handler.cancel()
        if leaving is not None:
            await asyncio.wait((leaving,), timeout=self._settings.timeout_s)

    @property
    def is_unreported(self) -> bool:
        """Whether it stopped by an error that nobody has been told yet."""
        return not self._is_reported

    def runs_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether its handler runs in this task."""
        return task is not None and task is self._handler_task

    def report(self) -> NoReturn:
        """Raise what stopped it."""
        self._raise_error()

    def _raise_error(self) -> NoReturn:
        assert self._error is not None
        self._is_reported = True
        raise self._error

    def _fail(self, error: Exception, what: str, keeps_ready: bool = False) -> None:
        """Stop by an error, which the next to use it is told."""
        if self._error is None:
            _log.error("subscription %s: %s: %s", self.identity, what, error, exc_info=_unless_ours(error))
            self._error, self._is_reported = error, False
        if not keeps_ready:
            self._drop_ready()
        self._stop()

    def _drop_ready(self) -> None:
        """What the application has not taken by now, it does not get."""
        self._last_clock = self.clock
        self._ready.clear()
        self._ready_bytes = 0

    def _stop(self) -> None:
        """Let nothing more in, and let the ENS and the stage know."""
        if self._is_over:
            return
        self._is_over = True
        if self._last_clock is None:
            self._last_clock = self._buffer.clock
        if self._timer is not None:
            self._timer.cancel()
        self._news.set()
        self._room.set()
        self._release(self._engine.reception.forget(self))
        if self._is_known and not self._is_ending:
            self._leaving_task = self._engine.spawn(self._leave(), f"ending subscription {self.identity}")
        if self._notify is None or self._handler_task is None:
            self._ended.set()
        self._on_end(self)

    async def _leave(self) -> None:
        """Tell the stage that it is over, after what was asked before."""
        async with self._turn:
            if self._is_ending:
                return
            lost = list(self._wanted)
            self._buffer.change_asked(lost)
            future = self._asked((), lost, ends=True)
        future.add_done_callback(forget_outcome)
        await within(self._settings.timeout_s, future, self._engine.waiting_for)

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it. If the block failed, that is what is raised; what stopped the subscription is in the log."""
        if error is None:
            await self.close()
        else:
            self.close_now()
            await self.closed()


def _make_buffer(identity: str, order: Order, delivery: str, settings: Settings) -> Delivery | BestEffort:
    if delivery == "best-effort":
        return BestEffort(identity, settings.buffer_events_max or BEST_EFFORT_BUFFER_EVENTS_MAX, settings.ttl_s)
    return Delivery(identity, order, settings.buffer_events_max or BUFFER_EVENTS_MAX)


def _checked(topics: Iterable[object]) -> list[str]:
    checked = [check_topic(topic) for topic in topics]
    if not checked:
        raise UsageError("expected at least one topic, as in add('trades')")
    return checked


def _unless_ours(error: Exception) -> Exception | None:
    return None if isinstance(error, OrderedPubSubError) else error
