"""A stage's journal in an SQLite file, and beside it the log of what was published on its topics (`shelf`).

Every commit has a number. Its records are one row of that number, whose checksum covers both; a snapshot says of which commit it
is, and takes the place of all rows up to there when its last piece is on disk. It is written one piece with each commit, and what
it has replaced goes little by little with later ones: nobody waits for the tens of megabytes that both may be. So a row that is
missing, changed, or of another time is noticed when the store is read. That its end is missing is noticed by the mark beside it
(`mark`), and by a look at the write-ahead log before SQLite may cut it (`write_ahead`). In which order all this is looked at,
before anything is written, is in `examining`.

What a commit stands for is the stage's `durability`:

- "fsync": the batch is on the disk;
- "os": the operating system has it, so it survives the process but perhaps not the machine;
- "none": nothing of what happens is written before a clean stop, neither the journal nor the log (`LateJournal`).

Numbers that were given and are lost would be given again, which breaks the order of everybody. So after a crash a stage
refuses to start on a file from which they may be missing: with "none" always, with "os" if the machine was started again since
then (where the kernel tells: Linux does, by the id of its boot).
"""

from __future__ import annotations

import os
import sqlite3
import stat
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import accumulate
from pathlib import Path

import attrs

from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.shelf import ENDLESS, KINDS, Shelf
from ordered_pubsub.core.stage.journal import join_records
from ordered_pubsub.core.stage.sharing import share_texts
from ordered_pubsub.core.stage.storage import Journal, MemoryJournal
from ordered_pubsub.errors import JournalDamaged, JournalError
from ordered_pubsub.server.store._contents import (
    FORMAT,
    PIECES_MAX,
    TABLES,
    batch_sum,
    piece_key,
    piece_sum,
    read_about,
    read_journal,
    write_about,
)
from ordered_pubsub.server.store._lock import FileLock
from ordered_pubsub.server.store.examining import Examined, examine
from ordered_pubsub.server.store.mark import STORE_BYTES, HighWaterMark, MarkFile, boot_mark, mark_of, read_mark
from ordered_pubsub.server.store.shelf import SQLITE_ERRORS, SqliteShelf, damaged, failed, may_not_write

PIECE_BYTES = 1 << 17
"""A snapshot is cut into pieces of this size, if there are not too many: one is written with each commit, in a millisecond."""
CLEARED_BYTES, CLEARED_ROWS = 1 << 19, 100
"""So much of what a snapshot has replaced is removed with each commit."""
MEMORY = "memory"
BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")


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

    def explained(self, error: JournalDamaged) -> JournalDamaged:
        """What was found damaged, with where that is and what to do."""
        if isinstance(self.journal, SqliteJournal) and str(self.journal.file) not in str(error):
            return damaged(self.journal.file, str(error))
        return error

    def share_names(self, names: Iterable[str]) -> None:
        """These names of topics are in memory already: have no others of the same topics."""
        if isinstance(self.journal, SqliteJournal):
            self.journal.share_names(names)

    def close(self, snapshot: bytes | None) -> None:
        """Let the file go; with the stage's last state, if it stops cleanly."""
        if isinstance(self.journal, SqliteJournal):
            self.journal.close(snapshot)


