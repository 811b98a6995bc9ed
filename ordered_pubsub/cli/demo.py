"""`ordered-pubsub demo`: total order across topics, on this machine, with nothing else installed.

Several publishers publish on several topics of a `memory://` system whose ENS reorders. Two clients subscribe to all the
topics. What the ENS gives to each is seen by a tap on its adapter, what each is notified of by its subscription; everything
goes through the public API. Shown are both orders side by side; counted is in how many pairs of events they differ.

With `--ens` the same runs over a real broker, on topics of its own below `PREFIX`, with a stage in this process unless one is
named. A broker may well give both subscribers the same order; then it says so, and by how much that differs from the order in
which the events were numbered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import zip_longest
from random import Random
from typing import Any
from uuid import uuid4

import attrs

import ordered_pubsub
from ordered_pubsub.adapter import Adapter, Capabilities, Frame, FramesHandler, StateHandler, load_adapter, redacted
from ordered_pubsub.cli.clients import report_trouble
from ordered_pubsub.client.frames import read_arrivals
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.schema import Configuration, StageSection
from ordered_pubsub.connecting import Connecting
from ordered_pubsub.errors import UsageError
from ordered_pubsub.server.server import Server

SUBSCRIBERS = ("alice", "bob")
TOPICS = ("trades", "quotes", "orders", "news")
ROWS = 15
BURST_EVENTS_MAX = 8
PATIENCE_S = 30.0
"""A subscriber that has not been notified of everything so long after the last publication is counted as it stands."""
CELL = 18
"""The width of a column."""
PREFIX = "ordered-pubsub-demo"
"""Below it are the topics that are used on a real broker, which may have others."""

EPILOG = """\
examples:
  ordered-pubsub demo
  ordered-pubsub demo --topics 8 --publishers 5 --events 5000 --seed 42
  ordered-pubsub demo --json
  ordered-pubsub demo --ens mqtt://127.0.0.1:1883
  ordered-pubsub demo --ens 'nats://127.0.0.1:4222' --sequencer ops://127.0.0.1:7411

exit code: 0 if all subscribers were notified of the same events in the same order, 1 if not
"""


@attrs.frozen
class Plan:
    """What is to be shown."""

    seed: int
    topics: int
    publishers: int
    events: int
    ens: str | None = None
    """a real broker; None: an ENS of its own"""
    sequencer: tuple[str, ...] = ()
    """real stages; none: one in this process"""
    token_file: str | None = None
    prefix: str = ""
    """what its topics begin with"""

    @property
    def topic_names(self) -> list[str]:
        """The topics."""
        names = [*TOPICS[: self.topics], *(f"topic-{number}" for number in range(len(TOPICS) + 1, self.topics + 1))]
        return [self.prefix + name for name in names]

    @property
    def url(self) -> str:
        """The ENS: the broker that was named, or one of its own, which reorders."""
        return self.ens or f"memory://demo-{os.getpid()}?reorder=0.3&delay_s=0.002&seed={self.seed}"

    def connect(self, adapter: Adapter, name: str) -> Connecting:
        """A client. Names are for a system of its own: elsewhere, others may have them."""
        return ordered_pubsub.connect(
            adapter,
            sequencer=list(self.sequencer),
            name=name if self.ens is None else None,
            delivery="ordered",
            token_file=self.token_file,
        )


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
    def against_order(self) -> list[int]:
        """For each subscriber, the pairs of events that the ENS gave in another order than they were notified in."""
        return [count_disagreements(*orders) for orders in zip(self.given, self.notified, strict=True)]

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


class TappedAdapter(Adapter):
    """An adapter that shows what the ENS delivers, before the client has it."""

    def __init__(self, inner: Adapter, tap: Callable[[Frame], None]) -> None:
        super().__init__(inner.url)
        self._inner = inner
        self._tap = tap

    @property
    def capabilities(self) -> Capabilities:
        """Those of the ENS."""
        return self._inner.capabilities

    @property
    def frame_bytes_max(self) -> int | None:
        """What the ENS takes."""
        return self._inner.frame_bytes_max

    @property
    def local_system(self) -> str | None:
        """That of the ENS."""
        return self._inner.local_system

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Open, and listen."""

        async def tapped(frames: Sequence[Frame]) -> None:
            for frame in frames:
                self._tap(frame)
            await on_frames(frames)

        await self._inner.open(tapped, on_state)

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Hand frames over."""
        await self._inner.publish(frames)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Let the frames of these topics come."""
        await self._inner.subscribe(topics)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Let them come no more."""
        await self._inner.unsubscribe(topics)

    async def close(self) -> None:
        """Disconnect."""
        await self._inner.close()


async def run(plan: Plan) -> Result:
    """Publish, subscribe, and observe."""
    given: list[list[str]] = [[] for _ in SUBSCRIBERS]
    notified: list[list[str]] = [[] for _ in SUBSCRIBERS]
    labels: dict[str, str] = {}
    started_at = time.perf_counter()
    async with _stage_for(plan) as plan, AsyncExitStack() as clients:
        reading = []
        for name, tapped, order in zip(SUBSCRIBERS, given, notified, strict=True):
            adapter = TappedAdapter(load_adapter(plan.url), _tap_into(tapped))
            client = await clients.enter_async_context(plan.connect(adapter, name))
            subscription = await client.subscribe(*plan.topic_names)
            reading.append(asyncio.create_task(_read(subscription, plan.events, order)))
        await asyncio.gather(*(_publish(plan, number, labels) for number in range(plan.publishers)))
        _, unfinished = await asyncio.wait(reading, timeout=PATIENCE_S)
        for task in unfinished:
            task.cancel()
    return Result([list(dict.fromkeys(order)) for order in given], notified, labels, time.perf_counter() - started_at)


@asynccontextmanager
async def _stage_for(plan: Plan) -> AsyncIterator[Plan]:
    """The plan with the stage that it is carried out with."""
    if plan.ens is None or plan.sequencer:
        yield plan
        return
    section = StageSection(name="demo", listen="127.0.0.1:0", store="memory")
    server = Server(Configuration(stage=(section,)), 0, "")
    await server.open()
    try:
        yield attrs.evolve(plan, sequencer=(str(Address(section.address.host, server.port)),))
    finally:
        await server.close()


def _tap_into(order: list[str]) -> Callable[[Frame], None]:
    def tap(frame: Frame) -> None:
        order.extend(arrival.body.id for arrival in read_arrivals(frame))

    return tap


async def _read(subscription: ordered_pubsub.Subscription, count: int, notified: list[str]) -> None:
    async for event in subscription:
        notified.append(event.id)
        if len(notified) == count:
            return


async def _publish(plan: Plan, number: int, labels: dict[str, str]) -> None:
    """Publish this publisher's share, in bursts on topics drawn by lot."""
    random = Random(f"{plan.seed} {number}")
    topics = plan.topic_names
    share = plan.events // plan.publishers + (number < plan.events % plan.publishers)
    async with plan.connect(load_adapter(plan.url), f"publisher-{number + 1}") as client:
        while share:
            burst = min(share, random.randint(1, BURST_EVENTS_MAX))
            receipts = [client.publish_nowait(random.choice(topics), {"left": share - place}) for place in range(burst)]
            for receipt in await asyncio.gather(*receipts):
                labels[receipt.id] = f"{receipt.topic.removeprefix(plan.prefix)} {receipt.number}"
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
        "ens": redacted(plan.url),
        "seed": plan.seed,
        "topics": plan.topics,
        "publishers": plan.publishers,
        "events": len(result.labels),
        "subscribers": len(SUBSCRIBERS),
        "pairs": _pairs(result),
        "ens_disagreements": result.ens_disagreements,
        "ens_against_order": result.against_order,
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
        paint(_about_ens(plan), DIM),
        "",
        "      " + paint("given by the ENS".ljust(2 * CELL + 8), BOLD) + paint("notified by ordered-pubsub", BOLD),
        "      " + paint(names + " " * 8 + names.rstrip(), DIM),
        *_rows(result, paint),
        "",
        *_counts(result, paint, plan.ens is not None),
        *_remark(plan, result),
        "",
        f"took {result.duration_s:.2f} s",
    ]
    return "\n".join(lines)


