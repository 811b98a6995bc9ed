"""Units fire or hold their fire, and each decides as its headquarters would at the same place in the order. Over RabbitMQ.

    python examples/command_and_control.py
    python examples/command_and_control.py --ens amqp://guest:guest@127.0.0.1:5672

Two officers say "cease fire" and "open fire" on one topic, while controllers name targets on a topic for each group of units. A
unit fires at a target if the last it heard was "open fire", and reports. Headquarters hold all topics and decide by the same
rule, so they know what each unit has to report. In between a unit is ordered to join the other group.

First without the order: what RabbitMQ delivers, through the same adapter. It brings each message to each queue by itself, so
units hear of "cease fire" and of targets in different order, and some fire where headquarters think that they hold. Then with
the order: all decide the same, no report comes before its target, and the unit that joins misses nothing from then on. The exit
code is 0 if that is so.

Without --ens (or ORDERED_PUBSUB_ENS) a RabbitMQ node is started.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from surroundings import Connection, Publish, See, connect_without_order, run

import ordered_pubsub
from ordered_pubsub.testing.brokers import RabbitMq

RULES, ALPHA, BRAVO, REPORTS = "command/rules", "command/alpha", "command/bravo", "command/reports"
UNITS = {f"unit {number}": ALPHA if number <= 3 else BRAVO for number in range(1, 7)}
JOINING = "unit 3"
"""It is of group alpha in the beginning, and joins bravo."""
OFFICERS = 2
CONTROLLERS = {"Ash": ALPHA, "Birch": ALPHA, "Cedar": BRAVO, "Dogwood": BRAVO}
SALVOS = 6
SALVO = 5
"""targets that a controller names at once"""
TARGETS = len(CONTROLLERS) * SALVOS * SALVO
ROUNDS_MAX = 30
PATIENCE_S = 20.0

Connect = Callable[[AsyncExitStack, Sequence[str], See], Awaitable[Connection]]


class Post:
    """Where the rules are known: a unit, or headquarters."""

    connection: Connection
    may_fire = False

    async def see(self, topic: str, data: Any) -> None:
        """Something has come."""
        if "rule" in data:
            self.may_fire = data["rule"] == "open fire"
        elif "target" in data and topic != REPORTS:
            await self.decide(topic, data["target"])


class Unit:
    """Fires, or does not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.may_fire = False
        self.connection: Connection

    async def see(self, topic: str, data: Any) -> None:
        """A rule or a target has come."""
        if "target" in data:
            await self.report(group=topic, target=data["target"], fired=self.may_fire)
        elif "rule" in data:
            self.may_fire = data["rule"] == "open fire"
        elif data.get("joins") == self.name:
            await self.connection.add(BRAVO)
        elif "stand down" in data:
            await self.report(done=True)

    async def report(self, **what: Any) -> None:
        """Tell headquarters."""
        await self.connection.publish(REPORTS, {"unit": self.name, **what})


class Headquarters:
    """Follows everything, and decides for itself what each unit has to report."""

    def __init__(self) -> None:
        self.may_fire = False
        self.connection: Connection
        self.decisions: dict[str, bool] = {}
        self.reports: dict[str, dict[str, bool]] = defaultdict(dict)
        self.early = 0
        self.units_done: set[str] = set()
        self.has_all = asyncio.Event()
