"""The owner's side of knowledge: answers home stages from the log, a small piece at a time.

What is asked for waits, the same numbers once. Home stages take turns, and of one of them its topics: `serve` answers the next
piece, and the rest waits for its next turn. So who asks for much does not delay who asks for little, and nobody delays the stage.
What waits for one home stage is bounded; what finds that full is asked again.

What was lost last is missed by nobody who looks at numbers only. So home stages say up to where their clients have acknowledged
each topic, and where acknowledgements of an event are missing `aet_s` after it, the owner says that it is there; again and
again, less and less often, for as long as they are missing.

That time runs for each event, and not for the last one: to whom the ENS brings nothing, whatever is published, would else learn
of nothing for as long as somebody publishes. But nothing is kept per event: what was published between two ticks is one
*milestone*, the last numbers of these topics, and counts from the earlier tick on. So nobody is told later than `aet_s` after an
event, nothing is expected of anybody that is younger than `aet_s` less a tick, and there are as many milestones as ticks in
`aet_s`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import attrs

from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.messages import AckExpected, HomeFloors, LogReply, NackRange
from ordered_pubsub.core.ranges import Ranges

AET_S = 2.0
"""Ack expected threshold: so long after a topic's last event everybody should have acknowledged it."""
AET_MOST_S = 10.0
PIECE_BYTES = 64 * 1024
"""About so much is read at a time."""
FULLS_MAX = 64
"""So many full timestamps of a topic are waited for at a time."""
TOPICS_AT_ONCE = 16
"""So many topics are looked at to find one of which a home stage does not have enough."""
WANTS_MAX = 10_000
"""Pieces of the log that may be waited for, by each home stage."""


class _Restless(NamedTuple):
    """A topic of which somebody had not acknowledged all, when that was looked at last."""

    expected: int
    """up to where somebody had not"""
    again_at: float
    pause_s: float


@attrs.define(slots=True)
class _Wanted:
    """What a home stage waits for of a topic."""

    numbers: Ranges = attrs.field(factory=Ranges)
    fulls: dict[int, bool] = attrs.field(factory=dict)
    """those whose full timestamps are wanted"""

    def take(self) -> tuple[int, int, bool]:
        """The lowest numbers, and whether the first one's full timestamp is wanted."""
        first, last = next(iter(self.numbers))
        full = self.fulls.pop(first, False)
        last = min([last, *(number - 1 for number in self.fulls if first < number <= last)])
        self.numbers.remove(first, last)
        return first, last, full


