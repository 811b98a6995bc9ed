"""`python -m ordered_pubsub.testing.costs`: what each adapter carries in a second over a broker of our own, and how fast.

One process publishes and subscribes, by two adapters, so the figures are of what a client spends together with the broker
beside it. Frames are as a client's: 200 bytes, a stamp and a content type. Throughput is of `publish` calls of 100 frames on
8 topics side by side; latency of frames that are published one at a time, each after the last one has come.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import attrs

from ordered_pubsub.adapter import Adapter, Frame, load_adapter
from ordered_pubsub.testing.brokers import Mosquitto, NatsServer, RabbitMq

TOPICS = 8
CALL_FRAMES = 100
PAYLOAD_BYTES = 200
HEADERS = {"ordered-pubsub-stamp": os.urandom(80), "content-type": "application/octet-stream"}


@attrs.frozen
class Cost:
    """What was measured over one ENS."""

    frames_per_s: float
    median_s: float
    worst_s: float
    """99 of 100 frames take less"""


@attrs.define(eq=False)
class _Counter:
    """Counts what comes, and says when it is enough."""

    left: int = 0
    done: asyncio.Event = attrs.field(factory=asyncio.Event)

    def expect(self, count: int) -> None:
        self.left = count
        self.done.clear()

    async def take(self, frames: Sequence[Frame]) -> None:
        self.left -= len(frames)
        if self.left <= 0:
            self.done.set()


async def measure(make: Callable[[], Adapter], frames: int, singles: int) -> Cost:
    """Measure one ENS with so many frames in all, and so many one at a time."""
    counter, publisher, subscriber = _Counter(), make(), make()
    await publisher.open(_Counter().take, lambda is_connected, reason: None)
    try:
        await subscriber.open(counter.take, lambda is_connected, reason: None)
        topics = [f"costs/{number}" for number in range(TOPICS)]
        await subscriber.subscribe(topics)
        await _flood(publisher, counter, topics, frames // 4)  # once to get warm
        rate = await _flood(publisher, counter, topics, frames)
        delays = sorted([await _single(publisher, counter, topics[0]) for _ in range(singles)])
        return Cost(rate, delays[len(delays) // 2], delays[len(delays) * 99 // 100])
    finally:
        await subscriber.close()
        await publisher.close()


async def _flood(publisher: Adapter, counter: _Counter, topics: Sequence[str], frames: int) -> float:
    calls = max(frames // CALL_FRAMES // len(topics), 1)
    counter.expect(calls * CALL_FRAMES * len(topics))
    started = time.perf_counter()

    async def publish(topic: str) -> None:
        for _ in range(calls):
            await publisher.publish([Frame(topic, os.urandom(PAYLOAD_BYTES), HEADERS) for _ in range(CALL_FRAMES)])

    await asyncio.gather(*map(publish, topics))
    await counter.done.wait()
    return calls * CALL_FRAMES * len(topics) / (time.perf_counter() - started)


async def _single(publisher: Adapter, counter: _Counter, topic: str) -> float:
    counter.expect(1)
    started = time.perf_counter()
    await publisher.publish([Frame(topic, bytes(PAYLOAD_BYTES), HEADERS)])
    await counter.done.wait()
    return time.perf_counter() - started


def systems() -> Iterator[tuple[str, str]]:
    """What is measured, and its URL while it runs."""
    yield "memory", "memory://costs"
    with ExitStack() as stack:
        mosquitto = stack.enter_context(Mosquitto()).url
        nats = stack.enter_context(NatsServer(jetstream=True)).url
        yield from ((f"Mosquitto, QoS {qos}", f"{mosquitto}?qos={qos}") for qos in (0, 1, 2))
        yield from (("NATS, core", nats), ("NATS, JetStream", f"{nats}?jetstream=COSTS&create=true"))
        rabbitmq = stack.enter_context(RabbitMq()).url
        yield from (("RabbitMQ, durable", rabbitmq), ("RabbitMQ, in its memory", f"{rabbitmq}?durable=false"))


def main(argv: list[str] | None = None) -> None:
    """Print the table, line by line."""
    parser = argparse.ArgumentParser(prog="python -m ordered_pubsub.testing.costs", description=__doc__)
    parser.add_argument("--frames", type=int, default=40_000, help="of each ENS (default: 40,000)")
    parser.add_argument("--singles", type=int, default=500, help="one at a time (default: 500)")
    arguments = parser.parse_args(argv)
    print("| ENS | frames/s | median, µs | 99 %, µs |\n| --- | --- | --- | --- |")
    for name, url in systems():
        cost = asyncio.run(measure(lambda url=url: load_adapter(url), arguments.frames, arguments.singles))
        print(
            f"| {name} | {cost.frames_per_s:,.0f} | {cost.median_s * 1e6:,.0f} | {cost.worst_s * 1e6:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
