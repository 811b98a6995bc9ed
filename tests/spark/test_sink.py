"""The sink with a real Spark and real stages: rows are published once, whatever is run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.spark.options import SinkOptions
from ordered_pubsub.spark.progress import ReaderProgress
from ordered_pubsub.spark.sink import Columns, _outgoing

TIMEOUT_S = 120


@pytest.fixture
def topics() -> list[str]:
    """Two topics of two stages, that nobody has used before."""
    name = uuid4().hex[:8]
    return [f"eu/{name}", f"us/{name}"]


def published(spark: SparkSession, sequencer: str, topics: Sequence[str]) -> list[Any]:
    """What is there, in the one order."""
    source = spark.read.format("ordered_pubsub").options(sequencer=sequencer, topics=",".join(topics))
    source = source.option("failOnUnknownTopic", "false")
    return source.load().orderBy("position").collect()


def numbers(rows: Sequence[Any]) -> list[int]:
    return [json.loads(row.data)["n"] for row in rows]


def write(frame: DataFrame, sequencer: str, **options: Any) -> None:
    frame.write.format("ordered_pubsub").options(sequencer=sequencer, **options).mode("append").save()


def counted(spark: SparkSession, count: int, parts: int) -> DataFrame:
    """Rows with the numbers 0, 1, 2, …"""
    return spark.range(0, count, 1, parts).select(f.to_json(f.struct(f.col("id").alias("n"))).alias("data"))


def test_a_table_is_published_with_all_that_belongs_to_a_row(
    spark: SparkSession, sequencer: str, topics: list[str]
) -> None:
    """The topics, in each of which rows keep the order of their part; text as JSON; headers; own ids."""
    rows = [
        (topics[n % 2], json.dumps({"n": n}), {"kind": b"even"} if n % 2 == 0 else None, f"row-{n}") for n in range(50)
    ]
    frame = spark.createDataFrame(rows, "topic STRING, data STRING, headers MAP<STRING, BINARY>, id STRING").coalesce(1)
    write(frame, sequencer, publisher="nightly")
    found = published(spark, sequencer, topics)

    assert sorted(numbers(found)) == list(range(50))
    for at, topic in enumerate(topics):
        assert numbers([row for row in found if row.topic == topic]) == list(range(at, 50, 2))
    assert {row.publisher for row in found} == {"nightly"}
    assert all(row.id == f"row-{n}" for n, row in zip(numbers(found), found, strict=True))
    assert all(
        row.headers == ({"kind": b"even"} if n % 2 == 0 else {}) for n, row in zip(numbers(found), found, strict=True)
    )


def test_a_table_is_published_under_its_write_id_once(spark: SparkSession, sequencer: str, topics: list[str]) -> None:
    frame = counted(spark, 20_000, 2)
    for write_id in ("first", "first", "second"):
        write(frame, sequencer, topic=topics[0], writeId=f"{topics[0]}-{write_id}")

    assert sorted(numbers(published(spark, sequencer, topics[:1]))) == sorted(2 * list(range(20_000)))


def test_sorted_rows_are_in_one_order_across_topics_and_stages(
    spark: SparkSession, sequencer: str, topics: list[str]
) -> None:
    """Whatever order they had; and what sorts them is not published."""
    rows = [(topics[n // 3 % 2], json.dumps({"n": n}), n) for n in range(120)]
    frame = spark.createDataFrame(rows, "topic STRING, data STRING, at BIGINT").repartition(4).coalesce(1)
    with_order(sequencer, topics)
    write(frame, sequencer, sort="at")

    assert numbers(published(spark, sequencer, topics)) == list(range(120))


def test_a_table_that_is_divided_otherwise_is_not_published_again(
    spark: SparkSession, sequencer: str, topics: list[str]
) -> None:
    options = {"topic": topics[0], "writeId": topics[0]}
    write(counted(spark, 1_000, 2), sequencer, **options)
    with pytest.raises(Exception, match=r"not those of the run before.*repartition by a column, or coalesce\(1\)"):
        write(counted(spark, 1_000, 1), sequencer, **options)
    assert sorted(numbers(published(spark, sequencer, topics[:1]))) == list(range(1_000))


def test_times_are_in_order_while_clocks_are_put_back(spark: SparkSession, sequencer: str, topics: list[str]) -> None:
    frame = spark.range(0, 18).selectExpr(
        "to_json(struct(id AS n)) AS data", "timestamp_seconds(1761436800 + 600 * id) AS at"
    )
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        write(frame.orderBy(f.rand(1)).coalesce(1), sequencer, sort="at", topic=topics[0])
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert numbers(published(spark, sequencer, topics[:1])) == list(range(18))


def test_what_is_no_number_comes_last_and_nothing_comes_first(
    spark: SparkSession, sequencer: str, topics: list[str]
) -> None:
    """As Spark sorts."""
    places = [3.0, float("nan"), 1.0, None, 2.0, float("nan"), float("-inf"), None, 0.0]
    frame = spark.createDataFrame(list(enumerate(places)), "n INT, at DOUBLE").coalesce(1)
    in_order = [row.n for row in frame.orderBy("at", "n").collect()]
    rows = frame.select(f.to_json(f.struct("n")).alias("data"), "at")
    write(rows, sequencer, sort="at", topic=topics[0])
    assert numbers(published(spark, sequencer, topics[:1])) == in_order


def test_rows_that_come_one_by_one_are_the_same(spark: SparkSession) -> None:
    """As streams do before PySpark 4.1, with their bytes in arrays."""
    schema = StructType.fromDDL("topic STRING, data BINARY, headers MAP<STRING, BINARY>, at TIMESTAMP")
    columns = Columns.of(schema, SinkOptions(ReaderAccess(ClientSection()), sort="at"))
    at = datetime(2026, 3, 1, 12, 0)
    row = Row(topic="a", data=bytearray(b"1"), headers={"kind": bytearray(b"x")}, at=at)
    (found,) = columns.rows([row])
    item = _outgoing(found, None, columns.content_type, 1_000)

    assert found[-1] == at.timestamp()
    assert (item.topic, item.payload, item.headers) == ("a", b"1", {"kind": b"x"})
    assert {type(item.payload), *map(type, item.headers.values())} == {bytes}


def with_order(sequencer: str, topics: list[str]) -> None:
    """Have somebody hold the topics together, so that events on them have an order."""
    with StageLines(ReaderAccess.of(None, {"sequencer": sequencer.split(",")})) as stages:
        ReaderProgress(f"held-{uuid4().hex[:8]}").cut(stages, topics, {})


@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_batch_of_a_stream_that_is_run_again_is_published_once(
    spark: SparkSession, sequencer: str, topics: list[str], tmp_path: Path, is_sorted: bool
) -> None:
    """A task fails after a part of its rows was published; the query is started again from its checkpoint."""
    (tmp_path / "in").mkdir()
    lines = "".join(json.dumps({"n": n, "pad": "x" * 200}) + "\n" for n in range(20_000))
    (tmp_path / "in" / "one.json").write_text(lines)
    marker = tmp_path / "fail"
    marker.touch()
    fragile = f.udf(_fails_at(12_345, str(marker)), "string", useArrow=False)  # Arrow would need pandas
    stream = spark.readStream.schema("n BIGINT, pad STRING").json(str(tmp_path / "in"))
    order, options = ([(-f.col("n")).alias("at")], {"sort": "at"}) if is_sorted else ([], {})
    rows = stream.select(fragile("n", f.to_json(f.struct("n", "pad"))).alias("data"), *order).coalesce(1)

    def run() -> None:
        query = (
            rows.writeStream.format("ordered_pubsub")
            .options(sequencer=sequencer, topic=topics[0], checkpointLocation=str(tmp_path / "checkpoint"), **options)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)

    with pytest.raises(Exception, match="planted"):
        run()
    first = published(spark, sequencer, topics[:1])
    marker.unlink()
    run()
    run()

    assert not first if is_sorted else 0 < len(first) < 12_345
    expected = range(19_999, -1, -1) if is_sorted else range(20_000)
    assert numbers(published(spark, sequencer, topics[:1])) == list(expected)


def _fails_at(place: int, marker: str) -> Callable[[int, str], str]:
    def check(number: int, data: str) -> str:
        if number == place and Path(marker).exists():
            raise RuntimeError("planted")
        return data

    return check


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("data", {}, "on which topic"),
        ("data, 'a' AS topic", {"topic": "a"}, "on which topic"),
        ("'a' AS topic", {}, "no column 'data'"),
        ("id + 1 AS data", {"topic": "a"}, "column 'data' has type bigint; expected binary or string"),
        ("data, id AS number", {"topic": "a"}, "column 'number' would not be published"),
        ("data", {"topic": "a", "sort": "at"}, "option sort='at' names no column that has an order; there are data"),
        ("data", {"topic": "a//b"}, "option topic"),
        ("data", {"topic": "a", "transaction": "true"}, "not there yet"),
        ("data", {"topic": "a", "topics": "b"}, "the sink ordered_pubsub has no option 'topics'; did you mean 'topic'"),
        ("data", {"topic": "a", "ens": "memory://x"}, "a system within one process"),
        ("data", {"topic": "a", "ens": "mqtt://127.0.0.1:1"}, "mqtt://127.0.0.1:1"),
        ("'no json' AS data", {"topic": "a"}, r"data is no JSON.*to_json\(struct"),
        ("CAST(NULL AS STRING) AS data", {"topic": "a"}, r"a row has no data \(null\)"),
    ],
)
def test_what_does_not_fit_is_said(
    spark: SparkSession, sequencer: str, columns: str, options: dict[str, str], said: str
) -> None:
    frame = spark.range(3).select("id", f.lit("1").alias("data")).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=said):
        write(frame, sequencer, timeoutSeconds=2, **options)


def test_what_is_published_is_not_overwritten(spark: SparkSession, sequencer: str) -> None:
    frame = counted(spark, 3, 1).write.format("ordered_pubsub").options(sequencer=sequencer, topic="a")
    with pytest.raises(Exception, match="what is published stays published"):
        frame.mode("overwrite").save()
