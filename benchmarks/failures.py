"""What failures cost while they last: the paper's section 4.2 (Bhola and others, DSN 2002), figures 6 to 8.

    python benchmarks/failures.py [--repeats 3] [--subscribers 1,10,100] [--failures link,home,owner]

Three stages, each a process, over NATS core:

    publisher ── owner ──(line that is cut)── home ── subscribers on the path: 1, 10 or 100
                   └───────────────────────── other ── two subscribers off the path

Unlike in Gryphon, events travel over the ENS, and the way from stage to stage is that of numbers, nacks and recoveries. So a
failure here has two halves: for `OUTAGE_S` the ENS drops whatever it has for the subscribers on the path (as the paper's stalled
broker does), and meanwhile, and for a while longer, the way on which they get it back is broken: the connection from home to
owner is cut, or the home stage is killed (-9) and started again, or the owner is. Whose home is killed goes to another stage by
itself, as the paper's brokers switch to another path.

Of the two off the path, one holds the same topics as those on it, at home at another stage; the other holds topics of that
stage, which the owner's crash does not concern. Latencies run from the call of `publish` to the notification, over the time of
that call, as in the paper; a nack is noted by the owner itself when it comes. Everybody's notifications are judged: all events,
once each, in one order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import attrs

import ordered_pubsub
from ordered_pubsub.testing.brokers import NatsServer
from ordered_pubsub.testing.lossy import LossyLine
from ordered_pubsub.testing.processes import HOST, Starter, WorkerProcess, command_of, free_port
from ordered_pubsub.testing.proxy import Proxy
from ordered_pubsub.testing.stages import OURS, StageProcess, stage_section

STAGES = ("owner", "home", "other")
"""In the order of their ranks: who is lower dials who is higher."""
FAILURES = ("link", "home", "owner")
SUBSCRIBERS = (1, 10, 100)
REPEATS = 3
TOPICS = 4
RATE = 40.0
"""Events a second on the path's topics together, and as many on the others: low, as in the paper, to see the protocol and not the
processors."""
BYTES = 100
CALM_S = 2.5
OUTAGE_S = 2.0
"""So long the ENS drops what it has for the subscribers on the path."""
BREAK_AFTER_S, MEND_AFTER_S = 0.5, 2.5
"""When the way to the log is broken, and mended, counted from the beginning of the outage."""
WINDOW_S = 7.0
"""What counts as during the failure."""
DRAIN_S = 60.0
SLICE_S = 0.1

NOTING = """
import sys, time
from ordered_pubsub.cli import main
from ordered_pubsub.core.recovery.owner_log import OwnerLogs

file, handle_request = open(sys.argv.pop(1), "a", buffering=1), OwnerLogs.handle_request

def note(self, home, wants):
    print(time.monotonic(), home, sum(want.last - want.first + 1 for want in wants), file=file)
    handle_request(self, home, wants)

