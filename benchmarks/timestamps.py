"""Measures timestamps under a published load: `python benchmarks/timestamps.py [--output DIR]`.

The load is that of Baldoni et al., section 5.3: 10,000 clients that subscribe to 10 topics each out of 1,000, and
publications, both drawn by a power law; one stage owns every topic. The paper reports mean sizes of 17 and 46 entries.
What the columns mean, and how the paper's law was read, is said in README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from ordered_pubsub.core.messages import ChangeAsk, Publication, PublishAsk, Request
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.subscriber.delivery import WEIGHTS
from ordered_pubsub.core.topology import StageSpec, Topology

CLIENTS = 10_000
TOPICS = 1_000
TOPICS_PER_CLIENT = 10
PUBLICATIONS = 100_000
BATCHES = (1, 10)
NOW = 1_700_000_000.0
PAPER = {0.901: 17, 0.349: 46}

Row = dict[str, Any]
NAMES = [f"topic/{place:03}" for place in range(TOPICS)]


# -- the law --------------------------------------------------------------------------------------------------------------


def pareto(shape: float) -> list[float]:
    """A topic's rank is a Pareto variate of this shape, rounded down; what is beyond the last topic is drawn again."""
    return _normal(place**-shape - (place + 1) ** -shape for place in range(1, TOPICS + 1))


def zipf(shape: float) -> list[float]:
    """The n-th topic as often as n to the power of -shape says."""
    return _normal(place**-shape for place in range(1, TOPICS + 1))


def zeta(shape: float) -> list[float]:
    """The n-th topic as often as n to the power of -(1 + shape) says."""
    return _normal(place ** -(1 + shape) for place in range(1, TOPICS + 1))


def generalized_pareto(shape: float) -> list[float]:
    """Each topic has a popularity; these have a generalized Pareto distribution of this shape."""
    return _shares(lambda part: (part ** (1 - shape) - (1 - shape) * part) / shape)


def power_function(shape: float) -> list[float]:
    """The first part x of all topics has x to the power of shape."""
    return _shares(lambda part: part**shape)


def _normal(weights: Iterable[float]) -> list[float]:
    listed = list(weights)
    total = sum(listed)
    return [weight / total for weight in listed]


def _shares(of_first_part: Callable[[float], float]) -> list[float]:
    return [of_first_part(place / TOPICS) - of_first_part((place - 1) / TOPICS) for place in range(1, TOPICS + 1)]


READINGS = (pareto, zeta, generalized_pareto, power_function, zipf)
LAW = pareto


def readings() -> list[Row]:
    """How well each reading of "power law with shape" fits what the paper says of its two shapes."""
    return [_fit(reading) for reading in READINGS]


def _fit(reading: Callable[[float], list[float]]) -> Row:
    steep, flat = reading(0.901), reading(0.349)
    first, second = sum(steep[:5]), sum(flat[:400])
    return {
        "reading": reading.__name__,
        "0.901: first 0.5 % (paper 0.80)": first,
        "0.349: first 40 % (paper 0.80)": second,
        "off by": abs(first - 0.8) + abs(second - 0.8),
        "0.349: first 4 %": sum(flat[:40]),
    }


# -- the load -------------------------------------------------------------------------------------------------------------


def draws(law: list[float], seed: int) -> Iterator[int]:
    """Topics by a law, without end."""
    rng = random.Random(seed)
    upto = list(accumulate(law))
    while True:
        yield from rng.choices(range(TOPICS), cum_weights=upto, k=1_000)


def requests(client: str, parts: Iterable[PublishAsk | ChangeAsk]) -> Iterator[Request]:
    """What one client asks, one thing after the other."""
    for sequence, part in enumerate(parts, 1):
        yield Request(client, 1, sequence, sequence - 1, sequence - 1, (part,))


def subscriptions(law: list[float], weight: int) -> Iterator[ChangeAsk]:
    """Every client's subscription to distinct topics: what is drawn twice is drawn again."""
    drawn = draws(law, seed=1)
    for number in range(CLIENTS):
        topics: dict[str, bool] = {}
        while len(topics) < TOPICS_PER_CLIENT:
            topics[NAMES[next(drawn)]] = True
        yield ChangeAsk(f"subscription-{number}", add=tuple(topics), weight=weight)


def stage_with(law: list[float], weight: int) -> Stage:
    """A stage that owns every topic and knows every subscription, and has had an event of each topic."""
    stage = Stage.restore(0, Topology(stages=(StageSpec("only"),)), None, [])
    for request in requests("subscriber", subscriptions(law, weight)):
        stage.handle_request(request, NOW)
        stage.take_effects()
    for request in requests("opener", map(PublishAsk, NAMES)):
        stage.handle_request(request, NOW)
        stage.take_effects()
    return stage


# -- the measure ----------------------------------------------------------------------------------------------------------


def measure(shape: float, order: str) -> list[Row]:
    """Mean entries per event, the event's own number included."""
    law = LAW(shape)
    stage = stage_with(law, WEIGHTS[order])
    sizes = {name: len(stage.state.groups.filled.get(name, ())) for name in NAMES}
    return [
        {"shape": shape, "order": order, "batch": batch, **_entries(stage, law, sizes, batch), "paper": PAPER[shape]}
        for batch in BATCHES
    ]


def _entries(stage: Stage, law: list[float], sizes: dict[str, int], batch: int) -> Row:
    """A batch has one timestamp, so each of its events has its part of the entries, and a number of its own."""
    full: list[int] = []
    delta: list[int] = []
    asked = requests(f"publisher-{batch}", (PublishAsk(NAMES[place], batch) for place in draws(law, seed=2)))
    for request in islice(asked, PUBLICATIONS):
        stage.handle_request(request, NOW)
        part = stage.take_effects().completed[0].parts[0]
        assert isinstance(part, Publication)
        full.append(sizes[part.topic])
        delta.append(len(part.entries))
    return {
        "full, publications": 1 + _mean(full) / batch,
        "delta, publications": 1 + _mean(delta) / batch,
        "full, topics": 1 + _mean(sizes.values()) / batch,
        "delta, topics": 1 + _mean(_next_entries(stage, name) for name in NAMES) / batch,
    }


def _next_entries(stage: Stage, topic: str) -> int:
    """How many entries an event on this topic would get now. (Events come at random, so now is a moment like another.)"""
    clocks, entries = stage.state.clocks, dict[str, int]()
    if topic not in stage.state.groups.filled:
        return 0
    before = clocks.visited[topic]
    clocks.fill(topic, entries, stage.state.groups, False)
    clocks.visited[topic] = before
    return len(entries)


def _mean(numbers: Iterable[int]) -> float:
    listed = list(numbers)
    return sum(listed) / len(listed)


# -- what comes out -------------------------------------------------------------------------------------------------------


def print_table(title: str, rows: list[Row]) -> None:
    """A table of text."""
    cells = [list(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}\n")
    for line in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _shown(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Measures timestamps under a published load.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results", metavar="DIR")
    folder: Path = parser.parse_args().output
    fits = readings()
    print_table("Readings of the law: part of the draws that the first topics get", fits)
    rows = [row for shape in PAPER for order in ("total", "pairwise") for row in measure(shape, order)]
    print_table(f"Mean entries per event ({LAW.__name__}); the paper's number is full, pairwise, over topics", rows)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "timestamps.json"
    path.write_text(json.dumps({"readings": fits, "entries": rows}, indent=1) + "\n")
    print(f"\nwritten: {path}")


if __name__ == "__main__":
    main()
