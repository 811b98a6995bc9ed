"""Two systems on one broker and the same topics, while stages of both are killed: neither notices the other.

    python benchmarks/two_systems.py [--broker mqtt] [--events 50000] [--kills 6] [--seed 1]

Each system has two stages, a publisher and a subscriber; the names of publishers and topics are the same in both. Stages are
killed at random and started again on their stores. The exit code is 0 if each subscriber is notified of exactly what its own
system's publisher has published, in one order, and the other's messages were counted as not arrived.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import attrs
from forging import BROKERS, url_of

import ordered_pubsub
from ordered_pubsub.testing.stages import StageProcesses

EVENTS, KILLS, SEED = 50_000, 6, 1
TOPICS = ("shared/a", "shared/b")
BATCH = 250
PATIENCE_S = 900.0
DOWN_S = 0.5


@attrs.frozen
class Outcome:
    """What the subscriber of one system was notified of."""

    name: str
    events: int
    wrong: int
    foreign: int
    """messages of the other system that have not arrived"""
    other_causes: dict[str, int]


@attrs.define(eq=False)
class Deaths:
    """When the next stage is to be killed: as often as is asked for, at even distances in what all systems publish."""

    kills: int
    events: int
    """of all systems together"""
    due: asyncio.Queue[int] = attrs.field(factory=asyncio.Queue)
    _published: int = 0

    def published(self, count: int) -> None:
        """So many more were published."""
        before, self._published = self._published, self._published + count
        for kill in range(1, self.kills + 1):
            if before < kill * self.events // (self.kills + 1) <= self._published:
                self.due.put_nowait(kill)


async def _publish(name: str, url: str, stages: StageProcesses, events: int, deaths: Deaths) -> None:
    async with ordered_pubsub.connect(url, sequencer=stages.addresses, name="desk", timeout_s=PATIENCE_S) as client:
        for at in range(0, events, BATCH):
            topic = TOPICS[at // BATCH % 2]
            count = min(BATCH, events - at)
            await client.publish_many(topic, [f"{name} {at + number}" for number in range(count)])
            deaths.published(count)


async def _subscribe(name: str, url: str, stages: StageProcesses, events: int, ready: asyncio.Event) -> Outcome:
    async with ordered_pubsub.connect(url, sequencer=stages.addresses, timeout_s=PATIENCE_S) as client:
        subscription = await client.subscribe(*TOPICS)
        ready.set()
        wrong, numbers, seen = 0, Counter[str](), Counter[str]()
        for position in range(1, events + 1):
            event = await asyncio.wait_for(anext(subscription), PATIENCE_S)
            numbers[event.topic] += 1
            seen[event.data] += 1
            is_next = event.number == numbers[event.topic] and event.position == position
            wrong += not is_next or not event.data.startswith(name + " ") or event.publisher != "desk"
        wrong += sum(count != 1 for count in seen.values()) + abs(len(seen) - events)
        causes = dict(client.status()["not_arrived"])
        return Outcome(name, events, wrong, causes.pop("system", 0), causes)


async def _kill(systems: Sequence[StageProcesses], random: Random, deaths: Deaths) -> None:
    """Kill a stage each time that one is due."""
    for _ in range(deaths.kills):
        await deaths.due.get()
        stage = random.choice(random.choice(systems).processes)
        stage.kill()
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(stage.start)


async def run(kind: str, url: str, events: int, kills: int, seed: int, folder: Path) -> list[Outcome]:
    """Let both systems work on one broker."""
    systems = {name: StageProcesses(folder / name, [[TOPICS[0]], ["**"]]) for name in ("production", "staging")}
    try:
        for stages in systems.values():
            stages.start()
        ready = {name: asyncio.Event() for name in systems}
        deaths = Deaths(kills, events * len(systems))
        reading = [
            asyncio.create_task(_subscribe(name, url, stages, events, ready[name])) for name, stages in systems.items()
        ]
        for event in ready.values():
            await event.wait()
        killing = asyncio.create_task(_kill(list(systems.values()), Random(seed), deaths))
        await asyncio.gather(*(_publish(name, url, stages, events, deaths) for name, stages in systems.items()))
        outcomes = list(await asyncio.gather(*reading))
        await killing
        return outcomes
    finally:
        for stages in systems.values():
            stages.kill()


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, and print what each subscriber was notified of."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--broker", default="mqtt", choices=list(BROKERS))
    parser.add_argument("--events", type=int, default=EVENTS, help="of each system")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.ERROR)
    started = time.monotonic()
    with BROKERS[arguments.broker]() as broker, tempfile.TemporaryDirectory() as folder:
        url = url_of(arguments.broker, broker)
        outcomes = asyncio.run(
            run(arguments.broker, url, arguments.events, arguments.kills, arguments.seed, Path(folder))
        )
    print(
        f"{'system':<12} {'events':>7} {'wrong':>6} {'messages of the other that have not arrived':>44}  other causes"
    )
    for one in outcomes:
        print(f"{one.name:<12} {one.events:>7,} {one.wrong:>6} {one.foreign:>44,}  {one.other_causes or 'none'}")
    print(f"{arguments.kills} times a stage was killed; {time.monotonic() - started:.0f} s")
    return 0 if all(not one.wrong and one.foreign for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
