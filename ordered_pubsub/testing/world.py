"""The world of one simulation, drawn from its seed: stages, topics, clients, what they do, and what breaks when.

A world is plain data, so that a failing one can be printed, repeated and shrunk.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import attrs

from ordered_pubsub.core.levels import EXACTLY_ONCE, ORDERED, Levels
from ordered_pubsub.core.subscriber.delivery import Order
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.core.trust.keys import Security

Absence = Literal["pause", "home", "ens"]
ABSENCES: tuple[Absence, ...] = ("pause", "home", "ens")
ORDERS: tuple[Order, ...] = ("total", "pairwise", "topic")

FOR_EVER = 1e9
FAULTS_END_S = 20.0
"""Until then things happen and break; after it everything is healed and must come to rest."""


@attrs.frozen
class Publish:
    """A client publishes; with several parts they take their place together."""

    at: float
    client: int
    parts: tuple[tuple[str, int], ...]
    is_transaction: bool = False
    """whether subscribers are to be notified of all of them together"""


@attrs.frozen
class Subscribe:
    """A client begins a subscription."""

    at: float
    client: int
    subscription: str
    topics: tuple[str, ...]
    order: Order = "total"
    best_effort: bool = False
    named: bool = False
    """whether it outlives its client's process"""
    from_start: bool = False
    """whether it begins with the first event of each topic"""
    every: int = 1
    """its filter: it wants the events whose index is a multiple of this"""


@attrs.frozen
class Alter:
    """A client adds topics to a subscription and removes others, perhaps with publications at the same place."""

    at: float
    subscription: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    together: tuple[tuple[str, int], ...] = ()
    ends: bool = False
    every: int = 0
    """the filter of what it adds; 0: the one with which the subscription began"""


@attrs.frozen
class Shift:
    """What a transaction does to a subscription."""

    subscription: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


@attrs.frozen
class Transact:
    """A client changes subscriptions with a name, its own and those of others, and publishes, at one place."""

    at: float
    client: int
    parts: tuple[tuple[str, int] | Shift, ...]
    is_strict: bool = True
    """whether it is refused if a subscription holds what it is to gain, or lacks what it is to lose"""


@attrs.frozen
class ReadRange:
    """Somebody reads a range of the logs, of what there is then."""

    at: float
    chance: int
    """another number, another range"""


@attrs.frozen
class Write:
    """Somebody writes batches of rows, each by a task that is run until all of its rows are published, and perhaps once more."""

    at: float
    writer: str
    topics: tuple[str, ...]
    batches: tuple[int, ...]
    """how many rows each has"""
    is_in_one_order: bool
    """whether one order goes across the topics"""
    events_max: int
    """how many rows go into one request"""
    hands_over: bool
    """whether the ENS has them as well"""


@attrs.frozen
class Follow:
    """Somebody follows topics under a name, reading their logs in batches, in processes that die."""

    at: float
    name: str
    topics: tuple[str, ...]


Action = Publish | Subscribe | Alter | Transact | ReadRange | Write | Follow


@attrs.frozen
class Crash:
    """A stage dies at a crash point (or at once) and starts again from its disk later."""

    at: float
    stage: int
    point: str
    skip: int
    down_s: float


@attrs.frozen
class Cut:
    """The link between two stages is cut for a while."""

    at: float
    one: int
    two: int
    for_s: float


@attrs.frozen
class Away:
    """A client pauses, or loses its connection to its home or to the ENS, for a while."""

    at: float
    client: int
    kind: Absence
    for_s: float


@attrs.frozen
class Deaf:
    """The ENS brings nothing to a client, and nobody says so: its connection is well."""

    at: float
    client: int
    for_s: float


@attrs.frozen
class Die:
    """A client's process dies, with all that it knows, and another one is started in its place later, or never."""

    at: float
    client: int
    for_s: float


@attrs.frozen
class Edit:
    """An operator restarts a stage with a configuration that gives a topic to another stage, and mends it later."""

    at: float
    stage: int
    topic: str
    owner: int
    for_s: float


@attrs.frozen
class ClockJump:
    """A stage's wall clock jumps."""

    at: float
    stage: int
    by_s: float


@attrs.frozen
class Forbid:
    """A stage does not let its clients publish on a topic, or gain it, for a while."""

    at: float
    stage: int
    topic: str
    for_s: float


