"""The log's rows in the SQLite file of a stage's journal.

A row's key is its topic's number, shifted, plus its first number: so each table is one tree in the order in which it is read, and
a stage writes at its right edge for each topic. What is put belongs to the transaction of the journal's next batch: both are on
disk or neither. Who reads has a connection of its own, so it sees what is on disk, and waits for nobody.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import attrs

from ordered_pubsub.core.log import ENDLESS, KINDS, Kind, Row
from ordered_pubsub.errors import JournalDamaged

TABLES = (
    "CREATE TABLE IF NOT EXISTS topic (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, floor INTEGER NOT NULL);"
    + "".join(
        f"CREATE TABLE IF NOT EXISTS {kind} "
        "(key INTEGER PRIMARY KEY, last INTEGER NOT NULL, checksum INTEGER NOT NULL, data BLOB NOT NULL);"
        for kind in KINDS
    )
)
_SHIFT = 40
assert ENDLESS < 1 << _SHIFT


@attrs.define(eq=False)
class SqliteShelf:
    """Rows in a file, seen through one connection."""

    file: Path
    _connection: sqlite3.Connection
    _begin: Callable[[], None]
    """makes sure that a transaction is open"""
    _ids: dict[str, int] = attrs.field(factory=dict)

    def put(self, kind: Kind, topic: str, rows: list[Row]) -> None:
        """Write rows."""
        self._begin()
        base = self._base(topic, make=True)
        self._connection.executemany(
            f"INSERT OR REPLACE INTO {kind} VALUES (?, ?, ?, ?)",
            [(base + row.first, row.last, crc32(row.data), row.data) for row in rows],
        )

    def _base(self, topic: str, make: bool = False) -> int:
        """Where the keys of a topic begin; those of a topic without rows, where nothing is."""
        known = self._ids.get(topic)
        if known is None:
            found = self._connection.execute("SELECT id FROM topic WHERE name = ?", (topic,)).fetchone()
            if found is None and not make:
                return 0
            if found is None:
                made = self._connection.execute("INSERT INTO topic (name, floor) VALUES (?, 0)", (topic,)).lastrowid
                assert made is not None
                found = (made,)
            known = self._ids[topic] = found[0] << _SHIFT
        return known

    def get(self, kind: Kind, topic: str, first: int, last: int) -> Iterator[Row]:
        """The rows that have to do with these numbers, in order."""
        base = self._base(topic)
        before = self.before(kind, topic, first)
        start = first if before is None else before.first
        found = self._connection.execute(
            f"SELECT key, last, checksum, data FROM {kind} WHERE key BETWEEN ? AND ? ORDER BY key",
            (base + start, base + min(last, ENDLESS)),
        )
        for key, row_last, checksum, data in found:
            if row_last >= first:
                yield self._checked(kind, topic, Row(key - base, row_last, data), checksum)

    def before(self, kind: Kind, topic: str, number: int) -> Row | None:
        """The last row that begins at or before a number."""
        base = self._base(topic)
        found = self._connection.execute(
            f"SELECT key, last, checksum, data FROM {kind} WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1",
            (base, base + min(number, ENDLESS)),
        ).fetchone()
        return None if found is None else self._checked(kind, topic, Row(found[0] - base, found[1], found[3]), found[2])

    def _checked(self, kind: Kind, topic: str, row: Row, checksum: int) -> Row:
        if crc32(row.data) != checksum:
            raise JournalDamaged(
                f"the store {self.file} is damaged: its {kind} of topic {topic!r} from number {row.first} on fail their "
                "checksum. Stop the stage, and restore the file from a copy"
            )
        return row

    def floor(self, topic: str) -> int:
        """Up to which number everything is gone."""
        found = self._connection.execute("SELECT floor FROM topic WHERE name = ?", (topic,)).fetchone()
        return 0 if found is None else int(found[0])

    def last(self, topic: str) -> int:
        """The last number that has events."""
        base = self._base(topic)
        found = self._connection.execute(
            "SELECT last FROM events WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1", (base, base + ENDLESS)
        ).fetchone()
        return self.floor(topic) if found is None else int(found[0])

    def drop(self, topic: str, up_to: int, full: bytes | None = None) -> None:
        """Raise the floor. It is part of a transaction, so all or nothing of it happens."""
        self._begin()
        base = self._base(topic, make=True)
        run = self._connection.execute
        run("UPDATE topic SET floor = max(floor, ?) WHERE name = ?", (up_to, topic))
        for kind in ("events", "stamps", "pending"):
            run(f"DELETE FROM {kind} WHERE key BETWEEN ? AND ? AND last <= ?", (base, base + up_to, up_to))
        run("DELETE FROM fulls WHERE key BETWEEN ? AND ?", (base, base + up_to))
        if full is not None:
            self.put("fulls", topic, [Row(up_to, up_to, full)])

    def cut(self, topic: str, after: int) -> None:
        """Remove rows that begin above a number."""
        self._begin()
        base = self._base(topic)
        for kind in KINDS:
            self._connection.execute(
                f"DELETE FROM {kind} WHERE key BETWEEN ? AND ?", (base + after + 1, base + ENDLESS)
            )

    def settle(self, topic: str, first: int, stamps: list[Row]) -> None:
        """A batch is pending no more. It is part of a transaction, so all or nothing of it happens."""
        self._begin()
        self._connection.execute("DELETE FROM pending WHERE key = ?", (self._base(topic) + first,))
        if stamps:
            self.put("stamps", topic, stamps)

    def topics(self) -> list[str]:
        """The topics that have rows."""
        return [name for (name,) in self._connection.execute("SELECT name FROM topic ORDER BY id")]
