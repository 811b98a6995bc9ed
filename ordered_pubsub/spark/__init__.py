"""Ordered streams in PySpark: `ordered_pubsub.spark.register(spark)`, then `format("ordered_pubsub")`, to read or to write.

`options` is what a source or a sink may be told. Reading: `plan` is what a source reads, whatever version of Spark asks, `table`
makes rows of it, `progress` keeps what a source with a name has not read yet. Writing: `publishing` is what a task does with its
rows, each published once however often it is run, `writer_line` its line to one stage, `ens` lets a broker have them as well,
`spilling` sorts them, `whole` knows whether all of them came. `source` and `sink` are all that in the words of Spark's Python
Data Source API, `plainly` what is said of mistakes there; `jobs` is work for Spark about the order itself.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ordered_pubsub.errors import NotOffered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOWEST = (4, 0)
"""The first version of PySpark whose data sources can stream Arrow record batches."""

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Let this session read and write `format("ordered_pubsub")`."""
    check_pyspark()
    from ordered_pubsub.spark.source import OrderedSource

    spark.dataSource.register(OrderedSource)


def check_pyspark() -> None:
    """Raise what to do if PySpark, or the version that there is, cannot be used."""
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise NotOffered(
            f"the connector to Spark needs {', '.join(missing)}, which is not installed here: pip install 'ordered-pubsub[spark]'"
        )
    if version() < LOWEST:
        raise NotOffered(
            f"the connector to Spark needs PySpark {'.'.join(map(str, LOWEST))} or later, and there is {version_text()}: "
            "pip install 'pyspark>=4.0'"
        )


def version() -> tuple[int, int]:
    """Which PySpark there is."""
    major, minor, *_ = version_text().split(".")
    return int(major), int(minor)


def version_text() -> Any:
    """The same in words."""
    import pyspark

    return pyspark.__version__
