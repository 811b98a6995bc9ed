"""The store: what it keeps, what it refuses, and what a kill or a bad disk leaves of it."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helpers.damage import Files, files_of, flipped, put_whole, without
from ordered_pubsub.core.log.shelf import Row
from ordered_pubsub.core.messages import PublishAsk, Request
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import JournalDamaged, JournalError, OrderedPubSubError, UnknownVersion
from ordered_pubsub.server.store import _lock as locks
from ordered_pubsub.server.store import store as stores
from ordered_pubsub.server.store._contents import read_about, read_journal
from ordered_pubsub.server.store.mark import HighWaterMark, MarkFile, mark_of, read_mark
from ordered_pubsub.server.store.store import SqliteJournal, open_store

ONE = Topology((StageSpec("main"),))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "stage.db"


def opened(file: Path, durability: str = "fsync", stage: str = "main") -> SqliteJournal:
    return SqliteJournal.open(file, durability, stage)


def write(journal: SqliteJournal, *batches: list[bytes]) -> None:
    for records in batches:
        journal.append(records)
        journal.sync()


def crash(journal: SqliteJournal) -> None:
    """Let the file go as a process does that is killed: nothing is said to it."""
    journal._let_go()


def edit(file: Path, statement: str, *values: Any) -> None:
    """Do something to a store that nobody has open."""
    connection = sqlite3.connect(file)
    with connection:
        connection.execute(statement, values)
    connection.close()


# -- what it keeps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_what_was_synced_is_there_after_a_crash(file: Path, durability: str) -> None:
    journal = opened(file, durability)
    write(journal, [b"one", b"two"], [b"three"])
    crash(journal)

    again = opened(file, durability)

    assert again.load() == (None, [b"one", b"two", b"three"])
    crash(again)


def test_what_was_not_synced_has_not_happened(file: Path) -> None:
    journal = opened(file)
    write(journal, [b"one"])
    journal.append([b"two"])
    crash(journal)

    again = opened(file)

    assert again.load() == (None, [b"one"])
    crash(again)


def test_a_snapshot_takes_the_place_of_what_was_before(file: Path) -> None:
    journal = opened(file)
    write(journal, [b"one"], [b"two"])
    put_whole(journal, b"both")
    write(journal, [b"three"])
    crash(journal)

    again = opened(file)

    assert again.load() == (b"both", [b"three"])
    crash(again)


def test_a_snapshot_is_kept_in_pieces_and_none_may_be_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 4)
    journal = opened(file)
    put_whole(journal, b"a longer snapshot")
    put_whole(journal, b"a snapshot")
    assert journal.load() == (b"a snapshot", [])
    crash(journal)
    edit(file, "DELETE FROM snapshot WHERE key & 1048575 = 1")

    with pytest.raises(JournalDamaged, match="piece 1 of the snapshot is missing"):
        read_all(file)


def on_disk(file: Path) -> tuple[bytes | None, list[bytes]]:
    """What a process would find that starts after this one was killed."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        found = read_journal(connection)
    assert not found.trouble
    return found.snapshot, found.records


def rows(file: Path, table: str) -> int:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert isinstance(count, int)
    return count


