"""The simulation finds every guard that is taken away; docs/mutants.md says in which seed, and what fell."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.mutants import MUTANTS, Mutant, find, row

DOCUMENT = Path(__file__).parents[2] / "docs" / "mutants.md"
EVERY_INTERPRETER_RUNS = ("jump", "no-marks", "begin-by-delta")
FULL = int(os.environ.get("ORDERED_PUBSUB_SEEDS", "1000")) >= 1000


@pytest.mark.parametrize(
    "mutant", [m for m in MUTANTS if FULL or m.name in EVERY_INTERPRETER_RUNS], ids=lambda mutant: mutant.name
)
def test_the_simulation_finds_the_missing_guard(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    found = find(mutant)
    assert found is not None, f"without this guard nothing fell: {mutant.guard}"
    record_property("guard", mutant.guard)
    record_property("seed", found.seed)
    record_property("fell", str(found.violation))
    assert row(mutant, found) in DOCUMENT.read_text().splitlines(), "run `make mutants` to write docs/mutants.md again"


def test_a_guard_that_was_taken_away_is_back_afterwards() -> None:
    before = [getattr(target, name) for mutant in MUTANTS for target, name, _ in mutant.patches]
    for mutant in MUTANTS:
        with mutant.active():
            pass
    assert [getattr(target, name) for mutant in MUTANTS for target, name, _ in mutant.patches] == before
