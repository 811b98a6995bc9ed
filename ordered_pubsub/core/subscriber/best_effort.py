"""The subscriber over an ENS that may lose events: in order if it can be, told if it is not.

A waiting event is notified when it becomes next, when its time is up, or when the buffer is full and it is the oldest.
Then its topic's clock jumps; numbers that were passed over are remembered, and notified late if they come. An event is
tagged `out_of_order` exactly if, when it was notified, the delivery rule did not hold for it or its number had been
passed. Timestamps are full here: what a delta leaves out was waited for by those who handle every event, and this
subscriber may not have.

While a removal of a topic has no outcome yet, the topic's events are notified only in order: behind a hole there may be a
mark, and after it nothing is to be notified any more. If they fill the buffer meanwhile, the oldest is dropped.
"""

from __future__ import annotations

import attrs

from ordered_pubsub.core.messages import Change
from ordered_pubsub.core.subscriber.buffer import Arrival, Buffer, Notification
from ordered_pubsub.core.subscriber.vector import History

PASSED_MAX = 10_000


@attrs.define(slots=True, eq=False)
class _TopicQueue:
    clock: int
    start: int
    waiting: dict[int, Arrival] = attrs.field(factory=dict)
    passed: dict[int, bool] = attrs.field(factory=dict)
    """numbers that were passed over, the oldest first"""


