"""What exactly-once costs beside best-effort, without failures: the paper's section 4.1 (Bhola and others, DSN 2002).

    python benchmarks/overhead.py [--seconds 10] [--subscriptions 1,10,50,100,200]

2,000 events a second of 250 bytes on 1,000 topics, over NATS core. Of the subscribers, which are in one process with a
connection each, everyone holds one topic, and so receives 2 events a second. Measured are the CPU time of the subscribers'
process and of the stage, and the latency from `publish` to the notification, once with topics that are kept (exactly-once) and
once with topics that are not, and best-effort subscriptions. Both run in turn, in one go. How long the disk takes to commit is
measured beside it: it is in the way of exactly-once once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import ordered_pubsub
from ordered_pubsub.testing.brokers import NatsServer
from ordered_pubsub.testing.processes import HOST, free_port

RATE = 2_000
TOPICS = 1_000
BYTES = 250
SUBSCRIPTIONS = (1, 10, 50, 100, 200)
LEVELS = ("best-effort", "exactly-once")


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- the two client processes ---------------------------------------------------------------------------------------------


async def subscribe(ens: str, sequencer: str, level: str, count: int) -> None:
    """The subscribers: say `ready`, and at the end what they have seen."""
    latencies: list[float] = []

    def note(event: ordered_pubsub.Event) -> None:
        latencies.append(time.monotonic() - float(event.raw[:20]))

    async with AsyncExitStack() as stack:
        for number in range(count):
            client = await stack.enter_async_context(ordered_pubsub.connect(ens, sequencer=sequencer, delivery=level))
            await client.subscribe(f"topic-{number}", notify=note)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        latencies.clear()
        used = time.process_time()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        used = time.process_time() - used
    latencies.sort()
    seen = {
        "cpu_s": used,
        "events": len(latencies),
        "p50_s": median(latencies),
        "p99_s": latencies[len(latencies) * 99 // 100],
    }
    print(json.dumps(seen), flush=True)


async def publish(ens: str, sequencer: str, level: str, seconds: float) -> None:
    """The publisher: 2,000 events a second, topic by topic."""
    least = "ordered" if level == "best-effort" else level
    async with ordered_pubsub.connect(ens, sequencer=sequencer, delivery=least) as client:
        print("ready", flush=True)
        begin = time.monotonic()
        for number in range(int(RATE * seconds)):
            ahead_s = begin + number / RATE - time.monotonic()
            if ahead_s > 0.001:
                await asyncio.sleep(ahead_s)
            payload = f"{time.monotonic():<20}".encode().ljust(BYTES, b".")
            client.publish_nowait(f"topic-{number % TOPICS}", payload)


# -- the measurement ------------------------------------------------------------------------------------------------------


def measure(level: str, count: int, seconds: float, folder: Path, broker: str) -> dict[str, float]:
    """One point: a fresh stage, so many subscriptions, so many seconds."""
    port = free_port()
    delivery = "ordered" if level == "best-effort" else level
    file = folder / f"{level}-{count}.toml"
    file.write_text(
        f'[[stage]]\nname = "main"\nlisten = "{HOST}:{port}"\nstore = "sqlite:{level}-{count}.db"\n'
        f'[[topic]]\npattern = "**"\ndelivery = "{delivery}"\n'
    )
    sequencer = f"ops://{HOST}:{port}"
    stage = subprocess.Popen(
        [sys.executable, "-m", "ordered_pubsub", "serve", "--config", str(file)], stdout=subprocess.PIPE, text=True
    )
    own = [sys.executable, __file__, "--ens", broker, "--sequencer", sequencer, "--level", level]
    try:
        assert stage.stdout is not None
        assert "ready" in stage.stdout.readline()
        readers = subprocess.Popen(
            [*own, "--subscribe", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert readers.stdout is not None
        assert readers.stdin is not None
        assert readers.stdout.readline() == "ready\n"
        writer = subprocess.Popen([*own, "--publish", str(seconds + 3)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(1.5)  # until all topics have been published on
        readers.stdin.write("begin\n")
        readers.stdin.flush()
        stage_s = cpu_s(stage.pid)
        time.sleep(seconds)
        stage_s = cpu_s(stage.pid) - stage_s
        readers.stdin.write("end\n")
        readers.stdin.flush()
        seen: dict[str, float] = json.loads(readers.stdout.readline())
        readers.wait()
        writer.wait()
    finally:
        stage.terminate()
        stage.wait()
    return {**seen, "stage_cpu_s": stage_s}


def commit_s(folder: Path) -> float:
    """How long this disk takes to commit a small transaction."""
    connection = sqlite3.connect(folder / "commits.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE t (data BLOB)")
    taken = []
    for _ in range(300):
        begin = time.perf_counter()
        connection.execute("INSERT INTO t VALUES (?)", (b"x" * 400,))
        taken.append(time.perf_counter() - begin)
    connection.close()
    return median(taken)


def table(points: list[tuple[int, dict[str, dict[str, float]]]], seconds: float, disk_s: float) -> str:
    """The figures, side by side."""
    lines = [
        "subscriptions  CPU of the subscribers, %     CPU of the stage, %           p50, ms                 p99, ms",
        "               best  exactly  overhead       best  exactly  overhead       best  exactly  more     best  exactly",
    ]
    for count, found in points:
        best, exactly = (found[level] for level in LEVELS)
        own = [100 * one["cpu_s"] / seconds for one in (best, exactly)]
        stage = [100 * one["stage_cpu_s"] / seconds for one in (best, exactly)]
        p50 = [1_000 * one["p50_s"] for one in (best, exactly)]
        p99 = [1_000 * one["p99_s"] for one in (best, exactly)]
        lines.append(
            f"{count:13}  {own[0]:4.1f}  {own[1]:7.1f}  {own[1] - own[0]:+8.1f}       {stage[0]:4.1f}  {stage[1]:7.1f}  "
            f"{stage[1] - stage[0]:+8.1f}      {p50[0]:5.2f}  {p50[1]:7.2f}  {p50[1] - p50[0]:+5.2f}    "
            f"{p99[0]:5.2f}  {p99[1]:7.2f}"
        )
    lines.append(f"a commit of this disk takes {1_000 * disk_s:.2f} ms (median)")
    return "\n".join(lines)


def run(
    seconds: float = 10.0, subscriptions: tuple[int, ...] = SUBSCRIPTIONS
) -> list[tuple[int, dict[str, dict[str, float]]]]:
    """Measure all points, print the table, and return them."""
    points = []
    with NatsServer() as broker, TemporaryDirectory() as name:
        folder = Path(name)
        for count in subscriptions:
            points.append((count, {level: measure(level, count, seconds, folder, broker.url) for level in LEVELS}))
        print(table(points, seconds, commit_s(folder)), flush=True)
    return points


def main() -> None:
    """Measure, or be one of the client processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--subscriptions", default=",".join(map(str, SUBSCRIPTIONS)))
    for option in ("--ens", "--sequencer", "--level"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("--subscribe", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--publish", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.subscribe:
        asyncio.run(subscribe(given.ens, given.sequencer, given.level, given.subscribe))
    elif given.publish:
        asyncio.run(publish(given.ens, given.sequencer, given.level, given.publish))
    else:
        run(given.seconds, tuple(map(int, given.subscriptions.split(","))))


if __name__ == "__main__":
    main()
