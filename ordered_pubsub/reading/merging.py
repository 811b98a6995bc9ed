"""A range of the logs in the one order: read side by side from the owners, batch by batch.

The rule is that of `ordered_pubsub.testing.history`. Of one owner's topics the order is that of its journal, so what is here of
them is sorted by its place, up to the last place that is known of all of them. Between owners a batch waits until what its
timestamp names has come; of those that wait for nothing the earliest by its time, then by its topic, is next. The first timestamp
of each topic is a full one; what a later delta leaves out has come before. A cut ends no batch in the middle, so a batch is one
piece here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

import attrs
import msgspec

from ordered_pubsub.core.log.shelf import LogStamp
from ordered_pubsub.errors import BEGIN_ANEW, HistoryLost, ProtocolError, UnavailableError
from ordered_pubsub.reading.connection import StageLine
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.wire.reading import ASKED_MAX, PIECE_BYTES, Read, Rows

MEMORY_BYTES = 32 * 1024 * 1024
"""About so much of all topics is held, at the least one row of each."""
PIECE_BYTES_MIN = 4 * 1024
INCOMPLETE_PAUSE_S = 0.02
BATCH_BYTES = 300
"""What a batch counts for besides its events."""

_stamps = msgspec.msgpack.Decoder(LogStamp)
_by_place = attrgetter("place")


class LogBatch(msgspec.Struct, frozen=True, gc=False):
    """Events that were numbered together; what is in no chunk is void, or was left out."""

    topic: str
    first: int
    last: int
    place: int
    published_at: float
    entries: dict[str, int]
    chunks: list[tuple[int, int, bytes]]
    size: int


@attrs.define(eq=False)
class _Reading:
    """One topic in the range."""

    topic: str
    passed: int
    """how far it has come from its owner"""
    last: int
    batches: list[LogBatch] = attrs.field(factory=list)
    held_bytes: int = 0
    """of the batches"""
    asked: int = 0
    """the number under which more was asked for; 0: nothing was"""
    needs_full: bool = True
    retry_at: float = 0.0
    """when to ask again for what was not complete"""

    @property
    def is_over(self) -> bool:
        """Whether all of it has come."""
        return self.passed >= self.last


@attrs.define(eq=False)
class _Owner:
    """The topics of one owner, in the order of its journal."""

    stages: StageLines
    rank: int
    readings: list[_Reading]
    piece_bytes: int
    """so much is asked for at a time, and no more of a topic of which so much is here"""
    lose: Callable[[str, int, int], None]
    """told of what is gone: raises, or lets it be left out"""
    where: str = ""
    _line: StageLine | None = None
    _by_number: dict[int, _Reading] = attrs.field(factory=dict)
    _incomplete_since: float | None = None

    def blocks(self) -> Iterator[list[LogBatch]]:
        """What is next, as much at a time as is known."""
        while True:
            self.stages.again("reading the log", self._fill)
            open_readings = [reading for reading in self.readings if not reading.is_over]
            block = self._take(open_readings)
            if block:
                yield block
            elif not open_readings:
                return

    def _take(self, open_readings: list[_Reading]) -> list[LogBatch]:
        """All that nothing can come before any more."""
        horizon = min((reading.batches[-1].place for reading in open_readings), default=None)
        block: list[LogBatch] = []
        for reading in self.readings:
            found = reading.batches
            if horizon is not None and found and found[-1].place > horizon:
                count = sum(batch.place <= horizon for batch in found)
            else:
                count = len(found)
            reading.held_bytes -= sum(batch.size for batch in found[:count])
            block += found[:count]
            del found[:count]
        block.sort(key=_by_place)
        return block

    def _fill(self) -> None:
        """Something of each topic is here that has not come to its end."""
        line = self.stages.line_to(self.rank)
        if line is not self._line:
            self._line = line
            self._by_number.clear()
            for reading in self.readings:
                reading.asked = 0
        self._ask(line)
        while any(not reading.batches and not reading.is_over for reading in self.readings):
            if not self._by_number:
                self._wait()
                self._ask(line)
                continue
            answer = self.stages.answer(line, self._by_number)
            assert isinstance(answer, Rows)
            reading = self._by_number.pop(answer.number)
            reading.asked = 0
            self._receive(reading, answer)
            self._ask(line)

    def _ask(self, line: StageLine) -> None:
        """Ask for the next piece of each topic that has room for it; those first of which nothing is here."""
        now = time.monotonic()
        wanting = [
            reading
            for reading in self.readings
            if not (reading.asked or reading.is_over)
            and reading.held_bytes < self.piece_bytes
            and reading.retry_at <= now
        ]
        wanting.sort(key=lambda reading: len(reading.batches))
        asks: list[Read] = []
        for reading in wanting[: ASKED_MAX - len(self._by_number)]:
            reading.asked = number = self.stages.next_number()
            self._by_number[number] = reading
            asks.append(
                Read(
                    number,
                    reading.topic,
                    reading.passed + 1,
                    reading.last,
                    reading.needs_full,
                    self.piece_bytes,
                    self.where,
                )
            )
        if asks:
            line.say(*asks)

    def _wait(self) -> None:
        """Nothing is complete yet of what is missing."""
        now = time.monotonic()
        if self._incomplete_since is None:
            self._incomplete_since = now
        if now - self._incomplete_since > self.stages.access.timeout_s / 2:
            waiting = next(reading for reading in self.readings if not reading.batches and not reading.is_over)
            raise UnavailableError(
                f"number {waiting.passed + 1} of topic {waiting.topic!r} is not complete: a stage that it has to pass may be down"
            )
        time.sleep(INCOMPLETE_PAUSE_S)

    def _receive(self, reading: _Reading, rows: Rows) -> None:
        if rows.floor > reading.passed:
            self._skip(reading, min(rows.floor, reading.last))
            return
        if reading.needs_full and rows.stamps and rows.full is None:
            return  # it is asked for again
        if rows.read_to <= reading.passed:
            reading.retry_at = time.monotonic() + INCOMPLETE_PAUSE_S
            return
        self._incomplete_since = None
        self.stages.advanced()
        events = iter(rows.events)
        event = next(events, None)
        for first, last, data in rows.stamps:
            stamp = _stamps.decode(data)
            chunks: list[tuple[int, int, bytes]] = []
            while event is not None and event[0] <= last:
                chunks.append(event)
                event = next(events, None)
            if stamp.is_kept and not self.where:
                _check_whole(reading, first, min(last, rows.read_to), chunks)
            entries = stamp.entries
            if reading.needs_full:
                entries, reading.needs_full = rows.full or {}, False
            size = BATCH_BYTES + sum(len(chunk[2]) for chunk in chunks)
            reading.held_bytes += size
            reading.batches.append(
                LogBatch(reading.topic, first, last, stamp.place, stamp.published_at, entries, chunks, size)
            )
        reading.passed = rows.read_to

    def _skip(self, reading: _Reading, floor: int) -> None:
        """Numbers that are gone are passed in silence, behind what is here of the topic."""
        self.lose(reading.topic, reading.passed + 1, floor + 1)
        place = reading.batches[-1].place if reading.batches else 0
        reading.held_bytes += BATCH_BYTES
        reading.batches.append(LogBatch(reading.topic, reading.passed + 1, floor, place, 0.0, {}, [], BATCH_BYTES))
        reading.passed, reading.needs_full = floor, True


def _check_whole(reading: _Reading, first: int, last: int, chunks: list[tuple[int, int, bytes]]) -> None:
    """A batch that was kept has all its events: what is missing is not silence."""
    passed = max(first, reading.passed + 1) - 1
    for begin, end, _ in chunks:
        if begin > passed + 1:
            break
        passed = end
    if passed < last:
        raise ProtocolError(
            f"the log's owner has brought no events of topic {reading.topic!r} from number {passed + 1} on, though it says that "
            f"they were kept: its store is damaged, or it answers something else than it was asked"
        )


def merged(
    stages: StageLines,
    start: Mapping[str, int],
    end: Mapping[str, int],
    lose: Callable[[str, int, int], None],
    where: str = "",
) -> Iterator[LogBatch]:
    """The batches between a clock and a later cut, in order. `lose` is told of what is gone, and may raise.

    With a filter, stages leave out the events that it does not let through, as far as they can read them.
    """
    clock = {topic: start.get(topic, 0) for topic in end}

    by_owner: dict[int, list[_Reading]] = {}
    for topic, last in end.items():
        if last > clock[topic]:
            by_owner.setdefault(stages.topology.owner(topic), []).append(_Reading(topic, clock[topic], last))
    readings = sum(map(len, by_owner.values()))
    piece_bytes = max(PIECE_BYTES_MIN, min(PIECE_BYTES, MEMORY_BYTES // max(1, 2 * readings)))
    owners = [_Owner(stages, rank, found, piece_bytes, lose, where) for rank, found in sorted(by_owner.items())]
    if len(owners) == 1:
        for block in owners[0].blocks():
            yield from block
    else:
        yield from _merged(owners, clock)


def _merged(owners: list[_Owner], clock: dict[str, int]) -> Iterator[LogBatch]:
    """One order of several owners' batches."""
    begin, queues = dict(clock), [_flat(owner) for owner in owners]
    heads = {at: head for at, queue in enumerate(queues) if (head := next(queue, None)) is not None}
    while heads:
        chosen, best = -1, None
        for at, head in heads.items():
            if best is not None and (head.published_at, head.topic) >= (best.published_at, best.topic):
                continue
            if head.first <= begin[head.topic]:  # the rest of a batch in which the range begins
                chosen, best = at, head
                break
            if _is_satisfied(head, clock):
                chosen, best = at, head
        if best is None:
            raise ProtocolError(
                f"the range ends too early: {next(iter(heads.values())).topic!r} waits for something that is not in it"
            )
        yield best
        clock[best.topic] = max(clock[best.topic], best.last)
        following = next(queues[chosen], None)
        if following is None:
            del heads[chosen]
        else:
            heads[chosen] = following


def _flat(owner: _Owner) -> Iterator[LogBatch]:
    for block in owner.blocks():
        yield from block


def _is_satisfied(head: LogBatch, clock: Mapping[str, int]) -> bool:
    topic = head.topic
    return not any(other != topic and count > clock.get(other, count) for other, count in head.entries.items())


def raise_lost(reader: str, remedy: str = BEGIN_ANEW) -> Callable[[str, int, int], None]:
    """What is gone is an error."""

    def lose(topic: str, first_lost: int, first_there: int) -> None:
        raise HistoryLost(reader, topic, first_lost, first_there, remedy)

    return lose
