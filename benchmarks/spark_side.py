"""What measurements with Spark have in common: a session in a process of its own, which says what it found, and its memory."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from processes_seen import command_of, descendants_of, is_jvm, memory_of_all_mb
from proving import ROOT, expect

from ordered_pubsub.testing.processes import Process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "1g"
"""The most that the heap of the JVM may have, with what executors do: they are in it."""
PROCESSORS = 2
SAMPLE_S = 0.2
PATIENCE_S = 1_800.0


@attrs.define(eq=False)
class Memory:
    """What processes held, from time to time."""

    samples: list[tuple[float, dict[str, float]]] = attrs.field(factory=list)
    """when (`time.monotonic()`), and who held how many MB"""

    def between(self, begin: float, end: float) -> dict[str, float]:
        """The most that each held in a time."""
        most: dict[str, float] = {}
        for at, held in self.samples:
            if begin <= at <= end:
                most |= {who: max(mb, most.get(who, 0.0)) for who, mb in held.items()}
        return most


def held_by_spark(pid: int) -> dict[str, float]:
    """What a driver's Python, its JVM, and all other Pythons below that hold."""
    below = {child: command_of(child) for child in descendants_of(pid)}
    jvm = [child for child, command in below.items() if is_jvm(command)]
    workers = [child for child in below if child not in jvm]
    return {
        "driver": memory_of_all_mb([pid]),
        "JVM": memory_of_all_mb(jvm),
        "workers": memory_of_all_mb(workers),
    }


@contextmanager
def sampled(driver: Process, others: dict[str, int]) -> Iterator[Memory]:
    """The memory of a driver with all that belongs to it, and of some other processes, until the end of the block."""
    memory, is_over = Memory(), threading.Event()

    def go_on() -> None:
        while not is_over.wait(SAMPLE_S):
            held = {who: memory_of_all_mb([other]) for who, other in others.items()}
            if (pid := driver.pid) is not None:
                memory.samples.append((time.monotonic(), held_by_spark(pid) | held))

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield memory
    finally:
        is_over.set()
        thread.join()


def ask(script: str, folder: Path, plan: dict[str, Any], **others: int) -> tuple[list[dict[str, Any]], Memory]:
    """Run a script that is given a plan and finds figures with Spark; what it found, and the memory of all meanwhile."""
    log, found = folder / f"{plan['what']}.log", folder / f"{plan['what']}.jsonl"
    path = os.pathsep.join(filter(None, (str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH"))))  # for the workers
    command = [sys.executable, script, "--plan", json.dumps({**plan, "found": str(found)})]
    process = Process(Path(script).stem, command, log, {**os.environ, "PYTHONPATH": path}, folder)
    try:
        process.begin()
        with sampled(process, others) as memory:
            code = process.wait(PATIENCE_S)
    finally:
        process.kill()
    expect(code == 0, f"{script} ended with {code}. {process.last_words}")
    return [json.loads(line) for line in found.read_text().splitlines()], memory


def say(plan: dict[str, Any], found: dict[str, Any]) -> None:
    """One figure, or several, from the process of its own."""
    with Path(plan["found"]).open("a") as file:
        file.write(json.dumps(found) + "\n")


def session(folder: Path, **more: str) -> SparkSession:
    """Spark on this machine, in this process, with more settings (`_` for each dot in their names)."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    settings |= {name.replace("_", "."): value for name, value in more.items()}
    found = SparkSession.builder.master(f"local[{PROCESSORS}]").config(map=settings).getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


@contextmanager
def few_processors() -> Iterator[None]:
    """Whatever is started in this block gets along with two processors, where there are more."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:PROCESSORS])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
