"""The machines of a simulation: of a stage, with its disk, and of a client.

They hold no protocol decision: they feed the state machines of `ordered_pubsub.core`, and carry what those say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.authenticity import (
    NO_TAG,
    TAG_BYTES,
    Stamp,
    common_of,
    digests_of,
    head_of,
    pieces_of,
    stamp_body,
)
from ordered_pubsub.core.batches import Batches
from ordered_pubsub.core.best_effort import BestEffort
from ordered_pubsub.core.buffer import Arrival, Notification
from ordered_pubsub.core.delivery import WEIGHTS, Delivery, Wants
from ordered_pubsub.core.driver import KEEP, Driver
from ordered_pubsub.core.hosting import ALIVE_S
from ordered_pubsub.core.inspection import ARRIVED, WAIT, Inspection
from ordered_pubsub.core.lease import Lease
from ordered_pubsub.core.lifeline import Lifeline
from ordered_pubsub.core.messages import (
    Acked,
    Answer,
    Change,
    ChangeAsk,
    Chunk,
    Decided,
    Ended,
    Expect,
    Heard,
    Keys,
    Leased,
    Located,
    NewEpoch,
    Publication,
    PublishAsk,
    Reading,
    Recalled,
    Refusal,
    Request,
    Resume,
    Saved,
    Seal,
    Sealed,
    Span,
    ToSession,
    ToSubscriber,
    find_change,
)
from ordered_pubsub.core.missing import Missing
from ordered_pubsub.core.registrar import WRONG_EPOCH
from ordered_pubsub.core.retention import Policies, Policy
from ordered_pubsub.core.session import Outcome, Session
from ordered_pubsub.core.stage import Effects
from ordered_pubsub.core.subend import Subend
from ordered_pubsub.core.subscriber import Leaving, Subscriber
from ordered_pubsub.errors import HistoryLost, ProtocolError, SessionExpired, TopologyMismatch
from ordered_pubsub.testing.disk import Disk
from ordered_pubsub.testing.network import Carried
from ordered_pubsub.testing.record import EventRecord, SubscriptionRecord
from ordered_pubsub.testing.world import FAULTS_END_S, FOR_EVER, Alter, Crash, Edit, Subscribe
from ordered_pubsub.wire.stamp import decode_body

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation

FORBIDDEN = "forbidden"
REOPEN_S = 0.3
STEPS_SERVED = 4
"""So many small steps of what clients have caused a stage does between two flushes."""
INLINE_LOAD = 3
"""So little is handled as it comes, so that much of it waits for its turn."""
SAID_FOR_S = 2.0
"""So often subscriptions say again how far they are."""
LEFT_AGAIN_S = 2.0
"""… and that they are over."""
WORKERS = 2
"""So many tasks of an application read a subscription with a name; each has one event in hand at most."""
RESTING_FLOORS_S = 1.5
"""So often the registrars are asked what they need where topics rest at once."""
REACTIONS_MAX = 60
"""How many publications of a world happen because of others."""


class Died(BaseException):
    """A simulated process ends here."""


@attrs.define(eq=False)
class StageHost:
    """The machine of one stage."""

    simulation: Simulation
    rank: int
    disk: Disk
    clock_offset: float
    driver: Driver | None = None
    edited: Edit | None = None
    crash: Crash | None = None
    flush_planned: bool = False
    handled: list[tuple[str, int, int]] = attrs.field(factory=list)
    handled_at_snapshot: int = 0
    incarnation: int = 0
    forbidden_until: dict[str, float] = attrs.field(factory=dict)
    """topics that its clients may not publish on or gain now"""

    # -- life and death -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process from what is on the disk."""
        simulation = self.simulation
        if self.driver is not None:
            return
        replayed: list[Effects] = []
        try:
            self.driver = Driver.open(
                self.rank,
                simulation.world.topology(self.edited),
                self.disk,
                self.crash_point,
                simulation.world.snapshot_after_records,
                snapshot_growth=0,
                levels=simulation.world.levels,
                policies=Policies(default=Policy(keep_age_s=0.0, max_age_s=float("inf")))
                if simulation.world.forgets
                else KEEP,
                founding=simulation.founding,
                security=simulation.world.security,
                on_replayed=replayed.append,
            )
            self.driver.hosting.choose = simulation.packer.choose
            ttl_s = simulation.world.session_ttl_s
            self.driver.expiry.session_ttl_s, self.driver.hosting.alive_s = ttl_s, min(ALIVE_S, ttl_s / 10)
            self.driver.voids.lease_s = simulation.world.lease_s
            if simulation.world.rests:
                self.driver.floors_s = RESTING_FLOORS_S
                self.driver.resting.after_s = self.driver.resting.look_s = 0.0
        except Died:
            self.die()
            return
        except TopologyMismatch as error:
            simulation.trace("stage %d refuses to start: %s", self.rank, error)
            simulation.record.refused_starts += 1
            return
        self.driver.on_synced = self.note_synced
        self.driver.inline_load = INLINE_LOAD
        if simulation.world.defers:
            self.driver.stage.pairs_at_once = 0
        del self.handled[self.handled_at_snapshot :]
        for effects in replayed:
            self.note_synced(effects)
        self.incarnation += 1
        simulation.trace("stage %d starts", self.rank)
        self.plan_flush()
        simulation.network.stage_is_up(self.rank)

    def die(self) -> None:
        """The power fails."""
        simulation = self.simulation
        down_s = self.crash.down_s if self.crash is not None else 0.5
        self.crash = None
        self.driver = None
        self.flush_planned = False
        self.incarnation += 1
        self.disk.lose_power()
        simulation.record.crashes += 1
        simulation.trace("stage %d dies", self.rank)
        simulation.network.stage_is_down(self.rank)
        simulation.after(down_s, self.start)

    def crash_point(self, name: str) -> None:
        """A place at which this process may die."""
        hits = self.simulation.record.points_passed
        hits[name] = hits.get(name, 0) + 1
        crash = self.crash
        if crash is not None and crash.point == name and self.simulation.now >= crash.at:
            if crash.skip > 0:
                self.crash = attrs.evolve(crash, skip=crash.skip - 1)
                return
            deaths = self.simulation.record.deaths_at
            deaths[name] = deaths.get(name, 0) + 1
            raise Died(name)

    def note_synced(self, effects: Effects) -> None:
        """A batch is on the disk: from now on it has happened."""
        self.handled.extend(operation.identity for operation in effects.handled)
        for operation in effects.completed:
            self.simulation.record.note_completed(self.rank, operation)
        for decision in effects.decided:
            self.simulation.record.note_decided(decision, self.simulation.now)

    def number_of(self, topic: str) -> int:
        """How many numbers of a topic this stage has given; also of one that rests."""
        assert self.driver is not None
        return self.driver.stage.given(topic)

    def remembered(self) -> dict[str, list[str]]:
        """What this stage remembers of topics that nobody holds, and that have no log, beside their last numbers."""
        if self.driver is None:
            return {}
        state = self.driver.stage.state
        clocks, groups, logged = state.clocks, state.groups, self.simulation.logged
        own: dict[str, Iterable[str]] = {
            "numbers": clocks.numbers,
            "kept": state.kept,
            "marks": state.marks,
            "owed further up": groups.owed_up,
        }
        found = {what: [topic for topic in table if topic not in logged] for what, table in own.items()}
        if not logged:
            found.update({"seen": list(clocks.seen), "owed": list(groups.owed), "owed to": list(groups.owed_to)})
        return {what: topics for what, topics in found.items() if topics}

    def note_snapshot(self) -> Callable[[], None]:
        """A snapshot was taken; what is returned is to be called when it has replaced the journal."""
        handled = len(self.handled)

        def replaced() -> None:
            self.handled_at_snapshot = handled

        return replaced

    # -- inputs -------------------------------------------------------------------------------------------------------

    @property
    def wall_clock(self) -> float:
        """What this machine believes the time to be."""
        return 1_000_000.0 + self.simulation.now + self.clock_offset

    def handle(self, kind: str, step: Callable[[Driver], None]) -> None:
        """Give the stage an input, and plan to flush what it did."""
        driver = self.driver
        if driver is None:
            return
        try:
            self._step(driver, step)
            self.crash_point("handled:" + kind)
        except Died:
            self.die()
            return
        self.plan_flush()

    def tick(self) -> None:
        """Time passes."""
        self.handle("tick", lambda driver: driver.tick(self.simulation.now, self.wall_clock))

    def known(self, request: Request, identity: str) -> Request:
        """What somebody at home here asks, with who that is, and what he may subscribe to where that matters."""
        change, now = find_change(request.parts), self.simulation.now
        forbidden = tuple(topic for topic, until in self.forbidden_until.items() if until > now)
        opens = change is not None and change.opens
        return replace(request, identity=identity, reading=Reading(("**",), forbidden) if opens else None)

    def taken_in(self, request: Request) -> Request:
        """What a client at home here asks, with the digests that the stage makes of what is kept."""
        parts = tuple(self._digested(part) if isinstance(part, PublishAsk) else part for part in request.parts)
        return replace(request, parts=parts)

    def _digested(self, ask: PublishAsk) -> PublishAsk:
        if not ask.is_kept:
            return ask
        contents = [
            content
            for chunk in ask.chunks
            for content in ([chunk.data] if ask.pieces else map(msgspec.msgpack.encode, _indices(chunk)))
        ]
        return replace(ask, digests=digests_of(contents))

    def refusal_of(self, request: Request) -> Refusal | None:
        """Why a client at home here may not ask this now, if so."""
        for part in request.parts:
            for topic in (part.topic,) if isinstance(part, PublishAsk) else part.add:
                if self.forbidden_until.get(topic, 0.0) > self.simulation.now:
                    return request.refused(FORBIDDEN, f"{topic} is forbidden")
        return None

    def _step(self, driver: Driver, step: Callable[[Driver], None]) -> None:
        try:
            step(driver)
        except ProtocolError as error:
            self.simulation.record.refused_inputs += 1
            self.simulation.trace("stage %d refuses: %s", self.rank, error)

    def plan_flush(self) -> None:
        """Flush soon; what comes until then goes to the disk together."""
        if not self.flush_planned and self.driver is not None and self.has_work(self.driver):
            self.flush_planned = True
            self.simulation.after(self.simulation.world.weather.sync_s, self.flush, self.incarnation)

    @staticmethod
    def has_work(driver: Driver) -> bool:
        """Whether there is something to write, to send, or to read for somebody."""
        return driver.has_work or driver.is_asked

    def flush(self, incarnation: int) -> None:
        """Journal, sync, send."""
        if self.driver is None or incarnation != self.incarnation:
            return
        self.flush_planned = False
        try:
            self._send(self.driver.flush())
            if self.driver.is_asked:
                for _ in range(STEPS_SERVED):
                    self.driver.serve()
                self.crash_point("served")
        except Died:
            self.die()
        else:
            self.plan_flush()

    def _send(self, effects: Effects) -> None:
        network = self.simulation.network
        self.crash_point("send:before-first")
        for peer, message in effects.sends:
            network.stage_to_stage(self.rank, peer, message)
            self.crash_point("send:between")
        for answer in effects.replies:
            network.stage_to_client(self.rank, answer)
            self.crash_point("send:between")
        for session, told in effects.tells:
            network.stage_to_subscriber(self.rank, session, told)
            self.crash_point("send:between")
        self.crash_point("send:after-last")


