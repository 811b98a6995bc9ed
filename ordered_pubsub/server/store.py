"""A stage's journal in an SQLite file, and beside it the log of what was published on its topics (`shelf`).

A batch of records is one row and one commit; each record carries its checksum (`core.journal`), which is verified when it is
read. A snapshot takes the place of all rows in one transaction. A file beside it is locked for as long as the stage runs on it.

What a commit stands for is the stage's `durability`:

- "fsync": the batch is on the disk;
- "os": the operating system has it, so it survives the process but perhaps not the machine;
- "none": nothing is written before a clean stop.

Numbers that were given and are lost would be given again, which breaks the order of everybody. So after a crash a stage
refuses to start on a file from which they may be missing: with "none" always, with "os" if the machine was started again since
then (where the kernel tells: Linux does, by the id of its boot).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import attrs

from ordered_pubsub.core.driver import Journal, MemoryJournal
from ordered_pubsub.core.journal import frame_record, scan
from ordered_pubsub.errors import JournalDamaged, JournalError, UnknownVersion
from ordered_pubsub.server.shelf import TABLES, SqliteShelf

FORMAT = "1"
PIECE_BYTES = 64 * 1024 * 1024
"""A snapshot is cut into pieces of this size: SQLite takes no value of a gigabyte."""
MEMORY = "memory"
BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
_TABLES = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch (number INTEGER PRIMARY KEY, records BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot (piece INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, state BLOB NOT NULL);
"""


def open_store(path: str | None, durability: str, stage: str) -> Store:
    """The store in a file; without one, in memory."""
    if path is None:
        return Store(MemoryJournal(), MEMORY, durability)
    return Store(SqliteJournal.open(Path(path), durability, stage), path, durability)


@attrs.define(eq=False)
class Store:
    """A journal, and how it ends."""

    journal: Journal
    name: str
    durability: str

    @property
    def is_new(self) -> bool:
        """Whether no stage has run on it before."""
        return not isinstance(self.journal, SqliteJournal) or self.journal.is_new

    def close(self, snapshot: bytes | None) -> None:
        """Let the file go; with the stage's last state, if it stops cleanly."""
        if isinstance(self.journal, SqliteJournal):
            self.journal.close(snapshot)


