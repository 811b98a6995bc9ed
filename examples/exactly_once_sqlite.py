"""An application books payments in a database of its own, each exactly once, though it is killed again and again. Over Mosquitto.

    python examples/exactly_once_sqlite.py
    python examples/exactly_once_sqlite.py --ens mqtt://127.0.0.1:1883

Every event comes once, but a process may die after it has booked an event and before it has said so. Then the event comes
again when the process goes on. So the books keep, in the same transaction as the payments, the number of the last event of each
topic: what comes again is recognised by its number, and skipped.

Payments and refunds are published while a process books them, batch by batch. It kills itself in the middle of its work: before
the transaction is committed, or after that and before the events are acknowledged. Each time another one goes on in its place.
First without looking at the numbers: what comes again is booked again. Then with them: what is in the books is what was
published. The exit code is 0 if it is.

Without --ens (or ORDERED_PUBSUB_ENS) a Mosquitto is started.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from surroundings import patiently, run

import ordered_pubsub
from ordered_pubsub.errors import UnavailableError
from ordered_pubsub.testing.brokers import Mosquitto

COUNT = 600
PAUSE_S = 0.004
BATCH_EVENTS_MAX = 20
DIES_AT_BATCH = 3
BEFORE_COMMIT, BEFORE_ACKNOWLEDGED, NEVER = ("before commit", "before acknowledged", "never")
DEATHS = (BEFORE_ACKNOWLEDGED, BEFORE_COMMIT, BEFORE_COMMIT, BEFORE_ACKNOWLEDGED, NEVER)
"""Where each process that keeps the books dies, one after the other."""
KILLED = 17
"""The exit code of those who kill themselves."""
KEEP_BOOKS = "keep-books"
"""What makes this file the process that books."""

TABLES = """
    CREATE TABLE IF NOT EXISTS total (sum, bookings, again);
    INSERT INTO total SELECT 0, 0, 0 WHERE NOT EXISTS (SELECT * FROM total);
    CREATE TABLE IF NOT EXISTS seen (topic PRIMARY KEY, number);
"""


def draw_payments() -> list[tuple[str, int]]:
    """What is published: sales and, now and then, refunds."""
    random, payments = Random(2), []
    for _ in range(COUNT):
        is_refund = random.random() < 0.2
        payments.append(("refunds", -random.randint(1, 50)) if is_refund else ("sales", random.randint(1, 500)))
    return payments


PAYMENTS = draw_payments()


class Total(NamedTuple):
    """What is in the books."""

    sum: int
    bookings: int
    again: int
    """events that came again, and were recognised"""


class Books:
    """The application's database."""

    def __init__(self, path: Path, looks: bool) -> None:
        self._database = sqlite3.connect(path)
        self._database.executescript(TABLES)
        self._looks = looks

    def book(self, events: Sequence[ordered_pubsub.Event], dies: bool) -> None:
        """Let events have their effect, all of them or none."""
        with self._database as transaction:
            for event in events:
                if self._looks and event.number <= self._seen(event.topic):
                    transaction.execute("UPDATE total SET again = again + 1")
                    continue
                transaction.execute("UPDATE total SET sum = sum + ?, bookings = bookings + 1", (event.data["amount"],))
                transaction.execute("INSERT OR REPLACE INTO seen VALUES (?, ?)", (event.topic, event.number))
            if dies:
                os._exit(KILLED)

    def _seen(self, topic: str) -> int:
        row = self._database.execute("SELECT number FROM seen WHERE topic = ?", (topic,)).fetchone()
        return 0 if row is None else int(row[0])

    def close(self) -> Total:
        """What they say in the end."""
        with closing(self._database):
            return Total(*self._database.execute("SELECT * FROM total").fetchone())


async def keep_books(plan: dict[str, Any]) -> None:
    """The application: go on where it was, until everything is booked, or it dies."""
    books, dies = Books(Path(plan["path"]), plan["looks"]), plan["dies"]
    async with ordered_pubsub.connect(plan["ens"], sequencer=plan["sequencer"], name=plan["name"]) as client:
        payments = await client.subscribe(*plan["topics"], name="books", start="earliest", ack="manual")
        batches = 0
        async for events in payments.batches(BATCH_EVENTS_MAX, max_wait_s=0.0):
            batches += 1
            books.book(events, dies == BEFORE_COMMIT and batches == DIES_AT_BATCH)
            if dies == BEFORE_ACKNOWLEDGED and batches == DIES_AT_BATCH:
                os._exit(KILLED)
            await payments.commit(events[-1].vector)
            if sum(events[-1].vector.values()) == COUNT:
                break
    books.close()


async def live(plan: dict[str, Any]) -> None:
    """Let a process keep the books until it ends."""
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, KEEP_BOOKS, stdin=asyncio.subprocess.PIPE)
    try:
        await process.communicate(json.dumps(plan).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    expected = 0 if plan["dies"] == NEVER else KILLED
    if process.returncode != expected:
        raise UnavailableError(
            f"expected the process that keeps the books to end with {expected}, and it did with {process.returncode}; "
            "it says above why"
        )


async def trade(name: str, ens: str, sequencer: list[str], looks: bool) -> Total:
    """Publish all payments while they are booked, by one process after the other; return what is in the books."""

    async def publish() -> None:
        async with ordered_pubsub.connect(ens, sequencer=sequencer) as client:
            for kind, amount in PAYMENTS:
                await client.publish(f"{name}/{kind}", {"amount": amount})
                await asyncio.sleep(PAUSE_S)  # so that they are published while they are booked

    async def book() -> None:
        for dies in DEATHS:
            await live({**plan, "dies": dies})

    with TemporaryDirectory() as folder:
        path = Path(folder) / "books.db"
        topics = [f"{name}/sales", f"{name}/refunds"]
        plan = {"ens": ens, "sequencer": sequencer, "name": name, "topics": topics, "path": str(path), "looks": looks}
        await patiently(publish(), book())
        return Books(path, looks).close()


def judge(kind: str, total: Total) -> bool:
    """Print what is in the books; return whether it is what was published."""
    published = sum(amount for _, amount in PAYMENTS)
    print(f"{kind}: {total.bookings} bookings of {COUNT} payments, {total.sum:,} in all; published were {published:,}")
    return (total.bookings, total.sum) == (COUNT, published)


async def show(brokers: list[str], stages: list[str]) -> bool:
    """Without looking at the numbers, then with them; return whether that was exact."""
    async with ordered_pubsub.connect(brokers[0], sequencer=stages):
        pass  # a broker that cannot be used is named here
    judge("without looking at the numbers", await trade("careless", brokers[0], stages, looks=False))
    total = await trade("careful", brokers[0], stages, looks=True)
    is_exact = judge("looking at the numbers", total)
    print(f"killed {len(DEATHS) - 1} times each; {total.again} payments came again and were recognised")
    return is_exact


if __name__ == "__main__":
    if sys.argv[1:] == [KEEP_BOOKS]:
        asyncio.run(keep_books(json.load(sys.stdin)))
    else:
        run(show, lambda stack: [stack.enter_context(Mosquitto()).url], ("mqtt", "mqtts"))
