"""What a subscription has behind it: a delivery buffer, the queue of what is ready, and the changes of its topics.

    ENS ──> reception ──> receive ──> buffer ── its turn has come ──> queue ──> take ──> the application
                                        ^
    stage ──> engine ──> settled ───────┘

The queue has its limits (`queue_events_max`, `queue_bytes_max`). When it has reached one the intake is full: its client then
takes nothing more from the ENS until half of the queue has been read. What was under way at that moment, and what it wakes,
may pass the limit; nothing is dropped. The buffer of events that wait for earlier ones has its limit as well
(`buffer_events_max`, `buffer_bytes_max`): one too many stops the intake with `BufferOverflow`.

A change is announced to the buffer, made active at the ENS and asked for in one go, one change after the other. So the order
of the asks is the order that the buffer was told of, and what is published after a change has its place cannot be missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ordered_pubsub.client.engine import Engine, HasEnded, WrongEpoch
from ordered_pubsub.client.following import NOW, Beginning, Following
from ordered_pubsub.client.logged import read_recalled
from ordered_pubsub.client.selecting import wanted_by
from ordered_pubsub.client.serialization import Decoder
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.client.waiting import within
from ordered_pubsub.core.acknowledging import InHand, Place
from ordered_pubsub.core.best_effort import BestEffort
from ordered_pubsub.core.buffer import Arrival, Notification
from ordered_pubsub.core.delivery import BUFFER_EVENTS_MAX, WEIGHTS, Delivery, Order
from ordered_pubsub.core.levels import BEST_EFFORT
from ordered_pubsub.core.messages import Change, ChangeAsk
from ordered_pubsub.core.missing import Missing
from ordered_pubsub.core.starving import Starving
from ordered_pubsub.core.subend import Subend
from ordered_pubsub.core.subscriber import Subscriber
from ordered_pubsub.core.vector import Moment
from ordered_pubsub.errors import AdapterError, Closed, OrderedPubSubError, SessionExpired, Timeout, UsageError
from ordered_pubsub.wire.content import JSON

_log = logging.getLogger(__name__)

BEST_EFFORT_BUFFER_EVENTS_MAX = 1_000
TICK_S_MIN = 0.005
OPENINGS_MAX = 5
"""So often a named subscription is opened anew when somebody else has opened it in between."""
REOPEN_S = 0.2
"""So often it is tried to begin one anew whose name is that of one that has just ended."""


class Intake:
    """How events come to one subscription."""

    def __init__(
        self,
        engine: Engine,
        identity: str,
        order: Order,
        delivery: str,
        settings: Settings,
        beginning: Beginning = NOW,
    ) -> None:
        self.engine = engine
        self.identity = identity
        self.order = order
        self.delivery = delivery
        self.settings = settings
        self.beginning = beginning
        self.is_over = False
        """whether no more events come in"""
        self.is_dropped = False
        """whether what was not read is not read at all"""
        self.error: Exception | None = None
        """why it is over, if it did not end by itself"""
        self.on_over: Callable[[], None] = _nothing
        self.leaving: asyncio.Task[None] | None = None
        """tells the stage that it is over"""
        missing = None if delivery == BEST_EFFORT else Missing(engine.home.levels.is_kept)
        self._buffer = _make_buffer(identity, order, missing, settings)
        self._ready: deque[Notification] = deque()
        self._ready_bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._turn = asyncio.Lock()
        self._wanted: dict[str, bool] = {}
        """the topics that it will hold when all that was asked for has happened"""
        self._maybe_left: dict[str, bool] = {}
        """topics that may not be needed at the ENS any more"""
        self._opens = int(beginning.is_named)
        """the epoch in which it is to be begun, or resumed; 0 when it is"""
        self._is_known = False
        """whether the stage was ever asked for it"""
        self._is_ending = False
        """whether its end was asked for"""
        self._last_clock: dict[str, int] | None = None
        """its clock when it was over"""
        self._timer: asyncio.TimerHandle | None = None
        """tells the time to a best-effort buffer"""
        self._following: Following | None = None
        self._is_held_back = False
        """whether it has asked for nothing more, since it was full"""
        engine.enter(self)
        if missing is not None and isinstance(self._buffer, Delivery):
            subend = Subend(
                self._buffer,
                missing,
                engine.session.topology.owner,
                read_recalled,
                beginning.start,
                engine.key.session,
                is_filtered=settings.serializer is None or settings.serializer.content_type != JSON,
            )
            self._following = Following(
                engine,
                Subscriber(subend, engine.key.session, beginning.is_named),
                self._collect,
                self._give_up,
                self._may_ask,
                lambda: bool(self._ready) or self.is_dropped,
            )

    # -- to look at ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """In a word."""
        return "ended" if self.is_over else "ending" if self._is_ending else "open"

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
        return None if self._following is None else self._following.subscriber.subend.starving

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

    def handled(self, place: Place | Notification) -> None:
        """Everything up to this place was handled; that may be known on disk a little later."""
        if self._following is not None:
            self._following.handled(place)

    async def save(self, place: Place | Notification | None) -> None:
        """Everything up to this place was handled; return when that is on the stage's disk."""
        if place is not None and self._following is not None:
            await self._following.save(place, self.settings.timeout_s)

    def was_redelivered(self, topic: str, number: int) -> bool:
        """Whether an earlier session may have been notified of an event."""
        following = self._following
        return following is not None and number <= following.subscriber.subend.redelivered_to.get(topic, 0)

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

    def receive(self, arrivals: list[Arrival]) -> None:
        """The ENS brought events of the topics that it holds. Never raises."""
        if self.is_over:
            return
        buffer = self._buffer
        try:
            if isinstance(buffer, BestEffort):
                now = self.engine.loop.time()
                for arrival in arrivals:
                    buffer.receive(arrival, now)
            else:
                assert self._following is not None
                self._following.subscriber.arrived(arrivals, self.engine.loop.time())
        except Exception as error:
            self._give_up(error)
        self._collect()

    def receive_unordered(self, arrivals: list[Arrival]) -> None:
        """The ENS brought messages that have no place in the order: they are notified as they came."""
        if not self.is_over:
            moment = Moment(self._buffer.clock)
            self._enqueue([Notification(arrival, None, moment, 0, out_of_order=True) for arrival in arrivals])

    def settled(self, change: Change, ask: ChangeAsk) -> None:
        """A change of it has its place."""
        try:
            if self._following is not None:
                self._following.subscriber.begin(change, self.engine.loop.time())
            if change.resume is not None:  # what it holds is known only now
                self._wanted.update(dict.fromkeys(change.new, True))
                self.engine.supervisor.keep(partial(self._hold, change.new), f"holding {self.identity} at the ENS")
            self._buffer.change_settled(change, ask.remove)
        except Exception as error:
            self._give_up(error)
        self._collect()

    async def _hold(self, topics: Sequence[str]) -> None:
        """Have the ENS bring what a resumed subscription holds."""
        if not self.is_over:
            await self.engine.reception.hold(self, topics)

    def refused(self, ask: ChangeAsk) -> None:
        """A change that was asked for will not happen."""
        if self._following is not None:
            self._following.subscriber.subend.set_time(self.engine.loop.time())
        self._buffer.change_refused(ask.remove)
        for topic in ask.add:
            self._wanted.pop(topic, None)
            self._maybe_left[topic] = True
        self._wanted.update(dict.fromkeys(ask.remove, True))
        if ask.ends:
            self._is_ending = False
        self._collect()

    def _give_up(self, error: Exception) -> None:
        """The buffer took one event too many, or has a bug: what is ready may still be taken, and nothing more comes."""
        self._collect()
        self.fail(error, "it stops")

    def _cut_off(self) -> None:
        """Its registrar may have given it up: what came now might be in another order than for others."""
        half_s = self.engine.lifeline.session_ttl_s / 2
        self.fail(
            SessionExpired(
                f"subscription {self.identity} was cut off: the stage that keeps it has not answered for {half_s:g} s. It was "
                "notified of everything up to its clock, in order; subscribe again. Who needs more gives it a name (name=)"
            ),
            "it stops",
        )

    def _collect(self) -> None:
        """Take what the buffer has ready."""
        buffer, following = self._buffer, self._following
        ready = buffer.take_ready() if following is None else following.subscriber.subend.take_ready()
        if ready and not self.is_over:
            if self.engine.lifeline.is_cut(self.identity, self.engine.loop.time()):
                self._cut_off()
            else:
                self._enqueue(ready)
        for topic in buffer.take_left():
            self._maybe_left[topic] = True
        if self._maybe_left:
            self._release_left()
        if self._is_ending and not buffer.changes.asked and not buffer.clock:
            self.stop()
        if isinstance(buffer, BestEffort):
            self._arm(buffer)
        elif following is not None and not self.is_over:
            following.pump()

    def _enqueue(self, ready: list[Notification]) -> None:
        self._ready.extend(ready)
        for notification in ready:
            self._ready_bytes += notification.arrival.size
        self._news.set()

    def _arm(self, buffer: BestEffort) -> None:
        """Have the time told to a buffer in which events wait for the end of their patience."""
        if self._timer is not None or self.is_over:
            return
        deadline = buffer.next_deadline()
        if deadline is not None:
            due_at = max(deadline, self.engine.loop.time() + TICK_S_MIN)
            self._timer = self.engine.supervisor.at(due_at, self._tick, "the end of patience", buffer)

    def _tick(self, buffer: BestEffort) -> None:
        self._timer = None
        try:
            buffer.tick(self.engine.loop.time())
        except Exception as error:
            self._give_up(error)
        self._collect()

    def _release_left(self) -> None:
        """Unsubscribe at the ENS from what is needed no more; not while a change may bring it back."""
        if self._buffer.changes.asked and not self.is_over:
            return
        held = {} if self.is_over else self._buffer.clock
        left = [topic for topic in self._maybe_left if topic not in held and topic not in self._wanted]
        self._maybe_left.clear()
        self._release(self.engine.reception.forget(self, left))

    def _release(self, topics: Sequence[str]) -> None:
        if topics and not self.engine.is_over:
            self.engine.spawn(self.engine.reception.release(topics), f"unsubscribing from {', '.join(topics[:3])}")

    # -- changing topics ----------------------------------------------------------------------------------------------

    async def change(
        self, add: Sequence[str], remove: Sequence[str] = (), ends: bool = False, where: str | None = None
    ) -> None:
        """Change its topics, or end it; return when that has its place. Cancelled, it may still happen."""
        timeout_s = self.settings.timeout_s
        give_up_at = self.engine.loop.time() + timeout_s
        try:
            future = await asyncio.wait_for(self._ask(add, remove, ends, where), timeout_s)
        except asyncio.TimeoutError:
            lacks_keys = self.engine.reception.lacks_keys(add)
            missed = "the stage did not give the keys of" if lacks_keys else "the ENS did not subscribe to"
            raise Timeout(
                f"the change of subscription {self.identity} was not asked for: {missed} "
                f"{', '.join(map(repr, add[:3])) or 'anything'}{'' if len(add) <= 3 else ', …'} within {timeout_s:g} s "
                "(timeout_s)"
            ) from None
        await within(timeout_s, future, self.engine.waiting_for, give_up_at)

    async def open(self, topics: Sequence[str], where: str | None) -> None:
        """Begin it, or go on with it if it has a name and is there; return when that has its place."""
        give_up_at = self.engine.loop.time() + self.settings.timeout_s
        others = 0
        while others < OPENINGS_MAX:
            epoch = self._opens
            try:
                await self.change(topics, where=where)
                return
            except WrongEpoch as error:
                others += 1
                self._opens = error.opened + 1
            except HasEnded:  # the one before it of this name
                if not epoch or self.engine.loop.time() >= give_up_at:
                    raise
                self._opens = epoch
                await asyncio.sleep(REOPEN_S)
        raise Closed(f"subscription {self.identity} was opened by others again and again meanwhile")

    async def _ask(
        self, add: Sequence[str], remove: Sequence[str], ends: bool, where: str | None
    ) -> asyncio.Future[None]:
        """Announce a change, make it active at the ENS, and ask for it: in one go, and one change after the other."""
        async with self._turn:
            self._check_open()
            gained = [topic for topic in dict.fromkeys(add) if topic not in self._wanted]
            lost = list(self._wanted) if ends else self._held(remove)
            self._buffer.change_asked(lost)
            try:
                await self.engine.reception.hold(self, gained)
                self._check_open()
            except BaseException as error:
                self._buffer.change_refused(lost)
                self._maybe_left.update(dict.fromkeys(gained, True))
                self._release_left()
                if isinstance(error, AdapterError):
                    self._check_open()
                raise
            return self._asked(gained, lost, ends, where)

    def _asked(
        self, gained: Sequence[str], lost: Sequence[str], ends: bool, where: str | None = None
    ) -> asyncio.Future[None]:
        if not self._is_known and not self.beginning.is_named:
            self.engine.watch(self.identity, self._cut_off)
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
            where={} if where is None else dict.fromkeys(gained, where),
            opens=self._opens,
            start=None if not self._opens or self.beginning.start is None else dict(self.beginning.start),
        )
        self._opens = 0
        return self.engine.ask(ask, self)

    def _held(self, topics: Sequence[str]) -> list[str]:
        unheld = [topic for topic in topics if topic not in self._wanted]
        if unheld:
            raise UsageError(
                f"subscription {self.identity} does not hold {', '.join(map(repr, unheld))}; it holds "
                f"{', '.join(map(repr, self._wanted)) or 'nothing'}"
            )
        return list(dict.fromkeys(topics))

    def _check_open(self) -> None:
        self.engine.check_open()
        if self.is_over or self._is_ending:
            raise Closed(f"subscription {self.identity} has ended; make another one with client.subscribe()")

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
        if self.is_over:
            return
        self.is_over = True
        self.engine.leave(self)
        self.engine.unwatch(self.identity)
        if self._following is not None:
            self._following.end()
        if self._last_clock is None:
            self._last_clock = self._buffer.clock
        if self._timer is not None:
            self._timer.cancel()
        self._news.set()
        self._room.set()
        self._release(self.engine.reception.forget(self))
        if self._is_known and not self._is_ending and not self.engine.is_over and not self.beginning.is_named:
            self.leaving = self.engine.spawn(self._leave(), f"ending subscription {self.identity}")
        self.on_over()

    async def _leave(self) -> None:
        """Tell the stage that it is over, after what was asked before."""
        async with self._turn:
            if self._is_ending:
                return
            lost = list(self._wanted)
            self._buffer.change_asked(lost)
            future = self._asked((), lost, ends=True)
        await within(self.settings.timeout_s, future, self.engine.waiting_for)


def _make_buffer(identity: str, order: Order, missing: Missing | None, settings: Settings) -> Delivery | BestEffort:
    events_max, bytes_max = settings.buffer_events_max, settings.buffer_bytes_max
    if missing is None:
        events_max = events_max or BEST_EFFORT_BUFFER_EVENTS_MAX
        return BestEffort(identity, events_max, settings.ttl_s, buffer_bytes_max=bytes_max)
    wants_of = partial(wanted_by, decoder=Decoder(settings.serializer))
    return Delivery(identity, events_max or BUFFER_EVENTS_MAX, order, missing, wants_of, buffer_bytes_max=bytes_max)


def _nothing() -> None:
    """Nobody needs to know."""
