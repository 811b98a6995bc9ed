"""What a subscription has to do with the logs of its topics: what it misses, its past, and what it has acknowledged.

The core decides; this is the shell that carries it. The home stage is told how far the subscription is, asked for what is
missing, and brings it. One that starts in the past reads that first, while the present waits in its buffer. One that has a name
acknowledges what was handled, and whoever resumes it goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import attrs

from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.logged import read_recalled
from ordered_pubsub.core.acknowledging import Acknowledging
from ordered_pubsub.core.buffer import Notification
from ordered_pubsub.core.delivery import Delivery, Wants
from ordered_pubsub.core.messages import (
    Change,
    Curious,
    Ended,
    Expect,
    Follows,
    Inform,
    Saved,
    Told,
    ToSubscriber,
    Want,
)
from ordered_pubsub.core.missing import Missing
from ordered_pubsub.core.past import Part, Past
from ordered_pubsub.core.vector import History
from ordered_pubsub.errors import AccessDenied, HistoryLost, SessionExpired

TIMER_S_MIN = 0.005
WANTS_MAX = 1_000
"""Ranges that are asked for in one message."""
SAID_FOR_S = 30.0
"""After so long what has not changed is said again: who has forgotten it knows it then."""


@attrs.frozen
class Beginning:
    """Where a subscription begins, and whether it outlives its client's session."""

    is_named: bool = False
    start: Mapping[str, int] | None = None
    """None: at its place in the order"""
    is_earliest: bool = False
    """what the logs have lost of the past is not missed"""
    is_manual: bool = False
    """the application says what it has handled"""


NOW = Beginning()


