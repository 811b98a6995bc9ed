"""A publisher or a subscriber of a trial, as a process that is told what to do.

Both say `ready`, and begin when they are told `go`. A publisher publishes until it is told `stop`, and writes down what it
was given receipts for, and with `!` what has none; after one without it publishes nothing more. A subscriber notes every
notification, and what it changes, until it has everything up to the numbers that it is told with `finish`.
(`surviving` has those that are killed, and go on.)
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import IO, Any, TypeVar

import ordered_pubsub
from ordered_pubsub.adapter import Adapter, Capabilities, Frame, FramesHandler, StateHandler, load_adapter
from ordered_pubsub.core.client.subscription import TopicChange
from ordered_pubsub.errors import UnavailableError
from ordered_pubsub.testing.processes import Starter
from ordered_pubsub.testing.trial.judge import NO_RECEIPT

PIPELINE = 500
PAUSE_S = 0.1

Result = TypeVar("Result")


def _writer(path: str) -> IO[str]:
    return open(path, "a", encoding="utf-8")


def data_of(identity: str, filler: int) -> dict[str, Any]:
    """What an event carries: who it is, and when it was published by the clock that all processes of a machine share."""
    return {"id": identity, "at": time.monotonic(), "filler": "x" * filler}


def latency_us(event: ordered_pubsub.Event) -> int:
    """How long ago an event was published, in microseconds."""
    return int((time.monotonic() - event.data["at"]) * 1e6)


class Tap(Adapter):
    """Another adapter, of which the order is noted in which frames arrive."""

    def __init__(self, inner: Adapter, note: IO[str]) -> None:
        super().__init__(inner.url)
        self._inner = inner
        self._note = note

    @property
    def capabilities(self) -> Capabilities:
        """Those of the other one."""
        return self._inner.capabilities

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Open the other one, and listen in."""

        async def noted(frames: Sequence[Frame]) -> None:
            for frame in frames:
                self._note.write(f"{frame.topic} {json.loads(frame.payload)['id']}\n")
            await on_frames(frames)

        await self._inner.open(noted, on_state)

    async def publish(self, frames: Sequence[Frame]) -> None:
        """As the other one."""
        await self._inner.publish(frames)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """As the other one."""
        await self._inner.subscribe(topics)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """As the other one."""
        await self._inner.unsubscribe(topics)

    async def close(self) -> None:
        """As the other one."""
        await self._inner.close()


