"""Rows are sorted, however many and however large, with little of them in memory."""

from __future__ import annotations

import tempfile
from random import Random
from typing import Any

import pytest

from ordered_pubsub.spark import spilling
from ordered_pubsub.spark.spilling import in_order


def key(row: tuple[int, bytes]) -> int:
    return row[0]


def size(row: tuple[int, bytes]) -> int:
    return len(row[1])


@pytest.mark.parametrize(("run", "piece", "runs"), [(1 << 30, 1 << 20, 64), (20_000, 1_000, 64), (5_000, 1_000, 3)])
def test_rows_come_in_order(monkeypatch: pytest.MonkeyPatch, run: int, piece: int, runs: int) -> None:
    """From memory, from files, and from files of files."""
    opened: list[Any] = []

    def open_one() -> Any:
        opened.append(real())
        return opened[-1]

    real = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", open_one)
    monkeypatch.setattr(spilling, "RUN_BYTES", run)
    monkeypatch.setattr(spilling, "PIECE_BYTES", piece)
    monkeypatch.setattr(spilling, "RUNS_MAX", runs)
    random, most = Random(1), 0
    rows = [(random.randrange(500), bytes(random.randrange(200))) for _ in range(1_000)]
    found = []
    for row in in_order(iter(rows), key, size):
        found.append(row)
        most = max(most, sum(not file.closed for file in opened))

    assert [key(row) for row in found] == sorted(map(key, rows))
    assert sorted(found) == sorted(rows)
    assert len(opened) > (1 if run < 1 << 30 else -1)
    assert most <= runs
    assert all(file.closed for file in opened)


def test_of_large_rows_a_few_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """While runs are merged, a piece of each is in memory, and no more."""
    monkeypatch.setattr(spilling, "RUN_BYTES", 1_000_000)
    monkeypatch.setattr(spilling, "PIECE_BYTES", 10_000)
    loaded: list[int] = []
    real = spilling.pickle.load

    def load(file: Any) -> Any:
        piece = real(file)
        loaded.append(sum(map(size, piece)))
        return piece

    monkeypatch.setattr(spilling.pickle, "load", load)
    rows = in_order(((number, bytes(20_000)) for number in range(500)), key, size)
    next(rows)
    assert sum(loaded) < 500_000
    assert max(loaded) <= 30_000
    assert len(list(rows)) == 499
