"""Schedules that once went wrong, as small worlds of their own; chance decides only how long messages take."""

from __future__ import annotations

import attrs

from ordered_pubsub.testing.world import (
    FOR_EVER,
    Action,
    Alter,
    Away,
    Crash,
    Cut,
    Deaf,
    Die,
    Forbid,
    Publish,
    Subscribe,
    Weather,
    World,
    draw,
)

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

DROP_THEN_GAIN = attrs.evolve(
    _world(
        {"t": 5, "u": 0},
        3,
        Subscribe(0.0, 0, "s", ("t",)),
        *(Publish(1.0 + 0.1 * n, 1, (("t", 1), ("u", 1))) for n in range(160)),
        *(Publish(1.0 + 0.05 * n, 2, (("u", 1),)) for n in range(320)),
        *(Alter(2.0 + 5.0 * n, "s", (), ("t",)) for n in range(3)),
        *(Alter(2.1 + 5.0 * n, "s", ("u",)) for n in range(3)),
        *(Alter(5.0 + 5.0 * n, "s", ("t",), ("u",)) for n in range(3)),
    ),
    stages=6,
)
"""A subscription drops the lowest topic and then gains the highest, while a client publishes on both together."""

OPENED_LATE = attrs.evolve(
    _world(
        {"a": 0, "b": 1},
        2,
        Subscribe(1.0, 0, "s", ("a", "b"), named=True),
        *(Publish(2.0 + 0.1 * n, 1, (("ab"[n % 2], 1),)) for n in range(10)),
    ),
    stages=2,
    kept=("a", "b"),
    faults=(Die(1.05, 0, 0.01),),
)
"""A client dies while its home relays that it opens a subscription, and the next one is at home where the registrar is."""

GAINED_THEN_DIED = attrs.evolve(
    _world(
        {"t": 1, "u": 0},
        3,
        Subscribe(0.0, 2, "d", ("t", "u")),
        Subscribe(0.0, 0, "s", ("u",), named=True),
        *(
            action
            for at in (1.0, 4.0, 7.0, 10.0, 13.0)
            for action in (
                *(Publish(at + 0.02 * n, 1, (("u", 1),)) for n in range(10)),
                Publish(at + 0.4, 1, (("t", 1),)),
                Alter(at + 0.5, "s", ("t",)),
                Publish(at + 1.0, 1, (("t", 1),)),
                Alter(at + 2.7, "s", (), ("t",)),
            )
        ),
    ),
    stages=2,
    kept=("t", "u"),
    weather=attrs.evolve(FAR_APART, ens_delay_s=1.0, ens_lose=0.6),
    faults=tuple(Die(at, 0, 0.01) for at in (3.2, 6.2, 9.2, 12.2, 15.2)),
)
"""A client gains a topic, acknowledges that and dies, while events are missing that come before the topic's next one."""

LEFT_THEN_DIED = attrs.evolve(
    _world(
        {"t": 1, "u": 0},
        2,
        Subscribe(0.0, 0, "s", ("t", "u"), named=True),
        *(
            action
            for at in (1.0, 4.0, 7.0, 10.0, 13.0)
            for action in (
                *(Publish(at + 0.02 * n, 1, (("t", 1),)) for n in range(10)),
                Alter(at + 0.3, "s", (), ("t",)),
                Alter(at + 2.7, "s", ("t",)),
            )
        ),
    ),
    stages=2,
    kept=("t", "u"),
    weather=attrs.evolve(FAR_APART, ens_delay_s=1.0, ens_lose=0.6),
    faults=tuple(Die(at, 0, 0.01) for at in (3.2, 6.2, 9.2, 12.2, 15.2)),
)
"""A client leaves a topic, acknowledges that and dies, while some of the topic's last events are missing."""

REORDERED_AFTER_CRASH = attrs.evolve(
    _world(
        {"t": 0},
        4,
        Subscribe(0.0, 0, "s", ("t",)),
        *(Publish(1.0 + 0.03 * n, 1 + n % 3, (("t", 1 + n % 4),)) for n in range(120)),
    ),
    stages=1,
    kept=("t",),
    weather=attrs.evolve(FAR_APART, ens_lose=0.9, sync_s=0.05),
    faults=tuple(Crash(1.2 + 0.4 * n, 0, "flush:before-sync", 0, 0.05) for n in range(8)),
)
"""A stage dies between writing and syncing; then its clients ask again, in another order, for batches of other sizes."""

