"""What a subscription has to do with the logs of its topics: what it misses, its past, and what it has acknowledged.

`core.subscriber.subscriber` decides; this is the shell that carries it. The home stage is told how far the subscription is, asked
for what is missing, and brings it. One that has a name acknowledges what was handled, and whoever resumes it goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import attrs

from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.waiting import forget_outcome, within
from ordered_pubsub.core.client.subscription import ClientSubscription
from ordered_pubsub.core.subscriber.acknowledging import HandledPlace
from ordered_pubsub.core.subscriber.buffer import Notification
from ordered_pubsub.core.subscriber.subscriber import Subscriber
from ordered_pubsub.errors import Closed

TIMER_S_MIN = 0.005


@attrs.frozen
class Beginning:
    """Where a subscription begins, and whether it outlives its client's session."""

    is_named: bool = False
    start: Mapping[str, int] | None = None
    """a topic that is not named begins where its log does; None: at its place in the order"""
    is_manual: bool = False
    """the application says what it has handled"""
    may_be_empty: bool = False
    """it begins without a topic, if it is not there"""


NOW = Beginning()


@attrs.define(eq=False)
class Following:
    """One subscription and the logs of its topics."""

    engine: Engine
    subscription: ClientSubscription
    subscriber: Subscriber
    """its own"""
    may_ask: Callable[[], bool]
    """whether it wants more for now; when it does again, `pump` is called"""
    has_unread: Callable[[], bool]
    """whether there is something that the application has not taken"""
    _saving: dict[int, asyncio.Future[None]] = attrs.field(factory=dict)
    """who waits for an acknowledgement to be on disk, by its serial"""
    _timer: asyncio.TimerHandle | None = None

    def pump(self) -> None:
        """Say what is due, and see to it that this is done again when more is."""
        if self.subscriber.is_over:
            return
        for serial in [serial for serial in self._saving if serial <= self.subscriber.saved]:
            future = self._saving.pop(serial)
            if not future.done():
                future.set_result(None)
        machine, may_ask = self.engine.now(), self.may_ask()
        if self.subscription.say_what_is_due(may_ask, self.has_unread()):
            self.engine.send()
        due = self.subscriber.next_due(may_ask)
        if due is not None:
            self._set_timer(max(due, machine.now + TIMER_S_MIN))

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
            self.subscription.fail(error)
        self.engine.settle()

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def handled(self, place: HandledPlace | Notification) -> None:
        """Everything up to this place was handled; that may be known on disk a little later."""
        was_due = self.subscriber.is_acknowledging
        self.subscriber.handled(place, self.engine.loop.time())
        if not was_due:
            self.pump()

    async def save(self, place: HandledPlace | Notification, timeout_s: float) -> None:
        """Everything up to this place was handled; return when that is on disk. Cancelled, it may still come there."""
        serial = self.subscriber.handled(place, self.engine.loop.time(), at_once=True)
        if serial <= self.subscriber.saved:
            return
        future = self._saving.get(serial)
        if future is None:
            future = self._saving[serial] = self.engine.loop.create_future()
        self.pump()
        await within(
            timeout_s,
            future,
            lambda: f"the acknowledgement of subscription {self.subscription.name} on the stage's disk",
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """It is over: nobody will be told any more what is on disk."""
        if self._timer is not None:
            self._timer.cancel()
        for future in self._saving.values():
            if not future.done():
                future.set_exception(
                    Closed(
                        f"subscription {self.subscription.name} has ended before it was known whether what was acknowledged is "
                        "on the stage's disk: whoever goes on with it may be notified of that again"
                    )
                )
                future.add_done_callback(forget_outcome)
