"""Were they all notified in one order, of everything, once? Recorded notifications of any number of subscribers are judged.

Each row is one notification: `subscriber`, `place` (among those of the subscriber), `topic`, `number`, and `tx` if there are
transactions. What can be wrong:

- *duplicate*: a subscriber was notified of the same event twice;
- *gap*: of a topic's numbers between its first and its last one, a subscriber lacks some;
- *order*: two subscribers contradict each other, or one its topic's numbers. For an event e and a topic B, each subscriber says
  after which number of B, and before which, e came. If one says after 7, and another before 7 or less, no order has both;
- *torn*: the events of a transaction do not follow each other.

Nothing is compared pair by pair: each subscriber is read once in its order, and each event gathered once from all of them, for as
many topics at a time as make a row of bearable width. The driver sees only counts and a few examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from ordered_pubsub.errors import UsageError

TOPICS_AT_ONCE = 32
EXAMPLES = 5
COLUMNS = ("subscriber", "place", "topic", "number")


@attrs.frozen
class Finding:
    """Something that is wrong."""

    kind: str
    """"duplicate", "gap", "order" or "torn\""""
    count: int
    examples: tuple[str, ...]


@attrs.frozen
class Audit:
    """What was judged, and what is wrong with it."""

    notifications: int
    subscribers: int
    topics: int
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def audit(notifications: DataFrame, *, are_filtered: bool = False) -> Audit:
    """Judge notifications. Subscribers that choose by content have holes: with `are_filtered` these are no gaps."""
    missing = [name for name in COLUMNS if name not in notifications.columns]
    if missing:
        raise UsageError(
            f"notifications to be audited have the columns {', '.join(COLUMNS)} (and tx); these lack {', '.join(missing)}"
        )
    tx = f.col("tx").cast("string") if "tx" in notifications.columns else f.lit(None).cast("string")
    rows = notifications.select(*COLUMNS, tx.alias("tx")).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        topics = [row.topic for row in rows.select("topic").distinct().orderBy("topic").collect()]
        found = [
            _duplicates(rows),
            *([] if are_filtered else [_gaps(rows)]),
            _contradictions(rows, topics),
            _torn(rows),
        ]
        subscribers = rows.select("subscriber").distinct().count()
        return Audit(rows.count(), subscribers, len(topics), tuple(finding for finding in found if finding.count))
    finally:
        rows.unpersist()


def _finding(kind: str, wrong: DataFrame, text: str, *columns: str) -> Finding:
    """How many there are, and the first few in words."""
    wrong = wrong.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        count = wrong.count()
        shown = wrong.orderBy(*columns).limit(EXAMPLES).collect() if count else []
        return Finding(kind, count, tuple(text.format(**row.asDict()) for row in shown))
    finally:
        wrong.unpersist()


def _duplicates(rows: DataFrame) -> Finding:
    wrong = rows.groupBy("subscriber", "topic", "number").count().where("count > 1")
    return _finding(
        "duplicate",
        wrong,
        "{subscriber} was notified of {topic} {number} {count} times",
        "subscriber",
        "topic",
        "number",
    )


def _gaps(rows: DataFrame) -> Finding:
    following = f.lead("number").over(Window.partitionBy("subscriber", "topic").orderBy("number"))
    wrong = (
        rows.select("subscriber", "topic", "number").distinct().withColumn("next", following).where("next > number + 1")
    )
    text = "{subscriber} has {topic} {number} and then {next}: nothing between"
    return _finding("gap", wrong, text, "subscriber", "topic", "number")


def _torn(rows: DataFrame) -> Finding:
    in_order = Window.partitionBy("subscriber").orderBy("place")
    placed = rows.withColumn("at", f.row_number().over(in_order)).where("tx IS NOT NULL")
    spread = placed.groupBy("subscriber", "tx").agg(
        f.count("*").alias("events"), (f.max("at") - f.min("at") + 1).alias("places")
    )
    text = "{subscriber} has the {events} events of transaction {tx} spread over {places} notifications"
    return _finding("torn", spread.where("places != events"), text, "subscriber", "tx")


def _contradictions(rows: DataFrame, topics: Sequence[str]) -> Finding:
    count, examples = 0, list[str]()
    for first in range(0, len(topics), TOPICS_AT_ONCE):
        found = _contradictions_about(rows, topics[first : first + TOPICS_AT_ONCE])
        count += found.count
        examples += found.examples
    return Finding("order", count, tuple(examples[:EXAMPLES]))


def _contradictions_about(rows: DataFrame, topics: Sequence[str]) -> Finding:
    """Between all events, and those of some topics."""
    subscriber = Window.partitionBy("subscriber")
    before = subscriber.orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    after = subscriber.orderBy(f.col("place").desc()).rowsBetween(Window.unboundedPreceding, -1)
    numbers = [f.when(f.col("topic") == topic, f.col("number")) for topic in topics]
    seen = rows.select(
        "topic",
        "number",
        *(f.max(number).over(before).alias(f"after{at}") for at, number in enumerate(numbers)),
        *(f.min(number).over(after).alias(f"before{at}") for at, number in enumerate(numbers)),
    )
    gathered = seen.groupBy("topic", "number").agg(
        *(f.max(f"after{at}").alias(f"after{at}") for at in range(len(topics))),
        *(f.min(f"before{at}").alias(f"before{at}") for at in range(len(topics))),
    )
    said = [_saying(topic, at) for at, topic in enumerate(topics)]
    wrong = gathered.select("topic", "number", f.explode(f.array(*said)).alias("said")).where("said IS NOT NULL")
    text = "{topic} {number} came after {other} {after} for one, and before {other} {before} for one"
    return _finding(
        "order",
        wrong.select("topic", "number", "said.*"),
        text,
        "topic",
        "number",
        "other",
    )


def _saying(topic: str, at: int) -> Column:
    """What is contradictory about an event and a topic, or null."""
    after, before = f.col(f"after{at}"), f.col(f"before{at}")
    saying = f.struct(f.lit(topic).alias("other"), after.alias("after"), before.alias("before"))
    is_own = f.col("topic") == topic
    falls = (after > f.col("number")) | (before < f.col("number"))
    return f.when(f.when(is_own, falls).otherwise(after >= before), saying)