@attrs.frozen
class RotateKeys:
    """An operator wants other keys at a stage, or somebody has lost a right there."""

    at: float
    stage: int
    revokes: bool


@attrs.frozen
class Babble:
    """Somebody whom nobody can trust is at home at a stage for a while, and says what cannot be, or is not for it to say."""

    at: float
    stage: int
    chance: int
    """another number, other words"""


Fault = Crash | Cut | Away | Edit | ClockJump | Forbid | Die | RotateKeys | Babble | Deaf


@attrs.frozen
class Weather:
    """How badly the network behaves, as probabilities and mean delays."""

    ens_delay_s: float
    ens_duplicate: float
    ens_lose: float
    link_delay_s: float
    link_lose: float
    link_duplicate: float
    link_reorder: float
    client_delay_s: float
    client_lose: float
    sync_s: float
    ens_refuse: float = 0.0
    """how likely it is that it does not take what a client gives it, or not all"""


@attrs.frozen
class World:
    """Everything that is decided before a simulation starts."""

    seed: int
    stages: int
    owners: dict[str, int]
    """topic → rank"""
    clients: int
    weather: Weather
    snapshot_after_records: int
    buffer_events_max: int
    ttl_s: float
    eagerness: float
    """how likely it is that a client publishes something because of what it was notified of, or of its own number"""
    actions: tuple[Action, ...]
    faults: tuple[Fault, ...]
    chance: int = 0
    """another number, another course of the same world"""
    kept: tuple[str, ...] = ()
    """topics whose events their owner's log keeps"""
    forgets: bool = False
    """whether the logs forget what everybody has acknowledged"""
    silent: bool = False
    """whether who misses something is told only how much of it its filter does not want"""
    session_ttl_s: float = 50.0
    """after so long without a word a subscription without a name is ended"""
    lease_s: float = 8.0
    """after so long without a word of its publisher a number may be void"""
    rests: bool = False
    """whether topics that nobody needs rest at once"""
    defers: bool = False
    """whether what changes do to the groups' tables is always left for later"""
    marks_max: int = 16
    """so many marks a topic keeps for its next event"""
    late_max_s: float | None = None
    """nobody is notified later than this after an event was published, if that is to be checked"""

    forging: float = 0.0
    """how likely it is that somebody who can write to the ENS forges something beside a message"""
    forger_has_keys: bool = False
    """whether he is a subscriber of everything himself"""
    tags: bool = True
    """whether the stages tag events"""

    @property
    def security(self) -> Security:
        """How events are made authentic."""
        return Security(self.tags, old_keys_valid_s=FOR_EVER)

    @property
    def topics(self) -> list[str]:
        """All topics."""
        return list(self.owners)

    @property
    def levels(self) -> Levels:
        """What topics give."""
        return Levels((*((topic, EXACTLY_ONCE) for topic in self.kept), ("**", ORDERED)))

    def topology(self, edited: Edit | None = None) -> Topology:
        """The line of stages, each with its topics by name; with an operator's mistake in it if wanted."""
        owners = dict(self.owners)
        if edited is not None:
            owners[edited.topic] = edited.owner
        return Topology(
            tuple(
                StageSpec(f"stage-{rank}", tuple(t for t, owner in owners.items() if owner == rank))
                for rank in range(self.stages)
            )
        )

    def describe(self) -> str:
        """The world in words, one fact a line."""
        lines = [
            f"seed {self.seed}: {self.stages} stages, {len(self.owners)} topics, {self.clients} clients, "
            f"{len(self.actions)} actions, {len(self.faults)} faults",
            *(
                f"  stage {rank} owns {', '.join(t for t, owner in self.owners.items() if owner == rank) or 'nothing'}"
                for rank in range(self.stages)
            ),
            f"  {self.weather}",
            f"  a snapshot after {self.snapshot_after_records} records",
            f"  clients react with probability {self.eagerness}",
            f"  best-effort: {self.buffer_events_max} events, {self.ttl_s} s",
            f"  kept in logs: {', '.join(self.kept) or 'nothing'}{', until acknowledged' if self.forgets else ''}",
            f"  who is silent for {self.session_ttl_s:g} s is given up; a lease is {self.lease_s:g} s",
            f"  somebody forges beside {self.forging:.0%} of what the ENS carries, "
            f"with{'' if self.forger_has_keys else 'out'} keys; there are {'' if self.tags else 'no '}tags",
            f"  a topic keeps {self.marks_max} marks",
            f"  topics that nobody needs rest {'at once' if self.rests else 'after a while'}",
            f"  the groups' tables are changed {'row by row' if self.defers else 'at once'}",
            f"  of what is not wanted, who misses it is told {'that it was' if self.silent else 'all'}",
            *(f"  {action}" for action in self.actions),
            *(f"  {fault}" for fault in self.faults),
        ]
        return "\n".join(lines)


