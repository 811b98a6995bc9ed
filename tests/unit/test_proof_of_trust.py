"""What `make prove-05` makes of what its measurements say."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def prove_05(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `make prove-05` runs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "prove_05.py"))


def saying(prove_05: dict[str, Any], line: str, **said: Callable[..., Any]) -> Callable[[], str]:
    """A line whose measurements say something else."""
    found: Callable[[], str] = prove_05[line]
    for name, function in said.items():
        found.__globals__[name] = function
    return found


def test_a_measurement_that_ends_badly_fails(prove_05: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(prove_05["Failed"], match=r"tag_cost.py --broker pigeon ended with 2"):
        prove_05["measured"]("tag_cost", "--broker", "pigeon")
    assert "invalid choice: 'pigeon'" in capsys.readouterr().out


def test_too_few_starts_fail(prove_05: dict[str, Any]) -> None:
    tested = {"tested": lambda *tests: "5 passed"}
    assert saying(prove_05, "disk", measured=lambda *_: "\n20,000 starts: 20,000 right\n", **tested)() == (
        "20,000 starts; 5 passed"
    )
    with pytest.raises(prove_05["Failed"], match="only 19,999 starts"):
        saying(prove_05, "disk", measured=lambda *_: "\n19,999 starts: 19,999 right\n", **tested)()
    with pytest.raises(prove_05["Failed"], match="not said"):
        saying(prove_05, "disk", measured=lambda *_: "", **tested)()


@pytest.mark.parametrize("summary", ["no tests ran in 0.1s", "2 passed in 3 s", "1 failed, 3 passed in 3 s"])
def test_mutants_that_were_not_found_fail(prove_05: dict[str, Any], summary: str) -> None:
    with pytest.raises(prove_05["Failed"], match=summary):
        saying(prove_05, "simulation", run=lambda *_: summary)()
    assert "4 passed" in saying(prove_05, "simulation", run=lambda *_: "4 passed in 9 s")()


def test_the_aim_that_is_missed_is_said(prove_05: dict[str, Any]) -> None:
    said = saying(prove_05, "tags", measured=lambda *_: "unpacked … MISSED\npacked … met\n")()
    assert said.endswith("the aim is missed 4 of 8 times")


def test_without_the_commit_before_nothing_is_compared(prove_05: dict[str, Any]) -> None:
    def fail(*_: str) -> str:
        raise prove_05["Failed"]("fatal: Not a valid object name")

    with pytest.raises(prove_05["NotRun"], match="git fetch --unshallow"):
        saying(prove_05, "costs", run=fail)()


def test_the_tests_that_are_run_again_are_there(prove_05: dict[str, Any]) -> None:
    for tests in prove_05["REPRODUCTIONS"].values():
        for test in tests:
            assert (BENCHMARKS.parent / test).is_file()
