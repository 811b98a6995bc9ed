"""Compares what everybody has written down.

The order: for each two subscribers, the events that both were notified of are taken in the order of the one and must rise in
the order of the other; pairs that do not are counted, exactly, and so are those of the raw arrivals from the broker. Numbers:
each is used once, none is skipped. Notifications: without gap and without repetition while a topic is held, each with the
number that its receipt has, and those of one publisher in the order in which it published.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import attrs


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
    """numbers used twice or skipped, gaps, repetitions, wrong numbers"""

    @property
    def is_good(self) -> bool:
        """Whether all was as promised."""
        return not self.disagreeing_pairs and not self.faults


def judge(receipts: Iterable[Path], logs: Sequence[Path], raws: Sequence[Path]) -> Verdict:
    """Read what publishers and subscribers have written down, and compare."""
    verdict = Verdict()
    numbered = _read_receipts(receipts, verdict)
    orders = [_read_log(log, numbered, verdict) for log in logs]
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

    `- topic` and `+ topic` are written before a topic is left and gained, `@ topic number` when it was gained: everything up
    to this number was notified, or is before its beginning.
    """

    name: str
    numbered: dict[str, tuple[str, int]]
    verdict: Verdict
    order: list[str] = attrs.field(factory=list)
    _last: dict[str, int] = attrs.field(factory=dict)
    _published: dict[str, int] = attrs.field(factory=dict)
    _left: dict[str, bool] = attrs.field(factory=dict)
    """topics that are left, or about to be; those that are gained again are true"""

    def read(self, line: str) -> None:
        """A notification, or something about a topic."""
        words = line.split()
        if words[0] == "-":
            self._left[words[1]] = False
        elif words[0] == "+":
            if words[1] in self._left:
                self._left[words[1]] = True
        elif words[0] == "@":
            self._go_to(words[1], int(words[2]))
            self._left.pop(words[1], None)
        else:
            self._notified(words[0], int(words[1]), words[2])

    def _go_to(self, topic: str, number: int) -> None:
        """Pass numbers, which is right only if the topic was left and is gained again."""
        last = self._last.get(topic, number)
        if number < last:
            self._fault(f"{topic} {number} comes after {last}")
        elif number > last and not self._left.pop(topic, False):
            self._fault(f"{topic} {last + 1} to {number} were not notified")
        self._last[topic] = number

    def _notified(self, topic: str, number: int, event: str) -> None:
        if topic in self._last:
            self._go_to(topic, number - 1)
        self._last[topic] = number
        if self.numbered.get(event) != (topic, number):
            self._fault(f"{event} was notified as {topic} {number}, and its receipt says {self.numbered.get(event)}")
        publisher, _, sequence = event.rpartition("-")
        if int(sequence) <= self._published.get(publisher, 0):
            self._fault(f"{event} was notified after {publisher}-{self._published[publisher]}")
        self._published[publisher] = int(sequence)
        self.order.append(event)

    def _fault(self, what: str) -> None:
        self.verdict.faults.append(f"{self.name}: {what}")


def _read_log(path: Path, numbered: dict[str, tuple[str, int]], verdict: Verdict) -> list[str]:
    reader = _Reader(path.stem, numbered, verdict)
    for line in path.read_text().splitlines():
        reader.read(line)
    verdict.notified += len(reader.order)
    return reader.order


def _read_raw(path: Path) -> list[str]:
    """The events as they arrived, each once."""
    return list(dict.fromkeys(line.split()[1] for line in path.read_text().splitlines()))