@attrs.frozen
class Packer:
    """Writes events for the log: their indices in the record, a few in a chunk."""

    simulation: Simulation

    def weigh(self, topic: str, items: Sequence[EventRecord]) -> int:
        """Next to nothing."""
        return len(items)

    def ask(self, topic: str, items: Sequence[EventRecord]) -> PublishAsk:
        """Ask for numbers for all these events; of every other client, those of a chunk share a tag."""
        size = 1 + items[0].index % 3
        pieces = [items[at : at + size] for at in range(0, len(items), size)]
        chunks = tuple(Chunk(len(piece), _written([event.index for event in piece])) for piece in pieces)
        shares = items[0].client % 2 == 1
        counts = tuple(map(len, pieces)) if shares else ()
        if topic in self.simulation.world.kept:
            return PublishAsk(topic, len(items), True, chunks, counts, publisher=items[0].publisher)
        contents = [chunk.data for chunk in chunks] if shares else [_written(event.index) for event in items]
        return PublishAsk(topic, len(items), pieces=counts, digests=digests_of(contents), publisher=items[0].publisher)

    def frames(self, part: Publication, items: Sequence[EventRecord]) -> list[Carried]:
        """What is given to the ENS of a batch."""
        frames: list[Carried] = []
        first = 0
        for index, count in enumerate(pieces_of(part)):
            chosen = [event.index for event in items[first : first + count]]
            tag = part.tags[index * TAG_BYTES : (index + 1) * TAG_BYTES] or NO_TAG
            body = stamp_body(common_of(part, first), part.first + first)
            frames.append(Carried(part.topic, tag, body, _written(chosen if part.pieces else chosen[0])))
            first += count
        return frames

    def arrivals(self, topic: str, stamp: Stamp, content: bytes) -> list[Arrival]:
        """The events that the ENS has brought, and that have arrived."""
        found = msgspec.msgpack.decode(content, type=int | list[int])
        arrivals: list[Arrival] = []
        entries, marks = stamp.entries, stamp.marks
        for number, index in enumerate(found if isinstance(found, list) else [found], stamp.number):
            arrivals.append(Arrival(topic, number, entries, marks, stamp.full, self._event(index)))
            entries, marks = entries if stamp.full else {}, []
        return arrivals

    def unpack(self, topic: str, item: Recalled) -> list[Arrival]:
        """The events, or the silence, that the log tells of."""
        if not item.chunks:
            return [Arrival(topic, item.first, item.entries, item.marks, item.full, last=item.last, is_logged=True)]
        arrivals: list[Arrival] = []
        entries, number = item.entries if item.full else {}, item.first
        for chunk in item.chunks:
            if not chunk.data:
                arrivals.append(
                    Arrival(topic, number, entries, full=item.full, last=number + chunk.count - 1, is_logged=True)
                )
            for at, index in enumerate(_indices(chunk)):
                arrivals.append(
                    Arrival(topic, number + at, entries, full=item.full, body=self._event(index), is_logged=True)
                )
            number += chunk.count
        arrivals[0].entries, arrivals[0].marks = item.entries, item.marks
        return arrivals

    def choose(self, every: str, items: Iterable[Recalled]) -> Iterator[Recalled | None]:
        """What a home stage leaves of these for a subscription with this filter, each in a step of its own."""
        for item in items:
            yield self._chosen(every, item)
            yield None

    def _chosen(self, every: str, item: Recalled) -> Recalled:
        """Whole chunks, or a few events of them."""
        chunks: list[Chunk] = []
        for chunk in item.chunks:
            for index in _indices(chunk):
                data = msgspec.msgpack.encode([index]) if index % int(every) == 0 else b""
                if chunks and not data and not chunks[-1].data:
                    chunks[-1] = Chunk(chunks[-1].count + 1, b"")
                else:
                    chunks.append(Chunk(1, data))
        return replace(item, chunks=chunks)

    def _event(self, index: int) -> EventRecord:
        return self.simulation.record.events[index]


