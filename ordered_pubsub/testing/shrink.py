"""Make a failing world small: take things away as long as the same invariant still falls.

Whatever is taken away also changes what chance does to the rest, so each smaller world is tried under several chances.
"""

from __future__ import annotations

from typing import Any

import attrs

from ordered_pubsub.testing.record import Violation
from ordered_pubsub.testing.simulation import Simulation
from ordered_pubsub.testing.world import Subscribe, World

RUNS_MAX = 3_000
CHANCES = 6


def shrink(world: World, violation: Violation) -> World:
    """The smallest world found in which the same invariant falls."""
    shrinker = _Shrinker(world, violation.invariant)
    before = None
    while before != shrinker.world and shrinker.runs_left > 0:
        before = shrinker.world
        shrinker.drop_subscriptions()
        shrinker.drop_items("actions")
        shrinker.drop_items("faults")
        shrinker.calm()
    return shrinker.world


@attrs.define
class _Shrinker:
    world: World
    invariant: str
    runs_left: int = RUNS_MAX

    def maybe_take(self, **smaller: Any) -> bool:
        """Go on with a smaller world if the invariant still falls in it."""
        for chance in range(self.world.chance, self.world.chance + CHANCES):
            candidate = attrs.evolve(self.world, chance=chance, **smaller)
            self.runs_left -= 1
            if any(found.invariant == self.invariant for found in Simulation(candidate).run().violations):
                self.world = candidate
                return True
        return False

    def drop_subscriptions(self) -> None:
        """Take away whole subscriptions with their changes."""
        for name in [action.subscription for action in self.world.actions if isinstance(action, Subscribe)]:
            others = [action for action in self.world.actions if getattr(action, "subscription", None) != name]
            self.maybe_take(actions=tuple(others))

    def drop_items(self, part: str) -> None:
        """Take away pieces of half, a quarter, … of the actions or faults."""
        size = max(1, len(getattr(self.world, part)) // 2)
        while size:
            at = 0
            while at < len(getattr(self.world, part)) and self.runs_left > 0:
                items = getattr(self.world, part)
                if not self.maybe_take(**{part: items[:at] + items[at + size :]}):
                    at += size
            size //= 2

    def calm(self) -> None:
        """Take away bad weather, one kind at a time."""
        for kind in (
            "ens_refuse",
            "ens_duplicate",
            "ens_lose",
            "link_lose",
            "link_duplicate",
            "link_reorder",
            "client_lose",
        ):
            calmer = attrs.evolve(self.world.weather, **{kind: 0.0})
            if calmer != self.world.weather:
                self.maybe_take(weather=calmer)
