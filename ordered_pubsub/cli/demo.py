"""`ordered-pubsub demo`: total order across topics, on this machine, with nothing else installed.

Several publishers publish on several topics of a `memory://` system whose ENS reorders. Two clients subscribe to all the
topics. What the ENS gives to each is seen by a tap on its adapter, what each is notified of by its subscription; everything
goes through the public API. Shown are both orders side by side; counted is in how many pairs of events they differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from random import Random
from typing import Any

import attrs

import ordered_pubsub
from ordered_pubsub.adapter import Frame, FramesHandler, StateHandler
from ordered_pubsub.client.frames import read_stamp
from ordered_pubsub_adapters.memory import MemoryAdapter

SUBSCRIBERS = ("alice", "bob")
TOPICS = ("trades", "quotes", "orders", "news")
ROWS = 15
BURST_EVENTS_MAX = 8
PATIENCE_S = 30.0
"""A subscriber that has not been notified of everything so long after the last publication is counted as it stands."""
CELL = 18
"""The width of a column."""

EPILOG = """\
examples:
  ordered-pubsub demo
  ordered-pubsub demo --topics 8 --publishers 5 --events 5000 --seed 42
  ordered-pubsub demo --json

exit code: 0 if all subscribers were notified of the same events in the same order, 1 if not
"""


@attrs.frozen
class Plan:
    """What is to be shown."""

    seed: int
    topics: int
    publishers: int
    events: int

    @property
    def topic_names(self) -> list[str]:
        """The topics."""
        return [*TOPICS[: self.topics], *(f"topic-{number}" for number in range(len(TOPICS) + 1, self.topics + 1))]

    @property
    def url(self) -> str:
        """An ENS of its own, which reorders."""
        return f"memory://demo-{os.getpid()}?reorder=0.3&delay_s=0.002&seed={self.seed}"


@attrs.frozen
class Result:
    """What was observed: for each subscriber, the events in the order in which they came."""

    given: list[list[str]]
    """by the ENS"""
    notified: list[list[str]]
    """by its subscription"""
    labels: dict[str, str]
    """id of an event → how it is shown"""
    duration_s: float

    @property
    def ens_disagreements(self) -> int:
        """Pairs of events that the ENS gave in different order."""
        return count_disagreements(*self.given)

    @property
    def ordered_disagreements(self) -> int:
        """Pairs of events that were notified in different order."""
        return count_disagreements(*self.notified)

    @property
    def missing(self) -> int:
        """Events of which a subscriber was not notified, or was more than once."""
        return sum(len(set(self.labels) ^ set(events)) + len(events) - len(set(events)) for events in self.notified)

    @property
    def is_good(self) -> bool:
        """Whether everybody was notified of everything, in the same order."""
        return not self.ordered_disagreements and not self.missing


def count_disagreements(one: Sequence[str], two: Sequence[str]) -> int:
    """In how many pairs of those that both have, the first element of one order is the second of the other.

    Inversions are counted in O(n log n), by a tree of counts (Fenwick) over the places in the second order.
    """
    place = {event: number for number, event in enumerate(two, 1)}
    tree = [0] * (len(two) + 1)
    inversions = seen = 0
    for event in one:
        if event in place:
            inversions += seen - _count_up_to(tree, place[event])
            _add(tree, place[event])
            seen += 1
    return inversions


def _count_up_to(tree: list[int], place: int) -> int:
    count = 0
    while place:
        count += tree[place]
        place &= place - 1
    return count


def _add(tree: list[int], place: int) -> None:
    while place < len(tree):
        tree[place] += 1
        place += place & -place


# -- the run ----------------------------------------------------------------------------------------------------------


class TappedAdapter(MemoryAdapter):
    """A `memory://` adapter that shows what the ENS delivers, before the client has it."""

    def __init__(self, url: str, tap: Callable[[Frame], None]) -> None:
        super().__init__(url)
        self._tap = tap

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Open, and listen."""

        async def tapped(frames: Sequence[Frame]) -> None:
            for frame in frames:
                self._tap(frame)
            await on_frames(frames)

        await super().open(tapped, on_state)


async def run(plan: Plan) -> Result:
    """Publish, subscribe, and observe."""
    given: list[list[str]] = [[] for _ in SUBSCRIBERS]
    notified: list[list[str]] = [[] for _ in SUBSCRIBERS]
    labels: dict[str, str] = {}
    started_at = time.perf_counter()
    subscribed = [await _subscribe(plan, name, _tap_into(given[i], labels)) for i, name in enumerate(SUBSCRIBERS)]
    reading = [
        asyncio.create_task(_read(subscription, plan.events, order))
        for (_, subscription), order in zip(subscribed, notified, strict=True)
    ]
    await asyncio.gather(*(_publish(plan, number) for number in range(plan.publishers)))
    _, unfinished = await asyncio.wait(reading, timeout=PATIENCE_S)
    for task in unfinished:
        task.cancel()
    for client, _ in subscribed:
        await client.close()
    return Result([list(dict.fromkeys(order)) for order in given], notified, labels, time.perf_counter() - started_at)


def _tap_into(order: list[str], labels: dict[str, str]) -> Callable[[Frame], None]:
    def tap(frame: Frame) -> None:
        stamp = read_stamp(frame)
        if stamp is not None:
            order.append(stamp.id)
            labels.setdefault(stamp.id, f"{frame.topic} {stamp.number}")

    return tap


async def _subscribe(
    plan: Plan, name: str, tap: Callable[[Frame], None]
) -> tuple[ordered_pubsub.Client, ordered_pubsub.Subscription]:
    client = await ordered_pubsub.connect(TappedAdapter(plan.url, tap), name=name)
    return client, await client.subscribe(*plan.topic_names)


