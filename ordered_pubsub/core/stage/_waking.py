"""Topics that rest, and topics that wake: what a stage forgets of one that nobody needs, and what it does when it is used again.

Theory of operation
===================
Which topics may rest is for `_resting` to find out. When they do (`Rested`), nothing is remembered of them but their last
numbers, in a table outside of this state (`Numbers`). Whatever is about to use such a topic looks its number up there and
journals it first (`Woken`): the journal is read without the table, in which there may be later numbers by then.

A change may have to wait for its turn, and its topics may rest meanwhile. So what wakes topics is not only what comes, but also
what waits until the operation is done that a message says is done.

Of a topic that rested nobody knows any more which marks its next event was to have. It tells everybody to ask (`EVERYBODY_ASKS`):
who has a change under way waits for its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import attrs

from ordered_pubsub.core.messages import (
    EVERYBODY_ASKS,
    ChangeAsk,
    Part,
    Publication,
    PublishAsk,
    Rested,
    Woken,
)
from ordered_pubsub.core.stage._context import Context


class Numbers(Protocol):
    """The last numbers of topics that rest: where nobody but who asks for them has to remember them."""

    def number(self, topic: str) -> int:
        """The last number of a topic that rests; 0 if it is not there."""

    def resting(self) -> Iterator[tuple[str, int]]:
        """The topics that are there, and their numbers."""


class NoNumbers:
    """Nothing has ever rested."""

    def number(self, topic: str) -> int:
        """None."""
        return 0

    def resting(self) -> Iterator[tuple[str, int]]:
        """None."""
        return iter(())


@attrs.define(eq=False)
class Waking:
    """The topics of one stage that rest, and those that wake."""

    context: Context
    numbers: Numbers = attrs.field(factory=NoNumbers)
    """what is known of topics that rest"""
    touched: dict[str, bool] = attrs.field(factory=dict)
    """topics that changes have concerned since who watches for topics that may rest has looked"""

    def given(self, topic: str) -> int:
        """The last number of an own topic that was given, complete or not; also of one that rests."""
        clocks = self.context.state.clocks
        return clocks.numbers.get(topic) or self.numbers.number(topic) or clocks.base

    # -- resting ------------------------------------------------------------------------------------------------------

    def rest(self, topics: Iterable[str]) -> None:
        """Nothing is to be remembered of these topics but their last numbers."""
        self.context.take(Rested(tuple(topics)))

    def take_rested(self, event: Rested) -> None:
        """Forget these topics."""
        state, effects = self.context.state, self.context.effects
        paid = state.groups.rest(event.topics)
        state.clocks.prune((*event.topics, *paid), state.groups)
        rested = effects.rested = effects.rested or {}
        for topic in event.topics:
            number = state.clocks.numbers.pop(topic, 0)
            state.kept.pop(topic, None)
            state.marks.pop(topic, None)
            state.marked_by_others.pop(topic, None)
            state.ledger.rest(topic)
            if number:
                rested[topic] = number
                state.resting += 1
                state.resting_events += number

    def lose_numbers(self) -> None:
        """Nobody knows the last numbers of topics that rest: they go on like those that are new, behind all that they can be."""
        state = self.context.state
        state.clocks.base += state.resting_events
        state.resting = state.resting_events = 0

    # -- waking -------------------------------------------------------------------------------------------------------

    def wake(self, parts: Iterable[Part | PublishAsk | ChangeAsk]) -> None:
        """These are about to be handled: wake the topics that they concern. There is none if none rests."""
        known = self.context.state.clocks.numbers
        found: dict[str, int] = {}
        for part in parts:
            topics: tuple[str, ...]
            if isinstance(part, (PublishAsk, Publication)):
                topics = (part.topic,)
            elif isinstance(part, ChangeAsk):
                topics = (*part.add, *part.remove)
            else:
                topics = (*part.old, *part.new)
            for topic in topics:
                if topic not in known and self.context.is_own(topic) and (number := self.numbers.number(topic)):
                    found[topic] = number
        if found:
            self.context.take(Woken(found))

    def take_woken(self, event: Woken) -> None:
        """Go on with these topics after their last numbers."""
        state, effects, levels = self.context.state, self.context.effects, self.context.levels
        woken = effects.woken = effects.woken or {}
        begun = effects.begun = effects.begun or {}
        for topic, number in event.numbers.items():
            state.clocks.numbers[topic] = number
            state.marks[topic] = [EVERYBODY_ASKS]
            self.touched[topic] = True
            woken[topic] = number
            if levels is not None and levels.is_kept(topic):
                begun[topic] = number
            state.resting -= 1
            state.resting_events -= number
