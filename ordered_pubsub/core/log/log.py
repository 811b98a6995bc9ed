"""The log: what was published on a stage's own topics, and with which timestamps.

An event is published when its number and the event itself are on disk at the owner of its topic (`LogWriter.write`, before the
journal's record of it, before the answer). Its timestamp comes later, when the operation has passed its last stage; until then
nobody is given it.

Rows lie on a `Shelf`, in the order of their numbers, of four kinds for each topic:

- *events*: a chunk of consecutive events, in the bytes that the publishing client made of them. Nothing here reads them;
- *stamps*: a batch, from its first number to its last, with its delta timestamp, its marks, its place and its time, and whether
  its events were kept. A void number has a stamp that says they were not, and no events;
- *fulls*: now and then the full timestamp, so that any number's is found from the last one before it and the stamps since. Where
  something is gone there is always that of the last number that is gone;
- *pending*: of topics whose events nobody keeps, the stamps of batches that may turn out to be void (`core.liveness.voids`). What
  is void gets a stamp, the rest is removed.

What is below a topic's `floor` is gone: dropped, or never kept. Only three things raise it: retention (`forget`), a stage that
starts with another level of the topic than it had before (`begin_after`), and a topic that has rested: its log begins behind the
last number that it had. Nothing that is published does. Above it, up to the last number that was kept, nothing is missing: each
number has a stamp, unless its operation is under way still, and if that says that the events were kept, they are there. So
whoever reads can tell what was lost from what never was, and says so. INVARIANT, for floor < n ≤ last: n has a stamp or is
unfinished; and what has a stamp that `is_kept` has its event.

`LogReader` reads what is on disk only, as it is at one moment, and may do so in another thread than the one that writes, if the
shelf can.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Literal, NamedTuple, Protocol, TypeVar

import attrs
import msgspec

from ordered_pubsub.core.messages import ChangeMark, Chunk, LogItem, Publication
from ordered_pubsub.core.ranges import Ranges, shown
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

    def at_once(self) -> AbstractContextManager[object]:
        """What is read within it is as it was at one moment, whoever writes meanwhile. Not to be nested."""

    def put(self, kind: Kind, topic: str, rows: list[Row]) -> None:
        """Write rows."""

    def put_all(self, kind: Kind, rows: Mapping[str, list[Row]]) -> None:
        """Write rows of several topics."""

    def get(self, kind: Kind, topic: str, first: int, last: int) -> Iterator[Row]:
        """The rows that have to do with these numbers, in order, as they are on disk."""

    def before(self, kind: Kind, topic: str, number: int) -> Row | None:
        """The last row that begins at or before a number."""

    def floor(self, topic: str) -> int:
        """Up to which number everything is gone."""

    def last(self, topic: str) -> int:
        """The last number that has events; the floor if there is none."""

    def drop(self, topic: str, up_to: int, full: bytes) -> None:
        """Raise the floor: remove rows that end at or below it. `full` is then the only full timestamp there: that of `up_to`.

        All of it happens or nothing: of what follows, the timestamps could not be found without that one.
        """

    def cut(self, topic: str, after: int) -> None:
        """Remove rows that begin above a number."""

    def settle(self, topic: str, first: int, stamps: list[Row]) -> None:
        """Remove the row of `pending` that begins with this number, and write stamps for it. All of it happens or nothing."""

    def topics(self, kind: Kind | None = None) -> list[str]:
        """The topics that have rows; of this kind, if one is named."""

    def ends(self, kind: Kind) -> Iterator[tuple[str, Row]]:
        """The last row of each topic that has rows of this kind. Nothing is to be written meanwhile."""

    def rest(self, numbers: Mapping[str, int]) -> None:
        """Remember the last numbers of topics that rest (`core.stage._resting`). Those of one that has no rows are gone, up to
        there."""

    def number(self, topic: str) -> int:
        """What is remembered of a topic that rests, or has rested until just now; 0 if nothing is."""

    def resting(self) -> Iterator[tuple[str, int]]:
        """The topics of which something is remembered, and what."""

    def wake(self, topics: Iterable[str]) -> None:
        """These are in use again, and that is on disk: nothing of them is to be remembered."""

    def clear(self, topics: Iterable[str]) -> None:
        """Remove what is left of topics whose rows are all gone: their floors are their last numbers, which are remembered."""


@attrs.frozen(slots=True)
class LogReading:
    """What a log says of some numbers of a topic. What is not in `items` and not gone is not known yet."""

    items: list[LogItem]
    floor: int
    """everything up to here is gone"""
    read_to: int
    """how far was read; less than what was asked for if that was much"""


@attrs.frozen(slots=True)
class LogRows:
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
    marks: list[ChangeMark]
    place: int
    published_at: float
    is_kept: bool = False
    """whether there are events: without them it is void"""


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


_NOTHING = Ranges()
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

    def run_on(self) -> list[Row]:
        """Take in what is complete now; return the full timestamps that are to be written."""
        rows: list[Row] = []
        while (following := self.early.pop(self.last + 1, None)) is not None:
            first = self.last + 1
            self.last, entries = following
            self.full.update(entries)
            self.steps += 1 + len(entries)
            if self.steps >= FULL_AFTER and self.steps >= 4 * len(self.full):
                rows.append(Row(first, self.last, _encode(self.full)))
                self.steps = 0
        return rows


@attrs.define(eq=False)
class LogWriter:
    """Writes the log of one stage."""

    shelf: Shelf
    base: int = 0
    """the numbers of topics that are new begin behind this one"""
    _running: OrderedDict[str, _Running] = attrs.field(factory=OrderedDict)

    def write(self, kept: Iterable[Kept], completed: Iterable[Publication]) -> None:
        """Put numbered events, and what is known of complete ones, onto the shelf."""
        self._write_events(kept)
        self._write_stamps(completed)

    def _write_events(self, kept: Iterable[Kept]) -> None:
        rows: dict[str, list[Row]] = {}
        for topic, first, chunks in kept:
            if self.base and first == self.base + 1:
                self.shelf.drop(topic, self.base, _encode({}))  # nothing was there: the first timestamp is a full one
            those = rows.setdefault(topic, [])
            for chunk in chunks:
                those.append(Row(first, first + chunk.count - 1, chunk.data))
                first += chunk.count
        self.shelf.put_all("events", rows)

    def _write_stamps(self, completed: Iterable[Publication]) -> None:
        parts: dict[str, list[Publication]] = {}
        rows: dict[str, list[Row]] = {}
        for part in completed:
            stamp = LogStamp(part.entries, part.full, part.marks, part.place, part.published_at, part.is_kept)
            row = Row(part.first, part.last, _encode(stamp))
            those = rows.get(part.topic)
            if those is None:
                rows[part.topic], parts[part.topic] = [row], [part]
            else:
                those.append(row)
                parts[part.topic].append(part)
        if rows:
            self.shelf.put_all("stamps", rows)
            fulls = {topic: full for topic, those in parts.items() if (full := self._run_with(topic, those))}
            self.shelf.put_all("fulls", fulls)

    def _run_with(self, topic: str, parts: list[Publication]) -> list[Row]:
        """Batches, whose stamps are on the shelf, count in the full timestamp of their topic; return those to be written."""
        running = self._running.get(topic)
        if running is None:
            running = self._running[topic] = self._load(topic)  # these stamps included
            if len(self._running) > RUNNING_MAX:
                self._running.popitem(last=False)
        else:
            self._running.move_to_end(topic)
            for part in parts:
                running.early[part.first] = (part.last, part.entries)
        return running.run_on()

    def _load(self, topic: str) -> _Running:
        found = self.shelf.before("fulls", topic, ENDLESS)
        running = (
            _Running(self.shelf.floor(topic), {}) if found is None else _Running(found.last, _decode_full(topic, found))
        )
        for row in self.shelf.get("stamps", topic, running.last + 1, ENDLESS):
            running.early[row.first] = (row.last, _decode_stamp(topic, row).entries)
        return running

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
            self.shelf.drop(topic, number, _encode({}))  # what comes next has a full timestamp
            self._running.pop(topic, None)
        return is_news

    def rest(self, numbers: Mapping[str, int]) -> None:
        """Nothing but their last numbers is remembered of some topics from now on. What is left of them is cleared later."""
        if numbers:
            self.shelf.rest(numbers)

    def clear(self, topics: Iterable[str]) -> None:
        """These rest, and that is on disk."""
        topics = list(topics)
        for topic in topics:
            self._running.pop(topic, None)
        if topics:
            self.shelf.clear(topics)

    def begin(self, numbers: Mapping[str, int]) -> None:
        """These topics have rested, and are kept: their logs begin behind their last numbers."""
        for topic, number in numbers.items():
            self.shelf.drop(topic, number, _encode({}))  # what comes next has a full timestamp
            self._running.pop(topic, None)

    def wake(self, topics: Iterable[str]) -> None:
        """These have rested, and are in use again: that is on disk."""
        topics = list(topics)
        if topics:
            self.shelf.wake(topics)

    def cut(self, numbers: dict[str, int], kept: dict[str, int]) -> None:
        """Remove what the journal knows nothing of, and see that all is there that it says was kept."""
        beyond: dict[str, bool] = {}
        ends: dict[str, int] = {}
        for kind in KINDS:
            for topic, row in self.shelf.ends(kind):
                if row.first > numbers.get(topic, row.first):
                    beyond[topic] = True
                elif kind == "events":
                    ends[topic] = row.last
        for topic in beyond:
            self.shelf.cut(topic, numbers[topic])
        for topic in self.shelf.topics():
            if topic not in numbers:  # it rests, or has never been
                self.shelf.cut(topic, self.shelf.number(topic))
                self.shelf.clear([topic])
        for topic, last in kept.items():
            if ends.get(topic, 0) >= last:
                continue
            if (there := self.shelf.last(topic)) < last and not self._is_void(topic, there + 1, last):
                raise JournalDamaged(
                    f"the log ends at number {there} of topic {topic!r}, but the journal says that number {last} was kept: what "
                    "was published is lost"
                )

    def check_resting(self, numbers: Mapping[str, int], count: int, events: int) -> None:
        """See that the last numbers of all topics that rest are there: a topic must never start again at 1."""
        topics = total = 0
        awake: list[str] = []
        for topic, number in self.shelf.resting():
            if topic in numbers:
                awake.append(topic)
            else:
                topics, total = topics + 1, total + number
        self.wake(awake)
        if (topics, total) != (count, events):
            raise JournalDamaged(
                f"the store has the last numbers of {topics:,} topics that rest, {total:,} in all, but the journal says that "
                f"there are {count:,}, with {events:,}: some are lost"
            )

    def _is_void(self, topic: str, first: int, last: int) -> bool:
        """Whether all of these numbers have stamps that say that nothing was kept of them."""
        for row in self.shelf.get("stamps", topic, first, last):
            if row.first > first or _decode_stamp(topic, row).is_kept:
                return False
            first = row.last + 1
        return first > last


# -- reading --------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class LogReader:
    """Reads the log of one stage."""

    shelf: Shelf
    unfinished: Mapping[str, Ranges] | None = None
    """topic → what may be on disk without a stamp, since its operation is under way; None: not known"""

    def read(self, topic: str, first: int, last: int, bytes_max: int, full: bool = False) -> LogReading:
        """What is known of these numbers, up to about so many bytes; the first number's timestamp in full if wanted."""
        with self.shelf.at_once():
            floor = self.shelf.floor(topic)
            start = max(first, floor + 1)
            items: list[LogItem] = []
            size, read_to, passed = 0, last, start - 1
            events = self.shelf.get("events", topic, start, last)
            event = next(events, None)
            for row in self.shelf.get("stamps", topic, start, last):
                self._check_hole(topic, passed + 1, row.first - 1)
                passed = row.last
                chunks: list[Row] = []
                following = max(row.first, start)
                while event is not None and event.first <= row.last:
                    if event.first >= row.first:  # else its stamp is missing: it is not complete
                        if event.first <= following:
                            following = event.last + 1
                        chunks.append(event)
                        size += len(event.data)
                    event = next(events, None)
                size += ROW_BYTES + len(row.data)
                stamp = _decode_stamp(topic, row)
                if following <= row.last and following <= last and stamp.is_kept:
                    raise _lost(topic, following, row)
                items.append(_recalled(stamp, row, chunks, start, last))
                if size >= bytes_max:
                    read_to = items[-1].last
                    break
            else:
                self._check_hole(topic, passed + 1, last)
            if full and items:
                items = self._begin_in_full(topic, items)
        return LogReading(items, floor, read_to)

    def rows(self, topic: str, first: int, last: int, bytes_max: int) -> LogRows:
        """What is on disk of these numbers, from the first one on without gaps, up to about so many bytes."""
        with self.shelf.at_once():
            floor = self.shelf.floor(topic)
            start = max(first, floor + 1)
            found = LogRows([], [], floor, start - 1)
            size, read_to = 0, start - 1
            events = self.shelf.get("events", topic, start, last)
            event = next(events, None)
            for stamp in self.shelf.get("stamps", topic, start, last):
                if stamp.first > read_to + 1:
                    break  # what is before it is not complete yet
                following = max(stamp.first, start)
                while event is not None and event.first <= stamp.last:
                    if event.first <= following:
                        following = event.last + 1
                    found.events.append(event)
                    size += ROW_BYTES + len(event.data)
                    event = next(events, None)
                if following <= stamp.last and following <= last and _decode_stamp(topic, stamp).is_kept:
                    raise _lost(topic, following, stamp)
                found.stamps.append(stamp)
                size += ROW_BYTES + len(stamp.data)
                read_to = min(stamp.last, last)
                if size >= bytes_max:
                    break
            if size < bytes_max:
                self._check_hole(topic, read_to + 1, last, first_only=True)
        return attrs.evolve(found, read_to=read_to)

    def _check_hole(self, topic: str, first: int, last: int, first_only: bool = False) -> None:
        """These numbers have no stamps: that must be because they are under way, or were never kept, or not given yet."""
        if first > last or self.unfinished is None:
            return
        last = min(first if first_only else last, self.shelf.last(topic))
        lost = self.unfinished.get(topic, _NOTHING).missing(first, last)
        if lost:
            spans = ", ".join(shown(*span) for span in lost)
            raise JournalDamaged(
                f"the log lacks the timestamps of numbers {spans} of topic {topic!r}, which were published: they are lost"
            )

    def _begin_in_full(self, topic: str, items: list[LogItem]) -> list[LogItem]:
        entries = self._full_at(topic, items[0].first)
        if entries is None:
            return []
        return [msgspec.structs.replace(items[0], entries=entries, full=True), *items[1:]]

    def silence(self, topic: str, first: int, last: int) -> list[LogItem]:
        """Which of these numbers are void: they have stamps that say that nothing was kept."""
        items: list[LogItem] = []
        for _ in self.finding_silence(topic, first, last, items):
            pass
        return items

    def finding_silence(self, topic: str, first: int, last: int, items: list[LogItem]) -> Iterator[None]:
        """The same in small steps; `items` gets what is found."""
        at = max(first, 1)
        while at <= last:
            rows = list(islice(self.shelf.get("stamps", topic, at, last), SILENCE_ROWS))
            for row in rows:
                stamp = _decode_stamp(topic, row)
                if not stamp.is_kept:
                    items.append(_recalled(stamp, row, [], first, last))
            if len(rows) < SILENCE_ROWS:
                return
            at = rows[-1].last + 1
            yield

    def pending(self) -> Iterator[tuple[str, Row, Pending]]:
        """All batches that may turn out to be void."""
        for topic in self.shelf.topics("pending"):
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
        with self.shelf.at_once():
            return self._full_at(topic, number)

    def _full_at(self, topic: str, number: int) -> dict[str, int] | None:
        found = self.shelf.before("fulls", topic, number)
        if found is not None:
            full, last = _decode_full(topic, found), found.last
        elif number <= (floor := self.shelf.floor(topic)):
            return None  # forgotten since the rest of it was read
        elif floor:
            raise JournalDamaged(
                f"the log lacks the full timestamp of number {floor} of topic {topic!r}, up to which it has forgotten it: what "
                "comes after it has no order any more"
            )
        else:
            full, last = {}, 0
        if number > last:
            for row in self.shelf.get("stamps", topic, last + 1, number):
                if row.first != last + 1:
                    break
                full.update(_decode_stamp(topic, row).entries)
                last = row.last
        if number > last:
            self._check_hole(topic, last + 1, number, first_only=True)
            return None
        return full


def _lost(topic: str, number: int, row: Row) -> JournalDamaged:
    """A batch that was kept has its events, from its first number to its last."""
    return JournalDamaged(
        f"the log lacks the events of topic {topic!r} from number {number} on, of a batch that was kept up to number {row.last}: "
        "what was published is lost"
    )


def _recalled(stamp: LogStamp, row: Row, chunks: list[Row], start: int, end: int) -> LogItem:
    first, last = (chunks[0].first, chunks[-1].last) if chunks else (max(row.first, start), min(row.last, end))
    begins = first == row.first
    return LogItem(
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
            f"the log's {what} of topic {topic!r}, number {row.first}, cannot be read ({error})"
        ) from error


def _decode_full(topic: str, row: Row) -> dict[str, int]:
    return _decoded(_fulls, "full timestamp", topic, row)
