"""What exactly-once costs beside best-effort, without failures: the paper's section 4.1 (Bhola and others, DSN 2002).

    python benchmarks/overhead.py [--seconds 10] [--rounds 2] [--subscriptions 1,10,50,100,200]

2,000 events a second of 250 bytes on 1,000 topics, over NATS core, and two stages as the paper has two brokers: the owner of all
topics, to which the publisher speaks, and the home stage of the subscribers. These are in one process with a connection each;
everyone holds one topic, and so receives 2 events a second. Measured are the CPU time of the subscribers' process and of both
stages, and the latency from `publish` to the notification, once with topics that are kept (exactly-once) and once with topics
that are not, and best-effort subscriptions. The two take turns; the figures are means over the rounds.

The paper's overhead is a difference in percent of the processors, so ours is in percentage points of one processor; the table
has the ratio as well. The disk is in the way of exactly-once: how long the owner's commits took is counted by the owner itself,
in the same seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import attrs

import ordered_pubsub
from ordered_pubsub.testing.brokers import NatsServer
from ordered_pubsub.testing.processes import HOST, Starter, WorkerProcess, command_of, cpu_ns, free_port
from ordered_pubsub.testing.stages import StageProcesses

RATE = 2_000
TOPICS = 1_000
BYTES = 250
SUBSCRIPTIONS = (1, 10, 50, 100, 200)
LEVELS = ("best-effort", "exactly-once")
SECONDS = 10.0
ROUNDS = 2
BEGIN_S = 1.5
"""Until all topics have been published on."""

Figures = dict[str, float]


# -- the two client processes ---------------------------------------------------------------------------------------------


async def subscribe(starter: Starter, ens: str, sequencer: str, level: str, count: int) -> None:
    """The subscribers: say when they are ready, and at the end what they have seen."""
    latencies: list[float] = []

    def note(event: ordered_pubsub.Event) -> None:
        latencies.append(time.monotonic() - float(event.raw[:20]))

    async with AsyncExitStack() as stack:
        for number in range(count):
            client = await stack.enter_async_context(ordered_pubsub.connect(ens, sequencer=sequencer, delivery=level))
            await client.subscribe(f"topic/{number}", notify=note)
        starter.tell(state="ready")
        await starter.hear()
        latencies.clear()
        used = time.process_time()
        await starter.hear()
        used = time.process_time() - used
    latencies.sort()
    p50_s, p99_s = median(latencies), latencies[len(latencies) * 99 // 100]
    starter.tell(cpu_s=used, events=len(latencies), p50_s=p50_s, p99_s=p99_s)


async def publish(starter: Starter, ens: str, sequencer: str, level: str, seconds: float) -> None:
    """The publisher: 2,000 events a second, topic by topic."""
    least = "ordered" if level == "best-effort" else level
    async with ordered_pubsub.connect(ens, sequencer=sequencer, delivery=least) as client:
        starter.tell(state="ready")
        begin = time.monotonic()
        for number in range(int(RATE * seconds)):
            ahead_s = begin + number / RATE - time.monotonic()
            if ahead_s > 0.001:
                await asyncio.sleep(ahead_s)
            payload = f"{time.monotonic():<20}".encode().ljust(BYTES, b".")
            client.publish_nowait(f"topic/{number % TOPICS}", payload)


# -- the measurement ------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Pair:
    """The two stages: the owner of all topics, which says how it is, and the home of the subscribers."""

    stages: StageProcesses
    http: str

    @classmethod
    def start(cls, folder: Path, delivery: str) -> Pair:
        """Start them on new stores."""
        http = f"{HOST}:{free_port()}"
        more = f'[[topic]]\npattern = "**"\ndelivery = "{delivery}"\n'
        settings = [{"name": "owner", "http": http}, {"name": "home"}]
        stages = StageProcesses(folder, [["topic/*"], ["none"]], more=more, settings=settings)
        stages.start()
        return cls(stages, http)

    def now(self) -> dict[str, float]:
        """What has been used so far."""
        with urlopen(f"http://{self.http}/metrics", timeout=10) as answer:
            counted = dict(re.findall(r"^ordered_pubsub_(\w+)\{\S*\} (\S+)$", answer.read().decode(), re.MULTILINE))
        owner, home = ((cpu_ns(stage.pid) or 0) / 1e9 for stage in self.stages.processes)
        return {
            "owner_cpu_s": owner,
            "home_cpu_s": home,
            "commits": float(counted["commits_total"]),
            "commit_s": float(counted["commit_seconds_total"]),
        }


def _started(stack: ExitStack, part: Callable[..., Any], folder: str, **plan: Any) -> WorkerProcess:
    """A client process, when it has said that it is ready."""
    worker = WorkerProcess(part.__name__, command_of(part), Path(folder) / part.__name__, plan=plan)
    stack.callback(worker.end)
    worker.begin()
    worker.hear()
    return worker


def measure(level: str, count: int, seconds: float, broker: str) -> Figures:
    """One point: fresh stages, so many subscriptions, so many seconds."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        pair = Pair.start(Path(folder), "ordered" if level == "best-effort" else level)
        stack.callback(pair.stages.stop)
        owner, home = pair.stages.addresses
        own = {"ens": broker, "level": level}
        readers = _started(stack, subscribe, folder, **own, sequencer=home, count=count)
        _started(stack, publish, folder, **own, sequencer=owner, seconds=seconds + 3)
        time.sleep(BEGIN_S)
        readers.tell()
        before = pair.now()
        time.sleep(seconds)
        after = pair.now()
        seen: Figures = readers.ask()
    used = {key: after[key] - before[key] for key in after}
    return {**_in_units(seen, used, seconds), "events": seen["events"]}


