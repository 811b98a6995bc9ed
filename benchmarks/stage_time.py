"""Where a stage's time goes, event by event: what it takes in, decides, writes, waits for the disk for, and sends.

    python benchmarks/stage_time.py [--events 40000]

One client publishes through one stage on two topics in turn, which its own subscription holds together, as fast as its pipeline
allows; the broker is in the client's process. Each row is measured twice: once as the stage is, which gives its rate and the
processor time of an event, and once with a timer around each of `PARTS`, which are functions of the product that this program
finds by their names and nothing else knows of. A part's time is what passes in it without the parts that it calls. What is left
of the processor time, when all parts are taken away, is the event loop's, its sockets', and the timers'.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from inspect import isgeneratorfunction
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns, thread_time_ns
from typing import Any

import attrs

import ordered_pubsub
from ordered_pubsub.bench.plan import DURABILITIES, PACKED, PIPELINE
from ordered_pubsub.bench.processes import BEGIN_PROFILE, END_PROFILE
from ordered_pubsub.testing.processes import Starter, WorkerProcess, command_of, cpu_ns
from ordered_pubsub.testing.stages import OURS, StageProcesses

EVENTS = 40_000
BYTES = 200
TOPICS = ("time/a", "time/b")
WAYS: Mapping[str, Mapping[str, Any]] = {"single": PIPELINE, "packed": PACKED}
LEVELS = ("ordered", "exactly-once")
CLIENTS, NODE, STORE = (
    "ordered_pubsub.server.doors.clients",
    "ordered_pubsub.server.stage.node",
    "ordered_pubsub.server.store",
)
DRIVER = "ordered_pubsub.core.stage.driver:Driver"
PARTS = {
    "decode": ("ordered_pubsub.wire.framing:Deframer.feed", f"{CLIENTS}:decode"),
    "check": (f"{CLIENTS}:signing_request", f"{CLIENTS}:ClientConnection._refusal", f"{NODE}:check_signed"),
    "decide": (f"{DRIVER}.handle_request", f"{DRIVER}.handle_subscriber", f"{DRIVER}.take", f"{DRIVER}.release"),
    "encode": (
        "ordered_pubsub.core.stage._context:encode_input",
        "ordered_pubsub.core.log.writer:LogWriter.write",
        f"{STORE}.store:join_records",
    ),
    "write": (f"{STORE}.store:SqliteJournal.append", f"{STORE}.shelf:SqliteShelf.put_all"),
    "sync": (f"{STORE}.store:SqliteJournal.sync",),
    "tag": ("ordered_pubsub.core.trust.authenticity:Tagger.answer",),
    "send": (f"{CLIENTS}:encode", "ordered_pubsub.wire.channel:Channel.send"),
}
"""What counts as which part. (`check`: rights, and whose events they are; `tag`: by what subscribers know what is genuine.)"""

SYNC_CPU = "sync, CPU"
"""Of what passes in `sync`, the time in which a processor works for it."""


# -- in the stage's process -----------------------------------------------------------------------------------------------


class Timers:
    """How long has passed in each part, without the parts that it calls."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = {}
        self._thread = threading.local()
        self.forget()

    def forget(self) -> None:
        """Count anew."""
        self.spent_ns |= dict.fromkeys((*PARTS, SYNC_CPU), 0)

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose calls are counted; of one that works step by step, the steps."""

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            return self._counted(part, function, given, named)

        @wraps(function)
        def step_by_step(*given: Any, **named: Any) -> Any:
            step = function(*given, **named).__next__
            while True:
                try:
                    said = self._counted(part, step, (), {})
                except StopIteration as end:
                    return end.value
                yield said

        return step_by_step if isgeneratorfunction(function) else call

    def _counted(self, part: str, function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        thread = self._thread
        outer_ns, thread.inner_ns = getattr(thread, "inner_ns", 0), 0
        cpu_ns = thread_time_ns() if part == "sync" else 0
        began_ns = perf_counter_ns()
        try:
            return function(*given, **named)
        finally:
            took_ns = perf_counter_ns() - began_ns
            self.spent_ns[part] += took_ns - thread.inner_ns
            thread.inner_ns = outer_ns + took_ns
            if part == "sync":
                self.spent_ns[SYNC_CPU] += thread_time_ns() - cpu_ns


def place_of(name: str) -> tuple[Any, str]:
    """Where a function of the product is: its module or class, and its name there."""
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    place: Any = import_module(module)
    for owner in owners:
        place = getattr(place, owner)
    return place, last


def serve_timed(file: str, arguments: list[str]) -> int:
    """Be a stage with timers; what they count between two signals is written to the file."""
    from ordered_pubsub.cli import main as command

    timers = Timers()
    for part, names in PARTS.items():
        for name in names:
            place, last = place_of(name)
            setattr(place, last, timers.around(part, getattr(place, last)))
    signal.signal(BEGIN_PROFILE, lambda *_: timers.forget())
    signal.signal(END_PROFILE, lambda *_: Path(file).write_text(json.dumps(timers.spent_ns)))
    return command(arguments)


# -- the client's process -------------------------------------------------------------------------------------------------


async def publish(starter: Starter, sequencer: str, level: str, settings: dict[str, Any]) -> None:
    """Publish as many as told, until they are notified; say how long that took."""
    ens = f"memory://{os.getpid()}"
    payload = b"x" * BYTES
    async with ordered_pubsub.connect(ens, sequencer=sequencer, delivery=level, **settings) as client:
        subscription = await client.subscribe(*TOPICS)

        async def take(count: int) -> None:
            for _ in range(count):
                await anext(subscription)

        starter.tell(state="ready")
        while True:
            events = (await starter.hear())["events"]
            began = perf_counter_ns()
            taking = asyncio.create_task(take(events))
            under_way: list[asyncio.Future[ordered_pubsub.Receipt]] = []
            for number in range(events):
                if len(under_way) >= settings["pipeline_events_max"]:
                    await under_way.pop(0)
                under_way.append(client.publish_nowait(TOPICS[number % 2], payload))
            await asyncio.gather(*under_way, taking)
            starter.tell(seconds=(perf_counter_ns() - began) / 1e9)


# -- the measurement ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Spent:
    """A row: a level, a way of publishing and a durability."""

    level: str
    way: str
    durability: str
    rate: float
    """events a second, without timers"""
    cpu_us: float
    """of the stage, for an event, without timers"""
    timed_cpu_us: float
    """with them"""
    parts_us: Mapping[str, float]
    """what passed for an event in each part"""

    @property
    def rest_us(self) -> float:
        """Of the processor time with timers, what is no part's."""
        return self.timed_cpu_us - sum(value for part, value in self.parts_us.items() if part != "sync")


