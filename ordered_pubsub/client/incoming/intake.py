"""What a subscription has behind it: the queue of what is ready, and the shell around what decides (`core.client.subscription`).

    ENS ──> reception ──> machine ──> buffer ── its turn has come ──> collect ──> queue ──> take ──> the application

The queue has its limits (`queue_events_max`, `queue_bytes_max`). When it has reached one the intake is full: its client then
takes nothing more from the ENS until half of the queue has been read. What was under way at that moment, and what it wakes,
may pass the limit; nothing is dropped. The buffer of events that wait for earlier ones has its limit as well
(`buffer_events_max`, `buffer_bytes_max`): one too many stops the intake with `BufferOverflow`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ordered_pubsub.client.engine import Engine, error_of_change
from ordered_pubsub.client.incoming._selecting import wanted_by
from ordered_pubsub.client.incoming.following import NOW, Beginning, Following
from ordered_pubsub.client.serialization import Decoder
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.client.waiting import within
from ordered_pubsub.core.client.subscription import ClientSubscription, TopicChange
from ordered_pubsub.core.levels import BEST_EFFORT
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.subscriber.acknowledging import HandledPlace, InHand
from ordered_pubsub.core.subscriber.best_effort import BestEffort
from ordered_pubsub.core.subscriber.buffer import Arrival, Notification
from ordered_pubsub.core.subscriber.delivery import BUFFER_EVENTS_MAX, WEIGHTS, Delivery, Order
from ordered_pubsub.core.subscriber.starving import Starving
from ordered_pubsub.core.subscriber.subscriber import Subscriber
from ordered_pubsub.core.subscriber.subscriber_log import SubscriberLog
from ordered_pubsub.core.subscriber.vector import Moment
from ordered_pubsub.errors import OrderedPubSubError, Timeout
from ordered_pubsub.wire.content import JSON
from ordered_pubsub.wire.logged import read_recalled

_log = logging.getLogger(__name__)

BEST_EFFORT_BUFFER_EVENTS_MAX = 1_000
TICK_S_MIN = 0.005


class Intake:
    """How events come to one subscription."""

    def __init__(
        self, engine: Engine, identity: str, order: Order, delivery: str, settings: Settings, beginning: Beginning = NOW
    ) -> None:
        self.engine = engine
        self.identity = identity
        self.order = order
        self.delivery = delivery
        self.settings = settings
        self.beginning = beginning
        self.is_dropped = False
        """whether what was not read is not read at all"""
        self.error: Exception | None = None
        """why it is over, if it did not end by itself"""
        self.on_over: Callable[[], object] = lambda: None
        self.leaving: asyncio.Future[None] | None = None
        """done when the stage knows that it is over"""
        events_max, bytes_max = settings.buffer_events_max, settings.buffer_bytes_max
        buffer: Delivery | BestEffort
        subscriber: Subscriber | None = None
        if delivery == BEST_EFFORT:
            events_max = events_max or BEST_EFFORT_BUFFER_EVENTS_MAX
            buffer = BestEffort(identity, events_max, settings.ttl_s, buffer_bytes_max=bytes_max)
        else:
            missing, events_max = Missing(engine.home.levels.is_kept), events_max or BUFFER_EVENTS_MAX
            wants_of = partial(wanted_by, decoder=Decoder(settings.serializer))
            buffer = Delivery(identity, events_max, order, missing, wants_of, buffer_bytes_max=bytes_max)
            log = SubscriberLog(
                buffer,
                missing,
                engine.session.topology.owner,
                read_recalled,
                beginning.start,
                engine.key.session,
                is_filtered=settings.serializer is None or settings.serializer.content_type != JSON,
            )
            subscriber = Subscriber(log, engine.key.session, beginning.is_named)
        self.subscription = ClientSubscription(
            identity,
            buffer,
            subscriber,
            engine.now(),
            WEIGHTS[order],
            beginning.is_named,
            beginning.start,
            beginning.may_be_empty,
        )
        self._buffer = buffer
        self._ready: deque[Notification] = deque()
        self._ready_bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_ended = False
        """whether all has been done that is to be done when it is over"""
        self._last_clock: dict[str, int] | None = None
        """its clock when it was over"""
        self._timer: asyncio.TimerHandle | None = None
        """tells the time to a best-effort buffer"""
        self._following: Following | None = None
        self._is_held_back = False
        """whether it has asked for nothing more, since it was full"""
        if subscriber is not None:
            self._following = Following(
                engine, self.subscription, subscriber, self._may_ask, lambda: bool(self._ready) or self.is_dropped
            )
        engine.enter(self)

    # -- to look at ---------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether no more events come in."""
        return self.subscription.is_over

    @property
    def state(self) -> str:
        """In a word."""
        return "ended" if self.is_over else "ending" if self.subscription.is_ending else "open"

    @property
    def topics(self) -> list[str]:
        """The topics that it holds now."""
        return [] if self.is_over else self._buffer.topics

    @property
    def clock(self) -> dict[str, int]:
        """For each topic the number of the last event that was taken, or at which the topic began."""
        clock = self._buffer.clock if self._last_clock is None else dict(self._last_clock)
        if self._ready:
            first = next((ready for ready in self._ready if ready.arrival.number), None)
            if first is not None:
                clock = dict(first.vector)
                if clock.get(first.arrival.topic) == first.arrival.number:
                    clock[first.arrival.topic] -= 1
        return clock

    @property
    def unread(self) -> int:
        """How many events may be taken."""
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """How many events wait for earlier ones."""
        return self._buffer.buffered

    @property
    def waiting_for(self) -> str:
        """Which ones, in words."""
        return self._buffer.waiting_for()

    @property
    def starving(self) -> Starving | None:
        """What the ENS does not bring, and the stage does; None with best-effort delivery, where the stage brings nothing."""
        return None if self._following is None else self._following.subscriber.log.starving

    @property
    def in_hand(self) -> InHand:
        """What the application has taken and not handled."""
        return InHand() if self._following is None else self._following.subscriber.in_hand

    # -- the queue ----------------------------------------------------------------------------------------------------

    def take(self) -> Notification:
        """The next event; there must be one."""
        notification = self._ready.popleft()
        self._ready_bytes -= notification.arrival.size
        if not self._room.is_set() and self._is_half_empty:
            self._room.set()
        if self._is_held_back and self._is_half_empty:
            self._is_held_back = False
            if self._following is not None:
                self._following.pump()
        return notification

    def _may_ask(self) -> bool:
        """Whether what is missed may be asked for: not while the application has enough to read."""
        self._is_held_back = self._is_held_back or self.is_full
        return not self._is_held_back

    def give_back(self, notifications: Sequence[Notification]) -> None:
        """Some events were taken in vain: they are the next again."""
        self._ready.extendleft(reversed(notifications))
        self._ready_bytes += sum([notification.arrival.size for notification in notifications])
        self.wake()

    def wake(self) -> None:
        """Let whoever waits for news look again."""
        self._news.set()

    def handled(self, place: HandledPlace | Notification) -> None:
        """Everything up to this place was handled; that may be known on disk a little later."""
        if self._following is not None:
            self._following.handled(place)

    async def save(self, place: HandledPlace | Notification | None) -> None:
        """Everything up to this place was handled; return when that is on the stage's disk."""
        if place is not None and self._following is not None:
            await self._following.save(place, self.settings.timeout_s)

    def was_redelivered(self, topic: str, number: int) -> bool:
        """Whether an earlier session may have been notified of an event."""
        following = self._following
        return following is not None and number <= following.subscriber.log.redelivered_to.get(topic, 0)

    async def wait_for_news(self, give_up_at: float | None = None) -> None:
        """Return when there may be an event, or the end, or at this time of the loop at the latest."""
        self._news.clear()
        timer = None if give_up_at is None else self.engine.loop.call_at(give_up_at, self._news.set)
        try:
            await self._news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    @property
    def is_full(self) -> bool:
        """Whether it wants no more events until some have been read."""
        settings = self.settings
        full = len(self._ready) >= settings.queue_events_max or self._ready_bytes >= settings.queue_bytes_max
        return full and not self.is_over

    @property
    def _is_half_empty(self) -> bool:
        settings = self.settings
        return 2 * len(self._ready) <= settings.queue_events_max and 2 * self._ready_bytes <= settings.queue_bytes_max

    async def wait_for_room(self) -> None:
        """Return when half of the queue is free, or nothing more will be put into it."""
        if not self.is_over:
            self._room.clear()
            await self._room.wait()

    def stop_waiting(self) -> None:
        """Let `wait_for_room` return, whether there is room or not."""
        self._room.set()

    def drop_unread(self) -> int:
        """What was not taken by now is not taken at all; say how much that is."""
        unread = len(self._ready)
        self._last_clock = self.clock
        self._ready.clear()
        self._ready_bytes = 0
        self.is_dropped = True
        return unread

    # -- what comes in ------------------------------------------------------------------------------------------------

    def receive_unordered(self, arrivals: list[Arrival]) -> None:
        """The ENS brought messages that have no place in the order: they are notified as they came."""
        if not self.is_over:
            moment = Moment(self._buffer.clock)
            self._enqueue([Notification(arrival, None, moment, 0, out_of_order=True) for arrival in arrivals])

    def collect(self) -> None:
        """Something came in: take what is ready, and say what is due."""
        ready = self.subscription.take_ready()
        if ready:
            self._enqueue(ready)
        if self.subscription.error is not None:
            self.fail(self.subscription.error, "it stops")
        elif self.is_over:
            self._over()
        elif isinstance(self._buffer, BestEffort):
            # Have the time told to a buffer in which events wait for the end of their patience.
            deadline = None if self._timer is not None else self._buffer.next_deadline()
            if deadline is not None:
                due_at = max(deadline, self.engine.loop.time() + TICK_S_MIN)
                self._timer = self.engine.supervisor.at(due_at, self._tick, "the end of patience")
        elif self._following is not None:
            self._following.pump()

    def _enqueue(self, ready: list[Notification]) -> None:
        self._ready.extend(ready)
        for notification in ready:
            self._ready_bytes += notification.arrival.size
        self._news.set()

    def _tick(self) -> None:
        self._timer = None
        self.engine.now().touched[self.subscription] = True
        self.subscription.tick()
        self.engine.settle()

    # -- changing topics ----------------------------------------------------------------------------------------------

    async def change(
        self,
        add: Sequence[str],
        remove: Sequence[str] = (),
        ends: bool = False,
        where: str | None = None,
        opens: int = 0,
    ) -> None:
        """Change its topics, or end it; return when that has its place. Cancelled, it may still happen."""
        engine, timeout_s = self.engine, self.settings.timeout_s
        engine.check_open()
        engine.now()
        change = self.subscription.change(add, remove, ends, where, opens)
        future = engine.outcome_of(change)
        engine.settle()
        try:
            await within(timeout_s, future, engine.waiting_for)
        except Timeout:
            if not change.is_asked:
                raise self._not_asked(change) from None
            raise
        finally:
            if not change.is_asked and not change.is_done:
                engine.now()
                self.subscription.give_up(change)
                engine.forget(change)
                engine.settle()

    def _not_asked(self, change: TopicChange) -> Exception:
        """Why there was no time to ask for a change."""
        if change.refusal is not None:
            return error_of_change(change.refusal)
        lacks_keys = self.engine.reception.holding.lacks_keys(change.add)
        missed = "the stage did not give the keys of" if lacks_keys else "the ENS did not subscribe to"
        return Timeout(
            f"the change of subscription {self.identity} was not asked for: {missed} "
            f"{', '.join(map(repr, change.add[:3])) or 'anything'}{'' if len(change.add) <= 3 else ', …'} within "
            f"{self.settings.timeout_s:g} s (timeout_s)"
        )

    async def open(self, topics: Sequence[str], where: str | None) -> None:
        """Begin it, or go on with it if it has a name and is there; return when that has its place."""
        await self.change(topics, where=where, opens=int(self.beginning.is_named))

    # -- the end ------------------------------------------------------------------------------------------------------

    def fail(self, error: Exception, what: str) -> None:
        """Stop by an error."""
        if self.error is None:
            unexpected = None if isinstance(error, OrderedPubSubError) else error
            _log.error("subscription %s: %s: %s", self.identity, what, error, exc_info=unexpected)
            self.error = error
        self.stop()

    def stop(self) -> None:
        """Let nothing more in, and let the ENS and the stage know. What is ready may still be taken."""
        self.engine.now()
        self.subscription.stop()
        self._over()
        self.engine.settle()

    def _over(self) -> None:
        """It is over: let everybody know who waits for it."""
        if self._is_ended:
            return
        self._is_ended = True
        self.engine.leave(self)
        if self._following is not None:
            self._following.end()
        if self._last_clock is None:
            self._last_clock = self.subscription.last_clock
        if self._timer is not None:
            self._timer.cancel()
        self._news.set()
        self._room.set()
        if self.subscription.end is not None:
            self.leaving = self.engine.outcome_of(self.subscription.end)
        self.on_over()
