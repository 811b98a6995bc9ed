"""What `make prove-04` runs, in small; and what it makes of the figures."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def prove_04(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `make prove-04` runs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "prove_04.py"))


# -- the pipeline -----------------------------------------------------------------------------------------------------------


def test_killed_and_started_again_the_pipeline_ends_with_the_same_table(prove_04: dict[str, Any]) -> None:
    """Its driver, its worker, and a stage: with what an ordinary subscriber would make of its notifications."""
    found = sys.modules["pipeline_kills"].run(events=56_000, rows=8_000, kills=3)
    prove_04["check_pipeline"](found, kills=3)


def piped(**given: Any) -> Any:
    module = sys.modules["pipeline_kills"]
    kills = tuple(module.Kill(kind, at) for at, kind in enumerate(module.KINDS))
    found = module.Outcome(
        events=9, rows=9, kills=kills, starts=3, log_sha256="a", table_sha256="a", difference="", took_s=1.0
    )
    return attrs.evolve(found, **given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"kills": ()}, "killed 0 times instead of 3"),
        ({"starts": 2}, "started 2 times, and 2 kills ended it"),
        ({"difference": "line 4: expected 5, and there is 6"}, "line 4: expected 5, and there is 6"),
        ({"rows": 8}, "the table has 8 rows, and 9 events were published"),
        ({"table_sha256": "b"}, "not the same sha256"),
    ],
)
def test_a_proof_fails_with_the_pipeline(prove_04: dict[str, Any], given: dict[str, Any], why: str) -> None:
    prove_04["check_pipeline"](piped(), kills=3)
    with pytest.raises(sys.modules["proving"].Failed, match=why):
        prove_04["check_pipeline"](piped(**given), kills=3)


def test_a_proof_fails_if_one_of_the_three_was_not_killed(prove_04: dict[str, Any]) -> None:
    stage = sys.modules["pipeline_kills"].Kill("stage", 1)
    with pytest.raises(sys.modules["proving"].Failed, match="the driver was killed 0 times only"):
        prove_04["check_pipeline"](piped(kills=(stage,) * 3), kills=3)


@pytest.mark.parametrize("table", [["a", "b"], ["a", "b", "c", "c"], ["a", "c", "b"], ["a", "b", "d"]])
def test_a_table_is_compared_with_the_notifications(prove_04: dict[str, Any], table: list[str]) -> None:
    """Also its order, and rows that are missing, or there twice."""
    compare = sys.modules["pipeline_kills"].compare
    rows, expected, found, difference = compare(iter("abc"), iter(table))
    assert rows == len(table)
    assert expected != found
    assert difference.startswith("line ")
    assert compare(iter("abc"), iter("abc")) == (3, expected, expected, "")


# -- the rate ---------------------------------------------------------------------------------------------------------------


def test_rates_and_memory_are_measured(prove_04: dict[str, Any]) -> None:
    found = sys.modules["spark_rate"].run(rows=8_000, rounds=1, more=24_000, rows_per_batch=4_000)
    assert {kind: len(rounds) for kind, rounds in found.rates.rounds.items()} == dict.fromkeys(
        ("topics", "Parquet", "nothing"), 1
    )
    assert (found.held.rows, found.held.batches) == (24_000, 6)
    seen = {who for who, mbs in found.held.mb.items() if len(mbs) == 5 and min(mbs) > 1}
    assert seen >= {"driver", "JVM", "workers", "s0", "s1"}  # the heap is looked at once a second only


def test_a_proof_fails_with_the_rate(prove_04: dict[str, Any]) -> None:
    rates = sys.modules["spark_rate"].Rates
    prove_04["check_rate"](rates(1, {"topics": [100_000.0, 200_000.0, 210_000.0]}))
    with pytest.raises(sys.modules["proving"].Failed, match="199,000 rows a second, and at least 200,000"):
        prove_04["check_rate"](rates(1, {"topics": [300_000.0, 199_000.0, 100_000.0]}))


def holding(**given: list[float]) -> Any:
    names = ("driver", "JVM", "heap", "workers", "s0", "s1")
    return sys.modules["spark_rate"].Held(1, 1, 1.0, {**{who: [40.0, 90.0, 45.0] for who in names}, **given})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"s0": [40.0, 40.0, 140.0]}, "s0 held 140 MB in the last fifth, and at most 64 were expected"),
        ({"heap": [40.0, 0.0, 40.0]}, "it was not seen what is held by heap in fifth 2"),
        ({"workers": [0.0, 0.0, 0.0]}, "it was not seen what is held by workers in fifth 1, workers in fifth 2"),
    ],
)
def test_a_proof_fails_with_memory_that_grows(prove_04: dict[str, Any], given: dict[str, Any], why: str) -> None:
    prove_04["check_memory"](holding())
    with pytest.raises(sys.modules["proving"].Failed, match=why):
        prove_04["check_memory"](holding(**given))


# -- the audit --------------------------------------------------------------------------------------------------------------


def test_what_was_planted_is_found(prove_04: dict[str, Any]) -> None:
    found = sys.modules["spark_audit"].run(subscribers=6, each=400)
    prove_04["check_audit"](found, 6 * 400 - 1)
    assert all(one.took_s > 0 and one.mb["JVM"] > 1 for one in found)
    for given, why in (
        ({"found": ()}, "swapped: expected .*'order', 2.*, and found was"),
        ({"found": (("order", 2), ("gap", 1))}, "swapped: expected .*'order', 2.*, and found was"),
        ({"examples": ()}, "swapped: expected the example"),
        ({"notifications": 9}, "swapped: only 9 notifications"),
    ):
        with pytest.raises(sys.modules["proving"].Failed, match=why):
            prove_04["check_audit"]([found[0], attrs.evolve(found[1], **given), *found[2:]], 6 * 400 - 1)
    with pytest.raises(sys.modules["proving"].Failed, match="judged were clean, swapped"):
        prove_04["check_audit"](found[:2], 1)


# -- the sizes --------------------------------------------------------------------------------------------------------------


def curve_points(**given: float) -> list[Any]:
    """Points as they should be, but for the mean of one of them."""
    from ordered_pubsub.spark.jobs import Point, Setting, Sizes

    points = []
    for shape in (0.901, 0.349):
        for count, order, mean in (
            (1, "pairwise", 1.0),
            (1, "total", 1.0),
            (10, "pairwise", 18.0 if shape > 0.5 else 45.0),
            (10, "total", 99.0),
            (200, "pairwise", 900.0),
            (200, "total", 999.0),
        ):
            name = f"{order}_{count}"
            full = Sizes(given.get(name, mean), 1.0, 1.0)
            points.append(
                Point(
                    Setting(shape, count, order), 10_000 * count, full, Sizes(given.get(f"{name}_delta", 1.0), 1.0, 1.0)
                )
            )
    return points


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"pairwise_10": 25.0}, r"shape 0\.901: 25\.0 entries on average, and 17 in the paper"),
        ({"pairwise_200": 2.0}, "sizes fall with more subscriptions"),
        ({"total_200_delta": 1_000.0}, "a delta has more than all"),
        ({"total_1": 0.5, "total_1_delta": 0.5}, "total has less than pairwise"),
    ],
)
def test_a_proof_fails_with_the_sizes(prove_04: dict[str, Any], given: dict[str, float], why: str) -> None:
    prove_04["check_sizes"](curve_points())
    with pytest.raises(sys.modules["proving"].Failed, match=why):
        prove_04["check_sizes"](curve_points(**given))


def test_a_proof_fails_with_a_test_that_fails_or_is_left_out(prove_04: dict[str, Any], tmp_path: Path) -> None:
    for text, why in (
        ("def test_it(): assert False", "1 failed"),
        ("import pytest\ndef test_it(): pytest.skip()", "1 skipped"),
    ):
        (tmp_path / "test_one.py").write_text(text)
        with pytest.raises(sys.modules["proving"].Failed, match=why):
            sys.modules["proving"].tested(str(tmp_path / "test_one.py"))
