"""Those who take part in a trial, are killed, and go on in another life.

A publisher says in its file what it is going to publish (`?`), and what it has receipts for, which then is on disk. In another
life its events have other names. What has no receipt when it is killed, or fails because everything is down, may have been
published or not; it publishes another one then.

A subscriber with a name is an application with results of its own (`results`): it goes on by its name, and handles what comes
again once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import ordered_pubsub
from ordered_pubsub.errors import Closed, OrderedPubSubError
from ordered_pubsub.testing.processes import Starter
from ordered_pubsub.testing.trial.judge import NO_RECEIPT, SENT
from ordered_pubsub.testing.trial.results import Results
from ordered_pubsub.testing.trial.worker import PIPELINE, TrialSubscribing, TrialWorker, data_of, latency_us

SUBSCRIPTION = "results"
BATCH_EVENTS_MAX = 500
FAILED_PAUSE_S = 0.2


class PublishingOn(TrialWorker):
    """Publishes until it is told to stop, or is killed."""

    def __init__(self, plan: dict[str, Any], starter: Starter) -> None:
        super().__init__(plan, starter)
        self._received = 0
        self._received_at = 0.0
        self._under_way: dict[str, asyncio.Future[ordered_pubsub.Receipt]] = {}
        self._receipts: list[ordered_pubsub.Receipt] = []
        """those that are not in the file yet"""
        self._trouble = "nothing failed"
        self._is_failing = False
        self._news = asyncio.Event()

    async def work(self, client: ordered_pubsub.Client, log: IO[str]) -> None:
        """Publish on its topics, in an order that the seed decides, and note the receipts."""
        self.starter.tell(state="ready")
        await self.starter.hear()
        stopped = asyncio.ensure_future(self.starter.hear())
        loop = asyncio.get_running_loop()
        began = self._received_at = loop.time()
        count = 0
        while self._received < self.plan["events"] or not stopped.done():
            count += 1
            self._publish(client, f"{self.plan['name']}.{self.plan['life']}-{count}", log)
            while len(self._under_way) >= PIPELINE or self._is_failing:
                if not await self._wait_for_news(log):
                    break
            await asyncio.sleep(max(count / self.plan["rate"] - (loop.time() - began), 0.0))
            await self._write(log)
            if self._is_overdue:
                break
        while self._under_way and await self._wait_for_news(log):
            pass
        await self._write(log)
        self._complain(log)
        await stopped
        self.starter.tell(state="done", published=self._received, seconds=loop.time() - began)

    @property
    def _is_overdue(self) -> bool:
        """Whether it had no receipt for too long."""
        limit_s: float = self.plan["receipts_s"]
        return asyncio.get_running_loop().time() > self._received_at + limit_s

    def _publish(self, client: ordered_pubsub.Client, identity: str, log: IO[str]) -> None:
        topic = self.random.choice(self.plan["topics"])
        log.write(f"{SENT}{topic} {identity}\n")
        log.flush()  # the kernel has it now, whatever becomes of this process
        try:
            future = client.publish_nowait(topic, data_of(identity, self.plan["filler"]), id=identity)
        except OrderedPubSubError as error:
            self._failed(error)
            return
        self._under_way[identity] = future
        future.add_done_callback(lambda done: self._take(identity, done))

    def _take(self, identity: str, done: asyncio.Future[ordered_pubsub.Receipt]) -> None:
        del self._under_way[identity]
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or error is not None:
            self._failed(error)
        else:
            self._receipts.append(done.result())
            self._received_at = asyncio.get_running_loop().time()
        self._news.set()

    def _failed(self, error: BaseException | None) -> None:
        self._trouble = repr(error)
        self._is_failing = True

    async def _wait_for_news(self, log: IO[str]) -> bool:
        """Wait for a receipt or a failure, and write down what there is; False if nothing has come for too long."""
        loop = asyncio.get_running_loop()
        self._news.clear()
        timer = loop.call_later(FAILED_PAUSE_S, self._news.set)
        await self._news.wait()
        timer.cancel()
        self._is_failing = False
        await self._write(log)
        return not self._is_overdue

    async def _write(self, log: IO[str]) -> None:
        """Write receipts down; return when they are on disk."""
        receipts, self._receipts = self._receipts, []
        if receipts:
            log.write("".join(f"{one.topic} {one.number} {one.id}\n" for one in receipts))
            log.flush()
            await asyncio.get_running_loop().run_in_executor(None, os.fsync, log.fileno())
            self._received += len(receipts)

    def _complain(self, log: IO[str]) -> None:
        """It is a fault if nothing was taken for too long, though it tried."""
        if self._is_overdue:
            name, limit_s = self.plan["name"], self.plan["receipts_s"]
            log.write(f"{NO_RECEIPT}{name} had no receipt within {limit_s:g} s: {self._trouble}\n")
            log.flush()


class SubscribingOn(TrialSubscribing):
    """An application that handles each event exactly once, over all its lives."""

    async def work(self, client: ordered_pubsub.Client, log: IO[str]) -> None:
        """Go on, or begin, until it has everything."""
        results = Results(Path(self.plan["results"]))
        # Going on by the name alone, and naming the topics as well, are to come to the same.
        topics = [] if results.clock and self.plan["is_brief"] else self.plan["topics"]
        subscription = await client.subscribe(*topics, name=SUBSCRIPTION, ack="manual")
        if not results.clock:
            results.begin(subscription.clock)
        self.starter.tell(state="ready")
        handling = asyncio.ensure_future(self._handle(subscription, results))
        totals = await self.told_totals()
        missing = await self.finish(lambda: results.clock, totals)
        waiting_for = self.lacks(client, subscription, missing)
        await subscription.close()
        with suppress(Closed):  # an acknowledgement was still under way
            await handling
        results.close()
        self.starter.tell(state="done", notified=self.notified, changes=0, missing=missing, waiting_for=waiting_for)

    async def _handle(self, subscription: ordered_pubsub.Subscription, results: Results) -> None:
        """The recipe, with each of the two ways to acknowledge."""
        async for events in subscription.batches(BATCH_EVENTS_MAX, max_wait_s=0.0):
            results.take(events, _latencies_of(events))
            if self.plan["is_brief"]:
                await events[-1].ack()
            else:
                await subscription.commit(events[-1].vector)
            self.notified += len(events)
            self.news.set()


def _latencies_of(events: Sequence[ordered_pubsub.Event]) -> list[int]:
    return [latency_us(event) for event in events]
