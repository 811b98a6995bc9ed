"""One client: what it asks of the stage and of the ENS, what it says, and what becomes of what it hears.

    the application ──> change, publish ──┐        ┌──> session.sends, says ──> the home stage
    the home stage ───> answers, hear ────┤ client ├──> holding.next_operation, outbox.take_next ──> the ENS
    the ENS ──────────> arrived, taken ───┤        ├──> receipts, voids, finished, failed, found ──> the application
    time ─────────────> tick ─────────────┘        └──> touched: subscriptions that may have something ready

It has its session (`core.client.session`: requests and their answers), what is on its way to the ENS (`core.client.outbox`), its
subscriptions (`core.client.subscription`), and what they share: topics at the ENS (`core.client.holding`), keys
(`core.trust.inspection`), the sign of life (`core.liveness.lifeline`), and questions where topics were (`core.client.locating`).
Whoever drives it tells the time with each input, and does afterwards what it has said. What is said while there is no home stage
is lost, and need not be kept: whoever says it says it again.

`CONNECTIONS` has whether it has a home stage. On each connection it says again:

| what | since |
| --- | --- |
| each request without an answer, in order | the stage may never have got it |
| that it is there | its registrars must hear of it in time |
| how far each subscription is, all of it | a home stage starts knowing nothing |
| which subscriptions are over | nobody answers that |
| whose keys it needs | the answer may be lost |

What is at the ENS, and where topics were at a time, it says and asks again and again until there is an answer.

INVARIANT: a subscription is in `subscriptions` exactly as long as it is not over.
INVARIANT: each ask of a change that has no outcome is in `_asked`, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from ordered_pubsub.core.client.holding import Holding
from ordered_pubsub.core.client.locating import Locating, Search
from ordered_pubsub.core.client.outbox import Outbox
from ordered_pubsub.core.client.session import Outcome, Session
from ordered_pubsub.core.client.subscription import ASKED, ClientSubscription, TopicChange
from ordered_pubsub.core.liveness.lifeline import Lifeline
from ordered_pubsub.core.messages import (
    Answer,
    ChangeAsk,
    FromSubscriber,
    KeepAliveAck,
    Keys,
    LeaseReply,
    Located,
    NewEpoch,
    News,
    Refusal,
    SeenAsk,
    SeenReply,
    ToSubscriber,
    VoidDecision,
)
from ordered_pubsub.core.ranges import Ranges
from ordered_pubsub.core.states import States
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.subscriber import Leaving
from ordered_pubsub.core.trust.inspection import Inspection

AWAY, CONNECTED, CLOSED = "away", "connected", "closed"
CONNECTIONS = States(
    "a client",
    {
        AWAY: {CONNECTED: "there is a home stage", CLOSED: "nothing is asked for any more"},
        CONNECTED: {
            AWAY: "the home stage is gone",
            CONNECTED: "there is another home stage, at once",
            CLOSED: "nothing is asked for any more",
        },
        CLOSED: {CLOSED: "whatever connections do"},
    },
)
REPORT_S = 1.0
"""So often subscriptions say how far they are, if there is news."""


@attrs.define(eq=False)
class ClientMachine:
    """One session, and its subscriptions."""

    session: Session
    inspection: Inspection
    lifeline: Lifeline
    outbox: Outbox
    leaving: Leaving = attrs.field(factory=Leaving)
    report_s: float = REPORT_S
    now: float = 0.0
    """the time; whoever gives an input sets it before"""
    state: str = attrs.field(default=AWAY, init=False)
    subscriptions: dict[str, ClientSubscription] = attrs.field(factory=dict)
    holding: Holding = attrs.field(init=False)
    locating: Locating = attrs.field(init=False)
    says: list[FromSubscriber] = attrs.field(factory=list)
    """what is to be said to the home stage; the caller empties it, and the following"""
    finished: list[TopicChange] = attrs.field(factory=list)
    """changes that have an outcome"""
    failed: list[ClientSubscription] = attrs.field(factory=list)
    """subscriptions that are over by an error"""
    found: list[Search] = attrs.field(factory=list)
    """searches that know everything"""
    touched: dict[ClientSubscription, bool] = attrs.field(factory=dict)
    """subscriptions that may have something ready, and something to say"""
    _asked: dict[int, tuple[ChangeAsk, TopicChange]] = attrs.field(factory=dict)
    """changes without an outcome, by the identity of what was asked"""
    _report_at: float = float("-inf")
    _again: dict[ClientSubscription, float] = attrs.field(factory=dict)
    """subscriptions that go on with their changes at a time"""
    _is_taking_holds: bool = False

    def __attrs_post_init__(self) -> None:
        self.holding = Holding(self.inspection)
        self.locating = Locating(self.session.client)

    def _become(self, state: str) -> None:
        state = CLOSED if self.state == CLOSED else state
        CONNECTIONS.check(self.state, state)
        self.state = state

    @property
    def is_connected(self) -> bool:
        """Whether there is a home stage that may be told something."""
        return self.state == CONNECTED

    @property
    def is_open(self) -> bool:
        """Whether anything is asked for any more."""
        return self.state != CLOSED

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def begin(self, subscription: ClientSubscription) -> None:
        """There is another subscription."""
        self.subscriptions[subscription.name] = subscription
        self.leaving.come_again(subscription.name)

    def watch(self, name: str) -> None:
        """A subscription is asked for that ends with the session."""
        self.lifeline.watch(name, self.session.topology.registrar(name), self.now)
        self._say_that_it_is_there()

    def ask(self, ask: ChangeAsk, change: TopicChange) -> None:
        """Ask for a change of a subscription."""
        self._asked[id(ask)] = ask, change
        self.session.change(ask, self.now, () if change.together is None else change.together())

    def wait(self, subscription: ClientSubscription, until: float) -> None:
        """A subscription goes on with its changes then."""
        self._again[subscription] = until

    def ended(self, subscription: ClientSubscription) -> None:
        """A subscription is over."""
        self.subscriptions.pop(subscription.name, None)
        self._again.pop(subscription, None)
        self.lifeline.unwatch(subscription.name)
        if subscription.subscriber is not None:
            last = subscription.subscriber.end()
            if last is not None:
                self.say(last)
        self.leaving.leave(subscription.name, self.now)
        self._say_what_is_over()

    def take_holds(self) -> None:
        """The ENS brings more, or cannot: those who have waited go on."""
        if self._is_taking_holds:
            return  # whoever takes them takes these as well
        self._is_taking_holds = True
        try:
            while self.holding.finished:
                hold = self.holding.finished.pop(0)
                subscription = self.subscriptions.get(hold.subscription)
                if subscription is not None:
                    subscription.held(hold)
                    subscription.go_on()
        finally:
            self._is_taking_holds = False

    def operation_done(self, error: Exception | None = None) -> None:
        """What the ENS was to do has happened, or has failed."""
        self.holding.done(self.now, error)
        self.take_holds()

    # -- what comes ---------------------------------------------------------------------------------------------------

    def arrived(self, arrivals: dict[str, list[Arrival]]) -> None:
        """The ENS has brought events to some subscriptions."""
        for name, those in arrivals.items():
            subscription = self.subscriptions.get(name)
            if subscription is not None:
                subscription.arrived(those)
                self.touched[subscription] = True

    def answers(self, answers: Iterable[Answer | Refusal]) -> list[Outcome]:
        """Answers of the home stage came: the outcomes of requests that are known now, in order."""
        outcomes = [outcome for answer in answers for outcome in self.session.handle_answer(answer, self.now)]
        for outcome in outcomes:
            for mine in outcome.changes:
                if mine.subscription in self.subscriptions:  # if it is not, somebody else's, it is told elsewhere
                    self.hear(News(mine.subscription, self.session.client, [mine]))
            _, change = self._asked.pop(id(outcome.asked.change), (None, None))
            if change is None:
                continue
            if outcome.change is not None:
                change.subscription.settled(change, outcome.change)
            elif outcome.refusal is not None:
                change.subscription.refused(change, outcome.refusal)
            self.touched[change.subscription] = True
        return outcomes

    def hear(
        self,
        message: ToSubscriber | VoidDecision | KeepAliveAck | SeenAsk | NewEpoch | LeaseReply | Located,
        is_ens_read: bool = True,
    ) -> None:
        """The home stage says something that is no answer. (`Keys` are taken by `take_keys`.)

        `is_ens_read`: whether all that the ENS has brought was taken, so that what is not here was not brought.
        """
        if isinstance(message, KeepAliveAck):
            self.lifeline.heard(message, self.now)
        elif isinstance(message, SeenAsk):
            self._seal(message)
        elif isinstance(message, NewEpoch):
            self.inspection.now = self.now
            self.inspection.new_epoch()
            self.ask_for_keys()
        elif isinstance(message, LeaseReply):
            self.outbox.leased(message, self.now)
        elif isinstance(message, Located):
            found = self.locating.located(message)
            if found is not None:
                self.found.append(found)
        elif isinstance(message, VoidDecision):
            for each in list(self.subscriptions.values()):
                each.hear(message)
                self.touched[each] = True
        elif (subscription := self.subscriptions.get(message.subscription)) is not None:
            subscription.hear(message, is_ens_read)
            self.touched[subscription] = True

    def _seal(self, seal: SeenAsk) -> None:
        """An owner asks for numbers whose publisher has vanished."""
        seen = []
        for subscription in self.subscriptions.values():
            if subscription.subscriber is not None:
                seen += subscription.subscriber.seal(seal.topic, seal.numbers, self.now)
                self.touched[subscription] = True
        self.say(SeenReply(seal.serial, seal.rank, [self.session.client], list(Ranges(seen))))

    def take_keys(self, keys: Keys) -> list[Any]:
        """The stage has given keys: what waited for them is to be judged again, and those who have waited go on."""
        self.inspection.now = self.now
        again = self.inspection.given(keys)
        self.holding.keys_came(self.now)
        self.take_holds()
        self.ask_for_keys()
        return again

    # -- what was published, and where topics were --------------------------------------------------------------------

    def locate(self, topics: Sequence[str], at: float) -> Search:
        """Ask where topics were at a time: when that is known, it is `found`."""
        search = self.locating.begin(topics, at)
        self._ask_where()
        return search

    def _ask_where(self) -> None:
        for locate in self.locating.take_due(self.now) if self.is_connected else ():
            self.say(locate)

    def _say_what_is_at_ens(self, at: float) -> None:
        """Tell the owners of what nobody keeps, if that is due by then."""
        handed = self.outbox.take_due(at) if self.is_connected else None
        if handed is not None:
            self.say(handed)

    # -- the connection -----------------------------------------------------------------------------------------------

    def connected(self) -> None:
        """There is a home stage, perhaps another one."""
        self._become(CONNECTED)
        self.session.connected(self.now)
        self.lifeline.connected()
        self._say_that_it_is_there()
        self.inspection.now = self.now
        self.inspection.connected()
        self.ask_for_keys()
        self._report(is_all=True)
        for subscription in self.subscriptions.values():
            subscription.connected()
            self.touched[subscription] = True
        self.leaving.connected(self.now)
        self._say_what_is_over()

    def disconnected(self) -> None:
        """The home stage is gone."""
        if self.is_connected:
            self._become(AWAY)
        self.says.clear()
        self.session.disconnected()

    def say(self, message: FromSubscriber) -> None:
        """Tell the home stage something, if there is one."""
        if self.is_connected:
            self.says.append(message)

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Time has passed."""
        self.session.tick(self.now)
        self._say_that_it_is_there()
        self.inspection.now = self.now
        self.ask_for_keys()
        self._ask_where()
        self._say_what_is_at_ens(self.now)
        for name in self.lifeline.find_cut(self.now):
            self.subscriptions[name].cut_off()
        if self.now >= self._report_at + self.report_s:
            self._report()
        self._say_what_is_over()
        for subscription in [one for one, until in self._again.items() if until <= self.now]:
            del self._again[subscription]
            subscription.go_on()

    @property
    def is_idle(self) -> bool:
        """Whether time may pass untold."""
        return self.session.is_idle and not self.subscriptions and not len(self.leaving)

    @property
    def next_due(self) -> float | None:
        """When `tick`, and what takes operations, should be called though nothing has come, sooner than is usual."""
        dues = [self.holding.next_due, self.outbox.next_try, min(self._again.values(), default=None)]
        if self.is_connected:  # else nobody is there to be asked or told
            dues += [self.inspection.next_due, self.locating.next_due, self.outbox.next_word]
        return min((due for due in dues if due is not None), default=None)

    def ask_for_keys(self) -> None:
        """Say whose keys are needed, as far as that is due."""
        for ask in self.inspection.take_due() if self.is_connected else ():
            self.say(ask)

    def _say_that_it_is_there(self) -> None:
        if self.is_connected:
            here = self.lifeline.take_due(self.now)
            if here is not None:
                self.say(here)

    def _say_what_is_over(self) -> None:
        if self.is_connected:
            for follows in self.leaving.take_due(self.now):
                self.say(follows)

    def _report(self, is_all: bool = False) -> None:
        """Say how far the subscriptions are."""
        self._report_at = self.now
        for subscription in list(self.subscriptions.values()):
            subscription.report(is_all)

    # -- the end ------------------------------------------------------------------------------------------------------

    def take_leave(self) -> None:
        """It is about to be closed, and all is well: what is at the ENS is said once more."""
        self._say_what_is_at_ens(float("inf"))

    def close(self) -> None:
        """Ask for nothing any more, whatever has gone wrong."""
        self._become(CLOSED)

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if something is not as the machines of a client say that it always is."""
        self.holding.check_invariants()
        self.outbox.check_invariants()
        asked: dict[ClientSubscription, int] = {}
        for _, change in self._asked.values():
            assert change.state == ASKED, f"a change that is {change.state} is to have an outcome"
            asked[change.subscription] = asked.get(change.subscription, 0) + 1
        for name, subscription in self.subscriptions.items():
            assert name == subscription.name, f"{subscription.name} is known as {name}"
            assert not subscription.is_over, f"{name} is over, and there"
            subscription.check_invariants(asked.get(subscription, 0))
