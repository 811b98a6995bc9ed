"""Compares what everybody has written down.

The order: for each two subscribers, the events that both were notified of are taken in the order of the one and must rise in
the order of the other; pairs that do not are counted, exactly, and so are those of the raw arrivals from the broker. Numbers:
each is used once, none is skipped, and whatever was published has one. Notifications: without gap and without repetition while
a topic is held, each with the number that its receipt has, and those of one publisher in the order in which it published; their
positions are 1, 2, 3, … without a break, whatever topics come and go.

Those that are killed have several lives. A publisher may have published what it has no receipt for, or not; but once at most. The
log of a subscriber that is killed stops somewhere: it has what comes before, and nothing else, and in its next life it begins
anew. One with a name has no lives before the judge: its database has to be that of somebody who was never killed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import attrs

from ordered_pubsub.testing.trial.results import lines_of

NO_RECEIPT = "! "
"""Before what a publisher says of a publication that was never taken."""
SENT = "? "
"""Before what a publisher says that may be killed: that it is going to publish something."""
KILLED = "="
"""The line behind which another life begins."""
DATABASE = ".db"
"""The suffix of the database of a subscriber with a name."""


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
    without_receipt: int = 0
    """events of publishers that were killed, which had no receipt and were notified all the same"""
    again: int = 0
    """notifications that came again to a subscriber with a name, and had no effect"""
    latencies_us: array[int] = attrs.field(factory=lambda: array("q"), repr=False)
    """from publication to notification"""
    faults: list[str] = attrs.field(factory=list)
    """numbers used twice or skipped, publications without one, gaps, repetitions, wrong numbers and positions"""

    @property
    def is_good(self) -> bool:
        """Whether all was as promised."""
        return not self.disagreeing_pairs and not self.faults

    def latency_ms(self, share: float) -> float:
        """How long it took at most for this share of the notifications."""
        ordered = sorted(self.latencies_us)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] / 1e3 if ordered else float("nan")


def judge(receipts: Sequence[Path], logs: Sequence[Path], raws: Sequence[Path]) -> Verdict:
    """Read what publishers and subscribers have written down, and compare."""
    verdict = Verdict()
    published = _Published(verdict)
    for path in receipts:
        published.read(path)
    verdict.published = len(published.places)
    totals = totals_of(receipts)
    orders = [_read_log(log, published, totals, verdict) for log in logs]
    published.find_skipped()
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
            if not line.startswith((NO_RECEIPT, SENT)):
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


@attrs.define
class _Published:
    """What publishers say of their events, and what notifications say of those that have no receipt."""

    verdict: Verdict
    places: dict[str, tuple[str, int]] = attrs.field(factory=dict)
    """event → topic and number"""
    _used: dict[tuple[str, int], str] = attrs.field(factory=dict)
    _unknown: dict[str, str] = attrs.field(factory=dict)
    """event without a receipt → its topic, as long as nobody was notified of it"""

    def read(self, path: Path) -> None:
        """What one publisher has written down."""
        for line in path.read_text().splitlines():
            if line.startswith(NO_RECEIPT):
                self.verdict.faults.append(line.removeprefix(NO_RECEIPT))
            elif line.startswith(SENT):
                topic, event = line.removeprefix(SENT).split()
                self._unknown[event] = topic
            else:
                topic, number, event = line.split()
                self._unknown.pop(event, None)
                self._use(event, (topic, int(number)))

    def _use(self, event: str, place: tuple[str, int]) -> None:
        if place in self._used:
            self.verdict.faults.append(
                f"number {place[1]} of {place[0]} was given to {self._used[place]} and to {event}"
            )
        self._used[place] = event
        self.places[event] = place

    def notified(self, event: str, place: tuple[str, int]) -> None:
        """Somebody was notified; of an event without a receipt, this says what its number is, for all others too."""
        if self._unknown.get(event) == place[0]:
            del self._unknown[event]
            self.verdict.without_receipt += 1
            self._use(event, place)

    def find_skipped(self) -> None:
        """Each number was used, or may have been by an event that nobody has heard of."""
        highest: dict[str, int] = {}
        for topic, number in self._used:
            highest[topic] = max(highest.get(topic, 0), number)
        for topic, last in highest.items():
            skipped = [number for number in range(1, last + 1) if (topic, number) not in self._used]
            unheard = sum(1 for of in self._unknown.values() if of == topic)
            self.verdict.faults += [f"number {number} of {topic} was skipped" for number in skipped[unheard:]]


@attrs.define
class _Reader:
    """One subscriber's log, read line by line.

    `@ topic number` says that a topic is held from behind this number on, `/ topic number` that it is left behind it: so the
    stages have decided. Exactly the numbers between are to be notified, each once.
    """

    name: str
    published: _Published
    totals: dict[str, int]
    verdict: Verdict
    order: list[str] = attrs.field(factory=list)
    _began: int = 0
    """how many notifications there were before this life"""
    _held: dict[str, list[list[int]]] = attrs.field(factory=dict)
    """topic → from behind which number to which it was held, each time; the last may have no end"""
    _notified: dict[str, list[int]] = attrs.field(factory=dict)
    _last_of: dict[str, int] = attrs.field(factory=dict)

    def read(self, line: str) -> None:
        """A notification, or something about a topic."""
        words = line.split()
        if words[0] == "@":
            self._held.setdefault(words[1], []).append([int(words[2])])
        elif words[0] == "/":
            self._held[words[1]][-1].append(int(words[2]))
        elif words[0] == "~":
            self.verdict.again += 1
            if words[5] != "1":
                self._fault(f"{words[3]} came again as {words[1]} {words[2]}, and was something else before")
        elif words[0] == KILLED:
            self.finish(was_killed=True)
        else:
            self._take(words[0], int(words[1]), words[2], words[3])
            self.verdict.latencies_us.extend(map(int, words[4:]))

    def _take(self, topic: str, number: int, event: str, position: str) -> None:
        self._notified.setdefault(topic, []).append(number)
        self.order.append(event)
        if position != str(len(self.order) - self._began):
            at = len(self.order) - self._began
            self._fault(f"{event} was notified in position {position}, and it was notification {at}")
        self.published.notified(event, (topic, number))
        place = self.published.places.get(event)
        if place != (topic, number):
            self._fault(f"{event} was notified as {topic} {number}, and its receipt says {place}")
        publisher, _, sequence = event.rpartition("-")
        if int(sequence) <= self._last_of.get(publisher, 0):
            self._fault(f"{event} was notified after {publisher}-{self._last_of[publisher]}")
        self._last_of[publisher] = int(sequence)

    def finish(self, was_killed: bool = False) -> None:
        """Compare what was notified with what was held; one that was killed need not have come to the end."""
        for topic in {**self._held, **self._notified}:
            found = self._notified.get(topic, [])
            # What has no receipt may have a number beyond the last receipt's.
            to = max(self.totals.get(topic, 0), found[-1] if found else 0)
            ranges = [(held[0] + 1, held[1] if len(held) > 1 else to) for held in self._held.get(topic, [])]
            expected = [number for first, last in ranges for number in range(first, last + 1)]
            if found != (expected[: len(found)] if was_killed else expected):
                at = _first_difference(found, expected)
                self._fault(
                    f"{topic}: held {ranges}, {len(expected)} notifications; notified {len(found)}, differing from place "
                    f"{at + 1} on: {found[at : at + 3]} instead of {expected[at : at + 3]}"
                )
        self._began = len(self.order)
        self._held.clear()
        self._notified.clear()

    def _fault(self, what: str) -> None:
        self.verdict.faults.append(f"{self.name}: {what}")


def _first_difference(found: Sequence[int], expected: Sequence[int]) -> int:
    both = min(len(found), len(expected))
    return next((at for at in range(both) if found[at] != expected[at]), both)


def _read_log(path: Path, published: _Published, totals: dict[str, int], verdict: Verdict) -> list[str]:
    reader = _Reader(path.stem, published, totals, verdict)
    for line in lines_of(path) if path.suffix == DATABASE else path.read_text().splitlines():
        reader.read(line)
    reader.finish()
    verdict.notified += len(reader.order)
    return reader.order


def _read_raw(path: Path) -> list[str]:
    """The events as they arrived, each once."""
    return list(dict.fromkeys(line.split()[1] for line in path.read_text().splitlines()))