class TrialWorker:
    """What both have."""

    def __init__(self, plan: dict[str, Any], starter: Starter) -> None:
        self.plan = plan
        self.starter = starter
        self.random = random.Random(plan["seed"])

    async def run(self) -> None:
        """Connect, do what it is for, and close."""
        plan = self.plan
        with _writer(plan["raw"]) as raw, _writer(plan["log"]) as log:
            async with await self._connect(raw) as client:
                await self.work(client, log)

    async def _connect(self, raw: IO[str]) -> ordered_pubsub.Client:
        plan = self.plan

        async def connect() -> ordered_pubsub.Client:
            return await ordered_pubsub.connect(
                Tap(load_adapter(plan["ens"]), raw),
                sequencer=plan["sequencer"],
                name=plan["name"],
                timeout_s=plan["call_s"],
                **plan["settings"],
            )

        return await self.patiently(connect)

    async def patiently(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Try again while the broker or the stages are down, for as long as a call may take."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.plan["call_s"]
        while True:
            try:
                return await call()
            except UnavailableError:
                if loop.time() > give_up_at:
                    raise
                await asyncio.sleep(PAUSE_S)

    async def work(self, client: ordered_pubsub.Client, log: IO[str]) -> None:
        """What it is for."""
        raise AssertionError("a publisher or a subscriber says what")


class TrialPublishing(TrialWorker):
    """Publishes until it is told to stop."""

    async def work(self, client: ordered_pubsub.Client, log: IO[str]) -> None:
        """Publish on its topics, in an order that the seed decides, and note the receipts."""
        self.starter.tell(state="ready")
        await self.starter.hear()
        stopped = asyncio.ensure_future(self.starter.hear())
        waiting: dict[str, asyncio.Future[ordered_pubsub.Receipt]] = {}
        loop = asyncio.get_running_loop()
        began, count, is_well = loop.time(), 0, True
        while is_well and (count < self.plan["events"] or not stopped.done()):
            count += 1
            identity = f"{self.plan['name']}-{count}"
            topic = self.random.choice(self.plan["topics"])
            waiting[identity] = client.publish_nowait(topic, data_of(identity, self.plan["filler"]), id=identity)
            if len(waiting) >= PIPELINE:
                is_well = await self._note(waiting, log)
            ahead_s = count / self.plan["rate"] - (loop.time() - began)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
        await self._note(waiting, log)
        log.flush()
        await stopped
        self.starter.tell(state="done", published=count, seconds=loop.time() - began)

    async def _note(self, waiting: dict[str, asyncio.Future[ordered_pubsub.Receipt]], log: IO[str]) -> bool:
        """Wait for receipts and write them down, and what has none; returns whether all have one."""
        limit_s, are_all = self.plan["receipts_s"], True
        if waiting:
            await asyncio.wait(waiting.values(), timeout=limit_s)
        for identity, future in waiting.items():
            if future.done() and not future.exception():
                receipt = future.result()
                log.write(f"{receipt.topic} {receipt.number} {receipt.id}\n")
                continue
            are_all = False
            why = f": {future.exception()!r}" if future.done() else f" within {limit_s:g} s"
            log.write(f"{NO_RECEIPT}{identity} has no receipt{why}\n")
        waiting.clear()
        return are_all


class TrialSubscribing(TrialWorker):
    """Notes what it is notified of, and changes its topics now and then."""

    def __init__(self, plan: dict[str, Any], starter: Starter) -> None:
        super().__init__(plan, starter)
        self.notified = 0
        self.changes = 0
        self.news = asyncio.Event()
        self._enough = False
        """whether no more changes are wanted"""

    async def work(self, client: ordered_pubsub.Client, log: IO[str]) -> None:
        """Subscribe, and go on until it has everything."""
        subscription = await client.subscribe(*self.plan["topics"])
        for topic, number in subscription.clock.items():
            log.write(f"@ {topic} {number}\n")
        self._note_changes(subscription, log)
        self.starter.tell(state="ready")
        taking = asyncio.ensure_future(self._take(subscription, log))
        changing = asyncio.ensure_future(self._change(subscription, log))
        totals = await self.told_totals()
        self._enough = True
        self.news.set()
        await changing
        missing = await self.finish(lambda: subscription.clock, totals)
        waiting_for = self.lacks(client, subscription, missing)
        await subscription.close()
        await taking
        log.flush()
        self.starter.tell(
            state="done", notified=self.notified, changes=self.changes, missing=missing, waiting_for=waiting_for
        )

    async def told_totals(self) -> dict[str, int]:
        """Wait until it is told up to which numbers it is to go on."""
        while (order := await self.starter.hear())["do"] != "finish":
            pass
        totals: dict[str, int] = order["totals"]
        return totals

    def lacks(
        self, client: ordered_pubsub.Client, subscription: ordered_pubsub.Subscription, missing: dict[str, list[int]]
    ) -> str:
        """What it waits for, in words, if anything is missing."""
        return f"{missing}; {subscription.lag.waiting_for}; {client.status()['waiting_for']}" if missing else ""

    def _note_changes(self, subscription: ordered_pubsub.Subscription, log: IO[str]) -> None:
        """Note behind which numbers topics are held and left, as the stages have decided: nothing else says so exactly."""
        engine = subscription._intake.engine
        report = engine._report_outcome

        def noted(change: TopicChange) -> None:
            outcome = change.outcome
            if outcome is not None and outcome.subscription == subscription.identity:
                for topic in outcome.topics:
                    if (topic in outcome.old) != (topic in outcome.new):
                        sign = "@" if topic in outcome.new else "/"
                        log.write(f"{sign} {topic} {outcome.entries.get(topic, 0)}\n")
            report(change)

        engine._report_outcome = noted  # type: ignore[method-assign]

    async def _take(self, subscription: ordered_pubsub.Subscription, log: IO[str]) -> None:
        async for event in subscription:
            log.write(f"{event.topic} {event.number} {event.data['id']} {event.position} {latency_us(event)}\n")
            self.notified += 1
            self.news.set()

    async def _change(self, subscription: ordered_pubsub.Subscription, log: IO[str]) -> None:
        """Leave a topic, or hold one more, each time that so many events were notified."""
        while self.plan["change_every"]:
            goal = self.notified + self.plan["change_every"]
            while self.notified < goal and not self._enough:
                self.news.clear()
                await self.news.wait()
            if self._enough:
                return
            held = subscription.topics
            others = [topic for topic in self.plan["every_topic"] if topic not in held]
            if others and (len(held) <= 3 or self.random.random() < 0.5):
                topic = self.random.choice(others)
                await self.patiently(partial(subscription.add, topic))
            else:
                topic = self.random.choice(held)
                await self.patiently(partial(subscription.remove, topic))
            self.changes += 1

    async def finish(self, clock_now: Callable[[], Mapping[str, int]], totals: dict[str, int]) -> dict[str, list[int]]:
        """Wait until it has everything; say what it has not."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.plan["patience_s"]
        while True:
            clock = clock_now()
            missing = {t: [clock[t], total] for t, total in totals.items() if t in clock and clock[t] < total}
            if not missing or loop.time() > give_up_at:
                return missing
            self.news.clear()
            timer = loop.call_later(0.5, self.news.set)
            await self.news.wait()
            timer.cancel()
