"""What an operator can do about a damaged store: `ordered-pubsub store check` and `store salvage`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from helpers.damage import RIGHT, Acknowledged, Files, Stage, files_of, flipped, make_store, start, without
from ordered_pubsub.cli import main
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import JournalDamaged
from ordered_pubsub.server.store.salvage import LOST, MARGIN, salvage
from ordered_pubsub.server.store.store import SqliteJournal

DATABASE, LOG, MARK = "stage.db", "stage.db-wal", "stage.db.mark"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def killed(folder: Path) -> Acknowledged:
    """A store as a kill leaves it; what its clients know."""
    stage = make_store(folder, 16, snapshot_at=6)
    files, known = files_of(folder), stage.acknowledged.copy()
    stage.journal.close(None)
    lay_down(folder, files)
    return known


@pytest.fixture
def stopped(folder: Path) -> Acknowledged:
    """A store as a stop leaves it."""
    stage = make_store(folder, 16, snapshot_at=6)
    stage.journal.close(stage.driver.stage.snapshot())
    return stage.acknowledged.copy()


def lay_down(folder: Path, files: Files) -> None:
    for left in folder.iterdir():
        left.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def edit(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        connection.execute(statement)


def store(verb: str, folder: Path, *more: str) -> int:
    return main(["store", verb, str(folder / DATABASE), *more])


def salvaged(folder: Path, tmp_path: Path) -> tuple[bool, list[str], Files]:
    """Whether nothing is lost, what is said, and the new store's files, under the names of the old one's."""
    said: list[str] = []
    is_all = salvage(folder / DATABASE, tmp_path / "new.db", 5.0, said.append)
    new = {DATABASE: (tmp_path / "new.db").read_bytes(), MARK: (tmp_path / "new.db.mark").read_bytes()}
    return is_all, said, new


def started(tmp_path: Path, new: Files, known: Acknowledged) -> tuple[str, str]:
    (tmp_path / "started").mkdir()
    return start(tmp_path / "started", new, known)


# -- check ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("killed")
def test_a_whole_store_is_said_to_be_whole_and_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of(folder)

    assert store("check", folder) == 0

    out = capsys.readouterr().out
    assert "stage 'main': 19 commits; its mark says 19" in out
    assert "topic 'a': numbers 1 to 18" in out
    assert out.endswith("the store is whole\n")
    assert files_of(folder) == before


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE events SET data = x'00' WHERE key & 1023 = 1", "lost: the events of 1"),
        ("DELETE FROM stamps WHERE key & 1023 = 2", "lost: the order of numbers"),
        ("DELETE FROM topic WHERE name = 'b'", "topic 'b' is gone, of which 10 numbers were kept"),
        ("UPDATE snapshot SET checksum = 0", "piece 0 of the snapshot is missing, or fails its checksum"),
        ("UPDATE pending SET checksum = 0", "topic 'c': its events are not kept; 4 rows are damaged"),
    ],
)
def test_what_is_damaged_is_said(folder: Path, statement: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder, statement)

    assert store("check", folder) == 1

    out = capsys.readouterr().out
    assert said in out
    assert out.endswith("the store is damaged\n")


@pytest.mark.usefixtures("stopped")
def test_a_store_that_a_stage_runs_on_is_not_looked_at(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = SqliteJournal.open(folder / DATABASE, "os", "main")

    assert store("check", folder) == 1

    assert "another stage runs on it: stop that one" in capsys.readouterr().err
    journal.close(None)


def test_a_call_that_does_not_fit_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert store("check", folder) == 2
    assert "there is no store" in capsys.readouterr().err


# -- salvage ----------------------------------------------------------------------------------------------------------


def test_a_whole_store_is_copied_whole(folder: Path, tmp_path: Path, killed: Acknowledged) -> None:
    is_all, _, new = salvaged(folder, tmp_path)

    assert is_all
    assert started(tmp_path, new, killed) == (RIGHT, "")


def test_what_stands_behind_a_bad_frame_is_read(folder: Path, tmp_path: Path, killed: Acknowledged) -> None:
    """SQLite would cut the log there. What is wrong in the page is in a row that was written anew later."""
    files = files_of(folder)
    lay_down(folder, {**files, LOG: flipped(files[LOG], 8 * 60)})

    is_all, said, new = salvaged(folder, tmp_path)

    assert is_all, said
    assert started(tmp_path, new, killed) == (RIGHT, "")


def test_an_event_that_is_lost_stays_an_event_that_cannot_be_read(
    folder: Path, tmp_path: Path, stopped: Acknowledged
) -> None:
    edit(folder, "DELETE FROM events WHERE key & 1023 = 2")

    is_all, said, new = salvaged(folder, tmp_path)

    assert not is_all
    assert any("lost: the events of" in line for line in said)
    stage = opened(tmp_path, new, stopped)
    found = {
        chunk.data for item in stage.driver.owner_logs.reader.read("a", 1, 18, 1 << 20).items for chunk in item.chunks
    }
    assert LOST in found
    assert len(found & set(stopped.events.values())) > 5
    stage.journal.close(None)


def opened(tmp_path: Path, new: Files, known: Acknowledged) -> Stage:
    """A stage on the new store, with a client who has asked for nothing yet."""
    (tmp_path / "opened").mkdir()
    lay_down(tmp_path / "opened", new)
    return Stage.on(tmp_path / "opened" / DATABASE, known.copy("another one"))


def test_where_timestamps_are_lost_the_log_begins_behind_them(
    folder: Path, tmp_path: Path, stopped: Acknowledged
) -> None:
    """And what comes next has its timestamp in full."""
    edit(folder, "DELETE FROM stamps WHERE key >> 40 = 1 AND key & 1023 = 2")

    _, _, new = salvaged(folder, tmp_path)

    stage = opened(tmp_path, new, stopped)
    reader = stage.driver.owner_logs.reader
    assert stage.publish("a", 1) == 19
    (item,) = reader.read("a", 1, 19, 1 << 20, full=True).items
    assert (item.first, item.full) == (19, True)
    stage.journal.close(None)


def test_numbers_that_may_have_been_given_are_not_given_again(
    folder: Path, tmp_path: Path, killed: Acknowledged
) -> None:
    """The log is gone, and with it commits. A topic that nobody knows of any more may have had numbers, too."""
    lay_down(folder, without(files_of(folder), LOG))

    is_all, said, new = salvaged(folder, tmp_path)

    assert not is_all
    (lost,) = [line for line in said if line.startswith("lost: everything after commit 10, with up to ")]
    assert int(lost.split("up to ")[1].split()[0]) == sum(killed.numbers.values()) - 15  # which are in the snapshot
    stage = opened(tmp_path, new, killed)
    for topic in ("a", "b", "c", "unknown"):
        assert stage.publish(topic, 1) > MARGIN + 18
    assert stage.journal.load()
    stage.journal.close(stage.driver.stage.snapshot())


def test_without_a_mark_somebody_must_say_how_many_numbers_may_be_lost(
    folder: Path, tmp_path: Path, killed: Acknowledged, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_down(folder, without(without(files_of(folder), LOG), MARK))
    new = tmp_path / "new.db"

    assert store("salvage", folder, "--to", str(new)) == 2
    assert "there is no mark that says how many numbers were given" in capsys.readouterr().err
    assert not new.exists()
    assert store("salvage", folder, "--to", str(new), "--leave-out", "5000000") == 1
    assert "with up to 5,000,000 (as was said) numbers" in capsys.readouterr().out
    stage = opened(tmp_path, {DATABASE: new.read_bytes(), MARK: new.with_name("new.db.mark").read_bytes()}, killed)
    for topic in ("a", "unknown"):
        assert stage.publish(topic, 1) > 5_000_000
    stage.journal.close(None)


def test_what_is_lost_at_the_end_is_said_to_who_reads(folder: Path, tmp_path: Path, killed: Acknowledged) -> None:
    """One event that cannot be read, in its place, and silence behind it."""
    lay_down(folder, without(files_of(folder), LOG))
    _, _, new = salvaged(folder, tmp_path)
    stage = opened(tmp_path, new, killed)

    first = stage.publish("a", 1)

    reader = stage.driver.owner_logs.reader
    items = reader.read("a", 1, first, 1 << 20).items
    data = [chunk.data for item in items for chunk in item.chunks]
    assert data.count(LOST) == 1
    assert data[-2] == LOST
    assert [item.last for item in items][-1] == first
    assert reader.rows("a", 1, first, 1 << 20).read_to == first
    stage.journal.close(None)


@pytest.mark.usefixtures("stopped")
def test_without_its_state_nothing_can_go_on(folder: Path, tmp_path: Path) -> None:
    edit(folder, "UPDATE snapshot SET checksum = 0")

    with pytest.raises(JournalDamaged, match=r"nobody knows which numbers were given. Begin the whole system anew"):
        salvaged(folder, tmp_path)

    assert not (tmp_path / "new.db").exists()


def test_one_of_several_stages_that_has_lost_commits_cannot_go_on(tmp_path: Path) -> None:
    """The others know of them."""
    (tmp_path / "left").mkdir()
    file = tmp_path / "left" / DATABASE
    journal = SqliteJournal.open(file, "os", "low")
    Driver.open(1, Topology((StageSpec("high", ("a",)), StageSpec("low"))), journal).flush()
    journal.close(None)
    before = file.read_bytes()
    journal = SqliteJournal.open(file, "os", "low")
    journal.append([])
    journal.sync()
    journal.close(None)
    file.write_bytes(before)

    with pytest.raises(JournalDamaged, match=r"the other stages know of it and would refuse this one"):
        salvage(tmp_path / "left" / DATABASE, tmp_path / "new.db", 5.0, lambda line: None)


@pytest.mark.usefixtures("stopped")
def test_the_command_says_by_its_exit_code_whether_something_is_lost(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store("salvage", folder, "--to", str(tmp_path / "one.db")) == 0
    assert capsys.readouterr().out.endswith("nothing is lost\n")
    edit(folder, "DELETE FROM events WHERE key & 1023 = 2")
    assert store("salvage", folder, "--to", str(tmp_path / "two.db")) == 1
    assert capsys.readouterr().out.endswith("what is good was copied\n")
    assert store("salvage", folder, "--to", str(tmp_path / "two.db")) == 2
    assert "is there already: name a store that is not" in capsys.readouterr().err
