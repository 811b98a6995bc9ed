"""Groups: which topics' events must be ordered against each other.

U is in T's group if the weights of the subscriptions that hold both add up to 2: one that is `total` (2), or two that are
`pairwise` (1); a `topic` subscription (0) joins no group. Each stage counts weights per pair of topics of which it owns at
least one. A subscription change that touches such a pair visits the owners of both, in the same order relative to the
events of either, so the owners agree on every pair at every place without exchanging a word about it, and an operation
carries no group.

A change costs the pairs that it changes: nothing here looks at other subscriptions. A thousand topics have a million pairs,
though, which is too much for one step. So what a large change does to the tables is written down (`Pairs`) and done row by row:
the row of a topic when it has its next event (`settle`), and the others a little at a time (`settle_next`). Nobody can tell the
difference: only a topic's own events ask for its row, and a topic about which something is due counts as wanted by others.

A topic leaves a group one event late. Whatever entered or left T's group since T's previous event is `owed` in T's next
event, also if it did both in between: those who held T and U together may still wait for events of U that were numbered
before the pair ended, and they must not be notified of T's next event before those. Of a topic that is owned further up only
how far T's next event must go is remembered (`owed_up`): what it says there is owed there as well.

Of what nobody holds any more, and nobody waits for, nothing is owed (`rest`; `core.stage._resting` finds out): who gains T later
has what comes before in the change that gained it.

And events follow a change. Until a change of a subscription has passed its last stage, the events of the topics that it
concerns go at least as far up as it does (`following`). Else an event on T that comes after the change at T's owner could
be complete while the change is still on its way to U's owner; an event on U that was caused by it would there come before
the change, and the subscription, which has lost U and still holds T or has just gained it, would be notified of the effect
before the cause.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ordered_pubsub.core.messages import Change
from ordered_pubsub.core.topology import Topology

IN_GROUP = 2
"""The weight from which two topics are in each other's group."""
PAIRS_AT_ONCE = 5_000
"""A change of more cells than these is not done in one step."""
DUE_MAX = 256
"""So many changes may be due in a topic's row."""


class TopicHolding(msgspec.Struct):
    """What this stage knows of one subscription that holds a topic of its own."""

    topics: tuple[str, ...]
    weight: int
    best_effort: bool
    version: int = 0
    """the last of its changes that has passed here"""


class Pairs(msgspec.Struct):
    """What a change adds to the weights of pairs, as far as it is not in the tables yet."""

    moved: dict[str, int]
    """the topics that were gained, or lost → the ranks of their owners"""
    kept: dict[str, int]
    """the topics that were held before, and are still → the ranks of their owners"""
    weight: int
    rows: dict[str, bool]
    """the topics in whose rows it is due"""


