"""The store: what it keeps, what it refuses, and what a kill or a bad disk leaves of it."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordered_pubsub.core.driver import Driver
from ordered_pubsub.core.messages import PublishAsk, Request
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import JournalDamaged, JournalError, OrderedPubSubError, UnknownVersion
from ordered_pubsub.server import store as stores
from ordered_pubsub.server.store import SqliteJournal, open_store

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
    journal.replace(b"both")
    write(journal, [b"three"])
    crash(journal)

    again = opened(file)

    assert again.load() == (b"both", [b"three"])
    crash(again)


def test_a_snapshot_is_kept_in_pieces_and_none_may_be_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 4)
    journal = opened(file)
    journal.replace(b"a longer snapshot")
    journal.replace(b"a snapshot")
    assert journal.load() == (b"a snapshot", [])
    crash(journal)
    edit(file, "DELETE FROM snapshot WHERE piece = 1")

    again = opened(file)
    with pytest.raises(JournalDamaged, match="piece 1 of the snapshot is missing"):
        again.load()
    crash(again)


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
from ordered_pubsub.server.store import SqliteJournal
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

    with pytest.raises(JournalDamaged, match=r"batch 2 fails its checksum at byte 0.*restore the file from a copy"):
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

    with pytest.raises(JournalDamaged, match="batch 101 fails its checksum"):
        again.load()
    crash(again)


def test_a_batch_that_is_missing_in_the_middle_is_found(file: Path) -> None:
    journal = opened(file)
    write(journal, [b"one"], [b"two"], [b"three"])
    crash(journal)
    edit(file, "DELETE FROM batch WHERE number = 2")

    again = opened(file)

    with pytest.raises(JournalDamaged, match="batch 2 is missing"):
        again.load()
    crash(again)


def test_a_snapshot_that_was_changed_on_disk_is_not_believed(file: Path) -> None:
    journal = opened(file)
    journal.replace(b"a snapshot")
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


def test_the_store_of_a_newer_release_is_refused_and_left_alone(file: Path) -> None:
    opened(file).close(b"snapshot")
    edit(file, "UPDATE about SET value = '2' WHERE key = 'format'")

    with pytest.raises(UnknownVersion, match="has format 2, and this release reads 1"):
        opened(file)

    edit(file, "UPDATE about SET value = '1' WHERE key = 'format'")
    journal = opened(file)
    assert journal.load() == (b"snapshot", [])
    crash(journal)


@pytest.fixture
def elsewhere(file: Path) -> Iterator[None]:
    """Another process has the store open."""
    program = (
        "import sys; from pathlib import Path; from ordered_pubsub.server.store import SqliteJournal\n"
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


def test_two_stages_of_one_process_do_not_share_a_store(file: Path) -> None:
    journal = opened(file)

    with pytest.raises(JournalError, match="locked"):
        opened(file)

    crash(journal)


def test_a_store_that_was_tried_twice_is_still_locked_for_other_processes(file: Path) -> None:
    journal = opened(file)
    with pytest.raises(JournalError):
        opened(file)
    program = (
        "import sys; from ordered_pubsub.server.store import *; SqliteJournal.open(Path(sys.argv[1]), 'fsync', 'main')"
    )

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
    assert len(list((tmp_path / "made").iterdir())) == 4  # the database, its log, what its readers share, and the lock
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