SEEN_BETWEEN = attrs.evolve(
    _world(
        {"t": 0},
        4,
        Subscribe(0.0, 1, "s", ("t",)),
        Subscribe(0.0, 2, "d", ("t",)),
        Publish(1.0, 3, (("t", 1),)),
        *(Publish(1.2 + 0.1 * n, 0, (("t", 1),)) for n in range(20)),
    ),
    stages=1,
    kept=(),
    lease_s=3.0,
    weather=attrs.evolve(FAR_APART, ens_delay_s=0.01),
    faults=(
        Die(2.6, 0, FOR_EVER),
        Away(1.1, 1, "ens", 8.0),
        Away(1.1, 2, "ens", 12.0),
        Away(4.0, 2, "home", 7.0),
    ),
)
"""A publisher dies while two subscribers are away from the ENS. One gets the events after it has said that it has not seen them,
and before the other one can say the same."""

SEEN_THEN_VOID = attrs.evolve(
    _world(
        {"t": 0},
        4,
        Subscribe(0.0, 1, "s", ("t",)),
        Subscribe(0.0, 2, "d", ("t",)),
        *(Publish(2.0 + 0.05 * n, 0, (("t", 1),)) for n in range(8)),
        Publish(3.0, 3, (("t", 1),)),
    ),
    stages=1,
    kept=(),
    lease_s=3.0,
    faults=(Away(1.0, 2, "ens", 12.0), Die(2.26, 0, FOR_EVER)),
)
"""A publisher dies before it has said what it has handed over. One subscriber was notified of it, the other one is away."""

DUE_WHEN_READ_AGAIN = draw(1627)
"""A drawn world: two stages, subscriptions that hold nearly everything, and one that leaves a topic while that passes by. What
the change has left to do in the tables of its group is done at another time when a stage reads its journal again."""

FILTER_AFTER_FILTER = attrs.evolve(
    _world(
        {"t": 0, "u": 1},
        3,
        *(Publish(0.05 * n, 1 + n % 2, (("t", 1),)) for n in range(120)),
        *(Publish(0.3 * n, 1 + n % 2, (("u", 1),)) for n in range(20)),
        Subscribe(2.0, 0, "s", ("t", "u"), from_start=True, every=2),
        Alter(2.1, "s", (), ("t",)),
        Alter(2.2, "s", ("t",), every=3),
    ),
    kept=("t", "u"),
    silent=True,
    weather=attrs.evolve(FAR_APART, ens_lose=0.6, client_lose=0.5),
)
"""A subscription that reads the past of a topic by one filter holds it by another one, and both miss something."""

STARVED = attrs.evolve(
    _world(
        {"a": 0, "b": 0, "c": 0},
        2,
        Subscribe(0.0, 0, "s", ("a",)),
        Subscribe(0.0, 0, "d", ("b", "c")),
        *(Publish(1.0 + 0.05 * n, 1, (("a", 1),)) for n in range(360)),
        *(Publish(1.0 + 0.5 * n, 1, (("b", 1),)) for n in range(36)),
        *(Publish(1.0 + 1.9 * n, 1, (("c", 1),)) for n in range(9)),
    ),
    stages=1,
    kept=("a", "b", "c"),
    late_max_s=2.5,
    faults=(Deaf(2.0, 0, 18.0),),
)
"""The ENS brings nothing to a subscriber any more, while its topics are published on more often than owners look around."""

WOKEN_THEN_CRASHED = attrs.evolve(
    _world(
        {"t": 0},
        2,
        *(Publish(0.5 + 4.0 * n, 0, (("t", 1),)) for n in range(5)),
        *(Publish(1.0 + 4.0 * n, 1, (("t", 2),)) for n in range(5)),
        Subscribe(18.0, 0, "s", ("t",)),
    ),
    stages=1,
    rests=True,
    faults=tuple(Crash(0.7 + 4.0 * n, 0, "idle", 0, 0.05) for n in range(5)),
)
"""A topic that nobody holds rests, and is woken by a publication just before its owner dies."""

WAITS_WHILE_RESTING = attrs.evolve(
    _world(
        {"t": 0, "u": 2, "v": 2, "w": 2},
        2,
        Publish(0.2, 1, (("u", 1),)),
        Subscribe(0.5, 0, "s2", ("v",)),
        Alter(5.5, "s2", ("t",)),
        Alter(5.6, "s2", ("w",), together=(("u", 1),)),
    ),
    rests=True,
    faults=(Cut(5.0, 0, 1, 9.0),),
)
"""A change waits, with a publication, for one that cannot go on; meanwhile the topic that is published on rests again."""

