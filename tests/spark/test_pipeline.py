"""The example pipeline, as processes: killed and started again, it ends with the table that an ordinary subscriber would make."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

import ordered_pubsub
from ordered_pubsub.spark.source import HAS_LIMITS
from ordered_pubsub.testing.processes import kill, launch
from ordered_pubsub.testing.trial.stages import Stages

EXAMPLE = Path(__file__).parents[2] / "examples" / "market_pipeline.py"
EVENTS = 1_000
PATIENCE_S = 120.0
TOPICS = ("eu/trades", "eu/quotes", "us/trades", "us/quotes")
Trade = tuple[int, str, int, str, float, float | None, int | None]


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Stages]:
    """Two stages of their own, on whose topics nothing was published before."""
    (tmp_path / "stages").mkdir()
    system = Stages(tmp_path / "stages", [["eu/**"], ["**"]])
    system.start()
    yield system
    system.kill()


async def notifications(addresses: list[str]) -> list[ordered_pubsub.Event]:
    """What somebody is notified of who begins with the first event."""
    async with ordered_pubsub.connect(f"memory://{uuid4().hex}", sequencer=addresses) as client:
        subscription = await client.subscribe(*TOPICS, start="earliest")
        return [await asyncio.wait_for(subscription.__anext__(), PATIENCE_S) for _ in range(EVENTS)]


def expected(events: list[ordered_pubsub.Event]) -> list[Trade]:
    """Each trade with the quote that held."""
    quotes: dict[str, tuple[float, int]] = {}
    trades: list[Trade] = []
    for event in events:
        assert event.position is not None
        symbol = event.data["symbol"]
        if event.topic.endswith("quotes"):
            quotes[symbol] = (event.data["bid"], event.position)
        else:
            bid, place = quotes.get(symbol, (None, None))
            trades.append((event.position, event.topic, event.number, symbol, event.data["price"], bid, place))
    return trades


def start(folder: Path, stages: Stages, *more: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        str(EXAMPLE),
        "--sequencer",
        ",".join(stages.addresses),
        "--output",
        str(folder / "market"),
    ]
    return launch([*command, *more], folder / "pipeline.log")


def finish(process: subprocess.Popen[bytes], folder: Path) -> str:
    assert process.wait(PATIENCE_S) == 0, (folder / "pipeline.log").read_text()[-3_000:]
    return (folder / "pipeline.log").read_text()


def test_killed_and_started_again_it_ends_with_the_same_table(
    spark: SparkSession, market: Stages, tmp_path: Path
) -> None:
    rows = ["--rows", "250"] if HAS_LIMITS else []
    process = start(tmp_path, market, "--events", str(EVENTS), *rows)
    give_up_at = time.monotonic() + PATIENCE_S
    folder = tmp_path / "market" / "trades"
    while not list(folder.glob("batch=1")) and process.poll() is None:
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    kill(process)
    for stage in market.processes:
        stage.kill()
        stage.start()
    said = finish(start(tmp_path, market, *rows), tmp_path)

    trades = expected(asyncio.run(notifications(market.addresses)))
    found = spark.read.parquet(str(folder)).drop("batch").orderBy("position").collect()
    columns = ("position", "topic", "number", "symbol", "price", "bid", "quote_position")
    assert [tuple(row[column] for column in columns) for row in found] == trades
    assert f"{EVENTS // 5:,} trades" in said
