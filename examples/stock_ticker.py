"""Two trading desks, in New York and in London, value every trade against the same quote. Over Mosquitto.

    python examples/stock_ticker.py
    python examples/stock_ticker.py --ens mqtt://new-york:1883 mqtt://london:1883

Four exchanges publish quotes and trades at the broker of their city, all at the same time. The brokers are bridged: a desk
gets everything from the broker of its city, and what comes from the other city comes a little later. A desk notes how far each
trade is from the last quote that it has seen, and buys or sells.

First without the order: what the brokers deliver, through the same adapter. Each broker has an order of its own, so the desks
value trades against different quotes. Then with the order, of which each city has a stage: the ledgers are the same, line by
line. The exit code is 0 if they are.

Without --ens (or ORDERED_PUBSUB_ENS) two Mosquittos are started, and bridged. With a single URL both cities are at one
broker: then nothing comes later, and the desks may well agree without the order, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from random import Random
from typing import Any

from surroundings import Publish, See, connect_without_order, patiently, run

import ordered_pubsub
from ordered_pubsub.errors import UnavailableError
from ordered_pubsub.testing.brokers import Mosquitto

NEW_YORK, LONDON = 0, 1
CITIES = ("New York", "London")
EXCHANGES = {"NYSE": NEW_YORK, "NASDAQ": NEW_YORK, "LSE": LONDON, "CHI-X": LONDON}
SYMBOLS = ("ACME", "GLOBEX", "INITECH")
TOPICS = [f"ticker/{symbol}/{kind}" for symbol in SYMBOLS for kind in ("quotes", "trades")]
OWNERS = [["ticker/ACME/*"], ["**"]]
"""New York's stage numbers what concerns ACME, London's stage the rest."""
TRADES_EACH = 100
TRADES = TRADES_EACH * len(EXCHANGES)
ROUNDS_MAX = 5

Connect = Callable[[AsyncExitStack, int, Sequence[str], See], Awaitable[Publish]]
"""Connects in a city, subscribes to topics, and returns what publishes."""


class Desk:
    """Keeps a ledger. It knows nothing of brokers."""

    def __init__(self) -> None:
        self.ledger: dict[str, int] = {}
        self.positions: Counter[str] = Counter()
        self.has_all = asyncio.Event()
        self._quotes: dict[str, int] = {}

    def see(self, topic: str, data: Any) -> None:
        """A quote or a trade has come."""
        _, symbol, kind = topic.split("/")
        if kind == "quotes":
            self._quotes[symbol] = data["price"]
            return
        self.ledger[data["id"]] = spread = data["price"] - self._quotes.get(symbol, 0)
        self.positions[symbol] += 1 if spread < 0 else -1  # buy what is cheap, sell what is not
        if len(self.ledger) == TRADES:
            self.has_all.set()


async def exchange(name: str, publish: Publish) -> None:
    """Publish quotes and trades of all symbols."""
    random = Random(name)
    for number in range(TRADES_EACH):
        symbol, price = random.choice(SYMBOLS), random.randint(90, 110)
        await publish(f"ticker/{symbol}/quotes", {"price": price})
        await publish(f"ticker/{symbol}/trades", {"id": f"{name} {number}", "price": price + random.randint(-3, 3)})


async def trade(connect: Connect) -> list[Desk]:
    """Let all exchanges publish at once, until the desks have seen everything."""
    desks = [Desk() for _ in CITIES]
    async with AsyncExitStack() as stack:
        for city, desk in enumerate(desks):
            await connect(stack, city, TOPICS, desk.see)
        publishers = [await connect(stack, city, (), print) for city in EXCHANGES.values()]
        await patiently(*map(exchange, EXCHANGES, publishers), *(desk.has_all.wait() for desk in desks))
    return desks


def report(kind: str, desks: Sequence[Desk]) -> int:
    """Print on how many trades the desks disagree, and return it."""
    one, two = (desk.ledger for desk in desks)
    differing = sum(one.get(trade) != two.get(trade) for trade in one.keys() | two.keys())
    print(f"{kind}: the desks disagree on {differing} of {TRADES} trades, and hold")
    for name, desk in zip(CITIES, desks, strict=True):
        print(f"    {name:8}", *(f"{symbol} {desk.positions[symbol]:+4d}" for symbol in SYMBOLS), sep="   ")
    return differing


async def show(brokers: list[str], stages: list[str]) -> bool:
    """Without the order, then with it; return whether it held."""
    brokers = [brokers[0], brokers[-1]]

    async def without_order(stack: AsyncExitStack, city: int, topics: Sequence[str], see: See) -> Publish:
        return (await connect_without_order(stack, brokers[city], topics, see)).publish

    async def with_order(stack: AsyncExitStack, city: int, topics: Sequence[str], see: See) -> Publish:
        client = await stack.enter_async_context(ordered_pubsub.connect(brokers[city], sequencer=stages[city]))
        if topics:
            await client.subscribe(*topics, notify=lambda event: see(event.topic, event.data))
        return client.publish

    await wait_for_bridge(brokers)
    for number in range(1, ROUNDS_MAX + 1):
        if report(f"without the order, round {number}", await trade(without_order)):
            break
    else:
        print("without the order, nothing went wrong this time: by luck, or because both cities have the same broker")
    desks = await trade(with_order)
    report("with the order", desks)
    one, two = (list(desk.ledger.items()) for desk in desks)
    print(f"the ledgers are the same, line by line: {one == two}")
    return one == two and len(one) == TRADES


# -- the bridge -----------------------------------------------------------------------------------------------------------


def start_bridged(stack: ExitStack) -> list[str]:
    """A broker in each city. The one in London fetches and brings what concerns both."""
    new_york = stack.enter_context(Mosquitto())
    address = f"127.0.0.1:{new_york.port}"
    bridged = Mosquitto(
        connection="new-york", address=address, topic="# both 1", bridge_protocol_version="mqttv50", restart_timeout=1
    )
    return [new_york.url, stack.enter_context(bridged).url]


async def wait_for_bridge(brokers: Sequence[str]) -> None:
    """Return when what is published in either city comes to the other."""
    came: set[str] = set()
    topics = [f"ticker/bridge/{city}" for city in CITIES]
    async with AsyncExitStack() as stack:
        senders = [
            await connect_without_order(stack, broker, [topic], lambda topic, _: came.add(topic))
            for broker, topic in zip(brokers, topics, strict=True)
        ]
        for _ in range(100):
            await asyncio.gather(
                *(send.publish(topic, None) for send, topic in zip(senders, reversed(topics), strict=True))
            )
            if came == set(topics):
                return
            await asyncio.sleep(0.05)
    raise UnavailableError(
        f"expected {' and '.join(brokers)} to be bridged, so that what is published at one comes to the other"
    )


if __name__ == "__main__":
    run(show, start_bridged, ("mqtt", "mqtts"), OWNERS)
