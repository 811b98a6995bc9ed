"""The log: what was published on a stage's own topics, and with which timestamps.

An event is published when its number and the event itself are on disk at the owner of its topic (`LogWriter.write`, before the
journal's record of it, before the answer). Its timestamp comes later, when the operation has passed its last stage; until then
nobody is given it.

Rows lie on a `Shelf`, in the order of their numbers, of four kinds for each topic:

- *events*: a chunk of consecutive events, in the bytes that the publishing client made of them. Nothing here reads them;
- *stamps*: a batch, from its first number to its last, with its delta timestamp, its marks, its place and its time. A void
  number has a stamp and no events;
- *fulls*: now and then the full timestamp, so that any number's is found from the last one before it and the stamps since;
- *pending*: of topics whose events nobody keeps, the stamps of batches that may turn out to be void (`core.voids`). What is
  void gets a stamp, the rest is removed.

What is below a topic's `floor` is gone: dropped, or never kept. Above it there is no hole in the events. Only two things raise
it: retention (`forget`), and a stage that starts with another level of the topic than it had before (`begin_after`). Nothing that
is published does. `LogReader` reads what is on disk only, and may do so in another thread than the one that writes, if the shelf
can.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Literal, NamedTuple, Protocol, TypeVar

import attrs
import msgspec

from ordered_pubsub.core.messages import Chunk, Mark, Publication, Recalled
from ordered_pubsub.errors import JournalDamaged

_Data = TypeVar("_Data")
Kind = Literal["events", "stamps", "fulls", "pending"]
KINDS: tuple[Kind, ...] = ("events", "stamps", "fulls", "pending")
ENDLESS = 1 << 39
"""More than any number."""
FULL_AFTER = 256
"""A full timestamp is written after so many batches and entries, or four times its own entries if that is more."""
ROW_BYTES = 64
"""What reading a row costs, in bytes: so a piece of many small ones is bounded, too."""
SILENCE_ROWS = 8
"""So many rows are looked at at once to find what is void."""
RUNNING_MAX = 1_000
"""Topics whose full timestamp is kept in memory."""
NEVER_KEPT = b"\x00"
"""Stands for events that were asked for when nobody kept those of their topic, and numbered when somebody did: they are at the
ENS, if anywhere, and the log says of them only that they were there."""


class Row(NamedTuple):
    """What is known of the numbers from `first` to `last`."""

    first: int
    last: int
    data: bytes


class Shelf(Protocol):
    """Where the rows are. Rows of one kind and topic do not overlap; one with the same first number replaces another.

    What `put`, `drop` and `cut` did is on disk when the journal's next `sync` has returned, at the latest; either before any
    record that is appended to the journal after it, or together with it.
    """

    def put(self, kind: Kind, topic: str, rows: list[Row]) -> None:
        """Write rows."""

    def get(self, kind: Kind, topic: str, first: int, last: int) -> Iterator[Row]:
        """The rows that have to do with these numbers, in order, as they are on disk."""

    def before(self, kind: Kind, topic: str, number: int) -> Row | None:
        """The last row that begins at or before a number."""

    def floor(self, topic: str) -> int:
        """Up to which number everything is gone."""

    def last(self, topic: str) -> int:
        """The last number that has events; the floor if there is none."""

    def drop(self, topic: str, up_to: int, full: bytes | None = None) -> None:
        """Raise the floor: remove rows that end at or below it. `full` is then the only full timestamp there: that of `up_to`.

        All of it happens or nothing: of what follows, the timestamps could not be found without that one.
        """

    def cut(self, topic: str, after: int) -> None:
        """Remove rows that begin above a number."""

    def settle(self, topic: str, first: int, stamps: list[Row]) -> None:
        """Remove the row of `pending` that begins with this number, and write stamps for it. All of it happens or nothing."""

    def topics(self) -> list[str]:
        """The topics that have rows."""


@attrs.frozen(slots=True)
class Reading:
    """What a log says of some numbers of a topic. What is not in `items` and not gone is not known yet."""

    items: list[Recalled]
    floor: int
    """everything up to here is gone"""
    read_to: int
    """how far was read; less than what was asked for if that was much"""


@attrs.frozen(slots=True)
class Rows:
    """Consecutive complete batches of a topic, as they are on disk: for who reads much, and puts them together elsewhere."""

    stamps: list[Row]
    events: list[Row]
    floor: int
    """everything up to here is gone"""
    read_to: int
    """how far was read: up to what was asked for, or what is complete, or about so many bytes"""


class LogStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the log knows of a batch: its delta timestamp, or the full one, and where and when it was numbered."""

    entries: dict[str, int]
    full: bool
    marks: list[Mark]
    place: int
    published_at: float


