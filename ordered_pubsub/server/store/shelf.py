"""The log's rows in the SQLite file of a stage's journal.

A row's key is its topic's number, shifted, plus its first number: so each table is one tree in the order in which it is read, and
a stage writes at its right edge for each topic. What is put belongs to the transaction of the journal's next batch: both are on
disk or neither. Who reads has a connection of its own, so it sees what is on disk, and waits for nobody.

Of topics that rest (`core.stage._resting`) there is the last number, by name, in the table `number`, and nothing else: what
numbered them in this file numbers others from the next batch on, when who reads cannot take the one for the other any more.

A row's checksum covers all that it says: its kind, its key, its last number, and its data; that of a topic's row, what its number
stands for. So a row that got another key, or into another table, is not taken for what it is not. What says that a row is missing
is `core.log.shelf`.
"""

from __future__ import annotations

import errno
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import attrs

from ordered_pubsub.core.log.shelf import ENDLESS, KINDS, Kind, Row
from ordered_pubsub.errors import JournalDamaged, JournalError

TABLES = (
    "CREATE TABLE topic (id INTEGER PRIMARY KEY, name TEXT NOT NULL, floor INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    *(
        f"CREATE TABLE {kind} "
        "(key INTEGER PRIMARY KEY, last INTEGER NOT NULL, checksum INTEGER NOT NULL, data BLOB NOT NULL)"
        for kind in KINDS
    ),
    "CREATE TABLE number (name TEXT PRIMARY KEY, last INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
)
PRIME = 4_294_967_291
"""The largest below 2³²: by what is left of a number, a checksum covers it, and no single bit of it goes without a trace."""
SHIFT = 40
assert ENDLESS < 1 << SHIFT
TOPICS_MAX = (1 << 63 - SHIFT) - 1
"""Topics that may have rows at a time."""
IN_USE_MAX = 8_000_000
"""So many may be in use before a request for another one is refused. The others are for those that begin while so many have rows:
of operations that other stages have taken, and of topics that rest, whose rows are not gone yet."""
NAMES_AT_ONCE = 1_000
_SPAN = struct.Struct(">QQ")
_KIND_SUMS: dict[Kind, int] = {kind: crc32(kind.encode()) for kind in KINDS}
_PUT: dict[Kind, str] = {kind: f"INSERT OR REPLACE INTO {kind} VALUES (?, ?, ?, ?)" for kind in KINDS}
_GET: dict[Kind, str] = {
    kind: f"SELECT key, last, checksum, data FROM {kind} WHERE key BETWEEN ? AND ? ORDER BY key" for kind in KINDS
}
_ANY: dict[Kind, str] = {kind: f"SELECT key FROM {kind} WHERE key BETWEEN ? AND ? LIMIT 1" for kind in KINDS}
_ENDS: dict[Kind, str] = {
    kind: f"WITH RECURSIVE ends (at) AS (SELECT max(key) FROM {kind} UNION ALL SELECT "
    f"(SELECT max(key) FROM {kind} WHERE key < at >> {SHIFT} << {SHIFT}) FROM ends WHERE at IS NOT NULL) "
    f"SELECT key, last, checksum, data FROM ends JOIN {kind} ON key = at"
    for kind in KINDS
}
"""From the last topic to the first: one look into the tree for each of them."""
_TROUBLES = ("i/o error", "disk is full", "locked", "unable to open", "readonly", "busy", "interrupted")
"""What SQLite says when the file cannot be used; anything else means that there is something wrong in it."""
_FULL = "the disk is full"


SQLITE_ERRORS = (sqlite3.Error, UnicodeError)
"""What SQLite may raise of a damaged file: its messages quote what it found, which need not be text."""


def failed(file: Path, error: Exception) -> JournalError:
    """An error of SQLite, as one of ours."""
    if isinstance(error, (sqlite3.ProgrammingError, sqlite3.InterfaceError)) or _is_trouble(error):
        return JournalError(f"the store {file} cannot be used: {error}")
    return damaged(file, str(error))


