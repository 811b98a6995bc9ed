"""What a transaction does to subscriptions, judged when it has its turn at all of them at one registrar.

A transaction changes several subscriptions, perhaps of other clients, perhaps one of them several times. Before it enters the
line it has its turn at each: nothing else of that subscription is under way, and nothing else begins before it has passed its
last stage, or will not happen. So what is judged here stays true until then, and on the line nothing of it can fail any more.
What is granted changes nothing yet: if it will not happen, it leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs
import msgspec

from ordered_pubsub.core.messages import ANYBODY, Change, ChangeAsk
from ordered_pubsub.core.order.registered import SubscriptionState, after, change_filters, filters_of

RESUME_BYTES_MAX = 32 << 20
"""So large these may be, together: whoever goes on with it is told all of them at once."""
BYTES_MORE = 9
"""What the name of a topic takes beside its letters, with an entry, at most."""
NEWS_MAX = 1_000
"""So many changes by others a subscription takes whose client does not say that it knows of them."""
CHANGES_BYTES_MAX = 1 << 20
"""So large the changes of a transaction may be, together: each names all the topics of its subscription, before and after it, and
an operation is one frame between stages."""
BUSY = "busy"
"""The code of the refusal of a transaction that has waited too long for its turns, or for which there is no room to wait."""
RanksOf = Callable[[Iterable[str]], list[int]]
"""The ranks of the stages that own some topics."""


class Reservation(msgspec.Struct):
    """A transaction's turns at one registrar."""

    transaction: str
    coordinator: int
    """the rank of the stage that carries it out"""
    identity: str
    """who asks for it"""
    asks: list[tuple[int, ChangeAsk]]
    """its changes of subscriptions that are registered here, each with its place among the parts of the transaction"""
    names: list[str] = msgspec.field(default_factory=list)
    """these subscriptions, in the order in which their turns are taken"""
    taken: int = 0
    """how many of these turns it has"""
    vias: dict[str, int] = msgspec.field(default_factory=dict)
    """when it is granted: stages that it will have visited"""

    def __post_init__(self) -> None:
        self.names = self.names or sorted({ask.subscription for _, ask in self.asks})


@attrs.frozen
class Granted:
    """A transaction may happen, as far as one registrar is concerned."""

    changes: list[tuple[int, Change]]
    meets: list[int]
    """stages that it has to visit, so that it meets what came before"""


@attrs.frozen
class Conflict:
    """Why a transaction will not happen."""

    code: str
    subscription: str
    topic: str
    reason: str


@attrs.define
class _Running:
    """One subscription, as the changes before have left it."""

    topics: tuple[str, ...]
    filters: dict[str, str]
    version: int
    via: int | None


def meeting(via: int | None, ranks: list[int], here: int) -> tuple[int, int]:
    """A stage for a change to visit, so that it meets the one before; and where the next one meets it."""
    # DEVIATION (Baldoni, figure 5): consecutive changes meet at a stage, or subscribers wait for each other in a ring. Mutant
    # `never-meet`.
    low, high = max(ranks, default=here), min(ranks, default=here)
    stage = low if via is None else via
    return stage, min(max(stage, high), low) if ranks else stage


def grant(
    reservation: Reservation,
    subscriptions: Mapping[str, SubscriptionState],
    topics_max: Callable[[int], int],
    ranks_of: RanksOf,
    here: int,
) -> Granted | Conflict:
    """Judge a transaction that has all its turns."""
    running: dict[str, _Running] = {}
    granted, size = Granted([], []), 0
    for place, ask in reservation.asks:
        name, found = ask.subscription, subscriptions[ask.subscription]
        now = running.get(name)
        if now is None:
            now = running[name] = _Running(found.topics, dict(found.filters), found.version, found.via)
        change = _changed(ask, found, now, reservation.identity, topics_max(found.weight))
        if isinstance(change, Conflict):
            return change
        size += bytes_of((change,))
        if size > CHANGES_BYTES_MAX:
            return too_large(size)
        now.topics, now.version = change.new, change.version
        change_filters(now.filters, change.lost, change.where)
        stage, now.via = meeting(now.via, ranks_of(change.topics), here)
        granted.changes.append((place, change))
        granted.meets.append(stage)
    reservation.vias = {name: now.via for name, now in running.items() if now.via is not None}
    return granted


def gone(name: str) -> Conflict:
    """Why a transaction is refused that changes what is not there."""
    return Conflict("unknown", name, "", f"there is no subscription {name!r}, or it has ended")


def refuse_at_once(ask: ChangeAsk, found: SubscriptionState | None, identity: str) -> Conflict | None:
    """Why a transaction may not change a subscription, whatever that holds, if so."""
    name = ask.subscription
    if found is None or found.ended:
        return gone(name)
    if found.resume is None:
        return Conflict("no-name", name, "", f"subscription {name!r} has no name: only its own client changes it")
    if found.owner not in (identity, ANYBODY) and not ask.is_managed:
        reason = f"subscription {name!r} belongs to another identity, and {identity!r} has no right to manage it"
        return Conflict("forbidden", name, "", reason)
    return None


def bytes_of(changes: Iterable[Change]) -> int:
    """About how many bytes changes have on their way, when they are complete."""
    return sum(
        BYTES_MORE + len(topic)
        for change in changes
        for topics in (change.old, change.new, change.topics)
        for topic in topics
    )


def too_large(size: int) -> Conflict:
    """Why a transaction is refused that changes too much at once."""
    reason = (
        f"the changes of this transaction are {size:,} bytes large, since each names all the topics of its subscription; at most "
        f"{CHANGES_BYTES_MAX:,} may be: divide it, or let these subscriptions hold fewer topics"
    )
    return Conflict("limit", "", "", reason)


def _changed(
    ask: ChangeAsk, found: SubscriptionState, now: _Running, identity: str, topics_max: int
) -> Change | Conflict:
    name = ask.subscription
    trouble = refuse_at_once(ask, found, identity)
    if trouble is not None:
        return trouble
    assert found.resume is not None
    if len(found.resume.changes) >= NEWS_MAX or len(found.news) >= NEWS_MAX:
        reason = f"subscription {name!r} has not acknowledged {NEWS_MAX:,} changes: it takes more when its client has"
        return Conflict("limit", name, "", reason)
    held = set(now.topics)
    if ask.strict:
        for topic in ask.remove:
            if topic not in held:
                reason = f"subscription {name!r} does not hold {topic!r}, which it was to lose"
                return Conflict("conflict", name, topic, reason)
        for topic in ask.add:
            if topic in held:
                reason = f"subscription {name!r} holds {topic!r} already, which it was to gain"
                return Conflict("conflict", name, topic, reason)
    new = after(now.topics, ask)
    if len(new) > topics_max:
        reason = f"subscription {name!r} would hold more than {topics_max} topics; use a second one"
        return Conflict("too-many-topics", name, "", reason)
    change = Change(
        subscription=name,
        version=now.version + 1,
        old=now.topics,
        new=new,
        weight=found.weight,
        best_effort=False,
        where=filters_of(ask, now.topics, new),
    )
    if (1 + len(found.resume.changes)) * bytes_of((change,)) > RESUME_BYTES_MAX:
        reason = f"subscription {name!r} has not acknowledged many large changes: it takes more when its client has"
        return Conflict("limit", name, "", reason)
    return change