@attrs.define(eq=False)
class SqliteJournal:
    """A journal in a file. Used by one thread at a time."""

    file: Path
    durability: str
    _connection: sqlite3.Connection
    _lock: int
    """the open file whose lock says that a stage runs here"""
    shelf: SqliteShelf = attrs.field(init=False)
    read_shelf: SqliteShelf = attrs.field(init=False)
    is_new: bool = False
    """whether no stage has run on it before"""
    _reader: sqlite3.Connection | None = None

    @classmethod
    def open(cls, file: Path, durability: str, stage: str) -> SqliteJournal:
        """Open a file, or make it, readable by its owner only."""
        try:
            _make_private(file)
            lock = _lock(file)
            connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=0)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the store {file} of stage {stage!r} cannot be opened: {error}") from error
        journal = cls(file, durability, connection, lock)
        try:
            journal._prepare(stage)
            journal._open_reader()
        except BaseException:
            journal._let_go()
            raise
        return journal

    def __attrs_post_init__(self) -> None:
        self.shelf = SqliteShelf(self.file, self._connection, self._begin)

    def _prepare(self, stage: str) -> None:
        run = self._connection.execute
        try:
            run("PRAGMA journal_mode = WAL")
            run(f"PRAGMA synchronous = {'FULL' if self.durability == 'fsync' else 'OFF'}")
            run("BEGIN EXCLUSIVE")
            for statement in (_TABLES + TABLES).split(";"):
                run(statement)
            self._check_about(stage)
            run("COMMIT")
            # What a failed sync has left in the log may be in memory only: have it written to the file, and that synced.
            run("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as error:
            reason = str(error)
            if "locked" in reason:
                reason += "; probably another stage runs on it: stop that one, or give this one another store"
            raise JournalError(f"the store {self.file} of stage {stage!r} cannot be used: {reason}") from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _open_reader(self) -> None:
        """A connection for readers sees what is on disk, and waits for nobody who writes."""
        uri = f"{self.file.absolute().as_uri()}?mode=ro"
        self._reader = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        self.read_shelf = SqliteShelf(self.file, self._reader, _may_not_write)

    def _check_about(self, stage: str) -> None:
        about = dict(self._connection.execute("SELECT key, value FROM about"))
        self.is_new = "stage" not in about
        if about.setdefault("format", FORMAT) != FORMAT:
            raise UnknownVersion(
                f"the store {self.file} has format {about['format']}, and this release reads {FORMAT}: it was written by a "
                "newer release; start the stage with that one"
            )
        if about.setdefault("stage", stage) != stage:
            raise JournalError(
                f"the store {self.file} belongs to stage {about['stage']!r}, not {stage!r}: check `store` in the configuration"
            )
        boot = _boot_id()
        crashed = {"none": "and it", "os": "and its machine"}.get(about.get("running", ""))
        if crashed and (about["running"] == "none" or about.get("boot", boot) != boot):
            raise JournalError(
                f"stage {stage!r} ran on {self.file} with durability={about['running']!r}, {crashed} was not stopped cleanly, so "
                "numbers that it gave may be lost; given again they would break the order. To begin the whole system anew, "
                "remove the stores of all its stages and restart all clients"
            )
        about["running"], about["boot"] = self.durability, boot
        self._connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", about.items())

    def append(self, records: list[bytes]) -> None:
        """Write records; `sync` commits them."""
        if self.durability != "none":
            self._begin()
            row = b"".join(map(frame_record, records))
            self._connection.execute("INSERT INTO batch (records) VALUES (?)", (row,))

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN")

    def sync(self) -> None:
        """Commit what was appended."""
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def replace(self, snapshot: bytes) -> None:
        """Put a snapshot in the place of all records, in one transaction."""
        if self.durability != "none":
            self._replace(snapshot)

    def _replace(self, snapshot: bytes) -> None:
        run = self._connection.execute
        self._begin()
        run("DELETE FROM batch")
        run("DELETE FROM snapshot")
        for number, start in enumerate(range(0, len(snapshot), PIECE_BYTES)):
            piece = snapshot[start : start + PIECE_BYTES]
            run("INSERT INTO snapshot VALUES (?, ?, ?)", (number, crc32(piece), piece))
        run("COMMIT")

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The last snapshot and the records since, all of them verified."""
        try:
            pieces = self._connection.execute("SELECT piece, checksum, state FROM snapshot ORDER BY piece").fetchall()
            rows = self._connection.execute("SELECT number, records FROM batch ORDER BY number").fetchall()
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error
        for number, (found_number, checksum, state) in enumerate(pieces):
            if found_number != number or crc32(state) != checksum:
                raise self._damaged(f"piece {number} of the snapshot is missing, or fails its checksum")
        records: list[bytes] = []
        for expected, (number, data) in enumerate(rows, 1):
            if number != expected:
                raise self._damaged(f"batch {expected} is missing")
            found = scan(data, f"{self.file}, batch {number}")
            if found.torn_bytes:
                raise self._damaged(f"batch {number} fails its checksum at byte {found.good_bytes}")
            records += found.records
        return (b"".join(state for _, _, state in pieces) if pieces else None), records

    def close(self, snapshot: bytes | None) -> None:
        """Let the file go; with a stage's last state if it stops cleanly."""
        try:
            if snapshot is not None:
                self._replace(snapshot)
                self._connection.execute("DELETE FROM about WHERE key = 'running'")
        except sqlite3.Error as error:
            raise JournalError(f"the last snapshot cannot be written to {self.file}: {error}") from error
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._connection.close()
        os.close(self._lock)

    def _damaged(self, what: str) -> JournalDamaged:
        return JournalDamaged(
            f"the store {self.file} is damaged: {what}. What was answered may be lost, so the stage does not start on it: "
            "restore the file from a copy"
        )


def _make_private(file: Path) -> None:
    """Make sure that the file is there, and is its owner's only. One that is there is not opened: closing it would unlock it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    if stat.S_IMODE(file.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        file.chmod(0o600)


def _lock(file: Path) -> int:
    """Lock the file beside a store, or raise an `OSError`. It is one of its own, since any close lets go of SQLite's locks."""
    lock = os.open(f"{file}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise OSError(
            "database is locked; probably another stage runs on it: stop that one, or give this one another store"
        ) from None
    return lock


def _may_not_write() -> None:
    raise AssertionError("who reads the log does not write it")


def _boot_id() -> str:
    """What tells one start of this machine from another; empty where the kernel does not say."""
    with suppress(OSError):
        return BOOT_FILE.read_text().strip()
    return ""
