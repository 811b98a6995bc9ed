"""Replay from the log at full speed, and what it does to others.

    python benchmarks/replay.py [--events 1000000]

So many events of 200 bytes are published while a durable subscription is away. Then it goes on by its name and gets all of them
from the log: events a second, and the memory of the stage and of the client on the way. Meanwhile another subscriber holds
another topic, on which 200 events a second are published: its latency with the replay and without, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import ordered_pubsub
from ordered_pubsub.errors import WouldBlock
from ordered_pubsub.testing.brokers import NatsServer
from ordered_pubsub.testing.processes import HOST, free_port

EVENTS = 1_000_000
BYTES = 200
LIVE_RATE = 200
CALM_S = 5.0
READ_S = 600.0
"""How long the replay may take."""


def memory_mb(pid: int | str) -> float:
    """What a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


# -- the client processes ---------------------------------------------------------------------------------------------------


async def live(ens: str, sequencer: str) -> None:
    """Publish and be notified of 200 events a second; for each line of input, say the latencies since the last."""
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
            seen, latencies = sorted(latencies), []
            print(
                json.dumps({"events": len(seen), "p50_s": seen[len(seen) // 2], "p99_s": seen[len(seen) * 99 // 100]}),
                flush=True,
            )
        going.cancel()


async def replay(ens: str, sequencer: str, events: int, stage_pid: int) -> dict[str, float]:
    """Be away, publish, come back, and read."""
    async with ordered_pubsub.connect(ens, sequencer=sequencer, name="desk") as client:
        await (await client.subscribe("past", name="replay")).close()
    async with ordered_pubsub.connect(ens, sequencer=sequencer, batch_events_max=100, linger_s=0.002) as client:
        await _publish(client, events)
    print("published", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    memory = [memory_mb(stage_pid)]
    own = [memory_mb("self")]

    async def read(subscription: ordered_pubsub.Subscription) -> None:
        count = 0
        async for batch in subscription.batches(5_000, 0.01):
            if [event.number for event in batch] != list(range(count + 1, count + len(batch) + 1)):
                raise AssertionError(f"out of order after {count}")
            count += len(batch)
            memory.append(memory_mb(stage_pid))
            own.append(memory_mb("self"))
            if count >= events:
                return

    async with ordered_pubsub.connect(ens, sequencer=sequencer, name="desk") as client:
        begin = time.monotonic()
        await asyncio.wait_for(read(await client.subscribe(name="replay")), READ_S)
        took = time.monotonic() - begin
    half = len(memory) // 2
    return {
        "events": events,
        "events_per_s": events / took,
        "took_s": took,
        "stage_mb_half": max(memory[:half]),
        "stage_mb": max(memory),
        "client_mb_half": max(own[:half]),
        "client_mb": max(own),
    }


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


def _ask(process: subprocess.Popen[str], line: str) -> str:
    """Say a line to a process, and return its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline()


# -- the measurement ----------------------------------------------------------------------------------------------------------


def run(events: int = EVENTS) -> dict[str, float]:
    """Measure, print the figures and return them."""
    with NatsServer() as broker, TemporaryDirectory() as folder:
        port = free_port()
        sequencer = f"ops://{HOST}:{port}"
        serve = [
            sys.executable,
            "-m",
            "ordered_pubsub",
            "serve",
            "--listen",
            f"{HOST}:{port}",
            "--log-level",
            "warning",
        ]
        stage = subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE, text=True)
        own = [sys.executable, __file__, "--ens", broker.url, "--sequencer", sequencer]
        try:
            assert stage.stdout is not None
            assert "ready" in stage.stdout.readline()
            beside = subprocess.Popen([*own, "--live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert beside.stdin is not None
            assert beside.stdout is not None
            assert beside.stdout.readline() == "ready\n"
            reading = [*own, "--replay", str(events), "--pid", str(stage.pid)]
            reader = subprocess.Popen(reading, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert reader.stdout is not None
            assert reader.stdout.readline() == "published\n"
            _ask(beside, "say")
            time.sleep(CALM_S)
            calm = json.loads(_ask(beside, "say"))
            found: dict[str, float] = json.loads(_ask(reader, "go on"))
            busy = json.loads(_ask(beside, "say"))
            reader.wait()
            beside.communicate("\n")
        finally:
            stage.terminate()
            stage.wait()
    return {**found, "calm_p99_s": calm["p99_s"], "busy_p99_s": busy["p99_s"], "busy_events": busy["events"]}


def table(found: dict[str, float]) -> str:
    """The figures."""
    return (
        f"replayed {found['events']:,.0f} events in {found['took_s']:.1f} s: {found['events_per_s']:,.0f} a second\n"
        f"memory, MB: stage {found['stage_mb_half']:.0f} at most in the first half, {found['stage_mb']:.0f} in all; "
        f"client {found['client_mb_half']:.0f} and {found['client_mb']:.0f}\n"
        f"live p99 of another subscriber: {1_000 * found['calm_p99_s']:.2f} ms without, "
        f"{1_000 * found['busy_p99_s']:.2f} ms with the replay ({found['busy_p99_s'] / found['calm_p99_s']:.1f} times, "
        f"{found['busy_events']:.0f} events)"
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
        print(json.dumps(asyncio.run(replay(given.ens, given.sequencer, given.replay, given.pid))), flush=True)
    else:
        print(table(run(given.events)))


if __name__ == "__main__":
    main()
