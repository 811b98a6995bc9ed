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
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ordered_pubsub
from ordered_pubsub.errors import WouldBlock
from ordered_pubsub.testing.brokers import NatsServer
from ordered_pubsub.testing.processes import Process, Starter, WorkerProcess, command_of, memory_bytes
from ordered_pubsub.testing.stages import StageProcesses

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


# -- the client processes ---------------------------------------------------------------------------------------------------


async def live(starter: Starter, ens: str, sequencer: str) -> None:
    """Publish and be notified of 200 events a second; whenever asked, say the latencies since the last time."""
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
        starter.tell(state="ready")
        while (await starter.hear())["do"] == "say":
            seen, latencies = latencies, []
            starter.tell(latencies=seen)
        going.cancel()


async def replay(starter: Starter, ens: str, sequencer: str, events: int, stage_pid: int) -> None:
    """Be away, publish, and whenever asked come back under another name, read, and say the figures."""
    names = [f"replay-{turn}" for turn in range(ROUNDS)]
    async with ordered_pubsub.connect(ens, sequencer=sequencer, name="desk") as client:
        for name in names:
            await (await client.subscribe("past", name=name)).close()
    async with ordered_pubsub.connect(ens, sequencer=sequencer, batch_events_max=100, linger_s=0.002) as client:
        await _publish(client, events)
    starter.tell(state="published")
    for name in names:
        await starter.hear()
        async with ordered_pubsub.connect(ens, sequencer=sequencer, name="desk") as client:
            begin = time.monotonic()
            memory = await asyncio.wait_for(_read(await client.subscribe(name=name), events, stage_pid), READ_S)
            took = time.monotonic() - begin
        starter.tell(took_s=took, **memory)


async def _read(subscription: ordered_pubsub.Subscription, events: int, stage_pid: int) -> dict[str, float]:
    """Read so many events; returns how much memory the stage and the client had at most."""
    count, stage, own = 0, [_mb(stage_pid)], [_mb("self")]
    async for batch in subscription.batches(5_000, 0.01):
        if [event.number for event in batch] != list(range(count + 1, count + len(batch) + 1)):
            raise AssertionError(f"out of order after {count}")
        count += len(batch)
        stage.append(_mb(stage_pid))
        own.append(_mb("self"))
        if count >= events:
            break
    return {"stage_mb": max(stage), "client_mb": max(own)}


def _mb(pid: int | str) -> float:
    return memory_bytes(pid) / 1e6


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


# -- the measurement ----------------------------------------------------------------------------------------------------------


def run(events: int = EVENTS) -> dict[str, float]:
    """Measure and return the figures."""
    with TemporaryDirectory() as folder, ExitStack() as ends, _processor(0):
        broker = ends.enter_context(NatsServer())
        stages = StageProcesses(Path(folder), [["**"]])
        ends.callback(stages.kill)
        stages.start()
        plan: dict[str, Any] = {"ens": broker.url, "sequencer": stages.addresses[0]}
        beside = WorkerProcess("live", command_of(live), Path(folder) / "live", plan=plan)
        ends.callback(beside.kill)
        beside.begin()
        plan |= {"events": events, "stage_pid": stages.processes[0].pid}
        reader = WorkerProcess("replay", command_of(replay), Path(folder) / "replay", plan=plan)
        ends.callback(reader.kill)
        with _processor(1):
            reader.begin()
        computing = Process("computing", [sys.executable, "-c", "while True: pass"], Path(folder) / "computing")
        ends.callback(computing.kill)
        beside.hear()
        reader.hear(READ_S)
        beside.ask(do="say")
        calm, busy, hog, rounds = [], [], [], []
        for _ in range(ROUNDS):
            time.sleep(CALM_S)
            calm += beside.ask(do="say")["latencies"]
            reader.tell(do="read")
            rounds.append(reader.hear(READ_S))
            busy += beside.ask(do="say")["latencies"]
            computing.begin()
            time.sleep(CALM_S)
            computing.kill()
            hog += beside.ask(do="say")["latencies"]
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
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS)
    print(table(run(parser.parse_args().events)))


if __name__ == "__main__":
    main()
