"""Who reads ranges of the logs in a simulation: drives the very machines that `ordered_pubsub.reading` drives.

What is read changes nothing for anybody, and all that is drawn for it has a chance of its own: a world is the same without it.
"""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from ordered_pubsub.core.log.answering import bounding, read
from ordered_pubsub.core.log.cuts import BoundsAsk, Clock, Search, divide, lower
from ordered_pubsub.core.log.range_reader import LogBatch, RangeReader
from ordered_pubsub.core.log.reading import Bound, Bounded, Read, Rows
from ordered_pubsub.testing.record import RangeRecord
from ordered_pubsub.testing.world import ReadRange

if TYPE_CHECKING:
    from ordered_pubsub.core.stage.driver import Driver
    from ordered_pubsub.testing.simulation import Simulation

DELAY_S, AGAIN_S = 0.3, 0.2
"""So long a message takes at the most, and so long after it was out of reach a stage is tried again."""
PARTS_MAX = 3
PIECES_BYTES = (150, 600, 4_000)
"""So much is asked for at a time: a batch, a few, or all that there is."""
_indices = msgspec.msgpack.Decoder(list[int])


@attrs.define(eq=False)
class RangeHost:
    """One who reads one range, in parts."""

    simulation: Simulation
    action: ReadRange
    random: Random = attrs.field(init=False)
    is_over: bool = False
    _search: Search[Any] | None = None
    """for a cut where the range ends, then for cuts that divide it"""
    _asked: BoundsAsk | None = None
    _start: Clock = attrs.field(factory=dict)
    _end: Clock | None = None
    _cuts: list[Clock] = attrs.field(factory=list)
    """where the parts end that are not read yet"""
    _reader: RangeReader | None = None
    _record: RangeRecord | None = None
    _lines: dict[int, int] = attrs.field(factory=dict)
    """the stages that it is connected to → the lives in which they were that"""
    _number: int = 0
    _is_planned: bool = False

    def __attrs_post_init__(self) -> None:
        world = self.simulation.world
        self.random = Random(f"range {world.seed} {world.chance} {self.action.chance}")

    def _plan(self, after_s: float) -> None:
        if not self._is_planned:
            self._is_planned = True
            self.simulation.after(after_s, self._go_on)

    def _delay(self) -> float:
        return self.random.uniform(0.001, DELAY_S)

    def _driver(self, topic: str) -> Driver | None:
        """The owner of a topic, if it is up."""
        return self.simulation.stages[self.simulation.world.owners[topic]].driver

    # -- where it begins and ends -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Choose topics, a start and an end, of what there is now."""
        kept = self.simulation.world.kept
        topics = self.random.sample(kept, self.random.randint(1, len(kept)))
        if any(self._driver(topic) is None for topic in topics):
            self.simulation.after(AGAIN_S, self.begin)
            return
        end: Clock = {}
        for topic in topics:
            driver = self._driver(topic)
            assert driver is not None
            shelf = driver.owner_logs.reader.shelf
            first, last = shelf.floor(topic), shelf.last(topic)
            before = first if self.random.random() < 0.9 else 0  # somebody had read it so far, and it is gone since
            self._start[topic] = self.random.randint(before, last) if self.random.random() < 0.5 else before
            end[topic] = self.random.randint(self._start[topic], last) if self.random.random() < 0.5 else last
        self._search = lower(self._start, end, self.random.random() < 0.8)
        self._asked = next(self._search)
        self._plan(self._delay())

    def _go_on(self) -> None:
        self._is_planned = False
        if self._search is not None:
            self._look()
        elif self._reader is not None:
            self._read(self._reader)

    def _look(self) -> None:
        """Ask the owners how far a range may go."""
        assert self._search is not None
        assert self._asked is not None
        found = self._bounds(self._asked)
        if found is None:
            self._plan(AGAIN_S)
            return
        try:
            self._asked = self._search.send(found)
        except StopIteration as over:
            self._search = None
            self._found(over.value)
        if self._search is not None:
            self._plan(self._delay())

    def _bounds(self, ask: BoundsAsk) -> Clock | None:
        """None if an owner is down, or does not know yet."""
        found = dict(ask.clock)
        for topic, high in ask.clock.items():
            low, driver = ask.low.get(topic, 0), self._driver(topic)
            if driver is None:
                return None
            if high > low:
                bound = Bound(1, topic, low, high, dict(ask.clock), ask.is_whole)
                bounded = _come_to(bounding(driver.owner_logs.reader, bound))
                if not bounded.is_complete:
                    return None
                found[topic] = bounded.last
        return found

    def _found(self, found: Clock | list[Clock] | None) -> None:
        if isinstance(found, list):
            self._cuts = found
            self._begin_part()
        elif found is None:
            self.simulation.record.violation("I14", f"no cut was found from {self._start} on")
        else:
            self._end = found
            self._search = divide(self._start, found, self.random.randint(1, PARTS_MAX))
            try:
                self._asked = next(self._search)
            except StopIteration as over:
                self._search = None
                self._found(over.value)

    # -- what is in it ------------------------------------------------------------------------------------------------

    def _begin_part(self) -> None:
        if not self._cuts:
            self.is_over = True
            return
        end = self._cuts.pop(0)
        self._record = RangeRecord(dict(self._start), end)
        owners = self.simulation.world.owners
        piece_bytes = self.random.choice(PIECES_BYTES)
        self._reader = RangeReader.of(owners.__getitem__, self._start, end, self._lose, piece_bytes=piece_bytes)
        self._start = end
        self._lines.clear()
        self.simulation.trace("a reader begins at %s, to %s", self._record.start, end)
        self._plan(0.0)

    def _lose(self, topic: str, first_lost: int, first_there: int) -> None:
        """It is told that numbers are gone: that must be so."""
        assert self._record is not None
        self._record.lost.append((topic, first_lost, first_there - 1))
        floor = self.simulation.stages[self.simulation.world.owners[topic]].disk.read_shelf.floor(topic)
        if first_there - 1 > floor:
            self.simulation.record.violation(
                "I14",
                f"a reader was told that {topic} begins at {first_there}, and its log has what comes after {floor}",
            )

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _read(self, reader: RangeReader) -> None:
        """Take what is next; ask for what is lacking."""
        simulation = self.simulation
        self._take(reader.take())
        while reader.lacking is None and not reader.is_over:
            self._take(reader.take())
        if reader.lacking is None:
            self._end_part()
            return
        rank = reader.lacking
        host, owner = simulation.stages[rank], reader.owners[rank]
        if host.driver is None:
            self._plan(AGAIN_S)
            return
        if self._lines.get(rank) != host.incarnation:
            self._lines[rank] = host.incarnation
            owner.begin_anew()
        for ask in owner.asks(simulation.now, self._next_number):
            simulation.after(self._delay(), self._at_stage, reader, rank, host.incarnation, ask)
        if not owner.is_asked:
            self._plan(AGAIN_S)  # what is next is not complete yet

    def _at_stage(self, reader: RangeReader, rank: int, incarnation: int, ask: Read) -> None:
        host = self.simulation.stages[rank]
        if host.driver is None or host.incarnation != incarnation:
            self._plan(AGAIN_S)  # the line is lost
            return
        rows = read(host.driver.owner_logs.reader, ask)
        self.simulation.after(self._delay(), self._at_reader, reader, rank, incarnation, rows)

    def _at_reader(self, reader: RangeReader, rank: int, incarnation: int, rows: Rows) -> None:
        if self.simulation.stages[rank].incarnation != incarnation:
            self._plan(AGAIN_S)
        elif reader is self._reader and self._lines.get(rank) == incarnation:
            if reader.owners[rank].hear(rows, self.simulation.now):
                self.simulation.record.progress += 1
            self._read(reader)

    def _take(self, batches: list[LogBatch]) -> None:
        assert self._record is not None
        for batch in batches:
            for first, _, data in batch.chunks:
                for number, index in enumerate(_indices.decode(data), first):
                    if self._record.start[batch.topic] < number <= self._record.end[batch.topic]:
                        self._record.events.append((batch.topic, number, index))

    def _end_part(self) -> None:
        assert self._record is not None
        self.simulation.trace("a reader has %d events", len(self._record.events))
        self.simulation.record.ranges.append(self._record)
        self._reader = self._record = None
        self._begin_part()


def _come_to(steps: Generator[bool, None, Bounded]) -> Bounded:
    """What small steps come to."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            found: Bounded = over.value
            return found