def _is_trouble(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and any(known in str(error).lower() for known in _TROUBLES)


def plainly(error: BaseException) -> str:
    """What keeps a store from being used, for everybody: neither where it is nor what is in it. Empty if that cannot be said."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError):
        return _FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or ""
    if _is_trouble(error):
        return _FULL if "disk is full" in str(error) else str(error)
    return ""


def damaged(file: Path, what: str) -> JournalDamaged:
    """Something in a store is not what was written there."""
    return JournalDamaged(f"the store {file} is damaged: {what}. {remedy(file)}")


def remedy(file: Path | str) -> str:
    """What an operator can do about a damaged store."""
    return (
        f"What was answered may be lost, so no stage runs on it: 'ordered-pubsub store check {file}' says what is damaged, and "
        f"'ordered-pubsub store salvage {file} --to NEW' copies what is good"
    )


def topic_sum(number: int, name: str, floor: int) -> int:
    """The checksum of a topic's row."""
    return crc32(_SPAN.pack(number, floor), crc32(name.encode()))


def is_topic_sound(number: Any, name: Any, floor: Any, checksum: Any) -> bool:
    """Whether a topic's row is what its checksum says."""
    return (
        (type(number), type(name), type(floor)) == (int, str, int)
        and number > 0
        and 0 <= floor <= ENDLESS
        and topic_sum(number, name, floor) == checksum
    )


def number_sum(name: str, last: int) -> int:
    """The checksum of the last number of a topic that rests."""
    return crc32(name.encode(), last % PRIME)


def is_number_sound(name: Any, last: Any, checksum: Any) -> bool:
    """Whether the last number of a topic that rests is what its checksum says."""
    return (type(name), type(last)) == (str, int) and 0 < last <= ENDLESS and number_sum(name, last) == checksum


def sound_row(kind: Kind, base: int, values: tuple[Any, ...]) -> Row | None:
    """A row of the log, of the topic whose keys begin there; None if it is not what its checksum says."""
    key, last, checksum, data = values
    return Row(key - base, last, data) if is_row_sound(_KIND_SUMS[kind], key, last, checksum, data) else None


def is_row_sound(kind_sum: int, key: int, last: Any, checksum: Any, data: Any) -> bool:
    """Whether a row of the log is what its checksum says."""
    return (
        type(last) is int
        and type(data) is bytes
        and crc32(data, (key * 3 + last * 5 + kind_sum) % PRIME) == checksum
        and last >= 0
    )


def row_sum(kind_sum: int, key: int, last: int, data: bytes) -> int:
    """The checksum of a row of the log."""
    return crc32(data, (key * 3 + last * 5 + kind_sum) % PRIME)


def may_not_write() -> None:
    """Who only reads has no transaction to write in."""
    raise AssertionError("who reads the log does not write it")


@attrs.define(eq=False)
class SqliteShelf:
    """Rows in a file, seen through one connection."""

    file: Path
    _connection: sqlite3.Connection
    _begin: Callable[[], None]
    """makes sure that a transaction is open"""
    ids: dict[str, int] = attrs.field(factory=dict)
    """topic → its number in the file; those who read and who writes have one together"""
    _free: list[int] = attrs.field(factory=list)
    """numbers in the file that no topic has, lowest last"""
    _freed: list[int] = attrs.field(factory=list)
    """… of late: in a transaction that may not have ended"""

    def _run(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except SQLITE_ERRORS as error:
            raise failed(self.file, error) from error

    def _run_many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(statement, values)
        except SQLITE_ERRORS as error:
            raise failed(self.file, error) from error

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        try:
            for row in self._connection.execute(statement, values):  # noqa: UP028 (it would close the cursor, perhaps too late)
                yield row
        except SQLITE_ERRORS as error:
            raise failed(self.file, error) from error

    def _row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        return next(self._rows(statement, values), None)

    def load(self) -> None:
        """Read which topics there are."""
        for number, name, floor, checksum in self._rows("SELECT id, name, floor, checksum FROM topic ORDER BY id"):
            self._check_topic(number, name, floor, checksum)
            if name in self.ids:
                raise damaged(self.file, f"topic {name!r} is there twice")
            self.ids[name] = number
        taken = set(self.ids.values())
        self._free = [number for number in range(max(taken, default=0), 0, -1) if number not in taken]

    def _check_topic(self, number: Any, name: Any, floor: Any, checksum: Any) -> None:
        if not is_topic_sound(number, name, floor, checksum):
            raise damaged(self.file, f"the row of topic {name!r} fails its checksum")

    def at_once(self) -> AbstractContextManager[object]:
        """Who writes sees what it has written; who only reads, what is on disk at one moment."""
        return self._as_of_now() if self._begin is may_not_write else nullcontext()

    @contextmanager
    def _as_of_now(self) -> Iterator[None]:
        self._run("BEGIN")
        try:
            yield
        finally:
            self._run("ROLLBACK")  # nothing was written

    def put(self, kind: Kind, topic: str, rows: list[Row]) -> None:
        """Write rows."""
        self.put_all(kind, {topic: rows})

    def put_all(self, kind: Kind, rows: Mapping[str, list[Row]]) -> None:
        """Write rows of several topics, by one statement."""
        if not rows:
            return
        self._begin()
        kind_sum = _KIND_SUMS[kind]
        values: list[tuple[int, int, int, bytes]] = []
        for topic, those in rows.items():
            base = (self.ids.get(topic) or self._make(topic)) << SHIFT
            for first, last, data in those:
                values.append((base + first, last, row_sum(kind_sum, base + first, last, data), data))
        self._run_many(_PUT[kind], values)

    def _make(self, topic: str) -> int:
        """The number of a topic, which gets one if it has none."""
        known = self.ids.get(topic)
        if known is None:
            known = self._free.pop() if self._free else len(self.ids) + len(self._freed) + 1
            if known > TOPICS_MAX:
                raise JournalError(
                    f"the store {self.file} has rows of {TOPICS_MAX:,} topics, and no room for those of another one: let the log "
                    "forget more (`retention`), or publish on fewer topics"
                )
            self._run("INSERT INTO topic VALUES (?, ?, 0, ?)", (known, topic, topic_sum(known, topic, 0)))
            self.ids[topic] = known
        return known

    def begin(self, topic: str, floor: int) -> None:
        """Have a topic, of which everything is gone up to a number."""
        self._begin()
        known = self._make(topic)
        self._run(
            "UPDATE topic SET floor = ?, checksum = ? WHERE id = ?", (floor, topic_sum(known, topic, floor), known)
        )

    def _base(self, topic: str) -> int:
        """Where the keys of a topic begin; those of a topic without rows, where nothing is."""
        return self.ids.get(topic, 0) << SHIFT

    def get(self, kind: Kind, topic: str, first: int, last: int) -> Iterator[Row]:
        """The rows that have to do with these numbers, in order."""
        base = self._base(topic)
        before = self.before(kind, topic, first)
        start = first if before is None else before.first
        kind_sum = _KIND_SUMS[kind]
        try:
            for values in self._connection.execute(_GET[kind], (base + start, base + min(last, ENDLESS))):
                key, row_last, checksum, data = values
                if not is_row_sound(kind_sum, key, row_last, checksum, data):
                    self._refuse(kind, topic, base, values)
                if row_last >= first:
                    yield Row(key - base, row_last, data)
        except SQLITE_ERRORS as error:
            raise failed(self.file, error) from error

    def before(self, kind: Kind, topic: str, number: int) -> Row | None:
        """The last row that begins at or before a number."""
        base = self._base(topic)
        found = self._row(f"{_GET[kind]} DESC LIMIT 1", (base, base + min(number, ENDLESS)))
        return None if found is None else sound_row(kind, base, found) or self._refuse(kind, topic, base, found)

    def _refuse(self, kind: Kind, topic: str, base: int, values: tuple[Any, ...]) -> NoReturn:
        raise damaged(self.file, f"its {kind} of topic {topic!r} from number {values[0] - base} on fail their checksum")

    def floor(self, topic: str) -> int:
        """Up to which number everything is gone."""
        known = self.ids.get(topic)
        if known is None:
            return self.number(topic)
        found = self._row("SELECT id, name, floor, checksum FROM topic WHERE id = ?", (known,))
        if found is None:
            if self._begin is may_not_write:
                return 0  # it is being made
            raise damaged(self.file, f"the row of topic {topic!r} is missing")
        self._check_topic(*found)
        return int(found[2])

    def last(self, topic: str) -> int:
        """The last number that has events."""
        found = self.before("events", topic, ENDLESS)
        return self.floor(topic) if found is None else found.last

    def drop(self, topic: str, up_to: int, full: bytes) -> None:
        """Raise the floor. It is part of a transaction, so all or nothing of it happens."""
        self._begin()
        base = self._make(topic) << SHIFT
        self.begin(topic, max(up_to, self.floor(topic)))
        for kind in ("events", "stamps", "pending"):
            self._run(f"DELETE FROM {kind} WHERE key BETWEEN ? AND ? AND last <= ?", (base, base + up_to, up_to))
        self._run("DELETE FROM fulls WHERE key BETWEEN ? AND ?", (base, base + up_to))
        self.put("fulls", topic, [Row(up_to, up_to, full)])

    def cut(self, topic: str, after: int) -> None:
        """Remove rows that begin above a number."""
        self._begin()
        base = self._base(topic)
        for kind in KINDS:
            self._run(f"DELETE FROM {kind} WHERE key BETWEEN ? AND ?", (base + after + 1, base + ENDLESS))

    def settle(self, topic: str, first: int, stamps: list[Row]) -> None:
        """A batch is pending no more. It is part of a transaction, so all or nothing of it happens."""
        self._begin()
        self._run("DELETE FROM pending WHERE key = ?", (self._base(topic) + first,))
        if stamps:
            self.put("stamps", topic, stamps)

    def rest(self, numbers: Mapping[str, int]) -> None:
        """Remember the last numbers of topics that rest."""
        self._begin()
        values = [(name, last, number_sum(name, last)) for name, last in sorted(numbers.items())]
        self._run_many("INSERT OR REPLACE INTO number VALUES (?, ?, ?)", values)

    def number(self, topic: str) -> int:
        """The last number of a topic that rests."""
        found = self._row("SELECT name, last, checksum FROM number WHERE name = ?", (topic,))
        return 0 if found is None else self._checked_number(*found)

    def _checked_number(self, name: Any, last: Any, checksum: Any) -> int:
        if not is_number_sound(name, last, checksum):
            raise damaged(self.file, f"the last number of topic {name!r}, which rests, fails its checksum")
        return int(last)

    def resting(self) -> Iterator[tuple[str, int]]:
        """The topics that rest, and their numbers: some at a time."""
        last = ""
        while True:
            rows = list(
                self._rows(
                    "SELECT name, last, checksum FROM number WHERE name > ? ORDER BY name LIMIT ?",
                    (last, NAMES_AT_ONCE),
                )
            )
            for row in rows:
                yield row[0], self._checked_number(*row)
                last = row[0]
            if len(rows) < NAMES_AT_ONCE:
                return

    def wake(self, topics: Iterable[str]) -> None:
        """These are in use again."""
        self._begin()
        self._run_many("DELETE FROM number WHERE name = ?", [(topic,) for topic in topics])

    def clear(self, topics: Iterable[str]) -> None:
        """Remove what is left of topics whose rows are all gone."""
        self._begin()
        self._free += self._freed  # whoever reads now sees what the batches before this one have written
        self._freed = []
        for topic in topics:
            known = self.ids.get(topic)
            span = ((known or 0) << SHIFT, ((known or 0) << SHIFT) + ENDLESS)
            if known is not None and not any(self._row(_ANY[kind], span) for kind in KINDS if kind != "fulls"):
                self._run("DELETE FROM fulls WHERE key BETWEEN ? AND ?", span)
                self._run("DELETE FROM topic WHERE id = ?", (known,))
                del self.ids[topic]
                self._freed.append(known)

    def topics(self, kind: Kind | None = None) -> list[str]:
        """The topics that have rows; of this kind, if one is named."""
        return list(self.ids) if kind is None else [topic for topic, _ in self.ends(kind)]

    def ends(self, kind: Kind) -> Iterator[tuple[str, Row]]:
        """The last row of each topic that has rows of this kind, found in one go."""
        names = {number: name for name, number in self.ids.items()}
        for values in self._rows(_ENDS[kind]):
            number = values[0] >> SHIFT
            topic = names.get(number)
            if topic is not None:
                base = number << SHIFT
                yield topic, sound_row(kind, base, values) or self._refuse(kind, topic, base, values)
