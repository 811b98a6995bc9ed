"""The sink in the words of Spark's Python Data Source API: rows are published once, however often Spark runs a batch again.

Which rows these are is said by the query, the batch, and the part of the batch, which a task learns from Spark; of a table that
is written once, by `writeId`, or by a name that is made for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

import attrs
import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource, types
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from ordered_pubsub.client.client import check_id
from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.core.topics import check_topic
from ordered_pubsub.errors import ConfigurationError, UnavailableError, UsageError
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.spark.ens import TaskEns
from ordered_pubsub.spark.options import SinkOptions
from ordered_pubsub.spark.plainly import plainly
from ordered_pubsub.spark.publishing import Identity, TaskPublishing
from ordered_pubsub.spark.spilling import in_order
from ordered_pubsub.spark.whole import Input
from ordered_pubsub.wire.content import BYTES, JSON
from ordered_pubsub.wire.event_frames import EVENT_BYTES, check_headers, content_type_bytes, headers_bytes
from ordered_pubsub.wire.pack import NO_HEADERS

Row = tuple[Any, ...]
"""A row's topic, data, headers, id, and what it is sorted by, as far as there are such columns; else None."""
_Placed = tuple[Any, Outgoing]
"""What a row is sorted by, and what is published of it."""

_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "data": (BinaryType, StringType),
    "headers": (MapType,),
    "id": (StringType,),
}
_EXPECTED = {MapType: "map<string,string|binary>"}
_SORTED = (
    types.NumericType, types.StringType, types.BinaryType, types.BooleanType, types.DateType, types.TimestampType,
    types.TimestampNTZType, types.DayTimeIntervalType,
)  # fmt: skip
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)
"""Before 4.1, streams come as rows."""


@attrs.frozen
class Columns:
    """Which columns there are: their places in a row of Spark."""

    names: tuple[str | None, ...]
    content_type: str
    has_local_time: bool
    """whether what rows are sorted by comes as a local time, where rows come one by one"""

    @classmethod
    def of(cls, schema: StructType, options: SinkOptions) -> Columns:
        """Those of a table, or an error that says what does not fit."""
        there = {field.name: field.dataType for field in schema.fields}
        for name, kind in there.items():
            _check_column(name, kind, options.sort)
        _check_choice(there, options)
        names = tuple(name if name in there else None for name in _COLUMNS)
        content_type = BYTES if isinstance(there["data"], BinaryType) else JSON
        return cls((*names, options.sort), content_type, isinstance(there.get(options.sort), types.TimestampType))

    def rows(self, pieces: Iterable[Any]) -> Iterator[Row]:
        """Rows of Spark's, from record batches or one by one."""
        for piece in pieces:
            if isinstance(piece, pa.RecordBatch):
                nothing = [None] * piece.num_rows
                columns = [nothing if name is None else _values(piece.column(name)) for name in self.names]
                yield from zip(*columns, strict=True)
            else:
                *row, place = (None if name is None else piece[name] for name in self.names)
                yield (*row, place.timestamp() if self.has_local_time and place is not None else place)


def _check_column(name: str, kind: DataType, sort: str | None) -> None:
    """Raise what is wrong with one."""
    if name in _COLUMNS and not _fits(name, kind):
        expected = " or ".join(_EXPECTED.get(one) or one().simpleString() for one in _COLUMNS[name])
        raise UsageError(f"column {name!r} has type {kind.simpleString()}; expected {expected}")
    if name not in _COLUMNS and name != sort:
        raise UsageError(
            f"column {name!r} would not be published: select topic, data, headers and id, as far as there are such, and what "
            "option sort names; to_json(struct(...)) AS data makes one of several"
        )


def _check_choice(there: Mapping[str, DataType], options: SinkOptions) -> None:
    """Raise what is missing, or there twice."""
    if "data" not in there:
        raise UsageError(
            "there is no column 'data' to be published, with binary or with JSON: to_json(struct(...)) AS data"
        )
    if ("topic" in there) == (options.topic is not None):
        raise UsageError("on which topic? Give either a column 'topic', or option topic for all rows")
    if options.sort is not None and not isinstance(there.get(options.sort), _SORTED):
        raise ConfigurationError(
            f"option sort={options.sort!r} names no column that has an order; there are {', '.join(there)}"
        )