SELDOM_PASSED = ("log:rest",)
"""Crash points at which a stage that is to die there dies also when everything is closed: that is when it passes them."""
CRASH_POINTS = (
    "handled:asked",
    "handled:launch",
    "handled:pass",
    "handled:done",
    "handled:reserve",
    "handled:reserved",
    "handled:not-reserved",
    "handled:release",
    "handled:news",
    "handled:ask-news",
    "handled:ask-version",
    "handled:link-ack",
    "handled:hello",
    "handled:relay",
    "handled:reply",
    "handled:nack",
    "handled:progress",
    "handled:acked",
    "handled:ack-saved",
    "handled:log-request",
    "handled:log-reply",
    "handled:home-floors",
    "handled:ack-expected",
    "handled:ask-floors",
    "handled:floors",
    "handled:progress-reports",
    "handled:sessions-alive",
    "handled:lease-renewal",
    "handled:seen-ask",
    "handled:seen-reply",
    "handled:holders",
    "handled:void-decision",
    "log:drop",
    "log:settle",
    "log:rest",
    "handled:tick",
    "flush:before-log",
    "log:put",
    "flush:before-append",
    "log:sync",
    "disk:append-torn",
    "flush:before-sync",
    "disk:sync-torn",
    "flush:after-sync",
    "send:before-first",
    "send:between",
    "send:after-last",
    "snapshot:before-write",
    "disk:snapshot-torn",
    "disk:snapshot-written",
    "disk:snapshot-in-place",
    "restore:journal-read",
    "restore:replayed",
    "restore:log-cut",
    "served",
    "idle",
)
"""Where a stage may die. "idle": between two inputs."""


def draw(seed: int) -> World:
    """Draw a world from its seed."""
    random = Random(f"world {seed}")
    world = _draw_chain(seed, random) if random.random() < 0.25 else _draw_any(seed, random)
    world = _with_filters(_with_logs(world, Random(f"logs {seed}")), Random(f"filters {seed}"))
    world = _with_forger(_with_impatience(world, Random(f"patience {seed}")), Random(f"forger {seed}"))
    world = _with_strangers(world, Random(f"strangers {seed}"))
    world = _with_deafness(world, Random(f"deaf {seed}"))
    refuse = Random(f"refusals {seed}").choice((0.0, 0.0, 0.05, 0.4))
    world = attrs.evolve(world, weather=attrs.evolve(world.weather, ens_refuse=refuse))
    rests, defers = (Random(f"{what} {seed}").random() for what in ("rests", "defers"))
    world = attrs.evolve(world, rests=rests < 0.7, defers=defers < 0.5)
    world = _with_tasks(_with_ranges(world, Random(f"ranges {seed}")), Random(f"tasks {seed}"))
    return _with_transactions(world, Random(f"transactions {seed}"))


def _with_transactions(world: World, random: Random) -> World:
    """The same world; what is published together on topics that are kept may be a transaction, and there is more of it."""
    if not world.kept:
        return world
    actions: list[Action] = []
    for action in world.actions:
        if isinstance(action, Publish) and all(topic in world.kept for topic, _ in action.parts):
            action = attrs.evolve(action, is_transaction=random.random() < 0.4)
        actions.append(action)
    for _ in range(random.choice((0, 3, 10))):
        topics = [random.choice(world.kept) for _ in range(random.randint(2, 5))]
        parts = tuple((topic, _draw_count(random)) for topic in topics)
        actions.append(Publish(random.uniform(0.0, FAULTS_END_S), random.randrange(world.clients), parts, True))
    actions += _draw_shifts(world, Random(f"shifts {world.seed}"))
    world = attrs.evolve(world, actions=tuple(sorted(actions, key=lambda action: action.at)))
    return attrs.evolve(world, marks_max=random.choice((1, 2, 16)))


