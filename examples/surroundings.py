"""What the examples have around them: brokers, stages, and the same brokers without the order.

A real application has none of this. Its broker runs already, a stage is started once with `ordered-pubsub serve`, and both are
named in its configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from bisect import bisect, insort
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import AsyncExitStack, ExitStack
from inspect import isawaitable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

from ordered_pubsub.adapter import Frame, load_adapter, redacted
from ordered_pubsub.errors import OrderedPubSubError, UnavailableError
from ordered_pubsub.testing.stages import StageProcesses

PATIENCE_S = 30.0

See = Callable[[str, Any], object]
"""A plain or async function that is given the topic and the data of what comes."""
Publish = Callable[[str, Any], Awaitable[object]]
"""Publishes, also if nobody awaits what it returns."""
StartBrokers = Callable[[ExitStack], list[str]]
"""Starts brokers of our own, which the stack stops, and returns their URLs."""
Show = Callable[[list[str], list[str]], Coroutine[Any, Any, bool]]
"""Is given the URLs of brokers and stages; returns whether the order held."""


class Connection(NamedTuple):
    """What an example does with a broker, with the order or without."""

    publish: Publish
    add: Callable[[str], Awaitable[object]]
    """subscribes to one more topic"""


async def connect_without_order(
    stack: AsyncExitStack, url: str, topics: Sequence[str] = (), see: See | None = None
) -> Connection:
    """Connect and subscribe as an application that has the broker only; by the same adapter, with the same settings."""
    sending: set[asyncio.Future[None]] = set()

    async def on_frames(frames: Sequence[Frame]) -> None:
        for frame in frames:
            outcome = None if see is None else see(frame.topic, json.loads(frame.payload))
            if isawaitable(outcome):
                await outcome

    def publish(topic: str, data: Any) -> asyncio.Future[None]:
        future = asyncio.ensure_future(adapter.publish([Frame(topic, json.dumps(data).encode())]))
        sending.add(future)
        future.add_done_callback(sending.discard)
        return future

    async def close() -> None:
        await asyncio.gather(*sending)
        await adapter.close()

    adapter = load_adapter(url)
    await adapter.open(on_frames, lambda is_connected, reason: None)
    stack.push_async_callback(close)
    await adapter.subscribe(topics)
    return Connection(publish, lambda topic: adapter.subscribe([topic]))


def count_differing_pairs(one: Sequence[Hashable], two: Sequence[Hashable]) -> int:
    """How many pairs of what is in both are in different order."""
    places = {item: place for place, item in enumerate(two)}
    count, before = 0, list[int]()
    for place in (places[item] for item in one if item in places):
        count += len(before) - bisect(before, place)
        insort(before, place)
    return count


async def patiently(*work: Awaitable[object]) -> None:
    """Do all of this at once, and not for ever."""
    try:
        await asyncio.wait_for(asyncio.gather(*work), PATIENCE_S)
    except asyncio.TimeoutError:
        raise UnavailableError(
            f"expected everything to be published and to arrive within {PATIENCE_S:g} s; it was not"
        ) from None


def describe_other(url: str, schemes: Sequence[str], source: str) -> str:
    """What to say of a URL that an example has no use for; it may be left in the environment from something else."""
    return (
        f"{source}: expected the URL of a broker that this example is about ({schemes[0]}://host:port), and it is "
        f"{redacted(url)!r}; {'name' if source == '--ens' else 'unset ORDERED_PUBSUB_ENS, or name with --ens'} another one, "
        "or none: then one is started"
    )


def run(
    show: Show, start_brokers: StartBrokers, schemes: Sequence[str], owners: Sequence[Sequence[str]] = (("**",),)
) -> NoReturn:
    """Run an example over the brokers that are named, or private ones, with a stage for each list of topics.

    Ends with 0 if the order held, with 1 if it did not, or if something could not be used, and with 2 for the URL of a broker
    that the example is not about.
    """
    parser = argparse.ArgumentParser(description="The beginning of this file says what it shows.")
    parser.add_argument(
        "--ens", nargs="+", metavar="URL", help="brokers (default: ORDERED_PUBSUB_ENS, or private ones)"
    )
    named = parser.parse_args().ens
    brokers = named or os.environ.get("ORDERED_PUBSUB_ENS", "").split()
    for url in brokers:
        if url.partition("://")[0].lower() not in schemes:
            parser.error(describe_other(url, schemes, "--ens" if named else "ORDERED_PUBSUB_ENS"))
    try:
        with ExitStack() as stack:
            brokers = brokers or start_brokers(stack)
            stages = StageProcesses(Path(stack.enter_context(TemporaryDirectory())), owners)
            stack.callback(stages.kill)
            stages.start()
            has_held = asyncio.run(show(brokers, stages.addresses))
    except OrderedPubSubError as error:
        sys.exit(f"{parser.prog}: {error}")
    sys.exit(0 if has_held else 1)
