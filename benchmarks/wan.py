"""Five stages far from each other, as in Baldoni et al., section 5.4: `python benchmarks/wan.py [--output DIR]`.

1,000 topics, 200 at each of five stages; 1,000 clients, 200 at each of five sites, each with 10 topics. From a client to the
stage of its site it is 10 ms one way, between stages 100 ms, through TCP proxies. Each site subscribes and publishes by a
power law over the topics, its own first; the shapes are the paper's. Measured is the latency of a number: from `publish` to
the receipt, on an ENS that takes everything at once.

Everything runs as processes of one machine: 5 stages, 5 sites with 200 clients each, 2 proxies. Where the machine is the
limit, the rate that was reached is below the one that was asked for; the table has both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any

from timestamps import pareto

import ordered_pubsub
from ordered_pubsub.adapter import Adapter, Capabilities, Frame, FramesHandler, StateHandler
from ordered_pubsub.testing.processes import HOST, Starter, WorkerProcess, command_of, free_port
from ordered_pubsub.testing.proxy import serve
from ordered_pubsub.testing.stages import StageProcesses

SITES = 5
NOT_KEPT = '[[topic]]\npattern = "**"\ndelivery = "ordered"\n'
"""Of what is kept, subscribers would get everything from the logs here, since this ENS brings nothing."""
TOPICS = 1_000
CLIENTS = 1_000
TOPICS_EACH = 10
SHAPES = (0.901, 0.349)
RATES = (1_000, 2_000, 3_000, 4_000, 5_000, 7_500, 10_000)
SHORT_S, SHORT_JITTER_S = 0.010, 0.0035
LONG_S, LONG_JITTER_S = 0.100, 0.0173
"""The paper's means; its standard deviations of 2 and 10 ms as uniform jitter."""
SETTLE_S = 2.0
DRAIN_S = 20.0
PAPER = "paper, figures 9 and 10: below 300 ms up to 10,000 requests/s; at most about 4,000 numbers/s"

Row = dict[str, Any]


