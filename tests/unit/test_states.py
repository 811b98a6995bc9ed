"""Tables of states: what they say of themselves, and what a simulation sees of them."""

from __future__ import annotations

from collections import Counter

import pytest

from ordered_pubsub.core.order.registered import ABSENT, LAST, REGISTERED, RESERVED
from ordered_pubsub.core.states import States
from ordered_pubsub.testing.simulation import Simulation
from ordered_pubsub.testing.states import TABLES
from ordered_pubsub.testing.watching import Watch
from ordered_pubsub.testing.world import draw

DOORS = States(
    "a door", {"open": {"shut": "it falls"}, "shut": {"open": "it is opened", "locked": "a key"}, "locked": {}}
)


@pytest.mark.parametrize("states", TABLES.values(), ids=lambda states: states.of)
def test_every_state_of_a_table_can_be_reached_and_is_described(states: States) -> None:
    first, *others = states.table
    named = {after for following in states.table.values() for after in following}
    assert named <= set(states.table)
    assert all(states.reaches(first, other) for other in others)
    assert all(when for following in states.table.values() for when in following.values())


def test_what_is_not_in_the_table_does_not_happen() -> None:
    DOORS.check("open", "shut")
    with pytest.raises(AssertionError, match="a door that is open does not become locked"):
        DOORS.check("open", "locked")
    assert DOORS.reaches("open", "locked")
    assert not DOORS.reaches("locked", "open")


def test_a_watch_sees_what_cannot_be() -> None:
    watch = Watch(DOORS, "open")
    watch.look({"front": "shut"})
    watch.look({"front": "locked"})
    with pytest.raises(AssertionError, match="a door, front: locked does not become shut"):
        watch.look({"front": "shut"})
    watch.begin_anew()
    watch.look({"front": "shut"})
    watch.look({})
    assert watch.seen == {("shut", "locked"): 1, ("shut", "open"): 1}


@pytest.mark.heavy
def test_what_is_registered_goes_every_way_that_its_table_shows() -> None:
    """A table that says more than happens would never be found wrong."""
    seen: Counter[tuple[str, str]] = Counter()
    for seed in (*range(12), 18):
        simulation = Simulation(draw(seed))
        assert simulation.run().violations == []
        for host in simulation.stages:
            seen.update(host.registered.seen)
    seen[RESERVED, LAST] += (
        1  # as `test_the_end_of_a_subscription_waits_behind_a_transaction` shows, in `test_committing`
    )
    wanted = {
        (before, after)
        for before, following in REGISTERED.table.items()
        for after in following
        if before not in (ABSENT, after)
    }
    assert wanted - set(seen) == set()
