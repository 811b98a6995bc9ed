"""A mutant: a guard of the protocol, and how to take it away; and how it is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from ordered_pubsub.testing.record import Violation
from ordered_pubsub.testing.simulation import Simulation
from ordered_pubsub.testing.world import World, draw
from simulation.scenarios import SCENARIOS

SEEDS_MAX = 2000
BROKEN = ("AttributeError", "NameError", "TypeError")
"""What is raised if a mutant does not fit the code any more; without a guard of the protocol nothing of the core raises it."""


@attrs.frozen
class Mutant:
    """A guard, and how to take it away."""

    name: str
    guard: str
    patches: tuple[tuple[Any, str, Any], ...]
    scenario: str = ""
    """the named scenario in which it must be found, with some chance; a drawn world if there is none"""

    def world(self, seed: int) -> World:
        """The world in which to look for it."""
        return attrs.evolve(SCENARIOS[self.scenario], chance=seed) if self.scenario else draw(seed)

    @contextmanager
    def active(self) -> Iterator[None]:
        """The guard is gone."""
        with ExitStack() as stack:
            for target, attribute, replacement in self.patches:
                stack.enter_context(patch.object(target, attribute, replacement))
            yield


@attrs.frozen
class Finding:
    """The first seed in which a mutant shows."""

    seed: int
    violation: Violation


def find(mutant: Mutant, seeds: range = range(SEEDS_MAX)) -> Finding | None:
    """Run worlds without the guard until an invariant falls, in a world in which none falls with it."""
    for seed in seeds:
        world = mutant.world(seed)
        with mutant.active():
            violations = Simulation(world).run().violations
        for violation in violations:
            # What falls must be the protocol, and not a mutant that has not kept up with it.
            is_own_fault = violation.invariant == "error" and (
                "simulation/mutants/" in violation.what or violation.what.startswith(BROKEN)
            )
            assert not is_own_fault, f"mutant {mutant.name} is wrong: {violation.what}"
        if violations and not Simulation(world).run().violations:
            return Finding(seed, violations[0])
    return None


def row(mutant: Mutant, found: Finding | None) -> str:
    """A line of docs/mutants.md."""
    seed, fell = (str(found.seed), found.violation.invariant) if found else ("none", "nothing")
    where = f"`{mutant.scenario}`, chance {seed}" if mutant.scenario else seed
    return f"| `{mutant.name}` | {mutant.guard} | {where} | {fell} |"


def nothing(*_: object) -> None:
    """Whatever was done here is not done."""