def _in_units(seen: Figures, used: Figures, seconds: float) -> Figures:
    return {
        "subscribers": 100 * seen["cpu_s"] / seconds,
        "home": 100 * used["home_cpu_s"] / seconds,
        "owner": 100 * used["owner_cpu_s"] / seconds,
        "p50_ms": 1_000 * seen["p50_s"],
        "p99_ms": 1_000 * seen["p99_s"],
        "commit_ms": 1_000 * used["commit_s"] / used["commits"],
    }


@attrs.frozen
class Point:
    """The figures for one number of subscriptions: CPU in percent of one processor, times in ms."""

    count: int
    best: Figures
    exactly: Figures

    def side(self, level: Figures) -> float:
        """CPU at the subscribers' side: theirs, and that of their home stage."""
        return level["subscribers"] + level["home"]

    @property
    def overhead(self) -> float:
        """Of exactly-once at the subscribers' side, in percentage points of one processor."""
        return self.side(self.exactly) - self.side(self.best)

    @property
    def ratio(self) -> float:
        """The same, relative: 1 is no overhead."""
        return self.side(self.exactly) / max(self.side(self.best), 0.01)

    @property
    def later_ms(self) -> float:
        """By how much the median event comes later."""
        return self.exactly["p50_ms"] - self.best["p50_ms"]


def table(points: list[Point]) -> str:
    """The figures side by side, as Markdown: best-effort / exactly-once."""
    lines = [
        "| subscriptions | subscribers, % of a CPU | their home stage, % | overhead of both, points | ratio | owner, % | p50, ms "
        "| p99, ms | p50 later by, ms | a commit of the owner, ms |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for point in points:
        pair = {key: f"{point.best[key]:.1f} / {point.exactly[key]:.1f}" for key in ("subscribers", "home", "owner")}
        ms = {key: f"{point.best[key]:.2f} / {point.exactly[key]:.2f}" for key in ("p50_ms", "p99_ms", "commit_ms")}
        lines.append(
            f"| {point.count} | {pair['subscribers']} | {pair['home']} | {point.overhead:+.1f} | {point.ratio:.2f} "
            f"| {pair['owner']} | {ms['p50_ms']} | {ms['p99_ms']} | {point.later_ms:+.2f} | {ms['commit_ms']} |"
        )
    return "\n".join(lines)


def run(seconds: float = SECONDS, rounds: int = ROUNDS, subscriptions: tuple[int, ...] = SUBSCRIPTIONS) -> list[Point]:
    """Measure all points, print the table, and return them."""
    points = []
    with NatsServer() as broker:
        for count in subscriptions:
            found: dict[str, list[Figures]] = {level: [] for level in LEVELS}
            for turn in range(rounds):
                for level in LEVELS if turn % 2 == 0 else reversed(LEVELS):
                    found[level].append(measure(level, count, seconds, broker.url))
            best, exactly = ({key: mean(one[key] for one in some) for key in some[0]} for some in found.values())
            points.append(Point(count, best, exactly))
    print(table(points), flush=True)
    return points


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--subscriptions", default=",".join(map(str, SUBSCRIPTIONS)))
    given = parser.parse_args()
    run(given.seconds, given.rounds, tuple(map(int, given.subscriptions.split(","))))


if __name__ == "__main__":
    main()
