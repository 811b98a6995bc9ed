"""How big timestamps are: how many topics each topic's group has, and how many entries a stage writes for an event.

U is in T's group if the weights of the subscriptions that hold both add up to 2 (`core.order.groups`). A *full* timestamp has an
entry for each topic of the group, and the event's own number: that is the *size*. A stage writes the *delta*: the own number, and
an entry for each topic of the group with an event since T's previous one (`core.order.clocks`).

The weights of all pairs are a matrix as wide as there are topics. Each task adds up some rows of it, a block, from the
subscriptions that hold one of the block's topics, and gives back a row of figures for each: no machine holds the whole matrix,
and only names of topics, rates, and recorded publications go through the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import attrs
import numpy as np
from pyspark import RDD
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ordered_pubsub.core.order.groups import IN_GROUP
from ordered_pubsub.core.subscriber.delivery import WEIGHTS
from ordered_pubsub.errors import UsageError

CELLS = 1 << 22
"""So many pairs of topics, at most, are one task's (unless there are more topics than that)."""
BLOCKS_PER_CORE = 4
"""Some blocks are more work than others."""

MOST = 1e300
"""No rate is higher, nor is it infinite."""

Block = tuple[int, int]
"""The number of a system, and that of a block of its topics."""
Held = tuple[int, int, np.ndarray]
"""The number of a system, and the weight and the topics (numbers from 0 on) of one of its subscriptions."""
Figures = tuple[int, int, int, float, float | None]
"""The number of a system, a topic, its size, what is published on it, and the mean of its deltas if something is."""


# -- what is published ----------------------------------------------------------------------------------------------------


class Load(Protocol):
    """What is published on the topics of a system."""

    def published(self, topic: int) -> float:
        """How much is published on a topic."""

    def entries(self, first: int, groups: Sequence[np.ndarray]) -> list[float]:
        """How many entries events have on average beside their own numbers, for topics from `first` on with these groups."""


@attrs.frozen(eq=False)
class Rates:
    """Publications that come at random, on each topic at a rate.

    An event on T has an entry for U if the last event of the two was on U: by the rates, with probability U / (T + U).
    """

    rates: np.ndarray

    def published(self, topic: int) -> float:
        """The topic's rate."""
        return float(self.rates[topic])

    def entries(self, first: int, groups: Sequence[np.ndarray]) -> list[float]:
        """What is to be expected."""
        return [self._expected(first + row, group) for row, group in enumerate(groups)]

    def _expected(self, topic: int, group: np.ndarray) -> float:
        others = self.rates[group]
        others = others[others > 0]
        return float((others / (others + self.rates[topic])).sum())


@attrs.frozen(eq=False)
class SizeRecord:
    """Publications in their order, each by its topic."""

    topics: np.ndarray
    counts: np.ndarray

    def published(self, topic: int) -> float:
        """How many events the topic has."""
        return float(self.counts[topic])

    def entries(self, first: int, groups: Sequence[np.ndarray]) -> list[float]:
        """What a stage writes for them."""
        written = np.zeros(len(groups))
        last = np.full(len(self.counts), -1)
        done = 0
        for at in np.flatnonzero((self.topics >= first) & (self.topics < first + len(groups))):
            last[self.topics[done:at]] = np.arange(done, at)  # a topic may come again: its last place counts
            topic = int(self.topics[at])
            written[topic - first] += np.count_nonzero(last[groups[topic - first]] > last[topic])
            done = int(at)
        counts = self.counts[first : first + len(groups)]
        return list((written / np.maximum(counts, 1)).tolist())


# -- the matrix, block by block -------------------------------------------------------------------------------------------


