"""The example pipeline while it is killed again and again: the same table as an ordinary subscriber would make.

    python benchmarks/pipeline_kills.py [--events 1000000] [--rows 40000] [--kills 20] [--seed 1]

`examples/market_pipeline.py` takes so many events on four topics from two stages, in batches of so many rows. At random points of
its work one of three is killed as by `kill -9`: the driver (Python and its JVM), the executor's Python worker while it reads from
a stage, or a stage. Spark on one machine does not try a task again, so without its worker the query fails. A pipeline that is
gone is started again on its checkpoint, and a stage on its store. In the end the table, read in the order of its files, is
compared line by line with what a subscriber makes of its notifications who begins with the first event.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from uuid import uuid4

import attrs
import pyarrow.parquet as pq
from processes_seen import command_of, descendants_of, is_jvm, speaks_to
from proving import ROOT, expect

import ordered_pubsub
from ordered_pubsub.testing.processes import Process
from ordered_pubsub.testing.stages import StageProcesses

EXAMPLE = ROOT / "examples" / "market_pipeline.py"
EVENTS, ROWS, KILLS, SEED = 1_000_000, 40_000, 20, 1
TOPICS = ("eu/trades", "eu/quotes", "us/trades", "us/quotes")
KINDS = ("driver", "worker", "stage")
COLUMNS = ("position", "topic", "number", "symbol", "price", "bid", "quote_position")
BATCH_S = 3.0
"""A kill comes at any moment of about so long since a batch has begun."""
LOOKS, MOMENT_S = 8, 0.002
"""A worker is killed when it was seen to read for up to so many moments; if it was faster, as soon as the next one is seen."""
SPARE = 2
"""So many batches at the end are nobody's: a kill may come one later than it was planned."""
PATIENCE_S = 600.0


@attrs.frozen
class Kill:
    """One that hit something that was at work."""

    kind: str
    batch: int
    """the last one that had begun"""


@attrs.frozen
class Outcome:
    """What became of the table."""

    events: int
    rows: int
    kills: tuple[Kill, ...]
    starts: int
    log_sha256: str
    table_sha256: str
    difference: str
    """the first line of the table that is not that of the log; empty: there is none"""
    took_s: float

    @property
    def killed(self) -> dict[str, int]:
        """How often each kind was."""
        return dict(Counter(one.kind for one in self.kills))


# -- what the table must be ---------------------------------------------------------------------------------------------------


@attrs.define
class Market:
    """The quotes that hold, as far as somebody has been notified."""

    quotes: dict[str, tuple[float, int]] = attrs.field(factory=dict)

    def line(self, event: ordered_pubsub.Event) -> str:
        """What the table must have of an event."""
        assert event.position is not None
        symbol, price = event.data["symbol"], event.data.get("price")
        if price is None:
            self.quotes[symbol] = (event.data["bid"], event.position)
        held = self.quotes.get(symbol, (None, None))
        return json.dumps([event.position, event.topic, event.number, symbol, price, *held])


async def _write_log(addresses: list[str], events: int, path: Path) -> None:
    """What somebody makes of his notifications who begins with the first event."""
    market, count = Market(), 0
    async with ordered_pubsub.connect(f"memory://{uuid4().hex}", sequencer=addresses) as client:
        subscription = await client.subscribe(*TOPICS, start="earliest")
        with path.open("w") as file:
            async for batch in subscription.batches(5_000):
                file.writelines(market.line(event) + "\n" for event in batch)
                count += len(batch)
                if count >= events:
                    return


def notified(addresses: list[str], events: int, path: Path) -> Iterator[str]:
    """The lines that the table must have."""
    asyncio.run(asyncio.wait_for(_write_log(addresses, events, path), PATIENCE_S))
    with path.open() as file:
        for line in file:
            yield line.rstrip("\n")


