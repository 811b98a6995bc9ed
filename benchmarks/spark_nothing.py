"""A source for Spark that has one record batch, and gives it again and again: no source in Python can be faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from ordered_pubsub.spark.plan import ROWS_PER_PARTITION
from ordered_pubsub.spark.table import schema_text


class Part(InputPartition):
    """So many rows of nothing."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class NothingReader(DataSourceStreamReader):
    """One record batch again and again, in as many parts as the topics have."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.file, self.rows = options["file"], int(options["rows"])

    def initialOffset(self) -> dict[str, int]:
        """Before the first row."""
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:
        """Behind the last one."""
        return {"rows": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Parts of the usual size."""
        rows = range(start["rows"], end["rows"], ROWS_PER_PARTITION)
        return [Part(min(ROWS_PER_PARTITION, end["rows"] - first)) for first in rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one."""
        with pa.ipc.open_file(self.file) as file:
            batch = file.get_batch(0)
        left = partition.rows
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


class Nothing(DataSource):
    """Rows made of nothing."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "nothing"

    def schema(self) -> str:
        """That of the topics."""
        return schema_text(True)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        return NothingReader(self.options)
