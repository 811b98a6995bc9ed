"""The process of one client in a simulation: what carries what its machine says, to its home stage and back.

It holds no protocol decision. What its user does is in `application`, what it does at the ENS in `ens_client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ordered_pubsub.core.client.batches import UnkeptBatches
from ordered_pubsub.core.client.machine import ClientMachine
from ordered_pubsub.core.client.outbox import Outbox
from ordered_pubsub.core.client.session import OUT, REQUESTS, Session
from ordered_pubsub.core.client.subscription import ClientSubscription
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.liveness.lifeline import Lifeline
from ordered_pubsub.core.messages import Acked, AckSaved, Answer, Keys, Refusal, TopicHeads, ToSession
from ordered_pubsub.core.subscriber.subscriber import Leaving
from ordered_pubsub.core.trust.inspection import Inspection
from ordered_pubsub.testing.application import Application
from ordered_pubsub.testing.ens_client import EnsClient
from ordered_pubsub.testing.watching import Watch
from ordered_pubsub.testing.world import FOR_EVER

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation

EARLY_EVENTS_MAX = 4
"""So many events of a client that their log keeps may have their receipts before the ENS has taken them."""
PATIENCE_S = 1.0
"""For so long the ENS is given what a log keeps as well."""
LEFT_AGAIN_S = 2.0
"""So often subscriptions say again that they are over."""


@attrs.define(eq=False)
class ClientHost:
    """The process of one client: its application, and what carries what its machine says."""

    simulation: Simulation
    index: int
    machine: ClientMachine = attrs.field(init=False)
    application: Application = attrs.field(init=False)
    ens: EnsClient = attrs.field(init=False)
    home: int | None = None
    connection: int = 0
    paused_until: float = 0.0
    home_away_until: float = 0.0
    is_dead: bool = False
    is_gone: bool = False
    """whether it will never be started again"""
    lives: int = 0
    requests: Watch = attrs.field(factory=lambda: Watch(REQUESTS, OUT))
    """what becomes of its requests"""

    def __attrs_post_init__(self) -> None:
        self.application, self.ens = Application(self, self.simulation), EnsClient(self, self.simulation)
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

    def now(self) -> ClientMachine:
        """Its machine, which is told the time: an input follows."""
        self.machine.now = self.simulation.now
        return self.machine

    def do(self) -> None:
        """Do what the machine says, after an input."""
        machine, application = self.machine, self.application
        while machine.touched or machine.failed or machine.finished:
            touched, machine.touched = machine.touched, {}
            for subscription in touched:
                application.notify(subscription)
            failed, machine.failed = machine.failed, []
            for subscription in failed:
                application.note_failed(subscription)
            finished, machine.finished = machine.finished, []
            for change in finished:
                application.note_finished(change)
        self.ens.operate()
        self.ens.publish()
        application.take_receipts()
        machine.check_invariants()
        self.requests.look(self.session.states())
        self.send()

    def send(self) -> None:
        """Send what the machine says to the home stage, if there is one."""
        if self.home is None:
            return
        for request in self.session.sends:
            if request.is_transaction:
                self.simulation.record.asked[request.client, request.epoch, request.sequence] = request
            self.simulation.network.client_to_stage(self, request)
        self.session.sends.clear()
        for message in self.machine.says:
            self.simulation.network.subscriber_to_stage(self, message)
        self.machine.says.clear()

    def tick(self) -> None:
        """Time passes."""
        machine = self.now()
        machine.tick()
        for subscription in list(self.subscriptions.values()):
            subscription.tick()
            self.application.go_on_working(subscription)
            self._say_what_is_due(subscription)
            machine.touched[subscription] = True
        self.application.maybe_give_up()
        self.do()

    def _say_what_is_due(self, subscription: ClientSubscription) -> None:
        if self.home is None:
            return
        for said in subscription.say_what_is_due():
            self.simulation.trace("%s says: %s", subscription.name, said)
            if isinstance(said, Acked):
                self.application.check_handled(said)

    def handle_answer(self, answer: Answer | Refusal) -> None:
        """The home stage brings an answer."""
        for outcome in self.now().answers([answer]):
            self.simulation.record.progress += 1
            self.application.take_outcome(outcome)
        self.do()

    def handle(self, message: ToSession) -> None:
        """The home stage says something that is no answer."""
        machine = self.now()
        if isinstance(message, Keys):
            for carried in machine.take_keys(message):
                self.ens.judge(carried)
        else:
            self.application.check_ended(message)
            machine.hear(message)
            if isinstance(message, AckSaved):
                self.application.note_saved(message)
            elif isinstance(message, TopicHeads) and message.subscription in self.subscriptions:
                self._say_what_is_due(self.subscriptions[message.subscription])
        self.do()

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
        self.application.die()
        self._begin_session()
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
        self.application.begin_again()

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
        self.now().connected()
        self.do()

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