def _draw_shifts(world: World, random: Random) -> list[Action]:
    """Transactions that change subscriptions with a name: topics are handed over, given, taken, and all of it at once."""
    named = [action for action in world.actions if isinstance(action, Subscribe) and action.named]
    if not named or random.random() < 0.3:
        return []
    found: list[Action] = []
    for _ in range(random.choice((1, 4, 12, 30))):
        client = random.randrange(world.clients)
        own = [action.subscription for action in named if action.client % 2 == client % 2]  # of the same identity
        if not own:
            continue
        parts: list[tuple[str, int] | Shift] = []
        for _ in range(random.randint(1, 3)):
            topics = random.sample(world.kept, random.randint(1, min(2, len(world.kept))))
            one, two = random.choice(own), random.choice(own)
            shape = random.random()
            if shape < 0.5:
                parts += [Shift(one, (), tuple(topics)), Shift(two, tuple(topics))]
            elif shape < 0.7:
                parts.append(Shift(one, tuple(topics)))
            else:
                parts.append(Shift(one, (), tuple(topics)))
            parts += [(random.choice(world.kept), _draw_count(random)) for _ in range(random.choice((0, 1, 2)))]
        if random.random() < 0.3:
            random.shuffle(parts)
        found.append(Transact(random.uniform(1.0, FAULTS_END_S), client, tuple(parts), random.random() < 0.5))
    return found


def _with_ranges(world: World, random: Random) -> World:
    """The same world; where topics are kept, somebody reads ranges of their logs: nothing else is another thing for that."""
    if not world.kept:
        return world
    reads = [
        ReadRange(random.uniform(1.0, FAULTS_END_S), random.randrange(1 << 30)) for _ in range(random.choice((0, 1, 2)))
    ]
    return attrs.evolve(world, actions=(*world.actions, *reads))


def _with_tasks(world: World, random: Random) -> World:
    """The same world; in some, somebody writes batches as well, by tasks that are killed and run again."""
    if not world.kept or random.random() < 0.8:
        return world
    writes = [
        Write(
            random.uniform(0.5, FAULTS_END_S / 2),
            f"writer-{number}",
            tuple(random.sample(world.kept, random.randint(1, len(world.kept)))),
            tuple(random.choice((1, 5, 12)) for _ in range(random.randint(1, 3))),
            random.random() < 0.5,
            random.choice((1, 2, 5)),
            random.random() < 0.5,
        )
        for number in range(random.choice((1, 1, 2)))
    ]
    follows = [
        Follow(
            random.uniform(0.0, FAULTS_END_S / 2),
            f"follower-{number}",
            tuple(random.sample(world.kept, random.randint(1, len(world.kept)))),
        )
        for number in range(random.choice((0, 1)))
    ]
    forbids = [
        Forbid(
            write.at + random.uniform(0.0, 3.0),
            world.owners[write.topics[0]],
            write.topics[0],
            random.uniform(0.2, 4.0),
        )
        for write in writes
        if random.random() < 0.5
    ]
    return attrs.evolve(world, actions=(*world.actions, *writes, *follows), faults=(*world.faults, *forbids))


def _with_forger(world: World, random: Random) -> World:
    """The same world; in some, keys are changed, and somebody forges: with keys of his own only where logs keep everything."""
    turns = [
        RotateKeys(random.uniform(0.5, FAULTS_END_S * 0.8), random.randrange(world.stages), random.random() < 0.5)
        for _ in range(random.choice((0, 0, 1, 3)))
    ]
    if len(world.kept) < len(world.topics) and any(isinstance(fault, ClockJump) for fault in world.faults):
        # Keys that were revoked are good for a minute by the wall clock: what nobody keeps and is under way then is lost.
        turns = [attrs.evolve(turn, revokes=False) for turn in turns]
    world = attrs.evolve(world, faults=(*world.faults, *turns))
    if random.random() < 0.5:
        return attrs.evolve(world, tags=random.random() < 0.9)
    are_logged = len(world.kept) == len(world.topics) and not any(
        isinstance(action, Subscribe) and action.best_effort for action in world.actions
    )
    has_keys = are_logged and random.random() < 0.4
    tags = not has_keys or random.random() < 0.7
    return attrs.evolve(world, forging=random.choice((0.05, 0.3, 1.0)), forger_has_keys=has_keys, tags=tags)