def _written(indices: int | list[int]) -> bytes:
    return msgspec.msgpack.encode(indices)


def _indices(chunk: Chunk) -> list[int]:
    return msgspec.msgpack.decode(chunk.data, type=list[int]) if chunk.data else []


def _wants_of(every: str) -> Wants:
    """What decides, of a filter as it is written: one as simple as can be."""
    return lambda arrival: arrival.body.index % int(every) == 0


@attrs.define(eq=False)
class ClientHost:
    """The process of one client."""

    simulation: Simulation
    index: int
    session: Session
    home: int | None = None
    connection: int = 0
    paused_until: float = 0.0
    ens_away_until: float = 0.0
    home_away_until: float = 0.0
    deaf_until: float = 0.0
    """the ENS brings nothing before"""
    deliveries: dict[str, Delivery | BestEffort] = attrs.field(factory=dict)
    subscribers: dict[str, Subscriber] = attrs.field(factory=dict)
    """of all but best-effort subscriptions"""
    past: dict[str, int] = attrs.field(factory=dict)
    """for each topic the highest number that this client knows of: published or notified"""
    unresolved: list[EventRecord] = attrs.field(factory=list)
    """events that it knows of, while not all of their causes have a number"""
    is_dead: bool = False
    is_gone: bool = False
    """whether it will never be started again"""
    lives: int = 0
    opened: dict[str, Subscribe] = attrs.field(factory=dict)
    """what it subscribes to whenever it is started"""
    working: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """subscription and worker → the event that it works on, by its count"""
    unnumbered: list[EventRecord] = attrs.field(factory=list)
    """its publications that have no number yet, in order"""
    batches: Batches = attrs.field(init=False)
    """what it has published of what nobody keeps"""
    lifeline: Lifeline = attrs.field(init=False)
    leaving: Leaving = attrs.field(init=False)
    """subscriptions that have stopped by themselves, which need nothing more"""
    unsure: dict[Span, tuple[Publication, list[EventRecord]]] = attrs.field(factory=dict)
    """what it must not publish before it knows what has become of it"""
    inspection: Inspection = attrs.field(init=False)
    """judges what the ENS brings"""
    asking: list[tuple[Alter, int, int]] = attrs.field(factory=list)
    """changes that wait for the keys of what they add: the change, its weight, its epoch"""

    def __attrs_post_init__(self) -> None:
        self._begin_session()

    def _begin_session(self) -> None:
        lease = Lease(self.name, self.simulation.world.lease_s)
        self.batches = Batches(lease, lambda topic: self.simulation.topology.owner(topic))
        self.inspection = Inspection(self.name, self.simulation.world.tags, self.simulation.now)
        self.asking.clear()
        self.leaving = Leaving(LEFT_AGAIN_S, LEFT_AGAIN_S)
        self.lifeline = Lifeline(self.name, self.simulation.world.session_ttl_s)

    @property
    def identity(self) -> str:
        """Who its home stage knows it to be: two identities have all clients."""
        return "odd" if self.index % 2 else "even"

    @property
    def name(self) -> str:
        """Its session."""
        return self.session.client

    # -- what the application does ------------------------------------------------------------------------------------

    def publish(self, parts: tuple[tuple[str, int], ...]) -> None:
        """Publish events, as one operation."""
        if self.is_dead:
            return
        self.session.publish_together([(t, self._events(t, count)) for t, count in parts], self.simulation.now)
        self.pump()

    def _events(self, topic: str, count: int) -> list[EventRecord]:
        events = []
        for _ in range(count):
            event = self.simulation.record.new_event(topic, self.name, *self._knowledge())
            event.client = self.index
            self.unnumbered.append(event)
            events.append(event)
        return events

    def _knowledge(self) -> tuple[dict[str, int], tuple[EventRecord, ...]]:
        """What this client knows: numbers, and events of which not all causes have a number yet."""
        for event in [event for event in self.unresolved if event.is_resolved]:
            self.unresolved.remove(event)
            self._learn(event)
        return dict(self.past), (*self.unresolved, *self.unnumbered[-1:])

    def _learn(self, event: EventRecord) -> None:
        """It was notified of an event, or has its number."""
        if not event.is_resolved:
            self.unresolved.append(event)
            return
        for topic, number in (*event.causes().items(), (event.topic, event.number)):
            self.past[topic] = max(self.past.get(topic, 0), number)

    def subscribe(self, action: Subscribe) -> None:
        """Begin a subscription: first at the ENS, then in the order."""
        self.opened[action.subscription] = action
        self.simulation.record.subscriptions[action.subscription] = SubscriptionRecord(
            action.subscription,
            f"client-{self.index}",
            action.order,
            action.best_effort,
            named=action.named,
            from_start=action.from_start,
        )
        if not self.is_dead:
            self._open(action, action.topics)
        elif self.is_gone:
            del self.simulation.record.subscriptions[action.subscription]

    def _open(self, action: Subscribe, topics: tuple[str, ...], epoch: int = 1) -> None:
        world, name = self.simulation.world, action.subscription
        delivery: Delivery | BestEffort
        if action.best_effort:
            delivery = BestEffort(name, world.buffer_events_max, world.ttl_s)
        else:
            missing = Missing(lambda topic: topic in world.kept, now=self.simulation.now)
            delivery = Delivery(name, order=action.order, missing=missing, wants_of=_wants_of)
            start: dict[str, int] | None = {} if action.from_start else None
            owner, unpack = self.simulation.topology.owner, self.simulation.packer.unpack
            subend = Subend(delivery, missing, owner, unpack, start, self.name, self.simulation.world.silent)
            self.subscribers[name] = Subscriber(subend, self.name, action.named, SAID_FOR_S)
        self.deliveries[name] = delivery
        if not action.named:
            self.lifeline.watch(name, self.simulation.topology.registrar(name), self.simulation.now)
        self.alter(Alter(action.at, name, topics), opens=epoch if action.named else 0)

    # -- death --------------------------------------------------------------------------------------------------------

    def die(self, for_s: float) -> None:
        """The process ends in the middle of whatever it does; what it has sent may still arrive."""
        simulation = self.simulation
        if self.is_dead:
            return
        simulation.trace("%s dies", self.name)
        self.is_dead = True
        self.is_gone = for_s >= FOR_EVER
        driver = None if self.home is None else simulation.stages[self.home].driver
        if driver is not None:
            driver.client_is_gone(self.name)
        self.home = None
        self.connection += 1
        for name, delivery in self.deliveries.items():
            for topic in {*delivery.clock, *simulation.world.topics}:
                simulation.ens.unsubscribe(topic, self.index, name)
        for event in self.unnumbered:
            event.is_refused = True  # unless it turns out to have a number
        for sequence, items in self.session.unreported():
            simulation.record.abandon((self.name, self.session.epoch, sequence), items)
        self.deliveries.clear()
        self.subscribers.clear()
        self.working.clear()
        self.unnumbered.clear()
        self.unsure.clear()
        self._begin_session()
        self.unresolved.clear()
        self.past.clear()
        for name in self.opened:
            if self.is_gone:
                simulation.record.subscriptions[name].is_orphan = True
        if not self.is_gone:
            simulation.after(for_s, self._live_again)

    def _live_again(self) -> None:
        """Another process is started in its place, and goes on with the subscriptions that have a name."""
        simulation = self.simulation
        self.is_dead = False
        self.lives += 1
        self.session = Session(f"client-{self.index}.{self.lives}", simulation.topology, packer=simulation.packer)
        self._begin_session()
        simulation.clients_by_name[self.name] = self
        simulation.trace("%s is started", self.name)
        self.connect()
        for action in self.opened.values():
            self._open(action, ())

    def may_alter(self, subscription: str) -> bool:
        """Whether a subscription is there; one with a name, that it has begun in this life."""
        delivery = self.deliveries.get(subscription)
        return delivery is not None and (not self._is_named(subscription) or delivery.changes.version > 0)

    def _is_named(self, subscription: str) -> bool:
        return subscription in self.subscribers and self.subscribers[subscription].is_named

    def alter(self, action: Alter, opens: int = 0) -> None:
        """Change a subscription."""
        delivery = self.deliveries[action.subscription]
        removes = tuple(delivery.topics) if action.ends else action.remove
        if action.ends:
            self.simulation.record.subscriptions[action.subscription].removed_at_end = removes
        delivery.change_asked(removes)
        weight = WEIGHTS[self._order(action.subscription)]
        self.simulation.after(
            0.01, self._subscribed_at_ens, action, weight, opens, self.lives
        )  # in the order in which they were asked for

    def _order(self, subscription: str) -> str:
        return self.simulation.record.subscriptions[subscription].order

    def _subscribed_at_ens(self, action: Alter, weight: int, opens: int, life: int) -> None:
        if life != self.lives or self.is_dead or action.subscription not in self.deliveries:
            return
        self.inspection.hold(action.add)
        self.asking.append((action, weight, opens))
        self._ask_for_keys()
        self._go_on_asking()

    def _ask_for_keys(self) -> None:
        self.inspection.now = self.simulation.now
        for ask in self.inspection.take_due() if self.home is not None else ():
            self.simulation.network.subscriber_to_stage(self, ask)

    def _go_on_asking(self) -> None:
        """Ask for those changes that need wait for no keys, in their order."""
        while self.asking and all(map(self.inspection.is_ready, self.asking[0][0].add)):
            action, weight, opens = self.asking.pop(0)
            if action.subscription in self.deliveries:
                self._ask_for_change(action, weight, opens)

    def _ask_for_change(self, action: Alter, weight: int, opens: int) -> None:
        for topic in action.add:
            self.simulation.ens.subscribe(topic, self.index, action.subscription)
        best_effort = self.simulation.record.subscriptions[action.subscription].best_effort
        start: dict[str, int] | None = {} if opens and self.opened[action.subscription].from_start else None
        every = action.every or self.opened[action.subscription].every
        where = dict.fromkeys(action.add, str(every)) if every > 1 else {}
        ask = ChangeAsk(
            action.subscription, action.add, action.remove, weight, best_effort, action.ends, opens, start, where
        )
        together = [(topic, self._events(topic, count)) for topic, count in action.together]
        self.session.change(ask, self.simulation.now, together)
        self.pump()

    # -- the connection to the home stage -----------------------------------------------------------------------------

    def connect(self) -> None:
        """Find a home."""
        simulation = self.simulation
        if self.home is not None or self.is_dead:
            return
        rank = simulation.chance.randrange(simulation.world.stages)
        if simulation.stages[rank].driver is None or simulation.now < self.home_away_until:
            simulation.after(0.2, self.connect)
            return
        self.home = rank
        self.connection += 1
        simulation.trace("%s connects to stage %d", self.name, rank)
        simulation.stages[rank].handle("hello", lambda driver: driver.client_is_here(self.name, self.identity))
        if self.home is None:
            return  # the stage died of it
        self.session.connected(simulation.now)
        self.lifeline.connected()
        self.inspection.connected()
        self.leaving.connected(simulation.now)
        for subscriber in self.subscribers.values():
            self._report(subscriber, is_all=True)
        self._ask_for_keys()
        self.pump()

    def disconnect(self) -> None:
        """The connection breaks."""
        if self.home is not None:
            self.simulation.trace("%s loses its home, stage %d", self.name, self.home)
            driver = self.simulation.stages[self.home].driver
            if driver is not None:
                driver.client_is_gone(self.name)
            self.home = None
            self.connection += 1
            self.session.disconnected()
            self.simulation.after(self.simulation.chance.uniform(0.01, 0.3), self.connect)

    def pump(self) -> None:
        """Send what the session wants to send."""
        if self.home is not None:
            for request in self.session.sends:
                self.simulation.network.client_to_stage(self, request)
            self.session.sends.clear()

    def tick(self) -> None:
        """Time passes."""
        self.session.tick(self.simulation.now)
        self._ask_for_keys()
        self.pump()
        if self.home is not None and (handed := self.batches.take_due(self.simulation.now)) is not None:
            self.simulation.network.subscriber_to_stage(self, handed)
        if self.home is not None and (here := self.lifeline.take_due(self.simulation.now)) is not None:
            self.simulation.network.subscriber_to_stage(self, here)
        for name in self.lifeline.find_cut(self.simulation.now):
            self._stop(name)
        for follows in self.leaving.take_due(self.simulation.now) if self.home is not None else ():
            self.simulation.network.subscriber_to_stage(self, follows)
        for name, delivery in list(self.deliveries.items()):
            if isinstance(delivery, BestEffort):
                delivery.tick(self.simulation.now)
                self.notify(name, delivery)
            elif self.home is not None:
                self._say(name, self.subscribers[name])

    def _stop(self, name: str) -> None:
        """Its registrar may have given a subscription up: it is notified of nothing more."""
        self.simulation.trace("%s stops by itself", name)
        self.simulation.record.subscriptions[name].is_orphan = True
        self.lifeline.unwatch(name)
        subscriber = self.subscribers.pop(name, None)
        if subscriber is not None:
            subscriber.end()
        for topic in {*self.deliveries.pop(name).clock, *self.simulation.world.topics}:
            self.simulation.ens.unsubscribe(topic, self.index, name)
        self.leaving.leave(name, self.simulation.now)
        self.session.change(ChangeAsk(name, ends=True), self.simulation.now)
        self.pump()

    def _say(self, name: str, subscriber: Subscriber) -> None:
        """Tell the home stage how far a subscription is, what it misses, and what was handled."""
        self._report(subscriber)
        for worker in range(WORKERS) if subscriber.is_named else ():
            if self.simulation.chance.random() < 0.5:
                self._finish_work(name, worker)
        self._say_what_is_due(subscriber)

    def _report(self, subscriber: Subscriber, is_all: bool = False) -> None:
        follows = subscriber.report(self.simulation.now, is_all)
        if follows is not None:
            self.simulation.network.subscriber_to_stage(self, follows)

    def _say_what_is_due(self, subscriber: Subscriber) -> None:
        for said in subscriber.take_due(self.simulation.now):
            self.simulation.trace("%s says: %s", subscriber.identity, said)
            if isinstance(said, Acked):
                self._check_handled(said)
            self.simulation.network.subscriber_to_stage(self, said)

    def _work_on(self, name: str, worker: int, notification: Notification) -> None:
        """One of the tasks that read a subscription asks for the next event: it has handled the one before."""
        self._finish_work(name, worker)
        self.subscribers[name].in_hand.take(notification, worker)
        self.working[name, worker] = notification.count

    def _finish_work(self, name: str, worker: int) -> None:
        self.working.pop((name, worker), None)
        place = self.subscribers[name].in_hand.ask(worker)
        if place is not None:
            self.subscribers[name].handled(place, self.simulation.now)

    def _check_handled(self, acked: Acked) -> None:
        """Nobody acknowledges what the application has in hand."""
        for worker in range(WORKERS):
            working = self.working.get((acked.subscription, worker))
            if working is not None and working <= acked.position:
                self.simulation.record.violation(
                    "I3", f"{acked.subscription} acknowledges {acked.position}, and {working} is not handled yet"
                )

    # -- what comes back ----------------------------------------------------------------------------------------------

    def handle_answer(self, answer: Answer | Refusal) -> None:
        """The home stage brings an answer."""
        for outcome in self.session.handle_answer(answer, self.simulation.now):
            self.simulation.record.progress += 1
            self._take_outcome(outcome)
        self.pump()

    def _take_outcome(self, outcome: Outcome) -> None:
        simulation = self.simulation
        if outcome.refusal is not None:
            self._take_refusal(outcome, outcome.refusal)
            return
        for part, items in zip(outcome.publications, outcome.asked.items, strict=True):
            for index, event in enumerate(items):
                self.unnumbered.remove(event)
                event.numbered(part.first + index, outcome.sequence)
                self._learn(event)
            self._publish(outcome, part, items)
        if outcome.publications:
            self._maybe_react()
        if outcome.change is not None and outcome.change.subscription not in self.deliveries:
            return  # it has stopped, and is to end
        if outcome.change is not None:
            name = outcome.change.subscription
            delivery = self.deliveries[name]
            record = simulation.record.subscriptions[name]
            if outcome.change.resume is None:
                record.outcomes[outcome.change.version] = outcome.change
            simulation.trace("%s: change %d is settled at %s", name, outcome.change.version, outcome.change.entries)
            assert outcome.asked.change is not None
            ask = outcome.asked.change
            gained = set(outcome.change.new).difference(outcome.change.old)
            asked, given = {t: where for t, where in ask.where.items() if t in gained}, outcome.change.where
            if given != asked:
                simulation.record.violation("I3", f"{name} asked for the filters {asked}, and was given {given}")
            if isinstance(delivery, Delivery):
                self._begin(self.subscribers[name], outcome.change)
            delivery.change_settled(outcome.change, record.removed_at_end if ask.ends else ask.remove)
            self.notify(name, delivery)

    def _publish(self, outcome: Outcome, part: Publication, items: list[EventRecord]) -> None:
        """Hand events to the ENS, unless nobody keeps them and they may be void by now."""
        if not part.is_kept:
            self.batches.numbered([(part, items)], outcome, self.simulation.now)
        self._give(part, items)

    def _give(self, part: Publication, items: list[EventRecord]) -> None:
        now = self.simulation.now
        if not (part.is_kept or self.batches.is_good(part, items, now)):
            self.unsure[self.batches.ask(part, now)] = part, items
            return
        first = 0
        for carried, count in zip(self.simulation.packer.frames(part, items), pieces_of(part), strict=True):
            events = items[first : first + count]
            first += count
            self.simulation.trace(
                "%s publishes %s %d to %d", self.name, carried.topic, events[0].number, events[-1].number
            )
            for event in events:
                event.handed_over_at = now
            self.simulation.ens.publish(carried)
        self.batches.handed(items)

    def _take_leased(self, leased: Leased) -> None:
        """It is known what has become of some numbers."""
        now = self.simulation.now
        for span, (asked_at, voids) in self.batches.leased(leased, now).items():
            part, items = self.unsure.pop(span)
            void, left = self.batches.settled(part, items, asked_at, voids, now)
            for event in items:
                event.is_known_void = any(first <= event.number <= last for first, last in void)
            for piece, events in left:
                self._give(piece, events)

    def _begin(self, subscriber: Subscriber, change: Change) -> None:
        """It may begin or go on by this outcome."""
        if change.resume is not None:
            self._note_resumed(change.subscription, change.resume)
            self.inspection.hold(change.new)
            self._ask_for_keys()
            for topic in change.new:
                self.simulation.ens.subscribe(topic, self.index, change.subscription)
        subscriber.begin(change, self.simulation.now)

    def _note_resumed(self, name: str, resume: Resume) -> None:
        simulation = self.simulation
        record = simulation.record.subscriptions[name]
        simulation.trace("%s goes on at %s, version %d", name, resume.clock, resume.version)
        if resume.position < record.position:
            simulation.record.violation(
                "I3", f"{name} goes on at {resume.position}, but {record.position} was acknowledged"
            )
        record.resumed(resume.position)
        for change in resume.changes:
            if change.old != change.new:
                record.outcomes[change.version] = change

    def _take_refusal(self, outcome: Outcome, refusal: Refusal) -> None:
        """Nothing of it happens, ever."""
        simulation = self.simulation
        is_over = outcome.asked.change is not None and outcome.asked.change.subscription not in self.deliveries
        if is_over:
            self._take_back(outcome)
            return
        if refusal.code in ("unknown", WRONG_EPOCH):
            name = outcome.asked.change.subscription if outcome.asked.change is not None else ""
            del self.deliveries[name]
            self.subscribers.pop(name, None)
            is_there = refusal.code == WRONG_EPOCH
            topics = () if is_there else self.opened[name].topics
            self._open(self.opened[name], topics, refusal.opened + 1 if is_there else 1)
            return
        if refusal.code != FORBIDDEN:
            simulation.record.violation("I4", f"{self.name} was refused: {refusal.reason}")
            return
        simulation.record.refused_requests += 1
        simulation.trace("%s is refused request %d: %s", self.name, outcome.sequence, refusal.reason)
        self._take_back(outcome)
        ask = outcome.asked.change
        if ask is not None and ask.opens and not ask.add:  # it holds something that is forbidden for now
            del self.deliveries[ask.subscription], self.subscribers[ask.subscription]
            simulation.after(REOPEN_S, self._open_again, ask.subscription, ask.opens, self.lives)
        elif ask is not None:
            delivery = self.deliveries[ask.subscription]
            if isinstance(delivery, Delivery):
                self.subscribers[ask.subscription].subend.set_time(simulation.now)
            delivery.change_refused(ask.remove)
            self.notify(ask.subscription, delivery)

    def _open_again(self, name: str, epoch: int, life: int) -> None:
        if life == self.lives and not self.is_dead:
            self._open(self.opened[name], (), epoch)

    def _take_back(self, outcome: Outcome) -> None:
        for event in (event for items in outcome.asked.items for event in items):
            self.unnumbered.remove(event)
            event.is_refused = True

    def _maybe_react(self) -> None:
        """The application publishes something because of what it knows now."""
        simulation = self.simulation
        if simulation.now >= FAULTS_END_S or simulation.reactions >= REACTIONS_MAX:
            return
        if simulation.chance.random() < simulation.world.eagerness:
            simulation.reactions += 1
            topic = simulation.chance.choice(simulation.world.topics)
            simulation.after(0.0, self.publish, ((topic, 1),))

    def receive(self, subscription: str, carried: Carried) -> None:
        """The ENS brings something."""
        self.inspection.now = self.simulation.now
        delivery = self.deliveries.get(subscription)
        try:
            stamp = decode_body(carried.body)
        except ProtocolError:
            self.inspection.not_arrived(carried.topic, "unreadable")
            return
        head = head_of(carried.body, stamp.id)
        verdict = self.inspection.judge(carried.topic, carried.tag, stamp, head, carried.content)
        if verdict == WAIT:
            self.inspection.wait(carried.topic, stamp.key_epoch, 1, (subscription, carried))
            self._ask_for_keys()
        elif verdict != ARRIVED:
            self.simulation.record.not_arrived += 1
            self.inspection.not_arrived(carried.topic, verdict)
        elif delivery is not None:
            for arrival in self.simulation.packer.arrivals(carried.topic, stamp, carried.content):
                self._receive(subscription, delivery, arrival)
            self.notify(subscription, delivery)

    def _receive(self, subscription: str, delivery: Delivery | BestEffort, arrival: Arrival) -> None:
        if isinstance(delivery, BestEffort):
            delivery.receive(arrival, self.simulation.now)
        else:
            self.subscribers[subscription].arrived([arrival], self.simulation.now)

    def _take_keys(self, keys: Keys) -> None:
        self.inspection.now = self.simulation.now
        for subscription, carried in self.inspection.given(keys):
            self.receive(subscription, carried)
        self._go_on_asking()

    def handle(self, message: ToSession) -> None:
        """The home stage says something that is no answer."""
        if isinstance(message, Leased):
            self._take_leased(message)
        elif isinstance(message, Seal):
            now, of = self.simulation.now, (message.topic, message.numbers)
            seen = [part for subscriber in self.subscribers.values() for part in subscriber.seal(*of, now)]
            answer = Sealed(message.serial, message.rank, [self.name], seen)
            self.simulation.network.subscriber_to_stage(self, answer)
        elif isinstance(message, Heard):
            self.lifeline.heard(message, self.simulation.now)
        elif isinstance(message, Keys):
            self._take_keys(message)
        elif isinstance(message, NewEpoch):
            self.inspection.new_epoch()
        elif isinstance(message, Decided):
            for subscriber in list(self.subscribers.values()):
                self._bring(subscriber, message)
        elif not isinstance(message, Located):  # nobody asks for it here
            self._handle_told(message)

    def _handle_told(self, message: ToSubscriber) -> None:
        """The home stage brings what a subscription misses, or says how far its topics are."""
        subscriber = self.subscribers.get(message.subscription)
        if subscriber is None:
            return  # of an earlier life
        if (
            isinstance(message, Ended) and not self.simulation.is_closing
        ):  # it is right only if it was this client that ended it
            self.simulation.record.violation("I3", f"{message.subscription} was ended: {message.reason}")
        self._bring(subscriber, message)
        if isinstance(message, Saved):
            self._note_saved(subscriber, message)
        elif isinstance(message, Expect):
            self._say_what_is_due(subscriber)

    def _bring(self, subscriber: Subscriber, message: ToSubscriber | Decided) -> None:
        name = subscriber.identity
        try:
            subscriber.hear(message, self.simulation.now)
        except HistoryLost as error:
            self.simulation.record.violation("I3", f"{name} lost what it was to have: {error}")
        except SessionExpired:
            subscriber.end()
        self.notify(name, subscriber.subend.delivery)

    def _note_saved(self, subscriber: Subscriber, saved: Saved) -> None:
        last = None if subscriber.acknowledging is None else subscriber.acknowledging.last
        if last is not None and saved.serial == last.serial:
            self.simulation.record.subscriptions[saved.subscription].position = last.position

    def notify(self, subscription: str, delivery: Delivery | BestEffort) -> None:
        """Tell the application what is next."""
        if self.lifeline.is_cut(subscription, self.simulation.now):
            self._stop(subscription)
            return
        record = self.simulation.record.subscriptions[subscription]
        subscriber = self.subscribers.get(subscription)
        for notification in delivery.take_ready() if subscriber is None else subscriber.subend.take_ready():
            arrival = notification.arrival
            self._learn(arrival.body)
            record.notified(notification, self.simulation.now)
            self.simulation.record.progress += 1
            self.simulation.trace(
                "%s is notified of %s %d at position %s",
                subscription,
                arrival.topic,
                arrival.number,
                notification.position,
            )
            self._maybe_react()
            if subscriber is not None and subscriber.is_named and not subscriber.is_over:
                self._work_on(subscription, self.simulation.chance.randrange(WORKERS), notification)
        for topic in delivery.take_left():
            if not delivery.changes.asked:
                self.simulation.ens.unsubscribe(topic, self.index, subscription)
