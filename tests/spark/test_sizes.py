"""How big timestamps are: the job says what a stage does, and the curves are those of the job."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from ordered_pubsub.cli import main
from ordered_pubsub.core.messages import ChangeAsk, Publication, PublishAsk, Request
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.subscriber.delivery import WEIGHTS
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import NotOffered, UsageError
from ordered_pubsub.spark.jobs import group_sizes, plot_curves, size_curves, sizes
from ordered_pubsub.spark.jobs.curves import draw, pareto

NOW = 1_700_000_000.0
TOPICS = [f"topic/{place:02}" for place in range(24)]

Subscriptions = dict[str, tuple[str, list[str]]]
"""name → order, topics"""


# -- what a stage does ------------------------------------------------------------------------------------------------------


def requests(client: str, parts: Iterable[PublishAsk | ChangeAsk]) -> Iterator[Request]:
    for sequence, part in enumerate(parts, 1):
        yield Request(client, 1, sequence, sequence - 1, sequence - 1, (part,))


def stage_with(subscriptions: Subscriptions) -> Stage:
    stage = Stage.restore(0, Topology(stages=(StageSpec("only"),)), None, [])
    asked = (
        ChangeAsk(name, add=tuple(topics), weight=WEIGHTS[order]) for name, (order, topics) in subscriptions.items()
    )
    for request in requests("subscriber", asked):
        stage.handle_request(request, NOW)
        stage.take_effects()
    return stage


def written(stage: Stage, topics: Iterable[str]) -> Iterator[Publication]:
    for request in requests("publisher", map(PublishAsk, topics)):
        stage.handle_request(request, NOW)
        part = stage.take_effects().completed[0].parts[0]
        assert isinstance(part, Publication)
        yield part


def some_subscriptions(rng: random.Random) -> Subscriptions:
    """Of all orders, and more on the first topics; nobody has the last one."""
    weights = [1 / (1 + place) for place in range(len(TOPICS) - 1)]
    return {
        f"subscription-{number}": (
            rng.choice(["total", "pairwise", "pairwise", "topic"]),
            sorted(set(rng.choices(TOPICS[:-1], weights, k=rng.randint(1, 6)))),
        )
        for number in range(30)
    }


def as_table(spark: SparkSession, subscriptions: Subscriptions) -> DataFrame:
    rows = [(name, topic, order) for name, (order, topics) in subscriptions.items() for topic in topics]
    return spark.createDataFrame(rows, "subscription STRING, topic STRING, order STRING")


@pytest.mark.parametrize("cells", [sizes.CELLS, 5 * len(TOPICS)], ids=["few blocks", "blocks of two sizes"])
def test_sizes_and_deltas_are_those_that_a_stage_writes(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, cells: int
) -> None:
    monkeypatch.setattr(sizes, "CELLS", cells)
    monkeypatch.setattr(sizes, "BLOCKS_PER_CORE", 1)
    rng = random.Random(7)
    subscriptions = some_subscriptions(rng)
    stage = stage_with(subscriptions)
    published = rng.choices(TOPICS, [1 / (1 + place) for place in range(len(TOPICS))], k=600)
    entries = dict.fromkeys(TOPICS, 0)
    for part in written(stage, published):
        entries[part.topic] += len(part.entries)
    counts = Counter(published)
    expected = {
        topic: (
            1 + len(stage.state.groups.filled.get(topic, ())),
            float(counts[topic]),
            1 + entries[topic] / counts[topic] if counts[topic] else None,
        )
        for topic in {topic for _, topics in subscriptions.values() for topic in topics} | set(published)
    }
    events = spark.createDataFrame(list(enumerate(published)), "position BIGINT, topic STRING")
    found = group_sizes(as_table(spark, subscriptions), events.orderBy("topic")).collect()

    assert {row.topic: (row.size, row.published, row.delta) for row in found} == expected
    assert {size for size, _, _ in expected.values()} > {1, 2, 5}


def test_what_is_expected_of_rates_is_what_a_stage_writes_in_the_long_run(spark: SparkSession) -> None:
    rng = random.Random(8)
    subscriptions = some_subscriptions(rng)
    rates = {topic: 1 / (1 + place) for place, topic in enumerate(TOPICS)}
    published = rng.choices(TOPICS, list(rates.values()), k=20_000)
    entries = [1 + len(part.entries) for part in written(stage_with(subscriptions), published)]
    table = spark.createDataFrame(list(rates.items()), "topic STRING, rate DOUBLE")
    found = group_sizes(as_table(spark, subscriptions), table).collect()
    expected = sum(row.published * row.delta for row in found) / sum(row.published for row in found)

    assert expected == pytest.approx(sum(entries) / len(entries), rel=0.01)


def test_all_are_total_if_nothing_else_is_said_and_nobody_counts_twice(spark: SparkSession) -> None:
    rows = [("one", "a"), ("one", "b"), ("one", "b"), ("other", "c")]
    found = group_sizes(spark.createDataFrame(rows, "subscription STRING, topic STRING"))
    assert found.columns == ["topic", "size"]
    assert sorted(map(tuple, found.collect())) == [("a", 2), ("b", 2), ("c", 1)]


def test_a_topic_without_publications_has_no_delta_and_costs_nobody_an_entry(spark: SparkSession) -> None:
    subscriptions = spark.createDataFrame([("s", "a"), ("s", "b"), ("s", "c")], "subscription STRING, topic STRING")
    rates = spark.createDataFrame([("a", 3.0), ("b", 1.0), ("c", 0.0), ("d", 1.0)], "topic STRING, rate DOUBLE")
    assert sorted(map(tuple, group_sizes(subscriptions, rates).collect())) == [
        ("a", 3, 3.0, 1.25), ("b", 3, 1.0, 1.75), ("c", 3, 0.0, None), ("d", 1, 1.0, 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        ("subscription STRING, name STRING", [("s", "a")], "these lack topic, and have subscription, name"),
        (
            "subscription STRING, topic STRING",
            [("s", None)],
            "to have a subscription, a topic.* subscription 's' do not",
        ),
        ("subscription STRING, topic STRING, order STRING", [("s", "a", "some")], "one of total, pairwise, topic"),
        (
            "subscription STRING, topic STRING, order STRING",
            [("s", "a", "total"), ("s", "b", "topic")],
            "the same in all rows of a subscription",
        ),
        ("subscription STRING, topic STRING", [], "and there are none"),
    ],
)
def test_subscriptions_that_are_none_are_refused(
    spark: SparkSession, columns: str, rows: list[tuple[str, ...]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        group_sizes(spark.createDataFrame(rows, columns))


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        ("topic STRING, number BIGINT", ("a", 1), "have the columns topic and rate, or topic and position"),
        ("topic STRING, rate STRING", ("a", "often"), "a rate that is a number, 0 or more"),
        ("topic STRING, rate DOUBLE", ("a", float("nan")), "a rate that is a number, 0 or more"),
        ("topic STRING, rate DOUBLE", ("a", -1.0), "there is one with topic 'a'"),
        ("topic STRING, position BIGINT", ("a", None), "a position that is a number, 0 or more"),
    ],
)
def test_publications_that_are_none_are_refused(
    spark: SparkSession, columns: str, row: tuple[object, ...], message: str
) -> None:
    subscriptions = spark.createDataFrame([("s", "a")], "subscription STRING, topic STRING")
    with pytest.raises(UsageError, match=message):
        group_sizes(subscriptions, spark.createDataFrame([row], columns))


# -- the curves -------------------------------------------------------------------------------------------------------------


def test_a_point_of_the_curves_is_what_its_subscriptions_give(spark: SparkSession) -> None:
    points = size_curves(spark, clients=40, topics=30, topics_per_client=(1, 4), shapes=(0.349,), seed=3)
    law = pareto(0.349, 30)
    rates = spark.createDataFrame(
        [(str(topic), float(rate)) for topic, rate in enumerate(law)], "topic STRING, rate DOUBLE"
    )
    ranked = [draw(law, (3, client, 0)) for client in range(40)]
    assert [(p.setting.topics_per_client, p.setting.order, p.subscribed) for p in points] == [
        (1, "pairwise", 40), (1, "total", 40), (4, "pairwise", 160), (4, "total", 160),
    ]  # fmt: skip
    for point in points:
        drawn = [list(map(str, topics[: point.setting.topics_per_client])) for topics in ranked]
        table = as_table(spark, {str(at): (point.setting.order, topics) for at, topics in enumerate(drawn)})
        rows = group_sizes(table, rates).collect()
        for kind, found in (("size", point.full), ("delta", point.delta)):
            values = [row[kind] for row in rows]
            assert found.mean == pytest.approx(np.mean(values))
            assert found.deviation == pytest.approx(np.std(values))
            assert found.mean_published == pytest.approx(sum(row[kind] * row.published for row in rows))


def test_topics_are_drawn_as_if_those_that_come_again_were_drawn_again() -> None:
    law, rng = pareto(0.901, 8), random.Random(5)
    trials, taken = 20_000, 3
    by_keys = Counter(topic for trial in range(trials) for topic in draw(law, (1, trial))[:taken].tolist())
    one_by_one = Counter[int]()
    for _ in range(trials):
        topics = dict[int, bool]()
        while len(topics) < taken:
            topics[rng.choices(range(8), law.tolist())[0]] = True
        one_by_one.update(topics)
    for topic in range(8):
        assert by_keys[topic] / trials == pytest.approx(one_by_one[topic] / trials, abs=0.02)


def test_more_topics_than_there_are_cannot_be_drawn(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="1 to 3 topics per client"):
        size_curves(spark, clients=1, topics=3, topics_per_client=(4,))


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NotOffered, match="pip install matplotlib"):
        plot_curves([], tmp_path / "sizes.png")


# -- as a command -----------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "ordered_pubsub", "group-sizes", *arguments, "--master", "local[1]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_command_reads_files_and_shows_the_biggest_topics(tmp_path: Path) -> None:
    subscriptions = tmp_path / "subscriptions.csv"
    subscriptions.write_text(
        "subscription,topic,order\ndesk,trades,total\ndesk,quotes,total\ndesk,news,total\nclock,time,topic\n"
    )
    events = tmp_path / "events.jsonl"
    published = ["news", "trades", "quotes", "quotes", "trades"]
    events.write_text(
        "".join(json.dumps({"position": at, "topic": topic}) + "\n" for at, topic in enumerate(published))
    )
    assert run(str(subscriptions), "--publications", str(events), "--limit", "3") == [
        "4 topics: size 2.5 ± 0.9, delta 1.7 ± 0.5",
        "",
        "topic   size  published  delta",
        "news       3        1.0    1.0",
        "quotes     3        2.0    2.0",
        "trades     3        2.0    2.0",
    ]


def test_the_command_draws_the_curves(tmp_path: Path) -> None:
    file = tmp_path / "sizes.png"
    title, _, head, *rows = run("--model", "--clients", "10", "--plot", str(file))
    assert title == "mean ± deviation over topics; mean over publications"
    assert head.split("  ")[-1].strip() == "total, delta"
    assert [row.split()[:2] for row in (rows[0], rows[-1])] == [["0.901", "10"], ["0.349", "2,000"]]
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either a file of subscriptions or --model"),
        (["none.csv"], "none.csv: expected a file that exists, and ends in one of .parquet, .csv, .jsonl"),
        (["here.txt"], "here.txt: expected a file that exists, and ends in one of .parquet, .csv, .jsonl"),
        (["here.csv", "--publications", "none.csv"], "none.csv: expected a file that exists"),
        (["here.csv", "--plot", "x.png"], "--plot draws the curves of --model"),
        (["here.csv", "--limit", "-1"], "--limit is how many topics to show: expected 0 or more"),
        (["--model", "--plot", "x.doc"], "--plot x.doc: expected a file that ends in one of .png, .svg, .pdf"),
        (["--model", "--plot", "none/x.png"], "in a folder that exists"),
        (["--model", "--publications", "here.csv"], "--publications goes with a file of subscriptions"),
    ],
)
def test_what_does_not_fit_is_said_at_once(
    arguments: Sequence[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.csv").touch()
    Path("here.txt").touch()
    assert main(["group-sizes", *arguments]) == 2
    assert message in capsys.readouterr().err
