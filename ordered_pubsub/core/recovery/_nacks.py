"""Nacks: which events of a topic somebody misses, and when to ask for them again (the papers call it *curiosity*).

After Bhola and others, "Exactly-once Delivery in a Content-based Publish-Subscribe System" (DSN 2002), sections 2.1.1, 3.1
and 3.2. Of each number a stream is neutral (N, the default), curious (C: somebody misses it) or acknowledged (A: nobody needs
it any more). Acknowledgements are cumulative, so A is one number, up to which everything is.

A gap is not asked for at once: where events overtake each other, most gaps close by themselves. It becomes due after the gap
curiosity threshold (`gct_s`), or at once if there is no doubt (`want_now`). To ask for it is to send a nack. That, or its
answer, may be lost, so what was asked for is due again after an interval that is estimated as TCP estimates its own (`Rto`),
and that doubles each time up to a ceiling: an owner that is down is not pestered, and one that is back is found soon.

Numbers with the same past have the same `_Turn`: when they are due, how often they were asked for, and when last. A heap
knows whose turn is next, and a map of ranges what a number's turn is. What is found to be due goes into one set of ranges,
of which the lowest numbers are asked for first, since all later ones wait for them. So the work is that of the ranges that
change, and not of all there are.

INVARIANT: of the curious numbers, those that are not in `_due` are in `_turns.numbers`, and their turns in the heap.

`Consolidation` stands between many who miss events and the one who has them. Whoever asks first is passed on; who asks for
the same within the least interval of repetition gets the same answer. Then it is forgotten that it was asked: if the answer
was lost, they ask again, and that must get through.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

import attrs

from ordered_pubsub.core.ranges import ENDLESS, Range, RangeMap, Ranges

NACK_NUMBERS_MAX = 1_000
"""How many numbers are asked for at a time: a lost nack costs no more than that."""
STALE_TURNS_MAX = 64
"""So many turns that no number has any more may be left in a heap, on top of as many as there are others."""
ASKED_RANGES_MAX = 100_000
"""So many ranges a `Consolidation` remembers. Forgetting one costs a nack, and nothing else."""
RTO_FIRST_S = 1.0
"""The interval before any round trip was measured (RFC 6298, 2.1)."""
DOUBLINGS_MAX = 60
"""What was doubled so often is above any ceiling, and can still be computed."""

_Note = TypeVar("_Note")


@attrs.define
class Rto:
    """After how long an answer is overdue, as RFC 6298 estimates it from the round trips so far."""

    floor_s: float
    ceiling_s: float
    srtt_s: float | None = attrs.field(default=None, init=False)
    rttvar_s: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        assert 0 < self.floor_s <= self.ceiling_s, f"the floor, {self.floor_s} s, is above 0 and not above the ceiling"

    def sample(self, rtt_s: float) -> None:
        """A nack was answered after so long (2.2, 2.3)."""
        if self.srtt_s is None:
            self.srtt_s, self.rttvar_s = rtt_s, rtt_s / 2
            return
        self.rttvar_s += (abs(self.srtt_s - rtt_s) - self.rttvar_s) / 4
        self.srtt_s += (rtt_s - self.srtt_s) / 8

    @property
    def rto_s(self) -> float:
        """The interval before the first repetition."""
        estimate = RTO_FIRST_S if self.srtt_s is None else self.srtt_s + 4 * self.rttvar_s
        return min(max(estimate, self.floor_s), self.ceiling_s)

    def interval_s(self, attempt: int) -> float:
        """How long to wait for an answer when it was asked for `attempt` times before."""
        # DEVIATION (Bhola 3.2: a fixed nack repetition threshold): estimated from the answers, as TCP does, and doubled up to a
        # ceiling.
        return min(self.rto_s * 2.0 ** min(attempt, DOUBLINGS_MAX), self.ceiling_s)


@attrs.define(eq=False)
class _Notes(Generic[_Note]):
    """Numbers with a note each, to be found both ways."""

    notes: RangeMap[_Note] = attrs.field(factory=RangeMap)
    numbers: OrderedDict[_Note, Ranges] = attrs.field(factory=OrderedDict)
    """The numbers of each note, the oldest note first, but for those that were taken out.

    A plain dict keeps a hole for each key that was taken from its front, and looking for the next would step over all of them.
    """

    def put(self, first: int, last: int, note: _Note) -> bool:
        """Note something of numbers that have no note; say whether nothing else had this note."""
        self.notes.put(first, last, note)
        numbers = self.numbers.get(note)
        if numbers is not None:
            numbers.add(first, last)
            return False
        self.numbers[note] = Ranges([(first, last)])
        return True

    def remove(self, first: int, last: int) -> list[tuple[int, int, _Note]]:
        """Let these numbers have no note, and return those that they had, as ranges in order."""
        parts = self.notes.parts(first, last)
        for begin, end, note in parts:
            numbers = self.numbers.get(note)
            if numbers is not None:
                numbers.remove(begin, end)
                if not numbers:
                    del self.numbers[note]
        self.notes.remove(first, last)
        return parts


class _Turn(NamedTuple):
    """When numbers are to be asked for, and how they were before. A tuple, since the heap does little else than compare."""

    due_at: float
    attempts: int = 0
    asked_at: float = 0.0
    """the last time, if there was one"""


@attrs.define(eq=False)
class Nacks:
    """What is missed of one topic (a curiosity stream). Time never goes back."""

    gct_s: float
    rto: Rto
    acknowledged: int = attrs.field(default=0, init=False)
    _turns: _Notes[_Turn] = attrs.field(factory=_Notes, init=False)
    _heap: list[_Turn] = attrs.field(factory=list, init=False)
    _due: Ranges = attrs.field(factory=Ranges, init=False)

    def want(self, first: int, last: int, now: float) -> None:
        """These numbers are missing; those that are neutral are asked for if that lasts for `gct_s`."""
        self._become_curious(first, last, _Turn(now + self.gct_s))

    def want_now(self, first: int, last: int, now: float) -> None:
        """These numbers are lost: ask for them at once, but for those that were asked for before."""
        turn = _Turn(now)
        for begin, end, waiting in self._turns.notes.parts(first, last):
            if not waiting.attempts and waiting.due_at > now:
                self._turns.remove(begin, end)
                self._schedule(begin, end, turn)
        self._become_curious(first, last, turn)

    def _become_curious(self, first: int, last: int, turn: _Turn) -> None:
        for begin, end in self._turns.notes.missing(max(first, self.acknowledged + 1), last):
            self._schedule(begin, end, turn)

    def satisfied(self, first: int, last: int, now: float) -> None:
        """These numbers came. From an answer to several nacks the round trip of each is learned once.

        Nothing is learned from what was asked for twice, since nobody knows which of the two was answered (Karn's rule).
        """
        parts = self._become_neutral(first, last)
        for asked_at in dict.fromkeys(turn.asked_at for _, _, turn in parts if turn.attempts == 1):
            self.rto.sample(now - asked_at)

    def forget_beyond(self, number: int) -> None:
        """There are no numbers beyond this one."""
        self._become_neutral(number + 1, ENDLESS)

    def acknowledge(self, up_to: int) -> None:
        """Nobody needs the numbers up to this one any more, whether they came or not."""
        if up_to > self.acknowledged:
            self._become_neutral(1, up_to)
            self.acknowledged = up_to

    def _become_neutral(self, first: int, last: int) -> list[tuple[int, int, _Turn]]:
        self._due.remove(first, last)
        return self._turns.remove(first, last)

    def take_due(self, now: float, limit: int = NACK_NUMBERS_MAX, up_to: int = ENDLESS) -> list[Range]:
        """The numbers to be asked for now, in order: the lowest `limit` of them, none beyond `up_to`. The others stay due."""
        assert limit > 0, f"at least one number is asked for at a time, not {limit}"
        self._find_due(now)
        taken = self._cut(limit, up_to)
        for first, last in taken:
            self._ask(first, last, now)
        return taken

    def _find_due(self, now: float) -> None:
        while self._heap and self._heap[0].due_at <= now:
            for first, last in self._turns.numbers.pop(heappop(self._heap), ()):
                self._due.add(first, last)

    def _cut(self, limit: int, up_to: int) -> list[Range]:
        """Take the lowest numbers out of those that are due."""
        taken: list[Range] = []
        for first, last in self._due:
            if first > up_to:
                break
            taken.append((first, min(last, first + limit - 1, up_to)))
            limit -= last - first + 1
            if limit <= 0:
                break
        if taken:
            self._due.forget_up_to(taken[-1][1])
        return taken

    def _ask(self, first: int, last: int, now: float) -> None:
        """Let a range that is asked for now be due again later; parts that were asked for as often are one from now on."""
        parts = self._turns.remove(first, last)
        for attempts, alike in groupby(parts, key=lambda part: part[2].attempts):
            same = list(alike)
            turn = _Turn(now + self.rto.interval_s(attempts), attempts + 1, now)
            self._schedule(same[0][0], same[-1][1], turn)

    def _schedule(self, first: int, last: int, turn: _Turn) -> None:
        if self._turns.put(first, last, turn):
            heappush(self._heap, turn)
            if len(self._heap) > 2 * len(self._turns.numbers) + STALE_TURNS_MAX:
                self._heap = list(self._turns.numbers)
                heapify(self._heap)

    @property
    def next_due(self) -> float | None:
        """When `take_due` is to be called: in the past if something is due already; None if nothing will ever be."""
        lowest = self._due.first
        return self.next_turn if lowest is None else self._turns.notes.parts(lowest, lowest)[0][2].due_at

    @property
    def next_turn(self) -> float | None:
        """When more will be due, or due again, than is now."""
        while self._heap and self._heap[0] not in self._turns.numbers:
            heappop(self._heap)
        return self._heap[0].due_at if self._heap else None

    @property
    def is_curious(self) -> bool:
        """Whether anything is missing."""
        return len(self._turns.notes) > 0

    def under_way(self, now: float) -> int:
        """How many numbers were asked for and are not due again."""
        self._find_due(now)
        return sum(numbers.count for turn, numbers in self._turns.numbers.items() if turn.attempts)

    @property
    def curious(self) -> Ranges:
        """The numbers that are missing, for looking at: a copy."""
        return Ranges((first, last) for first, last, _ in self._turns.notes.parts())

    def __repr__(self) -> str:
        return f"Nacks(C={self.curious!r}, A up to {self.acknowledged}, next due at {self.next_due})"


@attrs.define(eq=False)
class Consolidation:
    """What of one topic was asked of its owner lately, on behalf of everybody behind a stage. Time never goes back."""

    floor_s: float
    _asked: _Notes[float] = attrs.field(factory=_Notes, init=False)

    def fresh(self, first: int, last: int, now: float) -> list[Range]:
        """Those of these numbers to ask the owner for now: nobody did for `floor_s`, or it has answered since."""
        self.forget_expired(now)
        parts = self._asked.notes.missing(first, last)
        for begin, end in parts:
            self._asked.put(begin, end, now)
        while len(self) > ASKED_RANGES_MAX:
            self._forget_oldest()
        return parts

    def satisfied(self, first: int, last: int) -> None:
        """These numbers came: who asks for them again has lost them since."""
        self._asked.remove(first, last)

    def forget_expired(self, now: float) -> None:
        """Forget what was asked for so long ago that it may be repeated. `fresh` does so, too."""
        while self._asked.numbers and next(iter(self._asked.numbers)) + self.floor_s <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, numbers = self._asked.numbers.popitem(last=False)
        for first, last in numbers:
            self._asked.remove(first, last)

    def __len__(self) -> int:
        """How many ranges it remembers."""
        return len(self._asked.notes)