@attrs.define(eq=False)
class BestEffort(Buffer):
    """The delivery buffer of a best-effort subscription."""

    ttl_s: float
    _queues: dict[str, _TopicQueue] = attrs.field(factory=dict)
    _queue: dict[tuple[str, int], tuple[float, Arrival]] = attrs.field(factory=dict)
    """all that waits, the oldest first, with the time at which its patience ends"""
    _waiters: dict[str, dict[str, bool]] = attrs.field(factory=dict)
    """topic → the topics whose next event waits for more of it"""
    _agenda: list[str] = attrs.field(factory=list)
    _history: History = attrs.field(factory=History)

    def _take_effect(self, change: Change) -> None:
        old, new = set(change.old), set(change.new)
        for topic in change.old:
            if topic not in new and topic in self._queues:
                self._end(topic, change.entries.get(topic, 0))
        for topic in change.new:
            if topic not in old:
                start = change.entries.get(topic, 0)
                self._queues[topic] = _TopicQueue(start, start)
        for _, arrival in self._queue.values():
            queue = self._queues.get(arrival.topic)
            if queue is not None and arrival.number > queue.start:
                queue.waiting[arrival.number] = arrival
        self._forget_strangers()
        self._history.restart(self.clock)
        self._look_again()

    def _look_again(self) -> None:
        self._waiters.clear()
        self._agenda = list(self._queues)
        self._advance()

    def _end(self, topic: str, count: int) -> None:
        """Leave a topic now: what is missing may never come, so nothing is waited for."""
        queue = self._queues[topic]
        waiting = _up_to(queue, count)
        if waiting:
            self._history.restart(self.clock)  # others may have been left just now
        for arrival in waiting:
            self._notify(queue, arrival)
        # What waits beyond the end stays in the queue, for a change that may gain the topic again.
        del self._queues[topic]
        self._left.append(topic)

    def _forget_strangers(self) -> None:
        if self.changes.asked:
            return
        for key, (_, arrival) in list(self._queue.items()):
            queue = self._queues.get(arrival.topic)
            if queue is None or arrival.number not in queue.waiting:
                del self._queue[key]
                self._uncount(arrival)

    def receive(self, arrival: Arrival, now: float) -> None:
        """An event came from the ENS."""
        queue = self._queues.get(arrival.topic)
        key = (arrival.topic, arrival.number)
        if key in self._queue or (queue is None and not self.changes.asked):
            return
        if queue is not None and arrival.number <= queue.clock:
            if queue.passed.pop(arrival.number, False):
                moment = self._history.now()
                self._ready.append(Notification(arrival, None, moment, self.changes.version, out_of_order=True))
            return
        self._queue[key] = (now + self.ttl_s, arrival)
        self.buffered += 1
        self.buffered_bytes += arrival.size
        if queue is not None:
            queue.waiting[arrival.number] = arrival
            self._agenda.append(arrival.topic)
            self._advance()
        while self.buffered > self.buffer_events_max or self.buffered_bytes > self.buffer_bytes_max:
            if not self._force_oldest(None):
                self._drop_oldest()

    def tick(self, now: float) -> None:
        """Notify what has waited long enough."""
        while self._force_oldest(now):
            pass

    def next_deadline(self) -> float | None:
        """When `tick` should be called at the latest."""
        for deadline, arrival in self._queue.values():
            if self._may_be_forced(arrival):
                return deadline
        return None

    def _force_oldest(self, now: float | None) -> bool:
        """Notify the oldest event, or with `now` the oldest whose time is up; say whether there was one."""
        for deadline, arrival in self._queue.values():
            if now is not None and deadline > now:
                return False
            if self._may_be_forced(arrival):
                queue = self._queues[arrival.topic]
                for earlier in _up_to(queue, arrival.number):
                    self._notify(queue, earlier)
                self._advance()
                return True
        return False

    def _may_be_forced(self, arrival: Arrival) -> bool:
        queue = self._queues.get(arrival.topic)
        if queue is None or arrival.number not in queue.waiting or self.changes.may_lose(arrival.topic):
            return False
        return not any(self._waits_for_change(earlier) for earlier in _up_to(queue, arrival.number))

    def _waits_for_change(self, arrival: Arrival) -> bool:
        """Whether its marks speak of a change without an outcome; one that was never asked for will have none."""
        marks = arrival.marks
        return (
            bool(marks)
            and self.changes.holds(marks, arrival.topic, arrival.number)
            and not self.changes.cannot_be(marks)
        )

    def _drop_oldest(self) -> None:
        key, (_, arrival) = next(iter(self._queue.items()))
        del self._queue[key]
        self._uncount(arrival)
        queue = self._queues.get(arrival.topic)
        if queue is not None:
            queue.waiting.pop(arrival.number, None)

    def _advance(self) -> None:
        """Notify whatever is next on the topics of the agenda, and on those that it wakes."""
        while self._agenda:
            topic = self._agenda.pop()
            queue = self._queues.get(topic)
            while queue is not None:
                head = queue.waiting.get(queue.clock + 1)
                if head is None or self._waits_for_change(head):
                    break
                lacking = self._lacking(head)
                if lacking is not None:
                    self._waiters.setdefault(lacking, {})[topic] = True
                    break
                self._notify(queue, head)

    def _is_in_order(self, queue: _TopicQueue, arrival: Arrival) -> bool:
        return arrival.number == queue.clock + 1 and self._lacking(arrival) is None

    def _lacking(self, arrival: Arrival) -> str | None:
        """A topic of which the event's timestamp says that more comes before it."""
        for other, count in arrival.entries.items():
            queue = self._queues.get(other)
            if queue is not None and count > queue.clock:
                return other
        return None

    def _notify(self, queue: _TopicQueue, arrival: Arrival) -> None:
        out_of_order = not self._is_in_order(queue, arrival)
        for number in range(max(queue.clock + 1, arrival.number - PASSED_MAX), arrival.number):
            queue.passed[number] = True
        while len(queue.passed) > PASSED_MAX:
            del queue.passed[next(iter(queue.passed))]
        queue.clock = max(queue.clock, arrival.number)
        self._agenda.append(arrival.topic)
        self._agenda.extend(self._waiters.pop(arrival.topic, ()))
        self._forget(queue, arrival)
        moment = self._history.jumped(arrival.topic, queue.clock)
        self._ready.append(Notification(arrival, None, moment, self.changes.version, out_of_order))

    def _forget(self, queue: _TopicQueue, arrival: Arrival) -> None:
        del queue.waiting[arrival.number]
        del self._queue[(arrival.topic, arrival.number)]
        self._uncount(arrival)

    @property
    def clock(self) -> dict[str, int]:
        """For each topic the highest number notified, or at which it began."""
        return {topic: queue.clock for topic, queue in self._queues.items()}

    @property
    def topics(self) -> list[str]:
        """The topics that are held now."""
        return list(self._queues)

    def waiting_for(self, limit: int = 5) -> str:
        """Say in words what waits."""
        return f"{self.buffered} events wait for their turn or the end of their {self.ttl_s} s"


def _up_to(queue: _TopicQueue, last: int) -> list[Arrival]:
    """What waits of a topic up to a number, in order."""
    return [queue.waiting[number] for number in sorted(queue.waiting) if number <= last]
