"""What a simulation observed, in the words of users: events, subscriptions, notifications, operations.

Nothing here looks into the state machines, but for the two readings at rest (`note_probed`, `note_closed`), which ask them how
much they still hold.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.shelf import ENDLESS
from ordered_pubsub.core.log.writer import Decision
from ordered_pubsub.core.messages import Change, Operation, Publication, Request, Transaction
from ordered_pubsub.core.stage.stage import transaction_of
from ordered_pubsub.core.subscriber.buffer import Notification
from ordered_pubsub.testing.world import FOR_EVER, World

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation

Identity = tuple[str, int, int]


@attrs.frozen
class Violation:
    """An invariant that fell, and how."""

    invariant: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}"


@attrs.define(eq=False)
class EventRecord:
    """One event, from the moment at which the application published it."""

    index: int
    topic: str
    publisher: str
    past: dict[str, int]
    """what its publisher knew: for each topic the highest number"""
    known: tuple[EventRecord, ...]
    """what its publisher knew besides, of which not all had a number yet"""
    number: int = 0
    sequence: int = 0
    is_refused: bool = False
    """whether it never happened"""
    is_void: bool = False
    """whether its owner has decided that its number has no event"""
    is_known_void: bool = False
    """whether its publisher knows that"""
    has_receipt: bool = False
    """whether its publisher was told that it is published"""
    client: int = 0
    """which client published it, in whatever life"""
    epoch: int = 1
    """of its publisher's session"""
    written: int = 0
    """its place in its operation, if that is not the order in which events were made"""
    handed_over_at: float | None = None
    """when its publisher gave it to the ENS"""
    _causes: dict[str, int] | None = None
    _is_resolved: bool = False

    def numbered(self, number: int, sequence: int) -> None:
        """It got its place."""
        self.number = number
        self.sequence = sequence

    @property
    def operation(self) -> Identity:
        """The operation that it is part of."""
        return (self.publisher, self.epoch, self.sequence)

    def causes(self) -> dict[str, int]:
        """For each topic the highest number that comes before it in the order of cause and effect."""
        if self._causes is None:
            causes = dict(self.past)
            for event in self.known:
                own = ((event.topic, event.number),) if event.number else ()
                for topic, number in (*event.causes().items(), *own):
                    causes[topic] = max(causes.get(topic, 0), number)
            if not self.is_resolved:
                return causes
            self._causes, self.known = causes, ()
        return self._causes

    @property
    def is_resolved(self) -> bool:
        """Whether it and all its causes have their numbers, or never will: once so, always so.

        What is known is remembered, since there are exponentially many ways from an event back to its first causes.
        """
        if not self._is_resolved:
            has_place = self.number > 0 or self.is_refused
            self._is_resolved = has_place and all(event.is_resolved for event in self.known)
        return self._is_resolved


@attrs.frozen
class Notified:
    """One notification."""

    event: EventRecord
    position: int | None
    out_of_order: bool
    version: int
    """the last change of the subscription that had taken effect"""
    vector: dict[str, int]
    count: int
    """how many events the subscription had passed with it, those that its filter does not want included"""
    at: float = 0.0
    transaction: str = ""
    """what its user is told that it is a part of"""
    process: int = 0
    """which of the subscription's processes was notified"""


@attrs.define(eq=False)
class SubscriptionRecord:
    """One subscription."""

    name: str
    client: str
    order: str
    best_effort: bool
    outcomes: dict[int, Change] = attrs.field(factory=dict)
    notifications: list[Notified] = attrs.field(factory=list)
    is_orphan: bool = False
    """whether its client died for good"""
    named: bool = False
    from_start: bool = False
    processes: int = 0
    """how many have gone on with it"""
    position: int = 0
    """how far it has acknowledged, as far as its client knows that this is on disk"""
    removed_at_end: tuple[str, ...] = ()
    """what the ask that ended it was announced to remove"""

    def resumed(self, position: int) -> None:
        """Another process goes on after what was acknowledged: what came after that is notified again."""
        self.processes += 1
        while self.notifications and self.notifications[-1].count > position:
            self.notifications.pop()

    def notified(self, notification: Notification, now: float) -> None:
        """The application was told of an event."""
        self.notifications.append(
            Notified(
                notification.arrival.body,
                notification.position,
                notification.out_of_order,
                notification.version,
                dict(notification.vector),
                notification.count,
                now,
                notification.arrival.transaction_id,
                self.processes,
            )
        )


@attrs.frozen
class Completed:
    """A complete publication as its topic's owner learned of it."""

    topic: str
    first: int
    last: int
    entries: dict[str, int]
    place: int
    published_at: float
    operation: Identity
    full: bool
    transaction: Transaction | None