def table(folder: Path) -> Iterator[str]:
    """The lines that the table has, in the order of its batches and their files: nothing sorts them."""
    for batch in sorted(folder.glob("batch=*"), key=lambda path: int(path.name.partition("=")[2])):
        for file in sorted(batch.glob("part-*.parquet")):
            for rows in pq.ParquetFile(file).iter_batches(columns=list(COLUMNS)):
                yield from (json.dumps([row[column] for column in COLUMNS]) for row in rows.to_pylist())


def compare(log: Iterator[str], found: Iterator[str]) -> tuple[int, str, str, str]:
    """How many lines the second has, the hash of each, and the first difference."""
    hashes, rows, difference = (hashlib.sha256(), hashlib.sha256()), 0, ""
    for at, (expected, came) in enumerate(zip_longest(log, found)):
        rows += came is not None
        for line, one in zip((expected, came), hashes, strict=True):
            one.update(b"" if line is None else f"{line}\n".encode())
        if expected != came and not difference:
            difference = f"line {at}: expected {expected}, and there is {came}"
    return rows, hashes[0].hexdigest(), hashes[1].hexdigest(), difference


# -- the pipeline -------------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Victim:
    """The pipeline and its stages, and what kills them."""

    folder: Path
    stages: StageProcesses
    rows: int
    chance: Random
    starts: int = 0
    process: Process = attrs.field(init=False)

    def start(self, *more: str) -> None:
        """Start the pipeline, again, on what there is."""
        self.starts += 1
        addresses = ",".join(self.stages.addresses)
        command = [sys.executable, str(EXAMPLE), "--sequencer", addresses, "--output", str(self.output)]
        said = self.folder / "pipeline.log"
        self.process = Process("the pipeline", [*command, "--rows", str(self.rows), *more], said, folder=self.folder)
        self.process.begin()

    @property
    def output(self) -> Path:
        """The folder of its tables."""
        return self.folder / "market"

    @property
    def batch(self) -> int:
        """The last one that has begun: Spark writes where it ends before it reads it."""
        begun = (self.output / "checkpoint" / "offsets").glob("[0-9]*")
        return max((int(path.name) for path in begun), default=-1)

    @property
    def is_at_work(self) -> bool:
        """Whether its query runs, also after another start: it has a process for the source then."""
        return any("streaming_source_runner" in command_of(pid) for pid in self._below)

    @property
    def _below(self) -> list[int]:
        """The processes that belong to it."""
        return descendants_of(self.process.pid) if self.process.pid is not None else []

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait while the pipeline runs."""
        self.process.wait_until(is_so, f"so far that {what}", PATIENCE_S)

    def finish(self) -> None:
        """Wait until it has taken what there is."""
        code = self.process.wait(PATIENCE_S)
        expect(code == 0, f"the pipeline ended with {code}. {self.process.last_words}")

    def hit(self, kind: str, batch: int) -> Kill:
        """Kill somebody while this batch, or the next one, is at work."""
        self.wait_until(lambda: self.batch >= batch and self.is_at_work, f"batch {batch} had begun")
        at = time.monotonic() + self.chance.uniform(0.0, BATCH_S)
        self.wait_until(lambda: self.batch > batch or time.monotonic() >= at, f"its {kind} was killed")
        {"driver": self._kill_driver, "worker": self._kill_worker, "stage": self._kill_stage}[kind]()
        return Kill(kind, self.batch)

    def _kill_driver(self) -> None:
        expect(self.process.is_running, "the pipeline had ended before its driver was killed")
        expect(any(is_jvm(command_of(pid)) for pid in self._below), "the driver had no JVM yet")
        self.process.kill()
        self.start()

    def _kill_stage(self) -> None:
        stage = self.chance.choice(self.stages.processes)
        stage.kill()
        expect(self.process.is_running, "the pipeline had ended before a stage was killed")
        stage.start()

    def _kill_worker(self) -> None:
        """The one that reads a range, in its middle. The stages stand still while it is looked for, and go on for moments."""
        looks, seen = self.chance.randrange(1, LOOKS + 1), 0
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            with self._stages_stopped():
                reader = self._reader()
                looks = 1 if seen and reader is None else looks
                seen = 0 if reader is None else seen + 1
                if reader is not None and seen >= looks and self._kill_if_it_reads(reader):
                    break
            expect(self.process.is_running, "the pipeline had ended before its worker was killed")
            expect(time.monotonic() < give_up_at, f"nobody was seen to read within {PATIENCE_S:g} s")
            time.sleep(MOMENT_S)
        code = self.process.wait(PATIENCE_S)
        expect(code not in (0, None), "the pipeline did not notice that its worker was killed while it read")
        self.start()

    @contextmanager
    def _stages_stopped(self) -> Iterator[None]:
        """They send nothing, so nobody comes to the end of what he reads."""
        for stage in self.stages.processes:
            stage.send(signal.SIGSTOP)
        try:
            yield
        finally:
            for stage in self.stages.processes:
                stage.send(signal.SIGCONT)

    def _reader(self) -> int | None:
        """The worker that is connected to a stage."""
        daemons = [pid for pid in self._below if "pyspark.daemon pyspark.worker" in command_of(pid)]
        return next((pid for pid in daemons if speaks_to(pid, self._ports)), None)

    @property
    def _ports(self) -> set[int]:
        return {stage.port for stage in self.stages.processes}

    def _kill_if_it_reads(self, reader: int) -> bool:
        """Kill it, unless it has everything already and has just ended: stopped, it cannot do so while that is looked at."""
        with suppress(ProcessLookupError):
            os.kill(reader, signal.SIGSTOP)
            is_reading = speaks_to(reader, self._ports)
            os.kill(reader, signal.SIGKILL if is_reading else signal.SIGCONT)
            return is_reading
        return False


def planned(batches: int, kills: int, chance: Random) -> list[tuple[str, int]]:
    """What is killed in which batch: each kind as often as the others, spread over all batches but the spare ones."""
    kinds = (KINDS * kills)[:kills]
    places = sorted(chance.sample(range(1, batches - SPARE), kills))
    return list(zip(chance.sample(kinds, kills), places, strict=True))


def run(events: int = EVENTS, rows: int = ROWS, kills: int = KILLS, seed: int = SEED) -> Outcome:
    """Kill it so many times, and compare."""
    begin, chance = time.monotonic(), Random(seed)
    with TemporaryDirectory() as name:
        folder = Path(name)
        stages = StageProcesses(folder / "stages", [["eu/**"], ["**"]])
        victim = Victim(folder, stages, rows, chance)
        try:
            stages.start()
            victim.start("--events", str(events))
            hits = [_say(victim.hit(*one)) for one in planned(events // rows, kills, chance)]
            victim.finish()
            log = notified(stages.addresses, events, folder / "log")
            compared = compare(log, table(victim.output / "ticks"))
        finally:
            victim.process.kill()
            stages.kill()
    count, log_hash, table_hash, difference = compared
    took_s = time.monotonic() - begin
    return Outcome(events, count, tuple(hits), victim.starts, log_hash, table_hash, difference, took_s)


def _say(hit: Kill) -> Kill:
    print(f"killed: {hit.kind} in batch {hit.batch}", flush=True)
    return hit


def describe(found: Outcome) -> str:
    """The figures."""
    kinds = ", ".join(f"{kind} {count} times" for kind, count in sorted(found.killed.items()))
    return (
        f"{found.events:,} events, {found.rows:,} rows; killed: {kinds}; the pipeline was started {found.starts} times\n"
        f"sha256 of the notifications {found.log_sha256}\n"
        f"sha256 of the table         {found.table_sha256}"
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--events", EVENTS), ("--rows", ROWS), ("--kills", KILLS), ("--seed", SEED)):
        parser.add_argument(option, type=int, default=default)
    given = parser.parse_args()
    found = run(given.events, given.rows, given.kills, given.seed)
    print(describe(found))
    sys.exit(found.difference or None)


if __name__ == "__main__":
    main()
