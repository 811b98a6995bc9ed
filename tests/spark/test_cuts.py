"""Batches that are cut anywhere while others publish: none has an event without those that come before it for anybody."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import ordered_pubsub
from ordered_pubsub.spark.options import Options
from ordered_pubsub.spark.plan import Range, ReadPlan
from ordered_pubsub.testing.stages import StageProcesses

TOPICS = ("eu/trades", "us/trades", "eu/quotes", "us/quotes")
HELD = (TOPICS, TOPICS[:2], TOPICS[1:3], (TOPICS[3], TOPICS[0]))
"""What subscribers hold: one holds everything in one order, the others parts of it."""
EVENTS = 1_500
PATIENCE_S = 60.0
Clock = Mapping[str, int]


async def publish(sequencer: list[str], ens: str, random: Random, events: int) -> None:
    """Alone and in batches, on any topic, waiting or not."""
    async with ordered_pubsub.connect(ens, sequencer=sequencer) as client:
        pending: list[Any] = []
        while events:
            topic, count = random.choice(TOPICS), min(events, random.choice((1, 1, 1, 2, 9)))
            events -= count
            if count == 1:
                pending.append(client.publish_nowait(topic, {"n": events}))
            else:
                await client.publish_many(topic, [{"n": events, "at": at} for at in range(count)])
            if random.random() < 0.2:
                await asyncio.gather(*pending)
                pending.clear()
        await asyncio.gather(*pending)


def take_batches(plan: ReadPlan, random: Random, is_over: asyncio.Event) -> list[tuple[Clock, Clock, pa.Table]]:
    """Batches with random limits, as they come, each read in its parts; the last one when nobody publishes any more."""
    batches: list[tuple[Clock, Clock, pa.Table]] = []
    at: Clock = plan.first("earliest")
    while True:
        was_over = is_over.is_set()
        end, _ = plan.next(at, random.choice((1, 5, 20, 50, 100)))
        if end != at:
            batches.append((at, end, read(plan, at, end)))
            at = end
        elif was_over:
            return batches


def read(plan: ReadPlan, start: Clock, end: Clock) -> pa.Table:
    """The rows of a batch, part by part."""
    return pa.Table.from_batches(
        [rows for part in plan.parts(start, dict(end)) for rows in plan.read(Range(part.start, part.end))]
    )


async def run(
    system: StageProcesses, random: Random
) -> tuple[list[tuple[Clock, Clock, pa.Table]], list[list[ordered_pubsub.Event]]]:
    """Batches that were taken while publishers were at work, and what subscribers were notified of."""
    ens, sequencer, is_over = f"memory://{uuid4().hex}", system.addresses, asyncio.Event()
    partitions = str(random.choice((1, 3)))
    plan = ReadPlan(
        Options.read(
            {
                "sequencer": ",".join(sequencer),
                "topics": ",".join(TOPICS),
                "failOnUnknownTopic": "false",
                "numPartitions": partitions,
            }
        )
    )
    async with ordered_pubsub.connect(ens, sequencer=sequencer) as client:
        subscriptions = [await client.subscribe(*topics) for topics in HELD]
        taking = asyncio.create_task(asyncio.to_thread(take_batches, plan, random, is_over))
        await asyncio.gather(*(publish(sequencer, ens, Random(random.random()), EVENTS // 3) for _ in range(3)))
        is_over.set()
        batches = await taking
        counts = batches[-1][1]
        notified = [
            [await asyncio.wait_for(one.__anext__(), PATIENCE_S) for _ in range(sum(counts[topic] for topic in topics))]
            for one, topics in zip(subscriptions, HELD, strict=True)
        ]
    for process in system.processes:
        process.kill()
        process.start()
    for start, end, rows in batches:
        assert read(plan, start, end).equals(rows), (
            f"the batch from {start} to {end} has other rows when it is run again"
        )
    return batches, notified


@pytest.mark.parametrize("seed", range(int(os.environ.get("ORDERED_PUBSUB_TEST_CUTS", "6"))))
def test_a_batch_has_no_event_without_those_before_it_and_is_the_same_again(tmp_path: Path, seed: int) -> None:
    """Run again, after its stages were killed, each batch is identical, row by row."""
    system = StageProcesses(tmp_path, [["eu/**"], ["**"]])
    system.start()
    try:
        batches, notified = asyncio.run(run(system, Random(seed)))
    finally:
        system.kill()

    assert len(batches) > 10
    assert sum(rows.num_rows for _, _, rows in batches) == EVENTS
    for _, end, _ in batches:
        for events in notified:
            inside = [event.number <= end[event.topic] for event in events]
            assert inside == sorted(inside, reverse=True), (
                f"the cut {end} has an event without one that comes before it"
            )
    rows = [row for _, _, table in batches for row in table.select(["position", "topic", "number"]).to_pylist()]
    assert [tuple(row.values()) for row in rows] == [
        (event.position, event.topic, event.number) for event in notified[0]
    ]


def test_a_cut_that_leaves_something_out_would_be_found(tmp_path: Path) -> None:
    """One that is made by hand, of a clock that is none."""
    system = StageProcesses(tmp_path, [["eu/**"], ["**"]])
    system.start()
    try:
        batches, notified = asyncio.run(run(system, Random(99)))
    finally:
        system.kill()
    end = {**batches[len(batches) // 2][1], TOPICS[0]: batches[-1][1][TOPICS[0]]}
    inside = [event.number <= end[event.topic] for event in notified[0]]
    assert inside != sorted(inside, reverse=True)