def test_a_snapshot_is_written_and_what_it_replaces_removed_a_little_with_each_commit(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the process is killed, there is what was there before, or the whole snapshot and all commits since."""
    monkeypatch.setattr(stores, "PIECE_BYTES", 4)
    monkeypatch.setattr(stores, "CLEARED_ROWS", 2)
    journal = opened(file)
    put_whole(journal, b"a snapshot")
    before = [b"%d" % number for number in range(7)]
    write(journal, *([record] for record in before))
    journal.replace(b"a later snapshot")
    since: list[bytes] = []
    found = [on_disk(file)]
    while journal.has_more:
        since.append(b"since %d" % len(since))
        write(journal, since[-1:])
        found.append(on_disk(file))

    pieces, removals = 4, 5 + 2 + 1  # ten rows of commits, three older pieces, and one look that finds nothing more
    assert found == [
        *((b"a snapshot", before + since[:commits]) for commits in range(pieces)),
        *((b"a later snapshot", since[:commits]) for commits in range(pieces, pieces + removals + 1)),
    ]
    assert (rows(file, "snapshot"), rows(file, "batch")) == (pieces, len(since))
    crash(journal)


def test_a_snapshot_that_was_not_ended_is_replaced_by_the_next_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 4)
    journal = opened(file)
    write(journal, [b"one"])
    journal.replace(b"a longer snapshot")
    journal.sync()
    journal.sync()
    crash(journal)

    again = opened(file)
    assert again.load() == (None, [b"one"])
    put_whole(again, b"a snapshot")

    assert on_disk(file) == (b"a snapshot", [])
    assert rows(file, "snapshot") == 3
    crash(again)


def test_what_a_snapshot_has_replaced_is_removed_after_a_start_too(file: Path) -> None:
    journal = opened(file)
    write(journal, [b"one"], [b"two"])
    journal.replace(b"both")
    journal.sync()
    crash(journal)
    assert rows(file, "batch") == 3  # with the commit that has brought the snapshot

    again = opened(file)
    again.load()
    while again.has_more:
        again.sync()

    assert (on_disk(file), rows(file, "batch")) == ((b"both", []), 2)
    crash(again)


def test_no_older_snapshot_stands_for_one_of_which_a_piece_is_lost(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 4)
    monkeypatch.setattr(stores, "CLEARED_ROWS", 1)
    journal = opened(file)
    write(journal, [b"one"], [b"two"])
    put_whole(journal, b"both")
    write(journal, [b"three"], [b"four"])
    journal.replace(b"all")
    journal.sync()
    journal.sync()
    crash(journal)
    edit(file, "DELETE FROM snapshot WHERE state = CAST('all' AS BLOB)")

    with pytest.raises(JournalDamaged, match=r"commit . is missing"):
        read_all(file)


def test_a_clean_stop_leaves_a_snapshot_only(file: Path) -> None:
    journal = opened(file)
    write(journal, [b"one"])
    journal.close(b"all")

    again = opened(file)

    assert again.load() == (b"all", [])
    crash(again)


def test_a_store_knows_whether_a_stage_has_run_on_it(file: Path) -> None:
    first = open_store(str(file), "fsync", "main")
    assert first.is_new
    first.close(b"")

    second = open_store(str(file), "fsync", "main")

    assert not second.is_new
    second.close(None)


def test_a_stage_goes_on_with_its_numbers(file: Path) -> None:
    request = Request("c", 1, 1, 0, 0, (PublishAsk("a", 5),))
    journal = opened(file)
    driver = Driver.open(0, ONE, journal)
    driver.handle_request(request, 1.0)
    (first,) = driver.flush().replies
    crash(journal)

    journal = opened(file)
    driver = Driver.open(0, ONE, journal)
    driver.handle_request(request, 2.0)
    driver.handle_request(Request("c", 1, 2, 1, 1, (PublishAsk("a", 1),)), 2.0)
    same, following = driver.flush().replies

    assert same == first
    assert following.parts[0].first == 6
    crash(journal)


# -- a kill in the middle ---------------------------------------------------------------------------------------------

WRITER = """
import sys
from ordered_pubsub.server.store.store import SqliteJournal
from pathlib import Path
journal = SqliteJournal.open(Path(sys.argv[1]), sys.argv[2], "main")
snapshot, records = journal.load()
number = int(records[-1] if records else snapshot or b"0")
while True:
    batch = [b"%d" % (number + more) for more in range(1, 4)]
    number += 3
    journal.append(batch)
    journal.sync()
    print(number, flush=True)
    if number % 60 == 0:
        journal.replace(b"%d" % number)
"""


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_nothing_that_was_said_is_lost_by_kills_in_the_middle(file: Path, durability: str) -> None:
    said = 0
    for kill_after in (1, 20, 55, 130):
        command = [sys.executable, "-c", WRITER, str(file), durability]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(kill_after):
                said = int(writer.stdout.readline())
            writer.kill()
            said = max([said, *(int(line) for line in writer.stdout.read().split())])
        journal = opened(file, durability)
        snapshot, records = journal.load()
        crash(journal)
        kept = [int(record) for record in records]
        first = int(snapshot or b"0") + 1
        assert kept == list(range(first, first + len(kept)))
        assert first + len(kept) - 1 in (said, said + 3)


# -- what it refuses --------------------------------------------------------------------------------------------------


def test_a_record_that_was_changed_on_disk_is_not_believed(file: Path) -> None:
    journal = opened(file)
    write(journal, [b"first"], [b"the second record"], [b"third"])
    journal._let_go()
    edit(file, "UPDATE batch SET records = CAST(replace(records, 'second', 'secunda') AS BLOB) WHERE number = 2")

    again = opened(file)

    with pytest.raises(JournalDamaged, match=r"commit 2 fails its checksum.*'ordered-pubsub store check .*stage.db'"):
        again.load()
    crash(again)


def test_one_flipped_bit_in_the_middle_of_the_file_is_found(file: Path) -> None:
    journal = opened(file)
    for number in range(200):
        write(journal, [b"record %04d with some length" % number])
    journal._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    crash(journal)
    data = bytearray(file.read_bytes())
    data[data.index(b"record 0100") + 3] ^= 1
    file.write_bytes(data)

    again = opened(file)

    with pytest.raises(JournalDamaged, match="commit 101 fails its checksum"):
        again.load()
    crash(again)


def test_a_batch_that_is_missing_in_the_middle_is_found(file: Path) -> None:
    journal = opened(file)
    write(journal, [b"one"], [b"two"], [b"three"])
    crash(journal)
    edit(file, "DELETE FROM batch WHERE number = 2")

    again = opened(file)

    with pytest.raises(JournalDamaged, match="commit 2 is missing"):
        again.load()
    crash(again)


def test_a_snapshot_that_was_changed_on_disk_is_not_believed(file: Path) -> None:
    journal = opened(file)
    put_whole(journal, b"a snapshot")
    crash(journal)
    edit(file, "UPDATE snapshot SET state = CAST('a snapshor' AS BLOB)")

    again = opened(file)

    with pytest.raises(JournalDamaged, match="piece 0 of the snapshot is missing, or fails its checksum"):
        again.load()
    crash(again)


def test_a_file_that_is_something_else_is_left_alone(file: Path) -> None:
    file.write_bytes(b"holiday pictures " * 1000)

    with pytest.raises(JournalDamaged, match="not a database"):
        opened(file)

    assert file.read_bytes() == b"holiday pictures " * 1000


def test_the_store_of_another_stage_is_refused(file: Path) -> None:
    opened(file, stage="eu").close(b"")

    with pytest.raises(JournalError, match=r"belongs to stage 'eu', not 'us': check `store`"):
        opened(file, stage="us")


@pytest.mark.parametrize(
    ("format", "what_to_do"),
    [("4", "newer release; start the stage with that one"), ("2", "an earlier one.*begin the whole system anew")],
)
def test_the_store_of_another_release_is_refused_and_left_alone(file: Path, format: str, what_to_do: str) -> None:
    opened(file).close(b"snapshot")
    edit(file, "UPDATE about SET value = ? WHERE key = 'format'", format)

    with pytest.raises(UnknownVersion, match=f"has format {format}, and this release reads 3.*{what_to_do}"):
        opened(file)

    edit(file, "UPDATE about SET value = '3' WHERE key = 'format'")
    journal = opened(file)
    assert journal.load() == (b"snapshot", [])
    crash(journal)


def stored(file: Path) -> SqliteJournal:
    """A store with a log of two topics, which nobody has open."""
    journal = opened(file)
    for topic in ("a", "b"):
        journal.shelf.put("events", topic, [Row(1, 2, b"two events"), Row(3, 3, b"another one")])
        journal.shelf.put("stamps", topic, [Row(1, 3, b"a stamp")])
    journal.append([b"record"])
    journal.sync()
    crash(journal)
    return journal


def read_all(file: Path) -> None:
    journal = opened(file)
    try:
        journal.load()
        for topic in ("a", "b"):
            assert list(journal.read_shelf.get("events", topic, 1, 9))
            assert list(journal.read_shelf.get("stamps", topic, 1, 9))
    finally:
        crash(journal)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET key = key + 4 WHERE last = 3",
        "UPDATE events SET last = 4 WHERE last = 3",
        "UPDATE events SET data = x'00'",
        "UPDATE events SET data = CAST(data AS TEXT)",
        "UPDATE events SET checksum = checksum + 1",
        "UPDATE events SET key = key + (1 << 50)",
        "INSERT INTO stamps SELECT key + 3, last + 3, checksum, data FROM events WHERE last = 3",
        "UPDATE topic SET name = 'c' WHERE name = 'a'",
        "UPDATE topic SET id = id + 7 WHERE name = 'b'",
        "UPDATE topic SET floor = 1",
        "UPDATE topic SET name = 3 - id",
        "UPDATE about SET value = 'eu' WHERE key = 'stage'",
        "DELETE FROM about WHERE key = 'running'",
        "INSERT INTO about VALUES ('more', '')",
        "UPDATE batch SET number = 2",
        "UPDATE batch SET checksum = 0",
        "UPDATE batch SET records = CAST(records AS TEXT)",
        "CREATE INDEX more ON events (last)",
        "DROP TABLE pending",
    ],
)
def test_no_row_is_taken_for_what_it_is_not(file: Path, statement: str) -> None:
    stored(file)
    read_all(file)
    edit(file, statement)

    with pytest.raises((JournalDamaged, AssertionError)) as refused:
        read_all(file)
    assert "database" in str(refused.value) or "damaged" in str(refused.value) or "assert []" in str(refused.value)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE snapshot SET key = key + 4 * 1048576",
        "UPDATE snapshot SET pieces = 3",
        "UPDATE snapshot SET pieces = 1",
        "DELETE FROM snapshot WHERE key & 1048575 = 1",
        "UPDATE snapshot SET key = key + 1 WHERE key & 1048575 = 1",
        "DELETE FROM snapshot",
    ],
)
def test_the_pieces_of_a_snapshot_belong_to_each_other_and_to_a_commit(
    file: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 4)
    journal = opened(file)
    write(journal, [b"one"], [b"two"])
    put_whole(journal, b"snapshot")
    crash(journal)
    edit(file, statement)

    with pytest.raises(JournalDamaged, match=r"piece . of the snapshot is missing|commit 1 is missing"):
        read_all(file)


def test_each_commit_has_a_number_and_a_snapshot_says_of_which_it_is(file: Path) -> None:
    journal = opened(file)
    write(journal, [b"one"])
    journal.shelf.put("stamps", "a", [Row(1, 1, b"stamp")])
    journal.sync()
    journal.sync()
    put_whole(journal, b"both")
    write(journal, [b"three"])
    crash(journal)

    mark = read_mark(mark_of(file))
    assert mark is not None
    assert mark.commits == 5  # with the snapshot's own, and one that removes what it has replaced
    assert opened_and_left(file) == (b"both", [b"three"])


def opened_and_left(file: Path) -> tuple[bytes | None, list[bytes]]:
    journal = opened(file)
    try:
        return journal.load()
    finally:
        crash(journal)


# -- what is missing --------------------------------------------------------------------------------------------------


def killed(file: Path, *batches: list[bytes]) -> dict[str, bytes]:
    """What a process leaves that is killed after some commits; the store itself is closed then, and removed."""
    journal = opened(file)
    write(journal, *batches)
    files = files_of(file.parent)
    crash(journal)
    for left in file.parent.iterdir():
        left.unlink()
    return files


def lay_down(folder: Path, files: Files) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("missing", ["stage.db", "stage.db-wal", "stage.db.mark"])
def test_a_store_of_which_a_file_is_missing_is_refused_and_left_as_it_is(file: Path, missing: str) -> None:
    files = without(killed(file, [b"one"], [b"two"]), missing)
    lay_down(file.parent, files)

    with pytest.raises(JournalDamaged, match=r"gone or empty|behind its own mark|its mark .* is not there"):
        opened(file)

    assert {name: (file.parent / name).read_bytes() for name in files} == files


@pytest.mark.parametrize("word", ["stage.db-wal", "stage.db.mark"])
def test_a_database_that_is_gone_is_not_begun_anew_as_long_as_there_is_word_of_it(file: Path, word: str) -> None:
    files = killed(file, [b"one"])
    lay_down(file.parent, {word: files[word]})

    with pytest.raises(JournalDamaged, match=r"To begin anew, remove stage.db\*, all of it"):
        opened(file)


def test_an_older_copy_is_refused(file: Path) -> None:
    """It is a whole store, but numbers were given after it."""
    first = killed(file, [b"one"])
    lay_down(file.parent, first)
    journal = opened(file)
    write(journal, [b"two"])
    crash(journal)
    for name in ("stage.db", "stage.db-wal"):
        (file.parent / name).write_bytes(first[name])

    with pytest.raises(
        JournalDamaged, match=r"behind its own mark: its last commit is number 1, and there were 2.*store salvage"
    ):
        opened(file)


def test_the_mark_of_another_store_is_refused(file: Path, tmp_path: Path) -> None:
    opened(file).close(b"")
    opened(tmp_path / "other.db").close(b"")
    mark_of(file).write_bytes(mark_of(tmp_path / "other.db").read_bytes())

    with pytest.raises(JournalDamaged, match="is that of another store"):
        opened(file)


def test_a_log_that_is_missing_after_the_machine_has_stopped_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The mark may be older than what is missing."""
    monkeypatch.setattr(stores, "BOOT_FILE", tmp_path / "boot")
    (tmp_path / "boot").write_text("first")
    files = killed(tmp_path / "made" / file.name)
    lay_down(file.parent, without(files, "stage.db-wal"))
    crash(opened(file))  # on the same machine the mark says that nothing is missing
    lay_down(file.parent, without(files, "stage.db-wal"))
    (tmp_path / "boot").write_text("second")

    with pytest.raises(
        JournalDamaged, match=r"not stopped cleanly, and its write-ahead log .*stage.db-wal is not there"
    ):
        opened(file)


def test_after_a_clean_stop_there_is_no_log_and_the_store_says_so(file: Path) -> None:
    opened(file).close(b"all")

    mark = read_mark(mark_of(file))
    with closing(sqlite3.connect(file)) as connection:
        about = read_about(connection)
    assert (sorted(path.name for path in file.parent.iterdir())) == ["stage.db", "stage.db.mark"]
    assert mark is not None
    assert (mark.is_open, about["running"]) == (False, "")


def test_a_start_that_was_cut_off_before_anything_was_said_begins_anew(file: Path) -> None:
    mark, _ = MarkFile.open(mark_of(file))
    mark.begin(HighWaterMark(b"x" * 16))
    mark.close()

    journal = opened(file)

    assert journal.is_new
    crash(journal)


def test_a_database_of_something_else_is_left_alone(file: Path) -> None:
    edit(file, "CREATE TABLE pictures (name TEXT)")
    before = file.read_bytes()

    with pytest.raises(JournalError, match="is a database of something else"):
        opened(file)

    assert file.read_bytes() == before


def test_a_log_that_is_cut_at_a_bad_frame_is_refused_before_it_is_cut(file: Path) -> None:
    files = killed(file, *([b"record %d" % number] for number in range(9)))
    log = files["stage.db-wal"]
    damaged = {**files, "stage.db-wal": flipped(log, 8 * (log.index(b"record 3") + 2))}
    lay_down(file.parent, damaged)

    with pytest.raises(
        JournalDamaged, match=r"stage.db-wal: frame \d+, at byte \d+, fails its checksum, but commits follow"
    ):
        opened(file)

    assert (file.parent / "stage.db-wal").read_bytes() == damaged["stage.db-wal"]


def test_a_file_system_without_write_ahead_logs_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(statement.replace("journal_mode = WAL", "journal_mode = DELETE"), *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, factory=Elsewhere, **more))

    with pytest.raises(
        JournalError, match=r"stays in journal mode 'delete'. It probably lies on a network file system"
    ):
        opened(file)


