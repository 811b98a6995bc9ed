"""Damaged stores: a start refuses with a reason, or everything is there. And no false alarm after kills and cuts of the power.

`benchmarks/damaged_stores.py` does this with every bit; here it is a part of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from helpers.damage import (
    GOOD,
    REFUSED,
    RIGHT,
    Acknowledged,
    Files,
    Stage,
    every_bit,
    every_prefix,
    files_of,
    make_store,
    run,
    start,
    without,
)
from ordered_pubsub.server.store import store as stores

LOG = "stage.db-wal"
MARK = "stage.db.mark"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where stages start."""
    (tmp_path / "starts").mkdir()
    return tmp_path / "starts"


@pytest.fixture
def running(tmp_path: Path) -> Stage:
    (tmp_path / "made").mkdir()
    return make_store(tmp_path / "made", snapshot_at=9)


@pytest.fixture
def killed(running: Stage) -> tuple[Files, Acknowledged]:
    """What a process that is killed leaves, and what its clients know."""
    files = files_of(running.journal.file.parent)
    known = running.acknowledged.copy()
    running.journal.close(None)
    return files, known


@pytest.fixture
def stopped(running: Stage) -> tuple[Files, Acknowledged]:
    """What a clean stop leaves."""
    known = running.acknowledged.copy()
    running.journal.close(running.driver.stage.snapshot())
    return files_of(running.journal.file.parent), known


def verdicts(folder: Path, cases: Iterable[tuple[str, Files]], known: Acknowledged) -> Counter[str]:
    """All starts must be good; how many there are of each kind."""
    counted: Counter[str] = Counter()
    for what, files in cases:
        verdict, reason = start(folder, files, known)
        assert verdict in GOOD, f"{what}: {verdict} ({reason})"
        assert verdict == RIGHT or reason
        counted[verdict] += 1
    return counted


def test_what_is_not_damaged_starts(folder: Path, killed: tuple[Files, Acknowledged]) -> None:
    assert start(folder, *killed) == (RIGHT, "")


def test_what_was_stopped_starts(folder: Path, stopped: tuple[Files, Acknowledged]) -> None:
    assert start(folder, *stopped) == (RIGHT, "")


@pytest.mark.parametrize("name", ["stage.db", LOG, MARK])
def test_after_a_kill_a_flipped_bit_is_noticed_or_harmless(
    folder: Path, killed: tuple[Files, Acknowledged], name: str
) -> None:
    files, known = killed
    counted = verdicts(folder, every_bit(files, name, 8 * len(files[name]) // 150 | 1), known)

    assert counted[REFUSED] == (0 if name == MARK else pytest.approx(75, abs=90))
    assert sum(counted.values()) >= 140


def test_after_a_stop_a_flipped_bit_is_noticed_or_harmless(folder: Path, stopped: tuple[Files, Acknowledged]) -> None:
    files, known = stopped
    counted = verdicts(folder, every_bit(files, "stage.db", 8 * len(files["stage.db"]) // 300 | 1), known)

    assert counted[REFUSED]
    assert counted[RIGHT]


def test_no_part_of_the_log_stands_for_all_of_it(folder: Path, killed: tuple[Files, Acknowledged]) -> None:
    files, known = killed
    counted = verdicts(folder, every_prefix(files, LOG, len(files[LOG]) // 150), known)

    assert set(counted) == {REFUSED}


@pytest.mark.parametrize("name", ["stage.db", LOG, MARK])
def test_a_file_that_is_missing_is_noticed(folder: Path, killed: tuple[Files, Acknowledged], name: str) -> None:
    files, known = killed
    assert start(folder, without(files, name), known)[0] == REFUSED


# -- no false alarms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_process_may_be_killed_between_any_two_writes(
    tmp_path: Path, folder: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a process that is killed: the log up to any byte of the next commit, and the mark of the last one. Meanwhile a
    snapshot is written, and what it replaces is removed."""
    monkeypatch.setattr(stores, "PIECE_BYTES", 512)
    monkeypatch.setattr(stores, "CLEARED_ROWS", 2)
    (tmp_path / "made").mkdir()
    stage = make_store(tmp_path / "made", 3, snapshot_at=1)
    made = stage.journal.file.parent
    stage.journal.close(None)
    stage = Stage.on(stage.journal.file, stage.acknowledged, durability)
    before = files_of(made)
    has_had_more = 0
    for number in range(3, 12):
        known = stage.acknowledged.copy()
        if number == 4:
            stage.journal.replace(stage.driver.stage.snapshot())
        has_had_more += stage.journal.has_more
        run(stage, number)
        after = files_of(made)
        for size in range(len(before[LOG]), len(after[LOG]) + 1, 97):
            assert start(folder, {**before, LOG: after[LOG][:size]}, known) == (RIGHT, "")
        assert start(folder, {**after, MARK: before[MARK]}, known)[0] == RIGHT
        before = after
    assert has_had_more > 4
    stage.journal.close(None)


def test_the_power_may_fail_at_any_time(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has what was synced, and any pages of the next commit; the mark is any that was there before."""
    monkeypatch.setattr(stores, "BOOT_FILE", tmp_path / "boot")
    (tmp_path / "boot").write_text("first")
    (tmp_path / "made").mkdir()
    stage = make_store(tmp_path / "made", 2)
    made = stage.journal.file.parent
    stage.journal.close(None)
    stage = Stage.on(stage.journal.file, stage.acknowledged, "fsync")
    before = files_of(made)
    marks, random, frame = [before[MARK]], Random(1), 24 + 512
    starts = 0
    for number in range(2, 10):
        known = stage.acknowledged.copy()
        run(stage, number)
        after = files_of(made)
        (tmp_path / "boot").write_text("second")
        places = range(len(before[LOG]) or 32, len(after[LOG]), frame)
        for lost in itertools.product((False, True), repeat=min(len(places), 4)):
            torn = bytearray(after[LOG])
            for place, is_lost in zip(places, lost, strict=False):
                if is_lost:
                    torn[place : place + frame] = bytes(frame)
            files = {**before, LOG: bytes(torn), MARK: random.choice(marks)}
            verdict, reason = start(folder, files, known)
            assert verdict == RIGHT, reason
            starts += 1
        (tmp_path / "boot").write_text("first")
        marks.append(after[MARK])
        before = after
    stage.journal.close(None)
    assert starts > 50
