"""Trades and quotes from a broker, in one order, to Parquet: each trade beside the quote that held when it was made.

    ordered-pubsub serve &                                                            # a stage
    python examples/market_pipeline.py --ens mqtt://127.0.0.1:1883 --events 10000     # publish, then run the pipeline
    python examples/market_pipeline.py                                                # whatever has come since

Which quote held is a question about the order across topics: only with one total order does it have one answer. The pipeline may
be killed at any moment: started again, it goes on, and the table is the same. A batch that is run again is the same batch, and
writes its own folder anew.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

import ordered_pubsub
import ordered_pubsub.spark

SYMBOLS = ("ACME", "BOLT", "CORK", "DUSK")
TOPICS = ("eu/trades", "eu/quotes", "us/trades", "us/quotes")
FIELDS = "symbol STRING, price DOUBLE, bid DOUBLE"
QUOTE = "symbol STRING, bid DOUBLE, quote_position BIGINT"


async def publish(ens: str, sequencer: list[str], events: int) -> None:
    """A market: four quotes for each trade, on two exchanges."""
    chance = random.Random(7)
    async with ordered_pubsub.connect(ens, sequencer=sequencer, name="market") as client:
        pending = []
        for number in range(events):
            exchange, symbol = chance.choice(("eu", "us")), chance.choice(SYMBOLS)
            price = round(100 + chance.gauss(0, 5), 2)
            if number % 5:
                pending.append(client.publish_nowait(f"{exchange}/quotes", {"symbol": symbol, "bid": price}))
            else:
                pending.append(client.publish_nowait(f"{exchange}/trades", {"symbol": symbol, "price": price}))
            if len(pending) >= 1_000:
                await asyncio.gather(*pending)
                pending.clear()
        await asyncio.gather(*pending)


def with_quotes(events: DataFrame, held: DataFrame) -> DataFrame:
    """Events in their order, each with the last quote of its symbol before it; `held` are those from before the first event."""
    fields = f.from_json(f.col("data").cast("string"), FIELDS)
    rows = events.select("position", "topic", "number", fields.alias("fields")).select(
        "position", "topic", "number", "fields.*"
    )
    rows = rows.withColumn("quote_position", f.when(f.col("bid").isNotNull(), f.col("position")))
    before = held.select("symbol", "bid", "quote_position", f.col("quote_position").alias("position"))
    order = Window.partitionBy("symbol").orderBy("position")
    return (
        rows.unionByName(before, allowMissingColumns=True)
        .withColumn("bid", f.last("bid", ignorenulls=True).over(order))
        .withColumn("quote_position", f.last("quote_position", ignorenulls=True).over(order))
    )


class Pipeline:
    """Writes each batch, all its events with the quotes that held, and the quotes at its end, into folders of their own."""

    def __init__(self, spark: SparkSession, output: Path) -> None:
        self.spark = spark
        self.output = output

    def write(self, batch: DataFrame, number: int) -> None:
        """One batch; the same batch again writes the same again."""
        held = self.output / "quotes" / f"batch={number - 1}"
        before = self.spark.read.parquet(str(held)) if number else self.spark.createDataFrame([], QUOTE)
        rows = with_quotes(batch, before).persist()
        ticks = rows.where("topic IS NOT NULL").orderBy("position")
        ticks.write.mode("overwrite").parquet(str(self.output / "ticks" / f"batch={number}"))
        last = Window.partitionBy("symbol").orderBy(f.col("position").desc())
        quotes = rows.where("bid IS NOT NULL").withColumn("place", f.row_number().over(last)).where("place = 1")
        quotes.select("symbol", "bid", "quote_position").write.mode("overwrite").parquet(
            str(self.output / "quotes" / f"batch={number}")
        )
        rows.unpersist()

    def run(self, options: dict[str, str]) -> None:
        """Take what there is."""
        stream = self.spark.readStream.format("ordered_pubsub").options(**options).load()
        query = (
            stream.writeStream.foreachBatch(self.write)
            .option("checkpointLocation", str(self.output / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    @property
    def trades(self) -> DataFrame:
        """All trades so far, in order, each with its quote."""
        ticks = self.spark.read.parquet(str(self.output / "ticks")).drop("batch")
        return ticks.where("price IS NOT NULL").orderBy("position")


def main() -> None:
    """Publish, if told to; then run."""
    parser = argparse.ArgumentParser(description="Trades with the quotes that held, from a broker to Parquet.")
    parser.add_argument("--ens", default="memory://", help="the broker on which to publish (default: none)")
    parser.add_argument("--sequencer", default="ops://127.0.0.1:7411", help="the stages, separated by commas")
    parser.add_argument("--events", type=int, default=0, help="how many events to publish before")
    parser.add_argument("--output", type=Path, default=Path("market"), help="the folder of the table")
    parser.add_argument("--rows", type=int, help="how many rows a batch has at the most (PySpark 4.2 or later)")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}  # there are four symbols
    spark = SparkSession.builder.master("local[2]").appName("market").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    ordered_pubsub.spark.register(spark)
    options = {"sequencer": arguments.sequencer, "topics": ",".join(TOPICS), "startingOffsets": "earliest"}
    options |= {"reader": "market-pipeline", "failOnUnknownTopic": "false"}
    if arguments.rows:
        options["maxRecordsPerTrigger"] = str(arguments.rows)
    pipeline = Pipeline(spark, arguments.output.absolute())
    if arguments.events:
        pipeline.run(options)  # from its first run on, the reader has these topics in one order
        asyncio.run(publish(arguments.ens, arguments.sequencer.split(","), arguments.events))
    pipeline.run(options)
    trades = pipeline.trades.persist()
    trades.show(5)
    print(f"{trades.count():,} trades, {trades.where('bid IS NOT NULL').count():,} of them with a quote")
    spark.stop()


if __name__ == "__main__":
    main()
