"""One subscription, as its registrar knows it: what it holds, what is under way, how far it has acknowledged.

`REGISTERED` has its states. What becomes of it when it changes is here; whose turn it is, and what is refused, in `registrar`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.messages import (
    Change,
    ChangeAsk,
    Progress,
    Request,
    Resume,
    SubscribeRights,
    find_change,
)
from ordered_pubsub.core.states import States

ABSENT, CHANGING, RESERVED, HELD = "absent", "changing", "reserved", "held"
LAST, ENDED = "ending", "ended"
REGISTERED = States(
    "a subscription at its registrar",
    {
        ABSENT: {CHANGING: "a client begins it", LAST: "a client begins it, and has asked for its end"},
        CHANGING: {
            CHANGING: "the next change has its turn, or another session opens it",
            RESERVED: "what was under way is over, and a transaction has its turn",
            HELD: "its change has passed the last stage",
            LAST: "its end is asked for, behind what is under way",
        },
        RESERVED: {
            RESERVED: "another transaction has its turn",
            CHANGING: "the transaction has passed the last stage, or will not happen, and a change has its turn",
            HELD: "the transaction has passed the last stage, or will not happen",
            LAST: "its end is asked for, behind the transaction",
        },
        HELD: {
            CHANGING: "a change is asked for; with a name also: another session opens it, in the next epoch",
            RESERVED: "a transaction changes it",
            LAST: "its end is asked for, or nothing was heard of its client for long",
        },
        LAST: {
            ENDED: "all has passed, and its client may still need what came before",
            ABSENT: "all has passed, and nothing of it is needed",
        },
        ENDED: {ABSENT: "its client says that it needs nothing any more, or nothing was heard of it for long"},
    },
)


class WaitingChange(msgspec.Struct, frozen=True):
    """A request with a change that waits for its turn."""

    request: Request
    home: int
    now: float


class SubscriptionState(msgspec.Struct):
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
    waiting: list[WaitingChange | str] = msgspec.field(default_factory=list)
    """what waits for its turn: changes, and transactions that change it, by their names"""
    reserved: str = ""
    """the transaction whose turn it is"""
    weight: int = 2
    epoch: int = 0
    """how often it was begun or resumed, if it has a name"""
    owner: str = ""
    """the identity whose it is"""
    resume: Resume | None = None
    """how far it has acknowledged, if it has a name and has not ended"""
    where: dict[str, str] = msgspec.field(default_factory=dict)
    """its filters when all changes that were taken have passed"""
    filters: dict[str, str] = msgspec.field(default_factory=dict)
    """its filters"""
    news: list[Change] = msgspec.field(default_factory=list)
    """changes that others have made, in transactions, and that its client may not know of yet"""
    was_changed: bool = False
    """whether a transaction has changed it while others waited: they were judged by something else"""
    gaining: dict[str, bool] = msgspec.field(default_factory=dict)
    """topics that changes gain that have not all passed yet"""
    low: dict[str, int] = msgspec.field(default_factory=dict)
    """up to where it needs nothing of a topic: where it has gained it"""
    leaving: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """topics that it has lost, and may need something of: where, and by which change"""

    @property
    def phase(self) -> str:
        """Which of the states of `REGISTERED` it is in."""
        if self.ended:
            return LAST if self.under_way else ENDED
        if self.reserved:
            return RESERVED
        return CHANGING if self.under_way else HELD

    @property
    def acked_topics(self) -> tuple[str, ...]:
        """What it held after the last change that it has acknowledged, when nothing is under way."""
        assert self.resume is not None
        return next((change.old for change in self.resume.changes if change.old != change.new), self.topics)

    def settled(self, change: Change) -> None:
        """Take note of what it has gained and lost."""
        change = _with_known_names(change, self.topics)
        self.topics = change.new
        if self.filters or change.where:
            change_filters(self.filters, change.lost, change.where)
        held = set(change.old)
        for topic in change.new if not change.best_effort else ():
            if topic not in held:
                self.low.setdefault(topic, change.entries.get(topic, 0))
        for topic in change.lost if not change.best_effort else ():
            self.leaving[topic] = (change.entries.get(topic, 0), change.version)
        if self.resume is None:
            return
        if change.version > self.resume.version:
            self.resume.changes.append(_remembered(change))
        else:  # its client knew of it earlier
            change_filters(self.resume.where, change.lost, change.where)

    @property
    def reached(self) -> dict[str, int] | None:
        """How far it has acknowledged each topic that it may need, or where it begins; None if it has no name."""
        return None if self.resume is None else self._named_floors(self.resume)

    @property
    def has_acknowledged(self) -> bool:
        """Whether it has acknowledged anything, if it has a name."""
        return self.resume is not None and bool(self.resume.version or self.resume.position or self.resume.clock)

    def lose_name(self) -> None:
        """It has ended: nobody goes on with it, but its client may still need what it has not acknowledged."""
        if self.resume is not None:
            self.low = {**self.low, **self._named_floors(self.resume)}
            self.resume = None

    def passed(self, said: Progress) -> tuple[str, ...]:
        """What it had left and needs nothing of any more, by what its client says."""
        return tuple(
            topic
            for topic, (end, version) in self.leaving.items()
            if said.acked.get(topic, -1) >= end or (said.is_all and topic not in said.acked and said.version >= version)
        )

    def floors(self) -> dict[str, int]:
        """Up to where it needs nothing, for each topic of which it may need anything."""
        floors = dict(self.low) if self.resume is None else self._named_floors(self.resume)
        for topic in self.gaining:
            floors.setdefault(topic, 0)  # nothing is to be forgotten until it is known where it is gained
        return floors

    def _named_floors(self, resume: Resume) -> dict[str, int]:
        floors = dict(resume.clock)
        if not resume.version and resume.start is not None and resume.changes:
            first = resume.changes[0]
            floors = {topic: resume.clock.get(topic, resume.start.get(topic, 0)) for topic in first.new}
        for change in resume.changes:
            held = set(change.old)
            for topic in change.new:
                if topic not in held:
                    floors.setdefault(topic, change.entries.get(topic, 0))
        return floors

    def plan(self, granted: Iterable[Change] = ()) -> None:
        """Work out anew what it will hold when all that was taken has passed: what waits was asked for before this was known."""
        held, where = self.topics, dict(self.filters)
        for change in granted:
            held = change.new
            change_filters(where, change.lost, change.where)
        for waiting in self.waiting:
            ask = None if isinstance(waiting, str) else find_change(waiting.request.parts)
            if ask is not None:
                held = followed(held, where, ask)
        self.planned, self.where = held, where

    def expect(self, ask: ChangeAsk) -> None:
        """One more change was taken."""
        self.planned = followed(self.held, self.where, ask)

    def difference(self, ask: ChangeAsk) -> str:
        """In what it is not what is asked for, in words; empty if it is."""
        topics = self.held
        if self.resume is None:
            return "has no name to be resumed by"
        if not ask.add:
            return ""
        if set(topics) != set(ask.add):
            held = ", ".join(map(repr, sorted(topics))) or "nothing"
            return f"is there and holds {held}: subscribe to the same, then change it by add() and remove()"
        if self.weight != ask.weight:
            return "is there with another order=: subscribe with the same, or end it first by unsubscribe()"
        if self.where != ask.where:
            return "is there with another filter (where=): subscribe with the same, or end it first by unsubscribe()"
        return ""

    def concerns(self, topic: str) -> bool:
        """Whether it may wait for events of a topic: for those of one that it has left as well."""
        return bool(self.leaving) or topic in self.gaining or topic in self.topics

    def denied(self, reading: SubscribeRights | None) -> str | None:
        """A topic that it holds, and that who opens it may not subscribe to, if there is one."""
        return None if reading is None else reading.denied(dict.fromkeys((*self.topics, *self.held)))

    @property
    def held(self) -> tuple[str, ...]:
        """What it will hold when all changes that were taken have passed."""
        return self.topics if self.planned is None else self.planned

    def after(self, ask: ChangeAsk) -> tuple[str, ...]:
        """What it will hold after one more change."""
        return after(self.held, ask)


def followed(held: tuple[str, ...], where: dict[str, str], ask: ChangeAsk) -> tuple[str, ...]:
    """What a subscription with these topics, and filters, holds after one more change; the filters become those after it."""
    new = after(held, ask)
    holds = set(new)
    change_filters(where, [topic for topic in held if topic not in holds], filters_of(ask, held, new))
    return new


def change_filters(where: dict[str, str], lost: Iterable[str], gained: Mapping[str, str]) -> None:
    """Filters change with the topics that they are for."""
    for topic in lost:
        where.pop(topic, None)
    where.update(gained)


def filters_of(ask: ChangeAsk, old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, str]:
    """The filters of the topics that it gains by a change; one that it held before keeps the one that it has."""
    held, holds = set(old), set(new)
    return {topic: where for topic, where in ask.where.items() if topic in holds and topic not in held}


def _with_known_names(change: Change, topics: tuple[str, ...]) -> Change:
    """A change in which what was held before has the names that it had: else each change that is kept has all names anew."""
    known = {topic: topic for topic in topics}
    share = known.setdefault
    old = topics if change.old == topics else tuple(share(topic, topic) for topic in change.old)
    new = tuple(share(topic, topic) for topic in change.new)
    entries = {share(topic, topic): count for topic, count in change.entries.items()}
    return replace(change, old=old, new=new, entries=entries)


def _remembered(change: Change) -> Change:
    """As much of a change as who resumes later has to know."""
    if change.old == change.new:
        return Change(change.subscription, change.version, (), (), change.weight, change.best_effort)
    return replace(change, resume=None)


def after(topics: tuple[str, ...], ask: ChangeAsk) -> tuple[str, ...]:
    """What a subscription with these topics holds after a change; after its end, nothing, whatever else is asked for."""
    if ask.ends:
        return ()
    dropped = set(ask.remove)
    return tuple(dict.fromkeys((*(topic for topic in topics if topic not in dropped), *ask.add)))
