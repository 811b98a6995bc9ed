"""`ordered-pubsub group-sizes`: how big timestamps are, or would be, with Spark on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ordered_pubsub.bench.report import table
from ordered_pubsub.cli.spark import add_master, spark_session
from ordered_pubsub.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ordered_pubsub.spark.jobs import Point, Sizes

CLIENTS = 10_000
LIMIT = 20
TABLES = (".parquet", ".csv", ".jsonl")
PLOTS = (".png", ".svg", ".pdf")

DESCRIPTION = "Says how big the timestamps of each topic are, by who subscribes to what."
EPILOG = """\
examples:
  ordered-pubsub group-sizes subscriptions.csv                            # columns subscription, topic, and order
  ordered-pubsub group-sizes subscriptions.csv --publications rates.csv   # columns topic and rate
  ordered-pubsub sub trades quotes --json > events.jsonl
  ordered-pubsub group-sizes subscriptions.csv --publications events.jsonl
  ordered-pubsub group-sizes --model --plot sizes.png                     # as in figures 7 and 8 of Baldoni et al.

A full timestamp has an entry for each topic of the group of the event's topic: its size. A stage writes fewer, the delta: those
with an event since the topic's previous one. It needs pip install 'ordered-pubsub[spark]' and a Java runtime; --plot needs
matplotlib.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("path", metavar="PATH", nargs="?", type=Path, help="the subscriptions: .parquet, .csv or .jsonl")
    add(
        "--publications", metavar="FILE", type=Path, help="topics with rates, or events with positions: sizes of deltas"
    )
    add("--limit", metavar="N", type=int, default=LIMIT, help=f"show the N biggest topics (default: {LIMIT})")
    add("--model", action="store_true", help="instead of PATH: draw subscriptions as in the paper (half a minute)")
    add("--clients", metavar="N", type=int, default=CLIENTS, help=f"with --model: so many (default: {CLIENTS:,})")
    add("--plot", metavar="FILE", type=Path, help="with --model: draw the curves")
    add_master(parser)
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Measure one's own subscriptions, or those of the model, and print."""
    _check(arguments)
    print("\n".join(_model(arguments) if arguments.model else _own(arguments)))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise what does not fit before Spark is started."""
    if arguments.model == bool(arguments.path):
        raise UsageError("expected either a file of subscriptions or --model")
    if arguments.model and arguments.publications:
        raise UsageError("--publications goes with a file of subscriptions: --model draws its own")
    if arguments.plot and not arguments.model:
        raise UsageError("--plot draws the curves of --model: expected both, or neither")
    if arguments.limit < 0:
        raise UsageError(f"--limit is how many topics to show: expected 0 or more, not {arguments.limit}")
    if arguments.plot and not (arguments.plot.suffix in PLOTS and arguments.plot.parent.is_dir()):
        raise UsageError(
            f"--plot {arguments.plot}: expected a file that ends in one of {', '.join(PLOTS)}, in a folder that exists"
        )
    for path in (arguments.path, arguments.publications):
        if path and not (path.suffix in TABLES and path.exists()):
            raise UsageError(f"{path}: expected a file that exists, and ends in one of {', '.join(TABLES)}")


# -- one's own ------------------------------------------------------------------------------------------------------------


def _own(arguments: argparse.Namespace) -> list[str]:
    paths = [path for path in (arguments.path, arguments.publications) if path]
    with spark_session("group-sizes", arguments.master) as spark:
        from ordered_pubsub.spark.jobs import group_sizes

        return describe(group_sizes(*(_read(spark, path) for path in paths)), arguments.limit)


def _read(spark: SparkSession, path: Path) -> DataFrame:
    """A table, by the name of its file."""
    if path.suffix == ".csv":
        return spark.read.csv(str(path), header=True)
    return spark.read.json(str(path)) if path.suffix == ".jsonl" else spark.read.parquet(str(path))


def describe(sizes: DataFrame, limit: int) -> list[str]:
    """What `group_sizes` found: means and deviations, and the biggest topics."""
    from pyspark.sql import functions as f

    kinds = [name for name in ("size", "delta") if name in sizes.columns]
    sizes = sizes.persist()
    try:
        found = sizes.agg(f.count("*"), *(of(kind) for kind in kinds for of in (f.mean, f.stddev_pop))).first()
        biggest = sizes.orderBy(f.desc("size"), "topic").limit(limit).collect()
    finally:
        sizes.unpersist()
    count, *figures = found
    said = [f"{kind} {_number(figures[2 * at])} ± {_number(figures[2 * at + 1])}" for at, kind in enumerate(kinds)]
    rows = [sizes.columns, *([row.topic, *map(_number, row[1:])] for row in biggest)]
    return [f"{count:,} topics: {', '.join(said)}", "", *table(rows)]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


# -- the model ------------------------------------------------------------------------------------------------------------


def _model(arguments: argparse.Namespace) -> list[str]:
    with spark_session("group-sizes", arguments.master) as spark:
        from ordered_pubsub.spark.jobs import plot_curves, size_curves
        from ordered_pubsub.spark.jobs.curves import check_matplotlib

        if arguments.plot:
            check_matplotlib()
        points = size_curves(spark, clients=arguments.clients)
        if arguments.plot:
            plot_curves(points, arguments.plot)
    return describe_curves(points)


def describe_curves(points: Sequence[Point]) -> list[str]:
    """What `size_curves` found: each curve's mean and deviation over topics, and mean over publications."""
    from ordered_pubsub.spark.jobs.curves import CURVES

    curves = [f"{order}, {kind}" for order, kind in CURVES]
    rows = {(point.setting.shape, point.subscribed): dict[str, str]() for point in points}
    for point in points:
        for kind in ("full", "delta"):
            row = rows[point.setting.shape, point.subscribed]
            row[f"{point.setting.order}, {kind}"] = _sizes(getattr(point, kind))
    cells = [[f"{shape}", f"{count:,}", *(row[curve] for curve in curves)] for (shape, count), row in rows.items()]
    return [
        "mean ± deviation over topics; mean over publications",
        "",
        *table([["shape", "subscribed", *curves], *cells]),
    ]


def _sizes(sizes: Sizes) -> str:
    return f"{sizes.mean:.1f} ± {sizes.deviation:.1f}; {sizes.mean_published:.1f}"
