"""What the user of one client in a simulation does, knows, and is told.

He may publish because of what he has learned, so it is known which event may have caused which. Of a subscription with a name
some workers have events in hand for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ordered_pubsub.core.client.session import Outcome
from ordered_pubsub.core.client.subscription import FAILED, REFUSED, ClientSubscription, TopicChange
from ordered_pubsub.core.messages import Acked, AckSaved, ChangeAsk, Ended, Publication, Refusal, Resume, ToSession
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.subscriber.best_effort import BestEffort
from ordered_pubsub.core.subscriber.buffer import Notification
from ordered_pubsub.core.subscriber.delivery import WEIGHTS, Delivery
from ordered_pubsub.core.subscriber.subscriber import Subscriber
from ordered_pubsub.core.subscriber.subscriber_log import SubscriberLog
from ordered_pubsub.errors import HistoryLost, SessionExpired
from ordered_pubsub.testing.packer import wants_of
from ordered_pubsub.testing.record import EventRecord, SubscriptionRecord
from ordered_pubsub.testing.stage_host import FORBIDDEN
from ordered_pubsub.testing.world import FAULTS_END_S, Alter, Shift, Subscribe, Transact

if TYPE_CHECKING:
    from ordered_pubsub.testing.client_host import ClientHost
    from ordered_pubsub.testing.simulation import Simulation

REOPEN_S = 0.3
IMPATIENCE = 0.3
"""How likely it is within half a second that the application waits no longer for a change that is not asked for."""
SAID_FOR_S = 2.0
"""So often subscriptions say again how far they are."""
MAY_BE_REFUSED = ("conflict", "unknown", "busy", "no-name")
"""Why a transaction may not happen, though nothing is wrong."""
WORKERS = 2
"""So many tasks of an application read a subscription with a name; each has one event in hand at most."""
REACTIONS_MAX = 60
"""How many publications of a world happen because of others."""


def _will_hold(subscription: ClientSubscription) -> dict[str, bool]:
    """What a subscription holds when everything has happened that the application has asked for."""
    topics = dict(subscription.wanted)
    for change in subscription.unasked:
        topics.update(dict.fromkeys(change.add, True))
        for topic in change.remove:
            topics.pop(topic, None)
    return topics


@attrs.define(eq=False)
class Application:
    """What the user of one client does, knows, and is told."""

    host: ClientHost
    simulation: Simulation
    past: dict[str, int] = attrs.field(factory=dict)
    """for each topic the highest number that this client knows of: published or notified"""
    unresolved: list[EventRecord] = attrs.field(factory=list)
    """events that it knows of, while not all of their causes have a number"""
    unnumbered: list[EventRecord] = attrs.field(factory=list)
    """its publications that have no number yet, in order"""
    committing: list[EventRecord] = attrs.field(factory=list)
    """… and those of transactions that may have to wait: what it publishes afterwards does not follow them"""
    opened: dict[str, Subscribe] = attrs.field(factory=dict)
    """what it subscribes to whenever it is started"""
    begun_by: dict[str, TopicChange] = attrs.field(factory=dict)
    """subscription → the change by which it begins, or goes on, in this life"""
    working: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """subscription and worker → the event that it works on, by its count"""

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, parts: tuple[tuple[str, int], ...], is_transaction: bool = False) -> None:
        """Publish events, as one operation."""
        if self.host.is_dead:
            return
        events = [(topic, self._events(topic, count)) for topic, count in parts]
        self.host.session.publish_together(events, self.simulation.now, is_transaction)
        self.host.send()

    def transact(self, action: Transact) -> None:
        """Change subscriptions, and publish, at one place."""
        if self.host.is_dead:
            return
        parts: list[tuple[str, list[EventRecord]] | ChangeAsk] = []
        for part in action.parts:
            if isinstance(part, Shift):
                every = self.simulation.every_of(part.subscription)
                where = dict.fromkeys(part.add, str(every)) if every > 1 else {}
                parts.append(ChangeAsk(part.subscription, part.add, part.remove, where=where, strict=action.is_strict))
            else:
                events = self._events(*part)
                del self.unnumbered[-len(events) :]
                self.committing += events
                parts.append((part[0], events))
        self.host.session.commit(parts, self.simulation.now)
        self.host.send()

    def _events(self, topic: str, count: int) -> list[EventRecord]:
        events = []
        for _ in range(count):
            event = self.simulation.record.new_event(topic, self.host.name, *self._knowledge())
            event.client = self.host.index
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

    def _maybe_react(self) -> None:
        """The application publishes something because of what it knows now."""
        simulation = self.simulation
        if simulation.now >= FAULTS_END_S or simulation.reactions >= REACTIONS_MAX:
            return
        if simulation.chance.random() < simulation.world.eagerness:
            simulation.reactions += 1
            topic = simulation.chance.choice(simulation.world.topics)
            simulation.after(0.0, self.publish, ((topic, 1),))

    def take_receipts(self) -> None:
        """Be told what has become of what was published."""
        outbox = self.host.machine.outbox
        receipts, outbox.receipts = outbox.receipts, []
        for part, items in receipts:
            for event in items:
                self._note_receipt(part, event)
        voids, outbox.voids = outbox.voids, []
        for void in voids:
            for event in void.items:
                event.is_known_void |= any(first <= event.number <= last for first, last in void.ranges)

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

    # -- subscribing --------------------------------------------------------------------------------------------------

    def subscribe(self, action: Subscribe) -> None:
        """Begin a subscription."""
        self.opened[action.subscription] = action
        self.simulation.record.subscriptions[action.subscription] = SubscriptionRecord(
            action.subscription,
            f"client-{self.host.index}",
            action.order,
            action.best_effort,
            named=action.named,
            from_start=action.from_start,
        )
        if not self.host.is_dead:
            self._open(action, action.topics)
        elif self.host.is_gone:
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
            buffer = Delivery(name, order=action.order, missing=missing, wants_of=wants_of)
            owner, unpack = self.simulation.topology.owner, self.simulation.packer.unpack
            log = SubscriberLog(buffer, missing, owner, unpack, start, self.host.name, self.simulation.world.silent)
            subscriber = Subscriber(log, self.host.name, action.named, SAID_FOR_S)
        subscription = ClientSubscription(
            name,
            buffer,
            subscriber,
            self.host.now(),
            WEIGHTS[action.order],
            action.named,
            start if action.named else None,
        )
        self.host.machine.begin(subscription)
        self.alter(Alter(action.at, name, topics), epoch if action.named else 0, begins=True)

    def may_alter(self, subscription: str) -> bool:
        """Whether a subscription is there; one with a name, that it has begun in this life."""
        known = self.host.subscriptions.get(subscription)
        return known is not None and (not known.is_named or known.buffer.changes.version > 0)

    def alter(self, action: Alter, opens: int = 0, begins: bool = False) -> None:
        """Change a subscription, or begin it: `opens` is its epoch if it has a name."""
        subscription = self.host.subscriptions[action.subscription]
        removes = [topic for topic in action.remove if topic in _will_hold(subscription)]
        every = action.every or self.opened[action.subscription].every
        self.host.now()
        change = subscription.change(
            action.add, removes, action.ends, str(every) if every > 1 else None, opens, partial(self._together, action)
        )
        if begins:
            self.begun_by[action.subscription] = change
        self.host.do()

    def _together(self, action: Alter) -> list[tuple[str, list[EventRecord]]]:
        return [(topic, self._events(topic, count)) for topic, count in action.together]

    def maybe_give_up(self) -> None:
        """The application waits no longer for a change that was not asked for."""
        unasked = [change for subscription in self.host.subscriptions.values() for change in subscription.unasked]
        if unasked and self.simulation.now < FAULTS_END_S and self.simulation.chance.random() < IMPATIENCE:
            change = self.simulation.chance.choice(unasked)
            self.simulation.trace("%s gives up %s", change.subscription.name, change.add)
            self.simulation.record.given_up += 1
            self.host.now()
            if self.begun_by.get(change.subscription.name) is change:
                self._try_again(change)
            else:
                change.subscription.give_up(change)
            self.host.do()

    # -- what it is told ----------------------------------------------------------------------------------------------

    def take_outcome(self, outcome: Outcome) -> None:
        """A request has its outcome."""
        simulation = self.simulation
        if outcome.refusal is not None:
            self._take_back(outcome.asked.items, self.committing if outcome.asked.is_commit else self.unnumbered)
            if outcome.asked.is_commit and outcome.refusal.code in MAY_BE_REFUSED:
                simulation.record.refused_transactions[outcome.refusal.code] += 1
                simulation.trace("%s: %s", self.host.name, outcome.refusal.reason)
            elif outcome.asked.change is None:
                self._note_refused(outcome.refusal)
            return
        for part, items in zip(outcome.publications, outcome.asked.items, strict=True):
            for index, event in enumerate(items):
                (self.committing if outcome.asked.is_commit else self.unnumbered).remove(event)
                event.numbered(part.first + index, outcome.sequence)
                self._learn(event)
        self.host.machine.outbox.numbered(outcome, simulation.now)
        if outcome.publications:
            self._maybe_react()
        if outcome.asked.is_commit:
            simulation.record.committed += 1
        change, ask = outcome.change, outcome.asked.change
        if change is None or ask is None or change.subscription not in self.host.subscriptions:
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

    def note_finished(self, change: TopicChange) -> None:
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
                self.simulation.after(REOPEN_S, self._open_again, action, (), change.opens, self.host.lives)

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
            self.simulation.after(
                REOPEN_S, self._open_again, self.opened[name], change.add, change.opens, self.host.lives
            )

    def _open_again(self, action: Subscribe, topics: tuple[str, ...], epoch: int, life: int) -> None:
        if life == self.host.lives and not self.host.is_dead:
            self._open(action, topics, epoch or 1)

    def _begin_anew(self, subscription: ClientSubscription, topics: tuple[str, ...], epoch: int) -> None:
        subscription.stop()
        self._open(self.opened[subscription.name], topics, epoch)

    def _note_refused(self, refusal: Refusal) -> None:
        """Nothing of it happens, ever."""
        if refusal.code != FORBIDDEN:
            self.simulation.record.violation("I4", f"{self.host.name} was refused: {refusal.reason}")
            return
        self.simulation.record.refused_requests += 1
        self.simulation.trace("%s is refused request %d: %s", self.host.name, refusal.sequence, refusal.reason)

    def note_failed(self, subscription: ClientSubscription) -> None:
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

    @staticmethod
    def _take_back(items: Sequence[Sequence[EventRecord]], among: list[EventRecord]) -> None:
        for event in (event for some in items for event in some):
            among.remove(event)
            event.is_refused = True

    def notify(self, subscription: ClientSubscription) -> None:
        """Tell the application what is next."""
        self.host.now()
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

    def check_ended(self, message: ToSession) -> None:
        """Nobody but this client ends its subscriptions."""
        simulation = self.simulation
        is_known = isinstance(message, Ended) and message.subscription in self.host.subscriptions
        if isinstance(message, Ended) and is_known and not simulation.is_closing:
            simulation.record.violation("I3", f"{message.subscription} was ended: {message.reason}")

    # -- what it works on ---------------------------------------------------------------------------------------------

    def go_on_working(self, subscription: ClientSubscription) -> None:
        """Some of those who read a subscription with a name are done with what they work on."""
        for worker in range(WORKERS) if subscription.is_named else ():
            if self.simulation.chance.random() < 0.5:
                self._finish_work(subscription.name, worker)

    def _work_on(self, subscription: ClientSubscription, worker: int, notification: Notification) -> None:
        """One of the tasks that read a subscription asks for the next event: it has handled the one before."""
        self._finish_work(subscription.name, worker)
        if subscription.subscriber is not None:
            subscription.subscriber.in_hand.take(notification, worker)
        self.working[subscription.name, worker] = notification.count

    def _finish_work(self, name: str, worker: int) -> None:
        self.working.pop((name, worker), None)
        subscriber = self.host.subscriptions[name].subscriber
        if subscriber is None:
            return
        place = subscriber.in_hand.ask(worker)
        if place is not None:
            subscriber.handled(place, self.simulation.now)

    def check_handled(self, acked: Acked) -> None:
        """Nobody acknowledges what the application has in hand."""
        for worker in range(WORKERS):
            working = self.working.get((acked.subscription, worker))
            if working is not None and working <= acked.position:
                self.simulation.record.violation(
                    "I3", f"{acked.subscription} acknowledges {acked.position}, and {working} is not handled yet"
                )

    def note_saved(self, saved: AckSaved) -> None:
        """An acknowledgement is on disk: nobody goes on before that place."""
        subscription = self.host.subscriptions.get(saved.subscription)
        acknowledging = (
            None if subscription is None or subscription.subscriber is None else subscription.subscriber.acknowledging
        )
        last = None if acknowledging is None else acknowledging.last
        if last is not None and saved.serial == last.serial:
            self.simulation.record.subscriptions[saved.subscription].position = last.position

    # -- death --------------------------------------------------------------------------------------------------------

    def die(self) -> None:
        """Its process ends. What it has published, and has no number, is refused, unless it turns out to have one."""
        host, record = self.host, self.simulation.record
        for event in (*self.unnumbered, *self.committing):
            event.is_refused = True
        for sequence, items in host.session.unreported():
            record.abandon((host.name, host.session.epoch, sequence), items)
        for table in (self.begun_by, self.working, self.unnumbered, self.committing, self.unresolved, self.past):
            table.clear()
        for name in self.opened if host.is_gone else ():
            record.subscriptions[name].is_orphan = True

    def begin_again(self) -> None:
        """Another process has been started: subscribe as before."""
        for action in self.opened.values():
            self._open(action, ())
