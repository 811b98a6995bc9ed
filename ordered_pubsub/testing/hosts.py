"""The machines of a simulation: of a stage, with its disk, and of a client.

They hold no protocol decision: they feed the state machines of `ordered_pubsub.core`, and carry what those say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.client.batches import UnkeptBatches
from ordered_pubsub.core.client.holding import EnsOperation
from ordered_pubsub.core.client.machine import ClientMachine
from ordered_pubsub.core.client.outbox import Outbox
from ordered_pubsub.core.client.session import OUT, REQUESTS, Outcome, Session
from ordered_pubsub.core.client.subscription import FAILED, REFUSED, ClientSubscription, TopicChange
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.liveness.lifeline import Lifeline
from ordered_pubsub.core.log.retention import Policies, Policy
from ordered_pubsub.core.messages import (
    Acked,
    AckSaved,
    Answer,
    Chunk,
    Ended,
    Keys,
    LogItem,
    Publication,
    PublishAsk,
    Refusal,
    Request,
    Resume,
    SubscribeRights,
    TopicHeads,
    ToSession,
    find_change,
)
from ordered_pubsub.core.order.registrar import ABSENT, REGISTERED
from ordered_pubsub.core.recovery.hosting import ALIVE_S
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.stage.driver import KEEP, Driver
from ordered_pubsub.core.stage.stage import Effects
from ordered_pubsub.core.subscriber.best_effort import BestEffort
from ordered_pubsub.core.subscriber.buffer import Arrival, Notification
from ordered_pubsub.core.subscriber.delivery import WEIGHTS, Delivery, Wants
from ordered_pubsub.core.subscriber.subscriber import Leaving, Subscriber
from ordered_pubsub.core.subscriber.subscriber_log import SubscriberLog
from ordered_pubsub.core.trust.authenticity import (
    NO_TAG,
    TAG_BYTES,
    Stamp,
    common_of,
    digests_of,
    head_of,
    pieces_of,
    stamp_body,
)
from ordered_pubsub.core.trust.inspection import ARRIVED, WAIT, Inspection
from ordered_pubsub.errors import AdapterError, HistoryLost, ProtocolError, SessionExpired, TopologyMismatch
from ordered_pubsub.testing.disk import Disk
from ordered_pubsub.testing.network import Carried
from ordered_pubsub.testing.record import EventRecord, SubscriptionRecord
from ordered_pubsub.testing.tasks import number_rows
from ordered_pubsub.testing.watching import Watch
from ordered_pubsub.testing.world import FAULTS_END_S, FOR_EVER, Alter, Crash, Edit, Subscribe
from ordered_pubsub.wire.stamp import decode_body

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation

FORBIDDEN = "forbidden"
REOPEN_S = 0.3
ENS_ANSWERS_S = 0.01
IMPATIENCE = 0.3
"""How likely it is within half a second that the application waits no longer for a change that is not asked for."""
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
EARLY_EVENTS_MAX = 4
"""So many events of a client that their log keeps may have their receipts before the ENS has taken them."""
PATIENCE_S = 1.0
"""For so long the ENS is given what a log keeps as well."""
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
    registered: Watch = attrs.field(factory=lambda: Watch(REGISTERED, ABSENT))
    """what becomes of the subscriptions that are registered here"""
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
        self.registered.begin_anew()
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
            number_rows(self.simulation, self, operation)
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
            driver.stage.check_invariants()
            registered = driver.stage.state.registrar.subscriptions
            self.registered.look({name: one.phase for name, one in registered.items()})
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
        return replace(request, identity=identity, reading=SubscribeRights(("**",), forbidden) if opens else None)

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
class RecordPacker:
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

    def unpack(self, topic: str, item: LogItem) -> list[Arrival]:
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

    def choose(self, every: str, items: Iterable[LogItem]) -> Iterator[LogItem | None]:
        """What a home stage leaves of these for a subscription with this filter, each in a step of its own."""
        for item in items:
            yield self._chosen(every, item)
            yield None

    def _chosen(self, every: str, item: LogItem) -> LogItem:
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


def _will_hold(subscription: ClientSubscription) -> dict[str, bool]:
    """What a subscription holds when everything has happened that the application has asked for."""
    topics = dict(subscription.wanted)
    for change in subscription.unasked:
        topics.update(dict.fromkeys(change.add, True))
        for topic in change.remove:
            topics.pop(topic, None)
    return topics


@attrs.define(eq=False)
class ClientHost:
    """The process of one client: its application, and what carries what its machine says."""

    simulation: Simulation
    index: int
    machine: ClientMachine = attrs.field(init=False)
    home: int | None = None
    connection: int = 0
    paused_until: float = 0.0
    ens_away_until: float = 0.0
    home_away_until: float = 0.0
    deaf_until: float = 0.0
    """the ENS brings nothing before"""
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
    begun_by: dict[str, TopicChange] = attrs.field(factory=dict)
    """subscription → the change by which it begins, or goes on, in this life"""
    working: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """subscription and worker → the event that it works on, by its count"""
    unnumbered: list[EventRecord] = attrs.field(factory=list)
    """its publications that have no number yet, in order"""

    requests: Watch = attrs.field(factory=lambda: Watch(REQUESTS, OUT))
    """what becomes of its requests"""

    def __attrs_post_init__(self) -> None:
        self._begin_session()

    def _begin_session(self) -> None:
        simulation, world = self.simulation, self.simulation.world
        self.requests.begin_anew()
        name = f"client-{self.index}.{self.lives}" if self.lives else f"client-{self.index}"
        batches = UnkeptBatches(Lease(name, world.lease_s), lambda topic: simulation.topology.owner(topic))
        self.machine = ClientMachine(
            Session(name, simulation.topology, packer=simulation.packer),
            Inspection(name, world.tags, simulation.now),
            Lifeline(name, world.session_ttl_s),
            Outbox(batches, len, EARLY_EVENTS_MAX, EARLY_EVENTS_MAX, PATIENCE_S),
            Leaving(LEFT_AGAIN_S, LEFT_AGAIN_S),
            report_s=0.0,
            now=simulation.now,
        )

    @property
    def identity(self) -> str:
        """Who its home stage knows it to be: two identities have all clients."""
        return "odd" if self.index % 2 else "even"

    @property
    def session(self) -> Session:
        """Its requests."""
        return self.machine.session

    @property
    def name(self) -> str:
        """Its session."""
        return self.session.client

    @property
    def subscriptions(self) -> dict[str, ClientSubscription]:
        """Those that are not over."""
        return self.machine.subscriptions

    # -- its machine --------------------------------------------------------------------------------------------------

    def _now(self) -> ClientMachine:
        """Its machine, which is told the time: an input follows."""
        self.machine.now = self.simulation.now
        return self.machine

    def _do(self) -> None:
        """Do what the machine says, after an input."""
        machine = self.machine
        while machine.touched or machine.failed or machine.finished:
            touched, machine.touched = machine.touched, {}
            for subscription in touched:
                self.notify(subscription)
            failed, machine.failed = machine.failed, []
            for subscription in failed:
                self._note_failed(subscription)
            finished, machine.finished = machine.finished, []
            for change in finished:
                self._note_finished(change)
        self._operate()
        self._publish()
        machine.check_invariants()
        self.requests.look(self.session.states())
        self._send()

    def _send(self) -> None:
        if self.home is None:
            return
        for request in self.session.sends:
            self.simulation.network.client_to_stage(self, request)
        self.session.sends.clear()
        for message in self.machine.says:
            self.simulation.network.subscriber_to_stage(self, message)
        self.machine.says.clear()

    def _operate(self) -> None:
        """Have the ENS do what the machine wants. Where it is away, that fails, or takes until it is back."""
        simulation, holding = self.simulation, self.machine.holding
        if holding.is_abandoned:
            assert holding.under_way is not None
            self._at_ens(holding.under_way, self.lives, True)
        operation = holding.next_operation(simulation.now)
        if operation is not None:
            away_s = max(self.ens_away_until - simulation.now, 0.0)
            is_failing = away_s > 0.0 and simulation.chance.random() < 0.5
            after_s = ENS_ANSWERS_S + (0.0 if is_failing else away_s)
            simulation.after(after_s, self._at_ens, operation, self.lives, is_failing)

    def _at_ens(self, operation: EnsOperation, life: int, is_failing: bool) -> None:
        """The ENS answers: it brings these topics from now on, or no more; or it could not be reached."""
        if life != self.lives or self.is_dead or operation is not self.machine.holding.under_way:
            return
        for topic in operation.topics:  # it may have happened all the same
            if operation.subscribes:
                self.simulation.ens.subscribe(topic, self.index)
            elif not is_failing:
                self.simulation.ens.unsubscribe(topic, self.index)
        self._now().operation_done(AdapterError("the ENS is away") if is_failing else None)
        self._do()

    # -- what the application does ------------------------------------------------------------------------------------

    def publish(self, parts: tuple[tuple[str, int], ...]) -> None:
        """Publish events, as one operation."""
        if self.is_dead:
            return
        self.session.publish_together([(t, self._events(t, count)) for t, count in parts], self.simulation.now)
        self._send()

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
        """Begin a subscription."""
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
        start: dict[str, int] | None = {} if action.from_start else None
        buffer: Delivery | BestEffort
        subscriber: Subscriber | None = None
        if action.best_effort:
            buffer = BestEffort(name, world.buffer_events_max, world.ttl_s)
        else:
            missing = Missing(lambda topic: topic in world.kept, now=self.simulation.now)
            buffer = Delivery(name, order=action.order, missing=missing, wants_of=_wants_of)
            owner, unpack = self.simulation.topology.owner, self.simulation.packer.unpack
            log = SubscriberLog(buffer, missing, owner, unpack, start, self.name, self.simulation.world.silent)
            subscriber = Subscriber(log, self.name, action.named, SAID_FOR_S)
        subscription = ClientSubscription(
            name, buffer, subscriber, self._now(), WEIGHTS[action.order], action.named, start if action.named else None
        )
        self.machine.begin(subscription)
        self._change(Alter(action.at, name, topics), epoch if action.named else 0, begins=True)

    def may_alter(self, subscription: str) -> bool:
        """Whether a subscription is there; one with a name, that it has begun in this life."""
        known = self.subscriptions.get(subscription)
        return known is not None and (not known.is_named or known.buffer.changes.version > 0)

    def alter(self, action: Alter) -> None:
        """Change a subscription."""
        self._change(action)

    def _change(self, action: Alter, opens: int = 0, begins: bool = False) -> None:
        subscription = self.subscriptions[action.subscription]
        removes = [topic for topic in action.remove if topic in _will_hold(subscription)]
        every = action.every or self.opened[action.subscription].every
        self._now()
        change = subscription.change(
            action.add, removes, action.ends, str(every) if every > 1 else None, opens, partial(self._together, action)
        )
        if begins:
            self.begun_by[action.subscription] = change
        self._do()

    def _together(self, action: Alter) -> list[tuple[str, list[EventRecord]]]:
        return [(topic, self._events(topic, count)) for topic, count in action.together]

    def _maybe_give_up(self) -> None:
        """The application waits no longer for a change that was not asked for."""
        unasked = [change for subscription in self.subscriptions.values() for change in subscription.unasked]
        if unasked and self.simulation.now < FAULTS_END_S and self.simulation.chance.random() < IMPATIENCE:
            change = self.simulation.chance.choice(unasked)
            self.simulation.trace("%s gives up %s", change.subscription.name, change.add)
            self.simulation.record.given_up += 1
            self._now()
            if self.begun_by.get(change.subscription.name) is change:
                self._try_again(change)
            else:
                change.subscription.give_up(change)
            self._do()

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
        simulation.ens.forget(self.index)
        for event in self.unnumbered:
            event.is_refused = True  # unless it turns out to have a number
        for sequence, items in self.session.unreported():
            simulation.record.abandon((self.name, self.session.epoch, sequence), items)
        self.begun_by.clear()
        self.working.clear()
        self.unnumbered.clear()
        self.unresolved.clear()
        self.past.clear()
        self._begin_session()
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
        self._begin_session()
        simulation.clients_by_name[self.name] = self
        simulation.trace("%s is started", self.name)
        self.connect()
        for action in self.opened.values():
            self._open(action, ())

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
        self._now().connected()
        self._do()

    def disconnect(self) -> None:
        """The connection breaks."""
        if self.home is not None:
            self.simulation.trace("%s loses its home, stage %d", self.name, self.home)
            driver = self.simulation.stages[self.home].driver
            if driver is not None:
                driver.client_is_gone(self.name)
            self.home = None
            self.connection += 1
            self.machine.disconnected()
            self.simulation.after(self.simulation.chance.uniform(0.01, 0.3), self.connect)

    def tick(self) -> None:
        """Time passes."""
        machine = self._now()
        machine.tick()
        for name, subscription in list(self.subscriptions.items()):
            subscription.tick()
            for worker in range(WORKERS) if subscription.is_named else ():
                if self.simulation.chance.random() < 0.5:
                    self._finish_work(name, worker)
            self._say_what_is_due(subscription)
            machine.touched[subscription] = True
        self._maybe_give_up()
        self._do()

    def _say_what_is_due(self, subscription: ClientSubscription) -> None:
        if self.home is None:
            return
        for said in subscription.say_what_is_due():
            self.simulation.trace("%s says: %s", subscription.name, said)
            if isinstance(said, Acked):
                self._check_handled(said)

    def _work_on(self, subscription: ClientSubscription, worker: int, notification: Notification) -> None:
        """One of the tasks that read a subscription asks for the next event: it has handled the one before."""
        self._finish_work(subscription.name, worker)
        if subscription.subscriber is not None:
            subscription.subscriber.in_hand.take(notification, worker)
        self.working[subscription.name, worker] = notification.count

    def _finish_work(self, name: str, worker: int) -> None:
        self.working.pop((name, worker), None)
        subscriber = self.subscriptions[name].subscriber
        if subscriber is None:
            return
        place = subscriber.in_hand.ask(worker)
        if place is not None:
            subscriber.handled(place, self.simulation.now)

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
        for outcome in self._now().answers([answer]):
            self.simulation.record.progress += 1
            self._take_outcome(outcome)
        self._do()

    def _take_outcome(self, outcome: Outcome) -> None:
        simulation = self.simulation
        if outcome.refusal is not None:
            self._take_back(outcome.asked.items)
            if outcome.asked.change is None:
                self._note_refused(outcome.refusal)
            return
        for part, items in zip(outcome.publications, outcome.asked.items, strict=True):
            for index, event in enumerate(items):
                self.unnumbered.remove(event)
                event.numbered(part.first + index, outcome.sequence)
                self._learn(event)
        self.machine.outbox.numbered(outcome, simulation.now)
        if outcome.publications:
            self._maybe_react()
        change, ask = outcome.change, outcome.asked.change
        if change is None or ask is None or change.subscription not in self.subscriptions:
            return  # it has stopped, and is to end
        name = change.subscription
        record = simulation.record.subscriptions[name]
        if ask.ends:
            record.removed_at_end = ask.remove
        if change.resume is None:
            record.outcomes[change.version] = change
        else:
            self._note_resumed(name, change.resume)
        simulation.trace("%s: change %d is settled at %s", name, change.version, change.entries)
        gained = set(change.new).difference(change.old)
        asked = {t: where for t, where in ask.where.items() if t in gained}
        if change.where != asked:
            simulation.record.violation("I3", f"{name} asked for the filters {asked}, and was given {change.where}")

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

    def _note_finished(self, change: TopicChange) -> None:
        """The application is told what has become of a change."""
        refusal, subscription = change.refusal, change.subscription
        if change.state == FAILED:
            if change.error is not None and not subscription.is_over and not subscription.is_ending:
                self.simulation.record.given_up += 1
                self._try_again(change)
        elif change.state == REFUSED and refusal is not None and not subscription.is_over:
            if refusal.code == "unknown":
                self._begin_anew(subscription, self.opened[subscription.name].topics, 1)
                return
            self._note_refused(refusal)
            if change.opens and not change.add:  # it holds something that is forbidden for now
                subscription.stop()
                action = self.opened[subscription.name]
                self.simulation.after(REOPEN_S, self._open_again, action, (), change.opens, self.lives)

    def _try_again(self, change: TopicChange) -> None:
        """An application that needs a subscription begins it until it has begun; unless the stage knows it, which ends it."""
        subscription = change.subscription
        name, was_known = subscription.name, subscription.is_known
        if self.begun_by.get(name) is not change:
            return
        subscription.stop()
        if was_known and not subscription.is_named:
            self.simulation.record.subscriptions[name].is_orphan = True
        else:
            self.simulation.after(REOPEN_S, self._open_again, self.opened[name], change.add, change.opens, self.lives)

    def _open_again(self, action: Subscribe, topics: tuple[str, ...], epoch: int, life: int) -> None:
        if life == self.lives and not self.is_dead:
            self._open(action, topics, epoch or 1)

    def _begin_anew(self, subscription: ClientSubscription, topics: tuple[str, ...], epoch: int) -> None:
        subscription.stop()
        self._open(self.opened[subscription.name], topics, epoch)

    def _note_refused(self, refusal: Refusal) -> None:
        """Nothing of it happens, ever."""
        if refusal.code != FORBIDDEN:
            self.simulation.record.violation("I4", f"{self.name} was refused: {refusal.reason}")
            return
        self.simulation.record.refused_requests += 1
        self.simulation.trace("%s is refused request %d: %s", self.name, refusal.sequence, refusal.reason)

    def _note_failed(self, subscription: ClientSubscription) -> None:
        """A subscription is over by an error."""
        error, name = subscription.error, subscription.name
        self.simulation.trace("%s stops by itself: %s", name, error)
        record = self.simulation.record
        if isinstance(error, SessionExpired):
            record.subscriptions[name].is_orphan = not subscription.is_named
        elif isinstance(error, HistoryLost):
            record.violation("I3", f"{name} lost what it was to have: {error}")
        elif error is not None:
            raise error

    def _take_back(self, items: Sequence[Sequence[EventRecord]]) -> None:
        for event in (event for some in items for event in some):
            self.unnumbered.remove(event)
            event.is_refused = True

    # -- publishing ---------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Have the ENS take what the machine gives it, and tell the application what the machine says."""
        simulation, outbox = self.simulation, self.machine.outbox
        for topic, batches in outbox.take_next(simulation.now):
            frames = [frame for part, items in batches for frame in self._frames(part, items)]
            is_away = self.ens_away_until > simulation.now
            if is_away or simulation.chance.random() < simulation.weather.ens_refuse:
                some = simulation.chance.randrange(len(frames) + 1)
                self._carry(frames[:some])
                simulation.after(ENS_ANSWERS_S, self._ens_answers, topic, self.lives, False)
            else:
                self._carry(frames)
                if simulation.chance.random() < 0.5:
                    outbox.taken(topic, simulation.now)
                else:
                    simulation.after(ENS_ANSWERS_S, self._ens_answers, topic, self.lives, True)
        receipts, outbox.receipts = outbox.receipts, []
        for part, items in receipts:
            for event in items:
                self._note_receipt(part, event)
        voids, outbox.voids = outbox.voids, []
        for void in voids:
            for event in void.items:
                event.is_known_void |= any(first <= event.number <= last for first, last in void.ranges)

    def _frames(self, part: Publication, items: list[EventRecord]) -> list[tuple[Carried, list[EventRecord]]]:
        """What is given to the ENS of a batch, each with its events."""
        frames, first = [], 0
        for carried, count in zip(self.simulation.packer.frames(part, items), pieces_of(part), strict=True):
            frames.append((carried, items[first : first + count]))
            first += count
        return frames

    def _carry(self, frames: Iterable[tuple[Carried, list[EventRecord]]]) -> None:
        for carried, events in frames:
            self.simulation.trace(
                "%s publishes %s %d to %d", self.name, carried.topic, events[0].number, events[-1].number
            )
            for event in events:
                event.handed_over_at = self.simulation.now
            self.simulation.ens.publish(carried)

    def _ens_answers(self, topic: str, life: int, is_taken: bool) -> None:
        """The ENS has taken what it was given of a topic, or perhaps not all of it."""
        if life != self.lives or self.is_dead:
            return
        outbox = self._now().outbox
        if is_taken:
            outbox.taken(topic, self.simulation.now)
        else:
            self.simulation.record.not_taken += 1
            outbox.not_taken(topic, "the ENS is away", self.simulation.now)
        self._do()

    def _note_receipt(self, part: Publication, event: EventRecord) -> None:
        if event.has_receipt or event.is_known_void:
            self.simulation.record.violation(
                "I4", f"the publisher of {event.topic} {event.number} is told twice what has become of it"
            )
        if not part.is_kept and event.handed_over_at is None:
            self.simulation.record.violation(
                "I3", f"{event.topic} {event.number} has a receipt, and was never published"
            )
        event.has_receipt = True

    def _maybe_react(self) -> None:
        """The application publishes something because of what it knows now."""
        simulation = self.simulation
        if simulation.now >= FAULTS_END_S or simulation.reactions >= REACTIONS_MAX:
            return
        if simulation.chance.random() < simulation.world.eagerness:
            simulation.reactions += 1
            topic = simulation.chance.choice(simulation.world.topics)
            simulation.after(0.0, self.publish, ((topic, 1),))

    def receive(self, carried: Carried) -> None:
        """The ENS brings something."""
        if self._judge(carried):
            self._do()

    def _judge(self, carried: Carried) -> bool:
        """Give to subscriptions what has arrived; return whether the machine may have something to say."""
        machine = self._now()
        inspection, topic = machine.inspection, carried.topic
        inspection.now = self.simulation.now
        names = list(machine.holding.holders(topic))
        if not names:
            return False
        try:
            stamp = decode_body(carried.body)
        except ProtocolError:
            inspection.not_arrived(topic, "unreadable")
            return False
        head = head_of(carried.body, stamp.id)
        verdict = inspection.judge(topic, carried.tag, stamp, head, carried.content)
        if verdict == WAIT:
            inspection.wait(topic, stamp.key_epoch, 1, carried)
            machine.ask_for_keys()
        elif verdict != ARRIVED:
            self.simulation.record.not_arrived += 1
            inspection.not_arrived(topic, verdict)
        else:
            for name in names:
                machine.arrived({name: self.simulation.packer.arrivals(topic, stamp, carried.content)})
        return True

    def handle(self, message: ToSession) -> None:
        """The home stage says something that is no answer."""
        machine = self._now()
        if isinstance(message, Keys):
            for carried in machine.take_keys(message):
                self._judge(carried)
        else:
            if (
                isinstance(message, Ended)
                and not self.simulation.is_closing
                and message.subscription in self.subscriptions
            ):
                # it is right only if it was this client that ended it
                self.simulation.record.violation("I3", f"{message.subscription} was ended: {message.reason}")
            machine.hear(message)
            if isinstance(message, AckSaved):
                self._note_saved(message)
            elif isinstance(message, TopicHeads) and message.subscription in self.subscriptions:
                self._say_what_is_due(self.subscriptions[message.subscription])
        self._do()

    def _note_saved(self, saved: AckSaved) -> None:
        subscription = self.subscriptions.get(saved.subscription)
        acknowledging = (
            None if subscription is None or subscription.subscriber is None else subscription.subscriber.acknowledging
        )
        last = None if acknowledging is None else acknowledging.last
        if last is not None and saved.serial == last.serial:
            self.simulation.record.subscriptions[saved.subscription].position = last.position

    def notify(self, subscription: ClientSubscription) -> None:
        """Tell the application what is next."""
        self._now()
        name, record = subscription.name, self.simulation.record.subscriptions[subscription.name]
        for notification in subscription.take_ready():
            arrival = notification.arrival
            self._learn(arrival.body)
            record.notified(notification, self.simulation.now)
            self.simulation.record.progress += 1
            self.simulation.trace(
                "%s is notified of %s %d at position %s", name, arrival.topic, arrival.number, notification.position
            )
            self._maybe_react()
            if subscription.is_named and not subscription.is_over:
                self._work_on(subscription, self.simulation.chance.randrange(WORKERS), notification)