def _with_deafness(world: World, random: Random) -> World:
    """The same world; where all topics are kept, the ENS may bring nothing to some clients for a while."""
    if len(world.kept) < len(world.topics) or random.random() < 0.7:
        return world
    faults = [
        Deaf(random.uniform(0.0, FAULTS_END_S / 2), client, random.uniform(1.0, FAULTS_END_S))
        for client in range(world.clients)
        if random.random() < 0.5
    ]
    return attrs.evolve(world, faults=(*world.faults, *faults))


def _with_strangers(world: World, random: Random) -> World:
    """The same world; in some, strangers say what they must not."""
    if random.random() < 0.7:
        return world
    babbles = [
        Babble(random.uniform(0.0, FAULTS_END_S), random.randrange(world.stages), random.randrange(1 << 30))
        for _ in range(random.choice((1, 2, 5)))
    ]
    return attrs.evolve(world, faults=(*world.faults, *babbles))


def _with_impatience(world: World, random: Random) -> World:
    """The same world; in some, who is silent for a short time is given up, and clients are cut off for longer."""
    world = attrs.evolve(world, lease_s=random.choice((3.0, 8.0)))
    if random.random() < 0.6:
        return world
    faults = [
        Away(random.uniform(0.5, FAULTS_END_S / 2), client, random.choice(("home", "ens")), random.uniform(4.0, 16.0))
        for client in range(world.clients)
        if random.random() < 0.4
    ]
    ttl_s = random.choice((8.0, 50.0))
    return attrs.evolve(world, session_ttl_s=ttl_s, faults=(*world.faults, *faults))


def _with_logs(world: World, random: Random) -> World:
    """The same world with logs of all topics, some, or none. Where all are kept, the ENS may lose."""
    share = random.choice((0.0, 0.5, 1.0, 1.0))
    kept = tuple(topic for topic in world.topics if random.random() < share)
    if len(kept) < len(world.topics):
        gone = [client for client in range(world.clients) if random.random() < 0.15]
        deaths = [
            Die(random.uniform(0.1, FAULTS_END_S * 0.7), client, FOR_EVER) for client in gone[: world.clients - 1]
        ]
        return attrs.evolve(world, kept=kept, faults=(*world.faults, *deaths))
    weather = world.weather
    if random.random() < 0.6:
        weather = attrs.evolve(weather, ens_lose=random.choice((0.02, 0.1, 0.3, 0.9)))
    dying = [client for client in range(world.clients) if random.random() < random.choice((0.0, 0.4))]
    deaths = [
        Die(random.uniform(0, FAULTS_END_S * 0.7), client, random.choice((0.01, 0.5, 3.0)))
        for client in dying
        for _ in range(random.randint(1, 3))
    ]
    actions = tuple(
        _with_name(action, dying, random) if isinstance(action, Subscribe) else action for action in world.actions
    )
    forgets = random.random() < 0.5
    if forgets:
        actions = tuple(
            attrs.evolve(action, from_start=False) if isinstance(action, Subscribe) else action for action in actions
        )
    gone = [client for client in range(world.clients) if client not in dying and random.random() < 0.1]
    deaths += [Die(random.uniform(2.0, FAULTS_END_S * 0.7), client, FOR_EVER) for client in gone[: world.clients - 1]]
    actions = tuple(
        attrs.evolve(action, named=False) if isinstance(action, Subscribe) and action.client in gone else action
        for action in actions
    )
    return attrs.evolve(
        world, kept=kept, weather=weather, actions=actions, faults=(*world.faults, *deaths), forgets=forgets
    )


def _with_name(action: Subscribe, dying: list[int], random: Random) -> Subscribe:
    best_effort = action.best_effort and action.client not in dying and random.random() < 0.3
    named = not best_effort and (action.client in dying or random.random() < 0.2)
    from_start = not best_effort and random.random() < 0.2
    return attrs.evolve(action, best_effort=best_effort, named=named, from_start=from_start)


def _with_filters(world: World, random: Random) -> World:
    """The same world with filters on some subscriptions, where all topics are kept."""
    if len(world.kept) < len(world.topics):
        return world
    ordered = {
        action.subscription for action in world.actions if isinstance(action, Subscribe) and not action.best_effort
    }
    actions = tuple(
        _with_filter(action, random)
        if isinstance(action, (Subscribe, Alter)) and action.subscription in ordered
        else action
        for action in world.actions
    )
    return attrs.evolve(world, actions=actions, silent=random.random() < 0.5)


