"""The subscriber: when is an event next?

A subscription has a clock: for each topic the number of the last event that it was notified of, or at which it began. An
event on T is next if its number is clock[T] + 1, and for every other topic U of the subscription that its timestamp
mentions, `min(entry, end[U]) <= clock[U]` (`end` for a topic that the subscription is leaving).

So only the first waiting event of each topic, its *head*, can be next, and it can only be woken by the topic whose entry
it lacks. `_waiters` holds it there; nothing ever scans the buffer.

Four rules besides:

- *Baseline*. The first event of a gained topic also waits for the completed entries of the change that gained it, since a
  delta timestamp leaves out what the topic's earlier subscribers have waited for already.
- *Marks*. A head that carries a mark of this subscription with a version not settled yet waits for that change's outcome.
- *Transactions*. The first event of a transaction waits for all the others that the subscription is entitled to, and until each
  of them could be next after those before it; then it is notified of all in one go. Since the transaction has one place in the
  order, nothing comes between. One that is larger than half the buffer comes event by event. For `total` only.
- *Beginning anew*. A subscription that starts at a clock it was given judges the first event of each topic by its full
  timestamp, and waits for one if it came without.

A topic may be left and gained again before its old events have come: then its queue has a later segment.

*Silence*, numbers that have no event for this subscription, has a place like an event: it is passed under the same rule, and
nobody is notified. It comes with the timestamp of its first number only, so it never covers a number that waits for more.

Numbers that exist and have not come are `missing`; so are, when the buffer is full, the events that would be needed last.

INVARIANT: queue.demands is not None only if the head is there and not held by a mark.
INVARIANT: every blocked head with demands is in `_waiters` under the topic of its last demand, once (`check_invariants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Literal

import attrs

from ordered_pubsub.core.messages import Change, Resume, TopicRange, Transaction
from ordered_pubsub.core.ranges import Range, Ranges
from ordered_pubsub.core.recovery.missing import AHEAD_MAX, Missing
from ordered_pubsub.core.subscriber._together import Incomplete
from ordered_pubsub.core.subscriber._withheld import Withheld
from ordered_pubsub.core.subscriber.buffer import NOTHING, Arrival, Buffer, Notification
from ordered_pubsub.core.subscriber.vector import History
from ordered_pubsub.errors import BufferOverflow, HistoryLost

Wants = Callable[[Arrival], bool]
"""A filter: it never raises."""
Order = Literal["total", "pairwise", "topic"]
WEIGHTS: dict[str, int] = {"total": 2, "pairwise": 1, "topic": 0}
TOPICS_LEFT_MAX = 10_000
STRETCHES_MAX = 64
"""So many stretches of one topic are remembered in which it was held earlier."""
NO_FILTERS: Mapping[str, str] = {}
BUFFER_EVENTS_MAX = 1_000_000
HOLES_MAX = 4 * AHEAD_MAX
"""So far ahead it is looked at once for what is lost; what is beyond, and was heard of, is looked for when it comes nearer."""
LET_GO_SHARE = 16
"""When the buffer is full, one of so many events of a topic is let go at once: finding the last ones costs a look at all."""


@attrs.define(slots=True, eq=False)
class Segment:
    """A stretch of a topic that the subscription is entitled to: after `start`, up to `end`."""

    start: int
    end: int | None = None
    baseline: list[tuple[str, int]] | None = None
    """one list for all topics that a change gained"""
    needs_full: bool = False
    where: str = ""
    """its filter, as it is written"""
    wants: Wants | None = None
    """whether an event is for the subscription; None: all are"""


@attrs.define(slots=True, eq=False)
class TopicQueue:
    """One topic of the subscription."""

    segment: Segment
    clock: int
    later: list[Segment] = attrs.field(factory=list)
    waiting: dict[int, Arrival] = attrs.field(factory=dict)
    demands: list[tuple[str, int]] | None = None
    heard: int = 0
    """the highest number that is known to exist, if that is above the clock"""

    def need(self, count: int) -> int:
        """The clock from which an entry `count` for this topic is satisfied."""
        need = count if self.segment.end is None else min(count, self.segment.end)
        for segment in self.later:
            if count > segment.start:
                need = count if segment.end is None else min(count, segment.end)
        return need

    @property
    def last_segment(self) -> Segment:
        """The stretch that a change would end."""
        return self.later[-1] if self.later else self.segment

    @property
    def is_left(self) -> bool:
        """Whether all events of the current stretch have been notified and it has an end."""
        return self.segment.end is not None and self.clock >= self.segment.end


@attrs.define(eq=False)
class Delivery(Buffer):
    """The delivery buffer of one subscription."""

    buffer_events_max: int = BUFFER_EVENTS_MAX
    order: Order = "total"
    missing: Missing | None = None
    """asks for what has not come; None if nobody could be asked"""
    wants_of: Callable[[str], Wants] | None = None
    """makes of a filter as it is written what decides"""
    position: int = attrs.field(default=0, init=False)
    _queues: dict[str, TopicQueue] = attrs.field(factory=dict)
    _stash: dict[str, dict[int, Arrival]] = attrs.field(factory=dict)
    """events that a change under way may turn out to entitle to"""
    _waiters: dict[str, list[tuple[int, str]]] = attrs.field(factory=dict)
    _history: History = attrs.field(factory=History)
    left_up_to: int = attrs.field(default=0, init=False)
    """the last change that had taken effect when no topic was being left"""
    _acked: Mapping[str, int] = attrs.field(factory=dict)
    """while it is resumed: how far it had come on each topic"""
    _leaving: int = 0
    """how many stretches of topics have an end that was not reached yet"""
    _passed: Mapping[str, int] = NOTHING
    """topics that it has left since the change `left_up_to`, and how far it had come: a topic may be gained, and left again,
    while another one still is before its first end"""
    _is_held: bool = False
    _withheld: Withheld | None = None
    """what must not be used yet, if there is anything"""
    _been: dict[str, Ranges] = attrs.field(factory=dict)
    """where it was earlier on topics whose events nobody keeps"""
    _stirred: dict[str, int] = attrs.field(factory=dict)
    """topics that have gone on, and their clocks before; `missing` learns it batch by batch"""
    _expected: dict[str, int] = attrs.field(factory=dict)
    """topics of which others wait for events that have not come, and up to where `missing` knows of that; it learns the rest at
    the end of a batch, since most of them come in it"""
    _incomplete: dict[str, Incomplete] = attrs.field(factory=dict)
    """topics whose next event is the first of a transaction of which not all is here"""
    _whole: str = ""
    """the transaction of which all was here last, or that will never be here as a whole"""
    _complete: list[str] = attrs.field(factory=list)
    """topics of `_incomplete` that are to be looked at, since nothing seems to lack"""
    _floors: dict[str, int] = attrs.field(factory=dict)
    """topics of which a log has forgotten more than was here: they may not be held any more"""
    _stalled: dict[str, int] = attrs.field(factory=dict)
    """topics whose next event was here at the last look, and had to wait, and their clocks"""

    # -- topics come and go -------------------------------------------------------------------------------------------

    def begin_at(
        self, clock: Mapping[str, int], version: int = 0, position: int = 0, where: Mapping[str, str] = NO_FILTERS
    ) -> None:
        """Start at a clock that was given: every topic's first event is judged by its full timestamp."""
        self.changes.version = version
        self.position = position
        wanted = self.wanted(where)
        for topic, count in clock.items():
            segment = Segment(count, needs_full=True, where=where.get(topic, ""), wants=wanted.get(topic))
            self._queues[topic] = queue = TopicQueue(segment, count)
            self._unstash(topic, queue, count)
            self._look_for_full(topic, queue)
        self._note_left()
        self._history.restart(self.clock)

    def resume(self, resume: Resume) -> None:
        """Go on where an earlier session has acknowledged.

        `resume.clock` is how far it had come, on the way through `resume.changes`: it may have come beyond a topic's end, and
        gained it again.
        """
        if resume.version:
            ends = {topic: change.entries.get(topic, 0) for change in reversed(resume.changes) for topic in change.lost}
            clock = {topic: resume.clock.get(topic, ends.get(topic, 0)) for topic in resume.topics}
            self.begin_at(clock, resume.version, resume.position, resume.where)
            self._acked = resume.clock
        for change in resume.changes:
            self.change_settled(change, None)
        self._acked = {}

    def hold(self) -> None:
        """Let nothing be next until `go_on`: what comes before is read from the past."""
        self._is_held = True

    def go_on(self, position: int) -> None:
        """The past has been read, and so many were notified in it."""
        self._is_held = False
        self.position += position
        self._look_again()

    def hear(self, topic: str, number: int, is_lost: bool = False) -> None:
        """A topic is known to have come to this number; if it is lost, what has not come until now will not."""
        queue = self._queues.get(topic)
        if queue is None or self.missing is None:
            return
        known = max(queue.heard, queue.clock)
        if is_lost:
            horizon = min(number, queue.clock + HOLES_MAX)
            for first, last in self._holes(queue, horizon):
                self.missing.lost(topic, first, last)
            self.missing.lost(topic, max(horizon, known) + 1, number)
        elif number > known:
            self._expected.setdefault(topic, known)
        queue.heard = max(queue.heard, number)
        self._look_for_full(topic, queue)

    def look_for_more(self, topic: str) -> None:
        """There may be more of a topic than is known of: its log says whether there is, or that its owner has given no more."""
        queue = self._queues.get(topic)
        if (
            queue is not None
            and queue.last_segment.end is None
            and self.missing is not None
            and self.missing.is_kept(topic)
        ):
            self.hear(topic, max(queue.heard, queue.clock, queue.last_segment.start) + 1, is_lost=True)

    def told_of_floor(self, topic: str, floor: int) -> None:
        """The log has nothing of a topic up to this number. If it is being left, its end may lie before that."""
        queue = self._queues.get(topic)
        if queue is None or queue.clock >= floor or queue.is_left or self.changes.may_lose(topic):
            return
        is_open = queue.segment.end is None
        if self.changes.is_shared and is_open and self.changes.look(topic, floor):  # others may have taken it away
            self._floors[topic] = floor
        else:
            raise HistoryLost(f"subscription {self.subscription!r}", topic, queue.clock + 1, floor + 1)

    def told_of_given(self, topic: str, given: int) -> None:
        """The owner of a topic has given no number above this one. So what waits for one is not what a stage has numbered.

        Such an event is asked for at its log, whose answer takes its place. It may be that it was right all the same, since more
        was given meanwhile; then that costs an answer.
        """
        queue, missing = self._queues.get(topic), self.missing
        if queue is None or missing is None:
            return
        self._notice_expected(missing, topic, queue)
        if queue.heard > given:
            queue.heard = max(queue.clock, given, *(one.last or one.number for one in queue.waiting.values()), 0)
            missing.none_beyond(topic, max(given, queue.clock))
        for need, waiter in self._waiters.get(topic, ()):
            if need > given:
                self._doubt(waiter)

    def heard_version(self, topic: str, version: int) -> None:
        """The owner of a topic says which change of the subscription was the last that has passed there."""
        queue = self._queues.get(topic)
        if self.changes.looked(topic, version) and queue is not None:
            self._complete += self._incomplete
            self._advance([] if queue.demands else [topic])

    def lacks_changes(self) -> bool:
        """Whether anything that waits speaks of changes that others have made, of which nothing is known."""
        changes = self.changes
        if not (changes.lacks or changes.looks):
            return False
        changes.forget_marked()  # somebody may have forged what had spoken of them
        for topic, queue in self._queues.items():
            head = queue.waiting.get(queue.clock + 1)
            if head is None:
                continue
            changes.holds(head.marks, topic, head.number, queue.segment.end is None)
        for topic, floor in self._floors.items():
            changes.look(topic, floor)
        self._complete += self._incomplete
        self._advance([])
        return changes.lacks or bool(changes.looks)

    def doubt_stalled(self) -> None:
        """Ask for what was to come next at the last call, and still is: somebody who has the keys may have made it wait."""
        stalled, self._stalled = self._stalled, {}
        for topic, queue in self._queues.items():
            if queue.clock + 1 in queue.waiting:
                self._stalled[topic] = queue.clock
                if stalled.get(topic) == queue.clock and not self._is_held:
                    self._doubt(topic)
        if self._incomplete:
            self._complete += self._incomplete
            self._advance([])

    def _doubt(self, topic: str) -> None:
        """What is to come next on a topic may not be what a stage has numbered: its log knows."""
        queue = self._queues.get(topic)
        head = None if queue is None else queue.waiting.get(queue.clock + 1)
        if head is not None:
            self._doubt_event(head)

    def _doubt_event(self, arrival: Arrival) -> None:
        if self.missing is not None and not arrival.is_logged:
            self.missing.needs_full(arrival.topic, arrival.number)

    @staticmethod
    def _holes(queue: TopicQueue, number: int) -> Iterator[tuple[int, int]]:
        """The numbers after the clock, up to this one, that do not wait in the queue."""
        waiting, at = queue.waiting, queue.clock + 1
        while at <= number:
            arrival = waiting.get(at)
            if arrival is not None:
                at = max(at, arrival.last) + 1
                continue
            first = at
            while at <= number and at not in waiting:
                at += 1
            yield first, at - 1

    def is_news(self, topic: str, number: int) -> bool:
        """Whether a topic that is held has not been known to have come so far."""
        queue = self._queues.get(topic)
        return queue is not None and number > queue.heard and number > queue.clock

    def lacks(self, arrival: Arrival) -> int:
        """How many of the numbers of what has come are not here, nor were."""
        queue = self._queues.get(arrival.topic)
        if queue is None or arrival.number in queue.waiting:
            return 0
        return max(0, (arrival.last or arrival.number) - max(queue.clock, arrival.number - 1))

    def _take_effect(self, change: Change) -> None:
        old, new = set(change.old), set(change.new)
        for topic in change.old:
            if topic not in new:
                self._end(topic, change.entries.get(topic, 0))
        gained = [topic for topic in change.new if topic not in old]
        wanted = self.wanted(change.where)
        baseline = self._baseline(change.entries) if gained and self.order != "topic" else None
        for topic in gained:
            where, start = change.where.get(topic, ""), change.entries.get(topic, 0)
            self._gain(topic, Segment(start, baseline=baseline, where=where, wants=wanted.get(topic)))
        self._forget_strangers()
        self._note_left()
        self._history.restart(self.clock)
        self._look_again()

    def _note_left(self) -> None:
        if not self._leaving:
            self.left_up_to = self.changes.version
            self._passed = NOTHING

    def _look_again(self) -> None:
        self._waiters.clear()
        self._incomplete.clear()
        self._advance(list(self._queues))

    def _end(self, topic: str, count: int) -> None:
        queue = self._queues.get(topic)
        if queue is None:
            return
        if queue.last_segment.end is None:
            self._leaving += 1
        queue.last_segment.end = end = max(count, queue.last_segment.start)
        self.hear(topic, end)
        if not queue.later:
            for number in [n for n in queue.waiting if n > count]:
                arrival = queue.waiting.pop(number)
                self._uncount(arrival)
                # Silence may be what the filter of this stretch leaves out: a later one may want it.
                if not (arrival.last and arrival.is_logged and self.changes.is_shared):
                    self._keep_for_later(arrival)

    def _baseline(self, entries: dict[str, int]) -> list[tuple[str, int]]:
        """What the first events of all topics that a change gains wait for; a topic's own entry is where it begins."""
        baseline = dict(entries)
        for other, leaving in self._queues.items():  # left by an earlier change, but not passed yet
            if leaving.last_segment.end is not None:
                baseline.setdefault(other, leaving.last_segment.end)
        return list(baseline.items())

    def wanted(self, where: Mapping[str, str]) -> dict[str, Wants]:
        """What decides which events of some topics are for the subscription."""
        if not where or self.wants_of is None:
            return {}
        made = {text: self.wants_of(text) for text in dict.fromkeys(where.values())}
        return {topic: made[text] for topic, text in where.items()}

    def _gain(self, topic: str, segment: Segment) -> None:
        start = max(segment.start, self._acked.get(topic, 0))
        if start > segment.start:
            segment = Segment(start, needs_full=True, where=segment.where, wants=segment.wants)
        queue = self._queues.get(topic)
        if queue is not None and not queue.is_left:
            queue.later.append(segment)
            if self.missing is not None:  # others may have taken it away and given it back, when nobody kept what came
                horizon = min(queue.heard, queue.clock + HOLES_MAX)
                for first, last in self._holes(queue, horizon):
                    if last > start:
                        self.missing.noticed(topic, max(first, start + 1), last)
                self.missing.noticed(topic, max(horizon, start) + 1, queue.heard)
        else:
            if queue is not None:
                self._leaving -= 1
                self._expected.pop(topic, None)
            queue = self._queues[topic] = TopicQueue(segment, start)
        self._unstash(topic, queue, start)

    def _unstash(self, topic: str, queue: TopicQueue, after: int) -> None:
        """What came for a topic before it was known that it is held."""
        for number, arrival in self._stash.pop(topic, {}).items():
            self._uncount(arrival)
            if (arrival.last or number) > after:
                self._keep_in_queue(queue, arrival)

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if what is written at the top, or what is counted, does not hold between two inputs."""
        super().check_invariants()
        waiting = [arrival for queue in self._queues.values() for arrival in queue.waiting.values()]
        waiting += [arrival for kept in self._stash.values() for arrival in kept.values()]
        assert len(waiting) == self.buffered, f"{len(waiting)} events wait, and {self.buffered} are counted"
        size = sum(arrival.size for arrival in waiting)
        assert size == self.buffered_bytes, f"{size} bytes wait, and {self.buffered_bytes} are counted"
        left = 0
        for topic, queue in self._queues.items():
            segments = [queue.segment, *queue.later]
            left += sum(segment.end is not None for segment in segments)
            assert all(one.end is not None and one.end <= two.start for one, two in pairwise(segments)), (
                f"{topic}: {segments}"
            )
            assert queue.clock >= queue.segment.start, f"{topic} is at {queue.clock}, before {queue.segment.start}"
            assert all(number > queue.clock for number in queue.waiting), f"{topic} is beyond {list(queue.waiting)}"
            head = queue.waiting.get(queue.clock + 1)
            assert queue.demands is None or head is not None, f"{topic} makes demands for what is not there"
            if queue.demands and not self._is_held:
                other, _ = queue.demands[-1]
                waiters = [name for _, name in self._waiters.get(other, ()) if name == topic]
                assert len(waiters) == 1, f"{topic} waits for {other}, and would be woken {len(waiters)} times"
        assert left == self._leaving, f"{left} stretches are being left, and {self._leaving} are counted"

    def filter_of(self, topic: str) -> str:
        """The filter of a topic, if it is sure that it holds for all that is known of it to its log by now; else nothing.

        A change that is asked for later has its place after all that.
        """
        queue = self._queues.get(topic)
        if queue is None or queue.later or queue.segment.end is not None or self.changes.asked:
            return ""
        return queue.segment.where

    def _forget_strangers(self) -> None:
        if not self.changes.asked:
            for kept in self._stash.values():
                for arrival in kept.values():
                    self._uncount(arrival)
            self._stash.clear()

    # -- events come --------------------------------------------------------------------------------------------------

    def receive(self, arrival: Arrival) -> None:
        """An event came from the ENS; `take_ready` has what may be notified now."""
        if self._withheld is not None and not arrival.last and self._withheld.takes(arrival):
            return
        topic = arrival.topic
        queue = self._queues.get(topic)
        if queue is None:
            self._keep_for_later(arrival)
        elif self._is_next_at_once(queue, arrival):
            if queue.heard > queue.clock:
                self._stirred.setdefault(topic, queue.clock)
            self._notify(topic, queue, arrival)
            waiters = self._waiters.get(topic)
            if waiters and waiters[0][0] <= queue.clock:
                woken: list[str] = []
                self._wake(waiters, queue.clock, woken)
                self._advance(woken)
            return
        elif (arrival.last or arrival.number) > queue.clock:
            end = queue.segment.end
            if end is not None and arrival.number > end and not queue.later:
                self._keep_for_later(arrival)
            else:
                before = queue.waiting.get(queue.clock + 1)
                self._keep_in_queue(queue, arrival)
                if queue.waiting.get(queue.clock + 1) is not before:
                    self._advance([topic])
                elif self._complete:
                    self._advance([])
        if self._is_overfull:
            self._make_room(arrival)

    def _keep_in_queue(self, queue: TopicQueue, arrival: Arrival) -> None:
        if arrival.number <= queue.clock:  # silence that began before
            arrival.number = queue.clock + 1
        self._keep(queue.waiting, arrival)
        missing, topic, number = self.missing, arrival.topic, arrival.number
        if missing is not None:
            last, heard = arrival.last or number, max(queue.heard, queue.clock)
            if number > heard + 1:
                missing.noticed(topic, heard + 1, number - 1)
            elif number <= heard:
                self._notice_expected(missing, topic, queue)
                missing.came(topic, number, last)
            if last > heard:
                queue.heard = last
            if queue.segment.needs_full:
                self._look_for_full(topic, queue)
        if self._incomplete and queue.waiting.get(number) is arrival:
            for waiting, incomplete in self._incomplete.items():
                if incomplete.came(topic, number, arrival.last or number):
                    self._complete.append(waiting)

    def _is_next_at_once(self, queue: TopicQueue, arrival: Arrival) -> bool:
        """Whether it is next, and nothing about its topic is special: most events need not be kept and looked for."""
        if arrival.number != queue.clock + 1 or queue.waiting or arrival.marks or arrival.last or self._is_held:
            return False
        if arrival.transaction:
            return False
        segment = queue.segment
        if segment.end is not None or segment.baseline is not None or segment.needs_full:
            return False
        if self.order != "topic":
            queues = self._queues
            for other, count in arrival.entries.items():
                other_queue = queues.get(other)
                if other_queue is not None and not self._has_come(other_queue, count):
                    return False
        return True

    def take_ready(self) -> list[Notification]:
        """The events to be notified since the last call, in their order."""
        self.tell_missing()
        return super().take_ready()

    def tell_missing(self) -> None:
        """A batch has come: let `missing` know what is waited for now, and what is not any more."""
        missing, queues, stirred = self.missing, self._queues, self._stirred
        if missing is not None:
            for topic in list(self._expected):
                self._notice_expected(missing, topic, queues[topic])
            for topic, before in stirred.items():
                missing.came(topic, before + 1, queues[topic].clock)
                missing.passed(topic, queues[topic].clock)
        stirred.clear()

    def _notice_expected(self, missing: Missing, topic: str, queue: TopicQueue) -> None:
        """What is waited for on a topic has not come so far."""
        known = self._expected.pop(topic, None)
        if known is not None:
            missing.noticed(topic, max(known, queue.clock) + 1, queue.heard)

    # -- events that may be void --------------------------------------------------------------------------------------

    def seal(self, topic: str, numbers: Iterable[Range]) -> list[Range]:
        """Say which of these are here, or were, and use none of the others until it is decided what they are."""
        seen = self._seen(topic)
        may_come = topic in self._queues or self.changes.asked
        for first, last in numbers if may_come else ():
            for start, end in seen.missing(first, last):
                self._withheld = self._withheld or Withheld()
                self._withheld.seal(topic, start, end)
        return [part for first, last in numbers for part in seen.within(first, last)]

    def decided(self, topic: str, voids: Iterable[Arrival], published: Iterable[Range]) -> None:
        """It is known what some numbers are: silence, or events that may be used when they have come."""
        if self._withheld is not None:
            come = self._withheld.decided(topic, published)
            silence = list(voids)
            self._withheld.decided(topic, [(void.number, void.last) for void in silence])
            if self._withheld.is_empty:
                self._withheld = None
            for arrival in (*come, *silence):
                self.receive(arrival)
            return
        for arrival in voids:
            self.receive(arrival)

    def _seen(self, topic: str) -> Ranges:
        """The numbers of a topic that are here, or were."""
        seen = Ranges(self._been.get(topic, ()))
        queue = self._queues.get(topic)
        here = dict(self._stash.get(topic, {}))
        if queue is not None:
            seen.add(queue.segment.start + 1, queue.clock)
            here.update(queue.waiting)
        for number, arrival in here.items():
            seen.add(number, arrival.last or number)
        return seen

    def _remember_stretch(self, topic: str, queue: TopicQueue) -> None:
        """A stretch of a topic is over."""
        if self.missing is None or self.missing.is_kept(topic):
            return
        been = self._been.setdefault(topic, Ranges())
        if len(self._been) > TOPICS_LEFT_MAX:
            del self._been[next(iter(self._been))]
        been.add(queue.segment.start + 1, queue.clock)
        if len(been) > STRETCHES_MAX:
            been.forget_up_to(next(iter(been))[1])

    @property
    def withheld(self) -> list[TopicRange]:
        """What must not be used before it is decided."""
        return [] if self._withheld is None else self._withheld.spans()

    # -- the buffer ---------------------------------------------------------------------------------------------------

    def _keep_for_later(self, arrival: Arrival) -> None:
        if self.changes.asked:
            self._keep(self._stash.setdefault(arrival.topic, {}), arrival)

    def _keep(self, kept: dict[int, Arrival], arrival: Arrival) -> None:
        known = kept.get(arrival.number)
        if known is None:
            kept[arrival.number] = arrival
            self.buffered += 1
            self.buffered_bytes += arrival.size
        elif arrival.is_logged and (arrival.full or not known.is_logged):
            kept[arrival.number] = arrival
            self.buffered_bytes += arrival.size - known.size
            self._judge_anew(arrival)

    def _judge_anew(self, arrival: Arrival) -> None:
        """What was to come next on a topic is another event: what it waits for is found out again."""
        queue = self._queues.get(arrival.topic)
        if queue is None or arrival.number != queue.clock + 1 or queue.demands is None:
            return
        if queue.demands:
            waiters = self._waiters.get(queue.demands[-1][0], [])
            waiters[:] = [entry for entry in waiters if entry[1] != arrival.topic]
            heapify(waiters)
        queue.demands = None

    def _make_room(self, arrival: Arrival) -> None:
        """The buffer is bounded: what can be asked for again, and is needed last, is let go."""
        while self._is_overfull:
            if not self._let_go():
                raise BufferOverflow(
                    f"subscription {self.subscription!r} holds {self.buffered} events with {self.buffered_bytes} bytes that wait "
                    f"for earlier ones (last on {arrival.topic!r}); the limit is {self.buffer_events_max} events "
                    f"(buffer_events_max) or {self.buffer_bytes_max} bytes (buffer_bytes_max). It waits for: {self.waiting_for()}"
                )

    @property
    def _is_overfull(self) -> bool:
        return self.buffered > self.buffer_events_max or self.buffered_bytes > self.buffer_bytes_max

    def _let_go(self) -> bool:
        """Let go of the last events of the topic with the most that wait; they are missing now."""
        missing = self.missing
        kept = [topic for topic in self._queues if missing is not None and missing.is_kept(topic)]
        topic = max(kept, key=lambda name: len(self._queues[name].waiting), default="")
        if missing is None or not topic or len(self._queues[topic].waiting) < 2:
            return False
        queue = self._queues[topic]
        numbers = sorted(queue.waiting)
        if self._incomplete:
            held = list(self._incomplete.values())
            numbers = [n for n in numbers[1:] if not any(one.has(topic, n) for one in held)]
            if not numbers:
                return self._take_apart()
        for number in numbers[-max(1, len(numbers) // LET_GO_SHARE) :]:
            arrival = queue.waiting.pop(number)
            self._uncount(arrival)
            missing.noticed(topic, number, arrival.last or number)
        return True

    def _take_apart(self) -> bool:
        """There is no room for a transaction as a whole: its events come one by one, each with its name."""
        topic, incomplete = self._incomplete.popitem()
        self._whole = incomplete.transaction.id
        self._advance([topic])
        return True

    # -- whose turn is it ---------------------------------------------------------------------------------------------

    def _advance(self, agenda: list[str]) -> None:
        """Notify whatever is next on the topics of the agenda, and on those that it wakes."""
        if self._is_held:
            return
        while True:
            for topic in agenda:  # grows while it runs
                queue = self._queues.get(topic)
                if queue is not None:
                    self._advance_queue(topic, queue, agenda)
            if not self._complete:
                return
            agenda = [topic for topic in dict.fromkeys(self._complete) if topic in self._incomplete]
            self._complete = []

    def _advance_queue(self, topic: str, queue: TopicQueue, agenda: list[str]) -> None:
        while True:
            end = queue.segment.end
            if end is not None and queue.clock >= end:
                self._remember_stretch(topic, queue)
                self._leaving -= 1
                goes_on = self._begin_next_segment(topic, queue, agenda)
                if not goes_on:
                    self._drop_queue(topic, queue, agenda)
                self._note_left()
                if goes_on:
                    continue
                return
            head = queue.waiting.get(queue.clock + 1)
            if head is None or not self._is_next(topic, queue, head):
                return
            self._stirred.setdefault(topic, queue.clock)
            del queue.waiting[head.number]
            self.buffered -= 1
            self.buffered_bytes -= head.size
            queue.demands = None
            segment = queue.segment
            segment.baseline, segment.needs_full = None, False
            if head.last:
                self._pass_silence(topic, queue, head)
            else:
                self._notify(topic, queue, head)
            waiters = self._waiters.get(topic)
            if waiters:
                self._wake(waiters, queue.clock, agenda)

    def _look_for_full(self, topic: str, queue: TopicQueue) -> None:
        """The first event of a subscription that begins anew is of use with its full timestamp only."""
        if self.missing is None or not queue.segment.needs_full or self.order == "topic" or queue.heard <= queue.clock:
            return
        head = queue.waiting.get(queue.clock + 1)
        if head is None or not head.full:
            self.missing.needs_full(topic, queue.clock + 1)

    def _pass_silence(self, topic: str, queue: TopicQueue, silence: Arrival) -> None:
        end = queue.segment.end
        last = silence.last if end is None else min(silence.last, end)
        self.position += last - queue.clock
        for number in _those_of(queue.waiting, silence.number, last):
            self._uncount(queue.waiting.pop(number))
        queue.clock = last
        self._history.jumped(topic, last)
        if silence.last > last:
            silence.number = last + 1
            self._keep(queue.waiting, silence)  # a later segment may begin within it

    def _is_next(self, topic: str, queue: TopicQueue, head: Arrival) -> bool:
        demands = queue.demands
        if demands is None:
            if head.marks and self.changes.holds(head.marks, topic, head.number, queue.segment.end is None):
                if self.changes.cannot_be(head.marks):
                    self._doubt(topic)
                return False
            if queue.segment.needs_full and not head.full and self.order != "topic":
                return False
            demands = queue.demands = self._demands_of(queue, head)
        while demands:
            other, count = demands[-1]
            other_queue = self._queues.get(other)
            if other_queue is not None and not self._has_come(other_queue, count):
                self._incomplete.pop(topic, None)  # its log may have brought another event in its place
                need = other_queue.need(count)
                heappush(self._waiters.setdefault(other, []), (need, topic))
                if need > other_queue.heard:
                    self.hear(other, need)
                return False
            demands.pop()
        transaction = head.transaction
        return (
            not transaction
            or self.order != "total"
            or isinstance(transaction, str)
            or self._is_whole(topic, transaction)
        )

    def _is_whole(self, topic: str, transaction: Transaction) -> bool:
        """Whether all of a transaction may be notified now, of which this topic has the first event."""
        self._incomplete.pop(topic, None)
        if transaction.id == self._whole:
            return True
        # Its changes of this subscription take effect before any of it is notified, also those that were written later: else
        # somebody who loses a topic by it would be told half of it. Mutant `own-marks-late`.
        head = self._queues[topic]
        lacking = int(self.changes.holds(transaction.changes, topic, head.clock + 1, head.segment.end is None))
        clocks, ends, entitled = dict[str, int](), dict[str, int](), 0
        for other, (first, last) in transaction.ranges.items():
            queue = self._queues.get(other)
            if queue is None:
                continue
            for one in (queue.segment, *queue.later):
                begins = max(first, one.start + 1, queue.clock + 1)
                end = last if one.end is None else min(last, one.end)
                if begins <= end:
                    entitled += end - begins + 1
                    lacking += self._lacks_of(queue, one, begins, end)
                    clocks.setdefault(other, begins - 1)
                    ends[other] = end
                    self.hear(other, end)
        if entitled <= self.buffer_events_max // 2:
            lacking = lacking or self._doubt_stuck(clocks, ends)
            if lacking:
                self._incomplete[topic] = Incomplete(transaction, lacking)
                return False
        self._whole = transaction.id
        return True

    def _lacks_of(self, queue: TopicQueue, segment: Segment, first: int, last: int) -> int:
        """How many of these numbers are not here, or wait for something that none of their transaction brings."""
        lacking, number, waiting = 0, first, queue.waiting
        while number <= last:
            arrival = waiting.get(number)
            if arrival is None:
                lacking += 1
                number += 1
                continue
            if arrival.marks and self.changes.holds(arrival.marks, arrival.topic, number, segment.end is None):
                lacking += 1
                if self.changes.cannot_be(arrival.marks):
                    self._doubt_event(arrival)
            elif segment.needs_full and number == segment.start + 1 and not arrival.full:
                lacking += 1
            number = max(number, arrival.last) + 1
        return lacking

    def _doubt_stuck(self, clocks: dict[str, int], ends: dict[str, int]) -> int:
        """All of a transaction is here: ask for what of it could not be next, each after those before it; 0: there is no such.

        No stage has numbered it like that, so somebody who has the keys has. It is looked at again when any of it has come.
        """
        going = list(clocks)
        while going:
            stuck: list[Arrival] = []
            moved = False
            for topic in going:
                while (number := clocks[topic] + 1) <= ends[topic]:
                    head = self._queues[topic].waiting.get(number)
                    if head is not None and not all(
                        self._would_have_come(*entry, clocks) for entry in head.entries.items()
                    ):
                        stuck.append(head)
                        break
                    clocks[topic], moved = number if head is None else max(number, head.last), True
            going = [topic for topic in going if clocks[topic] < ends[topic]]
            if not moved:
                doubtful = [head for head in stuck if not head.is_logged]
                for head in doubtful:
                    self._doubt_event(head)
                return min(len(doubtful), 1)
        return 0

    def _would_have_come(self, topic: str, count: int, clocks: Mapping[str, int]) -> bool:
        """Whether an entry would be satisfied if the subscription had come so far."""
        queue = self._queues.get(topic)
        return queue is None or min(count, queue.need(count)) <= clocks.get(topic, queue.clock)

    def _has_come(self, queue: TopicQueue, count: int) -> bool:
        """Whether an entry `count` for this topic is satisfied."""
        return self.is_satisfied(queue.clock, count) or self.is_satisfied(queue.clock, queue.need(count))

    @staticmethod
    def is_satisfied(clock: int, need: int) -> bool:
        """The heart of the delivery rule."""
        # DEVIATION (Baldoni 3.4, `isNext`: the other entries equal the clock): a clock may be ahead of an entry. Mutant
        # `exact-entries`.
        return need <= clock

    def _demands_of(self, queue: TopicQueue, head: Arrival) -> list[tuple[str, int]]:
        # DEVIATION (Baldoni 3.4: every timestamp is full): what a change gained comes after its baseline. Mutants
        # `no-baseline`, `no-marks`.
        if self.order == "topic":
            return []
        demands = list(head.entries.items())
        if queue.segment.baseline:
            demands.extend(queue.segment.baseline)
        return demands

    def _notify(self, topic: str, queue: TopicQueue, head: Arrival) -> None:
        queue.clock += 1
        self.position += 1
        position = None if self.order == "topic" else self.position
        moment = self._history.passed(topic)
        wants = queue.segment.wants
        if wants is not None and not wants(head):
            return  # it has its place, and nobody is told
        self._ready.append(
            Notification(
                head, position, moment, self.changes.version, False, self.left_up_to, self.position, self._passed
            )
        )

    @staticmethod
    def _wake(waiters: list[tuple[int, str]], clock: int, agenda: list[str]) -> None:
        while waiters and waiters[0][0] <= clock:
            agenda.append(heappop(waiters)[1])

    def _begin_next_segment(self, topic: str, queue: TopicQueue, agenda: list[str]) -> bool:
        """The current stretch of a topic has come to its end: go on to the next one, if there is one."""
        if not queue.later:
            return False
        queue.segment = queue.later.pop(0)
        queue.clock = queue.segment.start
        queue.demands = None
        for number in [n for n in queue.waiting if n <= queue.clock]:
            arrival = queue.waiting.pop(number)
            self._uncount(arrival)
            if arrival.last > queue.clock:
                self._keep_in_queue(queue, arrival)
        self._history.restart(self.clock)
        self._wake(self._waiters.get(topic, []), queue.clock, agenda)
        return True

    def _drop_queue(self, topic: str, queue: TopicQueue, agenda: list[str]) -> None:
        for arrival in queue.waiting.values():
            self._uncount(arrival)
            self._keep_for_later(arrival)
        del self._queues[topic]
        self._floors.pop(topic, None)
        if self._leaving:
            self._passed = {**self._passed, topic: queue.clock}
        self._left.append(topic)
        self._expected.pop(topic, None)
        self._stirred.pop(topic, None)
        if self.missing is not None:
            self.missing.left(topic)
        agenda.extend(waiter for _, waiter in self._waiters.pop(topic, ()))
        self._history.restart(self.clock)

    # -- to look at ---------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> dict[str, int]:
        """For each topic the number of the last event notified, or at which it began."""
        return {topic: queue.clock for topic, queue in self._queues.items()}

    @property
    def handled(self) -> dict[str, int]:
        """How far it has come, on its way from the change `left_up_to` on."""
        return {**self._passed, **self.clock}

    @property
    def topics(self) -> list[str]:
        """The topics that are held now, without those that are being left."""
        return [topic for topic, queue in self._queues.items() if queue.last_segment.end is None]

    def waiting_for(self, limit: int = 5) -> str:
        """Say in words what the waiting events wait for."""
        reasons = list(self._reasons())
        more = f" and {len(reasons) - limit} more" if len(reasons) > limit else ""
        return "; ".join(reasons[:limit]) + more if reasons else "nothing"

    def _reasons(self) -> Iterable[str]:
        for topic, queue in self._queues.items():
            head = queue.waiting.get(queue.clock + 1)
            if head is None:
                end = queue.segment.end
                if queue.waiting or (end is not None and queue.clock < end):
                    yield f"{topic!r} for its number {queue.clock + 1}"
            elif queue.demands:
                other, count = queue.demands[-1]
                yield f"{topic!r} number {head.number} for number {count} of {other!r} (now {self._queues[other].clock})"
            elif self.changes.holds(head.marks, topic, head.number, queue.segment.end is None):
                yield f"{topic!r} number {head.number} for the outcome of a change of this subscription"
            elif queue.segment.needs_full:
                yield f"{topic!r} number {head.number} for its full timestamp"
            elif topic in self._incomplete:
                one = self._incomplete[topic]
                yield f"{topic!r} number {head.number} for {one.lacking} more events of transaction {one.transaction.id}"
        for topic, kept in self._stash.items():
            yield f"{topic!r} ({len(kept)} events) for the outcome of a change of this subscription"


def _those_of(waiting: dict[int, Arrival], after: int, last: int) -> list[int]:
    """The numbers after one, up to another, that wait."""
    if last - after < len(waiting):
        return [number for number in range(after + 1, last + 1) if number in waiting]
    return [number for number in waiting if after < number <= last]
