"""A whole system in one process on virtual time: stages, journals, links, clients, ENS, and what breaks.

Everything that happens is an entry of one calendar, drawn from the world's seed, so the same seed gives the same trace.
The simulated hosts hold no protocol decision: they feed the state machines of `ordered_pubsub.core` and carry what those
say. What they observe goes into a `Record`, which the checkers judge afterwards.

A run has three phases: until `FAULTS_END_S` things happen and break; then everything is healed and must come to rest; then
each topic is published on once more (nothing may be left that only the next event would clear), and at last every
subscription is closed (memory must go back to nothing).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from traceback import format_tb
from typing import Any

import attrs
import msgspec

from ordered_pubsub.core.best_effort import BestEffort
from ordered_pubsub.core.buffer import Arrival
from ordered_pubsub.core.delivery import WEIGHTS, Delivery
from ordered_pubsub.core.driver import Driver
from ordered_pubsub.core.messages import Answer, ChangeAsk, Frame, Hello, PeerMessage, Refusal, Request
from ordered_pubsub.core.session import Outcome, Session
from ordered_pubsub.core.stage import Effects
from ordered_pubsub.errors import ProtocolError, TopologyMismatch
from ordered_pubsub.testing.checkers import check
from ordered_pubsub.testing.disk import Disk
from ordered_pubsub.testing.record import EventRecord, Record, SubscriptionRecord
from ordered_pubsub.testing.world import (
    FAULTS_END_S,
    Action,
    Alter,
    Away,
    ClockJump,
    Crash,
    Cut,
    Edit,
    Fault,
    Publish,
    Subscribe,
    World,
)

TICK_S = 0.5
REACTIONS_MAX = 60
"""How many publications of a world happen because of others."""
STUCK_AFTER_S = 60.0
"""Without any progress for so long after everything was healed, something waits for ever."""
STEPS_MAX = 400_000

_peer_encoder = msgspec.msgpack.Encoder()
_peer_decoder = msgspec.msgpack.Decoder(PeerMessage)
_request_decoder = msgspec.msgpack.Decoder(Request)
_answer_decoder = msgspec.msgpack.Decoder(Answer | Refusal)


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

    # -- life and death -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process from what is on the disk."""
        simulation = self.simulation
        if self.driver is not None:
            return
        try:
            self.driver = Driver.open(
                self.rank,
                simulation.world.topology(self.edited),
                self.disk,
                self.crash_point,
                simulation.world.snapshot_after_records,
            )
        except Died:
            self.die()
            return
        except TopologyMismatch as error:
            simulation.trace("stage %d refuses to start: %s", self.rank, error)
            simulation.record.refused_starts += 1
            return
        self.driver.on_synced = self.note_synced
        replayed = self.driver.stage.replayed
        del self.handled[self.handled_at_snapshot :]
        self.note_synced(replayed)
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

    def note_snapshot(self) -> None:
        """A snapshot replaced the journal."""
        self.handled_at_snapshot = len(self.handled)

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

    def _step(self, driver: Driver, step: Callable[[Driver], None]) -> None:
        try:
            step(driver)
        except ProtocolError as error:
            self.simulation.record.refused_inputs += 1
            self.simulation.trace("stage %d refuses: %s", self.rank, error)

    def plan_flush(self) -> None:
        """Flush soon; what comes until then goes to the disk together."""
        if not self.flush_planned and self.driver is not None and self.driver.has_work:
            self.flush_planned = True
            self.simulation.after(self.simulation.world.weather.sync_s, self.flush, self.incarnation)

    def flush(self, incarnation: int) -> None:
        """Journal, sync, send."""
        if self.driver is None or incarnation != self.incarnation:
            return
        self.flush_planned = False
        try:
            effects = self.driver.flush()
            self._send(effects)
        except Died:
            self.die()

    def _send(self, effects: Effects) -> None:
        network = self.simulation.network
        self.crash_point("send:before-first")
        for peer, message in effects.sends:
            network.stage_to_stage(self.rank, peer, message)
            self.crash_point("send:between")
        for answer in effects.replies:
            network.stage_to_client(self.rank, answer)
            self.crash_point("send:between")
        self.crash_point("send:after-last")


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
    deliveries: dict[str, Delivery | BestEffort] = attrs.field(factory=dict)
    past: dict[str, int] = attrs.field(factory=dict)
    """for each topic the highest number that this client knows of: published or notified"""
    unresolved: list[EventRecord] = attrs.field(factory=list)
    """events that it knows of, while not all of their causes have a number"""
    unnumbered: list[EventRecord] = attrs.field(factory=list)
    """its publications that have no number yet, in order"""

    @property
    def name(self) -> str:
        """Its identity."""
        return self.session.client

    # -- what the application does ------------------------------------------------------------------------------------

    def publish(self, parts: tuple[tuple[str, int], ...]) -> None:
        """Publish events, as one operation."""
        self.session.publish_together([(t, self._events(t, count)) for t, count in parts], self.simulation.now)
        self.pump()

    def _events(self, topic: str, count: int) -> list[EventRecord]:
        events = []
        for _ in range(count):
            event = self.simulation.record.new_event(topic, self.name, *self._knowledge())
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
        world = self.simulation.world
        delivery: Delivery | BestEffort
        if action.best_effort:
            delivery = BestEffort(action.subscription, world.buffer_events_max, world.ttl_s)
        else:
            delivery = Delivery(action.subscription, order=action.order)
        self.deliveries[action.subscription] = delivery
        self.simulation.record.subscriptions[action.subscription] = SubscriptionRecord(
            action.subscription, self.name, action.order, action.best_effort
        )
        self.alter(Alter(action.at, action.subscription, action.topics))

    def alter(self, action: Alter) -> None:
        """Change a subscription."""
        delivery = self.deliveries[action.subscription]
        delivery.change_asked(delivery.topics if action.ends else action.remove)
        weight = WEIGHTS[self._order(action.subscription)]
        self.simulation.after(
            0.01, self._subscribed_at_ens, action, weight
        )  # in the order in which they were asked for

    def _order(self, subscription: str) -> str:
        return self.simulation.record.subscriptions[subscription].order

    def _subscribed_at_ens(self, action: Alter, weight: int) -> None:
        for topic in action.add:
            self.simulation.ens.subscribe(topic, self.index, action.subscription)
        best_effort = self.simulation.record.subscriptions[action.subscription].best_effort
        ask = ChangeAsk(action.subscription, action.add, action.remove, weight, best_effort, action.ends)
        together = [(topic, self._events(topic, count)) for topic, count in action.together]
        self.session.change(ask, self.simulation.now, together)
        self.pump()

    # -- the connection to the home stage -----------------------------------------------------------------------------

    def connect(self) -> None:
        """Find a home."""
        simulation = self.simulation
        if self.home is not None:
            return
        rank = simulation.chance.randrange(simulation.world.stages)
        if simulation.stages[rank].driver is None or simulation.now < self.home_away_until:
            simulation.after(0.2, self.connect)
            return
        self.home = rank
        self.connection += 1
        simulation.trace("%s connects to stage %d", self.name, rank)
        self.session.connected(simulation.now)
        self.pump()

    def disconnect(self) -> None:
        """The connection breaks."""
        if self.home is not None:
            self.simulation.trace("%s loses its home, stage %d", self.name, self.home)
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
        self.pump()
        for name, delivery in self.deliveries.items():
            if isinstance(delivery, BestEffort):
                delivery.tick(self.simulation.now)
                self.notify(name, delivery)

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
            simulation.record.violation("I4", f"{self.name} was refused: {outcome.refusal.reason}")
            return
        for part, items in zip(outcome.publications, outcome.asked.items, strict=True):
            for index, event in enumerate(items):
                self.unnumbered.remove(event)
                event.numbered(part.first + index, outcome.sequence)
                self._learn(event)
                arrival = Arrival(
                    part.topic,
                    event.number,
                    part.entries if part.full or not index else {},
                    part.marks if not index else [],
                    part.full,
                    event,
                )
                simulation.trace("%s publishes %s %d, entries %s", self.name, part.topic, event.number, arrival.entries)
                simulation.ens.publish(arrival)
        if outcome.publications:
            self._maybe_react()
        if outcome.change is not None:
            name = outcome.change.subscription
            delivery = self.deliveries[name]
            record = simulation.record.subscriptions[name]
            record.outcomes[outcome.change.version] = outcome.change
            simulation.trace("%s: change %d is settled at %s", name, outcome.change.version, outcome.change.entries)
            delivery.change_settled(outcome.change)
            self.notify(name, delivery)

    def _maybe_react(self) -> None:
        """The application publishes something because of what it knows now."""
        simulation = self.simulation
        if simulation.now >= FAULTS_END_S or simulation.reactions >= REACTIONS_MAX:
            return
        if simulation.chance.random() < simulation.world.eagerness:
            simulation.reactions += 1
            topic = simulation.chance.choice(simulation.world.topics)
            simulation.after(0.0, self.publish, ((topic, 1),))

    def receive(self, subscription: str, arrival: Arrival) -> None:
        """The ENS brings an event."""
        delivery = self.deliveries[subscription]
        if isinstance(delivery, BestEffort):
            delivery.receive(arrival, self.simulation.now)
        else:
            delivery.receive(arrival)
        self.notify(subscription, delivery)

    def notify(self, subscription: str, delivery: Delivery | BestEffort) -> None:
        """Tell the application what is next."""
        record = self.simulation.record.subscriptions[subscription]
        for notification in delivery.take_ready():
            arrival = notification.arrival
            self._learn(arrival.body)
            record.notified(notification)
            self.simulation.record.progress += 1
            self.simulation.trace(
                "%s is notified of %s %d at position %s",
                subscription,
                arrival.topic,
                arrival.number,
                notification.position,
            )
            self._maybe_react()
        for topic in delivery.take_left():
            if not delivery.changes.asked:
                self.simulation.ens.unsubscribe(topic, self.index, subscription)