def test_syncs_go_through_to_the_disk_where_they_would_stop_at_its_cache(file: Path) -> None:
    journal = opened(file)

    assert journal._connection.execute("PRAGMA fullfsync").fetchone() == (1,)
    assert journal._connection.execute("PRAGMA checkpoint_fullfsync").fetchone() == (1,)
    crash(journal)


# -- one process on one store -----------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(file: Path) -> Iterator[None]:
    """Another process has the store open."""
    program = (
        "import sys; from pathlib import Path; from ordered_pubsub.server.store.store import SqliteJournal\n"
        "journal = SqliteJournal.open(Path(sys.argv[1]), 'fsync', 'main'); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield
        process.kill()


@pytest.mark.usefixtures("elsewhere")
def test_a_store_that_another_process_has_is_refused(file: Path) -> None:
    with pytest.raises(JournalError, match="locked; probably another stage runs on it"):
        opened(file)


@pytest.mark.usefixtures("elsewhere")
def test_trying_to_open_a_store_does_not_unlock_it(file: Path) -> None:
    """Whoever closes a file gives up the locks of its whole process on it."""
    for _ in range(3):
        with pytest.raises(JournalError, match="locked"):
            opened(file)


@pytest.fixture(params=["symbolic link", "link to the folder", "hard link"])
def other_name(request: pytest.FixtureRequest, file: Path, tmp_path: Path) -> Path:
    """Another name of a store that is there."""
    opened(file).close(b"")
    folder = tmp_path / "other"
    if request.param == "link to the folder":
        folder.symlink_to(tmp_path)
        return folder / file.name
    folder.mkdir()
    other = folder / "other.db"
    (other.symlink_to if request.param == "symbolic link" else other.hardlink_to)(file)
    return other


@pytest.mark.parametrize("has_own_flock", [True, False])
def test_another_name_of_a_store_leads_to_the_same_lock(
    file: Path, other_name: Path, has_own_flock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "HAS_OWN_FLOCK", has_own_flock)
    journal = opened(file)
    program = (
        "import sys; from ordered_pubsub.server.store import _lock as lock; from ordered_pubsub.server.store.store import *\n"
        f"lock.HAS_OWN_FLOCK = {has_own_flock}; SqliteJournal.open(Path(sys.argv[1]), 'fsync', 'main')"
    )

    other = subprocess.run(
        [sys.executable, "-c", program, str(other_name)], capture_output=True, text=True, check=False
    )
    with pytest.raises(JournalError, match="locked; probably another stage runs on it"):
        opened(other_name)

    assert "locked; probably another stage runs on it" in other.stderr
    write(journal, [b"one"])
    crash(journal)


def test_a_store_is_reached_by_links_to_its_name_and_by_no_second_name(file: Path, other_name: Path) -> None:
    """SQLite has its log beside the name: a second name of the same file would have another log."""
    if other_name.name == "other.db" and not other_name.is_symlink():
        with pytest.raises(JournalDamaged, match="A store is opened by the name under which it was made"):
            opened(other_name)
    else:
        journal = opened(other_name)
        write(journal, [b"one"])
        crash(journal)
    crash(opened(file))


def test_two_stages_of_one_process_do_not_share_a_store(file: Path) -> None:
    journal = opened(file)

    with pytest.raises(JournalError, match="locked"):
        opened(file)

    crash(journal)


def test_a_store_that_was_tried_twice_is_still_locked_for_other_processes(file: Path) -> None:
    journal = opened(file)
    with pytest.raises(JournalError):
        opened(file)
    module = "ordered_pubsub.server.store.store"
    program = f"import sys; from {module} import *; SqliteJournal.open(Path(sys.argv[1]), 'fsync', 'main')"

    other = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=False)

    assert "locked" in other.stderr
    crash(journal)