def _with_filter(action: Subscribe | Alter, random: Random) -> Subscribe | Alter:
    return attrs.evolve(action, every=random.choice((2, 3, 10))) if random.random() < 0.3 else action


def _draw_chain(seed: int, random: Random) -> World:
    """A calm world for long chains of cause and effect: a topic a stage, far from each other, and quick clients.

    Subscriptions exchange topics, drop all and gain others, while clients publish because of what they know.
    """
    stages = random.randint(2, 4)
    ranks = random.sample(range(stages), stages)
    owners = {f"t{number}": rank for number, rank in enumerate(ranks)}
    if random.random() < 0.5:
        owners[f"t{stages}"] = random.randrange(stages)
    topics = list(owners)
    clients = random.randint(2, 4)
    busy_s = random.choice((4.0, 12.0))
    actions: list[Action] = []
    for number in range(random.randint(2, 5)):
        actions.extend(_draw_exchanges(random, f"s{number}", topics, clients, busy_s))
    for _ in range(random.randint(10, 40)):
        at, client = random.uniform(0, busy_s), random.randrange(clients)
        for _ in range(random.choice((1, 1, 3))):
            actions.append(Publish(at, client, ((random.choice(topics), 1),)))
    return World(
        seed=seed,
        stages=stages,
        owners=owners,
        clients=clients,
        weather=Weather(0.01, 0.0, 0.0, random.choice((0.05, 0.2)), 0.0, 0.0, 0.0, 0.002, 0.0, 0.0005),
        snapshot_after_records=10_000,
        buffer_events_max=20,
        ttl_s=0.5,
        eagerness=random.choice((0.3, 0.7)),
        actions=tuple(sorted(actions, key=lambda action: action.at)),
        faults=(),
    )


def _draw_exchanges(random: Random, name: str, topics: list[str], clients: int, busy_s: float) -> list[Action]:
    held = random.sample(topics, random.randint(1, len(topics)))
    client = random.randrange(clients)
    actions: list[Action] = [Subscribe(random.uniform(0, 0.5), client, name, tuple(held))]
    at = 0.6
    for _ in range(random.choice((0, 0, 4, 12))):
        at += random.expovariate(12 / busy_s)
        wanted = random.sample(topics, random.randint(0, min(2, len(topics))))
        add = tuple(topic for topic in wanted if topic not in held)
        remove = tuple(topic for topic in held if topic not in wanted)
        if (add or remove) and at < busy_s:
            actions.append(Alter(at, name, add, remove))
            held = wanted
    return actions


def _draw_any(seed: int, random: Random) -> World:
    stages = random.choice((1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 9))
    topics = [f"t{number}" for number in range(random.randint(2, 7))]
    owners = {topic: random.randrange(stages) for topic in topics}
    clients = random.randint(2, 6)
    lossy = random.random() < 0.15
    weather = _draw_weather(random, lossy)
    actions = _draw_actions(random, topics, clients, lossy)
    return World(
        seed=seed,
        stages=stages,
        owners=owners,
        clients=clients,
        weather=weather,
        snapshot_after_records=random.choice((5, 20, 60, 10_000)),
        buffer_events_max=random.choice((1, 3, 20)),
        ttl_s=random.choice((0.05, 0.5, 3.0)),
        eagerness=random.choice((0.0, 0.0, 0.1, 0.5)),
        actions=actions,
        faults=_draw_faults(random, stages, topics, owners, clients) + _draw_forbids(seed, stages, topics),
    )


def _draw_weather(random: Random, lossy: bool) -> Weather:
    rough = random.random() < 0.5
    return Weather(
        ens_delay_s=random.choice((0.01, 0.1, 1.0)),
        ens_duplicate=random.choice((0.0, 0.1, 0.5)),
        ens_lose=random.uniform(0.05, 0.3) if lossy else 0.0,
        link_delay_s=random.choice((0.002, 0.02, 0.2)),
        link_lose=random.choice((0.0, 0.02, 0.1)) if rough else 0.0,
        link_duplicate=random.choice((0.0, 0.1)) if rough else 0.0,
        link_reorder=random.choice((0.0, 0.2)) if rough else 0.0,
        client_delay_s=random.choice((0.002, 0.05, 0.3)),
        client_lose=random.choice((0.0, 0.05)) if rough else 0.0,
        sync_s=random.choice((0.0005, 0.005, 0.05)),
    )