OwnerLogs.handle_request = note
sys.exit(main())
"""
"""A stage that writes down each nack: when it came, from which home stage, and for how many numbers."""

Point = tuple[float, float]
"""When an event was published, from the beginning of the outage on, and its latency."""
Nack = tuple[float, str, int]
"""When it came to the owner, from which home stage, and for how many numbers."""


# -- the client processes -------------------------------------------------------------------------------------------------


async def subscribe(starter: Starter, ens: str, sequencer: list[str], topics: list[str], count: int) -> None:
    """Subscribers: say all that they are notified of, until they have got as far as they are told."""
    rows: list[list[tuple[str, int, int | None, float, float]]] = [[] for _ in range(count)]
    arrived = asyncio.Event()

    def note(at: int, event: ordered_pubsub.Event) -> None:
        rows[at].append((event.topic, event.number, event.position, float(event.raw[:20]), time.monotonic()))
        arrived.set()

    async with AsyncExitStack() as stack:
        for at in range(count):
            client = await stack.enter_async_context(ordered_pubsub.connect(ens, sequencer=sequencer))
            await client.subscribe(*topics, notify=partial(note, at))
        starter.tell(state="ready")
        totals = (await starter.hear())["totals"]
        wanted = sum(totals[topic] for topic in topics)
        await until(lambda: min(map(len, rows)) >= wanted, arrived)
    starter.tell(rows=rows)


async def until(condition: Callable[[], bool], arrived: asyncio.Event) -> None:
    """Wait until it is so, but not for ever: whoever judges sees what is missing. `arrived` is set when it may have become so."""
    give_up_at = time.monotonic() + DRAIN_S
    while not condition() and (left_s := give_up_at - time.monotonic()) > 0:
        arrived.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(arrived.wait(), left_s)


async def publish(starter: Starter, ens: str, publications: list[tuple[list[str], list[str]]]) -> None:
    """Two publishers, one on the topics of each owner; say how many events each topic has in the end."""
    receipts: list[asyncio.Future[ordered_pubsub.Receipt]] = []
    stopping = asyncio.Event()

    async def go_on(client: ordered_pubsub.Client, topics: Sequence[str]) -> None:
        begin, count = time.monotonic(), 0
        while not stopping.is_set():
            payload = f"{time.monotonic():<20}".encode().ljust(BYTES, b".")
            receipts.append(client.publish_nowait(topics[count % TOPICS], payload))
            count += 1
            await asyncio.sleep(max(begin + count / RATE - time.monotonic(), 0.0))

    async with AsyncExitStack() as stack:
        going = []
        for sequencer, topics in publications:
            client = await stack.enter_async_context(ordered_pubsub.connect(ens, sequencer=sequencer))
            going.append(asyncio.create_task(go_on(client, topics)))
        starter.tell(state="ready")
        await starter.hear()
        stopping.set()
        await asyncio.gather(*going)
        totals: dict[str, int] = {}
        for receipt in await asyncio.gather(*receipts):
            totals[receipt.topic] = totals.get(receipt.topic, 0) + 1
    starter.tell(totals=totals)


async def _started(stack: AsyncExitStack, name: str, part: Callable[..., Any], log: Path, **plan: Any) -> WorkerProcess:
    """A client process, when it has said that it is ready. It does not outlive the stack."""
    worker = WorkerProcess(name, command_of(part), log, plan=plan)
    stack.callback(worker.kill)
    worker.begin()
    await asyncio.to_thread(worker.hear)
    return worker


# -- the stages and their lines -------------------------------------------------------------------------------------------


@attrs.define
class Shares:
    """What becomes of the ENS's events, as `lossy.Loss`, but that it can be changed while they flow."""

    drop: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0


@attrs.define(eq=False)
class World:
    """Stages, the broker, and the two lines that fail."""

    folder: Path
    broker: NatsServer
    line: Proxy
    """from the home stage to the owner"""
    ens: LossyLine
    shares: Shares
    ports: dict[str, int]
    stages: dict[str, StageProcess]

    @classmethod
    async def open(cls, stack: AsyncExitStack) -> World:
        """Start everything."""
        folder = Path(stack.enter_context(TemporaryDirectory()))
        broker = stack.enter_context(NatsServer())
        shares, ports = Shares(), {name: free_port() for name in STAGES}
        line = await Proxy((HOST, ports["owner"])).__aenter__()
        ens = await stack.enter_async_context(LossyLine(broker.address, "nats", cast(Any, shares)))
        world = cls(folder, broker, line, ens, shares, ports, {})
        stack.push_async_callback(world.cut)
        for name in STAGES:
            world.stages[name] = stage = world._make(name)
            stack.callback(stage.kill)
            await asyncio.to_thread(stage.start)
        return world

    def _make(self, name: str) -> StageProcess:
        config = self.folder / f"{name}.toml"
        config.write_text("".join(self._section(reader=name, name=each) for each in STAGES))
        program = ("-c", NOTING, str(self.folder / "nacks")) if name == "owner" else OURS
        return StageProcess.of(config, name, self.ports[name], program=program)

    def _section(self, reader: str, name: str) -> str:
        port = self.line.port if (reader, name) == ("home", "owner") else self.ports[name]
        return stage_section(name, self.ports[name], topics=[f"{name}/**"], advertise=f"ops://{HOST}:{port}")

    def address(self, name: str) -> str:
        """Where a stage is."""
        return f"ops://{HOST}:{self.ports[name]}"

    def nacks(self, since: float) -> list[Nack]:
        """The nacks that have come to the owner."""
        file = self.folder / "nacks"
        rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(float(at) - since, STAGES[int(home)], int(asked)) for at, home, asked in rows if float(at) >= since]

    async def cut(self) -> None:
        """Break the connection from home to owner, and let no new one through."""
        await self.line.__aexit__()

    async def heal(self) -> None:
        """Let connections from home to owner through again."""
        self.line = await Proxy(self.line.target, port=self.line.port).__aenter__()

    async def fail(self, failure: str) -> Callable[[], Awaitable[None]]:
        """Break something; what is returned mends it."""
        if failure == "link":
            await self.cut()
            return self.heal
        return await self.crash(failure)

    async def crash(self, name: str) -> Callable[[], Awaitable[None]]:
        """Kill a stage; what is returned starts it again."""
        await asyncio.to_thread(self.stages[name].kill)
        return partial(asyncio.to_thread, self.stages[name].start)


