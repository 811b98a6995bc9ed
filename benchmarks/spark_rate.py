"""How fast Spark reads topics as a stream, beside Parquet and beside rows made of nothing; and memory over many rows.

    python benchmarks/spark_rate.py [--rows 1000000] [--rounds 3] [--more 5000000]

Rows of 200 bytes are published in batches of 100 on four topics of two stages, which were in one order before. Three streams take
as many rows each into a sink that drops them (`noop`), in turns: the topics; Parquet, where the same rows were written; and a
Python data source that gives one record batch of these rows again and again, so no source in Python can be faster. Each query
takes what there is (`Trigger.AvailableNow`) in one batch; its time is from `start()` until it has ended, with planning and its
checkpoint. The first round is not counted: in it Spark loads and compiles what it runs, and starts its Python workers.

Then more is published, and all of it read in batches of 500,000 rows, in a new Spark: the most that the JVM, the driver's Python,
the workers together, and each stage hold, in each fifth of the time after a warm-up. The JVM's heap has its whole size from the
beginning, so that what grows is not in it; of the heap itself it is seen what is left of it after a garbage collection, once a
second. Everything has two processors, stages too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs
import pyarrow as pa
from spark_nothing import Nothing
from spark_side import DRIVER_MEMORY, Memory, ask, few_processors, say, session

import ordered_pubsub
import ordered_pubsub.spark
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.spark.progress import ReaderProgress
from ordered_pubsub.spark.table import ROWS_MAX
from ordered_pubsub.testing.stages import StageProcesses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS = ("eu/trades", "eu/quotes", "us/trades", "us/quotes")
BYTES, BATCH, SEED = 200, 100, 2
UNDER_WAY = 10
"""batches of each topic that are published at a time"""
ROWS, ROUNDS = 1_000_000, 3
MORE, ROWS_PER_BATCH = 5_000_000, 500_000
KINDS = ("topics", "Parquet", "nothing")
FIFTHS = 5
WARM_UP = 1 / 4
"""of the time that all batches take: Spark loads and compiles what it runs, and workers come to their size"""
HEAP_S = 1.0
WHOLE_HEAP = {"spark_driver_extraJavaOptions": f"-Xms{DRIVER_MEMORY} -XX:+AlwaysPreTouch"}


@attrs.frozen
class Rates:
    """Of each kind, in each round, rows a second."""

    rows: int
    rounds: Mapping[str, Sequence[float]]

    def median(self, kind: str) -> float:
        """The usual one."""
        return median(self.rounds[kind])


@attrs.frozen
class Held:
    """What each held at most, in MB, in each fifth of the time."""

    rows: int
    batches: int
    took_s: float
    mb: Mapping[str, Sequence[float]]


@attrs.frozen
class Found:
    """All figures."""

    published_per_s: float
    rates: Rates
    held: Held


# -- what is read -------------------------------------------------------------------------------------------------------------


def hold(addresses: Sequence[str]) -> None:
    """From now on the topics are in one order."""
    with StageLines(ReaderAccess(ClientSection(sequencer=tuple(addresses)))) as stages:
        ReaderProgress("rate").cut(stages, TOPICS, {})


async def _publish(addresses: Sequence[str], rows: int) -> None:
    chance = Random(SEED)  # payloads that nothing can pack: Parquet would write what is there twice only once
    async with ordered_pubsub.connect(f"memory://{uuid4().hex}", sequencer=list(addresses)) as client:

        async def go_on(topic: str, batches: Iterator[int]) -> None:
            for _ in batches:
                await client.publish_many(topic, [chance.randbytes(BYTES) for _ in range(BATCH)])

        for_each = [(topic, iter(range(rows // BATCH // len(TOPICS)))) for topic in TOPICS]
        await asyncio.gather(*(go_on(*one) for one in for_each for _ in range(UNDER_WAY)))


def publish(addresses: Sequence[str], rows: int) -> float:
    """Publish so many; returns how many a second."""
    begin = time.monotonic()
    asyncio.run(_publish(addresses, rows))
    return rows / (time.monotonic() - begin)


# -- in a process of its own --------------------------------------------------------------------------------------------------


def options_of(plan: Mapping[str, Any]) -> dict[str, str]:
    """What the source is told."""
    return {"sequencer": ",".join(plan["addresses"]), "topics": ",".join(TOPICS), "startingOffsets": "earliest"}


def prepare(spark: SparkSession, plan: Mapping[str, Any]) -> dict[str, DataFrame]:
    """The three streams, with the same rows."""
    folder = Path(plan["folder"])
    table = spark.read.format("ordered_pubsub").options(**options_of(plan)).load()
    table.write.parquet(str(folder / "rows"))
    some = table.limit(ROWS_MAX).toArrow().combine_chunks()
    with pa.OSFile(str(folder / "some"), "wb") as sink, pa.ipc.new_file(sink, some.schema) as file:
        file.write_table(some)
    nothing = {"file": str(folder / "some"), "rows": str(plan["rows"])}
    return {
        "topics": spark.readStream.format("ordered_pubsub").options(**options_of(plan)).load(),
        "Parquet": spark.readStream.schema(table.schema).parquet(str(folder / "rows")),
        "nothing": spark.readStream.format("nothing").options(**nothing).load(),
    }


def take(stream: DataFrame, checkpoint: Path, look: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Let a stream end, and look now and then; how many rows and batches it had, and from when to when."""
    begin = time.monotonic()
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    while not query.awaitTermination(HEAP_S):
        look()
    end = time.monotonic()
    batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    return {"rows": sum(batches), "batches": len(batches), "begin": begin, "end": end}


