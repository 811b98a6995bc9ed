"""The counts of one stage, and the entries of a timestamp that are filled in from them.

`numbers` counts the events of the stage's own topics; `seen` says how many events of a lower stage's topic have passed.
For an event on T an entry is written for a topic U of T's group if U's count has changed since T's previous event here, or
if U is owed (it entered or left the group in between, see `groups`). What did not change was already waited for: the
subscribers of T handle its events without gaps. So topics are kept in the order of their last change, and the work for an
event is a walk back to the topic's previous one, or over its group if that is shorter.

`stamp` counts the steps of this stage; `own_changed`, `lower_changed` and `visited` hold stamps. Both `changed` tables are
in rising order of stamp (INVARIANT: list(d.values()) == sorted(d.values())).

Only `numbers` has a topic for longer than it is in a group (`prune`). What enters one is owed, so it has its entry whatever
`changed` and `visited` say; and whoever lets a lower topic enter brings its count along.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from ordered_pubsub.core.order.groups import Groups


class Clocks(msgspec.Struct):
    """What one stage has counted."""

    stamp: int = 0
    numbers: dict[str, int] = msgspec.field(default_factory=dict)
    seen: dict[str, int] = msgspec.field(default_factory=dict)
    own_changed: dict[str, int] = msgspec.field(default_factory=dict)
    lower_changed: dict[str, int] = msgspec.field(default_factory=dict)
    visited: dict[str, int] = msgspec.field(default_factory=dict)
    base: int = 0
    """the numbers of a topic that is not known begin behind this one"""
    given: int = 0
    """how many numbers were given here, of all topics together"""

    def __post_init__(self) -> None:
        # A plain dict keeps a hole for each key that was moved to its end, and a walk back would step over all of them.
        self.own_changed = OrderedDict(self.own_changed)
        self.lower_changed = OrderedDict(self.lower_changed)

    def take_numbers(self, topic: str, count: int, groups: Groups) -> int:
        """Use up `count` numbers of an own topic and return the first."""
        first = self.numbers.get(topic, self.base) + 1
        self.numbers[topic] = first + count - 1
        self.given += count
        if topic in groups.filled:
            self.own_changed.pop(topic, None)
            self.own_changed[topic] = self.stamp
        return first

    def see(self, topic: str, number: int) -> None:
        """Take note that the events of a lower stage's topic have come by up to `number`."""
        if number > self.seen.get(topic, 0):
            self.seen[topic] = number
            self.lower_changed.pop(topic, None)
            self.lower_changed[topic] = self.stamp

    def passes(self, topic: str, number: int, groups: Groups) -> None:
        """An event of a lower stage's topic comes by."""
        if groups.is_wanted(topic):
            self.see(topic, number)

    def prune(self, topics: Iterable[str], groups: Groups) -> None:
        """Forget of these topics, one of which may have left a group, what nobody asks for any more."""
        for topic in [topic for topic in topics if topic not in groups.filled and topic not in groups.due_about]:
            self.visited.pop(topic, None)
            self.own_changed.pop(topic, None)
            self.lower_changed.pop(topic, None)
            if topic not in groups.owed_to:
                self.seen.pop(topic, None)

    def count(self, topic: str) -> int:
        """How many events of a topic of this or a lower stage come before whatever is handled now."""
        return self.numbers.get(topic) or self.seen.get(topic, 0)

    def fill(self, topic: str, entries: dict[str, int], groups: Groups, full: bool) -> None:
        """Write this stage's entries for an event on `topic`, its own or passing, and take note that it came by."""
        group = groups.filled.get(topic, {})
        if full:
            self._write(entries, group)
        elif group:
            since = self.visited.get(topic, -1)
            self._write_changed(entries, group, self.own_changed, self.numbers, since)
            if topic in self.numbers:  # a passing event has its lower entries already
                self._write_changed(entries, group, self.lower_changed, self.seen, since)
        if topic in groups.owed or topic in groups.owed_up:
            owed = groups.pay(topic)
            self._write(entries, owed)
            self.prune(owed, groups)
        if group:
            self.visited[topic] = self.stamp

    def _write(self, entries: dict[str, int], topics: dict[str, bool]) -> None:
        for other in topics:
            count = self.count(other)
            if count:
                entries[other] = count

    def _write_changed(
        self,
        entries: dict[str, int],
        group: dict[str, bool],
        changed: dict[str, int],
        counts: dict[str, int],
        since: int,
    ) -> None:
        # DEVIATION (Baldoni 3.4: every timestamp is full): only what has changed since the topic's last event is written.
        # Mutant `begin-by-delta`.
        steps = len(group)
        for other, stamp in reversed(changed.items()):
            if stamp <= since:
                return
            if other in group:
                entries[other] = counts.get(other, 0)
            elif not steps:
                break
            else:
                steps -= 1
        else:
            return
        self._write(entries, {other: True for other in group if changed.get(other, -1) > since})
