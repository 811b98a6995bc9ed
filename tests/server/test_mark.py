"""The mark beside a store: it is never ahead, and whatever becomes of one slot, the other is there."""

from __future__ import annotations

import itertools
from pathlib import Path

import attrs
import pytest

from helpers.damage import flipped
from ordered_pubsub.errors import JournalDamaged
from ordered_pubsub.server.store import mark as marks
from ordered_pubsub.server.store.mark import HighWaterMark, MarkFile, boot_mark, read_mark

MARK = HighWaterMark(b"i" * 16, 41, 700, True, boot_mark("this start"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stage.db.mark"


def made(path: Path) -> MarkFile:
    file, before = MarkFile.open(path)
    assert before is None
    file.begin(MARK)
    return file


def test_what_was_written_is_read(path: Path) -> None:
    file = made(path)
    file.follow(42, 700, syncs=False)
    file.close()

    assert read_mark(path) == attrs.evolve(MARK, commits=42)
    again, found = MarkFile.open(path)
    assert found == attrs.evolve(MARK, commits=42)
    again.begin(attrs.evolve(MARK, commits=43))
    again.close()
    assert read_mark(path) == attrs.evolve(MARK, commits=43)


def test_a_mark_that_is_not_there_or_empty_says_nothing(path: Path) -> None:
    assert read_mark(path) is None
    path.touch()
    assert read_mark(path) is None


def test_a_flipped_bit_leaves_what_was_true_one_commit_before(path: Path) -> None:
    file = made(path)
    file.follow(42, 700, syncs=True)
    file.follow(43, 700, syncs=True)
    file.close()
    data = path.read_bytes()
    seen = set()
    for bit in range(8 * len(data)):
        if data[bit // 8] or bit % 97 == 0:
            path.write_bytes(flipped(data, bit))
            found = read_mark(path)
            assert found is not None
            seen.add(found.commits)

    assert seen == {42, 43}


def test_a_mark_of_which_nothing_is_good_is_damaged(path: Path) -> None:
    made(path).close()
    path.write_bytes(bytes(path.stat().st_size))

    with pytest.raises(
        JournalDamaged, match=r"the mark .*stage.db.mark.* is damaged.*store salvage .*stage.db --to NEW"
    ):
        read_mark(path)


def test_a_mark_is_its_owners_only(path: Path) -> None:
    made(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_disk_has_the_mark_a_second_later_at_most(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, synced = [100.0], list[float]()
    monkeypatch.setattr(marks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(marks, "full_sync", lambda file: synced.append(now[0]))
    file = made(path)
    for _ in range(300):
        now[0] += 0.01
        file.follow(42, 700, syncs=True)
    file.close()

    assert synced[0] == 100.0
    assert all(0.9 < later - before < 1.1 for before, later in itertools.pairwise(synced))
    assert len(synced) == 4


def test_where_the_system_does_not_tell_its_starts_apart_the_mark_has_none() -> None:
    assert boot_mark("") == bytes(16)
    assert boot_mark("one") != boot_mark("another")
