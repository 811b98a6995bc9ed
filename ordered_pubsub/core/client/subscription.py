"""One subscription, as its client knows it: which topics it is to hold, what was asked for, and how it ends.

A change of its topics is announced to its buffer, held at the ENS, and asked for, one change after the other. So the order of
the asks is the order that the buffer was told of, and what is published after a change has its place cannot be missed.

`CHANGES` has what becomes of a change, `SUBSCRIPTIONS` what becomes of a subscription.

What begins a subscription with a name is queued once more if somebody has opened it meanwhile: for the epoch after that one.
It is, too, if one of the same name has just ended, after a while.

Nothing comes in any more when it is over: its end has taken effect, it has met an error, or nobody needs it. One that ends with
its session and has not asked for its end then does.

INVARIANT: `wanted` is what it holds when everything that was asked for has happened.
INVARIANT: its buffer waits for the changes that are holding or asked, and for what has its outcome too early; for no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from ordered_pubsub.core.client.holding import Hold
from ordered_pubsub.core.messages import Change, ChangeAsk, News, Refusal, ToSubscriber, VoidDecision
from ordered_pubsub.core.order.registrar import WRONG_EPOCH, epoch_after
from ordered_pubsub.core.states import States
from ordered_pubsub.core.subscriber.best_effort import BestEffort
from ordered_pubsub.core.subscriber.buffer import Arrival, Notification
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.subscriber.subscriber import Said, Subscriber
from ordered_pubsub.errors import Closed, SessionExpired, UsageError

if TYPE_CHECKING:
    from ordered_pubsub.core.client.machine import ClientMachine

_Made = TypeVar("_Made")
QUEUED, HOLDING, ASKED, SETTLED, REFUSED, FAILED = "queued", "holding", "asked", "settled", "refused", "failed"
CHANGES = States(
    "a change of a client's subscription",
    {
        QUEUED: {
            HOLDING: "those before it are asked for",
            ASKED: "it is the end of a subscription that is over: nothing is to be held",
            FAILED: "it cannot be made any more, or nobody waits for it",
        },
        HOLDING: {
            ASKED: "the broker brings what it adds (`core.client.holding`)",
            FAILED: "the broker or the stage says no, nobody waits for it any more, or the subscription is over",
        },
        ASKED: {
            SETTLED: "it has its place",
            REFUSED: "it will not happen",
            QUEUED: "it begins a subscription that others have opened meanwhile, or that has just ended: it is tried again",
        },
        SETTLED: {},
        REFUSED: {},
        FAILED: {},
    },
)
OPEN, ENDING, OVER = "open", "ending", "over"
SUBSCRIPTIONS = States(
    "a subscription at its client",
    {
        OPEN: {
            ENDING: "its end is asked for",
            OVER: "it met an error, was cut off, or nobody needs it",
        },
        ENDING: {
            OPEN: "its end is refused",
            OVER: "its end has taken effect; or any of what ends an open one",
        },
        OVER: {},
    },
)
REOPEN_S = 0.2
"""So long after it is tried again to begin one whose name is that of one that has just ended."""


@attrs.define(eq=False)
class TopicChange:
    """A change of the topics of one subscription: more of them, fewer, or its end."""

    subscription: ClientSubscription
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    ends: bool = False
    where: str | None = None
    opens: int = 0
    """the epoch in which it begins a subscription with a name, or goes on with it"""
    together: Callable[[], Sequence[tuple[str, list[Any]]]] | None = None
    """makes the publications that take their place with it, when it is asked for"""
    state: str = attrs.field(default=QUEUED, init=False)
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    hold: Hold | None = None
    outcome: Change | None = None
    """of one that is settled"""
    refusal: Refusal | None = None
    """what the stage says of it, if that was not to be had last"""
    error: Exception | None = None
    """why it was not asked for, of one that has failed"""
    again_at: float = float("-inf")
    """not before is it its turn"""
    openings: int = 0
    """how often somebody else has opened the subscription in between"""

    def become(self, state: str) -> None:
        """Something has happened to it."""
        CHANGES.check(self.state, state)
        self.state = state

    @property
    def is_asked(self) -> bool:
        """Whether the stage was asked for it, so that it may happen, or have happened."""
        return self.state in (ASKED, SETTLED, REFUSED)

    @property
    def is_done(self) -> bool:
        """Whether it has its outcome."""
        return self.state in (SETTLED, REFUSED, FAILED)


@attrs.define(eq=False)
class ClientSubscription:
    """One subscription at its client."""

    name: str
    buffer: Delivery | BestEffort
    subscriber: Subscriber | None
    """None: best-effort"""
    client: ClientMachine
    weight: int
    is_named: bool = False
    start: Mapping[str, int] | None = None
    """where one with a name begins in the past"""
    may_be_empty: bool = False
    """whether it begins without a topic, if it is not there"""
    wanted: dict[str, bool] = attrs.field(factory=dict)
    """the topics that it will hold when all that was asked for has happened"""
    is_known: bool = False
    """whether the stage was ever asked for it"""
    state: str = attrs.field(default=OPEN, init=False)
    error: Exception | None = None
    """why it is over, if it did not end by itself"""
    end: TopicChange | None = None
    """tells the stage that it is over"""
    last_clock: dict[str, int] | None = None
    """its clock when it was over"""
    _changes: deque[TopicChange] = attrs.field(factory=deque)
    """those that are not asked for yet"""
    _maybe_left: dict[str, bool] = attrs.field(factory=dict)
    """topics that may not be needed at the ENS any more"""
    _rest: list[Notification] = attrs.field(factory=list)
    """what was ready when it ended by an error"""

    def _become(self, state: str) -> None:
        SUBSCRIPTIONS.check(self.state, state)
        self.state = state

    @property
    def is_ending(self) -> bool:
        """Whether its end was asked for, and has not happened yet."""
        return self.state == ENDING

    @property
    def is_over(self) -> bool:
        """Whether nothing comes in any more."""
        return self.state == OVER

    # -- changes ------------------------------------------------------------------------------------------------------

    def change(
        self,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
        ends: bool = False,
        where: str | None = None,
        opens: int = 0,
        together: Callable[[], Sequence[tuple[str, list[Any]]]] | None = None,
    ) -> TopicChange:
        """Change its topics, or end it. The client's `finished` has the change when it has an outcome."""
        topics = tuple(dict.fromkeys(add)), tuple(dict.fromkeys(remove))
        change = TopicChange(self, *topics, ends, where, opens, together)
        self._changes.append(change)
        self.go_on()
        return change

    @property
    def unasked(self) -> list[TopicChange]:
        """The changes that are not asked for yet."""
        return list(self._changes)

    def give_up(self, change: TopicChange) -> None:
        """Nobody waits for a change any more. What was asked for may still happen."""
        if change.state not in (QUEUED, HOLDING):
            return
        self._take_back(change)
        change.become(FAILED)
        self._changes.remove(change)
        self.go_on()

    def go_on(self) -> None:
        """Make those changes whose turn has come."""
        while self._changes and self._changes[0].state == QUEUED and self.client.now >= self._changes[0].again_at:
            change = self._changes[0]
            error = self._trouble(change)
            if error is not None:
                self._changes.popleft()
                self._fail(change, error)
                continue
            change.gained = tuple(topic for topic in change.add if topic not in self.wanted)
            change.lost = tuple(self.wanted) if change.ends else change.remove
            change.become(HOLDING)
            self.buffer.change_asked(change.lost)
            change.hold = self.client.holding.hold(self.name, change.gained, self.client.now)
            self.client.take_holds()

    def _trouble(self, change: TopicChange) -> Exception | None:
        """Why a change cannot be made, if so."""
        if self.is_over or self.is_ending:
            return self._closed()
        unheld = [topic for topic in change.remove if topic not in self.wanted]
        if unheld:
            return UsageError(
                f"subscription {self.name} does not hold {', '.join(map(repr, unheld))}; it holds "
                f"{', '.join(map(repr, self.wanted)) or 'nothing'}"
            )
        return None

    def _closed(self) -> Exception:
        return Closed(f"subscription {self.name} has ended; make another one with client.subscribe()")

    def held(self, hold: Hold) -> None:
        """The ENS brings what a change adds, or cannot."""
        change = next((change for change in self._changes if change.hold is hold), None)
        if change is None:
            self._look_for_more(hold.topics)
            return  # of a subscription that goes on
        self._changes.popleft()
        if hold.is_held:
            self._ask(change)
        else:
            self._take_back(change)
            if hold.refusal is not None:
                change.refusal = Refusal("", 0, 0, *hold.refusal)
            self._fail(change, hold.error)

    def _look_for_more(self, topics: Sequence[str]) -> None:
        """The ENS brings topics from now on that it has gained before: what was published in between is asked for."""
        if not self.is_over and self.subscriber is not None:
            self._guarded(self.subscriber.look_for_more, topics, self.client.now)
            self.client.touched[self] = True

    def _ask(self, change: TopicChange) -> None:
        """It is announced and held: ask the stage for it."""
        change.become(ASKED)
        change.hold = None
        if not self.is_known and not self.is_named:
            self.client.watch(self.name)
        self.is_known = True
        if change.ends and not self.is_over:
            self._become(ENDING)
        self.wanted.update(dict.fromkeys(change.gained, True))
        for topic in change.lost:
            self.wanted.pop(topic, None)
        ask = ChangeAsk(
            subscription=self.name,
            add=change.gained,
            remove=change.lost,
            weight=self.weight,
            best_effort=self.subscriber is None,
            ends=change.ends,
            opens=change.opens,
            start=None if not change.opens or self.start is None else dict(self.start),
            where={} if change.where is None else dict.fromkeys(change.gained, change.where),
            may_be_empty=bool(change.opens) and self.may_be_empty,
        )
        self.client.ask(ask, change)

    def _take_back(self, change: TopicChange) -> None:
        """It was not asked for, and never will be."""
        if change.state == HOLDING:
            assert change.hold is not None
            self.client.holding.give_up(change.hold)
            self.buffer.change_refused(change.lost)
            self._maybe_left.update(dict.fromkeys(change.gained, True))
            self._release_left()

    def _fail(self, change: TopicChange, error: Exception | None) -> None:
        change.become(FAILED)
        change.error = error
        self.client.finished.append(change)

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def settled(self, change: TopicChange, outcome: Change) -> None:
        """A change has its place."""
        change.become(SETTLED)
        change.outcome = outcome
        self.client.finished.append(change)
        if self.is_over:
            return
        self._guarded(self._take_outcome, outcome, change.lost)

    def _take_outcome(self, outcome: Change, lost: Sequence[str]) -> None:
        now = self.client.now
        if self.subscriber is not None:
            self.subscriber.begin(outcome, now)
        if outcome.resume is not None:  # what it holds is known only now
            self.wanted.update(dict.fromkeys(outcome.new, True))
            self.client.holding.hold(self.name, outcome.new, now, is_lasting=True)
        self.buffer.change_settled(outcome, lost)

    def _guarded(self, step: Callable[..., _Made], *arguments: Any) -> _Made | None:
        """Do something; whatever goes wrong in it ends this subscription, and nothing else of the client."""
        try:
            return step(*arguments)
        except Exception as error:
            self.fail(error)
            return None

    def refused(self, change: TopicChange, refusal: Refusal) -> None:
        """A change will not happen."""
        if self.subscriber is not None:
            self.subscriber.log.set_time(self.client.now)
        self.buffer.change_refused(change.lost)
        for topic in change.gained:
            self.wanted.pop(topic, None)
            self._maybe_left[topic] = True
        self.wanted.update(dict.fromkeys(change.lost, True))
        if change.ends and not self.is_over:
            self._become(OPEN)
        if not self.is_over and self._begins_anew(change, refusal):
            return
        change.become(REFUSED)
        change.refusal = refusal
        self.client.finished.append(change)

    def _begins_anew(self, change: TopicChange, refusal: Refusal) -> bool:
        """Whether what was to begin it is tried again."""
        if not change.opens:
            return False
        change.openings += refusal.code == WRONG_EPOCH
        epoch = epoch_after(refusal, change.openings)
        if epoch is not None:
            change.opens = epoch
        elif refusal.code == "ended":  # the one before it of this name
            change.again_at = self.client.now + REOPEN_S
            self.client.wait(self, change.again_at)
        else:
            return False
        change.become(QUEUED)
        change.refusal = refusal
        self._changes.appendleft(change)
        self.go_on()
        return True

    # -- what comes in ------------------------------------------------------------------------------------------------

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """The ENS has brought events of the topics that it holds."""
        if not self.is_over:
            self._guarded(self._take_arrivals, arrivals, self.client.now)

    def _take_arrivals(self, arrivals: Sequence[Arrival], now: float) -> None:
        if self.subscriber is not None:
            self.subscriber.arrived(arrivals, now)
        elif isinstance(self.buffer, BestEffort):
            for arrival in arrivals:
                self.buffer.receive(arrival, now)

    def hear(self, message: ToSubscriber | VoidDecision, is_ens_read: bool = True) -> None:
        """The stage says something to it."""
        if self.is_over or self.subscriber is None:
            return
        if isinstance(message, News):
            self._guarded(self._note_news, message)
        if not self.is_over:
            self._guarded(self.subscriber.hear, message, self.client.now, is_ens_read)

    def _note_news(self, news: News) -> None:
        """Others have changed it, in transactions: what it has gained is to be held at the ENS."""
        for change in news.changes:
            if self.buffer.changes.is_known(change.version):
                continue
            self.wanted.update(dict.fromkeys(change.gained, True))
            for topic in change.lost:
                self.wanted.pop(topic, None)
            if change.gained:
                self.client.holding.hold(self.name, tuple(change.gained), self.client.now, is_lasting=True)
        self.client.take_holds()

    def connected(self) -> None:
        """There is a home stage, perhaps another one."""
        if not self.is_over and self.subscriber is not None:
            self.subscriber.connected()

    def report(self, is_all: bool = False) -> None:
        """Say how far it is, as far as that is news; or all of it, to a stage that knows nothing yet."""
        if self.is_over or self.subscriber is None:
            return
        follows = self._guarded(self.subscriber.report, self.client.now, is_all)
        if follows is not None:
            self.client.say(follows)

    def say_what_is_due(self, may_ask: bool = True, has_unread: bool = False) -> list[Said]:
        """Say what it misses, if it may ask for more, and what was handled; return that, for who likes to know."""
        if self.is_over or self.subscriber is None:
            return []
        said = self.subscriber.take_due(self.client.now, may_ask, has_unread)
        for message in said:
            self.client.say(message)
        return said

    def tick(self) -> None:
        """The time is told to a best-effort buffer."""
        if not self.is_over and isinstance(self.buffer, BestEffort):
            self._guarded(self.buffer.tick, self.client.now)

    def take_ready(self) -> list[Notification]:
        """The events whose turn has come since the last call. To be called after whatever comes in."""
        ready, self._rest = [*self._rest, *self._take()], []
        if ready and not self.is_over and self.client.lifeline.is_cut(self.name, self.client.now):
            self.cut_off()
            return []
        for topic in self.buffer.take_left():
            self._maybe_left[topic] = True
        if self._maybe_left:
            self._release_left()
        if self.is_ending and not self.is_over and not self.buffer.changes.asked and not self.buffer.clock:
            self.stop()
        return ready

    def _take(self) -> list[Notification]:
        if self.is_over:
            return []
        return self.buffer.take_ready() if self.subscriber is None else self.subscriber.log.take_ready()

    def _release_left(self) -> None:
        """Let the ENS bring no more of what is not needed; not while a change may bring it back."""
        if self.is_over or self.buffer.changes.asked:
            return
        held = self.buffer.clock
        left = [topic for topic in self._maybe_left if topic not in held and topic not in self.wanted]
        self._maybe_left.clear()
        self.client.holding.forget(self.name, left)

    # -- the end ------------------------------------------------------------------------------------------------------

    def cut_off(self) -> None:
        """Its registrar may have given it up: what came now might be in another order than for others."""
        half_s = self.client.lifeline.session_ttl_s / 2
        self.fail(
            SessionExpired(
                f"subscription {self.name} was cut off: the stage that keeps it has not answered for {half_s:g} s. It was "
                "notified of everything up to its clock, in order; subscribe again. Who needs more gives it a name (name=)"
            )
        )

    def fail(self, error: Exception) -> None:
        """It is over by an error. What is ready may still be taken, unless it is cut off."""
        if self.is_over:
            return
        self.error = error
        self.client.failed.append(self)
        if not self.client.lifeline.is_cut(self.name, self.client.now):
            self._rest += self._take()
        self.stop()

    def stop(self) -> None:
        """Nothing comes in any more; the ENS and the stage are told."""
        if self.is_over:
            return
        has_asked = self.is_ending
        self._become(OVER)
        self.last_clock = self.buffer.clock
        self.client.ended(self)
        for change in list(self._changes):
            self._changes.popleft()
            self._take_back(change)
            self._fail(change, self._closed())
        self.client.holding.forget(self.name)
        if self.is_known and not has_asked and not self.is_named and self.client.is_open:
            self.end = TopicChange(self, ends=True, lost=tuple(self.wanted))
            self.buffer.change_asked(self.end.lost)
            self._ask(self.end)

    def check_invariants(self, asked: int) -> None:
        """Raise an `AssertionError` if what is written at the top does not hold. So many of its changes are asked for."""
        holding = sum(change.state == HOLDING for change in self._changes)
        waits = self.buffer.changes.asked - self.buffer.changes.early
        assert waits == holding + asked, f"{self.name} waits for {waits} changes: {holding} are holding, {asked} asked"
        assert holding <= 1, f"{self.name} makes {holding} changes at once"
        self.client.holding.check_brought(self.wanted)
        self.buffer.check_invariants()
