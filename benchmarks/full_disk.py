"""A disk that is full, or fails: what becomes of a stage, of its clients, and of what was acknowledged.

    python benchmarks/full_disk.py

Twice the same: somebody publishes without a pause, with a receipt for each event, and a durable subscription reads, until the
stage's store cannot be written any more. Then publishing must stop, with the reason at the publisher, at the subscriber and at
whoever comes anew; when the trouble is over, all must go on by itself, and the subscriber have every event once, in order.

- *Full*: the store is in a small file system (tmpfs), most of which a ballast fills. To mount it one has to be root; where that
  cannot be, the error is injected as the other one is.
- *I/O error*: the stage's process has an SQLite whose COMMIT fails with `disk I/O error` for as long as a file is there.
  Everything above SQLite is the stage as it is.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import attrs
from failures import until

import ordered_pubsub
from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.testing.brokers import NatsServer
from ordered_pubsub.testing.stages import StageProcesses

SIZE, BALLAST = 6_000_000, 3_000_000
BYTES = 20_000
"""Of an event: so that what is free is full soon."""
EVENTS_BEFORE = 50
"""So many events are published before an error is injected."""
EVENTS_AFTER = 50
STOPPED_S = 2.0
"""A publication without a receipt for so long counts as not accepted."""
FILL_S, MEND_S = 60.0, 60.0
SHUT_S = 2.0
"""So long the trouble lasts after it was noticed."""
ERRORS = {"full": "database or disk is full", "I/O error": "disk I/O error"}
"""What SQLite says."""
TOLD = {"full": "the disk is full", "I/O error": "disk I/O error"}
"""What everybody is told."""

FAILING = """
import functools, os, sqlite3, sys
from ordered_pubsub.cli import main

fault, _, message = sys.argv.pop(1).partition("=")

class Failing(sqlite3.Connection):
    def execute(self, statement, *values):
        if statement == "COMMIT" and os.path.exists(fault):
            raise sqlite3.OperationalError(message)
        return super().execute(statement, *values)

