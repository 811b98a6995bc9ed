"""`ordered-pubsub audit`: judge recorded notifications, with Spark on this machine."""

from __future__ import annotations

import argparse
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from ordered_pubsub.cli.spark import add_master, spark_session
from ordered_pubsub.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ordered_pubsub.spark.jobs import Audit

DESCRIPTION = "Judges recorded notifications of any number of subscribers: one order, everything, once."
EPILOG = """\
examples:
  ordered-pubsub sub trades quotes --json > desk-1.jsonl      # of each subscriber a file, while it runs
  ordered-pubsub audit desk-1.jsonl desk-2.jsonl
  ordered-pubsub audit notifications.parquet                  # columns subscriber, place, topic, number, and tx

It finds events that were notified twice, numbers that are missing, subscribers that contradict each other about the order, and
transactions that were torn apart. It needs pip install 'ordered-pubsub[spark]' and a Java runtime.

exit code: 0 if nothing was found, 1 if something was, 2 if the call does not fit
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="a .jsonl file for each subscriber, or Parquet for all"
    )
    parser.add_argument("--filtered", action="store_true", help="the subscribers chose by content: holes are no gaps")
    add_master(parser)
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Read, judge, and say by the exit code whether all is well."""
    paths = [Path(path) for path in arguments.paths]
    for path in paths:
        if not path.exists():
            raise UsageError(
                f"{path} does not exist: expected a file that 'ordered-pubsub sub --json' wrote, or Parquet"
            )
    with spark_session("audit", arguments.master) as spark:
        from ordered_pubsub.spark.jobs import audit

        found = audit(_read(spark, paths), are_filtered=arguments.filtered)
    print(describe(found))
    return 0 if found.is_clean else 1


def _read(spark: SparkSession, paths: list[Path]) -> DataFrame:
    """All notifications."""
    from pyspark.sql import functions as f

    frames = []
    for path in paths:
        if path.suffix == ".jsonl":
            lines = spark.read.schema("topic STRING, number BIGINT, tx STRING").json(str(path))
            placed = lines.withColumn("place", f.monotonically_increasing_id())  # rises with the lines of one file
            frames.append(placed.where("number IS NOT NULL").withColumn("subscriber", f.lit(path.stem)))
        else:
            frames.append(spark.read.parquet(str(path)))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def describe(found: Audit) -> str:
    """In words."""
    lines = [
        f"{found.notifications:,} notifications of {found.subscribers:,} subscribers on {found.topics:,} topics: "
        + ("one order, everything, once" if found.is_clean else "not as promised")
    ]
    for finding in found.findings:
        lines.append(f"{finding.kind}: {finding.count:,}")
        lines += [f"    {example}" for example in finding.examples]
    return "\n".join(lines)
