"""Figures 7 and 8 of Baldoni et al.: the mean size of timestamps, and its deviation, over how many topics are subscribed to.

10,000 clients subscribe to 1 to 200 distinct topics each out of 1,000; subscriptions and publications follow one law of power.
The paper's rule is `pairwise`; ours are `total`, and the delta, which is what a stage writes. Means are over topics, as in the
paper, or over publications.

How the law is read is said in benchmarks/README.md: a topic's rank is a Pareto variate of the shape, rounded down, and drawn
again if there is no such topic, or if the client has it already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np
from pyspark.sql import SparkSession

from ordered_pubsub.core.subscriber.delivery import WEIGHTS
from ordered_pubsub.errors import NotOffered, UsageError
from ordered_pubsub.spark.jobs.sizes import Held, Rates, measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLIENTS = 10_000
TOPICS = 1_000
TOPICS_PER_CLIENT = (1, 10, *range(20, 201, 20))
SHAPES = (0.901, 0.349)
ORDERS = ("pairwise", "total")
CURVES = (("pairwise", "full"), ("total", "full"), ("total", "delta"))
LINES = (".-", ".--", ".:")
PAPER = {0.901: 17, 0.349: 46}
"""The paper's mean sizes for 10 topics per client. (Its other numbers are in the figures only.)"""


@attrs.frozen
class Setting:
    """Who subscribes to what, by which rule."""

    shape: float
    topics_per_client: int
    order: str


@attrs.frozen
class Sizes:
    """Of timestamps, or of deltas: entries, with the event's own number."""

    mean: float
    """over topics"""
    deviation: float
    """of the topics' sizes (the standard deviation)"""
    mean_published: float
    """over publications"""


@attrs.frozen
class Point:
    """A point of each curve."""

    setting: Setting
    subscribed: int
    """how many topics each client subscribes to, summed up"""
    full: Sizes
    delta: Sizes


def size_curves(
    spark: SparkSession,
    *,
    clients: int = CLIENTS,
    topics: int = TOPICS,
    topics_per_client: Sequence[int] = TOPICS_PER_CLIENT,
    shapes: Sequence[float] = SHAPES,
    seed: int = 1,
) -> list[Point]:
    """Draw subscriptions, and measure: a point for each shape, number of topics per client, and order."""
    if not clients >= 1 or not all(1 <= count <= topics for count in topics_per_client):
        raise UsageError(
            f"expected at least one client, and 1 to {topics} topics per client (there are no more); there are {clients} clients "
            f"with {', '.join(map(str, topics_per_client))} topics"
        )
    settings = [Setting(*each) for each in product(shapes, topics_per_client, ORDERS)]
    laws = {shape: pareto(shape, topics) for shape in shapes}
    held = spark.sparkContext.range(clients).flatMap(partial(_subscriptions, settings, laws, seed))
    figures = measure(held, topics, [Rates(laws[setting.shape]) for setting in settings]).collect()
    rows = np.array(sorted(figures))
    return [_point(setting, clients, rows[rows[:, 0] == number]) for number, setting in enumerate(settings)]


def pareto(shape: float, topics: int) -> np.ndarray:
    """How probable each rank is."""
    ranks = np.arange(1, topics + 1, dtype=float)
    parts = ranks**-shape - (ranks + 1) ** -shape
    law: np.ndarray = parts / parts.sum()
    return law


def _subscriptions(
    settings: Sequence[Setting], laws: dict[float, np.ndarray], seed: int, client: int
) -> Iterator[Held]:
    """One client's, in each setting: who has more topics than in another one has those of the other one, too."""
    ranked = {shape: draw(law, (seed, client, number)) for number, (shape, law) in enumerate(laws.items())}
    for number, setting in enumerate(settings):
        yield number, WEIGHTS[setting.order], ranked[setting.shape][: setting.topics_per_client]


def draw(law: np.ndarray, seed: Sequence[int]) -> np.ndarray:
    """All topics in the order in which they would be drawn, one by one, if those that come again did not count.

    Each topic comes for the first time after an exponential time, by its own rate.
    """
    return np.argsort(np.random.default_rng(seed).exponential(size=len(law)) / law)


def _point(setting: Setting, clients: int, rows: np.ndarray) -> Point:
    _, _, size, published, delta = rows.T
    return Point(setting, clients * setting.topics_per_client, _sizes(size, published), _sizes(delta, published))


def _sizes(sizes: np.ndarray, published: np.ndarray) -> Sizes:
    return Sizes(float(sizes.mean()), float(sizes.std()), float(np.average(sizes, weights=published)))


# -- as a plot ------------------------------------------------------------------------------------------------------------


def check_matplotlib() -> None:
    """Raise what to do if there can be no plot."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise NotOffered(
            "a plot needs matplotlib, which is not installed here: pip install matplotlib, or leave the plot out"
        ) from None


def plot_curves(points: Sequence[Point], file: Path) -> None:
    """Draw figures 7 and 8, with our curves beside the paper's rule."""
    check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5))
    means, deviations = figure.subplots(1, 2)
    for color, shape in enumerate(dict.fromkeys(point.setting.shape for point in points)):
        _plot_shape(means, points, shape, f"C{color}", "mean")
        _plot_shape(deviations, points, shape, f"C{color}", "deviation")
    means.set_title("mean size (figure 7; crosses: the paper)")
    deviations.set_title("standard deviation (figure 8)")
    for axes in (means, deviations):
        axes.set(xlabel="subscribed topics of all clients, in thousands", ylabel="entries", ylim=(0, None))
        axes.grid(alpha=0.3)
    means.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _plot_shape(axes: Axes, points: Sequence[Point], shape: float, color: str, figure: str) -> None:
    """The curves of a shape."""
    for (order, kind), line in zip(CURVES, LINES, strict=True):
        own = [point for point in points if (point.setting.shape, point.setting.order) == (shape, order)]
        axes.plot(
            [point.subscribed / 1_000 for point in own],
            [getattr(getattr(point, kind), figure) for point in own],
            line,
            color=color,
            label=f"{shape}: {order}, {kind}" + (" (the paper's rule)" if order == "pairwise" else ""),
        )
    if figure == "mean" and shape in PAPER:
        axes.plot(CLIENTS * 10 / 1_000, PAPER[shape], "X", color=color, markeredgecolor="black", markersize=9, zorder=3)
