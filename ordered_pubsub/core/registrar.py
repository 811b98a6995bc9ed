"""The registrar: keeps subscriptions, and lets their changes enter the line one at a time.

Two changes of one subscription that travel at once could overtake each other, since they need not have a stage in common;
then stages would disagree about the subscription's topics. So the next change of a subscription starts when the one before
has passed its last stage. It also visits a stage that the one before has visited (`via`), for only then is it after that
one in the total order, and what the subscription gains comes after all that it has lost. Each has a version, 1, 2, 3, …
per subscription, by which marks refer to it.

What a subscription may hold is judged when a change is asked for, by what it will hold (`planned`) when all that were taken
before have passed. How many subscriptions a session may have is judged here as well: nothing but this outlives the
session's connections.

A subscription is forgotten once the change that ends it has passed; its id is not used again.
"""

from __future__ import annotations

import msgspec

from ordered_pubsub.core.messages import Change, ChangeAsk, Refusal, Request

TOPICS_MAX = 10_000
"""Topics that one request may name, and that a subscription of weight 0 may hold."""
ORDERED_TOPICS_MAX = 2_000
"""Topics that a subscription may hold that is ordered across them: each pair costs its stages some memory."""
SUBSCRIPTIONS_MAX = 10_000
"""Subscriptions that one session may have registered at one stage: more than it needs, and no more than it may leave behind."""


class Waiting(msgspec.Struct, frozen=True):
    """A request with a change that waits for its turn."""

    request: Request
    home: int
    now: float


class Subscription(msgspec.Struct):
    """What the registrar knows of one subscription."""

    client: str
    topics: tuple[str, ...] = ()
    planned: tuple[str, ...] | None = None
    """what it will hold when all changes that were taken have passed; None if none is left"""
    version: int = 0
    via: int | None = None
    """a stage that its last change has visited"""
    ended: bool = False
    under_way: bool = False
    waiting: list[Waiting] = msgspec.field(default_factory=list)

    def after(self, ask: ChangeAsk) -> tuple[str, ...]:
        """What it will hold after one more change."""
        return _after(self.topics if self.planned is None else self.planned, ask)


class Registrar(msgspec.Struct):
    """The subscriptions that are registered at one stage."""

    subscriptions: dict[str, Subscription] = msgspec.field(default_factory=dict)
    held: dict[str, int] = msgspec.field(default_factory=dict)
    """client → how many of these are its own"""

    def refuse(self, request: Request, ask: ChangeAsk) -> Refusal | None:
        """Why a request for a change is not taken, if it is not."""
        found = self.subscriptions.get(ask.subscription)
        subscription = found or Subscription(request.client)
        topics_max = ORDERED_TOPICS_MAX if ask.weight else TOPICS_MAX
        if subscription.client != request.client:
            code, reason = "not-yours", f"subscription {ask.subscription!r} belongs to another client"
        elif subscription.ended:
            code, reason = "ended", f"subscription {ask.subscription!r} has ended; begin another one"
        elif found is None and self.held.get(request.client, 0) >= SUBSCRIPTIONS_MAX:
            code = "limit"
            reason = (
                f"a client may have {SUBSCRIPTIONS_MAX} subscriptions at one stage: end one, or hold more topics in one"
            )
        elif len(subscription.after(ask)) > topics_max:
            code = "too-many-topics"
            reason = f"subscription {ask.subscription!r} would hold more than {topics_max} topics; use a second one"
        else:
            return None
        return request.refused(code, reason, taken=True)

    def ask(self, ask: ChangeAsk, waiting: Waiting) -> Waiting | None:
        """Take a change; return it if its turn is now."""
        client = waiting.request.client
        subscription = self.subscriptions.get(ask.subscription)
        if subscription is None:
            subscription = self.subscriptions[ask.subscription] = Subscription(client)
            self.held[client] = self.held.get(client, 0) + 1
        subscription.ended = ask.ends
        subscription.planned = subscription.after(ask)
        subscription.waiting.append(waiting)
        return self.next_turn(ask.subscription)

    def next_turn(self, name: str) -> Waiting | None:
        """The change of this subscription whose turn it is now, if there is one."""
        subscription = self.subscriptions[name]
        if subscription.under_way or not subscription.waiting:
            return None
        subscription.under_way = True
        return subscription.waiting.pop(0)

    def begin(self, ask: ChangeAsk) -> Change:
        """The next step of a subscription whose turn it is."""
        subscription = self.subscriptions[ask.subscription]
        subscription.version += 1
        return Change(
            subscription=ask.subscription,
            version=subscription.version,
            old=subscription.topics,
            new=_after(subscription.topics, ask),
            weight=ask.weight,
            best_effort=ask.best_effort,
        )

    def meet(self, name: str, ranks: list[int], here: int) -> int:
        """A stage for the change to visit, so that it meets the one before; and remember where the next one meets it."""
        subscription = self.subscriptions[name]
        low, high = max(ranks, default=here), min(ranks, default=here)
        meeting = low if subscription.via is None else subscription.via
        subscription.via = min(max(meeting, high), low) if ranks else meeting
        return meeting

    def settle(self, change: Change) -> Waiting | None:
        """Take note that a change has passed its last stage; return the next one if there is one."""
        subscription = self.subscriptions.get(change.subscription)
        if subscription is None or subscription.version != change.version:
            return None
        subscription.topics = change.new
        subscription.under_way = False
        following = self.next_turn(change.subscription)
        if following is None:
            subscription.planned = None
            if subscription.ended:
                self._forget(change.subscription)
        return following

    def _forget(self, name: str) -> None:
        client = self.subscriptions.pop(name).client
        self.held[client] -= 1
        if not self.held[client]:
            del self.held[client]


def _after(topics: tuple[str, ...], ask: ChangeAsk) -> tuple[str, ...]:
    """What a subscription with these topics holds after a change; after its end, nothing, whatever else is asked for."""
    if ask.ends:
        return ()
    dropped = set(ask.remove)
    return tuple(dict.fromkeys((*(topic for topic in topics if topic not in dropped), *ask.add)))
