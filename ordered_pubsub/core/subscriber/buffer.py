"""What every delivery buffer has: events come in, changes take effect, and what is next comes out.

`Delivery` waits for all that comes before an event; `BestEffort` waits for a while.

What is made for each event is of no interest to the garbage collector (`gc=False`, here and in `wire`): such things never point
back. Looking through a full queue again and again would cost more than all the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import msgspec

from ordered_pubsub.core.messages import Change, ChangeMark, Transaction
from ordered_pubsub.core.subscriber._changes import Changes
from ordered_pubsub.core.subscriber.vector import Moment, Vector

BUFFER_BYTES_MAX = 256 << 20


class Arrival(msgspec.Struct, eq=False, gc=False):
    """An event as it came, with what its timestamp says; or silence, from its number up to `last`."""

    topic: str
    number: int
    entries: dict[str, int]
    marks: list[ChangeMark] = []
    full: bool = False
    body: Any = None
    size: int = 0
    """how many bytes it counts for while it waits"""
    last: int = 0
    """silence: up to where; 0 for an event"""
    is_logged: bool = False
    """whether a log has brought it, which is right whatever the ENS says"""
    transaction: Transaction | str = ""
    """what takes its place together with it; only its name, if an event before it on its topic says the rest; empty: nothing"""

    @property
    def transaction_id(self) -> str:
        """Which transaction it is a part of; empty: none."""
        return self.transaction if isinstance(self.transaction, str) else self.transaction.id


def told_together(arrivals: Sequence[Arrival], transaction: Transaction | str) -> None:
    """These events, or silence, were published in a transaction.

    A log says of each what takes its place together with it, since a subscription may go on with any; the ENS of the first.
    """
    if not (transaction and arrivals):
        return
    is_logged = arrivals[0].is_logged
    others = transaction if is_logged or isinstance(transaction, str) else transaction.id
    for arrival in arrivals:
        arrival.transaction = others
    arrivals[0].transaction = transaction


NOTHING: Mapping[str, int] = {}


class Notification(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An event whose turn has come."""

    arrival: Arrival
    position: int | None
    moment: Moment
    version: int
    """the last change of the subscription that had taken effect"""
    out_of_order: bool = False
    left_up_to: int = 0
    """the last change that had taken effect when nothing was being left"""
    count: int = 0
    """how many numbers the subscription had passed with it"""
    passed: Mapping[str, int] = NOTHING
    """topics that it has left since the change `left_up_to`, and how far it had come on them"""

    @property
    def vector(self) -> Vector:
        """The subscription's clock with it."""
        return self.moment.vector

    @property
    def handled(self) -> Mapping[str, int]:
        """How far the subscription has come when this is handled, on its way from the change `left_up_to` on."""
        return {**self.passed, **self.vector} if self.passed else self.vector


@attrs.define(eq=False)
class Buffer(ABC):
    """The waiting events of one subscription."""

    subscription: str
    buffer_events_max: int
    changes: Changes = attrs.field(init=False)
    buffer_bytes_max: int = attrs.field(default=BUFFER_BYTES_MAX, kw_only=True)
    buffered: int = attrs.field(default=0, init=False)
    """how many events wait"""
    buffered_bytes: int = attrs.field(default=0, init=False)
    """how many bytes they have"""
    _ready: list[Notification] = attrs.field(factory=list, init=False)
    _left: list[str] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.changes = Changes(self.subscription)

    def change_asked(self, removes: Iterable[str] = ()) -> None:
        """A change was asked for: events of topics that it may gain are kept from now on."""
        self.changes.ask(removes)

    def change_refused(self, removes: Iterable[str] = ()) -> None:
        """A change that was asked for will not happen."""
        self.changes.refused(removes)
        self._forget_strangers()
        if not self.changes.asked:
            self._look_again()  # what waited for its outcome only has nothing to wake it

    def change_settled(self, change: Change, removes: Iterable[str] | None = ()) -> None:
        """The outcome of a change is known that was asked for with these."""
        for following in self.changes.settled(change, removes):
            self._take_effect(following)

    def take_ready(self) -> list[Notification]:
        """The events to be notified since the last call, in their order."""
        ready, self._ready = self._ready, []
        return ready

    def take_left(self) -> list[str]:
        """The topics that were left since the last call, without those that were gained again.

        They need not come from the ENS any more, unless a change under way gains them.
        """
        left, self._left = self._left, []
        held = self.clock if left else {}
        return [topic for topic in left if topic not in held]

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if something that is counted here is not as it is counted."""
        assert self.buffered >= 0, f"{self.buffered} events wait"
        assert self.buffered_bytes >= 0, f"{self.buffered_bytes} bytes wait"

    def _uncount(self, arrival: Arrival) -> None:
        """It waits no more."""
        self.buffered -= 1
        self.buffered_bytes -= arrival.size

    @abstractmethod
    def _take_effect(self, change: Change) -> None:
        """The next change takes effect."""

    @abstractmethod
    def _look_again(self) -> None:
        """Notify whatever is next on any topic."""

    @abstractmethod
    def _forget_strangers(self) -> None:
        """Forget the events of topics that no change under way may gain."""

    @property
    @abstractmethod
    def clock(self) -> dict[str, int]:
        """For each topic the number of the last event notified, or at which it began."""

    @property
    @abstractmethod
    def topics(self) -> list[str]:
        """The topics that are held now, without those that are being left."""

    @abstractmethod
    def waiting_for(self, limit: int = 5) -> str:
        """Say in words what the waiting events wait for."""