def names() -> list[str]:
    """All topics, those of the first stage first."""
    return [f"s{site}/t{number}" for site in range(SITES) for number in range(TOPICS // SITES)]


class Taken(Adapter):
    """An ENS that takes everything at once and brings nothing: what is measured is the order alone."""

    capabilities = Capabilities(
        loses=False, reorders=False, duplicates=False, keeps_while_away=True, carries_headers=True, confirms=True
    )

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Nothing to connect to."""

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Taken."""

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Nothing will come."""

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Nothing came."""

    async def close(self) -> None:
        """Nothing to disconnect from."""


# -- a site: 200 clients in a process -------------------------------------------------------------------------------------


class Site:
    """The clients of one site, and what they publish."""

    def __init__(self, number: int, address: str, shape: float, order: str) -> None:
        every = names()
        first = number * TOPICS // SITES
        self.topics = every[first:] + every[:first]
        self.weights = list(accumulate(pareto(shape)))
        self.random = random.Random(number)
        self.address = address
        self.order = order
        self.clients: list[ordered_pubsub.Client] = []
        self.latencies: list[float] = []

    def draw(self) -> str:
        """A topic, by the law of this site."""
        return self.random.choices(self.topics, cum_weights=self.weights)[0]

    async def open(self) -> None:
        """Connect and subscribe, a few at a time."""
        for _ in range(CLIENTS // SITES):
            self.clients.append(
                await ordered_pubsub.connect(
                    Taken("taken://"), sequencer=self.address, timeout_s=120.0, delivery="ordered"
                )
            )
        for start in range(0, len(self.clients), 20):
            await asyncio.gather(*(self._subscribe(client) for client in self.clients[start : start + 20]))

    async def _subscribe(self, client: ordered_pubsub.Client) -> None:
        topics: dict[str, bool] = {}
        while len(topics) < TOPICS_EACH:
            topics[self.draw()] = True
        await client.subscribe(*topics, order=self.order)

    async def publish(self, rate: float, seconds: float) -> Row:
        """Publish at a rate, evenly; say how long numbers took, and how many came."""
        loop = asyncio.get_running_loop()
        self.latencies.clear()
        waiting: list[asyncio.Future[ordered_pubsub.Receipt]] = []
        refused = count = 0
        began = loop.time()
        while (now := loop.time()) < began + seconds:
            due = int((now - began) * rate)
            for _ in range(min(due - count, 200)):
                count += 1
                try:
                    future = self.random.choice(self.clients).publish_nowait(self.draw(), b"x" * 200)
                except ordered_pubsub.WouldBlock:
                    refused += 1
                    continue
                future.add_done_callback(partial(self._came, loop.time()))
                waiting.append(future)
            await asyncio.sleep(0.002)
        in_time = len(self.latencies)
        if waiting:
            await asyncio.wait(waiting, timeout=DRAIN_S)
        return {"asked": count, "refused": refused, "in_time": in_time, "latencies": self.latencies}

    def _came(self, since: float, future: asyncio.Future[ordered_pubsub.Receipt]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.latencies.append(asyncio.get_running_loop().time() - since)


async def run_site(starter: Starter, **plan: Any) -> None:
    """Publish as often as told."""
    site = Site(**plan)
    await site.open()
    starter.tell(state="ready")
    while True:
        starter.tell(**await site.publish(**await starter.hear()))


# -- the whole ------------------------------------------------------------------------------------------------------------


class World:
    """Stages, proxies and sites."""

    def __init__(self, folder: Path, shape: float, order: str, durability: str) -> None:
        self.folder, self.shape, self.order = folder, shape, order
        self.long, self.short = ([free_port() for _ in range(SITES)] for _ in range(2))
        owned = [[f"s{rank}/**"] for rank in range(SITES)]
        advertised = [{"advertise": f"ops://{HOST}:{port}"} for port in self.long]
        self.stages = StageProcesses(folder, owned, durability, NOT_KEPT, advertised)
        self.sites: list[WorkerProcess] = []
        self._stack = ExitStack()

    def __enter__(self) -> World:
        self._stack.callback(self.stages.kill)
        try:
            self._start("long lines", serve, lines=self._lines(self.long, LONG_S, LONG_JITTER_S)).hear()
            self._start("short lines", serve, lines=self._lines(self.short, SHORT_S, SHORT_JITTER_S)).hear()
            self.stages.start()
            for number, port in enumerate(self.short):
                plan = {"address": f"ops://{HOST}:{port}", "shape": self.shape, "order": self.order}
                self.sites.append(self._start(f"site {number}", run_site, number=number, **plan))
            for site in self.sites:
                site.hear()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _lines(self, ports: list[int], delay_s: float, jitter_s: float) -> list[list[Any]]:
        listen = [stage.port for stage in self.stages.processes]
        return [[f"{HOST}:{port}", f"{HOST}:{to}", delay_s, jitter_s] for port, to in zip(ports, listen, strict=True)]

    def _start(self, name: str, part: Callable[..., Any], **plan: Any) -> WorkerProcess:
        worker = WorkerProcess(name, command_of(part), self.folder / f"{name}.log", plan=plan)
        self._stack.callback(worker.kill)
        worker.begin()
        return worker

    def measure(self, rate: float, seconds: float) -> Row:
        """All sites publish; what they say together."""
        for site in self.sites:
            site.tell(rate=rate / SITES, seconds=seconds)
        said = [site.hear() for site in self.sites]
        latencies = sorted(latency for one in said for latency in one["latencies"])
        count = len(latencies)
        asked = sum(one["asked"] for one in said)
        return {
            "shape": self.shape,
            "order": self.order,
            "rate": rate,
            "asked": asked / seconds,
            "reached": sum(one["in_time"] for one in said) / seconds,
            "answered": count,
            "unanswered": asked - count - sum(one["refused"] for one in said),
            "mean_ms": 1000 * sum(latencies) / count,
            "p50_ms": 1000 * latencies[count // 2],
            "p99_ms": 1000 * latencies[count * 99 // 100],
        }

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def measure(
    shapes: Sequence[float], orders: Sequence[str], rates: Sequence[float], seconds: float, durability: str
) -> list[Row]:
    """One world for each shape and order; all rates in it, one after the other."""
    rows: list[Row] = []
    for shape in shapes:
        for order in orders:
            with TemporaryDirectory() as folder, World(Path(folder), shape, order, durability) as world:
                world.measure(500, SETTLE_S)
                for rate in rates:
                    row = world.measure(rate, seconds)
                    rows.append(row)
                    print(line_of(row), flush=True)
                    sleep(SETTLE_S)
    return rows


HEAD = "shape  order     asked/s  reached/s  mean ms  p50 ms  p99 ms  unanswered"


def line_of(row: Row) -> str:
    """A row of the table."""
    latencies = f"{row['mean_ms']:7.0f}  {row['p50_ms']:6.0f}  {row['p99_ms']:6.0f}"
    rates = f"{row['asked']:7.0f}  {row['reached']:9.0f}"
    return f"{row['shape']:5}  {row['order']:8}  {rates}  {latencies}  {row['unanswered']:10}"


def plot(rows: list[Row], path: Path) -> None:
    """Latency and throughput over the rate, beside what the paper says."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for shape in SHAPES:
        for order in dict.fromkeys(row["order"] for row in rows):
            chosen = [row for row in rows if row["shape"] == shape and row["order"] == order]
            asked = [row["rate"] for row in chosen]
            label = f"shape {shape}, {order}"
            left.plot(asked, [row["mean_ms"] for row in chosen], marker="o", label=label)
            right.plot(asked, [row["reached"] for row in chosen], marker="o", label=label)
    left.axhline(300, color="grey", linestyle="--", label="paper: below 300 ms")
    right.axhline(4000, color="grey", linestyle="--", label="paper: about 4,000/s at its peak")
    left.set(xlabel="requests/s", ylabel="mean latency of a number, ms", ylim=(0, None), title="as in figure 9")
    right.set(xlabel="requests/s", ylabel="numbers/s", title="as in figure 10")
    for axes in (left, right):
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rates", type=lambda text: [float(rate) for rate in text.split(",")], default=list(RATES))
    parser.add_argument("--shapes", type=lambda text: [float(shape) for shape in text.split(",")], default=list(SHAPES))
    parser.add_argument("--orders", type=lambda text: text.split(","), default=["total", "pairwise"])
    parser.add_argument("--durability", default="fsync")
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    rows = measure(arguments.shapes, arguments.orders, arguments.rates, arguments.seconds, arguments.durability)
    print(PAPER)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "wan.json").write_text(json.dumps(rows, indent=2))
    plot(rows, arguments.output / "wan.png")
    print(f"{arguments.output / 'wan.png'}, wan.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
