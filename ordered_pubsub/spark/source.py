"""The source in the words of Spark's Python Data Source API, from 4.0 on; with rate limits and AvailableNow from 4.2 on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub.spark import version, version_text
from ordered_pubsub.spark.options import ONLY_BATCH, ONLY_STREAM, Clock, Options
from ordered_pubsub.spark.plainly import plainly
from ordered_pubsub.spark.plan import Range, ReadPlan
from ordered_pubsub.spark.selecting import Selection
from ordered_pubsub.spark.table import schema_text

HAS_LIMITS = version() >= (4, 2)
NEEDS_LIMITS = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay")


class RangePartition(InputPartition):
    """A part of a batch."""

    def __init__(self, part: Range) -> None:
        self.part = part


class OrderedSource(DataSource):
    """Topics as one ordered, repeatable table or stream."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "ordered_pubsub"

    @plainly
    def schema(self) -> str:
        """The columns. Options are read here, in the driver, so what is wrong with them is said before anything runs."""
        return schema_text(self._read_options().with_headers)

    def _read_options(self) -> Options:
        return Options.read(self.options)

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        given = {key.lower() for key in self.options}
        for name in names:
            if name.lower() in given:
                raise ConfigurationError(f"option {name} {why}")

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        self._refuse(ONLY_STREAM, "is for streams: spark.readStream")
        options = self._read_options()
        if options.push_filters and version() < (4, 1):
            self._refuse(("pushFilters",), f"needs PySpark 4.1 or later; there is {version_text()}")
        return (SelectingReader if options.push_filters else OrderedReader)(ReadPlan(options))

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        self._refuse(ONLY_BATCH, "is for what is read once: spark.read")
        options = self._read_options()
        if not HAS_LIMITS:
            self._refuse(NEEDS_LIMITS, f"needs PySpark 4.2 or later; there is {version_text()}")
        plan = ReadPlan(options)
        plan.check()
        return LimitedStreamReader(plan) if HAS_LIMITS else OrderedStreamReader(plan)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`."""
        from ordered_pubsub.spark.sink import OrderedWriter, make_sink

        return OrderedWriter(make_sink(schema, self.options, overwrite))

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `df.writeStream`."""
        from ordered_pubsub.spark.sink import OrderedStreamWriter, make_sink

        self._refuse(("writeId",), "is for tables: of a stream, Spark says which query and batch it is")
        return cast(DataSourceStreamWriter, OrderedStreamWriter(make_sink(schema, self.options, overwrite)))


def _rows_of(plan: ReadPlan, partition: InputPartition) -> Iterator[Any]:
    """The rows of a part; of no part at all, which Spark reads as well, there are none."""
    return plan.read(partition.part) if isinstance(partition, RangePartition) else iter(())


class OrderedReader(DataSourceReader):
    """What there is between two places, read once."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan

    @plainly
    def partitions(self) -> list[InputPartition]:
        """The parts that are read side by side."""
        start, end = self.plan.first("earliest"), self.plan.last()
        end = {topic: max(last, start.get(topic, 0)) for topic, last in end.items()}
        return [RangePartition(part) for part in self.plan.parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one."""
        return _rows_of(self.plan, partition)


class SelectingReader(OrderedReader):
    """What is read once, of which Spark's own filters leave a part. Only for who has told Spark to push them down."""

    @plainly
    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """What Spark will filter by, and does all the same."""
        self.plan.selection = Selection.of(filters)
        return filters


class OrderedStreamReader(DataSourceStreamReader):
    """What comes, in batches that end at cuts."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self.start: Clock | None = None
        """where the last batch ended, as far as it is known"""

    @plainly
    def initialOffset(self) -> Clock:
        """Where a query without a checkpoint begins."""
        self.start = self.plan.first("latest")
        return self.start

    @plainly
    def latestOffset(self, start: Any = None, limit: Any = None) -> Clock:
        """How far it is now. Whatever comes before the start was committed: Spark asks for the next batch after that."""
        return self.plan.next(start or self.start or {})[0]

    @plainly
    def partitions(self, start: Clock, end: Clock) -> list[InputPartition]:
        """The parts of a batch."""
        self.start = end
        return [RangePartition(part) for part in self.plan.parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one."""
        return _rows_of(self.plan, partition)


if HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class LimitedStreamReader(OrderedStreamReader, SupportsTriggerAvailableNow):
        """With limits to the size of a batch."""

        def __init__(self, plan: ReadPlan) -> None:
            super().__init__(plan)
            self.target: Clock | None = None
            """where a query that takes what there is ends"""
            self.waiting_since: float | None = None

        def getDefaultReadLimit(self) -> Any:
            """What the options say."""
            options = self.plan.options
            if options.records_max is not None:
                return ReadMaxRows(options.records_max)
            return ReadAllAvailable() if options.bytes_max is None else ReadMaxBytes(options.bytes_max)

        @plainly
        def prepareForTriggerAvailableNow(self) -> None:
            """What comes from now on is not for this query."""
            self.target = self.plan.now()

        @plainly
        def latestOffset(self, start: Any = None, limit: Any = None) -> Clock:
            """Where the next batch ends."""
            begin: Mapping[str, int] = start or self.start or {}
            rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            bytes_max = self.plan.options.bytes_max if isinstance(limit, (ReadMaxRows, ReadMaxBytes)) else None
            end, there = self.plan.next(begin, rows_max, bytes_max, self.target)
            return end if self._is_enough(there) else dict(begin)

        def reportLatestOffset(self) -> Clock | None:
            """How far the topics are, for who watches the query: what is missing up to there is how far it is behind."""
            return self.plan.seen

        def _is_enough(self, events: int) -> bool:
            """Whether there are as many events as wanted, or it has been waited for them long enough."""
            least, now = self.plan.options.records_min, time.monotonic()
            if least is None or self.target is not None or events >= least or not events:
                self.waiting_since = None
                return True
            if self.waiting_since is None:
                self.waiting_since = now
            if now - self.waiting_since < self.plan.options.delay_max_s:
                return False
            self.waiting_since = None
            return True
