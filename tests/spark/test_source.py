"""The source with a real Spark and real stages: what an ordinary subscriber is notified of, as a table and as a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import ordered_pubsub
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.core.messages import ChangeAsk
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.reading.stages import OperationLine, StageLines
from ordered_pubsub.spark import version
from ordered_pubsub.spark.source import HAS_LIMITS
from ordered_pubsub.testing.stages import StageProcesses
from spark.publishing import publish

TIMEOUT_S = 120


@pytest.fixture
def topics() -> list[str]:
    """Four topics of two stages, that nobody has used before."""
    name = uuid4().hex[:8]
    return [f"eu/{name}/trades", f"us/{name}/trades", f"eu/{name}/quotes", f"us/{name}/quotes"]


def load(spark: SparkSession, sequencer: str, topics: Sequence[str], **options: Any) -> DataFrame:
    named = {"topics": ",".join(topics)} if topics else {}
    return spark.read.format("ordered_pubsub").options(sequencer=sequencer, **named, **options).load()


def run(spark: SparkSession, sequencer: str, topics: Sequence[str], checkpoint: str, **options: Any) -> list[Row]:
    """Take all that there is as a stream, into a table; what this run has added to it, batch by batch."""
    named = {"topics": ",".join(topics)} if topics else {}
    stream = spark.readStream.format("ordered_pubsub").options(sequencer=sequencer, **named, **options).load()
    rows: list[Row] = []

    def take(batch: DataFrame, number: int) -> None:
        rows.extend(batch.orderBy("position").collect())

    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    started = query.start()
    assert started.awaitTermination(TIMEOUT_S)
    return rows


def seen(rows: Sequence[Row]) -> list[tuple[int, str, int, bytes]]:
    return [(row.position, row.topic, row.number, bytes(row.data)) for row in rows]


def notified(events: Sequence[ordered_pubsub.Event]) -> list[tuple[int, str, int, bytes]]:
    found = []
    for event in events:
        assert event.position is not None
        found.append((event.position, event.topic, event.number, event.raw))
    return found


# -- as a table -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_table_is_what_a_subscriber_was_notified_of(
    spark: SparkSession, sequencer: str, topics: list[str], partitions: int
) -> None:
    """With everything that belongs to an event, however many partitions are read side by side."""
    events = publish(sequencer, topics, 60)
    rows = load(spark, sequencer, topics, numPartitions=partitions).orderBy("position").collect()

    assert seen(rows) == notified(events)
    assert [row.vector for row in rows] == [dict(event.vector) for event in events]
    assert [(row.id, row.publisher, row.tx) for row in rows] == [(event.id, event.publisher, None) for event in events]
    assert [row.headers for row in rows] == [
        {name: str(value).encode() for name, value in event.headers.items()} for event in events
    ]
    times = [row.published_at.replace(tzinfo=timezone.utc).timestamp() for row in rows]
    assert times == pytest.approx([event.published_at for event in events], abs=1e-6)


def test_a_table_begins_and_ends_where_it_is_told(spark: SparkSession, sequencer: str, topics: list[str]) -> None:
    """What comes before an event in it, and after its start, is in it as well."""
    events = publish(sequencer, topics, 40)
    start, end = dict(events[19].vector), dict(events[59].vector)
    offsets = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}
    rows = load(spark, sequencer, topics, **offsets).orderBy("position").collect()

    assert seen(rows) == notified(events[20:60])


def test_a_table_begins_at_a_time(spark: SparkSession, sequencer: str, topics: list[str]) -> None:
    before = publish(sequencer, topics[:1], 5)
    at = datetime.now(timezone.utc)
    after = publish(sequencer, topics[:1], 6)
    late = load(spark, sequencer, topics[:1], startingTime=at.isoformat()).orderBy("position").collect()
    early = load(spark, sequencer, topics[:1], endingTime=at.isoformat()).orderBy("position").collect()

    assert [row.number for row in late] == [event.number for event in after]
    assert [row.number for row in early] == [event.number for event in before]


def test_a_filter_takes_rows_out_and_moves_none(spark: SparkSession, sequencer: str, topics: list[str]) -> None:
    events = publish(sequencer, topics, 40)
    rows = load(spark, sequencer, topics, where="n >= 10 and at exists", includeHeaders="false").orderBy("position")

    assert "headers" not in rows.columns
    chosen = [event for event in events if event.data["n"] >= 10 and "at" in event.data]
    assert seen(rows.collect()) == notified(chosen)
    assert len(chosen) > 10


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("topic LIKE 'eu%'", lambda event, first: event.topic.startswith("eu")),
        ("topic = '{0}' AND position > 20", lambda event, first: event.topic == first and event.position > 20),
        (
            "topic IN ('{0}', 'x') AND position <= 20",
            lambda event, first: event.topic == first and event.position <= 20,
        ),
        (
            "position >= 10 AND position < 30 AND number > 2",
            lambda event, first: 10 <= event.position < 30 and event.number > 2,
        ),
        ("position = 17", lambda event, first: event.position == 17),
        ("topic = 'x'", lambda event, first: False),
    ],
)
def test_filters_of_spark_leave_the_rows_that_they_would_leave(
    spark: SparkSession, sequencer: str, topics: list[str], condition: str, chosen: Any
) -> None:
    """Pushed down, or not; what is left keeps its place."""
    if version() < (4, 1):
        with pytest.raises(Exception, match=r"option pushFilters needs PySpark 4\.1 or later"):
            load(spark, sequencer, topics, pushFilters="true").collect()
        return
    events = publish(sequencer, topics, 60)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, sequencer, topics, pushFilters="true", numPartitions=4)
        rows = frame.where(condition.format(topics[0])).orderBy("position").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert seen(rows) == [row for row, event in zip(notified(events), events, strict=True) if chosen(event, topics[0])]


def test_nothing_is_a_table_without_rows(spark: SparkSession, sequencer: str, topics: list[str]) -> None:
    events = publish(sequencer, topics, 8)
    end = json.dumps(dict(events[-1].vector))

    assert load(spark, sequencer, topics, startingOffsets=end).collect() == []


# -- as a stream ----------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_it_was(spark: SparkSession, sequencer: str, topics: list[str], checkpoint: str) -> None:
    """Over restarts, nothing is missing and nothing comes twice."""
    first = publish(sequencer, topics, 30)
    one = run(spark, sequencer, topics, checkpoint, startingOffsets="earliest")
    second = publish(sequencer, topics, 20)
    two = run(spark, sequencer, topics, checkpoint, startingOffsets="earliest")
    three = run(spark, sequencer, topics, checkpoint, startingOffsets="earliest")

    assert seen(one) == notified(first)
    assert [row[1:] for row in seen(two)] == [event[1:] for event in notified(second)]
    assert [row.position for row in (*one, *two)] == list(range(1, len(first) + len(second) + 1))
    assert three == []


def test_a_stream_begins_with_what_comes(
    spark: SparkSession, sequencer: str, topics: list[str], checkpoint: str
) -> None:
    publish(sequencer, topics, 10)
    assert run(spark, sequencer, topics, checkpoint) == []
    events = publish(sequencer, topics, 10)
    rows = run(spark, sequencer, topics, checkpoint)

    assert [row[1:] for row in seen(rows)] == [event[1:] for event in notified(events)]


def test_a_stream_of_a_pattern_finds_new_topics(
    spark: SparkSession, sequencer: str, topics: list[str], checkpoint: str
) -> None:
    options = {"topicsPattern": topics[0].replace("eu/", "*/").replace("trades", "*"), "startingOffsets": "earliest"}
    first = publish(sequencer, topics[:2], 10)
    one = run(spark, sequencer, (), checkpoint, **options)
    second = publish(sequencer, topics, 20)
    two = run(spark, sequencer, (), checkpoint, **options)

    assert seen(one) == notified(first)
    assert [row[1:] for row in seen(two)] == [event[1:] for event in notified(second)]
    assert [row.position for row in (*one, *two)] == list(range(1, len(one) + len(two) + 1))


def test_a_stream_may_wait_for_topics_that_are_not_there_yet(
    spark: SparkSession, sequencer: str, topics: list[str], checkpoint: str
) -> None:
    options = {"failOnUnknownTopic": "false", "startingOffsets": "earliest"}
    assert run(spark, sequencer, topics, checkpoint, **options) == []
    events = publish(sequencer, topics, 10)
    assert seen(run(spark, sequencer, topics, checkpoint, **options)) == notified(events)


def test_a_batch_has_no_more_rows_than_it_may(
    spark: SparkSession, sequencer: str, topics: list[str], checkpoint: str
) -> None:
    """And each ends at a cut: nothing lacks what comes before it."""
    events = publish(sequencer, topics, 100)
    stream = spark.readStream.format("ordered_pubsub").options(
        sequencer=sequencer, topics=",".join(topics), startingOffsets="earliest", maxRecordsPerTrigger=50
    )
    if not HAS_LIMITS:
        with pytest.raises(Exception, match=r"maxRecordsPerTrigger needs PySpark 4\.2 or later"):
            _start(stream.load(), checkpoint)
        return
    batches: list[list[Row]] = []
    query = (
        stream.load()
        .writeStream.foreachBatch(lambda batch, number: batches.append(batch.orderBy("position").collect()))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)

    (source,) = query.recentProgress[0]["sources"]
    assert (
        json.loads(source["latestOffset"]) == batches[-1][-1].vector
    )  # how far the topics were, beyond the first batch
    assert sum(json.loads(source["endOffset"]).values()) <= 50
    assert max(map(len, batches)) <= 50
    assert len(batches) < 2 * len(events) / 50 + 2
    assert seen([row for batch in batches for row in batch]) == notified(events)


def test_a_batch_has_about_as_many_bytes_as_it_may(
    spark: SparkSession, sequencer: str, topics: list[str], checkpoint: str
) -> None:
    events = publish(sequencer, topics, 100)
    if not HAS_LIMITS:
        options = {"sequencer": sequencer, "topics": ",".join(topics), "maxBytesPerTrigger": "1000"}
        with pytest.raises(Exception, match=r"maxBytesPerTrigger needs PySpark 4\.2 or later"):
            _start(spark.readStream.format("ordered_pubsub").options(**options).load(), checkpoint)
        return
    size = sum(len(event.raw) for event in events)
    counts: list[int] = []
    query = (
        spark.readStream.format("ordered_pubsub")
        .options(sequencer=sequencer, topics=",".join(topics), startingOffsets="earliest", maxBytesPerTrigger=size)
        .load()
        .writeStream.foreachBatch(lambda batch, number: counts.append(batch.count()))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)

    assert sum(counts) == len(events)
    assert 3 < len(counts) < 20  # with what belongs to them, events are several times as large as their payloads


def _start(stream: DataFrame, checkpoint: str) -> None:
    query = (
        stream.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination(TIMEOUT_S)


def test_a_reader_with_a_name_leaves_word_of_how_far_it_is(
    spark: SparkSession, sequencer: str, topics: list[str], checkpoint: str
) -> None:
    """Its subscription outlives the query."""
    name = f"reader-{uuid4().hex[:8]}"
    events = publish(sequencer, topics, 20)
    rows = run(spark, sequencer, topics, checkpoint, reader=name, startingOffsets="earliest")
    more = publish(sequencer, topics, 8)
    rows += run(spark, sequencer, topics, checkpoint, reader=name, startingOffsets="earliest")
    run(spark, sequencer, topics, checkpoint, reader=name, startingOffsets="earliest")

    assert [row[1:] for row in seen(rows)] == [event[1:] for event in notified([*events, *more])]
    with (
        StageLines(ReaderAccess(ClientSection(sequencer=tuple(sequencer.split(","))))) as stages,
        OperationLine(stages, name) as place,
    ):
        refusal = place.ask(ChangeAsk(f"{name}//spark", opens=1)).refusal
        assert refusal is not None
        resume = place.change(ChangeAsk(f"{name}//spark", opens=refusal.opened + 1)).resume
    assert resume is not None
    assert sum(resume.clock.values()) == len(events) + len(more)
    assert set(resume.topics) == set(topics)


def test_a_reader_has_the_topics_that_it_began_with(
    spark: SparkSession, sequencer: str, topics: list[str], tmp_path: Path
) -> None:
    name = f"reader-{uuid4().hex[:8]}"
    publish(sequencer, topics, 8)
    run(spark, sequencer, topics[:2], str(tmp_path / "one"), reader=name)
    rows = run(spark, sequencer, topics, str(tmp_path / "two"), reader=name, startingOffsets="earliest")

    assert {row.topic for row in rows} == set(topics)


# -- what is wrong is said ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topics": "no/such"}, r"nothing was ever published on topic 'no/such'.*Check its name"),
        ({"topics": "a", "whre": "n > 1"}, "has no option 'whre'; did you mean 'where'"),
        ({"topics": "a", "where": "n >"}, r"option where: expected .* after '>'"),
        ({"topics": "a", "topicsPattern": "**"}, "Give either topics"),
        ({}, "Give either topics"),
        ({"topics": "a//b"}, "option topics: "),
        ({"topicsPattern": "**/**/"}, "option topicsPattern: "),
        ({"topics": "a", "numPartitions": "0"}, "numPartitions='0' does not fit; expected a whole number from 1"),
        (
            {"topics": "a", "startingOffsets": "first"},
            "startingOffsets='first' does not fit; expected earliest or latest or a clock",
        ),
        ({"topics": "a", "startingOffsets": '{"b": 1}'}, "names topic 'b', which is not one of topics=a"),
        ({"topics": "a", "startingOffsets": "latest", "startingTime": "2026-01-01"}, "say the same thing twice"),
        (
            {"topics": "a", "startingTime": "yesterday"},
            "startingTime='yesterday' does not fit; expected a time such as",
        ),
        (
            {"topics": "a", "respectTransactions": "some"},
            "respectTransactions='some' does not fit; expected true or false",
        ),
        ({"topics": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss='perhaps' does not fit; expected true or false"),
        ({"topics": "a", "reader": "x"}, "option reader is for streams"),
        ({"topics": "a", "timeoutSeconds": "soon"}, "timeoutSeconds='soon' does not fit"),
        ({"topics": "a", "sequencer": "127.0.0.1:7411"}, "it has no scheme; write ops://"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_a_bad_option_is_named_with_what_fits(
    spark: SparkSession, sequencer: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=f"(?s){says}"):
        spark.read.format("ordered_pubsub").options(**{"sequencer": sequencer, **options}).load().collect()


def test_a_stage_that_cannot_be_reached_is_named(spark: SparkSession, unused_tcp_port: int) -> None:
    options = {"sequencer": f"ops://127.0.0.1:{unused_tcp_port}", "topics": "a", "timeoutSeconds": "0.5"}
    with pytest.raises(
        Exception, match=r"(?s)stage ops://127\.0\.0\.1:\d+ cannot be reached.*check that it runs there"
    ):
        spark.read.format("ordered_pubsub").options(**options).load().collect()


def test_a_time_after_everything_is_an_error_or_the_end(spark: SparkSession, sequencer: str, topics: list[str]) -> None:
    publish(sequencer, topics, 8)
    at = (datetime.now(timezone.utc) + timedelta(days=1)).isoformat()
    with pytest.raises(Exception, match=r"(?s)nothing was published at or after.*startingTimeStrategy=latest"):
        load(spark, sequencer, topics, startingTime=at).collect()
    assert load(spark, sequencer, topics, startingTime=at, startingTimeStrategy="latest").collect() == []


def test_stages_may_be_killed_between_two_batches(
    spark: SparkSession, stages: StageProcesses, sequencer: str, topics: list[str], checkpoint: str
) -> None:
    first = publish(sequencer, topics, 20)
    rows = run(spark, sequencer, topics, checkpoint, startingOffsets="earliest")
    stages.kill()
    for process in stages.processes:
        process.start()
    second = publish(sequencer, topics, 20)
    rows += run(spark, sequencer, topics, checkpoint, startingOffsets="earliest")

    assert [row[1:] for row in seen(rows)] == [event[1:] for event in notified([*first, *second])]
