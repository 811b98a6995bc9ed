"""The examples of docs/spark.md run as they stand there, but for the place of the stages, and of the files."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import ordered_pubsub
from ordered_pubsub.testing.stages import StageProcesses
from spark.publishing import publish

TEXT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
READING, WRITING = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def run(code: str, sequencer: str, **known: object) -> None:
    assert "ops://127.0.0.1:7411" in code
    exec(compile(code.replace("ops://127.0.0.1:7411", sequencer), "docs/spark.md", "exec"), known)


def test_the_example_reads_what_was_published(
    spark: SparkSession, sequencer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events = publish(sequencer, ["trades", "quotes"], 20)
    run(READING.replace('"market.', f'"{tmp_path}/market.'), sequencer)
    rows = spark.read.parquet(f"{tmp_path}/market.parquet").orderBy("position").collect()

    assert [(row.position, row.topic, row.data.encode()) for row in rows] == [
        (event.position, event.topic, event.raw) for event in events
    ]


def test_the_example_publishes_its_rows_in_their_order(spark: SparkSession, sequencer: str) -> None:
    run(WRITING, sequencer, spark=spark)
    source = spark.read.format("ordered_pubsub").options(sequencer=sequencer, topics="orders")
    rows = source.load().orderBy("position").collect()

    assert [json.loads(row.data) for row in rows] == [{"id": number} for number in range(1_000)]


async def trade(sequencer: str) -> None:
    """As the steps of the README before."""
    async with ordered_pubsub.connect("memory://readme", sequencer=sequencer.split(",")) as client:
        await client.subscribe("trades", "quotes")
        await client.publish("quotes", {"symbol": "ACME", "bid": 101.2})
        await client.publish("trades", {"symbol": "ACME", "price": 101.5})
        await client.publish("trades", {"symbol": "ACME", "price": 101.7})


def test_the_quick_start_of_the_readme_shows_what_it_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ((code, shown),) = re.findall(r"```python\n(from pyspark.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
    system = StageProcesses(tmp_path, [["**"]])
    system.start()
    try:
        asyncio.run(trade(",".join(system.addresses)))
        run(code, ",".join(system.addresses))
    finally:
        system.kill()
    assert capsys.readouterr().out.strip() == shown.strip()