def compare(spark: SparkSession, plan: dict[str, Any]) -> None:
    """The streams in turns."""
    spark.dataSource.register(Nothing)
    streams = prepare(spark, plan)
    for turn in range(plan["rounds"] + 1):
        for kind in KINDS if turn % 2 else reversed(KINDS):
            found = take(streams[kind], Path(plan["folder"]) / f"{kind}-{turn}")
            say(plan, {"kind": kind, "turn": turn, **found})


def read_all(spark: SparkSession, plan: dict[str, Any]) -> None:
    """One stream, in batches."""
    heap: list[tuple[float, float]] = []
    java = spark._jvm.java.lang
    runtime = java.Runtime.getRuntime()

    def look() -> None:
        java.System.gc()
        heap.append((time.monotonic(), (runtime.totalMemory() - runtime.freeMemory()) / 1e6))

    options = {**options_of(plan), "maxRecordsPerTrigger": str(plan["rows_per_batch"])}
    stream = spark.readStream.format("ordered_pubsub").options(**options).load()
    found = take(stream, Path(plan["folder"]) / "all", look)
    say(plan, {**found, "heap": heap})


# -- the measurement ----------------------------------------------------------------------------------------------------------


def rates_of(found: Sequence[Mapping[str, Any]], rows: int) -> Rates:
    """Rows a second, but for the first round."""
    for one in found:
        if one["rows"] != rows:
            raise AssertionError(f"{one['kind']} had {one['rows']} rows instead of {rows}")
    return Rates(
        rows,
        {
            kind: [rows / (one["end"] - one["begin"]) for one in found if one["kind"] == kind and one["turn"]]
            for kind in KINDS
        },
    )


def held_of(found: Mapping[str, Any], memory: Memory) -> Held:
    """The most in each fifth after the warm-up."""
    memory.samples += [(at, {"heap": mb}) for at, mb in found["heap"]]
    took_s = found["end"] - found["begin"]
    begin = found["begin"] + WARM_UP * took_s
    step = (found["end"] - begin) / FIFTHS
    fifths = [memory.between(begin + at * step, begin + (at + 1) * step) for at in range(FIFTHS)]
    everybody = dict.fromkeys(who for fifth in fifths for who in fifth)
    mb = {who: [fifth.get(who, 0.0) for fifth in fifths] for who in everybody}
    return Held(found["rows"], found["batches"], took_s, mb)


def run(rows: int = ROWS, rounds: int = ROUNDS, more: int = MORE, rows_per_batch: int = ROWS_PER_BATCH) -> Found:
    """Measure. Of the rows there are `more` in the end."""
    with TemporaryDirectory() as name, few_processors():
        folder = Path(name)
        stages = StageProcesses(folder / "stages", [["eu/**"], ["**"]])
        try:
            stages.start()
            plan = {"addresses": stages.addresses, "folder": name, "rounds": rounds, "rows": rows}
            hold(stages.addresses)
            rate = publish(stages.addresses, rows)
            compared, _ = ask(__file__, folder, {"what": "compare", **plan})
            publish(stages.addresses, more - rows)
            pids = {stage.name: stage.pid for stage in stages.processes if stage.pid is not None}
            (found,), memory = ask(__file__, folder, {"what": "all", **plan, "rows_per_batch": rows_per_batch}, **pids)
        finally:
            stages.kill()
    return Found(rate, rates_of(compared, rows), held_of(found, memory))


def table(found: Found) -> str:
    """The figures."""
    lines = [f"published {found.published_per_s:,.0f} rows a second; {found.rates.rows:,} rows of {BYTES} bytes:"]
    for kind in KINDS:
        usual, best = found.rates.median(kind), max(found.rates.rounds[kind])
        times = found.rates.median("topics") / usual
        lines.append(f"  {kind:8} {usual:10,.0f} a second (best: {best:,.0f}); the topics: {times:.2f} times as many")
    held = found.held
    lines.append(
        f"{held.rows:,} rows in {held.batches} batches, {held.took_s:.1f} s; MB at most, in fifths of the time:"
    )
    lines += [f"  {who:8} " + " ".join(f"{mb:7.0f}" for mb in mbs) for who, mbs in held.mb.items()]
    return "\n".join(lines)


def main() -> None:
    """Measure, or be the process with Spark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (
        ("--rows", ROWS),
        ("--rounds", ROUNDS),
        ("--more", MORE),
        ("--rows-per-batch", ROWS_PER_BATCH),
    ):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--plan", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plan:
        work, more = {"compare": (compare, {}), "all": (read_all, WHOLE_HEAP)}[given.plan["what"]]
        spark = session(Path(given.plan["folder"]), **more)
        ordered_pubsub.spark.register(spark)
        work(spark, given.plan)
    else:
        print(table(run(given.rows, given.rounds, given.more, given.rows_per_batch)))


if __name__ == "__main__":
    main()
