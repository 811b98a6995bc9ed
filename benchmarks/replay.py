"""Replay from the log at full speed, and what it does to others.

    python benchmarks/replay.py [--events 1000000]

So many events of 200 bytes are published while durable subscriptions are away. Then they go on by their names, one after the
other, and get all of them from the log: events a second, and the memory of the stage and of the client in the first time and
later. Meanwhile another subscriber holds another topic, on which 200 events a second are published: its latency without the
replay, with it, and beside a program that only computes, in the same run. The one who reads has a processor of its own, as it
has where it has a machine of its own; stage, broker and the other subscriber share another one all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import ordered_pubsub
from ordered_pubsub.errors import WouldBlock
from ordered_pubsub.testing.brokers import NatsServer
from ordered_pubsub.testing.processes import HOST, free_port

EVENTS = 1_000_000
BYTES = 200
LIVE_RATE = 200
CALM_S = 4.0
ROUNDS = 5
"""The log is replayed so often, each time to another subscription, with calm between: a p99 of a few seconds would rest on some
seven events, and on what else the machine did in them."""
PROCESSORS = sorted(os.sched_getaffinity(0))
READ_S = 600.0
"""How long the replay may take."""


def memory_mb(pid: int | str) -> float:
    """What a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


# -- the client processes ---------------------------------------------------------------------------------------------------