@attrs.define(eq=False)
class Following:
    """One subscription and the logs of its topics."""

    engine: Engine
    identity: str
    buffer: Delivery
    beginning: Beginning
    collect: Callable[[], None]
    """takes what is ready, and calls `pump`"""
    give_up: Callable[[Exception], None]
    filters_of: Callable[[Mapping[str, str]], dict[str, Wants]]
    """makes of filters as they are written what decides"""
    redelivered_to: dict[str, int] = attrs.field(factory=dict)
    """up to where an earlier session may have been notified"""
    _missing: Missing = attrs.field(init=False)
    _past: Past | None = None
    _past_read: int = 0
    _past_history: History = attrs.field(factory=History)
    _past_ready: list[Notification] = attrs.field(factory=list)
    _acknowledging: Acknowledging | None = None
    _saving: dict[int, asyncio.Future[None]] = attrs.field(factory=dict)
    """who waits for an acknowledgement to be on disk, by its serial"""
    _said: dict[str, int] = attrs.field(factory=dict)
    _said_at: float = 0.0
    _timer: asyncio.TimerHandle | None = None
    _is_over: bool = False

    def __attrs_post_init__(self) -> None:
        assert self.buffer.missing is not None
        self._missing = self.buffer.missing
        if self.beginning.is_named:
            self._acknowledging = Acknowledging(self.identity, self.engine.key.session)
        if self.beginning.start is not None:
            self.buffer.hold()
        self.engine.follow(self)

    # -- where it begins ----------------------------------------------------------------------------------------------

    def begin(self, change: Change) -> None:
        """The outcome of the change by which it begins, or goes on."""
        self.set_time()
        if change.resume is None:
            if change.version == 1 and self.beginning.start is not None:
                self._read_past(dict(self.beginning.start), change, 0)
            return
        self.redelivered_to = dict(change.entries)
        resume = change.resume
        self.buffer.filters.update(self.filters_of(resume.where))
        first = next((change for change in resume.changes if change.version == 1), None)
        if resume.start is not None:
            self.buffer.hold()
        self.buffer.resume(resume)
        for topic, count in change.entries.items():
            self.buffer.hear(topic, count, is_lost=True)
        if resume.start is not None and not resume.version and first is not None:
            self._read_past(dict(resume.clock or resume.start), first, resume.position)
        elif resume.start is not None:
            self.buffer.go_on(0)

    def _read_past(self, clock: dict[str, int], first: Change, position: int) -> None:
        cut = {topic: first.entries.get(topic, 0) for topic in first.new}
        clock = {topic: min(clock.get(topic, 0), cut[topic]) for topic in cut}
        missing = Missing(self._missing.is_kept, now=self._missing.now)
        self._past = Past(clock, cut, self.engine.session.topology.owner, missing)
        self._past_read = position
        self._past_history.restart(dict(clock))
        self._read_on(self._past)

    def _read_on(self, past: Past) -> None:
        """Take what is known of the past by now, and go on to the present if that was all."""
        is_topic = self.buffer.order == "topic"
        for part, first, last in past.read():
            if not part.arrivals:
                self._past_history.jumped(part.topic, last)
                self._past_read += last - first + 1
            wants = self.buffer.filters.get(part.topic)
            for arrival in part.arrivals:
                if first <= arrival.number <= last:
                    self._past_read += 1
                    position = None if is_topic else self._past_read
                    vector = self._past_history.passed(part.topic)
                    if wants is not None and not wants(arrival):
                        continue
                    self._past_ready.append(Notification(arrival, position, vector, 0, count=self._past_read))
        if past.is_over:
            self._past = None
            self.buffer.go_on(self._past_read)

    def take_past(self) -> list[Notification]:
        """What is ready of the past, before anything that the buffer has."""
        ready, self._past_ready = self._past_ready, []
        return ready

    # -- what the stage says ------------------------------------------------------------------------------------------

    def set_time(self) -> float:
        """Tell the time to what is missing."""
        now = self._missing.now = self.engine.loop.time()
        if self._past is not None:
            self._past.missing.now = now
        return now

    def told(self, message: ToSubscriber) -> None:
        """The stage brings what it misses, or says how far its topics are, or it is. Never raises."""
        if self._is_over:
            return
        self.set_time()
        try:
            if isinstance(message, Inform):
                self._take_told(message.told)
            elif isinstance(message, Expect):
                for topic, count in message.counts.items():
                    self.buffer.hear(topic, count, is_lost=True)
            elif isinstance(message, Saved):
                self._take_saved(message)
            else:
                self._take_end(message)
        except Exception as error:
            self.give_up(error)
        self.collect()

    def _take_told(self, told: Told) -> None:
        past, topic = self._past, told.topic
        if past is not None and told.floor > past.clock.get(topic, told.floor):
            if not self.beginning.is_earliest:
                raise HistoryLost(self.identity, topic, past.clock[topic] + 1, told.floor + 1)
            past.skip(topic, told.floor)
            self._past_history.restart(dict(past.clock))
        self.buffer.told_of_floor(topic, told.floor)
        for item in told.items:
            arrivals = read_recalled(topic, item)
            if past is not None:
                own = [] if arrivals[0].last else arrivals
                past.take(
                    Part(
                        topic,
                        item.first,
                        item.last,
                        item.batch,
                        item.place,
                        item.published_at,
                        item.entries,
                        item.full,
                        own,
                    )
                )
            for arrival in arrivals:
                self.buffer.receive(arrival)
        if past is not None:
            self._read_on(past)

    def _take_end(self, ended: Ended) -> None:
        if ended.code == "forbidden":
            raise AccessDenied(f"the stage gives this subscription nothing any more: {ended.reason}")
        if self._acknowledging is not None or ended.code == "expired":
            raise SessionExpired(f"the stage says: {ended.reason}")

    # -- what it says -------------------------------------------------------------------------------------------------

    def needed_after(self) -> dict[str, int]:
        """Up to where it needs nothing of the logs: what came is here, whether the application has taken it or not."""
        return dict(self.buffer.clock if self._past is None else self._past.clock)

    def report(self, is_all: bool = False) -> None:
        """Tell the stage how far it is, as far as that is news, or all of it."""
        now = self.engine.loop.time()
        is_kept = self.engine.home.levels.is_kept
        clock = {topic: count for topic, count in self.needed_after().items() if is_kept(topic)}
        if is_all or clock.keys() != self._said.keys() or now > self._said_at + SAID_FOR_S:
            self.engine.say(Follows(self.identity, clock, True, self.buffer.changes.version))
            self._said_at = now
        elif clock != self._said:
            self.engine.say(Follows(self.identity, dict(clock.items() - self._said.items())))
        self._said = clock

    def pump(self) -> None:
        """Say what is due, and see to it that this is done again when more is."""
        if self._is_over:
            return
        now = self.set_time()
        missing = [self._missing] if self._past is None else [self._past.missing, self._missing]
        for part in missing:
            if part.is_curious:
                self._ask_for(part.take_due(now))
        acking = self._acknowledging
        if acking is not None and (acked := acking.take_due(now)) is not None:
            self.engine.say(acked)
        dues = [part.next_due for part in missing] + [acking.next_due if acking is not None else None]
        due = min((time for time in dues if time is not None), default=None)
        if due is not None:
            self._set_timer(max(due, now + TIMER_S_MIN))

    def _ask_for(self, wants: list[Want]) -> None:
        for first in range(0, len(wants), WANTS_MAX):
            self.engine.say(Curious(self.identity, wants[first : first + WANTS_MAX]))

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self.engine.loop.call_at(at, self._time_has_come)

    def _time_has_come(self) -> None:
        self._timer = None
        self.pump()

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def handled(self, notification: Notification) -> None:
        """Everything up to this one was handled; that may be known on disk a little later."""
        if self._acknowledging is not None and self._acknowledge(notification, at_once=False):
            self.pump()

    def _acknowledge(self, notification: Notification, at_once: bool) -> int:
        assert self._acknowledging is not None
        was_due = self._acknowledging.next_due
        serial = self._acknowledging.acknowledge(
            notification.clean, notification.vector, notification.count, self.engine.loop.time(), at_once
        )
        return serial if at_once or was_due is None else 0

    async def save(self, notification: Notification, timeout_s: float) -> None:
        """Everything up to this one was handled; return when that is on disk. Cancelled, it may still come there."""
        acking = self._acknowledging
        if acking is None:
            return
        serial = self._acknowledge(notification, at_once=True)
        if serial <= acking.saved:
            return
        future = self._saving.get(serial)
        if future is None:
            future = self._saving[serial] = self.engine.loop.create_future()
        self.pump()
        await asyncio.wait_for(asyncio.shield(future), timeout_s)

    def _take_saved(self, saved: Saved) -> None:
        assert self._acknowledging is not None
        self._acknowledging.handle_saved(saved)
        for serial in [serial for serial in self._saving if serial <= saved.serial]:
            future = self._saving.pop(serial)
            if not future.done():
                future.set_result(None)

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing more is missed. What was handled is said once more, as far as it is not known to be on disk."""
        self._is_over = True
        acking = self._acknowledging
        if acking is not None and acking.saved < acking.serial and (last := acking.last) is not None:
            self.engine.say(last)
        if self._timer is not None:
            self._timer.cancel()
        self.engine.unfollow(self)
        for future in self._saving.values():
            future.cancel()