def test_a_place_where_nothing_can_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(JournalError, match=r"of stage 'main' cannot be opened"):
        opened(tmp_path / "file" / "stage.db")


# -- durability -------------------------------------------------------------------------------------------------------


def test_without_durability_nothing_is_written_before_a_clean_stop(file: Path) -> None:
    journal = opened(file, "none")
    write(journal, [b"one"])
    journal.replace(b"snapshot")
    assert journal.load() == (None, [])
    journal.close(b"all")

    again = opened(file, "none")

    assert again.load() == (b"all", [])
    crash(again)


def test_without_durability_no_row_of_the_log_is_written_before_a_clean_stop(file: Path) -> None:
    journal = opened(file, "none")
    before = {path.name: path.read_bytes() for path in file.parent.iterdir() if "shm" not in path.name}
    journal.shelf.put("events", "a", [Row(1, 2, b"two events")])
    journal.shelf.drop("b", 7, b"full")
    write(journal, [b"one"])
    assert list(journal.read_shelf.get("events", "a", 1, 9)) == [Row(1, 2, b"two events")]
    assert {path.name: path.read_bytes() for path in file.parent.iterdir() if "shm" not in path.name} == before
    journal.close(b"all")

    again = opened(file, "none")
    assert list(again.shelf.get("events", "a", 1, 9)) == [Row(1, 2, b"two events")]
    assert (again.shelf.floor("b"), again.shelf.before("fulls", "b", 7)) == (7, Row(7, 7, b"full"))
    again.close(b"all")

    later = opened(file, "fsync")
    assert list(later.read_shelf.get("events", "a", 1, 9)) == [Row(1, 2, b"two events")]
    crash(later)