# -- one failure ----------------------------------------------------------------------------------------------------------


@attrs.define
class Run:
    """What one failure did."""

    failure: str
    count: int
    """subscribers on the path"""
    path: list[Point]
    beside: list[Point]
    """off the path, with the same topics"""
    apart: list[Point]
    """off the path, with another owner's topics"""
    nacks: list[Nack]
    dropped: int
    faults: list[str]

    @property
    def off_path(self) -> list[Point]:
        """Whom this failure does not concern."""
        return self.apart if self.failure == "owner" else self.beside

    @property
    def worst_s(self) -> float:
        """The longest latency on the path."""
        return max(latency for _, latency in self.path)

    @property
    def again_s(self) -> float:
        """When the last event that came late on the path had come."""
        return max((sent + latency for sent, latency in self.path if latency > 2 * SLICE_S), default=0.0)


@attrs.define(eq=False)
class Crowd:
    """The clients of one failure, on topics that nobody has used before."""

    mine: list[str]
    """the topics of the path"""
    others: list[str]
    publisher: WorkerProcess
    subscribers: list[WorkerProcess]
    """those on the path, beside it, apart from it"""

    @classmethod
    async def come(cls, stack: AsyncExitStack, world: World, count: int, number: int) -> Crowd:
        """Subscribe, then begin to publish."""
        mine, others = ([f"{owner}/{number}/{n}" for n in range(TOPICS)] for owner in ("owner", "other"))
        at, ens, log = world.address, world.broker.url, world.folder / f"{number}"
        subscribers = []
        for name, home, topics, many, by in (
            ("path", "home", mine, count, f"nats://{world.ens.address}"),
            ("beside", "other", mine, 1, ens),
            ("apart", "other", others, 1, ens),
        ):
            plan = {"ens": by, "sequencer": [at(home)], "topics": topics, "count": many}
            subscribers.append(await _started(stack, name, subscribe, log.with_suffix(f".{name}"), **plan))
        publications = [([at("owner")], mine), ([at("other")], others)]
        publisher = await _started(
            stack, "publisher", publish, log.with_suffix(".publisher"), ens=ens, publications=publications
        )
        return cls(mine, others, publisher, subscribers)

    async def finish(self) -> tuple[dict[str, int], list[list[list[Any]]]]:
        """Publish no more; how many events each topic has, and what subscribers were notified of."""
        totals: dict[str, int] = (await asyncio.to_thread(self.publisher.ask, do="stop"))["totals"]
        for part in self.subscribers:
            part.tell(totals=totals)
        return totals, [(await asyncio.to_thread(part.hear, 3 * DRAIN_S))["rows"] for part in self.subscribers]


