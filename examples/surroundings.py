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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from inspect import isawaitable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

from ordered_pubsub.adapter import Frame, load_adapter
from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.testing.trial.system import Stages

See = Callable[[str, Any], object]
"""A plain or async function that is given the topic and the data of what comes."""
Publish = Callable[[str, Any], Awaitable[object]]
StartBrokers = Callable[[ExitStack], list[str]]
"""Starts brokers of our own, which the stack stops, and returns their URLs."""
Show = Callable[[list[str], list[str]], Coroutine[Any, Any, bool]]
"""Is given the URLs of brokers and stages; returns whether the order held."""


class Connection(NamedTuple):
    """What the examples do with a broker, with the order or without."""

    publish: Publish
    add: Callable[[str], Awaitable[object]]
    """subscribes to one more topic"""


async def connect_without_order(
    stack: AsyncExitStack, url: str, topics: Sequence[str] = (), see: See | None = None
) -> Connection:
    """Connect and subscribe to topics, as an application that uses only the broker; by the adapter, so that it is the same
    broker with the same settings."""

    async def on_frames(frames: Sequence[Frame]) -> None:
        for frame in frames:
            outcome = None if see is None else see(frame.topic, json.loads(frame.payload))
            if isawaitable(outcome):
                await outcome

    adapter = load_adapter(url)
    await adapter.open(on_frames, lambda is_connected, reason: None)
    stack.push_async_callback(adapter.close)
    await adapter.subscribe(topics)
    return Connection(
        publish=lambda topic, data: adapter.publish([Frame(topic, json.dumps(data).encode())]),
        add=lambda topic: adapter.subscribe([topic]),
    )


def run(show: Show, start_brokers: StartBrokers, owners: Sequence[Sequence[str]] = (("**",),)) -> NoReturn:
    """Run an example over the brokers that are named, or private ones, with a stage for each list of topics.

    Ends with 0 if the order held, and with 1 if it did not, or if something could not be used.
    """
    parser = argparse.ArgumentParser(description="The beginning of this file says what it shows.")
    parser.add_argument("--ens", nargs="+", metavar="URL", help="brokers (default: ORDERED_PUBSUB_ENS, or private ones)")
    brokers = parser.parse_args().ens or os.environ.get("ORDERED_PUBSUB_ENS", "").split()
    try:
        with ExitStack() as stack:
            brokers = brokers or start_brokers(stack)
            stages = Stages(Path(stack.enter_context(TemporaryDirectory())), owners)
            stack.callback(stages.kill)
            stages.start()
            is_good = asyncio.run(show(brokers, stages.addresses))
    except OrderedPubSubError as error:
        sys.exit(f"{parser.prog}: {error}")
    sys.exit(0 if is_good else 1)
