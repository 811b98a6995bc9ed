"""What an application keeps that must handle every event exactly once: its results and how far they go, in one database.

The recipe has three parts. The effect of an event and the event's number on its topic are written in the same transaction, so
that neither is ever there without the other. The event is acknowledged after that has been committed, so that none is forgotten
which has no effect yet. And what comes again after a crash in between is skipped, since the database says that it has it.

Here the effect is a row that says which event it was, and which position it had. An event that comes again must be the same as
before; if it is not, that is written down as well.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from ordered_pubsub import Event

_TABLES = """
    CREATE TABLE IF NOT EXISTS begun (topic TEXT PRIMARY KEY, number INTEGER);
    CREATE TABLE IF NOT EXISTS clock (topic TEXT PRIMARY KEY, number INTEGER);
    CREATE TABLE IF NOT EXISTS effects (
        place INTEGER PRIMARY KEY, topic TEXT, number INTEGER, event TEXT, position INTEGER, latency_us INTEGER,
        UNIQUE (topic, number)
    );
    CREATE TABLE IF NOT EXISTS again (topic TEXT, number INTEGER, event TEXT, position INTEGER, is_same INTEGER);
"""


class Results:
    """The database of one application."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.executescript(_TABLES)
        self.clock: dict[str, int] = dict(self._database.execute("SELECT topic, number FROM clock"))
        """topic → up to which number its events have had their effect"""

    def begin(self, clock: Mapping[str, int]) -> None:
        """The subscription begins here."""
        self._database.execute("BEGIN")
        for table in ("begun", "clock"):
            self._database.executemany(f"INSERT INTO {table} VALUES (?, ?)", clock.items())
        self._database.execute("COMMIT")
        self.clock = dict(clock)

    def take(self, events: Sequence[Event], latencies_us: Sequence[int]) -> None:
        """Let events have their effect, all of them or none, and each once."""
        clock = dict(self.clock)
        self._database.execute("BEGIN")
        for event, latency_us in zip(events, latencies_us, strict=True):
            if event.number <= clock.get(event.topic, 0):
                self._note_again(event)
                continue
            row = (event.topic, event.number, event.id, event.position, latency_us)
            self._database.execute(
                "INSERT INTO effects (topic, number, event, position, latency_us) VALUES (?, ?, ?, ?, ?)", row
            )
            clock[event.topic] = event.number
        self._database.executemany("INSERT OR REPLACE INTO clock VALUES (?, ?)", clock.items())
        self._database.execute("COMMIT")
        self.clock = clock

    def _note_again(self, event: Event) -> None:
        row = (event.topic, event.number)
        before = self._database.execute("SELECT event, position FROM effects WHERE topic = ? AND number = ?", row)
        is_same = before.fetchone() == (event.id, event.position)
        self._database.execute("INSERT INTO again VALUES (?, ?, ?, ?, ?)", (*row, event.id, event.position, is_same))

    def close(self) -> None:
        """Nothing more happens."""
        self._database.close()


def lines_of(path: Path) -> Iterator[str]:
    """What a database says, as the judge reads it."""
    with closing(sqlite3.connect(path)) as database:
        for row in database.execute("SELECT topic, number FROM begun"):
            yield "@ {} {}".format(*row)
        for row in database.execute("SELECT topic, number, event, position, latency_us FROM effects ORDER BY place"):
            yield "{} {} {} {} {}".format(*row)
        for row in database.execute("SELECT topic, number, event, position, is_same FROM again"):
            yield "~ {} {} {} {} {}".format(*row)
