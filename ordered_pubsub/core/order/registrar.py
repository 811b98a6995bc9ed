"""The registrar: keeps subscriptions, and lets their changes enter the line one at a time.

Two changes of one subscription that travel at once could overtake each other, since they need not have a stage in common;
then stages would disagree about the subscription's topics. So the next change of a subscription starts when the one before
has passed its last stage. It also visits a stage that the one before has visited (`via`), for only then is it after that
one in the total order, and what the subscription gains comes after all that it has lost. Each has a version, 1, 2, 3, …
per subscription, by which marks refer to it.

What a subscription may hold is judged when a change is asked for, by what it will hold (`planned`) when all that were taken
before have passed. How many subscriptions a session may have is judged here as well: nothing but this outlives the
session's connections.

A subscription with a name outlives its client's session: another session of the same client goes on with it (`opens`), by a
change that changes no topic, but has a place in the order and marks it there for the session that had it before. It names the
epoch after the last, so that what a dead session had asked for, and that comes late, takes nothing back. How far it
has acknowledged, and the changes since, are kept here (`Resume`), so that whoever resumes can repeat them.

A subscription belongs to the identity that began it (`owner`): nobody else opens, changes, acknowledges or ends it, whatever he
is called. Who opens one must be allowed to subscribe to all that it holds then, not only to what he adds.

What a subscription has lost it may still need events of, from before that place. So it is remembered where it has gained and
lost a topic until its client says that it is beyond that, and the subscription itself is forgotten when all is said. Its id is
not used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.messages import (
    ANYBODY,
    Acked,
    Change,
    ChangeAsk,
    Ended,
    Progress,
    Refusal,
    Request,
    Resume,
    SubscribeRights,
    TopicsReleased,
)
from ordered_pubsub.core.states import States

TOPICS_MAX = 10_000
"""Topics that one request may name, and that a subscription of weight 0 may hold."""
HOLDERS_AT_ONCE = 500
"""So many subscriptions are looked at in one step."""
ORDERED_TOPICS_MAX = 2_000
"""Topics that a subscription may hold that is ordered across them: each pair costs its stages some memory."""
SUBSCRIPTIONS_MAX = 10_000
"""Subscriptions that one session may have registered at one stage: more than it needs, and no more than it may leave behind."""

EXPIRING = "@expiring-"
"""With the rank of a stage: who asks there for the end of subscriptions that nothing was heard of. No session has such an id."""
WRONG_EPOCH = "epoch"
"""The code of a refusal whose reason is the epoch of a named subscription: who opens it must name a later one."""
OPENINGS_MAX = 5
"""So often a named subscription is opened anew when somebody else has opened it in between."""


def epoch_after(refusal: Refusal, openings: int) -> int | None:
    """In which epoch to open a named subscription instead, of which so many openings were refused since others had opened it.

    None if it was refused for another reason, or if they do so again and again.
    """
    return refusal.opened + 1 if refusal.code == WRONG_EPOCH and openings < OPENINGS_MAX else None


ABSENT, CHANGING, HELD, LAST, ENDED = "absent", "changing", "held", "ending", "ended"
REGISTERED = States(
    "a subscription at its registrar",
    {
        ABSENT: {CHANGING: "a client begins it", LAST: "a client begins it, and has asked for its end"},
        CHANGING: {
            CHANGING: "the next change has its turn, or another session opens it",
            HELD: "its change has passed the last stage",
            LAST: "its end is asked for, behind what is under way",
        },
        HELD: {
            CHANGING: "a change is asked for; with a name also: another session opens it, in the next epoch",
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
    waiting: list[WaitingChange] = msgspec.field(default_factory=list)
    weight: int = 2
    epoch: int = 0
    """how often it was begun or resumed, if it has a name"""
    owner: str = ""
    """the identity whose it is"""
    resume: Resume | None = None
    """how far it has acknowledged, if it has a name and has not ended"""
    where: dict[str, str] = msgspec.field(default_factory=dict)
    """its filters when all changes that were taken have passed"""
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
        self.under_way = False
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
            _change_filters(self.resume.where, change.lost, change.where)

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
        return _after(self.held, ask)


class Registrar(msgspec.Struct):
    """The subscriptions that are registered at one stage."""

    subscriptions: dict[str, SubscriptionState] = msgspec.field(default_factory=dict)
    held: dict[str, int] = msgspec.field(default_factory=dict)
    """client → how many of these are its own"""
    lingering: dict[str, int] = msgspec.field(default_factory=dict)
    """client → how many of its own have ended, and may still need what came before"""

    def refuse(self, request: Request, ask: ChangeAsk) -> Refusal | None:
        """Why a request for a change is not taken, if it is not."""
        found = self.subscriptions.get(ask.subscription)
        subscription = found or SubscriptionState(request.client)
        topics_max = ORDERED_TOPICS_MAX if ask.weight else TOPICS_MAX
        is_expiring = request.client.startswith(EXPIRING)
        opened = 0
        if found is not None and found.owner not in (request.identity, ANYBODY) and not is_expiring:
            code, reason = "not-yours", f"subscription {ask.subscription!r} belongs to another identity"
        elif subscription.client != request.client and not ask.opens and not is_expiring:
            code, reason = _not_yours(subscription, ask)
        elif subscription.ended:
            code, reason = "ended", f"subscription {ask.subscription!r} has ended; begin another one"
        elif ask.opens and found is None and not ask.add:
            code, reason = (
                "unknown",
                f"subscription {ask.subscription!r} is not there: name the topics that it is to hold",
            )
        elif ask.opens and ask.opens != subscription.epoch + 1:
            code, opened = WRONG_EPOCH, subscription.epoch
            reason = f"subscription {ask.subscription!r} is in epoch {opened}: it is to be opened in the next one"
        elif ask.opens and found is not None and (denied := found.denied(request.reading)) is not None:
            code = "forbidden"
            reason = f"subscription {ask.subscription!r} holds {denied!r}, and {request.identity!r} may not subscribe to that"
        elif ask.opens and found is not None and (difference := found.difference(ask)):
            code, reason = "exists", f"subscription {ask.subscription!r} {difference}"
        elif found is None and self._is_full(request.client):
            code = "limit"
            reason = (
                f"a client may have {SUBSCRIPTIONS_MAX} subscriptions at one stage: end one, or hold more topics in one"
            )
        elif len(subscription.after(ask)) > topics_max:
            code = "too-many-topics"
            reason = f"subscription {ask.subscription!r} would hold more than {topics_max} topics; use a second one"
        else:
            return None
        return request.refused(code, reason, True, opened)

    def ask(self, ask: ChangeAsk, waiting: WaitingChange) -> WaitingChange | None:
        """Take a change; return it if its turn is now."""
        client = waiting.request.client
        subscription = self.subscriptions.get(ask.subscription)
        if subscription is None:
            subscription = SubscriptionState(client, weight=ask.weight, owner=waiting.request.identity)
            self.subscriptions[ask.subscription] = subscription
            if ask.opens:
                subscription.epoch = ask.opens
                subscription.resume = Resume(0, (), {}, 0, ask.start, {})
            self.held[client] = self.held.get(client, 0) + 1
        elif ask.opens:
            subscription.epoch, subscription.owner = ask.opens, waiting.request.identity
            _add(self.held, subscription.client, -1)
            subscription.client = client
            _add(self.held, client, 1)
        subscription.ended = ask.ends
        before, subscription.planned = subscription.held, subscription.after(ask)
        will_hold = set(subscription.planned)
        lost = [topic for topic in before if topic not in will_hold]
        _change_filters(subscription.where, lost, _filters_of(ask, before, subscription.planned))
        subscription.gaining.update(dict.fromkeys(ask.add, True))
        subscription.waiting.append(waiting)
        return self.next_turn(ask.subscription)

    def _is_full(self, client: str) -> bool:
        """Whether a client has as many as it may have; of those that have ended, as many again."""
        held = self.held.get(client, 0)
        return held - self.lingering.get(client, 0) >= SUBSCRIPTIONS_MAX or held >= 2 * SUBSCRIPTIONS_MAX

    def next_turn(self, name: str) -> WaitingChange | None:
        """The change of this subscription whose turn it is now, if there is one."""
        # DEVIATION (Baldoni, figure 5: a subscriber starts its changes itself, several at once if it likes): one at a time, or
        # stages disagree about its topics. Mutant `no-registrar`.
        subscription = self.subscriptions[name]
        if subscription.under_way or not subscription.waiting:
            return None
        subscription.under_way = True
        return subscription.waiting.pop(0)

    def begin(self, ask: ChangeAsk) -> Change:
        """The next step of a subscription whose turn it is."""
        subscription = self.subscriptions[ask.subscription]
        subscription.version += 1
        resume = subscription.resume if ask.opens and subscription.version > 1 else None
        new = _after(subscription.topics, ask)
        return Change(
            subscription=ask.subscription,
            version=subscription.version,
            old=subscription.topics,
            new=new,
            weight=ask.weight,
            best_effort=ask.best_effort,
            resume=None
            if resume is None
            else replace(resume, topics=subscription.acked_topics, changes=list(resume.changes)),
            where=_filters_of(ask, subscription.topics, new),
        )

    def meet(self, name: str, ranks: list[int], here: int) -> int:
        """A stage for the change to visit, so that it meets the one before; and remember where the next one meets it."""
        # DEVIATION (the same): consecutive changes meet at a stage, or subscribers wait for each other in a ring. Mutant
        # `never-meet`.
        subscription = self.subscriptions[name]
        low, high = max(ranks, default=here), min(ranks, default=here)
        meeting = low if subscription.via is None else subscription.via
        subscription.via = min(max(meeting, high), low) if ranks else meeting
        return meeting

    def settle(self, change: Change) -> WaitingChange | None:
        """Take note that a change has passed its last stage; return the next one if there is one."""
        subscription = self.subscriptions.get(change.subscription)
        if subscription is None or subscription.version != change.version:
            return None
        subscription.settled(change)
        following = self.next_turn(change.subscription)
        if following is None:
            subscription.planned = None
            subscription.gaining.clear()
            if subscription.ended:
                subscription.lose_name()
                _add(self.lingering, subscription.client, 1)
            self._maybe_forget(change.subscription)
        return following

    def passed(self, passed: TopicsReleased) -> None:
        """A subscription needs nothing any more of some topics that it had left."""
        subscription = self.subscriptions.get(passed.subscription)
        if subscription is None:
            return
        for topic in passed.topics:
            if subscription.leaving.pop(topic, None) is not None and topic not in subscription.topics:
                subscription.low.pop(topic, None)
        self._maybe_forget(passed.subscription)

    def _maybe_forget(self, name: str) -> None:
        """One that has ended is forgotten when it needs nothing any more."""
        subscription = self.subscriptions[name]
        if subscription.ended and not subscription.leaving and not subscription.under_way and not subscription.waiting:
            del self.subscriptions[name]
            _add(self.held, subscription.client, -1)
            _add(self.lingering, subscription.client, -1)

    def finding_holders(self, topic: str, found: dict[str, bool]) -> Iterator[None]:
        """The sessions that may have something to do with a topic whose events nobody keeps, found in small steps.

        Who begins to hold the topic meanwhile has nothing to do with what is asked about.
        """
        for count, name in enumerate(list(self.subscriptions), 1):
            subscription = self.subscriptions.get(name)
            if subscription is not None and subscription.resume is None and subscription.concerns(topic):
                found[subscription.client] = True
            if not count % HOLDERS_AT_ONCE:
                yield

    # -- acknowledgements of those that have a name -------------------------------------------------------------------

    def refuse_ack(self, acked: Acked) -> Ended | None:
        """Why an acknowledgement is not taken, if the subscription is not this session's any more."""
        subscription = self.subscriptions.get(acked.subscription)
        if subscription is None or subscription.resume is None:
            code, reason = "ended", f"subscription {acked.subscription!r} is not there any more"
        elif subscription.owner != acked.identity:
            code, reason = "not-yours", f"subscription {acked.subscription!r} belongs to another identity"
        elif subscription.client != acked.session:
            code, reason = "taken-over", f"subscription {acked.subscription!r} goes on in another session now"
        else:
            return None
        return Ended(acked.subscription, acked.session, code, reason)

    def is_news(self, acked: Acked) -> bool:
        """Whether an acknowledgement of this session says more than is known."""
        resume = self.subscriptions[acked.subscription].resume
        assert resume is not None
        is_older = acked.version < resume.version or acked.position < resume.position
        return not is_older and (acked.clock != resume.clock or acked.version > resume.version)

    def acknowledged(self, acked: Acked) -> None:
        """A named subscription has acknowledged more."""
        subscription = self.subscriptions.get(acked.subscription)
        resume = None if subscription is None else subscription.resume
        if resume is not None and acked.position >= resume.position and acked.version >= resume.version:
            for change in resume.changes:
                if change.version <= acked.version:
                    _change_filters(resume.where, change.lost, change.where)
            resume.changes = [change for change in resume.changes if change.version > acked.version]
            resume.version, resume.clock, resume.position = acked.version, dict(acked.clock), acked.position

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if what is written at the top, and beside the fields, does not hold between two inputs."""
        held: dict[str, int] = {}
        lingering: dict[str, int] = {}
        for name, one in self.subscriptions.items():
            _add(held, one.client, 1)
            if one.ended and not one.under_way:
                _add(lingering, one.client, 1)
            assert one.under_way or not one.waiting, f"{name} has changes that wait, and none is under way"
            assert (one.planned is not None) == one.under_way, f"{name} is to hold {one.planned}"
            assert one.under_way or not one.gaining, f"{name} gains {one.gaining}, and nothing is under way"
            assert len(set(one.topics)) == len(one.topics), f"{name} holds a topic twice: {one.topics}"
            assert not one.ended or one.under_way or one.leaving, f"{name} has ended, needs nothing, and is there"
            if one.resume is not None:
                versions = [one.resume.version, *(change.version for change in one.resume.changes)]
                assert versions == list(range(versions[0], versions[0] + len(versions))), (
                    f"{name} resumes by {versions}"
                )
                assert versions[-1] <= one.version, f"{name} is at {one.version}, and resumes by {versions}"
        assert held == self.held, f"clients have {held} subscriptions, and {self.held} are counted"
        assert lingering == self.lingering, f"{lingering} have ended, and {self.lingering} are counted"


def _not_yours(subscription: SubscriptionState, ask: ChangeAsk) -> tuple[str, str]:
    if subscription.resume is None:
        return "not-yours", f"subscription {ask.subscription!r} belongs to another client"
    return "taken-over", f"subscription {ask.subscription!r} goes on in another session now"


def _add(counts: dict[str, int], key: str, step: int) -> None:
    counts[key] = counts.get(key, 0) + step
    if not counts[key]:
        del counts[key]


def _change_filters(where: dict[str, str], lost: Iterable[str], gained: Mapping[str, str]) -> None:
    for topic in lost:
        where.pop(topic, None)
    where.update(gained)


def _filters_of(ask: ChangeAsk, old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, str]:
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


def _after(topics: tuple[str, ...], ask: ChangeAsk) -> tuple[str, ...]:
    """What a subscription with these topics holds after a change; after its end, nothing, whatever else is asked for."""
    if ask.ends:
        return ()
    dropped = set(ask.remove)
    return tuple(dict.fromkeys((*(topic for topic in topics if topic not in dropped), *ask.add)))
