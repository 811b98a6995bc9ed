"""What of a named subscription was handled: in the application's hands, and acknowledged, on its way to the registrar's disk.

Acknowledged is what was *handled*, and never what was handed out. An application may take events in several tasks or threads,
each of which says that it has handled what it has in hand by asking for more. So one may be at its third event while another is
still at the first. Acknowledgements are cumulative; so only that is acknowledged before which everything was handled (`InHand`):

    taken ──> in somebody's hand ──> handled ──> acknowledged, as soon as all before it were handled
       ^              │
       └── given back ┘   cancelled: somebody else takes it

Only the last acknowledgement counts: it is sent now and then, or at once if somebody waits for it, and sent again until the
registrar says that it has it on disk (`Acknowledging`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import attrs
import msgspec

from ordered_pubsub.core.messages import Acked, AckSaved
from ordered_pubsub.core.subscriber.buffer import Notification

ACK_S = 0.5
"""An acknowledgement that nobody waits for may wait for so long for later ones."""
REPEAT_S = 1.0


class HandledPlace(msgspec.Struct, frozen=True, eq=False, gc=False):
    """How far a subscription has come when an event, and all before it, was handled: all that is kept of what is in hand."""

    topic: str
    number: int
    count: int
    """how many numbers the subscription had passed with it; higher for each later event"""
    left_up_to: int
    vector: Mapping[str, int]
    passed: Mapping[str, int]

    @classmethod
    def of(cls, notification: Notification) -> HandledPlace:
        """That of an event."""
        arrival = notification.arrival
        return cls(
            arrival.topic,
            arrival.number,
            notification.count,
            notification.left_up_to,
            notification.vector,
            notification.passed,
        )

    @property
    def handled(self) -> Mapping[str, int]:
        """For each topic the number up to which all was handled."""
        return {**self.passed, **self.vector} if self.passed else self.vector


@attrs.define(eq=False)
class InHand:
    """The events of one subscription that the application has taken, and not all of whose predecessors are acknowledged.

    INVARIANT: `_taken` is in the order of the events, and its first was not handled.
    INVARIANT: `_handled`, `_back` and what is in `_hands` are different ones of `_taken`.
    INVARIANT: if there is an `_only`, nothing else is in anybody's hand, or was handled out of turn.
    """

    _only: tuple[object, Notification] | None = None
    """what is in hand if it is one event, as where one task takes one event after the other; and in whose hand"""
    _taken: deque[HandledPlace] = attrs.field(factory=deque)
    _handled: dict[int, bool] = attrs.field(factory=dict)
    """those that were handled before an earlier one was, by their counts"""
    _back: dict[int, bool] = attrs.field(factory=dict)
    """those that were given back, and are to be taken again"""
    _hands: dict[object, list[int]] = attrs.field(factory=dict)
    """who has which in hand"""

    def take(self, notification: Notification, holder: object = None) -> None:
        """An event was taken; it is in somebody's hand, unless it is not known yet whose."""
        count = notification.count
        if not count:
            return  # it has no place in the order
        if holder is not None and not self._taken and self._only is None:
            self._only = holder, notification
            return
        self._expect_several()
        if count in self._back:
            del self._back[count]
        else:
            self._taken.append(HandledPlace.of(notification))
        if holder is not None:
            self._hands.setdefault(holder, []).append(count)

    def ask_only(self, holder: object) -> Notification | None:
        """The same, for one who has the only event that is in anybody's hand; None if there are others, or none."""
        only = self._only
        if only is None or only[0] is not holder:
            return None
        self._only = None
        return only[1]

    def _expect_several(self) -> None:
        """Several events are to be known."""
        only, self._only = self._only, None
        if only is not None:
            holder, notification = only
            self._taken.append(HandledPlace.of(notification))
            self._hands[holder] = [notification.count]

    def ask(self, holder: object) -> HandledPlace | Notification | None:
        """Somebody asks for more: what was in that hand was handled. Returns what is to be acknowledged now, if it is more."""
        if self._only is not None:
            return self.ask_only(holder)
        counts = self._hands.pop(holder, None)
        return self._settle(counts) if counts else None

    def handled(self, notification: Notification) -> HandledPlace | None:
        """An event that is in nobody's hand was handled. Returns what is to be acknowledged now, if it is more."""
        self._expect_several()
        taken = self._taken
        if not taken or notification.count < taken[0].count:
            return None
        return self._settle((notification.count,))

    def _settle(self, counts: Iterable[int]) -> HandledPlace | None:
        handled, taken = self._handled, self._taken
        handled.update(dict.fromkeys(counts, True))
        last: HandledPlace | None = None
        while taken and taken[0].count in handled:
            last = taken.popleft()
            del handled[last.count]
        return last

    def give_back(self, notifications: Iterable[Notification], holder: object = None) -> None:
        """Some events were taken in vain: they are taken again later, by whoever asks."""
        self._expect_several()
        counts = [notification.count for notification in notifications if notification.count]
        self._back.update(dict.fromkeys(counts, True))
        if holder in self._hands:
            left = [count for count in self._hands[holder] if count not in self._back]
            self._hands[holder] = left
            if not left:
                del self._hands[holder]

    def handled_to(self, count: int) -> None:
        """The application says that everything up to an event was handled, whoever has it in hand."""
        self._expect_several()
        taken = self._taken
        while taken and taken[0].count <= count:
            known = taken.popleft().count
            self._handled.pop(known, None)
            self._back.pop(known, None)

    def handled_to_clock(self, clock: Mapping[str, int]) -> HandledPlace | None:
        """The same of everything up to a clock. Returns what is to be acknowledged now, if it is more."""
        self._expect_several()
        last: HandledPlace | None = None
        for place in self._taken:
            if place.number > clock.get(place.topic, 0):
                break
            last = place
        if last is not None:
            self.handled_to(last.count)
        return last

    def is_in_hand_of(self, holder: object) -> bool:
        """Whether somebody has something in hand."""
        only = self._only
        return only[0] is holder if only is not None else holder in self._hands

    @property
    def holders(self) -> list[object]:
        """Who has something in hand."""
        return list(self._hands) if self._only is None else [self._only[0]]

    def __len__(self) -> int:
        """How many events were taken, and not given back, from the first on that was not handled."""
        return 1 if self._only is not None else len(self._taken) - len(self._back)


