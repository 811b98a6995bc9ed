"""Events of one client that have their numbers: their way to the ENS, topic by topic, and when their publishers have receipts.

    the stage's answers ──> numbered ─────────┐        ┌──> take_next: batches that the ENS is to take now
    the ENS ──────────────> taken, not_taken ─┤ outbox ├──> receipts, voids ──> the application
    owners of topics ─────> leased ───────────┘        └──> take_due: what is said to them

| a batch | as long as | then it is |
| --- | --- | --- |
| waits | others of its topic are with the ENS, or the topic pauses | with the ENS; or in doubt, if it may be void |
| is with the ENS | that has not answered | through; or in doubt, if it may be void; or, if it was not taken, it waits |
| is in doubt | its owner has not said what of it is void (`core.client.batches`) | what is left of it waits, or is through |
| is through | | its publisher has its receipt |

What waits on a topic goes to the ENS together, in groups, one after the other, so that a topic whose subscribers are slow holds
up its own publications only. What is in doubt holds up nothing else: else, where owners are far, something would always be in
doubt again before the rest was certain. After a group that was not taken its topic pauses.

A number that was given must be published, or subscribers wait for it. So what the ENS does not take it is given again, for as
long as the client lives. What a log keeps is given to it for a while only (`patience_s`), since subscribers get it from there.
What nobody keeps may have become void if the stages have not heard of this client for long; nobody is given that, and its
publisher is told.

What a log keeps is published when it has its number, so its publisher has the receipt at once; unless very much of that still
waits for the ENS (`early_events_max`, `early_bytes_max`), for then the publisher is to feel it.

INVARIANT: each batch that was numbered waits, is with the ENS, or in doubt; or it is through, or void.
INVARIANT: a topic that is here has something under way, something to wait for, or is looked at next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs

from ordered_pubsub.core.client.batches import Batch, UnkeptBatches
from ordered_pubsub.core.client.holding import Pause
from ordered_pubsub.core.client.session import Outcome
from ordered_pubsub.core.messages import LeaseRenewal, LeaseReply, Publication, TopicRange
from ordered_pubsub.core.ranges import Range

PATIENCE_S = 10.0
"""For so long the ENS is given what a log keeps as well."""
REFUSED_MAX = 10_000
"""Of so many topics it is remembered that the ENS did not take what a log keeps."""


class Void(NamedTuple):
    """Some numbers of a batch have no event any more."""

    publication: Publication
    items: list[Any]
    """all of the batch"""
    ranges: list[Range]


class _Doubtful(NamedTuple):
    """A batch of which it is not known what is void."""

    batch: Batch
    is_taken: bool
    """whether the ENS has it"""


@attrs.define(eq=False)
class _Topic:
    """What is on its way on one topic."""

    waiting: list[Batch] = attrs.field(factory=list)
    group: list[Batch] = attrs.field(factory=list)
    """what is with the ENS"""
    doubtful: dict[TopicRange, _Doubtful] = attrs.field(factory=dict)
    pause: Pause = attrs.field(factory=Pause)
    leave_at: float | None = None
    """when the ENS is given no more of what a log keeps"""
    trouble: str = ""
    """why the ENS has not taken it, in words"""


def _nothing(items: list[Any]) -> int:
    return 0


@attrs.define(eq=False)
class Outbox:
    """What one client has published, and what is not through yet."""

    batches: UnkeptBatches
    weigh: Callable[[list[Any]], int] = _nothing
    """how many bytes these events are"""
    early_events_max: int = 0
    early_bytes_max: int = 0
    patience_s: float = PATIENCE_S
    is_closing: bool = False
    """whether the ENS is to take what it takes now, and no more"""
    receipts: list[Batch] = attrs.field(factory=list)
    """batches whose publishers have their receipts; the caller empties it, and `voids`"""
    voids: list[Void] = attrs.field(factory=list)
    early_events: int = 0
    """how many have their receipts, since their log has them, and are not through"""
    _early_bytes: int = 0
    _early: dict[int, int] = attrs.field(factory=dict)
    """how many bytes they have, by the identity of the lists of events"""
    _topics: dict[str, _Topic] = attrs.field(factory=dict)
    _next: dict[str, bool] = attrs.field(factory=dict)
    """topics that may have something for the ENS"""
    _pausing: dict[str, bool] = attrs.field(factory=dict)
    _asked: dict[TopicRange, str] = attrs.field(factory=dict)
    """what owners were asked for, and its topic"""
    _refused: dict[str, bool] = attrs.field(factory=dict)
    """topics of which the ENS did not take what a log keeps: until it takes something, it is asked once each time"""
    is_abandoned: bool = False
    """whether whatever was here is given up"""

    # -- in -----------------------------------------------------------------------------------------------------------

    def numbered(self, outcome: Outcome, now: float) -> None:
        """Some publications have their numbers."""
        if self.is_abandoned:
            return
        unkept: list[Batch] = []
        for batch in zip(outcome.publications, outcome.asked.items, strict=True):
            part, items = batch
            if not part.is_kept:
                unkept.append(batch)
            elif self._may_be_early(len(items)):
                self._early[id(items)] = size = self.weigh(items)
                self._early_bytes += size
                self.early_events += len(items)
                self.receipts.append(batch)
            topic = self._topics.get(part.topic)
            if topic is None:
                topic = self._topics[part.topic] = _Topic()
            topic.waiting.append(batch)
            self._next[part.topic] = True
        if unkept:
            self.batches.numbered(unkept, outcome, now)

    def _may_be_early(self, count: int) -> bool:
        return self.early_events + count <= self.early_events_max and self._early_bytes <= self.early_bytes_max

    def leased(self, leased: LeaseReply, now: float) -> None:
        """An owner says what is void of what it was asked for."""
        for span, (asked_at, voids) in self.batches.leased(leased, now).items():
            topic = self._topics.get(self._asked.pop(span, ""))
            if topic is None:
                continue  # it was abandoned
            (part, items), is_taken = topic.doubtful.pop(span)
            ranges, left = self.batches.settled(part, items, asked_at, voids, now)
            if ranges:
                self.voids.append(Void(part, items, ranges))
            if is_taken:  # the ENS had it when its owner was asked
                self._through(left)
            else:
                topic.waiting = left + topic.waiting
            self._next[span.topic] = True

    # -- to the ENS ---------------------------------------------------------------------------------------------------

    def take_next(self, now: float) -> Iterator[tuple[str, list[Batch]]]:
        """For each topic what the ENS is to take now; its outcome is told by `taken` or `not_taken`."""
        if self._pausing:
            self._next.update(self._pausing)
        while self._next:
            name, _ = self._next.popitem()
            if group := self.next_of(name, now):
                yield name, group

    def next_of(self, name: str, now: float) -> list[Batch]:
        """What the ENS is to take now of a topic, if anything."""
        self._next.pop(name, None)
        topic = self._topics.get(name)
        if topic is None:
            return []
        if topic.group:
            return []
        if not topic.pause.is_over(now):
            self._pausing[name] = True
            return []
        self._pausing.pop(name, None)
        topic.group, topic.waiting = self._certain(name, topic, topic.waiting, now), []
        if not topic.group:
            if not topic.doubtful:
                del self._topics[name]
        elif topic.leave_at is None:
            topic.leave_at = now + (0.0 if name in self._refused else self.patience_s)
        return topic.group

    def _certain(
        self, name: str, topic: _Topic, batches: list[Batch], now: float, is_taken: bool = False
    ) -> list[Batch]:
        """Those that cannot be void; the owner of the topic is asked for the others, since it has heard nothing for long."""
        if not batches or self.batches.are_good(batches, now):
            return batches
        certain = []
        for batch in batches:
            part, items = batch
            if part.is_kept or self.batches.is_good(part, items, now):
                certain.append(batch)
            else:
                span = self.batches.ask(part, now)
                topic.doubtful[span], self._asked[span] = _Doubtful(batch, is_taken), name
        return certain

    def taken(self, name: str, now: float) -> None:
        """The ENS has taken what it was given of a topic. While that took its time, it may have become void."""
        topic = self._topics.get(name)
        if topic is not None:
            group, topic.group, topic.leave_at, topic.trouble = topic.group, [], None, ""
            topic.pause.end()
            self._refused.pop(name, None)
            self._through(self._certain(name, topic, group, now, is_taken=True))
            self._next[name] = True

    def not_taken(self, name: str, trouble: str, now: float) -> float | None:
        """The ENS has not taken it, or not all, or nobody knows: return when it is given it again; None if it is not."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        assert topic.leave_at is not None
        group, topic.group = topic.group, []
        self._next[name] = True
        if self.is_closing or now >= topic.leave_at:
            group = self._leave(name, topic, group)
            if not group:
                return None
        topic.waiting, topic.trouble = group + topic.waiting, trouble
        topic.pause.begin(now)
        return topic.pause.until

    def _leave(self, name: str, topic: _Topic, group: list[Batch]) -> list[Batch]:
        """What a log keeps is not given to the ENS any more; return the rest."""
        kept = [batch for batch in group if batch[0].is_kept]
        rest = [batch for batch in group if not batch[0].is_kept]
        self._through(kept)
        if kept:
            self._refused[name] = True
            if len(self._refused) > REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
        if not rest:
            topic.leave_at, topic.trouble = None, ""
            topic.pause.end()
        return rest

    def _through(self, batches: list[Batch]) -> None:
        """Whether it is at the ENS or not, these are done with."""
        for batch in batches:
            part, items = batch
            size = self._early.pop(id(items), None)
            if size is not None:
                self._early_bytes -= size
                self.early_events -= len(items)
                continue
            self.receipts.append(batch)
            if not part.is_kept:
                self.batches.handed(items)

    # -- what is said -------------------------------------------------------------------------------------------------

    def take_due(self, now: float) -> LeaseRenewal | None:
        """What to tell the owners of what nobody keeps, if that is due."""
        return self.batches.take_due(now)

    @property
    def next_word(self) -> float | None:
        """When `take_due` should be called."""
        return self.batches.next_due

    @property
    def next_try(self) -> float | None:
        """When `take_next` should be called, if nothing comes until then."""
        return min((self._topics[name].pause.until for name in self._pausing), default=None)

    @property
    def is_empty(self) -> bool:
        """Whether everything is through."""
        return not any(topic.waiting or topic.group or topic.doubtful for topic in self._topics.values())

    @property
    def is_troubled(self) -> bool:
        """Whether something waits for an owner's answer, or for its time."""
        return bool(self._asked or self._pausing)

    @property
    def trouble(self) -> str:
        """Why something is not through, in words; empty if there is nothing out of the common."""
        for name, topic in self._topics.items():
            if topic.trouble:
                return topic.trouble
            if topic.doubtful:
                return (
                    "the stages have not heard of this client for too long: it asks whether its events on "
                    f"{name!r} are void"
                )
        return ""

    def is_with_ens(self, name: str) -> bool:
        """Whether the ENS has not answered yet, of a topic."""
        topic = self._topics.get(name)
        return topic is not None and bool(topic.group)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing more is published: what pauses has its last chance now."""
        self.is_closing = True
        for name in self._pausing:
            self._topics[name].pause.until = float("-inf")

    def abandon(self) -> None:
        """Whatever is here is given up."""
        self.is_abandoned = True
        for table in (self._topics, self._next, self._pausing, self._asked, self._early):
            table.clear()
        self.early_events = self._early_bytes = 0

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if what is written at the top does not hold."""
        here: set[int] = set()
        for name, topic in self._topics.items():
            is_on_its_way = topic.group or topic.doubtful or name in self._pausing or name in self._next
            assert is_on_its_way, f"nothing will happen to what is published on {name}"
            assert not topic.waiting or topic.group or name in self._pausing or name in self._next, f"{name} is stuck"
            assert all(self._asked.get(span) == name for span in topic.doubtful), f"nobody knows what {name} waits for"
            here.update(id(items) for _, items in (*topic.group, *topic.waiting))
        assert self._early.keys() <= here, "what has its receipt early is nowhere"
