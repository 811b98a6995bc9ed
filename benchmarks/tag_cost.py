"""What tags cost: the rate of one publisher and one subscriber with tags and without, taking turns in one run.

    python benchmarks/tag_cost.py [--broker mqtt] [--events 20000] [--rounds 11] [--bytes 100]

Two stages run side by side, one with `tags = false`; each round publishes so many events through either, unpacked and packed,
until the subscriber has them all. Which of the two begins changes from round to round. The figure is the median over the
rounds of the ratio within a round, so that a slow moment of the machine meets both. Beside it is the CPU time of all three
processes (publisher and subscriber share one) for an event, which says the same with less noise. The exit code is 1 if a rate is
below `--least` times that without tags; `--least-unpacked` is the same for events that travel by themselves, each of which has
four hashes of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import attrs
from forging import BROKERS, url_of

import ordered_pubsub
from ordered_pubsub.testing.processes import cpu_ns
from ordered_pubsub.testing.stages import StageProcesses

EVENTS, ROUNDS, BYTES = 20_000, 11, 100
AIM = 0.97
MODES = {"unpacked": {}, "packed": {"batch_events_max": 100, "linger_s": 0.002}}
TOPIC = "cost/{}"
PATIENCE_S = 300.0


@attrs.frozen
class Measured:
    """One run of one side."""

    rate: float
    cpu_us: float
    """of one event, in the clients' process and the stage"""


@attrs.define
class Side:
    """A system, with tags or without, and its two clients."""

    stages: StageProcesses
    publisher: Any
    subscription: Any
    topic: str

    async def measure(self, events: int, payload: bytes) -> Measured:
        """Publish so many events, and wait until all were notified."""
        pid = self.stages.processes[0].pid
        cpu, clients_s, started = cpu_ns(pid), time.process_time(), time.perf_counter()

        async def take() -> None:
            for _ in range(events):
                await anext(self.subscription)

        taking = asyncio.create_task(take())
        await self.publisher.publish_many(self.topic, [payload] * events)
        await asyncio.wait_for(taking, PATIENCE_S)
        took_s = time.perf_counter() - started
        spent_s = ((cpu_ns(pid) or 0) - (cpu or 0)) / 1e9 + time.process_time() - clients_s
        return Measured(events / took_s, spent_s / events * 1e6)


async def _enter(stack: AsyncExitStack, url: str, stages: StageProcesses, mode: str, name: str) -> Side:
    publisher = await stack.enter_async_context(
        ordered_pubsub.connect(url, sequencer=stages.addresses, **MODES[mode])  # type: ignore[arg-type]
    )
    client = await stack.enter_async_context(ordered_pubsub.connect(url, sequencer=stages.addresses))
    topic = TOPIC.format(name)
    return Side(stages, publisher, await client.subscribe(topic), topic)


async def compare(url: str, folder: Path, mode: str, events: int, rounds: int, size: int) -> dict[str, list[Measured]]:
    """Measure both, in turns."""
    found: dict[str, list[Measured]] = {"tags": [], "none": []}
    systems = {
        name: StageProcesses(folder / f"{mode}-{name}", [["**"]], "os", f"[security]\ntags = {flag}\n")
        for name, flag in (("tags", "true"), ("none", "false"))
    }
    try:
        async with AsyncExitStack() as stack:
            sides: dict[str, Side] = {}
            for name, stages in systems.items():
                stages.start()
                sides[name] = await _enter(stack, url, stages, mode, f"{mode}/{name}")
            for side in sides.values():
                await side.measure(events // 4, b"x" * size)  # warm
            for index in range(rounds):
                order = list(sides) if index % 2 else list(sides)[::-1]
                for name in order:
                    found[name].append(await sides[name].measure(events, b"x" * size))
    finally:
        for stages in systems.values():
            stages.kill()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--broker", default="mqtt", choices=list(BROKERS))
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--bytes", type=int, default=BYTES)
    parser.add_argument(
        "--least", type=float, default=AIM, help="the least ratio of rates (default: the aim, %(default)s)"
    )
    parser.add_argument("--least-unpacked", type=float, help="the same, unpacked (default: the same)")
    arguments = parser.parse_args(argv)
    least = {"packed": arguments.least, "unpacked": arguments.least_unpacked or arguments.least}
    logging.basicConfig(level=logging.ERROR)
    print(
        f"{'':<10} {'tags/s':>9} {'without/s':>10} {'ratio':>6} {'CPU us':>7} {'without':>8} {'ratio':>6}   aim {AIM}"
    )
    too_slow = False
    with BROKERS[arguments.broker]() as broker, tempfile.TemporaryDirectory() as folder:
        for mode in MODES:
            events = arguments.events * (5 if mode == "packed" else 1)
            found = asyncio.run(
                compare(url_of(arguments.broker, broker), Path(folder), mode, events, arguments.rounds, arguments.bytes)
            )
            tags, none = found["tags"], found["none"]
            rate = median(one.rate / other.rate for one, other in zip(tags, none, strict=True))
            cpu = median(other.cpu_us / one.cpu_us for one, other in zip(tags, none, strict=True))
            print(
                f"{mode:<10} {median(one.rate for one in tags):>9,.0f} {median(one.rate for one in none):>10,.0f} {rate:>6.3f} "
                f"{median(one.cpu_us for one in tags):>7.1f} {median(one.cpu_us for one in none):>8.1f} {cpu:>6.3f}   "
                f"{'met' if rate >= AIM else 'MISSED'}",
                flush=True,
            )
            too_slow |= rate < least[mode]
    return 1 if too_slow else 0


if __name__ == "__main__":
    sys.exit(main())