async def fail_once(world: World, failure: str, count: int, number: int) -> Run:
    """New clients, a calm time, the failure, and what follows from it."""
    async with AsyncExitStack() as stack:
        crowd = await Crowd.come(stack, world, count, number)
        await asyncio.sleep(CALM_S)
        dropped = world.ens.losses.dropped
        began = await _break_and_mend(world, failure)
        totals, (path, beside, apart) = await crowd.finish()
    return Run(
        failure,
        count,
        path=_points(path, began),
        beside=_points(beside, began),
        apart=_points(apart, began),
        nacks=world.nacks(began),
        dropped=world.ens.losses.dropped - dropped,
        faults=judge([*path, *beside], totals, crowd.mine) + judge(apart, totals, crowd.others),
    )


async def _break_and_mend(world: World, failure: str) -> float:
    """Let it fail, return when all is long over; say when it began."""
    began = time.monotonic()

    async def until(after_s: float) -> None:
        await asyncio.sleep(max(began + after_s - time.monotonic(), 0.0))

    world.shares.drop = 1.0
    await until(BREAK_AFTER_S)
    mend = await world.fail(failure)
    await until(OUTAGE_S)
    world.shares.drop = 0.0
    await until(MEND_AFTER_S)
    await mend()
    await until(WINDOW_S)
    return began


def _points(rows: Iterable[list[list[Any]]], began: float) -> list[Point]:
    return sorted((row[3] - began, row[4] - row[3]) for one in rows for row in one)


def judge(subscribers: Sequence[list[list[Any]]], totals: dict[str, int], topics: Sequence[str]) -> list[str]:
    """What is wrong with what subscribers of the same topics were notified of."""
    faults = []
    wanted = {(topic, number) for topic in topics for number in range(1, totals.get(topic, 0) + 1)}
    order = [(row[0], row[1]) for row in subscribers[0]]
    for at, rows in enumerate(subscribers):
        seen = [(row[0], row[1]) for row in rows]
        if len(seen) != len(set(seen)):
            faults.append(f"subscriber {at}: {len(seen) - len(set(seen))} events came twice")
        if set(seen) != wanted:
            faults.append(f"subscriber {at}: {len(wanted - set(seen))} of {len(wanted)} events did not come")
        if seen != order:
            faults.append(f"subscriber {at} was notified in another order than subscriber 0")
        if [row[2] for row in rows] != list(range(1, len(rows) + 1)):
            faults.append(f"subscriber {at}: its positions are not 1, 2, 3, …")
        for topic in topics:
            numbers = [number for name, number in seen if name == topic]
            if numbers != sorted(numbers):
                faults.append(f"subscriber {at}: the numbers of {topic} are not in order")
    return faults


# -- the figures ----------------------------------------------------------------------------------------------------------