@pytest.mark.parametrize("afterwards", ["none", "os", "fsync"])
def test_without_durability_a_stage_does_not_start_after_a_crash(file: Path, afterwards: str) -> None:
    """It may have given numbers that nobody knows any more."""
    crash(opened(file, "none"))

    with pytest.raises(
        JournalError, match=r"durability='none', and it was not stopped cleanly.*remove the stores of all"
    ):
        opened(file, afterwards)


def test_without_durability_a_stage_starts_after_a_clean_stop(file: Path) -> None:
    opened(file, "none").close(b"all")

    crash(opened(file, "fsync"))


def test_what_only_the_system_had_is_not_believed_after_a_start_of_the_machine(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stores, "BOOT_FILE", tmp_path / "boot")
    (tmp_path / "boot").write_text("first\n")
    crash(opened(file, "os"))
    crash(opened(file, "os"))  # the stage was killed, not the machine
    (tmp_path / "boot").write_text("second\n")

    with pytest.raises(JournalError, match=r"durability='os', and its machine was not stopped cleanly"):
        opened(file, "os")


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_machine_that_was_stopped_cleanly_may_start_again(
    file: Path, durability: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stores, "BOOT_FILE", tmp_path / "boot")
    (tmp_path / "boot").write_text("first\n")
    opened(file, durability).close(b"all")
    (tmp_path / "boot").write_text("second\n")

    crash(opened(file, durability))