async def live(ens: str, sequencer: str) -> None:
    """Publish and be notified of 200 events a second; for each line of input, say the latencies since the line before."""
    latencies: list[float] = []

    def note(event: ordered_pubsub.Event) -> None:
        latencies.append(time.monotonic() - float(event.raw))

    async def go_on(client: ordered_pubsub.Client) -> None:
        begin, number = time.monotonic(), 0
        while True:
            number += 1
            await asyncio.sleep(max(begin + number / LIVE_RATE - time.monotonic(), 0.0))
            client.publish_nowait("live", f"{time.monotonic():<20}".encode())

    async with ordered_pubsub.connect(ens, sequencer=sequencer) as client:
        await client.subscribe("live", notify=note)
        going = asyncio.create_task(go_on(client))
        print("ready", flush=True)
        loop = asyncio.get_running_loop()
        while (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            seen, latencies = latencies, []
            print(json.dumps(seen), flush=True)
        going.cancel()


async def replay(ens: str, sequencer: str, events: int, stage_pid: int) -> None:
    """Be away, publish, and for each line of input come back under another name, read, and say the figures."""
    names = [f"replay-{turn}" for turn in range(ROUNDS)]
    async with ordered_pubsub.connect(ens, sequencer=sequencer, name="desk") as client:
        for name in names:
            await (await client.subscribe("past", name=name)).close()
    async with ordered_pubsub.connect(ens, sequencer=sequencer, batch_events_max=100, linger_s=0.002) as client:
        await _publish(client, events)
    print("published", flush=True)
    for name in names:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        async with ordered_pubsub.connect(ens, sequencer=sequencer, name="desk") as client:
            begin = time.monotonic()
            memory = await asyncio.wait_for(_read(await client.subscribe(name=name), events, stage_pid), READ_S)
            took = time.monotonic() - begin
        print(json.dumps({"took_s": took, **memory}), flush=True)


async def _read(subscription: ordered_pubsub.Subscription, events: int, stage_pid: int) -> dict[str, float]:
    """Read so many events; returns how much memory the stage and the client had at most."""
    count, stage, own = 0, [memory_mb(stage_pid)], [memory_mb("self")]
    async for batch in subscription.batches(5_000, 0.01):
        if [event.number for event in batch] != list(range(count + 1, count + len(batch) + 1)):
            raise AssertionError(f"out of order after {count}")
        count += len(batch)
        stage.append(memory_mb(stage_pid))
        own.append(memory_mb("self"))
        if count >= events:
            break
    return {"stage_mb": max(stage), "client_mb": max(own)}


async def _publish(client: ordered_pubsub.Client, events: int) -> None:
    payload = b"x" * BYTES
    receipt = None
    for number in range(events):
        while True:
            try:
                receipt = client.publish_nowait("past", payload)
                break
            except WouldBlock:
                await asyncio.sleep(0.001)
        if number % 500 == 0:
            await asyncio.sleep(0)
    assert receipt is not None
    await receipt


@contextmanager
def _processor(number: int) -> Iterator[None]:
    """What is started in this block gets along with one of the processors that there are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {PROCESSORS[number % len(PROCESSORS)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _started(command: list[str], cwd: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that can be spoken with, until the end of the block."""
    process = subprocess.Popen(command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.terminate()


def _ask(process: subprocess.Popen[str], line: str) -> str:
    """Say a line to a process, and return its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline()


# -- the measurement ----------------------------------------------------------------------------------------------------------


def run(events: int = EVENTS) -> dict[str, float]:
    """Measure and return the figures."""
    with TemporaryDirectory() as folder, ExitStack() as ends, _processor(0):
        broker = ends.enter_context(NatsServer())
        port = free_port()
        sequencer = f"ops://{HOST}:{port}"
        listen = ["--listen", f"{HOST}:{port}", "--log-level", "warning"]
        serve = [sys.executable, "-m", "ordered_pubsub", "serve", *listen]
        stage = ends.enter_context(_started(serve, cwd=folder))
        assert stage.stdout is not None
        assert "ready" in stage.stdout.readline()
        own = [sys.executable, __file__, "--ens", broker.url, "--sequencer", sequencer]
        beside = ends.enter_context(_started([*own, "--live"]))
        with _processor(1):
            reader = ends.enter_context(_started([*own, "--replay", str(events), "--pid", str(stage.pid)]))
        assert beside.stdout is not None
        assert beside.stdout.readline() == "ready\n"
        assert reader.stdout is not None
        assert reader.stdout.readline() == "published\n"
        _ask(beside, "forget")
        calm, busy, hog, rounds = [], [], [], []
        for _ in range(ROUNDS):
            time.sleep(CALM_S)
            calm += json.loads(_ask(beside, "say"))
            rounds.append(json.loads(_ask(reader, "go on")))
            busy += json.loads(_ask(beside, "say"))
            with _started([sys.executable, "-c", "while True: pass"]):
                time.sleep(CALM_S)
            hog += json.loads(_ask(beside, "say"))
    took = sum(found["took_s"] for found in rounds)
    most = {figure: max(found[figure] for found in rounds[1:]) for figure in ("stage_mb", "client_mb")}
    return {
        "events": ROUNDS * events,
        "took_s": took,
        "events_per_s": ROUNDS * events / took,
        "stage_mb_first": rounds[0]["stage_mb"],
        "client_mb_first": rounds[0]["client_mb"],
        **most,
        "calm_p99_s": _p99(calm),
        "busy_p99_s": _p99(busy),
        "busy_events": len(busy),
        "hog_p99_s": _p99(hog),
    }


def _p99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def table(found: dict[str, float]) -> str:
    """The figures."""
    return (
        f"replayed {ROUNDS} times, {found['events']:,.0f} events in {found['took_s']:.1f} s: {found['events_per_s']:,.0f} a "
        "second\n"
        f"memory, MB: stage {found['stage_mb_first']:.0f} at most in the first time, {found['stage_mb']:.0f} later; "
        f"client {found['client_mb_first']:.0f} and {found['client_mb']:.0f}\n"
        f"live p99 of another subscriber: {1_000 * found['calm_p99_s']:.2f} ms without, "
        f"{1_000 * found['busy_p99_s']:.2f} ms with the replay ({found['busy_p99_s'] / found['calm_p99_s']:.1f} times, "
        f"{found['busy_events']:.0f} events), {1_000 * found['hog_p99_s']:.2f} ms beside a program that only computes"
    )


def main() -> None:
    """Measure, or be one of the client processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--ens", help=argparse.SUPPRESS)
    parser.add_argument("--sequencer", help=argparse.SUPPRESS)
    parser.add_argument("--live", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--replay", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pid", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.live:
        asyncio.run(live(given.ens, given.sequencer))
    elif given.replay:
        asyncio.run(replay(given.ens, given.sequencer, given.replay, given.pid))
    else:
        print(table(run(given.events)))


if __name__ == "__main__":
    main()
