"""What topics cost a stage that nobody needs any more: `python benchmarks/resting_topics.py [--topics 200000]`.

A stage alone, on a store in a temporary directory and on a clock of its own: so many topics have an event each, which is kept,
and which the log forgets because nobody holds the topic. Measured before and after they have come to rest: the bytes of a
snapshot and of the store, and, in a process of its own, how long the stage takes to start and what it then has in memory. Then
some topics are published on again: each must go on with number 2. Exit code 1 if one does not, or if anything but last numbers
is left.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

import attrs

from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.log.retention import Policies, Policy
from ordered_pubsub.core.messages import Answer, Chunk, Publication, PublishAsk, Request
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.server.store.store import Store, open_store

TOPICS = 200_000
ALONE = Topology((StageSpec("only"),))
FORGET = Policies(default=Policy(keep_age_s=0.0))
PARTS = 250
"""Topics of one request."""
TICK_S = 0.5
GIVE_UP_S = 100_000.0
CHECKED = 1_000
EVENT = b"x" * 100


@attrs.frozen
class Cost:
    """What the stage costs at one time."""

    memory_bytes: int
    snapshot_bytes: int
    store_bytes: int
    start_s: float


@attrs.define
class Measured:
    """A stage that runs, and may be started again."""

    file: Path
    now: float = 0.0
    sequence: int = 0
    store: Store = attrs.field(init=False)
    driver: Driver = attrs.field(init=False)

    started_s: float = attrs.field(init=False)
    """how long it took to start"""

    def __attrs_post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start on what the store has."""
        begin = time.perf_counter()
        self.store = open_store(str(self.file), "os", "only")
        self.driver = Driver.open(0, ALONE, self.store.journal, policies=FORGET, levels=Levels())
        self.started_s = time.perf_counter() - begin

    def stop(self) -> None:
        """Stop cleanly."""
        self.driver.flush()
        self.store.close(self.driver.stage.snapshot())

    def publish(self, topics: Sequence[str]) -> list[int]:
        """An event on each of these topics; return their numbers."""
        numbers: list[int] = []
        for first in range(0, len(topics), PARTS):
            self.sequence += 1
            parts = tuple(PublishAsk(topic, 1, True, (Chunk(1, EVENT),)) for topic in topics[first : first + PARTS])
            self.driver.handle_request(Request("c", 1, self.sequence, self.sequence - 1, self.sequence - 1, parts), 0.0)
            (answer,) = self.driver.flush().replies
            assert isinstance(answer, Answer)
            numbers += [part.first for part in answer.parts if isinstance(part, Publication)]
        return numbers

    def come_to_rest(self) -> float:
        """Let time pass until no topic is awake; return how much did on the stage's clock."""
        begin = self.now
        while self.driver.stage.state.clocks.numbers and self.now < begin + GIVE_UP_S:
            self.now += TICK_S
            self.driver.tick(self.now, 1_000.0 + self.now)
            while self.driver.is_asked:
                self.driver.serve()
            self.driver.flush()
        return self.now - begin

    def cost(self) -> Cost:
        """Stop, start, and see what it costs."""
        self.stop()
        snapshot = len(self.driver.stage.snapshot())
        found = run([sys.executable, __file__, "--start", str(self.file)], capture_output=True, text=True, check=True)
        memory, start_s = json.loads(found.stdout)
        self.start()
        return Cost(memory, snapshot, self.file.stat().st_size - self.free_bytes(), start_s)

    def free_bytes(self) -> int:
        """What of the file is free for what comes next."""
        execute = self.store.journal._connection.execute  # type: ignore[attr-defined]  # no other way to look into it
        return int(execute("PRAGMA freelist_count").fetchone()[0] * execute("PRAGMA page_size").fetchone()[0])


def memory_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def start_once(file: Path) -> tuple[int, float]:
    """Start a stage in this process: how much more it has in memory then, and how long it took."""
    gc.collect()
    before = memory_bytes()
    stage = Measured(file)
    gc.collect()
    cost = memory_bytes() - before, stage.started_s
    stage.stop()
    return cost


def measure(topics: int, directory: Path) -> tuple[Cost, Cost, float, list[str]]:
    """The costs of so many topics awake and at rest, how long it took until they were, and what went wrong."""
    names = [f"fleet/{number:08}/position" for number in range(topics)]
    stage = Measured(directory / "stage.db")
    stage.publish(names)
    awake = stage.cost()
    rested_after_s = stage.come_to_rest()
    resting = stage.cost()
    state = stage.driver.stage.state
    wrong = [
        f"{len(table)} topics are left in {what}"
        for what, table in (("numbers", state.clocks.numbers), ("kept", state.kept), ("marks", state.marks))
        if table
    ]
    chosen = random.Random(1).sample(names, min(CHECKED, topics))
    went_on = stage.publish(chosen)
    wrong += [
        f"{topic} went on with number {number}" for topic, number in zip(chosen, went_on, strict=True) if number != 2
    ]
    stage.stop()
    return awake, resting, rested_after_s, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print what came of it."""
    parser = argparse.ArgumentParser(description="what topics cost a stage that nobody needs any more")
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.start is not None:
        print(json.dumps(start_once(parsed.start)))
        return 0
    topics = parsed.topics
    with TemporaryDirectory() as directory:
        awake, resting, rested_after_s, wrong = measure(topics, Path(directory))
    print(f"{topics:,} topics with an event each, on a clock of its own at rest after {rested_after_s:,.0f} s\n")
    print("| | awake | at rest | bytes a topic at rest |")
    print("| --- | ---: | ---: | ---: |")
    for what, name in (
        ("memory of the process", "memory_bytes"),
        ("snapshot", "snapshot_bytes"),
        ("store", "store_bytes"),
    ):
        before, after = getattr(awake, name), getattr(resting, name)
        print(f"| {what} | {before / 1e6:,.1f} MB | {after / 1e6:,.1f} MB | {after / topics:,.1f} |")
    print(f"| start | {awake.start_s:.2f} s | {resting.start_s:.2f} s | |")
    for line in wrong[:10]:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
