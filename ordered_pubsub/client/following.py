"""What a subscription has to do with the logs of its topics: what it misses, its past, and what it has acknowledged.

`core.subend` decides; this is the shell that carries it. The home stage is told how far the subscription is, asked for what is
missing, and brings it. One that has a name acknowledges what was handled, and whoever resumes it goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import attrs

from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.waiting import within
from ordered_pubsub.core.acknowledging import Acknowledging, Place
from ordered_pubsub.core.buffer import Notification
from ordered_pubsub.core.messages import Decided, Ended, Expect, Follows, Inform, Range, Saved, ToSubscriber
from ordered_pubsub.core.subend import Subend
from ordered_pubsub.errors import AccessDenied, SessionExpired

TIMER_S_MIN = 0.005
SAID_FOR_S = 30.0
"""After so long what has not changed is said again: who has forgotten it knows it then."""


@attrs.frozen
class Beginning:
    """Where a subscription begins, and whether it outlives its client's session."""

    is_named: bool = False
    start: Mapping[str, int] | None = None
    """a topic that is not named begins where its log does; None: at its place in the order"""
    is_manual: bool = False
    """the application says what it has handled"""


NOW = Beginning()


@attrs.define(eq=False)
class Following:
    """One subscription and the logs of its topics."""

    engine: Engine
    identity: str
    subend: Subend
    is_named: bool
    collect: Callable[[], None]
    """takes what is ready, and calls `pump`"""
    give_up: Callable[[Exception], None]
    has_room: Callable[[], bool]
    """whether it wants more for now; when it does again, `pump` is called"""
    _acknowledging: Acknowledging | None = None
    _saving: dict[int, asyncio.Future[None]] = attrs.field(factory=dict)
    """who waits for an acknowledgement to be on disk, by its serial"""
    _said: dict[str, int] = attrs.field(factory=dict)
    _said_at: float = 0.0
    _timer: asyncio.TimerHandle | None = None
    _is_over: bool = False

    def __attrs_post_init__(self) -> None:
        if self.is_named:
            self._acknowledging = Acknowledging(self.identity, self.engine.key.session)
        self.engine.follow(self)

    # -- what the stage says ------------------------------------------------------------------------------------------

    def set_time(self) -> float:
        """Tell the time to what is missing."""
        now = self.engine.loop.time()
        self.subend.set_time(now)
        return now

    def seal(self, topic: str, numbers: list[Range]) -> list[Range]:
        """An owner asks which of these numbers were seen; the others are not used until it is decided what they are."""
        self.set_time()
        seen = [] if self._is_over else self.subend.seal(topic, numbers)
        self.pump()
        return seen

    def told(self, message: ToSubscriber | Decided) -> None:
        """The stage brings what it misses, or says how far its topics are, or it is, or what is void. Never raises."""
        if self._is_over:
            return
        self.set_time()
        try:
            if isinstance(message, Inform):
                self.subend.told(message.told)
            elif isinstance(message, Expect):
                self.subend.expected(message.counts, self.engine.is_ens_read)
            elif isinstance(message, Decided):
                self.subend.decided(message)
            elif isinstance(message, Saved):
                self._take_saved(message)
            else:
                self._take_end(message)
        except Exception as error:
            self.give_up(error)
        self.collect()

    def _take_end(self, ended: Ended) -> None:
        if ended.code == "forbidden":
            raise AccessDenied(f"the stage gives this subscription nothing any more: {ended.reason}")
        if self._acknowledging is not None or ended.code == "expired":
            raise SessionExpired(f"the stage says: {ended.reason}")

    # -- what it says -------------------------------------------------------------------------------------------------

    def report(self, is_all: bool = False) -> None:
        """Tell the stage how far it is, as far as that is news, or all of it. Never raises."""
        try:
            self._report(is_all)
        except Exception as error:
            self.give_up(error)

    def _report(self, is_all: bool) -> None:
        now = self.engine.loop.time()
        clock = self.subend.needed_after
        if is_all or clock.keys() != self._said.keys() or now > self._said_at + SAID_FOR_S:
            self.engine.say(Follows(self.identity, clock, True, self.subend.delivery.changes.version))
            self._said_at = now
        elif clock != self._said:
            self.engine.say(Follows(self.identity, dict(clock.items() - self._said.items())))
        self._said = clock

    def pump(self) -> None:
        """Say what is due, and see to it that this is done again when more is."""
        if self._is_over:
            return
        now, acking = self.set_time(), self._acknowledging
        may_ask = self.has_room()
        for said in self.subend.take_due(now) if may_ask else ():
            self.engine.say(said)
        if acking is not None and (acked := acking.take_due(now)) is not None:
            self.engine.say(acked)
        dues = (self.subend.next_due if may_ask else None, None if acking is None else acking.next_due)
        due = min((time for time in dues if time is not None), default=None)
        if due is not None:
            self._set_timer(max(due, now + TIMER_S_MIN))

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self.engine.supervisor.at(at, self._time_has_come, "asking for what is missed")

    def _time_has_come(self) -> None:
        self._timer = None
        try:
            self.pump()
        except Exception as error:
            self.give_up(error)

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def handled(self, place: Place | Notification) -> None:
        """Everything up to this place was handled; that may be known on disk a little later."""
        if self._acknowledging is not None and self._acknowledge(place, at_once=False):
            self.pump()

    def _acknowledge(self, place: Place | Notification, at_once: bool) -> int:
        assert self._acknowledging is not None
        was_due = self._acknowledging.next_due
        serial = self._acknowledging.acknowledge(
            place.clean, place.handled, place.count, self.engine.loop.time(), at_once
        )
        return serial if at_once or was_due is None else 0

    async def save(self, place: Place | Notification, timeout_s: float) -> None:
        """Everything up to this place was handled; return when that is on disk. Cancelled, it may still come there."""
        acking = self._acknowledging
        if acking is None:
            return
        serial = self._acknowledge(place, at_once=True)
        if serial <= acking.saved:
            return
        future = self._saving.get(serial)
        if future is None:
            future = self._saving[serial] = self.engine.loop.create_future()
        self.pump()
        await within(
            timeout_s, future, lambda: f"the acknowledgement of subscription {self.identity} on the stage's disk"
        )

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
