"""What the tests publish, and what an ordinary subscriber was notified of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import ordered_pubsub


async def _publish(sequencer: str, topics: Sequence[str], batches: int) -> list[ordered_pubsub.Event]:
    settings = {"sequencer": sequencer.split(",")}
    ens = f"memory://{uuid4().hex}"
    async with ordered_pubsub.connect(ens, **settings) as reader, ordered_pubsub.connect(ens, **settings) as market:
        subscription = await reader.subscribe(*topics, order="total")
        futures = []
        for number in range(batches):
            topic = topics[number % len(topics)]
            if number % 5:
                futures.append(market.publish_nowait(topic, {"n": number}, headers={"kind": "single"}))
            else:
                await asyncio.gather(*futures)
                await market.publish_many(topic, [{"n": number, "at": at} for at in range(7)])
        receipts = await asyncio.gather(*futures)
        count = sum(7 if number % 5 == 0 else 1 for number in range(batches))
        assert len({receipt.id for receipt in receipts}) == len(receipts)
        return [await asyncio.wait_for(subscription.__anext__(), 60) for _ in range(count)]


def publish(sequencer: str, topics: Sequence[str], batches: int) -> list[ordered_pubsub.Event]:
    """Events on some topics, alone and in batches; what one who holds them all was notified of."""
    return asyncio.run(_publish(sequencer, topics, batches))