@attrs.define(eq=False)
class Ens:
    """The broker: reorders without bound, repeats, and loses if told to."""

    simulation: Simulation
    subscribers: dict[str, dict[tuple[int, str], bool]] = attrs.field(factory=dict)
    under_way: int = 0

    def subscribe(self, topic: str, client: int, subscription: str) -> None:
        """From now on every event of the topic goes there, too."""
        self.subscribers.setdefault(topic, {})[(client, subscription)] = True

    def unsubscribe(self, topic: str, client: int, subscription: str) -> None:
        """No more."""
        self.subscribers.get(topic, {}).pop((client, subscription), None)

    def publish(self, arrival: Arrival) -> None:
        """Take responsibility for an event."""
        weather, chance = self.simulation.weather, self.simulation.chance
        for client, subscription in self.subscribers.get(arrival.topic, ()):
            self.simulation.record.ens_deliveries += 1
            if chance.random() < weather.ens_lose:
                continue
            self._carry(client, subscription, arrival)
            if chance.random() < weather.ens_duplicate:
                self._carry(client, subscription, arrival)

    def _carry(self, client: int, subscription: str, arrival: Arrival) -> None:
        self.under_way += 1
        delay = self.simulation.chance.expovariate(1 / self.simulation.weather.ens_delay_s)
        self.simulation.after(delay, self._arrive, client, subscription, arrival)

    def _arrive(self, client: int, subscription: str, arrival: Arrival) -> None:
        host = self.simulation.clients[client]
        away_until = max(host.paused_until, host.ens_away_until)
        if away_until > self.simulation.now:
            self.simulation.at(
                away_until + self.simulation.chance.uniform(0, 0.1), self._arrive, client, subscription, arrival
            )
            return
        self.under_way -= 1
        host.receive(subscription, arrival)


