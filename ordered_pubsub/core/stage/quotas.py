"""How much of a stage one identity may take up.

What a stage must not forget grows with what its clients ask for: sessions, subscriptions, the topics that these hold, the pairs
of topics that must be ordered against each other, topics that did not exist before, and the bytes of all this. The `Ledger`
counts it for each identity, as a part of the stage's state, so that it is the same after a restart; and it alone counts it.
`Quotas` says how much it may be. That is configuration, and may be another one tomorrow, so it never decides what becomes of a
record that is read again: what is refused for it is written down as refused, and what is forgotten for it as forgotten.

Who has no identity is in this process, or is this stage itself: nothing is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import msgspec

from ordered_pubsub.core.messages import Change, ChangeAsk, PublishAsk, Request
from ordered_pubsub.core.order.registered import SubscriptionState, WaitingChange

ENDLESS = 1 << 62
NAME_BYTES = 80
"""About what a name takes that nothing else has, beside its letters."""
CHANGES_MAX = 1_000
"""So many changes of a subscription with a name may follow what it has acknowledged, and of any may wait for their turn."""
TOPIC_BYTES, SUBSCRIPTION_BYTES, HELD_BYTES, CHANGE_BYTES = 500, 1_200, 350, 300
"""About what each takes in memory, beside its names; a topic that is held twice the third, since it is in two tables of its
subscription. tests/server/test_memory.py has it measured."""


@attrs.frozen
class Quota:
    """What one identity may take up at one stage."""

    sessions: int = ENDLESS
    subscriptions: int = ENDLESS
    held: int = ENDLESS
    """topics of its subscriptions, each counted for each"""
    pairs: int = ENDLESS
    """pairs of topics of its subscriptions that are ordered across topics"""
    topics: int = ENDLESS
    """topics that nobody had published on before"""
    state_bytes: int = ENDLESS


UNLIMITED = Quota()


@attrs.frozen
class Quotas:
    """What each identity may take up."""

    default: Quota = UNLIMITED
    others: Mapping[str, Quota] = attrs.field(factory=dict)
    """identity → what it may, where that is not the default"""

    def of(self, identity: str) -> Quota:
        """What an identity may take up."""
        return self.others.get(identity, self.default) if identity else UNLIMITED


class Used(msgspec.Struct):
    """What one identity takes up."""

    subscriptions: int = 0
    held: int = 0
    pairs: int = 0
    topics: int = 0
    size: int = 0
    """bytes of this, about"""


class Account(msgspec.Struct, array_like=True):
    """What one subscription takes up."""

    identity: str
    held: int = 0
    pairs: int = 0
    size: int = 0


class Ledger(msgspec.Struct):
    """What the identities take up at one stage, beside their sessions."""

    used: dict[str, Used] = msgspec.field(default_factory=dict)
    brought: dict[str, str] = msgspec.field(default_factory=dict)
    """own topic → the identity that was the first to publish on it since it rested last"""
    subscriptions: dict[str, Account] = msgspec.field(default_factory=dict)

    # -- topics -------------------------------------------------------------------------------------------------------

    def bring(self, identity: str, topics: Iterable[str]) -> None:
        """An identity is the first to publish on these topics."""
        for topic in topics:
            if topic not in self.brought:
                self.brought[topic] = identity
                self._add(identity, topics=1, size=TOPIC_BYTES + len(topic))

    def rest(self, topic: str) -> None:
        """A topic costs nothing any more."""
        identity = self.brought.pop(topic, None)
        if identity is not None:
            self._add(identity, topics=-1, size=-TOPIC_BYTES - len(topic))

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def count(self, name: str, subscription: SubscriptionState | None, identity: str = "") -> None:
        """A subscription has changed, or is gone; the identity that begins it has it from then on."""
        before = self.subscriptions.get(name)
        if subscription is None:
            if before is not None:
                del self.subscriptions[name]
                self._add(before.identity, -1, -before.held, -before.pairs, size=-before.size)
            return
        if before is None:
            if not identity:
                return
            before = self.subscriptions[name] = Account(identity)
            self._add(identity, 1)
        held, pairs = len(subscription.held), pairs_of(len(subscription.held), subscription.weight)
        size = _size_of(subscription)
        self._add(before.identity, 0, held - before.held, pairs - before.pairs, size=size - before.size)
        before.held, before.pairs, before.size = held, pairs, size

    def _add(
        self, identity: str, subscriptions: int = 0, held: int = 0, pairs: int = 0, topics: int = 0, size: int = 0
    ) -> None:
        used = self.used.get(identity)
        if used is None:
            used = self.used[identity] = Used()
        used.subscriptions += subscriptions
        used.held += held
        used.pairs += pairs
        used.topics += topics
        used.size += size
        if not (used.subscriptions or used.topics):
            del self.used[identity]

    # -- judging ------------------------------------------------------------------------------------------------------

    def excess_of_topics(self, identity: str, new: list[str], quota: Quota) -> str:
        """Why an identity may not bring these new topics into being; empty if it may."""
        used = self.used.get(identity) or _NOTHING
        if used.topics + len(new) > quota.topics:
            return _said(identity, f"{quota.topics} topics that it was the first to publish on", "topics")
        if used.size + sum(TOPIC_BYTES + len(topic) for topic in new) > quota.state_bytes:
            return _said(identity, f"{quota.state_bytes} bytes of what this stage must not forget", "state_bytes")
        return ""

    def excess_of_change(self, identity: str, ask: ChangeAsk, found: SubscriptionState | None, quota: Quota) -> str:
        """Why an identity may not change a subscription so; empty if it may. It may always hold less, if that need not wait."""
        account = self.subscriptions.get(ask.subscription)
        used = self.used.get(identity if account is None else account.identity) or _NOTHING
        if found is not None and found.under_way and not ask.ends:
            if len(found.waiting) >= CHANGES_MAX:
                return f"subscription {ask.subscription!r} has {CHANGES_MAX} changes that wait for their turn: wait for outcomes"
            if used.size + _size_of_asked(ask) > quota.state_bytes:
                return _said(identity, f"{quota.state_bytes} bytes of what this stage must not forget", "state_bytes")
        if ask.ends or not (ask.add or ask.opens):
            return ""
        held = len(dict.fromkeys(ask.add)) if found is None else len(found.after(ask))
        more = held - (0 if found is None else len(found.held))
        pairs = pairs_of(held, ask.weight if found is None else found.weight) - (
            0 if account is None else account.pairs
        )
        size = sum(map(len, ask.add)) + sum(map(len, ask.where.values())) + HELD_BYTES * len(ask.add)
        size += sum(map(len, ask.start or ())) + (SUBSCRIPTION_BYTES if found is None else CHANGE_BYTES)
        if found is not None and found.resume is not None and len(found.resume.changes) >= CHANGES_MAX:
            return f"subscription {ask.subscription!r} has acknowledged nothing since {CHANGES_MAX} changes: acknowledge first"
        if found is None and used.subscriptions >= quota.subscriptions:
            return _said(identity, f"{quota.subscriptions} subscriptions", "subscriptions")
        if more > 0 and used.held + more > quota.held:
            return _said(identity, f"{quota.held} topics in all its subscriptions", "held_topics")
        if pairs > 0 and used.pairs + pairs > quota.pairs:
            return _said(
                identity, f"{quota.pairs} pairs of topics in subscriptions with an order across topics", "pairs"
            )
        if used.size + size > quota.state_bytes:
            return _said(identity, f"{quota.state_bytes} bytes of what this stage must not forget", "state_bytes")
        return ""

    def excess_of_shifts(
        self, asks: Iterable[ChangeAsk], subscriptions: Mapping[str, SubscriptionState], quotas: Quotas
    ) -> str:
        """Why a transaction may not change these subscriptions so, each of which counts for its own identity; empty if it may."""
        more: dict[str, Used] = {}
        for ask in asks:
            found, account = subscriptions.get(ask.subscription), self.subscriptions.get(ask.subscription)
            if found is None or account is None or not ask.add:
                continue
            held, gained = len(found.held), len(ask.add)
            added = more.setdefault(account.identity, Used())
            added.held += gained
            added.pairs += pairs_of(held + gained, found.weight) - pairs_of(held, found.weight)
            added.size += (
                CHANGE_BYTES + (HELD_BYTES + NAME_BYTES) * gained + 16 * (2 * held + gained) + sum(map(len, ask.add))
            )
            added.size += sum(map(len, ask.where.values()))
        for identity, added in more.items():
            used, quota = self.used.get(identity) or _NOTHING, quotas.of(identity)
            if used.held + added.held > quota.held:
                return _said(identity, f"{quota.held} topics in all its subscriptions", "held_topics")
            if used.pairs + added.pairs > quota.pairs:
                return _said(
                    identity, f"{quota.pairs} pairs of topics in subscriptions with an order across topics", "pairs"
                )
            if used.size + added.size > quota.state_bytes:
                return _said(identity, f"{quota.state_bytes} bytes of what this stage must not forget", "state_bytes")
        return ""

    def excess_of_clock(self, name: str, clock: Mapping[str, int], quotas: Quotas) -> str:
        """Why an acknowledgement is too large to be kept; empty if it is not."""
        account = self.subscriptions.get(name)
        if account is None:
            return ""
        used, quota = self.used[account.identity], quotas.of(account.identity)
        if used.size - account.size + _size_of_clock(clock) <= quota.state_bytes:
            return ""
        return _said(account.identity, f"{quota.state_bytes} bytes of what this stage must not forget", "state_bytes")


_NOTHING = Used()


def pairs_of(held: int, weight: int) -> int:
    """How many pairs of topics a subscription makes that are ordered against each other."""
    return held * (held - 1) // 2 if weight else 0


def _said(identity: str, what: str, key: str) -> str:
    return f"identity {identity!r} may have {what} at one stage (limits.{key}_per_identity_max)"


def _size_of(subscription: SubscriptionState) -> int:
    held, resume = subscription.held, subscription.resume
    size = (
        SUBSCRIPTION_BYTES + HELD_BYTES * len(held) + sum(map(len, held)) + sum(map(len, subscription.where.values()))
    )
    size += HELD_BYTES * (len(subscription.low) + len(subscription.leaving))
    size += sum(_size_of_waiting(waiting) for waiting in subscription.waiting)
    size += sum(map(_size_of_change, subscription.news))
    if resume is not None:
        size += _size_of_clock(resume.clock) + sum(map(_size_of_change, resume.changes))
        size += _size_of_clock(resume.start or {})
    return size


def _size_of_clock(clock: Mapping[str, int]) -> int:
    return HELD_BYTES * len(clock) + sum(map(len, clock))


def _size_of_change(change: Change) -> int:
    return CHANGE_BYTES + 16 * (len(change.old) + len(change.new)) + HELD_BYTES * len(change.entries)


def _size_of_waiting(waiting: WaitingChange | str) -> int:
    return NAME_BYTES + len(waiting) if isinstance(waiting, str) else _size_of_request(waiting.request)


def _size_of_request(request: Request) -> int:
    """A request with a change, which may have events as well."""
    size = 0
    for part in request.parts:
        if isinstance(part, PublishAsk):
            size += CHANGE_BYTES + len(part.topic) + sum(len(chunk.data) for chunk in part.chunks)
        else:
            size += _size_of_asked(part)
    return size


def _size_of_asked(ask: ChangeAsk) -> int:
    """A change that waits: it has its names for itself."""
    names = (*ask.add, *ask.remove)
    return CHANGE_BYTES + NAME_BYTES * len(names) + sum(map(len, names)) + sum(map(len, ask.where.values()))