@attrs.define(eq=False)
class OwnerLogs:
    """The topics' ends where events are published, of one stage."""

    reader: LogReader
    aet_s: float = AET_S
    given: Callable[[str], int] | None = None
    """the last number of a topic that was given, complete or not; None: nobody knows"""
    _last: dict[str, int] = attrs.field(factory=dict)
    """topic → its last complete number"""
    _homes: dict[int, dict[str, int]] = attrs.field(factory=dict)
    """home stage → topics of which it has subscribers → up to where all of these have acknowledged it"""
    _stirred: dict[str, int] = attrs.field(factory=dict)
    """topics of which something has changed since the last tick, and their last numbers"""
    _ticked_at: float = float("-inf")
    _milestones: deque[tuple[float, dict[str, int]]] = attrs.field(factory=deque)
    """topics, and the numbers up to which everybody should have acknowledged them, and from when on"""
    _restless: dict[str, _Restless] = attrs.field(factory=dict)
    _waiting: OrderedDict[int, OrderedDict[str, _Wanted]] = attrs.field(factory=OrderedDict)
    """home stage → topic → what it waits for; whose turn is next comes first"""
    _pieces: dict[int, int] = attrs.field(factory=dict)
    """home stage → how many pieces that are"""
    reminders: int = 0
    """how often a home stage was told that its clients have not acknowledged all of a topic"""
    recalls: int = 0
    """how often home stages have asked for what their clients miss"""
    recalled_numbers: int = 0
    """… and for how many numbers"""

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def published(self, topic: str, last: int) -> None:
        """An event is complete, and on disk."""
        if last > self._last.get(topic, 0):
            self._last[topic] = self._stirred[topic] = last

    def hosts(self, home: int, hosts: HomeFloors) -> None:
        """A home stage says up to where its clients have acknowledged some topics."""
        if hosts.is_all:
            self.home_is_gone(home)
        for topic, acked in hosts.acked.items():
            if acked is None:
                self._leave(topic, home)
            else:
                self._homes.setdefault(home, {})[topic] = acked
                if acked < (last := self._last.get(topic, 0)) and not self._is_looked_at(topic):
                    self._stirred[topic] = last

    def _is_looked_at(self, topic: str) -> bool:
        """Whether it is looked who is behind, at some time from now on."""
        return topic in self._restless or any(topic in lasts for _, lasts in self._milestones)

    def home_is_gone(self, home: int) -> None:
        """Nothing is known of the clients of a stage any more."""
        self._homes.pop(home, None)

    def rest(self, topics: Iterable[str]) -> None:
        """Nobody holds these, and nobody misses anything of them."""
        for topic in topics:
            for home in list(self._homes):
                self._leave(topic, home)
            self._last.pop(topic, None)
            self._stirred.pop(topic, None)
            self._restless.pop(topic, None)
            for _, lasts in self._milestones:
                lasts.pop(topic, None)

    def _leave(self, topic: str, home: int) -> None:
        topics = self._homes.get(home, {})
        topics.pop(topic, None)
        if not topics:
            self._homes.pop(home, None)

    def tick(self, now: float) -> list[tuple[int, AckExpected]]:
        """Time passes: which home stages to tell how far some topics are."""
        since, self._ticked_at = self._ticked_at if self._ticked_at > now - self.aet_s else now, now
        if self._stirred:
            self._milestones.append((since + self.aet_s, self._stirred))
            self._stirred = {}
        expected: dict[int, dict[str, int]] = {}
        while self._milestones and self._milestones[0][0] <= now:
            for topic, last in self._milestones.popleft()[1].items():
                self._look(topic, last, now, self.aet_s, expected)
        for topic, restless in list(self._restless.items()):
            if restless.again_at <= now:
                self._look(topic, restless.expected, now, min(2 * restless.pause_s, AET_MOST_S), expected)
        self.reminders += sum(map(len, expected.values()))
        return [(home, AckExpected(counts)) for home, counts in expected.items()]

    def _look(self, topic: str, count: int, now: float, pause_s: float, expected: dict[int, dict[str, int]]) -> None:
        """Look who is behind a number of a topic; if anybody is, look again after a pause."""
        behind = [home for home, topics in self._homes.items() if topics.get(topic, count) < count]
        for home in behind:
            expected.setdefault(home, {})[topic] = count
        if behind:
            self._restless[topic] = _Restless(count, now + pause_s, pause_s)
        else:
            self._restless.pop(topic, None)

    # -- recalling ----------------------------------------------------------------------------------------------------

    def handle_request(self, home: int, wants: list[NackRange]) -> None:
        """A home stage asks for parts of the log."""
        self.recalls += 1
        self.recalled_numbers += sum(want.last - want.first + 1 for want in wants)
        for want in wants:
            self._wait(home, want)

    def _wait(self, home: int, want: NackRange) -> None:
        if self._pieces.get(home, 0) >= WANTS_MAX:
            return
        wanted = self._waiting.setdefault(home, OrderedDict()).setdefault(want.topic, _Wanted())
        before = len(wanted.numbers)
        wanted.numbers.add(want.first, want.last)
        if want.full and len(wanted.fulls) < FULLS_MAX:
            wanted.fulls[want.first] = True
        self._pieces[home] = self._pieces.get(home, 0) + len(wanted.numbers) - before

    @property
    def has_work(self) -> bool:
        """Whether anybody waits for an answer."""
        return bool(self._waiting)

    def next_home(self, is_clogged: Callable[[int], bool]) -> int | None:
        """The home stage whose turn it is, of those that can be told something now."""
        return next((home for home in self._waiting if not is_clogged(home)), None)

    def turn_over(self, home: int, has_enough: Callable[[str], bool]) -> bool:
        """Go on to a topic of which a home stage does not have enough to do already; whether one of the next is so."""
        topics = self._waiting[home]
        for _ in range(min(TOPICS_AT_ONCE, len(topics))):
            topic = next(iter(topics))
            if not has_enough(topic):
                return True
            topics.move_to_end(topic)
        self._waiting.move_to_end(home)
        return False

    def serve_home(self, home: int) -> LogReply:
        """Read one piece for a home stage that waits for some."""
        topics = self._waiting[home]
        topic, wanted = next(iter(topics.items()))
        before = len(wanted.numbers)
        first, last, full = wanted.take()
        reading = self.reader.read(topic, first, last, PIECE_BYTES, full)
        wanted.numbers.add(reading.read_to + 1, last)
        self._pieces[home] += len(wanted.numbers) - before
        if wanted.numbers:
            topics.move_to_end(topic)
        else:
            del topics[topic]
        if topics:
            self._waiting.move_to_end(home)
        else:
            del self._waiting[home], self._pieces[home]
        given = -1 if self.given is None else self.given(topic)
        return LogReply(topic, first, reading.read_to, reading.floor, reading.items, given=given)