@attrs.define(eq=False)
class Network:
    """Connections between stages, and between clients and their homes."""

    simulation: Simulation
    cuts: dict[tuple[int, int], float] = attrs.field(factory=dict)
    connections: dict[tuple[int, int], int] = attrs.field(factory=dict)
    """a pair of stages → the number of their connection, while there is one"""
    latest: dict[Any, float] = attrs.field(factory=dict)
    counter: int = 0

    # -- stages -------------------------------------------------------------------------------------------------------

    def stage_is_up(self, rank: int) -> None:
        """A stage started: its links connect."""
        for peer in range(self.simulation.world.stages):
            if peer != rank:
                self.connect(min(rank, peer), max(rank, peer))

    def stage_is_down(self, rank: int) -> None:
        """A stage died: its connections break."""
        for pair in [pair for pair in self.connections if rank in pair]:
            self.disconnect(pair)
        for client in self.simulation.clients:
            if client.home == rank:
                client.disconnect()

    def connect(self, one: int, two: int) -> None:
        """Connect two stages if they are up and nothing cuts them off."""
        simulation = self.simulation
        pair = (one, two)
        hosts = simulation.stages[one], simulation.stages[two]
        if pair in self.connections or self.cuts.get(pair, 0.0) > simulation.now:
            return
        if all(host.driver is not None for host in hosts):
            self.counter += 1
            self.connections[pair] = self.counter
            hosts[0].handle("hello", lambda driver: driver.stage.connected(two))
            hosts[1].handle("hello", lambda driver: driver.stage.connected(one))

    def disconnect(self, pair: tuple[int, int]) -> None:
        """Break a connection; it comes back by itself."""
        del self.connections[pair]
        for rank, peer in (pair, pair[::-1]):
            driver = self.simulation.stages[rank].driver
            if driver is not None:
                driver.stage.disconnected(peer)
        self.simulation.after(self.simulation.chance.uniform(0.05, 0.5), self.connect, *pair)

    def cut(self, pair: tuple[int, int], until: float) -> None:
        """Nothing gets through until then."""
        self.cuts[pair] = until
        if pair in self.connections:
            self.disconnect(pair)
        self.simulation.at(until + 0.01, self.connect, *pair)

    def stage_to_stage(self, source: int, target: int, message: PeerMessage) -> None:
        """Carry a message over the link, as badly as the weather is."""
        simulation, weather = self.simulation, self.simulation.weather
        connection = self.connections.get((min(source, target), max(source, target)))
        if connection is None:
            return
        if simulation.chance.random() < weather.link_lose and not isinstance(message, Hello):
            return  # a greeting is not lost: without one there is no connection
        data = _peer_encoder.encode(message)
        copies = 2 if simulation.chance.random() < weather.link_duplicate else 1
        for _ in range(copies):
            at = self._arrival((source, target), weather.link_delay_s, weather.link_reorder)
            simulation.at(at, self._at_stage, source, target, connection, data)

    def _at_stage(self, source: int, target: int, connection: int, data: bytes) -> None:
        if self.connections.get((min(source, target), max(source, target))) != connection:
            return
        message = _peer_decoder.decode(data)
        host = self.simulation.stages[target]
        kind = type(message.message if isinstance(message, Frame) else message).__name__.lower()
        host.handle(kind, lambda driver: driver.handle_peer(source, message, host.wall_clock))

    def _arrival(self, channel: Any, delay_s: float, reorder: float) -> float:
        simulation = self.simulation
        at = simulation.now + delay_s * simulation.chance.uniform(0.5, 2.0)
        if simulation.chance.random() < reorder:
            return at + delay_s * 3
        at = max(at, self.latest.get(channel, 0.0))
        self.latest[channel] = at
        return at

    # -- clients ------------------------------------------------------------------------------------------------------

    def client_to_stage(self, client: ClientHost, request: Request) -> None:
        """A request on its way to the client's home."""
        simulation, weather = self.simulation, self.simulation.weather
        assert client.home is not None
        if simulation.chance.random() < weather.client_lose:
            return
        data = msgspec.msgpack.encode(request)
        at = self._arrival((client.name, "up"), weather.client_delay_s, 0.0)
        simulation.at(at, self._at_home, client, client.connection, client.home, data)

    def _at_home(self, client: ClientHost, connection: int, home: int, data: bytes) -> None:
        if client.connection != connection:
            return
        request = _request_decoder.decode(data)
        host = self.simulation.stages[home]
        host.handle("asked", lambda driver: driver.handle_request(request, host.wall_clock))

    def stage_to_client(self, rank: int, answer: Answer | Refusal) -> None:
        """An answer on its way from the client's home."""
        simulation, weather = self.simulation, self.simulation.weather
        client = simulation.clients_by_name.get(answer.client)
        if client is None or client.home != rank or simulation.chance.random() < weather.client_lose:
            return
        data = msgspec.msgpack.encode(answer)
        at = self._arrival((client.name, "down"), weather.client_delay_s, 0.0)
        simulation.at(at, self._at_client, client, client.connection, data)

    def _at_client(self, client: ClientHost, connection: int, data: bytes) -> None:
        simulation = self.simulation
        if client.connection != connection:
            return
        if client.paused_until > simulation.now:
            simulation.at(client.paused_until, self._at_client, client, connection, data)
            return
        client.handle_answer(_answer_decoder.decode(data))


