"""The simulation finds every guard that is taken away: in the seed that docs/mutants.md says, where falls what it says.

`make mutants` looks for that seed, which takes minutes; to see that it is the right one, one world is enough.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ordered_pubsub.core.client.outbox import Outbox
from simulation.mutants import MUTANTS, SEEDS_MAX, Mutant, find, row

LINES = (Path(__file__).parents[2] / "docs" / "mutants.md").read_text().splitlines()
SEED_OF = {
    found["name"]: int(found["seed"])
    for line in LINES
    if (found := re.fullmatch(r"\| `(?P<name>[\w-]+)` \|.*\| (`[\w-]+`, chance )?(?P<seed>\d+) \| [^|]+ \|", line))
}
EACH_INTERPRETER = ("jump", "no-marks", "begin-by-delta")
AGAIN = "run `make mutants` to write docs/mutants.md again"


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, id=m.name, marks=[pytest.mark.heavy] * (m.name not in EACH_INTERPRETER)) for m in MUTANTS],
)
def test_the_simulation_finds_the_missing_guard(mutant: Mutant) -> None:
    assert mutant.name in SEED_OF, AGAIN
    seed = SEED_OF[mutant.name]
    assert seed < SEEDS_MAX
    found = find(mutant, range(seed, seed + 1))
    assert found is not None, f"without this guard nothing falls there any more: {mutant.guard}; {AGAIN}"
    assert row(mutant, found) in LINES, AGAIN


def test_a_mutant_that_does_not_fit_the_code_is_no_finding() -> None:
    """As one whose function was written for another method: then the code falls, and no guard is missing."""
    misfit = Mutant("misfit", "none", ((Outbox, "taken", lambda outbox: None),))
    with pytest.raises(AssertionError, match="mutant misfit is wrong: TypeError"):
        find(misfit, range(1))


def test_a_guard_that_was_taken_away_is_back_afterwards() -> None:
    before = [getattr(target, name) for mutant in MUTANTS for target, name, _ in mutant.patches]
    for mutant in MUTANTS:
        with mutant.active():
            pass
    assert [getattr(target, name) for mutant in MUTANTS for target, name, _ in mutant.patches] == before
