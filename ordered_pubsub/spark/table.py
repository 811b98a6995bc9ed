"""Rows of Spark from batches of the log: Arrow columns, made of many events at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.log.range_reader import LogBatch
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.content import fields_of
from ordered_pubsub.wire.pack import Logged, PackedEvent, Unreadable, decode_logged, packed_headers, unreadable

ROWS_MAX = 8_192
BYTES_MAX = 8 * 1024 * 1024
"""A record batch ends with the batch of the log that brings it to so many rows, or bytes."""
CELLS_MAX = 4_000_000
"""A vector has as many entries as there are topics, so with many of them a record batch has fewer rows."""

_TIME = pa.timestamp("us", tz="UTC")
COLUMNS = {
    "position": "bigint",
    "topic": "string",
    "number": "bigint",
    "vector": "map<string,bigint>",
    "published_at": "timestamp",
    "publisher": "string",
    "id": "string",
    "tx": "string",
    "headers": "map<string,binary>",
    "data": "binary",
    "error": "string",
}


def schema_text(with_headers: bool) -> str:
    """The columns as Spark writes them."""
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if with_headers or name != "headers")


@attrs.define
class _Rows:
    """Rows to be, column by column."""

    topics: list[int] = attrs.field(factory=list)
    numbers: list[int] = attrs.field(factory=list)
    positions: list[int] = attrs.field(factory=list)
    times: list[float] = attrs.field(factory=list)
    publishers: list[str] = attrs.field(factory=list)
    events: list[PackedEvent] = attrs.field(factory=list)
    errors: dict[int, str] = attrs.field(factory=dict)
    """row → why it cannot be read"""
    transactions: dict[int, str] = attrs.field(factory=dict)
    """row → in which transaction it was published, if in any"""
    silence: dict[tuple[int, int], int] = attrs.field(factory=dict)
    """(row, topic) → up to which number the topic was passed without an event, before that row"""
    bytes: int = 0

    def add(
        self, topic: int, first: int, position: int, batch: LogBatch, publisher: str, events: Sequence[Any]
    ) -> None:
        """Consecutive events of one batch; the first one has this number, and this position."""
        count = len(events)
        self.topics += [topic] * count
        self.numbers += range(first, first + count)
        self.positions += range(position, position + count)
        self.times += [batch.published_at] * count
        self.publishers += [publisher] * count
        reason = events[0].content_type
        if isinstance(reason, Unreadable):  # what cannot be read are all events of a chunk
            self.errors.update(dict.fromkeys(range(len(self.events), len(self.events) + count), reason))
        if batch.transaction is not None:
            rows = range(len(self.events), len(self.events) + count)
            self.transactions.update(dict.fromkeys(rows, batch.transaction.id))
        self.events += events
        self.bytes += sum([len(event.payload) for event in events])


@attrs.define(eq=False)
class Table:
    """Makes record batches of a range."""

    topics: Sequence[str]
    """of the range, all of them, in the order of the vector"""
    start: Mapping[str, int]
    end: Mapping[str, int]
    wants: Callable[[PackedEvent], bool] | None = None
    """whether an event is a row; None: all are"""
    with_headers: bool = True
    has_topic: Callable[[str], bool] = lambda topic: True
    """whether any event of a topic is a row"""
    _places: dict[str, int] = attrs.field(init=False)
    _passed: list[int] = attrs.field(init=False)
    """how far each topic is"""
    _position: int = attrs.field(init=False)
    _clock: Any = attrs.field(init=False)
    """how far each topic was before the first row that is held"""
    _rows: _Rows = attrs.field(factory=_Rows)

    def __attrs_post_init__(self) -> None:
        self._places = {topic: at for at, topic in enumerate(self.topics)}
        self._passed = [self.start.get(topic, 0) for topic in self.topics]
        self._clock = np.array(self._passed, dtype=np.int64)
        self._position = sum(self._passed)

    def record_batches(self, source: Iterable[LogBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of these batches, in their order."""
        rows_max = max(1, min(ROWS_MAX, CELLS_MAX // max(1, len(self.topics))))
        for batch in source:
            self._take(batch)
            if len(self._rows.numbers) >= rows_max or self._rows.bytes >= BYTES_MAX:
                yield self._make()
        if self._rows.numbers:
            yield self._make()

    def _take(self, batch: LogBatch) -> None:
        topic = self._places[batch.topic]
        last = min(batch.last, self.end[batch.topic])
        for first, chunk_last, data in batch.chunks if self.has_topic(batch.topic) else ():
            logged = _read(data, chunk_last - first + 1)
            begin = max(first, self._passed[topic] + 1)
            events = logged.events[begin - first : last - first + 1]
            if events:
                self._pass_to(topic, begin - 1)
                self._add(topic, begin, batch, logged.publisher, events)
        self._pass_to(topic, last)

    def _pass_to(self, topic: int, number: int) -> None:
        """Numbers without an event have their place all the same."""
        silent = number - self._passed[topic]
        if silent > 0:
            self._passed[topic] = number
            self._position += silent
            if self._rows.numbers:
                self._rows.silence[len(self._rows.numbers), topic] = number
            else:
                self._clock[topic] = number

    def _add(self, topic: int, first: int, batch: LogBatch, publisher: str, events: Sequence[PackedEvent]) -> None:
        if self.wants is None:
            self._rows.add(topic, first, self._position + 1, batch, publisher, events)
            self._passed[topic] += len(events)
            self._position += len(events)
            return
        for number, event in enumerate(events, first):
            if self.wants(event):
                self._pass_to(topic, number - 1)
                self._rows.add(topic, number, self._position + 1, batch, publisher, [event])
                self._passed[topic] = number
                self._position += 1

    def _make(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, _Rows()
        topics = np.array(rows.topics, dtype=np.int64)
        micros = (np.array(rows.times) * 1e6).round().astype(np.int64)
        columns = {
            "position": pa.array(rows.positions, pa.int64()),
            "topic": pa.array(self.topics, pa.string()).take(pa.array(topics)),
            "number": pa.array(rows.numbers, pa.int64()),
            "vector": self._vectors(rows, topics),
            "published_at": pa.array(micros).cast(_TIME),
            "publisher": pa.array(rows.publishers, pa.string()),
            "id": pa.array([event.id for event in rows.events], pa.string()),
            "tx": _some(rows.transactions, len(rows.events)),
        }
        if self.with_headers:
            columns["headers"] = _headers(rows.events)
        columns["data"] = pa.array([event.payload for event in rows.events], pa.binary())
        columns["error"] = _some(rows.errors, len(rows.events))
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _vectors(self, rows: _Rows, topics: Any) -> pa.Array:
        """The clock after each row: how far each topic had come by then."""
        count, width = len(rows.numbers), len(self.topics)
        clock = np.zeros((count + 2, width), dtype=np.int64)
        clock[0] = self._clock
        clock[np.arange(1, count + 1), topics] = rows.numbers
        for (row, topic), number in rows.silence.items():
            clock[row + 1, topic] = max(clock[row + 1, topic], number)
        np.maximum.accumulate(clock, axis=0, out=clock)
        self._clock = clock[-1].copy()
        names = pa.array(self.topics, pa.string()).take(pa.array(np.tile(np.arange(width), count)))
        offsets = pa.array(np.arange(0, count * width + 1, width, dtype=np.int32))
        return pa.MapArray.from_arrays(offsets, names, pa.array(clock[1:-1].reshape(-1)))


def _some(texts: Mapping[int, str], count: int) -> pa.Array:
    """A column that few rows have anything in."""
    return pa.array(map(texts.get, range(count)), pa.string()) if texts else pa.nulls(count, pa.string())


def _read(data: bytes, count: int) -> Logged:
    """The events of a chunk; if they cannot be read, rows that say why."""
    try:
        return decode_logged(data, count)
    except ProtocolError as error:
        return unreadable(data, count, error)


def wanted_by(where: str) -> Callable[[PackedEvent], bool]:
    """What a filter lets through: also what nobody can read. A payload of a content type that is not known here has no fields."""
    chosen = Filter.parse(where)

    def wants(event: PackedEvent) -> bool:
        if isinstance(event.content_type, Unreadable):
            return True
        data = fields_of(event.payload, event.content_type) if chosen.needs_payload else None
        return chosen.matcher(data, packed_headers(event))

    return wants


def _headers(events: Sequence[PackedEvent]) -> pa.MapArray:
    """The headers of some events; most have none."""
    counts = np.zeros(len(events) + 1, dtype=np.int32)
    names: list[str] = []
    values: list[bytes] = []
    for row, event in enumerate(events, 1):
        if event.texts or event.binaries:
            headers = {**{name: text.encode() for name, text in (event.texts or {}).items()}, **(event.binaries or {})}
            names += headers
            values += headers.values()
            counts[row] = len(headers)
    offsets = pa.array(np.cumsum(counts, dtype=np.int32))
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.binary()))
