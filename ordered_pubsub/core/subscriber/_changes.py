"""What a subscriber knows of the changes of its own subscription.

The registrar lets them happen one at a time and counts them: versions 1, 2, 3, … Their outcomes may arrive in any order and
more than once; they take effect in the order of their versions. A mark names a version; an event that carries one that has
not taken effect yet must wait. The refusal of an ask may come after the outcome of a later one, so each says whose it is: what
its ask would remove, and asks that would remove the same are alike.

Others may change a subscription that has a name, in transactions. Its client learns of that when the registrar tells it, or by
a mark whose version it knows nothing of: then it asks (`lacks`). Where a topic had too many marks, it asks the topic's owner up
to which version it was changed there (`looks`), and waits until it knows of that one. Who asks after it has seen the event
misses nothing that was before it; and what has passed an owner cannot fail any more, so that nobody waits for what will not
happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from ordered_pubsub.core.messages import EVERYBODY_ASKS, EVERYBODY_LOOKS, Change, ChangeMark


@attrs.define(eq=False)
class Changes:
    """The changes of one subscription, as its subscriber knows them."""

    subscription: str
    version: int = 0
    """the last change that has taken effect"""
    is_shared: bool = False
    """whether others may change it: it has a name"""
    _asked: list[tuple[str, ...]] = attrs.field(factory=list)
    """changes that were asked for and have neither taken effect nor been refused: what each would remove"""
    _early: dict[int, tuple[Change, tuple[str, ...] | None]] = attrs.field(factory=dict)
    _marked: int = 0
    """the last version that a mark or an owner has named, of what waits"""
    looks: dict[str, int] = attrs.field(factory=dict)
    """topics whose owners are to be asked → the number of the last event for which"""
    _looked: dict[str, tuple[int, int, int]] = attrs.field(factory=dict)
    """topics whose owners were asked → for events up to which one, the version that has to be known for them, and what was known
    then"""

    @property
    def asked(self) -> int:
        """How many changes have no outcome yet."""
        return len(self._asked)

    @property
    def early(self) -> int:
        """How many of them have their outcome, and wait for that of an earlier one to take effect."""
        return sum(removes is not None for _, removes in self._early.values())

    def ask(self, removes: Iterable[str]) -> None:
        """A change was asked for that removes these topics."""
        self._asked.append(tuple(removes))

    def refused(self, removes: Iterable[str]) -> None:
        """A change that was asked for will not happen."""
        self._asked.remove(tuple(removes))

    def may_lose(self, topic: str) -> bool:
        """Whether a change that was asked for removes a topic."""
        return any(topic in removes for removes in self._asked)

    def settled(self, change: Change, removes: Iterable[str] | None) -> Iterator[Change]:
        """Take the outcome of an ask that removes these topics; yield the changes that take effect now, in order.

        None: an earlier session had asked for it. One at a time: while the first takes effect, the events after the second must
        still wait for it.
        """
        if change.version > self.version:
            self._early[change.version] = (change, None if removes is None else tuple(removes))
        while (following := self._early.pop(self.version + 1, None)) is not None:
            self.version += 1
            outcome, asked = following
            if asked in self._asked:
                self._asked.remove(asked)
            yield outcome

    @property
    def lacks(self) -> bool:
        """Whether there was a change of which nothing is known here."""
        return self._marked > self.version + len(self._early) + self.asked

    def look(self, topic: str, number: int) -> bool:
        """Whether the owner of a topic must be asked before an event of it is used, or has named a change that is not known."""
        asked_for, version, known = self._looked.get(topic, (0, 0, 0))
        if asked_for < number or (version < 0 and known < self.version):
            self.looks[topic] = max(number, self.looks.get(topic, 0))
            return True
        self._marked = max(self._marked, self.version + 1 if version < 0 else version)  # or it was taken away
        return version < 0 or version > self.version

    def looked(self, topic: str, version: int) -> bool:
        """The owner of a topic has answered; whether somebody has waited for that."""
        number = self.looks.pop(topic, None)
        if number is None:
            return False
        self._looked[topic] = (number, version, self.version)
        return True

    def forget_marked(self) -> None:
        """Whoever has spoken of changes that are not known does it again now, if he still waits for them."""
        self._marked = 0
        self.looks.clear()

    def is_known(self, version: int) -> bool:
        """Whether the outcome of a change is here."""
        return version <= self.version or version in self._early

    def cannot_be(self, marks: list[ChangeMark]) -> bool:
        """Whether these marks speak of a change of this subscription that was never asked for: no stage can have written them.

        An earlier session may have asked for some; whoever goes on with its subscription learns of them before all that follows.
        """
        most = self.version + len(self._early) + self.asked
        return any(mark.subscription == self.subscription and mark.version > most for mark in marks)

    def holds(self, marks: list[ChangeMark], topic: str, number: int, is_open: bool = True) -> bool:
        """Whether an event with these marks must wait for the outcome of a change, or what comes together with this event.

        `is_open`: whether the topic is held there without an end. Else all is known that was before that end.
        """
        for mark in marks:
            if mark.subscription == self.subscription and mark.version > self.version:
                self._marked = max(self._marked, mark.version)
                return True
            looks = mark == EVERYBODY_LOOKS
            if looks and self.is_shared:
                if is_open and self.look(topic, number):
                    return True
            elif (looks or mark == EVERYBODY_ASKS) and self.asked:
                return True
        return False
