"""Schedules that once went wrong, as small worlds of their own; chance decides only how long messages take."""

from __future__ import annotations

import attrs

from ordered_pubsub.testing.world import Action, Alter, Forbid, Publish, Subscribe, Weather, World

FAR_APART = Weather(
    ens_delay_s=0.01,
    ens_duplicate=0.0,
    ens_lose=0.0,
    link_delay_s=0.2,
    link_lose=0.0,
    link_duplicate=0.0,
    link_reorder=0.0,
    client_delay_s=0.002,
    client_lose=0.0,
    sync_s=0.0005,
)


def _world(owners: dict[str, int], clients: int, *actions: Action) -> World:
    return World(
        seed=0,
        stages=3,
        owners=owners,
        clients=clients,
        weather=FAR_APART,
        snapshot_after_records=10_000,
        buffer_events_max=20,
        ttl_s=1.0,
        eagerness=0.0,
        actions=actions,
        faults=(),
    )


SLOW_THEN_QUICK = _world(
    {"x": 2, "w": 2, "u": 0},
    3,
    Subscribe(0.0, 0, "s", ("x", "u")),
    Subscribe(0.0, 1, "d", ("w",)),
    Publish(3.0, 2, (("x", 1),)),
    Publish(3.0, 2, (("w", 1),)),
    *(Publish(3.2 + 0.03 * n, 1, (("u", 1),)) for n in range(30)),
)
"""A client publishes x, whose journey is long, and then w, whose journey is short. Who knows of w publishes u."""

EXCHANGE = _world(
    {"t": 2, "u": 0},
    2,
    Subscribe(0.0, 0, "s", ("u",)),
    Alter(3.0, "s", ("t",), ("u",)),
    *(Publish(3.0 + 0.05 * n, 1, (("t", 1), ("t", 1))) for n in range(12)),
    *(Publish(3.01 + 0.05 * n, 1, (("u", 1), ("u", 1))) for n in range(12)),
)
"""A subscription exchanges a high topic for a low one, while a client publishes on both, one after the other.

Two at a time, since what is published together keeps to itself and is not merged with what waits.
"""

REFUSED_LATE = attrs.evolve(
    _world(
        {"a": 0, "b": 1, "c": 2},
        2,
        Subscribe(0.0, 0, "s", ("a", "b")),
        Alter(2.0, "s", ("c",), ("b",)),
        Alter(2.1, "s", (), ("a",)),
        Alter(8.0, "s", ("c",)),
        *(Publish(2.0 + 0.1 * n, 1, (("abc"[n % 3], 1),)) for n in range(40)),
    ),
    weather=attrs.evolve(FAR_APART, client_lose=0.3),
    faults=tuple(Forbid(1.0, stage, "c", 6.0) for stage in range(3)),
)
"""The refusal of a change is lost, and comes again after the next change has taken effect."""

SCENARIOS = {"slow-then-quick": SLOW_THEN_QUICK, "exchange": EXCHANGE, "refused-late": REFUSED_LATE}