def _run(level: str, way: str, durability: str, events: int, folder: Path, file: Path | None) -> tuple[float, float]:
    """Events a second, and microseconds of the stage's processor time for each."""
    program = OURS if file is None else (str(Path(__file__).resolve()), "--stage", str(file))
    more = f'[[topic]]\npattern = "**"\ndelivery = "{level}"\n'
    stages = StageProcesses(folder, [["**"]], durability, more, program=program)
    (stage,) = stages.processes
    plan = {"sequencer": stage.address, "level": level, "settings": dict(WAYS[way])}
    client = WorkerProcess("the client", command_of(publish), folder / "client.log", plan=plan)
    try:
        stages.start()
        client.begin()
        client.hear()
        client.ask(events=max(events // 4, 100))  # warm
        stage.send(BEGIN_PROFILE) if file is not None else None
        before = cpu_ns(stage.pid) or 0
        seconds = client.ask(events=events)["seconds"]
        spent = (cpu_ns(stage.pid) or 0) - before
        stage.send(END_PROFILE) if file is not None else None
        client.end()
        stage.stop()
    finally:
        client.kill()
        stages.kill()
    return events / seconds, spent / events / 1e3


def measure(level: str, way: str, durability: str, events: int) -> Spent:
    """One row."""
    events *= 5 if way == "packed" else 1
    with TemporaryDirectory() as name:
        rate, cpu_us = _run(level, way, durability, events, Path(name) / "plain", None)
        file = Path(name) / "parts.json"
        _, timed_cpu_us = _run(level, way, durability, events, Path(name) / "timed", file)
        found = json.loads(file.read_text())
    parts = {part: found.get(part, 0) / events / 1e3 for part in (*PARTS, SYNC_CPU)}
    return Spent(level, way, durability, rate, cpu_us, timed_cpu_us, parts)


def run(events: int = EVENTS) -> list[Spent]:
    """All rows."""
    return [measure(level, way, durability, events) for level in LEVELS for way in WAYS for durability in DURABILITIES]


def table(rows: list[Spent]) -> list[tuple[str, ...]]:
    """Head and rows."""
    head = ("level", "way", "durability", "events/s", "stage, µs of CPU", *PARTS, "rest")
    return [
        head,
        *(
            (
                row.level,
                row.way,
                row.durability,
                f"{row.rate:,.0f}",
                f"{row.cpu_us:.1f}",
                *(f"{row.parts_us[part]:.1f}" for part in PARTS),
                f"{row.rest_us:.1f}",
            )
            for row in rows
        ),
    ]


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--stage"]:
        sys.exit(serve_timed(sys.argv[2], sys.argv[3:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS, help="single ones; of packed ones five times as many")
    from ordered_pubsub.bench.report import table as lines

    print("\n".join(lines(table(run(parser.parse_args().events)))))


if __name__ == "__main__":
    main()