async def _read(subscription: ordered_pubsub.Subscription, count: int, notified: list[str]) -> None:
    async for event in subscription:
        notified.append(event.id)
        if len(notified) == count:
            return


async def _publish(plan: Plan, number: int) -> None:
    """Publish this publisher's share, in bursts on topics drawn by lot."""
    random = Random(f"{plan.seed} {number}")
    topics = plan.topic_names
    share = plan.events // plan.publishers + (number < plan.events % plan.publishers)
    async with ordered_pubsub.connect(plan.url, name=f"publisher-{number + 1}") as client:
        while share:
            burst = min(share, random.randint(1, BURST_EVENTS_MAX))
            receipts = [client.publish_nowait(random.choice(topics), {"left": share - place}) for place in range(burst)]
            await asyncio.gather(*receipts)
            share -= burst


# -- what is printed --------------------------------------------------------------------------------------------------


@attrs.frozen
class Paint:
    """Colours, if they are wanted."""

    is_on: bool

    def __call__(self, text: str, *codes: int) -> str:
        """The text in ANSI colours; what fills it up stays plain."""
        if not self.is_on:
            return text
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


BOLD, DIM, RED, GREEN = 1, 2, 31, 32


def as_json(plan: Plan, result: Result) -> dict[str, Any]:
    """The counts, for machines."""
    return {
        "seed": plan.seed,
        "topics": plan.topics,
        "publishers": plan.publishers,
        "events": len(result.labels),
        "subscribers": len(SUBSCRIBERS),
        "pairs": _pairs(result),
        "ens_disagreements": result.ens_disagreements,
        "ordered_disagreements": result.ordered_disagreements,
        "missing": result.missing,
        "duration_s": round(result.duration_s, 3),
    }


def _pairs(result: Result) -> int:
    return len(result.labels) * (len(result.labels) - 1) // 2


def as_text(plan: Plan, result: Result, paint: Paint) -> str:
    """Both orders side by side, and the counts, for people."""
    names = "".join(name.ljust(CELL) for name in SUBSCRIBERS)
    lines = [
        paint(
            f"{plan.topics} topics, {plan.publishers} publishers, {len(SUBSCRIBERS)} subscribers of all topics", BOLD
        ),
        paint(f"an ENS that reorders: {plan.url.replace(f'-{os.getpid()}', '')}", DIM),
        "",
        "      " + paint("given by the ENS".ljust(2 * CELL + 8), BOLD) + paint("notified by ordered-pubsub", BOLD),
        "      " + paint(names + " " * 8 + names.rstrip(), DIM),
        *_rows(result, paint),
        "",
        *_counts(result, paint),
    ]
    return "\n".join(lines)


def _rows(result: Result, paint: Paint) -> list[str]:
    rows = []
    for number, (given, notified) in enumerate(zip(_heads(result.given), _heads(result.notified), strict=False), 1):
        cells = _pair(given, result, paint) + "  " + _pair(notified, result, paint)
        rows.append(f"{number:4}  {cells}".rstrip())
    return rows


def _heads(orders: list[list[str]]) -> list[tuple[str | None, ...]]:
    return list(zip_longest(*(order[:ROWS] for order in orders)))


def _pair(events: tuple[str | None, ...], result: Result, paint: Paint) -> str:
    same = len(set(events)) == 1
    cells = "".join(_fit(result.labels.get(event or "", "-")) for event in events)
    return paint(cells + ("same  " if same else "differ"), GREEN if same else RED)


def _fit(text: str) -> str:
    return text[: CELL - 1].ljust(CELL)


def _counts(result: Result, paint: Paint) -> list[str]:
    ens, ordered = result.ens_disagreements, result.ordered_disagreements
    rows = [
        ("events", len(result.labels), ()),
        ("subscribers", len(SUBSCRIBERS), ()),
        ("pairs of events", _pairs(result), ()),
        ("pairs that the ENS gave in different order", ens, (BOLD, RED) if ens else ()),
        ("pairs notified in different order", ordered, (BOLD, RED if ordered else GREEN)),
    ]
    if result.missing:
        rows.append(("events missing or notified twice", result.missing, (BOLD, RED)))
    lines = [f"{text:44}" + paint(f"{count:>12,}", *codes) for text, count, codes in rows]
    return [*lines, "", f"took {result.duration_s:.2f} s"]


# -- the command ------------------------------------------------------------------------------------------------------


def add_command(commands: Any) -> None:
    """Add this command to the parser of the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="show total order across topics on this machine",
        description="Shows two subscribers of the same topics: what the ENS gives them, and what they are notified of.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=_whole(0, 2**63), default=7, metavar="N", help="draw another run (default: 7)")
    parser.add_argument("--topics", type=_whole(1, 100), default=4, metavar="N", help="how many topics (default: 4)")
    parser.add_argument(
        "--events", type=_whole(1, 100_000), default=1_000, metavar="N", help="how many events (default: 1000)"
    )
    parser.add_argument(
        "--publishers", type=_whole(1, 100), default=3, metavar="N", help="how many publishers (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for machines")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run it, print it, and say by the exit code whether it is as it should be."""
    plan = Plan(arguments.seed, arguments.topics, arguments.publishers, arguments.events)
    result = asyncio.run(run(plan))
    if arguments.json:
        print(json.dumps(as_json(plan, result)))
    else:
        print(as_text(plan, result, Paint(sys.stdout.isatty() and not os.environ.get("NO_COLOR"))))
    return 0 if result.is_good else 1


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} does not fit; expected a whole number from {least} to {most}")
        return value

    return read
