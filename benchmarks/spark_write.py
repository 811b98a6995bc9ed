"""How fast Spark writes: rows of 200 bytes from two tasks to two stages, each task's topics by themselves, and in one order.

    python benchmarks/spark_write.py [--rows 400000] [--sorted 10000]

With `sort`, each row waits until the one before it has its place; here each is on the other stage than the row before, so every
row waits. A few rows are written first, and not counted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from spark_side import ask, few_processors, say, session

import ordered_pubsub.spark
from ordered_pubsub.testing.stages import StageProcesses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, SORTED = 400_000, 10_000
BYTES, TASKS = 200, 2
WARM = 1_000


def write(spark: SparkSession, plan: dict[str, Any]) -> None:
    """Both ways; in a process of its own."""
    from pyspark.sql import functions as f

    def rows_a_second(rows: int, **options: str) -> float:
        topic = f.when(f.col("id") % 2 == 0, "eu/written").otherwise("us/written")
        data = f.lit("x" * BYTES).cast("binary")
        table = spark.range(rows, numPartitions=TASKS).select("id", topic.alias("topic"), data.alias("data"))
        table = table.withColumnRenamed("id", "at") if options else table.drop("id")
        begin = time.monotonic()
        table.write.format("ordered_pubsub").options(sequencer=plan["sequencer"], **options).mode("append").save()
        return rows / (time.monotonic() - begin)

    rows_a_second(WARM)
    say(plan, {"topics by themselves": rows_a_second(plan["rows"]), "sorted": rows_a_second(plan["sorted"], sort="at")})


def run(rows: int = ROWS, in_order: int = SORTED) -> dict[str, float]:
    """Rows a second of each way."""
    with TemporaryDirectory() as name, few_processors():
        stages = StageProcesses(Path(name) / "stages", [["eu/**"], ["**"]])
        try:
            stages.start()
            plan = {"what": "write", "folder": name, "sequencer": ",".join(stages.addresses)}
            (found,), _ = ask(__file__, Path(name), {**plan, "rows": rows, "sorted": in_order})
        finally:
            stages.kill()
    return found


def main() -> None:
    """Measure, or be the process with Spark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--sorted", type=int, default=SORTED)
    parser.add_argument("--plan", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plan:
        spark = session(Path(given.plan["folder"]))
        ordered_pubsub.spark.register(spark)
        write(spark, given.plan)
    else:
        for way, rate in run(given.rows, given.sorted).items():
            print(f"{way}: {rate:,.0f} rows a second")


if __name__ == "__main__":
    main()
