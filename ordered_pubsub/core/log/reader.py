"""Reads the log of one stage: what is on disk only, as it is at one moment.

It may do so in another thread than the one that writes, if the shelf can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import attrs
import msgspec

from ordered_pubsub.core.log.shelf import (
    ENDLESS,
    FullTimestamp,
    LogStamp,
    Pending,
    Row,
    Shelf,
    decode_full,
    decode_pending,
    decode_stamp,
)
from ordered_pubsub.core.messages import Chunk, LogItem, Transaction
from ordered_pubsub.core.ranges import Ranges, shown
from ordered_pubsub.errors import JournalDamaged

ROW_BYTES = 64
"""What reading a row costs, in bytes: so a piece of many small ones is bounded, too."""
SILENCE_ROWS = 8
"""So many rows are looked at at once to find what is void."""
_NOTHING = Ranges()


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
                stamp = decode_stamp(topic, row)
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
                if following <= stamp.last and following <= last and decode_stamp(topic, stamp).is_kept:
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
                stamp = decode_stamp(topic, row)
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
                yield topic, row, decode_pending(topic, row)

    def published_at(self, topic: str, number: int) -> tuple[int, float] | None:
        """The first number of the batch that a number is in, and its time; None if that is not known."""
        row = self.shelf.before("stamps", topic, number)
        if row is None or row.last < number:
            return None
        return row.first, decode_stamp(topic, row).published_at

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
        """Whether nothing comes before this number, or together with it, that is beyond a clock; False if that is not known.

        What comes together with it may be beyond the clock on its own topic, too.
        """
        with self.shelf.at_once():
            found = self._timestamp_at(topic, number)
        if found is None:
            return False
        full, transaction = found
        if transaction is not None and any(last > clock.get(on, last) for on, (_, last) in transaction.ranges.items()):
            return False
        return all(count <= clock[other] for other, count in full.items() if other in clock and other != topic)

    def whole_batches(self, topic: str, number: int) -> int:
        """The last number up to this one with which a batch ends."""
        row = self.shelf.before("stamps", topic, number)
        return number if row is None or row.last <= number else row.first - 1

    def full_at(self, topic: str, number: int) -> dict[str, int] | None:
        """The full timestamp of a number; None if it is gone, or something before it is not complete yet."""
        with self.shelf.at_once():
            return self._full_at(topic, number)

    def full_behind(self, topic: str, number: int) -> dict[str, int] | None:
        """All that comes before what follows a number, as far as the log knows: what came together with it, too."""
        with self.shelf.at_once():
            found = self._timestamp_at(topic, number)
        if found is None:
            return None
        full, transaction = found
        if transaction is not None and transaction.ranges[topic][1] <= number:
            transaction.follow(topic, full)
        return full

    def _full_at(self, topic: str, number: int) -> dict[str, int] | None:
        found = self._timestamp_at(topic, number)
        return None if found is None else found[0]

    def _timestamp_at(self, topic: str, number: int) -> tuple[dict[str, int], Transaction | None] | None:
        """The full timestamp of a number, and what it is a part of."""
        found = self.shelf.before("fulls", topic, number)
        if found is not None:
            running = FullTimestamp(topic, found.last, decode_full(topic, found))
        elif number <= (floor := self.shelf.floor(topic)):
            return None  # forgotten since the rest of it was read
        elif floor:
            raise JournalDamaged(
                f"the log lacks the full timestamp of number {floor} of topic {topic!r}, up to which it has forgotten it: what "
                "comes after it has no order any more"
            )
        else:
            running = FullTimestamp(topic, 0, {})
        for row in self.shelf.get("stamps", topic, max(min(running.last, number), 1), number):
            if not running.take(row.first, row.last, decode_stamp(topic, row)):
                break
        if number > running.last:
            self._check_hole(topic, running.last + 1, number, first_only=True)
            return None
        return running.full, running.transaction


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
        transaction=stamp.transaction,
    )
