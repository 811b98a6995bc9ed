"""Who reads ranges of the logs in a simulation: drives the very machines that `ordered_pubsub.reading` drives.

What is read changes nothing for anybody, and all that is drawn for it has a chance of its own: a world is the same without it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from ordered_pubsub.core.log.answering import bounding, read
from ordered_pubsub.core.log.cuts import BoundsAsk, Clock, Search, divide, lower
from ordered_pubsub.core.log.questions import Bound, Bounded, Read, Rows
from ordered_pubsub.core.log.range_reader import LogBatch, RangeReader
from ordered_pubsub.testing.record import RangeRecord
from ordered_pubsub.testing.world import ReadRange

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation

DELAY_S, AGAIN_S = 0.3, 0.2
"""So long a message takes at the most, and so long after it was out of reach a stage is tried again."""
PARTS_MAX = 3
PIECES_BYTES = (150, 600, 4_000)
"""So much is asked for at a time: a batch, a few, or all that there is."""
_indices = msgspec.msgpack.Decoder(list[int])


@attrs.define(eq=False)
class PartsReader:
    """Reads from a clock to some cuts, one after the other."""

    simulation: Simulation
    random: Random
    start: Clock
    cuts: list[Clock]
    """where the parts end that are not read yet"""
    on_over: Callable[[], None]
    on_lost: Callable[[str, int, int], None]
    is_over: bool = False
    _reader: RangeReader | None = None
    _record: RangeRecord | None = None
    _lines: dict[int, int] = attrs.field(factory=dict)
    """the stages that it is connected to → the lives in which they were that"""
    _number: int = 0
    _is_planned: bool = False

    def _plan(self, after_s: float) -> None:
        if not self._is_planned:
            self._is_planned = True
            self.simulation.after(after_s, self._go_on)

    def _delay(self) -> float:
        return self.random.uniform(0.001, DELAY_S)

    def _go_on(self) -> None:
        self._is_planned = False
        if self._reader is not None and not self.is_over:
            self._read(self._reader)

    def begin(self) -> None:
        """Read the next part, if there is any."""
        if not self.cuts:
            self.is_over = True
            self.on_over()
            return
        end = self.cuts.pop(0)
        self._record = RangeRecord(dict(self.start), end)
        owners = self.simulation.world.owners
        piece_bytes = self.random.choice(PIECES_BYTES)
        self._reader = RangeReader.of(owners.__getitem__, self.start, end, self._lose, piece_bytes=piece_bytes)
        self.start = end
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
        self.on_lost(topic, first_lost, first_there)

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
        elif reader is self._reader and self._lines.get(rank) == incarnation and not self.is_over:
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
        self.begin()


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

    def __attrs_post_init__(self) -> None:
        world = self.simulation.world
        self.random = Random(f"range {world.seed} {world.chance} {self.action.chance}")

    def begin(self) -> None:
        """Choose topics, a start and an end, of what there is now."""
        stages, world, random = self.simulation.stages, self.simulation.world, self.random
        topics = random.sample(world.kept, random.randint(1, len(world.kept)))
        if any(stages[world.owners[topic]].driver is None for topic in topics):
            self.simulation.after(AGAIN_S, self.begin)
            return
        end: Clock = {}
        for topic in topics:
            shelf = stages[world.owners[topic]].disk.read_shelf
            first, last = shelf.floor(topic), shelf.last(topic)
            before = first if random.random() < 0.9 else 0  # somebody had read it so far, and it is gone since
            self._start[topic] = random.randint(before, last) if random.random() < 0.5 else before
            end[topic] = random.randint(self._start[topic], last) if random.random() < 0.5 else last
        self._look_for(lower(self._start, end, random.random() < 0.8))

    def _look_for(self, search: Search[Any]) -> None:
        self._search, self._asked = search, None
        self._find(None)

    def _find(self, found: Clock | None) -> None:
        """A search goes on; or it is over."""
        assert self._search is not None
        try:
            self._asked = next(self._search) if found is None else self._search.send(found)
        except StopIteration as over:
            self._found(over.value)
        else:
            self.simulation.after(self.random.uniform(0.001, DELAY_S), self._ask)

    def _ask(self) -> None:
        """Ask the owners how far a range may go."""
        assert self._asked is not None
        found = self._bounds(self._asked)
        if found is None:
            self.simulation.after(AGAIN_S, self._ask)
        else:
            self._find(found)

    def _bounds(self, ask: BoundsAsk) -> Clock | None:
        """None if an owner is down, or does not know yet."""
        found = dict(ask.clock)
        for topic, high in ask.clock.items():
            low, driver = ask.low.get(topic, 0), self.simulation.stages[self.simulation.world.owners[topic]].driver
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
        """A cut where the range ends; then cuts that divide it."""
        if isinstance(found, list):
            PartsReader(self.simulation, self.random, self._start, found, self._end, _nothing).begin()
        elif found is None:
            self.simulation.record.violation("I14", f"no cut was found from {self._start} on")
        else:
            self._look_for(divide(self._start, found, self.random.randint(1, PARTS_MAX)))

    def _end(self) -> None:
        self.is_over = True


def _nothing(*_: object) -> None:
    """It may be gone."""


def _come_to(steps: Generator[bool, None, Bounded]) -> Bounded:
    """What small steps come to."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            found: Bounded = over.value
            return found