def _about_ens(plan: Plan) -> str:
    if plan.ens is None:
        return f"an ENS that reorders: {plan.url.replace(f'-{os.getpid()}', '')}"
    stage = ", ".join(plan.sequencer) or "in this process"
    return f"the ENS: {redacted(plan.ens)}; the stage: {stage}"


def _remark(plan: Plan, result: Result) -> list[str]:
    """A broker that has shown no disorder between subscribers: what that means."""
    if plan.ens is None or result.ens_disagreements:
        return []
    kept = "and it was that of the numbers." if not any(result.against_order) else "but it was not that of the numbers."
    return [
        "",
        f"This time the ENS gave both subscribers the same order, {kept}",
        "It does not promise that: other runs (--seed, --publishers, --events) may differ.",
    ]


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


def _counts(result: Result, paint: Paint, is_broker: bool) -> list[str]:
    ens, ordered = result.ens_disagreements, result.ordered_disagreements
    rows = [
        ("events", len(result.labels), ()),
        ("subscribers", len(SUBSCRIBERS), ()),
        ("pairs of events", _pairs(result), ()),
        ("pairs that the ENS gave in different order", ens, (BOLD, RED) if ens else ()),
        ("pairs notified in different order", ordered, (BOLD, RED if ordered else GREEN)),
    ]
    if is_broker:
        against = zip(SUBSCRIBERS, result.against_order, strict=True)
        rows[4:4] = [(f"pairs given to {name} in another order than numbered", count, ()) for name, count in against]
    if result.missing:
        rows.append(("events missing or notified twice", result.missing, (BOLD, RED)))
    width = max(44, *(len(text) + 2 for text, _, _ in rows))
    return [f"{text:{width}}" + paint(f"{count:>12,}", *codes) for text, count, codes in rows]


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
    parser.add_argument("--ens", metavar="URL", help="a real broker instead, such as mqtt://127.0.0.1:1883")
    parser.add_argument(
        "--sequencer", metavar="ADDRESS", action="append", help="with --ens: a stage (default: one in this process)"
    )
    parser.add_argument("--token-file", metavar="FILE", help="with --sequencer: the token to show to the stage")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run it, print it, and say by the exit code whether it is as it should be."""
    plan = _plan(arguments)
    report_trouble("demo")
    result = asyncio.run(run(plan))
    if arguments.json:
        print(json.dumps(as_json(plan, result)))
    else:
        print(as_text(plan, result, Paint(sys.stdout.isatty() and not os.environ.get("NO_COLOR"))))
    return 0 if result.is_good else 1


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = Plan(arguments.seed, arguments.topics, arguments.publishers, arguments.events)
    if arguments.ens is None:
        if arguments.sequencer is not None:
            raise UsageError("--sequencer goes with --ens: the ENS of the demo itself embeds its stage")
        return plan
    sequencer = tuple(part.strip() for text in arguments.sequencer or () for part in text.split(","))
    return attrs.evolve(
        plan,
        ens=arguments.ens,
        sequencer=sequencer,
        token_file=arguments.token_file,
        prefix=f"{PREFIX}/{uuid4().hex[:8]}/",
    )


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