sqlite3.connect = functools.partial(sqlite3.connect, factory=Failing)
sys.exit(main())
"""
"""A stage whose commits fail for as long as a file is there: `FILE=MESSAGE`."""


class Trouble(Protocol):
    """Something that goes wrong with a store."""

    how: str
    """in words"""

    def begin(self) -> None:
        """It begins now, or when the disk is full."""

    def end(self) -> None:
        """It is over."""


@attrs.define
class Filled:
    """A small disk with a ballast."""

    folder: Path
    how: str = "tmpfs"

    def begin(self) -> None:
        """It gets full by itself."""

    def end(self) -> None:
        """There is space again."""
        (self.folder / "ballast").unlink()


@attrs.define
class Injected:
    """An error that SQLite is made to raise."""

    file: Path
    how: str = "injected"

    def begin(self) -> None:
        """From now on."""
        self.file.touch()

    def end(self) -> None:
        """Until now."""
        self.file.unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A folder with little space in it; None where nothing can be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mounting, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        yield None
        return
    try:
        (disk / "ballast").write_bytes(bytes(BALLAST))
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=False)


@attrs.define
class Outcome:
    """What came of it."""

    kind: str
    how: str
    acknowledged: int = 0
    """events with a receipt before it stopped"""
    told: dict[str, str] = attrs.field(factory=dict)
    """who was told what, while it lasted"""
    back_s: float = 0.0
    """from the end of the trouble to the receipt that was waited for"""
    total: int = 0
    """events with a receipt in the end"""
    faults: list[str] = attrs.field(factory=list)


@attrs.define(eq=False)
class Trial:
    """One trouble, from its beginning to what follows it."""

    trouble: Trouble
    outcome: Outcome
    ens: str
    sequencer: str
    receipts: list[ordered_pubsub.Receipt] = attrs.field(factory=list)
    seen: list[tuple[int, str]] = attrs.field(factory=list)
    arrived: asyncio.Event = attrs.field(factory=asyncio.Event)

    def note(self, event: ordered_pubsub.Event) -> None:
        """The subscriber is notified."""
        self.seen.append((event.number, event.id))
        self.arrived.set()

    async def run(self) -> None:
        """Hold it."""
        async with (
            ordered_pubsub.connect(self.ens, sequencer=self.sequencer) as publisher,
            ordered_pubsub.connect(self.ens, sequencer=self.sequencer, name="desk") as reader,
        ):
            await reader.subscribe("orders", name="book", notify=self.note)
            refused = await self._publish_until_it_stops(publisher)
            self.outcome.acknowledged = len(self.receipts)
            await self._ask_around(publisher, reader)
            await asyncio.sleep(SHUT_S)
            if refused.done():
                self.outcome.faults.append("an event was acknowledged while the store could not be written")
            await self._go_on(publisher, refused)
        self._judge()

    async def _publish_until_it_stops(self, publisher: ordered_pubsub.Client) -> asyncio.Future[ordered_pubsub.Receipt]:
        """Publish one by one; return the publication that gets no receipt."""
        give_up_at = time.monotonic() + FILL_S
        while time.monotonic() < give_up_at:
            if len(self.receipts) == EVENTS_BEFORE:
                self.trouble.begin()
            publication = publisher.publish_nowait("orders", bytes(BYTES))
            done, _ = await asyncio.wait([publication], timeout=STOPPED_S)
            if not done:
                return publication
            self.receipts.append(publication.result())
        raise OrderedPubSubError(
            f"publishing did not stop within {FILL_S:g} s, after {len(self.receipts)} events: the store never got into trouble"
        )

    async def _ask_around(self, publisher: ordered_pubsub.Client, reader: ordered_pubsub.Client) -> None:
        """What is everybody told? Whoever comes in between two attempts of the stage may have to look again."""
        told = self.outcome.told
        give_up_at = time.monotonic() + STOPPED_S
        while len(told) < 3 and time.monotonic() < give_up_at:
            for who, client in (("publisher", publisher), ("subscriber", reader)):
                if TOLD[self.outcome.kind] in client.status()["stage"]:
                    told[who] = client.status()["stage"]
            try:
                await asyncio.wait_for(self._come_anew(), STOPPED_S)
            except (OrderedPubSubError, asyncio.TimeoutError) as error:
                if TOLD[self.outcome.kind] in str(error):
                    told["newcomer"] = str(error)
            await asyncio.sleep(0.05)

    async def _come_anew(self) -> None:
        async with ordered_pubsub.connect(self.ens, sequencer=self.sequencer, connect_timeout_s=0):
            pass

    async def _go_on(self, publisher: ordered_pubsub.Client, refused: asyncio.Future[ordered_pubsub.Receipt]) -> None:
        """The trouble is over: what was waited for gets its receipt, and more."""
        self.trouble.end()
        ended = time.monotonic()
        self.receipts.append(await asyncio.wait_for(refused, MEND_S))
        self.outcome.back_s = time.monotonic() - ended
        for _ in range(EVENTS_AFTER):
            self.receipts.append(await publisher.publish("orders", b"after"))
        await until(lambda: len(self.seen) >= len(self.receipts), self.arrived)

    def _judge(self) -> None:
        outcome, acknowledged = self.outcome, [(receipt.number, receipt.id) for receipt in self.receipts]
        outcome.total = len(acknowledged)
        if [number for number, _ in acknowledged] != list(range(1, len(acknowledged) + 1)):
            outcome.faults.append("the receipts' numbers are not 1, 2, 3, …")
        lost = len(set(acknowledged) - set(self.seen))
        if lost:
            outcome.faults.append(f"{lost} of {len(acknowledged)} acknowledged events did not come")
        elif self.seen != acknowledged:
            outcome.faults.append("the subscriber was notified of something else than what was acknowledged")
        for who in ("publisher", "subscriber", "newcomer"):
            if who not in outcome.told:
                outcome.faults.append(f"the {who} was not told that {TOLD[outcome.kind]!r}")


def measure(kind: str) -> Outcome:
    """One trouble with a stage of its own."""
    with NatsServer() as broker, TemporaryDirectory() as name, small_disk(Path(name)) as disk:
        folder, fault = Path(name), Path(name) / "fault"
        trouble: Trouble = Injected(fault)
        if kind == "full" and disk is not None:
            trouble = Filled(disk)
        store = disk if isinstance(trouble, Filled) else folder
        settings = {"name": "main", "store": f"sqlite:{store}/main.db"}
        program = ("-c", FAILING, f"{fault}={ERRORS[kind]}")
        stages = StageProcesses(folder, [["**"]], settings=[settings], program=program)
        (stage,) = stages.processes
        outcome = Outcome(kind, trouble.how)
        try:
            stages.start()
            asyncio.run(Trial(trouble, outcome, broker.url, stage.address).run())
            if code := stage.stop():
                outcome.faults.append(f"the stage ended with {code}")
        except (OrderedPubSubError, asyncio.TimeoutError) as error:
            outcome.faults.append(f"{type(error).__name__}: {error}")
        finally:
            stages.kill()
    return outcome


def table(outcomes: list[Outcome]) -> str:
    """The figures, as Markdown."""
    lines = [
        "| store | how | acknowledged before | in the end | the next receipt, s after it was mended |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for one in outcomes:
        lines.append(f"| {one.kind} | {one.how} | {one.acknowledged} | {one.total} | {one.back_s:.1f} |")
    return "\n".join(lines)


def run() -> list[Outcome]:
    """Measure both, and print the figures."""
    logging.getLogger("ordered_pubsub").addHandler(
        logging.NullHandler()
    )  # the clients' warnings; they are looked at below
    outcomes = [measure(kind) for kind in ERRORS]
    print(table(outcomes), flush=True)
    for outcome in outcomes:
        for who, what in outcome.told.items():
            print(f"{outcome.kind}, the {who} is told: {what}", flush=True)
        for fault in outcome.faults:
            print(f"{outcome.kind}: {fault}", flush=True)
    return outcomes


if __name__ == "__main__":
    sys.exit(1 if any(outcome.faults for outcome in run()) else 0)
