"""Compares what everybody has written down.

The order: for each two subscribers, the events that both were notified of are taken in the order of the one and must rise in
the order of the other; pairs that do not are counted, exactly, and so are those of the raw arrivals from the broker. Numbers:
each is used once, none is skipped, and whatever was published has one. Notifications: without gap and without repetition while
a topic is held, each with the number that its receipt has, and those of one publisher in the order in which it published; their
positions are 1, 2, 3, … without a break, whatever topics come and go.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import attrs

NO_RECEIPT = "! "
"""Before what a publisher says of a publication that was never taken."""


@attrs.define
class Verdict:
    """What came out."""

    published: int = 0
    notified: int = 0
    compared_pairs: int = 0
    """pairs of events that two subscribers both were notified of"""
    disagreeing_pairs: int = 0
    """those that they were notified of in different order"""
    raw_compared_pairs: int = 0
    raw_disagreeing_pairs: int = 0
    """the same for the arrivals from the broker"""
    faults: list[str] = attrs.field(factory=list)
    """numbers used twice or skipped, publications without one, gaps, repetitions, wrong numbers and positions"""

    @property
    def is_good(self) -> bool:
        """Whether all was as promised."""
        return not self.disagreeing_pairs and not self.faults


def judge(receipts: Sequence[Path], logs: Sequence[Path], raws: Sequence[Path]) -> Verdict:
    """Read what publishers and subscribers have written down, and compare."""
    verdict = Verdict()
    numbered = _read_receipts(receipts, verdict)
    totals = totals_of(receipts)
    orders = [_read_log(log, numbered, totals, verdict) for log in logs]
    for one, other in combinations(orders, 2):
        compared, disagreeing = compare(one, other)
        verdict.compared_pairs += compared
        verdict.disagreeing_pairs += disagreeing
    for one, other in combinations([_read_raw(raw) for raw in raws], 2):
        compared, disagreeing = compare(one, other)
        verdict.raw_compared_pairs += compared
        verdict.raw_disagreeing_pairs += disagreeing
    return verdict


def totals_of(receipts: Iterable[Path]) -> dict[str, int]:
    """topic → its last number."""
    totals: dict[str, int] = {}
    for path in receipts:
        for line in path.read_text().splitlines():
            if not line.startswith(NO_RECEIPT):
                topic, number, _ = line.split()
                totals[topic] = max(totals.get(topic, 0), int(number))
    return totals


def compare(one: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """How many pairs of events two orders have in common, and how many of those they have the other way round."""
    place = {event: at for at, event in enumerate(other)}
    common = [place[event] for event in one if event in place]
    count = len(common)
    return count * (count - 1) // 2, _inversions(common)


def _inversions(places: Sequence[int]) -> int:
    """How many pairs stand the wrong way round."""
    if all(places[at] < places[at + 1] for at in range(len(places) - 1)):
        return 0
    seen: list[int] = []
    inversions = 0
    for place in places:
        inversions += len(seen) - bisect_right(seen, place)
        insort(seen, place)
    return inversions


def _read_receipts(receipts: Iterable[Path], verdict: Verdict) -> dict[str, tuple[str, int]]:
    """event → topic and number."""
    numbered: dict[str, tuple[str, int]] = {}
    used: dict[tuple[str, int], str] = {}
    for path in receipts:
        for line in path.read_text().splitlines():
            if line.startswith(NO_RECEIPT):
                verdict.faults.append(line.removeprefix(NO_RECEIPT))
                continue
            topic, number, event = line.split()
            place = (topic, int(number))
            if place in used:
                verdict.faults.append(f"number {number} of {topic} was given to {used[place]} and to {event}")
            used[place] = event
            numbered[event] = place
    verdict.published = len(numbered)
    highest: dict[str, int] = {}
    for topic, number_used in used:
        highest[topic] = max(highest.get(topic, 0), number_used)
    for topic, last in highest.items():
        verdict.faults += [f"number {n} of {topic} was skipped" for n in range(1, last + 1) if (topic, n) not in used]
    return numbered


@attrs.define
class _Reader:
    """One subscriber's log, read line by line.

    `@ topic number` says that a topic is held from behind this number on, `/ topic number` that it is left behind it: so the
    stages have decided. Exactly the numbers between are to be notified, each once.
    """

    name: str
    numbered: dict[str, tuple[str, int]]
    verdict: Verdict
    order: list[str] = attrs.field(factory=list)
    _held: dict[str, list[list[int]]] = attrs.field(factory=dict)
    """topic → from behind which number to which it was held, each time; the last may have no end"""
    _notified: dict[str, list[int]] = attrs.field(factory=dict)
    _published: dict[str, int] = attrs.field(factory=dict)

    def read(self, line: str) -> None:
        """A notification, or something about a topic."""
        words = line.split()
        if words[0] == "@":
            self._held.setdefault(words[1], []).append([int(words[2])])
        elif words[0] == "/":
            self._held[words[1]][-1].append(int(words[2]))
        else:
            self._take(words[0], int(words[1]), words[2], words[3])

    def _take(self, topic: str, number: int, event: str, position: str) -> None:
        self._notified.setdefault(topic, []).append(number)
        self.order.append(event)
        if position != str(len(self.order)):
            self._fault(f"{event} was notified in position {position}, and it was notification {len(self.order)}")
        if self.numbered.get(event) != (topic, number):
            self._fault(f"{event} was notified as {topic} {number}, and its receipt says {self.numbered.get(event)}")
        publisher, _, sequence = event.rpartition("-")
        if int(sequence) <= self._published.get(publisher, 0):
            self._fault(f"{event} was notified after {publisher}-{self._published[publisher]}")
        self._published[publisher] = int(sequence)

    def finish(self, totals: dict[str, int]) -> None:
        """Compare what was notified with what was held."""
        for topic in {**self._held, **self._notified}:
            ranges = [
                (held[0] + 1, held[1] if len(held) > 1 else totals.get(topic, 0)) for held in self._held.get(topic, [])
            ]
            expected = [number for first, last in ranges for number in range(first, last + 1)]
            found = self._notified.get(topic, [])
            if found != expected:
                at = _first_difference(found, expected)
                self._fault(
                    f"{topic}: held {ranges}, {len(expected)} notifications; notified {len(found)}, differing from place "
                    f"{at + 1} on: {found[at : at + 3]} instead of {expected[at : at + 3]}"
                )

    def _fault(self, what: str) -> None:
        self.verdict.faults.append(f"{self.name}: {what}")


def _first_difference(found: Sequence[int], expected: Sequence[int]) -> int:
    both = min(len(found), len(expected))
    return next((at for at in range(both) if found[at] != expected[at]), both)


def _read_log(path: Path, numbered: dict[str, tuple[str, int]], totals: dict[str, int], verdict: Verdict) -> list[str]:
    reader = _Reader(path.stem, numbered, verdict)
    for line in path.read_text().splitlines():
        reader.read(line)
    reader.finish(totals)
    verdict.notified += len(reader.order)
    return reader.order


def _read_raw(path: Path) -> list[str]:
    """The events as they arrived, each once."""
    return list(dict.fromkeys(line.split()[1] for line in path.read_text().splitlines()))
