"""Damaged stores: what a stage makes of a store in which a bit has flipped, or of which the end is missing.

`make_store` runs a stage on a small store and takes its files as a killed, or a stopped, process leaves them. `start` starts a
stage on such files after something was done to them, reads everything and publishes once more. There are two good verdicts: the
stage refused, with a reason that is ours, or all acknowledged events are there and no number is given twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import attrs

from ordered_pubsub.core.messages import Answer, Chunk, Publication, PublishAsk, Request
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.storage import Journal
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.server.store.store import SqliteJournal

STAGE = "main"
NAME = "stage.db"
TOPOLOGY = Topology((StageSpec(STAGE),))
KEPT = ("a", "b")
NOT_KEPT = "c"
MUCH = 1 << 30
RIGHT, REFUSED, REFUSED_LATER = "all right", "refused to start", "refused when it was read"
LOST, TWICE, UNCLEAR = "AN EVENT IS LOST OR CHANGED", "A NUMBER IS GIVEN TWICE", "AN ERROR THAT IS NOT OURS"
GOOD = (RIGHT, REFUSED, REFUSED_LATER)

Files = Mapping[str, bytes]
"""What stands in the files of a store, by their names."""


@attrs.define
class Acknowledged:
    """What clients were told."""

    events: dict[tuple[str, int], bytes] = attrs.field(factory=dict)
    numbers: dict[str, int] = attrs.field(factory=dict)
    """topic → the last number that was given"""
    client: str = "client"
    sequence: int = 0
    """of its last request that was answered"""

    def copy(self, client: str = "client") -> Acknowledged:
        """As it is now; perhaps for another client, who has asked for nothing yet."""
        return Acknowledged(
            dict(self.events), dict(self.numbers), client, self.sequence if client == self.client else 0
        )


@attrs.define(eq=False)
class Stage:
    """A stage on a store, with one client."""

    journal: SqliteJournal
    driver: Driver
    acknowledged: Acknowledged

    @classmethod
    def on(cls, file: Path, acknowledged: Acknowledged, durability: str = "os") -> Stage:
        """Start it."""
        journal = SqliteJournal.open(file, durability, STAGE)
        try:
            driver = Driver.open(0, TOPOLOGY, journal)
        except BaseException:
            journal.close(None)
            raise
        stage = cls(journal, driver, acknowledged)
        driver.flush()
        return stage

    def publish(self, topic: str, *sizes: int) -> int:
        """Publish events, in chunks of so many; return their first number, which the client is told."""
        known, is_kept, count = self.acknowledged, topic in KEPT, sum(sizes)
        known.sequence += 1
        chunks = tuple(
            Chunk(size, b"%s, request %d, chunk %d" % (topic.encode(), known.sequence, place))
            for place, size in enumerate(sizes)
        )
        before = known.sequence - 1
        ask = PublishAsk(topic, count, is_kept, chunks if is_kept else ())
        self.driver.handle_request(Request(known.client, 1, known.sequence, before, before, (ask,)), 1.0)
        (answer,) = self.driver.flush().replies
        assert isinstance(answer, Answer)
        (part,) = answer.parts
        assert isinstance(part, Publication)
        first = part.first
        for chunk in ask.chunks:
            for number in range(first, first + chunk.count):
                known.events[topic, number] = chunk.data
            first += chunk.count
        known.numbers[topic] = part.last
        return part.first

    def is_right(self) -> bool:
        """Whether all that was acknowledged is read as it was."""
        found: dict[tuple[str, int], bytes] = {}
        reader = self.driver.owner_logs.reader
        for topic in KEPT:
            last = self.acknowledged.numbers.get(topic, 0)
            for item in reader.read(topic, 1, last, MUCH, full=True).items:
                first = item.first
                for chunk in item.chunks:
                    found.update(((topic, number), chunk.data) for number in range(first, first + chunk.count))
                    first += chunk.count
            rows = reader.rows(topic, 1, last, MUCH)
            if rows.read_to != last:
                return False
        return all(found.get(place) == data for place, data in self.acknowledged.events.items())


def make_store(folder: Path, events: int = 24, page_bytes: int = 512, snapshot_at: int | None = None) -> Stage:
    """A stage that has run for a while on a new store, and runs still."""
    file = folder / NAME
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        connection.execute("PRAGMA journal_mode = WAL")
    stage = Stage.on(file, Acknowledged())
    for number in range(events):
        run(stage, number)
        if number == snapshot_at:
            put_whole(stage.journal, stage.driver.stage.snapshot())
            stage.journal._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return stage


def put_whole(journal: Journal, snapshot: bytes) -> None:
    """Put a snapshot in the place of everything, to the end."""
    journal.replace(snapshot)
    while journal.has_more:
        journal.sync()


def run(stage: Stage, number: int) -> None:
    """The next of a row of publications that are all different, among them some on a topic whose events nobody keeps."""
    topic = (*KEPT, KEPT[0], NOT_KEPT)[number % 4]
    sizes = ((1,), (2, 1), (3,))[number % 3]
    stage.publish(topic, *sizes)


def files_of(folder: Path) -> dict[str, bytes]:
    """What a process that is killed now leaves: what SQLite shares among processes is made anew from the rest."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if not file.name.endswith("-shm")}


def flipped(data: bytes, bit: int) -> bytes:
    """One bit is another."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def start(folder: Path, files: Files, acknowledged: Acknowledged) -> tuple[str, str]:
    """Start a stage on these files; the verdict, and the reason if it refused."""
    for file in folder.iterdir():
        file.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    known = acknowledged.copy("another one")
    try:
        stage = Stage.on(folder / NAME, known)
    except OrderedPubSubError as error:
        return REFUSED, str(error)
    except Exception as error:
        return UNCLEAR, repr(error)
    try:
        return _judge(stage), ""
    except OrderedPubSubError as error:
        return REFUSED_LATER, str(error)
    except Exception as error:
        return UNCLEAR, repr(error)
    finally:
        stage.journal.close(None)


def _judge(stage: Stage) -> str:
    """Read everything, publish on each topic, and read everything again."""
    if not stage.is_right():
        return LOST
    for topic in (*KEPT, NOT_KEPT):
        last = stage.acknowledged.numbers.get(topic, 0)
        if stage.publish(topic, 1) <= last:
            return TWICE
    return RIGHT if stage.is_right() else LOST


def every_bit(files: Files, name: str, step: int = 1) -> Iterator[tuple[str, Files]]:
    """Each bit of one file flipped, one at a time; or each so manieth."""
    for bit in range(0, 8 * len(files[name]), step):
        yield f"bit {bit % 8} of byte {bit // 8}", {**files, name: flipped(files[name], bit)}


def every_prefix(files: Files, name: str, step: int = 1) -> Iterator[tuple[str, Files]]:
    """One file cut off at each byte; or each so manieth."""
    for size in range(0, len(files[name]), step):
        yield f"cut off at byte {size}", {**files, name: files[name][:size]}


def without(files: Files, name: str) -> Files:
    """One file is not there."""
    return {other: data for other, data in files.items() if other != name}
