"""The comparison of two trees: it measures on both, in turns, and judges what came of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import before_after  # noqa: E402  # it is no package: whoever runs it has this folder in the path
import resting_topics  # noqa: E402  # likewise


def line(before: list[float], after: list[float]) -> before_after.Line:
    return before_after.Line("core", [{"events": one} for one in before], [{"events": one} for one in after])


def test_a_turn_is_compared_with_itself() -> None:
    assert line([1.0, 10.0, 8.0], [9.0, 8.0, 16.0]).rows() == [("events", 8.0, 9.0, 2.0)]


@pytest.mark.parametrize(("slow", "turns"), [(0, 2), (1, 3), (2, 5), (9, 6)])
def test_what_would_be_too_slow_is_measured_longer(slow: int, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many of the first turns are slow; all of them count."""
    rates = iter([1.0] * slow + [10.0] * 9)

    def measured(name: str, tree: Path, share: float, limit_s: float) -> dict[str, float]:
        return {"events": next(rates) if tree == before_after.HERE else 10.0}

    monkeypatch.setattr(before_after, "measure_once", measured)
    found = before_after.measure("core", Path("before"), 2, 1.0, 60.0, 0.95)

    assert len(found.after) == len(found.before) == turns
    assert found.holds(0.95) is (slow < 9)


@pytest.mark.parametrize(("after", "is_well"), [(9.5, True), (9.4, False)])
def test_what_is_slower_than_the_least_is_said(after: float, is_well: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert before_after.show(line([10.0], [after]), 0.95) is is_well
    assert ("below" in capsys.readouterr().out) is not is_well


def test_a_line_that_could_not_be_measured_is_not_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert not before_after.show(before_after.Line("core", trouble="before: it is not there"), 0.95)
    assert "before: it is not there" in capsys.readouterr().out


def test_a_line_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        before_after.main(["--only", "nothing"])
    assert "core" in capsys.readouterr().err


def test_a_side_is_measured_in_a_process_of_its_own() -> None:
    figures = before_after.measure_once("core", BENCHMARKS.parent, 0.01, 120.0)
    assert all(value > 0 for value in figures.values())
    assert "single events, group of 1" in figures


@pytest.mark.heavy
def test_the_numbers_of_a_stage_are_measured() -> None:
    figures = before_after.measure_once("numbers", BENCHMARKS.parent, 0.01, 120.0)
    assert set(figures) == {f"{disk}, batches of {size}" for disk in ("none", "fsync") for size in (1, 10, 100, 1_000)}
    assert all(value > 0 for value in figures.values())


@pytest.mark.heavy
def test_topics_that_rest_cost_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting_topics, "PARTS", 10)  # of which a stage keeps the last answer
    awake, resting, _, wrong = resting_topics.measure(300, tmp_path)
    assert wrong == []
    assert resting.snapshot_bytes < awake.snapshot_bytes / 4
