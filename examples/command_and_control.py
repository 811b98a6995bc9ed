"""Units fire or hold their fire, and each decides as headquarters do at the same place in the order. Over RabbitMQ.

    python examples/command_and_control.py
    python examples/command_and_control.py --ens amqp://guest:guest@127.0.0.1:5672

Officers say "cease fire" and "open fire" on one topic, while controllers name targets on a topic for each group of units. A
unit fires at a target if the last rule that it heard was "open fire", and reports. Headquarters hold all topics, and decide by
the same rule: they believe to know what each unit does. Meanwhile a unit is told to join the other group.

First without the order: what RabbitMQ delivers, through the same adapter. It puts each message into each queue by itself, so
units hear rules and targets in different order, and some fire where headquarters believe that they hold. Then with the order:
all decide the same, and the unit that joins the group misses nothing from then on. The exit code is 0 if that is so.

Without --ens (or ORDERED_PUBSUB_ENS) a RabbitMQ node is started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import repeat
from typing import Any

from surroundings import Connection, Publish, See, connect_without_order, patiently, run

import ordered_pubsub
from ordered_pubsub.testing.brokers import RabbitMq

RULES, ALPHA, BRAVO, REPORTS = (f"command/{name}" for name in ("rules", "alpha", "bravo", "reports"))
UNITS = {"unit 1": ALPHA, "unit 2": ALPHA, "unit 3": ALPHA, "unit 4": BRAVO, "unit 5": BRAVO, "unit 6": BRAVO}
JOINS = "unit 1"
"""joins bravo, and stays in alpha"""
OFFICERS = 4
CONTROLLERS = {"Ash": ALPHA, "Birch": ALPHA, "Cedar": ALPHA, "Elm": BRAVO, "Fir": BRAVO, "Oak": BRAVO}
SALVOS, SALVO = 6, 10
"""how often somebody publishes, and how much at once"""
TARGETS = len(CONTROLLERS) * SALVOS * SALVO
ROUNDS_MAX = 20

Connect = Callable[[AsyncExitStack, Sequence[str], See | None], Awaitable[Connection]]


class Unit:
    """Fires at targets, or holds."""

    connection: Connection

    def __init__(self, name: str) -> None:
        self.name = name
        self.may_fire = False

    async def see(self, topic: str, data: Any) -> None:
        """A rule, a target or an order has come."""
        if "rule" in data:
            self.may_fire = data["rule"] == "open fire"
        elif "target" in data:
            self.report(target=data["target"], has_fired=self.may_fire)
        elif data.get("join") == self.name:
            await self.connection.add(BRAVO)
            self.report(state="joined")
        elif "stand down" in data:
            self.report(state="done")

    def report(self, **what: Any) -> None:
        """Tell headquarters."""
        self.connection.publish(REPORTS, {"unit": self.name, **what})


class Headquarters:
    """Follow everything, and decide by themselves what is to be reported."""

    connection: Connection

    def __init__(self) -> None:
        self.may_fire = False
        self.decisions: dict[str, dict[str, bool]] = {ALPHA: {}, BRAVO: {}}
        self.reports: dict[str, dict[str, bool]] = {unit: {} for unit in UNITS}
        self.joined, self.done = asyncio.Event(), asyncio.Event()
        self._still_there = set(UNITS)

    def see(self, topic: str, data: Any) -> None:
        """Anything has come."""
        if topic == REPORTS:
            self.hear(**data)
        elif "rule" in data:
            self.may_fire = data["rule"] == "open fire"
        elif "target" in data:
            self.decisions[topic][data["target"]] = self.may_fire
            if sum(map(len, self.decisions.values())) == TARGETS:
                self.connection.publish(RULES, {"stand down": True})

    def hear(self, unit: str, target: str = "", has_fired: bool = False, state: str = "") -> None:
        """A unit has reported."""
        if target:
            self.reports[unit][target] = has_fired
        elif state == "joined":
            self.joined.set()
        else:
            self._still_there.discard(unit)
            if not self._still_there:
                self.done.set()

    def judge(self, kind: str) -> bool:
        """Print how many decisions are other ones, and how many are missing; return whether any are."""
        differing = missed = 0
        for unit, reported in self.reports.items():
            for group, decisions in self.decisions.items():
                held = [target in reported for target in decisions]
                since = 0 if group == UNITS[unit] else held.index(True) if any(held) else TARGETS
                missed += held[since:].count(False)
                differing += sum(reported.get(target, fires) != fires for target, fires in decisions.items())
        total = sum(map(len, self.reports.values()))
        print(f"{kind}: {differing} of {total:,} decisions are not those of headquarters, {missed} are missing")
        return bool(differing or missed)


async def officer(number: int, publish: Publish) -> None:
    """Give rules, and once the order to join."""
    for salvo in range(SALVOS):
        if number == salvo == 0:
            await publish(RULES, {"join": JOINS})
        rules = ["open fire", "cease fire"] * (SALVO // 2)
        await asyncio.gather(*(publish(RULES, {"rule": rule}) for rule in rules))


async def controller(name: str, joined: asyncio.Event, publish: Publish) -> None:
    """Name targets to a group; the last ones when it is known that the unit has joined."""
    for salvo in range(1, SALVOS + 1):
        if salvo == SALVOS:
            await joined.wait()
        targets = [f"{name} {salvo}.{number}" for number in range(SALVO)]
        await asyncio.gather(*(publish(CONTROLLERS[name], {"target": target}) for target in targets))


async def exercise(connect: Connect) -> Headquarters:
    """Let everybody act at once, until all units are done."""
    headquarters = Headquarters()
    async with AsyncExitStack() as stack:
        headquarters.connection = await connect(stack, (RULES, ALPHA, BRAVO, REPORTS), headquarters.see)
        for name, group in UNITS.items():
            unit = Unit(name)
            unit.connection = await connect(stack, (RULES, group), unit.see)
        publishers = [(await connect(stack, (), None)).publish for _ in range(OFFICERS + len(CONTROLLERS))]
        officers = map(officer, range(OFFICERS), publishers)
        controllers = map(controller, CONTROLLERS, repeat(headquarters.joined), publishers[OFFICERS:])
        await patiently(*officers, *controllers, headquarters.done.wait())
    return headquarters


async def show(brokers: list[str], stages: list[str]) -> bool:
    """Without the order, then with it; return whether it held."""

    async def without_order(stack: AsyncExitStack, topics: Sequence[str], see: See | None) -> Connection:
        return await connect_without_order(stack, brokers[0], topics, see)

    async def with_order(stack: AsyncExitStack, topics: Sequence[str], see: See | None) -> Connection:
        client = await stack.enter_async_context(ordered_pubsub.connect(brokers[0], sequencer=stages))
        if see is None:
            return Connection(client.publish_nowait, client.subscribe)
        subscription = await client.subscribe(*topics, notify=lambda event: see(event.topic, event.data))
        return Connection(client.publish_nowait, subscription.add)

    for number in range(1, ROUNDS_MAX + 1):
        if (await exercise(without_order)).judge(f"without the order, round {number}"):
            break
    else:
        print("by luck, nothing went wrong without the order this time")
    headquarters = await exercise(with_order)
    is_bad = headquarters.judge("with the order")
    targets = headquarters.decisions[BRAVO].keys()
    decided = targets & headquarters.reports[JOINS].keys()
    print(f"{JOINS} has joined bravo in between: it decided on the last {len(decided)} of its {len(targets)} targets")
    return not is_bad


if __name__ == "__main__":
    run(show, lambda stack: [stack.enter_context(RabbitMq()).url], ("amqp", "amqps"))