def measure(held: RDD[Held], topics: int, loads: Sequence[Load]) -> RDD[Figures]:
    """Figures for each topic of each system; there is a load for each system, and all have the same number of topics."""
    cores = held.context.defaultParallelism
    height = max(1, min(CELLS // topics, topics * len(loads) // (cores * BLOCKS_PER_CORE), topics))
    blocks = [(system, block) for system in range(len(loads)) for block in range(-(-topics // height))]
    nothing = np.empty(0, np.int64)
    all_blocks = held.context.parallelize([(block, (0, nothing)) for block in blocks], cores)  # a topic may have nobody
    parts = held.flatMap(partial(_by_block, height)).union(all_blocks).groupByKey(len(blocks))
    return parts.flatMap(partial(_figures, height, topics, loads))


def _by_block(height: int, held: Held) -> Iterator[tuple[Block, tuple[int, np.ndarray]]]:
    """A subscription, for each block that has a topic of it."""
    system, weight, topics = held
    for block in np.unique(topics // height).tolist():
        yield (system, block), (weight, topics)


def _figures(
    height: int, width: int, loads: Sequence[Load], part: tuple[Block, Iterable[tuple[int, np.ndarray]]]
) -> Iterator[Figures]:
    """Figures for each topic of a block."""
    (system, block), subscriptions = part
    load, first = loads[system], block * height
    groups = _groups(first, min(height, width - first), width, subscriptions)
    for row, (group, entries) in enumerate(zip(groups, load.entries(first, groups), strict=True)):
        published = load.published(first + row)
        yield system, first + row, 1 + len(group), published, 1 + entries if published else None


def _groups(first: int, height: int, width: int, subscriptions: Iterable[tuple[int, np.ndarray]]) -> list[np.ndarray]:
    """The other topics in the group of each topic of a block."""
    weights = np.zeros((height, width), np.int32)
    cells = weights.reshape(-1)
    for weight, topics in subscriptions:
        own = topics[(topics >= first) & (topics < first + height)] - first
        cells[(own[:, None] * width + topics).reshape(-1)] += weight  # no cell comes twice, for no topic does
    weights[np.arange(height), np.arange(first, first + height)] = 0
    return [np.flatnonzero(row >= IN_GROUP) for row in weights]


# -- one's own subscriptions ----------------------------------------------------------------------------------------------


def group_sizes(subscriptions: DataFrame, publications: DataFrame | None = None) -> DataFrame:
    """How big the timestamps of each topic are: `topic`, `size`, and with publications `published` and `delta`.

    Subscriptions have the columns `subscription`, `topic`, and, if not all are `total`, `order`. Publications have `topic` and
    `rate`, and come at random; or `topic` and `position`, and come in this order. `size` counts the entries of a full
    timestamp, `delta` those that a stage writes for an event on average; both with the event's own number.
    """
    rows = _checked_subscriptions(subscriptions)
    events = None if publications is None else _checked_publications(publications)
    named = rows.select("topic") if events is None else rows.select("topic").union(events.select("topic"))
    names = sorted(row.topic for row in named.distinct().collect())
    if not names:
        raise UsageError("expected subscriptions, each with a subscription and a topic, and there are none")
    numbers = subscriptions.sparkSession.createDataFrame(list(enumerate(names)), "number INT, topic STRING")
    held = rows.join(numbers, "topic").groupBy("subscription").agg(f.max("weight"), f.collect_set("number"))
    load = Rates(np.zeros(len(names))) if events is None else _load(events.join(numbers, "topic"), len(names))
    figures = measure(held.rdd.map(lambda row: (0, row[1], np.array(row[2]))), len(names), [load])
    schema = "system INT, number INT, size INT, published DOUBLE, delta DOUBLE"
    sizes = subscriptions.sparkSession.createDataFrame(figures, schema).join(numbers, "number")
    return sizes.select("topic", "size", *([] if events is None else ["published", "delta"]))


def _checked_subscriptions(subscriptions: DataFrame) -> DataFrame:
    """Rows of `subscription`, `topic` and `weight`."""
    _check_columns("subscriptions", subscriptions, ("subscription", "topic"), "subscription, topic (and order)")
    order = f.col("order") if "order" in subscriptions.columns else f.lit("total")
    weight = f.coalesce(*(f.when(order == name, weight) for name, weight in WEIGHTS.items()))
    names = [f.col(name).cast("string").alias(name) for name in ("subscription", "topic")]
    rows = subscriptions.select(*names, weight.alias("weight"))
    faulty = f.col("subscription").isNull() | f.col("topic").isNull() | f.col("weight").isNull()
    checked = rows.groupBy("subscription").agg(
        f.max(faulty).alias("faulty"), f.countDistinct("weight").alias("weights")
    )
    wrong = checked.where("faulty OR weights > 1").first()
    if wrong is not None:
        raise UsageError(
            "expected each row of the subscriptions to have a subscription, a topic, and, if there is the column order, one of "
            f"{', '.join(WEIGHTS)}, the same in all rows of a subscription; those of subscription {wrong.subscription!r} do not"
        )
    return rows


def _checked_publications(publications: DataFrame) -> DataFrame:
    """Rows of `topic` and either `rate` or `position`."""
    name = "rate" if "rate" in publications.columns else "position"
    _check_columns("publications", publications, ("topic", name), "topic and rate, or topic and position")
    number = f.col(name).cast("string").try_cast("double" if name == "rate" else "bigint")
    rows = publications.select(f.col("topic").cast("string").alias("topic"), number.alias(name))
    is_number = f.col(name).between(0, MOST)  # for Spark, what is not a number is more than any
    wrong = rows.where(f.col("topic").isNull() | f.col(name).isNull() | ~is_number).first()
    if wrong is not None:
        raise UsageError(
            f"expected each row of the publications to have a topic and a {name} that is a number, 0 or more; there is one with "
            f"topic {wrong.topic!r} where it is not so"
        )
    return rows


def _check_columns(what: str, table: DataFrame, needed: Sequence[str], expected: str) -> None:
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise UsageError(
            f"{what} have the columns {expected}; these lack {', '.join(missing)}, and have {', '.join(table.columns) or 'none'}"
        )


def _load(events: DataFrame, topics: int) -> Load:
    if "rate" in events.columns:
        rates = np.zeros(topics)
        for row in events.groupBy("number").agg(f.sum("rate").alias("rate")).collect():
            rates[row.number] = row.rate
        return Rates(rates)
    in_order = events.orderBy("position").select("number").toArrow().column(0).to_numpy()
    return SizeRecord(in_order, np.bincount(in_order, minlength=topics))