def _draw_actions(random: Random, topics: list[str], clients: int, lossy: bool) -> tuple[Action, ...]:
    actions: list[Action] = []
    busy_s = random.choice((2.0, 6.0, 18.0))
    for number in range(random.randint(2, 8)):
        actions.extend(_draw_subscription(random, f"s{number}", topics, clients, busy_s, lossy))
    for _ in range(random.randint(10, 120)):
        at = random.uniform(0, busy_s)
        client = random.randrange(clients)
        size = 1 if random.random() < 0.85 else random.randint(2, 3)
        chosen = [random.choice(topics) for _ in range(size)]
        actions.append(Publish(at, client, tuple((t, _draw_count(random)) for t in chosen)))
        if random.random() < 0.2:  # a burst, without waiting
            for _ in range(random.randint(1, 4)):
                actions.append(Publish(at, client, ((random.choice(topics), _draw_count(random)),)))
    return tuple(sorted(actions, key=lambda action: action.at))


def _draw_count(random: Random) -> int:
    return 1 if random.random() < 0.8 else random.randint(2, 4)


def _draw_subscription(
    random: Random, name: str, topics: list[str], clients: int, busy_s: float, lossy: bool
) -> list[Action]:
    held = random.sample(topics, random.randint(1, len(topics)))
    start = 0.0 if random.random() < 0.4 else random.uniform(0, busy_s)
    order: Order = random.choices(ORDERS, (6, 4, 1))[0]
    best_effort = lossy or (order == "total" and random.random() < 0.1)
    actions: list[Action] = [
        Subscribe(start, random.randrange(clients), name, tuple(held), "total" if best_effort else order, best_effort)
    ]
    if random.random() < 0.6:
        for _ in range(random.choice((1, 2, 5, 12))):
            at = start + random.uniform(0.0, 0.5) if random.random() < 0.3 else random.uniform(start, busy_s + 0.1)
            add = random.sample(topics, random.randint(0, min(2, len(topics))))
            remove = random.sample([t for t in topics if t not in add], random.randint(0, len(topics) - len(add)) // 2)
            if random.random() < 0.3:  # one for another
                add, remove = [], []
                if len(topics) > 1:
                    (gained, lost) = random.sample(topics, 2)
                    add, remove = [gained], [lost]
            together = ((random.choice(topics), 1),) if random.random() < 0.15 else ()
            if add or remove:
                actions.append(Alter(at, name, tuple(add), tuple(remove), together))
    return actions


def _draw_faults(
    random: Random, stages: int, topics: list[str], owners: dict[str, int], clients: int
) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    if random.random() < 0.25:
        return ()

    def when() -> float:
        return random.uniform(0, FAULTS_END_S * 0.7)

    for _ in range(random.choice((0, 1, 2, 4, 8))):
        point = random.choice(CRASH_POINTS)
        faults.append(Crash(when(), random.randrange(stages), point, random.randrange(6), random.uniform(0.01, 3.0)))
    if stages > 1:
        for _ in range(random.choice((0, 1, 3))):
            one, two = random.sample(range(stages), 2)
            faults.append(Cut(when(), one, two, random.uniform(0.1, 3.0)))
        if random.random() < 0.3:
            topic = random.choice(topics)
            owner = random.choice([rank for rank in range(stages) if rank != owners[topic]])
            stage = random.choice((owner, owners[topic]))
            faults.append(Edit(when(), stage, topic, owner, random.uniform(0.5, 4.0)))
    for _ in range(random.choice((0, 1, 3))):
        kind: Absence = random.choice(ABSENCES)
        faults.append(Away(when(), random.randrange(clients), kind, random.uniform(0.1, 4.0)))
    for _ in range(random.choice((0, 0, 2))):
        faults.append(ClockJump(when(), random.randrange(stages), random.uniform(-3600, 3600)))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _draw_forbids(seed: int, stages: int, topics: list[str]) -> tuple[Fault, ...]:
    random = Random(f"forbids {seed}")
    if random.random() < 0.7:
        return ()
    return tuple(
        Forbid(random.uniform(0, FAULTS_END_S * 0.7), random.randrange(stages), random.choice(topics), length_s)
        for length_s in random.choice(((0.5,), (0.05, 2.0), (0.1, 0.5, 6.0)))
    )
