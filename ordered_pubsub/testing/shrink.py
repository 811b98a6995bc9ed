"""Make a failing world small: take away actions and faults as long as the same invariant still falls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs

from ordered_pubsub.testing.record import Violation
from ordered_pubsub.testing.simulation import Simulation
from ordered_pubsub.testing.world import Action, Fault, Subscribe, World

RUNS_MAX = 2_000

_Item = TypeVar("_Item")


@attrs.define
class _Budget:
    """How many runs are left."""

    runs: int = RUNS_MAX


def shrink(world: World, violation: Violation) -> World:
    """The smallest world found in which the same invariant falls."""
    budget = _Budget()

    def still_fails(smaller: World) -> bool:
        budget.runs -= 1
        found = Simulation(smaller).run().violations
        return any(one.invariant == violation.invariant for one in found)

    while budget.runs > 0:
        before = world
        world = _without_subscriptions(world, still_fails)
        world = _with_fewer_actions(world, still_fails, budget)
        world = _with_fewer_faults(world, still_fails, budget)
        world = _calm(world, still_fails)
        if world == before:
            break
    return world


def _with_fewer_actions(world: World, still_fails: Callable[[World], bool], budget: _Budget) -> World:
    def fails(actions: tuple[Action, ...]) -> bool:
        return still_fails(attrs.evolve(world, actions=actions))

    return attrs.evolve(world, actions=_reduce(world.actions, fails, budget))


def _with_fewer_faults(world: World, still_fails: Callable[[World], bool], budget: _Budget) -> World:
    def fails(faults: tuple[Fault, ...]) -> bool:
        return still_fails(attrs.evolve(world, faults=faults))

    return attrs.evolve(world, faults=_reduce(world.faults, fails, budget))


def _without_subscriptions(world: World, still_fails: Callable[[World], bool]) -> World:
    """Take away whole subscriptions with their changes."""
    for name in [action.subscription for action in world.actions if isinstance(action, Subscribe)]:
        smaller = attrs.evolve(
            world, actions=tuple(action for action in world.actions if getattr(action, "subscription", None) != name)
        )
        if still_fails(smaller):
            world = smaller
    return world


def _reduce(
    items: tuple[_Item, ...], still_fails: Callable[[tuple[_Item, ...]], bool], budget: _Budget
) -> tuple[_Item, ...]:
    """Take away pieces of half, a quarter, … of the items, as long as it still fails without them."""
    size = max(1, len(items) // 2)
    while size and budget.runs > 0:
        at = 0
        while at < len(items) and budget.runs > 0:
            fewer = items[:at] + items[at + size :]
            if still_fails(fewer):
                items = fewer
            else:
                at += size
        size //= 2
    return items


def _calm(world: World, still_fails: Callable[[World], bool]) -> World:
    """Take away bad weather, one kind at a time."""
    for kind in ("ens_duplicate", "ens_lose", "link_lose", "link_duplicate", "link_reorder", "client_lose"):
        smaller = attrs.evolve(world, weather=attrs.evolve(world.weather, **{kind: 0.0}))
        if smaller != world and still_fails(smaller):
            world = smaller
    return world
