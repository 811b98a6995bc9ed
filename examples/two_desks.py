"""Two trading desks follow trades and quotes over a broker that reorders, and see the same market.

    python examples/two_desks.py

Each desk computes the spread at every trade from the last quote before it. That is only the same number at both desks if
both see each trade after the same quotes: an order across topics.
"""

import asyncio

import ordered_pubsub

ENS = "memory://market?reorder=0.5&delay_s=0.005&seed=3"
TRADES = 200


async def desk(subscription: ordered_pubsub.Subscription) -> list[int]:
    """For each trade, how far its price was from the last quote."""
    spreads: list[int] = []
    last_quote = 0
    async for event in subscription:
        if event.topic == "quotes":
            last_quote = event.data["price"]
        else:
            spreads.append(event.data["price"] - last_quote)
        if len(spreads) == TRADES:
            break
    return spreads


async def exchange(client: ordered_pubsub.Client) -> None:
    """Quotes and trades, published without waiting for each other."""
    receipts = []
    for number in range(TRADES):
        receipts.append(client.publish_nowait("quotes", {"price": 100 + number % 7}))
        receipts.append(client.publish_nowait("trades", {"price": 100 + number % 5}))
    await asyncio.gather(*receipts)


async def main() -> None:
    """Run both desks and the exchange, and compare."""
    async with (
        ordered_pubsub.connect(ENS) as first,
        ordered_pubsub.connect(ENS) as second,
        ordered_pubsub.connect(ENS) as third,
    ):
        subscriptions = [await client.subscribe("trades", "quotes") for client in (first, second)]
        await exchange(third)
        spreads = await asyncio.gather(*map(desk, subscriptions))
    print(f"{TRADES} trades; the desks agree on every spread: {spreads[0] == spreads[1]}")
    print("the first ten:", *spreads[0][:10])


if __name__ == "__main__":
    asyncio.run(main())
