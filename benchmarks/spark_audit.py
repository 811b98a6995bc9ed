"""The audit of a million recorded notifications: nothing in a clean log, and exactly what was planted in others.

    python benchmarks/spark_audit.py [--subscribers 50] [--each 20000] [--topics 30]

Each subscriber holds some of the topics, and is notified of their events in the one order, from some place in it on. There are
transactions in it, of three events each that follow each other. One log is clean; in each of the others is one mistake in the
notifications of one subscriber. A new Spark judges them one after the other: what is found, how long each took, and the most that
the JVM and the Pythons held meanwhile. The first one is the slowest, for Spark loads and compiles what it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from spark_side import ask, few_processors, say, session

SUBSCRIBERS, EACH, TOPICS = 50, 20_000, 30
HELD_LEAST, HELD_MOST = 8, 16
"""so many topics a subscriber has"""
TX_EVERY, TX_EVENTS = 20, 3
SEED = 4
SCHEMA = pa.schema(
    {"subscriber": pa.string(), "place": pa.int64(), "topic": pa.string(), "number": pa.int64(), "tx": pa.string()}
)

Event = tuple[str, int, str | None]
"""topic, number, transaction"""


@attrs.frozen
class Planted:
    """A mistake, and what must be found: of which kind, how often, and an example of it."""

    kind: str
    count: int
    example: str
    log: list[Event] = attrs.field(repr=False)
    """with the mistake in it"""


@attrs.frozen
class Judged:
    """What was found in a log."""

    what: str
    """"clean", or what was planted"""
    expected: tuple[tuple[str, int], ...]
    example: str
    notifications: int
    found: tuple[tuple[str, int], ...]
    examples: tuple[str, ...]
    took_s: float
    mb: Mapping[str, float]


# -- the logs -----------------------------------------------------------------------------------------------------------------


def order(events: int, topics: list[str], chance: Random) -> list[Event]:
    """One order of at least so many events."""
    numbers, found = dict.fromkeys(topics, 0), list[Event]()
    while len(found) < events:
        tx = f"x{len(found)}" if chance.randrange(TX_EVERY) == 0 else None
        for _ in range(TX_EVENTS if tx else 1):
            topic = chance.choice(topics)
            numbers[topic] += 1
            found.append((topic, numbers[topic], tx))
    return found


def clean(subscribers: int, each: int, topics: int, chance: Random) -> dict[str, list[Event]]:
    """What each is notified of: so many events of the topics it holds, beginning where no transaction is divided."""
    names = [f"t{at:02}" for at in range(topics)]
    whole = order(2 * each * topics // HELD_LEAST, names, chance)
    begins = [at for at in range(len(whole) // 4) if whole[at][2] is None]
    logs = {}
    for subscriber in range(subscribers):
        held, begin = set(chance.sample(names, chance.randint(HELD_LEAST, HELD_MOST))), chance.choice(begins)
        mine = (event for event in whole[begin:] if event[0] in held)
        logs[f"s{subscriber:03}"] = [event for event, _ in zip(mine, range(each), strict=False)]
    return logs


def swapped(name: str, logs: Mapping[str, list[Event]]) -> Planted:
    """Two neighbours on two topics, of which somebody else was notified as well, in the other order."""
    log = list(logs[name])
    others = [set(other) for subscriber, other in logs.items() if subscriber != name]
    at = _first(
        log, lambda at: log[at][0] != log[at + 1][0] and any({log[at], log[at + 1]} <= other for other in others)
    )
    (one, number, _), (other, following, _) = log[at], log[at + 1]
    log[at], log[at + 1] = log[at + 1], log[at]
    example = f"{one} {number} came after {other} {following} for one, and before {other} {following} for one"
    return Planted("order", 2, example, log)  # said of either of the two


def gap(name: str, logs: Mapping[str, list[Event]]) -> Planted:
    """One event is missing."""
    log = list(logs[name])
    topic, number, _ = log.pop(_first(log, lambda at: True))
    return Planted("gap", 1, f"{name} has {topic} {number - 1} and then {number + 1}: nothing between", log)


def duplicate(name: str, logs: Mapping[str, list[Event]]) -> Planted:
    """One event came twice."""
    log = list(logs[name])
    at = _first(log, lambda at: True)
    log.insert(at, log[at])
    return Planted("duplicate", 1, f"{name} was notified of {log[at][0]} {log[at][1]} 2 times", log)


def torn(name: str, logs: Mapping[str, list[Event]]) -> Planted:
    """An event behind the one after a transaction belongs to it."""
    log = list(logs[name])
    at = _first(log, lambda at: log[at - 1][2] is not None)
    tx = log[at - 1][2]
    log[at + 1] = (*log[at + 1][:2], tx)
    events = sum(event[2] == tx for event in log)
    return Planted(
        "torn", 1, f"{name} has the {events} events of transaction {tx} spread over {events + 1} notifications", log
    )


def _first(log: list[Event], is_good: Callable[[int], bool]) -> int:
    """Where in the second half of a log there are two events of no transaction, and whatever else is wanted."""
    return next(
        at for at in range(len(log) // 2, len(log)) if log[at][2] is None and log[at + 1][2] is None and is_good(at)
    )


PLANTING = (swapped, gap, duplicate, torn)


def write(path: Path, name: str, log: list[Event]) -> None:
    """The notifications of one subscriber, as Parquet."""
    topics, numbers, txs = zip(*log, strict=True)
    columns = [[name] * len(log), range(len(log)), topics, numbers, txs]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), path)


def write_all(folder: Path, logs: Mapping[str, list[Event]]) -> dict[str, Planted | None]:
    """A folder for each log, with a file for each subscriber; returns what is wrong in each."""
    found: dict[str, Planted | None] = {"clean": None}
    (folder / "clean").mkdir()
    for name, log in logs.items():
        write(folder / "clean" / f"{name}.parquet", name, log)
    for at, plant in enumerate(PLANTING):
        name = list(logs)[at]
        planted = found[plant.__name__] = plant(name, logs)
        (folder / plant.__name__).mkdir()
        for file in (folder / "clean").iterdir():
            os.link(file, folder / plant.__name__ / file.name)
        (folder / plant.__name__ / f"{name}.parquet").unlink()
        write(folder / plant.__name__ / f"{name}.parquet", name, planted.log)
    return found


# -- the measurement ----------------------------------------------------------------------------------------------------------


def judge(plan: dict[str, Any]) -> None:
    """All logs in their turn; in a process of its own."""
    from ordered_pubsub.spark.jobs import audit

    folder = Path(plan["folder"])
    spark = session(folder)
    for what in plan["logs"]:
        begin = time.monotonic()
        found = audit(spark.read.parquet(str(folder / what)))
        say(
            plan,
            {
                "notifications": found.notifications,
                "found": [(finding.kind, finding.count) for finding in found.findings],
                "examples": [example for finding in found.findings for example in finding.examples],
                "begin": begin,
                "end": time.monotonic(),
            },
        )


def run(subscribers: int = SUBSCRIBERS, each: int = EACH, topics: int = TOPICS) -> list[Judged]:
    """Make the logs, and have them judged."""
    with TemporaryDirectory() as name, few_processors():
        folder = Path(name)
        logs = write_all(folder, clean(subscribers, each, topics, Random(SEED)))
        plan = {"what": "judge", "folder": name, "logs": list(logs)}
        found, memory = ask(__file__, folder, plan)
    return [
        Judged(
            what=what,
            expected=() if planted is None else ((planted.kind, planted.count),),
            example="" if planted is None else planted.example,
            notifications=one["notifications"],
            found=tuple((kind, count) for kind, count in one["found"]),
            examples=tuple(one["examples"]),
            took_s=one["end"] - one["begin"],
            mb=memory.between(one["begin"], one["end"]),
        )
        for (what, planted), one in zip(logs.items(), found, strict=True)
    ]


def table(found: list[Judged]) -> str:
    """The figures."""
    lines = ["log        notifications  found                seconds  MB at most"]
    for one in found:
        what = ", ".join(f"{kind}: {count}" for kind, count in one.found) or "nothing"
        held = ", ".join(f"{who} {mb:.0f}" for who, mb in one.mb.items())
        lines.append(f"{one.what:10} {one.notifications:13,}  {what:20} {one.took_s:7.1f}  {held}")
        lines += [f"    {example}" for example in one.examples]
    return "\n".join(lines)


def main() -> None:
    """Measure, or be the process with Spark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--subscribers", SUBSCRIBERS), ("--each", EACH), ("--topics", TOPICS)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--plan", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plan:
        judge(given.plan)
    else:
        print(table(run(given.subscribers, given.each, given.topics)))


if __name__ == "__main__":
    main()
