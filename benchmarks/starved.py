"""A broker that brings nothing: is everybody notified in time all the same, and does the client say so?

    python benchmarks/starved.py [--seconds 60]

Twice the same: somebody publishes an event every 0.05, 0.1, 0.5 and 1.9 s, on a topic each, and to a subscriber of each the
broker brings nothing, though it has agreed to the subscription:

- *rights*: a Mosquitto whose access rules let the subscribers read nothing; it says so to nobody.
- *two systems*: publishers and subscribers use one stage, and two different `memory://` systems.

What comes then comes from the stage's log. Each event has to be notified at most 2.5 s after it was published, whatever the
rate, and within 10 s `client.status()` has to name the broker and the topic. Prints a table; the exit code says whether all of
it holds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

import ordered_pubsub
from ordered_pubsub.testing.brokers import Mosquitto
from ordered_pubsub.testing.stages import StageProcesses

PERIODS_S = (0.05, 0.1, 0.5, 1.9)
LATE_MAX_S = 2.5
NAMED_WITHIN_S = 10.0
USERS = {"writer": "w", "reader": "r"}
RULES = """\
user writer
topic readwrite #

user reader
topic write #
"""


@attrs.define
class Found:
    """What became of one topic."""

    system: str
    period_s: float
    published: int = 0
    notified: int = 0
    late_s: list[float] = attrs.field(factory=list)
    named_after_s: float | None = None
    by_stage: int = 0

    @property
    def holds(self) -> bool:
        """Whether everything came, in time, and the broker was named."""
        is_named = self.named_after_s is not None and self.named_after_s <= NAMED_WITHIN_S
        return is_named and self.published == self.notified and max(self.late_s, default=0.0) <= LATE_MAX_S

    @property
    def row(self) -> tuple[str, ...]:
        """For the table."""
        named = "never" if self.named_after_s is None else f"{self.named_after_s:.1f}"
        late = sorted(self.late_s) or [0.0]
        return (
            self.system,
            f"{self.period_s:g}",
            f"{self.published}",
            f"{self.notified}",
            f"{late[len(late) // 2]:.2f}",
            f"{late[-1]:.2f}",
            named,
            f"{self.by_stage}",
            "holds" if self.holds else "FAILS",
        )


HEAD = ("system", "every s", "published", "notified", "late s: half", "most", "named after s", "by the stage", "")


@contextmanager
def rights(folder: Path) -> Iterator[tuple[str, str]]:
    """A broker that lets subscribers subscribe, and read nothing."""
    rules = folder / "rules"
    rules.write_text(RULES)
    rules.chmod(0o644)
    with Mosquitto(users=USERS, acl_file=str(rules)) as broker:
        host = broker.url.rpartition("@")[2].removeprefix("mqtt://")
        yield f"mqtt://writer:w@{host}", f"mqtt://reader:r@{host}"


@contextmanager
def two_systems(folder: Path) -> Iterator[tuple[str, str]]:
    """Two brokers that know nothing of each other."""
    yield "memory://one", "memory://another"


async def publish(client: ordered_pubsub.Client, topic: str, found: Found, seconds: float) -> None:
    """An event now and then, with the time at which it was published."""
    began_at = time.monotonic()
    while time.monotonic() < began_at + seconds:
        await client.publish(topic, time.monotonic())
        found.published += 1
        await asyncio.sleep(max(0.0, began_at + found.published * found.period_s - time.monotonic()))


async def read(subscription: ordered_pubsub.Subscription, found: Found) -> None:
    """Note how late each is."""
    async for event in subscription:
        found.late_s.append(time.monotonic() - event.data)
        found.notified += 1


async def look(client: ordered_pubsub.Client, topic: str, url: str, found: Found) -> None:
    """When the client says what is wrong."""
    began_at = time.monotonic()
    broker = url.rpartition("@")[2].removeprefix("memory://")
    while found.named_after_s is None:
        await asyncio.sleep(0.1)
        status = client.status()
        if topic in status["not_brought_by_ens"] and broker in status["waiting_for"]:
            found.named_after_s = time.monotonic() - began_at


async def try_one(urls: tuple[str, str], sequencer: str, found: Found, seconds: float) -> None:
    """One topic and its subscriber."""
    topic = f"every/{found.period_s:g}".replace(".", "-")
    async with (
        ordered_pubsub.connect(urls[0], sequencer=sequencer) as publisher,
        ordered_pubsub.connect(urls[1], sequencer=sequencer) as subscriber,
    ):
        subscription = await subscriber.subscribe(topic)
        reading = asyncio.create_task(read(subscription, found))
        looking = asyncio.create_task(look(subscriber, topic, urls[1], found))
        await publish(publisher, topic, found, seconds)
        give_up_at = time.monotonic() + 2 * LATE_MAX_S
        while found.notified < found.published and time.monotonic() < give_up_at:  # noqa: ASYNC110  # it is only counted
            await asyncio.sleep(0.05)
        found.by_stage = subscriber.status()["brought_by_stage"]
        looking.cancel()
        reading.cancel()
        await asyncio.gather(looking, reading, return_exceptions=True)


async def try_system(name: str, urls: tuple[str, str], sequencer: str, seconds: float) -> list[Found]:
    """All rates at once."""
    found = [Found(name, period_s) for period_s in PERIODS_S]
    await asyncio.gather(*(try_one(urls, sequencer, one, seconds) for one in found))
    return found


def run(seconds: float) -> list[Found]:
    """Both systems, one after the other."""
    found: list[Found] = []
    for name, system in (("rights", rights), ("two systems", two_systems)):
        with TemporaryDirectory() as folder, ExitStack() as stack:
            urls = stack.enter_context(system(Path(folder)))
            stages = StageProcesses(Path(folder), [["**"]], durability="os")
            stages.start()
            stack.callback(stages.kill)
            found += asyncio.run(try_system(name, urls, stages.addresses[0], seconds))
    return found


def main() -> int:
    """Run it, and print the table."""
    parser = argparse.ArgumentParser(description="How late a subscriber is to whom the broker brings nothing.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long is published (default: 60)")
    seconds = parser.parse_args().seconds
    logging.basicConfig(level=logging.ERROR)
    found = run(seconds)
    rows = [HEAD, *(one.row for one in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0 if all(one.holds for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