def p99_s(points: Iterable[Point], first_s: float, last_s: float) -> float:
    """Of the latencies of what was published between two times."""
    found = sorted(latency for sent, latency in points if first_s <= sent < last_s)
    return found[len(found) * 99 // 100] if found else float("nan")


def calm_s(runs: Sequence[Run]) -> float:
    """The p99 off the path before anything failed."""
    return p99_s((point for run in runs for point in run.off_path), -CALM_S, 0.0)


def during_s(runs: Sequence[Run]) -> float:
    """The p99 off the path during the failure."""
    return p99_s((point for run in runs for point in run.off_path), 0.0, WINDOW_S)


def nacks(runs: Sequence[Run]) -> float:
    """Nacks that came to the owner, per failure."""
    return sum(len(run.nacks) for run in runs) / len(runs)


def numbers(runs: Sequence[Run]) -> float:
    """Numbers for which they asked, per failure: the paper's nack range."""
    return sum(asked for run in runs for _, _, asked in run.nacks) / len(runs)


def slices(points: Iterable[Point]) -> list[tuple[float, float, float]]:
    """For each 100 ms: when they begin, p50 and maximum of the latencies of what was published in them."""
    by_slice: dict[int, list[float]] = {}
    for sent, latency in points:
        by_slice.setdefault(int(sent // SLICE_S), []).append(latency)
    return [(at * SLICE_S, sorted(some)[len(some) // 2], max(some)) for at, some in sorted(by_slice.items())]


def grouped(runs: Sequence[Run]) -> dict[tuple[str, int], list[Run]]:
    """The repetitions of each failure with each number of subscribers."""
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.failure, run.count), []).append(run)
    return groups


def table(runs: Sequence[Run]) -> str:
    """The figures, as Markdown."""
    lines = [
        "| failure | on the path | worst latency, s | all in order after, s | nacks at the owner | numbers asked for "
        "| off the path: p99 before, ms | during, ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (failure, count), some in grouped(runs).items():
        worst = " ".join(f"{run.worst_s:.1f}" for run in some)
        again = " ".join(f"{run.again_s:.1f}" for run in some)
        sent = " ".join(f"{len(run.nacks)}" for run in some)
        asked = " ".join(f"{numbers([run]):.0f}" for run in some)
        off = f"{1_000 * calm_s(some):.1f} | {1_000 * during_s(some):.1f}"
        lines.append(f"| {failure} | {count} | {worst} | {again} | {sent} | {asked} | {off} |")
    return "\n".join(lines)


def write_down(runs: Sequence[Run], file: Path) -> None:
    """For each failure, 100 ms by 100 ms, what the figures show."""
    rows = [
        {
            "failure": run.failure,
            "subscribers": run.count,
            "path": slices(run.path),
            "off_path": slices(run.off_path),
            "nacks": run.nacks,
        }
        for run in runs
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows))


def plot(runs: Sequence[Run], file: Path) -> None:
    """One instance of each failure, as in figures 6 to 8: latency over the time of publication, nacks over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(FAILURES), figsize=(13, 6), sharex=True, squeeze=False)
    shown = {run.failure: run for run in runs if run.count == sorted({one.count for one in runs})[-1]}
    for (upper, lower), (failure, run) in zip(axes.T, shown.items(), strict=False):
        at, middle, most = zip(*slices(run.path), strict=True)
        upper.plot(at, middle, label=f"{run.count} on the path, p50 of 100 ms")
        upper.plot(at, most, linewidth=0.7, label="… and the latest")
        at, _, most = zip(*slices(run.off_path), strict=True)
        upper.plot(at, most, label="off the path, the latest")
        upper.set(title=f"{failure} fails", ylabel="latency, s")
        total = list(accumulate(asked for _, _, asked in run.nacks))
        lower.plot([at for at, _, _ in run.nacks], total, "o", markersize=3)
        lower.set(xlabel="s", ylabel="numbers asked for at the owner", ylim=(0, None))
        for one in (upper, lower):
            one.axvspan(BREAK_AFTER_S, MEND_AFTER_S, color="grey", alpha=0.2, label="the way to the log is broken")
            one.grid(alpha=0.3)
        upper.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


# -- all of it ------------------------------------------------------------------------------------------------------------


async def measure(failures: Sequence[str], subscribers: Sequence[int], repeats: int) -> list[Run]:
    """Each failure, with so many subscribers on the path, so often; everything is new for each number of subscribers."""
    runs = []
    for count in subscribers:
        async with AsyncExitStack() as stack:
            world = await World.open(stack)
            for number, failure in enumerate(one for one in failures for _ in range(repeats)):
                runs.append(run := await fail_once(world, failure, count, number))
                for fault in run.faults[:5]:
                    print(f"{failure}, {count} subscribers: {fault}", flush=True)
    return sorted(runs, key=lambda run: FAILURES.index(run.failure))


def run(
    failures: Sequence[str] = FAILURES, subscribers: Sequence[int] = SUBSCRIBERS, repeats: int = REPEATS
) -> list[Run]:
    """Measure, print the table, write down and draw what it comes from."""
    runs = asyncio.run(measure(failures, subscribers, repeats))
    print(table(runs), flush=True)
    folder = Path(__file__).parent
    write_down(runs, folder / "results" / "failures.json")
    try:
        plot(runs, folder / "failures.png")
    except ImportError:
        print("failures.png was not drawn: matplotlib is not installed (python -m pip install matplotlib)", flush=True)
    return runs


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--subscribers", default=",".join(map(str, SUBSCRIBERS)))
    parser.add_argument("--failures", default=",".join(FAILURES))
    given = parser.parse_args()
    run(given.failures.split(","), tuple(map(int, given.subscribers.split(","))), given.repeats)


if __name__ == "__main__":
    main()