@attrs.define(eq=False)
class Acknowledging:
    """The acknowledgements of one named subscription in one session."""

    subscription: str
    session: str
    serial: int = 0
    """of the last acknowledgement"""
    saved: int = 0
    """of the last one that is on disk"""
    _noted: tuple[int, Mapping[str, int], int] | None = None
    """version, clock and position of the last one"""
    _due_at: float | None = None

    def acknowledge(
        self, version: int, clock: Mapping[str, int], position: int, now: float, at_once: bool = False
    ) -> int:
        """Everything up to a clock was handled; return the serial by which this is known to be on disk."""
        noted = self._noted
        if noted is None or (position >= noted[2] and (version, position) != (noted[0], noted[2])):
            self.serial += 1
            self._noted = (version, clock, position)
        if self.saved < self.serial:
            due = now if at_once else now + ACK_S
            self._due_at = due if self._due_at is None else min(self._due_at, due)
        return self.serial

    def take_due(self, now: float) -> Acked | None:
        """What to send now, if anything."""
        if self._due_at is None or self._due_at > now:
            return None
        self._due_at = now + REPEAT_S
        return self.last

    def handle_saved(self, saved: AckSaved) -> None:
        """The registrar has an acknowledgement on disk."""
        self.saved = max(self.saved, saved.serial)
        if self.saved >= self.serial:
            self._due_at = None

    @property
    def last(self) -> Acked | None:
        """The last acknowledgement."""
        if self._noted is None:
            return None
        version, clock, position = self._noted
        return Acked(self.subscription, self.session, self.serial, version, dict(clock), position)

    @property
    def next_due(self) -> float | None:
        """When `take_due` should be called; None if all is on disk."""
        return self._due_at