class Simulation:
    """Runs one world."""

    def __init__(self, world: World, keep_trace: bool = False) -> None:
        self.world = world
        self.weather = world.weather
        self.chance = Random(f"chance {world.seed} {world.chance}")
        self.now = 0.0
        self.steps = 0
        self.reactions = 0
        self.lines: list[str] | None = [] if keep_trace else None
        self._calendar: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entries = 0
        self.record = Record(world)
        self.ens = Ens(self)
        self.network = Network(self)
        self.stages: list[StageHost] = []
        for rank in range(world.stages):
            disk = Disk(f"journal of stage-{rank}", self.chance, self._crash_point_of(rank), self._snapshot_of(rank))
            self.stages.append(StageHost(self, rank, disk, self.chance.uniform(-100, 100)))
        topology = world.topology()
        self.clients = [ClientHost(self, i, Session(f"client-{i}", topology)) for i in range(world.clients)]
        self.clients_by_name = {client.name: client for client in self.clients}

    def _crash_point_of(self, rank: int) -> Callable[[str], None]:
        return lambda name: self.stages[rank].crash_point(name)

    def _snapshot_of(self, rank: int) -> Callable[[], None]:
        return lambda: self.stages[rank].note_snapshot()

    # -- time ---------------------------------------------------------------------------------------------------------

    def at(self, time: float, step: Callable[..., None], *arguments: Any) -> None:
        """Let something happen at a time."""
        self._entries += 1
        heappush(self._calendar, (max(time, self.now), self._entries, step, arguments))

    def after(self, delay_s: float, step: Callable[..., None], *arguments: Any) -> None:
        """Let something happen after a while."""
        self.at(self.now + delay_s, step, *arguments)

    def trace(self, text: str, *values: object) -> None:
        """Say what happens, if somebody listens."""
        if self.lines is not None:
            self.lines.append(f"{self.now:9.4f}  {text % values}")

    def _run_until(self, time: float) -> None:
        while self._calendar and self._calendar[0][0] <= time:
            self.now, _, step, arguments = heappop(self._calendar)
            step(*arguments)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise RuntimeError(f"seed {self.world.seed}: more than {STEPS_MAX} steps")
        self.now = time

    # -- the three phases ---------------------------------------------------------------------------------------------

    def run(self) -> Record:
        """Run the world to its end, judge it, and return what was observed."""
        try:
            self._run()
        except Exception as error:
            where = "".join(format_tb(error.__traceback__)[-1:]).strip().replace("\n", " ")
            self.record.violation("error", f"{type(error).__name__}: {error} ({where})")
        return self.record

    def _run(self) -> None:
        for host in self.stages:
            host.start()
        for client in self.clients:
            client.connect()
        for action in self.world.actions:
            self.at(action.at, self._act, action)
        for fault in self.world.faults:
            self.at(fault.at, self._break, fault)
        self.after(TICK_S, self._tick)
        self._run_until(FAULTS_END_S)
        self._heal()
        if self._come_to_rest("after the faults"):
            self._probe()
            if self._come_to_rest("after the last publications"):
                self.record.note_probed(self)
                self._close_all()
                if self._come_to_rest("after closing"):
                    self.record.note_closed(self)
        self.record.torn_records = sum(host.disk.torn_records for host in self.stages)
        check(self.record)

    def _act(self, action: Action) -> None:
        if isinstance(action, Publish):
            self.clients[action.client].publish(action.parts)
        elif isinstance(action, Subscribe):
            self.clients[action.client].subscribe(action)
        else:
            for client in self.clients:
                if action.subscription in client.deliveries:
                    client.alter(action)

    def _tick(self) -> None:
        for host in self.stages:
            host.handle("tick", lambda driver: driver.stage.tick(self.now))
        for client in self.clients:
            if client.paused_until <= self.now:
                client.tick()
        self.after(TICK_S, self._tick)

    def _break(self, fault: Fault) -> None:
        self.trace("FAULT %s", fault)
        if isinstance(fault, Crash):
            host = self.stages[fault.stage]
            host.crash = fault
            if host.driver is None:
                return
            if fault.point == "idle":
                self.record.deaths_at["idle"] = self.record.deaths_at.get("idle", 0) + 1
                host.die()
            elif fault.point.startswith("restore:"):  # it dies now, and again while it starts
                host.die()
                host.crash = attrs.evolve(fault, skip=0)
        elif isinstance(fault, Cut):
            self.network.cut((min(fault.one, fault.two), max(fault.one, fault.two)), self.now + fault.for_s)
        elif isinstance(fault, Away):
            self._send_away(fault)
        elif isinstance(fault, Edit):
            self._edit(fault)
        elif isinstance(fault, ClockJump):
            self.stages[fault.stage].clock_offset += fault.by_s

    def _send_away(self, fault: Away) -> None:
        client = self.clients[fault.client]
        until = self.now + fault.for_s
        if fault.kind == "pause":
            client.paused_until = max(client.paused_until, until)
        elif fault.kind == "ens":
            client.ens_away_until = max(client.ens_away_until, until)
        else:
            client.home_away_until = max(client.home_away_until, until)
            client.disconnect()

    def _edit(self, fault: Edit) -> None:
        host = self.stages[fault.stage]
        self._restart(host, fault)
        self.after(fault.for_s, self._restart, host, None)

    def _restart(self, host: StageHost, edited: Edit | None) -> None:
        """An operator restarts a stage, perhaps with a configuration that he has edited."""
        host.edited = edited
        if host.driver is not None:
            host.crash = None
            host.die()
        self.after(0.05, host.start)

    def _heal(self) -> None:
        self.trace("HEALED")
        self.weather = attrs.evolve(
            self.weather, ens_duplicate=0.0, link_lose=0.0, link_duplicate=0.0, link_reorder=0.0, client_lose=0.0
        )
        for host in self.stages:
            host.crash = None
            if host.edited is not None:
                self._restart(host, None)
            host.start()
        for client in self.clients:
            client.paused_until = client.ens_away_until = client.home_away_until = 0.0
        for pair in list(self.network.cuts):
            self.network.cuts[pair] = 0.0
            self.network.connect(*pair)

    def _come_to_rest(self, when: str) -> bool:
        reasons: list[str] = []
        progress, limit = -1, self.now
        while self.now <= limit:
            self._run_until(self.now + TICK_S)
            reasons = self._unrest()
            if not reasons:
                return True
            if self.record.progress != progress:
                progress, limit = self.record.progress, self.now + STUCK_AFTER_S
        self.record.violation("I4", f"no rest {when}: " + "; ".join(reasons[:6]))
        return False

    def _unrest(self) -> list[str]:
        reasons = []
        if self.ens.under_way:
            reasons.append(f"{self.ens.under_way} events at the ENS")
        for client in self.clients:
            if not client.session.is_idle:
                reasons.append(f"{client.name} has no answer: {client.session.waiting_for()}")
            for name, delivery in client.deliveries.items():
                if delivery.buffered or delivery.changes.asked:
                    reasons.append(f"{name} waits for: {delivery.waiting_for()}")
        for host in self.stages:
            if host.driver is None:
                reasons.append(f"stage {host.rank} is down")
            elif host.driver.stage.statistics()["outbox"] or host.flush_planned:
                reasons.append(f"stage {host.rank} has unacknowledged frames")
        return reasons

    def _probe(self) -> None:
        for topic in self.world.topics:
            self.clients[0].publish(((topic, 1),))

    def _close_all(self) -> None:
        for client in self.clients:
            for name in client.deliveries:
                client.alter(Alter(self.now, name, ends=True))
