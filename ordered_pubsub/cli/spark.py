"""Spark for a command: a session as long as it takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ordered_pubsub.spark import check_pyspark

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

PARTS_PER_CORE = 4


def add_master(parser: argparse.ArgumentParser) -> None:
    """Add the option `--master`."""
    parser.add_argument("--master", default="local[*]", help="where Spark runs (default: local[*], this machine)")


@contextmanager
def spark_session(command: str, master: str) -> Iterator[SparkSession]:
    """A session that shows its progress on a terminal, and nothing but errors otherwise."""
    check_pyspark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(f"ordered-pubsub {command}")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    if master.startswith("local"):
        # Spark's own 200 are for clusters: on one machine each of them costs more than it spreads.
        builder = builder.config("spark.sql.shuffle.partitions", str(PARTS_PER_CORE * (os.cpu_count() or 1)))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
