"""This library, used as its documentation says: a window of receipts, and iteration.

The window is the client's own pipeline (`pipeline_events_max`): as many publications as may be unfinished.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import ordered_pubsub
from ordered_pubsub.bench.sides import BenchReceiver, Sender, SidePlan
from ordered_pubsub.client.settings import Settings


async def _connect(plan: SidePlan) -> ordered_pubsub.Client:
    return await ordered_pubsub.connect(
        plan.ens, sequencer=plan.sequencer, config=plan.config, delivery=plan.delivery, **plan.settings
    )


class OrderedSender(Sender):
    """Publishes in the order."""

    def __init__(self, plan: SidePlan) -> None:
        super().__init__(plan)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._window = Settings(**plan.settings).pipeline_events_max

    async def open(self) -> None:
        """Connect."""
        self._client = await _connect(self.plan)

    async def rush(self, payload: bytes, count: int) -> None:
        """Publish with a window of receipts."""
        publish, waiting, topic = self._client.publish_nowait, self._waiting, self.topic
        window = self._window
        for number in range(count):
            if len(waiting) >= window:
                await waiting.popleft()
            waiting.append(publish(topic(number), payload))
        await self.settle()

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish one event."""
        self._waiting.append(self._client.publish_nowait(topic, payload))

    async def settle(self) -> None:
        """Wait for all receipts."""
        while self._waiting:
            await self._waiting.popleft()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


class OrderedReceiver(BenchReceiver):
    """Iterates over a subscription."""

    def __init__(self, plan: SidePlan, take: Callable[[bytes], None]) -> None:
        super().__init__(plan, take)
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and subscribe."""
        self._client = await _connect(self.plan)
        subscription = await self._client.subscribe(*self.plan.topics)
        self._reading = asyncio.create_task(self._read(subscription))

    async def _read(self, subscription: ordered_pubsub.Subscription) -> None:
        take = self.take
        async for event in subscription:
            take(event.data)

    async def close(self) -> None:
        """Disconnect; that ends the iteration."""
        await self._client.close()
        if self._reading is not None:
            await self._reading