def test_what_is_on_disk_survives_the_machine(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stores, "BOOT_FILE", tmp_path / "boot")
    (tmp_path / "boot").write_text("first\n")
    crash(opened(file, "fsync"))
    (tmp_path / "boot").write_text("second\n")

    crash(opened(file, "fsync"))


def test_the_default_syncs_each_commit(file: Path) -> None:
    journal = opened(file)

    assert journal._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert journal._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    crash(journal)


# -- a bad disk -------------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_stage_and_nothing_is_answered(file: Path) -> None:
    journal = opened(file)
    driver = Driver.open(0, ONE, journal)
    driver.flush()
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    answered, failure = publish_until_it_fails(driver)
    with pytest.raises(JournalError, match="this stage stopped because its journal failed"):
        driver.flush()
    crash(journal)

    journal = opened(file)
    driver = Driver.open(0, ONE, journal)
    assert "disk is full" in str(failure)
    assert driver.stage.statistics()["events"] == answered > 0
    crash(journal)


def publish_until_it_fails(driver: Driver) -> tuple[int, JournalError]:
    """How many events were answered, and what happened then."""
    for answered in range(10_000):
        driver.handle_request(Request("c", 1, answered + 1, answered, 0, (PublishAsk("a" * 200),)), 1.0)
        try:
            assert driver.flush().replies[-1].parts[0].last == answered + 1
        except JournalError as error:
            return answered, error
    raise AssertionError("the disk was not full")


def test_a_full_disk_at_the_end_is_said_and_loses_nothing(file: Path) -> None:
    journal = opened(file)
    write(journal, [b"one"])
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(JournalError, match="the last snapshot cannot be written"):
        journal.close(b"x" * 100_000)

    again = opened(file)
    assert again.load() == (None, [b"one"])
    crash(again)


# -- files ------------------------------------------------------------------------------------------------------------


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(entry.stat().st_mode) for entry in folder.iterdir()}


def test_nobody_else_can_read_a_store(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        journal = opened(tmp_path / "made" / "stage.db")
        write(journal, [b"one"])
        assert modes(tmp_path / "made") == {0o600}
        assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    finally:
        os.umask(mask)
    assert len(list((tmp_path / "made").iterdir())) == 4  # the database, its log, what its readers share, and the mark
    crash(journal)


def test_a_store_that_others_could_read_is_closed_to_them(file: Path) -> None:
    opened(file).close(b"")
    file.chmod(0o644)

    journal = opened(file)

    assert modes(file.parent) == {0o600}
    crash(journal)


def test_every_refusal_is_an_error_of_this_library() -> None:
    assert issubclass(JournalDamaged, JournalError)
    assert issubclass(UnknownVersion, OrderedPubSubError)