@attrs.define(eq=False)
class RangeRecord:
    """What somebody found in a range of the logs."""

    start: dict[str, int]
    end: dict[str, int]
    events: list[tuple[str, int, int]] = attrs.field(factory=list)
    """topic, number, and the event's index"""
    lost: list[tuple[str, int, int]] = attrs.field(factory=list)
    """what it was told is gone: topic, first and last number"""


@attrs.define(eq=False)
class TaskRecord:
    """What somebody writes, in tasks that are run again."""

    writer: str
    is_in_one_order: bool
    batches: list[list[EventRecord]] = attrs.field(factory=list)
    wrong: list[EventRecord] = attrs.field(factory=list)
    """rows that came in the place of others when a batch was written already: they must never be published"""
    runs: int = 0
    killed: int = 0
    given_up: int = 0
    ended: int = 0
    """runs that ended by themselves, since another one went on, or something was refused"""
    noticed: int = 0
    """runs that had other rows, and were told so"""


@attrs.define(eq=False)
class Record:
    """Everything that was observed."""

    world: World
    events: list[EventRecord] = attrs.field(factory=list)
    seen: dict[Identity, Operation] = attrs.field(factory=dict)
    """operations that an owner knows to be complete"""
    transactions: dict[Identity, str] = attrs.field(factory=dict)
    """those of them that are transactions, and what they are called"""
    asked: dict[Identity, Request] = attrs.field(factory=dict)
    """transactions that were asked for"""
    committed: int = 0
    """transactions that change subscriptions and have happened, as far as their clients know"""
    refused_transactions: Counter[str] = attrs.field(factory=Counter)
    """code → how many that have not"""
    abandoned: dict[Identity, list[list[EventRecord]]] = attrs.field(factory=dict)
    """requests whose client died before it had the answer: its events, by part"""
    subscriptions: dict[str, SubscriptionRecord] = attrs.field(factory=dict)
    handled: list[list[Identity]] = attrs.field(factory=list)
    """for each stage the operations that it handled, in order"""
    completed: dict[str, dict[int, Completed]] = attrs.field(factory=dict)
    """topic → first number → what the owner logged"""
    owner_counts: dict[str, int] = attrs.field(factory=dict)
    """topic → how many numbers its owner has used"""
    present: list[str] = attrs.field(factory=list)
    """the sessions that are there at the end"""
    voids: dict[str, dict[int, float]] = attrs.field(factory=dict)
    """topic → numbers of which its owner has decided that they will never have an event → when, if it had the time to say it"""
    ranges: list[RangeRecord] = attrs.field(factory=list)
    """what was read of the logs"""
    tasks: list[TaskRecord] = attrs.field(factory=list)
    batches_followed: int = 0
    """batches that somebody has read under a name"""
    violations: list[Violation] = attrs.field(factory=list)
    points_passed: dict[str, int] = attrs.field(factory=dict)
    deaths_at: dict[str, int] = attrs.field(factory=dict)
    crashes: int = 0
    refused_starts: int = 0
    refused_inputs: int = 0
    refused_requests: int = 0
    given_up: int = 0
    """changes that were not asked for in the end: the ENS failed, or the application waited no longer"""
    not_taken: int = 0
    """how often the ENS did not take what it was given"""
    not_arrived: int = 0
    """what the ENS brought, and was not believed"""
    torn_records: int = 0
    checked_transactions: int = 0
    """transactions of which a total subscription was notified"""
    checked_positions: int = 0
    """notifications whose position was compared with the sum of the entries"""
    progress: int = 0
    """answers and notifications so far"""

    @property
    def operations(self) -> int:
        """How many operations were handled by at least one stage."""
        return len({identity for handled in self.handled for identity in handled})

    @property
    def notifications(self) -> int:
        """How many notifications there were."""
        return sum(len(subscription.notifications) for subscription in self.subscriptions.values())

    def violation(self, invariant: str, what: str) -> None:
        """An invariant fell."""
        self.violations.append(Violation(invariant, what))

    def new_event(
        self, topic: str, publisher: str, past: dict[str, int], known: tuple[EventRecord, ...]
    ) -> EventRecord:
        """The application publishes something."""
        event = EventRecord(len(self.events), topic, publisher, past, known)
        self.events.append(event)
        return event

    def note_completed(self, rank: int, operation: Operation) -> None:
        """An owner learned that an operation is complete; after a crash it may learn it once more, the same."""
        self._number_abandoned(operation)
        transaction = transaction_of(operation)
        if operation.transaction:
            self.transactions[operation.identity] = operation.transaction
        for part in operation.parts:
            if isinstance(part, Change) and operation.transaction and part.subscription in self.subscriptions:
                self.subscriptions[part.subscription].outcomes[part.version] = part  # whether its client knows or not
            if isinstance(part, Change) or self.world.owners[part.topic] != rank:
                continue
            entry = Completed(
                part.topic,
                part.first,
                part.last,
                part.entries,
                part.place,
                part.published_at,
                operation.identity,
                part.full,
                transaction,
            )
            known = self.completed.setdefault(part.topic, {}).setdefault(part.first, entry)
            if known.operation != operation.identity or known.entries != part.entries:
                self.violation("I2", f"{part.topic} {part.first} was completed twice: {known} and {entry}")

    def note_decided(self, decision: Decision, now: float) -> None:
        """An owner has decided, on disk, what has become of numbers whose publisher had vanished."""
        for first, last in decision.voids:
            self.voids.setdefault(decision.topic, {}).update(dict.fromkeys(range(first, last + 1), now))

    def abandon(self, identity: Identity, items: list[list[EventRecord]]) -> None:
        """A client died that had asked for these, and may have them all the same."""
        self.abandoned[identity] = items
        operation = self.seen.get(identity)
        if operation is not None:
            self._number_abandoned(operation)

    def _number_abandoned(self, operation: Operation) -> None:
        self.seen[operation.identity] = operation
        items = self.abandoned.pop(operation.identity, None)
        parts = [part for part in operation.parts if isinstance(part, Publication)]
        for part, events in zip(parts, items or (), strict=False):
            for index, event in enumerate(events):
                event.numbered(part.first + index, operation.sequence)

    def note_probed(self, simulation: Simulation) -> None:
        """Everything has come to rest after one more event on each topic."""
        self.handled = [list(host.handled) for host in simulation.stages]
        self.present = [client.name for client in simulation.clients if not client.is_gone]
        for host in simulation.stages:
            assert host.driver is not None
            state = host.driver.stage.state
            for what, held in (("marks", state.marks), ("owed entries", state.groups.owed)):
                if held:
                    self.violation("I12", f"stage {host.rank} still keeps {what} at rest: {held}")
            self._check_decisions(host.disk.shelf)
        self.note_counts(simulation)
        self._check_statistics(simulation)

    def note_counts(self, simulation: Simulation) -> None:
        """How many numbers the owners have given."""
        for topic, owner in self.world.owners.items():
            self.owner_counts[topic] = simulation.stages[owner].number_of(topic)

    def _check_decisions(self, shelf: MemoryShelf) -> None:
        """What was decided stays so; what a stage had no time to say, since it died just then, is decided all the same."""
        for topic in set(shelf.topics()) - set(self.world.kept):
            known = self.voids.get(topic, {})
            rows = list(shelf.get("stamps", topic, 1, ENDLESS))
            found = {number for row in rows for number in range(row.first, row.last + 1)}
            if not known.keys() <= found:
                self.violation("I3", f"{topic}: {list(known)} were void, and the log says {found}")
            self.voids[topic] = {number: known.get(number, FOR_EVER) for number in found}

    def note_closed(self, simulation: Simulation) -> None:
        """Everything has come to rest after all subscriptions were closed."""
        for host in simulation.stages:
            assert host.driver is not None
            state = host.driver.stage.state
            groups = state.groups
            for what, held in (
                ("subscriptions", groups.holdings),
                ("weights", groups.weights),
                ("groups", groups.filled),
                ("reach", groups.reach),
                ("full timestamps", groups.full_wanted),
                ("holders", groups.held),
                ("visits", state.clocks.visited),
                ("changes of own topics", state.clocks.own_changed),
                ("changes of lower topics", state.clocks.lower_changed),
                ("registered subscriptions", state.registrar.subscriptions),
            ):
                if held:
                    self.violation("I12", f"stage {host.rank} still keeps {what} after all were closed: {held}")
        for client in simulation.clients:
            for name, subscription in client.subscriptions.items():
                self.violation("I12", f"{name} is not over after all were closed: {subscription.buffer.topics}")
            if topics := client.machine.holding.topics:
                self.violation("I12", f"{client.name} still has the ENS bring {topics} after all were closed")
        self._check_statistics(simulation)

    def _check_statistics(self, simulation: Simulation) -> None:
        for host in simulation.stages:
            assert host.driver is not None
            statistics = host.driver.stage.statistics()
            if statistics["pending"] or statistics["outbox"]:
                self.violation("I12", f"stage {host.rank} at rest: {statistics}")