class Pending(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that may turn out to be void: who has asked for it, by which request, and its timestamp."""

    session: str
    sequence: int
    stamp: LogStamp


class Decision(NamedTuple):
    """What has become of a pending batch."""

    topic: str
    first: int
    last: int
    voids: list[tuple[int, int]]
    """nothing: all of it was published"""


_encode = msgspec.msgpack.Encoder().encode
_stamps = msgspec.msgpack.Decoder(LogStamp)
_fulls = msgspec.msgpack.Decoder(dict[str, int])
_pending = msgspec.msgpack.Decoder(Pending)


class Kept(NamedTuple):
    """Events that were numbered, on their way to the log."""

    topic: str
    first: int
    chunks: tuple[Chunk, ...]


# -- writing --------------------------------------------------------------------------------------------------------------


@attrs.define(slots=True)
class _Running:
    """The full timestamp of a topic's last batch before which nothing is incomplete."""

    last: int
    """the last number of that batch"""
    full: dict[str, int]
    steps: int = 0
    """batches and entries since a full timestamp was written"""
    early: dict[int, tuple[int, dict[str, int]]] = attrs.field(factory=dict)
    """batches beyond one that is not complete: first → last, entries"""


@attrs.define(eq=False)
class LogWriter:
    """Writes the log of one stage."""

    shelf: Shelf
    _running: OrderedDict[str, _Running] = attrs.field(factory=OrderedDict)

    def write(self, kept: Iterable[Kept], completed: Iterable[Publication]) -> None:
        """Put numbered events, and what is known of complete ones, onto the shelf."""
        for events in kept:
            self._write_events(events)
        for part in completed:
            self._write_stamp(part)

    def _write_events(self, kept: Kept) -> None:
        rows: list[Row] = []
        first = kept.first
        for chunk in kept.chunks:
            rows.append(Row(first, first + chunk.count - 1, chunk.data))
            first += chunk.count
        self.shelf.put("events", kept.topic, rows)

    def _write_stamp(self, part: Publication) -> None:
        stamp = LogStamp(part.entries, part.full, part.marks, part.place, part.published_at)
        self.shelf.put("stamps", part.topic, [Row(part.first, part.last, _encode(stamp))])
        running = self._running.get(part.topic)
        if running is None:
            self._running[part.topic] = self._load(part.topic)  # this stamp included
            if len(self._running) > RUNNING_MAX:
                self._running.popitem(last=False)
        else:
            self._running.move_to_end(part.topic)
            running.early[part.first] = (part.last, part.entries)
            self._run_on(part.topic, running)

    def _load(self, topic: str) -> _Running:
        found = self.shelf.before("fulls", topic, ENDLESS)
        running = _Running(self.shelf.floor(topic), {}) if found is None else _Running(found.last, _decode_full(found))
        for row in self.shelf.get("stamps", topic, running.last + 1, ENDLESS):
            running.early[row.first] = (row.last, _decode_stamp(topic, row).entries)
        self._run_on(topic, running)
        return running

    def _run_on(self, topic: str, running: _Running) -> None:
        while (following := running.early.pop(running.last + 1, None)) is not None:
            first = running.last + 1
            running.last, entries = following
            running.full.update(entries)
            running.steps += 1 + len(entries)
            if running.steps >= max(FULL_AFTER, 4 * len(running.full)):
                self.shelf.put("fulls", topic, [Row(first, running.last, _encode(running.full))])
                running.steps = 0

    def hold(self, session: str, sequence: int, part: Publication) -> None:
        """Remember a batch of which nobody keeps the events, until it is known to be published, or void."""
        stamp = LogStamp(part.entries, part.full, part.marks, part.place, part.published_at)
        pending = Pending(session, sequence, stamp)
        self.shelf.put("pending", part.topic, [Row(part.first, part.last, _encode(pending))])

    def decide(self, decision: Decision) -> None:
        """A batch is pending no more; what is void of it has a place like an event."""
        topic, first, _, voids = decision
        row = self.shelf.before("pending", topic, first)
        if row is None or row.first != first:
            return
        stamp = _decode_pending(topic, row).stamp
        later = msgspec.structs.replace(stamp, entries={}, full=False, marks=[])
        stamps = [Row(start, end, _encode(stamp if start == first else later)) for start, end in voids]
        self.shelf.settle(topic, first, stamps)

    def forget(self, topic: str, up_to: int) -> int:
        """Drop what ends at or below a number and is complete; return up to where everything is gone."""
        found = self.shelf.before("stamps", topic, up_to + 1)
        floor = self.shelf.floor(topic)
        if found is None or found.first <= floor:
            return floor
        up_to = found.last if found.last <= up_to else found.first - 1
        full = LogReader(self.shelf).full_at(topic, up_to)
        if up_to <= floor or full is None:
            return floor
        self.shelf.drop(topic, up_to, _encode(full))
        return up_to

    def begin_after(self, topic: str, number: int) -> bool:
        """The log of a topic begins behind this number, since its level was another one until then; return if that is news."""
        is_news = self.shelf.floor(topic) < number
        if is_news:
            self.shelf.drop(topic, number)
            self._running.pop(topic, None)
        return is_news

    def cut(self, numbers: dict[str, int], kept: dict[str, int]) -> None:
        """Remove what the journal knows nothing of, and see that all is there that it says was kept."""
        for topic in self.shelf.topics():
            self.shelf.cut(topic, numbers.get(topic, 0))
        for topic, last in kept.items():
            if self.shelf.last(topic) < last:
                raise JournalDamaged(
                    f"the log ends at number {self.shelf.last(topic)} of topic {topic!r}, but the journal says that number "
                    f"{last} was kept: what was published is lost. The stage does not start: restore its store from a copy"
                )


# -- reading --------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class LogReader:
    """Reads the log of one stage."""

    shelf: Shelf

    def read(self, topic: str, first: int, last: int, bytes_max: int, full: bool = False) -> Reading:
        """What is known of these numbers, up to about so many bytes; the first number's timestamp in full if wanted."""
        floor = self.shelf.floor(topic)
        start = max(first, floor + 1)
        items: list[Recalled] = []
        size, read_to = 0, last
        events = self.shelf.get("events", topic, start, last)
        event = next(events, None)
        for row in self.shelf.get("stamps", topic, start, last):
            chunks: list[Row] = []
            while event is not None and event.first <= row.last:
                if event.first >= row.first:  # else its stamp is missing: it is not complete
                    chunks.append(event)
                    size += len(event.data)
                event = next(events, None)
            size += ROW_BYTES + len(row.data)
            items.append(_recalled(_decode_stamp(topic, row), row, chunks, start, last))
            if size >= bytes_max:
                read_to = items[-1].last
                break
        if full and items:
            items = self._begin_in_full(topic, items)
        return Reading(items, floor, read_to)

    def rows(self, topic: str, first: int, last: int, bytes_max: int) -> Rows:
        """What is on disk of these numbers, from the first one on without gaps, up to about so many bytes."""
        floor = self.shelf.floor(topic)
        start = max(first, floor + 1)
        found = Rows([], [], floor, start - 1)
        size, read_to = 0, start - 1
        events = self.shelf.get("events", topic, start, last)
        event = next(events, None)
        for stamp in self.shelf.get("stamps", topic, start, last):
            if stamp.first > read_to + 1:
                break  # what is before it is not complete yet
            while event is not None and event.first <= stamp.last:
                found.events.append(event)
                size += ROW_BYTES + len(event.data)
                event = next(events, None)
            found.stamps.append(stamp)
            size += ROW_BYTES + len(stamp.data)
            read_to = min(stamp.last, last)
            if size >= bytes_max:
                break
        return attrs.evolve(found, read_to=read_to)

    def _begin_in_full(self, topic: str, items: list[Recalled]) -> list[Recalled]:
        entries = self.full_at(topic, items[0].first)
        if entries is None:
            return []
        return [msgspec.structs.replace(items[0], entries=entries, full=True), *items[1:]]

    def silence(self, topic: str, first: int, last: int) -> list[Recalled]:
        """Which of these numbers are void: they have stamps and no events."""
        items: list[Recalled] = []
        for _ in self.finding_silence(topic, first, last, items):
            pass
        return items

    def finding_silence(self, topic: str, first: int, last: int, items: list[Recalled]) -> Iterator[None]:
        """The same in small steps; `items` gets what is found."""
        at = max(first, 1)
        while at <= last:
            rows = list(islice(self.shelf.get("stamps", topic, at, last), SILENCE_ROWS))
            for row in rows:
                event = self.shelf.before("events", topic, row.last)
                if event is None or event.last < row.first:
                    items.append(_recalled(_decode_stamp(topic, row), row, [], first, last))
            if len(rows) < SILENCE_ROWS:
                return
            at = rows[-1].last + 1
            yield

    def pending(self) -> Iterator[tuple[str, Row, Pending]]:
        """All batches that may turn out to be void."""
        for topic in self.shelf.topics():
            for row in self.shelf.get("pending", topic, 1, ENDLESS):
                yield topic, row, _decode_pending(topic, row)

    def published_at(self, topic: str, number: int) -> tuple[int, float] | None:
        """The first number of the batch that a number is in, and its time; None if that is not known."""
        row = self.shelf.before("stamps", topic, number)
        if row is None or row.last < number:
            return None
        return row.first, _decode_stamp(topic, row).published_at

    def last_before(self, topic: str, wall_s: float) -> int:
        """The last number that was published before a time: times rise with the numbers, nearly, so it is found by halves."""
        low, high = self.shelf.floor(topic), self.shelf.last(topic)
        while low < high:
            middle = (low + high + 1) // 2
            found = self.published_at(topic, middle)
            if found is None or found[1] >= wall_s:
                high = middle - 1 if found is None else min(middle, found[0]) - 1
            else:
                low = middle
        return low

    def is_within(self, topic: str, number: int, clock: Mapping[str, int]) -> bool:
        """Whether nothing comes before this number that is beyond a clock, of its other topics; False if that is not known."""
        full = self.full_at(topic, number)
        return full is not None and all(
            count <= clock[other] for other, count in full.items() if other in clock and other != topic
        )

    def whole_batches(self, topic: str, number: int) -> int:
        """The last number up to this one with which a batch ends."""
        row = self.shelf.before("stamps", topic, number)
        return number if row is None or row.last <= number else row.first - 1

    def full_at(self, topic: str, number: int) -> dict[str, int] | None:
        """The full timestamp of a number; None if it is gone, or something before it is not complete yet."""
        found = self.shelf.before("fulls", topic, number)
        if found is not None:
            full, last = _decode_full(found), found.last
        elif number > (floor := self.shelf.floor(topic)):
            full, last = {}, floor
        else:
            return None  # forgotten since the rest of it was read
        if number > last:
            for row in self.shelf.get("stamps", topic, last + 1, number):
                if row.first != last + 1:
                    return None
                full.update(_decode_stamp(topic, row).entries)
                last = row.last
        return full if number <= last else None


def _recalled(stamp: LogStamp, row: Row, chunks: list[Row], start: int, end: int) -> Recalled:
    first, last = (chunks[0].first, chunks[-1].last) if chunks else (max(row.first, start), min(row.last, end))
    begins = first == row.first
    return Recalled(
        first=first,
        last=last,
        entries=stamp.entries if begins or stamp.full else {},
        full=stamp.full,
        marks=stamp.marks if begins else [],
        batch=row.first,
        place=stamp.place,
        published_at=stamp.published_at,
        chunks=[Chunk(chunk.last - chunk.first + 1, chunk.data) for chunk in chunks],
    )


def _decode_stamp(topic: str, row: Row) -> LogStamp:
    return _decoded(_stamps, "stamp", topic, row)


def _decode_pending(topic: str, row: Row) -> Pending:
    return _decoded(_pending, "pending batch", topic, row)


def _decoded(decoder: msgspec.msgpack.Decoder[_Data], what: str, topic: str, row: Row) -> _Data:
    try:
        return decoder.decode(row.data)
    except msgspec.MsgspecError as error:
        raise JournalDamaged(
            f"the log's {what} of topic {topic!r}, number {row.first}, cannot be read ({error}): restore the store from a copy"
        ) from error


def _decode_full(row: Row) -> dict[str, int]:
    return _fulls.decode(row.data)
