"""Worlds from seeds: no invariant falls, the same seed gives the same trace, and a failure shrinks to something readable."""

from __future__ import annotations

import os
import subprocess
import sys

import attrs
import pytest

from ordered_pubsub.testing.shrink import shrink
from ordered_pubsub.testing.simulation import Simulation
from ordered_pubsub.testing.soak import run_seeds
from ordered_pubsub.testing.world import CRASH_POINTS, draw
from simulation.mutants import MUTANTS, find
from simulation.scenarios import SCENARIOS

SEEDS = int(os.environ.get("ORDERED_PUBSUB_SEEDS", "1000"))
PIECE = 50
CHANCES = 100
EACH_INTERPRETER = range(5)
"""Chances that a scenario gets on each of them; the others it gets on one."""


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.heavy] * (first > 0)) for first in range(0, SEEDS, PIECE)]
)
def test_no_invariant_falls(first: int) -> None:
    tally = run_seeds(range(first, min(first + PIECE, SEEDS)))
    assert tally.failures == []
    assert tally.counts["notifications"] > tally.counts["worlds"]


@pytest.mark.parametrize(
    "chances",
    [
        pytest.param(EACH_INTERPRETER, id="some"),
        pytest.param(range(len(EACH_INTERPRETER), CHANCES), id="others", marks=pytest.mark.heavy),
    ],
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_what_once_went_wrong_goes_right_whatever_chance_does(name: str, chances: range) -> None:
    for chance in chances:
        record = Simulation(attrs.evolve(SCENARIOS[name], chance=chance)).run()
        assert record.violations == [], chance
        assert record.notifications > 0


@pytest.mark.heavy
def test_positions_are_compared_stages_crash_journals_are_torn_and_tasks_are_killed() -> None:
    """So that the checkers have something to check: positions that are 1, 2, 3 and the sum of the entries, for one."""
    tally = run_seeds(range(200))
    assert tally.failures == []
    assert tally.counts["checked_positions"] > 2000
    assert tally.counts["crashes"] > 50
    assert tally.counts["torn_records"] > 5
    assert len(tally.deaths) > len(CRASH_POINTS) // 2
    assert tally.counts["ranges"] > 200
    assert tally.counts["ranges_lost"] > 5
    assert tally.counts["task_runs_killed"] > 30
    assert tally.counts["other_rows_noticed"] > 20


def test_the_same_seed_gives_the_same_trace() -> None:
    def trace(seed: int) -> list[str]:
        simulation = Simulation(draw(seed), keep_trace=True)
        simulation.run()
        assert simulation.lines is not None
        return simulation.lines

    for seed in range(20):
        assert trace(seed) == trace(seed)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (9, 11))])
def test_the_same_seed_gives_the_same_trace_in_another_process(seed: int) -> None:
    """Nothing depends on the hashing of texts, which differs from process to process."""
    command = [sys.executable, "-m", "ordered_pubsub.testing.simulate", "--seed", str(seed)]
    outputs = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hashing}, capture_output=True, text=True, check=True
        ).stdout
        for hashing in ("1", "2")
    }
    assert len(outputs) == 1
    assert "no violation" in outputs.pop()


@pytest.mark.heavy
def test_a_failing_world_shrinks_to_a_short_one_in_which_the_same_invariant_falls() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "exact-entries")
    found = find(mutant)
    assert found is not None
    world = draw(found.seed)
    with mutant.active():
        small = shrink(world, found.violation)
        violations = Simulation(small).run().violations
    assert violations[0].invariant == found.violation.invariant
    assert len(small.actions) <= 12 < len(world.actions)
    assert small.faults == ()
    assert Simulation(small).run().violations == []