def _values(column: pa.Array) -> list[Any]:
    """Times in UTC: others are not in their order while a clock is put back."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    return column.to_pylist()  # type: ignore[no-any-return]


def _fits(name: str, kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return (
            name == "headers"
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, (BinaryType, StringType))
        )
    return isinstance(kind, _COLUMNS[name])


@attrs.frozen
class Sink:
    """What a task does with its rows; it is sent to executors."""

    options: SinkOptions
    columns: Columns

    def publish(self, pieces: Iterable[Any], identity: Identity) -> int:
        """Publish them, and say how many they are."""
        options, came_by = self.options, Input.now()
        with StageLines(options.access) as stages:
            ens = None if options.ens is None else TaskEns.open(options.ens, options.access.timeout_s)
            publishing = TaskPublishing(stages, identity, options.publisher, options.sort is not None, ens)
            try:
                for item in self._items(pieces, stages.payload_bytes_max, came_by):
                    publishing.put(item)
                publishing.finish(came_by.is_whole)
            finally:
                publishing.close()
                if ens is not None:
                    ens.close()
        return publishing.rows

    def _items(self, pieces: Iterable[Any], bytes_max: int, came_by: Input) -> Iterator[Outgoing]:
        """What is to be published, in order."""
        make = partial(_outgoing, topic=self.options.topic, content_type=self.columns.content_type, bytes_max=bytes_max)
        rows: Iterator[_Placed] = ((row[-1], make(row)) for row in self.columns.rows(pieces))
        if self.options.sort is not None:
            rows = in_order(_all(rows, came_by), _order, lambda row: row[1].size)
        return (item for _, item in rows)


def _all(rows: Iterable[_Placed], came_by: Input) -> Iterator[_Placed]:
    """Rows that are sorted: if the last of them did not come, another might be the first."""
    yield from rows
    if not came_by.is_whole:
        raise UnavailableError(
            "the rows of this task broke off: what computes them failed, or Spark was stopped. Nothing was published"
        )


def _order(row: _Placed) -> tuple[Any, ...]:
    """What a row is sorted by, as Spark does; what is equal then is alike, so that a second run has the same order."""
    place, item = row
    is_nan = place != place
    content = (item.topic, item.payload, repr(sorted(item.headers.items())), item.id)
    return (place is not None, is_nan, 0 if is_nan or place is None else place, *content)


def _outgoing(row: Row, topic: str | None, content_type: str, bytes_max: int) -> Outgoing:
    """A row as it is published, checked."""
    own_topic, data, headers, identity, _ = row
    topic = own_topic if topic is None else topic
    if topic is None or data is None:
        raise UsageError(
            f"a row has no {'topic' if topic is None else 'data'} (null): leave such rows out, or fill it in"
        )
    payload = _json(data) if content_type == JSON else bytes(data)
    checked = check_headers(_headers(headers)) if headers else NO_HEADERS
    size = EVENT_BYTES + content_type_bytes(content_type) + len(payload) + (headers_bytes(checked) if checked else 0)
    if size > bytes_max:
        raise UsageError(
            f"an event for {topic!r} has {size} bytes; at most {bytes_max} (payload_bytes_max of the stages) fit"
        )
    if identity is not None:
        size += len(check_id(identity).encode())
    return Outgoing(check_topic(topic), identity or "", payload, content_type, checked, size)


def _headers(given: Any) -> dict[str, Any]:
    return {name: bytes(value) if isinstance(value, bytearray) else value for name, value in dict(given).items()}


def _json(text: str) -> bytes:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"data is no JSON: {error}, in {text!r:.80}. A column of text holds JSON, as to_json(struct(...)) makes it; other "
            "text is published as bytes: CAST(data AS BINARY)"
        ) from None
    return text.encode()


@attrs.define
class Published(WriterCommitMessage):
    """What a task says at its end."""

    rows: int


class OrderedWriter(DataSourceArrowWriter):
    """For `df.write`."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.write_id = sink.options.write_id or uuid4().hex

    @plainly
    def write(self, iterator: Iterator[Any]) -> Published:
        """What a task does."""
        identity = Identity(self.write_id, _part(), 0)
        return Published(self.sink.publish(iterator, identity))


class OrderedStreamWriter(_StreamWriter):
    """For `df.writeStream`."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    @plainly
    def write(self, iterator: Iterator[Any]) -> Published:
        """What a task does. There is nothing left to commit, or to take back."""
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise UsageError("Spark does not say which query and batch this is; expected a query of writeStream")
        identity = Identity(query, _part(), int(batch))
        return Published(self.sink.publish(iterator, identity))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All of it is published."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What is published stays so, and is not published again when the batch is run again."""


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "tasks run in Spark"
    return context


def _part() -> int:
    return int(_context().partitionId())


def make_sink(schema: StructType, given: Mapping[str, Any], overwrite: bool) -> Sink:
    """What these options say, checked in the driver, before anything runs."""
    if overwrite:
        raise UsageError(
            "what is published stays published: use mode('append'), or, of a stream, outputMode('append') or 'update'"
        )
    options = SinkOptions.read(given)
    sink = Sink(options, Columns.of(schema, options))
    with StageLines(options.access) as stages:
        if options.topic is not None:
            stages.check_kept([options.topic])
    return sink
