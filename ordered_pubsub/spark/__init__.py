"""Ordered streams in PySpark: `ordered_pubsub.spark.register(spark)`, then `spark.readStream.format("ordered_pubsub")`.

`options` is what a source may be told, `plan` what it reads, whatever version of Spark asks, `table` makes rows of it, `progress`
keeps what a source with a name has not read yet, and `source` is all that in the words of Spark's Python Data Source API.
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
    """Let this session read `format("ordered_pubsub")`."""
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
            f"the connector to Spark needs PySpark {'.'.join(map(str, LOWEST))} or later, and there is {_version_text()}: "
            "pip install 'pyspark>=4.0'"
        )


def version() -> tuple[int, int]:
    """Which PySpark there is."""
    major, minor, *_ = _version_text().split(".")
    return int(major), int(minor)


def _version_text() -> Any:
    import pyspark

    return pyspark.__version__