class Groups(msgspec.Struct):
    """The groups as one stage sees them. Topics map to topics; `True` stands in for a set that keeps its order."""

    rank: int
    holdings: dict[str, TopicHolding] = msgspec.field(default_factory=dict)
    weights: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    filled: dict[str, dict[str, bool]] = msgspec.field(default_factory=dict)
    """topic → the topics of its group whose entries are filled in at this stage"""
    reach: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """own topic → rank of a higher stage → how many topics of the group it owns"""
    owed: dict[str, dict[str, bool]] = msgspec.field(default_factory=dict)
    """topic → topics of this stage and of lower ones that entered or left its group since its previous event here"""
    owed_to: dict[str, dict[str, bool]] = msgspec.field(default_factory=dict)
    """topic → topics to which it is owed"""
    owed_up: dict[str, int] = msgspec.field(default_factory=dict)
    """own topic → the highest rank that owns something that entered or left its group since its previous event"""
    following: dict[str, tuple[int, list[str]]] = msgspec.field(default_factory=dict)
    """a change that is still on its way up → the rank of its last stage, and the own topics whose events follow it"""
    full_wanted: dict[str, int] = msgspec.field(default_factory=dict)
    """own topic → how many of its subscriptions need full timestamps"""
    held: dict[str, int] = msgspec.field(default_factory=dict)
    """own topic → how many subscriptions hold it"""
    due: dict[int, Pairs] = msgspec.field(default_factory=dict)
    """what large changes have left to do, by number: the oldest first"""
    due_in: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """topic → what is due in its row: the oldest first"""
    due_about: dict[str, int] = msgspec.field(default_factory=dict)
    """topic → how much is due that concerns it, in its row or in others"""
    due_number: int = 0
    """the last number of what is due; 0 if nothing is"""

    def change(self, topology: Topology, part: Change, at_once: int = PAIRS_AT_ONCE) -> None:
        """Take note of the topics that a subscription holds from now on; of more than so many cells in steps."""
        subscription, new, weight, best_effort = part.subscription, part.new, part.weight, part.best_effort
        holding = self.holdings.get(subscription) or TopicHolding((), weight, best_effort)
        owners = {t: topology.owner(t) for t in (*holding.topics, *new)}
        self._count_full(holding, [t for t in holding.topics if owners[t] == self.rank], -1)
        wanted, held = set(new), set(holding.topics)
        lost = [t for t in holding.topics if t not in wanted]
        gained = [t for t in new if t not in held]
        kept = [t for t in holding.topics if t in wanted]
        count, rank = self.held, self.rank
        for topic in lost:
            if owners[topic] == rank:
                _count(count, topic, -1)
        for topic in gained:
            if owners[topic] == rank:
                count[topic] = count.get(topic, 0) + 1
        if holding.weight != weight:
            lost, gained, kept = list(holding.topics), list(new), []
        kept_owners = {t: owners[t] for t in kept}
        self._add_pairs({t: owners[t] for t in lost}, kept_owners, -holding.weight, at_once)
        self._add_pairs({t: owners[t] for t in gained}, kept_owners, weight, at_once)
        own = [t for t in new if owners[t] == self.rank]
        if own:
            self.holdings[subscription] = held_now = TopicHolding(new, weight, best_effort, part.version)
            self._count_full(held_now, own, 1)
        else:
            self.holdings.pop(subscription, None)

    def _count_full(self, holding: TopicHolding, own_topics: list[str], step: int) -> None:
        if holding.best_effort:
            for topic in own_topics:
                _count(self.full_wanted, topic, step)

    # -- pairs --------------------------------------------------------------------------------------------------------

    def _add_pairs(self, moved: dict[str, int], kept: dict[str, int], weight: int, at_once: int) -> None:
        if not (moved and weight):
            return
        topics = {**moved, **kept}
        if cells(len(moved), len(kept)) <= at_once and self.due_in.keys().isdisjoint(topics):
            for topic in topics:
                self._add_to_row(topic, moved, kept, weight)
            return
        self.due_number += 1
        self.due[self.due_number] = Pairs(moved, kept, weight, dict.fromkeys(topics, True))
        for topic in topics:
            self.due_in.setdefault(topic, []).append(self.due_number)
            _count(self.due_about, topic, 1)
        for topic in [topic for topic in topics if len(self.due_in[topic]) > DUE_MAX]:
            self.settle(topic)

    def settle(self, topic: str) -> list[str]:
        """Do what is due in the row of a topic. Return the topics about which nothing is due any more."""
        settled: list[str] = []
        for number in self.due_in.pop(topic, ()):
            pairs = self.due[number]
            self._add_to_row(topic, pairs.moved, pairs.kept, pairs.weight)
            del pairs.rows[topic]
            if not pairs.rows:
                settled += self._done(number)
        return settled

    def settle_next(self) -> list[str]:
        """Do what is due in some row; return the same."""
        oldest = next(iter(self.due.values()))
        return self.settle(next(reversed(oldest.rows)))

    def _settle_about(self, topic: str) -> list[str]:
        """Do all that is due about a topic; return the same."""
        settled: list[str] = []
        if topic in self.due_about:
            for pairs in [pairs for pairs in self.due.values() if topic in pairs.moved or topic in pairs.kept]:
                for row in list(pairs.rows):
                    settled += self.settle(row)
        return settled

    def _done(self, number: int) -> list[str]:
        pairs = self.due.pop(number)
        if not self.due:
            self.due_number = 0
        topics = (*pairs.moved, *pairs.kept)
        for topic in topics:
            _count(self.due_about, topic, -1)
        return [topic for topic in topics if topic not in self.due_about]

    def _add_to_row(self, topic: str, moved: dict[str, int], kept: dict[str, int], weight: int) -> None:
        """A topic that was moved makes pairs with all others, one that was kept with those that were moved."""
        owner = moved.get(topic)
        if owner is None:
            self._add_row(topic, kept[topic], moved, weight)
        else:
            self._add_row(topic, owner, moved, weight)
            self._add_row(topic, owner, kept, weight)

    def _add_row(self, topic: str, owner: int, others: dict[str, int], weight: int) -> None:
        is_own, rank = owner == self.rank, self.rank
        row = self.weights.setdefault(topic, {})
        for other, other_owner in others.items():
            if other == topic or not (is_own or other_owner == rank):
                continue
            before = row.get(other, 0)
            now = row[other] = before + weight
            if not now:
                del row[other]
            if (before >= IN_GROUP) != (now >= IN_GROUP):
                self._toggle(topic, owner, other, other_owner, now >= IN_GROUP)
        if not row:
            del self.weights[topic]

    def _toggle(self, topic: str, topic_rank: int, other: str, other_rank: int, entered: bool) -> None:
        # DEVIATION (Baldoni, figure 5b: a topic leaves the group when the subscription is updated): it leaves it one event
        # late, since events from before are still under way. Mutant `leave-early`.
        if topic_rank < self.rank:
            return  # its events never come by here
        if other_rank >= self.rank:
            if topic_rank != self.rank and other_rank != self.rank:
                return
            _switch(self.filled, topic, other, entered)
        elif topic_rank == self.rank:
            _add(self.reach, topic, other_rank, 1 if entered else -1)
        else:
            return
        self.owe(topic, other, other_rank)

    def owe(self, topic: str, other: str, other_rank: int) -> None:
        """Make sure that the topic's next event has an entry for `other`, and goes far enough up for it."""
        if other_rank < self.rank:
            self.owed_up[topic] = min(other_rank, self.owed_up.get(topic, other_rank))
            return
        self.owed.setdefault(topic, {})[other] = True
        self.owed_to.setdefault(other, {})[topic] = True

    def pay(self, topic: str) -> dict[str, bool]:
        """A topic has an event: what was owed in it, here."""
        self.owed_up.pop(topic, None)
        row = self.owed.pop(topic, {})
        for other in row:
            _take_out(self.owed_to, other, topic)
        return row

    def rest(self, topics: Iterable[str]) -> list[str]:
        """Nobody holds these topics, nor waits for any of their events: nothing is owed in theirs, nor are they.

        Return the topics that were owed in theirs.
        """
        paid: list[str] = []
        for topic in topics:
            paid += self._settle_about(topic)
            paid += self.pay(topic)
            for other in self.owed_to.pop(topic, ()):
                _take_out(self.owed, other, topic)
        return paid

    def is_wanted(self, topic: str) -> bool:
        """Whether the count of a topic is to be in the timestamp of some other topic's event."""
        return topic in self.filled or topic in self.owed_to or topic in self.due_about

    def follow(self, change: str, top: int, topics: list[str]) -> None:
        """Let the events of own topics go at least as far up as a change that is on its way there."""
        self.following[change] = (top, topics)
        for topic in topics:
            _add(self.reach, topic, top, 1)

    def passed(self, change: str) -> None:
        """A change has passed its last stage: nothing follows it any more."""
        top, topics = self.following.pop(change, (0, []))
        for topic in topics:
            _add(self.reach, topic, top, -1)

    def highest(self, topic: str) -> int:
        """The rank of the highest stage that the next event of an own `topic` concerns."""
        reach = self.reach.get(topic)
        top = self.rank if reach is None else min(reach)
        return min(top, self.owed_up.get(topic, top))


def cells(moved: int, kept: int) -> int:
    """How many cells of the tables a change of so many topics touches, if so many others are held before and after it."""
    return moved * (moved + 2 * kept)


def _count(counts: dict[str, int], key: str, step: int) -> None:
    counts[key] = counts.get(key, 0) + step
    if not counts[key]:
        del counts[key]


def _add(table: dict[str, dict[int, int]], row: str, column: int, step: int) -> None:
    cells = table.setdefault(row, {})
    value = cells.get(column, 0) + step
    if value:
        cells[column] = value
    else:
        cells.pop(column, None)
        if not cells:
            del table[row]


def _switch(table: dict[str, dict[str, bool]], row: str, column: str, present: bool) -> None:
    if present:
        table.setdefault(row, {})[column] = True
    else:
        _take_out(table, row, column)


def _take_out(table: dict[str, dict[str, bool]], row: str, column: str) -> None:
    cells = table[row]
    del cells[column]
    if not cells:
        del table[row]
