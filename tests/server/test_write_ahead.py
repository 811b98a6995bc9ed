"""The write-ahead log as a file: what SQLite would read of it, and what it would cut off."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from helpers.damage import flipped
from ordered_pubsub.server.store._write_ahead import judge

PAGE = 512
HEADER, FRAME = 32, 24 + PAGE


@attrs.define
class Database:
    """A small database that somebody writes to."""

    file: Path
    connection: sqlite3.Connection
    ends: list[int] = attrs.field(factory=list)
    """how long the log was after each commit"""

    @classmethod
    def make(cls, file: Path) -> Database:
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return cls(file, connection)

    def commit(self, size: int) -> None:
        self.connection.execute("INSERT INTO t (v) VALUES (?)", (bytes(range(256)) * (size // 256 + 1),))
        self.ends.append(len(self.log))

    @property
    def log(self) -> bytes:
        return self.file.with_name(self.file.name + "-wal").read_bytes()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Four commits, of which some have several frames."""
    made = Database.make(tmp_path / "a.db")
    for size in (100, 1_500, 100, 2_000):
        made.commit(size)
    yield made
    made.connection.close()


def commits_in(log: bytes, tmp_path: Path, database: Database) -> int:
    """How many commits SQLite reads of a log."""
    copy = tmp_path / "copy.db"
    for left in tmp_path.glob("copy.db*"):
        left.unlink()
    copy.write_bytes(database.file.read_bytes())
    copy.with_name("copy.db-wal").write_bytes(log)
    connection = sqlite3.connect(f"{copy.as_uri()}?mode=ro", uri=True)
    (count,) = connection.execute("SELECT count(*) FROM t").fetchone()
    connection.close()
    return int(count)


def test_a_whole_log_has_all_commits(database: Database) -> None:
    found = judge(database.log, PAGE)

    assert (found.commits, found.frames, found.bad_at) == (4, (len(database.log) - HEADER) // FRAME, None)
    assert not found.trouble(may_be_torn=False)


def test_a_log_without_anything_is_whole() -> None:
    assert not judge(b"", PAGE).trouble(may_be_torn=False)
    assert not judge(bytes(20), PAGE).trouble(may_be_torn=False)


def test_a_log_that_was_cut_off_anywhere_has_the_commits_that_sqlite_finds_and_nothing_behind(
    database: Database, tmp_path: Path
) -> None:
    log = database.log
    for size in range(0, len(log), 67):
        found = judge(log[:size], PAGE)
        assert found.commits == commits_in(log[:size], tmp_path, database) == sum(end <= size for end in database.ends)
        assert not found.trouble(may_be_torn=False)


def test_sqlite_reads_up_to_where_we_say_it_does(database: Database, tmp_path: Path) -> None:
    log = database.log
    for bit in range(0, 8 * len(log), 1_117):
        changed = flipped(log, bit)
        assert judge(changed, PAGE).commits == commits_in(changed, tmp_path, database)


@pytest.mark.parametrize("may_be_torn", [False, True])
def test_a_flipped_bit_before_the_last_two_commits_is_trouble_wherever_it_is(
    database: Database, may_be_torn: bool
) -> None:
    log = database.log
    for bit in range(0, 8 * database.ends[1], 13):
        assert judge(flipped(log, bit), PAGE).trouble(may_be_torn), f"bit {bit}"


def test_a_flipped_bit_before_the_last_commit_is_trouble_if_the_machine_has_not_stopped(database: Database) -> None:
    log = database.log
    for bit in range(8 * database.ends[1], 8 * (len(log) - FRAME), 13):
        found = judge(flipped(log, bit), PAGE)
        # A flip in the sums that the last frame goes on from hides that it is whole; the mark says that it was there.
        assert found.trouble(may_be_torn=False) or found.frames >= (len(log) - HEADER) // FRAME - 2


def test_the_last_commit_may_be_torn_in_any_way_when_the_power_fails(database: Database) -> None:
    """Any of its pages may be missing, whatever else of it is there."""
    log, start = database.log, database.ends[2]
    frames = [(at, at + FRAME) for at in range(start, len(log), FRAME)]
    assert len(frames) > 2
    for missing in range(1, 1 << len(frames)):
        torn = bytearray(log)
        for place, (begin, end) in enumerate(frames):
            if missing >> place & 1:
                torn[begin:end] = bytes(FRAME)
        found = judge(bytes(torn), PAGE)
        assert found.commits == 3
        assert not found.trouble(may_be_torn=True)


def test_what_is_left_from_an_earlier_round_counts_for_nothing(database: Database) -> None:
    database.connection.execute("PRAGMA wal_checkpoint(RESTART)")
    database.commit(100)
    length = len(database.log)

    found = judge(database.log, PAGE)

    assert length == database.ends[-2] > HEADER + found.frames * FRAME
    assert (found.commits, found.bad_at) == (1, None)


def test_a_damaged_header_is_trouble_if_there_were_commits(database: Database) -> None:
    for bit in range(8 * HEADER):
        assert "its header fails" in judge(flipped(database.log, bit), PAGE).trouble(may_be_torn=True)


def test_the_head_of_a_round_of_which_nothing_was_written_yet_is_no_trouble(database: Database) -> None:
    """The process ended after the new header, before the first frame: all that is behind it is in the database."""
    before = database.log
    database.connection.execute("PRAGMA wal_checkpoint(RESTART)")
    database.commit(100)
    log = database.log[:HEADER] + before[HEADER:]

    found = judge(log, PAGE)

    assert (found.commits, found.trouble(may_be_torn=False)) == (0, "")