LEFT_AND_LATE = attrs.evolve(
    _world(
        {"t": 1, "u": 1},
        3,
        Subscribe(0.0, 0, "s", ("t", "u")),
        Subscribe(0.0, 1, "d", ("t", "u")),
        *(Publish(2.1 + 0.02 * n, 2, (("t", 1),)) for n in range(5)),
        Alter(3.0, "s", (), ("t",)),
        Alter(3.0, "d", (), ("t",)),
        *(Publish(8.5 + 0.02 * n, 2, (("u", 1),)) for n in range(3)),
    ),
    stages=2,
    rests=True,
    faults=(Away(2.0, 0, "ens", 8.0),),
)
"""Two subscribers leave a topic; one of them is away from the ENS, and has still to be notified of its last events."""

LEFT_WITHOUT_OUTCOME = attrs.evolve(
    _world(
        {"t": 0, "u": 0},
        2,
        Subscribe(0.0, 0, "s", ("t", "u"), best_effort=True),
        Publish(1.0, 1, (("t", 1),)),
        Alter(3.0, "s", (), ("t",)),
        *(Publish(9.0 + 0.1 * n, 1, (("t", 1),)) for n in range(5)),
    ),
    stages=1,
    rests=True,
    weather=attrs.evolve(FAR_APART, client_delay_s=0.1),
    faults=(Away(3.15, 0, "home", 9.0),),
)
"""A best-effort subscriber leaves a topic, which rests and is published on again before it has heard that it has left it."""

GAINED_UNHEARD = attrs.evolve(
    _world(
        {"t": 2, "u": 1},
        7,
        *(Publish(2.0 + 0.1 * n, 6, (("t", 1),)) for n in range(60)),
        *(Subscribe(3.0, c, f"s{name}", ("t", "u")) for c, name in enumerate((1, 5, 6, 10, 11, 12))),
    ),
    kept=("t", "u"),
    forgets=True,
    weather=attrs.evolve(FAR_APART, ens_lose=0.6),
    faults=(Cut(2.0, 0, 1, 14.0),),
)
"""Subscriptions, all registered at stage 0, gain a topic, and stage 1, at which their changes end, cannot tell their registrar.
Meanwhile the topic's owner, stage 2, asks the registrar what its log may forget. (Only a client at home at stage 2 gets anywhere
before the link is mended: with six of them, some are.)"""

USED_WHILE_PUT_DOWN = attrs.evolve(
    _world(
        {"u": 0, **{f"t{topic}": 0 for topic in range(20)}},
        2,
        *(
            Publish(0.5 + 3.7 * turn + 0.11 * topic, topic % 2, ((f"t{topic}", 1),))
            for turn in range(6)
            for topic in range(20)
        ),
        Subscribe(0.0, 0, "s", ("u",)),
        Publish(0.4, 1, (("u", 1),)),
    ),
    stages=1,
    rests=True,
    weather=attrs.evolve(FAR_APART, sync_s=0.05, client_delay_s=0.05),
)
"""Topics are published on again while that they rest is on its way to a slow disk."""

SCENARIOS = {
    "gained-unheard": GAINED_UNHEARD,
    "used-while-put-down": USED_WHILE_PUT_DOWN,
    "slow-then-quick": SLOW_THEN_QUICK,
    "exchange": EXCHANGE,
    "refused-late": REFUSED_LATE,
    "drop-then-gain": DROP_THEN_GAIN,
    "opened-late": OPENED_LATE,
    "gained-then-died": GAINED_THEN_DIED,
    "left-then-died": LEFT_THEN_DIED,
    "reordered-after-crash": REORDERED_AFTER_CRASH,
    "seen-between": SEEN_BETWEEN,
    "seen-then-void": SEEN_THEN_VOID,
    "due-when-read-again": DUE_WHEN_READ_AGAIN,
    "filter-after-filter": FILTER_AFTER_FILTER,
    "starved": STARVED,
    "woken-then-crashed": WOKEN_THEN_CRASHED,
    "waits-while-resting": WAITS_WHILE_RESTING,
    "left-and-late": LEFT_AND_LATE,
    "left-without-outcome": LEFT_WITHOUT_OUTCOME,
}
