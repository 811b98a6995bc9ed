"""One side of one variant, as a process that is told what to do.

clock             -> {"now_ns"}                        what its clock says
count             -> {"surplus"}                       (subscriber) begin to count; what came too much before
                     {"last_ns", "count", "phase", "latencies_ns"}   ... when everything has come
rush, pace        -> {"first_ns", "confirmed_ns"}      (publisher) when everything is confirmed
profile           -> {}                                begin to profile; with a file: stop, and write it there
end               -> {}                                disconnect
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from cProfile import Profile
from typing import Any

from ordered_pubsub.bench.sides import BenchReceiver, BenchTally, Sender, SidePlan, make_payload, now_ns
from ordered_pubsub.testing.processes import Starter


def make_sender(plan: SidePlan) -> Sender:
    """The sender of a plan. A broker's library is imported only if it is wanted."""
    if not plan.is_plain:
        from ordered_pubsub.bench.ours import OrderedSender

        return OrderedSender(plan)
    if plan.kind == "mqtt":
        from ordered_pubsub.bench.plain_mqtt import MqttSender

        return MqttSender(plan)
    if plan.kind == "rabbitmq":
        from ordered_pubsub.bench.plain_rabbitmq import RabbitSender

        return RabbitSender(plan)
    from ordered_pubsub.bench.plain_nats import JetStreamSender, NatsSender

    return JetStreamSender(plan) if plan.kind == "jetstream" else NatsSender(plan)


def make_receiver(plan: SidePlan, tally: BenchTally) -> BenchReceiver:
    """The receiver of a plan."""
    if not plan.is_plain:
        from ordered_pubsub.bench.ours import OrderedReceiver

        return OrderedReceiver(plan, tally.take)
    if plan.kind == "mqtt":
        from ordered_pubsub.bench.plain_mqtt import MqttReceiver

        return MqttReceiver(plan, tally.take)
    if plan.kind == "rabbitmq":
        from ordered_pubsub.bench.plain_rabbitmq import RabbitReceiver

        return RabbitReceiver(plan, tally.take)
    from ordered_pubsub.bench.plain_nats import JetStreamReceiver, NatsReceiver

    return JetStreamReceiver(plan, tally.take) if plan.kind == "jetstream" else NatsReceiver(plan, tally.take)


class BenchWorker(ABC):
    """What both sides have."""

    def __init__(self, starter: Starter) -> None:
        self.starter = starter
        self._profile: Profile | None = None

    async def run(self) -> None:
        """Do as it is told, until the end."""
        await self.open()
        self.starter.tell(state="ready")
        while (order := await self.starter.hear())["do"] != "end":
            if order["do"] == "clock":
                self.starter.tell(now_ns=now_ns())
            elif order["do"] == "profile":
                self._take_profile(order.get("file"))
            else:
                await self.do(order)
        await self.close()
        self.starter.tell(state="ended")

    def _take_profile(self, file: str | None) -> None:
        if file is None:
            self._profile = Profile()
            self._profile.enable()
        elif self._profile is not None:
            self._profile.disable()
            self._profile.dump_stats(file)
        self.starter.tell()

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def do(self, order: dict[str, Any]) -> None:
        """What only this side does."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


class BenchPublishing(BenchWorker):
    """The side that publishes."""

    def __init__(self, plan: SidePlan, starter: Starter) -> None:
        super().__init__(starter)
        self._sender = make_sender(plan)

    async def open(self) -> None:
        """Connect."""
        await self._sender.open()

    async def do(self, order: dict[str, Any]) -> None:
        """Publish, and say when that began and ended."""
        phase, count = order["phase"], order["events"]
        first_ns = now_ns()
        if order["do"] == "rush":
            await self._sender.rush(make_payload(phase), count)
        else:
            await self._sender.pace(phase, count, 1.0 / order["rate"])
        self.starter.tell(first_ns=first_ns, confirmed_ns=now_ns())

    async def close(self) -> None:
        """Disconnect."""
        await self._sender.close()


class BenchSubscribing(BenchWorker):
    """The side that subscribes."""

    def __init__(self, plan: SidePlan, starter: Starter) -> None:
        super().__init__(starter)
        self._loop = asyncio.get_running_loop()
        self._complete = asyncio.Event()
        self._tally = BenchTally(self._completed)
        self._receiver = make_receiver(plan, self._tally)

    def _completed(self) -> None:
        """In whatever thread the last event came."""
        self._loop.call_soon_threadsafe(self._complete.set)

    async def open(self) -> None:
        """Connect and subscribe."""
        await self._receiver.open()

    async def do(self, order: dict[str, Any]) -> None:
        """Count, and say what came."""
        tally = self._tally
        surplus = tally.surplus
        self._complete.clear()
        tally.begin(order["phase"], order["events"], order["is_timed"])
        self.starter.tell(surplus=surplus)
        if tally.expected:
            await self._complete.wait()
            self.starter.tell(
                last_ns=tally.last_ns, count=tally.count, phase=tally.last_phase, latencies_ns=tally.latencies_ns
            )

    async def close(self) -> None:
        """Disconnect."""
        await self._receiver.close()


async def take_side(starter: Starter, **given: Any) -> None:
    """Be one of them."""
    plan = SidePlan(**given)
    kind = BenchPublishing if plan.role == "publisher" else BenchSubscribing
    await kind(plan, starter).run()