@attrs.define(eq=False)
class SqliteJournal:
    """A journal in a file. Used by one thread at a time."""

    file: Path
    durability: str
    stage: str
    _lock: FileLock
    """says that a stage runs here"""
    _mark: MarkFile
    _connection: sqlite3.Connection
    _reader: sqlite3.Connection
    """sees what is on disk, and waits for nobody who writes"""
    is_new: bool = False
    """whether no stage has run on it before"""
    _commits: int = 0
    """the number of the last commit"""
    _rows: int = 0
    """the number of the last row of records, which the next commit makes valid"""
    _given: int = 0
    """how many numbers its stage has given"""
    _syncs: bool = attrs.field(init=False)
    """whether the mark is to be on the disk some time after each commit"""
    _changes: int = 0
    """what SQLite has counted when the transaction began"""
    _unwritten: Iterator[tuple[int, int, int, bytes]] | None = None
    """the pieces of a snapshot that are not on disk yet"""
    _taken_of: int = 0
    """the commit of which it is"""
    _covered: int = 0
    """up to this commit all is in a snapshot that is on disk, and what was before that is perhaps not removed yet; 0: it is"""
    _shelf: SqliteShelf = attrs.field(init=False)
    _read_shelf: SqliteShelf = attrs.field(init=False)

    @classmethod
    def open(cls, file: Path, durability: str, stage: str) -> SqliteJournal:
        """Open a file, or make it, readable by its owner only.

        Nothing is written, neither by us nor by SQLite, before all was looked at that can be wrong.
        """
        file = Path(os.path.realpath(file))  # what belongs to it lies beside the file itself, not beside a link to it
        with ExitStack() as undo:
            try:
                _make_private(file)
                lock = FileLock.take(file)
                undo.callback(lock.release)
                mark_path, boot = mark_of(file), boot_id()
                found = examine(file, read_mark(mark_path), boot_mark(boot))
                lock.renew()
                about = _about_after_start(file, found, durability, stage, boot)
                mark, _ = MarkFile.open(mark_path)
                undo.callback(mark.close)
                state = found.mark if found is not None else HighWaterMark(bytes.fromhex(about["store"]), is_open=False)
                if found is None:
                    mark.begin(state)
                connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=0)
                undo.callback(connection.close)
                _prepare(connection, file, durability, about, is_new=found is None)
                state = attrs.evolve(state, is_open=True, boot=boot_mark(boot))
                undo.callback(mark.end, state.commits, state.given)
                mark.begin(state)
                uri = f"{file.as_uri()}?mode=ro"
                reader = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
                undo.callback(reader.close)
                commits = 0 if found is None else found.commits
                kind = LateJournal if durability == "none" else cls
                journal = kind(
                    file, durability, stage, lock, mark, connection, reader, found is None, commits, given=state.given
                )
            except (OSError, *SQLITE_ERRORS) as error:
                raise JournalError(f"the store {file} of stage {stage!r} cannot be opened: {error}") from error
            undo.pop_all()
        return journal

    def __attrs_post_init__(self) -> None:
        self._rows = self._commits
        self._syncs = self.durability == "fsync"
        self._shelf = SqliteShelf(self.file, self._connection, self._begin)
        self._read_shelf = SqliteShelf(self.file, self._reader, may_not_write, self._shelf.ids)
        self._shelf.load()

    @property
    def shelf(self) -> Shelf:
        """Where the log's rows are, for who writes them."""
        return self._shelf

    @property
    def read_shelf(self) -> Shelf:
        """The log's rows that are on disk, for readers."""
        return self._read_shelf

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, records: list[bytes], given: int = 0) -> None:
        """Write records; `sync` commits them."""
        self._begin()
        number = self._rows = self._rows + 1
        if given > self._given:
            self._given = given
        row = join_records(records)
        self._run("INSERT INTO batch VALUES (?, ?, ?)", (number, batch_sum(number, row), row))

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._run("BEGIN")
            self._changes = self._connection.total_changes

    def sync(self) -> None:
        """Commit what was appended, and set the mark. Each commit that changes something has a row, and so a number."""
        connection = self._connection
        is_whole = self._go_on() if self.has_more else False
        if not connection.in_transaction:
            return
        if self._rows == self._commits and connection.total_changes != self._changes:
            self.append([])
        try:
            connection.execute("COMMIT")
            if self._rows != self._commits:
                self._commits = self._rows
                self._mark.follow(self._commits, self._given, self._syncs)
            if is_whole:
                self._unwritten, self._covered = None, self._taken_of
        except SQLITE_ERRORS as error:
            raise failed(self.file, error) from error
        except OSError as error:
            raise JournalError(f"the mark {self._mark.path} cannot be written: {error}") from error

    def _run(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except SQLITE_ERRORS as error:
            raise failed(self.file, error) from error

    def replace(self, snapshot: bytes) -> None:
        """Put a snapshot in the place of all records, a little with each commit from now on."""
        self._taken_of = self._commits
        self._begin()
        self._run("DELETE FROM snapshot WHERE key >= ?", (piece_key(self._commits, 0),))  # of one that was not ended
        self._unwritten = _pieces(self._commits, snapshot)

    @property
    def has_more(self) -> bool:
        """Whether the next commit takes along something of a snapshot, though nothing else is to be written."""
        return self._unwritten is not None or self._covered > 0

    def _go_on(self) -> bool:
        """Write a piece of a snapshot; or remove something of what it has replaced. Return whether it is whole with this."""
        self._begin()
        if self._unwritten is None:
            self._clear_some()
            return False
        key, pieces, checksum, state = next(self._unwritten)
        self._run("INSERT INTO snapshot VALUES (?, ?, ?, ?)", (key, pieces, checksum, state))
        return key == piece_key(self._taken_of, pieces - 1)

    def _clear_some(self) -> None:
        for table, key, size, end in (
            ("batch", "number", "length(records)", self._covered),
            ("snapshot", "key", "length(state)", piece_key(self._covered, 0) - 1),
        ):
            found = self._run(
                f"SELECT {key}, {size} FROM {table} WHERE {key} <= ? ORDER BY {key} LIMIT {CLEARED_ROWS}", (end,)
            )
            rows = found.fetchall()
            if rows:
                sizes = list(accumulate(length for _, length in rows))
                last, _ = rows[min(bisect_left(sizes, CLEARED_BYTES), len(rows) - 1)]
                self._run(f"DELETE FROM {table} WHERE {key} <= ?", (last,))
                return
        self._covered = 0

    def make_topic(self, topic: str, floor: int) -> None:
        """Have a topic in the log, of which everything is gone up to a number."""
        self._shelf.begin(topic, floor)

    # -- reading ------------------------------------------------------------------------------------------------------

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The last snapshot and the records since, all of them verified."""
        try:
            found = read_journal(self._connection)
        except SQLITE_ERRORS as error:
            raise failed(self.file, error) from error
        if found.trouble:
            raise damaged(self.file, found.trouble)
        if found.commits != self._commits:
            raise damaged(self.file, f"it ends with commit {found.commits}, and not with commit {self._commits}")
        self._covered = found.covered
        return found.snapshot, found.records

    def share_names(self, names: Iterable[str]) -> None:
        """Have these names of topics, and no others of the same topics."""
        share_texts(self._shelf.ids, {name: name for name in names})

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, snapshot: bytes | None) -> None:
        """Let the file go; with a stage's last state if it stops cleanly."""
        try:
            if snapshot is not None:
                self._run("PRAGMA synchronous = FULL")
                self._begin()
                self._put_last_words()
                write_about(self._connection, {**read_about(self._connection), "running": ""})
                self._begin()
                self._run("DELETE FROM batch")
                self._run("DELETE FROM snapshot")
                for piece in _pieces(self._commits + 1, snapshot):
                    self._run("INSERT INTO snapshot VALUES (?, ?, ?, ?)", piece)
                self._run("COMMIT")
                self._rows = self._commits = self._commits + 1
        except (JournalError, *SQLITE_ERRORS) as error:
            raise JournalError(f"the last snapshot cannot be written to {self.file}: {error}") from error
        finally:
            self._let_go()

    def _put_last_words(self) -> None:
        """Nothing: all was written before."""

    def _let_go(self) -> None:
        """Close everything: SQLite then has the log in the database, and removes it. The mark knows of that before."""
        with suppress(OSError):
            self._mark.end(self._commits, self._given)
        self._mark.close()
        self._reader.close()
        self._connection.close()
        self._lock.release()


@attrs.define(eq=False)
class LateJournal(SqliteJournal):
    """With durability "none": everything is in memory until a clean stop, and is in the file then, all at once."""

    _rows_in_memory: MemoryShelf = attrs.field(factory=MemoryShelf)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        stored = self._shelf
        for topic in stored.topics():
            self._rows_in_memory.begin(topic, stored.floor(topic))
            for kind in KINDS:
                self._rows_in_memory.put(kind, topic, list(stored.get(kind, topic, 0, ENDLESS)))
        self._rows_in_memory.rest(dict(stored.resting()))

    @property
    def shelf(self) -> Shelf:
        """Where the log's rows are: in memory."""
        return self._rows_in_memory

    @property
    def read_shelf(self) -> Shelf:
        """The same."""
        return self._rows_in_memory

    def append(self, records: list[bytes], given: int = 0) -> None:
        """Nothing is written."""
        self._given = max(given, self._given)

    def sync(self) -> None:
        """Nothing is written."""

    def replace(self, snapshot: bytes) -> None:
        """Nothing is written."""

    @property
    def has_more(self) -> bool:
        """Nothing is written."""
        return False

    def _put_last_words(self) -> None:
        for table in ("topic", "number", *KINDS):
            self._run(f"DELETE FROM {table}")
        self._shelf.ids.clear()
        rows = self._rows_in_memory
        for topic in rows.topics():
            self._shelf.begin(topic, rows.floor(topic))
            for kind in KINDS:
                self._shelf.put(kind, topic, list(rows.get(kind, topic, 0, ENDLESS)))
        self._shelf.rest(dict(rows.resting()))


# -- the beginning --------------------------------------------------------------------------------------------------------


def _about_after_start(file: Path, found: Examined | None, durability: str, stage: str, boot: str) -> dict[str, str]:
    """What a store says of itself once this stage runs on it; raises what keeps the stage from that."""
    if found is None:
        return {
            "format": FORMAT,
            "store": os.urandom(STORE_BYTES).hex(),
            "stage": stage,
            "running": durability,
            "boot": boot,
        }
    about = found.about
    if about["stage"] != stage:
        raise JournalError(
            f"the store {file} belongs to stage {about['stage']!r}, not {stage!r}: check `store` in the configuration"
        )
    crashed = {"none": "and it", "os": "and its machine"}.get(about["running"])
    if crashed and (about["running"] == "none" or about["boot"] != boot):
        raise JournalError(
            f"stage {stage!r} ran on {file} with durability={about['running']!r}, {crashed} was not stopped cleanly, so "
            "numbers that it gave may be lost; given again they would break the order. To begin the whole system anew, "
            f"remove the stores of all its stages ({file.name}* here) and restart all clients"
        )
    return {**about, "running": durability, "boot": boot}


def _prepare(connection: sqlite3.Connection, file: Path, durability: str, about: dict[str, str], is_new: bool) -> None:
    """Set up a connection for writing, and say in the store who has it now."""
    run = connection.execute
    try:
        (mode,) = run("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise JournalError(
                f"the store {file} cannot have a write-ahead log: SQLite stays in journal mode {mode!r}. It probably lies on a "
                "network file system, where that does not work: put it on a disk of this machine"
            )
        run(f"PRAGMA synchronous = {'OFF' if durability == 'os' else 'FULL'}")
        for setting in ("fullfsync", "checkpoint_fullfsync"):  # macOS: not just to the disk's cache
            run(f"PRAGMA {setting} = {'OFF' if durability == 'os' else 'ON'}")
        run("BEGIN EXCLUSIVE")
        for statement in TABLES if is_new else ():
            run(statement)
        write_about(connection, about)
        run("COMMIT")
        # What a failed sync has left in the log may be in memory only: have it written to the file, and that synced.
        is_busy, *_ = run("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise JournalError(f"the store {file} cannot be used: another process reads it; stop that one")
    except SQLITE_ERRORS as error:
        raise failed(file, error) from error


def _pieces(number: int, snapshot: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """The rows of the snapshot that is of a commit."""
    size = max(PIECE_BYTES, -(-len(snapshot) // PIECES_MAX))
    starts = range(0, len(snapshot), size) or range(1)
    for place, start in enumerate(starts):
        key, state = piece_key(number, place), snapshot[start : start + size]
        yield key, len(starts), piece_sum(key, len(starts), state), state


def _make_private(file: Path) -> None:
    """Make sure that the file is there, and is its owner's only. One that is there is not opened: closing it would unlock it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    if not file.is_file():
        raise OSError("it is not a regular file")
    if stat.S_IMODE(file.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        file.chmod(0o600)


def boot_id() -> str:
    """What tells one start of this machine from another; empty where the kernel does not say."""
    with suppress(OSError):
        return BOOT_FILE.read_text().strip()
    return ""
