"""What a subscriber knows of the changes of its own subscription.

The registrar lets them happen one at a time and counts them: versions 1, 2, 3, … Their outcomes may arrive in any order and
more than once; they take effect in the order of their versions. A mark names a version; an event that carries one that has
not taken effect yet must wait. The refusal of an ask may come after the outcome of a later one, so each says whose it is: what
its ask would remove, and asks that would remove the same are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from ordered_pubsub.core.messages import EVERYBODY_ASKS, Change, ChangeMark


@attrs.define(eq=False)
class Changes:
    """The changes of one subscription, as its subscriber knows them."""

    subscription: str
    version: int = 0
    """the last change that has taken effect"""
    _asked: list[tuple[str, ...]] = attrs.field(factory=list)
    """changes that were asked for and have neither taken effect nor been refused: what each would remove"""
    _early: dict[int, tuple[Change, tuple[str, ...] | None]] = attrs.field(factory=dict)

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

    def cannot_be(self, marks: list[ChangeMark]) -> bool:
        """Whether these marks speak of a change of this subscription that was never asked for: no stage can have written them.

        An earlier session may have asked for some; whoever goes on with its subscription learns of them before all that follows.
        """
        most = self.version + len(self._early) + self.asked
        return any(mark.subscription == self.subscription and mark.version > most for mark in marks)

    def holds(self, marks: list[ChangeMark]) -> bool:
        """Whether an event with these marks must wait for the outcome of a change."""
        for mark in marks:
            if mark.subscription == self.subscription and mark.version > self.version:
                return True
            if mark == EVERYBODY_ASKS and self.asked:
                return True
        return False
